"""How far preparation is, for whoever asked: nobody, unless `reporting_to` is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Progress = Callable[[str, int, int | None], object]
"""A function of a step of preparation, what of it is done, and all of it (None: not known)."""

_progress: ContextVar[Progress | None] = ContextVar("progress", default=None)


@contextmanager
def reporting_to(progress: Progress) -> Iterator[None]:
    """Report the progress of preparations inside to a function.

    >>> with reporting_to(print):
    ...     report("reading", 1, 2)
    reading 1 2
    """
    token = _progress.set(progress)
    try:
        yield
    finally:
        _progress.reset(token)


def reporter() -> Progress:
    """A function that reports as `report` does here, also if another thread calls it."""
    return _progress.get() or (lambda step, done, total: None)


def report(step: str, done: int, total: int | None) -> None:
    progress = _progress.get()
    if progress is not None:
        progress(step, done, total)
