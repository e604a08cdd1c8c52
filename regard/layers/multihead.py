"""Multi-head attention, in every form that it has.

    O = concat(H_1 .. H_H) W^o,   H_h = softmax(Q_h K_h^T / sqrt(K)) V_h       (Vaswani et al. 2017, section 3.2.2)
    O = sum_h A_h X W^(h),        W^(h) = W_h^v W_h^o                          the sum form, `as_sum_of_heads`
    Q_h K_h^T / sqrt(K) = X W~[h] X^T,   W~[h] = W_h^q (W_h^k)^T / sqrt(K)     query and key merged, `merge`

The layers of the Transformers here (regard.layers.attention) have one matrix for query, key and
value and know one shape only, for speed. This layer has a matrix for each and takes every shape,
position and form, to be looked into.
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
    """W~[h] = W_h^q (W_h^k)^T / sqrt(K), and what the bias of the query leaves: W_h^k b_h^q /
    sqrt(K).

    (x W^q + b^q)(m W^k + b^k)^T has four terms. The two with b^k are the same for all keys: the
    softmax cancels them.
    """
    to_q, to_k = (
        part.weight.unflatten(0, (heads, -1)) for part in (query, key)
    )  # (H, K, D), (H, K, E)
    scale = to_q.shape[1] ** -0.5
    mix = torch.einsum("hkd,hke->hde", to_q, to_k) * scale
    if query.bias is None:
        return mix, None
    return mix, torch.einsum("hk,hke->he", query.bias.unflatten(0, (heads, -1)), to_k) * scale


class MultiHead(nn.Module):
    """Attention of x to itself, or to a memory, in H heads whose width K is free of the model's
    width D.

    x is (B, T, D), or a grid (B, X, Y, D): then every place looks at every place of the grid, the
    softmax runs over both axes, and only `positions` (with `axes=2`) know about the two directions.

    `positions` are for a sequence looking at itself. They do all that their kind does: what is
    added at the input is added to x here, so in a stack of layers only the first should have a kind
    that adds.

    `merged=True` has one matrix D x E a head for query and key, so H D E numbers against H K (D +
    E). It starts as an ordinary layer merged, of rank K, and may leave that rank as it learns.

    Scores are computed as `regard.attend` does it: half precision in float32, and without overflow.
    Queries, keys or values that are not finite themselves are an InputError.

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
        """`memory_width` is that of the memory if it is not x's; `value_width` that of the
        values, if these are read from something else than the keys. Dropout is of weights, in
        training."""
        super().__init__()
        if head_width is None and width % heads:
            raise InputError(
                "the width must be a multiple of the heads",
                got=f"width {width}, heads {heads}",
                hint="or give head_width, which is free",
            )
        self.width, self.heads, self.head_width = width, heads, head_width or width // heads
        self.memory_width = memory_width or width
        self.value_width = value_width or self.memory_width
        self.merged, self.dropout = merged, dropout
        inner = heads * self.head_width
        query, key = (
            nn.Linear(width, inner, bias=bias),
            nn.Linear(self.memory_width, inner, bias=bias),
        )
        if merged:
            query_key, query_key_bias = merged_query_key(query, key, heads)
            self.query_key = nn.Parameter(query_key.detach())
            self.query_key_bias = (
                None if query_key_bias is None else nn.Parameter(query_key_bias.detach())
            )
        else:
            self.query, self.key = query, key
        self.value = nn.Linear(self.value_width, inner, bias=bias)
        self.out = nn.Linear(inner, width, bias=bias)
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
        """What each place of x sees, in x's shape. `values` are read in place of the memory, if
        given.

        `mask` is True where one may look: (B, S) of keys, (B, T, S) or (B, H, T, S), where 1 stands
        for any B and H; of a grid (B, X, Y) of keys, or (B, H, XY, XY). `causal`: place t sees the
        places 0..t.
        """
        q, k, v, seen = self._prepare(x, memory, values, mask, causal)
        return self._leave(
            attend_in_range(q, k, v, dropout=self.dropout if self.training else 0.0, **seen), x
        )

    def look(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        values: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """`forward`, and the weights (B, H, T, S) it used; of a grid (B, H, X, Y, X, Y)."""
        q, k, v, seen = self._prepare(x, memory, values, mask, causal)
        weights = weights_in_range(q, k, **seen)
        used = nn.functional.dropout(weights, self.dropout, self.training)
        if x.ndim == 4:
            weights = weights.unflatten(2, x.shape[1:3])
            weights = weights.unflatten(-1, x.shape[1:3]) if memory is None else weights
        return self._leave(mix_in_range(used, v), x), weights

    # ---- one place at a time

    def start(
        self,
        memory: Tensor | None = None,
        *,
        rows: int | None = None,
        values: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> State:
        """What to carry before the first place: of `rows` sequences that look back at
        themselves, or over a memory (B, S, E) with its mask (B, S), whose keys and values are
        made here, once."""
        like = self.out.weight
        if self.positions is not None and self.positions.axes == 2:
            raise InputError(
                "a grid is seen at once, not place by place",
                where="start",
                got="positions with two axes",
            )
        if memory is None:
            if rows is None or self.memory_width != self.width:
                raise InputError(
                    "needs a memory to look at, or how many rows look at themselves", where="start"
                )
            kept = (
                (1, rows, 1, 0, self.width)
                if self.merged
                else (2, rows, self.heads, 0, self.head_width)
            )
            return State(
                position=torch.zeros(rows, dtype=torch.long, device=like.device),
                mask=torch.ones(rows, 0, dtype=torch.bool, device=like.device),
                kv_cache=KVCache(like.new_zeros(kept)),
            )
        self._check_memory(memory, values)
        if mask is None:
            mask = torch.ones(memory.shape[:2], dtype=torch.bool, device=like.device)
        seen = self._mask(mask, len(memory), 1, memory.shape[1], on_grid=None)
        _check_sight(seen)
        return State(
            position=torch.zeros(len(memory), dtype=torch.long, device=like.device),
            mask=mask,
            memory=(
                self._keys(memory)[None],
                self._values(memory if values is None else values)[None],
            ),
        )

    def step(self, x: Float[Tensor, "B D"], state: State) -> tuple[Float[Tensor, "B D"], State]:
        """One place further; T steps equal a causal `forward`. The state that was given stays
        valid. For use without gradients: the cache is written in place."""
        after = replace(state, position=state.position + 1, max_position=state.max_position + 1)
        if state.kv_cache is None:
            keys, values = state.memory
            context = attend_in_range(
                self._queries(x[:, None]),
                keys[0],
                values[0],
                mask=state.mask[:, None, None],
                scale=self._scale,
            )
            return self._leave(context, x), after
        past, last, kinds = (
            state.kv_cache.grown(state.max_position),
            state.max_position,
            self.positions,
        )
        slots, places = past.slab[..., : last + 1, :], torch.arange(last + 1, device=x.device)
        place = last if state.aligned else state.position[:, None]
        x_in = x[:, None] if kinds is None else kinds.add(x[:, None], place)  # (B, 1, D)
        q = self._queries(x_in)
        if self.merged:
            new = x_in[
                None, :, None
            ]  # its keys are its inputs, so one vector a place is all it keeps
        else:
            k, v = self._keys(x_in), self._values(x_in)
            rotation = None if kinds is None else kinds.rotation(place)
            q, k = (q, k) if rotation is None else (rotation(q), rotation(k))
            new = torch.stack([k, v])  # (2, B, H, 1, K)
        if state.aligned:
            slots[..., last:, :] = new
        else:
            slots[:, torch.arange(len(x), device=x.device), :, state.position] = new.squeeze(
                -2
            ).transpose(0, 1)
        seen: dict[str, Any] = dict(
            mask=None if state.aligned else (places <= state.position[:, None])[:, None, None],
            bias=None if kinds is None else kinds.bias(place, places),
            scale=self._scale,
        )
        if self.merged:
            # (A X) W^v in place of A (X W^v): values of the past need not be made again
            average = mix_in_range(weights_in_range(q, slots[0], **seen), slots[0])  # (B, H, 1, D)
            context = average @ self.value.weight.unflatten(0, (self.heads, -1)).transpose(1, 2)
            if self.value.bias is not None:
                context = context + self.value.bias.unflatten(0, (self.heads, 1, -1))
        else:
            context = attend_in_range(q, slots[0], slots[1], **seen)
        return self._leave(context, x), replace(after, kv_cache=past)

    # ---- other forms

    @classmethod
    def from_torch(cls, theirs: nn.MultiheadAttention) -> MultiHead:
        """The same layer with a copy of the weights. Ours has the batch first, whatever theirs
        has, and its mask is True where one may look, where theirs hides."""
        if theirs.bias_k is not None or theirs.bias_v is not None or theirs.add_zero_attn:
            raise InputError(
                "cannot be loaded: it appends a key and a value of its own (add_bias_kv or add_zero_attn)",
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
            for part, weight in zip((ours.query, ours.key, ours.value), weights, strict=True):
                part.weight.copy_(cast(Tensor, weight))
            if theirs.in_proj_bias is not None:
                for part, bias in zip(
                    (ours.query, ours.key, ours.value), theirs.in_proj_bias.chunk(3), strict=True
                ):
                    part.bias.copy_(bias)
            ours.out.load_state_dict(theirs.out_proj.state_dict())
        return ours.train(theirs.training)

    def merge(self) -> MultiHead:
        """The same attention with query and key merged; a copy."""
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
        """W^(h) = W_h^v W_h^o, each of rank at most K: O = sum_h A_h X W^(h) + c, where c = b^v
        W^o + b^o is the same at every place, for weights sum to one."""
        to_v, to_out = (
            self.value.weight.unflatten(0, (self.heads, -1)),
            self.out.weight.unflatten(1, (self.heads, -1)),
        )
        return torch.einsum("hke,dhk->hed", to_v, to_out)

    # ---- parts

    @property
    def _scale(self) -> float | None:
        return 1.0 if self.merged else None  # the merged matrix holds 1/sqrt(K)

    def _heads(self, x: Float[Tensor, "B T I"]) -> Float[Tensor, "B H T K"]:
        return x.unflatten(-1, (self.heads, self.head_width)).transpose(1, 2)

    def _queries(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B H T K"]:
        if not self.merged:
            return self._heads(self.query(x))
        q = torch.einsum("btd,hde->bhte", x, self.query_key)
        return q if self.query_key_bias is None else q + self.query_key_bias[:, None]

    def _keys(self, memory: Float[Tensor, "B S E"]) -> Float[Tensor, "B heads S K"]:
        return memory[:, None] if self.merged else self._heads(self.key(memory))

    def _values(self, memory: Float[Tensor, "B S E"]) -> Float[Tensor, "B H S K"]:
        return self._heads(self.value(memory))

    def _leave(self, context: Float[Tensor, "B H T K"], x: Tensor) -> Tensor:
        return self.out(context.transpose(1, 2).flatten(2)).view(x.shape)

    def _prepare(
        self,
        x: Tensor,
        memory: Tensor | None,
        values: Tensor | None,
        mask: Tensor | None,
        causal: bool,
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
        """q, k and v, and what decides who sees whom."""
        if x.ndim not in (3, 4) or x.shape[-1] != self.width:
            raise InputError(
                f"must be (B, T, {self.width}), or a grid (B, X, Y, {self.width})",
                where="x",
                got=tuple(x.shape),
            )
        kinds, flat, rotation, bias = self.positions, x.flatten(1, -2), None, None
        if memory is not None:
            self._check_memory(memory, values, rows=len(x))
        elif values is not None or self.memory_width != self.width:
            what = (
                "needs the memory that the values belong to"
                if values is not None
                else "needs a memory"
            )
            raise InputError(what, where="memory", hint=f"(B, S, {self.memory_width})")
        elif kinds is not None:
            if kinds.axes != x.ndim - 2:
                raise InputError(
                    f"positions with {kinds.axes} axes need x {'(B, T, D)' if kinds.axes == 1 else '(B, X, Y, D)'}",
                    where="x",
                    got=tuple(x.shape),
                )
            places = (
                torch.arange(x.shape[1]) if kinds.axes == 1 else grid(x.shape[1], x.shape[2])
            ).to(x.device)
            flat, rotation, bias = (
                kinds.add(flat, places),
                kinds.rotation(places),
                kinds.bias(places, places),
            )
        looked_at = flat if memory is None else memory
        q, k = self._queries(flat), self._keys(looked_at)
        if rotation is not None:
            q, k = rotation(q), rotation(k)
        v = self._values(looked_at if values is None else values)
        if mask is not None:
            on_grid = x.shape[1:3] if x.ndim == 4 and memory is None else None
            mask = self._mask(mask, len(q), q.shape[2], k.shape[2], on_grid=on_grid)
            mask = score_mask(
                (q.shape[2], k.shape[2]), q.device, mask=mask, bias=None, causal=causal
            )
            _check_sight(cast(Tensor, mask))
            causal = False
        return q, k, v, dict(mask=mask, bias=bias, causal=causal, scale=self._scale)

    def _mask(
        self, mask: Tensor, rows: int, length: int, keys: int, *, on_grid: torch.Size | None
    ) -> Bool[Tensor, "..."]:
        """The mask with four axes."""
        shapes = (
            ["(B, S)", "(B, T, S)", "(B, H, T, S)"]
            if on_grid is None
            else ["(B, X, Y)", "(B, H, XY, XY)"]
        )
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
                "positions are for a sequence looking at itself: the distance to a place of a memory means nothing",
                where="memory",
                hint="tell places where the memory is made",
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
                "positions are for a sequence looking at itself",
                got=f"memory width {self.memory_width}",
            )
        if self.merged and positions.uses_rotation:
            raise InputError(
                "query and key cannot be merged under rotary positions",
                where="merged",
                hint="the turn by the distance i - j stands between W^q and W^k, so each distance has a merged matrix "
                "of its own; every other kind of positions will do",
            )
        for name in ("width", "heads", "head_width"):
            made_for, own = getattr(positions, name), getattr(self, name)
            if made_for not in (None, own):
                raise InputError(
                    f"made for another {name}",
                    where="positions",
                    got=made_for,
                    hint=f"this layer's is {own}",
                )


def _check_sight(mask: Bool[Tensor, "B heads T S"]) -> None:
    blind = ~mask.any(-1)
    if blind.any():
        row, _, place = blind.nonzero()[0].tolist()
        raise InputError(
            "every query must have a key that it may look at",
            where="mask",
            got=f"none for row {row}, place {place}",
        )
