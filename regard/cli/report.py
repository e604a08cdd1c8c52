"""regard report: the report of a run as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.devices import Device
from regard.cli.inference import inference_threads
from regard.cli.paths import filled_path
from regard.cli.waiting import Waiting
from regard.errors import InputError, printable


def report(
    run: Annotated[Path, typer.Argument(parser=filled_path, metavar="RUN", help="A run's folder.")],
    out: Annotated[
        Path | None,
        typer.Option(
            parser=filled_path,
            metavar="FILE.html",
            help="Write the page here. Default: RUN/report.html.",
        ),
    ] = None,
    test: Annotated[
        bool,
        typer.Option(
            "--test", help="Also score the test examples. Do this once, when the model is final."
        ),
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Answer at most this many inputs, evenly spread. Default: as many as in a "
            "validation.",
        ),
    ] = None,
    device: Device = "auto",
) -> None:
    """Write the report of a run: what was trained, how good it is, what to type next.

    \b
    The page is one HTML file that needs no network: scores with 95 % intervals,
    answers, curves, errors worth looking at, attention, data, recipe, budget
    and environment. `regard train` writes it at its end. The run may also be
    under way, or stopped.

    \b
    regard report runs/demo
    regard report runs/demo --out demo.html
    regard report runs/demo --test
    """
    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        raise InputError("the file must end in .html", where="--out", got=printable(out))
    from regard.disk import claim_output

    if out is not None:
        claim_output(out)
    with Waiting(f"reading {run}"), inference_threads(None):
        from regard.pages.report import FILE
        from regard.pages.report import report as make

        if out is None and run.is_dir():
            claim_output(run / FILE)
        page = make(run, test=test, limit=limit, device=device)
        path = page.save(out or run / FILE)
    print(f"wrote {printable(path)}")
