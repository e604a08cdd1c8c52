"""Fast steps of a Transformer decoder for search, and the choice between them.

    FusedStep   the whole step in one call of the C library (step.c)
    TorchStep   the step in torch, without calls of modules (`regard.layers.torch_step`)

`FastSteps` chooses. If neither applies (another kernel, captured weights, gradients), the decoder
calls its modules: `TransformerDecoder.step_by_modules`, which defines the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

from regard.device import autocast_dtype
from regard.layers import native
from regard.layers.blocks import DecoderBlock
from regard.layers.embedding import Embedding
from regard.layers.positions import Positions, rotary_phases
from regard.layers.softmax_attention import SoftmaxCrossAttention, SoftmaxSelfAttention
from regard.layers.torch_step import TorchStep
from regard.values import State, Step


class FastSteps:
    """The fast steps of a decoder. Only decoders with softmax attention and a bias in every
    projection have them."""

    def __init__(
        self,
        embedding: Embedding,
        positions: Positions,
        blocks: Sequence[DecoderBlock],
        final_norm: nn.Module,
        output: nn.Module,
    ):
        all_softmax = all(
            type(block.self_attention) is SoftmaxSelfAttention
            and type(block.cross_attention) is SoftmaxCrossAttention
            and type(block.self_attention.qkv) is nn.Linear
            for block in blocks
        )
        self.torch: TorchStep | None = None
        self.fused: FusedStep | None = None
        if blocks and all_softmax:
            self.torch = TorchStep(embedding, positions, blocks, final_norm, output)
            if not positions.uses_bias:
                self.fused = FusedStep(embedding, positions, blocks, final_norm, output)

    def choose(self, state: State) -> FusedStep | TorchStep | None:
        """The fastest step that can compute this state; None: call the decoder's modules."""
        if self.torch is None or torch.is_grad_enabled():
            return None
        if self.fused is not None and native.supports_step(state.memory[0]):
            return self.fused
        if autocast_dtype(state.position.device) is not None:
            return None  # the modules call what autocast knows
        return self.torch


class FusedStep:
    """`TransformerDecoder.step` in C, for inputs that `native.supports_step` accepts.

    It holds the modules' dictionaries of parameters, not the parameters, so that a parameter may be
    replaced later. Reading a dictionary costs less than reading a module's attributes.
    """

    def __init__(
        self,
        embedding: Embedding,
        positions: Positions,
        blocks: Sequence[DecoderBlock],
        final_norm: nn.Module,
        output: nn.Module,
    ):
        layers: list[Any] = []
        for block in blocks:  # in the order of `Block` in step.c
            layers += [
                block.self_attention_residual.norm,
                block.self_attention.qkv,
                block.self_attention.out,
                block.cross_attention_residual.norm,
                block.cross_attention.query,
                block.cross_attention.out,
                block.feed_forward_residual.norm,
                block.feed_forward.up,
                block.feed_forward.down,
            ]
        self.embedding: Any = embedding.table._parameters
        self.embedding_scale = embedding.scale
        self.positions = positions
        self.block_parameters: list[Any] = [layer._parameters for layer in layers]
        self.output_parameters: list[Any] = [final_norm._parameters, output._parameters]

        residual = blocks[0].self_attention_residual
        feed_forward = blocks[0].feed_forward
        self.settings: dict[str, Any] = {
            "ffn_width": feed_forward.up.out_features,
            "gelu": feed_forward.activation is F.gelu,
            "pre": residual.pre,
            "eps": residual.norm.eps,
        }

    def step(self, token: Int[Tensor, " B"], state: State) -> Step:
        assert state.kv_cache is not None
        kv_cache = state.kv_cache.with_room_at(state.max_position)
        memory = state.memory[0]
        index = state.max_position if state.aligned else state.position
        embedded = F.embedding(token, self.embedding["weight"]) * self.embedding_scale
        x = self.positions.add(embedded, index)

        rotation = None
        if self.positions.uses_rotation:
            phases = rotary_phases(state.position, memory.shape[-1]).to(torch.complex64)
            rotation = torch.view_as_real(phases)
        block_tensors: list[Tensor] = []
        for parameters in self.block_parameters:
            block_tensors += [parameters["weight"], parameters["bias"]]
        output_tensors: list[Any] = []
        for parameters in self.output_parameters:  # None: there is no final norm
            output_tensors += [parameters.get("weight"), parameters.get("bias")]
        logits, weights = native.decoder_step(
            block_tensors,
            output_tensors,
            x,
            kv_cache.tensor,
            state.position,
            memory,
            state.mask.contiguous(),
            rotation,
            vocabulary=len(output_tensors[-1]),
            **self.settings,
        )
        next_state = replace(
            state,
            kv_cache=kv_cache,
            position=state.position + 1,
            max_position=state.max_position + 1,
        )
        return Step(logits, next_state, weights)
