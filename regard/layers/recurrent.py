"""Recurrent layers: LSTM and GRU over padded batches, and one step of them, from the same
weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.layers.blocks import Dropout

CELLS = {"lstm": nn.LSTM, "gru": nn.GRU}


class Recurrent(nn.Module):
    """A stack of LSTM or GRU layers in one or two directions, dropout between the layers.

    `carried` is (h, c) for an LSTM and (h,) for a GRU, each (N, B, D) as torch has it.
    """

    def __init__(
        self,
        *,
        cell: str,
        inputs: int,
        width: int,
        layers: int,
        directions: int = 1,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.cell, self.width, self.directions = cell, width, directions
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
        """A forget gate that starts open (bias 1) lets gradients through at once (Jozefowicz et
        al. 2015)."""
        for name, bias in self.named_parameters():
            if "bias_ih" in name:
                nn.init.ones_(bias.detach()[self.width : 2 * self.width])

    def forward(
        self, x: Float[Tensor, "B T I"], carried: tuple[Float[Tensor, "N B D"], ...] | None = None
    ) -> Float[Tensor, "B T D"]:
        """The top layer's states of a sequence without padding inside (padding at the end does
        no harm forwards)."""
        for n, layer in enumerate(self.layers):
            start = (
                None if carried is None else tuple(part[n : n + 1].contiguous() for part in carried)
            )
            x, _ = layer(
                x if n == 0 else self.dropout(x),
                start if self.cell == "lstm" or start is None else start[0],
            )
        return x

    def masked(
        self, x: Float[Tensor, "B S I"], mask: Bool[Tensor, "B S"]
    ) -> tuple[Float[Tensor, "B S E"], Float[Tensor, "B E"]]:
        """The top layer's states of padded rows (anything at padding), and its last state in each
        direction. None that is real depends on a masked place: the backward direction starts at
        each row's last real one.

        Rows are turned around rather than packed: torch has a fast LSTM, and packed rows do not
        go through it."""
        lengths = mask.sum(1, keepdim=True).clamp(min=1)
        places = torch.arange(x.shape[1], device=x.device)
        back = torch.where(places < lengths, lengths - 1 - places, places)[..., None]  # (B, S, 1)
        rows, ends = torch.arange(len(x), device=x.device), lengths.squeeze(1) - 1
        lasts: list[Tensor] = []
        for n, layer in enumerate(self.layers):
            x = x if n == 0 else self.dropout(x)
            ways = cast(nn.RNNBase, layer).all_weights
            states = [self._over(x, ways[0])]
            if self.directions == 2:
                states.append(self._over(reverse_padded(x, back), ways[1]))
            lasts = [way[rows, ends] for way in states]
            x = torch.cat([states[0], *(reverse_padded(way, back) for way in states[1:])], dim=-1)
        return x, torch.cat(lasts, dim=-1)

    def _over(self, x: Float[Tensor, "B S I"], weights: Sequence[Tensor]) -> Float[Tensor, "B S D"]:
        """The states of one layer in one direction, from a start of zeros."""
        start = x.new_zeros(1, len(x), self.width)
        if self.cell == "lstm":
            return torch.lstm(
                x, (start, start), list(weights), True, 1, 0.0, self.training, False, True
            )[0]
        return torch.gru(x, start, list(weights), True, 1, 0.0, self.training, False, True)[0]

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


class _ReversePadded(torch.autograd.Function):
    """x[b, back[b, s]]; `back` undoes itself, so the gradient is turned by it too, and nothing
    else is kept."""

    @staticmethod
    def forward(ctx, x, back):
        ctx.save_for_backward(back)
        return x.gather(1, back.expand(-1, -1, x.shape[2]))

    @staticmethod
    def backward(ctx, *grads):
        (back,) = ctx.saved_tensors
        return grads[0].gather(1, back.expand(-1, -1, grads[0].shape[2])), None


def reverse_padded(x: Float[Tensor, "B S I"], back: Int[Tensor, "B S 1"]) -> Float[Tensor, "B S I"]:
    """Each row's places in the order `back`, which undoes itself: the real ones in the opposite
    order."""
    return cast(Tensor, _ReversePadded.apply(x, back))
