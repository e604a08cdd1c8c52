"""Requests: one input, how to answer it, and what has come of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, get_args, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from regard.errors import InputError
from regard.search.choice import uniforms
from regard.search.hypotheses import BeamNode, Hypothesis, SpecialTokens
from regard.search.options import Options
from regard.values import Capture, Memory, State, Step


@runtime_checkable
class Decoder(Protocol):
    """The part of a decoder that search uses."""

    def start(self, memory: Memory, *, capture: Capture = "none") -> State: ...

    def step(
        self, token: Int[Tensor, " B"], state: State, *, capture: Capture = "none"
    ) -> Step: ...


@runtime_checkable
class Model(Protocol):
    """The part of a model that search uses."""

    @property
    def decoder(self) -> Decoder: ...

    @property
    def idf(self) -> Float[Tensor, " V"] | None: ...

    def encode(
        self,
        raw: Shaped[Tensor, "B ..."],
        mask: Bool[Tensor, "B S"],
        *,
        capture: Capture = "none",
    ) -> Memory: ...


class RetrievedAnswer(NamedTuple):
    """A training answer that is a candidate."""

    tokens: tuple[int, ...]
    similarity: float  # of its prompt to the given one


@runtime_checkable
class Retriever(Protocol):
    """Finds training answers."""

    def nearest(
        self, prompt: np.ndarray, count: int, *, shortest: int, longest: int
    ) -> list[RetrievedAnswer]:
        """Distinct answers of `shortest` to `longest` tokens, whose prompts are most like these
        tokens, best first."""
        ...


class StreamedToken(NamedTuple):
    """A token of an answer, as soon as it is certain."""

    token: int
    logprob: float
    weights: Float[Tensor, "H S"] | None
    alternatives: tuple[tuple[int, float], ...] | None = None  # likeliest tokens, probabilities


@dataclass(frozen=True)
class Outputs:
    """What a request returns beside the tokens of its answers.

    weights       whether answers have attention weights, (T, H, S) each
    scores        whether a single answer has a score, which costs a pass over the vocabulary at
                  each step
    alternatives  how many of the likeliest tokens are returned for each step
    capture       "cross" or "all": answers have the attention of every layer. The request is then
                  searched in a batch of its own
    beam          whether `request.beam` records the hypotheses that a beam search keeps
    stream        whether `request.tokens()` gives the tokens as they come, with their weights if
                  `weights`
    on_token      is called with each token of the best answer as soon as it is certain
    """

    weights: bool = True
    scores: bool = True
    alternatives: int = 0
    capture: Capture = "none"
    beam: bool = False
    stream: bool = False
    on_token: Callable[[StreamedToken], None] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.alternatives, bool) or not isinstance(self.alternatives, int):
            wrong = True
        else:
            wrong = self.alternatives < 0
        if wrong:
            raise InputError(
                "must be a whole number >= 0", where="alternatives", got=repr(self.alternatives)
            )
        if self.capture not in get_args(Capture):
            known = ", ".join(f'"{name}"' for name in get_args(Capture))
            raise InputError(
                "no such capture", where="capture", got=repr(self.capture), hint=f"one of {known}"
            )


class Request:
    """One input of an engine, and its answers when they are found.

    `done` says that nothing more will come: then `hypotheses` are the answers, best first, unless
    the request was `cancelled` or `error` says why it failed.
    """

    def __init__(
        self,
        source: Input,
        options: Options,
        special_tokens: SpecialTokens,
        outputs: Outputs,
        *,
        seed: int | None,
        prefix: Sequence[int] = (),
        retrieved: Sequence[RetrievedAnswer] = (),
    ):
        self.source = source
        self.options = options
        self.group = options.group  # computed once: requests are grouped again and again
        self.special_tokens = special_tokens
        self.outputs = outputs
        self.prefix = tuple(prefix)  # the tokens that every answer begins with
        self.retrieved = tuple(retrieved)  # training answers, which are candidates too
        self.similarity = {answer.tokens: answer.similarity for answer in retrieved}
        self.draws = None
        if seed is not None:
            self.draws = uniforms([seed], options.candidates, options.max_new_tokens)
        self.wants_scores = outputs.scores or not self.one_answer
        self.streams = outputs.stream or outputs.on_token is not None
        self.streams_at_once = self.streams and self.one_answer  # not only when it has ended

        self.hypotheses: list[Hypothesis] = []
        self.beam: list[BeamNode] = []  # if `outputs.beam`: step by step, best first
        self.passes = 0  # later requests that have joined before it
        self.has_begun = False  # a token has been searched
        self.done = False
        self.cancelled = False
        self.error: Exception | None = None
        self.token_count = 0  # tokens streamed so far
        self._tokens: deque[StreamedToken] = deque()  # streamed, but not read yet

    @property
    def rows(self) -> int:
        """The number of rows it needs in a batch."""
        options = self.options
        rows = options.num_beams if options.num_beams > 1 else options.candidates
        rows += len(self.retrieved)
        return 2 * rows if self.subtracts_prior else rows

    @property
    def subtracts_prior(self) -> bool:
        """Whether MMI already applies during the search, which subtracts log p(token | nothing);
        otherwise it applies in re-ranking only."""
        return self.options.mmi_weight > 0 and self.options.mmi_steps > 0

    @property
    def one_answer(self) -> bool:
        """Whether only one answer is searched, so its tokens are certain when they are chosen."""
        is_one = self.options.num_beams == 1 and self.options.candidates == 1
        return is_one and not self.retrieved

    def result(self) -> list[Hypothesis]:
        """The answers, best first. Raises the error if the request failed."""
        if self.error is not None:
            raise self.error
        return self.hypotheses

    @property
    def has_tokens(self) -> bool:
        """Whether tokens have come since the last call of `tokens`."""
        return bool(self._tokens)

    def tokens(self) -> Iterator[StreamedToken]:
        """The tokens that have come since the last call."""
        while self._tokens:
            yield self._tokens.popleft()

    def push(self, token: StreamedToken) -> None:
        """Add a token of the answer to the stream."""
        self.token_count += 1
        if self.outputs.on_token is None:
            self._tokens.append(token)
        else:
            self.outputs.on_token(token)

    def finish(self, hypotheses: list[Hypothesis]) -> None:
        """End the request with its answers."""
        self.hypotheses = hypotheses
        self.done = True
        if self.streams and hypotheses:
            self._push_rest(hypotheses[0])

    def stream_token(self, token: StreamedToken) -> None:
        """Stream a token. If the caller's function fails, so does the request."""
        try:
            self.push(token)
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """End the request with an error."""
        self.error = error
        self.done = True

    def _push_rest(self, best: Hypothesis) -> None:
        """Stream the tokens of the best answer that were not streamed during the search."""
        for t in range(self.token_count, len(best.tokens)):
            weights = None if best.weights is None else best.weights[t]
            alternatives = None if best.alternatives is None else best.alternatives[t]
            token = StreamedToken(best.tokens[t], best.logprobs[t], weights, alternatives)
            self.stream_token(token)
            if self.error is not None:
                return


@dataclass(eq=False)
class RawInput:
    """An input that is not encoded yet, without padding: one row. Several requests may share it:
    then it is encoded once, for the batch of all requests (`memory`)."""

    raw: Shaped[Tensor, "1 ..."]
    mask: Bool[Tensor, "1 S"]
    shared: bool = False
    memory: Memory | None = None

    def encode(self, model: Model, capture: Capture = "none") -> Memory:
        if capture == "none":
            return model.encode(self.raw, self.mask)
        return model.encode(self.raw, self.mask, capture=capture)


@dataclass(eq=False)
class EncodedInput:
    """An input that is encoded already: one row of a memory."""

    memory: Memory

    def encode(self, model: Model, capture: Capture = "none") -> Memory:
        return self.memory


Input = RawInput | EncodedInput
