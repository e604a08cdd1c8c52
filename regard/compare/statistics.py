"""Is one model better than another? Differences of scores with intervals, p-values, and the
smallest difference that could have been shown.

Each contender has some runs, one for each seed, and all runs answer the same items. A score is a
`Statistic`: a function of sums over items, so that resampling items needs only other sums.

    resamples r[s, b]   the score of seed s on resample b of the items; b is the same for all runs
    score               mean over seeds of the score on all items
    V_items             variance over b of the mean over seeds (of the difference: paired)
    V_seeds             s^2 / S of the scores of S seeds; contains V_interaction
    V_interaction       variance over b of r[s, b] - mean_s r[s, b], for the mean of S seeds
    V                   V_items + max(0, sum over contenders of V_seeds - V_interaction)
    interval            value +- t sqrt(V), with the degrees of freedom of Welch and Satterthwaite

Perplexities are compared by their ratios (`is_log`): all of the above is then of their logarithms,
the score is the geometric mean over seeds, and a difference is relative. One bad seed, whose
perplexity may be ten times that of the others, would decide an arithmetic mean alone.

This is a hierarchical bootstrap whose upper level is not resampled: three seeds drawn with
replacement have two thirds of the variance, and intervals from them cover far less than 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy import stats

from regard.metrics import Statistic
from regard.metrics.statistics import Z

CONFIDENCE = 0.95
POWER = 0.8  # share of comparisons in which the smallest difference would be found
EXCHANGES = 1000  # random exchanges of answers in a test on items
EXPONENT = 709.0  # e^709 is almost the largest number
ROUNDING = 1e-9  # sums of the same numbers in another order


class SeedScores:
    """A score of the runs of a contender, one for each seed, all on the same items; with `is_log`
    its logarithm."""

    def __init__(self, statistics: Sequence[Statistic], *, is_log: bool = False):
        assert statistics and len({len(statistic.rows) for statistic in statistics}) == 1
        self.statistics = list(statistics)
        self.is_log = is_log
        self.values = self._scaled(np.array([statistic.value for statistic in statistics]))

    @property
    def seeds(self) -> int:
        return len(self.statistics)

    @property
    def items(self) -> int:
        return len(self.statistics[0].rows)

    @property
    def mean(self) -> float:
        """The mean over seeds: of logarithms, if it `is_log`."""
        return float(self.values.mean())

    @property
    def score(self) -> float:
        """The mean over seeds as a score: the geometric one, if it `is_log`."""
        return _exp(self.mean) if self.is_log else self.mean

    @cached_property
    def resamples(self) -> np.ndarray:
        """(S, R): the score of each seed on each resample of the items."""
        return self._scaled(np.stack([statistic.resampled() for statistic in self.statistics]))

    @property
    def seed_variance(self) -> float:
        """V_seeds: of the mean over seeds, as far as seeds are the reason."""
        return float(self.values.var(ddof=1)) / self.seeds if self.seeds > 1 else 0.0

    @property
    def interaction(self) -> float:
        """V_interaction: the part of `seed_variance` that more items would remove."""
        if self.seeds < 2:
            return 0.0
        deviations = self.resamples - self.resamples.mean(0)
        return float(deviations.var(1, ddof=1).sum()) / (self.seeds - 1) / self.seeds

    def _scaled(self, scores: np.ndarray) -> np.ndarray:
        return np.log(scores) if self.is_log else scores


@dataclass(frozen=True)
class Estimate:
    """A score, or a difference of two, with its uncertainty.

    value      the mean over seeds; of logarithms, if it `is_log`
    margin     half the width of the 95 % interval; None if it cannot be known (a single item, or a
               score that is not a number)
    error      the standard error, sqrt(V)
    freedom    degrees of freedom of t
    seeds      how many runs of each contender; with one, `margin` is of these runs only
    items      how many items (or clusters of them) each answered
    bounds     the least and the greatest value that the score can have
    is_log     whether value, margin and error are of logarithms
    score, low, high
               value and interval as a score
    """

    value: float
    margin: float | None
    error: float | None
    freedom: float
    seeds: tuple[int, ...]
    items: int
    bounds: tuple[float, float] = field(default=(-math.inf, math.inf), kw_only=True)
    is_log: bool = field(default=False, kw_only=True)

    @property
    def score(self) -> float:
        return self._as_score(self.value)

    @property
    def low(self) -> float | None:
        if self.margin is None:
            return None
        return max(self.bounds[0], self._as_score(self.value - self.margin))

    @property
    def high(self) -> float | None:
        if self.margin is None:
            return None
        return min(self.bounds[1], self._as_score(self.value + self.margin))

    def _as_score(self, value: float) -> float:
        return _exp(value) if self.is_log else value

    @property
    def has_seeds(self) -> bool:
        """Whether it says something about other seeds."""
        return min(self.seeds) > 1

    def to_json(self) -> dict[str, Any]:
        return {
            "value": finite(self.score),
            "low": finite(self.low),
            "high": finite(self.high),
            "standard_error": finite(self.error),
            "seeds": list(self.seeds),
            "items": self.items,
            "is_log": self.is_log,
        }


@dataclass(frozen=True)
class Difference(Estimate):
    """The first contender's score minus the second's. If it `is_log`, `score`, `low` and `high` are
    relative: -0.2 is 20 % less than the second's.

    p_value    of "both have the same mean over seeds and items", by t; with one seed that of
               `item_p_value`
    smallest   the difference that is found with a probability of 80 %, with this variance
    item_test  the name of the test on items
    item_p_value
               of "these runs answer equally well", whatever other seeds would do
    """

    p_value: float | None
    smallest: float | None
    item_test: str
    item_p_value: float | None

    @property
    def smallest_score(self) -> float | None:
        """`smallest` as a score."""
        return None if self.smallest is None else self._as_score(self.smallest)

    def reversed(self) -> Difference:
        """The second contender's score minus the first's."""
        return replace(self, value=-self.value)

    def _as_score(self, value: float) -> float:
        return _exp(value) - 1 if self.is_log else value

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {
            "p_value": finite(self.p_value),
            "smallest_detectable": finite(self.smallest_score),
            "item_test": self.item_test,
            "item_p_value": finite(self.item_p_value),
        }


def _exp(value: float) -> float:
    """e^value, or infinity where that is no number any more."""
    return math.exp(value) if value < EXPONENT else math.inf


def finite(value: float | None) -> float | None:
    """A number as JSON can hold it."""
    return None if value is None or not math.isfinite(value) else float(value)


def estimate(
    scores: SeedScores, *, bounds: tuple[float, float] = (-math.inf, math.inf)
) -> Estimate:
    """A contender's score. A share that is 0 or 1 in all runs has the interval of Wilson (1927).

    >>> from regard.metrics import share
    >>> runs = SeedScores([share([True] * 60 + [False] * 40), share([True] * 70 + [False] * 30)])
    >>> accuracy = estimate(runs)
    >>> round(accuracy.value, 2), accuracy.seeds, accuracy.items
    (0.65, (2,), 100)
    """
    spread = _spread(scores.mean, scores.resamples.mean(0), [scores])
    margin = spread.margin
    if spread.error == 0 and scores.statistics[0].is_share:
        margin = Z**2 / (scores.items + Z**2)
    return Estimate(
        scores.mean,
        margin,
        spread.error,
        spread.freedom,
        (scores.seeds,),
        scores.items,
        bounds=bounds,
        is_log=scores.is_log,
    )


def difference(first: SeedScores, second: SeedScores, *, test_items: bool = True) -> Difference:
    """The difference of two contenders on the same items.

    >>> from regard.metrics import share
    >>> run = SeedScores([share([True] * 60 + [False] * 40)])
    >>> same = difference(run, run)
    >>> same.value, same.p_value, same.item_test, same.item_p_value
    (0.0, 1.0, 'McNemar', 1.0)
    """
    assert first.items == second.items and first.is_log == second.is_log
    value = first.mean - second.mean
    resamples = first.resamples.mean(0) - second.resamples.mean(0)
    spread = _spread(value, resamples, [first, second])
    item_test, item_p_value = "", None
    seeds = (first.seeds, second.seeds)
    if test_items or min(seeds) < 2 or not spread.error:
        item_test, item_p_value = items_test(
            first.statistics, second.statistics, is_log=first.is_log
        )
    p_value = spread.p_value(value)
    if min(seeds) < 2 or p_value is None:
        p_value = item_p_value
    return Difference(
        value=value,
        margin=spread.margin,
        error=spread.error,
        freedom=spread.freedom,
        seeds=seeds,
        items=first.items,
        p_value=p_value,
        smallest=spread.smallest,
        item_test=item_test,
        item_p_value=item_p_value,
        is_log=first.is_log,
    )


@dataclass(frozen=True)
class _Spread:
    """The standard error of an estimate, and the degrees of freedom it has; an error of None is not
    known."""

    error: float | None
    freedom: float

    @property
    def margin(self) -> float | None:
        return self._times(self._quantile(0.5 + CONFIDENCE / 2))

    @property
    def smallest(self) -> float | None:
        return self._times(self._quantile(0.5 + CONFIDENCE / 2) + self._quantile(POWER))

    def p_value(self, value: float) -> float | None:
        """None if there is no spread to compare a difference with."""
        if self.error is None or not math.isfinite(value):
            return None
        if self.error == 0:
            return 1.0 if value == 0 else None
        return float(2 * stats.t.sf(abs(value) / self.error, self.freedom))

    def _quantile(self, probability: float) -> float:
        return float(stats.t.ppf(probability, self.freedom))

    def _times(self, quantile: float) -> float | None:
        return None if self.error is None else quantile * self.error


def _spread(value: float, resamples: np.ndarray, contenders: Sequence[SeedScores]) -> _Spread:
    """The spread of `value`, whose scores on resampled items are `resamples` (R,)."""
    items = contenders[0].items
    if items < 2 or not math.isfinite(value) or not np.isfinite(resamples).all():
        return _Spread(None, math.inf)
    item_variance = float(resamples.var(ddof=1))
    variance = item_variance
    uncertainty = item_variance**2 / (items - 1)
    # The sum is cut off at 0, not each part: that would count luck twice, and find too little.
    seed_variance = sum(each.seed_variance - each.interaction for each in contenders)
    if seed_variance > 0:
        variance += seed_variance
        for contender in contenders:
            uncertainty += contender.seed_variance**2 / max(1, contender.seeds - 1)
    if variance < ROUNDING**2:
        return _Spread(0.0, math.inf)
    return _Spread(math.sqrt(variance), variance**2 / uncertainty)


# -- tests on items --------------------------------------------------------------------------------


def items_test(
    first: Sequence[Statistic], second: Sequence[Statistic], *, is_log: bool = False
) -> tuple[str, float | None]:
    """The name and the p-value of a test that these very runs answer equally well. Labels of one
    run each are tested exactly; several runs are paired in their order."""
    one_each = len(first) == len(second) == 1
    if one_each and first[0].is_share and second[0].is_share:
        return "McNemar", mcnemar(first[0].rows[:, 0] > 0, second[0].rows[:, 0] > 0)
    return "approximate randomisation", randomisation(first, second, is_log=is_log)


def mcnemar(first: np.ndarray, second: np.ndarray) -> float:
    """The exact test of McNemar (1947): of the items that only one of two models has right, each
    has half.

    >>> a = np.array([True] * 9 + [False] + [True] * 30)
    >>> b = np.array([False] * 9 + [True] + [True] * 30)
    >>> mcnemar(a, b), mcnemar(a, a)
    (0.021484375, 1.0)
    """
    only_first = int((first & ~second).sum())
    only_second = int((second & ~first).sum())
    if not only_first + only_second:
        return 1.0
    return float(stats.binomtest(only_first, only_first + only_second).pvalue)


def randomisation(
    first: Sequence[Statistic],
    second: Sequence[Statistic],
    *,
    is_log: bool = False,
    seed: int = 1,
) -> float | None:
    """Approximate randomisation (Noreen 1989; Riezler and Maxwell 2005): the share of random
    exchanges of the two models' answers, item by item, that make a difference as large as the one
    that was found. That one counts as an exchange, so two equal models have 1.

    None if the sums of both do not mean the same. `scipy.stats.permutation_test` exchanges values
    of items; this exchanges rows of sums, of all runs of a contender at once.
    """
    pairs = list(zip(first, second, strict=False))
    if any(a.rows.shape != b.rows.shape for a, b in pairs):
        return None

    def difference_of(sums: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
        scores = [(a.score(x), b.score(y)) for (a, b), (x, y) in zip(pairs, sums, strict=True)]
        first_scores, second_scores = np.array(scores).T
        if is_log:
            return abs(float(np.mean(np.log(first_scores) - np.log(second_scores))))
        return abs(float(np.mean(first_scores - second_scores)))

    observed = difference_of([(a.rows.sum(0), b.rows.sum(0)) for a, b in pairs])
    if not math.isfinite(observed):
        return None
    totals = [(a.rows.sum(0), b.rows.sum(0)) for a, b in pairs]
    changes = [b.rows - a.rows for a, b in pairs]
    as_large = 0
    for exchanged in _exchanges(len(first[0].rows), seed):
        moved = [exchanged @ change for change in changes]
        sums = [(x + move, y - move) for (x, y), move in zip(totals, moved, strict=True)]
        as_large += difference_of(sums) >= observed - ROUNDING
    return (1 + as_large) / (1 + EXCHANGES)


def _exchanges(items: int, seed: int) -> Iterator[np.ndarray]:
    """(n,): 1 for each item that is exchanged, 0 for the others."""
    random = np.random.Generator(np.random.PCG64(seed))
    for _ in range(EXCHANGES):
        yield random.integers(2, size=items).astype(np.float64)


def adjusted(p_values: Sequence[float | None]) -> list[float | None]:
    """The p-values of many pairs, adjusted for the false discovery rate (Benjamini and Hochberg
    1995); those that are not known stay so.

    >>> adjusted([0.01, None, 0.04])
    [0.02, None, 0.04]
    """
    known = [p for p in p_values if p is not None]
    if not known:
        return list(p_values)
    rates = iter(stats.false_discovery_control(known).tolist())
    return [None if p is None else next(rates) for p in p_values]
