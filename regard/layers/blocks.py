"""Transformer blocks and their parts: dropout, residual connection with layer norm, feed-forward
network, encoder block, decoder block."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.layers import checks
from regard.layers.attention_layer import CrossAttention, Rotation, SelfAttention, StepPosition
from regard.layers.kernels import kernel_of
from regard.layers.sizes import Activation, Norm, TransformerSizes
from regard.values import AttentionState, AttentionWeights, Capture


def dropout_from_bytes(x: Float[Tensor, "..."], p: float) -> Float[Tensor, "..."]:
    """Dropout with probability `p`, drawn as random bytes.

    One random 64-bit integer decides eight elements, which is about five times as fast on a CPU as
    `F.dropout`. The probability is rounded to a multiple of 1/256. The scale of the elements that
    are kept uses the rounded probability, so the mean is exact.
    """
    threshold = min(255, round(p * 256))
    if threshold == 0:
        return x
    integers = torch.empty((x.numel() + 7) // 8, dtype=torch.int64, device=x.device)
    integers.random_(-(2**63), None)  # from all 2^64 values
    random_bytes = integers.view(torch.uint8)
    keep = random_bytes[: x.numel()].view(x.shape) >= threshold
    return (x * keep).mul_(256 / (256 - threshold))


def dropout(x: Float[Tensor, "..."], p: float, *, training: bool) -> Float[Tensor, "..."]:
    """Dropout with probability `p` in training, the identity in evaluation."""
    return dropout_from_bytes(x, p) if training and p else x


class Dropout(nn.Module):
    """`dropout` as a module."""

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return dropout(x, self.p, training=self.training)


class Residual(nn.Module):
    """Residual connection around a sublayer f, with layer norm and dropout: add(x, f(input(x))).

    pre    x + f(norm(x))
    post   norm(x + f(x))                                         (Vaswani et al. 2017, section 3.1)
    """

    def __init__(self, *, width: int, norm: Norm, dropout: float):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.pre = checks.one_of("norm", norm, Norm) == "pre"
        self.dropout = dropout

    def forward(
        self, x: Float[Tensor, "*rows D"], f: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "*rows D"]:
        return self.add(x, f(self.input(x)))

    def input(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        """The input of the sublayer: norm(x), or x with post-norm."""
        return self.norm(x) if self.pre else x

    def add(
        self, x: Float[Tensor, "*rows D"], y: Float[Tensor, "*rows D"]
    ) -> Float[Tensor, "*rows D"]:
        """The sum of x and the sublayer's output y, normalised with post-norm."""
        total = x + dropout(y, self.dropout, training=self.training)
        return total if self.pre else self.norm(total)


class FeedForward(nn.Module):
    """Position-wise feed-forward network: W_2 act(W_1 x + b_1) + b_2."""

    def __init__(self, *, width: int, ffn_width: int, activation: Activation, dropout: float):
        super().__init__()
        self.up = nn.Linear(width, ffn_width)
        self.down = nn.Linear(ffn_width, width)
        self.dropout = dropout
        gelu = checks.one_of("activation", activation, Activation) == "gelu"
        self.activation = F.gelu if gelu else F.relu

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        hidden = self.activation(self.up(x))
        return self.down(dropout(hidden, self.dropout, training=self.training))


class BlockWeights(NamedTuple):
    """The attention weights of one block; None where they were not requested."""

    self_attention: Float[Tensor, "B H T _"] | None = None  # over the positions of the sequence
    cross_attention: Float[Tensor, "B H T S"] | None = None


def _feed_forward(sizes: TransformerSizes) -> FeedForward:
    return FeedForward(
        width=sizes.width,
        ffn_width=sizes.ffn_width,
        activation=sizes.activation,
        dropout=sizes.dropout,
    )


def _residual(sizes: TransformerSizes) -> Residual:
    return Residual(width=sizes.width, norm=sizes.norm, dropout=sizes.dropout)


class EncoderBlock(nn.Module):
    """Self-attention, then feed-forward, each with a residual connection."""

    self_attention: SelfAttention

    def __init__(self, sizes: TransformerSizes):
        super().__init__()
        self.self_attention = kernel_of(sizes).self_attention(sizes)
        self.feed_forward = _feed_forward(sizes)
        self.self_attention_residual = _residual(sizes)
        self.feed_forward_residual = _residual(sizes)

    def forward(
        self,
        x: Float[Tensor, "B S D"],
        mask: Bool[Tensor, "B S"] | None,
        *,
        rotation: Rotation | None = None,
        bias: Float[Tensor, "_ H S S"] | None = None,
        capture: Capture = "none",
    ) -> tuple[Float[Tensor, "B S D"], BlockWeights]:
        y, weights = self.self_attention(
            self.self_attention_residual.input(x),
            mask=mask,
            rotation=rotation,
            bias=bias,
            need_weights=capture == "all",
        )
        x = self.self_attention_residual.add(x, y)
        return self.feed_forward_residual(x, self.feed_forward), BlockWeights(weights)

    def captured(self, layer: int, weights: BlockWeights) -> list[AttentionWeights]:
        """The weights that this block returned, labelled with their kind and the block's number
        `layer`."""
        if weights.self_attention is None:
            return []
        form = self.self_attention.form
        return [AttentionWeights("self", layer, weights.self_attention, form)]


class DecoderBlock(nn.Module):
    """Causal self-attention, cross-attention, feed-forward, each with a residual connection.

    `forward` computes all positions at once, `step` one position of each row. `cross_attend` and
    `cross_attend_step` are the same without self-attention; with `has_self_attention=False` only
    these two can be called.
    """

    self_attention: SelfAttention  # missing if has_self_attention=False
    cross_attention: CrossAttention

    def __init__(
        self, sizes: TransformerSizes, *, memory_width: int, has_self_attention: bool = True
    ):
        super().__init__()
        kernel = kernel_of(sizes)
        if has_self_attention:
            self.self_attention = kernel.self_attention(sizes)
        self.cross_attention = kernel.cross_attention(sizes, memory_width=memory_width)
        self.feed_forward = _feed_forward(sizes)
        if has_self_attention:
            self.self_attention_residual = _residual(sizes)
        self.cross_attention_residual = _residual(sizes)
        self.feed_forward_residual = _residual(sizes)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        memory: Float[Tensor, "B S E"],
        mask: Bool[Tensor, "B S"],
        *,
        rotation: Rotation | None = None,
        bias: Float[Tensor, "_ H T T"] | None = None,
        capture: Capture = "none",
    ) -> tuple[Float[Tensor, "B T D"], BlockWeights]:
        """All positions at once. `mask` is that of the memory. A `bias` on the scores of
        self-attention replaces the causal mask: it must be -inf at later positions."""
        y, self_weights = self.self_attention(
            self.self_attention_residual.input(x),
            causal=bias is None,
            rotation=rotation,
            bias=bias,
            need_weights=capture == "all",
        )
        x = self.self_attention_residual.add(x, y)
        x, cross_weights = self.cross_attend(x, memory, mask, need_weights=capture != "none")
        return x, BlockWeights(self_weights, cross_weights)

    def cross_attend(
        self,
        x: Float[Tensor, "B T D"],
        memory: Float[Tensor, "B S E"],
        mask: Bool[Tensor, "B S"],
        *,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B H T S"] | None]:
        """Cross-attention and feed-forward: `forward` without self-attention."""
        residual = self.cross_attention_residual
        y, weights = self.cross_attention(
            residual.input(x), memory, mask=mask, need_weights=need_weights
        )
        x = residual.add(x, y)
        return self.feed_forward_residual(x, self.feed_forward), weights

    def step(
        self,
        x: Float[Tensor, "B D"],
        self_state: AttentionState,
        cross_state: AttentionState,
        at: StepPosition,
        *,
        mask: Bool[Tensor, "B S"] | None,
        capture: Capture = "none",
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "B D"], AttentionState, BlockWeights]:
        """`forward` for one position of each row. Also returns the next state of self-attention;
        that of cross-attention does not change. `need_weights` asks for the weights of
        cross-attention even if `capture` is "none"."""
        residual = self.self_attention_residual
        y, next_self_state, self_weights = self.self_attention.step(
            residual.input(x), self_state, at, need_weights=capture == "all"
        )
        x = residual.add(x, y)
        x, cross_weights = self.cross_attend_step(
            x, cross_state, mask=mask, need_weights=need_weights or capture != "none"
        )
        return x, next_self_state, BlockWeights(self_weights, cross_weights)

    def cross_attend_step(
        self,
        x: Float[Tensor, "B D"],
        cross_state: AttentionState,
        *,
        mask: Bool[Tensor, "B S"] | None,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B H 1 S"] | None]:
        """`cross_attend` for one position of each row."""
        residual = self.cross_attention_residual
        y, _, weights = self.cross_attention.step(
            residual.input(x), cross_state, mask=mask, need_weights=need_weights
        )
        x = residual.add(x, y)
        return self.feed_forward_residual(x, self.feed_forward), weights

    def captured(self, layer: int, weights: BlockWeights) -> list[AttentionWeights]:
        """The weights that this block returned, each labelled with its kind and the block's number
        `layer`."""
        captured = []
        if weights.self_attention is not None:
            form = self.self_attention.form
            captured.append(AttentionWeights("self", layer, weights.self_attention, form))
        if weights.cross_attention is not None:
            form = self.cross_attention.form
            captured.append(AttentionWeights("cross", layer, weights.cross_attention, form))
        return captured
