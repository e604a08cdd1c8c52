"""The budget of a recipe, and of a run on disk: from the recipe alone, no weights are built."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from regard import recipe as r
from regard.costs import memory, models
from regard.costs.layers import FLOAT, Lengths
from regard.costs.parts import Budget
from regard.costs.symbols import Size, ceil
from regard.errors import BundleError, InputError

CHARACTERS = 100  # of a language with an alphabet, marks included
LONGEST_HEADER = 100 << 20  # of a safetensors file, its own limit


def of_recipe(
    recipe: r.Recipe, at: Lengths, *, title: str, vocabulary: int | None = None, notes: tuple[str, ...] = ()
) -> Budget:
    """The cost of the model a recipe describes. Its vocabulary is the most its codec may make, unless given."""
    if not covers(recipe):
        raise InputError(
            "no closed form yet for models that read pictures, answer with a label or look before the cell moves",
            where=title,
            got=f'task = "{recipe.task}"',
            hint="regard.budget(module, inputs) counts one by running it",
        )
    if vocabulary is None:
        vocabulary, note = _vocabulary(recipe.codec)
        notes = (*notes, note)
    _reach(recipe, at)
    V = Size("V", vocabulary, "vocabulary")
    parts = models.parts(recipe, V, at)
    places = ceil(at.S, 2**recipe.encoder.layers) if isinstance(recipe.encoder, r.EncoderConvolution) else at.S
    left = FLOAT * at.B * places * Size("E", models.width(recipe), "width of the memory")
    made = memory.bytes_of(parts, at, memory=left, average=recipe.train.average > 0)
    return Budget(title, (at.B, at.S, at.T, V), parts, made, notes)


def covers(recipe: r.Recipe) -> bool:
    """Whether there are closed forms for all its parts."""
    d = recipe.decoder
    if isinstance(recipe.encoder, r.EncoderTwoWay) or recipe.task == "blank":
        return False
    known = isinstance(d, r.DecoderTransformer) or (isinstance(d, r.DecoderRecurrent) and d.looks == "after")
    return known and isinstance(recipe.source, r.SourceTokens) and not isinstance(recipe.codec, r.CodecLabels)


def _vocabulary(codec: r.Codec) -> tuple[int, str]:
    if isinstance(codec, r.CodecCharacters):
        return CHARACTERS, f"V = {CHARACTERS} is a guess: characters have no limit; --vocabulary gives another"
    assert not isinstance(codec, r.CodecLabels)
    return codec.size, f"V = {codec.size:,} is the most the codec may make; --vocabulary gives another"


def _reach(recipe: r.Recipe, at: Lengths) -> None:
    """Learned positions end somewhere."""
    ends = {
        "source": (recipe.encoder, at.S.value, models.longest_source(recipe)),
        "target": (recipe.decoder, at.T.value, models.longest_target(recipe)),
    }
    for name, (section, length, longest) in ends.items():
        if getattr(section, "positions", None) == "learned" and length > longest:
            raise InputError(
                f"longer than the learned positions of the recipe reach: at most {longest:,}",
                where=f"{name} length",
                got=f"{length:,}",
                hint=f"raise data.max_{name}, or use other positions",
            )


def of_run(folder: Path, at: Lengths) -> Budget:
    """The cost of a trained model; its vocabulary and, as a check, its parameters are those of the weights on disk."""
    from regard import disk

    recipe = r.Recipe.from_json(disk.read_json(folder / "recipe.json"), folder / "recipe.json")
    weights = folder / "model.safetensors"
    if not weights.exists():
        return of_recipe(recipe, at, title=str(folder), notes=("no weights yet; the figures are the recipe's",))
    shapes = header(weights)
    tables = [shape for name, shape in shapes.items() if name.endswith("decoder.embedding.table.weight")]
    tables += [shape for name, shape in shapes.items() if name.endswith("embedding.table.weight")]
    if not tables:
        raise BundleError("no embedding among the weights", where=weights)
    budget = of_recipe(recipe, at, title=str(folder), vocabulary=tables[0][0])
    there = sum(_numbers(shape) for name, shape in shapes.items() if name != "rarity")
    same = there == budget.parameters
    note = f"{weights.name} has {there:,} parameters, " + ("as the formulas say" if same else "the formulas differ")
    return Budget(budget.title, budget.sizes, budget.parts, budget.bytes, (*budget.notes, note))


def header(path: Path) -> dict[str, list[int]]:
    """The shapes in a safetensors file, whose header is JSON after its length in 8 bytes."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > LONGEST_HEADER:
                raise ValueError("header too long")
            found: dict[str, Any] = json.loads(file.read(length))
        return {name: list(entry["shape"]) for name, entry in found.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, struct.error):
        raise BundleError("damaged: not a safetensors file", where=path) from None


def _numbers(shape: list[int]) -> int:
    count = 1
    for axis in shape:
        count *= axis
    return count
