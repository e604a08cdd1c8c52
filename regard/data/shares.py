"""The shares of the data sets of a mixture: examples are used up to a largest hash."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from regard.data.preparation import Readers


def thresholds(readers: Sequence[Readers], hashes: Iterable[tuple[int, np.ndarray]]) -> list[int]:
    """For each data set the largest hash that is used, so that as many examples are used as the
    shares allow. `hashes` are those of training examples, with the number of their data set."""
    columns: list[list[np.ndarray]] = [[np.empty(0, np.uint64)] for _ in readers]
    for number, column in hashes:
        columns[number].append(column)
    sets = [np.sort(np.concatenate(own)) for own in columns]
    shares = [own.share or 0.0 for own in readers]
    total = min(len(own) / share for own, share in zip(sets, shares, strict=True))
    largest = []
    for own, share in zip(sets, shares, strict=True):
        count = int(share * total + 1e-6)
        largest.append(int(own[count - 1]) if count else -1)
    return largest


def is_at_most(hashes: np.ndarray, threshold: int) -> np.ndarray:
    if threshold < 0:
        return np.zeros(len(hashes), bool)
    return hashes <= np.uint64(threshold)
