"""Verdicts claim no more than was found."""

from __future__ import annotations

import pytest

from regard.compare.statistics import Difference
from regard.compare.verdict import Side, verdict

GRU, LSTM = Side("GRU", 3, 0), Side("LSTM", 3, 0)


def found(value: float, p: float, seeds: tuple[int, int] = (3, 3)) -> Difference:
    return Difference(value, 0.011, 0.005, 5.0, seeds, 923, p, 0.019, "McNemar", p)


def test_what_cannot_be_told_apart_says_what_could_have_been_shown():
    about = verdict("accuracy", GRU, LSTM, found(0.004, 0.4), 0.4, unit="sentence")
    assert about.outcome == "undecided"
    assert about.sentence == (
        "GRU and LSTM cannot be told apart here (difference 0.4 ± 1.1 points of accuracy; "
        "3 seeds of 923 sentences could show 1.9)"
    )


@pytest.mark.parametrize(
    ("score", "value", "winner"),
    [("accuracy", 0.03, "GRU"), ("accuracy", -0.03, "LSTM"), ("cer", 0.03, "LSTM")],
)
def test_the_better_one_is_named_in_the_direction_of_the_score(score, value, winner):
    about = verdict(score, GRU, LSTM, found(value, 0.001), 0.003, unit="recording")
    loser = {"GRU": "LSTM", "LSTM": "GRU"}[winner]
    assert about.sentence.startswith(
        f"{winner} is better than {loser} (difference 3.0 ± 1.1 points"
    )
    assert about.outcome == ("better" if winner == "GRU" else "worse")


@pytest.mark.parametrize(("value", "winner"), [(-0.5, "GRU"), (0.5, "LSTM")])
def test_perplexities_are_said_relative_to_the_worse_one(value, winner):
    about = Difference(value, 0.1, 0.05, 5.0, (3, 3), 923, 0.001, 0.2, "", None, is_log=True)
    sentence = verdict("perplexity", GRU, LSTM, about, 0.003, unit="prompt").sentence
    loser = {"GRU": "LSTM", "LSTM": "GRU"}[winner]
    assert sentence == (
        f"{winner} is better than {loser} (perplexity 39.3 % lower, 33 to 45.1 %; "
        "3 seeds of 923 prompts)"
    )


def test_perplexities_that_cannot_be_told_apart_have_an_interval_on_both_sides():
    about = Difference(-0.05, 0.1, 0.05, 5.0, (3, 3), 923, 0.3, 0.2, "", None, is_log=True)
    sentence = verdict("perplexity", GRU, LSTM, about, 0.3, unit="prompt").sentence
    assert "(perplexity 4.88 % lower, 13.9 % lower to 5.13 % higher; 3 seeds" in sentence
    assert sentence.endswith("could show 22.1 %)")


def test_many_pairs_need_more():
    """A p-value that was small before it was adjusted."""
    about = verdict("accuracy", GRU, LSTM, found(0.03, 0.01), 0.06, unit="sentence")
    assert about.outcome == "undecided"


def test_what_many_pairs_hide_is_said():
    """The interval excludes 0, which happens to one of many pairs by chance."""
    hidden = Difference(0.2, 0.15, 0.05, 4, (3, 3), 97, 0.02, 0.2, "", None)
    about = verdict("accuracy", Side("A", 3, 0), Side("B", 3, 0), hidden, 0.06, unit="sentence")
    assert about.outcome == "undecided"
    assert "p = 0.02, but 0.06 adjusted for all pairs; 3 seeds of" in about.sentence
    clear = Difference(0.2, 0.25, 0.05, 4, (3, 3), 97, 0.2, 0.2, "", None)
    about = verdict("accuracy", Side("A", 3, 0), Side("B", 3, 0), clear, 0.2, unit="sentence")
    assert "adjusted" not in about.sentence


def test_one_seed_is_about_runs():
    single = verdict("accuracy", GRU, LSTM, found(0.03, 0.001, (1, 1)), 0.001, unit="sentence")
    assert single.outcome == "runs"
    assert single.sentence.startswith("this run of GRU is better than this run of LSTM")
    assert "one seed says nothing about other seeds" in single.sentence


def test_who_fails_more_often_is_never_better():
    fragile = Side("GRU", 2, 1, "the loss was not a number")
    about = verdict("accuracy", fragile, LSTM, found(0.03, 0.001), 0.001, unit="sentence")
    assert about.outcome == "failed" and "is better" not in about.sentence
    assert about.sentence.endswith("GRU failed on 1 of 3 seeds (the loss was not a number)")
    other = verdict("accuracy", fragile, LSTM, found(-0.03, 0.001), 0.001, unit="sentence")
    assert other.outcome == "worse" and "GRU failed on 1 of 3 seeds" in other.sentence


def test_a_contender_without_a_score_failed_or_is_not_there_yet():
    gone = Side("GRU", 0, 3, "the loss was not a number")
    about = verdict("accuracy", gone, LSTM, None, None, unit="sentence")
    assert about.sentence == "GRU failed on all of its 3 seeds: the loss was not a number"
    later = verdict("accuracy", Side("GRU", 0, 0), LSTM, None, None, unit="sentence")
    assert later.outcome == "incomplete"


def test_a_score_that_is_neither_good_nor_bad_has_no_winner():
    about = verdict("mean_length", GRU, LSTM, found(0.03, 0.001), 0.001, unit="sentence")
    assert about.outcome == "undecided"


def test_scores_have_the_names_that_a_sentence_needs():
    about = verdict("exact", GRU, LSTM, found(0.03, 0.001), 0.003, unit="sentence")
    assert about.sentence == (
        "GRU is better than LSTM (difference 3.0 ± 1.1 points of exact matches; "
        "3 seeds of 923 sentences)"
    )
