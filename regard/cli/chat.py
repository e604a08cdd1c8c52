"""regard chat: talk to a model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli import streams
from regard.cli.devices import Device
from regard.cli.inference import inference_threads
from regard.cli.paths import filled_path
from regard.cli.searching import Changes, Greedy, Seed, options
from regard.cli.waiting import Waiting
from regard.errors import InputError, printable

if TYPE_CHECKING:
    from regard.bundle import Bundle
    from regard.search import Options
    from regard.values import Answer

ATTEND = "/attend"
COMMANDS = {
    "/quit": "leave; so do /exit, Ctrl-D, and Ctrl-C on an empty line",
    ATTEND: "what each word of the last answer attended to",
    "/help": "this list",
}
NO_ATTENTION = "this model has no attention: it reads the prompt once and remembers"


def chat(
    run: Annotated[Path, typer.Argument(parser=filled_path, metavar="RUN", help="A run's folder.")],
    changes: Changes = None,
    greedy: Greedy = False,
    seed: Seed = None,
    device: Device = "auto",
) -> None:
    """Talk to a trained model. Arrow keys bring back what you typed; /help lists the commands.

    Answers are found as the section "search" of the model's recipe says (beam search or sampling;
    greedy, if it says nothing), unless --set or --greedy change it.

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

    last = None  # the last answer
    for text in _typed():
        command = text.lower() if text.startswith("/") else None
        if command is None:
            last = _answer(bundle, text, how)
        elif command in ("/quit", "/exit"):
            return
        elif command == "/help":
            print("\n".join(f"{name:<10}{what}" for name, what in commands.items()))
        elif command == ATTEND:
            print(_attended(last) if ATTEND in commands else NO_ATTENTION, flush=True)
        else:
            print(f"no such command; known: {', '.join(commands)}")


def _answer(bundle: Bundle, text: str, how: Options) -> Answer | None:
    """Print the answer as it is generated, and return it if it came to its end. Ctrl-C ends the
    answer, not the chat."""
    try:
        stream = bundle.stream(text, how)
        for piece in stream:
            print(printable(piece), end="", flush=True)
        print(flush=True)
        return stream.answer
    except InputError as problem:
        streams.tell(str(problem))
    except KeyboardInterrupt:
        print(" …")
    return None


def _attended(answer: Answer | None) -> str:
    """For each step of an answer, the place of the prompt with the largest weight (mean over the
    heads)."""
    if answer is None:
        return "nothing was asked yet"
    if answer.weights is None:
        return NO_ATTENTION
    lines = []
    for name, weights in zip(answer.step_names, answer.weights.mean(1).tolist(), strict=True):
        weight = max(weights)
        place = answer.place_names[weights.index(weight)]
        bar = "█" * round(20 * weight)
        word = printable(name.strip()) or "·"
        lines.append(f"{word:<14}{printable(place):<14}{weight:4.0%} {bar}")
    return "\n".join(lines)


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
