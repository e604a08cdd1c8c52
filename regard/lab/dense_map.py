"""With its attention weights A fixed, self-attention is a linear map of the whole sequence, whose
N^2 blocks are all multiples of W_v^T.

vec(X) concatenates the rows of X (N, D); E_nm is 1 at (n, m) and 0 elsewhere:

    output    Y = A X W_v      vec(Y) = (A kron W_v^T) vec(X)         block (n, m) is a_nm W_v^T
    queries   Q = X W_q        vec(Q) = (I_N kron W_q^T) vec(X)       W_q^T in each diagonal block
    scores    x_n^T W~ x_m = vec(X)^T (E_nm kron W~) vec(X),          W~ = W_q W_k^T / sqrt(K)

An unconstrained linear map has (N D)^2 parameters; attention has 3 D^2 for every N. A causal mask
sets the blocks above the diagonal to 0. Because A depends on X, self-attention as a whole is not
linear: Y(2X) is not 2 Y(X).
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
from regard.pages.formulas import Formula

ALSO = ("linear-map", "kronecker", "matrix")  # synonyms of the name

# One group for each block of formulas in the docstring.
FORMULAS = (
    (
        Formula(
            r"Y = A X W_v, \quad \operatorname{vec}(Y) "
            r"\allowbreak = (A \otimes W_v^\top) \operatorname{vec}(X)",
            "The output: block (n, m) is W_vᵀ times the weight a_nm.",
        ),
        Formula(
            r"Q = X W_q, \quad \operatorname{vec}(Q) "
            r"\allowbreak = (I_N \otimes W_q^\top) \operatorname{vec}(X)",
            "The queries: W_qᵀ in each diagonal block.",
        ),
        Formula(
            r"x_n^\top \tilde{W} x_m \allowbreak "
            r"= \operatorname{vec}(X)^\top (E_{nm} \otimes \tilde{W}) \operatorname{vec}(X)",
            "A score: a bilinear form of the whole sequence.",
        ),
        Formula(
            r"\tilde{W} = \frac{W_q W_k^\top}{\sqrt{K}}",
            "Its matrix.",
        ),
    ),
)


class Settings(experiment.Settings):
    length: Annotated[int, Field(ge=2, le=16)] = 5
    """N, the length of the sequence."""
    width: Annotated[int, Field(ge=2, le=16)] = 4
    """D and K, the width of the inputs and of the head."""


def run(settings: Settings) -> Report:
    N = settings.length
    D = settings.width
    draws = torch.Generator().manual_seed(settings.seed)
    x = torch.randn(N, D, generator=draws, dtype=torch.float64)
    w_q, w_k, w_v = weights = torch.randn(3, D, D, generator=draws, dtype=torch.float64) * D**-0.5
    q, k, v = x @ weights
    y = attend(q, k, v)

    lower = torch.ones(N, N, dtype=torch.bool).tril()
    full = torch.kron(attention_weights(q, k), w_v.T.contiguous())
    causal = torch.kron(attention_weights(q, k, mask=lower), w_v.T.contiguous())
    projection = torch.kron(torch.eye(N, dtype=x.dtype), w_q.T.contiguous())
    merged = w_q @ w_k.T / math.sqrt(D)
    bilinear = torch.tensor(
        [[score(x, merged, n, m) for m in range(N)] for n in range(N)], dtype=x.dtype
    )
    doubled = torch.linalg.norm(attend(2 * q, 2 * k, 2 * v) - 2 * y) / torch.linalg.norm(2 * y)
    causal_zeros = zero_blocks(causal, N)
    projection_zeros = zero_blocks(projection, N)

    claims = (
        zero("vec(Y) = (A kron W_v^T) vec(X)", _difference(full @ x.flatten(), y)),
        zero(
            "the same with a causal mask",
            _difference(causal @ x.flatten(), attend(q, k, v, causal=True)),
        ),
        zero("vec(Q) = (I_N kron W_q^T) vec(X)", _difference(projection @ x.flatten(), q)),
        zero(
            "entry (n, m) of the scores is x_n^T W~ x_m, a bilinear form in vec(X)",
            _difference(bilinear.flatten(), q @ k.T / math.sqrt(D)),
        ),
        Claim(
            "all N^2 blocks are multiples of one block",
            "rank 1 as N^2 x D^2 matrix",
            f"rank {block_rank(full, N)}",
            block_rank(full, N) == 1,
        ),
        Claim(
            "a causal mask sets N (N - 1) / 2 of the blocks to 0",
            f"{N * (N - 1) // 2} of {N * N}",
            f"{causal_zeros} of {N * N}",
            causal_zeros == N * (N - 1) // 2 and zero_blocks(full, N) == 0,
        ),
        Claim(
            "a projection has N equal blocks on the diagonal and 0 elsewhere",
            f"{N * N - N} of {N * N} are 0",
            f"{projection_zeros} of {N * N}",
            projection_zeros == N * N - N and block_rank(projection, N) == 1,
        ),
        Claim(
            "self-attention as a whole is not linear, because A depends on X: Y(2X) is not 2 Y(X)",
            "a relative difference above 0.001",
            f"{doubled.item():.3f}",
            doubled.item() > 1e-3,
        ),
    )
    lengths = sorted({N, 2 * N, 4 * N, 512})
    table = Table(
        f"Parameters at D = {D}",
        ("N", "linear map, (N D)^2", "attention, 3 D^2", "linear map / attention"),
        tuple((n, (n * D) ** 2, weights.numel(), (n * D) ** 2 / weights.numel()) for n in lengths),
    )
    return Report(claims, (table,), _figure(settings, full, causal, projection))


def blocks(dense: Tensor, length: int) -> Tensor:
    """The N^2 blocks of an (N D, N D) matrix, one per row: (N^2, D^2)."""
    return (
        dense.unflatten(0, (length, -1))
        .unflatten(2, (length, -1))
        .transpose(1, 2)
        .flatten(0, 1)
        .flatten(1)
    )


def block_rank(dense: Tensor, length: int) -> int:
    """The rank of the matrix of blocks; 1 if all blocks are multiples of one (Van Loan and
    Pitsianis 1993)."""
    return int(torch.linalg.matrix_rank(blocks(dense, length)))


def zero_blocks(dense: Tensor, length: int) -> int:
    """How many blocks are 0."""
    return int((blocks(dense, length) == 0).all(1).sum())


def score(x: Tensor, merged: Tensor, n: int, m: int) -> float:
    """vec(X)^T (E_nm kron W~) vec(X)."""
    e_nm = x.new_zeros(len(x), len(x))
    e_nm[n, m] = 1
    return (x.flatten() @ torch.kron(e_nm, merged) @ x.flatten()).item()


def _difference(flat: Tensor, shaped: Tensor) -> float:
    """The largest absolute difference between a vector and a flattened matrix."""
    return (flat - shaped.flatten()).abs().max().item()


def _figure(settings: Settings, full: Tensor, causal: Tensor, projection: Tensor) -> Figure:
    N = settings.length
    D = settings.width
    sheet = experiment.figure(13, 4.6)
    limit = max(matrix.abs().max().item() for matrix in (full, causal, projection))
    panels = sheet.subplots(1, 3)
    titles = ("attention, A ⊗ W_vᵀ", "with a causal mask", "projection, I ⊗ W_qᵀ")
    for axes, matrix, title in zip(panels, (full, causal, projection), titles, strict=True):
        image = axes.imshow(matrix.numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit)
        for edge in range(1, N):
            axes.axhline(edge * D - 0.5, color="0.4", linewidth=0.6)
            axes.axvline(edge * D - 0.5, color="0.4", linewidth=0.6)
        middles = [n * D + (D - 1) / 2 for n in range(N)]
        axes.set(title=title, xlabel="input position", xticks=middles, yticks=middles)
        axes.set(xticklabels=range(1, N + 1), yticklabels=range(1, N + 1))
    panels[0].set(ylabel="output position")
    sheet.colorbar(image, ax=panels, shrink=0.75, label="entry")
    sheet.suptitle(f"{N} x {N} blocks of {D} x {D}, all multiples of one block")
    return sheet
