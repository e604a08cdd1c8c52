"""regard evaluate: how good a run is on held-out data."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.paths import filled_path
from regard.cli.searching import Changes, Greedy, Seed, options


class Split(StrEnum):
    train = "train"
    valid = "valid"
    test = "test"


def evaluate(
    run: Annotated[Path, typer.Argument(parser=filled_path, metavar="RUN", help="A run's folder.")],
    data: Annotated[
        Path | None,
        typer.Option(parser=filled_path, help="Other data of the same kind; not given: the run's own held-out part."),
    ] = None,
    split: Annotated[Split, typer.Option(help="Which part of the run's own data.")] = Split.valid,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Answer only so many prompts, spread evenly; likelihood uses all.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Every score, and 20 answers, as JSON.")] = False,
    changes: Changes = None,
    greedy: Greedy = False,
    seed: Seed = None,
) -> None:
    """Perplexity of held-out answers, and the task's scores of the model's own.

    \b
    regard evaluate runs/demo
    regard evaluate runs/demo --data mine.tsv --limit 200 --json
    """
    from regard import build
    from regard.bundle import load
    from regard.evaluate import evaluate as judged

    bundle = load(run)
    if data is None:
        corpus = build.corpus(bundle.recipe, bundle.codec)
        part = getattr(corpus, split.value)
    else:
        corpus = build.other(bundle.recipe, bundle.codec, data)
        part = corpus.train
    scores = {"data": corpus.tally.summary()}
    scores |= judged(bundle, part, options=options(bundle, changes, greedy, seed), at_most=limit)
    if as_json:
        print(json.dumps(scores, ensure_ascii=False, indent=1))
    else:
        print(_table(scores))


def _table(scores: dict[str, Any]) -> str:
    others = {"references": scores["references"]} | scores["blind"]

    def beside(name: str) -> str:
        told = [f"{who} {reached[name]:.4g}" for who, reached in others.items() if name in reached]
        return f"   ({', '.join(told)})" if told else ""

    rows = [
        f"{name:<20}{value:>10.4g}{beside(name)}" for name, value in scores.items() if isinstance(value, int | float)
    ]
    samples = [f"  {one['prompt']}  ->  {one['answer']}" for one in scores["samples"]]
    return "\n".join([scores["data"], *rows, *_confusion(scores), "answers", *samples])


def _confusion(scores: dict[str, Any]) -> list[str]:
    """Rows are what was right, columns what was answered; a large one is left to --json."""
    labels, counts = scores.get("labels", []), scores.get("confusion", [])
    if not 0 < len(labels) <= 20:
        return []
    wide = max(8, *(len(label) + 2 for label in labels))
    head = f"{'right, answered':<16}" + "".join(f"{label:>{wide}}" for label in labels)
    return [
        head,
        *(f"{label:<16}" + "".join(f"{n:>{wide}}" for n in row) for label, row in zip(labels, counts, strict=True)),
    ]
