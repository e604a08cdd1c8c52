"""A plot of cost against length, of softmax attention and of the Maclaurin series."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from regard.disk import MADE_BY, write_output

Line = Callable[[int], int]  # multiplications at a length
SHORTEST = 16
LONGEST = 4096
FURTHEST = 1 << 22  # length up to which a crossover is searched
BLUE = "#0072B2"  # this blue and orange differ for the colour-blind too
ORANGE = "#E69F00"


def crossover(exact: Line, series: Line) -> int | None:
    """The first length at which the series needs fewer multiplications, None if there is none
    below four million.

    >>> crossover(lambda n: n * n, lambda n: 100 * n + 50)
    101
    """
    high = 1
    while series(high) > exact(high):
        high *= 2
        if high > FURTHEST:
            return None
    low = high // 2  # the series needs more, or low is 0
    while high - low > 1:
        middle = (low + high) // 2
        if series(middle) <= exact(middle):
            high = middle
        else:
            low = middle
    return high


def draw(path: Path, title: str, exact: Line, series: Line | None, *, terms: int) -> int | None:
    """Write the plot, .png or .svg by its name, and return the crossover."""
    from matplotlib.figure import Figure

    crossing = crossover(exact, series) if series else None
    furthest = LONGEST if crossing is None else max(LONGEST, 4 * crossing)
    lengths = [SHORTEST]
    while lengths[-1] < furthest:
        lengths.append(lengths[-1] * 2)

    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    axes = figure.subplots()
    label = "softmax attention" if series else "the model"
    axes.plot(
        lengths, [exact(n) for n in lengths], color=BLUE, marker="o", markersize=4, label=label
    )
    if series:
        axes.plot(
            lengths,
            [series(n) for n in lengths],
            color=ORANGE,
            marker="s",
            markersize=4,
            label=f"Maclaurin series, {terms} terms",
        )
    if crossing:
        axes.axvline(crossing, color="0.5", linewidth=0.8, linestyle=":")
        axes.annotate(f" length {crossing:,}", (crossing, exact(crossing)), va="top")
    axes.set_xscale("log", base=2)
    axes.set(
        yscale="log",
        xlabel="length of source and target",
        ylabel="multiplications, forward, one row",
        title=title,
    )
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    kind = "svg" if path.suffix == ".svg" else "png"
    metadata = {"Creator": MADE_BY} if kind == "svg" else {"Software": MADE_BY}
    write_output(path, lambda file: figure.savefig(file, format=kind, dpi=120, metadata=metadata))
    return crossing
