"""The language CNN: convolutions of stride 2, so that every layer halves the length.

    L_{l+1}[b, t, i] = act( sum_{dt, i'} W[dt, i', i] L_l[b, 2t + dt, i'] - B[i] )
    dt = 0 .. kernel_size - 1

T positions become one in log2(T) layers. The positions of a layer do not depend on each other, so
with enough processors the time depends on the number of layers only.

The mask is halved as well: position t stands for the pair (2t, 2t + 1) of the layer below and is
real if either of the two is. So n real positions at the start of a row become ceil(n / 2), whatever
the kernel_size. Padding, and what lies beyond the end, is read as zero: a row gives the same
numbers alone and padded to any length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers import checks

ConvolutionActivation = Literal["relu", "gelu", "tanh"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "tanh": torch.tanh,
}


def halved(mask: Bool[Tensor, "B S"]) -> Bool[Tensor, "B Half"]:
    """The mask of the next layer's ceil(S / 2) positions: True for a pair with a real position.

    >>> halved(torch.tensor([[True, True, True, False, False]])).int().tolist()
    [[1, 1, 0]]
    """
    return F.pad(mask, (0, mask.shape[1] % 2)).unflatten(1, (-1, 2)).any(-1)


def halving_convolution(
    x: Float[Tensor, "B S I"], weight: Float[Tensor, "kernel_size I O"], bias: Float[Tensor, " O"]
) -> Float[Tensor, "B Half O"]:
    """sum_{dt, i'} weight[dt, i', i] x[b, 2t + dt, i'] - bias[i] for t < ceil(S / 2), where x is
    zero beyond its end.

    >>> x = torch.tensor([[[1.0], [2.0], [3.0]]])
    >>> halving_convolution(x, weight=torch.ones(2, 1, 1), bias=torch.tensor([0.5])).tolist()
    [[[2.5], [2.5]]]
    """
    length = x.shape[1]
    kernel_size = weight.shape[0]
    padding = 2 * ((length + 1) // 2 - 1) + kernel_size - length
    x = F.pad(x, (0, 0, 0, padding))
    return F.conv1d(x.transpose(1, 2), weight.permute(2, 1, 0), -bias, stride=2).transpose(1, 2)


class HalvingConvolution(nn.Module):
    """One layer of the language CNN: the halved sequence and its mask."""

    def __init__(
        self, *, inputs: int, width: int, kernel_size: int, activation: ConvolutionActivation
    ):
        super().__init__()
        if kernel_size < 2:
            raise InputError(
                "a kernel_size below 2 skips every second position",
                where="kernel_size",
                got=kernel_size,
                hint="2 or more",
            )
        # Initialised as in He et al. 2015, which keeps the variance through a stack of layers.
        self.weight = nn.Parameter(
            torch.randn(kernel_size, inputs, width) * (2 / (kernel_size * inputs)) ** 0.5
        )
        self.bias = nn.Parameter(torch.zeros(width))
        checks.one_of("activation", activation, ConvolutionActivation)
        self.activation = ACTIVATIONS[activation]

    def forward(
        self, x: Float[Tensor, "B S I"], mask: Bool[Tensor, "B S"]
    ) -> tuple[Float[Tensor, "B Half O"], Bool[Tensor, "B Half"]]:
        x = x.masked_fill(~mask[..., None], 0)
        return self.activation(halving_convolution(x, self.weight, self.bias)), halved(mask)
