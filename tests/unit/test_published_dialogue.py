"""The scores of a published benchmark, against sacrebleu and worked examples."""

from __future__ import annotations

import numpy as np
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


def test_intervals_are_those_of_resampled_replies_and_dialogues():
    draw = np.random.default_rng(5)
    replies = [" ".join(draw.choice(list("abcdefg"), 7)) for _ in range(40)]
    references = [" ".join(draw.choice(list("abcdefg"), 9)) for _ in range(40)]
    value = published_dialogue.scores(replies, references)["bleu_2"]
    bounds = published_dialogue.bleu_intervals(replies, references)["bleu_2"]
    assert bounds is not None and bounds[0] < value < bounds[1]
    split = [text.split() for text in replies], [text.split() for text in references]
    resampled = published_dialogue.bleu_statistics(*split)["bleu_2"].resampled()
    places = np.random.Generator(np.random.PCG64(1)).integers(40, size=(1000, 40))
    for score, chosen in zip(resampled[:20], places, strict=False):
        own = [replies[i] for i in chosen], [references[i] for i in chosen]
        assert published_dialogue.scores(*own)["bleu_2"] == pytest.approx(score)
    assert bounds == pytest.approx(np.quantile(resampled, [0.025, 0.975]), abs=1e-3)

    # Three equal replies of one dialogue say no more than one of them.
    numbers = [number for number in range(40) for _ in range(3)]
    thrice = [[text for text in texts for _ in range(3)] for texts in (replies, references)]
    together = published_dialogue.bleu_intervals(thrice[0], thrice[1], numbers)["bleu_2"]
    assert together == pytest.approx(bounds)
    narrow = published_dialogue.bleu_intervals(thrice[0], thrice[1])["bleu_2"]
    assert narrow is not None and narrow[1] - narrow[0] < 0.8 * (bounds[1] - bounds[0])
    assert published_dialogue.bleu_intervals(["a b"], ["a b"])["bleu_2"] is None


def test_intervals_read_texts_as_scores_do():
    """Marks apart, references cut, single words filled."""
    long = " ".join(f"w{i}" for i in range(40))
    texts = ["Yes", "I don't know.", long]
    right = ["Yes", "I don't know .", long]
    scores = published_dialogue.scores(texts, right)
    for name, bounds in published_dialogue.bleu_intervals(texts, right).items():
        assert bounds is not None and bounds[0] <= scores[name] <= bounds[1] == 1
