"""Attention: the formulas as functions, and the modules that own their projections.

    attend(q, k, v) = softmax(q k^T / sqrt(K)) v                       (Vaswani et al. 2017, equation 1)

Nothing here keeps anything between calls: keys and values of earlier tokens come in and go out as tensors.

A `step` calls functions where a `forward` calls modules. What a module call does around the sums (hooks, checks) costs
more than the sums of one token, so this alone makes decoding one sentence about twice as fast.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.errors import InputError


def attend(
    q: Float[Tensor, "*batch T K"],
    k: Float[Tensor, "*batch S K"],
    v: Float[Tensor, "*batch S E"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Float[Tensor, "*batch T E"]:
    """The context of each query, on the fastest kernel torch has. `mask` is True where a query may look."""
    if q.shape[-2] == 1 and q.shape[:-2].numel() > 32:  # one query a row: the fused kernel takes four times as long
        return attention_weights(q, k, mask=mask, scale=scale) @ v
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale)


def attention_weights(
    q: Float[Tensor, "*batch T K"],
    k: Float[Tensor, "*batch S K"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*batch T S"]:
    """The weights that `attend` uses; a place that may not be looked at weighs exactly 0."""
    scores = (q * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)) @ k.transpose(-1, -2)
    return (scores if mask is None else scores.masked_fill(~mask, -math.inf)).softmax(-1)


def linear(x: Float[Tensor, "*rows I"], layer: nn.Linear) -> Float[Tensor, "*rows O"]:
    """What calling the layer computes, without what a module call does around it."""
    return F.linear(x, layer.weight, layer.bias)


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself, one matrix for query, key and value."""

    def __init__(self, *, width: int, heads: int, head_width: int | None = None):
        super().__init__()
        self.heads, self.head_width = heads, head_width or width // heads
        self.project = nn.Linear(width, 3 * heads * self.head_width)
        self.out = nn.Linear(heads * self.head_width, width)

    def forward(
        self, x: Float[Tensor, "B T D"], *, mask: Bool[Tensor, "B S"] | None = None, causal: bool = False
    ) -> Float[Tensor, "B T D"]:
        q, k, v = self.project(x).unflatten(-1, (3, self.heads, self.head_width)).permute(2, 0, 3, 1, 4)
        context = attend(q, k, v, mask=None if mask is None else mask[:, None, None], causal=causal)
        return self.out(context.transpose(1, 2).flatten(2))  # (B, H, T, K) -> (B, T, D)

    def step(
        self,
        x: Float[Tensor, "B D"],
        slots: Float[Tensor, "2 B H C K"],
        at: tuple[Tensor, Tensor] | int,
        mask: Bool[Tensor, "B C"] | None,
    ) -> Float[Tensor, "B D"]:
        """One place further: writes this token's key and value into `slots` at slot `at` (one for all rows, or one for
        each row as an index pair), then looks at the slots that `mask` allows."""
        q, k, v = linear(x, self.project).view(-1, 3, self.heads, 1, self.head_width).unbind(1)  # (B, H, 1, K) each
        keys, values = slots.unbind(0)
        if isinstance(at, int):
            keys[:, :, at : at + 1], values[:, :, at : at + 1] = k, v
        else:
            rows, slot = at
            keys[rows, :, slot], values[rows, :, slot] = k[:, :, 0], v[:, :, 0]
        context = attend(q, keys, values, mask=None if mask is None else mask[:, None, None])
        return linear(context.reshape(len(x), -1), self.out)


class CrossAttention(nn.Module):
    """Multi-head attention of the target to the memory."""

    def __init__(self, *, width: int, memory_width: int, heads: int, head_width: int | None = None):
        super().__init__()
        self.heads, self.head_width = heads, head_width or width // heads
        self.query = nn.Linear(width, heads * self.head_width)
        self.key_value = nn.Linear(memory_width, 2 * heads * self.head_width)
        self.out = nn.Linear(heads * self.head_width, width)

    def keys_values(self, states: Float[Tensor, "B S E"]) -> Float[Tensor, "2 B H S K"]:
        return self.key_value(states).unflatten(-1, (2, self.heads, self.head_width)).permute(2, 0, 3, 1, 4)

    def forward(
        self, x: Float[Tensor, "B T D"], keys_values: Float[Tensor, "2 B H S K"], *, mask: Bool[Tensor, "B S"]
    ) -> Float[Tensor, "B T D"]:
        q = self.query(x).unflatten(-1, (self.heads, self.head_width)).transpose(1, 2)
        context = attend(q, keys_values[0], keys_values[1], mask=mask[:, None, None])
        return self.out(context.transpose(1, 2).flatten(2))

    def step(
        self,
        x: Float[Tensor, "B D"],
        keys_values: Float[Tensor, "2 B H S K"],
        *,
        mask: Bool[Tensor, "B S"] | None,
    ) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B H S"]]:
        """The same for one place, with the weights it used."""
        q = linear(x, self.query).view(-1, self.heads, 1, self.head_width)
        keys, values = keys_values.unbind(0)
        weights = attention_weights(q, keys, mask=None if mask is None else mask[:, None, None])
        return linear((weights @ values).view(len(x), -1), self.out), weights[:, :, 0]


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

    def forward(self, h: Float[Tensor, "B T D"], keys: Float[Tensor, "B S A"]) -> Float[Tensor, "B T S"]:
        return h @ keys.transpose(1, 2)


class General(nn.Module):
    """score(h, m) = h^T W m                                          (Luong et al. 2015, equation 8, second form)"""

    def __init__(self, *, width: int, memory_width: int):
        super().__init__()
        self.key = nn.Linear(memory_width, width, bias=False)

    def keys(self, states: Float[Tensor, "B S E"]) -> Float[Tensor, "B S A"]:
        return self.key(states)

    def forward(self, h: Float[Tensor, "B T D"], keys: Float[Tensor, "B S A"]) -> Float[Tensor, "B T S"]:
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

    def forward(self, h: Float[Tensor, "B T D"], keys: Float[Tensor, "B S A"]) -> Float[Tensor, "B T S"]:
        mixed = torch.tanh(self.query(h)[:, :, None] + keys[:, None])  # (B, T, S, A)
        return self.score(mixed).squeeze(-1)
