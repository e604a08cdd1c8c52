"""The command line. Each verb has a file: `regard/cli/train.py` has a function (or a typer app)
called `train`, and so on.

The file of a verb imports only what its options need. PyTorch and other large packages are imported
inside the function, so that `regard --help` is fast.
"""

from __future__ import annotations

import logging
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

VERBS = (
    "train",
    "chat",
    "ask",
    "attend",
    "evaluate",
    "report",
    "serve",
    "compare",
    "budget",
    "data",
    "recipes",
    "lab",
    "doctor",
)

SYNONYMS = {  # verbs of other programs
    "answer": "ask", "generate": "ask", "infer": "ask", "predict": "ask", "transcribe": "ask",
    "translate": "ask",
    "attention": "attend", "explain": "attend", "show": "attend", "visualise": "attend",
    "visualize": "attend",
    "cost": "budget", "flops": "budget", "params": "budget",
    "talk": "chat",
    "diagnose": "doctor", "info": "doctor", "version": "doctor",
    "dataset": "data", "download": "data", "fetch": "data",
    "score": "evaluate", "test": "evaluate", "validate": "evaluate",
    "experiment": "lab",
    "config": "recipes", "list": "recipes", "models": "recipes",
    "server": "serve", "api": "serve", "web": "serve", "http": "serve", "host": "serve",
    "html": "report", "page": "report", "summary": "report",
    "finetune": "train", "fit": "train", "learn": "train", "resume": "train", "sweep": "train",
}  # fmt: skip

# Exit codes.
DONE = 0
FAULT = 1
INVALID = 2
INTERRUPTED = 130
PIPE_CLOSED = 141

EPILOG = """\b
Exit codes: 0 done, 1 a fault in regard (or one that doctor finds),
2 something to correct in the command or its files,
3 a claim of the lab that does not hold,
130, 141 or 143 stopped by a signal."""


class Verbs(TyperGroup):
    """A group of commands whose modules are imported when they are needed."""

    def list_commands(self, ctx: Any) -> list[str]:
        modules = {module.name for module in pkgutil.iter_modules(__path__)}
        return [verb for verb in VERBS if verb in modules]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        module = import_module(f"{__name__}.{cmd_name}")
        verb = getattr(module, cmd_name)
        if isinstance(verb, typer.Typer):
            verb_app = verb
        else:
            verb_app = typer.Typer(add_completion=False)
            verb_app.command(cmd_name, context_settings=HELP)(verb)
        command = get_command(verb_app)
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
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Print the traceback of an error; accepted anywhere.")
    ] = False,
) -> None:
    """Train, query and compare encoder-decoder models with attention, for text, pictures and sound.

    \b
    regard train chat-attention --minutes 2 --out runs/first
    regard chat runs/first
    regard recipes list
    """
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Every error ends in one message on stderr.

    `regard help` is `regard --help`, and `regard help train` is `regard train --help`.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]

    streams.fill_gaps()
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # a prompt may hold bytes that are not UTF-8

    hook = threading.excepthook
    threading.excepthook = lambda thread: _report_in_thread(thread, debug)
    warnings = _Warnings(logging.WARNING)
    logging.getLogger("regard").addHandler(warnings)
    try:
        code = _run(words, debug)
        sys.stdout.flush()
    except OSError as error:
        return _report(error, debug)
    finally:
        threading.excepthook = hook
        logging.getLogger("regard").removeHandler(warnings)
    return code


class _Warnings(logging.Handler):
    """Prints the warnings of the package on stderr, a line each."""

    def emit(self, record: logging.LogRecord) -> None:
        streams.tell(printable(record.getMessage()))


def _run(words: Sequence[str], debug: bool) -> int:
    try:
        streams.check_output()
        # A verb finds what was typed in ctx.obj.
        with get_command(app).make_context("regard", list(words), obj=tuple(words)) as ctx:
            ctx.command.invoke(ctx)
        return DONE
    except typer.Exit as end:
        return end.exit_code
    except (KeyboardInterrupt, typer.Abort):
        streams.tell("stopped")
        return INTERRUPTED
    except Exception as error:
        return _report(error, debug)


def _report(error: Exception, debug: bool) -> int:
    """Print one message about an error and return the exit code."""
    pipe_closed = isinstance(error, BrokenPipeError)
    if pipe_closed or getattr(error, "filename", None) == streams.STANDARD_OUTPUT:
        streams.discard(sys.stdout)  # or Python reports the error again when it closes the stream
    if pipe_closed:
        return PIPE_CLOSED  # the reader of our output has closed it, as `head` does
    if debug:
        traceback.print_exc()
    code, message = _code_and_message(error)
    if message:
        streams.tell(message)
    return code


def _report_in_thread(thread: threading.ExceptHookArgs, debug: bool) -> None:
    """Print one message about an error in a thread; if it matters, the main thread fails too."""
    if isinstance(thread.exc_value, Exception):
        _report(thread.exc_value, debug)


def _code_and_message(error: Exception) -> tuple[int, str]:
    if isinstance(error, RegardError):
        return error.exit_code, str(error)

    if isinstance(error, typer.TyperException):
        message = printable(error.format_message())  # empty if help was printed instead
        ctx = getattr(error, "ctx", None)
        if message and ctx:
            message = f"{message} See {ctx.command_path} --help"
        return INVALID, message

    if isinstance(error, OSError) and error.errno is not None:
        where = f"{os.fsdecode(error.filename)}: " if error.filename is not None else ""
        more = "" if where else "; run again with --debug to see where"
        return INVALID, printable(f"{where}{error.strerror}{more}")

    shortage = resources.shortage(error)
    if shortage is not None:
        return shortage.exit_code, str(shortage)

    fault = (
        f"a fault in regard, {type(error).__name__}: {error}; run again with --debug to see where"
    )
    return FAULT, printable(fault)
