"""Small pictures of a report: heat maps as SVG, and cards with a picture or sound.

All are text of a page without script. Colours are those of the theme: a cell is the accent colour,
the more opaque the larger its value.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from regard.errors import printable
from regard.pages.charts import tick_text
from regard.pages.media import picture_url
from regard.pages.shell import cut

CELL = 20.0  # the side of a cell
NAME = 18  # characters of a name
NAMED = 40  # columns that all have a name
MOST = 80  # columns of a map
FAINT = 0.015  # values that are not drawn
TICKS = 5
WIDE = 7.4  # the width of a character, for the room of names


def heat_map(
    values: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str,
    counts: Sequence[Sequence[int]] | None = None,
    times: Sequence[tuple[float, float]] | None = None,
    row_label: str = "",
    column_label: str = "",
) -> str:
    """Values (T, S) from 0 to 1 as an SVG element. `counts` are written into the cells; columns
    with `times` have a time axis instead of names."""
    values, columns = _pooled(values, columns)
    width = CELL if times is None else max(4.0, min(CELL, 400 / values.shape[1]))
    left = 12 + WIDE * max(len(_short(name)) for name in rows)
    bottom = 34 if times is not None else 0
    top = 8.0
    if times is None:
        top += WIDE * max(len(_short(name)) for name in columns)
    if column_label:
        top += 18
    height = top + CELL * len(rows)
    right = left + width * values.shape[1]
    parts = _cells(values, rows, columns, left, top, width)
    parts += [
        f'<text class="row" x="{left - 6:.1f}" y="{top + CELL * (i + 0.7):.1f}" '
        f'text-anchor="end">{_text(_short(name))}</text>'
        for i, name in enumerate(rows)
    ]
    if times is None:
        parts += _column_names(columns, left, top)
    else:
        parts += _time_ticks(times, left, right, height)
    if counts is not None:
        parts += _counts(counts, values, left, top)
    if column_label:
        parts.append(f'<text class="label" x="{left:.1f}" y="12">{_text(column_label)}</text>')
    if row_label:
        parts.append(
            f'<text class="label" x="{left - 6:.1f}" y="{top - 6:.1f}" text-anchor="end">'
            f"{_text(row_label)}</text>"
        )
    frame = (
        f'<rect class="frame" x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" '
        f'height="{height - top:.1f}"/>'
    )
    total = right + 8
    return (
        f'<svg class="chart map" viewBox="0 0 {total:.0f} {height + bottom + 6:.0f}" role="img" '
        f'style="max-width:{1.15 * total:.0f}px" aria-label="{_text(title)}">'
        f"{''.join(parts)}{frame}</svg>"
    )


def _cells(
    values: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    left: float,
    top: float,
    width: float,
) -> list[str]:
    parts = []
    for i, j in np.argwhere(values > FAINT).tolist():
        value = min(1.0, float(values[i, j]))
        name = f"{_text(_short(rows[i]))} → {_text(_short(columns[j]))}: {value:.2f}"
        parts.append(
            f'<rect class="cell" x="{left + j * width:.1f}" y="{top + i * CELL:.1f}" '
            f'width="{width:.1f}" height="{CELL:.0f}" fill-opacity="{value:.2f}">'
            f"<title>{name}</title></rect>"
        )
    return parts


def _column_names(columns: Sequence[str], left: float, top: float) -> list[str]:
    every = math.ceil(len(columns) / NAMED)
    return [
        f'<text class="row" transform="translate({left + CELL * (j + 0.7):.1f} {top - 5:.1f}) '
        f'rotate(-90)">{_text(_short(columns[j]))}</text>'
        for j in range(0, len(columns), every)
    ]


def _time_ticks(
    times: Sequence[tuple[float, float]], left: float, right: float, bottom: float
) -> list[str]:
    start, end = times[0][0], times[-1][1]
    parts = []
    for share in np.linspace(0, 1, TICKS):
        x = left + share * (right - left)
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{bottom + 15:.1f}" text-anchor="middle">'
            f"{tick_text(round(float(start + share * (end - start)), 2))}</text>"
        )
    middle = (left + right) / 2
    parts.append(
        f'<text class="label" x="{middle:.1f}" y="{bottom + 30:.1f}" text-anchor="middle">'
        "seconds</text>"
    )
    return parts


def _counts(
    counts: Sequence[Sequence[int]], values: np.ndarray, left: float, top: float
) -> list[str]:
    parts = []
    for i, row in enumerate(counts):
        for j, count in enumerate(row):
            if count:
                kind = "count strong" if values[i, j] > 0.5 else "count"
                parts.append(
                    f'<text class="{kind}" x="{left + CELL * (j + 0.5):.1f}" '
                    f'y="{top + CELL * (i + 0.68):.1f}" text-anchor="middle">{count}</text>'
                )
    return parts


def _pooled(values: np.ndarray, columns: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """At most MOST columns, each the sum of neighbours."""
    count = values.shape[1]
    if count <= MOST:
        return values, list(columns)
    starts = np.arange(MOST) * count // MOST
    return np.add.reduceat(values, starts, axis=1), [columns[int(i)] for i in starts]


# -- cards --


@dataclass(frozen=True)
class Card:
    """A picture or sound with lines of text; the first is what was answered."""

    lines: tuple[tuple[str, str], ...]  # what a line is, and its text
    picture: np.ndarray | None = None  # (H, W, C) of bytes
    sound: bytes = b""  # a WAV file
    is_wrong: bool = False


def cards(items: Sequence[Card]) -> str:
    """Cards side by side, as HTML."""
    return f'<div class="cards">{"".join(_card(item) for item in items)}</div>'


def _card(card: Card) -> str:
    parts = []
    if card.picture is not None:
        parts.append(_image(card.picture))
    if card.sound:
        url = base64.b64encode(card.sound).decode("ascii")
        parts.append(f'<audio controls preload="none" src="data:audio/wav;base64,{url}"></audio>')
    lines = "".join(
        f"<div><dt>{_text(name)}</dt><dd>{_text(text)}</dd></div>" for name, text in card.lines
    )
    kind = "card wrong" if card.is_wrong else "card"
    return f'<div class="{kind}">{"".join(parts)}<dl>{lines}</dl></div>'


def lit_pictures(
    picture: np.ndarray, grid: tuple[int, int], rows: Sequence[tuple[str, np.ndarray]]
) -> str:
    """The picture again for each row of weights (S,), grey where the row is small."""
    url = picture_url(picture)
    height, width = picture.shape[:2]
    high, wide = height / grid[0], width / grid[1]
    parts = []
    for name, weights in rows:
        shares = np.maximum(0, weights) / max(1e-12, float(weights.max()))
        shade = "".join(
            f'<rect x="{j * wide:.2f}" y="{i * high:.2f}" width="{wide:.2f}" height="{high:.2f}" '
            f'fill-opacity="{0.86 * (1 - share):.2f}"/>'
            for (i, j), share in np.ndenumerate(shares.reshape(grid))
        )
        parts.append(
            f'<div class="card"><svg class="lit" viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="{_text(name)}"><image href="{url}" width="{width}" height="{height}"/>'
            f'<g class="shade">{shade}</g></svg><dl><div><dd>{_text(_short(name))}</dd></div></dl>'
            "</div>"
        )
    return f'<div class="cards">{"".join(parts)}</div>'


def _image(picture: np.ndarray) -> str:
    return f'<img src="{picture_url(picture)}" alt="">'


def _short(name: str) -> str:
    return cut(printable(name).strip() or "␣", NAME)


def _text(text: object) -> str:
    return escape(printable(text))


def captioned(title: str, content: str) -> str:
    """A map with a title, as HTML."""
    return f'<figure class="captioned"><figcaption>{_text(title)}</figcaption>{content}</figure>'
