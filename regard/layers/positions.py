"""Positions: what tells place 3 from place 4. Each is added to the input once."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import InputError


def sinusoidal(positions: Int[Tensor, "*places"], width: int) -> Float[Tensor, "*places D"]:
    """p(t, 2i) = sin(t / 10000^(2i/D)), p(t, 2i+1) = cos(t / 10000^(2i/D))     (Vaswani et al. 2017, section 3.5)

    >>> sinusoidal(torch.tensor([0]), 4).tolist()
    [[0.0, 1.0, 0.0, 1.0]]
    """
    rates = 10000 ** (-torch.arange(0, width, 2, dtype=torch.float64, device=positions.device) / width)
    angles = positions[..., None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[..., :width].to(torch.get_default_dtype())


class NoPositions(nn.Module):
    def forward(self, x: Float[Tensor, "*rows D"], positions: Int[Tensor, "..."] | int) -> Float[Tensor, "*rows D"]:
        return x


class Sinusoidal(nn.Module):
    """Fixed waves; a place beyond the table is computed when it is asked for, so any length works."""

    table: Tensor

    def __init__(self, *, width: int, table: int = 512):
        super().__init__()
        self.width = width
        self.register_buffer("table", sinusoidal(torch.arange(table), width), persistent=False)

    def forward(self, x: Float[Tensor, "*rows D"], positions: Int[Tensor, "..."] | int) -> Float[Tensor, "*rows D"]:
        if isinstance(positions, int):
            if positions < self.table.shape[0]:
                return x + self.table[positions]
            positions = torch.tensor(positions, device=x.device)
        if positions.numel() and int(positions.max()) >= self.table.shape[0]:
            return x + sinusoidal(positions, self.width).to(x.dtype)
        return x + self.table[positions]


class Learned(nn.Module):
    """One learned vector a place, up to `longest` places."""

    def __init__(self, *, width: int, longest: int):
        super().__init__()
        self.table = nn.Embedding(longest, width)
        nn.init.normal_(self.table.weight, std=width**-0.5)

    def forward(self, x: Float[Tensor, "*rows D"], positions: Int[Tensor, "..."] | int) -> Float[Tensor, "*rows D"]:
        last = positions if isinstance(positions, int) else int(positions.max()) if positions.numel() else 0
        if last >= self.table.num_embeddings:
            raise InputError(
                "longer than the learned positions reach",
                got=f"place {last + 1}",
                hint=f"at most {self.table.num_embeddings} places; sinusoidal positions have no limit",
            )
        return x + self.table.weight[positions]
