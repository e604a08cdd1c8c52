"""Charts of pages: what is drawn is what was given."""

from __future__ import annotations

import doctest
import math
import xml.etree.ElementTree as ElementTree
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.pages import charts
from regard.pages.charts import Interval, Point, Series, interval_chart, line_chart, point_chart

ROOM = 0.051  # coordinates are rounded to a tenth


def elements(svg: str, kind: str) -> list[ElementTree.Element]:
    root = ElementTree.fromstring(svg)
    return [element for element in root.iter() if element.get("class") == kind]


def test_doctests():
    assert doctest.testmod(charts).failed == 0


def test_a_line_goes_through_its_points():
    x, y = [1.0, 2.0, 5.0], [3.0, 1.0, 2.0]
    svg = line_chart([Series("a", x, y)], x_label="steps", y_label="loss")
    (line,) = elements(svg, "line")
    path = line.get("d", "")
    points = [tuple(map(float, point.split())) for point in path[1:].split("L")]

    assert len(points) == 3
    steps = [(points[i + 1][0] - points[i][0]) / (x[i + 1] - x[i]) for i in range(2)]
    assert math.isclose(*steps, rel_tol=0.01)
    heights = [(points[i + 1][1] - points[i][1]) / (y[i + 1] - y[i]) for i in range(2)]
    assert math.isclose(*heights, rel_tol=0.01)
    assert heights[0] < 0  # a larger value is drawn higher


def test_a_logarithmic_axis_has_equal_ratios():
    svg = line_chart(
        [Series("a", [1, 2, 3], [1, 10, 100])], x_label="x", y_label="y", y_scale="log"
    )
    path = elements(svg, "line")[0].get("d", "")
    heights = [float(point.split()[1]) for point in path[1:].split("L")]
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=2 * ROOM)


def test_what_is_no_number_is_left_out():
    svg = line_chart([Series("a", [1, 2, 3], [1.0, math.nan, 2.0])], x_label="x", y_label="y")
    assert len(elements(svg, "touch")) == 2
    assert "nan" not in svg
    assert line_chart([Series("a", [1], [math.nan])], x_label="x", y_label="y") == ""
    assert line_chart([], x_label="x", y_label="y") == ""
    assert point_chart([Point("a", 0.0, 1.0)], x_label="x", y_label="y") == ""


def test_texts_are_escaped():
    name = '<script>alert("x")</script>'
    for svg in (
        line_chart(
            [Series(name, [1, 2], [1, 2]), Series("b", [1], [2])], x_label=name, y_label="y"
        ),
        point_chart([Point(name, 1, 2)], x_label=name, y_label=name),
        interval_chart([Interval(name, 1, 0, 2, note=name)], label=name, title=name),
    ):
        assert "<script" not in svg
        ElementTree.fromstring(svg)


def test_the_front_joins_its_points_only():
    points = [Point("a", 1, 1, on_front=True), Point("b", 2, 0.5), Point("c", 4, 3, on_front=True)]
    (front,) = elements(point_chart(points, x_label="x", y_label="y"), "front")
    assert front.get("d", "").count("L") == 1
    one = [Point("a", 1, 1, on_front=True), Point("b", 2, 0.5)]
    assert not elements(point_chart(one, x_label="x", y_label="y"), "front")


def test_names_at_the_ends_of_lines_do_not_overlap():
    series = [Series(f"model {n}", [1, 2], [1, 2 + 0.001 * n]) for n in range(5)]
    svg = line_chart(series, x_label="x", y_label="y")
    root = ElementTree.fromstring(svg)
    heights = sorted(
        float(text.get("y", "0"))
        for text in root.iter("text")
        if (text.get("class") or "").startswith("name")
    )
    assert len(heights) == 5
    assert min(b - a for a, b in zip(heights, heights[1:], strict=False)) >= 13


@pytest.mark.parametrize("gap", [1.0, 1.001, 1.05])
def test_names_of_points_that_are_near_do_not_overlap(gap: float):
    names = ["LSTM", "LSTM with attention", "Transformer", "GRU"]
    points = [Point(name, 1e12 * gap**i, 20 + i * (gap - 1)) for i, name in enumerate(names)]
    root = ElementTree.fromstring(point_chart(points, x_label="x", y_label="y"))
    boxes = []
    for text in root.iter("text"):
        if (text.get("class") or "").startswith("name"):
            x, y = float(text.get("x", "0")), float(text.get("y", "0"))
            width = charts.CHARACTER * len(text.text or "")
            left = x if text.get("text-anchor") == "start" else x - width
            boxes.append((left, y - 11, left + width, y))
    assert len(boxes) == len(names)
    for box in boxes:
        assert box[0] >= 0 and box[2] <= charts.WIDTH
        assert box[1] >= 0 and box[3] <= charts.HEIGHT
    for a, b in combinations(boxes, 2):
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


NUMBERS = st.floats(allow_nan=True, allow_infinity=True)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=6))
def test_any_numbers_give_a_chart_or_none(pairs):
    x = [pair[0] for pair in pairs]
    y = [pair[1] for pair in pairs]
    for scale in ("linear", "log"):
        svg = line_chart([Series("a", x, y)], x_label="x", y_label="y", y_scale=scale)
        if svg:
            ElementTree.fromstring(svg)
            assert "nan" not in svg and "inf" not in svg
    points = [Point("a", *pair) for pair in pairs]
    for svg in (
        point_chart(points, x_label="x", y_label="y"),
        interval_chart([Interval("a", b, a, b) for a, b in pairs], label="x"),
    ):
        if svg:
            ElementTree.fromstring(svg)
            assert "nan" not in svg.replace("(nan to", "").replace("to nan)", "")
