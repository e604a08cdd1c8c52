"""The engine: continuous batching. Requests join and leave a running batch between steps.

    Request   one input, its options, and in the end its answers
    Track     the search of one request in a batch: its beams or samples, each a row of the batch
    Batch     several tracks that step through the decoder together

Whatever the decoder and the options, a request gets the tokens that it would get alone. The last
bits of logits depend on the number of rows in the batch. A choice that such a difference could
change is called close (`regard.search.choice`), and is not made in a batch of several requests: the
request is searched again in a batch of its own, whose arithmetic does not depend on other requests.
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

ROWS = 64  # the most rows of the batch
JOINING = 16  # the most requests that join a running batch at once
PATIENCE = 4  # the most steps that a request waits for others to join with it


class Engine:
    """Answers requests in one batch, which they join and leave between steps.

    model    encodes the inputs (`read`) and decodes the answers
    nothing  returns the empty prompt as an input (raw, mask); needed for `mmi_weight`
    rows     the most rows of the batch. A request has one for each beam or candidate, twice as many
             while MMI applies; a request with more rows than this runs alone
    joining  the most requests that join a running batch between two steps: the others wait while
             the inputs of the new ones are encoded
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
        self._prior: Memory | None = None  # the memory of the empty prompt, for MMI
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

        raw, mask     one input of the model's frontend, a batch of one row: token ids, audio
                      samples or pixels, and False at padding
        seed          the seed of sampling; by default a function of `options.seed` and the input
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
        """The number of rows in all batches."""
        return self._batch.rows + sum(batch.rows for batch in self._alone)

    @torch.inference_mode()
    def step(self) -> None:
        """Let waiting requests join, then make one step of the decoder for all."""
        self._step_all()

    def _step_all(self) -> None:
        """`step`, for a caller that is in inference mode already."""
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

        A join copies the state of the running batch. So requests wait, for at most PATIENCE steps,
        until those that join together have an eighth of its rows.
        """
        joining = self._next_in_line()
        if not joining:
            return
        enough = 8 * sum(request.rows for request in joining) >= self.max_rows
        may_wait = self._batch.tracks and self._steps_waited < PATIENCE
        if may_wait and not enough:
            self._steps_waited += 1
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
        """The waiting requests that may join now: several that share the batch, or one that
        captures attention and so has a batch of its own."""
        while self._waiting and self._waiting[0].done:  # cancelled
            self._waiting.popleft()
        rows = self.rows - self._batch.idle_rows  # without rows that can be dropped
        max_requests = self.joining if rows else self.max_rows
        joining: list[Request] = []
        for request in list(islice(self._waiting, max_requests)):  # others may submit meanwhile
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
        """Begin the search of requests in a batch. `memory` has one row for each of them."""
        tracks = [_track(request) for request in requests]
        state = self._start(memory, batch.capture)
        # A track of several beams or samples has as many rows, all with the same memory.
        copies = [row for row, track in enumerate(tracks) for _ in range(track.width)]
        if len(copies) > len(tracks):
            state = state.rows(torch.tensor(copies, device=state.position.device))
        prior_rows = sum(track.width for track in tracks if track.prior_rows)
        if prior_rows:
            state = state.join(self._prior_state(prior_rows, batch.capture))
        batch.join(state, tracks)

    def _start(self, memory: Memory, capture: Capture) -> State:
        """The decoder's state before the first token."""
        if capture == "none":
            return self.model.decoder.start(memory)
        return self.model.decoder.start(memory, capture=capture)

    def _prior_state(self, rows: int, capture: Capture) -> State:
        """The decoder's state before the first token given the empty prompt, in `rows` rows."""
        if self._prior is None:
            assert self._nothing is not None
            self._prior = self._input(*self._nothing()).read(self.model)
        state = self._start(self._prior, capture)
        return state.rows(state.position.new_zeros(rows))

    # --- a step, and what comes of it ---

    def _step(self, batch: Batch) -> None:
        """One step of a batch. Tracks that have ended leave it; their requests get their answers,
        or go on with another track."""
        try:
            leaving = batch.step()
            self._stream_tokens(batch)
            scorings = [self._finish(batch, track) for track in leaving]
            for track in leaving:
                track.end()
            batch.settle()
            for scoring in scorings:
                if scoring is not None:
                    state = self._prior_state(scoring.width, batch.capture)
                    batch.join(state, [scoring])
        except Exception as error:
            running = [track.request for track in batch.tracks if not track.request.done]
            batch.clear()
            self._separate(running, error)

    def _stream_tokens(self, batch: Batch) -> None:
        """Stream the last token of each request with one answer, where it is certain at once."""
        for track in batch.tracks:
            request = track.request
            if not request.streams or not request.one_answer or not track.active or track.close:
                continue
            node = track.nodes[0]
            if node is None or track.steps <= request.token_count:
                continue  # searched again: these tokens were streamed before
            if node.token != self.special_tokens.end:
                weights = batch.weights(track, track.steps - 1, node.row)
                try:
                    request.push(StreamedToken(node.token, node.logprob, weights))
                except Exception as error:  # of the caller's function
                    self._any_cancelled = True
                    request.fail(error)

    def _finish(self, batch: Batch, track: Track) -> PriorScoring | None:
        """Give a request the answers of its track, which leaves the batch. If MMI re-ranks them,
        return the track that first scores them without the prompt; `_finish` is called again when
        that leaves. If a choice was close, search the request again alone."""
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
        """After an error in a batch: the only request of the batch fails; several are searched
        again, each in a batch of its own, so that only those fail that cause an error."""
        if len(requests) == 1:
            requests[0].fail(error)
            return
        for request in requests:
            self._search_alone(request)

    def _drop_cancelled(self) -> None:
        """End the tracks of requests that were cancelled, or failed while streaming."""
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
    """The memory of several inputs, one row for each. Inputs that are not encoded yet are encoded
    in one pass."""
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
    has_padding = raw.shape[:2] == mask.shape  # of texts and sounds; pictures have one size
    content = raw[mask] if has_padding else raw
    return content.cpu().numpy().tobytes()


# --- search and stream over a memory ---


class _ReadModel:
    """A model for an engine whose inputs are encoded already, from a decoder alone.

    The only input that an engine then reads is the empty prompt, so `read` returns its memory.
    """

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
    seeds    one per row, for sampling. With `seeds_of` an input gets the same random numbers in any
             batch; by default they depend on `options.seed` and the number of the row
    weights  whether attention weights are recorded, (T, H, S) for each answer
    scores   whether a single greedy or sampled answer has a score, which costs a pass over the
             vocabulary at each step; else it is 0
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
        # Multiplied, so that row 1 with seed 0 is not row 0 with seed 1.
        seeds = [(seed * 0x9E3779B1 + row) % 2**32 for row in range(size)]

    nothing = None if prior is None else lambda: (prior.states, prior.mask)
    model = _ReadModel(decoder, idf, prior)
    # Room for all requests at once, with MMI too.
    rows = max(1, 4 * size * max(options.num_beams, options.candidates))
    engine = Engine(model, special_tokens, nothing=nothing, rows=rows, joining=rows)
    requests = []
    for row in range(size):
        source = ReadInput(memory.rows(torch.tensor([row], device=memory.mask.device)))
        seed = None if not options.do_sample or seeds is None else seeds[row]
        requests.append(
            engine._submit(
                source, options, seed=seed, weights=weights, scores=scores, stream=stream
            )
        )
    return engine, requests
