"""Search: greedy search, sampling and beam search, by a decoder's `start` and `step` alone.

    options      the options of a search: its kind, its width, the weights of re-ranking, …
    processors   logits processors, which exclude or penalise tokens
    choice       the choice of a token from its scores, and whether rounding could change it
    hypotheses   unfinished and finished answers
    requests     one input, its options, and in the end its answers
    tracks       the search of one request inside a batch; its kinds: `sampling`, `beam`
    reranking    which of several answers is best: MMI and IDF
    batch        the tracks of many requests, which step through the decoder together
    engine       continuous batching: requests join and leave a running batch between steps
    over_memory  `search` and `stream`, for a decoder and inputs that are encoded already

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
    from regard.search.hypotheses import BeamNode as BeamNode
    from regard.search.hypotheses import Hypothesis as Hypothesis
    from regard.search.hypotheses import SpecialTokens as SpecialTokens
    from regard.search.over_memory import search as search
    from regard.search.over_memory import stream as stream
    from regard.search.requests import Outputs as Outputs
    from regard.search.requests import Request as Request
    from regard.search.requests import StreamedToken as StreamedToken

_HOMES = {
    "BeamNode": "hypotheses",
    "Engine": "engine",
    "Hypothesis": "hypotheses",
    "Outputs": "requests",
    "Request": "requests",
    "SpecialTokens": "hypotheses",
    "StreamedToken": "requests",
    "search": "over_memory",
    "seeds_of": "choice",
    "stream": "over_memory",
}

__all__ = [
    "BeamNode",
    "Engine",
    "Hypothesis",
    "Options",
    "Outputs",
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
