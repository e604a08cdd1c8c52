"""`python -m regard` is `regard`. Both begin here, so that Ctrl-C ends in one line even while
modules are imported."""

import sys

INTERRUPTED = 130


def main() -> int:
    """Run one command and return its exit code."""
    try:
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


if __name__ == "__main__":
    sys.exit(main())
