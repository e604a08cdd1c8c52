"""Linear attention layers of a Transformer: exp in softmax is replaced by the first terms of its
Maclaurin series p.

    context(q) = sum_s p(q . k_s) v_s / sum_s p(q . k_s)    (q already divided by sqrt(K))
    p(q . k) = phi(q) . phi'(k)

phi are the monomials of a vector, phi' the same with the coefficients of the series, so the sums
over s can be computed before q is known (`regard.layers.maclaurin`). They are the state: one tensor
(B, H, M, E + 1) for M monomials and values of width E, whatever the number of positions. The last
of its E + 1 columns is the denominator.

The weights of single keys cannot be computed from these sums. If they are wanted (`keep_keys`), the
state keeps the keys as well, and the weights are computed from all pairs of queries and keys: the
quadratic form, which has the same output. Without keys a step returns no weights.

Half precision is computed in float32, also under autocast, and the sums are float32: in half
precision they would stop growing.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.device import without_autocast
from regard.errors import InputError
from regard.layers import monomials
from regard.layers.attention_layer import CrossAttention, Rotation, SelfAttention, StepPosition
from regard.layers.maclaurin import polynomial, unchecked_attention
from regard.layers.sizes import TransformerSizes
from regard.layers.softmax_attention import join_heads, split_heads
from regard.values import AttentionState, KVCache


def accumulate_keys_values(
    k: Float[Tensor, "*batch S K"],
    v: Float[Tensor, "*batch S E"],
    mask: Bool[Tensor, "..."],
    terms: int,
) -> Float[Tensor, "*batch M F"]:
    """The sums phi'(K)^T [V | 1] over the keys that are not masked, F = E + 1. The last column is
    that of the denominator."""
    if k.dtype.itemsize < 4:
        with without_autocast(k.device):
            return accumulate_keys_values(k.float(), v.float(), mask, terms)
    values = torch.cat([v, torch.ones_like(v[..., :1])], -1) * mask[..., None]
    return (_key_features(k, terms).transpose(-1, -2) @ values).contiguous()


def context_from_sums(
    q: Float[Tensor, "*batch K"], sums: Float[Tensor, "*batch M F"], terms: int
) -> Float[Tensor, "*batch E"]:
    """The context of one query a row: phi(q) times the sums, divided by the last column."""
    if q.dtype.itemsize < 4:
        with without_autocast(q.device):
            return context_from_sums(q.float(), sums, terms).to(q.dtype)
    features = monomials.monomials(q * q.shape[-1] ** -0.5, terms)
    products = (features[..., None, :] @ sums)[..., 0, :]
    return products[..., :-1] / products[..., -1:]


def _key_features(k: Float[Tensor, "*rows K"], terms: int) -> Float[Tensor, "*rows M"]:
    """phi': the monomials k^alpha of the keys times their coefficients 1/alpha!."""
    return monomials.monomials(k, terms) * monomials.weights(k.shape[-1], terms, k)


def maclaurin_weights(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B H S K"],
    *,
    terms: int,
    mask: Bool[Tensor, "_ _ _ S"] | None = None,
    causal: bool = False,
) -> Float[Tensor, "B H T S"]:
    """The weights of the quadratic form: p(q k^T / sqrt(K)), normalised to sum 1."""
    if q.dtype.itemsize < 4:
        with without_autocast(q.device):
            single = maclaurin_weights(q.float(), k.float(), terms=terms, mask=mask, causal=causal)
        return single.to(q.dtype)
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    weights = polynomial(scores, terms)
    if causal:
        weights = weights.tril()
    if mask is not None:
        weights = weights.masked_fill(~mask, 0)
    return weights / weights.sum(-1, keepdim=True)


class MaclaurinSelfAttention(SelfAttention):
    """Multi-head linear self-attention."""

    form = "quadratic"

    def __init__(self, sizes: TransformerSizes):
        super().__init__()
        _require_key_bias(sizes.key_bias)
        self.heads = sizes.heads
        self.head_width = sizes.head_width
        self.terms = require_odd_terms(sizes.terms)
        self.qkv = nn.Linear(sizes.width, 3 * sizes.attention_width)
        self.out = nn.Linear(sizes.attention_width, sizes.width)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        *,
        mask: Bool[Tensor, "B T"] | None = None,
        causal: bool = False,
        rotation: Rotation | None = None,
        bias: None = None,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B H T T"] | None]:
        q, k, v = self._project(x, rotation)
        key_mask = None if mask is None else mask[:, None]
        context = unchecked_attention(
            q, k, v, tuple(q.shape[:2]), terms=self.terms, causal=causal, mask=key_mask
        )
        weights = None
        if need_weights:
            score_mask = None if mask is None else mask[:, None, None]
            weights = maclaurin_weights(q, k, terms=self.terms, mask=score_mask, causal=causal)
        return self.out(join_heads(context)), weights

    def start(self, rows: int, like: Tensor, *, keep_keys: bool = False) -> AttentionState:
        features = monomials.how_many(self.head_width, self.terms)
        dtype = like.dtype if like.dtype.itemsize >= 4 else torch.float32
        sums = like.new_zeros(rows, self.heads, features, self.head_width + 1, dtype=dtype)
        cache = None
        if keep_keys:
            cache = KVCache(like.new_zeros(2, rows, self.heads, 0, self.head_width))
        return AttentionState(cache, fixed=(sums,))

    def step(
        self,
        x: Float[Tensor, "B D"],
        state: AttentionState,
        at: StepPosition,
        *,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "B D"], AttentionState, Float[Tensor, "B H 1 _"] | None]:
        q, k, v = self._project(x[:, None], at.rotation)
        sums = state.fixed[0]
        v_and_one = torch.cat([v, torch.ones_like(v[..., :1])], -1).to(sums.dtype)
        sums = sums + _key_features(k.to(sums.dtype), self.terms).transpose(-1, -2) * v_and_one
        context = context_from_sums(q[:, :, 0], sums, self.terms)

        cache = state.cache
        weights = None
        if cache is not None:
            cache = cache.append(k, v, at.index, at.max_position)
        if cache is not None and need_weights:
            keys, _ = cache.first(at.max_position + 1)
            weights = maclaurin_weights(q, keys, terms=self.terms, mask=at.score_mask)
        return self.out(context.flatten(1)), AttentionState(cache, fixed=(sums,)), weights

    def _project(
        self, x: Float[Tensor, "B T D"], rotation: Rotation | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (B, H, T, K), the first two rotated."""
        qkv = split_heads(self.qkv(x), 3, self.heads)
        q, k = qkv[:2] if rotation is None else rotation(qkv[:2])
        return q, k, qkv[2]


class MaclaurinCrossAttention(CrossAttention):
    """Multi-head linear cross-attention."""

    form = "quadratic"

    def __init__(self, sizes: TransformerSizes, *, memory_width: int):
        super().__init__()
        _require_key_bias(sizes.key_bias)
        self.heads = sizes.heads
        self.terms = require_odd_terms(sizes.terms)
        self.query = nn.Linear(sizes.width, sizes.attention_width)
        self.kv = nn.Linear(memory_width, 2 * sizes.attention_width)
        self.out = nn.Linear(sizes.attention_width, sizes.width)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        memory: Float[Tensor, "B S E"],
        *,
        mask: Bool[Tensor, "B S"],
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B H T S"] | None]:
        q = split_heads(self.query(x), 1, self.heads)[0]
        k, v = split_heads(self.kv(memory), 2, self.heads).unbind(0)
        context = unchecked_attention(
            q, k, v, tuple(q.shape[:2]), terms=self.terms, mask=mask[:, None]
        )
        weights = None
        if need_weights:
            weights = maclaurin_weights(q, k, terms=self.terms, mask=mask[:, None, None])
        return self.out(join_heads(context)), weights

    def start(
        self,
        memory: Float[Tensor, "B S E"],
        mask: Bool[Tensor, "B S"],
        *,
        keep_keys: bool = False,
    ) -> AttentionState:
        keys_values = split_heads(self.kv(memory), 2, self.heads)
        k, v = keys_values.unbind(0)
        sums = accumulate_keys_values(k, v, mask[:, None], self.terms)
        return AttentionState(KVCache(keys_values) if keep_keys else None, fixed=(sums,))

    def step(
        self,
        x: Float[Tensor, "B D"],
        state: AttentionState,
        *,
        mask: Bool[Tensor, "B S"] | None,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "B D"], AttentionState, Float[Tensor, "B H 1 S"] | None]:
        q = split_heads(self.query(x[:, None]), 1, self.heads)[0]
        context = context_from_sums(q[:, :, 0], state.fixed[0], self.terms)
        weights = None
        if need_weights and state.cache is not None:
            keys, _ = state.cache.tensor
            key_mask = None if mask is None else mask[:, None, None]
            weights = maclaurin_weights(q, keys, terms=self.terms, mask=key_mask)
        return self.out(context.flatten(1)), state, weights


def require_odd_terms(terms: int) -> int:
    """Returns `terms`, or raises an InputError unless it is odd: with an even number of terms the
    highest degree is odd, and the denominator can be 0."""
    if terms < 1 or terms % 2 == 0:
        raise InputError(
            "a linear kernel needs an odd number of terms",
            where="terms",
            got=terms,
            hint="3 is usual",
        )
    return terms


def _require_key_bias(key_bias: bool) -> None:
    """Raises an InputError without `key_bias`: softmax cancels the bias of the keys, linear
    attention does not."""
    if not key_bias:
        raise InputError(
            "linear attention depends on the bias of its keys",
            where="key_bias",
            got=False,
            hint="use key_bias=True",
        )
