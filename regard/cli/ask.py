"""regard ask: one answer for each input."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    from regard.values import Answer

ROWS = 64  # inputs answered together


def ask(
    run: Annotated[Path, typer.Argument(parser=filled_path, metavar="RUN", help="A run's folder.")],
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="INPUT", help="Sentences, or files of pictures or sounds; none: stdin."
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            parser=filled_path, help="A file of inputs, one a line; answers come as JSON lines."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON lines, with scores and tokens.")
    ] = False,
    best: Annotated[
        int | None,
        typer.Option(min=1, max=100, help="So many answers, the best first, by beam search."),
    ] = None,
    maps: Annotated[
        Path | None,
        typer.Option(
            parser=filled_path,
            help="A PNG of the picture and, for each word, of where it was read from.",
        ),
    ] = None,
    changes: Changes = None,
    greedy: Greedy = False,
    seed: Seed = None,
) -> None:
    """Ask a trained model. What it was trained on says what it takes: a sentence, one with ___ for a word, or the file
    of a picture or sound.

    \b
    regard ask runs/demo "What are you?" "Tell me a joke"
    regard ask runs/demo --file prompts.txt > answers.jsonl
    regard ask runs/image-pool seven.png
    regard ask runs/speech-attention hello.wav
    regard ask runs/caption-attention dog.jpg --best 3 --maps maps.png
    regard ask runs/blank-rnn "the ___ is on the table"
    echo "Do you like music?" | regard ask runs/demo --json
    """
    if inputs and file:
        raise InputError("give inputs or --file, not both")
    if not inputs and not file and streams.typed().isatty():
        raise InputError("nothing to ask", hint='type a sentence: regard ask RUN "Hello"')
    if file is not None and not file.is_file():
        raise InputError("no such file", where=file)
    if maps is not None and len(inputs or ()) != 1:
        raise InputError(
            "maps are drawn of one picture", where="--maps", got=f"{len(inputs or ())} inputs"
        )

    from regard.disk import claim_output

    if maps is not None:
        claim_output(maps)
    with Waiting(f"loading {run}") as loading, inference_threads(len(inputs) if inputs else None):
        from regard.bundle import load

        bundle = load(run)
        loading.end()
        if best is not None and best > 1:
            changes = [*(changes or []), f"num_beams={best}", f"candidates={best}"]
        how = options(bundle, changes, greedy, seed)
        _ask(bundle, how, inputs, file, as_json=as_json, best=best, maps=maps)


def _ask(
    bundle: Bundle,
    how: Options,
    inputs: list[str] | None,
    file: Path | None,
    *,
    as_json: bool,
    best: int | None,
    maps: Path | None,
) -> None:
    as_json, labels = as_json or file is not None, not bundle.task.answers_are_text
    asked = refused = 0
    for prompts in _chunks(inputs or _lines(file)):
        with Waiting(f"answering {len(prompts)}" if len(prompts) > 1 else "answering"):
            answers = _answered(bundle, prompts, how)
        for prompt, found in zip(prompts, answers, strict=True):
            asked += 1
            if isinstance(found, InputError):
                refused += 1
                if len(inputs or ()) == 1:
                    raise found
                if as_json:
                    print(json.dumps({"input": prompt, "error": str(found)}, ensure_ascii=False))
                else:
                    named = f'"{printable(prompt[:40])}": ' if found.where is None else ""
                    streams.tell(f"{named}{found}")
                continue
            answer, some = found[0], found[: best or (len(found) if labels else 1)]
            record: dict[str, Any] = (
                {"input": prompt} | _told(answer, labels) | {"tokens": answer.tokens}
            )
            if len(some) > 1:
                record["best"] = [_told(one, labels) for one in some]
            print(
                json.dumps(record, ensure_ascii=False) if as_json else _shown(prompt, some, labels)
            )
            if maps is not None:
                _draw(bundle, prompt, answer, maps)
        sys.stdout.flush()
    if refused:
        raise InputError(
            "not all inputs have an answer", got=f"{refused:,} of {asked:,} that cannot be read"
        )


def _answered(bundle: Bundle, prompts: list[str], how: Options) -> list[list[Answer] | InputError]:
    """The candidates for each, as if those that cannot be read were not there; of those, what is
    wrong."""
    try:
        return [*bundle.candidates(prompts, how)]
    except InputError:
        wrong = {
            i: problem for i, prompt in enumerate(prompts) if (problem := _refusal(bundle, prompt))
        }
        if not wrong:
            raise
    good = [prompt for i, prompt in enumerate(prompts) if i not in wrong]
    found = iter(bundle.candidates(good, how) if good else [])
    return [wrong[i] if i in wrong else next(found) for i in range(len(prompts))]


def _refusal(bundle: Bundle, prompt: str) -> InputError | None:
    try:
        bundle.task.read([prompt])
    except InputError as problem:
        return problem
    return None


def _told(answer: Answer, label: bool) -> dict[str, Any]:
    told = {"answer": answer.text, "score": answer.score}
    return told | {"probability": math.exp(answer.score)} if label else told


def _shown(prompt: str, answers: list[Answer], labels: bool) -> str:
    texts = [printable(answer.text) for answer in answers]
    scores = [answer.score for answer in answers]
    asked = printable(prompt)
    if labels and len(answers) > 1:
        shares = [
            f"{text} {math.exp(score):.1%}" for text, score in zip(texts, scores, strict=True)
        ]
        return f"{asked}  ->  {', '.join(shares)}"
    lines = [f"{asked}  ->  {texts[0]}"]
    if len(answers) > 1:
        lines += [f"    {score:8.3f}  {text}" for text, score in zip(texts, scores, strict=True)]
    return "\n".join(lines)


def _draw(bundle: Bundle, prompt: str, answer: Answer, path: Path) -> None:
    grid = bundle.model.frontend.grid
    if grid is None:
        raise InputError("maps are of pictures, and this model reads none", where="--maps")
    if answer.weights is None or not len(answer.tokens):
        raise InputError("no map: this model does not attend, or said nothing", where="--maps")
    from regard.maps import draw

    raw, _ = bundle.task.read([prompt])
    texts = [bundle.tokenizer.decode(answer.tokens[:end]) for end in range(len(answer.tokens) + 1)]
    words = [
        after[len(before) :].strip() for before, after in pairwise(texts)
    ]  # as they stand in the sentence
    draw(path, raw[0].numpy(), words, answer.weights.mean(1).numpy(), grid, title=answer.text)
    print(f"maps in {printable(path)}", file=sys.stderr)


def _lines(file: Path | None) -> Iterator[str]:
    """Lines that say something, from the file or from stdin."""
    if file is None:
        yield from (line.strip() for line in streams.typed() if line.strip())
        return
    with file.open(encoding="utf-8-sig", errors="replace") as opened:
        yield from (line.strip() for line in opened if line.strip())


def _chunks(prompts: Iterable[str]) -> Iterator[list[str]]:
    prompts = iter(prompts)
    while chunk := list(islice(prompts, ROWS)):
        yield chunk
