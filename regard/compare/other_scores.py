"""What scores say that the verdict does not use, where it is undecided or they contradict it."""

from __future__ import annotations

from collections.abc import Sequence

from regard.compare.record import Pair
from regard.compare.statistics import Difference
from regard.compare.verdict import SIGNIFICANT, in_words, score_name, sign_of

NOT_ADJUSTED = (
    "These intervals are not adjusted for the number of scores, and the verdict does not use them."
)


def other_scores(score: str, pair: Pair) -> str:
    """A sentence about the other scores whose intervals exclude 0: all of them if the verdict is
    undecided, those that contradict it if it is decided. Empty if there are none.

    >>> from dataclasses import replace
    >>> gap = Difference(0.2, 0.1, 0.04, 5, (3, 3), 923, 0.01, 0.15, "", None)
    >>> pair = Pair("GRU", "LSTM", "", "undecided", None, {"exact": gap}, [], [])
    >>> other_scores("perplexity", pair)
    'By other scores, GRU does better (20.0 ± 10.0 points of exact matches).'
    >>> other_scores("perplexity", replace(pair, outcome="worse"))
    'But by other scores, GRU does better (20.0 ± 10.0 points of exact matches).'
    >>> other_scores("perplexity", replace(pair, outcome="better"))
    ''
    """
    if pair.outcome not in ("better", "worse", "undecided", "runs"):
        return ""
    winner = _winner(score, pair)
    parts = []
    for name in (pair.first, pair.second):
        wins = {} if name == winner else _wins(score, pair, name)
        if wins:
            amounts = ", ".join(_amount(each, gap) for each, gap in wins.items())
            parts.append(f"{name} does better ({amounts})")
    beginning = "By" if winner is None else "But by"
    return f"{beginning} other scores, {'; '.join(parts)}." if parts else ""


def contradictions(score: str, pairs: Sequence[Pair]) -> str:
    """A sentence about the verdicts that other scores contradict, without amounts. Empty if none
    is.

    >>> gap = Difference(0.2, 0.1, 0.04, 5, (3, 3), 923, 0.01, 0.15, "", None)
    >>> gaps = {"exact": gap, "chrf": gap}
    >>> pair = Pair("GRU", "LSTM", "", "worse", None, gaps, [], [])
    >>> contradictions("perplexity", [pair])
    'But GRU does better than LSTM by exact matches and chrF.'
    """
    parts = []
    for pair in pairs:
        winner = _winner(score, pair)
        if winner is None:
            continue
        loser = pair.second if winner == pair.first else pair.first
        names = [score_name(name) for name in _wins(score, pair, loser)]
        if names:
            parts.append(f"{loser} does better than {winner} by {_list(names)}")
    return f"But {'; '.join(parts)}." if parts else ""


def _winner(score: str, pair: Pair) -> str | None:
    """The contender that the verdict calls better, also if it is about two runs only."""
    if pair.outcome == "better":
        return pair.first
    if pair.outcome == "worse":
        return pair.second
    own = pair.differences.get(score)
    p = pair.adjusted_p_value
    if pair.outcome != "runs" or own is None or p is None or p >= SIGNIFICANT:
        return None
    sign = sign_of(score)
    if not sign:
        return None
    return pair.first if sign * own.value > 0 else pair.second


def _wins(score: str, pair: Pair, name: str) -> dict[str, Difference]:
    """The other scores by which a contender does better than the other one of the pair, with the
    differences from its side, whose intervals exclude 0."""
    wins = {}
    for each, difference in pair.differences.items():
        sign = sign_of(each)
        margin = difference.margin
        if each == score or not sign or margin is None or abs(difference.value) <= margin:
            continue
        first_wins = sign * difference.value > 0
        if first_wins == (name == pair.first):
            wins[each] = difference if first_wins else difference.reversed()
    return wins


def _amount(score: str, difference: Difference) -> str:
    return in_words(score, difference).removeprefix("difference ")


def _list(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
