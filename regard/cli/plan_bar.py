"""One progress bar over all runs of a comparison, or of a sweep on a cluster."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
    redirect_stdout,
)
from pathlib import Path
from typing import TYPE_CHECKING

from regard.cli.progress import QUIET_SECONDS
from regard.cli.waiting import Waiting
from regard.errors import printable
from regard.train.report import SilentReporter

if TYPE_CHECKING:
    from regard.checkpoint import Progress
    from regard.cli.console import Console
    from regard.fleet import Fleet
    from regard.train import Reporter


def connected(fleet: Fleet | None) -> AbstractContextManager[object]:
    """The cluster, while its tasks run; nothing if there is none."""
    return nullcontext() if fleet is None else _connected(fleet)


@contextmanager
def _connected(fleet: Fleet) -> Iterator[None]:
    """Ray prints the logs of machines that die to sys.stdout, where a program may read our JSON:
    they are dropped. A console that was made before has a file of its own."""
    with ExitStack() as stack:
        sink = stack.enter_context(Path(os.devnull).open("w"))
        stack.enter_context(redirect_stdout(sink))
        with Waiting("connecting to Ray"):
            stack.enter_context(fleet)
        yield


def console_for(as_json: bool) -> Console:
    """Where progress is shown: stdout, or stderr if JSON goes there."""
    from regard.cli.console import Console

    return Console(file=sys.stderr if as_json else sys.stdout, highlight=False)


class PlanBar:
    """One progress bar over all runs of a plan, or plain lines now and then. Several runs may be
    under way at once, each reporting from a thread of its own."""

    def __init__(self, console: Console, total: int):
        self.console = console
        self.over = 0
        self.total = total
        self.label = ""
        self.under_way: dict[_RunReporter, float] = {}  # how much of each is done
        self.last = time.monotonic()
        self.lock = threading.RLock()

    def __enter__(self) -> PlanBar:
        self.live = None
        if self.console.is_terminal:
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Live

            self.live = Live(
                TextColumn("{task.fields[over]}/{task.total:.0f}"),
                BarColumn(),
                TextColumn("{task.fields[label]}", markup=False),
                TimeElapsedColumn(),
                console=self.console,
            )
            self.bar = self.live.add_task("", total=self.total, over=0, label="")
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def reporter(self, label: str) -> AbstractContextManager[Reporter]:
        """The reporter of one run."""
        return _RunReporter(self, printable(label))

    def update(self, over: int, total: int) -> None:
        """Show that `over` of `total` runs are over."""
        with self.lock:
            changed = over > self.over
            self.over = max(self.over, over)
            self.total = total
            self.show("", always=changed)

    def show(self, facts: str, *, always: bool = False) -> None:
        others = len(self.under_way) - 1
        more = f"  and {others} more" if others > 0 else ""
        label = f"{self.label}  {facts}".rstrip() + more
        if self.live is not None:
            self.live.update(
                self.bar,
                total=self.total,
                completed=min(self.over + sum(self.under_way.values()), self.total),
                over=self.over,
                label=label,
            )
        elif always or time.monotonic() - self.last >= QUIET_SECONDS:
            self.last = time.monotonic()
            line = f"{self.over} of {self.total} runs have finished; {label}"
            self.console.print(line, soft_wrap=True, markup=False)


class _RunReporter(SilentReporter, AbstractContextManager["_RunReporter"]):
    """Moves the bar of the plan."""

    def __init__(self, bar: PlanBar, label: str):
        self.bar = bar
        self.label = label

    def __enter__(self) -> _RunReporter:
        with self.bar.lock:
            self.bar.label = self.label
            self.bar.under_way[self] = 0.0
        return self

    def __exit__(self, *_: object) -> None:
        with self.bar.lock:
            self.bar.under_way.pop(self, None)

    def stepped(self, progress: Progress, loss: float, speed: float, done: float) -> None:
        with self.bar.lock:
            if self in self.bar.under_way:
                self.bar.under_way[self] = done
            self.bar.label = self.label
            self.bar.show(f"{done:4.0%}  step {progress.step:,}  loss {loss:.3f}")

    def noted(self, message: str) -> None:
        with self.bar.lock:
            line = printable(f"{self.label}: {message}")
            self.bar.console.print(line, soft_wrap=True, markup=False)
