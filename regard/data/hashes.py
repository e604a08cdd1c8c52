"""Sets of 8-byte hashes in little memory: sorted arrays instead of Python's sets.

A Python set takes more than 60 bytes for each number. Ten million prompts would take 600 MB.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

PARTITION = 1 << 22  # hashes that are sorted at a time
BUFFER = 1 << 18  # hashes that a `HashSet` keeps in a Python set


def digest_of(content: bytes) -> bytes:
    """8 bytes: two different ones among 10 million agree once in 400,000 corpora."""
    return hashlib.blake2b(content, digest_size=8).digest()


def hash_of(content: bytes) -> int:
    return int.from_bytes(digest_of(content), "big")


def joined_digests(digests: Iterable[bytes]) -> np.ndarray:
    """Digests of 8 bytes as a column of hashes."""
    return np.frombuffer(b"".join(digests), ">u8").astype(np.uint64)


def first_places(columns: Sequence[np.ndarray]) -> np.ndarray:
    """(n,): for every hash the place where it occurs first. The columns follow one another.

    Hashes are sorted in partitions, by their first bits, so that only the result grows with their
    number.

    >>> first_places([np.array([7, 8], np.uint64), np.array([8, 7, 9], np.uint64)])
    array([0, 1, 1, 0, 4])
    """
    total = sum(len(column) for column in columns)
    first = np.arange(total)
    bits = max(0, (total - 1) // PARTITION).bit_length()
    for partition in range(1 << bits):
        hashes, places = _partition(columns, partition, bits)
        order = np.argsort(hashes, kind="stable")
        hashes = hashes[order]
        places = places[order]
        starts = np.flatnonzero(np.diff(hashes, prepend=~hashes[:1]))
        lengths = np.diff(starts, append=len(hashes))
        first[places] = np.repeat(places[starts], lengths)
    return first


def _partition(
    columns: Sequence[np.ndarray], partition: int, bits: int
) -> tuple[np.ndarray, np.ndarray]:
    """The hashes that begin with these bits, and their places."""
    hashes = [np.empty(0, np.uint64)]
    places = [np.empty(0, np.int64)]
    start = 0
    for column in columns:
        if bits:
            inside = np.flatnonzero(column >> np.uint64(64 - bits) == partition)
        else:
            inside = np.arange(len(column))
        hashes.append(column[inside])
        places.append(inside + start)
        start += len(column)
    return np.concatenate(hashes), np.concatenate(places)


def distinct(columns: Iterable[np.ndarray]) -> np.ndarray:
    """The distinct hashes of columns, sorted. Equal ones are removed as they come."""
    pending: list[np.ndarray] = []
    count = 0
    result = np.empty(0, np.uint64)
    for column in columns:
        pending.append(column)
        count += len(column)
        if count > max(PARTITION, len(result)):
            result = np.unique(np.concatenate([result, *pending]))
            pending = []
            count = 0
    return np.unique(np.concatenate([result, *pending]))


def is_in(hashes: np.ndarray, members: np.ndarray) -> np.ndarray:
    """(n,): whether each hash is one of the sorted `members`."""
    if not len(members):
        return np.zeros(len(hashes), bool)
    places = np.searchsorted(members, hashes)
    places[places == len(members)] = 0
    return members[places] == hashes


class HashSet:
    """A set of hashes that grows: 8 bytes each, and a small Python set of the latest ones.

    >>> hashes = HashSet()
    >>> hashes.add(7), hashes.add(8), hashes.add(7), len(hashes)
    (True, True, False, 2)
    """

    def __init__(self) -> None:
        self._latest: set[int] = set()
        self._sorted: list[np.ndarray] = []  # each at least twice as long as the next

    def __len__(self) -> int:
        return len(self._latest) + sum(map(len, self._sorted))

    def add(self, value: int) -> bool:
        """Add a hash; False if it was there already."""
        if value in self._latest or any(_contains(array, value) for array in self._sorted):
            return False
        self._latest.add(value)
        if len(self._latest) == BUFFER:
            self._merge()
        return True

    def _merge(self) -> None:
        array = np.fromiter(self._latest, np.uint64, len(self._latest))
        self._latest.clear()
        array.sort()
        while self._sorted and len(self._sorted[-1]) < 2 * len(array):
            array = np.concatenate([self._sorted.pop(), array])
            array.sort()
        self._sorted.append(array)


def _contains(array: np.ndarray, value: int) -> bool:
    place = array.searchsorted(np.uint64(value))
    return bool(place < len(array) and array[place] == value)
