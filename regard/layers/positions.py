"""Positional encodings.

Attention itself does not depend on the order of its inputs. Each kind of positions adds that
information in one of three ways:

| kind | what it does | where | beyond the trained length |
|---|---|---|---|
| none | nothing | | all lengths alike |
| sinusoidal | adds sines and cosines | input, once | defined, but new to the model |
| learned | adds a learned vector | input, once | an error: there is no vector |
| rotary | rotates pairs by angles | q and k, each layer | defined, but the distances are new |
| alibi | subtracts slope x distance | scores, each layer | works: it was made for this |
| relative | adds a learned number | scores, each layer | beyond max_distance all are alike |

Cached keys stay valid with each of them: a key depends on its own position (rotary keys are cached
rotated) or on none, and a bias is computed for the positions of the current queries.

Each kind has a 2-D form (`axes=2`), whose positions are pairs (x, y) on a grid.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, final

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor, nn

from regard.device import widest_float
from regard.errors import InputError
from regard.layers import checks
from regard.layers.sizes import AttentionKernel

# Indices of positions: (T,) for all rows, (B, T) for each row its own, or an int for one position;
# with two axes (T, 2) or (B, T, 2).
Places = Int[Tensor, "..."] | int
Axes = Literal[1, 2]
BASE = 10000.0


def grid(columns: int, rows: int, device: torch.device | None = None) -> Int[Tensor, "places 2"]:
    """The positions (x, y) of a grid (X, Y), in the order in which it is flattened.

    >>> grid(2, 3).tolist()
    [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    """
    return torch.cartesian_prod(
        torch.arange(columns, device=device), torch.arange(rows, device=device)
    )


def inverse_frequencies(width: int, device: torch.device) -> Float[Tensor, " half"]:
    """10000^(-2i/D) for each of the D/2 pairs, D = `width`. In float64: with a rounded frequency
    the angles of far positions would be wrong."""
    dtype = widest_float(device)
    return BASE ** (-torch.arange(0, width, 2, dtype=dtype, device=device) / width)


def sinusoidal(places: Int[Tensor, "*places"], width: int) -> Float[Tensor, "*places D"]:
    """Sinusoidal positions                                     (Vaswani et al. 2017, section 3.5):

        p(t, 2i) = sin(t / 10000^(2i/D)),   p(t, 2i+1) = cos(t / 10000^(2i/D))

    >>> sinusoidal(torch.tensor([0]), 4).tolist()
    [[0.0, 1.0, 0.0, 1.0]]
    """
    angles = places[..., None] * inverse_frequencies(width, places.device)
    waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
    return waves[..., :width].to(torch.get_default_dtype())


def sinusoidal_2d(places: Int[Tensor, "*places 2"], width: int) -> Float[Tensor, "*places D"]:
    """Sinusoidal positions of x in the first half of the width, those of y in the second."""
    return sinusoidal(places, width // 2).flatten(-2)


def rotary_phases(
    places: Int[Tensor, "*places"], width: int, *, axes: Axes = 1
) -> Complex[Tensor, "*where pairs"]:
    """The rotations e^(i t theta_j) of the width/2 pairs, theta_j = 10000^(-2j/K). With two axes,
    the first half of the pairs is rotated by x, the second by y."""
    angles = places[..., None] * inverse_frequencies(width // axes, places.device)
    if axes == 2:
        angles = angles.flatten(-2)
    return torch.polar(torch.ones_like(angles), angles)


def apply_rotary(
    x: Float[Tensor, "*batch T K"], phases: Complex[Tensor, "*where pairs"]
) -> Float[Tensor, "*batch T K"]:
    """Rotates each pair of x: as a complex number it is multiplied by its phase, which is torch's
    fastest way."""
    exact = x if x.dtype in (torch.float32, torch.float64) else x.float()
    odd_strides = any(stride % 2 for stride in exact.stride()[:-1])
    if x.storage_offset() % 2 or odd_strides or exact.stride(-1) != 1:
        # A complex view needs the two numbers of a pair side by side.
        exact = exact.clone(memory_format=torch.contiguous_format)
    pairs = torch.view_as_complex(exact.unflatten(-1, (-1, 2)))
    rotated = pairs * phases.to(x.device, pairs.dtype)
    return torch.view_as_real(rotated).flatten(-2).to(x.dtype)


def rotary(
    x: Float[Tensor, "*batch T K"], places: Int[Tensor, "..."], *, axes: Axes = 1
) -> Float[Tensor, "*batch T K"]:
    """Rotates each pair (x1, x2) at position t by the angle t theta_j (Su et al. 2021, eq. 34):

        x1' = x1 cos(t theta_j) - x2 sin(t theta_j),   x2' = x1 sin(t theta_j) + x2 cos(t theta_j)

    For queries and keys, not values: the score of a rotated query and a rotated key depends only
    on the distance of their positions. `places` are the positions along x's last axis but one.

    >>> rotary(torch.tensor([[1.0, 0.0]]), torch.tensor([0])).tolist()
    [[1.0, 0.0]]
    """
    return apply_rotary(x, rotary_phases(places, x.shape[-1], axes=axes))


def offsets(queries: Places, keys: Int[Tensor, "..."], *, axes: Axes = 1) -> Int[Tensor, "..."]:
    """The distances keys - queries of all pairs of positions: (*rows, T, S), or with two axes
    (*rows, T, S, 2).

    >>> offsets(2, torch.arange(4)).tolist()
    [[-2, -1, 0, 1]]
    """
    if isinstance(queries, int):
        queries = torch.tensor([queries], device=keys.device)
    if axes == 2:
        return keys[..., None, :, :] - queries[..., :, None, :]
    return keys[..., None, :] - queries[..., :, None]


def alibi_slopes(heads: int) -> Float[Tensor, " H"]:
    """m_h = 2^(-8h/H), h = 1..H, if H is a power of two. Otherwise the slopes of the next smaller
    power of two, then every second slope of the next larger one (Press et al. 2022, section 3, and
    their code).

    >>> alibi_slopes(4).tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    below = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-8 * h / below) for h in range(1, below + 1)]
    between = [2 ** (-4 * h / below) for h in range(1, 2 * below + 1, 2)]
    return torch.tensor([*slopes, *between][:heads])


def alibi(
    queries: Places, keys: Int[Tensor, "..."], slopes: Float[Tensor, " H"], *, axes: Axes = 1
) -> Float[Tensor, "*rows H T S"]:
    """The bias -m_h |i - j| of query position i and key position j (Press et al. 2022, section 3).

    With two axes the distance is Euclidean, sqrt(dx^2 + dy^2) (2D-ALiBi, Fuller et al. 2023,
    section 3.2).
    """
    offset = offsets(queries, keys, axes=axes).to(slopes.dtype)
    distance = offset.abs() if axes == 1 else offset.square().sum(-1).sqrt()
    return -slopes[:, None, None] * distance[..., None, :, :]


def relative(
    queries: Places, keys: Int[Tensor, "..."], table: Float[Tensor, " H *distances"]
) -> Float[Tensor, "*rows H T S"]:
    """The bias b_h[clip(j - i)]: one number for each head and distance. A distance beyond the table
    counts as the largest one in it (clipping as in Shaw et al. 2018, equation 4, with one scalar a
    head as in Raffel et al. 2020, section 2.1).

    The table is (H, 2R + 1), or (H, 2R + 1, 2R' + 1) over (dx, dy), with distance 0 in the middle.
    """
    limits = [(size - 1) // 2 for size in table.shape[1:]]
    if len(limits) == 1:
        index = [offsets(queries, keys).clamp(-limits[0], limits[0]) + limits[0]]
    else:
        distances = offsets(queries, keys, axes=2).unbind(-1)
        index = [
            distance.clamp(-limit, limit) + limit
            for distance, limit in zip(distances, limits, strict=True)
        ]
    return table[:, *index].movedim(0, -3)  # (H, *rows, T, S) -> (*rows, H, T, S)


class Positions(nn.Module):
    """The interface of all kinds: three methods, of which each kind overrides one.

    One module serves all layers of a stack, and stores nothing between calls.
    """

    axes: Axes = 1
    uses_rotation: bool = False  # whether `rotation` does anything
    uses_bias: bool = False  # whether `bias` does anything
    width: int | None = None  # the sizes it was made for; None: any
    heads: int | None = None
    head_width: int | None = None

    def add(self, x: Float[Tensor, "*rows D"], places: Places) -> Float[Tensor, "*rows D"]:
        """The input of the first layer with its positions added."""
        return x

    def rotation(self, places: Places) -> Callable[[Tensor], Tensor] | None:
        """The function that rotates q and k at these positions; None: no rotation. It is the same
        in every layer, so it is made once for all of them."""
        return None

    @final
    def rotate(self, x: Float[Tensor, "*batch T K"], places: Places) -> Float[Tensor, "*batch T K"]:
        """Queries or keys (…, H, T, K) rotated to their positions. With places (B, T), x must have
        an axis of heads after B."""
        rotation = self.rotation(places)
        return x if rotation is None else rotation(x)

    def bias(
        self, queries: Places, keys: Int[Tensor, "..."]
    ) -> Float[Tensor, "*rows H T S"] | None:
        """The bias added to the scores of every layer: (H, T, S), or (B, H, T, S) for places
        (B, T); None: no bias."""
        return None


def check_kernel(kernel: AttentionKernel, positions: Positions) -> None:
    """Raises an InputError for ALiBi or relative positions with a kernel that never computes the
    scores to which they are added."""
    if positions.uses_bias and not kernel.takes_bias:
        raise InputError(
            "linear attention has no scores to add positions to",
            where="positions",
            got=type(positions).__name__.lower(),
            hint="use sinusoidal, learned or rotary positions, or the softmax kernel",
        )


class NoPositions(Positions):
    """No positional encoding: attention without a mask then treats a text as a bag of words."""


class Sinusoidal(Positions):
    """Adds fixed sines and cosines to the input of the first layer. Positions beyond the table are
    computed on demand, so any length works, though positions beyond the trained length are new to
    the model."""

    table: Tensor
    width: int

    def __init__(self, *, width: int, table: int = 512, axes: Axes = 1):
        super().__init__()
        self.axes = checks.one_of("axes", axes, Axes)
        self.width = width
        _check_multiple(width, axes, "sinusoidal positions on a grid need an even width")
        vectors = sinusoidal(torch.arange(table), width // axes)
        self.register_buffer("table", vectors, persistent=False)

    def add(self, x: Float[Tensor, "*rows D"], places: Places) -> Float[Tensor, "*rows D"]:
        if isinstance(places, int):
            if places < self.table.shape[0]:
                return x + self.table[places]
            places = torch.tensor(places, device=x.device)
        if places.numel() and int(places.max()) >= self.table.shape[0]:
            vectors = sinusoidal(places, self.width // self.axes).to(x.dtype)
        else:
            vectors = self.table[places]
        return x + (vectors if self.axes == 1 else vectors.flatten(-2))


class Learned(Positions):
    """Adds a learned vector for each position to the input of the first layer; on a grid one for x
    and one for y. `num_positions` is their number, or those of x and of y; an input beyond
    them is an InputError."""

    def __init__(self, *, width: int, num_positions: int | tuple[int, int]):
        super().__init__()
        self.num_positions = (num_positions,) if isinstance(num_positions, int) else num_positions
        self.width = width
        self.axes = 1 if len(self.num_positions) == 1 else 2
        # With two axes: the vectors of x, then those of y.
        self.table = nn.Embedding(sum(self.num_positions), width)
        nn.init.normal_(self.table.weight, std=width**-0.5)

    def add(self, x: Float[Tensor, "*rows D"], places: Places) -> Float[Tensor, "*rows D"]:
        for axis, limit in enumerate(self.num_positions):
            if isinstance(places, int):
                last = places
            else:
                along_axis = places if self.axes == 1 else places[..., axis]
                last = int(along_axis.max()) if along_axis.numel() else 0
            if last >= limit:
                raise InputError(
                    "longer than the learned positions reach",
                    got=f"place {last + 1}" + (f" of axis {'xy'[axis]}" if self.axes == 2 else ""),
                    hint=f"at most {limit} places; sinusoidal positions have no limit",
                )
        if self.axes == 1:
            return x + self.table.weight[places]
        assert isinstance(places, Tensor)
        places_x, places_y = places.unbind(-1)
        return x + self.table.weight[places_x] + self.table.weight[places_y + self.num_positions[0]]


class Rotary(Positions):
    """Rotates queries and keys, in every layer, so that a score depends only on the distance of two
    positions. Any length works, but distances beyond the trained length are new to the model. Keys
    are cached rotated: the angle of a key depends on its own position only."""

    uses_rotation = True
    head_width: int

    def __init__(self, *, head_width: int, axes: Axes = 1):
        super().__init__()
        self.axes = checks.one_of("axes", axes, Axes)
        self.head_width = head_width
        _check_multiple(
            head_width,
            2 * axes,
            f"rotary positions rotate pairs, so a head's width must be a multiple of {2 * axes}",
        )

    def rotation(self, places: Places) -> Callable[[Tensor], Tensor]:
        if isinstance(places, int):
            places = torch.tensor(places, device="cpu")  # apply_rotary moves the phases to x
        phases = rotary_phases(places, self.head_width, axes=self.axes)  # (T, K/2) or (B, T, K/2)
        if phases.ndim == 3:
            phases = phases[:, None]  # (B, 1, T, K/2), the same in all heads
        return partial(apply_rotary, phases=phases)


class Alibi(Positions):
    """Subtracts slope x distance from the scores of every layer, with a fixed slope for each head.
    Longer inputs need nothing new: far positions get small weights."""

    uses_bias = True
    slopes: Tensor

    def __init__(self, *, heads: int, axes: Axes = 1):
        super().__init__()
        self.axes = checks.one_of("axes", axes, Axes)
        self.heads = heads
        self.register_buffer("slopes", alibi_slopes(heads), persistent=False)

    def bias(self, queries: Places, keys: Int[Tensor, "..."]) -> Float[Tensor, "*rows H T S"]:
        return alibi(queries, keys, self.slopes, axes=self.axes)


class Relative(Positions):
    """Adds a learned number for each head and clipped distance to the scores of every layer; on a
    grid for each (dx, dy). All distances beyond `max_distance` share one number, so any length
    works."""

    uses_bias = True

    def __init__(self, *, heads: int, max_distance: int | tuple[int, int] = 32):
        super().__init__()
        limits = (max_distance,) if isinstance(max_distance, int) else max_distance
        self.heads = heads
        self.axes = 1 if len(limits) == 1 else 2
        self.table = nn.Parameter(torch.randn(heads, *(2 * limit + 1 for limit in limits)) * 0.02)

    def bias(self, queries: Places, keys: Int[Tensor, "..."]) -> Float[Tensor, "*rows H T S"]:
        return relative(queries, keys, self.table)


def _check_multiple(width: int, divisor: int, message: str) -> None:
    if width % divisor:
        hint = f"{width + -width % divisor} is the next one that fits"
        raise InputError(message, got=width, hint=hint)
