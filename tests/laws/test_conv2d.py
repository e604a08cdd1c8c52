"""Convolutions in bfloat16 beside single precision."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from regard.layers.conv2d import Conv2d


@pytest.mark.parametrize("stride", [1, 2, (1, 2), 4], ids=str)
@pytest.mark.parametrize("channels", [(1, 8), (3, 2), (16, 32)], ids=str)
def test_bfloat16_differs_by_rounding(channels: tuple[int, int], stride: int | tuple[int, int]):
    for kernel_size, height, width in product((3, 4), (5, 9, 30), (1, 2, 3, 16, 24)):
        convolution = Conv2d(*channels, kernel_size, stride=stride, padding=kernel_size // 2)
        x = torch.randn(2, channels[0], height, width)
        exact = convolution(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rough = [convolution(x.bfloat16()) for _ in range(3)]
        for one in rough:
            torch.testing.assert_close(one.float(), exact, rtol=0.02, atol=0.05)
