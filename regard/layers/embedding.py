"""Token embeddings."""

from __future__ import annotations

import math

from jaxtyping import Float, Int
from torch import Tensor, nn


class Embedding(nn.Module):
    """Token embedding sqrt(D) e[w]. The rows of the matrix start with norm 1, so that it can also
    be the output matrix; the embedding then has unit variance."""

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
