"""A process of regard that gets a signal at a chosen moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# Through exec of a text, as in dataclasses: Python remembers such an interrupt (`__main__.py`).
SEND = "os.kill(os.getpid(), number)\nfor _ in range(1000): pass"


def run_with_signal(
    number: signal.Signals, place: str, words: Sequence[object], *, text: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command that gets a signal when it first calls the function `place` with an argument
    that has the text."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "tests.stopping", place, text, str(int(number)), *map(str, words)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


def _send_when_called(place: str, text: str, number: int) -> None:
    home, _, name = place.rpartition(".")
    module = import_module(home)
    real = getattr(module, name)

    def replacement(*arguments: Any, **options: Any) -> Any:
        if text in repr(arguments):
            setattr(module, name, real)
            exec(SEND, {"os": os, "number": number})
        return real(*arguments, **options)

    setattr(module, name, replacement)


if __name__ == "__main__":
    from regard.__main__ import main

    # A shell starts programs of the background with Ctrl-C ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    place, text, number, *words = sys.argv[1:]
    sys.argv = ["regard", *words]
    _send_when_called(place, text, int(number))
    sys.exit(main())
