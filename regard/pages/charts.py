"""Charts of pages: lines, points and intervals, as SVG text that the page's style colours.

A chart has no script and no address. Each mark has a `<title>`, which browsers show on hover.
Series differ in colour, in dashes and by a name at the end of their line, so that colour is not
needed. Numbers that are not finite, or beyond 1e100, are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from regard.errors import printable
from regard.pages.shell import cut

Scale = Literal["linear", "log"]

WIDTH = 460
HEIGHT = 290
TOP = 16
BOTTOM = 46
LEFT = 68
RIGHT = 16
CHARACTER = 8.6  # the width of a bold character on a phone, for the room of names
NAME = 18  # characters of a name at the end of a line
STYLES = 8  # series with a colour of their own, see page.css
LARGEST = 1e100
ROW = 30  # the height of a row of `interval_chart`
ROW_NAME = 25  # characters of a name beside an interval
LINE_NAME = 62  # characters of a name above it


def is_drawn(value: float, scale: Scale = "linear") -> bool:
    """Whether an axis of this scale can show a value."""
    if not math.isfinite(value) or abs(value) > LARGEST:
        return False
    return value >= 1 / LARGEST if scale == "log" else True


@dataclass(frozen=True)
class Series:
    """A line through points (x, y), with a band between `low` and `high` around it.

    Points that are not finite are left out. `marks` are positions of points to circle.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    marks: Sequence[int] = ()
    style: int | None = None  # by default its position in the chart


@dataclass(frozen=True)
class Point:
    """A point with a name, an interval of y, and whether it is on the front."""

    name: str
    x: float
    y: float
    interval: tuple[float, float] | None = None
    on_front: bool = False
    style: int | None = None  # by default its position in the chart


@dataclass(frozen=True)
class Interval:
    """A row of `interval_chart`: an estimate with its interval."""

    name: str
    value: float
    low: float
    high: float
    note: str = ""


@dataclass(frozen=True)
class Axis:
    """One axis: the range of its values, where it is drawn, and its ticks."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    scale: Scale = "linear"

    def place(self, value: float) -> float:
        """The coordinate of a value."""
        share = (self._linear(value) - self._linear(self.low)) / (
            self._linear(self.high) - self._linear(self.low)
        )
        return self.start + share * (self.end - self.start)

    def shows(self, value: float) -> bool:
        """Whether a value can be drawn."""
        return is_drawn(value, self.scale)

    def _linear(self, value: float) -> float:
        return math.log10(value) if self.scale == "log" else value


def line_chart(
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    y_scale: Scale = "linear",
    title: str = "",
) -> str:
    """Lines over a common axis; the empty text if no point can be drawn."""
    x_values = [x for line in series for x in line.x if is_drawn(x)]
    y_values = [y for line in series for y in (*line.y, *line.low, *line.high)]
    y_values = [y for y in y_values if is_drawn(y, y_scale)]
    if not x_values or not y_values:
        return ""
    room = _name_room([line.name for line in series]) if len(series) > 1 else RIGHT
    x_axis = axis(x_values, LEFT, WIDTH - room)
    y_axis = axis(y_values, HEIGHT - BOTTOM, TOP, scale=y_scale)
    marks = []
    ends = []
    for number, line in enumerate(series):
        style = (number if line.style is None else line.style) % STYLES
        marks.append(_line(line, style, x_axis, y_axis))
        points = _points(line, x_axis, y_axis)
        if points and len(series) > 1:
            ends.append((points[-1][1], line.name, style, points[-1][0]))
    marks += _end_names(ends)
    return _svg(title or f"{y_label} over {x_label}", x_axis, y_axis, x_label, y_label, marks)


def point_chart(
    points: Sequence[Point], *, x_label: str, y_label: str, x_scale: Scale = "log", title: str = ""
) -> str:
    """Points with names and intervals; a dashed line joins those on the front."""
    points = [point for point in points if is_drawn(point.x, x_scale) and is_drawn(point.y)]
    if not points:
        return ""
    x_axis = axis([point.x for point in points], LEFT, WIDTH - RIGHT, scale=x_scale, margin=0.12)
    bounds = [bound for point in points for bound in (point.y, *_bounds(point))]
    y_axis = axis(bounds, HEIGHT - BOTTOM, TOP, margin=0.12)
    front = sorted((point for point in points if point.on_front), key=lambda point: point.x)
    marks = []
    names = _point_names(points, x_axis, y_axis)
    if len(front) > 1:
        path = _path([(x_axis.place(point.x), y_axis.place(point.y)) for point in front])
        marks.append(f'<path class="front" d="{path}"><title>Pareto front</title></path>')
    for number, point in enumerate(points):
        style = (number if point.style is None else point.style) % STYLES
        x, y, anchor = names[number]
        marks.append(_point(point, style, x_axis, y_axis))
        marks.append(
            f'<text class="name s{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
            f"{_text(_cut(point.name, NAME))}</text>"
        )
    return _svg(title or f"{y_label} over {x_label}", x_axis, y_axis, x_label, y_label, marks)


def interval_chart(
    rows: Sequence[Interval], *, label: str, zero: float | None = 0.0, title: str = ""
) -> str:
    """Estimates with their intervals, one a row, around a line at `zero`. Names that are too long
    to stand beside their intervals stand above them."""
    rows = [row for row in rows if is_drawn(row.value)]
    if not rows:
        return ""
    values = [value for row in rows for value in (row.value, row.low, row.high)]
    values += [] if zero is None else [zero]
    widest = max(len(printable(row.name)) for row in rows)
    is_above = widest > ROW_NAME
    left = RIGHT if is_above else 20 + CHARACTER * widest
    row_height = ROW + 16 if is_above else ROW
    height = TOP + row_height * len(rows) + BOTTOM
    x_axis = axis([value for value in values if is_drawn(value)], left, WIDTH - RIGHT)
    marks = _x_ticks(x_axis, TOP, height - BOTTOM)
    if zero is not None:
        x = x_axis.place(zero)
        bottom = height - BOTTOM
        marks.append(f'<path class="zero" d="M{x:.1f} {TOP}V{bottom}"/>')
    for number, row in enumerate(rows):
        middle = TOP + row_height * (number + 0.5)
        if is_above:
            marks.append(_interval(row, middle + 9, (left, middle - 8), x_axis, anchor="start"))
        else:
            marks.append(_interval(row, middle, (left - 10, middle + 4), x_axis, anchor="end"))
    marks.append(_x_label(label, (left + WIDTH - RIGHT) / 2, height))
    return _element(title or label, height, marks)


# -- axes --


def axis(
    values: Sequence[float], start: float, end: float, *, scale: Scale = "linear", margin=0.0
) -> Axis:
    """An axis over these values, with a little room at its ends."""
    low, high = min(values), max(values)
    if scale == "log":
        return _log_axis(low, high, start, end, margin)
    if low == high:
        room = abs(low) * 0.1 or 1.0
    else:
        room = (high - low) * max(margin, 0.03)
    floor, ceiling = low - room, high + room
    if low >= 0:
        floor = max(0.0, floor)
    return Axis(floor, ceiling, start, end, tuple(ticks(floor, ceiling)))


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers between low and high.

    >>> ticks(0, 1)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    >>> ticks(3, 8)
    [3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    """
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * min((1, 2, 5, 10), key=lambda factor: abs(factor * power - raw))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [float(f"{n * step:.12g}") for n in range(first, last + 1)]


def _log_axis(low: float, high: float, start: float, end: float, margin: float) -> Axis:
    room = max(margin, 0.03) * max(math.log10(high / low), 0.3)
    floor, ceiling = low / 10**room, high * 10**room
    decades = range(math.floor(math.log10(floor)), math.ceil(math.log10(ceiling)) + 1)
    for factors in ((1,), (1, 3), (1, 2, 5), tuple(range(1, 10))):
        places = [factor * 10.0**decade for decade in decades for factor in factors]
        places = [place for place in places if floor <= place <= ceiling]
        if len(places) >= 3:
            break
    else:
        places = ticks(floor, ceiling)
    return Axis(floor, ceiling, start, end, tuple(places), "log")


def tick_text(value: float) -> str:
    """A number beside a tick.

    >>> [tick_text(value) for value in (0.0, 0.25, 1500.0, 20000.0, 2e12, -0.5)]
    ['0', '0.25', '1,500', '20k', '2e12', '\u22120.5']
    """
    size = abs(value)
    if size >= 1e9:
        text = f"{value:.3g}".replace("e+", "e")
    elif size >= 1e6:
        text = f"{value / 1e6:.4g}M"
    elif size >= 1e4:
        text = f"{value / 1e3:.4g}k"
    elif size >= 1000:
        text = f"{value:,.0f}"
    else:
        text = f"{value:.4g}"
    return text.replace("-", "\u2212")


# -- marks --


def _points(line: Series, x_axis: Axis, y_axis: Axis) -> list[tuple[float, float]]:
    return [
        (x_axis.place(x), y_axis.place(y))
        for x, y in zip(line.x, line.y, strict=True)
        if x_axis.shows(x) and y_axis.shows(y)
    ]


def _line(line: Series, style: int, x_axis: Axis, y_axis: Axis) -> str:
    parts = [f'<g class="series s{style}">']
    if line.low and line.high:
        upper = _points(Series("", line.x, line.high), x_axis, y_axis)
        lower = _points(Series("", line.x, line.low), x_axis, y_axis)
        if upper and lower:
            parts.append(f'<path class="band" d="{_path([*upper, *reversed(lower)])}Z"/>')
    points = _points(line, x_axis, y_axis)
    name = _text(line.name)
    if len(points) == 1:
        ((x, y),) = points
        parts.append(f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="4"/>')
    elif points:
        parts.append(f'<path class="line" d="{_path(points)}"><title>{name}</title></path>')
    for number, (x, y) in enumerate(zip(line.x, line.y, strict=True)):
        if not (x_axis.shows(x) and y_axis.shows(y)):
            continue
        kind = "chosen" if number in line.marks else "touch"
        parts.append(
            f'<circle class="{kind}" cx="{x_axis.place(x):.1f}" cy="{y_axis.place(y):.1f}" r="6">'
            f"<title>{name}: {_number(y)} at {_number(x)}</title></circle>"
        )
    return "".join([*parts, "</g>"])


def _end_names(ends: Sequence[tuple[float, str, int, float]]) -> list[str]:
    """Names at the ends of lines, moved apart where they would overlap."""
    texts = []
    previous = -math.inf
    for y, name, style, x in sorted(ends):
        y = max(y + 4, previous + 14)
        previous = y
        short = _cut(name, NAME)
        texts.append(
            f'<text class="name s{style}" x="{x + 8:.1f}" y="{y:.1f}">{_text(short)}</text>'
        )
    return texts


def _name_room(names: Sequence[str]) -> float:
    return 14 + CHARACTER * min(NAME, max(len(printable(name)) for name in names))


def _bounds(point: Point) -> tuple[float, ...]:
    """The interval of a point, if it can be drawn."""
    interval = point.interval or ()
    return interval if all(is_drawn(bound) for bound in interval) else ()


def _point(point: Point, style: int, x_axis: Axis, y_axis: Axis) -> str:
    x, y = x_axis.place(point.x), y_axis.place(point.y)
    bar = ""
    bounds = ""
    if interval := _bounds(point):
        low, high = (y_axis.place(bound) for bound in interval)
        bar = f'<path class="line" d="M{x:.1f} {low:.1f}V{high:.1f}"/>'
        bounds = " ({} to {})".format(*map(_number, interval))
    return (
        f'<g class="series s{style}">{bar}<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="5">'
        f"<title>{_text(point.name)}: {_number(point.y)}{bounds} "
        f"at {_number(point.x)}</title></circle></g>"
    )


def _point_names(
    points: Sequence[Point], x_axis: Axis, y_axis: Axis
) -> list[tuple[float, float, Literal["start", "end"]]]:
    """Where the name of each point begins or ends: beside its point, at the first place where it
    touches neither another name nor a mark, and no interval if there is such a place nearby."""
    places = [(x_axis.place(point.x), y_axis.place(point.y)) for point in points]
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in places]
    bars = [
        (x - 2, y_axis.place(max(bounds)), x + 2, y_axis.place(min(bounds)))
        for point, (x, _) in zip(points, places, strict=True)
        if (bounds := _bounds(point))
    ]
    names: list[tuple[float, float, Literal["start", "end"]]] = []
    for point, (x, y) in zip(points, places, strict=True):
        width = CHARACTER * len(_cut(point.name, NAME))
        candidates = [
            _name_at(x, y + rise, side, width) for rise in _RISES for side in ("start", "end")
        ]
        inside = [(box, place) for box, place in candidates if _is_inside(box)]
        free = [
            (box, place)
            for box, place in inside
            if not any(_overlap(box, other) for other in taken)
        ]
        clear = [
            (box, place)
            for box, place in free
            if abs(place[1] - y) <= 18 and not any(_overlap(box, bar) for bar in bars)
        ]
        box, place = (clear or free or inside or candidates)[0]
        taken.append(box)
        names.append(place)
    return names


Box = tuple[float, float, float, float]  # left, top, right, bottom
# From the point to the line of its name, up and down, nearest first.
_RISES = (-8, 18, *(sign * (8 + 13 * step) for step in range(1, 12) for sign in (-1, 1)))


def _name_at(
    x: float, y: float, side: Literal["start", "end"], width: float
) -> tuple[Box, tuple[float, float, Literal["start", "end"]]]:
    """The box of a name to the right or left of a point, and where it is anchored."""
    if side == "start":
        return (x + 9, y - 11, x + 9 + width, y + 3), (x + 9, y, side)
    return (x - 9 - width, y - 11, x - 9, y + 3), (x - 9, y, side)


def _is_inside(box: Box) -> bool:
    left, top, right, bottom = box
    return left >= LEFT and right <= WIDTH and top >= TOP - 8 and bottom <= HEIGHT - BOTTOM


def _overlap(box: Box, other: Box) -> bool:
    return box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]


def _interval(
    row: Interval, y: float, place: tuple[float, float], x_axis: Axis, *, anchor: str
) -> str:
    """A row whose interval is at height `y` and whose name is at `place`."""
    name = _text(_cut(row.name, ROW_NAME if anchor == "end" else LINE_NAME))
    bar = ""
    if is_drawn(row.low) and is_drawn(row.high):
        low, high = x_axis.place(row.low), x_axis.place(row.high)
        bar = f'<path class="line" d="M{low:.1f} {y:.1f}H{high:.1f}"/>'
    note = f"; {_text(row.note)}" if row.note else ""
    return (
        f'<g class="series s0"><text class="row" x="{place[0]:.1f}" y="{place[1]:.1f}" '
        f'text-anchor="{anchor}">{name}</text>{bar}'
        f'<circle class="mark" cx="{x_axis.place(row.value):.1f}" cy="{y:.1f}" r="4.5">'
        f"<title>{_text(row.name)}: {_number(row.value)} ({_number(row.low)} to "
        f"{_number(row.high)}){note}</title></circle></g>"
    )


# -- the frame --


def _svg(
    title: str, x_axis: Axis, y_axis: Axis, x_label: str, y_label: str, marks: Sequence[str]
) -> str:
    frame = _y_ticks(y_axis, x_axis.start, x_axis.end)
    frame += _x_ticks(x_axis, TOP, HEIGHT - BOTTOM)
    frame.append(_x_label(x_label, (x_axis.start + x_axis.end) / 2, HEIGHT))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    frame.append(
        f'<text class="label" transform="translate(14 {middle:.1f}) rotate(-90)" '
        f'text-anchor="middle">{_text(y_label)}</text>'
    )
    return _element(title, HEIGHT, [*frame, *marks])


def _element(title: str, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="{_text(title)}">{"".join(parts)}</svg>'
    )


def _x_label(label: str, x: float, height: float) -> str:
    """A label around x, moved to the middle of the chart as far as it would be cut."""
    half = CHARACTER * len(label) / 2
    x = min(max(x, half), WIDTH - half) if 2 * half < WIDTH else WIDTH / 2
    return (
        f'<text class="label" x="{x:.1f}" y="{height - 8:.0f}" text-anchor="middle">'
        f"{_text(label)}</text>"
    )


def _x_ticks(x_axis: Axis, top: float, bottom: float) -> list[str]:
    """Grid lines, and a number below each where it does not touch the one before."""
    parts = []
    end = -math.inf
    for value in x_axis.ticks:
        x = x_axis.place(value)
        text = tick_text(value)
        parts.append(f'<path class="grid" d="M{x:.1f} {top}V{bottom}"/>')
        half = CHARACTER * len(text) / 2
        if x - half < end + CHARACTER / 2:
            continue
        end = x + half
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">{text}</text>'
        )
    return parts


def _y_ticks(y_axis: Axis, left: float, right: float) -> list[str]:
    parts = []
    for value in y_axis.ticks:
        y = y_axis.place(value)
        parts.append(f'<path class="grid" d="M{left:.1f} {y:.1f}H{right:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{left - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">'
            f"{tick_text(value)}</text>"
        )
    return parts


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _number(value: float) -> str:
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return text.replace("-", "\u2212")


def _cut(text: str, length: int) -> str:
    return cut(printable(text), length)


def _text(text: object) -> str:
    return escape(printable(text))
