"""The scores of a published benchmark, against sacrebleu and worked examples."""

from __future__ import annotations

import pytest

from bench import published_dialogue
from regard import metrics

REPLIES = ["the cat sat on the mat today", "i do n't know the man at all", "yes", ""]
REFERENCES = ["the cat sat on a mat", "i do n't know him , the man of all", "yes , sir", "why ?"]


def test_bleu_of_given_words_is_sacrebleu_without_smoothing():
    from sacrebleu.metrics import BLEU

    split = [text.split() for text in REPLIES], [text.split() for text in REFERENCES]
    for order in range(1, 5):
        metric = BLEU(tokenize="none", smooth_method="none", max_ngram_order=order)
        expected = metric.corpus_score(REPLIES, [REFERENCES]).score / 100
        assert published_dialogue.bleus(*split)[f"bleu_{order}"] == pytest.approx(expected)


def test_distinct_2_counts_bigrams_across_replies_and_divides_by_words():
    replies = [["a", "b"], ["a", "b"]]
    assert published_dialogue.distincts(replies) == {"distinct_1": 0.5, "distinct_2": 0.5}  # ab, ba
    assert metrics.distinct(["a b", "a b"], 2) == 0.5  # one of two, by chance the same
    assert metrics.distinct(["a b", "c d"], 2) == 1
    assert published_dialogue.distincts([["a", "b"], ["c", "d"]])["distinct_2"] == 0.75


def test_one_word_is_filled_and_references_are_cut():
    scores = published_dialogue.scores(["Yes"], ["Yes"])
    assert scores["bleu_2"] == 1 and scores["distinct_1"] == 1  # "yes <unk>" is its reference
    long = " ".join(f"w{i}" for i in range(40))
    assert published_dialogue.scores([long], [long])["bleu_1"] == 28 / 40
