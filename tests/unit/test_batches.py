"""Batches: each example once, none too large, the same for the same (seed, epoch)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batches import Batches, Permutation, Place, batches, ordered, pad
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


@given(count=st.integers(1, 700), seed=st.integers(0, 99))
def test_a_permutation_has_every_number_once(count, seed):
    whole = Permutation(count, seed=(seed, 1)).take(0, count)
    assert sorted(whole.tolist()) == list(range(count))
    part = Permutation(count, seed=(seed, 1)).take(count // 3, count // 2)
    assert np.array_equal(part, whole[count // 3 : count // 2])


@pytest.mark.parametrize("count", [3, 7, 10, 33])
def test_a_permutation_prefers_no_place(count: int):
    """Pearson's chi-squared of number and place; far above the mean only if it is not random."""
    draws = 3000
    table = np.zeros((count, count))
    for epoch in range(draws):
        table[np.arange(count), Permutation(count, seed=(5, epoch)).take(0, count)] += 1
    statistic = float(((table - draws / count) ** 2).sum() * count / draws)
    mean = (count - 1) ** 2
    assert statistic < mean + 5 * (2 * mean) ** 0.5


def many(count: int = 5003, **more) -> tuple[Batches, np.ndarray, np.ndarray]:
    source, target = example_lengths(count)
    lengths = lambda index: (source[index], target[index])  # noqa: E731
    return Batches(lengths, count, tokens=100, seed=3, **more), source, target


def test_training_goes_on_from_any_place():
    made, source, target = many()
    assert made.windows > 3
    every = batches(source, target, tokens=100, seed=3, epoch=1)
    place = Place(1, 0, 0)
    shares = []
    rest = []
    while not made.is_at_end(place):
        shares.append(made.share(place))
        taken, after = made.take(place, 3)
        # Another object, which has seen nothing of the epoch before.
        again, _ = many()[0].take(place, 3)
        assert [index.tolist() for _, index in again] == [index.tolist() for _, index in taken]
        rest += [index.tolist() for _, index in taken]
        place = after
    assert rest == [index.tolist() for index in every]
    assert shares == sorted(shares) and shares[0] == 0 and made.share(place) == 1


def test_only_a_window_of_lengths_is_read():
    """However many examples there are."""
    asked = []

    def lengths(index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        asked.append(len(index))
        return index % 13 + 1, index % 7 + 1

    made = Batches(lengths, 100_000_000, tokens=500, seed=3)
    taken, _ = made.take(Place(2, 1234, 5), 4)
    assert len(taken) == 4 and max(asked) < 20_000
    assert made.share(Place(2, made.windows // 2, 0)) == pytest.approx(0.5, abs=0.01)


def test_groups_count_as_examples_do():
    source, target = example_lengths(60)
    groups = np.arange(0, 60, 4)
    made, *_ = many(60, groups=groups)
    place = Place(0, 0, 0)
    rows = []
    while not made.is_at_end(place):
        taken, place = made.take(place, 1)
        rows += [taken[0][1].tolist()]
    assert sorted(sum(rows, [])) == list(range(60))
    assert all(len(batch) % 4 == 0 for batch in rows)


@given(st.lists(st.lists(st.integers(4, 99), max_size=7), max_size=5))
def test_pad(rows):
    padded, sizes = pad([np.array(row, np.int32) for row in rows])
    assert padded.dtype == sizes.dtype == np.int64
    assert padded.shape == (len(rows), max(map(len, rows), default=0))
    for row, line, size in zip(rows, padded.tolist(), sizes.tolist(), strict=True):
        assert line == row + [PAD] * (len(line) - len(row))
        assert size == len(row)
