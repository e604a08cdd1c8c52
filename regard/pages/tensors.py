"""`regard.show_weights`: the weights of anybody's model as a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from regard.errors import InputError
from regard.pages.arrays import Arrays
from regard.pages.shell import Page, Section, names
from regard.pages.views import Part, View, chosen_layers, page_data

SHAPES = "(T, S), (H, T, S) or (layers, H, T, S)"
HEADS = Section("Heads", id="heads", widget="heads")


def show_weights(
    weights: Any,
    source: Sequence[str],
    target: Sequence[str] | None = None,
    *,
    title: str = "Attention weights",
    layers: Sequence[int] | None = None,
) -> Page:
    """A page of the attention weights of any model. A notebook shows it; `page.save(path)` writes
    it to a file.

    weights  a numpy array or torch tensor, (T, S), (H, T, S) or (layers, H, T, S); or a list with
             an (H, T, S) or (1, H, T, S) for each layer, as other libraries return them
    source   the S tokens that are attended to
    target   the T tokens that attend; by default the source (self-attention)
    layers   the numbers of the layers to show, from 0; by default all that fit in 25 MB

    >>> page = show_weights(np.eye(3), ["a", "b", "c"])
    >>> page
    Page('Attention weights')
    """
    maps = _maps(weights)
    places = _tokens(source, "source")
    steps = places if target is None else _tokens(target, "target")
    _check_shape(maps, len(steps), len(places), target is None)
    chosen = chosen_layers(range(len(maps)), layers)
    low, high = _range(maps)
    is_self = target is None or list(steps) == list(places)
    part = Part(
        id="weights",
        title="Weights",
        about="Rows attend to columns",
        rows="places" if is_self else "steps",
        columns="places",
        layers=tuple((number, maps[number]) for number in chosen),
        low=low,
        high=high,
    )
    view = View(
        name=title,
        names={"places": places, "steps": [] if is_self else steps, "read": []},
        parts=(part,),
        source={"kind": "text", "title": "Attended to"},
    )
    data = page_data([view], Arrays())
    count = f"{maps.shape[0]} x {maps.shape[1]}" if maps.shape[0] > 1 else str(maps.shape[1])
    return Page(
        title=title,
        kind="weights",
        facts=(
            ("layers x heads" if maps.shape[0] > 1 else "heads", count),
            ("rows x columns", f"{maps.shape[2]:,} x {maps.shape[3]:,}"),
        ),
        sections=(Section("", widget="attention", paragraphs=data.notes), HEADS),
        data=data.json,
        arrays=data.arrays,
    )


def _range(maps: np.ndarray) -> tuple[float, float]:
    """The values of the lightest and the darkest colour."""
    low = min(0.0, float(maps.min()))
    high = max(1.0, float(maps.max()))
    if low < 0:  # not weights, but scores or differences: colours on both sides of 0
        high = max(high, -low)
        low = -high
    return low, high


def to_numpy(value: Any) -> np.ndarray:
    """An array or tensor of any type and device as float32."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().float().numpy()
    try:
        array = np.asarray(value, dtype=np.float32)
    except (TypeError, ValueError):
        raise InputError(
            "weights must be an array of numbers", where="weights", got=type(value).__name__
        ) from None
    return array


def _maps(weights: Any) -> np.ndarray:
    """Weights of any of the shapes as (layers, H, T, S)."""
    if isinstance(weights, list | tuple) and weights and getattr(weights[0], "ndim", 0) >= 3:
        layers = [to_numpy(layer) for layer in weights]
        layers = [layer[0] if layer.ndim == 4 and len(layer) == 1 else layer for layer in layers]
        if len({layer.shape for layer in layers}) > 1:
            shapes = ", ".join(str(layer.shape) for layer in layers)
            raise InputError("layers must have the same shape", where="weights", got=shapes)
        maps = np.stack(layers)
    else:
        maps = to_numpy(weights)
    shape = maps.shape
    while maps.ndim < 4 and maps.ndim >= 2:
        maps = maps[None]
    if maps.ndim != 4 or not maps.size:
        raise InputError(f"weights must have shape {SHAPES}", where="weights", got=f"shape {shape}")
    if not np.isfinite(maps).all():
        raise InputError(
            "weights must be finite numbers", where="weights", got="NaN or infinite ones"
        )
    return maps


def _tokens(tokens: Any, what: str) -> list[str]:
    if isinstance(tokens, str) or not isinstance(tokens, Sequence):
        raise InputError(
            "must be a list of tokens",
            where=what,
            got=type(tokens).__name__,
            hint='as in ["the", "cat"]',
        )
    return names(tokens)


def _check_shape(maps: np.ndarray, steps: int, places: int, is_self: bool) -> None:
    if maps.shape[2:] == (steps, places):
        return
    what = f"{places:,} of source" if is_self else f"{places:,} of source and {steps:,} of target"
    raise InputError(
        f"weights must have a row for each token of {'source' if is_self else 'target'} and a "
        "column for each token of source",
        where="weights",
        got=f"{maps.shape[2]:,} x {maps.shape[3]:,} for tokens: {what}",
        hint="give target=… for cross-attention" if is_self else None,
    )
