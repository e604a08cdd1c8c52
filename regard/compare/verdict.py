"""Verdicts: a sentence about two contenders, which claims no more than was found."""

from __future__ import annotations

import math
from dataclasses import dataclass

from regard.compare.statistics import Difference
from regard.metrics import better

SIGNIFICANT = 0.05
# Shares and error rates are said in points, hundredths.
SHARES = frozenset({
    "accuracy", "accuracy_at_5", "precision", "recall", "f1", "exact", "cer", "wer", "jaccard",
    "cosine", "damerau_levenshtein", "hits_at_1", "mrr", "pmi_hits_at_1", "pmi_mrr",
    "bland_share", "repetition", "prompt_copy_share", "training_copy_share", "unique_share",
    "distinct_1", "distinct_2",
})  # fmt: skip
LOG_SCALE = frozenset({"perplexity", "word_perplexity"})  # compared by ratios
POINTS = frozenset({"bleu", "bleu_1", "bleu_2", "bleu_3", "bleu_4", "chrf"})
NAMES = {
    "bleu": "BLEU", "bleu_1": "BLEU-1", "bleu_2": "BLEU-2", "bleu_3": "BLEU-3", "bleu_4": "BLEU-4",
    "chrf": "chrF", "cer": "CER", "wer": "WER", "f1": "F1", "mrr": "MRR", "hits_at_1": "hits@1",
    "pmi_mrr": "MRR by PMI", "pmi_hits_at_1": "hits@1 by PMI", "accuracy_at_5": "accuracy@5",
    "distinct_1": "distinct-1", "distinct_2": "distinct-2",
    "damerau_levenshtein": "Damerau-Levenshtein similarity",
    "jaccard": "Jaccard similarity", "cosine": "cosine similarity", "exact": "exact matches",
}  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """A sentence, and its kind: "better" or "worse" (of the first contender), "undecided", "runs"
    (one seed: about these runs only), "failed", or "incomplete"."""

    outcome: str
    sentence: str


@dataclass(frozen=True)
class Side:
    """A contender as the verdict knows it."""

    name: str
    done: int
    failed: int
    why: str = ""

    @property
    def runs(self) -> int:
        return self.done + self.failed

    @property
    def failures(self) -> str:
        return f"{self.name} failed on {self.failed} of {count(self.runs, 'seed')}"


def verdict(
    score: str,
    first: Side,
    second: Side,
    difference: Difference | None,
    adjusted_p_value: float | None,
    *,
    unit: str,
) -> Verdict:
    """What can be said about two contenders.

    >>> gap = Difference(0.004, 0.011, 0.005, 5, (3, 3), 923, 0.4, 0.019, "", None)
    >>> gru, lstm = Side("GRU", 3, 0), Side("LSTM", 3, 0)
    >>> about = verdict("accuracy", gru, lstm, gap, 0.4, unit="sentence")
    >>> print(about.sentence)  # doctest: +NORMALIZE_WHITESPACE
    GRU and LSTM cannot be told apart here (difference 0.4 ± 1.1 points of accuracy; 3 seeds of
    923 sentences could show 1.9)
    """
    for side in (first, second):
        if side.failed and not side.done:
            sentence = f"{side.name} failed on all of its {count(side.runs, 'seed')}: {side.why}"
            return Verdict("failed", sentence)
    if difference is None:
        return Verdict("incomplete", f"{first.name} and {second.name}: no scores of both yet")

    sign = sign_of(score)
    is_found = adjusted_p_value is not None and adjusted_p_value < SIGNIFICANT and sign != 0
    first_wins = sign * difference.value > 0
    winner, loser = (first, second) if first_wins else (second, first)
    is_reversed = is_found and not first_wins
    amounts = in_words(score, difference.reversed() if is_reversed else difference)
    size = sample(difference, unit)
    more_failures = winner.failed > loser.failed
    failures = "".join(f"; {side.failures} ({side.why})" for side in (first, second) if side.failed)
    if not difference.has_seeds:
        about = _of_runs(difference, winner, loser, amounts, is_found, size, first_wins)
        return Verdict(about.outcome, about.sentence + failures)
    if is_found and more_failures:
        sentence = (
            f"{winner.name} scores better than {loser.name} where it does not fail "
            f"({amounts}; {size}), which is no advantage{failures}"
        )
        return Verdict("failed", sentence)
    if is_found:
        sentence = f"{winner.name} is better than {loser.name} ({amounts}; {size}){failures}"
        return Verdict("better" if first_wins else "worse", sentence)
    could = f" could show {_amount(score, difference.smallest_score)}"
    adjusted = _adjustment(difference, adjusted_p_value) if sign else ""
    sentence = (
        f"{first.name} and {second.name} cannot be told apart here "
        f"({amounts}; {adjusted}{size}{could}){failures}"
    )
    return Verdict("undecided", sentence)


def _adjustment(difference: Difference, adjusted_p_value: float | None) -> str:
    """Why a difference whose own interval excludes 0 is not found."""
    p = difference.p_value
    if p is None or adjusted_p_value is None or p >= SIGNIFICANT:
        return ""
    return f"p = {p:.2g}, but {adjusted_p_value:.2g} adjusted for all pairs; "


def _of_runs(
    difference: Difference,
    winner: Side,
    loser: Side,
    amounts: str,
    is_found: bool,
    size: str,
    first_wins: bool,
) -> Verdict:
    """With one seed of a contender: about these runs, not about the models."""
    p = f"p = {difference.p_value:.2g}" if difference.p_value is not None else "no test"
    test = f"{difference.item_test}, {p}" if difference.item_test else p
    if is_found:
        sentence = f"this run of {winner.name} is better than this run of {loser.name}"
    else:
        names = (winner.name, loser.name) if first_wins else (loser.name, winner.name)
        sentence = f"these runs of {names[0]} and {names[1]} cannot be told apart here"
    ending = "one seed says nothing about other seeds; add --seeds 3"
    return Verdict("runs", f"{sentence} ({amounts}; {size}; {test}); {ending}")


def in_words(score: str, difference: Difference) -> str:
    """The size of a difference with its margin.

    >>> in_words("loss", Difference(-1.5, 0.25, 0.1, 5, (3, 3), 9, 0.01, 0.4, "", None))
    'difference 1.5 ± 0.25 of loss'
    """
    if difference.is_log:
        return _relative_in_words(score, difference)
    value = _amount(score, abs(difference.value))
    margin = "" if difference.margin is None else f" ± {_amount(score, difference.margin)}"
    unit = "points of " if score in SHARES | POINTS else "of "
    return f"difference {value}{margin} {unit}{score_name(score)}"


def _relative_in_words(score: str, difference: Difference) -> str:
    """How much lower or higher the first contender's score is.

    >>> lower = Difference(-0.5, 0.1, 0.04, 5, (3, 3), 9, 0.01, 0.4, "", None, is_log=True)
    >>> _relative_in_words("perplexity", lower)
    'perplexity 39.3 % lower, 33 to 45.1 %'
    >>> unclear = Difference(-0.05, 0.1, 0.04, 5, (3, 3), 9, 0.01, 0.4, "", None, is_log=True)
    >>> _relative_in_words("perplexity", unclear)
    'perplexity 4.88 % lower, 13.9 % lower to 5.13 % higher'
    """

    def direction(value: float) -> str:
        return "higher" if value > 0 else "lower"

    name = score_name(score)
    value = difference.score
    shown = f"{name} {_percent(abs(value))} {direction(value)}"
    low, high = difference.low, difference.high
    if low is None or high is None:
        return shown
    if low * high > 0:
        nearest, farthest = sorted((abs(low), abs(high)))
        return f"{shown}, {_percent(nearest).removesuffix(' %')} to {_percent(farthest)}"
    return f"{shown}, {_percent(-low)} lower to {_percent(high)} higher"


def _percent(share: float) -> str:
    """
    >>> _percent(0.0513), _percent(12.5)
    ('5.13 %', '1,250 %')
    """
    return f"{number_text('loss', 100 * share)} %"


def _amount(score: str, value: float | None) -> str:
    """A difference, in points if it is one of shares, in percent if it is relative."""
    if value is None:
        return "unknown"
    return _percent(value) if score in LOG_SCALE else number_text(score, value)


def scale(score: str) -> float:
    """What a score is multiplied with where people read it: a share becomes a percentage."""
    return 100.0 if score in SHARES else 1.0


def difference_scale(score: str) -> float:
    """What a difference is multiplied with where people read it: a relative one becomes a
    percentage too."""
    return 100.0 if score in LOG_SCALE else scale(score)


def difference_text(score: str, value: float, digits: int = 3) -> str:
    """A difference as people read it, without its unit, which is that of `difference_unit`.

    >>> difference_text("accuracy", 0.043), difference_text("perplexity", -0.2)
    ('4.3', '\u221220')
    """
    if score in LOG_SCALE:
        return number_text("loss", 100 * value, digits)
    return number_text(score, value, digits)


def number_text(score: str, value: float, digits: int = 3) -> str:
    """A score as people read it, without its unit.

    >>> number_text("accuracy", 0.6543), number_text("bleu", 20.25), number_text("loss", 1.2345)
    ('65.4', '20.2', '1.23')
    >>> number_text("perplexity", 64108.3), number_text("perplexity", -3e12)
    ('64,108', '\u22123e+12')
    """
    value = scale(score) * value
    if score in SHARES | POINTS:
        text = f"{value:.1f}"
    elif 1000 <= abs(value) < 1e9:
        text = f"{value:,.0f}"
    else:
        text = f"{value:.{digits}g}"
    return text.replace("-", "\u2212", 1) if text.startswith("-") else text


def sign_of(score: str) -> int:
    """1 if a higher score is better, -1 if a lower one is, and 0 if neither is.

    >>> sign_of("bleu"), sign_of("perplexity"), sign_of("mean_length")
    (1, -1, 0)
    """
    return {"higher": 1, "lower": -1, None: 0}[better(score)]


def score_name(score: str) -> str:
    """
    >>> score_name("bleu"), score_name("word_perplexity")
    ('BLEU', 'word perplexity')
    """
    return NAMES.get(score, score.replace("_", " "))


def difference_unit(score: str) -> str:
    """
    >>> difference_unit("accuracy"), difference_unit("perplexity")
    ('points of accuracy', '% of perplexity')
    """
    if score in LOG_SCALE:
        return f"% of {score_name(score)}"
    points = "points of " if score in SHARES | POINTS else ""
    return f"{points}{score_name(score)}"


def sample(difference: Difference, unit: str) -> str:
    """How much was seen.

    >>> sample(Difference(0.0, 1.0, 1.0, 5, (3, 2), 1, 0.5, 1.0, "", None), "sentence")
    '3 and 2 seeds of 1 sentence'
    """
    first, second = difference.seeds
    seeds = count(first, "seed") if first == second else f"{first} and {second} seeds"
    return f"{seeds} of {count(difference.items, unit)}"


def bounds(score: str) -> tuple[float, float]:
    """The least and the greatest value of a score.

    >>> bounds("accuracy"), bounds("wer"), bounds("perplexity")
    ((0.0, 1.0), (0.0, inf), (1.0, inf))
    """
    if score in ("perplexity", "word_perplexity"):
        return 1.0, math.inf
    if score in POINTS:
        return 0.0, 100.0
    return 0.0, 1.0 if score in SHARES and score not in ("cer", "wer") else math.inf


def count(number: int, noun: str) -> str:
    """
    >>> count(1, "seed"), count(1234, "sentence")
    ('1 seed', '1,234 sentences')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
