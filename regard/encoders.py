"""Encoders: Source -> Memory."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.blocks import Dropout, EncoderBlock
from regard.layers.convolution import HalvingConvolution
from regard.layers.positions import NoPositions, Positions, grid, no_bias
from regard.layers.recurrent import Recurrent, reverse_padded
from regard.values import Memory, Source


class Encoder(nn.Module, ABC):
    """Reads a Source and leaves a Memory of `width`, with a summary of `summary_width`."""

    width: int
    summary_width: int

    @abstractmethod
    def forward(self, source: Source) -> Memory: ...


class RecurrentEncoder(Encoder):
    """LSTM or GRU, one or two directions. The summary is the *top* layer's last state in each
    direction.

    Two directions are either concatenated, each half as wide, or summed, each as wide as the
    memory.
    """

    def __init__(
        self,
        *,
        inputs: int,
        width: int,
        layers: int,
        cell: str = "lstm",
        directions: int = 2,
        merge: str = "concatenate",
        dropout: float = 0.0,
    ):
        super().__init__()
        halved = directions == 2 and merge == "concatenate"
        if halved and width % 2:
            raise InputError(
                "two concatenated directions need an even width",
                got=width,
                hint="use an even width or merge = sum",
            )
        each = width // 2 if halved else width
        self.width, self.summary_width, self.summed = (
            width,
            width,
            directions == 2 and merge == "sum",
        )
        self.rnn = Recurrent(
            cell=cell,
            inputs=inputs,
            width=each,
            layers=layers,
            directions=directions,
            dropout=dropout,
        )

    def forward(self, source: Source) -> Memory:
        states, last = self.rnn.masked(source.features, source.mask)
        if self.summed:
            states = states.unflatten(-1, (2, -1)).sum(-2)
            last = last.unflatten(-1, (2, -1)).sum(-2)
        return Memory(states, source.mask, last, source.grid)


class BlankEncoder(Encoder):
    """What stands around each place, and never the place itself:

        M[t] = [h_fwd[t-1]; h_bwd[t+1]]

    Two stacks of LSTM or GRU layers, left to right and right to left, which never read each other;
    with one direction M[t] = h_fwd[t-1]. The summary is M at the place that is asked about, or else
    the last state in each direction.
    """

    def __init__(
        self,
        *,
        inputs: int,
        width: int,
        layers: int,
        cell: str = "lstm",
        directions: int = 2,
        dropout: float = 0.0,
    ):
        super().__init__()
        if width % directions:
            raise InputError("two directions side by side need an even width", got=width)
        self.width = self.summary_width = width
        self.ways = nn.ModuleList(
            Recurrent(
                cell=cell, inputs=inputs, width=width // directions, layers=layers, dropout=dropout
            )
            for _ in range(directions)
        )

    def forward(self, source: Source) -> Memory:
        x, mask = source.features, source.mask
        last = (mask.sum(1, keepdim=True) - 1).clamp(min=0)  # (B, 1)
        places = torch.arange(mask.shape[1], device=mask.device)
        backwards = ((last - places) % mask.shape[1])[..., None]  # real places, last first
        around, ends = [], []
        for way, rnn in enumerate(self.ways):
            states = rnn(x if way == 0 else reverse_padded(x, backwards))
            ends.append(_at(states, last)[:, 0])
            before = nn.functional.pad(states, (0, 0, 1, -1))  # h[t-1], nothing before the first
            around.append(before if way == 0 else reverse_padded(before, backwards))
        states = torch.cat(around, dim=-1).masked_fill(~mask[..., None], 0)
        summary = (
            torch.cat(ends, dim=-1)
            if source.asked is None
            else _at(states, source.asked[:, None])[:, 0]
        )
        return Memory(states, mask, summary, source.grid)


def _at(x: Float[Tensor, "B S D"], places: Int[Tensor, "B P"]) -> Float[Tensor, "B P D"]:
    """What stands at the places of each row."""
    return x.gather(1, places[..., None].expand(-1, -1, x.shape[-1]))


class TransformerEncoder(Encoder):
    """Positions, then blocks of self-attention and feed-forward. The summary is the mean of the
    real places, or the state of the place that is asked about."""

    def __init__(
        self,
        *,
        inputs: int,
        width: int,
        layers: int,
        heads: int,
        head_width: int | None = None,
        ffn_width: int,
        positions: Positions,
        norm: str = "pre",
        activation: str = "relu",
        dropout: float = 0.0,
        kernel: str = "softmax",
        terms: int = 3,
        key_bias: bool = True,
    ):
        super().__init__()
        self.width = self.summary_width = width
        no_bias(kernel, positions)
        self.input_projection = nn.Identity() if inputs == width else nn.Linear(inputs, width)
        self.positions = positions
        self.blocks = nn.ModuleList(
            EncoderBlock(
                width=width,
                heads=heads,
                head_width=head_width,
                ffn_width=ffn_width,
                norm=norm,
                activation=activation,
                dropout=dropout,
                kernel=kernel,
                terms=terms,
                key_bias=key_bias,
            )
            for _ in range(layers)
        )
        self.final_norm = nn.LayerNorm(width) if norm == "pre" else nn.Identity()

    def forward(self, source: Source) -> Memory:
        x, mask = self.input_projection(source.features), source.mask
        places = self._places(source)
        x = self.positions.add(x, places)
        rotation, bias = self.positions.rotation(places), self.positions.bias(places, places)
        looked_at = None if bool(mask.all()) else mask  # a mask that hides nothing only costs time
        if bias is not None:  # it takes the mask in: one tensor for all layers
            bias = (
                bias[None]
                if looked_at is None
                else torch.where(mask[:, None, None], bias, -torch.inf)
            )
            looked_at = None
        for block in self.blocks:
            x = block(x, looked_at, rotation=rotation, bias=bias)
        x = self.final_norm(x)
        if source.asked is not None:
            return Memory(x, mask, _at(x, source.asked[:, None])[:, 0], source.grid)
        real = mask[..., None].to(x.dtype)
        return Memory(x, mask, (x * real).sum(1) / real.sum(1).clamp(min=1), source.grid)

    def _places(self, source: Source) -> Tensor:
        """(S,), or (S, 2) for positions on a grid."""
        if self.positions.axes == 2:
            if source.grid is None:
                raise InputError("positions with two axes need places on a grid", got="a sequence")
            return grid(*source.grid).to(source.mask.device)
        return torch.arange(source.mask.shape[1], device=source.mask.device)


class IdentityEncoder(Encoder):
    """No layers. The places are left as they are. The summary is their mean, or ("all") all of
    them side by side, channel by channel, as a net that ends in dense layers wants them; so
    their number is fixed."""

    def __init__(self, *, inputs: int, places: int, summary: str = "all"):
        super().__init__()
        self.mean = summary == "mean"
        self.width, self.summary_width = inputs, inputs * (1 if self.mean else places)

    def forward(self, source: Source) -> Memory:
        if self.mean:
            return Memory(source.features, source.mask, source.features.mean(1), source.grid)
        return Memory(
            source.features, source.mask, source.features.transpose(1, 2).flatten(1), source.grid
        )


class ConvolutionEncoder(Encoder):
    """The language CNN: each layer halves the length, so the memory has ceil(S / 2^layers) places,
    and its own mask.

    The summary is the mean of the real places. A place of the memory stands for 2^layers places of
    the source and reads on past them as far as `kernel_size` goes; a source shorter than that
    becomes one place. Without `positions` a place knows what it reads, and not where.
    """

    def __init__(
        self,
        *,
        inputs: int,
        width: int,
        layers: int,
        kernel_size: int = 3,
        positions: Positions | None = None,
        activation: str = "relu",
        dropout: float = 0.0,
    ):
        super().__init__()
        self.width = self.summary_width = width
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

    def forward(self, source: Source) -> Memory:
        x, mask = source.features, source.mask
        x = self.positions.add(x, torch.arange(mask.shape[1], device=mask.device))
        for n, layer in enumerate(self.layers):
            x, mask = layer(x if n == 0 else self.dropout(x), mask)
        x = x.masked_fill(~mask[..., None], 0)
        return Memory(x, mask, x.sum(1) / mask.sum(1, keepdim=True).clamp(min=1))
