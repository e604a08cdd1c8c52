"""Positions: what tells place 3 from place 4.

Attention itself does not see order. A kind of positions puts it in at one of three places, and only
there:

| kind | does | where | longer than trained |
|---|---|---|---|
| none | nothing | | every length alike |
| sinusoidal | adds waves | the input, once | defined, but the model never met such waves |
| learned | adds a learned vector | the input, once | refused: there is no vector for it |
| rotary | turns each pair of numbers by its place | q and k, in every layer | defined, but the distances are new |
| alibi | subtracts slope x distance | the scores, in every layer | yes, it was made for this |
| relative | adds a learned number a distance | the scores, in every layer | all beyond max_distance are one distance |

Cached keys stay valid under all of them: a key holds its own place (rotary keys are cached turned)
or none at all, and a bias is made for the places of the present queries.

Each has a 2-D form (`axes=2`), whose places are pairs (x, y) on a grid; with one axis a place is a
number.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import final

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor, nn

from regard.errors import InputError

# (T,) for all rows alike, (B, T) for each its own, or an int for one place; with two axes (T, 2)
# and (B, T, 2).
Places = Int[Tensor, "..."] | int
BASE = 10000.0


def grid(columns: int, rows: int) -> Int[Tensor, "places 2"]:
    """The places (x, y) of a grid (X, Y), in the order in which it is flattened.

    >>> grid(2, 3).tolist()
    [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    """
    return torch.cartesian_prod(torch.arange(columns), torch.arange(rows))


def inverse_frequencies(width: int, device: torch.device | None = None) -> Float[Tensor, " half"]:
    """How fast each pair of `width` numbers uses_rotation: 10000^(-2i/D), in float64, for a far
    place times a rounded rate is a wrong angle."""
    return BASE ** (-torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)


def sinusoidal(places: Int[Tensor, "*places"], width: int) -> Float[Tensor, "*places D"]:
    """p(t, 2i) = sin(t / 10000^(2i/D)), p(t, 2i+1) = cos(t / 10000^(2i/D))     (Vaswani et al. 2017, section 3.5)

    >>> sinusoidal(torch.tensor([0]), 4).tolist()
    [[0.0, 1.0, 0.0, 1.0]]
    """
    angles = places[..., None] * inverse_frequencies(width, places.device)
    return (
        torch.stack([angles.sin(), angles.cos()], dim=-1)
        .flatten(-2)[..., :width]
        .to(torch.get_default_dtype())
    )


def sinusoidal_2d(places: Int[Tensor, "*places 2"], width: int) -> Float[Tensor, "*places D"]:
    """The waves of x in the first half of the width, those of y in the second."""
    return sinusoidal(places, width // 2).flatten(-2)


def rotary_phases(
    places: Int[Tensor, "*places"], width: int, *, axes: int = 1
) -> Complex[Tensor, "*where pairs"]:
    """e^(i t theta_j) for each of the width/2 pairs, theta_j = 10000^(-2j/K). With two axes, x
    turns the first half of the pairs and y the second."""
    angles = places[..., None] * inverse_frequencies(width // axes, places.device)
    if axes == 2:
        angles = angles.flatten(-2)
    return torch.polar(torch.ones_like(angles), angles)


def apply_rotary(
    x: Float[Tensor, "*batch T K"], by: Complex[Tensor, "*where pairs"]
) -> Float[Tensor, "*batch T K"]:
    """Each pair of x as a complex number, times `by`: the fastest way that torch has to turn it."""
    exact = x if x.dtype in (torch.float32, torch.float64) else x.float()
    if (
        x.storage_offset() % 2
        or any(step % 2 for step in exact.stride()[:-1])
        or exact.stride(-1) != 1
    ):
        exact = exact.clone(
            memory_format=torch.contiguous_format
        )  # a complex view needs its pairs side by side
    pairs = torch.view_as_complex(exact.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * by.to(x.device, pairs.dtype)).flatten(-2).to(x.dtype)


def rotary(
    x: Float[Tensor, "*batch T K"], places: Int[Tensor, "..."], *, axes: int = 1
) -> Float[Tensor, "*batch T K"]:
    """Each pair (x1, x2) at place t turned by the angle t theta_j               (Su et al. 2021, equation 34):

        x1' = x1 cos(t theta_j) - x2 sin(t theta_j),   x2' = x1 sin(t theta_j) + x2 cos(t theta_j)

    For queries and keys, never values: the score of two turned vectors depends on the distance of
    their places only. `places` are those of x's axes before the last.

    >>> rotary(torch.tensor([[1.0, 0.0]]), torch.tensor([0])).tolist()
    [[1.0, 0.0]]
    """
    return apply_rotary(x, rotary_phases(places, x.shape[-1], axes=axes))


def offsets(queries: Places, keys: Int[Tensor, "..."], *, axes: int = 1) -> Int[Tensor, "..."]:
    """keys - queries for each pair of places: (*rows, T, S), or (*rows, T, S, 2) with two axes.

    >>> offsets(2, torch.arange(4)).tolist()
    [[-2, -1, 0, 1]]
    """
    if isinstance(queries, int):
        queries = torch.tensor([queries], device=keys.device)
    if axes == 2:
        return keys[..., None, :, :] - queries[..., :, None, :]
    return keys[..., None, :] - queries[..., :, None]


def alibi_slopes(heads: int) -> Float[Tensor, " H"]:
    """m_h = 2^(-8h/H), h = 1..H, for H a power of two. Otherwise those of the power of two below, then every second one
    of the power of two above                                          (Press et al. 2022, section 3 and their code)

    >>> alibi_slopes(4).tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    below = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-8 * h / below) for h in range(1, below + 1)]
    between = [2 ** (-4 * h / below) for h in range(1, 2 * below + 1, 2)]
    return torch.tensor([*slopes, *between][:heads])


def alibi(
    queries: Places, keys: Int[Tensor, "..."], slopes: Float[Tensor, " H"], *, axes: int = 1
) -> Float[Tensor, "*rows H T S"]:
    """-m_h |i - j|, zero where a query looks at its own place         (Press et al. 2022, section 3)

    With two axes the distance is the straight line sqrt(dx^2 + dy^2)  (2D-ALiBi, Fuller et al. 2023, section 3.2).
    """
    apart = offsets(queries, keys, axes=axes).to(slopes.dtype)
    distance = apart.abs() if axes == 1 else apart.square().sum(-1).sqrt()
    return -slopes[:, None, None] * distance[..., None, :, :]


def relative(
    queries: Places, keys: Int[Tensor, "..."], table: Float[Tensor, " H *distances"]
) -> Float[Tensor, "*rows H T S"]:
    """b_h[clip(j - i)]: one number a head and distance, where a distance beyond the table's reach
    counts as its reach (the clipping of Shaw et al. 2018, equation 4, on a scalar a head as in
    Raffel et al. 2020, section 2.1).

    The table is (H, 2R + 1), or (H, 2R + 1, 2R' + 1) over (dx, dy), its middle the distance 0.
    """
    limits = [(size - 1) // 2 for size in table.shape[1:]]
    if len(limits) == 1:
        found = table[:, offsets(queries, keys).clamp(-limits[0], limits[0]) + limits[0]]
    else:
        index = (
            apart.clamp(-r, r) + r
            for apart, r in zip(offsets(queries, keys, axes=2).unbind(-1), limits, strict=True)
        )
        found = table[:, *index]
    return found.movedim(0, -3)  # (H, *rows, T, S) -> (*rows, H, T, S)


class Positions(nn.Module):
    """The one interface: three hooks, of which each kind uses one. Here they do nothing.

    One module serves all layers of a stack, and nothing is kept between calls.
    """

    axes: int = 1
    uses_rotation: bool = False  # whether `rotate` does anything
    uses_bias: bool = False  # whether `bias` does anything
    width: int | None = None  # the sizes that it was made for; None will do with any
    heads: int | None = None
    head_width: int | None = None

    def add(self, x: Float[Tensor, "*rows D"], places: Places) -> Float[Tensor, "*rows D"]:
        """The input with its places, once, below the first layer."""
        return x

    def rotation(self, places: Places) -> Callable[[Tensor], Tensor] | None:
        """What to do with q and k at these places, the same in every layer: so it is made once
        for all of them, and None means that there is nothing to do."""
        return None

    @final
    def rotate(self, x: Float[Tensor, "*batch T K"], places: Places) -> Float[Tensor, "*batch T K"]:
        """Queries or keys (…, H, T, K) at their places, in every layer. With a row of places for
        each row of the batch, x has an axis of heads between them."""
        rotation = self.rotation(places)
        return x if rotation is None else rotation(x)

    def bias(
        self, queries: Places, keys: Int[Tensor, "..."]
    ) -> Float[Tensor, "*rows H T S"] | None:
        """What is added to the scores of every layer: (H, T, S), with rows of places (B, H, T,
        S)."""
        return None


def no_bias(kernel: str, positions: Positions) -> None:
    """Refuses what cannot be: linear attention never makes the scores that ALiBi and a relative
    bias are added to."""
    if kernel == "maclaurin" and positions.uses_bias:
        raise InputError(
            "linear attention has no scores to add positions to",
            where="positions",
            got=type(positions).__name__.lower(),
            hint="use sinusoidal, learned or rotary positions, or the softmax kernel",
        )


class NoPositions(Positions):
    """Order is not told. Attention without a mask then treats a sentence as a bag of words."""


class Sinusoidal(Positions):
    """Adds fixed waves to the input, once. A place beyond the table is computed when it is asked
    for, so any length works, though a model has not learned to read waves it never met. Cached
    keys stay valid."""

    table: Tensor
    width: int

    def __init__(self, *, width: int, table: int = 512, axes: int = 1):
        super().__init__()
        _fits(width, axes, "sinusoidal positions on a grid need an even width")
        self.width, self.axes = width, axes
        self.register_buffer(
            "table", sinusoidal(torch.arange(table), width // axes), persistent=False
        )

    def add(self, x: Float[Tensor, "*rows D"], places: Places) -> Float[Tensor, "*rows D"]:
        if isinstance(places, int):
            if places < self.table.shape[0]:
                return x + self.table[places]
            places = torch.tensor(places, device=x.device)
        if places.numel() and int(places.max()) >= self.table.shape[0]:
            found = sinusoidal(places, self.width // self.axes).to(x.dtype)
        else:
            found = self.table[places]
        return x + (found if self.axes == 1 else found.flatten(-2))


class Learned(Positions):
    """Adds one learned vector a place to the input, once; on a grid one for x and one for y.
    There is none beyond `longest` places, so a longer input is refused. Cached keys stay valid."""

    def __init__(self, *, width: int, longest: int | tuple[int, int]):
        super().__init__()
        self.longest = (longest,) if isinstance(longest, int) else longest
        self.width, self.axes = width, len(self.longest)
        self.table = nn.Embedding(
            sum(self.longest), width
        )  # with two axes: the rows of x, then those of y
        nn.init.normal_(self.table.weight, std=width**-0.5)

    def add(self, x: Float[Tensor, "*rows D"], places: Places) -> Float[Tensor, "*rows D"]:
        for axis, longest in enumerate(self.longest):
            found = places if isinstance(places, int) or self.axes == 1 else places[..., axis]
            last = found if isinstance(found, int) else int(found.max()) if found.numel() else 0
            if last >= longest:
                raise InputError(
                    "longer than the learned positions reach",
                    got=f"place {last + 1}" + (f" of axis {'xy'[axis]}" if self.axes == 2 else ""),
                    hint=f"at most {longest} places; sinusoidal positions have no limit",
                )
        if self.axes == 1:
            return x + self.table.weight[places]
        assert isinstance(places, Tensor)
        across, along = places.unbind(-1)
        return x + self.table.weight[across] + self.table.weight[along + self.longest[0]]


class Rotary(Positions):
    """Turns queries and keys, in every layer. A score then depends on the distance of two places
    only. Any length is defined, but distances that training never showed are new to the model.
    Keys are cached turned: a key's angle depends on its own place, so it stays valid however far
    the queries go."""

    uses_rotation = True
    head_width: int

    def __init__(self, *, head_width: int, axes: int = 1):
        super().__init__()
        _fits(
            head_width,
            2 * axes,
            f"rotary positions turn pairs, so a head's width must be a multiple of {2 * axes}",
        )
        self.head_width, self.axes = head_width, axes

    def rotation(self, places: Places) -> Callable[[Tensor], Tensor]:
        if isinstance(places, int):
            places = torch.tensor(places)
        by = rotary_phases(places, self.head_width, axes=self.axes)  # (T, K/2) or (B, T, K/2)
        return partial(apply_rotary, by=by if by.ndim < 3 else by[:, None])


class Alibi(Positions):
    """Subtracts slope x distance from the scores of every layer, another slope for each head,
    nothing learned. Longer inputs need nothing new, and far places fade. Keys hold no position,
    so cached ones stay valid; the bias is made for the places of the present queries."""

    uses_bias = True
    slopes: Tensor

    def __init__(self, *, heads: int, axes: int = 1):
        super().__init__()
        self.heads, self.axes = heads, axes
        self.register_buffer("slopes", alibi_slopes(heads), persistent=False)

    def bias(self, queries: Places, keys: Int[Tensor, "..."]) -> Float[Tensor, "*rows H T S"]:
        return alibi(queries, keys, self.slopes, axes=self.axes)


class Relative(Positions):
    """Adds a learned number for each head and clipped distance to the scores of every layer; on
    a grid for each (dx, dy). All distances beyond `max_distance` share the last number, so any
    length works. Cached keys stay valid, as with ALiBi."""

    uses_bias = True

    def __init__(self, *, heads: int, max_distance: int | tuple[int, int] = 32):
        super().__init__()
        limits = (max_distance,) if isinstance(max_distance, int) else max_distance
        self.heads, self.axes = heads, len(limits)
        self.table = nn.Parameter(torch.randn(heads, *(2 * r + 1 for r in limits)) * 0.02)

    def bias(self, queries: Places, keys: Int[Tensor, "..."]) -> Float[Tensor, "*rows H T S"]:
        return relative(queries, keys, self.table)


def _fits(width: int, parts: int, what: str) -> None:
    if width % parts:
        raise InputError(
            what, got=width, hint=f"{width + -width % parts} is the next one that fits"
        )
