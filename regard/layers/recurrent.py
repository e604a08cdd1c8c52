"""Recurrent layers: LSTM and GRU over padded batches, and one step of them, from the same weights."""

from __future__ import annotations

from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.layers.blocks import Dropout

CELLS = {"lstm": nn.LSTM, "gru": nn.GRU}


class Recurrent(nn.Module):
    """A stack of LSTM or GRU layers in one or two directions, dropout between the layers.

    `carried` is (h, c) for an LSTM and (h,) for a GRU, each (N, B, D) as torch has it.
    """

    def __init__(self, *, cell: str, inputs: int, width: int, layers: int, directions: int = 1, dropout: float = 0.0):
        super().__init__()
        self.cell, self.width, self.directions = cell, width, directions
        self.layers = nn.ModuleList(
            CELLS[cell](
                inputs if n == 0 else width * directions, width, bidirectional=directions == 2, batch_first=True
            )
            for n in range(layers)
        )
        self.dropout = Dropout(dropout)
        if cell == "lstm":
            self._open_forget_gates()

    def _open_forget_gates(self) -> None:
        """A forget gate that starts open (bias 1) lets gradients through at once (Jozefowicz et al. 2015)."""
        for name, bias in self.named_parameters():
            if "bias_ih" in name:
                nn.init.ones_(bias.detach()[self.width : 2 * self.width])

    def forward(
        self, x: Float[Tensor, "B T I"], carried: tuple[Float[Tensor, "N B D"], ...] | None = None
    ) -> Float[Tensor, "B T D"]:
        """The top layer's states of a sequence without padding inside (padding at the end does no harm forwards)."""
        for n, layer in enumerate(self.layers):
            start = None if carried is None else tuple(part[n : n + 1].contiguous() for part in carried)
            x, _ = layer(x if n == 0 else self.dropout(x), start if self.cell == "lstm" or start is None else start[0])
        return x

    def masked(
        self, x: Float[Tensor, "B S I"], mask: Bool[Tensor, "B S"]
    ) -> tuple[Float[Tensor, "B S E"], Float[Tensor, "B E"]]:
        """The top layer's states of padded rows (zero at padding), and its last state in each direction. A place that
        is masked is never read: the backward direction starts at each row's last real place."""
        lengths = mask.sum(1).clamp(min=1).cpu()
        size, last = x.shape[1], x
        for n, layer in enumerate(self.layers):
            packed = pack_padded_sequence(
                x if n == 0 else self.dropout(x), lengths, batch_first=True, enforce_sorted=False
            )
            states, last = layer(packed)
            x, _ = pad_packed_sequence(states, batch_first=True, total_length=size)
        last = last[0] if self.cell == "lstm" else last  # (directions, B, D)
        return x, last.transpose(0, 1).flatten(1)

    def step(
        self, x: Float[Tensor, "B I"], carried: tuple[Float[Tensor, "N B D"], ...]
    ) -> tuple[Float[Tensor, "B D"], tuple[Float[Tensor, "N B D"], ...]]:
        """One place further (one direction only)."""
        after: list[tuple[Tensor, ...]] = []
        for n, layer in enumerate(self.layers):
            weights = cast(nn.RNNBase, layer).all_weights[0]
            x = x if n == 0 else self.dropout(x)
            if self.cell == "lstm":
                after.append(torch.lstm_cell(x, (carried[0][n], carried[1][n]), *weights))
            else:
                after.append((torch.gru_cell(x, carried[0][n], *weights),))
            x = after[-1][0]
        return x, tuple(torch.stack(parts) for parts in zip(*after, strict=True))
