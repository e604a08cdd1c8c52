"""Softmax attention layers of a Transformer.

These layers are written for speed, as training and search spend their time here: they make one
matrix product for query, key and value instead of three, and check no arguments. `MultiHead`
(regard.layers.multihead) is the layer to study, and has more features.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.layers.attention import attend_one_query, attend_unchecked, weights_unchecked
from regard.layers.attention_layer import CrossAttention, Rotation, SelfAttention, StepPosition
from regard.layers.sizes import TransformerSizes
from regard.values import AttentionState, KVCache


class LinearWithoutKeyBias(nn.Module):
    """W x + b for several projections in one matrix, without a bias for the key.

    The key's bias would add the same number to all scores of a query, which softmax cancels. Rows
    `key_start` to `key_start + key_width` of W project to the key.
    """

    def __init__(self, inputs: int, outputs: int, *, key_start: int, key_width: int):
        super().__init__()
        self.matrix = nn.Linear(inputs, outputs, bias=False)
        self.key_start = key_start
        self.key_width = key_width
        self.bias = nn.Parameter(torch.zeros(outputs - key_width))

    def forward(self, x: Float[Tensor, "*rows I"]) -> Float[Tensor, "*rows O"]:
        before, after = self.bias[: self.key_start], self.bias[self.key_start :]
        bias = torch.cat([before, before.new_zeros(self.key_width), after])
        return F.linear(x, self.matrix.weight, bias)


class SoftmaxSelfAttention(SelfAttention):
    """Multi-head softmax self-attention. Its state is a key/value cache."""

    def __init__(self, sizes: TransformerSizes):
        super().__init__()
        self.heads = sizes.heads
        self.head_width = sizes.head_width
        width = sizes.attention_width
        if sizes.key_bias:
            self.qkv = nn.Linear(sizes.width, 3 * width)
        else:
            self.qkv = LinearWithoutKeyBias(
                sizes.width, 3 * width, key_start=width, key_width=width
            )
        self.out = nn.Linear(width, sizes.width)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        *,
        mask: Bool[Tensor, "B T"] | None = None,
        causal: bool = False,
        rotation: Rotation | None = None,
        bias: Float[Tensor, "_ H T T"] | None = None,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B H T T"] | None]:
        q, k, v = self._project(x, rotation)
        key_mask = None if mask is None else mask[:, None, None]
        if need_weights:
            weights = weights_unchecked(q, k, mask=key_mask, bias=bias, causal=causal)
            context = weights @ v
        else:
            weights = None
            context = attend_unchecked(q, k, v, mask=key_mask, bias=bias, causal=causal)
        return self.out(join_heads(context)), weights

    def start(self, rows: int, like: Tensor, *, keep_keys: bool = False) -> AttentionState:
        empty = like.new_zeros(2, rows, self.heads, 0, self.head_width)
        return AttentionState(KVCache(empty))

    def step(
        self,
        x: Float[Tensor, "B D"],
        state: AttentionState,
        at: StepPosition,
        *,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "B D"], AttentionState, Float[Tensor, "B H 1 _"] | None]:
        q, k, v = self._project(x[:, None], at.rotation)
        cache = state.keys_values.append(k, v, at.index, at.max_position)
        keys, values = cache.first(at.max_position + 1)
        context, weights = attend_one_query(
            q, keys, values, at.score_mask, need_weights=need_weights
        )
        return self.out(context.flatten(1)), AttentionState(cache), weights

    def _project(
        self, x: Float[Tensor, "B T D"], rotation: Rotation | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (B, H, T, K), the first two rotated."""
        qkv = split_heads(self.qkv(x), 3, self.heads)
        q, k = qkv[:2] if rotation is None else rotation(qkv[:2])
        return q, k, qkv[2]


class SoftmaxCrossAttention(CrossAttention):
    """Multi-head softmax cross-attention. Its state is the projected keys and values of the
    memory."""

    def __init__(self, sizes: TransformerSizes, *, memory_width: int):
        super().__init__()
        self.heads = sizes.heads
        self.head_width = sizes.head_width
        width = sizes.attention_width
        self.query = nn.Linear(sizes.width, width)
        if sizes.key_bias:
            self.kv = nn.Linear(memory_width, 2 * width)
        else:
            self.kv = LinearWithoutKeyBias(memory_width, 2 * width, key_start=0, key_width=width)
        self.out = nn.Linear(width, sizes.width)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        memory: Float[Tensor, "B S E"],
        *,
        mask: Bool[Tensor, "B S"],
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B H T S"] | None]:
        q = split_heads(self.query(x), 1, self.heads)[0]
        k, v = split_heads(self.kv(memory), 2, self.heads).unbind(0)
        key_mask = mask[:, None, None]
        if need_weights:
            weights = weights_unchecked(q, k, mask=key_mask)
            context = weights @ v
        else:
            weights = None
            context = attend_unchecked(q, k, v, mask=key_mask)
        return self.out(join_heads(context)), weights

    def start(
        self,
        memory: Float[Tensor, "B S E"],
        mask: Bool[Tensor, "B S"],
        *,
        keep_keys: bool = False,
    ) -> AttentionState:
        return AttentionState(KVCache(split_heads(self.kv(memory), 2, self.heads)))

    def step(
        self,
        x: Float[Tensor, "B D"],
        state: AttentionState,
        *,
        mask: Bool[Tensor, "B S"] | None,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "B D"], AttentionState, Float[Tensor, "B H 1 S"] | None]:
        q = split_heads(self.query(x[:, None]), 1, self.heads)[0]
        k, v = state.keys_values.tensor.unbind(0)
        key_mask = None if mask is None else mask[:, None, None]
        context, weights = attend_one_query(q, k, v, key_mask, need_weights=need_weights)
        return self.out(context.flatten(1)), state, weights


def split_heads(
    x: Float[Tensor, "B T I"], parts: int, heads: int
) -> Float[Tensor, "{parts} B {heads} T K"]:
    """Splits a joint projection into its parts (such as query, key and value) and heads."""
    rows, length, width = x.shape
    return x.view(rows, length, parts, heads, width // (parts * heads)).permute(2, 0, 3, 1, 4)


def join_heads(context: Float[Tensor, "B H T K"]) -> Float[Tensor, "B T A"]:
    """Concatenates the heads: A = H K."""
    return context.transpose(1, 2).flatten(2)
