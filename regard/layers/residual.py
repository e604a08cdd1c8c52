"""Residual convolutions over pictures (He et al. 2016, the form with the norm first):

    x <- x + W_2 * relu(norm(W_1 * relu(norm(x))))

The norm is a group norm (Wu and He 2018): a picture gives the same numbers alone and in any batch,
and there are no running means to save. Weights are initialised as in He et al. 2015, W_2 at half of
that.
"""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from regard.layers import checks
from regard.layers.conv2d import Conv2d

PaddingMode = Literal["zeros", "edge"]


def norm(channels: int) -> nn.GroupNorm:
    """Group norm with eight channels a group, or one group if 8 does not divide the channels."""
    return nn.GroupNorm(channels // 8 if channels % 8 == 0 else 1, channels)


def convolution(
    inputs: int,
    channels: int,
    kernel_size: int = 3,
    *,
    stride: int | tuple[int, int] = 1,
    bias: bool = True,
    padding_mode: PaddingMode = "zeros",
) -> Conv2d:
    """A 2-D convolution of odd `kernel_size` with padding, initialised for inputs after a ReLU.

    `padding_mode` "zeros" lets a position detect how near the border is; "edge" repeats the
    outermost pixels, which does not.
    """
    checks.one_of("padding_mode", padding_mode, PaddingMode)
    mode = "replicate" if padding_mode == "edge" else "zeros"
    layer = Conv2d(
        inputs,
        channels,
        kernel_size,
        stride=stride,
        padding=kernel_size // 2,
        padding_mode=mode,
        bias=bias,
    )
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return layer


class ResidualConvolution(nn.Module):
    """Two convolutions with a residual connection around them."""

    def __init__(self, *, channels: int, padding_mode: PaddingMode = "zeros"):
        super().__init__()
        self.norms = nn.ModuleList(norm(channels) for _ in range(2))
        self.first = convolution(channels, channels, bias=False, padding_mode=padding_mode)
        self.second = convolution(channels, channels, bias=False, padding_mode=padding_mode)
        self.second.weight.data /= 2

    def forward(self, x: Float[Tensor, "B C h w"]) -> Float[Tensor, "B C h w"]:
        y = self.first(self.norms[0](x).relu())
        y = self.second(self.norms[1](y).relu())
        return x + y
