"""Standard input, output and error, any of which may be closed, full or gone."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any, TextIO

from regard.cli.waiting import clear_line
from regard.errors import InputError

STANDARD_OUTPUT = "standard output"


def fill_gaps() -> None:
    """Open /dev/null for the standard descriptors that were closed before the start.

    Otherwise the next file to be opened would get the number of one of them, and whatever is
    printed would be written into it. Python has None for a closed stream: stderr gets a real one,
    stdin stays None, for which `typed` raises.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            _to_null(number)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


class _Output(io.FileIO):
    """Standard output whose errors name it, since those of Python name no file."""

    def write(self, data: Any) -> int | None:
        try:
            return super().write(data)
        except OSError as problem:
            problem.filename = STANDARD_OUTPUT
            raise


def name_output() -> None:
    """Let sys.stdout write to an `_Output`, unless a test or a notebook has replaced it."""
    stream = sys.stdout
    if not isinstance(stream, io.TextIOWrapper):
        return
    # an answer may have characters that the terminal cannot show
    stream.reconfigure(errors="backslashreplace")
    if type(stream) is not io.TextIOWrapper or stream.fileno() != 1:
        return
    stream.flush()
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Output(1, "w", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def check_output() -> None:
    """Raise InputError if standard output is closed, before any work is done."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        raise InputError("standard output is closed", hint="send it to a file, or to /dev/null")
    name_output()


def typed() -> TextIO:
    """Standard input; raises InputError if it is closed."""
    if sys.stdin is None:
        raise InputError(
            "nothing to read: standard input is closed",
            hint="type it, or send it with a pipe or < FILE",
        )
    return sys.stdin


def tell(message: str) -> None:
    """Print a message on stderr. If that fails too, the exit code has to suffice."""
    try:
        clear_line()
        print(f"regard: {message}", file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Send what a stream still buffers, and all that is written later, to /dev/null."""
    with contextlib.suppress(OSError, ValueError):  # a test's stream has no descriptor
        _to_null(stream.fileno())


def _to_null(number: int) -> None:
    handle = os.open(os.devnull, os.O_RDWR)
    if handle != number:
        os.dup2(handle, number)
        os.close(handle)
