"""The query and key projections of a head can be merged into one D x D matrix with the same
attention, but not with rotary positions.

    (x W_h^q) (y W_h^k)^T / sqrt(K) = x W~[h] y^T,         W~[h] = W_h^q (W_h^k)^T / sqrt(K)

W~[h] has rank at most K. The query and key projections of a layer have 2 H K D parameters, the
merged matrices H D^2: the same number at K = D/2, and H/2 times as many at K = D/H.

Rotary positions multiply by a rotation R_t between the two projections:

    (x W^q R_t) (y W^k R_s)^T / sqrt(K) = x W~(t - s) y^T,        W~(d) = W^q R_d (W^k)^T / sqrt(K)

This is one matrix for each distance d. No single matrix gives all scores: the best one by least
squares leaves a residual.
"""

from __future__ import annotations

import math
from typing import Annotated, Self

import torch
from matplotlib.figure import Figure
from pydantic import Field, model_validator
from torch import Tensor

from regard.lab import experiment
from regard.lab.experiment import BLACK, BLUE, ORANGE, RED, Claim, Report, Table, clean, zero
from regard.layers.attention import attention_weights
from regard.layers.positions import rotary
from regard.pages.formulas import Formula

ALSO = ("merge", "query-key", "qk")  # synonyms of the name

# One group for each block of formulas in the docstring.
FORMULAS = (
    (
        Formula(
            r"\frac{(x W_h^q) (y W_h^k)^\top}{\sqrt{K}} \allowbreak = x \tilde{W}[h] \, y^\top, "
            r"\quad \tilde{W}[h] = \frac{W_h^q (W_h^k)^\top}{\sqrt{K}}",
            "The score of head h, with two matrices and with one.",
        ),
    ),
    (
        Formula(
            r"\frac{(x W^q R_t) (y W^k R_s)^\top}{\sqrt{K}} "
            r"\allowbreak = x \tilde{W}(t - s) \, y^\top, "
            r"\quad \tilde{W}(d) = \frac{W^q R_d (W^k)^\top}{\sqrt{K}}",
            "With rotary positions the matrix depends on the distance t − s.",
        ),
    ),
)


class Settings(experiment.Settings):
    heads: Annotated[int, Field(ge=1, le=16)] = 3
    """H, the number of heads."""
    width: Annotated[int, Field(ge=2, le=24)] = 12
    """D, the width of the inputs; even."""
    head_width: Annotated[int, Field(ge=2, le=64)] = 4
    """K, the width of a head; even, because rotary positions rotate pairs."""
    length: Annotated[int, Field(ge=2, le=64)] = 9
    """T, the length of a sequence."""

    @model_validator(mode="after")
    def _even(self) -> Self:
        odd = [
            f"{name} = {getattr(self, name)}"
            for name in ("width", "head_width")
            if getattr(self, name) % 2
        ]
        if odd:
            raise ValueError(f"width and head_width must be even; got {', '.join(odd)}")
        return self


def run(settings: Settings) -> Report:
    H = settings.heads
    D = settings.width
    K = settings.head_width
    T = settings.length
    draws = torch.Generator().manual_seed(settings.seed)
    rows = math.ceil(4 * D * D / (T * T))  # four times as many scores as a matrix has entries
    x = torch.randn(rows, T, D, generator=draws, dtype=torch.float64)
    w_q, w_k = torch.randn(2, H, D, K, generator=draws, dtype=torch.float64) * D**-0.5
    merged = merge(w_q, w_k)  # (H, D, D)
    ranks = torch.linalg.matrix_rank(merged).tolist()
    q, k = x[:, None] @ w_q, x[:, None] @ w_k  # (B, H, T, K)
    weights = attention_weights(q, k)
    merged_weights = attention_weights(x[:, None] @ merged, x[:, None], scale=1.0)

    places = torch.arange(T)
    plain = scores(q, k)[:, 0]  # of the first head, (B, T, T)
    rotated = scores(rotary(q, places), rotary(k, places))[:, 0]
    by_distance = torch.stack(
        [at_distance(w_q[0], w_k[0], d) for d in range(1 - T, T)]
    )  # W~(d), (2 T - 1, D, D)
    distances = places[:, None] - places + T - 1
    from_distances = torch.einsum("btd,tsde,bse->bts", x, by_distance[distances], x)
    span = int(torch.linalg.matrix_rank(by_distance.flatten(1)))

    plain_fit = best_single(x, plain)
    rotated_fit = best_single(x, rotated)
    plain_residual = residual(plain_fit, plain)
    rotated_residual = residual(rotated_fit, rotated)

    halves = torch.empty(2, H, D, D // 2)
    half_separate = halves.numel()
    half_merged = merge(*halves).numel()
    claims = (
        zero(
            "one matrix per head gives the same attention as query and key projections",
            (weights - merged_weights).abs().max().item(),
        ),
        Claim(
            f"the rank of this matrix is at most K = {K}",
            f"at most {K}",
            ", ".join(map(str, ranks)),
            max(ranks) <= K,
        ),
        Claim(
            f"at K = D/2 = {D // 2} both forms have the same number of parameters",
            f"{half_merged:,}",
            f"{half_separate:,}",
            half_separate == half_merged,
        ),
        zero(
            "without positions, least squares finds one matrix for all scores",
            plain_residual,
            within=1e-9,
        ),
        zero(
            "with rotary positions, W~(t - s) gives every score",
            (from_distances - rotated).abs().max().item(),
        ),
        Claim(
            "with rotary positions, no single matrix gives every score",
            "a relative residual above 0.001, and linearly independent W~(d)",
            f"a residual of {rotated_residual:.1%}; the W~(d) span {span} dimensions",
            rotated_residual > 1e-3 and span > 1,
        ),
    )
    parameters = Table(
        f"Parameters of {H} heads, D = {D}",
        ("K", "query and key, 2 H K D", "merged, H D^2", "merged / both"),
        counts(H, D, sorted({K, max(1, D // H), D // 2, D})),
    )
    fits = Table(
        "One matrix for all scores of a head, by least squares",
        ("positions", "relative residual"),
        (("none", clean(plain_residual)), ("rotary", clean(rotated_residual))),
    )
    figure = _figure(settings, by_distance, (plain, plain_fit), (rotated, rotated_fit))
    return Report(claims, (parameters, fits), figure)


def merge(w_q: Tensor, w_k: Tensor) -> Tensor:
    """W~ = W^q (W^k)^T / sqrt(K)."""
    return w_q @ w_k.mT / math.sqrt(w_q.shape[-1])


def at_distance(w_q: Tensor, w_k: Tensor, distance: int) -> Tensor:
    """W~(d) = W^q R_d (W^k)^T / sqrt(K): each row of W^q is rotated by d."""
    return merge(rotary(w_q, torch.full((len(w_q),), distance)), w_k)


def scores(q: Tensor, k: Tensor) -> Tensor:
    """Scaled dot products q k^T / sqrt(K)."""
    return q @ k.mT / math.sqrt(q.shape[-1])


def best_single(x: Tensor, target: Tensor) -> Tensor:
    """The scores x_t W x_s^T (B, T, T) of one matrix W nearest to `target`, by least squares."""
    design = torch.einsum("btd,bse->btsde", x, x).flatten(0, 2).flatten(1)  # (B T T, D D)
    w = torch.linalg.lstsq(design, target.flatten()[:, None]).solution
    return (design @ w).view_as(target)


def residual(fitted: Tensor, target: Tensor) -> float:
    """|fitted - target| / |target|."""
    return (torch.linalg.norm(fitted - target) / torch.linalg.norm(target)).item()


def counts(
    heads: int, width: int, head_widths: list[int]
) -> tuple[tuple[int, int, int, float], ...]:
    """K, 2 H K D, H D^2 and their ratio.

    >>> counts(8, 512, [64, 256])
    ((64, 524288, 2097152, 4.0), (256, 2097152, 2097152, 1.0))
    """
    return tuple((k, 2 * heads * k * width, heads * width**2, width / (2 * k)) for k in head_widths)


def _figure(
    settings: Settings,
    by_distance: Tensor,
    plain: tuple[Tensor, Tensor],
    rotated: tuple[Tensor, Tensor],
) -> Figure:
    """Parameters over K; W~(d) over d; scores and their fits, without and with rotary positions."""
    H = settings.heads
    D = settings.width
    T = settings.length
    sheet = experiment.figure(13, 4.3)
    size, change, fit = sheet.subplots(1, 3)
    head_widths = list(range(1, D + 1))
    size.plot(
        head_widths,
        [2 * H * k * D for k in head_widths],
        color=BLUE,
        label="query and key, 2 H K D",
    )
    size.plot(
        head_widths,
        [H * D * D for _ in head_widths],
        color=ORANGE,
        linestyle="--",
        label="merged, H D²",
    )
    size.plot([D / 2], [H * D * D], "o", color=BLACK)
    size.annotate(
        "K = D/2", (D / 2, H * D * D), xytext=(-8, 8), textcoords="offset points", ha="right"
    )
    size.set(
        xlabel="K, width of a head",
        ylabel="parameters",
        title=f"{H} heads, D = {D}",
        ylim=(0, None),
    )
    size.legend(frameon=False)
    distances = list(range(1 - T, T))
    at_zero = by_distance[T - 1]
    norms = torch.linalg.matrix_norm(by_distance - at_zero)
    change.plot(
        distances, (norms / torch.linalg.matrix_norm(at_zero)).tolist(), color=RED, marker="o"
    )
    change.set(
        xlabel="d, distance of query and key",
        ylabel="|W~(d) - W~(0)| / |W~(0)|",
        ylim=(0, None),
        title="with rotary positions, one matrix per distance",
    )
    change.xaxis.get_major_locator().set_params(integer=True)
    for (target, fitted), colour, marker, label in (
        (rotated, RED, "x", "rotary"),
        (plain, BLUE, ".", "no positions"),
    ):
        sample = slice(None, None, max(1, target.numel() // 400))
        x = target.flatten()[sample].tolist()
        y = fitted.flatten()[sample].tolist()
        fit.plot(x, y, marker, color=colour, markersize=5, label=label)
    fit.axline((0, 0), slope=1, color=BLACK, linewidth=0.8)
    fit.set(
        xlabel="score",
        ylabel="score by the best single matrix",
        title="one matrix for all positions",
    )
    fit.legend(frameon=False)
    return sheet
