"""Pictures that the program draws, each with the one sentence that describes it: nothing to
download.

A picture has one or two groups of like things: one to three circles, squares, triangles or crosses,
of one size and one colour. The sentence is a function of the picture, so that an answer is right or
wrong:

    one group     where it lies: "three small red crosses on the left"
    two groups    how the one lies to the other: "a large blue square below two small red circles";
                  the larger things are named first, and of equal ones those that lie higher or
                  further to the left

Groups never differ along both axes at once: nothing that is "above" could as well be "to the left
of".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from regard.data.examples import Example, Item
from regard.data.lines import Tally
from regard.data.pictures import fitted
from regard.errors import DataError

SIDE = 48  # pixels of the picture as it is drawn
COLOURS = {
    "red": (215, 40, 40),
    "green": (40, 165, 60),
    "blue": (45, 75, 215),
    "yellow": (225, 200, 30),
    "purple": (150, 50, 175),
    "black": (25, 25, 25),
}
SHAPES = ("circle", "square", "triangle", "cross")
RADII = {"small": (4.0, 4.6), "large": (7.0, 7.8)}
MOST = {"small": 3, "large": 2}  # things in a group
NUMBERS = ("a", "two", "three")
ALONE = {  # where the middle of a single group lies, of SIDE (x, y), and how it is said
    "in the middle": (0.5, 0.5),
    "at the top": (0.5, 0.22),
    "at the bottom": (0.5, 0.78),
    "on the left": (0.22, 0.5),
    "on the right": (0.78, 0.5),
}
FINER = 3  # points along each side of a pixel that are looked at, so that edges are smooth


@dataclass(frozen=True)
class Group:
    count: int
    size: str
    colour: str
    shape: str

    def __str__(self) -> str:
        """
        >>> str(Group(2, "small", "red", "cross")), str(Group(1, "large", "blue", "square"))
        ('two small red crosses', 'a large blue square')
        """
        many = "" if self.count == 1 else "es" if self.shape == "cross" else "s"
        return f"{NUMBERS[self.count - 1]} {self.size} {self.colour} {self.shape}{many}"

    @property
    def kind(self) -> tuple[str, str, str]:
        return self.size, self.colour, self.shape


@dataclass(frozen=True)
class Scene:
    """Groups with the middle of each thing, (count, 2) of (x, y), and their radius; and what is
    said of them."""

    groups: tuple[tuple[Group, np.ndarray, float], ...]
    sentence: str


def scene(draw: np.random.Generator) -> Scene:
    if draw.random() < 0.25:
        group = _group(draw)
        where, middle = list(ALONE.items())[draw.integers(len(ALONE))]
        along = int(middle[0] != 0.5)  # a row of things lies along the edge that it is near
        return Scene((_placed(group, middle, along, draw),), f"{group} {where}")
    first = _group(draw)
    second = _group(draw)
    while first.kind == second.kind:
        second = _group(draw)
    across = int(draw.integers(2))  # 0: side by side, 1: one above the other
    aside = draw.uniform(-0.06, 0.06)
    middles = [[0.5 + aside, 0.5 + aside], [0.5 + aside, 0.5 + aside]]
    middles[0][across], middles[1][across] = 0.25, 0.75
    groups = (
        _placed(first, middles[0], 1 - across, draw),
        _placed(second, middles[1], 1 - across, draw),
    )
    if (first.size, second.size) == ("small", "large"):
        return Scene(groups, f"{second} {('to the right of', 'below')[across]} {first}")
    return Scene(groups, f"{first} {('to the left of', 'above')[across]} {second}")


def _group(draw: np.random.Generator) -> Group:
    size = ("small", "large")[draw.integers(2)]
    colour_names = list(COLOURS)
    return Group(
        int(draw.integers(MOST[size])) + 1,
        size,
        colour_names[draw.integers(len(colour_names))],
        SHAPES[draw.integers(4)],
    )


def _placed(
    group: Group, middle: tuple[float, float] | list[float], along: int, draw: np.random.Generator
) -> tuple[Group, np.ndarray, float]:
    """A row of things around `middle`, which runs along x (0) or y (1), none touching another."""
    radius = draw.uniform(*RADII[group.size])
    steps = 2 * radius + draw.uniform(2.0, 3.5, group.count)
    steps[0] = 0
    row = np.cumsum(steps)
    places = np.tile(np.asarray(middle) * SIDE, (group.count, 1)) + draw.uniform(-2.0, 2.0, 2)
    places[:, along] += row - row.mean()
    places[:, 1 - along] += draw.uniform(-1.0, 1.0, group.count)
    return group, places, radius


def picture(of: Scene, draw: np.random.Generator) -> np.ndarray:
    """(SIDE, SIDE, 3) of bytes: the scene on light paper that is never quite the same."""
    grain = draw.integers(-5, 6, (SIDE, SIDE, 1), np.int8)
    paper = draw.uniform(225, 245, 3).astype(np.float32) + grain
    for group, places, radius in of.groups:
        ink = np.asarray(COLOURS[group.colour]) + draw.uniform(-20, 20, 3)
        for x, y in places:
            _stamp(paper, group.shape, float(x), float(y), radius, ink)
    return paper.clip(0, 255).astype(np.uint8)


def _stamp(
    paper: np.ndarray, shape: str, x: float, y: float, radius: float, ink: np.ndarray
) -> None:
    """Put one thing on the paper. Only the square around it is looked at."""
    left = max(0, int(x - radius) - 1)
    top = max(0, int(y - radius) - 1)
    right = min(SIDE, int(x + radius) + 2)
    bottom = min(SIDE, int(y + radius) + 2)
    fine = (np.arange(FINER) + 0.5) / FINER
    # -1 .. 1 across the thing
    u = ((np.arange(left, right)[:, None] + fine).reshape(-1) - x) / radius
    v = ((np.arange(top, bottom)[:, None] + fine).reshape(-1, 1) - y) / radius
    match shape:
        case "circle":
            inside = u**2 + v**2 <= 1
        case "square":
            inside = np.maximum(abs(u), abs(v)) <= 0.9
        case "triangle":  # it stands on its base
            inside = (abs(v) <= 1) & (abs(u) <= (v + 1) / 2)
        case _:
            inside = (np.minimum(abs(u), abs(v)) <= 0.3) & (np.maximum(abs(u), abs(v)) <= 1)
    covered = inside.reshape(bottom - top, FINER, right - left, FINER).mean((1, 3))[..., None]
    paper[top:bottom, left:right] += covered * (ink - paper[top:bottom, left:right])


def drawing(seed: int, number: int) -> tuple[Scene, np.ndarray]:
    """A scene and its picture, the same whenever they are drawn."""
    draw = np.random.default_rng([seed, number])
    things = scene(draw)
    return things, picture(things, draw)


def read_drawn(
    *,
    count: int,
    seed: int,
    size: tuple[int, int],
    channels_in: int,
    crop: bool = False,
    tally: Tally,
) -> Iterator[Example]:
    """`count` pictures, the same for the same seed; each is drawn by itself from (seed, number)."""
    if channels_in != 3:
        raise DataError(
            "the sentences name colours",
            where="source.channels_in",
            got=channels_in,
            hint="set it to 3",
        )
    for number in range(count):
        things, pixels = drawing(seed, number)
        tally.used += 1
        values = fitted(pixels, size=size, channels_in=channels_in, crop=crop)
        yield Example(Item(f"drawing {number}", values, pixels.tobytes()), things.sentence)
