"""regard doctor: what regard finds on this machine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.waiting import Waiting
from regard.errors import printable

if TYPE_CHECKING:
    from regard.doctor import Findings


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """Versions, devices, the C library, folders and extras: what regard finds on this machine.

    \b
    regard doctor
    regard doctor --json
    """
    with Waiting("looking"):
        from regard.doctor import examine

        findings = examine()
    if as_json:
        print(json.dumps(findings.to_json(), ensure_ascii=False, indent=1))
    else:
        print("\n".join(_lines(findings)))


def _lines(findings: Findings) -> list[str]:
    rows = {
        "regard": findings.regard,
        "python": findings.python,
        "system": findings.system,
        "torch": f"{findings.torch}, {findings.threads} of {findings.cores} threads",
        "memory": f"{_size(findings.memory)} available",
        "device": _devices(findings),
        "C library": _library(findings),
        "cache": f"{findings.cache}, {_size(findings.cache_free)} free",
        "data": f"{findings.data}: {', '.join(findings.data_sets) or 'nothing fetched'}",
    }
    for name, installed in findings.extras.items():
        rows[f"extra {name}"] = "installed" if installed else f"pip install 'regard[{name}]'"
    return [f"{name:<20}{printable(value)}" for name, value in rows.items()]


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


def _size(count: int) -> str:
    return f"{count / 10**9:,.1f} GB"
