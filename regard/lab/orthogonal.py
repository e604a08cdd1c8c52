"""Self-attention does not leave orthonormal inputs unchanged: every position also attends to all
others.

Self-attention of N orthogonal inputs of squared norm |x_n|^2 = s, without projections or scaling:

    x_n . x_m = s if n = m, else 0          a score of 0 has the weight exp(0) = 1, not 0
    a_nn = e^s / (e^s + N - 1)              a_nm = 1 / (e^s + N - 1)
    y_n  = a_nn x_n + a_nm sum_{m != n} x_m
    |y_n - x_n| / |x_n| = sqrt(N (N - 1)) / (e^s + N - 1)

For N = 4 and s = 1 the weights are 0.4754 and 0.1749. The map becomes the identity only in the
limit of large s.
"""

from __future__ import annotations

import math
from typing import Annotated, Self

import torch
from matplotlib.figure import Figure
from pydantic import Field, model_validator
from torch import Tensor

from regard.lab import experiment
from regard.lab.experiment import BLACK, BLUE, ORANGE, RED, Claim, Report, Table, near, zero
from regard.layers.attention import attention_weights
from regard.pages.formulas import Formula

STRENGTHS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)

ALSO = ("orthonormal", "identity", "unchanged")  # synonyms of the name

# One group for each block of formulas in the docstring.
FORMULAS = (
    (
        Formula(
            r"x_n \cdot x_n = s, \quad x_n \cdot x_m = 0 \quad (n \neq m)",
            "The scores. A score of 0 has the weight exp(0) = 1, not 0.",
        ),
        Formula(
            r"a_{nn} = \frac{e^s}{e^s + N - 1}, \quad a_{nm} = \frac{1}{e^s + N - 1}",
            "The weight of a position on itself, and on each other one.",
        ),
        Formula(
            r"y_n = a_{nn} x_n + a_{nm} \sum_{m \neq n} x_m",
            "The output: its own input, and some of all others.",
        ),
        Formula(
            r"\frac{\lVert y_n - x_n \rVert}{\lVert x_n \rVert} "
            r"= \frac{\sqrt{N (N - 1)}}{e^s + N - 1}",
            "How far the output is from the input.",
        ),
    ),
)


class Settings(experiment.Settings):
    places: Annotated[int, Field(ge=2, le=64)] = 4
    """N, the number of inputs."""
    width: Annotated[int, Field(ge=2, le=256)] = 8
    """D, the width of an input; at least N, because more than D vectors cannot be orthogonal."""
    strength: Annotated[float, Field(gt=0, le=32)] = 1.0
    """s, the squared norm of every input; 1 means orthonormal inputs."""

    @model_validator(mode="after")
    def _room(self) -> Self:
        if self.width < self.places:
            raise ValueError(
                f"width must be at least places; got width = {self.width}, places = {self.places}"
            )
        return self


def run(settings: Settings) -> Report:
    N = settings.places
    s = settings.strength
    draws = torch.Generator().manual_seed(settings.seed)
    square = torch.randn(settings.width, settings.width, generator=draws, dtype=torch.float64)
    unit = torch.linalg.qr(square).Q[:N]  # (N, D), orthonormal rows
    weights, change = attended(unit * math.sqrt(s))
    own, other = shares(N, s)
    off_diagonal = N * N - N  # entries

    strengths = sorted({*STRENGTHS, s})
    rows = []
    for strength in strengths:
        a, distance = attended(unit * math.sqrt(strength))
        mean_own = a.diagonal().mean().item()
        mean_other = (a.sum() - a.trace()).item() / off_diagonal
        rows.append((strength, mean_own, mean_other, distance))
    measured_own, measured_other = rows[strengths.index(s)][1:3]
    changes = [row[3] for row in rows]
    falls = changes == sorted(changes, reverse=True)

    s_99 = math.log(99 * (N - 1))  # where a_nn = 0.99
    own_at_99 = attended(unit * math.sqrt(s_99))[0].diagonal().mean().item()
    claims = (
        near(
            f"the weight of a position on itself is e^s / (e^s + N - 1) (N = {N}, s = {s:g})",
            expected=own,
            measured=measured_own,
            within=1e-10,
        ),
        near(
            "its weight on every other position is 1 / (e^s + N - 1)",
            expected=other,
            measured=measured_other,
            within=1e-10,
        ),
        zero("this holds for all positions", (weights - shared(N, s)).abs().max().item()),
        near(
            "so output and input differ: |y - x| / |x| = sqrt(N (N - 1)) / (e^s + N - 1)",
            expected=math.sqrt(off_diagonal) * other,
            measured=change,
            within=1e-10,
        ),
        near(
            f"a weight of 0.99 on itself needs s = ln(99 (N - 1)) = {s_99:.4g}",
            expected=0.99,
            measured=own_at_99,
            within=1e-10,
        ),
        Claim(
            "the identity is the limit of large s",
            f"|y - x| / |x| falls with s, and is below 1e-10 at s = {strengths[-1]:g}",
            f"{'falls' if falls else 'does not fall'}, {changes[-1]:.1e} at s = {strengths[-1]:g}",
            falls and changes[-1] < 1e-10,
        ),
    )
    table = Table(
        f"{N} orthogonal inputs", ("s = |x|^2", "a_nn", "a_nm", "|y - x| / |x|"), tuple(rows)
    )
    return Report(claims, (table,), _figure(N, s, weights, rows))


def attended(x: Tensor) -> tuple[Tensor, float]:
    """The self-attention weights (N, N) of inputs (N, D), and the relative distance between
    outputs and inputs."""
    weights = attention_weights(x, x, scale=1.0)
    return weights, (torch.linalg.norm(weights @ x - x) / torch.linalg.norm(x)).item()


def shares(places: int, s: float) -> tuple[float, float]:
    """a_nn and a_nm by the formula.

    >>> [round(share, 4) for share in shares(4, 1.0)]
    [0.4754, 0.1749]
    """
    total = math.exp(s) + places - 1
    return math.exp(s) / total, 1 / total


def shared(places: int, s: float) -> Tensor:
    """The matrix of weights (N, N) by the formula."""
    own, other = shares(places, s)
    return torch.full((places, places), other, dtype=torch.float64).fill_diagonal_(own)


def _figure(places: int, s: float, weights: Tensor, rows: list[tuple[float, ...]]) -> Figure:
    sheet = experiment.figure(11, 4.2)
    left, right = sheet.subplots(1, 2, width_ratios=(1, 1.5))
    image = left.imshow(weights.numpy(), cmap="viridis", vmin=0, vmax=1)
    sheet.colorbar(image, ax=left, shrink=0.85, label="weight")
    left.set(title=f"weights of {places} inputs, s = {s:g}", xlabel="key", ylabel="query")
    if places <= 8:
        left.set(xticks=range(places), yticks=range(places))
        for n in range(places):
            for m in range(places):
                value = weights[n, m].item()
                left.text(
                    m,
                    n,
                    f"{value:.4f}",
                    ha="center",
                    va="center",
                    color="white" if value < 0.6 else "black",
                )
    grid = [0.02 * step for step in range(1, 601)]
    own, other = zip(*(shares(places, strength) for strength in grid), strict=True)
    distances = [math.sqrt(places * (places - 1)) * weight for weight in other]
    right.plot(grid, own, color=BLUE, label="a_nn, on itself")
    right.plot(grid, other, color=ORANGE, label="a_nm, on each other position")
    right.plot(grid, distances, color=RED, linestyle="--", label="|y - x| / |x|")
    visible = [row for row in rows if row[0] <= grid[-1]]
    for column, colour in ((1, BLUE), (2, ORANGE), (3, RED)):
        right.plot(
            [row[0] for row in visible],
            [row[column] for row in visible],
            "o",
            color=colour,
            markersize=5,
        )
    right.axvline(s, color=BLACK, linewidth=0.8, linestyle=":")
    right.set(
        xlabel="s = |x|²",
        ylabel="weight",
        title="lines: the formula; dots: measured",
        xlim=(0, 12),
        ylim=(0, None),
    )
    right.legend(frameon=False)
    return sheet
