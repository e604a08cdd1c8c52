"""Multi-head attention is a sum over heads, O = sum_h A_h X W^(h), but a sum with free W^(h) can do
strictly more.

    H_h = A_h X W_h^v,  A_h = softmax(Q_h K_h^T / sqrt(K))
    O = concat(H_1 .. H_H) W^o = sum_h A_h X W_h^v W_h^o = sum_h A_h X W^(h),       W_h^o: rows of W^o that meet head h

W^(h) = W_h^v W_h^o goes through K numbers, so its rank is at most K. A sum whose W^(h) are of full
rank is no layer with such heads unless K = D, not even where it has as many parameters, at K = D/2.
How far the nearest layer is, for the same A_h: with Z = [A_1 X .. A_H X] and free matrices W, by
Eckart and Young every layer W' of heads of width K has

    |Z W - Z W'|_F >= sigma_min(Z) sqrt( sum_h sum_{i > K} sigma_i(W^(h))^2 ) > 0

The nearest layer itself is looked for by alternating least squares: W^v given W^o, then W^o given
W^v.
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

ROUNDS = 60  # of alternating least squares; after that it hardly moves

ALSO = ("multihead", "multi-head", "sum-of-heads")  # what else people call it


class Settings(experiment.Settings):
    heads: Annotated[int, Field(ge=1, le=4)] = 2
    """H."""
    width: Annotated[int, Field(ge=2, le=12)] = 8
    """D, a multiple of the heads; each has K = D / H."""
    length: Annotated[int, Field(ge=2, le=64)] = 11
    """Places of a sequence."""
    sequences: Annotated[int, Field(ge=1, le=256)] = 24
    """Sequences that the layer must get right; with enough of them Z has full rank, and the free
    sum is unique."""

    @model_validator(mode="after")
    def _sizes(self) -> Self:
        if self.width % self.heads:
            raise ValueError(
                f"heads must divide width; got heads = {self.heads}, width = {self.width}"
            )
        if self.sequences * self.length < 2 * self.heads * self.width:
            raise ValueError(
                "sequences x length must be at least 2 x heads x width, or anything fits; "
                f"got {self.sequences} x {self.length} and 2 x {self.heads} x {self.width}"
            )
        return self


def run(settings: Settings) -> Report:
    draws = torch.Generator().manual_seed(settings.seed)
    H, D = settings.heads, settings.width
    K = D // H

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draws, dtype=torch.float64) * shape[-2] ** -0.5

    x = normal(settings.sequences, settings.length, D) * settings.length**0.5
    w_q, w_k, w_v = normal(3, H, D, K) * 2  # wide scores: heads that look at different places
    w_o = normal(H, K, D)
    concatenated = layer(x, w_q, w_k, w_v, w_o)
    weights = attention_weights(x[:, None] @ w_q, x[:, None] @ w_k)  # (B, H, T, T)
    mixed = weights @ x[:, None]  # A_h X, (B, H, T, D)
    own = w_v @ w_o  # W^(h), (H, D, D)
    ranks = torch.linalg.matrix_rank(own).tolist()
    z = mixed.transpose(1, 2).flatten(2).flatten(0, 1)  # [A_1 X .. A_H X], (B T, H D)
    free = normal(H, D, D)  # what the free sum has and no layer of narrow heads can have
    target = z @ free.flatten(0, 1)
    fitted = torch.linalg.lstsq(z, target).solution
    exact = (torch.linalg.norm(z @ fitted - target) / torch.linalg.norm(target)).item()
    rows = [(k, *map(clean, nearest(z, free, k)), 2 * H * k * D) for k in range(1, D + 1)]
    found, bound = rows[K - 1][1:3]
    strictly = K < D
    claims = (
        zero("concat(H_1 .. H_H) W^o = sum_h A_h X W^(h)", (concatenated - (mixed @ own).sum(1)).abs().max().item()),
        Claim(f"every W^(h) has rank at most K = {K}", f"at most {K}", ", ".join(map(str, ranks)), max(ranks) <= K),
        zero("least squares with free W^(h) finds the target", exact, within=1e-9),
        Claim(
            f"no layer with heads of width K = {K} does" if strictly else "one head as wide as the model does",
            f"further away than the bound, {bound:.4f}" if strictly else "0 (below 1e-09)",
            f"{found:.4f}" if strictly else f"{found:.4g}",
            found >= bound > 1e-6 if strictly else found < 1e-9,
        ),
        Claim(
            "only K = D makes up for it",
            "the distance falls with K, to 0 at K = D and nowhere else",
            f"{rows[0][1]:.4f} at K = 1, {rows[-2][1]:.4f} at K = D - 1, {rows[-1][1]:.4g} at K = D",
            all(a[1] > b[1] for a, b in pairwise(rows)) and all(row[2] > 1e-6 for row in rows[:-1])
            and rows[-1][1] < 1e-9,
        ),
    )  # fmt: skip
    table = Table(
        f"The nearest layer of {H} heads of width K to a free sum with {H * D * D:,} parameters, D = {D}",
        ("K", "distance found", "no layer is nearer than", "parameters W^v, W^o"),
        tuple(rows),
    )
    return Report(claims, (table,), _figure(settings, own, free, rows))


def layer(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor) -> Tensor:
    """The usual form: look with each head, put the heads side by side, project."""
    heads = attend(x[:, None] @ w_q, x[:, None] @ w_k, x[:, None] @ w_v)  # (B, H, T, K)
    return heads.transpose(1, 2).flatten(2) @ w_o.flatten(0, 1)


def nearest(z: Tensor, free: Tensor, head_width: int) -> tuple[float, float]:
    """The distance |Z W - Z W'| / |Z W| of the nearest W' of that rank a head that was found,
    and the lower bound."""
    H, D, _ = free.shape
    r = torch.linalg.qr(z).R  # |Z W| = |R W| for every W, and R is small
    target, wanted = r @ free.flatten(0, 1), torch.linalg.norm(r @ free.flatten(0, 1))
    _, s, vh = torch.linalg.svd(free)
    bound = torch.linalg.matrix_norm(r, ord=-2) * s[:, head_width:].norm() / wanted
    w_o = vh[:, :head_width]  # the nearest by Eckart and Young, were Z the identity
    per_head = r.view(-1, H, D).transpose(0, 1).contiguous()  # (H, H D, D)
    left = target
    for _ in range(ROUNDS):
        # vec(Z_h V_h O_h) = (Z_h kron O_h^T) vec(V_h), rows after rows
        design = torch.cat(
            [torch.kron(part, o.T.contiguous()) for part, o in zip(per_head, w_o, strict=True)],
            dim=1,
        )
        w_v = torch.linalg.lstsq(design, target.flatten()[:, None]).solution.view(H, D, head_width)
        through = (per_head @ w_v).transpose(0, 1).flatten(1)  # (H D, H K)
        w_o = torch.linalg.lstsq(through, target).solution.view(H, head_width, D)
        before, left = left, target - through @ w_o.flatten(0, 1)
        if torch.linalg.norm(before) - torch.linalg.norm(left) < 1e-12 * wanted:
            break
    return (torch.linalg.norm(left) / wanted).item(), bound.item()


def _figure(settings: Settings, own: Tensor, free: Tensor, rows: list[tuple[float, ...]]) -> Figure:
    H, D = settings.heads, settings.width
    sheet = experiment.figure(11, 4.2)
    left, right = sheet.subplots(1, 2)
    places = range(1, D + 1)
    for matrices, colour, marker, label in (
        (own, BLUE, "o", "W^(h) of a layer"),
        (free, ORANGE, "s", "free W^(h)"),
    ):
        for h, values in enumerate(torch.linalg.svdvals(matrices)):
            left.plot(
                places,
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
    heads = [row[0] for row in rows]
    right.plot(heads, [row[1] for row in rows], color=BLUE, marker="o", label="nearest layer found")
    right.plot(
        heads, [row[2] for row in rows], color=RED, linestyle="--", label="no layer is nearer"
    )
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
        title="distance to a free sum",
        ylim=(0, None),
    )
    right.legend(frameon=False)
    return sheet
