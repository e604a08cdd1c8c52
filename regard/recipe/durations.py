"""Measured training times of the shipped recipes.

The figures are copied from bench/results, and a test compares the two: wall-clock seconds from the
start of training to its end, with other programs running. Recipes that were not measured are
missing.
"""

from __future__ import annotations

from typing import NamedTuple

from regard.recipe.whole import Recipe

MACHINE = "one or both of 2 cores of an AMD EPYC, with other programs running, November 2026"


class Duration(NamedTuple):
    seconds: float
    threads: int


MEASURED = {
    "caption-attention": Duration(64.6, 2),
    "caption-transformer": Duration(229.1, 2),
    "image-patches": Duration(281.3, 1),
    "image-pool": Duration(34.2, 1),
    "image-stride": Duration(22.1, 1),
    "multi30k-transformer": Duration(3606, 2),
    "sentiment-cnn": Duration(108.2, 1),
    "sentiment-gru": Duration(342.4, 1),
    "sentiment-lstm": Duration(181.3, 1),
    "sentiment-transformer": Duration(415.1, 1),
    "speech-attention": Duration(242.9, 2),
    "speech-fsdd": Duration(468.0, 1),
    "speech-transformer": Duration(428.2, 2),
    "translate-attention": Duration(34.9, 2),
    "translate-convolution": Duration(167.5, 2),
    "translate-gru": Duration(67.0, 2),
    "translate-maclaurin": Duration(282.3, 2),
    "translate-transformer": Duration(251.9, 2),
}


def usual(name: str, recipe: Recipe) -> str:
    """The training time of a shipped recipe, in words: its budget `train.minutes`, the measured
    time, or "-".

    >>> from regard.recipe import load
    >>> names = ("image-pool", "caption-flickr8k", "reference/octmnist-pool")
    >>> [usual(name, load(name)) for name in names]
    ['34 s', '60 min', '-']
    """
    if recipe.train.minutes is not None:
        return f"{recipe.train.minutes:g} min"
    if name not in MEASURED:
        return "-"
    seconds = MEASURED[name].seconds
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds / 60:.0f} min"
