"""A console of rich that leaves errors of its stream to the command line."""

from __future__ import annotations

from rich.console import Console as RichConsole


class Console(RichConsole):
    """rich's console. If its reader has gone, as that of `| head`, rich would end the process with
    exit code 1, which is that of a fault in regard."""

    def on_broken_pipe(self) -> None:
        raise  # the BrokenPipeError: `cli.main` ends with the exit code of a closed pipe
