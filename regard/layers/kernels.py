"""The attention kernels by name: softmax attention, and linear attention by a Maclaurin series."""

from __future__ import annotations

from typing import final

from regard.layers import checks
from regard.layers.attention_layer import CrossAttention, SelfAttention
from regard.layers.linear_attention import MaclaurinCrossAttention, MaclaurinSelfAttention
from regard.layers.sizes import AttentionKernel, Kernel, TransformerSizes
from regard.layers.softmax_attention import SoftmaxCrossAttention, SoftmaxSelfAttention


@final
class Softmax(AttentionKernel):
    """Softmax attention: softmax(q k^T / sqrt(K)) v."""

    def self_attention(self, sizes: TransformerSizes) -> SelfAttention:
        return SoftmaxSelfAttention(sizes)

    def cross_attention(self, sizes: TransformerSizes, *, memory_width: int) -> CrossAttention:
        return SoftmaxCrossAttention(sizes, memory_width=memory_width)


@final
class Maclaurin(AttentionKernel):
    """Linear attention by the first terms of the Maclaurin series of exp."""

    takes_bias = False

    def self_attention(self, sizes: TransformerSizes) -> SelfAttention:
        return MaclaurinSelfAttention(sizes)

    def cross_attention(self, sizes: TransformerSizes, *, memory_width: int) -> CrossAttention:
        return MaclaurinCrossAttention(sizes, memory_width=memory_width)


KERNELS: dict[str, AttentionKernel] = {"softmax": Softmax(), "maclaurin": Maclaurin()}


def kernel_of(sizes: TransformerSizes) -> AttentionKernel:
    """The kernel that `sizes.kernel` names in KERNELS, or `sizes.kernel` itself if it is one."""
    if isinstance(sizes.kernel, AttentionKernel):
        return sizes.kernel
    return KERNELS[checks.one_of("kernel", sizes.kernel, Kernel)]
