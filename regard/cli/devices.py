"""The option --device, which train, chat, ask and evaluate share."""

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
