"""A batch: the tracks of many requests, which step through the decoder together."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.search import choice
from regard.search.hypotheses import Candidate, Hypothesis, SpecialTokens
from regard.search.options import Options
from regard.search.processors import NEVER, banned, mmi, no_repeat_ngram, repetition_penalty
from regard.search.requests import Decoder
from regard.search.tracks import Scores, Track
from regard.values import State


class Record(NamedTuple):
    """What is kept of a step of the batch until the answers that went through it are finished."""

    weights: Float[Tensor, "R H S"] | None
    alternatives: tuple[Int[Tensor, "R A"], Float[Tensor, "R A"]] | None


@dataclass(frozen=True)
class Group:
    """The tracks of a batch that have the same options, and so choose their tokens together."""

    tracks: list[Track]
    rows: list[int]  # of the batch
    index: Int[Tensor, " R"] | None  # the same as a tensor; None: the whole batch
    # The rows of the group that have a second one over the empty prompt, and these:
    with_prior: Int[Tensor, " P"] | None
    prior_index: Int[Tensor, " P"] | None


class Batch:
    """Rows of several tracks with one State. Tracks join and leave between steps.

    With `check`, a track whose choice was close is marked `close` and not advanced: it is for the
    caller to remove it and search in another way.
    """

    def __init__(self, decoder: Decoder, special_tokens: SpecialTokens, *, check: bool):
        self.decoder = decoder
        self.special_tokens = special_tokens
        self.check = check
        self.state: State | None = None
        self.tracks: list[Track] = []
        self.clock = 0  # steps so far
        self.places: dict[Track, int] = {}  # the places of each track's memory
        self._groups: list[Group] | None = None
        self._records: deque[Record] = deque()  # the last of them is that of the last step
        self._records_weights = False  # whether a request wants weights
        self._most_alternatives = 0  # the most that a request wants
        self._biases: dict[bool, Tensor | None] = {}  # without and with the end token

    @property
    def rows(self) -> int:
        """The number of rows."""
        return 0 if self.state is None else self.state.size

    def join(self, state: State, tracks: Sequence[Track]) -> None:
        """Add tracks, with a state that has the rows of each track in order, then the rows over
        the empty prompt of each that has them."""
        row = self.rows
        places = _places(state)
        for track in tracks:
            track.first_row = row
            track.clock = self.clock
            self.places[track] = places[row - self.rows]
            row += track.width
        for track in tracks:
            if track.prior_rows:
                track.first_prior_row = row
                row += track.width
        self.state = state if self.state is None else self.state.join(state)
        self.tracks.extend(tracks)
        for track in tracks:
            request = track.request
            self._most_alternatives = max(self._most_alternatives, request.alternatives)
            self._records_weights |= request.wants_weights or request.streams
        self._groups = None

    def step(self) -> list[Track]:
        """One step of the decoder and of every track. Returns the tracks that have ended, or whose
        choice was close."""
        assert self.state is not None
        step = self.decoder.step(self._tokens(), self.state)
        self.state = step.state
        logits = step.logits.float()  # totals need more than half precision
        self._record(step.weights, logits)
        self.clock += 1

        for group in self._grouped(logits.device):
            scores = self._scores(group, logits)
            type(group.tracks[0]).advance(group.tracks, scores, check=self.check)
            if group.with_prior is not None:
                self._release_prior_rows(group.tracks)
        return [track for track in self.tracks if track.active and (track.done or track.close)]

    def _release_prior_rows(self, tracks: Sequence[Track]) -> None:
        """Let the rows over the empty prompt go that have done their steps."""
        for track in tracks:
            if track.prior_rows and not track.needs_prior:
                track.count_idle_rows()
                self._groups = None

    def settle(self) -> None:
        """Put the rows in the order in which the tracks continue them. Rows that need not be
        computed any more are dropped when they are an eighth, so that copying stays amortised."""
        idle = self.idle_rows
        if idle and idle == self.rows:
            self.clear()
        elif idle and (8 * idle >= self.rows or self._has_expired()):
            self.drop_idle_rows()
        elif any(track.reorders for track in self.tracks):
            self._order()

    @property
    def idle_rows(self) -> int:
        """Rows that need not be computed any more."""
        return sum([track.idle_rows for track in self.tracks])

    def drop_idle_rows(self) -> None:
        """Drop all rows that need not be computed any more."""
        if not self.idle_rows:
            return
        self.tracks = [track for track in self.tracks if track.active]
        index: list[int] = []
        for track in self.tracks:
            track.drop_idle_rows()
            first = len(index)
            index += [track.first_row + parent for parent in track.parents]
            track.first_row = first
            if track.prior_rows:
                first = len(index)
                index += [track.first_prior_row + parent for parent in track.parents]
                track.first_prior_row = first
            track.parents = range(track.width)
        if not index:
            self.clear()
            return
        assert self.state is not None
        self.state = _trimmed(self.state.rows(self._index(index)))
        self.places = {track: self.places[track] for track in self.tracks}
        self._groups = None
        self._forget()

    def _order(self) -> None:
        """Put the rows of each track in the order of its parents."""
        assert self.state is not None
        index = list(range(self.rows))
        for track in self.tracks:
            if not track.active or not track.reorders:
                continue
            firsts = [track.first_row]
            if track.prior_rows:
                firsts.append(track.first_prior_row)
            for first in firsts:
                index[first : first + track.width] = [first + parent for parent in track.parents]
            track.parents = range(track.width)
        if index != list(range(self.rows)):
            self.state = self.state.rows(self._index(index), memory_unchanged=True)

    def _has_expired(self) -> bool:
        """Whether a track that has ended is at a position that its request would not have
        reached: a model may have no such position."""
        for track in self.tracks:
            age = self.clock - track.clock
            if not track.active and age >= track.request.options.max_new_tokens:
                return True
        return False

    def clear(self) -> None:
        """Drop everything."""
        self.tracks = []
        self.state = None
        self.places.clear()
        self._groups = None
        self._records.clear()
        self._records_weights = False
        self._most_alternatives = 0

    def _index(self, rows: Sequence[int]) -> Int[Tensor, " R"]:
        assert self.state is not None
        return torch.tensor(rows, device=self.state.position.device)

    def _tokens(self) -> Int[Tensor, " R"]:
        """What each row reads."""
        assert self.state is not None
        tokens = [self.special_tokens.end] * self.rows
        for track in self.tracks:
            if track.active:
                tokens[track.first_row : track.first_row + track.width] = track.tokens
            if track.active and track.prior_rows:
                first = track.first_prior_row
                tokens[first : first + track.width] = track.tokens
        return torch.tensor(tokens, device=self.state.position.device)

    def _grouped(self, device: torch.device) -> list[Group]:
        if self._groups is None:
            alike: dict[tuple[Any, ...], list[Track]] = {}
            for track in self.tracks:
                alike.setdefault((type(track), track.request.options.group), []).append(track)
            self._groups = [self._group(tracks, device) for tracks in alike.values()]
        return self._groups

    def _group(self, tracks: list[Track], device: torch.device) -> Group:
        rows: list[int] = []
        with_prior: list[int] = []
        prior_rows: list[int] = []
        for track in tracks:
            if track.needs_prior:
                with_prior += range(len(rows), len(rows) + track.width)
                prior_rows += range(track.first_prior_row, track.first_prior_row + track.width)
            rows += range(track.first_row, track.first_row + track.width)
        is_whole_batch = rows == list(range(self.rows))
        return Group(
            tracks,
            rows,
            index=None if is_whole_batch else torch.tensor(rows, device=device),
            with_prior=torch.tensor(with_prior, device=device) if with_prior else None,
            prior_index=torch.tensor(prior_rows, device=device) if with_prior else None,
        )

    # --- scores of a group ---

    def _scores(self, group: Group, logits: Float[Tensor, "R V"]) -> Scores:
        own = logits if group.index is None else logits[group.index]
        options = group.tracks[0].request.options
        close = None
        if not group.tracks[0].chooses:
            return Scores(own, own, group.rows, close)

        processed = self._without_banned(group.tracks, own, options)
        if options.looks_back:
            processed = _looking_back(group.tracks, processed, options)
        if group.with_prior is not None and group.prior_index is not None:
            # Last, so that plausible tokens are chosen among the allowed ones.
            asked = processed[group.with_prior]
            subtracted = mmi(asked, logits[group.prior_index], options.mmi_weight)
            processed = processed.index_copy(0, group.with_prior, subtracted)
            if self.check:
                is_close = torch.zeros(len(own), dtype=torch.bool, device=own.device)
                is_close[group.with_prior] = choice.mmi_is_close(asked)
                close = is_close.tolist()
        return Scores(own, processed, group.rows, close)

    def _without_banned(
        self, tracks: Sequence[Track], logits: Float[Tensor, "R V"], options: Options
    ) -> Float[Tensor, "R V"]:
        """The logits, in which tokens that may never be chosen, or not yet, are excluded."""
        if not self._biases:
            never = self.special_tokens.never
            self._biases[False] = banned(never, logits)
            self._biases[True] = banned((*never, self.special_tokens.end), logits)
        if not options.min_new_tokens:
            bias = self._biases[False]
            return logits if bias is None else logits + bias
        too_short = [track.steps < options.min_new_tokens for track in tracks]
        bias = self._biases[all(too_short)]
        processed = logits if bias is None else logits + bias
        if any(too_short) and not all(too_short):
            processed = processed.clone()
            row = 0
            for track, short in zip(tracks, too_short, strict=True):
                if short:
                    processed[row : row + track.width, self.special_tokens.end] = NEVER
                row += track.width
        return processed

    # --- what is kept for the answers ---

    def _record(self, weights: Tensor | None, logits: Float[Tensor, "R V"]) -> None:
        alternatives = None
        if self._most_alternatives:
            probability = logits.softmax(-1).topk(min(self._most_alternatives, logits.shape[1]))
            alternatives = (probability.indices, probability.values)
        self._records.append(Record(weights if self._records_weights else None, alternatives))

    def _forget(self) -> None:
        """Remove the records that no track needs any more."""
        oldest = min(track.clock for track in self.tracks)
        while len(self._records) > self.clock - oldest:
            self._records.popleft()

    def weights(self, track: Track, step: int, row: int) -> Float[Tensor, "H S"] | None:
        """The weights over the memory with which a row of the batch chose the token of a step."""
        weights = self._record_of(track, step).weights
        return None if weights is None else weights[row, :, : self.places[track]]

    def hypothesis(self, track: Track, candidate: Candidate) -> Hypothesis:
        """A candidate with what was recorded of its steps, not ranked yet."""
        request = track.request
        rows = [node.row for node in candidate.path]
        weights = None
        if request.wants_weights:
            steps = [self.weights(track, step, row) for step, row in enumerate(rows)]
            if all(row is not None for row in steps):
                weights = torch.stack([row for row in steps if row is not None])
        alternatives = None
        if request.alternatives:
            alternatives = tuple(
                self._alternatives(track, step, row) for step, row in enumerate(rows)
            )
        return Hypothesis(
            candidate.tokens,
            candidate.score,
            rank=math.nan,
            finish="stop" if candidate.ended else "length",
            logprobs=tuple(node.logprob for node in candidate.path),
            weights=weights,
            alternatives=alternatives,
        )

    def _alternatives(self, track: Track, step: int, row: int) -> tuple[tuple[int, float], ...]:
        recorded = self._record_of(track, step).alternatives
        assert recorded is not None
        tokens, probabilities = (x[row, : track.request.alternatives].tolist() for x in recorded)
        return tuple(zip(tokens, probabilities, strict=True))

    def _record_of(self, track: Track, step: int) -> Record:
        """The record of the step in which a track chose its token number `step`."""
        return self._records[track.clock + step - (self.clock - len(self._records))]


def _places(state: State) -> list[int]:
    """The number of places of each row's memory, without padding after the last."""
    numbers = torch.arange(1, state.mask.shape[1] + 1, device=state.mask.device)
    return (state.mask * numbers).amax(1).tolist()


def _trimmed(state: State) -> State:
    """The state without room that rows have left which are not there any more."""
    return state.trim(int(state.position.max()), max(1, *_places(state)))


def _looking_back(
    tracks: Sequence[Track], scores: Float[Tensor, "R V"], options: Options
) -> Float[Tensor, "R V"]:
    """Scores after the processors that depend on the tokens so far."""
    rows_of_length: dict[int, list[int]] = {}
    tokens: list[list[int]] = []
    for track in tracks:
        for node in track.nodes:
            path = [] if node is None else [step.token for step in node.path()]
            # A row that has ended has fewer tokens than its track has steps, and no more choices.
            path += [track.request.special_tokens.end] * (track.steps - len(path))
            rows_of_length.setdefault(len(path), []).append(len(tokens))
            tokens.append(path)

    for length, rows in rows_of_length.items():
        if length == 0:
            continue
        index = torch.tensor(rows, device=scores.device)
        so_far = torch.tensor([tokens[row] for row in rows], device=scores.device)
        own = scores[index]
        if options.repetition_penalty != 1:
            own = repetition_penalty(own, so_far, options.repetition_penalty)
        if options.no_repeat_ngram_size:
            own = no_repeat_ngram(own, so_far, options.no_repeat_ngram_size)
        scores = scores.index_copy(0, index, own)
    return scores
