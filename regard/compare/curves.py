"""Curves of a comparison: the mean over the seeds of a contender, on an axis that all share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from regard.compare.record import Comparison, ContenderResult
from regard.compare.verdict import LOG_SCALE
from regard.metrics import better

# The fields of a `Curve` that are axes, and their labels.
AXES = {"steps": "steps", "seconds": "seconds of training", "multiplications": "multiplications"}
POINTS = 41  # of a curve of runs that were validated at different places


@dataclass(frozen=True)
class MeanCurve:
    """The mean over seeds (of perplexities the geometric one), between the lowest and the highest
    of them."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def logged_scores(comparison: Comparison) -> list[str]:
    """The scores of which there are curves, that of the verdict first."""
    names = dict.fromkeys(
        name
        for contender in comparison.contenders
        for curve in contender.curves
        for name, values in curve.scores.items()
        if any(value is not None for value in values)
    )
    return sorted(names, key=lambda name: (name != comparison.score, better(name) is None))


def mean_curve(contender: ContenderResult, axis: str, score: str) -> MeanCurve | None:
    """The curve of a contender over `axis`, where all of its runs have one; None if there is none.
    Runs that were validated at different places are interpolated."""
    runs = []
    for curve in contender.curves:
        places = [getattr(curve, axis), curve.scores.get(score, [])]
        points = [(x, y) for x, y in zip(*places, strict=False) if x is not None and y is not None]
        if points:
            runs.append(np.array(sorted(points), float).T)
    if not runs:
        return None
    first = runs[0][0]
    if all(np.array_equal(x, first) for x, _ in runs):
        grid = first
    else:
        low = max(x[0] for x, _ in runs)
        high = min(x[-1] for x, _ in runs)
        grid = np.linspace(low, high, POINTS) if high > low else np.array([low])
    values = np.stack([np.interp(grid, x, y) for x, y in runs])
    mean = np.exp(np.log(values).mean(0)) if score in LOG_SCALE else values.mean(0)
    return MeanCurve(grid, mean, values.min(0), values.max(0))
