"""Multi-head attention is a sum over heads, O = sum_h A_h X W^(h), but a sum with unconstrained
W^(h) is strictly more expressive.

    A_h = softmax(Q_h K_h^T / sqrt(K)),  H_h = A_h X W_h^v
    O = concat(H_1 .. H_H) W^o = sum_h A_h X W_h^v W_h^o = sum_h A_h X W^(h)

W_h^o are the K rows of W^o that multiply head h. W^(h) = W_h^v W_h^o is a product through K
dimensions, so its rank is at most K. A sum with W^(h) of full rank therefore equals no multi-head
layer unless K = D, not even at K = D/2, where both have the same number of parameters.

The distance to the nearest layer with the same A_h has a lower bound. Let Z = [A_1 X .. A_H X], and
let W stack the unconstrained W^(h). By the theorem of Eckart and Young, every W' made of heads of
width K satisfies

    |Z W - Z W'|_F >= sigma_min(Z) sqrt( sum_h sum_{i > K} sigma_i(W^(h))^2 ) > 0

A near layer is computed by alternating least squares: W^v for fixed W^o, then W^o for fixed W^v.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Self

import torch
from matplotlib.figure import Figure
from pydantic import Field, model_validator
from torch import Tensor

from regard.lab import experiment
from regard.lab.experiment import BLACK, BLUE, ORANGE, RED, Claim, Report, Table, clean, zero
from regard.layers.attention import attend, attention_weights
from regard.pages.formulas import Formula

ROUNDS = 60  # of alternating least squares, at most; it has converged by then

ALSO = ("multihead", "multi-head", "sum-of-heads")  # synonyms of the name

# One group for each block of formulas in the docstring.
FORMULAS = (
    (
        Formula(
            r"A_h = \operatorname{softmax}(Q_h K_h^\top / \sqrt{K}), "
            r"\quad H_h = A_h X W_h^v",
            "Head h.",
        ),
        Formula(
            r"O = \operatorname{concat}(H_1, \ldots, H_H) \, W^o "
            r"\allowbreak = \sum_h A_h X W_h^v W_h^o "
            r"\allowbreak = \sum_h A_h X W^{(h)}",
            "The layer: a sum over its heads.",
        ),
    ),
    (
        Formula(
            r"\lVert Z W - Z W' \rVert_F \allowbreak \ge \sigma_{\min}(Z) "
            r"\sqrt{\sum_h \sum_{i > K} \sigma_i(W^{(h)})^2} > 0",
            "The distance is at least what a rank of K leaves out.",
        ),
    ),
)


class Settings(experiment.Settings):
    heads: Annotated[int, Field(ge=1, le=4)] = 2
    """H, the number of heads."""
    width: Annotated[int, Field(ge=2, le=12)] = 8
    """D, a multiple of the number of heads; each head has width K = D / H."""
    length: Annotated[int, Field(ge=2, le=64)] = 11
    """The length of a sequence."""
    sequences: Annotated[int, Field(ge=1, le=256)] = 24
    """The number of sequences to fit; with enough of them Z has full rank and W is unique."""

    @model_validator(mode="after")
    def _sizes(self) -> Self:
        if self.width % self.heads:
            raise ValueError(
                f"heads must divide width; got heads = {self.heads}, width = {self.width}"
            )
        if self.sequences * self.length < 2 * self.heads * self.width:
            raise ValueError(
                "sequences x length must be at least 2 x heads x width, or every target fits; "
                f"got {self.sequences} x {self.length} and 2 x {self.heads} x {self.width}"
            )
        return self


def run(settings: Settings) -> Report:
    draws = torch.Generator().manual_seed(settings.seed)
    H = settings.heads
    D = settings.width
    K = D // H

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draws, dtype=torch.float64) * shape[-2] ** -0.5

    x = normal(settings.sequences, settings.length, D) * settings.length**0.5
    w_q, w_k, w_v = normal(3, H, D, K) * 2  # large scores, so that the heads differ
    w_o = normal(H, K, D)
    concatenated = layer(x, w_q, w_k, w_v, w_o)
    weights = attention_weights(x[:, None] @ w_q, x[:, None] @ w_k)  # (B, H, T, T)
    averages = weights @ x[:, None]  # A_h X, (B, H, T, D)
    per_head = w_v @ w_o  # W^(h), (H, D, D)
    summed = (averages @ per_head).sum(1)
    ranks = torch.linalg.matrix_rank(per_head).tolist()

    z = averages.transpose(1, 2).flatten(2).flatten(0, 1)  # [A_1 X .. A_H X], (B T, H D)
    free = normal(H, D, D)  # unconstrained W^(h), of full rank
    target = z @ free.flatten(0, 1)
    fitted = torch.linalg.lstsq(z, target).solution
    exact = (torch.linalg.norm(z @ fitted - target) / torch.linalg.norm(target)).item()
    rows = [(k, *map(clean, nearest(z, free, k)), 2 * H * k * D) for k in range(1, D + 1)]
    distances = [row[1] for row in rows]
    bounds = [row[2] for row in rows]
    distance, bound = distances[K - 1], bounds[K - 1]
    if K < D:
        fit = Claim(
            f"a multi-head layer with heads of width K = {K} does not fit it",
            f"a distance of at least the bound, {bound:.4f}",
            f"{distance:.4f}",
            distance >= bound > 1e-6,
        )
    else:
        fit = Claim(
            "one head as wide as the model fits it too",
            "0 (below 1e-09)",
            f"{distance:.4g}",
            distance < 1e-9,
        )
    claims = (
        zero(
            "concat(H_1 .. H_H) W^o = sum_h A_h X W^(h)",
            (concatenated - summed).abs().max().item(),
        ),
        Claim(
            f"every W^(h) has rank at most K = {K}",
            f"at most {K}",
            ", ".join(map(str, ranks)),
            max(ranks) <= K,
        ),
        zero("a sum with unconstrained W^(h) fits a full-rank target", exact, within=1e-9),
        fit,
        Claim(
            "only heads of width K = D fit it",
            "the distance falls with K, and is 0 only at K = D",
            f"{distances[0]:.4f} at K = 1, {distances[-2]:.4f} at K = D - 1, "
            f"{distances[-1]:.4g} at K = D",
            all(wider < narrower for narrower, wider in pairwise(distances))
            and all(lower > 1e-6 for lower in bounds[:-1])
            and distances[-1] < 1e-9,
        ),
    )
    table = Table(
        f"The nearest layer with {H} heads of width K to an unconstrained sum with "
        f"{H * D * D:,} parameters, D = {D}",
        ("K", "distance", "lower bound", "parameters W^v, W^o"),
        tuple(rows),
    )
    return Report(claims, (table,), _figure(settings, per_head, free, rows))


def layer(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor) -> Tensor:
    """Multi-head self-attention in its usual form: attend, concatenate the heads, project."""
    heads = attend(x[:, None] @ w_q, x[:, None] @ w_k, x[:, None] @ w_v)  # (B, H, T, K)
    return heads.transpose(1, 2).flatten(2) @ w_o.flatten(0, 1)


def nearest(z: Tensor, free: Tensor, head_width: int) -> tuple[float, float]:
    """The relative distance |Z W - Z W'| / |Z W| of a near W' with heads of this width, and the
    lower bound of this distance."""
    H, D, _ = free.shape
    r = torch.linalg.qr(z).R  # |Z W| = |R W| for every W, and R is small
    target = r @ free.flatten(0, 1)
    size = torch.linalg.norm(target)
    _, s, vh = torch.linalg.svd(free)
    bound = torch.linalg.matrix_norm(r, ord=-2) * s[:, head_width:].norm() / size
    w_o = vh[:, :head_width]  # start: the optimum if Z were orthonormal (Eckart and Young)
    per_head = r.view(-1, H, D).transpose(0, 1).contiguous()  # (H, H D, D)
    residual = target
    for _ in range(ROUNDS):
        # vec(Z_h V_h O_h) = (Z_h kron O_h^T) vec(V_h), vec concatenating rows
        design = torch.cat(
            [torch.kron(part, o.T.contiguous()) for part, o in zip(per_head, w_o, strict=True)],
            dim=1,
        )
        w_v = torch.linalg.lstsq(design, target.flatten()[:, None]).solution.view(H, D, head_width)
        values = (per_head @ w_v).transpose(0, 1).flatten(1)  # (H D, H K)
        w_o = torch.linalg.lstsq(values, target).solution.view(H, head_width, D)
        previous = residual
        residual = target - values @ w_o.flatten(0, 1)
        if torch.linalg.norm(previous) - torch.linalg.norm(residual) < 1e-12 * size:
            break
    return (torch.linalg.norm(residual) / size).item(), bound.item()


def _figure(
    settings: Settings, per_head: Tensor, free: Tensor, rows: list[tuple[float, ...]]
) -> Figure:
    H = settings.heads
    D = settings.width
    sheet = experiment.figure(11, 4.2)
    left, right = sheet.subplots(1, 2)
    indices = range(1, D + 1)
    for matrices, colour, marker, label in (
        (per_head, BLUE, "o", "W^(h) of a layer"),
        (free, ORANGE, "s", "unconstrained W^(h)"),
    ):
        for h, values in enumerate(torch.linalg.svdvals(matrices)):
            left.plot(
                indices,
                values.clamp(min=1e-17).tolist(),
                color=colour,
                marker=marker,
                label=None if h else label,
            )
    left.axvline(D // H + 0.5, color=BLACK, linewidth=0.8, linestyle=":")
    left.set(
        yscale="log",
        xlabel="i",
        ylabel="singular value i",
        title=f"rank: {H} heads of width K = {D // H}, D = {D}",
    )
    left.legend(frameon=False)
    head_widths, distances, bounds, _ = zip(*rows, strict=True)
    right.plot(head_widths, distances, color=BLUE, marker="o", label="nearest layer")
    right.plot(head_widths, bounds, color=RED, linestyle="--", label="lower bound")
    right.axvline(D // H, color=BLACK, linewidth=0.8, linestyle=":")
    right.annotate(
        "K = D / H",
        (D // H, right.get_ylim()[1]),
        xytext=(4, -4),
        textcoords="offset points",
        va="top",
    )
    right.set(
        xlabel="K, width of a head",
        ylabel="|Z W - Z W'| / |Z W|",
        title="distance to an unconstrained sum",
        ylim=(0, None),
    )
    right.legend(frameon=False)
    return sheet
