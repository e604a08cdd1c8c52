"""The attention of both contenders on the examples on which they differ: one page for each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from regard import build, bundle, disk
from regard.compare.cells import Cell, deciding_part
from regard.compare.plan import Plan
from regard.compare.record import Comparison, Example, Pair
from regard.errors import InputError, RegardError, turns_in_line
from regard.evaluate import questions
from regard.pages.attend import Subject, ask, attention_page, with_effect
from regard.pages.shell import Section
from regard.tasks.task import Input

FOLDER = "attention"
PAGES = 20  # of a comparison, at most, unless it has more pairs than that
PAGES_OF_PAIR = 6
NO_ATTENTION = "no attention to the input; pages show the effect of hiding each place instead"


@dataclass(frozen=True)
class Model:
    """The first run of a contender, and what it reads for each test item."""

    name: str
    seed: int
    bot: bundle.Bundle
    inputs: Mapping[tuple[str, tuple[str, ...]], Input]


def shown_examples(pair: Pair, pairs: int) -> list[Example]:
    """The examples of a pair that a page shows: as many on which the first is better as on which
    the second is."""
    most = max(1, min(PAGES_OF_PAIR, PAGES // pairs) // 2)
    better = [example for example in pair.examples if example.difference > 0]
    worse = [example for example in pair.examples if example.difference < 0]
    return [*better[:most], *worse[:most]]


def write_attention(
    comparison: Comparison,
    plan: Plan,
    cells: Sequence[Cell],
    folder: Path,
    *,
    device: str = "auto",
) -> Comparison:
    """Write the pages, and return the comparison with their addresses. What cannot be shown is
    said in the note of its pair."""
    models: dict[str, Model | str] = {}
    pairs = []
    for number, pair in enumerate(comparison.pairs, 1):
        chosen = shown_examples(pair, len(comparison.pairs))
        if chosen:
            for name in (pair.first, pair.second):
                if name not in models:
                    models[name] = _load(name, cells, plan, comparison.split, device)
            pair = _with_pages(pair, number, chosen, models, folder / FOLDER)
        pairs.append(pair)
    written = {example.attention for pair in pairs for example in pair.examples}
    _remove_others(folder, written)
    return replace(comparison, pairs=pairs)


def _load(name: str, cells: Sequence[Cell], plan: Plan, split: str, device: str) -> Model | str:
    """The model whose answers an example has; or why there is none."""
    cell = next(cell for cell in cells if cell.contender == name and cell.state == "done")
    try:
        bot = bundle.load(Path(cell.run), device=device)
        corpus = build.corpus(bot.recipe, bot.tokenizer)
        part = deciding_part(bot, corpus, plan, split)
    except RegardError as problem:
        return f"the model of {name} cannot be read: {problem}"
    every = questions(part, bot.task)
    inputs = {(each.shown, tuple(each.references)): each.given for each in every}
    return Model(name, cell.seed, bot, inputs)


def _with_pages(
    pair: Pair,
    number: int,
    chosen: Sequence[Example],
    models: Mapping[str, Model | str],
    folder: Path,
) -> Pair:
    both = [models[pair.first], models[pair.second]]
    problems = [model for model in both if isinstance(model, str)]
    if problems:
        return replace(pair, attention_note="; ".join(problems))
    first, second = (model for model in both if isinstance(model, Model))
    examples = list(pair.examples)
    notes: list[str] = []
    without: list[str] = []
    for place, example in enumerate(chosen, 1):
        file = f"{number}-{_short(pair.first)}-{_short(pair.second)}-{place}.html"
        try:
            without = _write(first, second, example, folder / file)
        except RegardError as problem:
            notes.append(f"no page for “{turns_in_line(example.prompt)}”: {problem}")
            continue
        changed = replace(example, attention=f"{FOLDER}/{file}")
        examples[examples.index(example)] = changed
    if without:
        verb = "has" if len(without) == 1 else "have"
        notes.append(f"{' and '.join(without)} {verb} {NO_ATTENTION}")
    return replace(pair, examples=examples, attention_note="; ".join(notes))


def _write(first: Model, second: Model, example: Example, path: Path) -> list[str]:
    """The page of one example, with both answers side by side; the names of the models that have no
    attention to the input."""
    models = (first, second)
    subjects = [_subject(model, example) for model in models]
    without = [
        model.name
        for model, subject in zip(models, subjects, strict=True)
        if subject.answer.weights is None
    ]
    if without:  # it has effects only: the other one gets them too
        subjects = [
            with_effect(subject) if subject.effect is None else subject for subject in subjects
        ]
        # The first one decides which maps a page offers.
        subjects.sort(key=lambda subject: subject.answer.weights is None)
    page = attention_page(
        subjects,
        title=f"{first.name} | {second.name}: {turns_in_line(example.prompt)}",
        lead=f"The answers of {first.name} (seed {first.seed}) and {second.name} "
        f"(seed {second.seed}) to an example on which they differ",
        facts=(
            ("right answer", " / ".join(example.references)),
            *((subject.name, subject.answer.text or "(nothing)") for subject in subjects),
        ),
        command=next(iter(example.commands), ""),
    )
    if without:  # begin with what both have
        page = replace(page, data={**page.data, "start": {**page.data["start"], "part": "effect"}})
    back = Section("", links=(("Back to the comparison", "../comparison.html"),))
    path.parent.mkdir(exist_ok=True)
    replace(page, sections=(*page.sections, back)).save(path)
    return without


def _subject(model: Model, example: Example) -> Subject:
    key = (example.prompt, tuple(example.references))
    if key not in model.inputs:
        raise InputError("the data has changed: an example is not there", where=model.name)
    return ask(model.bot, model.inputs[key], model.bot.recipe.search, name=model.name)


def _short(name: str) -> str:
    """A name as a part of a file's name.

    >>> _short("LSTM with <attention>")
    'LSTM-with-attention'
    """
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:30] or "model"


def _remove_others(folder: Path, written: set[str]) -> None:
    """Remove pages of an earlier command that no example has any more; people's own files stay."""
    for path in sorted((folder / FOLDER).glob("*.html")):
        if f"{FOLDER}/{path.name}" in written:
            continue
        try:
            disk.claim_output(path)
        except InputError:
            continue
        path.unlink()
