"""A line on stderr while something takes its time, so that nobody looks at nothing."""

from __future__ import annotations

import sys
import threading
from types import TracebackType

SOON = 0.4  # seconds until a terminal shows it; it vanishes when the wait is over
LATE = 5.0  # seconds until a log has it, as a line that stays

_shown: Waiting | None = None  # whose line a terminal shows


def clear_line() -> None:
    """Remove the line of a wait from the terminal, to print a message in its place."""
    if _shown is not None:
        _shown.end()


class Waiting:
    """`with Waiting("reading data"): …`, or `begin` and `end`, which may be called more than
    once."""

    def __init__(self, message: str):
        self.message = message
        self.on_terminal = sys.stderr.isatty()
        self.lock = threading.Lock()
        self.is_shown = False
        self.is_over = False
        self.timer = threading.Timer(SOON if self.on_terminal else LATE, self._show)
        self.timer.daemon = True

    def begin(self) -> Waiting:
        self.timer.start()
        return self

    def __enter__(self) -> Waiting:
        return self.begin()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.end()

    def end(self) -> None:
        self.timer.cancel()
        with self.lock:
            if self.on_terminal and self.is_shown and not self.is_over:
                print("\r\033[K", end="", file=sys.stderr, flush=True)
                _remember(None)
            self.is_over = True

    def _show(self) -> None:
        with self.lock:
            if self.is_over:
                return
            self.is_shown = True
            if self.on_terminal:
                _remember(self)
            print(
                f"{self.message} …",
                end="" if self.on_terminal else "\n",
                file=sys.stderr,
                flush=True,
            )


def _remember(wait: Waiting | None) -> None:
    global _shown
    _shown = wait
