"""Turns of a dialogue as tokens: each begins with a token that says who speaks."""

from __future__ import annotations

from collections.abc import Sequence

from regard.tokenizers.base import OTHER_TURN, SELF_TURN

OTHER, SELF = "o", "s"  # speakers: the other one, and the one who answers
TURN_TOKENS = {OTHER: OTHER_TURN, SELF: SELF_TURN}


def join_turns(turns: Sequence[Sequence[int]], speakers: str, *, limit: int) -> list[int]:
    """The tokens of a history, oldest turn first. Of one with more than `limit` tokens, its oldest
    turns are left out, but never the last one. Without tokens in the last turn it is empty.

    >>> join_turns([[7, 8], [9], [6]], "oso", limit=5)
    [5, 9, 4, 6]
    """
    if not turns[-1]:
        return []
    tokens: list[int] = []
    for turn, speaker in zip(reversed(turns), reversed(speakers), strict=True):
        if tokens and len(turn) + 1 + len(tokens) > limit:
            break
        if turn:
            tokens = [TURN_TOKENS[speaker], *turn, *tokens]
    return tokens
