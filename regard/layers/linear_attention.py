"""Linear attention as layers of a Transformer: the weights are the first terms of the Maclaurin
series of exp.

The projections are those of `SelfAttention` and `CrossAttention`. A decoder's state is not a cache
that grows but sums over all keys and values, (H, M, E + 1) a row, whose size does not depend on how
many tokens they cover: see `regard.layers.maclaurin`. The weights of single keys cannot be computed
from these sums, so a step returns no weights.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers import monomials
from regard.layers.attention import Rotation, linear_step, submodule
from regard.layers.maclaurin import unchecked_attention

Kernel = Literal["softmax", "maclaurin"]


def accumulate_keys_values(
    k: Float[Tensor, "*batch S K"],
    v: Float[Tensor, "*batch S E"],
    mask: Bool[Tensor, "..."],
    terms: int,
) -> Float[Tensor, "*batch M F"]:
    """The sums phi(K)^T [V | 1] over the keys that are not masked. The last column is for the
    normaliser."""
    values = torch.cat([v, torch.ones_like(v[..., :1])], -1) * mask[..., None]
    return (_key_features(k, terms).transpose(-1, -2) @ values).contiguous()


def read_sums(
    q: Float[Tensor, "*batch K"], sums: Float[Tensor, "*batch M F"], terms: int
) -> Float[Tensor, "*batch E"]:
    """The context phi(q) sums, normalised, of one query a row."""
    features = monomials.monomials(q * q.shape[-1] ** -0.5, terms)
    numerators = (features[..., None, :] @ sums)[..., 0, :]
    return numerators[..., :-1] / numerators[..., -1:]


def _key_features(k: Float[Tensor, "*rows K"], terms: int) -> Float[Tensor, "*rows M"]:
    """The monomials of the keys times their weights 1/alpha!."""
    return monomials.monomials(k, terms) * monomials.weights(k.shape[-1], terms, k)


class LinearSelfAttention(nn.Module):
    """Multi-head linear attention of a sequence to itself."""

    def __init__(self, *, width: int, heads: int, head_width: int | None = None, terms: int):
        super().__init__()
        self.heads = heads
        self.head_width = head_width or width // heads
        self.terms = require_odd_terms(terms)
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
        v = qkv[2]
        key_mask = None if mask is None else mask[:, None]
        context = unchecked_attention(
            q, k, v, tuple(q.shape[:2]), terms=self.terms, causal=causal, mask=key_mask
        )
        return self.out(context.transpose(1, 2).flatten(2))

    def start(self, rows: int, like: Tensor) -> Float[Tensor, "B H M F"]:
        """The sums before the first position: zeros."""
        features = monomials.how_many(self.head_width, self.terms)
        return like.new_zeros(rows, self.heads, features, self.head_width + 1)

    def step(
        self, x: Float[Tensor, "B D"], sums: Float[Tensor, "B H M F"], rotation: Rotation | None
    ) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B H M F"]]:
        """`forward` with `causal` for one position, and the sums with this position added."""
        qkv = linear_step(x, submodule(self, "qkv"))
        qkv = qkv.view(-1, 3, self.heads, 1, self.head_width).transpose(0, 1)
        q, k = qkv[:2] if rotation is None else rotation(qkv[:2])
        v = qkv[2]  # (B, H, 1, K)
        value = torch.cat([v, torch.ones_like(v[..., :1])], -1)
        sums = sums + _key_features(k, self.terms).transpose(-1, -2) * value
        context = read_sums(q[:, :, 0], sums, self.terms)
        return linear_step(context.reshape(x.shape[0], -1), submodule(self, "out")), sums


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
        self.heads = heads
        self.head_width = head_width or width // heads
        self.terms = require_odd_terms(terms)
        self.query = nn.Linear(width, heads * self.head_width)
        self.kv = nn.Linear(memory_width, 2 * heads * self.head_width)
        self.out = nn.Linear(heads * self.head_width, width)

    def keys_values(self, states: Float[Tensor, "B S E"]) -> Float[Tensor, "2 B H S K"]:
        """The projected keys and values of the memory."""
        kv = self.kv(states).unflatten(-1, (2, self.heads, self.head_width))
        return kv.permute(2, 0, 3, 1, 4)

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
        """The sums over the memory, whose size does not depend on its length."""
        k, v = self.keys_values(states).unbind(0)
        return accumulate_keys_values(k, v, mask[:, None], self.terms)

    def step(self, x: Float[Tensor, "B D"], sums: Float[Tensor, "B H M F"]) -> Float[Tensor, "B D"]:
        """`forward` for one position."""
        q = linear_step(x, submodule(self, "query")).view(-1, self.heads, self.head_width)
        context = read_sums(q, sums, self.terms)
        return linear_step(context.reshape(x.shape[0], -1), submodule(self, "out"))


def require_odd_terms(terms: int) -> int:
    """Returns `terms` if it is odd: with an even number of terms the top degree is odd, and the
    normaliser can be 0."""
    if terms < 1 or terms % 2 == 0:
        raise InputError(
            "a linear kernel needs an odd number of terms",
            where="terms",
            got=terms,
            hint="3 is usual",
        )
    return terms
