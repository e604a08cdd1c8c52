"""Attention: the formulas as functions, and the scores of recurrent decoders.

attend(q, k, v) = softmax(q k^T / sqrt(K)) v                 (Vaswani et al. 2017, equation 1)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers import checks, overflow


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(scale q k^T + bias) v: the context (…, T, E) of each query, on the fastest kernel of
    torch.

    q (…, T, K), k (…, S, K) and v (…, S, E) have any leading axes, which broadcast. `mask` (True:
    the key may be attended to) and `bias` broadcast to the scores (…, T, S). With `causal`, query t
    attends to the keys 0..t, counted from the first key whatever S is; queries that follow a cache
    of S - T keys need a mask instead. `scale` is 1/sqrt(K) by default.

    Every size but S may be 0; with K = 0 all scores are 0. Half precision (float16, bfloat16) is
    computed in float32 and rounded at the end. Finite inputs give a finite context: scores that
    would overflow are computed in double precision, and for scores beyond its range the weights are
    those of the limit, 1 for the largest score.

    >>> q, k, v = torch.zeros(1, 2), torch.ones(4, 2), torch.arange(4.0)[:, None]
    >>> attend(q, k, v, mask=torch.tensor([True, True, True, False])).tolist()
    [[1.0]]
    """
    mask, bias = _check_arguments(q, k, v, mask=mask, bias=bias, causal=causal, scale=scale)
    return attend_in_range(q, k, v, mask=mask, bias=bias, causal=causal, scale=scale)


def attention_weights(
    q: Tensor,
    k: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The weights (…, T, S) that `attend` uses, for the same arguments. Masked keys have weight
    exactly 0.

    >>> q, k = torch.zeros(1, 2), torch.ones(4, 2)
    >>> attention_weights(q, k, mask=torch.tensor([True, True, False, False])).tolist()
    [[0.5, 0.5, 0.0, 0.0]]
    """
    mask, bias = _check_arguments(q, k, k, mask=mask, bias=bias, causal=causal, scale=scale)
    return weights_in_range(q, k, mask=mask, bias=bias, causal=causal, scale=scale)


def attend_in_range(
    q: Float[Tensor, "... T K"],
    k: Float[Tensor, "... S K"],
    v: Float[Tensor, "... S E"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "... T E"]:
    """`attend` without the checks of shapes and masks, but with its treatment of broadcasting,
    half precision and large numbers."""
    dtype = v.dtype
    lead = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    q, k, bias, scale = _in_float32_or_wider(q, k, bias, scale)
    v = v if v.dtype == q.dtype else v.to(q.dtype)
    largest_q, largest_k, largest_v = checks.finite(q=q, k=k, v=v)

    attn_mask = _score_mask(q, k, mask, bias, causal=causal and not (mask is None and bias is None))
    fits = overflow.scores_fit(
        q, k, attn_mask, scale=scale, largest_q=largest_q, largest_k=largest_k
    )
    q, k, v = (x.expand(*lead, *x.shape[-2:]) for x in (q, k, v))
    if fits and overflow.values_fit(v, largest_v):
        context = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=attn_mask,
            dropout_p=dropout,
            is_causal=causal and attn_mask is None,
            scale=scale,
        )
    else:
        attn_mask = _score_mask(q, k, mask, bias, causal=causal)
        weights = F.dropout(overflow.weights(q, k, attn_mask, scale), dropout)
        context = overflow.mean(weights, v)
    return context.to(dtype)


def weights_in_range(
    q: Float[Tensor, "... T K"],
    k: Float[Tensor, "... S K"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Float[Tensor, "... T S"]:
    """`attention_weights` without the checks of shapes and masks."""
    dtype = q.dtype
    q, k, bias, scale = _in_float32_or_wider(q, k, bias, scale)
    largest_q, largest_k = checks.finite(q=q, k=k)
    attn_mask = _score_mask(q, k, mask, bias, causal=causal)
    if overflow.scores_fit(q, k, attn_mask, scale=scale, largest_q=largest_q, largest_k=largest_k):
        is_bias = attn_mask is not None and attn_mask.dtype != torch.bool
        weights = weights_unchecked(
            q,
            k,
            mask=None if is_bias else attn_mask,
            bias=attn_mask if is_bias else None,
            scale=scale,
        )
    else:
        weights = overflow.weights(q, k, attn_mask, scale)
    return weights.to(dtype)


def mix_in_range(
    weights: Float[Tensor, "... T S"], v: Float[Tensor, "... S E"]
) -> Float[Tensor, "... T E"]:
    """weights v, for weights that sum to 1 in each row, accumulated in float32 at least."""
    (largest,) = checks.finite(v=v)
    dtype = v.dtype
    if dtype.itemsize < 4:
        weights, v = weights.float(), v.float()
    context = weights @ v if overflow.values_fit(v, largest) else overflow.mean(weights, v)
    return context.to(dtype)


def _score_mask(
    q: Tensor, k: Tensor, mask: Tensor | None, bias: Tensor | None, *, causal: bool
) -> Tensor | None:
    return score_mask((q.shape[-2], k.shape[-2]), q.device, mask=mask, bias=bias, causal=causal)


def _in_float32_or_wider(
    q: Tensor, k: Tensor, bias: Tensor | None, scale: float | None
) -> tuple[Tensor, Tensor, Tensor | None, float]:
    """The arguments in float32 or wider, with a scale that is not negative; K = 0 becomes one
    column of zeros."""
    if q.dtype.itemsize < 4:
        q, k = q.float(), k.float()
        bias = None if bias is None else bias.float()
    if not q.shape[-1]:
        return F.pad(q, (0, 1)), F.pad(k, (0, 1)), bias, 1.0
    if scale is None:
        scale = 1 / math.sqrt(q.shape[-1])
    if scale < 0:  # with is_causal=True and a negative scale, torch's fused kernel returns NaN
        q, scale = -q, -scale
    return q, k, bias, float(scale)


def attend_unchecked(
    q: Float[Tensor, "... T K"],
    k: Float[Tensor, "... S K"],
    v: Float[Tensor, "... S E"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "... T E"]:
    """`attend` without any checks, for layers in training: the checks would read every number once
    more."""
    if mask is None and bias is None:
        return F.scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, is_causal=causal, scale=scale
        )
    attn_mask = score_mask(
        (q.shape[-2], k.shape[-2]), q.device, mask=mask, bias=bias, causal=causal
    )
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=attn_mask, dropout_p=dropout, scale=scale
    )


def weights_unchecked(
    q: Float[Tensor, "... T K"],
    k: Float[Tensor, "... S K"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Float[Tensor, "... T S"]:
    """`attention_weights` without any checks."""
    scores = (q * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)) @ k.transpose(-1, -2)
    attn_mask = score_mask(scores.shape[-2:], q.device, mask=mask, bias=bias, causal=causal)
    if attn_mask is not None:
        scores = (
            torch.where(attn_mask, scores, -math.inf)
            if attn_mask.dtype == torch.bool
            else scores + attn_mask
        )
    return scores.softmax(-1)


def score_mask(
    sizes: Sequence[int],
    device: torch.device,
    *,
    mask: Tensor | None,
    bias: Tensor | None,
    causal: bool,
) -> Tensor | None:
    """Mask, bias and causal mask as one tensor: booleans if there is no bias, else numbers to add
    to the scores, -inf where masked; None if nothing is masked or added."""
    if causal:
        causal_mask = torch.ones(*sizes, dtype=torch.bool, device=device).tril()
        mask = causal_mask if mask is None else mask & causal_mask
    if bias is None:
        return mask
    if mask is None:
        return bias
    return torch.where(mask, bias, -math.inf)


def attend_one_query(
    q: Float[Tensor, "B H 1 K"],
    k: Float[Tensor, "B H S K"],
    v: Float[Tensor, "B H S E"],
    attn_mask: Tensor | None,
    *,
    need_weights: bool,
) -> tuple[Float[Tensor, "B H 1 E"], Float[Tensor, "B H 1 S"] | None]:
    """The context of one query a row, and its weights if `need_weights`. `attn_mask` has booleans
    (True: may be attended to) or numbers to add to the scores."""
    few = q.shape[0] * q.shape[1] <= 32  # torch's fused kernel is slower for many short products
    if few and not need_weights:
        return F.scaled_dot_product_attention(q, k, v, attn_mask), None

    scores = torch.baddbmm(
        q.new_zeros(()),
        q.flatten(0, 1),
        k.flatten(0, 1).transpose(1, 2),
        beta=0,
        alpha=q.shape[-1] ** -0.5,
    ).view(*q.shape[:3], -1)
    if attn_mask is None:
        pass
    elif attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    else:
        scores = scores + attn_mask

    weights = scores.softmax(-1)
    context = torch.bmm(weights.flatten(0, 1), v.flatten(0, 1)).view(*q.shape[:3], -1)
    return context, weights if need_weights else None


class Dot(nn.Module):
    """Dot-product score(h, m) = h . m                (Luong et al. 2015, equation 8, first form)"""

    def __init__(self, *, width: int, memory_width: int):
        super().__init__()
        if width != memory_width:
            raise InputError(
                "dot attention needs a decoder of the memory's width",
                got=f"decoder width {width}, memory width {memory_width}",
                hint="make the widths equal, or use general attention",
            )

    def keys(self, states: Float[Tensor, "B S E"]) -> Float[Tensor, "B S A"]:
        return states

    def forward(
        self, h: Float[Tensor, "B T D"], keys: Float[Tensor, "B S A"]
    ) -> Float[Tensor, "B T S"]:
        return h @ keys.transpose(1, 2)


class ScaledDot(nn.Module):
    """Scaled dot-product score(h, m) = h . m / sqrt(D)       (Vaswani et al. 2017, equation 1)"""

    def __init__(self, *, width: int, memory_width: int):
        super().__init__()
        self.dot = Dot(width=width, memory_width=memory_width)
        self.scale = width**-0.5

    def keys(self, states: Float[Tensor, "B S E"]) -> Float[Tensor, "B S A"]:
        return self.dot.keys(states)

    def forward(
        self, h: Float[Tensor, "B T D"], keys: Float[Tensor, "B S A"]
    ) -> Float[Tensor, "B T S"]:
        return self.scale * self.dot(h, keys)


class General(nn.Module):
    """Bilinear score(h, m) = h^T W m / sqrt(D)      (Luong et al. 2015, equation 8, second form)

    W can undo the scale, so the scores are those of Luong et al. Without it most of the weight went
    to one place early in training (docs/log.md).
    """

    def __init__(self, *, width: int, memory_width: int):
        super().__init__()
        self.key = nn.Linear(memory_width, width, bias=False)
        self.scale = width**-0.5

    def keys(self, states: Float[Tensor, "B S E"]) -> Float[Tensor, "B S A"]:
        return self.key(states)

    def forward(
        self, h: Float[Tensor, "B T D"], keys: Float[Tensor, "B S A"]
    ) -> Float[Tensor, "B T S"]:
        return self.scale * (h @ keys.transpose(1, 2))


class Additive(nn.Module):
    """Additive score(h, m) = v . tanh(W_q h + W_k m)    (Bahdanau et al. 2015, appendix A.1.2)"""

    def __init__(self, *, width: int, memory_width: int):
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(memory_width, width)
        self.score = nn.Linear(width, 1, bias=False)

    def keys(self, states: Float[Tensor, "B S E"]) -> Float[Tensor, "B S A"]:
        return self.key(states)

    def forward(
        self, h: Float[Tensor, "B T D"], keys: Float[Tensor, "B S A"]
    ) -> Float[Tensor, "B T S"]:
        hidden = torch.tanh(self.query(h)[:, :, None] + keys[:, None])  # (B, T, S, A)
        return self.score(hidden).squeeze(-1)


def _check_arguments(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    scale: float | None,
) -> tuple[Tensor | None, Tensor | None]:
    """Checks the arguments of `attend` and returns mask and bias with at least two axes each."""
    scores = torch.Size([*checks.queries_keys_values(q, k, v), q.shape[-2], k.shape[-2]])
    if scale is not None and not math.isfinite(scale):
        raise InputError("needs a finite number", where="scale", got=scale)
    if mask is None and bias is None:
        return None, None
    mask = _check_broadcasts("mask", mask, scores, torch.bool)
    bias = _check_broadcasts("bias", bias, scores, q.dtype)
    if bias is not None and (bias.isnan() | bias.isposinf()).any():
        raise InputError(
            "needs finite numbers, or -inf where masked", where="bias", got="NaN or infinity"
        )
    attn_mask = score_mask(scores[-2:], q.device, mask=mask, bias=bias, causal=causal)
    assert attn_mask is not None
    visible = attn_mask if bias is None else attn_mask > -math.inf
    without_key = ~visible.any(-1).expand(scores[:-1])
    if without_key.any():
        raise InputError(
            "hides every key of a query" + (", together with causal=True" if causal else ""),
            where="mask" if bias is None else "mask and bias",
            got=f"query {tuple(without_key.nonzero()[0].tolist())} of {tuple(scores[:-1])}",
            hint="allow at least one key for every query (True = may be attended to)",
        )
    return mask, bias


def _check_broadcasts(
    name: str, x: Tensor | None, scores: torch.Size, dtype: torch.dtype
) -> Tensor | None:
    """`x` with at least two axes, if it has this dtype and broadcasts to the scores."""
    if x is None:
        return None
    try:
        fits = torch.broadcast_shapes(x.shape, scores) == scores
    except RuntimeError:
        fits = False
    if not fits or x.dtype != dtype:
        raise InputError(
            f"needs {dtype} that broadcasts to the scores (…, T, S) = {tuple(scores)}",
            where=name,
            got=f"{x.dtype} {checks.shape(x)}",
            hint="a mask of keys (B, S) is mask[:, None, None] for q (B, H, T, K)"
            if name == "mask"
            else None,
        )
    return torch.atleast_2d(x)
