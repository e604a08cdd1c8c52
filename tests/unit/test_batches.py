"""Batches: each example once, none too large, the same for the same (seed, epoch)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batches import batches, ordered, pad
from regard.tokenizers import PAD

lengths = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), max_size=60).map(
    lambda rows: (
        np.array([s for s, _ in rows], np.int64),
        np.array([t for _, t in rows], np.int64),
    )
)


def shuffled(source, target, tokens):
    return batches(source, target, tokens=tokens, seed=3, epoch=5)


def by_length(source, target, tokens):
    return ordered(source, target, tokens=tokens)


@pytest.mark.parametrize("make", [shuffled, by_length])
class TestBoth:
    @given(sides=lengths, tokens=st.integers(1, 300))
    def test_each_example_once(self, make, sides, tokens):
        made = make(*sides, tokens)
        assert sorted(i for batch in made for i in batch.tolist()) == list(range(len(sides[0])))

    @given(sides=lengths, tokens=st.integers(1, 300))
    def test_no_batch_is_too_large_unless_it_is_one_example(self, make, sides, tokens):
        for batch in make(*sides, tokens):
            assert len(batch) > 0
            assert (
                len(batch) == 1
                or len(batch) * (sides[0][batch].max() + sides[1][batch].max()) <= tokens
            )

    @given(sides=lengths, tokens=st.integers(1, 300))
    def test_the_same_again(self, make, sides, tokens):
        for a, b in zip(make(*sides, tokens), make(*sides, tokens), strict=True):
            assert np.array_equal(a, b)


def example_lengths(count: int = 3001):
    random = np.random.default_rng(7)
    return random.integers(1, 41, count), random.integers(1, 41, count)


def test_another_seed_or_epoch_is_another_order():
    source, target = example_lengths()
    orders = {
        tuple(np.concatenate(batches(source, target, tokens=500, seed=seed, epoch=epoch)).tolist())
        for seed in (1, 2)
        for epoch in (0, 1)
    }
    assert len(orders) == 4


def test_batches_are_not_in_order_of_length():
    source, target = example_lengths()
    longest = [
        source[batch].max() for batch in batches(source, target, tokens=500, seed=1, epoch=0)
    ]
    assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.5


@pytest.mark.parametrize("make", [shuffled, by_length])
def test_little_is_padding(make):
    source, target = example_lengths(20_011)
    places = sum(
        len(batch) * (source[batch].max() + target[batch].max())
        for batch in make(source, target, 2000)
    )
    assert places < 1.3 * (source.sum() + target.sum())


def test_examples_without_tokens_and_no_examples():
    nothing = np.zeros(5, np.int64)
    assert sorted(np.concatenate(ordered(nothing, nothing, tokens=10)).tolist()) == [0, 1, 2, 3, 4]
    assert batches(nothing[:0], nothing[:0], tokens=10, seed=0, epoch=0) == []


@given(st.lists(st.lists(st.integers(4, 99), max_size=7), max_size=5))
def test_pad(rows):
    padded, sizes = pad([np.array(row, np.int32) for row in rows])
    assert padded.dtype == sizes.dtype == np.int64
    assert padded.shape == (len(rows), max(map(len, rows), default=0))
    for row, line, size in zip(rows, padded.tolist(), sizes.tolist(), strict=True):
        assert line == row + [PAD] * (len(line) - len(row))
        assert size == len(row)
