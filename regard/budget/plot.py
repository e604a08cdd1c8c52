"""Cost against length, exact attention beside the Maclaurin series, with their crossover marked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from regard.disk import MADE_BY, write_output

Line = Callable[[int], int]  # multiplications at a length
SHORTEST, LONGEST, FURTHEST = 16, 4096, 1 << 22
BLUE, ORANGE = "#0072B2", "#E69F00"  # told apart by the colour-blind too


def crossover(exact: Line, series: Line) -> int | None:
    """The first length from which the series multiplies less, None if there is none below four
    million.

    >>> crossover(lambda n: n * n, lambda n: 100 * n + 50)
    101
    """
    high = 1
    while series(high) > exact(high):
        high *= 2
        if high > FURTHEST:
            return None
    low = high // 2  # the series multiplies more, or low is 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if series(middle) <= exact(middle) else (middle, high)
    return high


def draw(path: Path, title: str, exact: Line, series: Line | None, *, terms: int) -> int | None:
    """Writes the picture, .png or .svg by its name; returns the crossover."""
    from matplotlib.figure import Figure

    meet = crossover(exact, series) if series else None
    furthest = LONGEST if meet is None else max(LONGEST, 4 * meet)
    places = [SHORTEST]
    while places[-1] < furthest:
        places.append(places[-1] * 2)
    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    axes = figure.subplots()
    label = "exact attention" if series else "the model"
    axes.plot(places, [exact(n) for n in places], color=BLUE, marker="o", markersize=4, label=label)
    if series:
        drawn = [series(n) for n in places]
        axes.plot(
            places,
            drawn,
            color=ORANGE,
            marker="s",
            markersize=4,
            label=f"Maclaurin series, {terms} terms",
        )
    if meet:
        axes.axvline(meet, color="0.5", linewidth=0.8, linestyle=":")
        axes.annotate(f" {meet:,} places", (meet, exact(meet)), va="top")
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
    return meet
