"""Advice: which contender to take, in a few sentences that claim no more than the verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from regard.compare.other_scores import contradictions
from regard.compare.record import ContenderResult, Pair
from regard.compare.verdict import SHARES, number_text, score_name, sign_of
from regard.metrics import better

SAME_COST = 0.05  # costs that differ by less are called the same


def advice(contenders: Sequence[ContenderResult], pairs: Sequence[Pair], score: str) -> str:
    """Which contenders no other one is better than; of several, which has the best mean and which
    costs least to use; and which of their verdicts other scores contradict. Empty where verdicts
    are about runs, or not there yet."""
    if not pairs or any(pair.outcome in ("runs", "incomplete") for pair in pairs):
        return ""
    candidates = [contender for contender in contenders if contender.done]
    unbeaten = [each for each in candidates if each.name not in _losers(pairs)]
    if not unbeaten:
        return ""
    names = {each.name for each in unbeaten}
    but = contradictions(score, [pair for pair in pairs if names & {pair.first, pair.second}])
    if len(unbeaten) == 1:
        (winner,) = unbeaten
        condition = f" if {score_name(score)} is what counts" if but else ""
        return f"Take {winner.name}{condition}. {_of_one(winner, candidates, pairs)} {but}".strip()
    if len(unbeaten) < len(candidates):
        said = f"No contender was shown to be better than {_list(unbeaten, 'or')}."
    elif len(unbeaten) == 2:
        said = "Neither was shown to be better."
    else:
        said = "No contender was shown to be better than another."
    return " ".join(part for part in (said, _of_several(unbeaten, score), but) if part)


def _losers(pairs: Sequence[Pair]) -> set[str]:
    """The contenders that another one is better than."""
    losers = {pair.second for pair in pairs if pair.outcome == "better"}
    return losers | {pair.first for pair in pairs if pair.outcome == "worse"}


def _of_one(
    winner: ContenderResult, candidates: Sequence[ContenderResult], pairs: Sequence[Pair]
) -> str:
    """Why the only one that is not beaten is to be taken, and at what cost."""
    others = [each for each in candidates if each is not winner]
    if not others:
        return "It is the only one that did not fail."
    won = {pair.second for pair in pairs if pair.first == winner.name and pair.outcome == "better"}
    won |= {pair.first for pair in pairs if pair.second == winner.name and pair.outcome == "worse"}
    beats_all = all(other.name in won for other in others)
    if len(others) == 1:
        reason = "It is better"
    else:
        reason = "It is better than all others" if beats_all else "No other is known to be better"
    known = [other for other in others if other.costs.forward]
    if not winner.costs.forward or not known:
        return f"{reason}."
    other = min(known, key=_forward)
    ratio = _forward(winner) / _forward(other)
    if abs(ratio - 1) <= SAME_COST:
        return (
            f"{reason}, and it answers an example with about as many multiplications as "
            f"{other.name}."
        )
    joint = "but" if ratio > 1 else "and"
    times = f"{ratio:.2g} times the multiplications of {other.name}"
    return f"{reason}, {joint} it takes {times} to answer an example."


def _of_several(contenders: Sequence[ContenderResult], score: str) -> str:
    """Which of them has the best mean, and which takes the fewest multiplications."""
    facts = []
    best = _best(contenders, score)
    if best is not None:
        word = "higher" if better(score) == "higher" else "lower"
        degree = word if len(contenders) == 2 else f"{word.removesuffix('er')}est"
        value = number_text(score, best.scores[score].score)
        unit = " %" if score in SHARES else ""
        facts.append((best, f"has the {degree} {score_name(score)} here ({value}{unit})"))
    cheapest = _cheapest(contenders)
    if cheapest is not None:
        degree = "cheaper" if len(contenders) == 2 else "cheapest"
        amount = _in_words(_forward(cheapest))
        facts.append(
            (cheapest, f"is the {degree} one ({amount} multiplications to answer an example)")
        )
    if len(facts) == 2 and facts[0][0] is facts[1][0]:
        return f"{facts[0][0].name} {facts[0][1]} and {facts[1][1]}."
    text = ", ".join(f"{contender.name} {fact}" for contender, fact in facts)
    if text and cheapest is None and all(each.costs.forward for each in contenders):
        text += (
            ", and the cheapest ones cost about the same"
            if len(contenders) > 2
            else (", and both take about as many multiplications to answer an example")
        )
    return f"{text}." if text else ""


def _best(contenders: Sequence[ContenderResult], score: str) -> ContenderResult | None:
    """The one with the best mean; None if scores are not known, or neither good nor bad."""
    sign = sign_of(score)
    if not sign or not all(score in each.scores for each in contenders):
        return None
    ordered = sorted(contenders, key=lambda each: -sign * each.scores[score].value)
    is_tie = ordered[0].scores[score].value == ordered[1].scores[score].value
    return None if is_tie else ordered[0]


def _cheapest(contenders: Sequence[ContenderResult]) -> ContenderResult | None:
    """The one that takes the fewest multiplications for an example; None if others take about as
    many."""
    if not all(each.costs.forward for each in contenders):
        return None
    first, second = sorted(contenders, key=_forward)[:2]
    return None if _forward(second) <= _forward(first) * (1 + SAME_COST) else first


def _in_words(number: float) -> str:
    """
    >>> _in_words(1_310_000.0), _in_words(5.25e9), _in_words(870.0)
    ('1.3 million', '5.2 billion', '870')
    """
    for size, name in ((1e9, "billion"), (1e6, "million")):
        if number >= size:
            return (
                f"{number / size:.2g} {name}"
                if number < 100 * size
                else (f"{number / size:,.0f} {name}")
            )
    return f"{number:,.0f}"


def _forward(contender: ContenderResult) -> float:
    return float(contender.costs.forward or 0)


def _list(contenders: Sequence[ContenderResult], word: str) -> str:
    *names, last = (each.name for each in contenders)
    return f"{', '.join(names)} {word} {last}" if names else last
