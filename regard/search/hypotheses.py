"""Hypotheses: the answers that a search follows, and those it returns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from jaxtyping import Float
from torch import Tensor

from regard.values import CapturedAttention

Finish = Literal["stop", "length"]


@dataclass(frozen=True)
class SpecialTokens:
    """The tokens that start and end an answer, and those that may never be in one."""

    start: int
    end: int
    never: tuple[int, ...] = ()


@dataclass(frozen=True)
class Hypothesis:
    """A finished answer, without its special tokens.

    `logprobs`, `weights` and `alternatives` have one entry for each step of the decoder: one for
    each token, and one for the end token if the answer ended by it.
    """

    tokens: tuple[int, ...]
    score: float  # log-probability by the model, end token included
    rank: float  # the number it was ranked by; without MMI and IDF if it is the only candidate
    finish: Finish = "stop"  # it ended by its end token, or by max_new_tokens
    retrieved: bool = False  # it is a training answer that was retrieved
    logprobs: tuple[float, ...] = field(default=(), compare=False)  # of each step, by the model
    weights: Float[Tensor, "T H S"] | None = field(default=None, compare=False)
    # On request, the likeliest tokens of each step and their probabilities by the model:
    alternatives: tuple[tuple[tuple[int, float], ...], ...] | None = field(
        default=None, compare=False
    )
    # On request, the weights of every layer:
    attention: CapturedAttention | None = field(default=None, compare=False)


class Node(NamedTuple):
    """The last token of an unfinished hypothesis, linked to the tokens before it.

    Hypotheses that begin alike share their first nodes, so extending one copies nothing.
    """

    before: Node | None
    token: int
    logprob: float
    row: int  # the row of the batch that chose the token

    def path(self) -> list[Node]:
        """The nodes from the first token to this one."""
        return list(_backwards(self))[::-1]


def _backwards(node: Node | None) -> Iterator[Node]:
    while node is not None:
        yield node
        node = node.before


class BeamNode(NamedTuple):
    """A hypothesis that a beam search kept at one step."""

    step: int  # the number of its last token, from 0
    beam: int  # its row, from 0: the best hypothesis of the step has row 0
    parent: int | None  # the number of the node that it extends; None at the first step
    token: int
    logprob: float  # of the token, by the model
    score: float  # of the hypothesis: the sum of `logprob`
    ended: bool  # by the end token


@dataclass(frozen=True)
class Candidate:
    """A finished answer that is not ranked yet."""

    path: list[Node]  # end token included
    ended: bool  # True: by its end token, False: by max_new_tokens
    score: float  # the sum of log-probabilities by the model
    search_score: float  # the same sum after the logits processors, which beam search maximises

    @cached_property
    def tokens(self) -> tuple[int, ...]:
        """The tokens without the end token."""
        nodes = self.path[:-1] if self.ended else self.path
        return tuple(node.token for node in nodes)

    @property
    def length(self) -> int:
        """The number of tokens, end token included."""
        return len(self.path)
