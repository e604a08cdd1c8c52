"""Encoders: Source -> Memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers import checks
from regard.layers.blocks import Dropout, EncoderBlock
from regard.layers.convolution import ConvolutionActivation, HalvingConvolution
from regard.layers.kernels import kernel_of
from regard.layers.positions import NoPositions, Positions, check_kernel, grid
from regard.layers.recurrent import Cell, Directions, Recurrent, reverse_padded
from regard.layers.sizes import Norm, TransformerSizes
from regard.values import AttentionWeights, Capture, Memory, Source

Merge = Literal["concatenate", "sum"]
Summary = Literal["all", "mean"]


class Encoder(nn.Module, ABC):
    """The interface of all encoders: Source -> Memory."""

    width: int  # of the memory's states
    summary_width: int  # of the memory's summary

    @abstractmethod
    def forward(self, source: Source, *, capture: Capture = "none") -> Memory:
        """The memory. With `capture="all"`, `Memory.attention` has the weights of every attention
        layer; an encoder without attention has none."""


class RecurrentEncoder(Encoder):
    """LSTM or GRU in one or two directions. The summary is the top layer's last state in each
    direction.

    Two directions are either concatenated, each with half the width of the memory, or summed, each
    with its full width.

    With `residual`, the memory holds each input beside its context, M[s] = h[s] + x[s], as in
    Gehring et al. (2017, section 3.4). The last state holds the whole source, and a decoder that
    finds nothing else in the memory learns to attend to it alone.
    """

    def __init__(
        self,
        *,
        inputs: int,
        width: int,
        layers: int,
        cell: Cell = "lstm",
        directions: int = 2,
        merge: Merge = "concatenate",
        residual: bool = False,
        dropout: float = 0.0,
    ):
        super().__init__()
        checks.one_of("directions", directions, Directions)
        checks.one_of("merge", merge, Merge)
        if residual and inputs != width:
            raise InputError(
                "a residual connection needs inputs of the encoder's width",
                got=f"inputs of width {inputs}, encoder of width {width}",
                hint="make the widths equal, or use residual = false",
            )
        concatenated = directions == 2 and merge == "concatenate"
        if concatenated and width % 2:
            raise InputError(
                "two concatenated directions need an even width",
                got=width,
                hint="use an even width or merge = sum",
            )
        self.width = width
        self.summary_width = width
        self.summed = directions == 2 and merge == "sum"
        self.residual = residual
        self.rnn = Recurrent(
            cell=cell,
            inputs=inputs,
            width=width // 2 if concatenated else width,
            layers=layers,
            directions=directions,
            dropout=dropout,
        )

    def forward(self, source: Source, *, capture: Capture = "none") -> Memory:
        states, last = self.rnn.masked(source.features, source.mask)
        if self.summed:
            states = states.unflatten(-1, (2, -1)).sum(-2)  # (B, S, 2 D) -> (B, S, D)
            last = last.unflatten(-1, (2, -1)).sum(-2)
        if self.residual:
            states = states + source.features
        return Memory(states, source.mask, summary=last, grid=source.grid)


class BlankEncoder(Encoder):
    """The context of each position without the position itself:

        M[t] = [h_forward[t-1]; h_backward[t+1]]

    Two separate stacks of LSTM or GRU layers, one left to right and one right to left; with one
    direction M[t] = h_forward[t-1]. The summary is M at the blank position, or without one the last
    state in each direction.
    """

    def __init__(
        self,
        *,
        inputs: int,
        width: int,
        layers: int,
        cell: Cell = "lstm",
        directions: int = 2,
        dropout: float = 0.0,
    ):
        super().__init__()
        checks.one_of("directions", directions, Directions)
        if width % directions:
            raise InputError("two concatenated directions need an even width", got=width)
        self.width = width
        self.summary_width = width
        # One stack of layers for each direction, first forward, then backward.
        self.directions = nn.ModuleList(
            Recurrent(
                cell=cell, inputs=inputs, width=width // directions, layers=layers, dropout=dropout
            )
            for _ in range(directions)
        )

    def forward(self, source: Source, *, capture: Capture = "none") -> Memory:
        x, mask = source.features, source.mask
        length = mask.shape[1]
        last = (mask.sum(1, keepdim=True) - 1).clamp(min=0)  # (B, 1), the last real position
        positions = torch.arange(length, device=mask.device)
        reverse_index = ((last - positions) % length)[..., None]  # real positions, last one first

        contexts, last_states = [], []
        for direction, rnn in enumerate(self.directions):
            backward = direction == 1
            states = rnn(reverse_padded(x, reverse_index) if backward else x)
            last_states.append(_gather(states, last)[:, 0])
            previous = nn.functional.pad(states, (0, 0, 1, -1))  # h[t-1], zero at the first
            contexts.append(reverse_padded(previous, reverse_index) if backward else previous)
        states = torch.cat(contexts, dim=-1).masked_fill(~mask[..., None], 0)

        if source.blank_position is None:
            summary = torch.cat(last_states, dim=-1)
        else:
            summary = _gather(states, source.blank_position[:, None])[:, 0]
        return Memory(states, mask, summary, source.grid)


def _gather(x: Float[Tensor, "B S D"], positions: Int[Tensor, "B P"]) -> Float[Tensor, "B P D"]:
    """The vectors at these positions of each row."""
    return x.gather(1, positions[..., None].expand(-1, -1, x.shape[-1]))


class TransformerEncoder(Encoder):
    """Positions, then blocks of self-attention and feed-forward. The summary is the state at the
    blank position, or without one the mean of the states that are not padding."""

    def __init__(self, sizes: TransformerSizes, *, inputs: int, positions: Positions):
        super().__init__()
        checks.one_of("norm", sizes.norm, Norm)
        check_kernel(kernel_of(sizes), positions)
        width = sizes.width
        self.width = width
        self.summary_width = width
        self.input_projection = nn.Identity() if inputs == width else nn.Linear(inputs, width)
        self.positions = positions
        blocks = nn.ModuleList(EncoderBlock(sizes) for _ in range(sizes.layers))
        self.blocks = cast(list[EncoderBlock], blocks)
        self.final_norm = nn.LayerNorm(width) if sizes.norm == "pre" else nn.Identity()

    def forward(self, source: Source, *, capture: Capture = "none") -> Memory:
        checks.one_of("capture", capture, Capture)
        mask = source.mask
        places = self._places(source)
        x = self.positions.add(self.input_projection(source.features), places)
        rotation = self.positions.rotation(places)
        bias = self.positions.bias(places, places)

        key_mask = None if bool(mask.all()) else mask  # a mask that hides nothing only costs time
        if bias is not None:  # bias and mask become one tensor for all layers
            if key_mask is None:
                bias = bias[None]  # (1, H, S, S)
            else:
                bias = torch.where(mask[:, None, None], bias, -torch.inf)  # (B, H, S, S)
                key_mask = None

        attention: list[AttentionWeights] = []
        for n, block in enumerate(self.blocks):
            x, weights = block(x, key_mask, rotation=rotation, bias=bias, capture=capture)
            attention += block.captured(n, weights)
        x = self.final_norm(x)

        if source.blank_position is None:
            real = mask[..., None].to(x.dtype)
            summary = (x * real).sum(1) / real.sum(1).clamp(min=1)
        else:
            summary = _gather(x, source.blank_position[:, None])[:, 0]
        return Memory(x, mask, summary, source.grid, tuple(attention))

    def _places(self, source: Source) -> Tensor:
        """The indices of the positions: (S,), or (S, 2) on a grid."""
        if self.positions.axes == 2:
            if source.grid is None:
                raise InputError("positions with two axes need a grid", got="a sequence")
            return grid(*source.grid, device=source.mask.device)
        return torch.arange(source.mask.shape[1], device=source.mask.device)


class IdentityEncoder(Encoder):
    """No layers: the memory is the source. The summary is the mean of all positions ("mean"), or
    all of them concatenated, channel by channel ("all"), as the input of dense layers; so their
    number is fixed."""

    def __init__(self, *, inputs: int, places: int, summary: Summary = "all"):
        super().__init__()
        self.mean = checks.one_of("summary", summary, Summary) == "mean"
        self.width = inputs
        self.summary_width = inputs if self.mean else inputs * places

    def forward(self, source: Source, *, capture: Capture = "none") -> Memory:
        if self.mean:
            summary = source.features.mean(1)
        else:
            summary = source.features.transpose(1, 2).flatten(1)
        return Memory(source.features, source.mask, summary, source.grid)


class ConvolutionEncoder(Encoder):
    """The language CNN: each layer halves the length, so the memory has ceil(S / 2^layers)
    positions, and its own mask.

    The summary is the mean of the positions that are not padding. A position of the memory stands
    for 2^layers positions of the source; its receptive field extends beyond them, depending on
    `kernel_size`. A shorter source becomes one position. `positions` are added to the source.
    """

    def __init__(
        self,
        *,
        inputs: int,
        width: int,
        layers: int,
        kernel_size: int = 3,
        positions: Positions | None = None,
        activation: ConvolutionActivation = "relu",
        dropout: float = 0.0,
    ):
        super().__init__()
        self.width = width
        self.summary_width = width
        self.positions = positions or NoPositions()
        self.layers = nn.ModuleList(
            HalvingConvolution(
                inputs=inputs if n == 0 else width,
                width=width,
                kernel_size=kernel_size,
                activation=activation,
            )
            for n in range(layers)
        )
        self.dropout = Dropout(dropout)

    def forward(self, source: Source, *, capture: Capture = "none") -> Memory:
        x, mask = source.features, source.mask
        x = self.positions.add(x, torch.arange(mask.shape[1], device=mask.device))
        for n, layer in enumerate(self.layers):
            x, mask = layer(x if n == 0 else self.dropout(x), mask)
        x = x.masked_fill(~mask[..., None], 0)
        summary = x.sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        return Memory(x, mask, summary)
