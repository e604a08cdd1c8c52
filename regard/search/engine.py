"""The engine: continuous batching. Requests join and leave a running batch between steps.

    Request   one input, its options, and in the end its answers
    Track     the search of one request in a batch: its beams or samples, each a row of the batch
    Batch     several tracks that step through the decoder together

Whatever the decoder and the options, a request gets the tokens that it would get alone. The last
bits of logits depend on the number of rows in the batch. A choice that such a difference could
change is a near tie (`regard.search.choice`), and is not decided in a batch of several requests:
the request is searched again in a batch of its own, whose arithmetic does not depend on other
requests.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor

from regard.errors import BundleError, InputError, RegardError
from regard.search.batch import Batch
from regard.search.beam import BeamSearch
from regard.search.choice import seeds_of
from regard.search.hypotheses import Candidate, Node, SpecialTokens
from regard.search.options import Options
from regard.search.requests import (
    Input,
    Model,
    Outputs,
    RawInput,
    Request,
    RetrievedAnswer,
    Retriever,
    StreamedToken,
)
from regard.search.reranking import PriorScoring, distinct, ranked
from regard.search.sampling import Sampling
from regard.search.tracks import Track
from regard.values import Capture, Memory, State

MAX_ROWS = 64  # the most rows of all batches
MAX_JOINING = 16  # the most requests that join a running batch at once
PATIENCE = 4  # the most steps that a request waits for others to join with it
MAX_PASSES = 16  # the most requests that join before one that came earlier and needs more rows
LOOKAHEAD = 64  # waiting requests among which those are looked for that fit
# How long encoding may hold up a running batch, if more than one request joins: so many seconds, or
# as long as so many steps take, if that is more (on a slow or busy machine, where a join of a few
# requests takes longer than the seconds, the batch would never fill).
SLICE = 0.05
SLICE_STEPS = 4
DEFAULT_OUTPUTS = Outputs()


class Engine:
    """Answers requests in one batch, which they join and leave between steps.

    model         encodes the inputs (`encode`) and decodes the answers
    empty_prompt  returns the empty prompt as an input (raw, mask); needed for `mmi_weight`
    retriever     finds training answers; needed for `retrieved`
    max_rows      the most rows of all batches together. A request has one for each beam, candidate
                  and retrieved answer, twice as many while MMI applies; a request with more rows
                  than this runs while nothing else does. Of the requests behind one for which there
                  are too few rows, a few that fit may pass it; then it is next
    max_joining   the most requests that join a running batch between two steps: the others wait
                  while the inputs of the new ones are encoded. Fewer join if that would take longer
                  than a slice of time, as measured so far
    device        where the model is: inputs are moved there; by default they are there already

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
        empty_prompt: Callable[[], tuple[Tensor, Tensor]] | None = None,
        retriever: Retriever | None = None,
        max_rows: int = MAX_ROWS,
        max_joining: int = MAX_JOINING,
        device: torch.device | None = None,
    ):
        for name, size in (("max_rows", max_rows), ("max_joining", max_joining)):
            if not isinstance(size, int) or size < 1:
                raise InputError("must be a whole number >= 1", where=name, got=repr(size))
        self.model = model
        self.special_tokens = special_tokens
        self.max_rows = max_rows
        self.max_joining = max_joining
        self.device = device
        self._empty_prompt = empty_prompt
        self._retriever = retriever
        self._prior: Memory | None = None  # the memory of the empty prompt, for MMI
        self._waiting: deque[Request] = deque()
        self._submitting = threading.Lock()  # `_waiting` is replaced by another
        self._steps_waited = 0
        self._encoding_seconds = 0.0  # of one number of an input, by the last measurements
        self._step_seconds = 0.0  # of one step of the batch, by the last measurements
        self._any_cancelled = False
        self._batch = Batch(model.decoder, special_tokens, detect_ties=True)
        self._alone: list[Batch] = []  # requests that are searched in a batch of their own
        # Requests that have begun, and need other rows than they had, when there is room for them:
        self._scorings: deque[tuple[Batch, PriorScoring]] = deque()  # re-ranking, and its batch
        self._apart: deque[Request] = deque()  # to be searched in a batch of their own

    # --- what a caller does ---

    def submit(
        self,
        raw: Shaped[Tensor, "B ..."],
        mask: Bool[Tensor, "B S"],
        options: Options,
        *,
        seed: int | None = None,
        outputs: Outputs = DEFAULT_OUTPUTS,
        prefix: Sequence[int] = (),
    ) -> Request:
        """Add a request, which joins the batch at the next step in which there is room.

        raw, mask  one input of the model's frontend, a batch of one row: token ids, audio samples
                   or pixels, and False at padding
        seed       the seed of sampling; by default a function of `options.seed` and the input
        outputs    what the request returns beside the tokens of its answers
        prefix     tokens with which every answer begins, as if they had been chosen. Then no
                   training answer is retrieved
        """
        (request,) = self.submit_copies(
            raw, mask, options, seeds=[seed], outputs=outputs, prefix=prefix
        )
        return request

    def submit_copies(
        self,
        raw: Shaped[Tensor, "1 ..."],
        mask: Bool[Tensor, "1 S"],
        options: Options,
        *,
        seeds: Sequence[int | None],
        outputs: Outputs = DEFAULT_OUTPUTS,
        prefix: Sequence[int] = (),
    ) -> list[Request]:
        """A request for each seed, all with the same input, which is encoded once. The seeds are
        not used unless the options sample."""
        if len(raw) != 1 or len(mask) != 1:
            raise InputError("a request has one input", where="submit", got=f"{len(raw)} rows")
        if not isinstance(options, Options):
            kind = type(options).__name__
            raise InputError("options must be regard.Options", where="submit", got=kind)
        if not bool(mask.any()):
            raise InputError("the input is empty: its mask is False everywhere", where="submit")
        if options.do_sample and None in seeds:
            (own,) = seeds_of(options, [_content(raw, mask)]) or [None]
            seeds = [own if seed is None else seed for seed in seeds]
        retrieved: Sequence[RetrievedAnswer] = ()
        if options.retrieved:
            retrieved = self._retrieve(raw, mask, options, prefix)
        source = self._input(raw, mask)
        source.shared = len(seeds) > 1
        return [
            self.submit_input(
                source,
                options,
                seed=seed if options.do_sample else None,
                outputs=outputs,
                prefix=prefix,
                retrieved=retrieved,
            )
            for seed in seeds
        ]

    def submit_input(
        self,
        source: Input,
        options: Options,
        *,
        seed: int | None,
        outputs: Outputs,
        prefix: Sequence[int] = (),
        retrieved: Sequence[RetrievedAnswer] = (),
    ) -> Request:
        """`submit`, for an input that may be encoded already, and training answers that were
        retrieved for it."""
        if options.retrieved and self._retriever is None:
            raise InputError(
                "retrieved needs the training answers, which this run does not have",
                where="search",
                got=f"retrieved = {options.retrieved}",
                hint="set retrieved to 0, or add them with: "
                f"regard train --resume RUN --anyway --set search.retrieved={options.retrieved}",
            )
        if options.mmi_weight and self._empty_prompt is None:
            raise InputError(
                "mmi_weight needs as prior the memory of one empty prompt",
                where="search",
                got="none",
            )
        if options.idf_weight and self.model.idf is None:
            raise InputError("idf_weight needs the idf of each token", where="search", got="none")
        if prefix:
            _check_prefix(prefix, options, self.special_tokens)
        request = Request(
            source,
            options,
            self.special_tokens,
            outputs,
            seed=seed,
            prefix=prefix,
            retrieved=retrieved,
        )
        with self._submitting:
            self._waiting.append(request)
        return request

    def cancel(self, request: Request) -> None:
        """End a request without an answer; its rows leave before the next step."""
        if not request.done:
            request.cancelled = True
            request.done = True
            self._any_cancelled = True

    @property
    def busy(self) -> bool:
        """Whether a request is waiting or under way."""
        return bool(
            self._waiting or self._batch.tracks or self._alone or self._scorings or self._apart
        )

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
        if self._scorings or self._apart:
            self._resume()
        if self._waiting and not self._scorings and not self._apart:
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

    def _retrieve(
        self, raw: Tensor, mask: Tensor, options: Options, prefix: Sequence[int]
    ) -> list[RetrievedAnswer]:
        """The training answers that are candidates for an input."""
        if self._retriever is None or prefix:
            return []
        nearest = self._retriever.nearest(
            raw[mask].cpu().numpy(),
            options.retrieved,
            shortest=options.min_new_tokens,
            longest=options.max_new_tokens - 1,  # and the end token
        )
        return [answer for answer in nearest if answer.similarity >= options.min_similarity]

    # --- how requests join ---

    def _input(self, raw: Tensor, mask: Tensor) -> RawInput:
        if self.device is None:
            return RawInput(raw, mask)
        return RawInput(raw.to(self.device), mask.to(self.device))

    def _admit(self) -> None:
        """Let waiting requests join for which there is room, in the order they came, but for those
        that pass another one.

        A join copies the state of the running batch. So requests wait, for at most PATIENCE steps,
        until those that join together have an eighth of `max_rows`.
        """
        joining, passed = self._next_in_line()
        if not joining:
            return
        enough = 8 * sum(request.rows for request in joining) >= self.max_rows
        may_wait = self._batch.tracks and self._steps_waited < PATIENCE
        if may_wait and not enough:
            self._steps_waited += 1
            return
        self._steps_waited = 0
        for request in passed:
            request.passes += 1
        for request in joining:
            self._waiting.remove(request)
        try:
            self._begin(joining)
        except BaseException:  # an interrupt: no request is lost
            self._requeue(joining)
            raise

    def _begin(self, requests: Sequence[Request]) -> None:
        """Begin the search of requests that join together."""
        if requests[0].outputs.capture != "none":
            self._batch.drop_idle_rows()
            self._search_alone(requests[0])
            return
        try:
            size = _padded_size(requests)
            began = time.perf_counter()
            memory = _encode_together(self.model, [request.source for request in requests])
            self._measure_encoding(size, time.perf_counter() - began)
            self._batch.drop_idle_rows()
            self._join(self._batch, memory, requests)
        except Exception:  # one input cannot be encoded: apart, only its own request fails
            self._apart.extend(requests)

    def _resume(self) -> None:
        """Let requests go on that need rows again, as far as there is room. Those whose inputs are
        encoded again wait for the next step when a slice of time is over."""
        while self._scorings and self._has_room(self._scorings[0][1].width):
            batch, scoring = self._scorings.popleft()
            if scoring.request.done:  # cancelled
                continue
            try:
                self._score(batch, scoring)
            except Exception as error:
                self._recover(batch, scoring.request, error)
            except BaseException:  # an interrupt: it begins again
                self._requeue([scoring.request])
                raise
        began = time.perf_counter()
        while self._apart and not self._scorings and self._has_room(self._apart[0].rows):
            request = self._apart.popleft()
            if request.done:
                continue
            try:
                self._search_alone(request)
            except BaseException:
                self._requeue([request])
                raise
            if time.perf_counter() - began >= self._slice():
                break

    def _has_room(self, rows: int) -> bool:
        """Whether so many rows may begin now; if so, the rows of the batch are dropped that would
        be too many. If nothing else runs, there is room for any number."""
        if self.rows + rows > self.max_rows:
            self._batch.drop_idle_rows()
        return not self.rows or self.rows + rows <= self.max_rows

    def _score(self, batch: Batch, scoring: PriorScoring) -> None:
        """Let the candidates of a request join its batch, to be scored without the prompt."""
        batch.join(self._prior_state(scoring.width, batch.capture), [scoring])
        if batch is not self._batch and batch not in self._alone:
            self._alone.append(batch)

    def _requeue(self, requests: Sequence[Request]) -> None:
        """Put requests back at the head of the queue, unless they are in a batch."""
        begun = self._begun_requests()
        waiting = [request for request in requests if request not in begun]
        self._waiting.extendleft(reversed(waiting))

    def _begun_requests(self, *, other_than: Batch | None = None) -> set[Request]:
        """The requests with an active track in any batch, or in any batch `other_than` this, and
        those that have begun and wait for room."""
        batches = [batch for batch in (self._batch, *self._alone) if batch is not other_than]
        begun = {track.request for batch in batches for track in batch.tracks if track.active}
        return begun | {scoring.request for _, scoring in self._scorings} | {*self._apart}

    def _next_in_line(self) -> tuple[list[Request], list[Request]]:
        """The waiting requests that may join now: several that share the batch, or one that
        captures attention and so has a batch of its own. And the requests that each of them passes,
        because there are too few rows for these."""
        rows = self.rows - self._batch.idle_rows  # without rows that can be dropped
        # While nothing runs, nobody waits for the new inputs to be encoded.
        max_requests = self.max_joining if rows else self.max_rows
        is_running = rows > 0
        joining: list[Request] = []
        too_wide: list[Request] = []
        passed: list[Request] = []
        passes_left = MAX_PASSES
        lookahead = max(LOOKAHEAD, max_requests)
        for request in list(islice(self._waiting, lookahead)):  # others may submit meanwhile
            if rows >= self.max_rows:
                break
            if request.done:  # cancelled: it leaves before the next step
                continue
            if rows and rows + request.rows > self.max_rows:
                passes_left = min(passes_left, MAX_PASSES - request.passes)
                too_wide.append(request)
                continue
            if len(joining) == max_requests or (too_wide and passes_left <= 0):
                break
            if is_running and joining and self._exceeds_slice([*joining, request]):
                break
            if joining and request.outputs.capture != "none":
                break
            rows += request.rows
            joining.append(request)
            passed += too_wide
            passes_left -= bool(too_wide)
            if request.outputs.capture != "none":
                break
        return joining, passed

    def _slice(self) -> float:
        """How long, in seconds, encoding may hold up a running batch."""
        return max(SLICE, SLICE_STEPS * self._step_seconds)

    def _exceeds_slice(self, requests: Sequence[Request]) -> bool:
        size = _padded_size(requests)
        is_measured = self._encoding_seconds > 0
        return size > 0 and (not is_measured or size * self._encoding_seconds > self._slice())

    def _measure_encoding(self, size: int, seconds: float) -> None:
        if size:
            before = self._encoding_seconds or seconds / size
            self._encoding_seconds = 0.8 * before + 0.2 * seconds / size

    def _join(self, batch: Batch, memory: Memory, requests: Sequence[Request]) -> None:
        """Begin the search of requests in a batch. `memory` has one row for each of them."""
        tracks = [_track(request) for request in requests]
        state = self._start(memory, batch.capture)
        # A track of several beams or samples has as many rows, all with the same memory.
        repeated = [row for row, track in enumerate(tracks) for _ in range(track.width)]
        if len(repeated) > len(tracks):
            state = state.rows(torch.tensor(repeated, device=state.position.device))
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
            assert self._empty_prompt is not None
            self._prior = self._input(*self._empty_prompt()).encode(self.model)
        state = self._start(self._prior, capture)
        return state.rows(state.position.new_zeros(rows))

    # --- a step, and what comes of it ---

    def _step(self, batch: Batch) -> None:
        """One step of a batch. Tracks that have ended leave it; their requests get their answers,
        or go on with another track."""
        try:
            began = time.perf_counter()
            leaving = batch.step()
            seconds = time.perf_counter() - began
            self._step_seconds += 0.2 * (seconds - self._step_seconds)
            self._stream_tokens(batch)
            for track in leaving:
                self._finish(batch, track)
                track.end()
            batch.compact()
        except BaseException as error:
            # A request with a near tie may have been moved to a batch of its own in this step.
            elsewhere = self._begun_requests(other_than=batch)
            requests = dict.fromkeys(track.request for track in batch.tracks)
            unfinished = [
                request for request in requests if not request.done and request not in elsewhere
            ]
            batch.clear()
            if not isinstance(error, Exception):  # an interrupt: they begin again
                self._requeue(unfinished)
                raise
            for request in unfinished:
                self._recover(batch, request, error)

    def _recover(self, batch: Batch, request: Request, error: Exception) -> None:
        """After an error in a batch: apart, only the request that causes it fails."""
        if batch is self._batch:
            self._apart.append(request)
        else:
            request.fail(error)

    def _stream_tokens(self, batch: Batch) -> None:
        """Stream the last token of each request with one answer, where it is certain at once."""
        end = self.special_tokens.end
        for track in batch.tracks:
            request = track.request
            request.has_begun = True
            if not request.streams_at_once or not track.active or track.near_tie:
                continue
            node = track.nodes[0]
            if node is None or track.steps <= request.token_count:
                continue  # searched again: these tokens were streamed before
            if node.token == end:
                continue
            weights = None
            if request.outputs.weights:
                weights = batch.weights(track, track.steps - 1, node.row)
            alternatives = None
            if request.outputs.alternatives:
                alternatives = batch.alternatives(track, track.steps - 1, node.row)
            request.stream_token(StreamedToken(node.token, node.logprob, weights, alternatives))
            if request.error is not None:  # of the caller's function: its rows are dropped
                self._any_cancelled = True

    def _finish(self, batch: Batch, track: Track) -> None:
        """Give a request the answers of its track, which leaves the batch. If MMI re-ranks them,
        another track first scores them without the prompt, and `_finish` is called again when that
        leaves. If a choice was a near tie, search the request again alone."""
        request = track.request
        if request.done:
            return
        if track.near_tie:
            self._apart.append(request)
            return

        if isinstance(track, PriorScoring):
            hypotheses = track.hypotheses
            candidates = track.candidates
            prior_scores = track.scores()
        else:
            candidates = distinct(track.candidates)
            broken = _broken_answer(track, candidates)
            if broken is not None or not candidates:
                request.fail(self._no_answer(request, broken or ()))
                return
            hypotheses = {
                candidate.tokens: batch.hypothesis(track, candidate) for candidate in candidates
            }
            prior_scores = {}
            if request.options.mmi_weight and len(candidates) > 1:
                self._scorings.append((batch, PriorScoring(request, candidates, hypotheses)))
                return

        order, near_tie = ranked(
            candidates, request.options, prior_scores, self.model.idf, request.similarity
        )
        if near_tie and batch.detect_ties:
            self._apart.append(request)
            return
        request.finish(
            [
                replace(
                    hypotheses[candidate.tokens],
                    rank=rank,
                    retrieved=candidate.tokens in request.similarity,
                )
                for rank, candidate in order
            ]
        )

    def _no_answer(self, request: Request, tokens: Sequence[int]) -> RegardError:
        """Whose fault it is that there is no answer: the model's, if its logits before one of
        these tokens are not numbers, or else that of the options."""
        state = self._start(request.source.encode(self.model), "none")
        for token in (self.special_tokens.start, *tokens):
            step = self.model.decoder.step(state.position.new_tensor([token]), state)
            if not bool((step.logits < math.inf).all()):
                return BundleError("no answer: the model's logits are not numbers", where="search")
            state = step.state
        return InputError(
            "no answer: the options exclude every token",
            where="search",
            got=f"min_new_tokens = {request.options.min_new_tokens}",
        )

    def _search_alone(self, request: Request) -> None:
        """Search a request from the start in a batch of its own."""
        capture = request.outputs.capture
        batch = Batch(self.model.decoder, self.special_tokens, detect_ties=False, capture=capture)
        try:
            memory = request.source.encode(self.model, capture)
            batch.encoder_attention = memory.attention
            self._join(batch, memory, [request])
        except Exception as error:
            request.fail(error)
        else:
            self._alone.append(batch)

    def _drop_cancelled(self) -> None:
        """Forget the waiting requests that were cancelled, and end the tracks of those that were
        cancelled or failed while streaming."""
        self._any_cancelled = False
        with self._submitting:
            self._waiting = deque(request for request in self._waiting if not request.done)
        for batch in (self._batch, *self._alone):
            for track in batch.tracks:
                if track.active and track.request.done:
                    track.end()
            if not any(track.active for track in batch.tracks):
                batch.clear()
        self._alone = [batch for batch in self._alone if batch.tracks]


def _check_prefix(prefix: Sequence[int], options: Options, special_tokens: SpecialTokens) -> None:
    if options.num_beams > 1:
        raise InputError(
            "a prefix needs num_beams = 1", where="prefix", got=f"num_beams = {options.num_beams}"
        )
    if len(prefix) >= options.max_new_tokens:
        raise InputError(
            "a prefix must be shorter than max_new_tokens",
            where="prefix",
            got=f"{len(prefix)} tokens, max_new_tokens = {options.max_new_tokens}",
        )
    never = {*special_tokens.never, special_tokens.end}
    for token in prefix:
        if token in never:
            raise InputError("a token that no answer has", where="prefix", got=token)


def _broken_answer(track: Track, candidates: Sequence[Candidate]) -> Sequence[int] | None:
    """The tokens of an answer whose log-probability is not a number, or of an unfinished one if
    none is finished; None if there is no such answer."""
    if candidates:
        broken = (candidate.tokens for candidate in candidates if math.isnan(candidate.score))
        return next(broken, None)
    return next(filter(None, map(_path_to_nan, track.nodes)), None)


def _path_to_nan(node: Node | None) -> list[int]:
    """The tokens of an unfinished hypothesis, if the log-probability of one is not a number."""
    path = [] if node is None else node.path()
    is_broken = any(math.isnan(node.logprob) for node in path)
    return [node.token for node in path] if is_broken else []


def _track(request: Request) -> Track:
    return BeamSearch(request) if request.options.num_beams > 1 else Sampling(request)


def _padded_size(requests: Sequence[Request]) -> int:
    """The numbers in the inputs of requests that are encoded together."""
    sizes = [source.raw.numel() for source in _to_encode([r.source for r in requests])]
    return len(sizes) * max(sizes, default=0)


def _to_encode(sources: Sequence[Input]) -> list[RawInput]:
    """The inputs that are not encoded yet, each once."""
    raw = [source for source in sources if isinstance(source, RawInput) and source.memory is None]
    return list(dict.fromkeys(raw))


def _encode_together(model: Model, sources: Sequence[Input]) -> Memory:
    """The memory of several inputs, one row for each. Inputs that are not encoded yet are encoded
    in one pass, one that several requests share only once."""
    to_encode = _to_encode(sources)
    memory = None
    if len(to_encode) == 1:
        memory = to_encode[0].encode(model)
    elif to_encode:
        raw = _stacked([source.raw for source in to_encode])
        mask = _stacked([source.mask for source in to_encode])
        memory = model.encode(raw, mask)
    is_kept = any(source.shared for source in to_encode)
    if memory is not None and len(to_encode) == len(sources) and not is_kept:
        return memory

    rows: dict[Input, Memory] = {}
    for number, source in enumerate(to_encode):
        assert memory is not None
        rows[source] = memory.rows(torch.tensor([number], device=memory.mask.device))
        if source.shared:
            source.memory = rows[source]
    memories = [rows.get(source, source.memory) for source in sources]
    known = [memory for memory in memories if memory is not None]
    if len(known) == 1:
        return known[0]
    return Memory(
        states=_stacked([memory.states for memory in known]),
        mask=_stacked([memory.mask for memory in known]),
        summary=torch.cat([memory.summary for memory in known]),
        grid=known[0].grid,
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
    """The bytes of an input as the model reads it, without padding. Texts and sounds have a mask
    for each token or sample; pictures have no padding."""
    has_padding = raw.shape[:2] == mask.shape
    content = raw[mask] if has_padding else raw
    return content.cpu().numpy().tobytes()
