"""Orthonormal inputs do not come out of self-attention unchanged: every place also takes a share of
all the others.

N orthogonal inputs of length |x_n|^2 = s, looking at themselves without projections or scaling:

    x_n . x_m = s if n = m, else 0          exp(0) = 1, not 0: the others still count
    a_nn = e^s / (e^s + N - 1)              a_nm = 1 / (e^s + N - 1)
    y_n  = a_nn x_n + a_nm sum_{m != n} x_m
    |y_n - x_n| / |x_n| = sqrt(N (N - 1)) / (e^s + N - 1)

For N = 4 and s = 1 that is 0.4754 and 0.1749. Only as s grows does the map become the identity.
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

STRENGTHS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)

ALSO = ("orthonormal", "identity", "unchanged")  # what else people call it


class Settings(experiment.Settings):
    places: Annotated[int, Field(ge=2, le=64)] = 4
    """N, how many inputs there are."""
    width: Annotated[int, Field(ge=2, le=256)] = 8
    """D, the width of an input; no fewer than the places, or they could not be orthogonal."""
    strength: Annotated[float, Field(gt=0, le=32)] = 1.0
    """s, the squared length of every input; 1: orthonormal."""

    @model_validator(mode="after")
    def _room(self) -> Self:
        if self.width < self.places:
            raise ValueError(
                f"width must be at least places; got width = {self.width}, places = {self.places}"
            )
        return self


def run(settings: Settings) -> Report:
    N, s = settings.places, settings.strength
    draws = torch.Generator().manual_seed(settings.seed)
    square = torch.randn(settings.width, settings.width, generator=draws, dtype=torch.float64)
    unit = torch.linalg.qr(square).Q[:N]  # (N, D), orthonormal rows
    a, change = attended(unit * math.sqrt(s))
    own, other = shares(N, s)
    most = N * N - N
    strengths = sorted({*STRENGTHS, s})
    rows, changes = [], []
    for each in strengths:
        weights, moved = attended(unit * math.sqrt(each))
        changes.append(moved)
        rows.append(
            (
                each,
                weights.diagonal().mean().item(),
                (weights.sum() - weights.trace()).item() / most,
                moved,
            )
        )
    diagonal, rest = rows[strengths.index(s)][1:3]
    for_99 = math.log(99 * (N - 1))
    kept = attended(unit * math.sqrt(for_99))[0].diagonal().mean().item()
    claims = (
        near(f"a place keeps e^s / (e^s + N - 1) of itself (N = {N}, s = {s:g})", expected=own, measured=diagonal,
             within=1e-10),
        near("and takes 1 / (e^s + N - 1) of every other", expected=other, measured=rest, within=1e-10),
        zero("all places alike", (a - shared(N, s)).abs().max().item()),
        near("so its output is |y - x| / |x| away from its input, not 0", expected=math.sqrt(most) * other,
             measured=change, within=1e-10),
        near(f"0.99 of itself takes s = ln(99 (N - 1)) = {for_99:.4g}", expected=0.99, measured=kept, within=1e-10),
        Claim(
            "the identity is only the limit of large s",
            f"the distance falls with s, and is below 1e-10 at s = {strengths[-1]:g}",
            f"{'falls' if changes == sorted(changes, reverse=True) else 'does not fall'}, {changes[-1]:.1e} at the end",
            changes == sorted(changes, reverse=True) and changes[-1] < 1e-10,
        ),
    )  # fmt: skip
    table = Table(
        f"{N} orthogonal inputs", ("s = |x|^2", "a_nn", "a_nm", "|y - x| / |x|"), tuple(rows)
    )
    return Report(claims, (table,), _figure(N, s, a, rows))


def attended(x: Tensor) -> tuple[Tensor, float]:
    """The weights (N, N) of inputs (N, D) that look at themselves, and how far the outputs are
    from the inputs."""
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
    own, other = shares(places, s)
    return torch.full((places, places), other, dtype=torch.float64).fill_diagonal_(own)


def _figure(places: int, s: float, weights: Tensor, rows: list[tuple[float, ...]]) -> Figure:
    sheet = experiment.figure(11, 4.2)
    left, right = sheet.subplots(1, 2, width_ratios=(1, 1.5))
    image = left.imshow(weights.numpy(), cmap="viridis", vmin=0, vmax=1)
    sheet.colorbar(image, ax=left, shrink=0.85, label="weight")
    left.set(title=f"weights of {places} inputs, s = {s:g}", xlabel="looked at", ylabel="looks")
    left.set(xticks=range(places), yticks=range(places)) if places <= 8 else None
    if places <= 8:
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
    own, other = zip(*(shares(places, each) for each in grid), strict=True)
    right.plot(grid, own, color=BLUE, label="a_nn, of itself")
    right.plot(grid, other, color=ORANGE, label="a_nm, of each other")
    right.plot(grid, [math.sqrt(places * (places - 1)) * each for each in other], color=RED, linestyle="--",
               label="|y - x| / |x|")  # fmt: skip
    shown = [row for row in rows if row[0] <= grid[-1]]
    for column, colour in ((1, BLUE), (2, ORANGE), (3, RED)):
        right.plot(
            [row[0] for row in shown],
            [row[column] for row in shown],
            "o",
            color=colour,
            markersize=5,
        )
    right.axvline(s, color=BLACK, linewidth=0.8, linestyle=":")
    right.set(
        xlabel="s = |x|²",
        ylabel="share",
        title="lines: the formula; dots: measured",
        xlim=(0, 12),
        ylim=(0, None),
    )
    right.legend(frameon=False)
    return sheet
