"""`python -m regard` is `regard`. Both begin here, with few imports before Ctrl-C is caught. Until
then, while Python itself starts, Ctrl-C ends in Python's traceback."""

import os
import sys
from types import FrameType

INTERRUPTED = 130
IMPORTING = "<frozen importlib._bootstrap>"


def main() -> int:
    """Run one command and return its exit code."""
    try:
        import signal

        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell may ignore it
            signal.signal(signal.SIGINT, interrupt)
        from regard import cli

        code = cli.main()
    except KeyboardInterrupt:
        print("regard: stopped", file=sys.stderr)
        code = INTERRUPTED
    # If an interrupt passes through exec of a text, as in dataclasses, CPython remembers it even
    # if it was caught, and `python -m` kills itself at its end instead of returning a code. The
    # next exec of a text makes CPython forget it.
    exec("")  # noqa: S102
    return code


def interrupt(number: int, frame: FrameType | None) -> None:
    """Ctrl-C raises KeyboardInterrupt, but ends the process at once while a module is imported:
    code of modules wraps exceptions in others, prints them or loses them."""
    while frame is not None:
        if frame.f_code.co_filename == IMPORTING:
            os.write(2, b"regard: stopped\n")
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
