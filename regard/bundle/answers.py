"""Answers and pieces of answers, from the hypotheses and tokens of a search."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from regard.search import BeamNode, Hypothesis, StreamedToken
from regard.tasks.task import Task
from regard.tokenizers import END, PAD, START, UNKNOWN, Tokenizer
from regard.values import END_NAME, Alternative, Answer, Piece

SPECIAL_NAMES = {PAD: "(padding)", START: "(start)", END: END_NAME, UNKNOWN: "(unknown)"}


class Stream(Iterator[Piece]):
    """The pieces of an answer as they come, and after the last of them the whole `answer`.

    >>> stream = bot.stream("Tell me a joke")  # doctest: +SKIP
    >>> for piece in stream:  # doctest: +SKIP
    ...     print(piece, end="", flush=True)
    >>> stream.answer.score  # doctest: +SKIP
    -3.1
    """

    def __init__(self, pieces: Generator[Piece, None, Answer]):
        self.answer: Answer | None = None  # until all pieces have come
        self._pieces = pieces

    def __next__(self) -> Piece:
        try:
            return next(self._pieces)
        except StopIteration as end:
            if end.value is not None:
                self.answer = end.value
            raise StopIteration from None


class Trace(NamedTuple):
    """How one input was answered: the answers, best first, with the attention of every layer, and
    the hypotheses that a beam search kept at each step."""

    answers: list[Answer]
    beam: tuple[BeamNode, ...]


def answers_from(
    task: Task,
    grid: tuple[int, int] | None,
    row: np.ndarray,
    hypotheses: Sequence[Hypothesis],
) -> list[Answer]:
    """The answers to one input, whose places may form a grid."""
    weights = hypotheses[0].weights
    places = None if weights is None else weights.shape[-1]
    names = task.place_names(row, places, grid)
    answers = []
    for hypothesis in hypotheses:
        if not task.answers_are_text:
            hypothesis = _without_end(hypothesis)
        pieces = tuple(task.answer_tokenizer.pieces(hypothesis.tokens))
        answer = Answer(
            tokens=hypothesis.tokens,
            text="".join(pieces),
            score=hypothesis.score,
            pieces=pieces,
            logprobs=hypothesis.logprobs,
            finish=hypothesis.finish,
            weights=None if hypothesis.weights is None else hypothesis.weights.cpu(),
            place_names=names,
            grid=grid,
            alternatives=_alternatives(task, hypothesis),
            attention=None if hypothesis.attention is None else hypothesis.attention.cpu(),
            rank=hypothesis.rank,
            retrieved=hypothesis.retrieved,
        )
        answers.append(answer)
    return answers


def _alternatives(task: Task, hypothesis: Hypothesis) -> tuple[tuple[Alternative, ...], ...] | None:
    """The alternatives at each step, with the text that each would append there, or the name of a
    special token. Those of a label are labels."""
    if hypothesis.alternatives is None:
        return None
    return tuple(
        alternatives_after(task, hypothesis.tokens[:t], step)
        for t, step in enumerate(hypothesis.alternatives)
    )


def alternatives_after(
    task: Task, tokens: Sequence[int], likeliest: Sequence[tuple[int, float]]
) -> tuple[Alternative, ...]:
    """The likeliest tokens after those of an answer so far, with the text that each would
    append."""
    decode = task.answer_tokenizer.decode
    length = len(decode(tokens))
    alternatives = []
    for token, probability in likeliest:
        if token in SPECIAL_NAMES and not task.answers_are_text:
            continue
        text = SPECIAL_NAMES.get(token) or decode([*tokens, token])[length:]
        alternatives.append(Alternative(token, text, probability))
    return tuple(alternatives)


def stream_pieces(
    tokenizer: Tokenizer,
    tokens: Generator[StreamedToken, None, Hypothesis],
    answer_of: Callable[[Hypothesis], Answer],
) -> Generator[Piece, None, Answer]:
    """The pieces of an answer whose tokens come one by one, then the answer."""
    waiting: list[StreamedToken] = []  # tokens that have no text yet
    best: Hypothesis | None = None

    def ids() -> Iterator[int]:
        nonlocal best
        while True:
            try:
                token = next(tokens)
            except StopIteration as end:
                best = end.value
                return
            waiting.append(token)
            yield token.token

    for text in tokenizer.pieces(ids()):
        if text:
            yield _piece(text, waiting)
            waiting.clear()
    assert best is not None
    answer = answer_of(best)
    count = len(answer.tokens) - len(waiting)
    if count < len(answer.logprobs):
        weights = None if answer.weights is None else answer.weights[count:]
        yield Piece("", answer.tokens[count:], answer.logprobs[count:], weights)
    return answer


def _piece(text: str, streamed: Sequence[StreamedToken]) -> Piece:
    tokens = tuple(step.token for step in streamed)
    logprobs = tuple(step.logprob for step in streamed)
    weights = [step.weights for step in streamed if step.weights is not None]
    return Piece(text, tokens, logprobs, torch.stack(weights).cpu() if weights else None)


def _without_end(hypothesis: Hypothesis) -> Hypothesis:
    """A label without the step after it, in which a classifier's end token is certain."""
    steps = len(hypothesis.tokens)
    weights, alternatives, attention = (
        hypothesis.weights,
        hypothesis.alternatives,
        hypothesis.attention,
    )
    return replace(
        hypothesis,
        logprobs=hypothesis.logprobs[:steps],
        weights=None if weights is None else weights[:steps],
        alternatives=None if alternatives is None else alternatives[:steps],
        attention=None if attention is None else attention.first_steps(steps),
    )
