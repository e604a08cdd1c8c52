"""Search: answers from a memory, by a decoder's `start` and `step` alone.

    options      how to search: greedy, sampling or beams, and what else decides
    processors   logits in, logits out: what excludes or penalises tokens
    choice       a token from its scores, and whether rounding could have decided
    hypotheses   unfinished and finished answers
    requests     one input, how to answer it, and what has come of it
    tracks       the search of one request inside a batch: `sampling`, `beam`
    reranking    which of several answers is best; MMI
    batch        the tracks of many requests, which step through the decoder together
    engine       requests that join and leave a running batch between steps

Lengths count the end token, so an empty answer has length 1. Scores are the model's own
log-probabilities, end token included, whatever the options did to the choice.

torch is imported when the first name other than `Options` is used, so recipes need not load it.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

from regard.search.options import Options as Options

if _TYPE_CHECKING:
    from regard.search.choice import seeds_of as seeds_of
    from regard.search.engine import Engine as Engine
    from regard.search.engine import search as search
    from regard.search.engine import stream as stream
    from regard.search.hypotheses import Hypothesis as Hypothesis
    from regard.search.hypotheses import SpecialTokens as SpecialTokens
    from regard.search.requests import Request as Request
    from regard.search.requests import StreamedToken as StreamedToken

_HOMES = {
    "Engine": "engine",
    "Hypothesis": "hypotheses",
    "Request": "requests",
    "SpecialTokens": "hypotheses",
    "StreamedToken": "requests",
    "search": "engine",
    "seeds_of": "choice",
    "stream": "engine",
}

__all__ = [
    "Engine",
    "Hypothesis",
    "Options",
    "Request",
    "SpecialTokens",
    "StreamedToken",
    "search",
    "seeds_of",
    "stream",
]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(_import_module(f"regard.search.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'regard.search' has no attribute {name!r}")
