"""A map of attention as PNG or SVG, drawn without a browser."""

from __future__ import annotations

import math
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from regard.disk import MADE_BY, write_output
from regard.errors import InputError
from regard.pages.arrays import decode
from regard.pages.views import Part, View

NAMED = 90  # rows or columns whose names are written
LONGEST = 16  # characters of a name
COLUMNS = 5  # pictures side by side
INK = "#1b2230"


def write_figure(path: Path, figure: Any) -> None:
    """Write a figure as PNG or SVG, by the end of its name. A file of somebody else is refused."""
    import matplotlib

    if path.suffix.lower() == ".png":
        metadata = {"Software": MADE_BY}
        write_output(
            path, lambda file: figure.savefig(file, format="png", dpi=144, metadata=metadata)
        )
        return
    buffer = StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "regard", "svg.fonttype": "none"}):
        metadata = {"Date": None, "Creator": MADE_BY, "Title": MADE_BY}
        figure.savefig(buffer, format="svg", metadata=metadata)
    write_output(path, lambda file: file.write(buffer.getvalue().encode("utf-8")))


def attention_figure(
    view: View,
    arrays: Mapping[str, str],
    *,
    title: str = "",
    layer: int | None = None,
    head: int | None = None,
) -> Any:
    """The first map of a view, and its effects if it has them. For a picture, one of it for each
    token.

    layer  the number of the layer; by default the last one
    head   the number of the head; by default the mean of all
    """
    from matplotlib.figure import Figure  # without pyplot: no global state, no window

    panels = [(part, *_map(part, layer, head)) for part in _drawn(view)]
    if view.source["kind"] == "picture":
        return _pictures(Figure, view, panels[0], title)
    is_sound = view.source["kind"] == "sound"
    rows = max(len(values) for _, values, _ in panels)
    columns = max(values.shape[1] for _, values, _ in panels)
    width = min(16.0, max(4.5, 2.2 + 0.27 * min(columns, NAMED)))
    height = min(18.0, max(2.6, 1.4 + 0.24 * min(rows, NAMED)))
    ratios = ([0.8] if is_sound else []) + [1.0] * len(panels)
    figure = Figure(
        figsize=(width, height * len(panels) + (1.4 if is_sound else 0) + 0.4),
        layout="constrained",
    )
    axes = list(figure.subplots(len(ratios), 1, squeeze=False, height_ratios=ratios)[:, 0])
    if is_sound:
        _spectrogram(axes.pop(0), view, arrays)
    for ax, (part, values, caption) in zip(axes, panels, strict=True):
        _heat(figure, ax, view, part, values, caption)
    if title:
        figure.suptitle(_cut(title, 110), fontsize=10, color=INK, parse_math=False)
    return figure


def _drawn(view: View) -> list[Part]:
    if not view.parts:
        raise InputError("nothing to draw: this answer has neither weights nor effects")
    chosen = [view.parts[0]]
    effect = view.part("effect")
    if effect is not None and effect is not chosen[0]:
        chosen.append(effect)
    return chosen


def _map(part: Part, layer: int | None, head: int | None) -> tuple[np.ndarray, str]:
    """The map (T, S) of a layer and head, and what it is."""
    known = [number for number, _ in part.layers]
    if part.id == "effect":
        return part.layers[0][1][0], part.about
    number = known[-1] if layer is None else layer
    if number not in known:
        raise InputError(
            "no such layer",
            where="--layer",
            got=number,
            hint=f"this page has the layers {', '.join(map(str, known))}",
        )
    maps = part.layers[known.index(number)][1]
    if head is not None and head >= len(maps):
        raise InputError(
            "no such head", where="--head", got=head, hint=f"there are {len(maps)}, from 0"
        )
    form = ", quadratic form" if part.form == "quadratic" else ""
    which = "mean of the heads" if head is None else f"head {head}"
    caption = f"{part.about}, layer {number}, {which}{form}"
    return (maps.mean(0) if head is None else maps[head]), caption


def _heat(figure: Any, ax: Any, view: View, part: Part, values: np.ndarray, caption: str) -> None:
    low, high = (part.low, part.high) if part.low < 0 else (0.0, float(values.max()) or 1.0)
    image = ax.imshow(
        values,
        aspect="auto",
        cmap="PuOr_r" if part.low < 0 else "Blues",
        vmin=low,
        vmax=high,
        interpolation="nearest",
    )
    figure.colorbar(image, ax=ax, pad=0.01, fraction=0.03).outline.set_visible(False)
    ax.set_title(_cut(caption, 100), fontsize=9, loc="left", color=INK, parse_math=False)
    is_sound = view.source["kind"] == "sound" and part.columns == "places"
    _ticks(ax.set_yticks, view.names[part.rows])
    if is_sound:
        times = view.source["times"]
        places = np.unique(np.linspace(0, len(times) - 1, 8).astype(int))
        ax.set_xticks(places, [f"{times[place][0]:.2f} s" for place in places], fontsize=8)
    else:
        _ticks(ax.set_xticks, view.names[part.columns], rotation=90)
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)


def _ticks(set_ticks: Any, names: Any, **look: Any) -> None:
    every = max(1, math.ceil(len(names) / NAMED))
    places = range(0, len(names), every)
    labels = [_cut(names[place], LONGEST) for place in places]
    set_ticks(places, labels, fontsize=8, fontfamily="monospace", parse_math=False, **look)


def _spectrogram(ax: Any, view: View, arrays: Mapping[str, str]) -> None:
    record = view.source["spectrogram"]
    if record is None:
        ax.set_axis_off()
        return
    levels = decode(arrays[record["array"]], np.uint8, (record["rows"], record["columns"]))
    times = view.source["times"]
    ax.imshow(
        levels, aspect="auto", cmap="Greys", extent=(record["start"], record["end"], 0, len(levels))
    )
    ax.set_xlim(times[0][0], times[-1][1])
    ax.set_yticks([])
    ax.set_ylabel("mels", fontsize=8)
    ax.tick_params(labelsize=8)


def _pictures(
    figure_class: Any, view: View, panel: tuple[Part, np.ndarray, str], title: str
) -> Any:
    """The picture, and again for each row of the map, lit where the row is large."""
    import base64
    from io import BytesIO

    from PIL import Image

    part, values, caption = panel
    content = base64.b64decode(view.source["url"].partition(",")[2])
    picture = np.asarray(Image.open(BytesIO(content)).convert("RGB"))
    height, width = picture.shape[:2]
    names = view.names[part.rows]
    rows = math.ceil((1 + len(names)) / COLUMNS)
    figure = figure_class(figsize=(2.3 * COLUMNS, 2.6 * rows + 0.5), layout="constrained")
    axes = figure.subplots(rows, COLUMNS, squeeze=False).flatten()
    for ax in axes:
        ax.set_axis_off()
    axes[0].imshow(picture)
    for ax, name, row in zip(axes[1:], names, values, strict=False):
        shade = 1 - np.maximum(0, row) / max(1e-12, float(row.max()))
        ax.imshow(picture)
        ax.imshow(
            shade.reshape(view.source["grid"]),
            cmap="Greys",
            alpha=0.85 * shade.reshape(view.source["grid"]),
            vmin=0,
            vmax=1,
            extent=(-0.5, width - 0.5, height - 0.5, -0.5),
        )
        ax.set_title(f"{_cut(name, LONGEST)}  {float(row.max()):.2f}", fontsize=9, parse_math=False)
    heading = f"{_cut(title, 110)}\n{caption}" if title else caption
    figure.suptitle(heading, fontsize=9, color=INK, parse_math=False)
    return figure


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
