"""Frontends: raw input -> Source, a feature vector for each position, and a padding mask."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Int16, Shaped, UInt8
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers import checks
from regard.layers.blocks import Dropout
from regard.layers.conv2d import Conv2d
from regard.layers.embedding import Embedding
from regard.layers.mel import (
    log_mel,
    mel_filters,
    per_band_normalisation,
    spec_augment,
    time_stretch,
)
from regard.layers.residual import PaddingMode, ResidualConvolution, convolution, norm
from regard.values import Source

Downsample = Literal["pool", "stride"]
Levels = Literal["relative", "bands", "absolute"]


class Frontend(nn.Module, ABC):
    """The interface of all frontends: raw input -> Source."""

    width: int  # of the feature vectors
    grid: tuple[int, int] | None = None  # height and width, if positions lie on a grid

    @abstractmethod
    def forward(self, raw: Shaped[Tensor, "B ..."], mask: Bool[Tensor, "B S"]) -> Source: ...

    def example(
        self, rows: int, length: int
    ) -> tuple[Shaped[Tensor, "B ..."], Bool[Tensor, "B S"]]:
        """A raw input without padding, with `length` positions if the length is variable, for
        counting costs."""
        raise InputError(f"{type(self).__name__} has no example to count costs on")


class Tokens(Frontend):
    """Text: a position is a token. `mark` is the token of the blank, in the blank task."""

    def __init__(
        self, *, vocabulary: int, width: int, dropout: float = 0.0, mark: int | None = None
    ):
        super().__init__()
        self.embedding = Embedding(vocabulary=vocabulary, width=width)
        self.dropout = Dropout(dropout)
        self.width = width
        self.mark = mark

    def forward(self, raw: Int[Tensor, "B S"], mask: Bool[Tensor, "B S"]) -> Source:
        blank_position = None if self.mark is None else (raw == self.mark).int().argmax(1)
        features = self.dropout(self.embedding(raw))
        return Source(features, mask, blank_position=blank_position)

    def example(self, rows: int, length: int) -> tuple[Int[Tensor, "B S"], Bool[Tensor, "B S"]]:
        tokens = torch.zeros(rows, length, dtype=torch.long)
        return tokens, torch.ones_like(tokens, dtype=torch.bool)


# -- pictures: bytes (B, h, w, C) of one size, so there is no padding and the mask is not used


class Pictures(Frontend):
    """The interface of frontends for pictures of one size and number of channels."""

    size: tuple[int, int]  # height and width in pixels
    channels_in: int

    def example(
        self, rows: int, length: int
    ) -> tuple[UInt8[Tensor, "B h w C"], Bool[Tensor, "B S"]]:
        raw = torch.zeros(rows, *self.size, self.channels_in, dtype=torch.uint8)
        return raw, torch.ones(rows, 1, dtype=torch.bool)


class Convolutions(Pictures):
    """Convolutions, each followed by ReLU; a position is a point of the last grid. Each
    convolution halves the grid, by 2 x 2 max pooling ("pool") or by a stride of 2 ("stride")."""

    def __init__(
        self,
        *,
        size: tuple[int, int],
        channels_in: int,
        channels: Sequence[int],
        padding: Sequence[int],
        kernel_size: int = 3,
        downsample: Downsample = "pool",
    ):
        super().__init__()
        self.size = size
        self.channels_in = channels_in
        self.pool = checks.one_of("downsample", downsample, Downsample) == "pool"
        layers = (
            Conv2d(a, b, kernel_size, stride=1 if self.pool else 2, padding=pixels)
            for (a, b), pixels in zip(pairwise([channels_in, *channels]), padding, strict=True)
        )
        self.layers = cast(list[nn.Conv2d], nn.ModuleList(layers))
        self.width = channels[-1]
        height, width = size
        for pixels in padding:
            height = _halved(height + 2 * pixels - kernel_size, self.pool)
            width = _halved(width + 2 * pixels - kernel_size, self.pool)
            if min(height, width) < 1:
                raise InputError(
                    "the picture is too small for this many convolutions",
                    got=f"{size[0]} x {size[1]}",
                )
        self.grid = (height, width)

    def forward(self, raw: UInt8[Tensor, "B h w C"], mask: Bool[Tensor, "B S"]) -> Source:
        x = _pixels(raw, self.size, self.channels_in).to(self.layers[0].weight.dtype)
        for layer in self.layers:
            x = layer(x).relu()
            x = F.max_pool2d(x, 2) if self.pool else x
        return _grid_source(x)


class ResidualConvolutions(Pictures):
    """A residual network; a position is a point of the last grid.

    The first convolution has the stride `stem`. One stage follows for each of `channels`: `blocks`
    residual convolutions, a norm and a ReLU. Each stage but the first begins with a convolution of
    stride 2.
    """

    def __init__(
        self,
        *,
        size: tuple[int, int],
        channels_in: int,
        channels: Sequence[int],
        blocks: int = 2,
        stem: int = 4,
        padding_mode: PaddingMode = "zeros",
        dropout: float = 0.0,
    ):
        super().__init__()
        self.size = size
        self.channels_in = channels_in
        self.width = channels[-1]
        layers: list[nn.Module] = [
            convolution(
                channels_in, channels[0], 2 * stem - 1, stride=stem, padding_mode=padding_mode
            )
        ]
        for n, stage_channels in enumerate(channels):
            if n > 0:
                layers.append(
                    convolution(
                        channels[n - 1], stage_channels, stride=2, padding_mode=padding_mode
                    )
                )
            layers += (
                ResidualConvolution(channels=stage_channels, padding_mode=padding_mode)
                for _ in range(blocks)
            )
            layers += [norm(stage_channels), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.dropout = Dropout(dropout)
        strides = (stem, *(2 for _ in channels[1:]))
        self.grid = (_after_strides(size[0], strides), _after_strides(size[1], strides))

    def forward(self, raw: UInt8[Tensor, "B h w C"], mask: Bool[Tensor, "B S"]) -> Source:
        weight = cast(nn.Conv2d, self.layers[0]).weight
        pixels = _pixels(raw, self.size, self.channels_in).to(weight.dtype)
        x = 4 * pixels - 2  # about unit variance
        x = x.contiguous(memory_format=torch.channels_last)  # makes group norm faster on a CPU
        return _grid_source(self.dropout(self.layers(x)))


class Patches(Pictures):
    """Patches of `patch` x `patch` pixels, each projected by the same matrix (Dosovitskiy et al.
    2021); a position is a patch."""

    def __init__(
        self,
        *,
        size: tuple[int, int],
        channels_in: int,
        patch: int,
        width: int,
        dropout: float = 0.0,
    ):
        super().__init__()
        if size[0] % patch or size[1] % patch:
            raise InputError(
                "patches must tile the picture", got=f"{patch} for {size[0]} x {size[1]} pixels"
            )
        self.size = size
        self.channels_in = channels_in
        self.width = width
        self.grid = (size[0] // patch, size[1] // patch)
        self.projection = Conv2d(channels_in, width, patch, stride=patch)
        self.dropout = Dropout(dropout)

    def forward(self, raw: UInt8[Tensor, "B h w C"], mask: Bool[Tensor, "B S"]) -> Source:
        x = _pixels(raw, self.size, self.channels_in).to(self.projection.weight.dtype)
        return _grid_source(self.dropout(self.projection(x)))


def _after_strides(side: int, strides: Sequence[int]) -> int:
    """The side of a grid after convolutions with these strides."""
    for stride in strides:
        side = -(-side // stride)
    return side


def _halved(side: int, pool: bool) -> int:
    """The side of a grid after pooling, or a stride of 2; `side` is one less than without them."""
    return (side + 1) // 2 if pool else side // 2 + 1


def _pixels(raw: Tensor, size: tuple[int, int], channels_in: int) -> Tensor:
    """Bytes (B, h, w, C) -> numbers in [0, 1), (B, C, h, w)."""
    if raw.shape[1:] != (*size, channels_in):
        raise InputError(
            f"pictures must have shape {(*size, channels_in)}", got=f"shape {tuple(raw.shape[1:])}"
        )
    return raw.permute(0, 3, 1, 2).to(torch.get_default_dtype()) / 256


def _grid_source(x: Float[Tensor, "B D h w"]) -> Source:
    """A Source of the points of a grid, without padding."""
    rows, _, height, width = x.shape
    mask = torch.ones(rows, height * width, dtype=torch.bool, device=x.device)
    return Source(x.flatten(2).transpose(1, 2), mask, (height, width))


# -- sounds: 16-bit samples (B, N), with a mask (B, N) that is False at padding


class Sound(Frontend):
    """Log-mel frames, then convolutions of kernel size 3 with GELU; a position is a frame after
    the `strides`.

    Without `channels` the convolutions run over time. With `channels` they run over time and mels,
    and each halves the mels: a pattern at another pitch is then recognised by the same weights
    (Abdel-Hamid et al. 2014).

    Log-mel energies are computed in every pass: that takes a tenth of a training step, and allows
    augmentation of the frames. With `frames` every sound is cut or padded to this many frames, and
    the padding counts as sound.
    """

    def __init__(
        self,
        *,
        rate: int,
        mels: int,
        window: int,
        hop: int,
        width: int,
        strides: Sequence[int],
        channels: Sequence[int] = (),
        frames: int | None = None,
        dynamic_range: float = 8.0,
        levels: Levels = "absolute",
        tempo_perturbation: float = 0.0,
        time_masks: int = 0,
        time_mask_width: float = 0.0,
        mel_masks: int = 0,
        mel_mask_width: float = 0.0,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.hop = hop
        self.frames = frames
        self.width = width
        self.dynamic_range = dynamic_range
        self.levels = checks.one_of("levels", levels, Levels)
        self.tempo_perturbation = tempo_perturbation
        # Of SpecAugment: axis, number of masks, largest width.
        self.masks = ((1, time_masks, time_mask_width), (2, mel_masks, mel_mask_width))
        self.filters: Tensor
        self.window: Tensor
        filters = mel_filters(mels=mels, window=window, rate=rate).float()
        self.register_buffer("filters", filters, persistent=False)
        self.register_buffer("window", torch.hann_window(window), persistent=False)
        self.out: nn.Linear | None = None
        if channels:
            sizes = zip(pairwise((1, *channels)), strides, strict=True)
            layers = (convolution(*sides, stride=(stride, 2)) for sides, stride in sizes)
            self.out = nn.Linear(channels[-1] * -(-mels // 2 ** len(channels)), width)
        else:
            layers = (
                nn.Conv1d(width if n else mels, width, 3, stride=s, padding=1)
                for n, s in enumerate(strides)
            )
        self.layers = cast(list[nn.Conv1d | nn.Conv2d], nn.ModuleList(layers))
        self.dropout = Dropout(dropout)

    def example(self, rows: int, length: int) -> tuple[Int16[Tensor, "B N"], Bool[Tensor, "B N"]]:
        strides = (layer.stride[0] for layer in self.layers)
        samples = torch.zeros(rows, length * self.hop * math.prod(strides), dtype=torch.int16)
        return samples, torch.ones_like(samples, dtype=torch.bool)

    def spectrogram(
        self, raw: Int16[Tensor, "B N"], mask: Bool[Tensor, "B N"]
    ) -> tuple[Float[Tensor, "B S M"], Bool[Tensor, "B S"]]:
        """The log-mel frames that the convolutions read, without augmentation, and their mask."""
        if self.frames is not None:
            missing = self.frames * self.hop - raw.shape[1]
            raw = F.pad(raw.masked_fill(~mask, 0), (0, missing))
            mask = torch.ones_like(F.pad(mask, (0, missing)))
        samples = raw.to(self.filters.dtype) / 32768
        x, mask = log_mel(
            samples,
            mask,
            filters=self.filters,
            window=self.window,
            hop=self.hop,
            dynamic_range=self.dynamic_range,
            relative=self.levels != "absolute",
        )
        if self.levels == "bands":
            x = per_band_normalisation(x, mask)
        return x, mask

    def forward(self, raw: Int16[Tensor, "B N"], mask: Bool[Tensor, "B N"]) -> Source:
        x, mask = self.spectrogram(raw, mask)
        if self.training and self.tempo_perturbation:
            draws = torch.rand(len(x), device=x.device, dtype=x.dtype) * 2 - 1
            x, mask = time_stretch(x, mask, (1 + self.tempo_perturbation) ** draws)
        for axis, count, widest in self.masks if self.training else ():
            if count:
                x = spec_augment(x, mask, axis=axis, count=count, widest=widest)

        x = x.transpose(1, 2) if self.out is None else x[:, None]  # (B, M, S) or (B, 1, S, M)
        for layer in self.layers:
            real = mask[:, None] if self.out is None else mask[:, None, :, None]
            x = F.gelu(layer(x.masked_fill(~real, 0)))
            mask = mask[:, :: layer.stride[0]]
        x = x.transpose(1, 2)
        if self.out is not None:
            x = F.gelu(self.out(x.flatten(2)))
        return Source(self.dropout(x), mask.contiguous())  # contiguous for the C decoder step
