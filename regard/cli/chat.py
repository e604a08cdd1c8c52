"""regard chat: talk to a model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli import streams
from regard.cli.inference import inference_threads
from regard.cli.paths import filled_path
from regard.cli.searching import Changes, Greedy, Seed, options
from regard.cli.waiting import Waiting
from regard.errors import InputError, printable

if TYPE_CHECKING:
    from regard.bundle import Bundle
    from regard.search import Options

COMMANDS = {"/quit": "leave", "/attend": "what the last answer looked at", "/help": "this list"}


def chat(
    run: Annotated[Path, typer.Argument(parser=filled_path, metavar="RUN", help="A run's folder.")],
    changes: Changes = None,
    greedy: Greedy = False,
    seed: Seed = None,
) -> None:
    """Talk to a trained model. Arrow keys bring back what you typed; /help lists the commands.

    \b
    regard chat runs/demo
    regard chat runs/demo --set do_sample=true --set temperature=0.7
    """
    streams.typed()
    with Waiting(f"loading {run}") as loading, inference_threads(1):
        from regard.bundle import load

        bundle = load(run)
        loading.end()
        _chat(bundle, run, options(bundle, changes, greedy, seed))


def _chat(bundle: Bundle, run: Path, how: Options) -> None:
    if sys.stdin.isatty():
        print(
            f"{printable(run)}: {printable(bundle.recipe.summary)}\n/quit leaves, /help lists the commands"
        )
    last = None
    for text in _typed(run):
        match text:
            case "/quit":
                return
            case "/help":
                print("\n".join(f"{name:<10}{what}" for name, what in COMMANDS.items()))
            case "/attend":
                print(_looked(bundle, last, how) if last else "nothing was asked yet")
            case _ if text.startswith("/"):
                print(f"no such command; known: {', '.join(COMMANDS)}")
            case _:
                last = _answer(bundle, text, how)


def _answer(bundle: Bundle, text: str, how: Options) -> str | None:
    """Print the answer as it comes; the prompt, if it could be answered. Ctrl-C ends the answer,
    not the chat."""
    try:
        for piece in bundle.stream(text, how):
            print(printable(piece), end="", flush=True)
        print()
        return text
    except InputError as problem:
        streams.tell(str(problem))
    except KeyboardInterrupt:
        print(" …")
    return None


def _looked(bundle: Bundle, prompt: str, how: Options) -> str:
    """For each token of the answer, the place of the prompt that weighed most (mean over the
    heads)."""
    answer = bundle.ask([prompt], how)[0]
    if answer.weights is None:
        return "this model has no attention: it reads the prompt once and remembers"
    places = _gathered(bundle.task.place_names(prompt), answer.weights.shape[-1])
    lines = []
    for token, weights in zip(answer.tokens, answer.weights.mean(1).tolist(), strict=False):
        best = max(range(len(places)), key=lambda place: weights[place])
        bar = "█" * round(20 * weights[best])
        word = printable(bundle.tokenizer.decode([token]).strip()) or "·"
        lines.append(f"{word:<14}{printable(places[best]):<14}{weights[best]:4.0%} {bar}")
    return "\n".join(lines)


def _gathered(places: list[str], size: int) -> list[str]:
    """A name for each of the `size` places of a memory: an encoder that halves the length leaves
    one for 2, 4, 8, …

    >>> _gathered(["how", "are", "you", "?", "(end)"], 3)
    ['how are', 'you ?', '(end)']
    """
    span = 1
    while -(-len(places) // span) > size:
        span *= 2
    return [" ".join(places[first : first + span]) for first in range(0, len(places), span)]


def _typed(run: Path) -> Iterator[str]:
    """What is typed, line by line, until the end of input or Ctrl-C at an empty prompt."""
    line = _editor() if sys.stdin.isatty() else sys.stdin.readline
    while True:
        try:
            text = line()
        except (EOFError, KeyboardInterrupt):
            return
        if not text and not sys.stdin.isatty():
            return
        if text.strip():
            yield text.strip()


def _editor() -> Callable[[], str]:
    from prompt_toolkit import PromptSession

    session: PromptSession[str] = PromptSession()
    return lambda: session.prompt("> ")
