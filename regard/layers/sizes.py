"""The sizes of a Transformer, shared by its layers, its recipe and its budget. No torch here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

Norm = Literal["pre", "post"]
Activation = Literal["relu", "gelu"]
Kernel = Literal["softmax", "maclaurin"]


class AttentionKernel(ABC):
    """A kind of attention, such as softmax or linear attention: it makes the attention layers of a
    Transformer. Those in `regard.layers.kernels` have a name; any other is passed as an object,
    `TransformerSizes(kernel=MyKernel(), …)`."""

    takes_bias: bool = True  # whether position embeddings can add a bias to its scores

    @abstractmethod
    def self_attention(self, sizes: TransformerSizes) -> Any:
        """A new layer, a `regard.layers.attention_layer.SelfAttention`."""

    @abstractmethod
    def cross_attention(self, sizes: TransformerSizes, *, memory_width: int) -> Any:
        """A new layer, a `regard.layers.attention_layer.CrossAttention`."""


@dataclass(frozen=True, kw_only=True)
class TransformerSizes:
    """The sizes of a stack of Transformer blocks, and the kinds of their parts."""

    layers: int
    width: int
    heads: int
    head_width: int = 0  # 0: width / heads
    ffn_width: int
    norm: Norm = "pre"
    activation: Activation = "relu"
    dropout: float = 0.0
    kernel: Kernel | AttentionKernel = "softmax"
    terms: int = 3  # of the Maclaurin series, in the kernel "maclaurin"
    key_bias: bool = True  # whether the projection to keys has a bias, which softmax cancels

    def __post_init__(self) -> None:
        if not self.head_width:
            object.__setattr__(self, "head_width", self.width // self.heads)

    @property
    def attention_width(self) -> int:
        """The width of all heads together."""
        return self.heads * self.head_width
