"""Requests: one input, how to answer it, and what has come of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from regard.search.choice import uniforms
from regard.search.hypotheses import Hypothesis, SpecialTokens
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

    def read(
        self,
        raw: Shaped[Tensor, "B ..."],
        mask: Bool[Tensor, "B S"],
        *,
        capture: Capture = "none",
    ) -> Memory: ...


class StreamedToken(NamedTuple):
    """A token of an answer, as soon as it is certain."""

    token: int
    logprob: float
    weights: Float[Tensor, "H S"] | None


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
        *,
        seed: int | None,
        weights: bool,
        scores: bool,
        alternatives: int,
        capture: Capture,
        stream: bool,
        on_token: Callable[[StreamedToken], None] | None,
    ):
        self.source = source
        self.options = options
        self.special_tokens = special_tokens
        self.draws = None
        if seed is not None:
            self.draws = uniforms([seed], options.candidates, options.max_new_tokens)
        self.wants_weights = weights
        self.wants_scores = scores or options.num_beams > 1 or options.candidates > 1
        self.alternatives = alternatives
        self.capture: Capture = capture
        self.streams = stream or on_token is not None
        self.on_token = on_token

        self.hypotheses: list[Hypothesis] = []
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
        return 2 * rows if self.subtracts_prior else rows

    @property
    def subtracts_prior(self) -> bool:
        """Whether MMI already applies during the search, which subtracts log p(token | nothing);
        otherwise it applies in re-ranking only."""
        return self.options.mmi_weight > 0 and self.options.mmi_steps > 0

    @property
    def one_answer(self) -> bool:
        """Whether only one answer is searched, so its tokens are certain when they are chosen."""
        return self.options.num_beams == 1 and self.options.candidates == 1

    def result(self) -> list[Hypothesis]:
        """The answers, best first. Raises the error if the request failed."""
        if self.error is not None:
            raise self.error
        return self.hypotheses

    def tokens(self) -> Iterator[StreamedToken]:
        """The tokens that have come since the last call."""
        while self._tokens:
            yield self._tokens.popleft()

    def push(self, token: StreamedToken) -> None:
        """Add a token of the answer to the stream."""
        self.token_count += 1
        if self.on_token is None:
            self._tokens.append(token)
        else:
            self.on_token(token)

    def finish(self, hypotheses: list[Hypothesis]) -> None:
        """End the request with its answers."""
        self.hypotheses = hypotheses
        self.done = True
        if self.streams and hypotheses:
            self._push_rest(hypotheses[0])

    def fail(self, error: Exception) -> None:
        """End the request with an error."""
        self.error = error
        self.done = True

    def _push_rest(self, best: Hypothesis) -> None:
        """Stream the tokens of the best answer that were not streamed during the search."""
        for t in range(self.token_count, len(best.tokens)):
            weights = None if best.weights is None else best.weights[t]
            self.push(StreamedToken(best.tokens[t], best.logprobs[t], weights))


class RawInput(NamedTuple):
    """An input that is not encoded yet, without padding: one row."""

    raw: Shaped[Tensor, "1 ..."]
    mask: Bool[Tensor, "1 S"]

    def read(self, model: Model, capture: Capture = "none") -> Memory:
        if capture == "none":
            return model.read(self.raw, self.mask)
        return model.read(self.raw, self.mask, capture=capture)


class ReadInput(NamedTuple):
    """An input that is encoded already: one row of a memory."""

    memory: Memory

    def read(self, model: Model, capture: Capture = "none") -> Memory:
        return self.memory


Input = RawInput | ReadInput
