"""The section of costs: a table, and cost against quality with the Pareto front."""

from __future__ import annotations

import math

from regard.compare.cost_text import COST_TEXTS
from regard.compare.record import Comparison
from regard.compare.verdict import SHARES, scale, score_name
from regard.pages.charts import Point, point_chart
from regard.pages.shell import Entry, Section, Table

COSTS = (
    "Parameters, multiplications, depth (the longest chain of dependent operations for one "
    "example) and training memory are computed by formulas; steps, tokens per second, seconds and "
    "peak memory are measured. A contender is on the Pareto front if no other is as good "
    "for fewer multiplications of training."
)


def cost_section(comparison: Comparison) -> Section:
    titles = {
        "multiplications": "multiplications of training",
        "forward": "multiplications of one example",
        "depth": "sequential depth",
        "tokens_per_second": "tokens/s",
    }
    known = [
        name
        for name in COST_TEXTS
        if any(getattr(each.costs, name) is not None for each in comparison.contenders)
    ]
    rows = []
    for contender in comparison.contenders:
        cells: list[object] = [contender.name]
        for name in known:
            value = getattr(contender.costs, name)
            cells.append(None if value is None else Entry(COST_TEXTS[name](value), float(value)))
        cells.append(contender.is_on_front)
        rows.append(tuple(cells))
    names = (titles.get(name, name.replace("_", " ")) for name in known)
    table = Table(("contender", *names, "Pareto front"), tuple(rows), "Means over seeds")
    return Section(
        "Costs",
        id="costs",
        paragraphs=(COSTS,),
        figures=tuple(figure for figure in (_cost_chart(comparison),) if figure),
        tables=(table,),
    )


def _cost_chart(comparison: Comparison) -> str:
    score = comparison.score
    points = []
    for number, contender in enumerate(comparison.contenders):
        estimate = contender.scores.get(score)
        cost = contender.costs.multiplications
        value = math.nan
        bounds = None
        if estimate is not None:
            value = scale(score) * estimate.score
            if estimate.low is not None and estimate.high is not None:
                bounds = (scale(score) * estimate.low, scale(score) * estimate.high)
        points.append(
            Point(contender.name, cost or math.nan, value, bounds, contender.is_on_front, number)
        )
    direction = f" ({comparison.better} is better)" if comparison.better else ""
    return point_chart(
        points,
        x_label="multiplications of training; dashed: Pareto front",
        y_label=f"{score_name(score)}{', %' if score in SHARES else ''}{direction}",
        title="Cost and quality",
    )
