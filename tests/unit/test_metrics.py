"""Scores: parity with sacrebleu, naive counts, and examples with their counter-examples."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from regard import metrics
from regard.errors import InputError

few_words = st.lists(st.sampled_from(["a", "b", "c", "."]), max_size=11).map(" ".join)
some_texts = st.lists(few_words, min_size=1, max_size=7)


def test_needs_no_torch():
    code = "import sys, regard.metrics; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("Rock'n'roll, 'tis 3pm!!!", ["rock'n'roll", ",", "'", "tis", "3pm", "!!!"]),
        ("Well --  go?!", ["well", "--", "go", "?", "!"]),
        ("Cafe\u0301", ["café"]),
        ("Grüße", ["grüße"]),
    ],
)
def test_words(text, expected):
    assert metrics.words(text) == expected


@given(st.text())
def test_words_lose_only_spaces(text):
    found = metrics.words(text)
    assert not any(part.isspace() or part == "" for part in found)
    assert metrics.words(" ".join(found)) == found  # cutting again changes nothing


# perplexity


@given(st.integers(1, 10_000), st.integers(1, 97))
def test_perplexity_of_a_uniform_model_is_the_number_of_choices(choices, count):
    assert metrics.perplexity(count * math.log(choices), count) == pytest.approx(choices)


def test_perplexity_has_no_ceiling():
    assert metrics.perplexity(1e6, 1) == math.inf
    assert metrics.perplexity(math.inf, 1) == math.inf


@pytest.mark.parametrize(("nats", "count"), [(1.0, 0), (1.0, -2), (-1.0, 3), (math.nan, 3)])
def test_perplexity_refuses(nats, count):
    with pytest.raises(InputError, match="perplexity"):
        metrics.perplexity(nats, count)


# counts over texts


@given(some_texts, st.integers(1, 5))
def test_distinct_is_the_naive_count(texts, n):
    seen, total = set(), 0
    for text in texts:
        cut = metrics.words(text)
        for i in range(len(cut)):
            if i + n <= len(cut):
                seen.add(" ".join(cut[i : i + n]))
                total += 1
    assert metrics.distinct(texts, n) == (len(seen) / total if total else 0)


@given(some_texts)
def test_repetition_is_the_naive_count(texts):
    def naive(w: list[str]) -> bool:
        size = len(w)
        for n in range(1, size + 1):
            for i in range(size - 2 * n + 1):
                if w[i : i + n] == w[i + n : i + 2 * n]:
                    return True
        return any(w[i : i + 3] == w[j : j + 3] for i in range(size - 2) for j in range(i + 1, size - 2))

    assert metrics.repetition(texts) == sum(naive(metrics.words(text)) for text in texts) / len(texts)


@given(some_texts)
def test_shares_lie_between_zero_and_one_and_doubling_the_texts_keeps_them(texts):
    for share in (metrics.bland_share, metrics.repetition):
        assert 0 <= share(texts) <= 1
        assert share(texts * 2) == pytest.approx(share(texts))
    assert metrics.mean_length(texts * 2) == pytest.approx(metrics.mean_length(texts))
    assert metrics.unique_share(texts * 2) == pytest.approx(metrics.unique_share(texts) / 2)


@pytest.mark.parametrize("text", ["I go and I go and I go", "the the", "to be or not to be or not", "a b a b"])
def test_repeats(text):
    assert metrics.repetition([text]) == 1


@pytest.mark.parametrize("text", ["", "No, no.", "Well . . . no", "I know that you know that.", "a b c a b"])
def test_does_not_repeat(text):
    assert metrics.repetition([text]) == 0


# bland


@pytest.mark.parametrize(
    "text",
    [
        "I don't know.",
        "I DON’T KNOW!!",
        "i don t know .",  # as the classic normalisation writes it
        "I dont know",
        "I do not know.",
        "Don't know.",
        "Dunno.",
        "I dunno, man.",
        "I have no idea.",
        "I've got no idea, sir.",
        "No idea...",
        "I haven't a clue.",
        "I'm not sure.",
        "i m not sure .",
        "I'm not really sure.",
        "Not sure.",
        "No, I don't know.",
        "Well... I just don't know.",
        "I really don't know, I'm sorry.",
        "I don't really know.",
        "I don't know. I don't know.",
        "I don't know, I'm not sure.",
    ],
)
def test_bland(text):
    assert metrics.bland_share([text]) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "...",
        "No.",
        "Well, yes.",
        "I know.",
        "You don't know.",
        "I don't know him.",
        "I don't know what you mean.",
        "I don't know, ask John.",
        "I'm sure.",
        "I'm not sure he did it.",
        "I have an idea.",
        "No idea is a bad idea.",
        "I don't know 3 of them.",
    ],
)
def test_not_bland(text):
    assert metrics.bland_share([text]) == 0


# sacrebleu

ANSWERS = ["the cat sat on the mat", "a dog runs", "he said so yesterday evening"]
REFERENCES = [
    ["the cat is on the mat", "a cat sat on the mat"],
    ["the dog runs"],
    ["he said so last night", "so he said"],
]


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_bleu_is_sacrebleus(order):
    first, second = [r[0] for r in REFERENCES], [r[1] if len(r) > 1 else None for r in REFERENCES]
    theirs = sacrebleu.metrics.BLEU(max_ngram_order=order).corpus_score(ANSWERS, [first, second]).score
    assert metrics.bleu(ANSWERS, REFERENCES, order=order) == pytest.approx(theirs)
    assert 0 < theirs < 100


def test_chrf_is_sacrebleus():
    first, second = [r[0] for r in REFERENCES], [r[1] if len(r) > 1 else None for r in REFERENCES]
    theirs = sacrebleu.corpus_chrf(ANSWERS, [first, second]).score
    assert metrics.chrf(ANSWERS, REFERENCES) == pytest.approx(theirs)
    assert 0 < theirs < 100


def test_a_missing_second_reference_is_not_an_empty_one():
    assert metrics.chrf(ANSWERS, [[r[0]] for r in REFERENCES]) == pytest.approx(
        sacrebleu.corpus_chrf(ANSWERS, [[r[0] for r in REFERENCES]]).score
    )


# what is refused

OVER_TEXTS = [
    metrics.unique_share,
    metrics.mean_length,
    metrics.bland_share,
    metrics.repetition,
    lambda texts: metrics.distinct(texts, 2),
    lambda texts: metrics.bleu(texts, []),
    lambda texts: metrics.chrf(texts, []),
]


@pytest.mark.parametrize("score", OVER_TEXTS)
def test_refuses_no_texts_and_a_bare_text(score):
    with pytest.raises(InputError, match="at least one text; got none"):
        score([])
    with pytest.raises(InputError, match="needs a list of texts; got one text; put it in a list"):
        score("yes")


@pytest.mark.parametrize("score", [metrics.bleu, metrics.chrf])
def test_refuses_references_that_do_not_fit(score):
    with pytest.raises(InputError, match="got 2 answers, 1 lists of references"):
        score(["a", "b"], [["a"]])
    with pytest.raises(InputError, match=r"no list of references for answer 1; got \[\]"):
        score(["a", "b"], [["a"], []])
    with pytest.raises(InputError, match="no list of references for answer 0; got 'a'"):
        score(["a"], ["a"])


def test_refuses_orders_below_one():
    with pytest.raises(InputError, match="distinct: n must be 1 or more; got 0"):
        metrics.distinct(["a"], 0)
    with pytest.raises(InputError, match="bleu: order must be 1 or more; got 0"):
        metrics.bleu(["a"], [["a"]], order=0)
