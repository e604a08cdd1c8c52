"""Boolean masks. In this package True means "may be attended to"."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def from_lengths(lengths: Int[Tensor, " B"], size: int | None = None) -> Bool[Tensor, "B S"]:
    """The padding mask of rows with these lengths: True at the first `lengths[b]` positions of
    row b.

    >>> from_lengths(torch.tensor([1, 3])).int().tolist()
    [[1, 0, 0], [1, 1, 1]]
    """
    size = int(lengths.max()) if size is None else size
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def causal(length: int, device: torch.device | None = None) -> Bool[Tensor, "T T"]:
    """The causal mask: position t may attend to positions 0..t.

    >>> causal(3).int().tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()
