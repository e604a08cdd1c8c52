"""A batch: the tracks of many requests, which step through the decoder together."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from regard.values import AttentionWeights, Capture, CapturedAttention, State, Step


class Record(NamedTuple):
    """What is kept of one step of the batch, until the tracks that took part have ended."""

    weights: Float[Tensor, "R H S"] | None  # over the memory, in the last layer
    # The likeliest tokens and their log-probabilities:
    alternatives: tuple[Int[Tensor, "R A"], Float[Tensor, "R A"]] | None
    attention: tuple[AttentionWeights, ...]  # of every layer, if captured


@dataclass(frozen=True)
class Group:
    """The tracks of a batch that have the same options, and so choose their tokens together."""

    tracks: list[Track]
    rows: list[int]  # their rows in the batch, track by track
    index: Int[Tensor, " R"] | None  # the same as a tensor; None: all rows of the batch in order
    # For MMI: the rows of the group that have a row of the empty prompt, counted within the group,
    # and these rows of the empty prompt, counted in the batch.
    with_prior: Int[Tensor, " P"] | None
    prior_index: Int[Tensor, " P"] | None


class Batch:
    """Several tracks whose rows share one decoder State. Tracks join and leave between steps.

    With `detect_ties`, a track whose next choice is a near tie, which rounding could change, is
    marked `near_tie` and not advanced: the caller must remove it and search again in a batch of its
    own. With `capture`, the attention of every layer is recorded.
    """

    def __init__(
        self,
        decoder: Decoder,
        special_tokens: SpecialTokens,
        *,
        detect_ties: bool,
        capture: Capture = "none",
    ):
        self.decoder = decoder
        self.special_tokens = special_tokens
        self.detect_ties = detect_ties
        self.capture: Capture = capture
        self.encoder_attention: tuple[AttentionWeights, ...] = ()  # if captured
        self.state: State | None = None
        self.tracks: list[Track] = []
        self.clock = 0  # the number of steps so far
        self.places: dict[Track, int] = {}  # the number of positions in each track's memory
        self._groups: list[Group] | None = None  # None: to be computed, as tracks or rows changed
        self._records: deque[Record] = deque()  # the last of them is that of the last step
        self._records_weights = False  # whether a request wants weights
        self._most_alternatives = 0  # the most that a request wants
        # The bias that excludes banned tokens; [True]: the end token too, for min_new_tokens.
        self._biases: dict[bool, Tensor | None] = {}

    @property
    def rows(self) -> int:
        """The number of rows."""
        return 0 if self.state is None else self.state.size

    def join(self, state: State, tracks: Sequence[Track]) -> None:
        """Add tracks. `state` has the rows of all tracks in order, then the rows of the empty
        prompt of those tracks that have them."""
        row = self.rows
        places = _places(state)
        for track in tracks:
            track.first_row = row
            track.joined_at = self.clock
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
            self._most_alternatives = max(self._most_alternatives, request.outputs.alternatives)
            self._records_weights |= request.outputs.weights
        self._groups = None

    def step(self) -> list[Track]:
        """One step of the decoder, in which every track chooses its next tokens. Returns the
        tracks that have ended or whose choice is a near tie."""
        assert self.state is not None
        if self.capture == "none":
            step = self.decoder.step(self._tokens(), self.state)
        else:
            step = self.decoder.step(self._tokens(), self.state, capture=self.capture)
        self.state = step.state
        logits = step.logits.float()  # totals need more than half precision
        self._record(step, logits)
        self.clock += 1

        for group in self._grouped(logits.device):
            scores = self._scores(group, logits)
            type(group.tracks[0]).advance(group.tracks, scores, detect_ties=self.detect_ties)
            if group.with_prior is not None:
                self._release_prior_rows(group.tracks)
        return [track for track in self.tracks if track.active and (track.done or track.near_tie)]

    def _release_prior_rows(self, tracks: Sequence[Track]) -> None:
        """Count the rows of the empty prompt as idle in tracks that have made their `mmi_steps`."""
        for track in tracks:
            if track.prior_rows and not track.needs_prior:
                track.count_idle_rows()
                self._groups = None

    def compact(self) -> None:
        """Between two steps: drop idle rows, and re-order rows as beam search needs it. Dropping
        copies the state, so it waits until an eighth of the rows is idle."""
        idle = self.idle_rows
        if idle and idle == self.rows:
            self.clear()
        elif idle and (8 * idle >= self.rows or self._has_expired()):
            self.drop_idle_rows()
        elif any(track.reorders for track in self.tracks):
            self._order()

    @property
    def idle_rows(self) -> int:
        """The number of rows that need not be computed any more."""
        return sum([track.idle_rows for track in self.tracks])

    def drop_idle_rows(self) -> None:
        """Drop all rows that need not be computed any more."""
        if not self.idle_rows:
            return
        self.tracks = [track for track in self.tracks if track.active]
        index: list[int] = []  # the present number of each row that is kept
        for track in self.tracks:
            if track.idle_rows:
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
        """Move the state of each row's parent to the row, in tracks of beam search."""
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
        """Whether a track that has ended has idle rows at a position that no running track may
        reach. Position embeddings may have no such position."""
        limits = [track.request.options.max_new_tokens for track in self.tracks if track.active]
        furthest = max(limits, default=0)
        return any(
            not track.active and self.clock - track.joined_at >= furthest for track in self.tracks
        )

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
        """The token that each row reads next."""
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
        """The tracks in groups that have the same options."""
        if self._groups is None:
            same_options: dict[tuple[Any, ...], list[Track]] = {}
            for track in self.tracks:
                key = (type(track), track.request.group)
                same_options.setdefault(key, []).append(track)
            self._groups = [self._group(tracks, device) for tracks in same_options.values()]
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

    def _scores(self, group: Group, logits: Float[Tensor, "B V"]) -> Scores:
        """The logits of a group's rows, as they are and after the logits processors."""
        group_logits = logits if group.index is None else logits[group.index]
        options = group.tracks[0].request.options
        near_tie = None
        if not group.tracks[0].chooses:
            return Scores(group_logits, group_logits, group.rows, near_tie)

        processed = self._without_banned(group.tracks, group_logits, options)
        if options.looks_back:
            processed = _looking_back(group.tracks, processed, options)
        if group.with_prior is not None and group.prior_index is not None:
            # Last, so that plausible tokens are chosen among the allowed ones.
            before_mmi = processed[group.with_prior]
            after_mmi = mmi(before_mmi, logits[group.prior_index], options.mmi_weight)
            processed = processed.index_copy(0, group.with_prior, after_mmi)
            if self.detect_ties:
                is_tied = torch.zeros(
                    len(group_logits), dtype=torch.bool, device=group_logits.device
                )
                is_tied[group.with_prior] = choice.mmi_near_tie(before_mmi)
                near_tie = is_tied.tolist()
        return Scores(group_logits, processed, group.rows, near_tie)

    def _without_banned(
        self, tracks: Sequence[Track], logits: Float[Tensor, "R V"], options: Options
    ) -> Float[Tensor, "R V"]:
        """The logits without tokens that may never be chosen, and without the end token in answers
        shorter than `min_new_tokens`."""
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

    def _record(self, step: Step, logits: Float[Tensor, "R V"]) -> None:
        """Keep what the answers may need of this step."""
        alternatives = None
        if self._most_alternatives:
            count = min(self._most_alternatives, logits.shape[1])
            likeliest = logits.log_softmax(-1).topk(count)
            alternatives = (likeliest.indices, likeliest.values)
        weights = step.weights if self._records_weights else None
        self._records.append(Record(weights, alternatives, step.attention))

    def _forget(self) -> None:
        """Remove the records that no track needs any more."""
        oldest = min(track.joined_at for track in self.tracks)
        while len(self._records) > self.clock - oldest:
            self._records.popleft()

    def weights(self, track: Track, step: int, row: int) -> Float[Tensor, "H S"] | None:
        """The weights over the memory in step number `step` of a track. `row` is the row of the
        batch that chose the token."""
        weights = self._record_of(track, step).weights
        return None if weights is None else weights[row, :, : self.places[track]]

    def hypothesis(self, track: Track, candidate: Candidate) -> Hypothesis:
        """A candidate with what was recorded of its steps, not ranked yet."""
        request = track.request
        rows = [node.row for node in candidate.path]
        alternatives = None
        if request.outputs.alternatives:
            alternatives = tuple(
                self.alternatives(track, step, row) for step, row in enumerate(rows)
            )
        return Hypothesis(
            candidate.tokens,
            candidate.score,
            rank=math.nan,
            finish="stop" if candidate.ended else "length",
            logprobs=tuple(node.logprob for node in candidate.path),
            weights=self._stacked_weights(track, rows) if request.outputs.weights else None,
            alternatives=alternatives,
            attention=self._attention(track, rows) if self.capture != "none" else None,
        )

    def _stacked_weights(self, track: Track, rows: Sequence[int]) -> Float[Tensor, "T H S"] | None:
        """The weights over the memory of T steps; rows[t] is the row that made step t."""
        steps = []
        for step, row in enumerate(rows):
            weights = self.weights(track, step, row)
            if weights is None:
                return None
            steps.append(weights)
        return torch.stack(steps)

    def _attention(self, track: Track, rows: Sequence[int]) -> CapturedAttention:
        """The weights of every layer in T steps; rows[t] is the row that made step t."""
        layers: dict[tuple[str, int], list[AttentionWeights]] = {}
        for step, row in enumerate(rows):
            index = self._index([row])
            for weights in self._record_of(track, step).attention:
                layer = (weights.kind, weights.layer)
                layers.setdefault(layer, []).append(weights.rows(index))

        def of_kind(kind: str, places: int) -> tuple[AttentionWeights, ...]:
            return tuple(
                _joined_steps(steps, places)
                for (layer_kind, _), steps in sorted(layers.items())
                if layer_kind == kind
            )

        return CapturedAttention(
            encoder=self.encoder_attention,
            decoder=of_kind("self", len(rows)),
            cross=of_kind("cross", self.places[track]),
        )

    def alternatives(self, track: Track, step: int, row: int) -> tuple[tuple[int, float], ...]:
        """The likeliest tokens of a step and their probabilities."""
        recorded = self._record_of(track, step).alternatives
        assert recorded is not None
        tokens, logprobs = (x[row, : track.request.outputs.alternatives].tolist() for x in recorded)
        # In float64, in which the probability of an unlikely token is not 0.
        probabilities = [math.exp(logprob) for logprob in logprobs]
        return tuple(zip(tokens, probabilities, strict=True))

    def _record_of(self, track: Track, step: int) -> Record:
        """The record of the step in which a track chose its token number `step`."""
        return self._records[track.joined_at + step - (self.clock - len(self._records))]


def _joined_steps(steps: Sequence[AttentionWeights], places: int) -> AttentionWeights:
    """The weights of T steps of one layer as one tensor (1, H, T, places). Those of a step are
    (1, H, 1, S), with an S of its own: they are cut, or padded with zeros."""
    padded = []
    for step in steps:
        weights = step.weights[..., :places]
        missing = places - weights.shape[-1]
        padded.append(torch.nn.functional.pad(weights, (0, missing)))
    return replace(steps[0], weights=torch.cat(padded, dim=-2))


def _places(state: State) -> list[int]:
    """The number of positions in each row's memory, without padding at its end."""
    numbers = torch.arange(1, state.mask.shape[1] + 1, device=state.mask.device)
    return (state.mask * numbers).amax(1).tolist()


def _trimmed(state: State) -> State:
    """The state without the positions that only dropped rows needed."""
    return state.trim(int(state.position.max()), max(1, *_places(state)))


def _looking_back(
    tracks: Sequence[Track], scores: Float[Tensor, "R V"], options: Options
) -> Float[Tensor, "R V"]:
    """The scores after the processors that depend on the tokens so far: repetition penalty and
    no-repeat n-grams. They run once for each length of answers, as they take a tensor of tokens."""
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
        processed = scores[index]
        if options.repetition_penalty != 1:
            processed = repetition_penalty(processed, so_far, options.repetition_penalty)
        if options.no_repeat_ngram_size:
            processed = no_repeat_ngram(processed, so_far, options.no_repeat_ngram_size)
        scores = scores.index_copy(0, index, processed)
    return scores
