"""Which rows and columns of two maps belong together, as `pairing` of page.js decides it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LEFT_OUT = 12  # names that are listed at most

Names = Sequence[str]
Pairs = list[tuple[int, int]]  # indices in the first and in the second map


@dataclass(frozen=True)
class Pairing:
    """The rows and columns that two maps share.

    names  of each map, those of its rows and of its columns
    axes   pairs of rows, and pairs of columns
    """

    names: tuple[tuple[Names, Names], tuple[Names, Names]]
    axes: tuple[Pairs, Pairs]

    @property
    def is_empty(self) -> bool:
        return not all(self.axes)

    def shared(self, axis: int) -> list[str]:
        """The name of each pair; both names if they differ."""
        first, second = (names[axis] for names in self.names)
        return [
            first[i] if first[i] == second[j] else f"{first[i]} | {second[j]}"
            for i, j in self.axes[axis]
        ]

    def left_out(self, which: int) -> list[str]:
        """The names of a map that are in no pair, each once."""
        missing: dict[str, None] = {}
        for names, pairs in zip(self.names[which], self.axes, strict=True):
            indices = {pair[which] for pair in pairs}
            missing |= dict.fromkeys(name for i, name in enumerate(names) if i not in indices)
        return list(missing)


def pair_names(first: tuple[Names, Names], second: tuple[Names, Names]) -> Pairing:
    """Pair two maps of one size by position, others by the names of their rows and columns."""
    sizes = [tuple(map(len, names)) for names in (first, second)]
    if sizes[0] == sizes[1]:
        rows, columns = ([(i, i) for i in range(size)] for size in sizes[0])
    else:
        rows, columns = (common_pairs(a, b) for a, b in zip(first, second, strict=True))
    return Pairing((first, second), (rows, columns))


def common_pairs(a: Names, b: Names) -> Pairs:
    """The longest common subsequence of two lists of names.

    >>> common_pairs(["a", "dog", "sits"], ["the", "dog", "now", "sits"])
    [(1, 1), (2, 3)]
    """
    lengths = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]  # of a[i:] and b[j:]
    for i in reversed(range(len(a))):
        row, below = lengths[i], lengths[i + 1]
        for j in reversed(range(len(b))):
            row[j] = 1 + below[j + 1] if a[i] == b[j] else max(below[j], row[j + 1])
    pairs = []
    i = j = 0
    while i < len(a) and j < len(b):
        if a[i] == b[j]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif lengths[i + 1][j] >= lengths[i][j + 1]:
            i += 1
        else:
            j += 1
    return pairs
