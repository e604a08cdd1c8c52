"""Attention whose weights are the first terms of the Maclaurin series of exp, as layers of a
Transformer.

The projections are those of `SelfAttention` and `CrossAttention`. What a decoder carries from step
to step is not a cache that grows but the sums of `maclaurin`, (H, M, E + 1) a row, whatever it has
read: see `regard.layers.maclaurin`. Where a query looked cannot be told from sums, so a step has no
weights.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers import monomials
from regard.layers.attention import Rotation, linear, part
from regard.layers.maclaurin import unchecked_attention


def taken_in(
    k: Float[Tensor, "*batch S K"],
    v: Float[Tensor, "*batch S E"],
    mask: Bool[Tensor, "..."],
    terms: int,
) -> Float[Tensor, "*batch M F"]:
    """The sums of keys and values, a last column for the normaliser: all that a query needs to
    know of them."""
    u = torch.cat([v, torch.ones_like(v[..., :1])], -1) * mask[..., None]
    return (_weighed(k, terms).transpose(-1, -2) @ u).contiguous()


def read_off(
    q: Float[Tensor, "*batch K"], sums: Float[Tensor, "*batch M F"], terms: int
) -> Float[Tensor, "*batch E"]:
    """The context of one query a row."""
    features = monomials.monomials(q * q.shape[-1] ** -0.5, terms)
    numbers = (features[..., None, :] @ sums)[..., 0, :]
    return numbers[..., :-1] / numbers[..., -1:]


def _weighed(k: Float[Tensor, "*rows K"], terms: int) -> Float[Tensor, "*rows M"]:
    return monomials.monomials(k, terms) * monomials.weights(k.shape[-1], terms, k)


class LinearSelfAttention(nn.Module):
    """Multi-head linear attention of a sequence to itself."""

    def __init__(self, *, width: int, heads: int, head_width: int | None = None, terms: int):
        super().__init__()
        self.heads, self.head_width, self.terms = (
            heads,
            head_width or width // heads,
            even_top(terms),
        )
        self.qkv = nn.Linear(width, 3 * heads * self.head_width)
        self.out = nn.Linear(heads * self.head_width, width)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        *,
        mask: Bool[Tensor, "B S"] | None = None,
        causal: bool = False,
        rotation: Rotation | None = None,
        bias: None = None,
    ) -> Float[Tensor, "B T D"]:
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, self.head_width)).permute(2, 0, 3, 1, 4)
        q, k = qkv[:2] if rotation is None else rotation(qkv[:2])
        seen = None if mask is None else mask[:, None]
        context = unchecked_attention(
            q, k, qkv[2], tuple(q.shape[:2]), terms=self.terms, causal=causal, mask=seen
        )
        return self.out(context.transpose(1, 2).flatten(2))

    def start(self, rows: int, like: Tensor) -> Float[Tensor, "B H M F"]:
        """Nothing seen yet."""
        return like.new_zeros(
            rows, self.heads, monomials.how_many(self.head_width, self.terms), self.head_width + 1
        )

    def step(
        self, x: Float[Tensor, "B D"], sums: Float[Tensor, "B H M F"], rotation: Rotation | None
    ) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B H M F"]]:
        """One place further, and the sums that have seen it."""
        qkv = (
            linear(x, part(self, "qkv")).view(-1, 3, self.heads, 1, self.head_width).transpose(0, 1)
        )
        q, k = qkv[:2] if rotation is None else rotation(qkv[:2])
        v = qkv[2]  # (B, H, 1, K)
        u = torch.cat([v, torch.ones_like(v[..., :1])], -1)
        sums = sums + _weighed(k, self.terms).transpose(-1, -2) * u
        context = read_off(q[:, :, 0], sums, self.terms)
        return linear(context.reshape(x.shape[0], -1), part(self, "out")), sums


class LinearCrossAttention(nn.Module):
    """Multi-head linear attention of the target to the memory."""

    def __init__(
        self,
        *,
        width: int,
        memory_width: int,
        heads: int,
        head_width: int | None = None,
        terms: int,
    ):
        super().__init__()
        self.heads, self.head_width, self.terms = (
            heads,
            head_width or width // heads,
            even_top(terms),
        )
        self.query = nn.Linear(width, heads * self.head_width)
        self.kv = nn.Linear(memory_width, 2 * heads * self.head_width)
        self.out = nn.Linear(heads * self.head_width, width)

    def keys_values(self, states: Float[Tensor, "B S E"]) -> Float[Tensor, "2 B H S K"]:
        return (
            self.kv(states).unflatten(-1, (2, self.heads, self.head_width)).permute(2, 0, 3, 1, 4)
        )

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        keys_values: Float[Tensor, "2 B H S K"],
        *,
        mask: Bool[Tensor, "B S"],
    ) -> Float[Tensor, "B T D"]:
        q = self.query(x).unflatten(-1, (self.heads, self.head_width)).transpose(1, 2)
        k, v = keys_values.unbind(0)
        context = unchecked_attention(
            q, k, v, tuple(q.shape[:2]), terms=self.terms, mask=mask[:, None]
        )
        return self.out(context.transpose(1, 2).flatten(2))

    def start(
        self, states: Float[Tensor, "B S E"], mask: Bool[Tensor, "B S"]
    ) -> Float[Tensor, "B H M F"]:
        """The memory, taken in: of the same size whatever its length."""
        k, v = self.keys_values(states).unbind(0)
        return taken_in(k, v, mask[:, None], self.terms)

    def step(self, x: Float[Tensor, "B D"], sums: Float[Tensor, "B H M F"]) -> Float[Tensor, "B D"]:
        q = linear(x, part(self, "query")).view(-1, self.heads, self.head_width)
        return linear(read_off(q, sums, self.terms).reshape(x.shape[0], -1), part(self, "out"))


def even_top(terms: int) -> int:
    """The number of terms, if the top degree is even: an odd one lets the normaliser cross zero."""
    if terms < 1 or terms % 2 == 0:
        raise InputError(
            "a linear kernel needs an odd number of terms",
            where="terms",
            got=terms,
            hint="3 is usual",
        )
    return terms
