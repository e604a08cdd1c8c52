"""The batches of an epoch and their order: a pure function of (seed, epoch), so nothing of them is
saved."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from regard.tokenizers import PAD

# batches' worth of examples that are sorted together: little padding, and still a random order
WINDOW = 128


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
    """Every example once, in batches of at most `tokens` places, padding included, and of at most
    `most` examples. `groups` are where runs of examples begin that stay together and count as one,
    their source being the same.

    >>> lengths = np.array([3, 9, 3, 9])
    >>> rows = batches(lengths, lengths, tokens=36, seed=1, epoch=0)
    >>> sorted(sorted(batch.tolist()) for batch in rows)
    [[0, 2], [1, 3]]
    """
    if groups is not None:
        source, target = _summed(source_lengths, target_lengths, groups)
        of_groups = batches(source, target, tokens=tokens, most=most, seed=seed, epoch=epoch)
        return _spread(of_groups, groups, len(target_lengths))

    random = np.random.Generator(np.random.PCG64([seed, epoch]))
    order = random.permutation(len(source_lengths))
    total = source_lengths + target_lengths
    window = 1
    if len(order):
        window = max(1, int(WINDOW * tokens / max(1.0, float(total.mean()))))
    rows: list[np.ndarray] = []
    for start in range(0, len(order), window):
        index = order[start : start + window]
        rows += _filled(index, source_lengths, target_lengths, tokens, most)
    return [rows[i] for i in random.permutation(len(rows))]


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
