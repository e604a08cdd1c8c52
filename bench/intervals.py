"""Do intervals of comparisons hold what they promise? Simulated comparisons whose truth is known.

    python -m bench.intervals                          # about 20 minutes of one core
    python -m bench.intervals --comparisons 100        # a quick look

Models answer right or wrong. The log-odds of a right answer vary by seed, by item (the same for all
models), by item for one model, and by item for one run. Two intervals are computed for each
comparison, from the same resamples of items:

    ours           `regard.compare.statistics`: items are resampled, seeds enter by their variance
                   and Student's t
    hierarchical   the plain hierarchical bootstrap: seeds are resampled too; percentiles

A comparison is of `one model` with itself (other seeds), of `two models` that find other items hard
and have the same mean, or of a `better` model with another one. `tests/unit` holds the rates of
`ours` between bounds that were stated before the first run.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regard import metrics
from regard.compare.statistics import SeedScores, difference

# Spread of the log-odds: of a seed, of an item, of an item for one model, of an item for one run.
WORLDS = {
    "seeds vary": (0.5, 0.5, 0.0, 0.0),
    "items vary": (0.0, 1.0, 0.8, 0.0),
    "all vary": (0.2, 1.0, 0.4, 0.4),
}
KINDS = ("one model", "two models", "better")
GAP = 0.4  # of the log-odds of a better model
SIZES = ((2, 199), (3, 97), (3, 199), (3, 499), (5, 199))  # seeds and items
STREAM = 20261118  # of random numbers
RECORD = Path("bench/results/intervals.json")


@dataclass(frozen=True)
class Simulated:
    """One comparison: whether each interval contains the true difference, and whether the p-value
    is below 5 %."""

    covered: bool
    covered_hierarchical: bool
    found: bool


def simulate(world: str, kind: str, number: int, *, seeds: int, items: int) -> Simulated:
    """The comparison `number` of a world."""
    draw = np.random.default_rng([STREAM, number])
    gap = GAP if kind == "better" else 0.0
    _, of_item, of_model, _ = WORLDS[world]
    item = draw.normal(0, of_item, items)
    hard = item + draw.normal(0, of_model, items)
    first = _runs(draw, world, 0.5 + gap, hard, seeds)
    if kind != "one model":
        hard = item + draw.normal(0, of_model, items)
    second = _runs(draw, world, 0.5, hard, seeds)

    result = difference(first, second, test_items=False)
    assert result.low is not None and result.high is not None and result.p_value is not None
    low, high = hierarchical_interval(first, second, draw)
    truth = accuracy(world, 0.5 + gap) - accuracy(world, 0.5)
    return Simulated(
        covered=result.low <= truth <= result.high,
        covered_hierarchical=low <= truth <= high,
        found=result.p_value < 0.05,
    )


def _runs(
    draw: np.random.Generator, world: str, mean: float, hard: np.ndarray, seeds: int
) -> SeedScores:
    of_seed, _, _, of_run = WORLDS[world]
    runs = []
    for _ in range(seeds):
        odds = mean + draw.normal(0, of_seed) + hard + draw.normal(0, of_run, len(hard))
        runs.append(metrics.share(draw.random(len(hard)) < 1 / (1 + np.exp(-odds))))
    return SeedScores(runs)


def accuracy(world: str, mean: float) -> float:
    """The accuracy of a model over all seeds and items: an integral over a normal distribution."""
    spread = math.hypot(*WORLDS[world])
    grid, weights = np.polynomial.hermite_e.hermegauss(41)
    return float((weights / weights.sum() / (1 + np.exp(-mean - spread * grid))).sum())


def hierarchical_interval(
    first: SeedScores, second: SeedScores, draw: np.random.Generator
) -> tuple[float, float]:
    """The central 95 % of differences of resampled seeds on resampled items."""
    means = []
    for scores in (first, second):
        resamples = scores.resamples  # (S, R)
        chosen = draw.integers(scores.seeds, size=resamples.shape)
        means.append(np.take_along_axis(resamples, chosen, 0).mean(0))
    low, high = np.quantile(means[0] - means[1], [0.025, 0.975])
    return float(low), float(high)


def rates(world: str, kind: str, *, comparisons: int, seeds: int, items: int) -> dict[str, Any]:
    """The shares of so many comparisons."""
    results = [
        simulate(world, kind, number, seeds=seeds, items=items) for number in range(comparisons)
    ]
    return {
        "world": world,
        "kind": kind,
        "seeds": seeds,
        "items": items,
        "comparisons": comparisons,
        "covered": float(np.mean([result.covered for result in results])),
        "covered_hierarchical": float(np.mean([result.covered_hierarchical for result in results])),
        "found": float(np.mean([result.found for result in results])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--comparisons", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=RECORD)
    options = parser.parse_args()
    rows = []
    print("world        kind        seeds items  covered  hierarchical  found")
    for seeds, items in SIZES:
        for world in WORLDS:
            for kind in KINDS:
                row = rates(world, kind, comparisons=options.comparisons, seeds=seeds, items=items)
                rows.append(row)
                print(
                    f"{world:<12} {kind:<11} {seeds:>5} {items:>5} {row['covered']:>8.1%} "
                    f"{row['covered_hierarchical']:>13.1%} {row['found']:>6.1%}",
                    flush=True,
                )
                options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
