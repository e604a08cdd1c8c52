"""Monomials: the features whose products are a polynomial of q . k.

    (q . k)^n / n! = sum over |alpha| = n of  q^alpha k^alpha / alpha!     (multinomial theorem)

so sum_{n<terms} (q . k)^n / n! is a product of monomials of q with monomials of k, weighted by
1/alpha!, one for each multiset alpha of fewer than `terms` axes: M = C(D + terms - 1, D) of them.
They are ordered by degree, and within a degree like `itertools.combinations_with_replacement`:
(a, b, …) with a <= b <= …. Hence the monomials of degree n that begin with axis a are x_a times the
*last* C(D - a + n - 2, n - 1) of degree n - 1.

`gather`, `read` and `pull` are the operations of linear attention on them. They process the
positions in pieces that fit the processor's cache: the features of all positions never exist
together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

PIECE = 1 << 20  # the most features of a piece
PLACES = 512  # the most positions of a piece
STEP = 8  # axes of a block of features


def how_many(width: int, terms: int) -> int:
    """M, the number of monomials of degree below `terms`.

    >>> how_many(5, 3), how_many(64, 3)
    (21, 2145)
    """
    return math.comb(width + terms - 1, width)


def _of_degree(width: int, degree: int) -> int:
    return math.comb(width + degree - 1, degree) if width else 0


# Where tables are computed, in double precision; then they are moved to where they are used.
CPU = torch.device("cpu")


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # cached tensors must also work in training
def _recipe(width: int, terms: int) -> tuple[Tensor, tuple[tuple[Tensor, Tensor], ...]]:
    """The weights 1/alpha! (M,), and for each degree from 2 the factors of its monomials: the
    indices of an axis and of a monomial of the degree before."""
    # run: the exponent of a monomial's first axis
    weight = run = torch.ones(width, dtype=torch.float64, device=CPU)
    weights = [torch.ones(1, dtype=torch.float64, device=CPU), weight][:terms]
    pairs = []
    for degree in range(2, terms):
        axes, rests, runs = [], [], []
        for a in range(width):
            first = len(weight) - _of_degree(width - a, degree - 1)
            rest = torch.arange(first, len(weight), device=CPU)
            # Whether the rest begins with axis a, too.
            again = torch.arange(len(rest), device=CPU) < _of_degree(width - a, degree - 2)
            axes.append(torch.full_like(rest, a))
            rests.append(rest)
            runs.append(torch.where(again, run[rest] + 1, 1))
        pairs.append((torch.cat(axes), torch.cat(rests)))
        run = torch.cat(runs)
        weight = weight[pairs[-1][1]] / run
        weights.append(weight)
    return torch.cat(weights), tuple(pairs)


def weights(width: int, terms: int, like: Tensor) -> Float[Tensor, " M"]:
    """1/alpha! of every monomial (shared: do not write to it)."""
    return _weights(width, terms, like.dtype, like.device)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _weights(
    width: int, terms: int, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, " M"]:
    return _recipe(width, terms)[0].to(dtype).to(device)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _factors(width: int, terms: int, device: torch.device) -> tuple[tuple[Tensor, Tensor], ...]:
    return tuple((axes.to(device), rests.to(device)) for axes, rests in _recipe(width, terms)[1])


def monomials(x: Float[Tensor, "*rows D"], terms: int) -> Float[Tensor, "*rows M"]:
    """All monomials of the last axis, in few calls and with autograd; for few positions."""
    by_degree = [x.new_ones(*x.shape[:-1], 1), x][:terms]
    for axes, rests in _factors(x.shape[-1], terms, x.device):
        previous = by_degree[-1]
        by_degree.append(x[..., axes] * previous[..., rests])
    return torch.cat(by_degree, -1)


@dataclass(frozen=True)
class _Layout:
    """The layout of the features of a piece.

    The features of a degree come in blocks: STEP axes times all monomials of the degree before,
    from the first of these axes on, in one multiplication. Inside a block some occur twice, such as
    x_1 x_0 and x_0 x_1; `where` (M,) is the index of each monomial.
    """

    features: int  # their number, duplicates included
    degrees: list[slice]  # the features of each degree
    # For each degree, slices of: axes, features, features of the degree before.
    blocks: list[list[tuple[slice, slice, slice]]]
    where: Tensor

    def spread(self, sums: Float[Tensor, "N M E"]) -> Float[Tensor, "N F E"]:
        """The sums in this layout, with zeros for duplicates."""
        spread = sums.new_zeros(sums.shape[0], self.features, sums.shape[2])
        spread[:, self.where] = sums
        return spread


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _layout(width: int, terms: int, device: torch.device = CPU) -> _Layout:
    groups = [slice(a, min(width, a + STEP)) for a in range(0, width, STEP)]
    degrees, blocks = [slice(0, 1), slice(1, 1 + width)][:terms], [[], []][:terms]
    # Of groups and monomials in their degree.
    begins = [group.start for group in groups]
    place = torch.arange(width, device=CPU)
    where = [torch.zeros(1, dtype=torch.long, device=CPU), 1 + place][:terms]
    for axes, rests in _recipe(width, terms)[1]:
        before, end, own, at = degrees[-1], degrees[-1].stop, [], 0
        length, starts = before.stop - before.start, []
        for group, begin in zip(groups, begins, strict=True):
            size = (group.stop - group.start) * (length - begin)
            own.append(
                (group, slice(end + at, end + at + size), slice(before.start + begin, before.stop))
            )
            starts.append(at)
            at += size
        group = axes // STEP
        first = torch.tensor(begins, device=CPU)[group]
        start = torch.tensor(starts, device=CPU)[group]
        place = start + (axes % STEP) * (length - first) + place[rests] - first
        where.append(end + place)
        degrees.append(slice(end, end + at))
        blocks.append(own)
        begins = starts
    return _Layout(degrees[-1].stop, degrees, blocks, torch.cat(where).to(device))


def fill(
    x: Float[Tensor, "N D C"], terms: int, out: Float[Tensor, "N F C"]
) -> Float[Tensor, "N F C"]:
    """Writes the features of a piece to `out`, with positions last, so that every write is
    contiguous."""
    layout = _layout(x.shape[1], terms, x.device)
    out[:, 0] = 1
    if terms > 1:
        out[:, layout.degrees[1]] = x
    for blocks in layout.blocks:
        for axes, own, rest in blocks:
            to = out[:, own].unflatten(1, (axes.stop - axes.start, -1))
            torch.mul(x[:, axes, None], out[:, None, rest], out=to)
    return out


def _pull(
    x: Float[Tensor, "N D C"],
    features: Float[Tensor, "N F C"],
    grads: Float[Tensor, "N F C"],
    terms: int,
) -> Float[Tensor, "N D C"]:
    """The gradient of x from the gradient of its features, which is overwritten: the blocks of
    `fill` in reverse."""
    layout, dx = _layout(x.shape[1], terms, x.device), torch.zeros_like(x)
    for blocks in reversed(layout.blocks):
        for axes, own, rest in blocks:
            d = grads[:, own].unflatten(1, (axes.stop - axes.start, -1))
            dx[:, axes] += (d * features[:, None, rest]).sum(2)
            grads[:, rest] += (d * x[:, axes, None]).sum(1)
    return dx.add_(grads[:, layout.degrees[1]]) if terms > 1 else dx


def _pieces(rows: int, places: int, features: int) -> Iterator[tuple[slice, slice]]:
    """Slices of rows and positions: the pieces of a (rows, positions, …) tensor, with at most
    PIECE features each."""
    piece_places = max(1, min(PLACES, places, PIECE // features))
    piece_rows = max(1, PIECE // (features * piece_places))
    for row in range(0, rows, piece_rows):
        for place in range(0, places, piece_places):
            yield (
                slice(row, min(rows, row + piece_rows)),
                slice(place, min(places, place + piece_places)),
            )


class _Buffer:
    """One buffer for the features of every piece."""

    def __init__(self, like: Tensor, features: int):
        self.like = like
        self.features = features
        self.memory = like.new_empty(0)

    def __call__(self, rows: int, places: int) -> Tensor:
        size = rows * self.features * places
        if self.memory.numel() < size:
            self.memory = self.like.new_empty(size)
        return self.memory[:size].view(rows, self.features, places)


def _product(a: Float[Tensor, "N E P"], b: Float[Tensor, "N P C"]) -> Float[Tensor, "N C E"]:
    """b^T a^T, computed as (a b)^T: for small E this is about 1.5 times as fast."""
    return torch.bmm(a, b).transpose(1, 2)


def gather(
    x: Float[Tensor, "N S D"], u: Float[Tensor, "N S E"], terms: int, sums: Float[Tensor, "N M E"]
) -> Float[Tensor, "N M E"]:
    """sums += weights * (monomials(x)^T u), in place."""
    layout, weight = _layout(x.shape[2], terms, x.device), weights(x.shape[2], terms, x)[:, None]
    where, buffer = layout.where, _Buffer(x, layout.features)
    for rows, places in _pieces(x.shape[0], x.shape[1], layout.features):
        piece = x[rows, places].transpose(1, 2).contiguous()
        features = fill(piece, terms, buffer(piece.shape[0], piece.shape[2]))
        sums[rows].addcmul_(
            _product(u[rows, places].transpose(1, 2), features.transpose(1, 2))[:, where], weight
        )
    return sums


def read(
    x: Float[Tensor, "N L D"], sums: Float[Tensor, "N M E"], terms: int
) -> Float[Tensor, "N L E"]:
    """monomials(x) sums."""
    layout, out = _layout(x.shape[2], terms, x.device), x.new_empty(*x.shape[:2], sums.shape[2])
    sums, buffer = layout.spread(sums), _Buffer(x, layout.features)
    for rows, places in _pieces(x.shape[0], x.shape[1], layout.features):
        piece = x[rows, places].transpose(1, 2).contiguous()
        features = fill(piece, terms, buffer(piece.shape[0], piece.shape[2]))
        out[rows, places] = _product(sums[rows].transpose(1, 2), features)
    return out


def pull(
    x: Float[Tensor, "N L D"],
    g: Float[Tensor, "N L E"],
    sums: Float[Tensor, "N M E"],
    terms: int,
    *,
    both: bool,
) -> tuple[Float[Tensor, "N L D"], Float[Tensor, "N L E"] | None]:
    """The gradient of x, where g is the gradient of monomials(x) sums; with `both` also
    monomials(x) sums."""
    dx, product = torch.empty_like(x), x.new_empty(*x.shape[:2], sums.shape[2]) if both else None
    layout = _layout(x.shape[2], terms, x.device)
    sums, buffer, grads = (
        layout.spread(sums),
        _Buffer(x, layout.features),
        _Buffer(x, layout.features),
    )
    for rows, places in _pieces(x.shape[0], x.shape[1], layout.features):
        piece = x[rows, places].transpose(1, 2).contiguous()
        size = piece.shape[0], piece.shape[2]
        features = fill(piece, terms, buffer(*size))
        if product is not None:
            product[rows, places] = _product(sums[rows].transpose(1, 2), features)
        d_features = torch.bmm(sums[rows], g[rows, places].transpose(1, 2), out=grads(*size))
        dx[rows, places] = _pull(piece, features, d_features, terms).transpose(1, 2)
    return dx, product
