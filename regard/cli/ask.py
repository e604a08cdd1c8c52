"""regard ask: one answer for each input."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.searching import Changes, Greedy, Seed, options
from regard.errors import InputError

ROWS = 64  # inputs answered together


def ask(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    inputs: Annotated[
        list[str] | None, typer.Argument(metavar="INPUT", help="Sentences, or pictures' files; none: lines of stdin.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="A file of inputs, one a line; answers come as JSON lines.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines, with scores and tokens.")] = False,
    changes: Changes = None,
    greedy: Greedy = False,
    seed: Seed = None,
) -> None:
    """Ask a trained model. What it was trained on says what it takes: a sentence, one with ___ for a word, or the file
    of a picture.

    \b
    regard ask runs/demo "What are you?" "Tell me a joke"
    regard ask runs/demo --file prompts.txt > answers.jsonl
    regard ask runs/image-pool seven.png
    regard ask runs/blank-rnn "the ___ is on the table"
    echo "Do you like music?" | regard ask runs/demo --json
    """
    if inputs and file:
        raise InputError("give inputs or --file, not both")
    if not inputs and not file and sys.stdin.isatty():
        raise InputError("nothing to ask", hint='type a sentence: regard ask RUN "Hello"')
    if file is not None and not file.is_file():
        raise InputError("no such file", where=file)

    from regard.bundle import load

    bundle = load(run)
    how = options(bundle, changes, greedy, seed)
    as_json = as_json or file is not None
    for prompts in _chunks(inputs or _lines(file)):
        for prompt, found in zip(prompts, bundle.candidates(prompts, how), strict=True):
            answer, shown = found[0], found[0].text
            record: dict[str, Any] = {"input": prompt, "answer": shown, "score": answer.score, "tokens": answer.tokens}
            if not bundle.task.answers_are_text:
                record["probability"] = math.exp(answer.score)
                if len(found) > 1:
                    best = [{"answer": one.text, "probability": math.exp(one.score)} for one in found]
                    record["candidates"] = best
                    shown = ", ".join(f"{one['answer']} {one['probability']:.1%}" for one in best)
            print(json.dumps(record, ensure_ascii=False) if as_json else f"{prompt}  ->  {shown}")
        sys.stdout.flush()


def _lines(file: Path | None) -> Iterator[str]:
    """Lines that say something, from the file or from stdin."""
    if file is None:
        yield from (line.strip() for line in sys.stdin if line.strip())
        return
    with file.open(encoding="utf-8-sig", errors="replace") as opened:
        yield from (line.strip() for line in opened if line.strip())


def _chunks(prompts: Iterable[str]) -> Iterator[list[str]]:
    prompts = iter(prompts)
    while chunk := list(islice(prompts, ROWS)):
        yield chunk
