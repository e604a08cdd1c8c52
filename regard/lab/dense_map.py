"""For fixed weights A, self-attention is one linear map of all inputs, whose N^2 blocks are one
block times a number.

With vec(X) the rows of X (N, D) one after the other:

    Y = A X W_v            vec(Y) = (A kron W_v^T) vec(X)              block (n, m) is a_nm W_v^T
    Q = X W_q              vec(Q) = (I_N kron W_q^T) vec(X)            the same block N times on the diagonal, else 0
    scores                 x_n^T W~ x_m = vec(X)^T (E_nm kron W~) vec(X),   W~ = W_q W_k^T / sqrt(K)

A free map has (N D)^2 parameters, attention 3 D^2 whatever N is. A causal mask makes the blocks
above the diagonal 0. And since A depends on X, the whole is not linear: Y(2X) is not 2 Y(X).
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor

from regard.lab import experiment
from regard.lab.experiment import Claim, Report, Table, zero
from regard.layers.attention import attend, attention_weights

ALSO = ("linear-map", "kronecker", "matrix")  # what else people call it


class Settings(experiment.Settings):
    length: Annotated[int, Field(ge=2, le=16)] = 5
    """N, places of the input."""
    width: Annotated[int, Field(ge=2, le=16)] = 4
    """D and K."""


def run(settings: Settings) -> Report:
    N, D = settings.length, settings.width
    draws = torch.Generator().manual_seed(settings.seed)
    x = torch.randn(N, D, generator=draws, dtype=torch.float64)
    w_q, w_k, w_v = weights = torch.randn(3, D, D, generator=draws, dtype=torch.float64) * D**-0.5
    q, k, v = x @ weights
    lower = torch.ones(N, N, dtype=torch.bool).tril()
    full = torch.kron(attention_weights(q, k), w_v.T.contiguous())
    causal = torch.kron(attention_weights(q, k, mask=lower), w_v.T.contiguous())
    projection = torch.kron(torch.eye(N, dtype=x.dtype), w_q.T.contiguous())
    y = attend(q, k, v)
    merged = w_q @ w_k.T / math.sqrt(D)
    bilinear = torch.tensor(
        [[score(x, merged, n, m) for m in range(N)] for n in range(N)], dtype=x.dtype
    )
    doubled = torch.linalg.norm(attend(2 * q, 2 * k, 2 * v) - 2 * y) / torch.linalg.norm(2 * y)
    zeros = zero_blocks(causal, N)
    claims = (
        zero("vec(Y) = (A kron W_v^T) vec(X)", _apart(full @ x.flatten(), y)),
        zero("with a causal mask too", _apart(causal @ x.flatten(), attend(q, k, v, causal=True))),
        zero("vec(Q) = (I_N kron W_q^T) vec(X)", _apart(projection @ x.flatten(), q)),
        zero("entry (n, m) of the scores is x_n^T W~ x_m, a bilinear form in vec(X)",
             _apart(bilinear.flatten(), q @ k.T / math.sqrt(D))),
        Claim("all N^2 blocks are one block, times a number each", "rank 1 as N^2 x D^2 matrix",
              f"rank {block_rank(full, N)}", block_rank(full, N) == 1),
        Claim("a causal mask makes N (N - 1) / 2 of them 0", f"{N * (N - 1) // 2} of {N * N}",
              f"{zeros} of {N * N}", zeros == N * (N - 1) // 2 and zero_blocks(full, N) == 0),
        Claim("a projection has N equal blocks on the diagonal and 0 elsewhere",
              f"{N * N - N} of {N * N} are 0", f"{zero_blocks(projection, N)} of {N * N}",
              zero_blocks(projection, N) == N * N - N and block_rank(projection, N) == 1),
        Claim("the whole is not linear, because A depends on X: Y(2X) is not 2 Y(X)", "a difference above 0.001",
              f"{doubled.item():.3f} of its size", doubled.item() > 1e-3),
    )  # fmt: skip
    lengths = sorted({N, 2 * N, 4 * N, 512})
    table = Table(
        f"Parameters at D = {D}",
        ("N", "a free map, (N D)^2", "attention, 3 D^2", "free / attention"),
        tuple((n, (n * D) ** 2, weights.numel(), (n * D) ** 2 / weights.numel()) for n in lengths),
    )
    return Report(claims, (table,), _figure(settings, full, causal, projection))


def blocks(dense: Tensor, length: int) -> Tensor:
    """The N^2 blocks of an (N D, N D) matrix, one a row: (N^2, D^2)."""
    return (
        dense.unflatten(0, (length, -1))
        .unflatten(2, (length, -1))
        .transpose(1, 2)
        .flatten(0, 1)
        .flatten(1)
    )


def block_rank(dense: Tensor, length: int) -> int:
    """1 when all blocks are multiples of one (Van Loan and Pitsianis 1993)."""
    return int(torch.linalg.matrix_rank(blocks(dense, length)))


def zero_blocks(dense: Tensor, length: int) -> int:
    return int((blocks(dense, length) == 0).all(1).sum())


def score(x: Tensor, merged: Tensor, n: int, m: int) -> float:
    """vec(X)^T (E_nm kron W~) vec(X)."""
    only = x.new_zeros(len(x), len(x))
    only[n, m] = 1
    return (x.flatten() @ torch.kron(only, merged) @ x.flatten()).item()


def _apart(flat: Tensor, shaped: Tensor) -> float:
    return (flat - shaped.flatten()).abs().max().item()


def _figure(settings: Settings, full: Tensor, causal: Tensor, projection: Tensor) -> Figure:
    N, D = settings.length, settings.width
    sheet = experiment.figure(13, 4.6)
    most = max(matrix.abs().max().item() for matrix in (full, causal, projection))
    panels = sheet.subplots(1, 3)
    titles = ("attention, A ⊗ W_vᵀ", "with a causal mask", "projection, I ⊗ W_qᵀ")
    for axes, matrix, title in zip(panels, (full, causal, projection), titles, strict=True):
        image = axes.imshow(matrix.numpy(), cmap="RdBu_r", vmin=-most, vmax=most)
        for edge in range(1, N):
            axes.axhline(edge * D - 0.5, color="0.4", linewidth=0.6)
            axes.axvline(edge * D - 0.5, color="0.4", linewidth=0.6)
        middles = [n * D + (D - 1) / 2 for n in range(N)]
        axes.set(title=title, xlabel="input place", xticks=middles, yticks=middles)
        axes.set(xticklabels=range(1, N + 1), yticklabels=range(1, N + 1))
    panels[0].set(ylabel="output place")
    sheet.colorbar(image, ax=panels, shrink=0.75, label="entry")
    sheet.suptitle(f"{N} x {N} blocks of {D} x {D}: one block, times a number each")
    return sheet
