"""Commands that are for one process."""

from __future__ import annotations

import time

import typer

from regard.errors import InputError
from regard.torchrun import launch

QUIET = 5.0  # seconds in which torchrun notices that the first process has ended


def refuse_under_torchrun(what: str, *, where: str, hint: str) -> None:
    """Refuse a command if torchrun started it several times. The first process says so."""
    started = launch()
    if started.is_alone:
        return
    problem = InputError(what, where=where, got=f"{started.world} processes of torchrun", hint=hint)
    if started.rank:
        time.sleep(QUIET)  # torchrun ends all others as soon as one has ended
        raise typer.Exit(problem.exit_code)
    raise problem
