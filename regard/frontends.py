"""Frontends turn the raw input into a Source: places with features, and which of them are real."""

from __future__ import annotations

import math

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.layers.attention import part
from regard.layers.blocks import Dropout
from regard.values import Source


class Embedding(nn.Module):
    """sqrt(D) e[w]: vectors of unit variance, from a matrix whose rows have norm 1, as an output matrix should."""

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

    def step(self, token: Int[Tensor, "B"]) -> Float[Tensor, "B D"]:
        """The same for one place, without what a module call does around it."""
        return nn.functional.embedding(token, part(self, "table")._parameters["weight"]) * self.scale


class Tokens(nn.Module):
    """A place is a token of text."""

    def __init__(self, *, vocabulary: int, width: int, dropout: float = 0.0):
        super().__init__()
        self.embedding = Embedding(vocabulary=vocabulary, width=width)
        self.dropout = Dropout(dropout)
        self.width = width

    def forward(self, tokens: Int[Tensor, "B S"], mask: Bool[Tensor, "B S"]) -> Source:
        return Source(self.dropout(self.embedding(tokens)), mask)
