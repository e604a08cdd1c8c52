"""regard doctor: what regard finds on this machine, or in a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.waiting import Waiting
from regard.errors import printable

if TYPE_CHECKING:
    from regard.doctor import Check, Findings


FOUND = 1  # the exit code if something is wrong
MARKS = {"ok": "ok", "failed": "FAILED", "skipped": "-"}


def doctor(
    run: Annotated[
        Path | None, typer.Argument(help="A run to check; without one, this machine.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """Check this machine, or whether a run is complete and can be resumed.

    Of a run it checks the files and checkpoints against their SHA-256, laws on its own weights
    (step by step = all at once, padding changes nothing, masked places weigh 0, beam 1 = greedy,
    save then load = before), and that two resumes of a temporary copy are equal. The run is not
    changed. Exit code 0: nothing is wrong; 1: something is, and the output says what to do.

    \b
    regard doctor
    regard doctor runs/first
    regard doctor runs/first --json
    """
    if run is not None:
        _examine_run(run, as_json)
        return
    with Waiting("looking"):
        from regard.doctor import examine

        findings = examine()
    if as_json:
        print(json.dumps(findings.to_json(), ensure_ascii=False, indent=1))
    else:
        print("\n".join(_lines(findings)))
    if findings.faults:
        raise typer.Exit(FOUND)


def _examine_run(run: Path, as_json: bool) -> None:
    with Waiting(f"checking {printable(run)}"):
        from regard.doctor import examine_run

        checks = list(examine_run(run))
    failures = [check for check in checks if check.state == "failed"]
    if as_json:
        record = {
            "run": str(run),
            "ok": not failures,
            "checks": [check.to_json() for check in checks],
        }
        print(json.dumps(record, ensure_ascii=False, indent=1))
    else:
        for check in checks:
            print(_line(check))
        print()
        if failures:
            print(f"{len(failures)} of {len(checks)} checks failed")
        else:
            print("nothing is wrong: the run is complete and can be resumed")
    if failures:
        raise typer.Exit(FOUND)


def _line(check: Check) -> str:
    hint = f"; {check.hint}" if check.hint else ""
    return f"{MARKS[check.state]:<8}{check.name:<28}{printable(check.what + hint)}"


def _lines(findings: Findings) -> list[str]:
    rows = {
        "regard": findings.regard,
        "python": findings.python,
        "system": findings.system,
        "torch": f"{findings.torch}, {_threads(findings)}",
        "packages": _packages(findings),
        "memory": f"{_size(findings.memory)} available",
        "device": _devices(findings),
        "C library": _library(findings),
        "cache": _cache(findings),
        "this folder": _here(findings),
        "data": f"{findings.data}: {', '.join(findings.data_sets) or 'nothing fetched'}",
    }
    for name, installed in findings.extras.items():
        rows[f"extra {name}"] = "installed" if installed else f"pip install 'regard[{name}]'"
    return [f"{name:<20}{printable(value)}" for name, value in rows.items()]


def _packages(findings: Findings) -> str:
    if not findings.outdated:
        return "none is older than this version of regard needs"
    return f"{'; '.join(findings.outdated)}: pip install --upgrade regard"


def _threads(findings: Findings) -> str:
    counts = f"{findings.threads} threads on {findings.cores} cores"
    if findings.threads <= findings.cores:
        return counts
    return f"{counts}, which is slower than one each; set OMP_NUM_THREADS={findings.cores}"


def _devices(findings: Findings) -> str:
    """What --device auto means, the GPUs, and why others are missing."""
    names = [
        f"{kind}:{number} {name}"
        for kind, devices in findings.devices.items()
        for number, name in enumerate(devices)
        if kind != "cpu"
    ]
    return "; ".join([findings.device, *names, *findings.missing_devices.values()])


def _library(findings: Findings) -> str:
    library = findings.library
    match library.state:
        case "off":
            return "turned off by REGARD_NATIVE=0"
        case "missing" if library.compiler is None:
            return "no C compiler; with one, decoding and linear attention are faster"
        case "missing":
            return f"{library.compiler} could not compile it; torch is used instead"
        case "wrong":
            return f"differs from torch by {library.difference:.1g}; turn it off: REGARD_NATIVE=0"
    return f"compiled with {library.compiler}; differs from torch by {library.difference:.1g}"


def _cache(findings: Findings) -> str:
    hint = "REGARD_CACHE names another folder"
    if findings.cache_fault is not None:
        return f"{findings.cache} cannot be written: {findings.cache_fault}; {hint}"
    found = f"{findings.cache}, {_size(findings.cache_free)} free, can be written and synced"
    return found + _too_little(findings.cache_free, hint)


def _here(findings: Findings) -> str:
    hint = "write runs elsewhere with --out"
    return f"{_size(findings.here_free)} free" + _too_little(findings.here_free, hint)


def _too_little(free: int, hint: str) -> str:
    from regard.doctor import LEAST_DISK

    return f"; that is little, less than {_size(LEAST_DISK)}; {hint}" if free < LEAST_DISK else ""


def _size(count: int) -> str:
    return f"{count / 10**9:,.1f} GB"
