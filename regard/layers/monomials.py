"""Monomials: the features whose products are a polynomial of q . k.

    (q . k)^n / n! = sum over |alpha| = n of  q^alpha k^alpha / alpha!           (the multinomial theorem)

so sum_{n<terms} (q . k)^n / n! is a product of monomials of q with monomials of k, weighted by 1/alpha!, one for each
multiset alpha of fewer than `terms` axes: M = C(D + terms - 1, D) of them. They stand by degree, and within a degree in
the order of `itertools.combinations_with_replacement`: (a, b, …) with a <= b <= …. Hence those of degree n that begin
with axis a are x_a times the *last* C(D - a + n - 2, n - 1) of degree n - 1, and that is how they are made.

`gather`, `read` and `pull` are what linear attention does with them. They walk over the places in pieces that fit the
cache: all features of all places never exist.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

PIECE = 1 << 20  # numbers of a piece of features
PLACES = 1024  # places of a piece, at most


def how_many(width: int, terms: int) -> int:
    """M, the monomials of degree below `terms`.

    >>> how_many(5, 3), how_many(64, 3)
    (21, 2145)
    """
    return math.comb(width + terms - 1, width)


def _of_degree(width: int, degree: int) -> int:
    return math.comb(width + degree - 1, degree) if width else 0


@lru_cache(maxsize=64)
def _recipe(width: int, terms: int) -> tuple[Tensor, tuple[tuple[Tensor, Tensor], ...]]:
    """The weights 1/alpha! (M,), and for each degree from 2 the index pair that makes it: axis, monomial before it."""
    weight = run = torch.ones(width, dtype=torch.float64)  # run: how often a monomial's first axis is in it
    weights, pairs = [torch.ones(1, dtype=torch.float64), weight][:terms], []
    for degree in range(2, terms):
        axes, rests, runs = [], [], []
        for a in range(width):
            rest = torch.arange(len(weight))[len(weight) - _of_degree(width - a, degree - 1) :]
            again = torch.arange(len(rest)) < _of_degree(width - a, degree - 2)  # the rest begins with a, too
            axes.append(torch.full_like(rest, a))
            rests.append(rest)
            runs.append(torch.where(again, run[rest] + 1, 1))
        pairs.append((torch.cat(axes), torch.cat(rests)))
        run = torch.cat(runs)
        weight = weight[pairs[-1][1]] / run
        weights.append(weight)
    return torch.cat(weights), tuple(pairs)


def weights(width: int, terms: int, like: Tensor) -> Float[Tensor, "M"]:
    """1/alpha! of every monomial."""
    return _recipe(width, terms)[0].to(like)


def monomials(x: Float[Tensor, "*rows D"], terms: int) -> Float[Tensor, "*rows M"]:
    """All monomials of the last axis, in few calls and with autograd: for few places."""
    parts = [x.new_ones(*x.shape[:-1], 1), x][:terms]
    for axes, rests in _recipe(x.shape[-1], terms)[1]:
        parts.append(x[..., axes.to(x.device)] * parts[-1][..., rests.to(x.device)])
    return torch.cat(parts, -1)


def _degrees(width: int, terms: int) -> list[slice]:
    """Where the monomials of each degree stand."""
    ends = [how_many(width, n + 1) for n in range(terms)]
    return [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def _blocks(width: int, degree: int) -> Iterator[tuple[int, slice, slice]]:
    """For each axis a: its monomials of this degree, and those of the degree before that they are x_a times."""
    at, before = 0, _of_degree(width, degree - 1)
    for a in range(width):
        count = _of_degree(width - a, degree - 1)
        yield a, slice(at, at + count), slice(before - count, before)
        at += count


def fill(x: Float[Tensor, "N D C"], terms: int, out: Float[Tensor, "N M C"]) -> Float[Tensor, "N M C"]:
    """The monomials of a piece, places last: every write is one long run."""
    width = x.shape[1]
    for degree, where in enumerate(_degrees(width, terms)):
        if degree == 0:
            out[:, where] = 1
        elif degree == 1:
            out[:, where] = x
        else:
            here, before = out[:, where], out[:, _degrees(width, terms)[degree - 1]]
            for a, own, rest in _blocks(width, degree):
                torch.mul(x[:, a : a + 1], before[:, rest], out=here[:, own])
    return out


def _pull(
    x: Float[Tensor, "N D C"], made: Float[Tensor, "N M C"], grads: Float[Tensor, "N M C"], terms: int
) -> Float[Tensor, "N D C"]:
    """The gradient of x from that of its monomials, which is used up: the blocks of `fill`, backwards."""
    width, parts, dx = x.shape[1], _degrees(x.shape[1], terms), torch.zeros_like(x)
    for degree in range(terms - 1, 1, -1):
        here, made_before, grads_before = (
            grads[:, parts[degree]],
            made[:, parts[degree - 1]],
            grads[:, parts[degree - 1]],
        )
        for a, own, rest in _blocks(width, degree):
            dx[:, a] += (here[:, own] * made_before[:, rest]).sum(1)
            grads_before[:, rest].addcmul_(x[:, a : a + 1], here[:, own])
    return dx.add_(grads[:, parts[1]]) if terms > 1 else dx


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


def gather(
    x: Float[Tensor, "N S D"], u: Float[Tensor, "N S E"], terms: int, sums: Float[Tensor, "N M E"]
) -> Float[Tensor, "N M E"]:
    """sums += weights * (monomials(x)^T u), in place."""
    features = sums.shape[1]
    weight, room = weights(x.shape[2], terms, x)[:, None], _Room(x, features)
    for rows, places in _pieces(x.shape[0], x.shape[1], features):
        piece = x[rows, places].transpose(1, 2).contiguous()
        made = fill(piece, terms, room(piece.shape[0], piece.shape[2]))
        sums[rows].addcmul_(torch.bmm(made, u[rows, places]), weight)
    return sums


def read(
    x: Float[Tensor, "N L D"], sums: Float[Tensor, "N M E"], terms: int, out: Float[Tensor, "N L E"] | None = None
) -> Float[Tensor, "N L E"]:
    """monomials(x) sums."""
    out = x.new_empty(*x.shape[:2], sums.shape[2]) if out is None else out
    room = _Room(x, sums.shape[1])
    for rows, places in _pieces(x.shape[0], x.shape[1], sums.shape[1]):
        piece = x[rows, places].transpose(1, 2).contiguous()
        made = fill(piece, terms, room(piece.shape[0], piece.shape[2]))
        out[rows, places] = torch.bmm(made.transpose(1, 2), sums[rows])
    return out


def pull(
    x: Float[Tensor, "N L D"], g: Float[Tensor, "N L E"], sums: Float[Tensor, "N M E"], terms: int, *, both: bool
) -> tuple[Float[Tensor, "N L D"], Float[Tensor, "N L E"] | None]:
    """The gradient of x where g is that of monomials(x) sums; with `both` also monomials(x) sums itself."""
    dx, product = torch.empty_like(x), x.new_empty(*x.shape[:2], sums.shape[2]) if both else None
    room, grads = _Room(x, sums.shape[1]), _Room(x, sums.shape[1])
    for rows, places in _pieces(x.shape[0], x.shape[1], sums.shape[1]):
        piece = x[rows, places].transpose(1, 2).contiguous()
        size = piece.shape[0], piece.shape[2]
        made = fill(piece, terms, room(*size))
        if product is not None:
            product[rows, places] = torch.bmm(made.transpose(1, 2), sums[rows])
        d_made = torch.bmm(sums[rows], g[rows, places].transpose(1, 2), out=grads(*size))
        dx[rows, places] = _pull(piece, made, d_made, terms).transpose(1, 2)
    return dx, product
