"""The command line: one verb a file. `regard/cli/train.py` has a function (or a typer app) called
`train`, and so on.

A verb's file imports only what its options need; torch and the rest are imported inside the
function, so that `regard --help` stays instant.
"""

from __future__ import annotations

import os
import pkgutil
import sys
import threading
import traceback
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from regard import __version__, resources
from regard.cli import streams
from regard.errors import InputError, RegardError, did_you_mean, printable

VERBS = ("train", "chat", "ask", "evaluate", "budget", "data", "recipes", "lab")

SYNONYMS = {  # words of other programs
    "answer": "ask", "generate": "ask", "infer": "ask", "predict": "ask", "transcribe": "ask", "translate": "ask",
    "cost": "budget", "flops": "budget", "params": "budget", "talk": "chat", "dataset": "data", "download": "data",
    "fetch": "data", "score": "evaluate", "test": "evaluate", "validate": "evaluate", "experiment": "lab",
    "config": "recipes", "list": "recipes", "models": "recipes", "finetune": "train", "fit": "train", "learn": "train",
    "resume": "train", "sweep": "train",
}  # fmt: skip

DONE, FAULT, MEND, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 130, 141

EPILOG = """\b
Exit codes: 0 done, 1 a fault in regard,
2 something to mend in the command or its files,
3 a claim of the lab that does not hold,
130, 141 or 143 stopped by a signal."""


class Verbs(TyperGroup):
    """Verbs imported when they are asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        there = {module.name for module in pkgutil.iter_modules(__path__)}
        return [verb for verb in VERBS if verb in there]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        verb = getattr(import_module(f"{__name__}.{cmd_name}"), cmd_name)
        if not isinstance(verb, typer.Typer):
            function, verb = verb, typer.Typer(add_completion=False)
            verb.command(cmd_name, context_settings=HELP)(function)
        command = get_command(verb)
        command.name = cmd_name
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        known = self.list_commands(ctx)
        if args[0] not in known:
            hint = did_you_mean(SYNONYMS.get(args[0], args[0]), known)
            raise InputError("no such verb", got=f'"{args[0]}"', hint=hint)
        return args[0], self.get_command(ctx, args[0]), args[1:]


HELP = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(
    cls=Verbs,
    add_completion=False,
    context_settings=HELP,
    epilog=EPILOG,
    invoke_without_command=True,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"regard {__version__}")
        raise typer.Exit


@app.callback()
def regard(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and end."
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show where an error came from; may stand anywhere.")
    ] = False,
) -> None:
    """Train, question and compare models that read something and answer, attending as they go.

    \b
    regard train chat-attention --minutes 2 --out runs/first
    regard chat runs/first
    regard recipes list
    """
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; whatever goes wrong ends in one message on
    stderr."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug, words = "--debug" in given, [word for word in given if word != "--debug"]
    streams.fill_gaps()
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # and a prompt what is not UTF-8
    hook = threading.excepthook
    threading.excepthook = lambda thread: _told_of_thread(thread, debug)
    try:
        code = _run(words, debug)
        sys.stdout.flush()
    except OSError as problem:
        return _told(problem, debug)
    finally:
        threading.excepthook = hook
    return code


def _run(words: Sequence[str], debug: bool) -> int:
    try:
        streams.check_output()
        with get_command(app).make_context("regard", list(words)) as ctx:
            ctx.command.invoke(ctx)
        return DONE
    except typer.Exit as end:
        return end.exit_code
    except (KeyboardInterrupt, typer.Abort):
        streams.tell("stopped")
        return INTERRUPTED
    except Exception as error:
        return _told(error, debug)


def _told(error: Exception, debug: bool) -> int:
    """Say in one message what went wrong; the exit code."""
    if (
        isinstance(error, BrokenPipeError)
        or getattr(error, "filename", None) == streams.STANDARD_OUTPUT
    ):
        streams.discard(sys.stdout)  # Python would complain once more when it closes it
    if isinstance(error, BrokenPipeError):
        return PIPE_CLOSED  # whoever read our output has seen enough
    if debug:
        traceback.print_exc()
    code, message = _explained(error)
    if message:
        streams.tell(message)
    return code


def _told_of_thread(thread: threading.ExceptHookArgs, debug: bool) -> None:
    """One line for an error in a thread too; the main thread meets it again where it matters."""
    if isinstance(thread.exc_value, Exception):
        _told(thread.exc_value, debug)


def _explained(error: Exception) -> tuple[int, str]:
    if isinstance(error, RegardError):
        return error.exit_code, str(error)
    if isinstance(
        error, typer.TyperException
    ):  # a command that cannot be parsed; empty when it was answered with help
        message, ctx = printable(error.format_message()), getattr(error, "ctx", None)
        return MEND, f"{message} See {ctx.command_path} --help" if message and ctx else message
    if isinstance(error, OSError) and error.errno is not None:
        where = f"{os.fsdecode(error.filename)}: " if error.filename is not None else ""
        more = "" if where else "; run again with --debug to see where"
        return MEND, printable(f"{where}{error.strerror}{more}")
    shortage = resources.shortage(error)
    if shortage is not None:
        return shortage.exit_code, str(shortage)
    fault = (
        f"a fault in regard, {type(error).__name__}: {error}; run again with --debug to see where"
    )
    return FAULT, printable(fault)
