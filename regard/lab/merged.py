"""Query and key can be merged into one D x D matrix a head with the same attention, but not under
rotary positions.

    (x W_h^q) (y W_h^k)^T / sqrt(K) = x W~[h] y^T,        W~[h] = W_h^q (W_h^k)^T / sqrt(K),  rank at most K

A layer holds 2 H K D parameters of query and key, merged H D^2: as many when K = D/2, H/2 times as
many when K = D/H.

Rotary positions stand between the two. With R_t turning by t,

    (x W^q R_t) (y W^k R_s)^T / sqrt(K) = x W~(t - s) y^T,        W~(d) = W^q R_d (W^k)^T / sqrt(K)

one matrix for each distance d, and no single one for all: the best by least squares leaves a
residual.
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

ALSO = ("merge", "query-key", "qk")  # what else people call it


class Settings(experiment.Settings):
    heads: Annotated[int, Field(ge=1, le=16)] = 3
    """H."""
    width: Annotated[int, Field(ge=2, le=24)] = 12
    """D, even."""
    head_width: Annotated[int, Field(ge=2, le=64)] = 4
    """K, even, because rotary positions turn pairs."""
    length: Annotated[int, Field(ge=2, le=64)] = 9
    """Places of a sequence."""

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
    H, D, K, T = settings.heads, settings.width, settings.head_width, settings.length
    draws = torch.Generator().manual_seed(settings.seed)
    rows = math.ceil(4 * D * D / (T * T))  # four times as many scores as a matrix has numbers
    x = torch.randn(rows, T, D, generator=draws, dtype=torch.float64)
    w_q, w_k = torch.randn(2, H, D, K, generator=draws, dtype=torch.float64) * D**-0.5
    whole = merge(w_q, w_k)  # (H, D, D)
    q, k = x[:, None] @ w_q, x[:, None] @ w_k  # (B, H, T, K)
    two, one = attention_weights(q, k), attention_weights(x[:, None] @ whole, x[:, None], scale=1.0)
    ranks = torch.linalg.matrix_rank(whole).tolist()

    places = torch.arange(T)
    plain = scores(q, k)[:, 0]
    turned = scores(rotary(q, places), rotary(k, places))[:, 0]  # of the first head, (B, T, T)
    by_distance = torch.stack(
        [at_distance(w_q[0], w_k[0], d) for d in range(1 - T, T)]
    )  # (2 T - 1, D, D)
    apart = places[:, None] - places + T - 1
    with_matrices = torch.einsum("btd,tsde,bse->bts", x, by_distance[apart], x)
    plain_fit, turned_fit = best_single(x, plain), best_single(x, turned)
    residuals = residual(plain_fit, plain), residual(turned_fit, turned)
    rank_of_all = int(torch.linalg.matrix_rank(by_distance.flatten(1)))

    table = counts(H, D, sorted({K, max(1, D // H), D // 2, D}))
    halves = torch.empty(2, H, D, D // 2)
    half = halves.numel(), merge(*halves).numel()
    claims = (
        zero(
            "one matrix a head gives the same attention as query and key",
            (two - one).abs().max().item(),
        ),
        Claim(
            f"its rank is at most K = {K}",
            f"at most {K}",
            ", ".join(map(str, ranks)),
            max(ranks) <= K,
        ),
        Claim(
            f"at K = D/2 = {D // 2} both have as many parameters",
            f"{half[1]:,}",
            f"{half[0]:,}",
            half[0] == half[1],
        ),
        zero(
            "without rotary positions, least squares finds a matrix for all scores",
            residuals[0],
            within=1e-9,
        ),
        zero("with them, W~(t - s) gives every score", (with_matrices - turned).abs().max().item()),
        Claim(
            "but no single matrix does",
            "a residual, and more than one matrix to span all W~(d)",
            f"{residuals[1]:.1%} of the scores' size is left; all W~(d) span {rank_of_all}",
            residuals[1] > 1e-3 and rank_of_all > 1,
        ),
    )
    columns = ("K", "query and key, 2 H K D", "merged, H D^2", "merged / both")
    parameters = Table(f"Parameters of {H} heads, D = {D}", columns, table)
    fits = Table(
        "One matrix for all scores of a head, by least squares",
        ("positions", "share of the scores' size that is left"),
        (("none", clean(residuals[0])), ("rotary", clean(residuals[1]))),
    )
    figure = _figure(settings, by_distance, (plain, plain_fit), (turned, turned_fit))
    return Report(claims, (parameters, fits), figure)


def merge(w_q: Tensor, w_k: Tensor) -> Tensor:
    """W~ = W^q (W^k)^T / sqrt(K)."""
    return w_q @ w_k.mT / math.sqrt(w_q.shape[-1])


def at_distance(w_q: Tensor, w_k: Tensor, distance: int) -> Tensor:
    """W~(d) = W^q R_d (W^k)^T / sqrt(K): each row of W^q, turned."""
    return merge(rotary(w_q, torch.full((len(w_q),), distance)), w_k)


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT / math.sqrt(q.shape[-1])


def best_single(x: Tensor, wanted: Tensor) -> Tensor:
    """The scores (B, T, T) nearest to the wanted ones of the form x_t W x_s^T."""
    design = torch.einsum("btd,bse->btsde", x, x).flatten(0, 2).flatten(1)  # (B T T, D D)
    w = torch.linalg.lstsq(design, wanted.flatten()[:, None]).solution
    return (design @ w).view_as(wanted)


def residual(fitted: Tensor, wanted: Tensor) -> float:
    return (torch.linalg.norm(fitted - wanted) / torch.linalg.norm(wanted)).item()


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
    turned: tuple[Tensor, Tensor],
) -> Figure:
    H, D, T = settings.heads, settings.width, settings.length
    sheet = experiment.figure(13, 4.3)
    size, moved, fit = sheet.subplots(1, 3)
    heads = list(range(1, D + 1))
    size.plot(heads, [2 * H * k * D for k in heads], color=BLUE, label="query and key, 2 H K D")
    size.plot(heads, [H * D * D for _ in heads], color=ORANGE, linestyle="--", label="merged, H D²")
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
    middle = by_distance[T - 1]
    away = torch.linalg.matrix_norm(by_distance - middle) / torch.linalg.matrix_norm(middle)
    moved.plot(distances, away.tolist(), color=RED, marker="o")
    moved.set(xlabel="d, distance of query and key", ylabel="|W~(d) - W~(0)| / |W~(0)|", ylim=(0, None),
              title="under rotary, a matrix for each distance")  # fmt: skip
    moved.xaxis.get_major_locator().set_params(integer=True)
    for (wanted, fitted), colour, marker, label in (
        (turned, RED, "x", "rotary"),
        (plain, BLUE, ".", "no positions"),
    ):
        some = slice(None, None, max(1, wanted.numel() // 400))
        x, y = wanted.flatten()[some].tolist(), fitted.flatten()[some].tolist()
        fit.plot(x, y, marker, color=colour, markersize=5, label=label)
    fit.axline((0, 0), slope=1, color=BLACK, linewidth=0.8)
    fit.set(
        xlabel="score", ylabel="score by the best single matrix", title="one matrix for all places"
    )
    fit.legend(frameon=False)
    return sheet
