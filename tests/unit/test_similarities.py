"""The similarities: SPEC.md's figures, agreement with textdistance, and laws between them."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import textdistance
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from regard import metrics
from regard.errors import InputError

# Few different tokens, so that they meet; -1.0 and -2.0 have the same hash, and 97 is the code of
# "a".
TOKENS = [
    st.sampled_from(kind)
    for kind in ("abc", [-1.0, -2.0, 97, "a"], ["the", "cat", ("a", 1), None, 2.5])
]
# Where the two variants of Damerau-Levenshtein differ, which random strings seldom show.
SWAPS = st.lists(
    st.sampled_from([("ca", "abc"), ("ab", "ba"), ("c", "c"), ("", "b")]), max_size=5
).map(lambda pieces: tuple("".join(side) for side in zip(*pieces, strict=True)) or ("", ""))
SEQUENCES = st.text("abc", max_size=13) | st.one_of(
    [st.lists(tokens, max_size=13) for tokens in TOKENS]
)
TWO = st.one_of(
    SWAPS,
    st.tuples(st.text("abc", max_size=13), st.text("abc", max_size=13)),
    *(st.tuples(st.lists(tokens, max_size=13), st.lists(tokens, max_size=13)) for tokens in TOKENS),
)


patient = settings(deadline=None)  # a machine may be busy with something else


def theirs(a, b) -> dict[str, float]:
    """Without the faster libraries that textdistance would call, one of which is ours."""
    a, b = (
        (a, b) if isinstance(a, str) else (tuple(a), tuple(b))
    )  # its test for equality wants them hashable
    return {
        "jaccard": textdistance.Jaccard(external=False).similarity(a, b),
        "cosine": textdistance.Cosine(external=False).similarity(a, b),
        "damerau_levenshtein": textdistance.DamerauLevenshtein(
            external=False, restricted=True
        ).normalized_similarity(a, b),
    }


def test_the_figures_of_the_specification():
    found = metrics.similarities("aaab", "ab")
    assert found["jaccard"] == 0.5
    assert found["cosine"] == pytest.approx(0.7071, abs=5e-5)
    assert metrics.set_jaccard("aaab", "ab") == 1  # "Jaccard ignores frequency": this one does
    assert metrics.count_cosine("aaaabb", "aab") == 1  # "cosine ignores magnitude": this one does
    assert metrics.similarities("aaaabb", "aab")["cosine"] < 1


@patient
@given(TWO)
def test_textdistance_agrees(pair):
    assert metrics.similarities(*pair) == pytest.approx(theirs(*pair), abs=1e-12)


@patient
@given(TWO)
def test_textdistance_agrees_on_the_textbook_variants(pair):
    a, b = (one if isinstance(one, str) else tuple(one) for one in pair)
    jaccard = textdistance.Jaccard(external=False, as_set=True).similarity(a, b)
    assert metrics.set_jaccard(a, b) == pytest.approx(jaccard, abs=1e-12)
    true = textdistance.DamerauLevenshtein(external=False, restricted=False).normalized_similarity(
        a, b
    )
    assert metrics.unrestricted_damerau_levenshtein(a, b) == pytest.approx(true, abs=1e-12)


@patient
@given(TWO)
def test_count_cosine_is_that_of_two_vectors(pair):
    a, b = pair
    assume(a and b)
    left, right = (np.array([Counter(one)[token] for token in {*a, *b}]) for one in (a, b))
    cosine = left @ right / np.linalg.norm(left) / np.linalg.norm(right)
    assert metrics.count_cosine(a, b) == pytest.approx(cosine)


def test_the_baselines_of_the_specification(shared_data: Path):
    """What answers that never heard the audio score on LJ Speech's test part (SPEC.md 9)."""
    known, draw = set(" ,.?-abcdefghijklmnopqrstuvwxyz"), random.Random(7)
    rows = (shared_data / "ljspeech" / "transcripts_all.csv").read_text("utf-8").splitlines()
    texts = [[c if c in known else "#" for c in row.split("|")[-1].lower()[:97]] for row in rows]
    train, test = texts[:9825], [["<", *text, ">"] for text in texts[-2620:]]

    def baselines(answers) -> list[float]:
        return [
            *metrics.mean_similarities(
                [["<", *one, ">"] for one in answers], [[one] for one in test]
            ).values()
        ]

    assert baselines(draw.sample(one[1:-1], len(one) - 2) for one in test) == pytest.approx(
        [1, 1, 0.207], abs=0.002
    )
    assert baselines(draw.choice(train) for _ in test) == pytest.approx(
        [0.551, 0.715, 0.240], abs=0.01
    )
    histogram = Counter(token for text in train for token in text)
    fixed = [
        token
        for token, n in histogram.most_common()
        for _ in range(round(97 * n / histogram.total()))
    ]
    assert baselines([fixed] * len(test)) == pytest.approx([0.666, 0.8005, 0.123], abs=0.01)


EVERY = {
    "jaccard": lambda a, b: metrics.similarities(a, b)["jaccard"],
    "cosine": lambda a, b: metrics.similarities(a, b)["cosine"],
    "damerau_levenshtein": lambda a, b: metrics.similarities(a, b)["damerau_levenshtein"],
    "set_jaccard": metrics.set_jaccard,
    "count_cosine": metrics.count_cosine,
    "unrestricted_damerau_levenshtein": metrics.unrestricted_damerau_levenshtein,
}


@patient
@given(TWO)
def test_laws(pair):
    a, b = pair
    found = {name: of(a, b) for name, of in EVERY.items()}
    assert all(0 <= value <= 1 + 1e-12 for value in found.values())
    assert found == {name: of(b, a) for name, of in EVERY.items()}
    # not approximately: the fractions are built so that rounding keeps the order
    assert found["jaccard"] <= found["cosine"] and found["damerau_levenshtein"] <= found["cosine"]
    assert found["damerau_levenshtein"] <= found["unrestricted_damerau_levenshtein"]


@patient
@given(TWO)
def test_what_one_means(pair):
    a, b = pair
    found = {name: of(a, b) for name, of in EVERY.items()}
    same_multiset = Counter(a) == Counter(b)
    assert (found["jaccard"] == 1) == (found["cosine"] == 1) == same_multiset
    assert (
        (found["damerau_levenshtein"] == 1)
        == (found["unrestricted_damerau_levenshtein"] == 1)
        == (a == b)
    )
    assert (found["set_jaccard"] == 1) == (set(a) == set(b))


@patient
@given(SEQUENCES, st.randoms())
def test_only_the_edits_see_the_order(sequence, draw: random.Random):
    shuffled = draw.sample(sequence, len(sequence))
    found = metrics.similarities(list(sequence), shuffled)
    assert found["jaccard"] == found["cosine"] == 1
    assert (found["damerau_levenshtein"] == 1) == (list(sequence) == shuffled)


@patient
@given(TWO)
def test_tokens_may_be_renamed(pair):
    a, b = pair
    names = {token: f"token {i}" for i, token in enumerate({*a, *b})}
    renamed = ([names[token] for token in one] for one in (a, b))
    assert metrics.similarities(*renamed) == metrics.similarities(a, b)


def test_the_restricted_variant_does_not_edit_between_swapped_tokens():
    assert metrics.similarities("ca", "abc")["damerau_levenshtein"] == 0  # 3 edits of 3
    assert metrics.unrestricted_damerau_levenshtein("ca", "abc") == pytest.approx(1 / 3)
    assert metrics.similarities("ab", "ba")["damerau_levenshtein"] == 0.5  # a swap is one edit


def test_equal_hashes_are_not_equal_tokens():
    assert hash(-1.0) == hash(-2.0)
    assert metrics.similarities([-1.0], [-2.0]) == dict.fromkeys(
        ("jaccard", "cosine", "damerau_levenshtein"), 0
    )
    assert metrics.similarities([97], ["a"])["damerau_levenshtein"] == 0
    assert metrics.similarities(["a", "b"], "ab")["damerau_levenshtein"] == 1


@pytest.mark.parametrize("name", EVERY)
def test_empty_sequences(name):
    for nothing in ("", [], ()):
        assert EVERY[name](nothing, "") == 1
        assert EVERY[name](nothing, "ab") == EVERY[name](["x"], nothing) == 0


def test_mean_takes_the_best_reference_for_each_measure():
    found = metrics.mean_similarities(["abc", "x"], [["cba", "abd"], ["x"]])
    assert found["jaccard"] == found["cosine"] == 1  # the first
    assert found["damerau_levenshtein"] == pytest.approx((2 / 3 + 1) / 2)  # the second
    tokens = metrics.mean_similarities([[1, 2, 3]], [[[1, 2, 3]]])
    assert set(tokens.values()) == {1}


def test_refuses_what_is_not_two_sequences():
    """The types refuse it too, hence the comments for pyright."""
    with pytest.raises(
        InputError, match=r"similarities: needs two sequences; got ndarray; .*\.tolist\(\)"
    ):
        metrics.similarities(np.arange(3), [0, 1, 2])  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="set_jaccard: needs two sequences; got set"):
        metrics.set_jaccard("ab", {"a"})  # pyright: ignore[reportArgumentType]
    with pytest.raises(
        InputError, match="every token must be hashable; got unhashable type: 'list'"
    ):
        metrics.similarities([["a"]], [["a"]])  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="got 2 answers, 1 lists of references"):
        metrics.mean_similarities(["a", "b"], [["a"]])
    with pytest.raises(
        InputError, match="mean_similarities: no list of references for answer 0; got 'a'"
    ):
        metrics.mean_similarities(["a"], ["a"])
