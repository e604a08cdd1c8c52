"""regard lab: statements about attention, measured."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.paths import filled_path
from regard.errors import InputError, printable

if TYPE_CHECKING:
    from rich.console import Console

    from regard.lab.experiment import Report, Settings, Table

REFUTED = 3
QUIET_SECONDS = 10  # between two lines of progress when there is no terminal


def lab(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="An experiment, or all; not given: lists them."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Change a setting; may be repeated."),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(parser=filled_path, metavar="FOLDER", help="Where NAME.png and NAME.svg go."),
    ] = Path("runs/lab"),
    html: Annotated[
        bool, typer.Option("--html", help="Also NAME.html, a page that needs nothing but itself.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Only tell the formula and the settings.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON, for programs.")] = False,
) -> None:
    """Statements about attention as experiments: the claim, the measurement, the verdict, a picture.

    \b
    regard lab
    regard lab orthogonal
    regard lab all --html
    regard lab scores --set laws='["signs"]' --set samples=2000 --html

    Exit codes: 0 every claim holds, 3 one does not, 2 something to mend in the command.
    """
    from regard.lab import ALL, claims, load

    if name is None:
        if stray := [
            word
            for word, given in (("--set", changes), ("--html", html), ("--explain", explain))
            if given
        ]:
            raise InputError(f"{stray[0]} needs an experiment", hint="regard lab lists them")
        listed = claims()
        if as_json:
            print(
                json.dumps(
                    [{"name": key, "claim": claim} for key, claim in listed.items()], indent=2
                )
            )
        else:
            widest = max(map(len, listed))
            print("\n".join(f"{key:<{widest}}  {claim}" for key, claim in listed.items()))
        return
    if name == ALL:
        if explain:
            raise InputError("--explain is for one experiment", hint="regard lab lists them")
        _run_all(changes or [], _writable(out), html, as_json)
        return
    experiment = load(name)
    if explain:
        _explain(experiment, changes or [], as_json)
        return
    _run(name, experiment, changes or [], _writable(out), html, as_json)


def _explain(experiment: ModuleType, changes: list[str], as_json: bool) -> None:
    from regard.lab.experiment import settings
    from regard.lab.page import described

    fields = described(settings(experiment.Settings, changes))
    if as_json:
        rows = [dict(zip(("field", "value", "sentence"), row, strict=True)) for row in fields]
        print(
            json.dumps(
                {"about": experiment.__doc__, "settings": rows}, indent=1, ensure_ascii=False
            )
        )
        return
    print(f"{(experiment.__doc__ or '').strip()}\n\nSettings, changed by --set FIELD=VALUE:")
    widest = max(len(f"{field}={value}") for field, value, _ in fields)
    print(
        "\n".join(
            f"  {printable(f'{field}={value}'):<{widest}}  {sentence}"
            for field, value, sentence in fields
        )
    )


def _run(
    name: str, experiment: ModuleType, changes: list[str], out: Path, html: bool, as_json: bool
) -> None:
    from regard.lab.experiment import settings

    chosen = settings(experiment.Settings, changes)
    _claim(name, out, html)
    report = _watched(name, experiment, chosen)
    files = _write(name, experiment, chosen, report, out, html)
    if as_json:
        print(
            json.dumps(
                _plain(name, experiment, chosen, report, files), indent=1, ensure_ascii=False
            )
        )
    else:
        _print(name, experiment, chosen, report, files)
    if not report.holds:
        raise typer.Exit(REFUTED)


def _run_all(changes: list[str], out: Path, html: bool, as_json: bool) -> None:
    """Every experiment, a line each; a setting that one of them does not have is refused before
    the first runs."""
    from rich.console import Console

    from regard.lab import load, names
    from regard.lab.experiment import settings

    experiments = {name: load(name) for name in names()}
    chosen = {
        name: settings(experiment.Settings, changes) for name, experiment in experiments.items()
    }
    for name in experiments:
        _claim(name, out, html)
    console = Console(highlight=False)
    widest = max(map(len, experiments))
    reports = []
    refuted = 0
    for name, experiment in experiments.items():
        began = time.monotonic()
        report = _watched(name, experiment, chosen[name])
        files = _write(name, experiment, chosen[name], report, out, html)
        reports.append(_plain(name, experiment, chosen[name], report, files))
        refuted += not report.holds
        if not as_json:
            seconds = time.monotonic() - began
            _say(
                console,
                f"{name:<{widest}}  {_verdict(report):<22}{seconds:6.1f} s",
                _colour(report),
            )
            for claim in report.claims:
                if not claim.holds:
                    _say(
                        console,
                        f"  DOES NOT HOLD: {claim.text}; expected {claim.expected}, measured {claim.measured}",
                    )
            for note in report.notes:
                _say(console, f"  note: {note}")
    if as_json:
        print(json.dumps(reports, indent=1, ensure_ascii=False))
    else:
        total = len(experiments)
        _say(
            console, f"{total - refuted} of {total} experiments hold; pictures in {printable(out)}"
        )
    if refuted:
        raise typer.Exit(REFUTED)


def _watched(name: str, experiment: ModuleType, chosen: Settings) -> Report:
    """Run it; how far it is stands in a terminal's last line, or elsewhere in a line of stderr
    now and then."""
    from rich.console import Console

    from regard.lab.experiment import watched

    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        with console.status(name) as status:

            def show(what: str, done: int, total: int) -> None:
                status.update(f"{name}: {what}, {done / total:.0%}")

            with watched(show):
                return experiment.run(chosen)
    last = time.monotonic()

    def tell(what: str, done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= QUIET_SECONDS:
            last = time.monotonic()
            print(f"  {name}: {what}, {done / total:.0%}", file=sys.stderr, flush=True)

    with watched(tell):
        return experiment.run(chosen)


def _claim(name: str, out: Path, html: bool) -> None:
    """Refuse to overwrite files of somebody else: better told before the experiment than after
    it."""
    from regard.disk import claim_output

    for ending in ("png", "svg", *(["html"] if html else [])):
        claim_output(out / f"{name}.{ending}")


def _write(
    name: str, experiment: ModuleType, chosen: Settings, report: Report, out: Path, html: bool
) -> list[Path]:
    """Its picture, and its page if that is wanted."""
    from regard.disk import write_output
    from regard.lab import page

    files = page.draw(report.figure, out, name)
    if html:
        written = page.html(name, experiment.__doc__ or "", chosen, report)
        files.append(out / f"{name}.html")
        write_output(files[-1], lambda file: file.write(written.encode()))
    return files


def _verdict(report: Report) -> str:
    kept = sum(claim.holds for claim in report.claims)
    return f"{kept} of {len(report.claims)} claims hold"


def _colour(report: Report) -> str:
    return "bold green" if report.holds else "bold red"


def _writable(folder: Path) -> Path:
    """The folder, made if need be: better told before the experiment than after it."""
    if folder.exists() and not folder.is_dir():
        raise InputError("not a folder", where="--out", got=folder)
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise InputError("cannot write there", where="--out", got=folder)
    return folder


def _print(
    name: str, experiment: ModuleType, chosen: Settings, report: Report, files: list[Path]
) -> None:
    from rich.console import Console

    from regard.lab import claim_of
    from regard.lab.page import described

    console = Console(highlight=False)
    _say(console, f"{name}: {claim_of(experiment.__doc__)}", "bold")
    _say(
        console,
        printable(
            "settings: " + ", ".join(f"{field}={value}" for field, value, _ in described(chosen))
        ),
    )
    for claim in report.claims:
        verdict, style = ("holds", "green") if claim.holds else ("DOES NOT HOLD", "bold red")
        _say(console, f"\n{claim.text}")
        _say(console, f"  expected  {claim.expected}")
        _say(console, f"  measured  {claim.measured}")
        _say(console, f"  {verdict}", style)
    for table in report.tables:
        _say(console, f"\n{table.title}", "bold")
        _say(console, _aligned(table))
    for note in report.notes:
        _say(console, f"\nnote: {note}")
    _say(console, f"\n{_verdict(report)}", _colour(report))
    _say(console, "wrote " + ", ".join(map(printable, files)))


def _say(console: Console, text: str, style: str | None = None) -> None:
    console.print(text, style=style, soft_wrap=True, markup=False)


def _aligned(table: Table) -> str:
    """Columns of one width each; numbers stand at the right."""
    from regard.lab.experiment import cell

    lines = [table.columns, *(tuple(map(cell, row)) for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    right = [
        all(isinstance(entry, int | float | None) for entry in column)
        for column in zip(*table.rows, strict=True)
    ]
    return "\n".join(
        "  "
        + "  ".join(
            f"{entry:>{width}}" if numbers else f"{entry:<{width}}"
            for entry, width, numbers in zip(
                line, widths, right or [False] * len(widths), strict=True
            )
        ).rstrip()
        for line in lines
    )


def _plain(
    name: str, experiment: ModuleType, chosen: Settings, report: Report, files: list[Path]
) -> dict[str, Any]:
    from regard.lab import claim_of

    return {
        "experiment": name,
        "claim": claim_of(experiment.__doc__),
        "settings": chosen.model_dump(mode="json"),
        "holds": report.holds,
        "claims": [asdict(claim) for claim in report.claims],
        "tables": [
            {
                "title": table.title,
                "columns": table.columns,
                "rows": [list(map(_number, row)) for row in table.rows],
            }
            for table in report.tables
        ],
        "notes": list(report.notes),
        "files": [str(file) for file in files],
    }


def _number(entry: object) -> object:
    """What JSON can say of an entry; it has no infinity and no not-a-number."""
    if isinstance(entry, float):
        return entry if math.isfinite(entry) else None
    return entry if isinstance(entry, str | int | None) else str(entry)
