"""Attention: the formulas as functions, and the modules that own their projections.

    attend(q, k, v) = softmax(q k^T / sqrt(K)) v                       (Vaswani et al. 2017, equation 1)

Nothing here keeps anything between calls: keys and values of earlier tokens come in and go out as tensors.

A `step` calls functions where a `forward` calls modules, and reads weights from a module's dictionaries. Calling a
module, or just reading an attribute of one, costs more than the sums of one token: without them, decoding one sentence
is about twice as fast.
"""

from __future__ import annotations

import math
from typing import Any

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


def glance(
    q: Float[Tensor, "R 1 K"],
    k: Float[Tensor, "R S K"],
    v: Float[Tensor, "R S E"],
    mask: Bool[Tensor, "R 1 S"] | None,
) -> Float[Tensor, "R 1 E"]:
    """The context of one query a row. The fused kernel is the faster one for a few rows only."""
    if q.shape[0] > 32:
        return look(q, k, v, mask)[0]
    return F.scaled_dot_product_attention(q[None], k[None], v[None], None if mask is None else mask[None])[0]


def look(
    q: Float[Tensor, "R 1 K"],
    k: Float[Tensor, "R S K"],
    v: Float[Tensor, "R S E"],
    mask: Bool[Tensor, "R 1 S"] | None,
) -> tuple[Float[Tensor, "R 1 E"], Float[Tensor, "R 1 S"]]:
    """The context of one query a row, and the weights it used."""
    scores = torch.baddbmm(q.new_zeros(()), q, k.transpose(1, 2), beta=0, alpha=q.shape[-1] ** -0.5)
    weights = (scores if mask is None else scores.masked_fill(~mask, -math.inf)).softmax(-1)
    return torch.bmm(weights, v), weights


def part(module: nn.Module, name: str) -> Any:
    """module.name, at a tenth of the price."""
    return module._modules[name]


def linear(x: Float[Tensor, "*rows I"], layer: nn.Module) -> Float[Tensor, "*rows O"]:
    """layer(x) of an nn.Linear, for one place."""
    own: Any = layer._parameters
    return F.linear(x, own["weight"], own["bias"])


def normal(x: Float[Tensor, "*rows D"], layer: nn.LayerNorm) -> Float[Tensor, "*rows D"]:
    """layer(x) of an nn.LayerNorm, for one place."""
    own: Any = layer._parameters
    return torch.layer_norm(x, layer.normalized_shape, own["weight"], own["bias"], layer.eps)


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
        slots: Float[Tensor, "2 R C K"],
        at: tuple[Tensor, Tensor] | int,
        mask: Bool[Tensor, "R 1 C"] | None,
    ) -> Float[Tensor, "B D"]:
        """One place further, R = B H: writes this token's keys and values into `slots` at slot `at` (one for all rows,
        or one for each as an index pair), then looks at the slots that `mask` allows."""
        qkv = linear(x, part(self, "project")).view(-1, 3, self.heads, self.head_width).transpose(0, 1)
        q, k_v = qkv[0].reshape(-1, 1, self.head_width), qkv[1:].reshape(2, -1, self.head_width)
        if isinstance(at, int):
            slots[:, :, at] = k_v
        else:
            slots[:, at[0], at[1]] = k_v
        context = glance(q, slots[0], slots[1], mask)
        return linear(context.reshape(x.shape[0], -1), part(self, "out"))


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
        keys_values: Float[Tensor, "2 R S K"],
        mask: Bool[Tensor, "R 1 S"] | None,
        *,
        weights: bool,
    ) -> tuple[Float[Tensor, "B D"], Float[Tensor, "R 1 S"] | None]:
        """The same for one place, R = B H, with the weights it used if they are wanted."""
        q, used = linear(x, part(self, "query")).view(-1, 1, self.head_width), None
        if weights:
            context, used = look(q, keys_values[0], keys_values[1], mask)
        else:
            context = glance(q, keys_values[0], keys_values[1], mask)
        return linear(context.reshape(x.shape[0], -1), part(self, "out")), used


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
