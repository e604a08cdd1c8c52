"""Cross-entropy over a vocabulary, without the logits of a whole batch in memory; a contrastive
and an unlikelihood loss; CTC.

    loss = sum_n [ lse(z_n) - (1 - e) z_n[y_n] - e mean_v z_n[v] ],   z_n = W h_n + b

with label smoothing e. The gradient needs softmax(z) only: dz = softmax(z) - (1 - e) onehot(y) -
e/V. So loss and gradients are computed together, for a few rows at a time, and the (N, V) matrix of
all logits never exists.

Under autocast the matrix products are in its precision; softmax and all sums are in the precision
of the weights.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import softplus

from regard.device import autocast_dtype, without_autocast

PIECE = 1 << 21  # logits that exist at a time
SMALLEST = 1e-5  # probability whose logarithm is taken in the unlikelihood loss


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, bias, targets, smoothing: float, dtype, need_gradients: bool):
        """`dtype` is that of the matrix products."""
        vocabulary = weight.shape[0]
        rows = max(1, PIECE // vocabulary)
        mean_weight, mean_bias = weight.mean(0), bias.mean()
        wide = weight.dtype
        hidden, matrix, offset = hidden.to(dtype), weight.to(dtype), bias.to(dtype)
        d_hidden = torch.empty_like(hidden)
        d_weight = torch.zeros_like(weight)
        d_bias = torch.zeros_like(bias)
        loss = weight.new_zeros(())
        nats = weight.new_zeros(())
        for h, y, d_h in zip(
            hidden.split(rows), targets.split(rows), d_hidden.split(rows), strict=True
        ):
            z = torch.addmm(offset, h, matrix.t()).to(wide)
            lse = z.logsumexp(1)
            nll = lse - z.gather(1, y[:, None]).squeeze(1)
            nats += nll.sum()
            uniform = lse - (h.to(wide) @ mean_weight + mean_bias)
            loss += (1 - smoothing) * nll.sum() + smoothing * uniform.sum()
            if not need_gradients:
                continue
            dz = z.sub_(lse[:, None]).exp_()
            dz[torch.arange(len(y), device=y.device), y] -= 1 - smoothing
            if smoothing:
                dz -= smoothing / vocabulary
            d_bias += dz.sum(0)
            dz = dz.to(dtype)
            torch.mm(dz, matrix, out=d_h)
            if dtype == wide:
                d_weight.addmm_(dz.t(), h)
            else:
                d_weight += dz.t() @ h
        ctx.gradients = (d_hidden, d_weight, d_bias)  # not shared, so backward may scale them
        ctx.mark_non_differentiable(nats)
        return loss, nats

    @staticmethod
    def backward(ctx, *grads):
        return *(gradient.mul_(grads[0]) for gradient in ctx.gradients), None, None, None, None


def cross_entropy(
    hidden: Float[Tensor, "N D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, " V"],
    targets: Int[Tensor, " N"],
    *,
    smoothing: float = 0.0,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The summed loss with label smoothing (differentiable) and the plain negative
    log-likelihood in nats (not)."""
    need_gradients = torch.is_grad_enabled()
    dtype = autocast_dtype(hidden.device)
    if dtype is None:
        inputs = (hidden, weight, bias, targets)
        return _CrossEntropy.apply(*inputs, smoothing, weight.dtype, need_gradients)
    with without_autocast(hidden.device):
        return _CrossEntropy.apply(hidden, weight, bias, targets, smoothing, dtype, need_gradients)


def contrastive_loss(
    true: Float[Tensor, " N"], other: Float[Tensor, " N"], *, temperature: float
) -> Float[Tensor, ""]:
    """The mean of -t log sigmoid((other - true) / t), where `true` and `other` are the negative
    log-likelihoods per token, in nats, of the true answer to an input and of another one."""
    return temperature * softplus((true - other) / temperature).mean()


def unlikelihood_loss(
    logits: Float[Tensor, "N V"], unwanted: Int[Tensor, "N K"], counts: Bool[Tensor, "N K"]
) -> Float[Tensor, ""]:
    """The sum of -log(1 - p(c)) over the `unwanted` tokens c of each row, where `counts` is True
    (Welleck et al. 2020)."""
    p = logits.log_softmax(-1).gather(1, unwanted).exp()
    return -((1 - p).clamp_min(SMALLEST).log() * counts).sum()


def earlier_tokens(targets: Int[Tensor, "B T"], real: Bool[Tensor, "B T"]) -> Bool[Tensor, "B T T"]:
    """counts[b, t, s]: targets[b, s] came before position t, is not the target there, and did not
    come before s: the set of tokens that position t would repeat."""
    same = targets[:, :, None] == targets[:, None, :]
    before = torch.ones_like(same[0]).tril(-1)  # [t, s]: s < t
    is_first = ~(same & before & real[:, None, :]).any(2)
    return before & ~same & (real & is_first)[:, None, :]


def ctc_loss(
    logits: Float[Tensor, "B S V"],
    mask: Bool[Tensor, "B S"],
    targets: Int[Tensor, "B T"],
    real: Bool[Tensor, "B T"],
    *,
    blank: int = 0,
) -> Float[Tensor, ""]:
    """The CTC loss of Graves et al. 2006, summed over the rows; a row with too few positions for
    its targets counts 0.

    The positions in `mask` must be contiguous, but there may be padding before them. The targets in
    `real` must come first.
    """
    length = mask.shape[1]
    first = mask.int().argmax(1, keepdim=True)
    positions = (first + torch.arange(length, device=mask.device)).clamp_max(length - 1)
    log_probs = logits.log_softmax(-1).gather(1, positions[..., None].expand_as(logits))
    return torch.nn.functional.ctc_loss(
        log_probs.transpose(0, 1),
        targets,
        mask.sum(1),
        real.sum(1),
        blank=blank,
        reduction="sum",
        zero_infinity=True,
    )
