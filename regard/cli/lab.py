"""regard lab: statements about attention, measured."""

from __future__ import annotations

import json
import math
import os
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


def lab(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="An experiment; not given: lists them.")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Change a setting; may be repeated.")
    ] = None,
    out: Annotated[
        Path, typer.Option(parser=filled_path, metavar="FOLDER", help="Where NAME.png and NAME.svg go.")
    ] = Path("runs/lab"),
    html: Annotated[bool, typer.Option("--html", help="Also NAME.html, a page that needs nothing but itself.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Only tell the formula and the settings.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON, for programs.")] = False,
) -> None:
    """Statements about attention as experiments: the claim, the measurement, the verdict, a picture.

    \b
    regard lab
    regard lab orthogonal
    regard lab scores --set laws='["signs"]' --set samples=2000 --html

    Exit codes: 0 every claim holds, 3 one does not, 2 something to mend in the command.
    """
    from regard.lab import claims, load

    if name is None:
        if stray := [word for word, given in (("--set", changes), ("--html", html), ("--explain", explain)) if given]:
            raise InputError(f"{stray[0]} needs an experiment", hint="regard lab lists them")
        listed = claims()
        if as_json:
            print(json.dumps([{"name": key, "claim": claim} for key, claim in listed.items()], indent=2))
        else:
            widest = max(map(len, listed))
            print("\n".join(f"{key:<{widest}}  {claim}" for key, claim in listed.items()))
        return
    experiment = load(name)
    _explain(experiment, changes or [], as_json) if explain else _run(
        name, experiment, changes or [], _writable(out), html, as_json
    )


def _explain(experiment: ModuleType, changes: list[str], as_json: bool) -> None:
    from regard.lab.experiment import settings
    from regard.lab.page import described

    fields = described(settings(experiment.Settings, changes))
    if as_json:
        rows = [dict(zip(("field", "value", "sentence"), row, strict=True)) for row in fields]
        print(json.dumps({"about": experiment.__doc__, "settings": rows}, indent=1, ensure_ascii=False))
        return
    print(f"{(experiment.__doc__ or '').strip()}\n\nSettings, changed by --set FIELD=VALUE:")
    widest = max(len(f"{field}={value}") for field, value, _ in fields)
    print("\n".join(f"  {printable(f'{field}={value}'):<{widest}}  {sentence}" for field, value, sentence in fields))


def _run(name: str, experiment: ModuleType, changes: list[str], out: Path, html: bool, as_json: bool) -> None:
    from regard.disk import claim_output, write_output
    from regard.lab import page
    from regard.lab.experiment import settings

    chosen = settings(experiment.Settings, changes)
    for ending in ("png", "svg", *(["html"] if html else [])):  # better told before the experiment than after it
        claim_output(out / f"{name}.{ending}")
    report: Report = experiment.run(chosen)
    files = page.draw(report.figure, out, name)
    if html:
        written = page.html(name, experiment.__doc__ or "", chosen, report)
        files.append(out / f"{name}.html")
        write_output(files[-1], lambda file: file.write(written.encode()))
    if as_json:
        print(json.dumps(_plain(name, experiment, chosen, report, files), indent=1, ensure_ascii=False))
    else:
        _print(name, experiment, chosen, report, files)
    if not report.holds:
        raise typer.Exit(REFUTED)


def _writable(folder: Path) -> Path:
    """The folder, made if need be: better told before the experiment than after it."""
    if folder.exists() and not folder.is_dir():
        raise InputError("not a folder", where="--out", got=folder)
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise InputError("cannot write there", where="--out", got=folder)
    return folder


def _print(name: str, experiment: ModuleType, chosen: Settings, report: Report, files: list[Path]) -> None:
    from rich.console import Console

    from regard.lab.page import described

    console = Console(highlight=False)
    _say(console, f"{name}: {(experiment.__doc__ or '').partition(chr(10))[0]}", "bold")
    _say(console, printable("settings: " + ", ".join(f"{field}={value}" for field, value, _ in described(chosen))))
    for claim in report.claims:
        verdict, style = ("holds", "green") if claim.holds else ("DOES NOT HOLD", "bold red")
        _say(console, f"\n{claim.text}")
        _say(console, f"  expected  {claim.expected}")
        _say(console, f"  measured  {claim.measured}")
        _say(console, f"  {verdict}", style)
    for table in report.tables:
        _say(console, f"\n{table.title}", "bold")
        _say(console, _aligned(table))
    kept = sum(claim.holds for claim in report.claims)
    _say(console, f"\n{kept} of {len(report.claims)} claims hold", "bold green" if report.holds else "bold red")
    _say(console, "wrote " + ", ".join(map(printable, files)))


def _say(console: Console, text: str, style: str | None = None) -> None:
    console.print(text, style=style, soft_wrap=True, markup=False)


def _aligned(table: Table) -> str:
    """Columns of one width each; numbers stand at the right."""
    from regard.lab.experiment import cell

    lines = [table.columns, *(tuple(map(cell, row)) for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    right = [all(isinstance(entry, int | float | None) for entry in column) for column in zip(*table.rows, strict=True)]
    return "\n".join(
        "  "
        + "  ".join(
            f"{entry:>{width}}" if numbers else f"{entry:<{width}}"
            for entry, width, numbers in zip(line, widths, right or [False] * len(widths), strict=True)
        ).rstrip()
        for line in lines
    )


def _plain(name: str, experiment: ModuleType, chosen: Settings, report: Report, files: list[Path]) -> dict[str, Any]:
    return {
        "experiment": name,
        "claim": (experiment.__doc__ or "").partition("\n")[0],
        "settings": chosen.model_dump(mode="json"),
        "holds": report.holds,
        "claims": [asdict(claim) for claim in report.claims],
        "tables": [
            {"title": table.title, "columns": table.columns, "rows": [list(map(_number, row)) for row in table.rows]}
            for table in report.tables
        ],
        "files": [str(file) for file in files],
    }


def _number(entry: object) -> object:
    """What JSON can say of an entry; it has no infinity and no not-a-number."""
    if isinstance(entry, float):
        return entry if math.isfinite(entry) else None
    return entry if isinstance(entry, str | int | None) else str(entry)
