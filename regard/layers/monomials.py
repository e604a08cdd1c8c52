"""Monomials: the features whose products are a polynomial of q . k.

    (q . k)^n / n! = sum over |alpha| = n of  q^alpha k^alpha / alpha!           (the multinomial theorem)

so sum_{n<terms} (q . k)^n / n! is a product of monomials of q with monomials of k, weighted by
1/alpha!, one for each multiset alpha of fewer than `terms` axes: M = C(D + terms - 1, D) of them.
They stand by degree, and within a degree in the order of `itertools.combinations_with_replacement`:
(a, b, …) with a <= b <= …. Hence those of degree n that begin with axis a are x_a times the *last*
C(D - a + n - 2, n - 1) of degree n - 1.

`gather`, `read` and `pull` are what linear attention does with them. They walk over the places in
pieces that fit the cache: all features of all places never exist.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

PIECE = 1 << 20  # numbers of a piece of features
PLACES = 512  # places of a piece, at most
STEP = 8  # axes of a block of features


def how_many(width: int, terms: int) -> int:
    """M, the monomials of degree below `terms`.

    >>> how_many(5, 3), how_many(64, 3)
    (21, 2145)
    """
    return math.comb(width + terms - 1, width)


def _of_degree(width: int, degree: int) -> int:
    return math.comb(width + degree - 1, degree) if width else 0


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # what is kept may be needed for training next time
def _recipe(width: int, terms: int) -> tuple[Tensor, tuple[tuple[Tensor, Tensor], ...]]:
    """The weights 1/alpha! (M,), and for each degree from 2 the index pair that makes it: axis,
    monomial before it."""
    weight = run = torch.ones(
        width, dtype=torch.float64
    )  # run: how often a monomial's first axis is in it
    weights, pairs = [torch.ones(1, dtype=torch.float64), weight][:terms], []
    for degree in range(2, terms):
        axes, rests, runs = [], [], []
        for a in range(width):
            rest = torch.arange(len(weight))[len(weight) - _of_degree(width - a, degree - 1) :]
            again = torch.arange(len(rest)) < _of_degree(
                width - a, degree - 2
            )  # the rest begins with a, too
            axes.append(torch.full_like(rest, a))
            rests.append(rest)
            runs.append(torch.where(again, run[rest] + 1, 1))
        pairs.append((torch.cat(axes), torch.cat(rests)))
        run = torch.cat(runs)
        weight = weight[pairs[-1][1]] / run
        weights.append(weight)
    return torch.cat(weights), tuple(pairs)


def weights(width: int, terms: int, like: Tensor) -> Float[Tensor, " M"]:
    """1/alpha! of every monomial, to be read only."""
    return _weights(width, terms, like.dtype, like.device)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _weights(
    width: int, terms: int, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, " M"]:
    return _recipe(width, terms)[0].to(device, dtype)


def monomials(x: Float[Tensor, "*rows D"], terms: int) -> Float[Tensor, "*rows M"]:
    """All monomials of the last axis, in few calls and with autograd: for few places."""
    parts = [x.new_ones(*x.shape[:-1], 1), x][:terms]
    for axes, rests in _recipe(x.shape[-1], terms)[1]:
        parts.append(x[..., axes.to(x.device)] * parts[-1][..., rests.to(x.device)])
    return torch.cat(parts, -1)


@dataclass(frozen=True)
class _Stairs:
    """Where things stand among the features of a piece. Those of a degree come in blocks: STEP
    axes times all monomials before them from the first of these axes on, in one multiplication.
    Inside a block some occur twice, like x_1 x_0 and x_0 x_1; `where` (M,) names those that
    count, in their usual order."""

    features: int
    degrees: list[slice]
    blocks: list[
        list[tuple[slice, slice, slice]]
    ]  # for each degree: axes, features, those of the degree before
    where: Tensor

    def spread(self, sums: Float[Tensor, "N M E"]) -> Float[Tensor, "N F E"]:
        """Sums with zeros for what occurs twice."""
        spread = sums.new_zeros(sums.shape[0], self.features, sums.shape[2])
        spread[:, self.where.to(sums.device)] = sums
        return spread


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _stairs(width: int, terms: int) -> _Stairs:
    groups = [slice(a, min(width, a + STEP)) for a in range(0, width, STEP)]
    degrees, blocks = [slice(0, 1), slice(1, 1 + width)][:terms], [[], []][:terms]
    begins, place = (
        [group.start for group in groups],
        torch.arange(width),
    )  # of groups and monomials in their degree
    where = [torch.zeros(1, dtype=torch.long), 1 + place][:terms]
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
        group, first = axes // STEP, torch.tensor(begins)[axes // STEP]
        place = (
            torch.tensor(starts)[group] + (axes % STEP) * (length - first) + place[rests] - first
        )
        where.append(end + place)
        degrees.append(slice(end, end + at))
        blocks.append(own)
        begins = starts
    return _Stairs(degrees[-1].stop, degrees, blocks, torch.cat(where))


def fill(
    x: Float[Tensor, "N D C"], terms: int, out: Float[Tensor, "N F C"]
) -> Float[Tensor, "N F C"]:
    """The features of a piece, places last: every write is one long run."""
    stairs = _stairs(x.shape[1], terms)
    out[:, 0] = 1
    if terms > 1:
        out[:, stairs.degrees[1]] = x
    for blocks in stairs.blocks:
        for axes, own, rest in blocks:
            to = out[:, own].unflatten(1, (axes.stop - axes.start, -1))
            torch.mul(x[:, axes, None], out[:, None, rest], out=to)
    return out


def _pull(
    x: Float[Tensor, "N D C"],
    made: Float[Tensor, "N F C"],
    grads: Float[Tensor, "N F C"],
    terms: int,
) -> Float[Tensor, "N D C"]:
    """The gradient of x from that of its features, which is used up: the blocks of `fill`,
    backwards."""
    stairs, dx = _stairs(x.shape[1], terms), torch.zeros_like(x)
    for blocks in reversed(stairs.blocks):
        for axes, own, rest in blocks:
            d = grads[:, own].unflatten(1, (axes.stop - axes.start, -1))
            dx[:, axes] += (d * made[:, None, rest]).sum(2)
            grads[:, rest] += (d * x[:, axes, None]).sum(1)
    return dx.add_(grads[:, stairs.degrees[1]]) if terms > 1 else dx


def _pieces(rows: int, places: int, features: int) -> Iterator[tuple[slice, slice]]:
    """Rows and places of the pieces of a (rows, places, …) tensor, at most PIECE features each."""
    tall = max(1, min(PLACES, places, PIECE // features))
    wide = max(1, PIECE // (features * tall))
    for row in range(0, rows, wide):
        for place in range(0, places, tall):
            yield slice(row, min(rows, row + wide)), slice(place, min(places, place + tall))


class _Room:
    """One buffer for the features of every piece."""

    def __init__(self, like: Tensor, features: int):
        self.like, self.features, self.slab = like, features, like.new_empty(0)

    def __call__(self, rows: int, places: int) -> Tensor:
        size = rows * self.features * places
        if self.slab.numel() < size:
            self.slab = self.like.new_empty(size)
        return self.slab[:size].view(rows, self.features, places)


def _product(a: Float[Tensor, "N E P"], b: Float[Tensor, "N P C"]) -> Float[Tensor, "N C E"]:
    """b^T a^T, made as (a b)^T: with few E, half as fast again."""
    return torch.bmm(a, b).transpose(1, 2)


def gather(
    x: Float[Tensor, "N S D"], u: Float[Tensor, "N S E"], terms: int, sums: Float[Tensor, "N M E"]
) -> Float[Tensor, "N M E"]:
    """sums += weights * (monomials(x)^T u), in place."""
    stairs, weight = _stairs(x.shape[2], terms), weights(x.shape[2], terms, x)[:, None]
    where, room = stairs.where.to(x.device), _Room(x, stairs.features)
    for rows, places in _pieces(x.shape[0], x.shape[1], stairs.features):
        piece = x[rows, places].transpose(1, 2).contiguous()
        made = fill(piece, terms, room(piece.shape[0], piece.shape[2]))
        sums[rows].addcmul_(
            _product(u[rows, places].transpose(1, 2), made.transpose(1, 2))[:, where], weight
        )
    return sums


def read(
    x: Float[Tensor, "N L D"], sums: Float[Tensor, "N M E"], terms: int
) -> Float[Tensor, "N L E"]:
    """monomials(x) sums."""
    stairs, out = _stairs(x.shape[2], terms), x.new_empty(*x.shape[:2], sums.shape[2])
    sums, room = stairs.spread(sums), _Room(x, stairs.features)
    for rows, places in _pieces(x.shape[0], x.shape[1], stairs.features):
        piece = x[rows, places].transpose(1, 2).contiguous()
        made = fill(piece, terms, room(piece.shape[0], piece.shape[2]))
        out[rows, places] = _product(sums[rows].transpose(1, 2), made)
    return out


def pull(
    x: Float[Tensor, "N L D"],
    g: Float[Tensor, "N L E"],
    sums: Float[Tensor, "N M E"],
    terms: int,
    *,
    both: bool,
) -> tuple[Float[Tensor, "N L D"], Float[Tensor, "N L E"] | None]:
    """The gradient of x where g is that of monomials(x) sums; with `both` also monomials(x) sums
    itself."""
    dx, product = torch.empty_like(x), x.new_empty(*x.shape[:2], sums.shape[2]) if both else None
    stairs = _stairs(x.shape[2], terms)
    sums, room, grads = stairs.spread(sums), _Room(x, stairs.features), _Room(x, stairs.features)
    for rows, places in _pieces(x.shape[0], x.shape[1], stairs.features):
        piece = x[rows, places].transpose(1, 2).contiguous()
        size = piece.shape[0], piece.shape[2]
        made = fill(piece, terms, room(*size))
        if product is not None:
            product[rows, places] = _product(sums[rows].transpose(1, 2), made)
        d_made = torch.bmm(sums[rows], g[rows, places].transpose(1, 2), out=grads(*size))
        dx[rows, places] = _pull(piece, made, d_made, terms).transpose(1, 2)
    return dx, product
