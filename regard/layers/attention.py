"""Attention: the formulas as functions, and the modules that own their projections.

    attend(q, k, v) = softmax(q k^T / sqrt(K)) v                       (Vaswani et al. 2017, equation 1)

Nothing here keeps anything between calls: keys and values of earlier tokens come in and go out as
tensors.

A `step` calls functions where a `forward` calls modules, and reads weights from a module's
dictionaries. Calling a module, or just reading an attribute of one, costs more than the sums of one
token: without them, decoding one sentence is about twice as fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers import checks, overflow

# What masks the scores of one query a row: True where it may look, or numbers, which are added.
ScoreMask = Bool[Tensor, "_ _ 1 _"] | Float[Tensor, "_ _ 1 _"]
Rotation = Callable[[Tensor], Tensor]


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
    """softmax(scale q k^T + bias) v, the context (…, T, E) of each query, on the fastest kernel
    torch has.

    q (…, T, K), k (…, S, K) and v (…, S, E) have any leading axes, which broadcast. `mask` (True:
    may look) and `bias` broadcast to the scores (…, T, S). `causal` lets query t see the keys 0..t,
    counted from the first key whatever S is; queries that come after a past of S - T keys need a
    mask instead. `scale` is 1/sqrt(K) unless given.

    Every size but S may be 0; with K = 0 all scores are. Half precision (float16, bfloat16) is
    computed in float32 and rounded at the end. Finite numbers give a finite context: where scores
    would overflow, they are computed in double precision, and beyond its range the weights are
    those of the limit, one for the largest score.

    >>> q, k, v = torch.zeros(1, 2), torch.ones(4, 2), torch.arange(4.0)[:, None]
    >>> attend(q, k, v, mask=torch.tensor([True, True, True, False])).tolist()
    [[1.0]]
    """
    mask, bias = _checked(q, k, v, mask=mask, bias=bias, causal=causal, scale=scale)
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
    """The weights (…, T, S) that `attend` uses, of the same arguments. Where a query may not look
    is exactly 0.

    >>> q, k = torch.zeros(1, 2), torch.ones(4, 2)
    >>> attention_weights(q, k, mask=torch.tensor([True, True, False, False])).tolist()
    [[0.5, 0.5, 0.0, 0.0]]
    """
    mask, bias = _checked(q, k, k, mask=mask, bias=bias, causal=causal, scale=scale)
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
    """`attend` for shapes and masks that fit: its promises about broadcasting, half precision
    and large numbers."""
    dtype = v.dtype
    lead = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    q, k, bias, scale = _in_float(q, k, bias, scale)
    v = v if v.dtype == q.dtype else v.to(q.dtype)
    largest_q, largest_k, largest_v = checks.finite(q=q, k=k, v=v)

    attn_mask = _onto(q, k, mask, bias, causal=causal and not (mask is None and bias is None))
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
        attn_mask = _onto(q, k, mask, bias, causal=causal)
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
    """`attention_weights` for shapes and masks that fit."""
    dtype = q.dtype
    q, k, bias, scale = _in_float(q, k, bias, scale)
    largest_q, largest_k = checks.finite(q=q, k=k)
    attn_mask = _onto(q, k, mask, bias, causal=causal)
    if overflow.scores_fit(q, k, attn_mask, scale=scale, largest_q=largest_q, largest_k=largest_k):
        hides = attn_mask is not None and attn_mask.dtype == torch.bool
        weights = weights_unchecked(
            q, k, mask=attn_mask if hides else None, bias=None if hides else attn_mask, scale=scale
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
    return (weights @ v if overflow.values_fit(v, largest) else overflow.mean(weights, v)).to(dtype)


def _onto(
    q: Tensor, k: Tensor, mask: Tensor | None, bias: Tensor | None, *, causal: bool
) -> Tensor | None:
    return score_mask((q.shape[-2], k.shape[-2]), q.device, mask=mask, bias=bias, causal=causal)


def _in_float(
    q: Tensor, k: Tensor, bias: Tensor | None, scale: float | None
) -> tuple[Tensor, Tensor, Tensor | None, float]:
    """The same with a scale that is not negative, in float32 at least, and with a column of
    zeros if K = 0."""
    if q.dtype.itemsize < 4:
        q, k = q.float(), k.float()
        bias = None if bias is None else bias.float()
    if not q.shape[-1]:
        return F.pad(q, (0, 1)), F.pad(k, (0, 1)), bias, 1.0
    if scale is None:
        scale = 1 / math.sqrt(q.shape[-1])
    if scale < 0:  # with is_causal=True torch's fused kernel makes NaN of a negative scale
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
    """`attend` without its checks, which would read every number once more: for layers, inside
    training."""
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
    """`attention_weights` without its checks."""
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
    """Mask, bias and causality in one: booleans while there is no bias, else numbers to add,
    -inf where hidden."""
    if causal:
        back = torch.ones(*sizes, dtype=torch.bool, device=device).tril()
        mask = back if mask is None else mask & back
    if bias is None or mask is None:
        return mask if bias is None else bias
    return torch.where(mask, bias, -math.inf)


def glance(
    q: Float[Tensor, "B H 1 K"],
    k: Float[Tensor, "B H S K"],
    v: Float[Tensor, "B H S E"],
    attn_mask: ScoreMask | None,
) -> Float[Tensor, "B H 1 E"]:
    """The context of one query a row. The fused kernel is the faster one for a few rows only."""
    if q.shape[0] * q.shape[1] > 32:
        return look(q, k, v, attn_mask)[0]
    return F.scaled_dot_product_attention(q, k, v, attn_mask)


def look(
    q: Float[Tensor, "B H 1 K"],
    k: Float[Tensor, "B H S K"],
    v: Float[Tensor, "B H S E"],
    attn_mask: ScoreMask | None,
) -> tuple[Float[Tensor, "B H 1 E"], Float[Tensor, "B H 1 S"]]:
    """The context of one query a row, and the weights it used."""
    scores = torch.baddbmm(
        q.new_zeros(()),
        q.flatten(0, 1),
        k.flatten(0, 1).transpose(1, 2),
        beta=0,
        alpha=q.shape[-1] ** -0.5,
    ).view(*q.shape[:3], -1)
    if attn_mask is not None:
        scores = (
            scores.masked_fill(~attn_mask, -math.inf)
            if attn_mask.dtype == torch.bool
            else scores + attn_mask
        )
    weights = scores.softmax(-1)
    return torch.bmm(weights.flatten(0, 1), v.flatten(0, 1)).view(*q.shape[:3], -1), weights


def part(module: nn.Module, name: str) -> Any:
    """module.name, at a tenth of the price."""
    return module._modules[name]


def linear(x: Float[Tensor, "*rows I"], layer: nn.Module) -> Float[Tensor, "*rows O"]:
    """layer(x) of an nn.Linear, for one place; a sole row comes as a vector, whose product has
    less to set up."""
    own: Any = layer._parameters
    if "weight" not in own:  # WithoutKeyBias
        return layer(x)
    if x.dim() == 1:
        return torch.addmv(own["bias"], own["weight"], x)
    return F.linear(x, own["weight"], own["bias"])


def normal(x: Float[Tensor, "*rows D"], layer: nn.LayerNorm) -> Float[Tensor, "*rows D"]:
    """layer(x) of an nn.LayerNorm, for one place."""
    own: Any = layer._parameters
    return torch.layer_norm(x, layer.normalized_shape, own["weight"], own["bias"], layer.eps)


class WithoutKeyBias(nn.Module):
    """W x + b for several matrices side by side, where the rows of the key have no b: it would
    add the same number to all scores of a query, which softmax does not see. `before` are the
    rows before the key's, `keys` their number."""

    def __init__(self, inputs: int, outputs: int, *, before: int, keys: int):
        super().__init__()
        self.matrix, self.before, self.keys = nn.Linear(inputs, outputs, bias=False), before, keys
        self.bias = nn.Parameter(torch.zeros(outputs - keys))

    def forward(self, x: Float[Tensor, "*rows I"]) -> Float[Tensor, "*rows O"]:
        first, last = self.bias[: self.before], self.bias[self.before :]
        return F.linear(x, self.matrix.weight, torch.cat([first, first.new_zeros(self.keys), last]))


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself, one matrix for query, key and value.

    What `MultiHead` (regard.layers.multihead) can do besides would slow this down: one product in
    place of three, and a step without a check are what training and search spend their time on.

    `turning` is what positions do to queries and keys, `bias` what they add to the scores; a bias
    comes with what may not be seen as -inf, for it is the same in all layers and made once.
    """

    def __init__(
        self, *, width: int, heads: int, head_width: int | None = None, key_bias: bool = True
    ):
        super().__init__()
        self.heads, self.head_width = heads, head_width or width // heads
        each = heads * self.head_width
        self.qkv = (
            nn.Linear(width, 3 * each)
            if key_bias
            else WithoutKeyBias(width, 3 * each, before=each, keys=each)
        )
        self.out = nn.Linear(heads * self.head_width, width)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        *,
        mask: Bool[Tensor, "B S"] | None = None,
        causal: bool = False,
        rotation: Rotation | None = None,
        bias: Float[Tensor, "_ H T S"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, self.head_width)).permute(2, 0, 3, 1, 4)
        q, k = qkv[:2] if rotation is None else rotation(qkv[:2])
        seen = None if mask is None else mask[:, None, None]
        context = attend_unchecked(q, k, qkv[2], mask=seen, bias=bias, causal=causal)
        return self.out(context.transpose(1, 2).flatten(2))  # (B, H, T, K) -> (B, T, D)

    def step(
        self,
        x: Float[Tensor, "*rows D"],
        slots: Float[Tensor, "2 B H C K"],
        at: Int[Tensor, " B"] | int,
        attn_mask: ScoreMask | None,
        rotation: Rotation | None,
    ) -> Float[Tensor, "*rows D"]:
        """One place further of rows (B, D), or of a sole one (D): writes this token's keys and
        values into `slots` at slot `at` (one for all rows, or one for each), then looks at the
        slots with `attn_mask` on the scores."""
        qkv = linear(x, part(self, "qkv")).view(-1, 3, self.heads, 1, self.head_width)
        q, k, v = qkv.unbind(1)
        if rotation is not None:
            q, k = rotation(qkv[:, :2].transpose(0, 1))
        keys, values = slots.unbind(0)
        if isinstance(at, int):
            keys.narrow(2, at, 1).copy_(k)
            values.narrow(2, at, 1).copy_(v)
        else:
            row = torch.arange(len(at), device=at.device)
            keys[row, :, at], values[row, :, at] = k[:, :, 0], v[:, :, 0]
        return linear(
            glance(q, keys, values, attn_mask).reshape(*x.shape[:-1], -1), part(self, "out")
        )


class CrossAttention(nn.Module):
    """Multi-head attention of the target to the memory."""

    def __init__(
        self,
        *,
        width: int,
        memory_width: int,
        heads: int,
        head_width: int | None = None,
        key_bias: bool = True,
    ):
        super().__init__()
        self.heads, self.head_width = heads, head_width or width // heads
        each = heads * self.head_width
        self.query = nn.Linear(width, each)
        self.kv = (
            nn.Linear(memory_width, 2 * each)
            if key_bias
            else WithoutKeyBias(memory_width, 2 * each, before=0, keys=each)
        )
        self.out = nn.Linear(heads * self.head_width, width)

    def keys_values(self, states: Float[Tensor, "B S E"]) -> Float[Tensor, "2 B H S K"]:
        return (
            self.kv(states).unflatten(-1, (2, self.heads, self.head_width)).permute(2, 0, 3, 1, 4)
        )

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        keys_values: Float[Tensor, "2 B H S K"],
        *,
        mask: Bool[Tensor, "B S"],
    ) -> Float[Tensor, "B T D"]:
        q = self.query(x).unflatten(-1, (self.heads, self.head_width)).transpose(1, 2)
        context = attend_unchecked(q, keys_values[0], keys_values[1], mask=mask[:, None, None])
        return self.out(context.transpose(1, 2).flatten(2))

    def step(
        self,
        x: Float[Tensor, "*rows D"],
        keys_values: Float[Tensor, "2 B H S K"],
        mask: Bool[Tensor, "B 1 1 S"] | None,
        *,
        weights: bool,
    ) -> tuple[Float[Tensor, "*rows D"], Float[Tensor, "B H 1 S"] | None]:
        """The same for one place, with the weights it used if they are wanted."""
        q, used = linear(x, part(self, "query")).view(-1, self.heads, 1, self.head_width), None
        keys, values = keys_values.unbind(0)
        if weights:
            context, used = look(q, keys, values, mask)
        else:
            context = glance(q, keys, values, mask)
        return linear(context.reshape(*x.shape[:-1], -1), part(self, "out")), used


class Dot(nn.Module):
    """score(h, m) = h . m                                            (Luong et al. 2015, equation 8, first form)"""

    def __init__(self, *, width: int, memory_width: int):
        super().__init__()
        if width != memory_width:
            raise InputError(
                "dot attention needs a decoder as wide as the memory",
                got=f"decoder width {width}, memory width {memory_width}",
                hint="make the widths equal, or use general attention",
            )

    def keys(self, states: Float[Tensor, "B S E"]) -> Float[Tensor, "B S A"]:
        return states

    def forward(
        self, h: Float[Tensor, "B T D"], keys: Float[Tensor, "B S A"]
    ) -> Float[Tensor, "B T S"]:
        return h @ keys.transpose(1, 2)


class General(nn.Module):
    """score(h, m) = h^T W m                                          (Luong et al. 2015, equation 8, second form)"""

    def __init__(self, *, width: int, memory_width: int):
        super().__init__()
        self.key = nn.Linear(memory_width, width, bias=False)

    def keys(self, states: Float[Tensor, "B S E"]) -> Float[Tensor, "B S A"]:
        return self.key(states)

    def forward(
        self, h: Float[Tensor, "B T D"], keys: Float[Tensor, "B S A"]
    ) -> Float[Tensor, "B T S"]:
        return h @ keys.transpose(1, 2)


class Additive(nn.Module):
    """score(h, m) = v . tanh(W_q h + W_k m)                          (Bahdanau et al. 2015, appendix A.1.2)"""

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
        mixed = torch.tanh(self.query(h)[:, :, None] + keys[:, None])  # (B, T, S, A)
        return self.score(mixed).squeeze(-1)


def _checked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    scale: float | None,
) -> tuple[Tensor | None, Tensor | None]:
    """Mask and bias, with at least two axes each, when everything fits together; else an
    InputError."""
    scores = torch.Size([*checks.queries_keys_values(q, k, v), q.shape[-2], k.shape[-2]])
    if scale is not None and not math.isfinite(scale):
        raise InputError("needs a finite number", where="scale", got=scale)
    if mask is None and bias is None:
        return None, None
    mask, bias = _fits("mask", mask, scores, torch.bool), _fits("bias", bias, scores, q.dtype)
    if bias is not None and (bias.isnan() | bias.isposinf()).any():
        raise InputError(
            "needs numbers, or -inf where a query may not look", where="bias", got="NaN or infinity"
        )
    attn_mask = score_mask(scores[-2:], q.device, mask=mask, bias=bias, causal=causal)
    assert attn_mask is not None
    blind = ~(attn_mask if bias is None else attn_mask > -math.inf).any(-1).expand(scores[:-1])
    if blind.any():
        raise InputError(
            "hides every key of a query" + (", together with causal=True" if causal else ""),
            where="mask" if bias is None else "mask and bias",
            got=f"query {tuple(blind.nonzero()[0].tolist())} of {tuple(scores[:-1])}",
            hint="let every query look at one key at least (True = may look)",
        )
    return mask, bias


def _fits(name: str, x: Tensor | None, scores: torch.Size, dtype: torch.dtype) -> Tensor | None:
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
