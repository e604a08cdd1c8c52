"""The language CNN: convolutions of stride 2, so that every layer halves the length.

    L_{l+1}[b, t, i] = act( sum_{dt, i'} W[dt, i', i] L_l[b, 2t + dt, i'] - B[i] ),    dt = 0 .. kernel_size - 1

T places become one in log2(T) layers, and the places of a layer do not wait for each other: with a
processor for each, the time is that of the layers, however long the text.

What padding is, after halving: place t stands for the pair (2t, 2t + 1) of the layer below and is
real if either of the two is. So every real place stands in exactly one real place above it, n real
places at the start of a row become ceil(n / 2), and both are so whatever the kernel_size. What is
not real, and what lies past the end, is read as zero: a row gives the same numbers alone and padded
to any length.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.errors import InputError

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "tanh": torch.tanh,
}


def halved(mask: Bool[Tensor, "B S"]) -> Bool[Tensor, "B Half"]:
    """Which of the ceil(S / 2) places above are real: those of a pair with a real place in it.

    >>> halved(torch.tensor([[True, True, True, False, False]])).int().tolist()
    [[1, 1, 0]]
    """
    return F.pad(mask, (0, mask.shape[1] % 2)).unflatten(1, (-1, 2)).any(-1)


def halving_convolution(
    x: Float[Tensor, "B S I"], weight: Float[Tensor, "kernel_size I O"], bias: Float[Tensor, " O"]
) -> Float[Tensor, "B Half O"]:
    """sum_{dt, i'} weight[dt, i', i] x[b, 2t + dt, i'] - bias[i] for t < ceil(S / 2); x is zero
    past its end.

    >>> x = torch.tensor([[[1.0], [2.0], [3.0]]])
    >>> halving_convolution(x, weight=torch.ones(2, 1, 1), bias=torch.tensor([0.5])).tolist()
    [[[2.5], [2.5]]]
    """
    length, kernel_size = x.shape[1], weight.shape[0]
    past_the_end = 2 * ((length + 1) // 2 - 1) + kernel_size - length
    x = F.pad(x, (0, 0, 0, past_the_end))
    return F.conv1d(x.transpose(1, 2), weight.permute(2, 1, 0), -bias, stride=2).transpose(1, 2)


class HalvingConvolution(nn.Module):
    """One layer, and the mask of what it leaves."""

    def __init__(self, *, inputs: int, width: int, kernel_size: int, activation: str):
        super().__init__()
        if kernel_size < 2:
            raise InputError(
                "a kernel_size below 2 leaves every second place unread",
                where="kernel_size",
                got=kernel_size,
                hint="2 or more",
            )
        # He et al. 2015: keeps the size of what goes through a stack of these
        self.weight = nn.Parameter(
            torch.randn(kernel_size, inputs, width) * (2 / (kernel_size * inputs)) ** 0.5
        )
        self.bias = nn.Parameter(torch.zeros(width))
        self.activation = ACTIVATIONS[activation]

    def forward(
        self, x: Float[Tensor, "B S I"], mask: Bool[Tensor, "B S"]
    ) -> tuple[Float[Tensor, "B Half O"], Bool[Tensor, "B Half"]]:
        x = x.masked_fill(~mask[..., None], 0)
        return self.activation(halving_convolution(x, self.weight, self.bias)), halved(mask)
