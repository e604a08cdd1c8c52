"""What Transformer layers are made of: dropout, the residual around a sublayer, the feed-forward
net, two blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers import native
from regard.layers.attention import (
    CrossAttention,
    Rotation,
    ScoreMask,
    SelfAttention,
    linear,
    normal,
    part,
)
from regard.layers.linear_attention import LinearCrossAttention, LinearSelfAttention


def drop(x: Float[Tensor, "..."], share: float) -> Float[Tensor, "..."]:
    """Dropout from random bytes: one 64-bit draw serves eight places, about five times as fast
    on a CPU as `F.dropout`. The share is rounded to a 256th, and the scale fits the rounded one,
    so the mean is exact."""
    cut = min(255, round(share * 256))
    if cut == 0:
        return x
    draws = torch.empty((x.numel() + 7) // 8, dtype=torch.int64, device=x.device).random_(
        -(2**63), None
    )
    keep = draws.view(torch.uint8)[: x.numel()].view(x.shape) >= cut
    return (x * keep).mul_(256 / (256 - cut))


class Dropout(nn.Module):
    def __init__(self, share: float):
        super().__init__()
        self.share = share

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return drop(x, self.share) if self.training and self.share else x


class Residual(nn.Module):
    """x + f(norm(x)) before the sublayer ("pre"), or norm(x + f(x)) after it ("post", as first
    published)."""

    def __init__(self, *, width: int, norm: str, dropout: float):
        super().__init__()
        self.norm, self.pre, self.dropout = nn.LayerNorm(width), norm == "pre", Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "*rows D"], f: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "*rows D"]:
        return x + self.dropout(f(self.norm(x))) if self.pre else self.norm(x + self.dropout(f(x)))

    def enter(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        """What the sublayer is given, at one place."""
        return normal(x, part(self, "norm")) if self.pre else x

    def leave(
        self, x: Float[Tensor, "*rows D"], y: Float[Tensor, "*rows D"]
    ) -> Float[Tensor, "*rows D"]:
        """What follows when it made y of that."""
        return x + y if self.pre else normal(x + y, part(self, "norm"))


class FeedForward(nn.Module):
    """W_2 act(W_1 x + b_1) + b_2"""

    def __init__(self, *, width: int, ffn_width: int, activation: str, dropout: float):
        super().__init__()
        self.up, self.down, self.dropout = (
            nn.Linear(width, ffn_width),
            nn.Linear(ffn_width, width),
            Dropout(dropout),
        )
        self.activation = F.gelu if activation == "gelu" else F.relu

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        return self.down(self.dropout(self.activation(self.up(x))))

    def step(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        return linear(self.activation(linear(x, part(self, "up"))), part(self, "down"))


def make_self_attention(
    kernel: str, *, width: int, heads: int, head_width: int | None, terms: int, key_bias: bool
) -> SelfAttention | LinearSelfAttention:
    if kernel == "maclaurin":
        _has_key_bias(key_bias)
        return LinearSelfAttention(width=width, heads=heads, head_width=head_width, terms=terms)
    return SelfAttention(width=width, heads=heads, head_width=head_width, key_bias=key_bias)


def make_cross_attention(
    kernel: str,
    *,
    width: int,
    memory_width: int,
    heads: int,
    head_width: int | None,
    terms: int,
    key_bias: bool,
) -> CrossAttention | LinearCrossAttention:
    if kernel == "maclaurin":
        _has_key_bias(key_bias)
        return LinearCrossAttention(
            width=width, memory_width=memory_width, heads=heads, head_width=head_width, terms=terms
        )
    return CrossAttention(
        width=width,
        memory_width=memory_width,
        heads=heads,
        head_width=head_width,
        key_bias=key_bias,
    )


def _has_key_bias(key_bias: bool) -> None:
    if not key_bias:
        raise InputError(
            "linear attention sees the bias of its keys",
            where="key_bias",
            got=False,
            hint="leave it on",
        )


class EncoderBlock(nn.Module):
    """Look around, then think."""

    def __init__(
        self,
        *,
        width: int,
        heads: int,
        head_width: int | None,
        ffn_width: int,
        norm: str,
        activation: str,
        dropout: float,
        kernel: str = "softmax",
        terms: int = 3,
        key_bias: bool = True,
    ):
        super().__init__()
        self.self_attention = make_self_attention(
            kernel, width=width, heads=heads, head_width=head_width, terms=terms, key_bias=key_bias
        )
        self.feed_forward = FeedForward(
            width=width, ffn_width=ffn_width, activation=activation, dropout=dropout
        )
        self.self_attention_residual = Residual(width=width, norm=norm, dropout=dropout)
        self.feed_forward_residual = Residual(width=width, norm=norm, dropout=dropout)

    def forward(
        self,
        x: Float[Tensor, "B S D"],
        mask: Bool[Tensor, "B S"] | None,
        *,
        rotation: Rotation | None = None,
        bias: Float[Tensor, "_ H S S"] | None = None,
    ) -> Float[Tensor, "B S D"]:
        x = self.self_attention_residual(
            x, lambda y: self.self_attention(y, mask=mask, rotation=rotation, bias=bias)
        )
        return self.feed_forward_residual(x, self.feed_forward)


class DecoderBlock(nn.Module):
    """Look back (unless `looks_back` is False), look at the memory, then think."""

    def __init__(
        self,
        *,
        width: int,
        memory_width: int,
        heads: int,
        head_width: int | None,
        ffn_width: int,
        norm: str,
        activation: str,
        dropout: float,
        kernel: str = "softmax",
        terms: int = 3,
        key_bias: bool = True,
        looks_back: bool = True,
    ):
        super().__init__()
        if looks_back:
            self.self_attention = make_self_attention(
                kernel,
                width=width,
                heads=heads,
                head_width=head_width,
                terms=terms,
                key_bias=key_bias,
            )
        self.cross_attention = make_cross_attention(
            kernel,
            width=width,
            memory_width=memory_width,
            heads=heads,
            head_width=head_width,
            terms=terms,
            key_bias=key_bias,
        )
        self.feed_forward = FeedForward(
            width=width, ffn_width=ffn_width, activation=activation, dropout=dropout
        )
        if looks_back:
            self.self_attention_residual = Residual(width=width, norm=norm, dropout=dropout)
        self.cross_attention_residual = Residual(width=width, norm=norm, dropout=dropout)
        self.feed_forward_residual = Residual(width=width, norm=norm, dropout=dropout)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        keys_values: Float[Tensor, "2 B H S K"],
        mask: Bool[Tensor, "B S"],
        *,
        rotation: Rotation | None = None,
        bias: Float[Tensor, "_ H T T"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """A bias has to hide what comes later itself."""
        x = self.self_attention_residual(
            x, lambda y: self.self_attention(y, causal=bias is None, rotation=rotation, bias=bias)
        )
        return self.read(x, keys_values, mask)

    def read(
        self,
        x: Float[Tensor, "B T D"],
        keys_values: Float[Tensor, "2 B H S K"],
        mask: Bool[Tensor, "B S"],
    ) -> Float[Tensor, "B T D"]:
        """All but looking back."""
        x = self.cross_attention_residual(
            x, lambda y: self.cross_attention(y, keys_values, mask=mask)
        )
        return self.feed_forward_residual(x, self.feed_forward)

    def step(
        self,
        x: Float[Tensor, "*rows D"],
        slots: Float[Tensor, "2 B H C K"],
        at: Int[Tensor, " B"] | int,
        attn_mask: ScoreMask | None,
        rotation: Rotation | None,
        keys_values: Float[Tensor, "2 B H S K"],
        mask: Bool[Tensor, "B 1 1 S"] | None,
        *,
        weights: bool,
    ) -> tuple[Float[Tensor, "*rows D"], Float[Tensor, "B H 1 S"] | None]:
        """One place further, and where it looked in the memory, if that is wanted."""
        around = part(self, "self_attention_residual")
        x = around.leave(
            x, part(self, "self_attention").step(around.enter(x), slots, at, attn_mask, rotation)
        )
        return self.read_step(x, keys_values, mask, weights=weights)

    def read_step(
        self,
        x: Float[Tensor, "*rows D"],
        keys_values: Float[Tensor, "2 B H S K"],
        mask: Bool[Tensor, "B 1 1 S"] | None,
        *,
        weights: bool,
    ) -> tuple[Float[Tensor, "*rows D"], Float[Tensor, "B H 1 S"] | None]:
        around = part(self, "cross_attention_residual")
        read, used = part(self, "cross_attention").step(
            around.enter(x), keys_values, mask, weights=weights
        )
        return self._thought(around.leave(x, read)), used

    def linear_step(
        self,
        x: Float[Tensor, "B D"],
        sums: Float[Tensor, "B H M F"],
        rotation: Rotation | None,
        memory: Float[Tensor, "B H M F"],
    ) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B H M F"]]:
        """The same with linear attention: what it looks back at and the memory are sums. Returns
        those that follow."""
        around = part(self, "self_attention_residual")
        looked, sums = part(self, "self_attention").step(around.enter(x), sums, rotation)
        x, around = around.leave(x, looked), part(self, "cross_attention_residual")
        return self._thought(
            around.leave(x, part(self, "cross_attention").step(around.enter(x), memory))
        ), sums

    def _thought(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        around = part(self, "feed_forward_residual")
        return around.leave(x, part(self, "feed_forward").step(around.enter(x)))


class FusedStep:
    """`DecoderBlock.step` of all blocks and the scores that follow in one call, for what
    `native.steps` says yes to."""

    def __init__(
        self,
        blocks: Iterable[DecoderBlock],
        final_norm: nn.Module,
        output: nn.Module,
        *,
        vocabulary: int,
    ):
        layers = [
            layer
            for block in blocks
            for layer in (
                *(
                    block.self_attention_residual.norm,
                    block.self_attention.qkv,
                    block.self_attention.out,
                ),
                *(
                    block.cross_attention_residual.norm,
                    block.cross_attention.query,
                    block.cross_attention.out,
                ),
                *(block.feed_forward_residual.norm, block.feed_forward.up, block.feed_forward.down),
            )
        ]
        self.blocks: list[Any] = [
            layer._parameters for layer in layers
        ]  # in the order of `Block` in step.c
        self.last: list[Any] = [final_norm._parameters, output._parameters]
        some = next(iter(blocks))
        around, feed_forward = some.self_attention_residual, some.feed_forward
        self.how: dict[str, Any] = dict(
            ffn_width=feed_forward.up.out_features, gelu=feed_forward.activation is F.gelu
        )
        self.how |= dict(pre=around.pre, eps=around.norm.eps, vocabulary=vocabulary)

    def step(
        self,
        x: Float[Tensor, "B D"],
        past: Float[Tensor, "N B H C K"],
        at: Int[Tensor, " B"],
        memory: Float[Tensor, "N B H S K"],
        mask: Bool[Tensor, "B S"],
        rotary_phases: Complex[Tensor, "B pairs"] | None,
    ) -> tuple[Float[Tensor, "B V"], Float[Tensor, "B H S"]]:
        """The logits that follow, and where the top block looked. Uses up `x` and fills the
        slots `at` of `past`; rotary positions turn by `rotary_phases`."""
        blocks = [own[name] for own in self.blocks for name in ("weight", "bias")]
        last = [own.get(name) for own in self.last for name in ("weight", "bias")]
        rotation = None if rotary_phases is None else torch.view_as_real(rotary_phases)
        return native.decoder_step(
            blocks, last, x, past, at, memory, mask.contiguous(), rotation, **self.how
        )
