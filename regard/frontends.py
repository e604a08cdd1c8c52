"""Frontends turn the raw input into a Source: places with features, and which of them are real."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Int16, Shaped, UInt8
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.attention import part
from regard.layers.blocks import Dropout
from regard.layers.mel import (
    log_mel,
    mel_filters,
    per_band_normalisation,
    spec_augment,
    time_stretch,
)
from regard.layers.residual import PaddingMode, ResidualConvolution, convolution, norm
from regard.values import Source


class Embedding(nn.Module):
    """sqrt(D) e[w]: vectors of unit variance, from a matrix whose rows have norm 1, as an output
    matrix should."""

    def __init__(self, *, vocabulary: int, width: int):
        super().__init__()
        self.scale = math.sqrt(width)
        self.table = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.table.weight, std=width**-0.5)

    @property
    def weight(self) -> Float[Tensor, "V D"]:
        return self.table.weight

    def forward(self, tokens: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows D"]:
        return self.table(tokens) * self.scale

    def step(self, token: Int[Tensor, " B"]) -> Float[Tensor, "B D"]:
        """The same for one place, without what a module call does around it."""
        return (
            nn.functional.embedding(token, part(self, "table")._parameters["weight"]) * self.scale
        )


class Frontend(nn.Module, ABC):
    """Makes places of `width` from the raw input; those of a picture lie on a `grid` (h, w)."""

    width: int
    grid: tuple[int, int] | None = None

    @abstractmethod
    def forward(self, raw: Shaped[Tensor, "B ..."], mask: Bool[Tensor, "B S"]) -> Source: ...

    def example(
        self, rows: int, length: int
    ) -> tuple[Shaped[Tensor, "B ..."], Bool[Tensor, "B S"]]:
        """Raw input without padding, `length` places long where that is free: what a cost is
        counted on."""
        raise InputError(f"{type(self).__name__} has no example to be counted on")


class Tokens(Frontend):
    """A place is a token of text. Where there is a `mark`, the place where it stands is asked
    about."""

    def __init__(
        self, *, vocabulary: int, width: int, dropout: float = 0.0, mark: int | None = None
    ):
        super().__init__()
        self.embedding = Embedding(vocabulary=vocabulary, width=width)
        self.dropout = Dropout(dropout)
        self.width, self.mark = width, mark

    def forward(self, raw: Int[Tensor, "B S"], mask: Bool[Tensor, "B S"]) -> Source:
        asked = None if self.mark is None else (raw == self.mark).int().argmax(1)
        return Source(self.dropout(self.embedding(raw)), mask, asked=asked)

    def example(self, rows: int, length: int) -> tuple[Int[Tensor, "B S"], Bool[Tensor, "B S"]]:
        return torch.zeros(rows, length, dtype=torch.long), torch.ones(
            rows, length, dtype=torch.bool
        )


# -- pictures: (B, h, w, C) of bytes, of one size, so that there is no padding and the mask says not


class Pictures(Frontend):
    """What reads pictures of one size and as many channels."""

    size: tuple[int, int]
    channels_in: int

    def example(
        self, rows: int, length: int
    ) -> tuple[UInt8[Tensor, "B h w C"], Bool[Tensor, "B S"]]:
        raw = torch.zeros(rows, *self.size, self.channels_in, dtype=torch.uint8)
        return raw, torch.ones(rows, 1, dtype=torch.bool)


class Convolutions(Pictures):
    """A place is a point of the grid that convolutions leave. Each is followed by ReLU and
    halves the grid: by the largest of each 2 x 2 points ("pool"), or by making every second
    point only ("stride")."""

    def __init__(
        self,
        *,
        size: tuple[int, int],
        channels_in: int,
        channels: Sequence[int],
        padding: Sequence[int],
        kernel_size: int = 3,
        downsample: str = "pool",
    ):
        super().__init__()
        self.size, self.channels_in, self.pool = size, channels_in, downsample == "pool"
        layers = (
            nn.Conv2d(a, b, kernel_size, stride=1 if self.pool else 2, padding=pixels)
            for (a, b), pixels in zip(pairwise([channels_in, *channels]), padding, strict=True)
        )
        self.layers = cast(list[nn.Conv2d], nn.ModuleList(layers))
        self.width = channels[-1]
        sides = size
        for pixels in padding:
            inner = [side + 2 * pixels - kernel_size for side in sides]
            sides = (_halved(inner[0], self.pool), _halved(inner[1], self.pool))
            if min(sides) < 1:
                raise InputError(
                    "the picture is too small for so many convolutions",
                    got=f"{size[0]} x {size[1]}",
                )
        self.grid = sides

    def forward(self, raw: UInt8[Tensor, "B h w C"], mask: Bool[Tensor, "B S"]) -> Source:
        x = _pixels(raw, self.size, self.channels_in).to(self.layers[0].weight.dtype)
        for layer in self.layers:
            x = layer(x).relu()
            x = F.max_pool2d(x, 2) if self.pool else x
        return _gridded(x)


class ResidualConvolutions(Pictures):
    """A place is a point of the grid that a deeper net leaves: a first convolution that makes
    every `stem`-th point only, then stages of `blocks` residual convolutions, each ending in a
    norm and on a grid half as fine as the one before it."""

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
        self.size, self.channels_in, self.width = size, channels_in, channels[-1]
        layers: list[nn.Module] = [
            convolution(
                channels_in, channels[0], 2 * stem - 1, stride=stem, padding_mode=padding_mode
            )
        ]
        for n, wide in enumerate(channels):
            if n:
                layers.append(
                    convolution(channels[n - 1], wide, stride=2, padding_mode=padding_mode)
                )
            layers += (
                ResidualConvolution(channels=wide, padding_mode=padding_mode) for _ in range(blocks)
            )
            layers += [norm(wide), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.dropout = Dropout(dropout)
        steps = (stem, *(2 for _ in channels[1:]))
        self.grid = (_strode(size[0], steps), _strode(size[1], steps))

    def forward(self, raw: UInt8[Tensor, "B h w C"], mask: Bool[Tensor, "B S"]) -> Source:
        weight = cast(nn.Conv2d, self.layers[0]).weight
        x = (
            4 * _pixels(raw, self.size, self.channels_in).to(weight.dtype) - 2
        )  # about unit variance
        # the norm is a quarter faster on a CPU where the channels of a point lie together
        return _gridded(self.dropout(self.layers(x.contiguous(memory_format=torch.channels_last))))


class Patches(Pictures):
    """A place is a square of `patch` x `patch` pixels, each mapped by the same matrix
    (Dosovitskiy et al. 2021)."""

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
        self.size, self.channels_in, self.width = size, channels_in, width
        self.grid = (size[0] // patch, size[1] // patch)
        self.cut = nn.Conv2d(channels_in, width, patch, stride=patch)
        self.dropout = Dropout(dropout)

    def forward(self, raw: UInt8[Tensor, "B h w C"], mask: Bool[Tensor, "B S"]) -> Source:
        x = _pixels(raw, self.size, self.channels_in).to(self.cut.weight.dtype)
        return _gridded(self.dropout(self.cut(x)))


def _strode(side: int, steps: Sequence[int]) -> int:
    """What is left of a side after strides."""
    for step in steps:
        side = -(-side // step)
    return side


def _halved(side: int, pool: bool) -> int:
    return (side + 1) // 2 if pool else side // 2 + 1


def _pixels(raw: Tensor, size: tuple[int, int], channels_in: int) -> Tensor:
    """Bytes (B, h, w, C) as numbers in [0, 1), (B, C, h, w)."""
    if raw.shape[1:] != (*size, channels_in):
        raise InputError(
            f"pictures must have shape {(*size, channels_in)}", got=f"shape {tuple(raw.shape[1:])}"
        )
    return raw.permute(0, 3, 1, 2).to(torch.get_default_dtype()) / 256


def _gridded(x: Float[Tensor, "B D h w"]) -> Source:
    rows, _, height, width = x.shape
    mask = torch.ones(rows, height * width, dtype=torch.bool, device=x.device)
    return Source(x.flatten(2).transpose(1, 2), mask, (height, width))


# -- sounds: (B, N) of 16-bit samples, with a mask (B, N) of those that are real--------------------


class Sound(Frontend):
    """A place is what convolutions of reach 3 leave of frames of log-mel energies; a stride of 2
    halves their number. With `channels` they go over time and over the mels, which each of them
    halves: what another voice says a little higher is then found a little higher, and need not be
    learned again (Abdel-Hamid et al. 2014).

    Energies are made anew in every pass: that takes a tenth of a step, and lets training bend the
    samples first. With `frames` every sound is cut or filled up to as many, and the silence at its
    end counts as sound.
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
        levels: str = "absolute",
        tempo_perturbation: float = 0.0,
        time_masks: int = 0,
        time_mask_width: float = 0.0,
        mel_masks: int = 0,
        mel_mask_width: float = 0.0,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.hop, self.frames, self.width = hop, frames, width
        self.dynamic_range, self.levels, self.tempo_perturbation = (
            dynamic_range,
            levels,
            tempo_perturbation,
        )
        self.masks = ((1, time_masks, time_mask_width), (2, mel_masks, mel_mask_width))
        self.filters: Tensor
        self.shape: Tensor
        self.register_buffer(
            "filters", mel_filters(mels=mels, window=window, rate=rate).float(), persistent=False
        )
        self.register_buffer("shape", torch.hann_window(window), persistent=False)
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

    def forward(self, raw: Int16[Tensor, "B N"], mask: Bool[Tensor, "B N"]) -> Source:
        if self.frames is not None:
            more = self.frames * self.hop - raw.shape[1]
            raw, mask = (
                F.pad(raw.masked_fill(~mask, 0), (0, more)),
                torch.ones_like(F.pad(mask, (0, more))),
            )
        samples = raw.to(self.filters.dtype) / 32768
        x, mask = log_mel(
            samples,
            mask,
            filters=self.filters,
            shape=self.shape,
            hop=self.hop,
            dynamic_range=self.dynamic_range,
            relative=self.levels != "absolute",
        )
        x = per_band_normalisation(x, mask) if self.levels == "bands" else x
        if self.training and self.tempo_perturbation:
            draws = torch.rand(len(x), device=x.device, dtype=x.dtype) * 2 - 1
            x, mask = time_stretch(x, mask, (1 + self.tempo_perturbation) ** draws)
        for axis, count, widest in self.masks if self.training else ():
            x = spec_augment(x, mask, axis=axis, count=count, widest=widest) if count else x
        x = x.transpose(1, 2) if self.out is None else x[:, None]  # (B, M, S) or (B, 1, S, M)
        for layer in self.layers:
            real = mask[:, None] if self.out is None else mask[:, None, :, None]
            x, mask = F.gelu(layer(x.masked_fill(~real, 0))), mask[:, :: layer.stride[0]]
        x = x.transpose(1, 2)
        x = x if self.out is None else F.gelu(self.out(x.flatten(2)))
        return Source(
            self.dropout(x), mask.contiguous()
        )  # the kernel of a decoder's step reads it as it lies
