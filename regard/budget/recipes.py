"""The budget of a recipe, and of a run on disk. No weights are built."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from regard import recipe as r
from regard.budget.closed_form import memory, models, supported
from regard.budget.closed_form.layers import NUM_SPECIAL_TOKENS, Lengths
from regard.budget.closed_form.parts import FLOAT, Budget
from regard.budget.closed_form.symbols import Size
from regard.errors import BundleError, InputError

CHARACTERS = 100  # guessed vocabulary of characters, special tokens included
LABELS = {"digits": 10, "reviews": 2, "medmnist": 4}  # by kind of data; medmnist: OCTMNIST
LONGEST_HEADER = 100 << 20  # of a safetensors file, its own limit


@dataclass(frozen=True)
class Codes:
    """The sizes of vocabulary and labels (0: the model has none), and notes about guesses."""

    vocabulary: int = 0
    labels: int = 0
    notes: tuple[str, ...] = ()


def codes(recipe: r.Recipe, vocabulary: int | None, labels: int | None) -> Codes:
    """The given sizes, or by default the limit of the tokenizer and a guess at the labels."""
    reads_text = isinstance(recipe.source, r.SourceTokens)
    classifies = recipe.task == "classify"
    tokenizer = recipe.tokenizer
    notes: list[str] = []
    if labels is not None and not classifies:
        raise InputError("labels are for classifiers", got=f"task {recipe.task}")
    if vocabulary is not None and classifies and not reads_text:
        raise InputError(
            "a classifier of images has labels and no vocabulary",
            got=f"vocabulary {vocabulary:,}",
        )
    if vocabulary is None and (reads_text or not classifies):
        if isinstance(tokenizer, r.TokenizerWords | r.TokenizerBPE):
            vocabulary = tokenizer.size
            notes.append(
                f"V = {vocabulary:,} is the most the tokenizer may make; --vocabulary gives another"
            )
        elif isinstance(tokenizer, r.TokenizerCharacters) and tokenizer.alphabet:
            special_tokens = NUM_SPECIAL_TOKENS + (2 if recipe.data.history > 1 else 0)
            vocabulary = len(set(tokenizer.alphabet)) + special_tokens
        else:
            vocabulary = CHARACTERS
            notes.append(
                f"V = {vocabulary} is a guess: characters have no limit; --vocabulary gives another"
            )
    if labels is None and classifies:
        labels = LABELS.get(recipe.data.kind, 2)
        notes.append(f"C = {labels} labels is a guess, the data decides; --labels gives another")
    if isinstance(recipe.source, r.SourceSound) and recipe.source.tempo_perturbation:
        share = f"{recipe.source.tempo_perturbation:.0%}"
        notes.append(
            f"training makes sounds up to {share} longer or shorter; the figures are for this S"
        )
    if recipe.train.contrastive_weight:
        notes.append("the contrastive loss of training is not counted")
    if recipe.train.unlikelihood_weight:
        notes.append("the unlikelihood loss of training is not counted")
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
    model = models.whole(recipe, V, at, labels=C.value)
    _check_lengths(recipe, model.at)
    bytes_ = memory.bytes_of(
        model.parts,
        model.at,
        memory=FLOAT * model.memory,
        average=recipe.train.ema_decay > 0,
        means=2 if recipe.train.optimiser == "adamw" else 0,
    )
    symbols = (model.at.B, model.at.S, model.at.T, *(size for size in (V, C) if size.value))
    return Budget(title, symbols, model.parts, bytes_, sizes.notes)


def _check_lengths(recipe: r.Recipe, at: Lengths) -> None:
    """Raise if a length exceeds the learned positions."""
    limits = {
        "source": (recipe.encoder, at.S.value, models.longest_source(recipe)),
        "target": (recipe.decoder, at.T.value, models.longest_target(recipe)),
    }
    for name, (section, length, longest) in limits.items():
        if getattr(section, "positions", None) == "learned" and length > longest:
            limit = (
                f"max_{name}"
                if name == "target" or hasattr(recipe.data, "max_source")
                else "max_seconds"
            )
            raise InputError(
                f"longer than the learned positions of the recipe: at most {longest:,}",
                where=f"{name} length",
                got=f"{length:,}",
                hint=f"raise data.{limit}, or use other positions",
            )


def of_run(folder: Path, at: Lengths) -> Budget:
    """The cost of a trained model, whose files must be what was saved. Its vocabulary is that of
    the weights on disk; a note says whether their parameters equal those of the formulas."""
    from regard import disk

    disk.verify(folder, "recipe.json", "tokenizer.json")
    recipe = r.Recipe.from_json(disk.read_json(folder / "recipe.json"), folder / "recipe.json")
    weights = folder / "model.safetensors"
    if not weights.exists():
        budget = of_recipe(recipe, at, title=str(folder))
        return replace(
            budget, notes=(*budget.notes, "no weights yet; the figures are the recipe's")
        )
    shapes = header(weights)
    tables = [
        shape[0]
        for name, shape in sorted(shapes.items())
        if name.endswith("embedding.table.weight")
    ]
    scores = [
        shape[0] for name, shape in shapes.items() if name == "decoder.output.projection.weight"
    ]
    if not tables and not scores:
        raise BundleError("neither an embedding nor labels among the weights", where=weights)
    labels = next(iter(scores), None) if recipe.task == "classify" else None
    budget = of_recipe(
        recipe, at, title=str(folder), vocabulary=next(iter(tables), None), labels=labels
    )
    parameters = sum(math.prod(shape) for name, shape in shapes.items() if name != "idf")
    verdict = "as the formulas say" if parameters == budget.parameters else "the formulas differ"
    note = f"{weights.name} has {parameters:,} parameters, {verdict}"
    return replace(budget, notes=(*budget.notes, note))


def header(path: Path) -> dict[str, list[int]]:
    """The shapes in a safetensors file, whose header is 8 bytes of length, then JSON."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > LONGEST_HEADER:
                raise ValueError("header too long")
            entries: dict[str, Any] = json.loads(file.read(length))
        return {
            name: list(entry["shape"]) for name, entry in entries.items() if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, struct.error):
        raise BundleError("damaged: not a safetensors file", where=path) from None
