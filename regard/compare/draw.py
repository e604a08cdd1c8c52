"""The picture of a comparison: curves of the score over steps, time and multiplications, and the
cost-quality picture with the Pareto front."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regard.compare.curves import AXES, logged_scores, mean_curve
from regard.compare.record import Comparison, ContenderResult
from regard.disk import MADE_BY, write_output
from regard.errors import printable
from regard.metrics import better


def draw(comparison: Comparison, path: Path) -> Path:
    """Write the picture as PNG; a person's own file of that name is refused."""
    figure = picture(comparison)
    metadata = {"Software": MADE_BY}
    write_output(path, lambda file: figure.savefig(file, format="png", dpi=110, metadata=metadata))
    return path


def picture(comparison: Comparison) -> Any:
    """A curve for each contender, the mean over its seeds between the lowest and the highest."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 8.4), layout="constrained")
    panels = [figure.add_subplot(2, 2, place) for place in range(1, 5)]
    score = next(iter(logged_scores(comparison)), comparison.score)
    for panel, (axis, label) in zip(panels, AXES.items(), strict=False):
        for number, contender in enumerate(comparison.contenders):
            _curves(panel, contender, axis, score, f"C{number % 10}")
        panel.set_xlabel(label)
        panel.set_ylabel(f"{score}, validation")
    _costs(panels[3], comparison)
    for panel in panels:
        panel.grid(alpha=0.25, linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
    handles, labels = panels[0].get_legend_handles_labels()
    if handles:
        panels[0].legend(handles, labels, frameon=False)
    return figure


def _curves(panel: Any, contender: ContenderResult, axis: str, score: str, colour: str) -> None:
    curve = mean_curve(contender, axis, score)
    if curve is None:
        return
    marker = "o" if len(curve.x) == 1 else None
    name = printable(contender.name)
    panel.plot(curve.x, curve.mean, color=colour, label=name, linewidth=1.4, marker=marker)
    panel.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)


def _costs(panel: Any, comparison: Comparison) -> None:
    """Scores with their intervals over the multiplications of training, and the front."""
    front = []
    for number, contender in enumerate(comparison.contenders):
        score = contender.scores.get(comparison.score)
        cost = contender.costs.multiplications
        if score is None or cost is None:
            continue
        below = 0.0 if score.low is None else score.score - score.low
        above = 0.0 if score.high is None else score.high - score.score
        panel.errorbar(
            cost,
            score.score,
            yerr=[[max(0.0, below)], [max(0.0, above)]],
            fmt="o",
            color=f"C{number % 10}",
            capsize=3,
        )
        panel.annotate(
            printable(contender.name),
            (cost, score.score),
            xytext=(6, 6),
            textcoords="offset points",
            parse_math=False,
        )
        if contender.is_on_front:
            front.append((cost, score.score))
    if len(front) > 1:
        panel.plot(*zip(*sorted(front), strict=True), color="0.5", linestyle="--", linewidth=1)
    direction = better(comparison.score)
    panel.set_xlabel("multiplications of training")
    panel.set_ylabel(
        f"{comparison.score}, {comparison.split}"
        + (f" ({direction} is better)" if direction else "")
    )
    panel.set_title("cost and quality; dashed: the Pareto front", fontsize="medium")
