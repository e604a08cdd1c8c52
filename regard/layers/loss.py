"""The loss over a vocabulary, without ever holding the logits of a whole batch.

    loss = sum_n [ lse(z_n) - (1 - e) z_n[y_n] - e mean_v z_n[v] ],   z_n = W h_n + b        (smoothing e)

Its gradient needs softmax(z) only: dz = softmax(z) - (1 - e) onehot(y) - e/V. So loss and gradients
are made together, in pieces small enough for the processor's cache, and the (N, V) matrix of logits
never exists.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

PIECE = 1 << 21  # numbers of a piece of logits


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, bias, targets, smoothing: float, learning: bool):
        size = weight.shape[0]
        rows = max(1, PIECE // size)
        flat_weight, flat_bias = weight.mean(0), bias.mean()
        d_hidden, d_weight, d_bias = (
            torch.empty_like(hidden),
            torch.zeros_like(weight),
            torch.zeros_like(bias),
        )
        smooth, nats = hidden.new_zeros(()), hidden.new_zeros(())
        for h, y, d_h in zip(
            hidden.split(rows), targets.split(rows), d_hidden.split(rows), strict=True
        ):
            z = torch.addmm(bias, h, weight.t())
            lse = z.logsumexp(1)
            nll = lse - z.gather(1, y[:, None]).squeeze(1)
            nats += nll.sum()
            smooth += (1 - smoothing) * nll.sum() + smoothing * (
                lse - (h @ flat_weight + flat_bias)
            ).sum()
            if not learning:
                continue
            dz = z.sub_(lse[:, None]).exp_()
            dz[torch.arange(len(y)), y] -= 1 - smoothing
            if smoothing:
                dz -= smoothing / size
            torch.mm(dz, weight, out=d_h)
            d_weight.addmm_(dz.t(), h)
            d_bias += dz.sum(0)
        ctx.made = (d_hidden, d_weight, d_bias)  # our own, so backward may scale them in place
        ctx.mark_non_differentiable(nats)
        return smooth, nats

    @staticmethod
    def backward(ctx, *grads):
        return *(part.mul_(grads[0]) for part in ctx.made), None, None, None


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
    return _CrossEntropy.apply(hidden, weight, bias, targets, smoothing, torch.is_grad_enabled())


def ctc_loss(
    logits: Float[Tensor, "B S V"],
    mask: Bool[Tensor, "B S"],
    targets: Int[Tensor, "B T"],
    real: Bool[Tensor, "B T"],
    *,
    silent: int = 0,
) -> Float[Tensor, ""]:
    """-log of the probability that the real places, each saying one token or `silent`, say the
    real targets in order, a token that stays counted once; summed over rows that have places
    enough (CTC, Graves et al. 2006). Real places have no gaps between them, real targets come
    first."""
    first = mask.int().argmax(1, keepdim=True)  # there may be padding before it
    places = (first + torch.arange(mask.shape[1], device=mask.device)).clamp_max(mask.shape[1] - 1)
    said = logits.log_softmax(-1).gather(1, places[..., None].expand_as(logits))
    return torch.nn.functional.ctc_loss(
        said.transpose(0, 1),
        targets,
        mask.sum(1),
        real.sum(1),
        blank=silent,
        reduction="sum",
        zero_infinity=True,
    )
