"""The options --device and --ray, which several verbs share."""

from __future__ import annotations

from typing import Annotated

import typer

Device = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="auto|cpu|cuda|mps",
        help="Where the model computes; auto: a GPU if there is one.",
    ),
]

Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Train the runs on a Ray cluster (needs the extra ray): auto, ray://HOST:10001, or "
        "local for this machine alone.",
    ),
]
