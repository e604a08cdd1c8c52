"""Sections of curves: validation scores over steps, time and multiplications."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from regard.compare.curves import AXES, logged_scores, mean_curve
from regard.compare.record import Comparison
from regard.compare.verdict import SHARES, scale, score_name
from regard.metrics import better
from regard.pages.charts import Scale, Series, line_chart
from regard.pages.shell import Section

OTHER_CURVES = 8  # scores beside that of the verdict whose curves are drawn
WIDE_RANGE = 20.0  # ratio of values from which an axis is logarithmic

CURVES = (
    "Each line is the mean over seeds of the validation score; the band spans the lowest to "
    "the highest seed."
)


def curve_sections(comparison: Comparison) -> Iterator[Section]:
    logged = logged_scores(comparison)
    if not logged:
        return
    figures = [_curve_chart(comparison, axis, logged[0]) for axis in AXES]
    figures = [figure for figure in figures if figure]
    paragraphs = [CURVES]
    if logged[0] != comparison.score:
        paragraphs.append(
            f"{score_name(comparison.score)} was not measured during training, so the curves are "
            f"of {score_name(logged[0])}."
        )
    yield Section("Curves", id="curves", paragraphs=tuple(paragraphs), figures=tuple(figures))
    others = [name for name in logged[1:] if better(name)][:OTHER_CURVES]
    more = [_curve_chart(comparison, "steps", name) for name in others]
    more = [figure for figure in more if figure]
    if more:
        names = ", ".join(map(score_name, others))
        yield Section(
            f"Curves of {names}", id="other-curves", figures=tuple(more), is_collapsed=True
        )


def _curve_chart(comparison: Comparison, axis: str, score: str) -> str:
    factor = scale(score)
    series = []
    for number, contender in enumerate(comparison.contenders):
        curve = mean_curve(contender, axis, score)
        if curve is None:
            continue
        series.append(
            Series(
                contender.name,
                curve.x.tolist(),
                (factor * curve.mean).tolist(),
                (factor * curve.low).tolist(),
                (factor * curve.high).tolist(),
                style=number,
            )
        )
    unit = ", %" if score in SHARES else ""
    return line_chart(
        series,
        x_label=AXES[axis],
        y_label=f"{score_name(score)}{unit} (validation)",
        y_scale=_y_scale(series),
    )


def _y_scale(series: Sequence[Series]) -> Scale:
    values = [value for line in series for value in (*line.low, *line.high)]
    positive = bool(values) and min(values) > 0
    return "log" if positive and max(values) / min(values) > WIDE_RANGE else "linear"
