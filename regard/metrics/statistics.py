"""Scores as functions of sums over examples, and their 95 % intervals.

A mean, a ratio of sums, perplexity, BLEU and chrF depend on the examples through a few sums only,
for instance of matching and of all n-grams. Resampling the examples (bootstrap, Efron 1979) then
means adding up the same rows, each another number of times: no text is read again.

Examples of one dialogue, or captions of one picture, are not independent. They are resampled
together: `interval(clusters=…)`.

Distinct-n and the share of unique answers are no such sums, and have no interval here. A resample
misses about 37 % of the answers and has others more than once, so both would come out lower than
they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Numbers = Sequence[float] | np.ndarray
RESAMPLES = 1000
TAIL = 0.025  # of the resamples lie below the interval, and as many above
Z = 1.959964  # the standard normal distribution exceeds it with the probability TAIL
BLOCK = 1 << 22  # draws of a block of resamples


@dataclass(frozen=True)
class Statistic:
    """A score that is a function of sums over examples.

    rows      (n, k): what each example adds to the k sums
    score     the score of sums (k,)
    is_share  whether each example adds 0 or 1 to the first sum

    >>> right = share([True] * 80 + [False] * 20)
    >>> right.value, [round(bound, 2) for bound in right.interval()]
    (0.8, [0.71, 0.87])
    """

    rows: np.ndarray
    score: Callable[[np.ndarray], float]
    is_share: bool = False

    @property
    def value(self) -> float:
        return float(self.score(self.rows.sum(0)))

    def interval(
        self, clusters: Sequence[int] | np.ndarray | None = None, *, seed: int = 1
    ) -> tuple[float, float] | None:
        """The central 95 % of the scores of resampled examples; None for fewer than two of them.
        Examples with the same number in `clusters` are resampled together.

        A share of 0 or 1 is the same in all resamples. Its interval is Wilson's (1927), for as many
        independent examples as there are clusters.
        """
        statistic = self if clusters is None else self.clustered(clusters)
        count = len(statistic.rows)
        if count < 2:
            return None
        value = self.value
        if self.is_share and value in (0.0, 1.0):
            margin = Z**2 / (count + Z**2)
            return (0.0, margin) if value == 0 else (1.0 - margin, 1.0)
        scores = np.sort(statistic.resampled(seed=seed))
        low = math.floor(TAIL * len(scores))
        return float(scores[low]), float(scores[-1 - low])

    def clustered(self, clusters: Sequence[int] | np.ndarray) -> Statistic:
        """The same score with a row for each cluster of examples, in the order of their numbers."""
        rows = _cluster_sums(self.rows, np.asarray(clusters))
        return Statistic(rows, self.score, self.is_share and len(rows) == len(self.rows))

    def resampled(self, *, seed: int = 1) -> np.ndarray:
        """(RESAMPLES,): scores of examples drawn with replacement. All statistics of as many
        examples draw the same ones, so that their scores are paired."""
        return np.array([self.score(sums) for sums in _resampled_sums(self.rows, seed)])


def mean(values: Numbers) -> Statistic:
    """The mean of a value of each example."""
    return ratio(values, np.ones(len(values)))


def share(values: Sequence[bool] | np.ndarray) -> Statistic:
    """The share of examples of which something is true."""
    return Statistic(_columns(values, np.ones(len(values))), _ratio, is_share=True)


def ratio(numerators: Numbers, denominators: Numbers) -> Statistic:
    """The ratio of two sums, as in an error rate: errors to words."""
    return Statistic(_columns(numerators, denominators), _ratio)


def perplexities(nats: Numbers, counts: Numbers) -> Statistic:
    """exp(total nats / total count), see `regard.metrics.perplexity`."""
    return Statistic(_columns(nats, counts), lambda sums: _exp(_ratio(sums)))


def _ratio(sums: np.ndarray) -> float:
    numerator, denominator = sums.tolist()
    return numerator / denominator if denominator else math.nan


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def _columns(*columns: Numbers) -> np.ndarray:
    return np.stack([np.asarray(column, np.float64) for column in columns], axis=1)


def _cluster_sums(rows: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """(number of clusters, k): the rows of each cluster added up."""
    numbers, places = np.unique(clusters, return_inverse=True)
    sums = np.zeros((len(numbers), rows.shape[1]))
    np.add.at(sums, places, rows)
    return sums


def _resampled_sums(rows: np.ndarray, seed: int) -> np.ndarray:
    """(RESAMPLES, k): the sums of as many rows as there are, drawn with replacement."""
    count = len(rows)
    random = np.random.Generator(np.random.PCG64(seed))
    size = max(1, BLOCK // count)
    blocks = []
    for start in range(0, RESAMPLES, size):
        resamples = min(size, RESAMPLES - start)
        draws = random.integers(count, size=(resamples, count))
        draws += np.arange(resamples)[:, None] * count
        counts = np.bincount(draws.ravel(), minlength=resamples * count)
        blocks.append(counts.reshape(resamples, count) @ rows)
    return np.concatenate(blocks)
