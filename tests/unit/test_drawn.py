"""Drawn pictures: what a sentence says is what can be seen, by a look at the pixels that knows
nothing of drawing."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from scipy import ndimage

from regard.data.drawn import COLOURS, SHAPES, SIDE, read_drawn
from regard.data.lines import Tally
from regard.errors import DataError

FORM: dict[str, Any] = dict(size=(SIDE, SIDE), channels_in=3)
INK = np.array(list(COLOURS.values()))


def drawn(count: int, seed: int = 1, **form) -> list[Any]:
    return list(read_drawn(count=count, seed=seed, tally=Tally(), **(FORM | form)))


def seen(picture: np.ndarray) -> list[tuple[str, str, str, float, float]]:
    """Each thing in the picture: size, colour, shape and middle (x, y)."""
    paper = np.median(picture.reshape(-1, 3), axis=0)
    found: np.ndarray
    found, _ = ndimage.label(picture.min(-1) < 150, np.ones((3, 3)))  # pyright: ignore  # untyped
    things = []
    for n, (down, across) in enumerate(ndimage.find_objects(found), 1):
        y, x = ndimage.center_of_mass(found == n)
        pixels = picture[found == n].astype(float)
        far = ((pixels - paper) ** 2).sum(1)
        ink = np.median(pixels[far >= np.quantile(far, 0.7)], axis=0)  # those that it covers wholly
        colour = list(COLOURS)[int(((INK - ink) ** 2).sum(1).argmin())]
        box = picture[
            max(0, down.start - 1) : down.stop + 1, max(0, across.start - 1) : across.stop + 1
        ]
        covered = ((paper - box).sum(-1) / (paper - ink).sum()).clip(0, 1)  # how much of each pixel
        covered[covered < 0.1] = 0
        high, wide = covered.sum(0).max(), covered.sum(1).max()
        full = covered.sum() / (high * wide)  # of a square 1, of a circle 0.79, of the others 0.5
        rows = np.repeat(
            np.arange(len(covered)), (1000 * covered.sum(1) / covered.sum()).astype(int)
        )
        skew = (
            (rows - rows.mean()) ** 3
        ).mean() / rows.std() ** 3  # of a triangle -0.57, of the others 0
        shape = (
            "triangle"
            if skew < -0.28
            else "square"
            if full > 0.9
            else "circle"
            if full > 0.65
            else "cross"
        )
        things.append(("large" if max(high, wide) > 10 else "small", colour, shape, x, y))
    return things


def described(things) -> str:
    """The sentence, from what is seen alone."""
    kinds = sorted({thing[:3] for thing in things})
    groups = [
        (kind, np.array([thing[3:] for thing in things if thing[:3] == kind])) for kind in kinds
    ]

    def name(kind, places) -> str:
        many = "" if len(places) == 1 else "es" if kind[2] == "cross" else "s"
        return f"{('a', 'two', 'three')[len(places) - 1]} {' '.join(kind)}{many}"

    if len(groups) == 1:
        x, y = groups[0][1].mean(0) / SIDE
        where = {
            "on the left": 0.5 - x,
            "on the right": x - 0.5,
            "at the top": 0.5 - y,
            "at the bottom": y - 0.5,
        }
        place = max(where, key=lambda side: where[side])
        return f"{name(*groups[0])} {place if where[place] > 0.15 else 'in the middle'}"
    gap = groups[1][1].mean(0) - groups[0][1].mean(0)
    axis = int(abs(gap[1]) > abs(gap[0]))
    assert abs(gap[axis]) > 1.5 * abs(gap[1 - axis])  # one of the two is meant, beyond doubt
    first, second = groups if gap[axis] > 0 else groups[::-1]
    if first[0][0] == "small" and second[0][0] == "large":
        return f"{name(*second)} {('to the right of', 'below')[axis]} {name(*first)}"
    return f"{name(*first)} {('to the left of', 'above')[axis]} {name(*second)}"


def test_the_sentence_is_what_can_be_seen():
    for example in drawn(400, seed=5):
        assert described(seen(example.source.values)) == example.target


def test_the_same_seed_draws_the_same_and_a_number_stands_by_itself():
    one, two, other = drawn(20), drawn(30), drawn(20, seed=2)
    assert all(
        a.target == b.target and np.array_equal(a.source.values, b.source.values)
        for a, b in zip(one, two[:20], strict=True)
    )
    assert [a.target for a in one] != [b.target for b in other]
    assert len({a.source.content for a in two}) == 30


def test_everything_is_drawn_and_said():
    said = " ".join(example.target for example in drawn(500))
    for word in (
        *COLOURS,
        *SHAPES,
        "small",
        "large",
        "two",
        "three",
        "above",
        "below",
        "middle",
        "top",
        "bottom",
    ):
        assert re.search(rf"\b{word}", said), word


def test_other_sizes_and_no_grey():
    assert drawn(2, size=(32, 48))[0].source.values.shape == (32, 48, 3)
    with pytest.raises(DataError, match="sentences name colours"):
        drawn(1, channels_in=1)
