"""An answer as HTML, for notebooks: its text and a small picture of its attention.

The picture is an inline SVG without scripts, styles or links. Its text has the colour of the page
around it, so it can be read on a dark and on a light one.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Sequence

from regard.errors import printable

COLOUR = "#3b82f6"
LEVELS = 10  # of opacity
MOST_STEPS = 40  # rows of the picture
MOST_PLACES = 40  # its columns; neighbours share one if there are more
MOST_CELLS = 1600  # of all maps of a picture together
LONGEST_NAME = 18  # characters
LONGEST_TEXT = 2000
LETTER = 6.6  # pixels of one at font size 11
ROW = 18  # pixels
MAP = 64  # pixels of the longer side of a map

Weights = Sequence[Sequence[float]]  # (steps, places)


def answer_html(
    text: str,
    *,
    summary: str,
    steps: Sequence[str],
    places: Sequence[str],
    weights: Weights | None,
    grid: tuple[int, int] | None = None,
) -> str:
    """The text, a line about it, and the weights (steps, places): as a heat map with a row for
    each step, or if the places lie on a `grid` as a map for each step."""
    if len(text) > LONGEST_TEXT:
        text = f"{text[:LONGEST_TEXT]}…"
    parts = [
        f"<div><b>{_escaped(text)}</b></div>",
        f"<div><small>{_escaped(summary)}</small></div>",
    ]
    if weights is not None and len(weights) and len(places):
        if grid is None:
            parts.append(_heat_map(steps, places, weights))
        else:
            parts.append(_maps(steps, weights, grid))
    return f"<div>{''.join(parts)}</div>"


def _heat_map(steps: Sequence[str], places: Sequence[str], weights: Weights) -> str:
    notes = _cut_note(len(steps), MOST_STEPS)
    steps = [_shortened(step) for step in steps[:MOST_STEPS]]
    together = -(-len(places) // MOST_PLACES)
    if together > 1:
        notes.append(f"each column is the sum of {together} places")
    starts = range(0, len(places), together)
    columns = [_shortened(places[start] + " …" * (together > 1)) for start in starts]
    rows = [
        [sum(row[start : start + together]) for start in starts] for row in weights[:MOST_STEPS]
    ]

    left = 10 + LETTER * max(map(_letters, steps))
    top = 12 + LETTER * max(map(_letters, columns))
    wide = 18
    most = max(map(max, rows))
    cells = _Cells(most)
    labels = []
    for number, (step, row) in enumerate(zip(steps, rows, strict=True)):
        y = top + ROW * number
        labels.append(_label(step, left - 6, y + 13, 'text-anchor="end"'))
        for place, weight in enumerate(row):
            cells.add(left + wide * place, y, wide - 1, ROW - 1, weight)
    for place, name in enumerate(columns):
        x = left + wide * place + 13
        labels.append(_label(name, x, top - 6, f'transform="rotate(-90 {x:.0f} {top - 6:.0f})"'))
    width = left + wide * len(columns)
    notes.insert(0, "attention of each token over the source, mean of the heads")
    height = top + ROW * len(steps)
    labels.append(_frame(left, top, width - left, height - top))
    return _svg(width + 2, height + 2, cells, labels) + _notes(notes, most)


def _maps(steps: Sequence[str], weights: Weights, grid: tuple[int, int]) -> str:
    """A map of the grid for each step."""
    notes = _cut_note(len(steps), MOST_STEPS)
    count = min(len(steps), MOST_STEPS)
    height, width = grid
    together = 1  # points of the grid along each side of a cell
    while count * -(-height // together) * -(-width // together) > MOST_CELLS:
        together += 1
    if together > 1:
        notes.append(f"each cell is the sum of {together} x {together} places")
    maps = [_pooled(row, grid, together) for row in weights[:count]]

    most = max(max(map(max, map_)) for map_ in maps)
    side = max(2, MAP // max(len(maps[0]), len(maps[0][0])))
    across = max(MAP, side * len(maps[0][0])) + 16
    down = side * len(maps[0]) + 2 * ROW
    columns = min(8, count)
    cells = _Cells(most)
    labels = []
    for number, (step, map_) in enumerate(zip(steps, maps, strict=False)):
        left = across * (number % columns)
        top = down * (number // columns) + ROW
        labels.append(_label(_shortened(step, 11), left, top - 5))
        labels.append(_frame(left, top, side * len(map_[0]), side * len(map_)))
        for y, row in enumerate(map_):
            for x, weight in enumerate(row):
                cells.add(left + side * x, top + side * y, side, side, weight)
    notes.insert(0, "attention of each token over the picture, mean of the heads")
    rows = -(-count // columns)
    return _svg(across * columns + 2, down * rows, cells, labels) + _notes(notes, most)


def _pooled(row: Sequence[float], grid: tuple[int, int], together: int) -> list[list[float]]:
    """The weights of a grid as rows of cells, each the sum of together x together places.

    >>> _pooled([1, 2, 3, 4, 5, 6], (2, 3), 2)
    [[12.0, 9.0]]
    """
    height, width = grid
    pooled = [[0.0] * -(-width // together) for _ in range(-(-height // together))]
    for place, weight in enumerate(row):
        y, x = divmod(place, width)
        pooled[y // together][x // together] += weight
    return pooled


class _Cells:
    """Rectangles, collected into one path for each level of opacity."""

    def __init__(self, most: float):
        self.scale = LEVELS / most if most > 0 else 0.0  # the largest weight is opaque
        self.paths: dict[int, list[str]] = {}

    def add(self, x: float, y: float, width: float, height: float, weight: float) -> None:
        level = round(weight * self.scale)
        if level > 0:
            path = f"M{x:.0f} {y:.0f}h{width:.0f}v{height:.0f}h-{width:.0f}z"
            self.paths.setdefault(level, []).append(path)

    def svg(self) -> str:
        return "".join(
            f'<path fill="{COLOUR}" fill-opacity="{level / LEVELS:g}" d="{"".join(path)}"/>'
            for level, path in sorted(self.paths.items())
        )


def _svg(width: float, height: float, cells: _Cells, labels: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'font-family="monospace" font-size="11" fill="currentColor" role="img">'
        f"{cells.svg()}{''.join(labels)}</svg>"
    )


def _frame(x: float, y: float, width: float, height: float) -> str:
    return (
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height:.0f}" '
        f'fill="none" stroke="currentColor" stroke-opacity="0.3"/>'
    )


def _label(text: str, x: float, y: float, attributes: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" {attributes}>{_escaped(text)}</text>'


def _notes(notes: Sequence[str], most: float) -> str:
    line = "; ".join([*notes, f"the strongest colour is {most:.2f}"])
    return f"<div><small>{line}</small></div>"


def _cut_note(steps: int, most: int) -> list[str]:
    return [f"the first {most} of {steps:,} tokens"] if steps > most else []


def _shortened(text: str, most: int = LONGEST_NAME) -> str:
    text = printable(text.strip()) or "·"
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _letters(text: str) -> int:
    """The width of a text in letters; those of Chinese or Japanese are two wide."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def _escaped(text: str) -> str:
    return html.escape(printable(text))
