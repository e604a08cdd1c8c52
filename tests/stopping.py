"""A process of regard that gets a signal at a chosen moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from regard.__main__ import main

ROOT = Path(__file__).parents[1]
# Through exec of a text, as in dataclasses: Python remembers such an interrupt (`__main__.py`).
SEND = "os.kill(os.getpid(), number)\nfor _ in range(1000): pass"


def run_with_signal(
    number: signal.Signals, place: str, words: Sequence[object], *, text: str = "", new: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a command that gets a signal when it first calls the function `place` with an argument
    that has the text. In a `new` Python, or in a fork of this one, which imports nothing."""
    arguments = [place, text, str(int(number)), *map(str, words)]
    if not new:
        return _forked(arguments)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "tests.stopping", *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


def _forked(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # it uses none of the threads
            child = os.fork()
        if child == 0:
            code = 70
            try:
                os.dup2(out.fileno(), 1)
                os.dup2(error.fileno(), 2)
                sys.stdin = open(os.devnull)  # noqa: SIM115
                sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
                sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
                warnings.simplefilter("ignore")
                code = _run(arguments)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        out.seek(0)
        error.seek(0)
        code = os.waitstatus_to_exitcode(status)
        return subprocess.CompletedProcess(arguments, code, out.read(), error.read())


def _run(arguments: Sequence[str]) -> int:
    # A shell starts programs of the background with Ctrl-C ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    place, text, number, *words = arguments
    sys.argv = ["regard", *words]
    _send_when_called(place, text, int(number))
    return main()


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
    sys.exit(_run(sys.argv[1:]))
