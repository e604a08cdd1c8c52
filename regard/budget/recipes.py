"""The budget of a recipe, and of a run on disk: from the recipe alone, no weights are built."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from regard import recipe as r
from regard.budget.closed_form import memory, models, supported
from regard.budget.closed_form.layers import MARKS, Lengths
from regard.budget.closed_form.parts import FLOAT, Budget
from regard.budget.closed_form.symbols import Size
from regard.errors import BundleError, InputError

CHARACTERS = 100  # of a language with an alphabet, marks included
LABELS = {"digits": 10, "reviews": 2, "medmnist": 4}  # of OCTMNIST
LONGEST_HEADER = 100 << 20  # of a safetensors file, its own limit


@dataclass(frozen=True)
class Codes:
    """How many tokens and labels there are, as far as a model has them, and what is to be said
    of that."""

    vocabulary: int = 0
    labels: int = 0
    notes: tuple[str, ...] = ()


def codes(recipe: r.Recipe, vocabulary: int | None, labels: int | None) -> Codes:
    """What is given; else the most tokens that the tokenizer may make, and a guess at the
    labels."""
    reads, shots = isinstance(recipe.source, r.SourceTokens), recipe.task == "classify"
    tokenizer, notes = recipe.tokenizer, list[str]()
    if labels is not None and not shots:
        raise InputError("labels are for classifiers", got=f"task {recipe.task}")
    if vocabulary is not None and shots and not reads:
        raise InputError(
            "a classifier of pictures has labels and no vocabulary",
            got=f"vocabulary {vocabulary:,}",
        )
    if vocabulary is None and (reads or not shots):
        if isinstance(tokenizer, r.TokenizerWords | r.TokenizerBPE):
            vocabulary = tokenizer.size
            notes.append(
                f"V = {vocabulary:,} is the most the tokenizer may make; --vocabulary gives another"
            )
        elif isinstance(tokenizer, r.TokenizerCharacters) and tokenizer.alphabet:
            vocabulary = len(set(tokenizer.alphabet)) + MARKS
        else:
            vocabulary = CHARACTERS
            notes.append(
                f"V = {vocabulary} is a guess: characters have no limit; --vocabulary gives another"
            )
    if labels is None and shots:
        labels = LABELS.get(recipe.data.kind, 2)
        notes.append(f"C = {labels} labels is a guess, the data decides; --labels gives another")
    if isinstance(recipe.source, r.SourceSound) and recipe.source.tempo_perturbation:
        notes.append(
            f"training makes sounds up to {recipe.source.tempo_perturbation:.0%} longer or shorter; the figures are for S as it is"
        )
    return Codes(vocabulary or 0, labels or 0, tuple(notes))


def of_recipe(
    recipe: r.Recipe,
    at: Lengths,
    *,
    title: str,
    vocabulary: int | None = None,
    labels: int | None = None,
) -> Budget:
    """The cost of the model a recipe describes."""
    supported.check(recipe, title)
    sizes = codes(recipe, vocabulary, labels)
    V, C = Size("V", sizes.vocabulary, "vocabulary"), Size("C", sizes.labels, "labels")
    made = models.whole(recipe, V, at, labels=C.value)
    _reach(recipe, made.at)
    bytes_ = memory.bytes_of(
        made.parts,
        made.at,
        memory=FLOAT * made.memory,
        average=recipe.train.ema_decay > 0,
        means=2 if recipe.train.optimiser == "adamw" else 0,
    )
    letters = (made.at.B, made.at.S, made.at.T, *(size for size in (V, C) if size.value))
    return Budget(title, letters, made.parts, bytes_, sizes.notes)


def _reach(recipe: r.Recipe, at: Lengths) -> None:
    """Learned positions end somewhere."""
    ends = {
        "source": (recipe.encoder, at.S.value, models.longest_source(recipe)),
        "target": (recipe.decoder, at.T.value, models.longest_target(recipe)),
    }
    for name, (section, length, longest) in ends.items():
        if getattr(section, "positions", None) == "learned" and length > longest:
            limit = (
                f"max_{name}"
                if name == "target" or hasattr(recipe.data, "max_source")
                else "max_seconds"
            )
            raise InputError(
                f"longer than the learned positions of the recipe reach: at most {longest:,}",
                where=f"{name} length",
                got=f"{length:,}",
                hint=f"raise data.{limit}, or use other positions",
            )


def of_run(folder: Path, at: Lengths) -> Budget:
    """The cost of a trained model; its vocabulary and, as a check, its parameters are those of
    the weights on disk."""
    from regard import disk

    recipe = r.Recipe.from_json(disk.read_json(folder / "recipe.json"), folder / "recipe.json")
    weights = folder / "model.safetensors"
    if not weights.exists():
        made = of_recipe(recipe, at, title=str(folder))
        return replace(made, notes=(*made.notes, "no weights yet; the figures are the recipe's"))
    shapes = header(weights)
    tables = [
        shape[0]
        for name, shape in sorted(shapes.items())
        if name.endswith("embedding.table.weight")
    ]
    scores = [shape[0] for name, shape in shapes.items() if name == "decoder.output.scores.weight"]
    if not tables and not scores:
        raise BundleError("neither an embedding nor labels among the weights", where=weights)
    labels = next(iter(scores), None) if recipe.task == "classify" else None
    budget = of_recipe(
        recipe, at, title=str(folder), vocabulary=next(iter(tables), None), labels=labels
    )
    there = sum(_numbers(shape) for name, shape in shapes.items() if name != "idf")
    same = there == budget.parameters
    note = f"{weights.name} has {there:,} parameters, " + (
        "as the formulas say" if same else "the formulas differ"
    )
    return replace(budget, notes=(*budget.notes, note))


def header(path: Path) -> dict[str, list[int]]:
    """The shapes in a safetensors file, whose header is JSON after its length in 8 bytes."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > LONGEST_HEADER:
                raise ValueError("header too long")
            found: dict[str, Any] = json.loads(file.read(length))
        return {
            name: list(entry["shape"]) for name, entry in found.items() if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, struct.error):
        raise BundleError("damaged: not a safetensors file", where=path) from None


def _numbers(shape: list[int]) -> int:
    count = 1
    for axis in shape:
        count *= axis
    return count
