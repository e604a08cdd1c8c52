"""regard evaluate: how good a run is on held-out data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli import streams
from regard.cli.devices import Device
from regard.cli.inference import inference_threads
from regard.cli.paths import filled_path
from regard.cli.searching import Changes, Greedy, Seed, options
from regard.cli.waiting import Waiting
from regard.errors import DataError, InputError, printable, turn_lines

if TYPE_CHECKING:
    from regard.evaluate import Evaluation, Sample
    from regard.recipe import Recipe


class Split(StrEnum):
    train = "train"
    valid = "valid"
    test = "test"


NAMES = {Split.train: "training", Split.valid: "validation", Split.test: "test"}


def evaluate(
    run: Annotated[Path, typer.Argument(parser=filled_path, metavar="RUN", help="A run's folder.")],
    data: Annotated[
        Path | None,
        typer.Option(
            parser=filled_path,
            help="Other data of the same kind, - for standard input. Default: the run's own "
            "held-out examples.",
        ),
    ] = None,
    split: Annotated[
        Split | None,
        typer.Option(help="The split of the run's own data. Default: valid. Not with --data."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, help="Answer at most this many inputs, evenly spread; likelihood uses all."
        ),
    ] = None,
    ranked: Annotated[
        int,
        typer.Option(
            min=0,
            help="For chat and translation: the number of examples whose true answer is ranked "
            "among 20; 0: none.",
        ),
    ] = 1000,
    as_json: Annotated[
        bool, typer.Option("--json", help="Every score, and 20 answers, as JSON.")
    ] = False,
    changes: Changes = None,
    greedy: Greedy = False,
    seed: Seed = None,
    device: Device = "auto",
) -> None:
    """Score a run on held-out data: perplexity, the rank of the true answers among others, and the
    task's metrics of the run's own answers. Intervals are 95 %.

    \b
    regard evaluate runs/demo
    regard evaluate runs/demo --data mine.tsv --limit 200 --json
    """
    if data is not None and split is not None:
        raise InputError(
            "--split is for the run's own data, and --data is other data, used whole",
            got=f"--split {split.value}",
            hint="leave one of them out",
        )
    split = split or Split.valid
    with Waiting(f"loading {run}"), inference_threads(None):
        from regard import checkpoint
        from regard.bundle import load
        from regard.cli.console import Console
        from regard.cli.preparing import Preparing
        from regard.evaluate import evaluate as judged

        bundle = load(run, device=device)
        search = options(bundle, changes, greedy, seed)
    training = None
    with Waiting("reading data"), Preparing(Console(stderr=True, highlight=False)):
        if data is None:
            corpus, part = bundle.own_data(split.value)
            training = corpus.train if split != Split.train else None
        else:
            corpus = bundle.other_data(data)
            part = corpus.train
    if not len(part):
        raise (
            _nothing(run, bundle.recipe, split)
            if data is None
            else _unusable(data, corpus.tally.summary())
        )
    if data is None:
        recorded = checkpoint.recorded_data(run)
        if recorded is not None and recorded != corpus.fingerprint:
            streams.tell(
                f"{run}: its data is not what it was trained on; "
                "the held-out examples may be others, and some may have been trained on"
            )
    summary = corpus.tally.summary()
    with Waiting(f"scoring {len(part):,} examples"):
        result = judged(
            bundle,
            part,
            options=search,
            at_most=limit,
            ranked_examples=ranked,
            training=training,
        )
    if as_json:
        print(json.dumps({"data": summary} | result.to_json(), ensure_ascii=False, indent=1))
    else:
        print(_table(summary, result, is_chat=bundle.recipe.task == "chat"))


def _nothing(run: Path, recipe: Recipe, split: Split) -> DataError:
    """The run has no such part: what holds one out, if its kind of data can, and what to type
    instead."""
    other = f"regard evaluate {quote(str(run))} --data PATH scores other data"
    missing = f"this run has no {NAMES[split]} examples"
    if split.value not in type(recipe.data).model_fields:
        return DataError(missing, where=run, hint=other)
    path = getattr(recipe.data, "path", None)
    own = "" if path is None else f" --data {quote(path)}"
    share = f"data.{split.value}"
    return DataError(
        missing,
        where=run,
        got=f"{share} = {getattr(recipe.data, split.value)}",
        hint=f"a new run holds some out with: regard train RECIPE{own} --set {share}=0.1, "
        f"or {other}",
    )


def _unusable(data: Path, summary: str) -> DataError:
    return DataError("no examples to evaluate on", where=data, got=summary)


def _table(data: str, result: Evaluation, *, is_chat: bool) -> str:
    others = {"references": result.references} | result.baselines

    def beside(name: str) -> str:
        values = [f"{who} {scores[name]:.4g}" for who, scores in others.items() if name in scores]
        return f"   ({', '.join(values)})" if values else ""

    def row(name: str, value: float) -> str:
        direction = result.better.get(name)
        better = f"{direction} is better" if direction else ""
        bounds = result.intervals.get(name)
        interval = f"{bounds[0]:.4g} to {bounds[1]:.4g}" if bounds else ""
        return f"{name:<20}{value:>10.4g}   {interval:<20} {better:<16}{beside(name)}".rstrip()

    counts = {"examples": result.examples, "prompts": result.prompts}
    rows = [row(name, value) for name, value in (counts | result.scores).items()]
    samples = _samples(result.samples, is_chat=is_chat)
    return "\n".join([printable(data), *rows, *_confusion(result.tables), "answers", *samples])


def _samples(samples: Sequence[Sample], *, is_chat: bool) -> Iterator[str]:
    """What was asked, what the model answered, and every right answer."""
    for sample in samples:
        prompt = turn_lines(sample.prompt) if is_chat else [printable(sample.prompt)]
        yield from (f"  {line}" for line in prompt)
        yield f"    answer     {printable(sample.answer)}"
        yield from (f"    reference  {printable(reference)}" for reference in sample.references)


def _confusion(tables: dict[str, Any]) -> list[str]:
    """Rows are what was right, columns what was answered; a large one is left to --json."""
    labels = [printable(label) for label in tables.get("labels", [])]
    counts = tables.get("confusion", [])
    if not 0 < len(labels) <= 20:
        return []
    wide = max(8, *(len(label) + 2 for label in labels))
    head = f"{'right, answered':<16}" + "".join(f"{label:>{wide}}" for label in labels)
    return [
        head,
        *(
            f"{label:<16}" + "".join(f"{n:>{wide}}" for n in row)
            for label, row in zip(labels, counts, strict=True)
        ),
    ]
