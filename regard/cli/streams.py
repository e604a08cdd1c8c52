"""Standard input, output and error, any of which may be closed, full or gone."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any, TextIO

from regard.errors import InputError

STANDARD_OUTPUT = "standard output"


def fill_gaps() -> None:
    """Give descriptors that were closed before the start to /dev/null.

    The next file to be opened would get the number otherwise, and whatever is printed would be
    written into it. Python has None for such a stream; output that nobody reads gets a real one,
    input stays None: `typed` says what is wrong.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            _to_null(number)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


class _Output(io.FileIO):
    """Standard output, whose errors say that they are its own: those of Python name no file."""

    def write(self, data: Any) -> int | None:
        try:
            return super().write(data)
        except OSError as problem:
            problem.filename = STANDARD_OUTPUT
            raise


def name_output() -> None:
    """Put an `_Output` under sys.stdout, unless a test or a notebook has put something else
    there."""
    stream = sys.stdout
    if not isinstance(stream, io.TextIOWrapper):
        return
    stream.reconfigure(
        errors="backslashreplace"
    )  # an answer may hold what the terminal cannot show
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
    """Nothing is begun whose result could not be seen."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        raise InputError("standard output is closed", hint="send it to a file, or to /dev/null")
    name_output()


def typed() -> TextIO:
    """Standard input, for a verb that reads it."""
    if sys.stdin is None:
        raise InputError(
            "nothing to read: standard input is closed",
            hint="type it, or send it with a pipe or < FILE",
        )
    return sys.stdin


def tell(message: str) -> None:
    """A message on stderr; if that is full or gone too, the exit code has to say it."""
    try:
        print(f"regard: {message}", file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Let what a stream still holds, and all that comes, go nowhere."""
    with contextlib.suppress(OSError, ValueError):  # a stream of a test has no number
        _to_null(stream.fileno())


def _to_null(number: int) -> None:
    handle = os.open(os.devnull, os.O_RDWR)
    if handle != number:
        os.dup2(handle, number)
        os.close(handle)
