"""What the terminal shows while a corpus is prepared: a bar a step, or a line now and then."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from regard.cli.waiting import clear_line
from regard.data.progress import reporting_to

if TYPE_CHECKING:
    from rich.console import Console

SOON = 1.0  # seconds until something is shown: most corpora are prepared by then
QUIET_SECONDS = 10  # between two lines when there is no terminal


class Preparing:
    """`with Preparing(console): …` shows the progress of what is prepared inside."""

    def __init__(self, console: Console):
        self._console = console
        self._reporting = reporting_to(self._report)
        self._bar: Any = None
        self._tasks: dict[str, Any] = {}
        self._began: float | None = None
        self._last_line = 0.0

    def __enter__(self) -> Preparing:
        self._reporting.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._reporting.__exit__(*error)
        self._end()

    def _report(self, step: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if self._began is None:
            self._began = now
            self._last_line = now
        if self._console.is_terminal:
            if self._bar is not None or now - self._began > SOON:
                self._draw(step, done, total)
        elif now - self._last_line > QUIET_SECONDS:
            self._last_line = now
            share = f" {done / total:4.0%}" if total else f" {done:,} examples"
            self._console.print(f"preparing the corpus: {step}{share}", soft_wrap=True)
        if step == "writing" and done == total:  # the last step
            self._end()
            self._began = None

    def _draw(self, step: str, done: int, total: int | None) -> None:
        if self._bar is None:
            from rich.progress import (
                BarColumn,
                Progress,
                TaskProgressColumn,
                TextColumn,
                TimeRemainingColumn,
            )

            clear_line()
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
            )
            self._bar.start()
        if step not in self._tasks:
            self._tasks[step] = self._bar.add_task(step, total=total)
        self._bar.update(self._tasks[step], completed=done, total=total)

    def _end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._bar = None
        self._tasks = {}
