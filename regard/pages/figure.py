"""A map of attention as PNG or SVG, drawn without a browser."""

from __future__ import annotations

import contextlib
import logging
import math
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from regard.disk import MADE_BY, write_output
from regard.errors import InputError, printable
from regard.pages.arrays import decode
from regard.pages.pairing import LEFT_OUT, Pairing, pair_names
from regard.pages.shell import cut
from regard.pages.views import Part, View, chosen_layers

NAMED = 90  # rows or columns whose names are written
LONGEST = 16  # characters of a name
COLUMNS = 5  # pictures side by side
CHARACTER = 0.085  # inches of a character of a title, at most
INK = "#1b2230"
SHOWN_GLYPHS = 5
MISSING = re.compile(r"Glyph (\d+) .*missing from")
LOGGER = logging.getLogger("regard")
NO_SUCH_MAP = "one of the two has no such map"
SIGNED, UNSIGNED = "PuOr_r", "Blues"  # colours of values with and without a sign


def write_figure(path: Path, figure: Any) -> None:
    """Write a figure as PNG or SVG, by the end of its name. A file of somebody else is refused."""
    import matplotlib

    if path.suffix.lower() == ".png":
        metadata = {"Software": MADE_BY}
        with _missing_glyphs() as missing:
            write_output(
                path, lambda file: figure.savefig(file, format="png", dpi=144, metadata=metadata)
            )
        if missing:
            LOGGER.warning(
                "%s: its font lacks %s; the HTML page has them", path, _some_of(sorted(missing))
            )
        return
    buffer = StringIO()
    with (
        matplotlib.rc_context({"svg.hashsalt": "regard", "svg.fonttype": "none"}),
        _missing_glyphs(),  # its texts stay texts: whoever shows it has fonts for them
    ):
        metadata = {"Date": None, "Creator": MADE_BY, "Title": MADE_BY}
        figure.savefig(buffer, format="svg", metadata=metadata)
    write_output(path, lambda file: file.write(buffer.getvalue().encode("utf-8")))


@contextlib.contextmanager
def _missing_glyphs() -> Iterator[set[str]]:
    """Collects the characters that matplotlib would warn of, one by one; other warnings pass."""
    missing: set[str] = set()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield missing
    for warning in caught:
        match = MISSING.match(str(warning.message))
        if match is None:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
        else:
            missing.add(chr(int(match[1])))


def _some_of(characters: Sequence[str]) -> str:
    """
    >>> _some_of(["a"]), _some_of(["a", "b", "c", "d", "e", "f", "g"])
    ('the character a', '7 characters (a b c d e …)')
    """
    if len(characters) == 1:
        return f"the character {characters[0]}"
    more = " …" if len(characters) > SHOWN_GLYPHS else ""
    return f"{len(characters)} characters ({' '.join(characters[:SHOWN_GLYPHS])}{more})"


Drawn = tuple[Part, np.ndarray, str]  # a map (T, S) with its part, and what it is


def attention_figure(
    views: Sequence[tuple[View, Mapping[str, str]]],
    *,
    titles: Sequence[str] = (),
    layer: int | None = None,
    head: int | None = None,
) -> Any:
    """The first map of each view, side by side, with its effects below; for a picture, one of it
    for each token. Below two views is their difference.

    views  each with the arrays of its media
    layer  the number of the layer; by default the last one
    head   the number of the head; by default the mean of all
    """
    from matplotlib.figure import Figure  # without pyplot: no global state, no window

    maps = [[_map(part, layer, head) for part in _shown_parts(view)] for view, _ in views]
    sizes = [_size(view, drawn) for (view, _), drawn in zip(views, maps, strict=True)]
    widths = [width for width, _ in sizes]
    heights = [max(height for _, height in sizes)]
    is_pair = len(views) == 2
    differences = _differences([view for view, _ in views], maps) if is_pair else []
    if is_pair:
        heights.append(_difference_height(differences))
    figure = Figure(figsize=(sum(widths), sum(heights)), layout="constrained")
    rows = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    panels = rows[0].subfigures(1, len(views), squeeze=False, width_ratios=widths)[0]
    for number, (panel, (view, arrays), drawn) in enumerate(zip(panels, views, maps, strict=True)):
        title = _wrapped(printable(titles[number]), panel) if titles else ""
        if view.source["kind"] == "picture":
            _pictures(panel, view, drawn, title)
        else:
            _maps(panel, view, arrays, drawn, title)
    if is_pair:
        _draw_differences(rows[1], differences, is_alike=maps[0][0][0].id == maps[1][0][0].id)
    return figure


def _shown_parts(view: View) -> list[Part]:
    if not view.parts:
        raise InputError("nothing to draw: this answer has neither weights nor effects")
    parts = [view.parts[0]]
    effect = view.part("effect")
    if effect is not None and effect is not parts[0]:
        parts.append(effect)
    return parts


def _map(part: Part, layer: int | None, head: int | None) -> Drawn:
    """The map of a layer and head of a part."""
    if part.id == "effect":
        return part, part.layers[0][1][0], part.about
    numbers = [number for number, _ in part.layers]
    (number,) = chosen_layers(numbers, [numbers[-1] if layer is None else layer], "--layer")
    maps = part.layers[numbers.index(number)][1]
    if head is not None and head >= len(maps):
        raise InputError(
            "no such head", where="--head", got=head, hint=f"there are {len(maps)}, from 0"
        )
    form = ", quadratic form" if part.form == "quadratic" else ""
    which = "mean of the heads" if head is None else f"head {head}"
    values = maps.mean(0) if head is None else maps[head]
    return part, values, f"{part.about}, layer {number}, {which}{form}"


def _size(view: View, maps: Sequence[Drawn]) -> tuple[float, float]:
    """Inches of a view: width and height."""
    rows = max(len(values) for _, values, _ in maps)
    if view.source["kind"] == "picture":
        lines = math.ceil((1 + len(maps) * rows) / COLUMNS)
        return 2.3 * COLUMNS, 2.6 * lines + 0.5
    columns = max(values.shape[1] for _, values, _ in maps)
    width = min(16.0, max(4.5, 2.2 + 0.27 * min(columns, NAMED)))
    spectrogram = 1.4 if view.source["kind"] == "sound" else 0.0
    return width, _height(rows) * len(maps) + spectrogram + 0.4


def _height(rows: int) -> float:
    """Inches of a map."""
    return min(18.0, max(2.6, 1.4 + 0.24 * min(rows, NAMED)))


def _maps(
    figure: Any, view: View, arrays: Mapping[str, str], maps: Sequence[Drawn], title: str
) -> None:
    """Maps below each other; of a sound, with its spectrogram above them."""
    is_sound = view.source["kind"] == "sound"
    ratios = ([0.8] if is_sound else []) + [1.0] * len(maps)
    axes = list(figure.subplots(len(ratios), 1, squeeze=False, height_ratios=ratios)[:, 0])
    if is_sound:
        _spectrogram(axes.pop(0), view, arrays)
    for ax, (part, values, caption) in zip(axes, maps, strict=True):
        _heat(figure, ax, view, part, values, caption)
    if title:
        figure.suptitle(title, fontsize=10, color=INK, parse_math=False)


def _heat(figure: Any, ax: Any, view: View, part: Part, values: np.ndarray, caption: str) -> None:
    low, high = (part.low, part.high) if part.low < 0 else (0.0, float(values.max()) or 1.0)
    _grid(figure, ax, values, caption, low, high)
    _ticks(ax.set_yticks, view.names[part.rows])
    is_sound = view.source["kind"] == "sound" and part.columns == "places"
    if is_sound:
        times = view.source["times"]
        places = np.unique(np.linspace(0, len(times) - 1, 8).astype(int))
        ax.set_xticks(places, [f"{times[place][0]:.2f} s" for place in places], fontsize=8)
    else:
        _ticks(ax.set_xticks, view.names[part.columns], rotation=90)


def _grid(figure: Any, ax: Any, values: np.ndarray, caption: str, low: float, high: float) -> None:
    """A cell for each value, with a scale of its colours."""
    image = ax.imshow(
        values,
        aspect="auto",
        cmap=SIGNED if low < 0 else UNSIGNED,
        vmin=low,
        vmax=high,
        interpolation="nearest",
    )
    figure.colorbar(image, ax=ax, pad=0.01, fraction=0.03).outline.set_visible(False)
    title = _wrapped(caption, figure, room=1.0)
    ax.set_title(title, fontsize=9, loc="left", color=INK, parse_math=False)
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)


def _ticks(set_ticks: Any, names: Any, longest: int = LONGEST, **look: Any) -> None:
    every = max(1, math.ceil(len(names) / NAMED))
    places = range(0, len(names), every)
    labels = [cut(names[place], longest) for place in places]
    set_ticks(places, labels, fontsize=8, fontfamily="monospace", parse_math=False, **look)


Difference = tuple[Pairing, np.ndarray, str]  # second minus first, and what it is of


def _differences(views: Sequence[View], maps: Sequence[Sequence[Drawn]]) -> list[Difference]:
    """The difference of each kind of map that both views have, over the tokens that they share."""
    differences = []
    second = {part.id: (part, values) for part, values, _ in maps[1]}
    for part, values, caption in maps[0]:
        if part.id not in second:
            continue
        other, other_values = second[part.id]
        names = [
            (view.names[own.rows], view.names[own.columns])
            for view, own in zip(views, (part, other), strict=True)
        ]
        pairing = pair_names(names[0], names[1])
        if pairing.is_empty:
            continue
        (rows, other_rows), (columns, other_columns) = (
            zip(*pairs, strict=True) for pairs in pairing.axes
        )
        difference = other_values[np.ix_(other_rows, other_columns)] - values[np.ix_(rows, columns)]
        differences.append((pairing, difference, caption))
    return differences


def _difference_height(differences: Sequence[Difference]) -> float:
    return 0.5 + sum(_height(len(values)) for _, values, _ in differences)


def _draw_differences(figure: Any, differences: Sequence[Difference], *, is_alike: bool) -> None:
    """Second minus first; or a line that says why there is no difference. `is_alike`: the first
    maps of both views are of one kind."""
    look = {"fontsize": 10, "color": INK, "parse_math": False}
    if not differences:
        reason = "the two maps have no tokens in common" if is_alike else NO_SUCH_MAP
        figure.suptitle(f"No difference: {reason}.", **look)
        return
    colours = "Difference: second minus first. Orange: more in the second. Purple: less."
    about = [colours, *_alignment(differences[0][0])]
    figure.suptitle("\n".join(_wrapped(line, figure) for line in about), **look)
    axes = figure.subplots(len(differences), 1, squeeze=False)[:, 0]
    for ax, (pairing, values, caption) in zip(axes, differences, strict=True):
        limit = float(np.abs(values).max()) or 1.0
        _grid(figure, ax, values, f"difference: {caption}", -limit, limit)
        _ticks(ax.set_yticks, pairing.shared(0), 2 * LONGEST)
        _ticks(ax.set_xticks, pairing.shared(1), 2 * LONGEST, rotation=90)


def _alignment(pairing: Pairing) -> Iterator[str]:
    """How tokens of maps of different sizes were aligned, and which have no partner."""
    missing = []
    for which, name in enumerate(("first", "second")):
        names = pairing.left_out(which)
        if names:
            more = f" and {len(names) - LEFT_OUT} more" if len(names) > LEFT_OUT else ""
            missing.append(f"of the {name} {', '.join(names[:LEFT_OUT])}{more}")
    if missing:
        yield f"Tokens are aligned by their names. Left out: {'; '.join(missing)}."


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


def _pictures(figure: Any, view: View, maps: Sequence[Drawn], title: str) -> None:
    """The picture, and again for each row of each map, lit where the row is large."""
    import base64
    from io import BytesIO

    from PIL import Image

    content = base64.b64decode(view.source["url"].partition(",")[2])
    picture = np.asarray(Image.open(BytesIO(content)).convert("RGB"))
    lit = [
        (f"{'effect: ' if part.low < 0 else ''}{cut(name, LONGEST)}", row)
        for part, values, _ in maps
        for name, row in zip(view.names[part.rows], values, strict=True)
    ]
    lines = math.ceil((1 + len(lit)) / COLUMNS)
    axes = figure.subplots(lines, COLUMNS, squeeze=False).flatten()
    for ax in axes:
        ax.set_axis_off()
    axes[0].imshow(picture)
    for ax, (name, row) in zip(axes[1:], lit, strict=False):
        _lit(ax, picture, row.reshape(view.source["grid"]))
        ax.set_title(f"{name}  {float(row.max()):.2f}", fontsize=9, parse_math=False)
    cells = math.prod(view.source["grid"])
    scale = (
        "Each picture is brightest at its largest value, which stands above it"
        f" (a weight on all places alike: {1 / cells:.2f})."
    )
    captions = "\n".join([*(caption for _, _, caption in maps), scale])
    heading = f"{title}\n{captions}" if title else captions
    figure.suptitle(heading, fontsize=9, color=INK, parse_math=False)


def _lit(ax: Any, picture: np.ndarray, values: np.ndarray) -> None:
    """A picture that is dark but where the values of its grid are large."""
    height, width = picture.shape[:2]
    shade = 1 - np.maximum(0, values) / max(1e-12, float(values.max()))
    ax.imshow(picture)
    ax.imshow(
        shade,
        cmap="Greys",
        alpha=0.85 * shade,
        vmin=0,
        vmax=1,
        extent=(-0.5, width - 0.5, height - 0.5, -0.5),
    )


def _wrapped(text: str, figure: Any, *, room: float = 0.2) -> str:
    """A text in lines that fit in a figure, in which some inches are taken."""
    inches = figure.bbox.width / figure.dpi - room
    lines = textwrap.wrap(text, max(20, int(inches / CHARACTER)), max_lines=3, placeholder=" …")
    return "\n".join(lines)
