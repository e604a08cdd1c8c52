"""Residual convolutions over pictures (He et al. 2016, the form with the norm first):

    x <- x + W_2 * relu(norm(W_1 * relu(norm(x))))

The norm is over groups of channels of one picture (Wu and He 2018): a picture gives the same
numbers alone and in any batch, and there are no running means to save. Weights begin as He et al.
2015 say, W_2 at half of that.
"""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

PaddingMode = Literal["zeros", "edge"]


def norm(channels: int) -> nn.GroupNorm:
    """Eight channels a group, if that comes out even."""
    return nn.GroupNorm(channels // 8 if channels % 8 == 0 else 1, channels)


def convolution(
    inputs: int,
    channels: int,
    kernel_size: int = 3,
    *,
    stride: int | tuple[int, int] = 1,
    bias: bool = True,
    padding_mode: PaddingMode = "zeros",
) -> nn.Conv2d:
    """Every `stride`-th place; what it makes of numbers that went through ReLU is as large as
    they are. `around` them it reads zeros, by which a place knows how far the edge is, or the
    outermost ones again, and no place stands out."""
    mode = "replicate" if padding_mode == "edge" else "zeros"
    layer = nn.Conv2d(
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
    def __init__(self, *, channels: int, padding_mode: PaddingMode = "zeros"):
        super().__init__()
        self.norms = nn.ModuleList(norm(channels) for _ in range(2))
        self.first, self.second = (
            convolution(channels, channels, bias=False, padding_mode=padding_mode) for _ in range(2)
        )
        self.second.weight.data /= 2

    def forward(self, x: Float[Tensor, "B C h w"]) -> Float[Tensor, "B C h w"]:
        return x + self.second(self.norms[1](self.first(self.norms[0](x).relu())).relu())
