"""What ask and attend share: the run that answers, and the turns before an input."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli import streams
from regard.cli.paths import filled_path
from regard.errors import InputError

if TYPE_CHECKING:
    from regard.bundle import Bundle

Run = Annotated[
    Path,
    typer.Argument(parser=filled_path, metavar="RUN", help="A run's folder, or a checkpoint."),
]
History = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TURN",
        help="A turn before the input, for a chat; repeat it for each turn, oldest first.",
    ),
]


def check_one_input(history: list[str] | None, count: int, hint: str | None = None) -> None:
    """Refuse a history before several inputs, or before none."""
    if history and count != 1:
        number = "no input" if not count else f"{count} inputs"
        raise InputError("a history is of one input", where="--history", got=number, hint=hint)


def check_reads_history(bundle: Bundle, history: list[str] | None) -> None:
    """Refuse a history if the model is not for chats; say so if it reads one turn only."""
    if not history:
        return
    task = bundle.recipe.task
    if task != "chat":
        raise InputError("a history is for chats", where="--history", got=f"a model for {task}")
    if not bundle.task.source.reads_history:
        streams.tell("--history has no effect: this model was trained with data.turns = 1")


def with_history(text: str, history: list[str] | None) -> Any:
    """What the model reads: an input, or the turns before it and the input.

    >>> with_history("Hello!", None), with_history("And you?", ["Hi!", "I am fine."])
    ('Hello!', ['Hi!', 'I am fine.', 'And you?'])
    """
    return [*history, text] if history else text
