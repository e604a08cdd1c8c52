"""Attention with numbers so large that scores overflow.

    softmax(scale q k^T + bias) v, where scale q k^T may overflow the type that it is computed in

The weights of such scores exist all the same: softmax depends on differences only, and a score far
above all others has weight 1. Here scores are computed in double precision, from queries and keys
divided by their largest number. Scores beyond the range of double precision (about 1e308) are
clipped, so the weights are those of the limit: 1 for the largest score, equal shares for ties.

This takes several times as long as torch's fused kernels, so `scores_fit` and `values_fit` say
when it is needed.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

LARGEST = torch.finfo(torch.float64).max


def scores_fit(
    q: Tensor,
    k: Tensor,
    attn_mask: Tensor | None,
    *,
    scale: float,
    largest_q: float,
    largest_k: float,
) -> bool:
    """Whether no score can overflow the type of q, in whatever order a kernel multiplies;
    `attn_mask` is a mask or a bias.

    A bias may be as low as -inf, but every query needs a key whose bias is not near the lower end
    of the type's range: its scores would all be -inf otherwise.
    """
    limit = torch.finfo(q.dtype).max / 4
    # At least 1 each: a kernel may multiply q by the scale first, or q by k, so a small k must not
    # compensate for a large q.
    if not q.shape[-1] * max(1.0, largest_q) * max(1.0, largest_k) * max(1.0, abs(scale)) < limit:
        return False
    if attn_mask is None or attn_mask.dtype == torch.bool or not attn_mask.numel():
        return True
    bias = attn_mask.detach()
    return bool((bias.amax(-1) > -limit).all()) and bool(bias.max() < limit)


def values_fit(v: Tensor, largest: float) -> bool:
    """Whether no sum over the values can overflow the type of v."""
    return v.shape[-2] * largest < torch.finfo(v.dtype).max / 4


def weights(
    q: Float[Tensor, "... T K"], k: Float[Tensor, "... S K"], attn_mask: Tensor | None, scale: float
) -> Float[Tensor, "... T S"]:
    """The weights in double precision, for any finite q, k and scale."""
    q, k = q.double(), k.double()
    largest_q = _divisor(q.detach().abs().amax(-1, keepdim=True))  # (…, T, 1)
    largest_k = _divisor(k.detach().abs().amax((-2, -1), keepdim=True))  # (…, 1, 1)
    products = (q / largest_q) @ (k / largest_k).transpose(-1, -2)  # each within -K..K

    limit = LARGEST / (2 * q.shape[-1])
    sizes = torch.broadcast_tensors(largest_q, largest_k, torch.full_like(largest_k, abs(scale)))
    factor = math.copysign(1.0, scale) * _product(*sizes).clamp(max=limit)
    # Where the factor is clipped to the limit, the bias shrinks by as much as the scores do.
    beyond = torch.stack(sizes).log2().sum(0) - math.log2(limit)
    shrink = torch.exp2(-beyond.clamp(0.0, 1000.0))

    quarters = factor / 4 * products  # of a score, so that a bias can be added
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        quarters = torch.where(attn_mask, quarters, -math.inf)
    elif attn_mask is not None:
        quarters = quarters + attn_mask.double() / 4 * shrink
    return (4 * (quarters - quarters.detach().amax(-1, keepdim=True)) / shrink).softmax(-1)


def mean(
    weights: Float[Tensor, "... T S"], v: Float[Tensor, "... S E"]
) -> Float[Tensor, "... T E"]:
    """weights v in double precision, for weights that sum to 1: never beyond the largest value."""
    divisor = 2.0 ** (v.shape[-2].bit_length() + 1)  # a power of two, so that nothing is rounded
    limit = LARGEST / divisor
    return (weights.double() @ (v.double() / divisor)).clamp(-limit, limit) * divisor


def _product(*sizes: Tensor) -> Tensor:
    """The product of three numbers that are not negative: the smallest times the largest first, so
    that nothing overflows unless the product does."""
    smallest, middle, largest = torch.stack(torch.broadcast_tensors(*sizes)).sort(0).values
    return smallest * largest * middle


def _divisor(largest: Tensor) -> Tensor:
    return torch.where(largest > 0, largest, 1.0)
