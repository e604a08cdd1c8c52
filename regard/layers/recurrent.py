"""Recurrent layers: LSTM and GRU over padded batches, and single steps with the same weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.layers import checks
from regard.layers.blocks import Dropout

Cell = Literal["lstm", "gru"]
Directions = Literal[1, 2]
CELLS = {"lstm": nn.LSTM, "gru": nn.GRU}


class Recurrent(nn.Module):
    """A stack of LSTM or GRU layers in one or two directions, with dropout between the layers.

    `cells` are the states (h, c) of an LSTM or (h,) of a GRU, each (N, B, D) as in torch.
    """

    def __init__(
        self,
        *,
        cell: Cell,
        inputs: int,
        width: int,
        layers: int,
        directions: int = 1,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.cell = checks.one_of("cell", cell, Cell)
        self.width = width
        self.directions = checks.one_of("directions", directions, Directions)
        self.layers = nn.ModuleList(
            CELLS[cell](
                inputs if n == 0 else width * directions,
                width,
                bidirectional=directions == 2,
                batch_first=True,
            )
            for n in range(layers)
        )
        self.dropout = Dropout(dropout)
        if cell == "lstm":
            self._open_forget_gates()

    def _open_forget_gates(self) -> None:
        """Sets the bias of the forget gates to 1, so that gradients pass from the start
        (Jozefowicz et al. 2015)."""
        for name, bias in self.named_parameters():
            if "bias_ih" in name:
                nn.init.ones_(bias.detach()[self.width : 2 * self.width])

    def forward(
        self, x: Float[Tensor, "B T I"], cells: tuple[Float[Tensor, "N B D"], ...] | None = None
    ) -> Float[Tensor, "B T D"]:
        """The top layer's states of rows whose padding, if any, is at the end (which does not
        affect the forward direction). `cells` are the initial states, zero by default."""
        for n, layer in enumerate(self.layers):
            start = None
            if cells is not None:
                start = tuple(state[n : n + 1].contiguous() for state in cells)
                start = start if self.cell == "lstm" else start[0]
            x, _ = layer(x if n == 0 else self.dropout(x), start)
        return x

    def masked(
        self, x: Float[Tensor, "B S I"], mask: Bool[Tensor, "B S"]
    ) -> tuple[Float[Tensor, "B S E"], Float[Tensor, "B E"]]:
        """The top layer's states of padded rows (undefined at padding), and its last state in each
        direction.

        No state of a real position depends on padding: the backward direction starts at each row's
        last real position. Rows are reversed rather than packed, because packed rows do not use
        torch's fast LSTM kernel.
        """
        lengths = mask.sum(1, keepdim=True).clamp(min=1)
        positions = torch.arange(x.shape[1], device=x.device)
        reverse_index = torch.where(positions < lengths, lengths - 1 - positions, positions)
        reverse_index = reverse_index[..., None]  # (B, S, 1)
        rows = torch.arange(len(x), device=x.device)
        last = lengths.squeeze(1) - 1

        last_states: list[Tensor] = []
        for n, layer in enumerate(self.layers):
            x = x if n == 0 else self.dropout(x)
            weights = cast(nn.RNNBase, layer).all_weights  # one list for each direction
            states = [self._one_direction(x, weights[0])]
            if self.directions == 2:
                states.append(self._one_direction(reverse_padded(x, reverse_index), weights[1]))
            last_states = [direction[rows, last] for direction in states]
            forward, *backward = states
            reversed_back = (reverse_padded(direction, reverse_index) for direction in backward)
            x = torch.cat([forward, *reversed_back], dim=-1)
        return x, torch.cat(last_states, dim=-1)

    def _one_direction(
        self, x: Float[Tensor, "B S I"], weights: Sequence[Tensor]
    ) -> Float[Tensor, "B S D"]:
        """The states of one layer in one direction, with an initial state of zeros."""
        start = x.new_zeros(1, len(x), self.width)
        if self.cell == "lstm":
            return torch.lstm(
                x, (start, start), list(weights), True, 1, 0.0, self.training, False, True
            )[0]
        return torch.gru(x, start, list(weights), True, 1, 0.0, self.training, False, True)[0]

    def step(
        self, x: Float[Tensor, "B I"], cells: tuple[Float[Tensor, "N B D"], ...]
    ) -> tuple[Float[Tensor, "B D"], tuple[Float[Tensor, "N B D"], ...]]:
        """One position: the top layer's state, and the next cells (one direction only)."""
        layer_cells: list[tuple[Tensor, ...]] = []
        for n, layer in enumerate(self.layers):
            weights = cast(nn.RNNBase, layer).all_weights[0]
            x = x if n == 0 else self.dropout(x)
            if self.cell == "lstm":
                next_cells = torch.lstm_cell(x, (cells[0][n], cells[1][n]), *weights)
            else:
                next_cells = (torch.gru_cell(x, cells[0][n], *weights),)
            layer_cells.append(next_cells)
            x = next_cells[0]
        return x, tuple(torch.stack(states) for states in zip(*layer_cells, strict=True))


class _ReversePadded(torch.autograd.Function):
    """x[b, index[b, s]] for an index that is its own inverse: the gradient uses the same index, so
    nothing else is saved."""

    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        return x.gather(1, index.expand(-1, -1, x.shape[2]))

    @staticmethod
    def backward(ctx, *grads):
        (index,) = ctx.saved_tensors
        return grads[0].gather(1, index.expand(-1, -1, grads[0].shape[2])), None


def reverse_padded(
    x: Float[Tensor, "B S I"], reverse_index: Int[Tensor, "B S 1"]
) -> Float[Tensor, "B S I"]:
    """Each row of x with its real positions in reverse order. `reverse_index` must be its own
    inverse."""
    return cast(Tensor, _ReversePadded.apply(x, reverse_index))
