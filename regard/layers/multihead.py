"""Multi-head attention in its different forms, for study.

    O = concat(H_1 .. H_H) W^o,   H_h = softmax(Q_h K_h^T / sqrt(K)) V_h
                                                            (Vaswani et al. 2017, section 3.2.2)
    O = sum_h A_h X W^(h),        W^(h) = W_h^v W_h^o
                                                            the sum form, `as_sum_of_heads`
    Q_h K_h^T / sqrt(K) = X W~[h] X^T,   W~[h] = W_h^q (W_h^k)^T / sqrt(K)
                                                            query and key merged, `merge`

The Transformers of this package use the faster layers of regard.layers.attention, with one matrix
for query, key and value. This layer has one matrix for each and supports every form, shape and kind
of positions.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.attention import attend_in_range, mix_in_range, score_mask, weights_in_range
from regard.layers.positions import Positions, grid
from regard.values import KVCache, State


def merged_query_key(
    query: nn.Linear, key: nn.Linear, heads: int
) -> tuple[Float[Tensor, "H D E"], Float[Tensor, "H E"] | None]:
    """The merged matrices W~[h] = W_h^q (W_h^k)^T / sqrt(K), and the bias W_h^k b_h^q / sqrt(K)
    that the query's bias becomes.

    (x W^q + b^q)(m W^k + b^k)^T has four terms. The two with b^k are the same for all keys, so
    softmax cancels them.
    """
    query_weight = query.weight.unflatten(0, (heads, -1))  # (H, K, D)
    key_weight = key.weight.unflatten(0, (heads, -1))  # (H, K, E)
    scale = query_weight.shape[1] ** -0.5
    query_key = torch.einsum("hkd,hke->hde", query_weight, key_weight) * scale
    if query.bias is None:
        return query_key, None
    query_bias = query.bias.unflatten(0, (heads, -1))  # (H, K)
    return query_key, torch.einsum("hk,hke->he", query_bias, key_weight) * scale


class MultiHead(nn.Module):
    """Multi-head attention of x to itself, or to a memory. The head width K does not depend on the
    model width D.

    x is (B, T, D), or a grid (B, X, Y, D): then every position attends to the whole grid, with one
    softmax over both axes, and only `positions` (with `axes=2`) distinguish the two directions.

    `positions` are for self-attention. Positions that are added to the input are added to x here,
    so in a stack of layers only the first should have them.

    `merged=True` has one matrix D x E a head for query and key: H D E weights instead of H K (D +
    E). It starts as an ordinary layer merged, of rank K, and training may raise the rank.

    Scores are computed as in `regard.attend`: half precision in float32, and without overflow. A
    query, key or value that is not finite is an InputError.

    >>> layer, x = MultiHead(width=12, heads=3), torch.zeros(2, 5, 12)  # (B, T, D)
    >>> layer(x).shape, layer(x, causal=True).shape
    (torch.Size([2, 5, 12]), torch.Size([2, 5, 12]))
    """

    def __init__(
        self,
        *,
        width: int,
        heads: int,
        head_width: int | None = None,
        memory_width: int | None = None,
        value_width: int | None = None,
        positions: Positions | None = None,
        merged: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
    ):
        """`memory_width` is the width of the memory, `width` by default; `value_width` that of the
        tensor that the values are computed from, `memory_width` by default. `dropout` applies to
        the attention weights, in training."""
        super().__init__()
        if head_width is None and width % heads:
            raise InputError(
                "the width must be a multiple of the heads",
                got=f"width {width}, heads {heads}",
                hint="or pass a head_width of any size",
            )
        self.width = width
        self.heads = heads
        self.head_width = head_width or width // heads
        self.memory_width = memory_width or width
        self.value_width = value_width or self.memory_width
        self.merged = merged
        self.dropout = dropout

        all_heads = heads * self.head_width
        query = nn.Linear(width, all_heads, bias=bias)
        key = nn.Linear(self.memory_width, all_heads, bias=bias)
        if merged:
            query_key, query_key_bias = merged_query_key(query, key, heads)
            self.query_key = nn.Parameter(query_key.detach())
            self.query_key_bias = (
                None if query_key_bias is None else nn.Parameter(query_key_bias.detach())
            )
        else:
            self.query = query
            self.key = key
        self.value = nn.Linear(self.value_width, all_heads, bias=bias)
        self.out = nn.Linear(all_heads, width, bias=bias)
        self.positions = positions
        if positions is not None:
            self._check_positions(positions)

    # ---- all at once

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        values: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """The output of attention, in the shape of x. Values are computed from `values` if given,
        else from the memory.

        `mask` is True where a key may be attended to: (B, S), (B, T, S) or (B, H, T, S), where B
        and H may be 1; for a grid (B, X, Y) or (B, H, XY, XY). With `causal`, position t attends to
        the positions 0..t.
        """
        q, k, v, options = self._prepare(x, memory, values, mask, causal)
        dropout = self.dropout if self.training else 0.0
        return self._output(attend_in_range(q, k, v, dropout=dropout, **options), x)

    def forward_with_weights(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        values: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """`forward`, and the attention weights before dropout: (B, H, T, S), or for a grid
        (B, H, X, Y, X, Y)."""
        q, k, v, options = self._prepare(x, memory, values, mask, causal)
        weights = weights_in_range(q, k, **options)
        after_dropout = nn.functional.dropout(weights, self.dropout, self.training)
        if x.ndim == 4:
            weights = weights.unflatten(2, x.shape[1:3])
            weights = weights.unflatten(-1, x.shape[1:3]) if memory is None else weights
        return self._output(mix_in_range(after_dropout, v), x), weights

    # ---- one position at a time

    def start(
        self,
        memory: Tensor | None = None,
        *,
        rows: int | None = None,
        values: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> State:
        """The state before the first position: for causal self-attention of `rows` sequences, or
        for attention to a memory (B, S, E) with its mask (B, S), whose keys and values are computed
        here, once."""
        like = self.out.weight
        if self.positions is not None and self.positions.axes == 2:
            raise InputError(
                "a grid has no steps: call the layer on all positions at once",
                where="start",
                got="positions with two axes",
            )
        if memory is None:
            if rows is None or self.memory_width != self.width:
                raise InputError(
                    "needs a memory, or the number of rows for self-attention", where="start"
                )
            if self.merged:
                cache_shape = (1, rows, 1, 0, self.width)
            else:
                cache_shape = (2, rows, self.heads, 0, self.head_width)
            return State(
                position=torch.zeros(rows, dtype=torch.long, device=like.device),
                mask=torch.ones(rows, 0, dtype=torch.bool, device=like.device),
                kv_cache=KVCache(like.new_zeros(cache_shape)),
            )
        self._check_memory(memory, values)
        if mask is None:
            mask = torch.ones(memory.shape[:2], dtype=torch.bool, device=like.device)
        full_mask = self._mask(mask, len(memory), 1, memory.shape[1], on_grid=None)
        _check_every_query_has_a_key(full_mask)
        return State(
            position=torch.zeros(len(memory), dtype=torch.long, device=like.device),
            mask=mask,
            memory=(
                self._keys(memory)[None],
                self._values(memory if values is None else values)[None],
            ),
        )

    def step(self, x: Float[Tensor, "B D"], state: State) -> tuple[Float[Tensor, "B D"], State]:
        """One position; T steps equal a causal `forward`. The state passed in stays valid. Without
        gradients: the cache is written in place."""
        next_state = replace(
            state, position=state.position + 1, max_position=state.max_position + 1
        )
        if state.kv_cache is None:
            keys, values = state.memory
            context = attend_in_range(
                self._queries(x[:, None]),
                keys[0],
                values[0],
                mask=state.mask[:, None, None],
                scale=self._scale,
            )
            return self._output(context, x), next_state

        last = state.max_position
        kv_cache = state.kv_cache.with_room_at(last)
        cache = kv_cache.tensor[..., : last + 1, :]
        cached_places = torch.arange(last + 1, device=x.device)
        place = last if state.aligned else state.position[:, None]

        positions = self.positions
        x_in = x[:, None] if positions is None else positions.add(x[:, None], place)  # (B, 1, D)
        q = self._queries(x_in)
        if self.merged:
            # Keys are the inputs themselves, so one vector for each position is enough.
            new = x_in[None, :, None]  # (1, B, 1, 1, D)
        else:
            k, v = self._keys(x_in), self._values(x_in)
            rotation = None if positions is None else positions.rotation(place)
            if rotation is not None:
                q, k = rotation(q), rotation(k)
            new = torch.stack([k, v])  # (2, B, H, 1, K)

        if state.aligned:
            cache[..., last:, :] = new
        else:
            row = torch.arange(len(x), device=x.device)
            cache[:, row, :, state.position] = new.squeeze(-2).transpose(0, 1)

        mask = None
        if not state.aligned:
            mask = (cached_places <= state.position[:, None])[:, None, None]
        bias = None if positions is None else positions.bias(place, cached_places)
        options: dict[str, Any] = dict(mask=mask, bias=bias, scale=self._scale)
        if self.merged:
            # (A X) W^v instead of A (X W^v): the values of the cached inputs are not recomputed.
            weights = weights_in_range(q, cache[0], **options)
            average = mix_in_range(weights, cache[0])  # (B, H, 1, D)
            context = average @ self.value.weight.unflatten(0, (self.heads, -1)).transpose(1, 2)
            if self.value.bias is not None:
                context = context + self.value.bias.unflatten(0, (self.heads, 1, -1))
        else:
            context = attend_in_range(q, cache[0], cache[1], **options)
        return self._output(context, x), replace(next_state, kv_cache=kv_cache)

    # ---- other forms

    @classmethod
    def from_torch(cls, theirs: nn.MultiheadAttention) -> MultiHead:
        """The same layer as an nn.MultiheadAttention, with a copy of its weights. This layer always
        has the batch first, and its mask is True where a key may be attended to; torch's is True
        where it may not."""
        if theirs.bias_k is not None or theirs.bias_v is not None or theirs.add_zero_attn:
            raise InputError(
                "cannot be converted: it appends a key and a value (add_bias_kv or add_zero_attn)",
                where="nn.MultiheadAttention",
            )
        ours = cls(
            width=theirs.embed_dim,
            heads=theirs.num_heads,
            memory_width=theirs.kdim,
            value_width=theirs.vdim,
            bias=theirs.in_proj_bias is not None,
            dropout=theirs.dropout,
        ).to(theirs.out_proj.weight)
        if theirs.in_proj_weight is not None:
            weights = theirs.in_proj_weight.chunk(3)
        else:
            weights = (theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight)
        with torch.no_grad():
            projections = (ours.query, ours.key, ours.value)
            for projection, weight in zip(projections, weights, strict=True):
                projection.weight.copy_(cast(Tensor, weight))
            if theirs.in_proj_bias is not None:
                biases = theirs.in_proj_bias.chunk(3)
                for projection, bias in zip(projections, biases, strict=True):
                    projection.bias.copy_(bias)
            ours.out.load_state_dict(theirs.out_proj.state_dict())
        return ours.train(theirs.training)

    def merge(self) -> MultiHead:
        """A copy of this layer with query and key merged."""
        if self.merged:
            return deepcopy(self)
        other = MultiHead(
            width=self.width,
            heads=self.heads,
            head_width=self.head_width,
            memory_width=self.memory_width,
            value_width=self.value_width,
            positions=deepcopy(self.positions),
            merged=True,
            bias=self.out.bias is not None,
            dropout=self.dropout,
        ).to(self.out.weight)
        with torch.no_grad():
            query_key, query_key_bias = merged_query_key(self.query, self.key, self.heads)
            other.query_key.copy_(query_key)
            if other.query_key_bias is not None and query_key_bias is not None:
                other.query_key_bias.copy_(query_key_bias)
        other.value.load_state_dict(self.value.state_dict())
        other.out.load_state_dict(self.out.state_dict())
        return other.train(self.training)

    def as_sum_of_heads(self) -> Float[Tensor, "H E D"]:
        """The matrices W^(h) = W_h^v W_h^o of the sum form, each of rank at most K.

        O = sum_h A_h X W^(h) + c, where c = b^v W^o + b^o is the same at every position, because
        the weights of a query sum to 1.
        """
        value_weight = self.value.weight.unflatten(0, (self.heads, -1))  # (H, K, E)
        out_weight = self.out.weight.unflatten(1, (self.heads, -1))  # (D, H, K)
        return torch.einsum("hke,dhk->hed", value_weight, out_weight)

    # ---- helpers

    @property
    def _scale(self) -> float | None:
        return 1.0 if self.merged else None  # the merged matrix contains 1/sqrt(K)

    def _split_heads(self, x: Float[Tensor, "B T I"]) -> Float[Tensor, "B H T K"]:
        return x.unflatten(-1, (self.heads, self.head_width)).transpose(1, 2)

    def _queries(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B H T K"]:
        if not self.merged:
            return self._split_heads(self.query(x))
        q = torch.einsum("btd,hde->bhte", x, self.query_key)
        return q if self.query_key_bias is None else q + self.query_key_bias[:, None]

    def _keys(self, memory: Float[Tensor, "B S E"]) -> Float[Tensor, "B heads S K"]:
        return memory[:, None] if self.merged else self._split_heads(self.key(memory))

    def _values(self, memory: Float[Tensor, "B S E"]) -> Float[Tensor, "B H S K"]:
        return self._split_heads(self.value(memory))

    def _output(self, context: Float[Tensor, "B H T K"], x: Tensor) -> Tensor:
        return self.out(context.transpose(1, 2).flatten(2)).view(x.shape)

    def _prepare(
        self,
        x: Tensor,
        memory: Tensor | None,
        values: Tensor | None,
        mask: Tensor | None,
        causal: bool,
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
        """q, k and v, and the options of `attend_in_range`: mask, bias, causal and scale."""
        if x.ndim not in (3, 4) or x.shape[-1] != self.width:
            raise InputError(
                f"must be (B, T, {self.width}), or a grid (B, X, Y, {self.width})",
                where="x",
                got=tuple(x.shape),
            )
        positions = self.positions
        flat = x.flatten(1, -2)  # (B, T, D)
        rotation, bias = None, None
        if memory is not None:
            self._check_memory(memory, values, rows=len(x))
        elif values is not None or self.memory_width != self.width:
            message = "needs a memory"
            if values is not None:
                message = "needs the memory that the values belong to"
            raise InputError(message, where="memory", hint=f"(B, S, {self.memory_width})")
        elif positions is not None:
            axes = positions.axes
            if axes != x.ndim - 2:
                shape = "(B, T, D)" if axes == 1 else "(B, X, Y, D)"
                raise InputError(
                    f"positions with {axes} axes need x {shape}", where="x", got=tuple(x.shape)
                )
            if axes == 1:
                places = torch.arange(x.shape[1], device=x.device)
            else:
                places = grid(x.shape[1], x.shape[2], device=x.device)
            flat = positions.add(flat, places)
            rotation = positions.rotation(places)
            bias = positions.bias(places, places)

        source = flat if memory is None else memory
        q, k = self._queries(flat), self._keys(source)
        if rotation is not None:
            q, k = rotation(q), rotation(k)
        v = self._values(source if values is None else values)
        if mask is not None:
            on_grid = x.shape[1:3] if x.ndim == 4 and memory is None else None
            mask = self._mask(mask, len(q), q.shape[2], k.shape[2], on_grid=on_grid)
            mask = score_mask(
                (q.shape[2], k.shape[2]), q.device, mask=mask, bias=None, causal=causal
            )
            _check_every_query_has_a_key(cast(Tensor, mask))
            causal = False
        return q, k, v, dict(mask=mask, bias=bias, causal=causal, scale=self._scale)

    def _mask(
        self, mask: Tensor, rows: int, length: int, keys: int, *, on_grid: torch.Size | None
    ) -> Bool[Tensor, "..."]:
        """The mask with four axes, which broadcasts to (B, H, T, S)."""
        if on_grid is None:
            shapes = ["(B, S)", "(B, T, S)", "(B, H, T, S)"]
        else:
            shapes = ["(B, X, Y)", "(B, H, XY, XY)"]
        full = mask
        if on_grid is not None and mask.ndim == 3 and mask.shape[1:] == on_grid:
            full = mask.flatten(1)[:, None, None]
        elif on_grid is None and mask.ndim in (2, 3):
            full = mask[:, None, None] if mask.ndim == 2 else mask[:, None]
        wanted = (rows, self.heads, length, keys)
        fits = full.ndim == 4 and all(
            have in (1, want) for have, want in zip(full.shape, wanted, strict=True)
        )
        if not fits or full.shape[-1] != keys or mask.dtype != torch.bool:
            sizes = f"B={rows}, H={self.heads}, T={length}, S={keys}"
            raise InputError(
                f"must be bool {' or '.join(shapes)}",
                where="mask",
                got=f"{tuple(mask.shape)} {mask.dtype}",
                hint=sizes,
            )
        return full

    def _check_memory(self, memory: Tensor, values: Tensor | None, rows: int | None = None) -> None:
        if self.positions is not None:
            raise InputError(
                "positions are for self-attention: distances to a memory have no meaning",
                where="memory",
                hint="use positions in the encoder that makes the memory",
            )
        rows = len(memory) if rows is None else rows
        if (
            memory.ndim != 3
            or memory.shape[0] != rows
            or memory.shape[2] != self.memory_width
            or not memory.shape[1]
        ):
            raise InputError(
                f"must be ({rows}, S, {self.memory_width})", where="memory", got=tuple(memory.shape)
            )
        wanted = (*memory.shape[:2], self.value_width)
        if values is None and self.value_width != self.memory_width:
            raise InputError(
                f"must be given, {wanted}: they are not as wide as the memory", where="values"
            )
        if values is not None and values.shape != wanted:
            raise InputError(f"must be {wanted}", where="values", got=tuple(values.shape))

    def _check_positions(self, positions: Positions) -> None:
        if self.memory_width != self.width:
            raise InputError(
                "positions are for self-attention",
                got=f"memory width {self.memory_width}",
            )
        if self.merged and positions.uses_rotation:
            raise InputError(
                "query and key cannot be merged under rotary positions",
                where="merged",
                hint="a rotation by the distance i - j stands between W^q and W^k, so each "
                "distance would need its own merged matrix; use another kind of positions",
            )
        for name in ("width", "heads", "head_width"):
            theirs = getattr(positions, name)
            ours = getattr(self, name)
            if theirs not in (None, ours):
                raise InputError(
                    f"made for another {name}",
                    where="positions",
                    got=theirs,
                    hint=f"this layer's is {ours}",
                )


def _check_every_query_has_a_key(mask: Bool[Tensor, "B heads T S"]) -> None:
    without_key = ~mask.any(-1)
    if without_key.any():
        row, _, place = without_key.nonzero()[0].tolist()
        raise InputError(
            "every query must have a key that it may attend to",
            where="mask",
            got=f"none for row {row}, place {place}",
        )
