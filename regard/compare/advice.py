"""Advice: which contender to take, in two sentences that claim no more than the verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from regard.compare.record import ContenderResult, Pair

SAME_COST = 0.05  # costs that differ by less are called the same


def advice(contenders: Sequence[ContenderResult], pairs: Sequence[Pair]) -> str:
    """Which contenders no other one is better than, and which of them costs least to use. Empty
    where verdicts are about runs, or not there yet."""
    if not pairs or any(pair.outcome in ("runs", "incomplete") for pair in pairs):
        return ""
    candidates = [contender for contender in contenders if contender.done]
    unbeaten = [each for each in candidates if each.name not in _losers(pairs)]
    if not unbeaten:
        return ""
    others = [each for each in candidates if each not in unbeaten]
    if len(unbeaten) == 1:
        (winner,) = unbeaten
        return f"Take {winner.name}. {_of_one(winner, candidates, pairs)}"
    if others:
        said = f"No contender was shown to be better than {_list(unbeaten, 'or')}."
    elif len(unbeaten) == 2:
        said = "Neither was shown to be better."
    else:
        said = "No contender was shown to be better than another."
    return f"{said} {_cheapest(unbeaten)}".strip()


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


def _cheapest(contenders: Sequence[ContenderResult]) -> str:
    """Which of them takes the fewest multiplications for an example."""
    if not all(each.costs.forward for each in contenders):
        return ""
    ordered = sorted(contenders, key=_forward)
    first, second = ordered[0], ordered[1]
    if _forward(second) <= _forward(first) * (1 + SAME_COST):
        which = "Both" if len(ordered) == 2 else f"The cheapest, {first.name} and {second.name},"
        return f"{which} take about as many multiplications to answer an example."
    if len(ordered) == 2:
        ratio = _forward(first) / _forward(second)
        return (
            f"{first.name} is the cheaper one: it answers an example with {ratio:.2g} times the "
            f"multiplications of {second.name}."
        )
    return (
        f"{first.name} is the cheapest of them: it answers an example with {_forward(first):.2g} "
        f"multiplications, the next one ({second.name}) with {_forward(second):.2g}."
    )


def _forward(contender: ContenderResult) -> float:
    return float(contender.costs.forward or 0)


def _list(contenders: Sequence[ContenderResult], word: str) -> str:
    *names, last = (each.name for each in contenders)
    return f"{', '.join(names)} {word} {last}" if names else last
