"""Transformer blocks and their parts: dropout, residual connection with layer norm, feed-forward
network, encoder block, decoder block."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers import checks, native
from regard.layers.attention import (
    CrossAttention,
    Rotation,
    ScoreMask,
    SelfAttention,
    layer_norm_step,
    linear_step,
    submodule,
)
from regard.layers.linear_attention import Kernel, LinearCrossAttention, LinearSelfAttention

Norm = Literal["pre", "post"]
Activation = Literal["relu", "gelu"]


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
    random_bytes = integers.random_(-(2**63), None).view(torch.uint8)
    keep = random_bytes[: x.numel()].view(x.shape) >= threshold
    return (x * keep).mul_(256 / (256 - threshold))


class Dropout(nn.Module):
    """Dropout with probability `p` in training, the identity in evaluation."""

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return dropout_from_bytes(x, self.p) if self.training and self.p else x


class Residual(nn.Module):
    """Residual connection around a sublayer f, with layer norm.

    pre    x + f(norm(x))
    post   norm(x + f(x))                                         (Vaswani et al. 2017, section 3.1)
    """

    def __init__(self, *, width: int, norm: Norm, dropout: float):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.pre = checks.one_of("norm", norm, Norm) == "pre"
        self.dropout = Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "*rows D"], f: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "*rows D"]:
        if self.pre:
            return x + self.dropout(f(self.norm(x)))
        return self.norm(x + self.dropout(f(x)))

    def before_sublayer(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        """The input of the sublayer, for one position: norm(x) or x."""
        return layer_norm_step(x, submodule(self, "norm")) if self.pre else x

    def after_sublayer(
        self, x: Float[Tensor, "*rows D"], y: Float[Tensor, "*rows D"]
    ) -> Float[Tensor, "*rows D"]:
        """The output for one position, where y is the sublayer's output: x + y or norm(x + y)."""
        return x + y if self.pre else layer_norm_step(x + y, submodule(self, "norm"))


class FeedForward(nn.Module):
    """Position-wise feed-forward network: W_2 act(W_1 x + b_1) + b_2."""

    def __init__(self, *, width: int, ffn_width: int, activation: Activation, dropout: float):
        super().__init__()
        self.up = nn.Linear(width, ffn_width)
        self.down = nn.Linear(ffn_width, width)
        self.dropout = Dropout(dropout)
        gelu = checks.one_of("activation", activation, Activation) == "gelu"
        self.activation = F.gelu if gelu else F.relu

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        return self.down(self.dropout(self.activation(self.up(x))))

    def step(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        """`forward` for one position, without dropout."""
        hidden = self.activation(linear_step(x, submodule(self, "up")))
        return linear_step(hidden, submodule(self, "down"))


def make_self_attention(
    kernel: Kernel, *, width: int, heads: int, head_width: int | None, terms: int, key_bias: bool
) -> SelfAttention | LinearSelfAttention:
    """Self-attention with softmax, or linear attention with the Maclaurin kernel."""
    if checks.one_of("kernel", kernel, Kernel) == "maclaurin":
        _require_key_bias(key_bias)
        return LinearSelfAttention(width=width, heads=heads, head_width=head_width, terms=terms)
    return SelfAttention(width=width, heads=heads, head_width=head_width, key_bias=key_bias)


def make_cross_attention(
    kernel: Kernel,
    *,
    width: int,
    memory_width: int,
    heads: int,
    head_width: int | None,
    terms: int,
    key_bias: bool,
) -> CrossAttention | LinearCrossAttention:
    """Cross-attention with softmax, or linear attention with the Maclaurin kernel."""
    if checks.one_of("kernel", kernel, Kernel) == "maclaurin":
        _require_key_bias(key_bias)
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


def _require_key_bias(key_bias: bool) -> None:
    """Softmax cancels the bias of the keys; linear attention does not."""
    if not key_bias:
        raise InputError(
            "linear attention depends on the bias of its keys",
            where="key_bias",
            got=False,
            hint="use key_bias=True",
        )


class EncoderBlock(nn.Module):
    """Self-attention, then feed-forward, each with a residual connection."""

    def __init__(
        self,
        *,
        width: int,
        heads: int,
        head_width: int | None,
        ffn_width: int,
        norm: Norm,
        activation: Activation,
        dropout: float,
        kernel: Kernel = "softmax",
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
    """Causal self-attention, cross-attention, feed-forward, each with a residual connection.

    With `has_self_attention=False` it is cross-attention and feed-forward only.
    """

    def __init__(
        self,
        *,
        width: int,
        memory_width: int,
        heads: int,
        head_width: int | None,
        ffn_width: int,
        norm: Norm,
        activation: Activation,
        dropout: float,
        kernel: Kernel = "softmax",
        terms: int = 3,
        key_bias: bool = True,
        has_self_attention: bool = True,
    ):
        super().__init__()
        if has_self_attention:
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
        if has_self_attention:
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
        """All positions at once. `keys_values` are those of the memory, `mask` is its mask. A
        `bias` on the scores of self-attention must be -inf at later positions."""
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
        """Cross-attention and feed-forward: `forward` without self-attention."""
        x = self.cross_attention_residual(
            x, lambda y: self.cross_attention(y, keys_values, mask=mask)
        )
        return self.feed_forward_residual(x, self.feed_forward)

    def step(
        self,
        x: Float[Tensor, "*rows D"],
        cache: Float[Tensor, "2 B H C K"],
        cache_position: Int[Tensor, " B"] | int,
        attn_mask: ScoreMask | None,
        rotation: Rotation | None,
        keys_values: Float[Tensor, "2 B H S K"],
        mask: Bool[Tensor, "B 1 1 S"] | None,
        *,
        need_weights: bool,
    ) -> tuple[Float[Tensor, "*rows D"], Float[Tensor, "B H 1 S"] | None]:
        """`forward` for one position, and the weights of cross-attention if `need_weights`. Writes
        the position's key and value into `cache`."""
        residual = submodule(self, "self_attention_residual")
        context = submodule(self, "self_attention").step(
            residual.before_sublayer(x), cache, cache_position, attn_mask, rotation
        )
        x = residual.after_sublayer(x, context)
        return self.read_step(x, keys_values, mask, need_weights=need_weights)

    def read_step(
        self,
        x: Float[Tensor, "*rows D"],
        keys_values: Float[Tensor, "2 B H S K"],
        mask: Bool[Tensor, "B 1 1 S"] | None,
        *,
        need_weights: bool,
    ) -> tuple[Float[Tensor, "*rows D"], Float[Tensor, "B H 1 S"] | None]:
        """`read` for one position, and the weights of cross-attention if `need_weights`."""
        residual = submodule(self, "cross_attention_residual")
        context, weights = submodule(self, "cross_attention").step(
            residual.before_sublayer(x), keys_values, mask, need_weights=need_weights
        )
        x = residual.after_sublayer(x, context)
        return self._feed_forward_step(x), weights

    def linear_step(
        self,
        x: Float[Tensor, "B D"],
        sums: Float[Tensor, "B H M F"],
        rotation: Rotation | None,
        memory_sums: Float[Tensor, "B H M F"],
    ) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B H M F"]]:
        """`step` with linear attention, where `sums` stand for the earlier positions and
        `memory_sums` for the memory. Also returns the sums with this position added."""
        residual = submodule(self, "self_attention_residual")
        context, sums = submodule(self, "self_attention").step(
            residual.before_sublayer(x), sums, rotation
        )
        x = residual.after_sublayer(x, context)

        residual = submodule(self, "cross_attention_residual")
        context = submodule(self, "cross_attention").step(residual.before_sublayer(x), memory_sums)
        x = residual.after_sublayer(x, context)
        return self._feed_forward_step(x), sums

    def _feed_forward_step(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        residual = submodule(self, "feed_forward_residual")
        y = submodule(self, "feed_forward").step(residual.before_sublayer(x))
        return residual.after_sublayer(x, y)


class FusedStep:
    """`DecoderBlock.step` of all blocks and the output layer in one call of the C library, for
    inputs that `native.supports_step` accepts."""

    def __init__(
        self,
        blocks: Iterable[DecoderBlock],
        final_norm: nn.Module,
        output: nn.Module,
        *,
        vocabulary: int,
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
        self.block_parameters: list[Any] = [layer._parameters for layer in layers]
        self.output_parameters: list[Any] = [final_norm._parameters, output._parameters]

        first_block = next(iter(blocks))
        residual = first_block.self_attention_residual
        feed_forward = first_block.feed_forward
        self.settings: dict[str, Any] = {
            "ffn_width": feed_forward.up.out_features,
            "gelu": feed_forward.activation is F.gelu,
            "pre": residual.pre,
            "eps": residual.norm.eps,
            "vocabulary": vocabulary,
        }

    def step(
        self,
        x: Float[Tensor, "B D"],
        cache: Float[Tensor, "N B H C K"],
        cache_position: Int[Tensor, " B"],
        memory: Float[Tensor, "N B H S K"],
        mask: Bool[Tensor, "B S"],
        rotary_phases: Complex[Tensor, "B pairs"] | None,
    ) -> tuple[Float[Tensor, "B V"], Float[Tensor, "B H S"]]:
        """The logits of the next token, and the last block's weights over the memory. Overwrites
        `x` and writes keys and values into `cache` at `cache_position`. Queries and keys are
        rotated by `rotary_phases`, if given."""
        blocks = [
            parameters[name] for parameters in self.block_parameters for name in ("weight", "bias")
        ]
        output = [
            parameters.get(name)
            for parameters in self.output_parameters
            for name in ("weight", "bias")
        ]
        rotation = None if rotary_phases is None else torch.view_as_real(rotary_phases)
        return native.decoder_step(
            blocks,
            output,
            x,
            cache,
            cache_position,
            memory,
            mask.contiguous(),
            rotation,
            **self.settings,
        )
