"""Views: an answer, or a tensor of weights, as the data that page.js draws."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from regard.errors import InputError
from regard.pages import arrays
from regard.pages.heads import head_numbers, mean_of, row_correlations
from regard.pages.shell import json_text

# Bytes of a page that are not arrays or data: template, style and script, at most.
SHELL = 150_000
ORDER = ("effect", "cross", "weights", "decoder", "encoder")  # whose arrays come first


@dataclass(frozen=True)
class Part:
    """Maps of one kind: the weights of an attention layer, by layer and head, or effects.

    rows     what the rows are: "steps" (tokens written), "read" (tokens that the decoder read) or
             "places" (of the source)
    columns  what the columns are
    layers   the number of each layer and its maps (H, T, S)
    form     "softmax", "quadratic" for linear attention, or "effect"
    """

    id: str
    title: str
    about: str
    rows: str
    columns: str
    layers: tuple[tuple[int, np.ndarray], ...]
    form: str = "softmax"
    low: float = 0.0
    high: float = 1.0

    @property
    def square(self) -> bool:
        """Whether rows and columns are the same: self-attention."""
        return self.rows == self.columns


@dataclass(frozen=True)
class View:
    """One answer or tensor of a page.

    names   the names of "steps", "read" and "places"
    steps   for each step its name, log-probability and alternatives
    source  what was read: {"kind": "text"}, or a picture or sound of `regard.pages.media`
    turns   of a conversation that was read: {"name", "text", "places"} of each turn
    """

    name: str
    names: Mapping[str, Sequence[str]]
    parts: tuple[Part, ...]
    steps: tuple[Mapping[str, Any], ...] = ()
    source: Mapping[str, Any] = field(default_factory=lambda: {"kind": "text"})
    turns: tuple[Mapping[str, Any], ...] = ()
    answer: Mapping[str, Any] = field(default_factory=dict)
    beam: Mapping[str, Any] | None = None
    effect_reason: str = ""  # why it has no effects
    effect_command: str = ""  # what to type for them

    def part(self, name: str) -> Part | None:
        """The part with this id, if there is one."""
        return next((part for part in self.parts if part.id == name), None)


@dataclass(frozen=True)
class Data:
    """The data of a page, its arrays, and what has to be said about them."""

    json: dict[str, Any]
    arrays: dict[str, str]
    notes: tuple[str, ...]


def chosen_layers(
    numbers: Sequence[int], layers: Sequence[int] | None, where: str = "layers"
) -> list[int]:
    """The layers to show, all of which must be among `numbers`."""
    if layers is None:
        return list(numbers)
    for number in layers:
        if number not in numbers:
            raise InputError(
                "no such layer",
                where=where,
                got=number,
                hint=f"there are the layers {', '.join(map(str, numbers))}",
            )
    return sorted(set(layers))


def page_data(
    views: Sequence[View],
    store: arrays.Arrays,
    *,
    start: Mapping[str, Any] | None = None,
) -> Data:
    """The data of a page of one or two views. `store` may have arrays of media already."""
    records = [_record(view) for view in views]
    store.room -= SHELL + len(json_text(records))
    drawn = list(_maps(views, records))
    for values, part, head in drawn:
        head["array"] = store.add(arrays.quantised(values, part.low, part.high))
    for values, _, head in drawn:
        if head["array"] is not None:
            head["exact"] = store.add(_float16(values))
    json = {"format": 1, "views": records, "start": dict(start or {})}
    return Data(json, store.texts, tuple(_notes(views, records)))


def _record(view: View) -> dict[str, Any]:
    effect = view.part("effect")
    effects = None if effect is None else effect.layers[0][1][0]
    return {
        "name": view.name,
        "names": {name: list(values) for name, values in view.names.items()},
        "steps": [dict(step) for step in view.steps],
        "source": dict(view.source),
        "turns": [dict(turn) for turn in view.turns],
        "answer": dict(view.answer),
        "beam": view.beam,
        "effectReason": view.effect_reason,
        "effectCommand": view.effect_command,
        "parts": [_part_record(part, effects) for part in view.parts],
    }


def _part_record(part: Part, effects: np.ndarray | None) -> dict[str, Any]:
    own_effects = effects if part.id == "cross" else None
    return {
        "id": part.id,
        "title": part.title,
        "about": part.about,
        "rows": part.rows,
        "columns": part.columns,
        "form": part.form,
        "low": part.low,
        "high": part.high,
        "square": part.square,
        "layers": [_layer_record(part, number, maps, own_effects) for number, maps in part.layers],
    }


def _layer_record(
    part: Part, number: int, maps: np.ndarray, effects: np.ndarray | None
) -> dict[str, Any]:
    """A layer with its heads; with effects, also how weights and effects correlate."""
    heads = []
    for weights in maps:
        numbers = {} if part.id == "effect" else head_numbers(weights, square=part.square)
        thumbnail = arrays.thumbnail(weights, part.low, part.high)
        head: dict[str, Any] = {"array": None, "exact": None, "numbers": numbers}
        head["thumb"] = thumbnail
        if effects is not None:
            head |= _correlations(weights, effects)
            numbers["correlation"] = head["correlation"]
        heads.append(head)
    layer: dict[str, Any] = {"layer": number, "heads": heads}
    if effects is not None:
        layer |= _correlations(maps.mean(0), effects)
    return layer


def _correlations(weights: np.ndarray, effects: np.ndarray) -> dict[str, Any]:
    """The rank correlation of weights and effects: of each row, and their mean."""
    rows = row_correlations(weights, effects)
    rounded = [None if row is None else round(row, 4) for row in rows]
    return {"correlation": mean_of(rows), "correlations": rounded}


def _maps(
    views: Sequence[View], records: Sequence[Mapping[str, Any]]
) -> Iterable[tuple[np.ndarray, Part, dict[str, Any]]]:
    """All maps, in the order in which they get room: effects, cross-attention, the rest; of each
    the last layer first."""
    for name in ORDER:
        entries = []
        for view, record in zip(views, records, strict=True):
            for part, part_record in zip(view.parts, record["parts"], strict=True):
                if part.id != name:
                    continue
                layers = zip(part.layers, part_record["layers"], strict=True)
                entries += [(part, maps, layer["heads"]) for (_, maps), layer in layers]
        for part, maps, heads in reversed(entries):
            for values, head in zip(maps, heads, strict=True):
                yield values, part, head


def _float16(values: np.ndarray) -> np.ndarray:
    limit = float(np.finfo(np.float16).max)
    return values.clip(-limit, limit).astype(np.float16)


def _notes(views: Sequence[View], records: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """What a page of this size leaves out."""
    missing = _layers_without("array", views, records)
    if missing:
        yield (
            f"Not in this page, which has at most {arrays.CAP // 1_000_000} MB: {missing}. "
            "Choose other layers with --layers (or layers=…)."
        )
    rounded = _layers_without("exact", views, records, unless="array")
    if rounded:
        yield f"To keep the page small, these weights are exact to 1/510 only: {rounded}."


def _layers_without(
    key: str,
    views: Sequence[View],
    records: Sequence[Mapping[str, Any]],
    *,
    unless: str | None = None,
) -> str:
    layers: list[str] = []
    for view, record in zip(views, records, strict=True):
        for part in record["parts"]:
            numbers = []
            for layer in part["layers"]:
                heads = [head for head in layer["heads"] if unless is None or head[unless]]
                if any(head[key] is None for head in heads):
                    numbers.append(layer["layer"])
            if numbers:
                whose = f"{view.name}, " if len(views) > 1 else ""
                plural = "layer" if len(numbers) == 1 else "layers"
                layers.append(f"{whose}{part['title']}, {plural} {', '.join(map(str, numbers))}")
    return "; ".join(layers)
