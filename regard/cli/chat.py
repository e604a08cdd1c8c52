"""regard chat: talk to a model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from regard.cli import streams
from regard.cli.attention_map import NO_ATTENTION, attention_text
from regard.cli.devices import Device
from regard.cli.inference import inference_threads
from regard.cli.paths import filled_path
from regard.cli.searching import Changes, Greedy, Seed, options
from regard.cli.waiting import Waiting
from regard.errors import InputError, printable

if TYPE_CHECKING:
    import numpy as np

    from regard.bundle import Bundle
    from regard.search import Options
    from regard.values import Answer

ATTEND, HISTORY, FORGET, HELP = "/attend", "/history", "/forget", "/help"
COMMANDS = {
    "/quit": "leave; so do /exit, Ctrl-D, and Ctrl-C on an empty line",
    ATTEND: "what each word of the last answer attended to",
    HELP: "this list",
}
HISTORY_COMMANDS = {
    HISTORY: "the conversation so far",
    FORGET: "begin a new conversation",
}
CUT = "the last answer was cut off, so its attention is not known"
NO_HISTORY = "this model answers each line by itself: it was trained with data.turns = 1"


def chat(
    run: Annotated[Path, typer.Argument(parser=filled_path, metavar="RUN", help="A run's folder.")],
    changes: Changes = None,
    greedy: Greedy = False,
    seed: Seed = None,
    device: Device = "auto",
) -> None:
    """Talk to a trained model. Arrow keys bring back what you typed; /help lists the commands.

    \b
    A model that was trained to read a history (data.turns above 1) reads the
    conversation so far; /forget begins a new one.

    \b
    The section "search" of the model's recipe decides how answers are found
    (beam search or sampling; greedy search by default). --set and --greedy
    change it.

    \b
    regard chat runs/demo
    regard chat runs/demo --set do_sample=true --set temperature=0.7
    """
    streams.typed()
    with Waiting(f"loading {run}") as loading, inference_threads(1):
        from regard.bundle import load

        bundle = load(run, device=device)
        loading.end()
        _chat(bundle, run, options(bundle, changes, greedy, seed))


def _chat(bundle: Bundle, run: Path, how: Options) -> None:
    if sys.stdin.isatty():
        print(f"{printable(run)}: {printable(bundle.recipe.summary)}")
        print("/quit leaves, /help lists the commands")
    commands = dict(COMMANDS)
    if not bundle.attends():
        del commands[ATTEND]
    if bundle.task.source.reads_history:
        last_line = commands.pop(HELP)
        commands |= {**HISTORY_COMMANDS, HELP: last_line}

    turns: list[str] = []  # of both sides
    last = None  # the last exchange whose answer came to its end
    is_cut = False  # whether an answer was cut off after it
    for text in _typed():
        command = text.lower() if text.startswith("/") else None
        if command is None:
            try:
                exchange = _answer(bundle, text, turns, how)
            except KeyboardInterrupt:
                print(" …", flush=True)
                is_cut = True
                continue
            if exchange is None:
                continue
            last = exchange
            is_cut = False
            if HISTORY in commands:
                turns += [text, last.answer.text]
        elif command in ("/quit", "/exit"):
            return
        elif command == HELP:
            print("\n".join(f"{name:<10}{what}" for name, what in commands.items()))
        elif command == ATTEND:
            attends = ATTEND in commands
            print(_last_attention(bundle, last, is_cut) if attends else NO_ATTENTION, flush=True)
        elif command == HISTORY and HISTORY in commands:
            print(_listed(turns), flush=True)
        elif command == FORGET and FORGET in commands:
            turns.clear()
            print("forgotten", flush=True)
        elif command in HISTORY_COMMANDS:
            print(NO_HISTORY, flush=True)
        else:
            print(f"no such command; known: {', '.join(commands)}")


class _Exchange(NamedTuple):
    """An answer, and the input it was given to as the model read it."""

    row: np.ndarray
    answer: Answer


def _answer(bundle: Bundle, text: str, turns: list[str], how: Options) -> _Exchange | None:
    """Print the answer as it is generated, and return it. None if the line cannot be read; Ctrl-C
    is for the caller, because it ends the answer, not the chat."""
    conversation = [*turns, text] if turns else text
    try:
        stream = bundle.stream(conversation, how)
        for piece in stream:
            print(printable(piece), end="", flush=True)
        print(flush=True)
        if stream.answer is not None:
            return _Exchange(bundle.task.read_one(conversation), stream.answer)
    except InputError as problem:
        streams.tell(str(problem))
    return None


def _listed(turns: list[str]) -> str:
    """The turns of a conversation, the user's and the model's."""
    if not turns:
        return "nothing was said yet"
    marks = (">", " ")
    return "\n".join(f"{marks[i % 2]} {printable(turn)}" for i, turn in enumerate(turns))


def _last_attention(bundle: Bundle, last: _Exchange | None, is_cut: bool) -> str:
    """The attention of the last answer that came to its end."""
    if last is None:
        return CUT if is_cut else "there is no answer yet"
    attention = attention_text(bundle, last.row, last.answer)
    return f"{CUT}; of the one before:\n{attention}" if is_cut else attention


def _typed() -> Iterator[str]:
    """The lines that are typed, until the end of input or Ctrl-C on an empty line."""
    read_line = _editor() if sys.stdin.isatty() else sys.stdin.readline
    while True:
        try:
            text = read_line()
        except (EOFError, KeyboardInterrupt):
            return
        if not text and not sys.stdin.isatty():
            return
        if text.strip():
            yield text.strip()


def _editor() -> Callable[[], str]:
    """A prompt with history, in which Ctrl-C clears a line that is not empty."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("c-c")
    def clear_or_leave(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

    session: PromptSession[str] = PromptSession(key_bindings=keys)
    return lambda: session.prompt("> ")
