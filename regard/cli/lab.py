"""regard lab: run experiments that test statements about attention."""

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
    from regard.cli.console import Console
    from regard.lab.experiment import Report, Settings, Table

REFUTED = 3  # exit code when a claim does not hold
QUIET_SECONDS = 10  # between two lines of progress without a terminal


def lab(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="An experiment, or all; without it: list them."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Change a setting; may be repeated."),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            parser=filled_path, metavar="FOLDER", help="Folder for NAME.png and NAME.svg."
        ),
    ] = Path("runs/lab"),
    html: Annotated[
        bool, typer.Option("--html", help="Also write NAME.html, a self-contained page.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print formula and settings; run nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run an experiment on attention: claims, measurements, verdicts and a figure.

    \b
    regard lab
    regard lab orthogonal
    regard lab all --html
    regard lab scores --set laws='["signs"]' --set samples=2000 --html

    Exit codes: 0 every claim holds, 3 a claim does not hold, 2 the command is wrong.
    """
    from regard.lab import ALL, load

    overrides = changes or []
    if name is None:
        for option, value in (("--set", changes), ("--html", html), ("--explain", explain)):
            if value:
                raise InputError(f"{option} needs an experiment", hint="regard lab lists them")
        _list(as_json)
    elif name == ALL:
        if explain:
            raise InputError("--explain is for one experiment", hint="regard lab lists them")
        _run_all(overrides, _writable(out), html, as_json)
    else:
        experiment = load(name)
        if explain:
            _explain(name, experiment, overrides, as_json)
        else:
            _run(name, experiment, overrides, _writable(out), html, as_json)


def _list(as_json: bool) -> None:
    """Print the name and the claim of every experiment."""
    from regard.lab import claims

    if as_json:
        rows = [{"name": name, "claim": claim} for name, claim in claims().items()]
        print(json.dumps(rows, indent=2))
        return
    widest = max(map(len, claims()))
    for name, claim in claims().items():
        print(f"{name:<{widest}}  {claim}")


def _explain(name: str, experiment: ModuleType, overrides: list[str], as_json: bool) -> None:
    """Print the claim, the formula and the settings of an experiment."""
    from regard.lab import claim_of
    from regard.lab.experiment import settings
    from regard.lab.page import described

    fields = described(settings(experiment.Settings, overrides))
    claim = claim_of(experiment.__doc__)
    if as_json:
        rows = [dict(zip(("field", "value", "sentence"), row, strict=True)) for row in fields]
        about = {
            "experiment": name,
            "claim": claim,
            "about": experiment.__doc__,
            "settings": rows,
        }
        print(json.dumps(about, indent=1, ensure_ascii=False))
        return

    formula = (experiment.__doc__ or "").partition("\n\n")[2].rstrip()
    print(f"{name}: {claim}\n\n{formula}\n\nSettings, changed by --set FIELD=VALUE:")
    widest = max(len(f"{field}={value}") for field, value, _ in fields)
    for field, value, sentence in fields:
        print(f"  {printable(f'{field}={value}'):<{widest}}  {sentence}")


def _run(
    name: str, experiment: ModuleType, overrides: list[str], out: Path, html: bool, as_json: bool
) -> None:
    """Run one experiment, write its files and print its report."""
    from regard.lab.experiment import settings

    chosen = settings(experiment.Settings, overrides)
    _claim_files(name, out, html)
    report = _run_with_progress(name, experiment, chosen)
    files = _write(name, experiment, chosen, report, out, html)
    if as_json:
        fields = _as_dict(name, experiment, chosen, report, files)
        print(json.dumps(fields, indent=1, ensure_ascii=False))
    else:
        _print(name, experiment, chosen, report, files)
    if not report.holds:
        raise typer.Exit(REFUTED)


def _run_all(overrides: list[str], out: Path, html: bool, as_json: bool) -> None:
    """Run every experiment and print one line for each.

    An override that one of them does not accept is refused before the first experiment runs.
    """
    from regard.cli.console import Console
    from regard.lab import load, names
    from regard.lab.experiment import settings

    experiments = {name: load(name) for name in names()}
    chosen = {
        name: settings(experiment.Settings, overrides) for name, experiment in experiments.items()
    }
    for name in experiments:
        _claim_files(name, out, html)

    console = Console(highlight=False)
    widest = max(map(len, experiments))
    reports = []
    refuted = 0
    for name, experiment in experiments.items():
        start = time.monotonic()
        report = _run_with_progress(name, experiment, chosen[name])
        files = _write(name, experiment, chosen[name], report, out, html)
        reports.append(_as_dict(name, experiment, chosen[name], report, files))
        refuted += not report.holds
        if not as_json:
            seconds = time.monotonic() - start
            line = f"{name:<{widest}}  {_verdict(report):<22}{seconds:6.1f} s"
            _print_line(console, line, _colour(report))
            _print_problems(console, report)

    if as_json:
        print(json.dumps(reports, indent=1, ensure_ascii=False))
    else:
        total = len(experiments)
        _print_line(
            console, f"{total - refuted} of {total} experiments hold; figures in {printable(out)}"
        )
    if refuted:
        raise typer.Exit(REFUTED)


def _print_problems(console: Console, report: Report) -> None:
    """Print the claims of a report that do not hold, and its notes."""
    for claim in report.claims:
        if not claim.holds:
            numbers = f"expected {claim.expected}, measured {claim.measured}"
            _print_line(console, f"  DOES NOT HOLD: {claim.text}; {numbers}")
    for note in report.notes:
        _print_line(console, f"  note: {note}")


def _run_with_progress(name: str, experiment: ModuleType, chosen: Settings) -> Report:
    """Run an experiment; show its progress in a terminal's status line or on stderr."""
    from regard.cli.console import Console
    from regard.lab.experiment import watched

    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        with console.status(name) as status:

            def show(what: str, done: int, total: int) -> None:
                status.update(f"{name}: {what}, {done / total:.0%}")

            with watched(show):
                return experiment.run(chosen)

    last_line = time.monotonic()

    def print_sometimes(what: str, done: int, total: int) -> None:
        nonlocal last_line
        if time.monotonic() - last_line >= QUIET_SECONDS:
            last_line = time.monotonic()
            print(f"  {name}: {what}, {done / total:.0%}", file=sys.stderr, flush=True)

    with watched(print_sometimes):
        return experiment.run(chosen)


def _claim_files(name: str, out: Path, html: bool) -> None:
    """Refuse to overwrite files that regard did not write, before the experiment runs."""
    from regard.disk import claim_output

    for ending in ("png", "svg", *(["html"] if html else [])):
        claim_output(out / f"{name}.{ending}")


def _write(
    name: str, experiment: ModuleType, chosen: Settings, report: Report, out: Path, html: bool
) -> list[Path]:
    """Write the figure, and the page if `html`; return the paths."""
    from regard.lab.page import draw, report_page

    files = draw(report.figure, out, name)
    if html:
        page = report_page(name, experiment, chosen, report)
        files.append(page.save(out / f"{name}.html"))
    return files


def _verdict(report: Report) -> str:
    holding = sum(claim.holds for claim in report.claims)
    return f"{holding} of {len(report.claims)} claims hold"


def _colour(report: Report) -> str:
    return "bold green" if report.holds else "bold red"


def _writable(folder: Path) -> Path:
    """Create the folder if needed; raise before the experiment runs if it is not writable."""
    if folder.exists() and not folder.is_dir():
        raise InputError("not a folder", where="--out", got=folder)
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise InputError("cannot write there", where="--out", got=folder)
    return folder


def _print(
    name: str, experiment: ModuleType, chosen: Settings, report: Report, files: list[Path]
) -> None:
    """Print a report: claim, settings, verdicts, tables, notes and files."""
    from regard.cli.console import Console
    from regard.lab import claim_of
    from regard.lab.page import described

    console = Console(highlight=False)
    _print_line(console, f"{name}: {claim_of(experiment.__doc__)}", "bold")
    fields = ", ".join(f"{field}={value}" for field, value, _ in described(chosen))
    _print_line(console, printable(f"settings: {fields}"))

    for claim in report.claims:
        verdict, style = ("holds", "green") if claim.holds else ("DOES NOT HOLD", "bold red")
        _print_line(console, f"\n{claim.text}")
        _print_line(console, f"  expected  {claim.expected}")
        _print_line(console, f"  measured  {claim.measured}")
        _print_line(console, f"  {verdict}", style)
    for table in report.tables:
        _print_line(console, f"\n{table.title}", "bold")
        _print_line(console, _aligned(table))
    for note in report.notes:
        _print_line(console, f"\nnote: {note}")
    _print_line(console, f"\n{_verdict(report)}", _colour(report))
    _print_line(console, "wrote " + ", ".join(map(printable, files)))


def _print_line(console: Console, text: str, style: str | None = None) -> None:
    console.print(text, style=style, soft_wrap=True, markup=False)


def _aligned(table: Table) -> str:
    """A table as text; columns of numbers are aligned right."""
    from regard.lab.experiment import cell

    lines = [table.columns, *(tuple(map(cell, row)) for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    is_number = [
        all(isinstance(row[column], int | float | None) for row in table.rows) and bool(table.rows)
        for column in range(len(table.columns))
    ]
    rows = []
    for line in lines:
        entries = [
            f"{entry:>{width}}" if number else f"{entry:<{width}}"
            for entry, width, number in zip(line, widths, is_number, strict=True)
        ]
        rows.append("  " + "  ".join(entries).rstrip())
    return "\n".join(rows)


def _as_dict(
    name: str, experiment: ModuleType, chosen: Settings, report: Report, files: list[Path]
) -> dict[str, Any]:
    """A report as JSON prints it."""
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
    """A table entry for JSON, which has neither infinity nor NaN."""
    if isinstance(entry, float):
        return entry if math.isfinite(entry) else None
    return entry if isinstance(entry, str | int | None) else str(entry)
