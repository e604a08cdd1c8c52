"""The engine: requests that join and leave a running batch between steps.

Whatever the decoder and the options, a request's tokens are those it gets alone. Logits differ in
their last bits with the number of rows, so a choice that such a difference could change is not made
in the batch: the request is searched again in a batch of its own, in which the arithmetic does not
depend on other requests (`regard.search.choice`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from regard.errors import InputError
from regard.search.batch import Batch
from regard.search.beam import BeamSearch
from regard.search.choice import root_seed, seeds_of
from regard.search.hypotheses import Hypothesis, SpecialTokens
from regard.search.options import Options
from regard.search.requests import (
    Decoder,
    Input,
    Model,
    RawInput,
    ReadInput,
    Request,
    StreamedToken,
)
from regard.search.reranking import PriorScoring, distinct, ranked
from regard.search.sampling import Sampling
from regard.search.tracks import Track
from regard.values import Capture, Memory, State

ROWS = 64  # of the batch
JOINING = 16  # requests that join a running batch at once
PATIENCE = 4  # steps that a request waits for others to join with it


class Engine:
    """Answers requests in one batch, which they join and leave between steps.

    model    what reads the inputs and decodes the answers
    nothing  gives an empty input (raw, mask); needed for `mmi_weight`
    rows     the most rows of the batch. A request has one for each beam or candidate, twice as many
             while MMI applies; one that has more than that runs alone
    joining  the most requests that join a running batch between two steps, so that those under way
             do not wait long for the inputs of new ones to be read
    device   where the model is: inputs are moved there; by default they are there already

    `submit` and `cancel` may be called from other threads than the one that calls `step`.

    >>> engine = Engine(bot.model, bot.task.special_tokens)  # doctest: +SKIP
    >>> requests = [engine.submit(*bot.task.read([text]), options) for text in texts]
    ... # doctest: +SKIP
    >>> engine.run()  # doctest: +SKIP
    >>> [request.result()[0].tokens for request in requests]  # doctest: +SKIP
    """

    def __init__(
        self,
        model: Model,
        special_tokens: SpecialTokens,
        *,
        nothing: Callable[[], tuple[Tensor, Tensor]] | None = None,
        rows: int = ROWS,
        joining: int = JOINING,
        device: torch.device | None = None,
    ):
        self.model = model
        self.special_tokens = special_tokens
        self.max_rows = rows
        self.joining = joining
        self.device = device
        self._nothing = nothing
        self._prior: Memory | None = None  # of the empty prompt
        self._waiting: deque[Request] = deque()
        self._steps_waited = 0
        self._any_cancelled = False
        self._batch = Batch(model.decoder, special_tokens, check=True)
        self._alone: list[Batch] = []  # requests that are searched in a batch of their own

    # --- what a caller does ---

    def submit(
        self,
        raw: Shaped[Tensor, "B ..."],
        mask: Bool[Tensor, "B S"],
        options: Options,
        *,
        seed: int | None = None,
        weights: bool = True,
        scores: bool = True,
        alternatives: int = 0,
        capture: Capture = "none",
        stream: bool = False,
        on_token: Callable[[StreamedToken], None] | None = None,
    ) -> Request:
        """Add a request, which joins the batch at the next step in which there is room.

        raw, mask     one input as the model's frontend reads it: one row
        seed          of its draws; by default a function of `options.seed` and the input
        weights       whether answers have attention weights, (T, H, S) each
        scores        whether a single answer has a score, which costs a pass over the vocabulary at
                      each step
        alternatives  how many of the likeliest tokens are returned for each step
        capture       "cross" or "all": answers have the attention of every layer. The request is
                      then searched in a batch of its own
        stream        whether `request.tokens()` gives the tokens as they come
        on_token      is called with each token of the best answer as soon as it is certain
        """
        if len(raw) != 1 or len(mask) != 1:
            raise InputError("a request has one input", where="submit", got=f"{len(raw)} rows")
        if seed is None and options.do_sample:
            (seed,) = seeds_of(options, [_content(raw, mask)]) or [None]
        return self._submit(
            self._input(raw, mask),
            options,
            seed=seed,
            weights=weights,
            scores=scores,
            alternatives=alternatives,
            capture=capture,
            stream=stream,
            on_token=on_token,
        )

    def cancel(self, request: Request) -> None:
        """End a request without an answer; its rows leave before the next step."""
        if not request.done:
            request.cancelled = True
            request.done = True
            self._any_cancelled = True

    @property
    def busy(self) -> bool:
        """Whether a request is waiting or under way."""
        return bool(self._waiting or self._batch.tracks or self._alone)

    @property
    def rows(self) -> int:
        """The rows that are under way."""
        return self._batch.rows + sum(batch.rows for batch in self._alone)

    @torch.inference_mode()
    def step(self) -> None:
        """Let waiting requests join, then one step of the decoder for all."""
        self._step_all()

    def _step_all(self) -> None:
        if self._any_cancelled:
            self._drop_cancelled()
        if self._waiting:
            self._admit()
        for batch in (self._batch, *self._alone):
            if batch.tracks:
                self._step(batch)
        if self._alone:
            self._alone = [batch for batch in self._alone if batch.tracks]

    @torch.inference_mode()
    def run(self) -> None:
        """Step until every request has ended."""
        while self.busy:
            self._step_all()

    def stream(self, request: Request) -> Iterator[StreamedToken]:
        """The tokens of a request's best answer as they come, stepping the engine as needed. With
        beams or several candidates they come all at once, when the search has ended."""
        while True:
            yield from request.tokens()
            if request.done:
                request.result()
                return
            self.step()

    # --- how requests join ---

    def _submit(
        self,
        source: Input,
        options: Options,
        *,
        seed: int | None,
        weights: bool = True,
        scores: bool = True,
        alternatives: int = 0,
        capture: Capture = "none",
        stream: bool = False,
        on_token: Callable[[StreamedToken], None] | None = None,
    ) -> Request:
        if options.mmi_weight and self._nothing is None and self._prior is None:
            raise InputError(
                "mmi_weight needs as prior the memory of one empty prompt",
                where="search",
                got="none",
            )
        if options.idf_weight and self.model.idf is None:
            raise InputError("idf_weight needs the idf of each token", where="search", got="none")
        request = Request(
            source,
            options,
            self.special_tokens,
            seed=seed,
            weights=weights,
            scores=scores,
            alternatives=alternatives,
            capture=capture,
            stream=stream,
            on_token=on_token,
        )
        self._waiting.append(request)
        return request

    def _input(self, raw: Tensor, mask: Tensor) -> RawInput:
        if self.device is None:
            return RawInput(raw, mask)
        return RawInput(raw.to(self.device), mask.to(self.device))

    def _admit(self) -> None:
        """Let waiting requests join for which there is room, in the order they came.

        A join copies the state of the batch, so they join several at a time, unless the first has
        waited for some steps.
        """
        joining = self._next_in_line()
        enough = 8 * sum(request.rows for request in joining) >= self.max_rows
        patient = self._batch.tracks and self._steps_waited < PATIENCE
        if not joining or (patient and not enough):
            self._steps_waited += bool(joining)
            return
        self._steps_waited = 0
        for _ in joining:
            self._waiting.popleft()
        if joining[0].capture != "none":
            self._search_alone(joining[0])
            return
        try:
            memory = _read_together(self.model, [request.source for request in joining])
            self._batch.drop_idle_rows()
            self._join(self._batch, memory, joining)
        except Exception as error:
            self._separate(joining, error)

    def _next_in_line(self) -> list[Request]:
        """The waiting requests that may join now."""
        while self._waiting and self._waiting[0].done:  # cancelled
            self._waiting.popleft()
        rows = self.rows - self._batch.idle_rows
        most = self.joining if rows else self.max_rows
        joining: list[Request] = []
        for request in islice(self._waiting, most):
            if request.done or (rows and rows + request.rows > self.max_rows):
                break
            if joining and request.capture != "none":
                break
            rows += request.rows
            joining.append(request)
            if request.capture != "none":
                break
        return joining

    def _join(self, batch: Batch, memory: Memory, requests: Sequence[Request]) -> None:
        """Begin the search of requests whose inputs were read."""
        tracks = [_track(request) for request in requests]
        state = self._start(memory, batch.capture)
        copies = [row for row, track in enumerate(tracks) for _ in range(track.width)]
        if len(copies) > len(tracks):
            state = state.rows(torch.tensor(copies, device=state.position.device))
        prior_rows = sum(track.width for track in tracks if track.prior_rows)
        if prior_rows:
            state = state.join(self._prior_state(prior_rows, batch.capture))
        batch.join(state, tracks)

    def _start(self, memory: Memory, capture: Capture) -> State:
        if capture == "none":
            return self.model.decoder.start(memory)
        return self.model.decoder.start(memory, capture=capture)

    def _prior_state(self, rows: int, capture: Capture) -> State:
        """The state of the empty prompt before its first token, for so many rows."""
        if self._prior is None:
            assert self._nothing is not None
            self._prior = self._input(*self._nothing()).read(self.model)
        state = self._start(self._prior, capture)
        return state.rows(state.position.new_zeros(rows))

    # --- a step, and what comes of it ---

    def _step(self, batch: Batch) -> None:
        try:
            leaving = batch.step()
            self._stream_tokens(batch)
            following = [self._finish(batch, track) for track in leaving]
            for track in leaving:
                track.end()
            batch.settle()
            for track in following:
                if track is not None:
                    batch.join(self._prior_state(track.width, batch.capture), [track])
        except Exception as error:
            running = [track.request for track in batch.tracks if not track.request.done]
            batch.clear()
            self._separate(running, error)

    def _stream_tokens(self, batch: Batch) -> None:
        """Pass on the tokens of requests with one answer, which are certain at once."""
        for track in batch.tracks:
            request = track.request
            if not request.streams or not request.one_answer or not track.active or track.close:
                continue
            node = track.nodes[0]
            if node is None or track.steps <= request.token_count:
                continue  # searched again: these tokens were passed on before
            if node.token != self.special_tokens.end:
                weights = batch.weights(track, track.steps - 1, node.row)
                try:
                    request.push(StreamedToken(node.token, node.logprob, weights))
                except Exception as error:  # of the caller's function
                    self._any_cancelled = True
                    request.fail(error)

    def _finish(self, batch: Batch, track: Track) -> Track | None:
        """Take the results of a track that leaves the batch; or the track that follows it there."""
        request = track.request
        if request.done:
            return None
        if track.close:
            self._search_alone(request)
            return None

        if isinstance(track, PriorScoring):
            hypotheses = track.hypotheses
            candidates = track.candidates
            prior_scores = track.scores()
        else:
            candidates = distinct(track.candidates)
            hypotheses = {
                candidate.tokens: batch.hypothesis(track, candidate) for candidate in candidates
            }
            prior_scores = {}
            if request.options.mmi_weight and len(candidates) > 1:
                return PriorScoring(request, candidates, hypotheses)

        order, close = ranked(candidates, request.options, prior_scores, self.model.idf)
        if close and batch.check:
            self._search_alone(request)
            return None
        request.finish(
            [replace(hypotheses[candidate.tokens], rank=rank) for rank, candidate in order]
        )
        return None

    def _search_alone(self, request: Request) -> None:
        """Search a request from the start in a batch of its own."""
        capture = request.capture
        batch = Batch(self.model.decoder, self.special_tokens, check=False, capture=capture)
        try:
            memory = request.source.read(self.model, capture)
            batch.encoder_attention = memory.attention
            self._join(batch, memory, [request])
        except Exception as error:
            request.fail(error)
        else:
            self._alone.append(batch)

    def _separate(self, requests: Sequence[Request], error: Exception) -> None:
        """After an error in a batch: it is the error of a single request; several go on in batches
        of their own, so that a failing request fails alone."""
        if len(requests) == 1:
            requests[0].fail(error)
            return
        for request in requests:
            self._search_alone(request)

    def _drop_cancelled(self) -> None:
        self._any_cancelled = False
        for batch in (self._batch, *self._alone):
            for track in batch.tracks:
                if track.active and track.request.done:
                    track.end()
            if not any(track.active for track in batch.tracks):
                batch.clear()
        self._alone = [batch for batch in self._alone if batch.tracks]


def _track(request: Request) -> Track:
    return BeamSearch(request) if request.options.num_beams > 1 else Sampling(request)


def _read_together(model: Model, sources: Sequence[Input]) -> Memory:
    """The memory of several inputs, one row for each."""
    if len(sources) == 1:
        return sources[0].read(model)
    if all(isinstance(source, RawInput) for source in sources):
        raw = _stacked([source.raw for source in sources if isinstance(source, RawInput)])
        mask = _stacked([source.mask for source in sources if isinstance(source, RawInput)])
        return model.read(raw, mask)
    memories = [source.read(model) for source in sources]
    return Memory(
        states=_stacked([memory.states for memory in memories]),
        mask=_stacked([memory.mask for memory in memories]),
        summary=torch.cat([memory.summary for memory in memories]),
        grid=memories[0].grid,
    )


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Rows of different length as one tensor; shorter ones are padded with zeros on axis 1."""
    length = max(tensor.shape[1] for tensor in tensors)
    padded = []
    for tensor in tensors:
        missing = length - tensor.shape[1]
        if missing:
            padding = tensor.new_zeros(1, missing, *tensor.shape[2:])
            tensor = torch.cat([tensor, padding], dim=1)
        padded.append(tensor)
    return torch.cat(padded)


def _content(raw: Tensor, mask: Tensor) -> bytes:
    """The bytes of an input as the model reads it, without padding."""
    padded = raw.shape[:2] == mask.shape  # tokens and samples; pictures have one size
    return (raw[mask] if padded else raw).cpu().numpy().tobytes()


# --- search and stream over a memory ---


class _ReadModel:
    """A decoder whose inputs are memories, as a model for an engine."""

    def __init__(self, decoder: Decoder, idf: Float[Tensor, " V"] | None, prior: Memory | None):
        self.decoder = decoder
        self.idf = idf
        self.prior = prior

    def read(self, raw: Tensor, mask: Tensor, *, capture: Capture = "none") -> Memory:
        assert self.prior is not None
        return self.prior


def search(
    decoder: Decoder,
    memory: Memory,
    special_tokens: SpecialTokens,
    options: Options,
    *,
    prior: Memory | None = None,
    idf: Float[Tensor, " V"] | None = None,
    seeds: Sequence[int] | None = None,
    weights: bool = True,
    scores: bool = True,
) -> list[list[Hypothesis]]:
    """For each row of a memory its answers, best first: one, or up to `options.candidates`.

    prior    the memory of an empty prompt, one row; needed for mmi_weight
    idf      the inverse document frequency of each token; needed for idf_weight
    seeds    one per row, for sampling: `seeds_of` gives an input the same draws in any batch.
             By default row r of a batch draws from (options.seed, r)
    weights  False: attention weights are not recorded, which saves (T, H, S) an answer
    scores   False: the score of a single greedy or sampled answer is 0, which saves a pass over
             the vocabulary at each step
    """
    engine, requests = _requests(
        decoder,
        memory,
        special_tokens,
        options,
        prior=prior,
        idf=idf,
        seeds=seeds,
        weights=weights,
        scores=scores,
        stream=False,
    )
    engine.run()
    return [request.result() for request in requests]


def stream(
    decoder: Decoder,
    memory: Memory,
    special_tokens: SpecialTokens,
    options: Options,
    *,
    prior: Memory | None = None,
    idf: Float[Tensor, " V"] | None = None,
    seeds: Sequence[int] | None = None,
) -> Iterator[StreamedToken]:
    """The best answer to a memory of one row, token by token. It is the first that `search`
    returns."""
    if memory.mask.shape[0] != 1:
        raise InputError(
            "a stream reads one source at a time",
            where="search",
            got=f"{memory.mask.shape[0]} rows",
        )
    engine, (request,) = _requests(
        decoder,
        memory,
        special_tokens,
        options,
        prior=prior,
        idf=idf,
        seeds=seeds,
        weights=True,
        scores=True,
        stream=True,
    )
    return engine.stream(request)


def _requests(
    decoder: Decoder,
    memory: Memory,
    special_tokens: SpecialTokens,
    options: Options,
    *,
    prior: Memory | None,
    idf: Float[Tensor, " V"] | None,
    seeds: Sequence[int] | None,
    weights: bool,
    scores: bool,
    stream: bool,
) -> tuple[Engine, list[Request]]:
    """An engine with a request for each row of a memory."""
    size = memory.mask.shape[0]
    if options.mmi_weight and prior is not None and prior.mask.shape[0] != 1:
        raise InputError(
            "mmi_weight needs as prior the memory of one empty prompt",
            where="search",
            got=f"{prior.mask.shape[0]} rows",
        )
    if seeds is not None and len(seeds) != size:
        raise InputError(
            f"seeds must be one a row of the memory, {size}", where="search", got=len(seeds)
        )
    if options.do_sample and seeds is None:
        seed = root_seed(options)
        seeds = [(seed * 0x9E3779B1 + row) % 2**32 for row in range(size)]

    nothing = None if prior is None else lambda: (prior.states, prior.mask)
    model = _ReadModel(decoder, idf, prior)
    rows = max(1, 4 * size * max(options.num_beams, options.candidates))  # all at once
    engine = Engine(model, special_tokens, nothing=nothing, rows=rows, joining=rows)
    requests = []
    for row in range(size):
        own = memory.rows(torch.tensor([row], device=memory.mask.device))
        seed = None if not options.do_sample or seeds is None else seeds[row]
        requests.append(
            engine._submit(
                ReadInput(own), options, seed=seed, weights=weights, scores=scores, stream=stream
            )
        )
    return engine, requests
