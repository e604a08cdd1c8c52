"""The numbers of a head, by which a person finds the interesting one among many."""

from __future__ import annotations

import math

import numpy as np


def head_numbers(weights: np.ndarray, *, square: bool) -> dict[str, float | None]:
    """Means over the rows of a map of weights (T, S), each of which sums to 1.

    entropy   -sum w log w, in nats: 0 if each row attends to one place
    peak      the largest weight
    first     the weight of the first place
    last      the weight of the last place
    distance  sum w |t - s|, in places; only of self-attention, where rows and columns are the same
    previous  the weight of the place before, of rows that have one; only of self-attention
    itself    the weight of the row's own place; only of self-attention

    >>> head_numbers(np.eye(3), square=True)["itself"]
    1.0
    >>> round(head_numbers(np.full((2, 4), 0.25), square=False)["entropy"], 4) == 1.3863
    True
    """
    weights = weights.astype(np.float64)
    rows, columns = weights.shape
    positive = np.where(weights > 0, weights, 1.0)
    numbers: dict[str, float | None] = {
        "entropy": float(-(positive * np.log(positive)).sum(1).mean()) + 0.0,
        "peak": float(weights.max(1).mean()),
        "first": float(weights[:, 0].mean()),
        "last": float(weights[:, -1].mean()),
        "distance": None,
        "previous": None,
        "itself": None,
    }
    if square:
        distance = np.abs(np.arange(rows)[:, None] - np.arange(columns))
        numbers["distance"] = float((weights * distance).sum(1).mean())
        numbers["itself"] = float(np.diagonal(weights).mean())
        if rows > 1:
            numbers["previous"] = float(np.diagonal(weights, -1).mean())
    return numbers


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float | None:
    """Spearman's rank correlation; None if one of them is constant, or there are fewer than 3.

    >>> rank_correlation(np.array([1.0, 2, 3]), np.array([10.0, 20, 40]))
    1.0
    """
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    from scipy.stats import rankdata

    rank_a = rankdata(a) - (len(a) + 1) / 2
    rank_b = rankdata(b) - (len(b) + 1) / 2
    product = float((rank_a * rank_b).sum())
    return product / math.sqrt(float((rank_a**2).sum()) * float((rank_b**2).sum()))


def row_correlations(weights: np.ndarray, effects: np.ndarray) -> list[float | None]:
    """The rank correlation of weights and effects (T, S) over the places, for each row."""
    return [rank_correlation(a, b) for a, b in zip(weights, effects, strict=True)]


def mean_of(values: list[float | None]) -> float | None:
    """The mean of the numbers that there are."""
    numbers = [value for value in values if value is not None]
    return math.fsum(numbers) / len(numbers) if numbers else None
