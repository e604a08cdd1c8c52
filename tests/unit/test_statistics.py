"""Scores that are sums over examples: the same values as the plain scores, and their intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from regard import metrics
from regard.metrics import Statistic, text_statistics
from regard.metrics.statistics import RESAMPLES

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "I", "don't", "know", "."]


def texts(count: int, seed: int) -> list[str]:
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, draw.integers(1, 12))) for _ in range(count)]


ANSWERS = [*texts(60, 1), "", "I don't know."]
PAIRS = zip(texts(62, 2), texts(62, 3), strict=True)
REFERENCES = [[a, b] if i % 3 else [a] for i, (a, b) in enumerate(PAIRS)]


def interval(statistic: Statistic, *clusters: Sequence[int] | np.ndarray) -> tuple[float, float]:
    bounds = statistic.interval(*clusters)
    assert bounds is not None
    return bounds


@pytest.mark.parametrize("name", ["bleu", "chrf", "wer", "cer", "exact_share"])
def test_values_against_references_are_those_of_the_plain_scores(name: str):
    statistic = getattr(text_statistics, name)(ANSWERS, REFERENCES)
    assert statistic.value == pytest.approx(getattr(metrics, name)(ANSWERS, REFERENCES))
    low, high = interval(statistic)
    assert name == "exact_share" or low < statistic.value < high


@pytest.mark.parametrize("name", ["bland_share", "repetition", "mean_length"])
def test_values_of_texts_are_those_of_the_plain_scores(name: str):
    statistic = getattr(text_statistics, name)(ANSWERS)
    assert statistic.value == pytest.approx(getattr(metrics, name)(ANSWERS))
    assert statistic.value > 0


def test_bleu_of_every_order_from_one_count():
    statistics = text_statistics.bleus(ANSWERS, REFERENCES)
    plain = metrics.bleus(ANSWERS, REFERENCES)
    assert {name: score.value for name, score in statistics.items()} == pytest.approx(plain)


def test_a_resampled_bleu_is_that_of_the_repeated_texts():
    statistic = text_statistics.bleus(ANSWERS, REFERENCES, orders=(2,))["bleu_2"]
    index = np.random.default_rng(5).integers(len(ANSWERS), size=len(ANSWERS))
    repeated = [ANSWERS[i] for i in index], [REFERENCES[i] for i in index]
    assert statistic.score(statistic.rows[index].sum(0)) == pytest.approx(
        metrics.bleu(*repeated, order=2)
    )


def test_macro_scores_are_those_of_scikit_learn():
    draw = np.random.default_rng(4)
    answers, right = (draw.choice(list("abcd"), 50).tolist() for _ in range(2))
    statistics = metrics.macro_statistics(answers, right)
    for name in ("precision", "recall", "f1"):
        assert statistics[name].value == pytest.approx(getattr(metrics, name)(answers, right))
        low, high = interval(statistics[name])
        assert low < statistics[name].value < high


def test_perplexity_is_a_ratio_of_sums():
    nats, tokens = [3.0, 9.0, 2.0], [2, 5, 1]
    statistic = metrics.perplexities(nats, tokens)
    assert statistic.value == pytest.approx(metrics.perplexity(14.0, 8))
    low, high = interval(statistic)
    assert np.exp(1.5) - 1e-9 <= low <= statistic.value <= high <= np.exp(2.0) + 1e-9


def test_intervals_contain_the_truth_about_95_times_of_100():
    draw = np.random.default_rng(6)
    inside = 0
    for _ in range(200):
        low, high = interval(metrics.share(draw.random(80) < 0.3))
        inside += low <= 0.3 <= high
    assert 180 <= inside <= 199


def test_intervals_are_the_same_every_time_and_depend_on_the_seed():
    statistic = metrics.mean(np.arange(30.0))
    assert statistic.interval() == statistic.interval() != statistic.interval(seed=2)
    assert RESAMPLES >= 1000


def test_examples_of_a_cluster_are_resampled_together():
    """Ten dialogues whose four examples are equal know as much as ten examples."""
    values = np.random.default_rng(7).normal(size=10)
    repeated = np.repeat(values, 4)
    clusters = np.repeat(np.arange(10), 4) * 7
    alone = interval(metrics.mean(values))
    assert metrics.mean(repeated).interval(clusters) == pytest.approx(alone)
    low, high = interval(metrics.mean(repeated))
    assert high - low < 0.7 * (alone[1] - alone[0])


def test_a_share_of_nothing_or_all_still_has_an_interval():
    assert metrics.share([False] * 100).interval() == pytest.approx((0, 0.037), abs=1e-3)
    assert metrics.share([True] * 100).interval() == pytest.approx((0.963, 1), abs=1e-3)
    assert interval(metrics.share([True] * 100), [1] * 50 + [2] * 50)[0] < 0.4
    assert metrics.mean([0.0] * 100).interval() == (0, 0)
    assert metrics.share([True]).interval() is None


def test_copies_are_recognised_whatever_their_marks():
    prompts = ["Well, do you like tea, dear?\nI do."] * 6
    answers = ["Do you like tea", "You like tea?", "Like tea!", "tea do you like", "like tea dears"]
    answers.append("Tea, dear? I do.")  # the end of one turn and another
    copied = text_statistics.prompt_copy_share(answers, prompts)
    assert copied.rows[:, 0].tolist() == [1, 1, 0, 0, 0, 0]
    training = metrics.SpokenTexts(iter(["I don’t know.", "No!"]))
    answers = ["i DON'T know", "no", "know", "I don't"]
    copied = text_statistics.training_copy_share(answers, training)
    assert copied.rows[:, 0].tolist() == [1, 1, 0, 0]
