"""What Transformer layers are made of: dropout, the residual around a sublayer, the feed-forward net, two blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers import native
from regard.layers.attention import CrossAttention, Onto, SelfAttention, Turning, linear, normal, part
from regard.layers.linear import LinearCrossAttention, LinearSelfAttention


def drop(x: Float[Tensor, "..."], share: float) -> Float[Tensor, "..."]:
    """Dropout from random bytes: one 64-bit draw serves eight places, about five times as fast on a CPU as
    `F.dropout`. The share is rounded to a 256th, and the scale fits the rounded one, so the mean is exact."""
    cut = min(255, round(share * 256))
    if cut == 0:
        return x
    draws = torch.empty((x.numel() + 7) // 8, dtype=torch.int64, device=x.device).random_(-(2**63), None)
    keep = draws.view(torch.uint8)[: x.numel()].view(x.shape) >= cut
    return (x * keep).mul_(256 / (256 - cut))


class Dropout(nn.Module):
    def __init__(self, share: float):
        super().__init__()
        self.share = share

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return drop(x, self.share) if self.training and self.share else x


class Residual(nn.Module):
    """x + f(norm(x)) before the sublayer ("pre"), or norm(x + f(x)) after it ("post", as first published)."""

    def __init__(self, *, width: int, norm: str, dropout: float):
        super().__init__()
        self.norm, self.pre, self.dropout = nn.LayerNorm(width), norm == "pre", Dropout(dropout)

    def forward(self, x: Float[Tensor, "*rows D"], f: Callable[[Tensor], Tensor]) -> Float[Tensor, "*rows D"]:
        return x + self.dropout(f(self.norm(x))) if self.pre else self.norm(x + self.dropout(f(x)))

    def enter(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        """What the sublayer is given, at one place."""
        return normal(x, part(self, "norm")) if self.pre else x

    def leave(self, x: Float[Tensor, "*rows D"], y: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        """What follows when it made y of that."""
        return x + y if self.pre else normal(x + y, part(self, "norm"))


class FeedForward(nn.Module):
    """W_2 act(W_1 x + b_1) + b_2"""

    def __init__(self, *, width: int, inner: int, activation: str, dropout: float):
        super().__init__()
        self.wide, self.narrow, self.dropout = nn.Linear(width, inner), nn.Linear(inner, width), Dropout(dropout)
        self.activation = F.gelu if activation == "gelu" else F.relu

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        return self.narrow(self.dropout(self.activation(self.wide(x))))

    def step(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        return linear(self.activation(linear(x, part(self, "wide"))), part(self, "narrow"))


def self_attention(
    kernel: str, *, width: int, heads: int, head_width: int | None, terms: int, key_bias: bool
) -> SelfAttention | LinearSelfAttention:
    if kernel == "maclaurin":
        _has_key_bias(key_bias)
        return LinearSelfAttention(width=width, heads=heads, head_width=head_width, terms=terms)
    return SelfAttention(width=width, heads=heads, head_width=head_width, key_bias=key_bias)


def cross_attention(
    kernel: str, *, width: int, memory_width: int, heads: int, head_width: int | None, terms: int, key_bias: bool
) -> CrossAttention | LinearCrossAttention:
    if kernel == "maclaurin":
        _has_key_bias(key_bias)
        return LinearCrossAttention(
            width=width, memory_width=memory_width, heads=heads, head_width=head_width, terms=terms
        )
    return CrossAttention(width=width, memory_width=memory_width, heads=heads, head_width=head_width, key_bias=key_bias)


def _has_key_bias(key_bias: bool) -> None:
    if not key_bias:
        raise InputError("linear attention sees the bias of its keys", where="key_bias", got=False, hint="leave it on")


class EncoderBlock(nn.Module):
    """Look around, then think."""

    def __init__(
        self,
        *,
        width: int,
        heads: int,
        head_width: int | None,
        inner: int,
        norm: str,
        activation: str,
        dropout: float,
        kernel: str = "softmax",
        terms: int = 3,
        key_bias: bool = True,
    ):
        super().__init__()
        self.looking = self_attention(
            kernel, width=width, heads=heads, head_width=head_width, terms=terms, key_bias=key_bias
        )
        self.thinking = FeedForward(width=width, inner=inner, activation=activation, dropout=dropout)
        self.around_looking = Residual(width=width, norm=norm, dropout=dropout)
        self.around_thinking = Residual(width=width, norm=norm, dropout=dropout)

    def forward(
        self,
        x: Float[Tensor, "B S D"],
        mask: Bool[Tensor, "B S"] | None,
        *,
        turning: Turning | None = None,
        bias: Float[Tensor, "_ H S S"] | None = None,
    ) -> Float[Tensor, "B S D"]:
        x = self.around_looking(x, lambda y: self.looking(y, mask=mask, turning=turning, bias=bias))
        return self.around_thinking(x, self.thinking)


class DecoderBlock(nn.Module):
    """Look back (unless `looks_back` is False), look at the memory, then think."""

    def __init__(
        self,
        *,
        width: int,
        memory_width: int,
        heads: int,
        head_width: int | None,
        inner: int,
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
            self.looking = self_attention(
                kernel, width=width, heads=heads, head_width=head_width, terms=terms, key_bias=key_bias
            )
        self.reading = cross_attention(
            kernel,
            width=width,
            memory_width=memory_width,
            heads=heads,
            head_width=head_width,
            terms=terms,
            key_bias=key_bias,
        )
        self.thinking = FeedForward(width=width, inner=inner, activation=activation, dropout=dropout)
        if looks_back:
            self.around_looking = Residual(width=width, norm=norm, dropout=dropout)
        self.around_reading = Residual(width=width, norm=norm, dropout=dropout)
        self.around_thinking = Residual(width=width, norm=norm, dropout=dropout)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        keys_values: Float[Tensor, "2 B H S K"],
        mask: Bool[Tensor, "B S"],
        *,
        turning: Turning | None = None,
        bias: Float[Tensor, "_ H T T"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """A bias has to hide what comes later itself."""
        x = self.around_looking(x, lambda y: self.looking(y, causal=bias is None, turning=turning, bias=bias))
        return self.read(x, keys_values, mask)

    def read(
        self, x: Float[Tensor, "B T D"], keys_values: Float[Tensor, "2 B H S K"], mask: Bool[Tensor, "B S"]
    ) -> Float[Tensor, "B T D"]:
        """All but looking back."""
        x = self.around_reading(x, lambda y: self.reading(y, keys_values, mask=mask))
        return self.around_thinking(x, self.thinking)

    def step(
        self,
        x: Float[Tensor, "*rows D"],
        slots: Float[Tensor, "2 B H C K"],
        at: Int[Tensor, " B"] | int,
        onto: Onto | None,
        turning: Turning | None,
        keys_values: Float[Tensor, "2 B H S K"],
        mask: Bool[Tensor, "B 1 1 S"] | None,
        *,
        weights: bool,
    ) -> tuple[Float[Tensor, "*rows D"], Float[Tensor, "B H 1 S"] | None]:
        """One place further, and where it looked in the memory, if that is wanted."""
        around = part(self, "around_looking")
        x = around.leave(x, part(self, "looking").step(around.enter(x), slots, at, onto, turning))
        return self.read_step(x, keys_values, mask, weights=weights)

    def read_step(
        self,
        x: Float[Tensor, "*rows D"],
        keys_values: Float[Tensor, "2 B H S K"],
        mask: Bool[Tensor, "B 1 1 S"] | None,
        *,
        weights: bool,
    ) -> tuple[Float[Tensor, "*rows D"], Float[Tensor, "B H 1 S"] | None]:
        around = part(self, "around_reading")
        read, used = part(self, "reading").step(around.enter(x), keys_values, mask, weights=weights)
        return self._thought(around.leave(x, read)), used

    def linear_step(
        self,
        x: Float[Tensor, "B D"],
        sums: Float[Tensor, "B H M F"],
        turning: Turning | None,
        memory: Float[Tensor, "B H M F"],
    ) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B H M F"]]:
        """The same with linear attention: what it looks back at and the memory are sums. Returns those that follow."""
        around = part(self, "around_looking")
        looked, sums = part(self, "looking").step(around.enter(x), sums, turning)
        x, around = around.leave(x, looked), part(self, "around_reading")
        return self._thought(around.leave(x, part(self, "reading").step(around.enter(x), memory))), sums

    def _thought(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        around = part(self, "around_thinking")
        return around.leave(x, part(self, "thinking").step(around.enter(x)))


class FewRows:
    """`DecoderBlock.step` of all blocks and the scores that follow in one call, for what `native.steps` says yes to."""

    def __init__(self, blocks: Iterable[DecoderBlock], leave: nn.Module, output: nn.Module, *, vocabulary: int):
        layers = [
            layer
            for block in blocks
            for layer in (
                *(block.around_looking.norm, block.looking.project, block.looking.out),
                *(block.around_reading.norm, block.reading.query, block.reading.out),
                *(block.around_thinking.norm, block.thinking.wide, block.thinking.narrow),
            )
        ]
        self.blocks: list[Any] = [layer._parameters for layer in layers]  # in the order of `Block` in step.c
        self.last: list[Any] = [leave._parameters, output._parameters]
        some = next(iter(blocks))
        around, thinking = some.around_looking, some.thinking
        self.how: dict[str, Any] = dict(inner=thinking.wide.out_features, gelu=thinking.activation is F.gelu)
        self.how |= dict(pre=around.pre, eps=around.norm.eps, vocabulary=vocabulary)

    def step(
        self,
        x: Float[Tensor, "B D"],
        past: Float[Tensor, "N B H C K"],
        at: Int[Tensor, " B"],
        memory: Float[Tensor, "N B H S K"],
        mask: Bool[Tensor, "B S"],
        waves: Complex[Tensor, "B pairs"] | None,
    ) -> tuple[Float[Tensor, "B V"], Float[Tensor, "B H S"]]:
        """The logits that follow, and where the top block looked. Uses up `x` and fills the slots `at` of `past`;
        rotary positions turn by `waves`."""
        blocks = [own[name] for own in self.blocks for name in ("weight", "bias")]
        last = [own.get(name) for own in self.last for name in ("weight", "bias")]
        turning = None if waves is None else torch.view_as_real(waves)
        return native.decoder_step(blocks, last, x, past, at, memory, mask.contiguous(), turning, **self.how)
