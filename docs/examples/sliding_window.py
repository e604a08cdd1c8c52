"""Sliding-window attention: each position attends to itself and its nearest neighbours.

    a = softmax(q k^T / sqrt(K)) over the keys j with |i - j| < window    (Beltagy et al. 2020)

A decoder's state is the last `window` keys and values of each head, whatever the length of the
text. Cross-attention is softmax attention over the whole memory.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.layers.attention import attend_one_query, attend_unchecked, weights_unchecked
from regard.layers.attention_layer import CrossAttention, Rotation, SelfAttention, StepPosition
from regard.layers.sizes import AttentionKernel, TransformerSizes
from regard.layers.softmax_attention import SoftmaxCrossAttention, join_heads, split_heads
from regard.values import AttentionState


class WindowSelfAttention(SelfAttention):
    """Softmax attention inside a window."""

    def __init__(self, sizes: TransformerSizes, *, window: int):
        super().__init__()
        self.heads = sizes.heads
        self.head_width = sizes.head_width
        self.window = window
        self.qkv = nn.Linear(sizes.width, 3 * sizes.attention_width)
        self.out = nn.Linear(sizes.attention_width, sizes.width)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        *,
        mask: Bool[Tensor, "B T"] | None = None,
        causal: bool = False,
        rotation: Rotation | None = None,
        bias: None = None,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B H T T"] | None]:
        q, k, v = self._project(x, rotation)
        allowed = self._allowed(x.shape[1], mask, causal=causal, device=x.device)
        if need_weights:
            weights = weights_unchecked(q, k, mask=allowed)
            context = weights @ v
        else:
            weights = None
            context = attend_unchecked(q, k, v, mask=allowed)
        return self.out(join_heads(context)), weights

    def start(self, rows: int, like: Tensor, *, keep_keys: bool = False) -> AttentionState:
        empty = like.new_zeros(rows, self.heads, self.window, self.head_width)
        return AttentionState(fixed=(empty, empty))  # keys and values; position p in slot p % W

    def step(
        self,
        x: Float[Tensor, "B D"],
        state: AttentionState,
        at: StepPosition,
        *,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "B D"], AttentionState, Float[Tensor, "B H 1 _"] | None]:
        q, k, v = self._project(x[:, None], at.rotation)
        position = at.position[:, None]  # (B, 1)
        slots = torch.arange(self.window, device=x.device)
        is_new = (slots == position % self.window)[:, None, :, None]  # (B, 1, W, 1)
        keys = torch.where(is_new, k, state.fixed[0])
        values = torch.where(is_new, v, state.fixed[1])

        filled = (slots <= position)[:, None, None]  # (B, 1, 1, W)
        context, weights = attend_one_query(q, keys, values, filled, need_weights=need_weights)
        if weights is not None:
            weights = self._by_position(weights, position, slots, at.max_position + 1)
        return self.out(context.flatten(1)), AttentionState(fixed=(keys, values)), weights

    def _project(
        self, x: Float[Tensor, "B T D"], rotation: Rotation | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        qkv = split_heads(self.qkv(x), 3, self.heads)
        q, k = qkv[:2] if rotation is None else rotation(qkv[:2])
        return q, k, qkv[2]

    def _allowed(
        self,
        length: int,
        mask: Bool[Tensor, "B T"] | None,
        *,
        causal: bool,
        device: torch.device,
    ) -> Bool[Tensor, "_ 1 T T"]:
        """Which keys each query may attend to."""
        places = torch.arange(length, device=device)
        distance = places[:, None] - places
        window = distance.abs() < self.window
        if causal:
            window &= distance >= 0
        if mask is None:
            return window[None, None]
        real = mask[:, None, None]  # (B, 1, 1, T)
        allowed = window & real
        # Padding may have no real neighbour; it attends to all real places, and nobody reads it.
        return allowed | (real & ~allowed.any(-1, keepdim=True))

    def _by_position(
        self, weights: Tensor, position: Tensor, slots: Tensor, length: int
    ) -> Float[Tensor, "B H 1 _"]:
        """Weights of slots as weights of the positions in them, 0 outside of the window."""
        held = position - (position - slots) % self.window  # (B, W); negative: not filled
        index = held.clamp(min=0)[:, None, None].expand_as(weights)
        return weights.new_zeros(*weights.shape[:-1], length).scatter_add(-1, index, weights)


class SlidingWindow(AttentionKernel):
    """The kernel: `TransformerSizes(kernel=SlidingWindow(window=64), …)`."""

    takes_bias = False  # ALiBi and relative positions would need a bias for each slot

    def __init__(self, *, window: int):
        self.window = window

    def self_attention(self, sizes: TransformerSizes) -> SelfAttention:
        return WindowSelfAttention(sizes, window=self.window)

    def cross_attention(self, sizes: TransformerSizes, *, memory_width: int) -> CrossAttention:
        return SoftmaxCrossAttention(sizes, memory_width=memory_width)


# The budget of one layer of self-attention. D is the width, A that of all heads, W the window.


def parameters(sizes: TransformerSizes) -> int:
    """Projections D x 3A and A x D, with biases: 4 D A + 3 A + D."""
    D, A = sizes.width, sizes.attention_width
    return 4 * D * A + 3 * A + D


def multiplications(sizes: TransformerSizes, *, rows: int, length: int) -> int:
    """B (4 T D A + 2 T^2 A): keys outside of the window are masked, not skipped."""
    D, A = sizes.width, sizes.attention_width
    return rows * (4 * length * D * A + 2 * length**2 * A)


def step_multiplications(sizes: TransformerSizes, *, window: int) -> int:
    """4 D A + 2 W A, the same at every position."""
    D, A = sizes.width, sizes.attention_width
    return 4 * D * A + 2 * window * A
