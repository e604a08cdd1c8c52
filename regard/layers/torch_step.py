"""A decoder step in torch without calls of modules, for states that the C library does not support.

For one row, calling a module or reading its attributes costs more than its arithmetic. So this
calls functions of torch on the parameters, read from the modules' dictionaries; docs/log.md says
how much that saves. Only `regard.layers.fused_step` uses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.layers.attention import attend_one_query
from regard.layers.attention_layer import StepPosition
from regard.layers.blocks import DecoderBlock
from regard.layers.embedding import Embedding
from regard.layers.positions import Positions
from regard.values import KVCache, State, Step

Parameters = Mapping[str, Any]  # of one module, by name


class TorchStep:
    """`TransformerDecoder.step` for softmax attention, without dropout and captured weights."""

    def __init__(
        self,
        embedding: Embedding,
        positions: Positions,
        blocks: Sequence[DecoderBlock],
        final_norm: nn.Module,
        output: nn.Module,
    ):
        self.embedding: Parameters = embedding.table._parameters
        self.embedding_scale = embedding.scale
        self.positions = positions
        self.blocks = [_BlockStep(block) for block in blocks]
        self.final_norm: Parameters = final_norm._parameters
        self.output: Parameters = output._parameters

    def step(self, token: Int[Tensor, " B"], state: State) -> Step:
        assert state.kv_cache is not None
        at = StepPosition(state.position, state.max_position, state.aligned, self.positions)
        kv_cache = state.kv_cache.with_room_at(state.max_position)
        memory_mask = None if bool(state.mask.all()) else state.mask[:, None, None]
        embedded = F.embedding(token, self.embedding["weight"]) * self.embedding_scale
        x = self.positions.add(embedded, at.index)
        if state.size == 1:
            x = x[0]  # matrix times vector is faster than a product of matrices

        weights = None
        memories = state.memory[0].split(2)
        for n, block in enumerate(self.blocks):
            x = block.self_attention(x, kv_cache.layer(n), at)
            is_last = n == len(self.blocks) - 1
            x, weights = block.cross_attention(x, memories[n], memory_mask, need_weights=is_last)
            x = block.feed_forward(x)
        if self.final_norm:
            x = torch.layer_norm(
                x, x.shape[-1:], self.final_norm["weight"], self.final_norm["bias"]
            )
        assert weights is not None

        next_state = replace(
            state,
            kv_cache=kv_cache,
            position=state.position + 1,
            max_position=state.max_position + 1,
        )
        return Step(_linear(x, self.output).view(state.size, -1), next_state, weights[:, :, 0])


class _BlockStep:
    """The sublayers of one block, each with its residual connection, for rows (B, D) or a single
    row (D)."""

    def __init__(self, block: DecoderBlock):
        self_attention: Any = block.self_attention
        cross_attention: Any = block.cross_attention
        self.heads: int = self_attention.heads
        self.pre = block.self_attention_residual.pre
        self.eps = block.self_attention_residual.norm.eps
        self.activation = block.feed_forward.activation
        self.self_attention_norm: Parameters = block.self_attention_residual.norm._parameters
        self.qkv: Parameters = self_attention.qkv._parameters
        self.self_attention_out: Parameters = self_attention.out._parameters
        self.cross_attention_norm: Parameters = block.cross_attention_residual.norm._parameters
        self.query: Parameters = cross_attention.query._parameters
        self.cross_attention_out: Parameters = cross_attention.out._parameters
        self.feed_forward_norm: Parameters = block.feed_forward_residual.norm._parameters
        self.up: Parameters = block.feed_forward.up._parameters
        self.down: Parameters = block.feed_forward.down._parameters

    def self_attention(
        self, x: Float[Tensor, "*rows D"], cache: KVCache, at: StepPosition
    ) -> Float[Tensor, "*rows D"]:
        """Self-attention with its residual connection. It writes a key and a value into `cache`."""
        qkv = _linear(self._input(x, self.self_attention_norm), self.qkv)
        qkv = qkv.view(len(at.position), 3, self.heads, 1, -1)
        q, k, v = qkv.unbind(1)
        if at.rotation is not None:
            q, k = at.rotation(qkv[:, :2].transpose(0, 1))
        keys, values = cache.append(k, v, at.index, at.max_position).first(at.max_position + 1)
        context, _ = attend_one_query(q, keys, values, at.score_mask, need_weights=False)
        y = _linear(context.reshape(*x.shape[:-1], -1), self.self_attention_out)
        return self._add(x, y, self.self_attention_norm)

    def cross_attention(
        self,
        x: Float[Tensor, "*rows D"],
        keys_values: Float[Tensor, "2 B H S K"],
        mask: Tensor | None,
        *,
        need_weights: bool,
    ) -> tuple[Float[Tensor, "*rows D"], Float[Tensor, "B H 1 S"] | None]:
        """Cross-attention with its residual connection, and its weights if `need_weights`."""
        k, v = keys_values.unbind(0)
        q = _linear(self._input(x, self.cross_attention_norm), self.query)
        q = q.view(len(k), self.heads, 1, -1)
        context, weights = attend_one_query(q, k, v, mask, need_weights=need_weights)
        y = _linear(context.reshape(*x.shape[:-1], -1), self.cross_attention_out)
        return self._add(x, y, self.cross_attention_norm), weights

    def feed_forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        hidden = self.activation(_linear(self._input(x, self.feed_forward_norm), self.up))
        return self._add(x, _linear(hidden, self.down), self.feed_forward_norm)

    def _input(self, x: Tensor, norm: Parameters) -> Tensor:
        return self._normalise(x, norm) if self.pre else x

    def _add(self, x: Tensor, y: Tensor, norm: Parameters) -> Tensor:
        return x + y if self.pre else self._normalise(x + y, norm)

    def _normalise(self, x: Tensor, norm: Parameters) -> Tensor:
        return torch.layer_norm(x, x.shape[-1:], norm["weight"], norm["bias"], self.eps)


def _linear(x: Float[Tensor, "*rows I"], layer: Parameters) -> Float[Tensor, "*rows O"]:
    """W x + b, of rows or of a vector."""
    if x.dim() == 1:
        return torch.addmv(layer["bias"], layer["weight"], x)
    return F.linear(x, layer["weight"], layer["bias"])
