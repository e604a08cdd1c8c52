"""The batches of an epoch and their order: a pure function of (seed, epoch), so nothing of them is
saved but the place where training stands.

An epoch is a permutation of all examples. It is cut into windows, and only one window is in memory:
its examples are sorted by length, cut into batches, and the batches shuffled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from regard.tokenizers import PAD

# Changes with the order of batches: the epoch of a checkpoint with another number begins anew.
ORDER = 2
# batches' worth of examples that are sorted together: little padding, and still a random order
WINDOW = 128
SAMPLE = 8192  # examples whose mean length decides how many a window has
ROUNDS = 10  # of the network that permutes; 6 are not enough for a few examples

# The source and target lengths of the examples with these indices.
Lengths = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


class Place(NamedTuple):
    """A place in the order of training: the next batch is this one of its window."""

    epoch: int
    window: int
    batch: int


class Permutation:
    """A permutation of 0 … count - 1 that is computed place by place and never stored.

    A Feistel network permutes the numbers of 2 b bits; one that is not below `count` is permuted
    again until it is (Black & Rogaway 2002, "cycle walking").

    >>> sorted(Permutation(7, seed=(1, 0)).take(0, 7).tolist())
    [0, 1, 2, 3, 4, 5, 6]
    """

    def __init__(self, count: int, *, seed: Sequence[int]):
        self.count = count
        self._half = np.uint64(max(1, (max(count - 1, 1).bit_length() + 1) // 2))
        self._mask = np.uint64((1 << int(self._half)) - 1)
        self._keys = np.random.SeedSequence(seed).generate_state(ROUNDS, np.uint64)

    def take(self, start: int, end: int) -> np.ndarray:
        """The numbers at the places from `start` to `end`."""
        numbers = self._permuted(np.arange(start, end, dtype=np.uint64))
        outside = np.flatnonzero(numbers >= self.count)
        while len(outside):
            numbers[outside] = self._permuted(numbers[outside])
            outside = outside[numbers[outside] >= self.count]
        return numbers.astype(np.int64)

    def _permuted(self, numbers: np.ndarray) -> np.ndarray:
        left = numbers >> self._half
        right = numbers & self._mask
        for key in self._keys:
            left, right = right, left ^ (_hashed(right + key) & self._mask)
        return left << self._half | right


def _hashed(numbers: np.ndarray) -> np.ndarray:
    """The last steps of SplitMix64 (Steele et al. 2014): every bit depends on every other."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


class Batches:
    """Every example once an epoch, in batches of at most `tokens` places, padding included, and of
    at most `most` examples. `groups` are where runs of examples begin that stay together and count
    as one, their source being the same.

    >>> sizes = np.array([3, 9, 3, 9])
    >>> batches = Batches(lambda index: (sizes[index], sizes[index]), 4, tokens=36, seed=1)
    >>> sorted(sorted(batch.tolist()) for batch in batches.window(epoch=0, number=0))
    [[0, 2], [1, 3]]
    """

    def __init__(
        self,
        lengths: Lengths,
        count: int,
        *,
        tokens: int,
        most: int | None = None,
        groups: np.ndarray | None = None,
        seed: int,
    ):
        self._lengths = lengths
        self._edges = None if groups is None else np.append(groups[groups < count], count)
        self._count = count if self._edges is None else len(self._edges) - 1
        self._tokens = tokens
        self._most = most
        self._seed = seed
        self._size = self._window_size()
        self._last: tuple[int, int, list[np.ndarray]] | None = None

    def _window_size(self) -> int:
        """The number of examples (or groups) in a window."""
        spread = np.arange(0, self._count, max(1, self._count // SAMPLE))
        if not len(spread):
            return 1
        source, target = self._item_lengths(spread)
        return max(1, int(WINDOW * self._tokens / max(1.0, float((source + target).mean()))))

    @property
    def windows(self) -> int:
        """The number of windows in an epoch."""
        return -(-self._count // self._size)

    def window(self, epoch: int, number: int) -> list[np.ndarray]:
        """The batches of a window, each the indices of its examples."""
        if self._last is None or self._last[:2] != (epoch, number):
            self._last = (epoch, number, self._made(epoch, number))
        return self._last[2]

    def _made(self, epoch: int, number: int) -> list[np.ndarray]:
        order = Permutation(self._count, seed=(self._seed, epoch))
        items = order.take(number * self._size, min(self._count, (number + 1) * self._size))
        source, target = self._item_lengths(items)
        filled = _filled(np.arange(len(items)), source, target, self._tokens, self._most)
        random = np.random.Generator(np.random.PCG64([self._seed, epoch, number]))
        rows = [items[filled[i]] for i in random.permutation(len(filled))]
        if self._edges is None:
            return rows
        return [_members(self._edges, batch) for batch in rows]

    def _item_lengths(self, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Lengths of examples, or of whole groups: one source, all targets."""
        if self._edges is None:
            return self._lengths(items)
        source, target = self._lengths(_members(self._edges, items))
        sizes = self._edges[items + 1] - self._edges[items]
        starts = np.cumsum(sizes) - sizes
        return source[starts], np.add.reduceat(target, starts)

    def take(self, place: Place, count: int) -> tuple[list[tuple[Place, np.ndarray]], Place]:
        """Up to `count` batches from a place on, not beyond its epoch, and the place after them."""
        taken = []
        while len(taken) < count and not self.is_at_end(place):
            window = self.window(place.epoch, place.window)
            taken.append((place, window[place.batch]))
            place = place._replace(batch=place.batch + 1)
            if place.batch == len(window):
                place = Place(place.epoch, place.window + 1, 0)
        return taken, place

    def is_at_end(self, place: Place) -> bool:
        """Whether no batch of the epoch is left."""
        return place.window >= self.windows

    def share(self, place: Place) -> float:
        """The share of the examples of its epoch that were used before a place."""
        if self.is_at_end(place):
            return 1.0
        used = place.window * self._size
        if place.batch:
            # Batches of groups have more examples than items, so the rest of the window is counted
            # in batches.
            window = self.window(place.epoch, place.window)
            items = min(self._size, self._count - used)
            sizes = [len(batch) for batch in window]
            return (used + items * sum(sizes[: place.batch]) / sum(sizes)) / self._count
        return used / self._count


def _members(edges: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The examples of some groups."""
    bounds = zip(edges[groups].tolist(), edges[groups + 1].tolist(), strict=True)
    return np.concatenate([np.arange(start, end) for start, end in bounds])


def batches(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    *,
    tokens: int,
    most: int | None = None,
    groups: np.ndarray | None = None,
    seed: int,
    epoch: int,
) -> list[np.ndarray]:
    """All batches of an epoch.

    >>> lengths = np.array([3, 9, 3, 9])
    >>> rows = batches(lengths, lengths, tokens=36, seed=1, epoch=0)
    >>> sorted(sorted(batch.tolist()) for batch in rows)
    [[0, 2], [1, 3]]
    """
    every = Batches(
        lambda index: (source_lengths[index], target_lengths[index]),
        len(source_lengths),
        tokens=tokens,
        most=most,
        groups=groups,
        seed=seed,
    )
    return [batch for number in range(every.windows) for batch in every.window(epoch, number)]


def ordered(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    *,
    tokens: int,
    groups: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Every example once, with little padding: for evaluation, where the order does not matter."""
    if groups is not None:
        source, target = _summed(source_lengths, target_lengths, groups)
        return _spread(ordered(source, target, tokens=tokens), groups, len(target_lengths))
    return _filled(np.arange(len(source_lengths)), source_lengths, target_lengths, tokens)


def _summed(
    source: np.ndarray, target: np.ndarray, groups: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of whole groups: one source, all targets."""
    groups = groups[groups < len(source)]
    return source[groups], np.add.reduceat(target, groups) if len(groups) else target[:0]


def _spread(of_groups: list[np.ndarray], groups: np.ndarray, count: int) -> list[np.ndarray]:
    """Batches of groups as batches of examples."""
    edges = [*groups[groups < count].tolist(), count]
    of_examples = []
    for batch in of_groups:
        members = [np.arange(edges[group], edges[group + 1]) for group in batch.tolist()]
        of_examples.append(np.concatenate(members))
    return of_examples


def _filled(
    index: np.ndarray, source: np.ndarray, target: np.ndarray, tokens: int, most: int | None = None
) -> list[np.ndarray]:
    """Sort by length, then cut where rows * (longest source + longest target) would pass the
    limit."""
    index = _neighbours(index, source, target, tokens)
    cuts: list[int] = []
    rows = longest_source = longest_target = 0
    for i, (s, t) in enumerate(zip(source[index].tolist(), target[index].tolist(), strict=True)):
        rows += 1
        longest_source = max(longest_source, s)
        longest_target = max(longest_target, t)
        is_full = rows * (longest_source + longest_target) > tokens or rows > (most or rows)
        if rows > 1 and is_full:
            cuts.append(i)
            rows = 1
            longest_source = s
            longest_target = t
    return np.split(index, cuts) if len(index) else []


def _neighbours(
    index: np.ndarray, source: np.ndarray, target: np.ndarray, tokens: int
) -> np.ndarray:
    """Examples in an order where both lengths of neighbours are alike: bands of the source's
    length, as many as each holds batches, and in them the target's length up, down, up, ... On
    Cornell 1.2 places a token; by the sum of the two lengths it would be 1.5.
    """
    index = index[np.argsort(source[index], kind="stable")]
    until = np.cumsum(source[index] + target[index])
    total = max(1, int(until[-1])) if len(index) else 1
    count = max(1, round((total / tokens) ** 0.5))
    band = np.maximum(until - 1, 0) * count // total
    return index[np.lexsort((np.where(band % 2, -target[index], target[index]), band))]


def pad(rows: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(B, S) tokens filled up with PAD, and (B,) lengths.

    >>> pad([np.array([5, 6, 7]), np.array([8])])
    (array([[5, 6, 7],
           [8, 0, 0]]), array([3, 1]))
    """
    lengths = np.array([len(row) for row in rows], np.int64)
    padded = np.full((len(rows), lengths.max(initial=0)), PAD, np.int64)
    for line, row in zip(padded, rows, strict=True):
        line[: len(row)] = row
    return padded, lengths
