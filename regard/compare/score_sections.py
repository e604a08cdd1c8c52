"""Sections of scores and of their differences, with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from regard.compare.record import Comparison
from regard.compare.statistics import Estimate
from regard.compare.verdict import (
    SHARES,
    difference_scale,
    difference_text,
    difference_unit,
    number_text,
    scale,
    score_name,
)
from regard.metrics import better
from regard.pages.charts import Interval, interval_chart
from regard.pages.shell import Entry, Section, Table

INTERVALS = (
    "An interval covers the variation of seeds and of test items together: if the comparison were "
    "repeated with new ones, about 95 % of such intervals would contain the true value. A score is "
    "the mean over all seeds, never the best of them."
)
P_VALUES = (
    "p is the probability of a difference at least this large if both models were equally good. "
    "The adjusted p allows for the number of pairs (Benjamini and Hochberg); the verdict calls a "
    "model better if it is below 0.05. “Could show” is the true difference that would be detected "
    "in 80 % of such comparisons: where it is larger than what matters to you, “cannot be told "
    "apart” says little. The test on items is about these runs only: it ignores that other seeds "
    "would give other runs."
)


def score_section(comparison: Comparison) -> Section:
    chart = _score_chart(comparison)
    return Section(
        "Scores",
        id="scores",
        paragraphs=(INTERVALS, *_baselines(comparison)),
        figures=(chart,) if chart else (),
        tables=(_score_table(comparison),),
    )


def _baselines(comparison: Comparison) -> Iterator[str]:
    if comparison.baselines:
        names = " and ".join(f"“{name}”" for name in comparison.baselines)
        plural = "baselines that do" if len(comparison.baselines) > 1 else "a baseline that does"
        verb = "are" if len(comparison.baselines) > 1 else "is"
        yield f"{names} {verb} {plural} not look at the input."


def difference_sections(comparison: Comparison) -> Iterator[Section]:
    chart = _difference_chart(comparison)
    if chart:
        yield Section(
            "Differences",
            id="differences",
            paragraphs=(P_VALUES,),
            figures=(chart,),
            tables=(_difference_table(comparison),),
        )


def _score_chart(comparison: Comparison) -> str:
    score = comparison.score
    rows = []
    for contender in comparison.contenders:
        estimate = contender.scores.get(score)
        if estimate is not None:
            rows.append(interval(contender.name, estimate, scale(score)))
    unit = " (%)" if score in SHARES else ""
    direction = f", {comparison.better} is better" if comparison.better else ""
    label = f"{score_name(score)}{unit} with 95 % interval{direction}"
    return interval_chart(rows, label=label, zero=None)


def _difference_chart(comparison: Comparison) -> str:
    score = comparison.score
    rows = [
        interval(f"{pair.first} − {pair.second}", pair.differences[score], difference_scale(score))
        for pair in comparison.pairs
        if score in pair.differences
    ]
    return interval_chart(rows, label=_difference_label(comparison))


def _difference_label(comparison: Comparison) -> str:
    side = {"higher": "right", "lower": "left", None: ""}[comparison.better]
    where = f"; {side} of 0: the first is better" if side else ""
    return f"difference, {difference_unit(comparison.score)}{where}"


def interval(name: str, estimate: Estimate, factor: float, note: str = "") -> Interval:
    low = math.nan if estimate.low is None else estimate.low
    high = math.nan if estimate.high is None else estimate.high
    return Interval(name, factor * estimate.score, factor * low, factor * high, note)


def _score_table(comparison: Comparison) -> Table:
    """A row for each score, the verdict's first: mean over seeds and 95 % interval."""
    contenders = comparison.contenders
    known = dict.fromkeys(name for contender in contenders for name in contender.scores)
    names = [comparison.score, *(name for name in known if name != comparison.score)]
    plain = dict.fromkeys(name for contender in contenders for name in contender.numbers)
    baselines = comparison.baselines
    rows: list[tuple[object, ...]] = []
    for name in names:
        estimates = [contender.scores.get(name) for contender in contenders]
        cells = [None if estimate is None else score_cell(name, estimate) for estimate in estimates]
        others = [plain_cell(name, own.get(name)) for own in baselines.values()]
        rows.append((_score_title(name), *cells, *others))
    for name in plain:
        values = [contender.numbers.get(name) for contender in contenders]
        cells = [plain_cell(name, value) for value in values]
        rows.append((_score_title(name), *cells, *(None for _ in baselines)))
    columns = ("mean over seeds", *(each.name for each in contenders), *baselines)
    return Table(columns, tuple(rows), "Mean over all seeds (95 % interval)")


def _score_title(score: str) -> str:
    direction = {"higher": " ↑", "lower": " ↓", None: ""}[better(score)]
    return f"{score_name(score)}{direction}"


def score_cell(score: str, estimate: Estimate) -> Entry:
    """A score with its interval, as the table has it.

    >>> score_cell("accuracy", Estimate(0.65, 0.05, 0.02, 5.0, (3,), 97)).text
    '65.0 % (60.0 to 70.0)'
    """
    value = number_text(score, estimate.score, 4)
    if score in SHARES:
        value += " %"
    bounds = _bounds(score, estimate, number_text)
    return Entry(f"{value} ({bounds})" if bounds else value, estimate.score)


def _bounds(score: str, estimate: Estimate, text: Callable[[str, float, int], str]) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    return f"{text(score, estimate.low, 4)} to {text(score, estimate.high, 4)}"


def plain_cell(score: str, value: float | None) -> Entry | None:
    if value is None:
        return None
    text = number_text(score, value, 4)
    return Entry(f"{text} %" if score in SHARES else text, value)


def _difference_table(comparison: Comparison) -> Table:
    score = comparison.score
    rows: list[tuple[object, ...]] = []
    for pair in comparison.pairs:
        own = pair.differences.get(score)
        if own is None:
            continue
        smallest = own.smallest_score
        rows.append(
            (
                f"{pair.first} − {pair.second}",
                Entry(difference_text(score, own.score), own.score),
                _bounds(score, own, difference_text) or None,
                _p_value(own.p_value),
                _p_value(pair.adjusted_p_value),
                None if smallest is None else Entry(difference_text(score, smallest), smallest),
                own.item_test or None,
                _p_value(own.item_p_value),
            )
        )
    columns = (
        "pair",
        "difference",
        "95 % interval",
        "p",
        "adjusted p",
        "could show",
        "test on items",
        "p on items",
    )
    return Table(columns, tuple(rows), f"Differences, {difference_unit(score)}")


def _p_value(value: float | None) -> Entry | None:
    if value is None:
        return None
    return Entry("< 0.001" if value < 0.001 else f"{value:.3f}", value)
