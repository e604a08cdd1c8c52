"""Beam search: the rows of a request are its best unfinished hypotheses.

Each step keeps the `num_beams` best extensions. Finished ones go to the pool of their request, and
the next step fills their place. A request ends as soon as no unfinished hypothesis can displace an
answer of its pool.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from regard.search.choice import CLOSE, rank_tolerance
from regard.search.hypotheses import Candidate, Node
from regard.search.options import Options
from regard.search.processors import NEVER
from regard.search.requests import Request
from regard.search.tracks import Scores, Track, either


class Pool:
    """The best finished answers of a beam search.

    Answers whose ranks are close to that of the last place are kept too, so that rounding does not
    decide which of them is in the pool.
    """

    def __init__(self, size: int, options: Options):
        self.size = size
        self.options = options
        self.candidates: list[Candidate] = []  # best first
        self.finished = 0
        self.tolerance = rank_tolerance(options, options.max_new_tokens)

    def add(self, candidate: Candidate) -> None:
        self.finished += 1
        self.candidates.append(candidate)
        self.candidates.sort(key=self.rank, reverse=True)
        if len(self.candidates) > self.size:
            least = self.rank(self.candidates[self.size - 1]) - self.tolerance
            self.candidates = [rival for rival in self.candidates if self.rank(rival) >= least]

    def is_settled(self, reach: float) -> bool:
        """Whether no answer of rank `reach` or below can change the pool."""
        if self.options.early_stopping and self.finished >= self.options.num_beams:
            return True
        if reach == NEVER:
            return True
        is_full = len(self.candidates) >= self.size
        return is_full and self.rank(self.candidates[self.size - 1]) >= reach + self.tolerance

    def rank(self, candidate: Candidate) -> float:
        return candidate.value / candidate.length**self.options.length_penalty


class BeamSearch(Track):
    """`num_beams` rows. At each step, a row may take up any hypothesis of the request."""

    reorders = True

    def __init__(self, request: Request, width: int | None = None):
        options = request.options
        width = width or options.num_beams
        super().__init__(request, width, prior_rows=request.subtracts_prior)
        # All hypotheses start alike: only the first counts.
        self.values = [0.0] + [NEVER] * (width - 1)  # after the processors
        self.scores = [0.0] * width  # by the model
        self.pool = Pool(width if options.re_ranks else options.candidates, options)

    @classmethod
    def advance(cls, tracks: Sequence[BeamSearch], scores: Scores, *, check: bool) -> None:
        logits, processed = scores.logits, scores.processed
        width = tracks[0].width
        value = logits.new_tensor([track.values for track in tracks])  # (N, W)
        score = logits.new_tensor([track.scores for track in tracks])
        total = logits.logsumexp(-1)

        # One more extension than are kept shows how close the choice is; no more than these of a
        # row can be among the best of its request.
        best, tokens = processed.topk(min(width + 1, processed.shape[1]))  # (N·W, E)
        extended = ((value.flatten() - total)[:, None] + best).view(len(tracks), -1)
        value, place = extended.topk(min(width + 1, extended.shape[1]))  # (N, ≤ W+1)
        close = None
        if check and value.shape[1] > width:
            close = (value[:, width] > value[:, width - 1] - CLOSE).tolist()
        value, place = value[:, :width], place[:, :width]

        parent = place // best.shape[1]  # (N, W), the row within its track
        first_row = torch.arange(0, len(logits), width, device=logits.device)
        row = first_row[:, None] + parent
        token = tokens[row, place % best.shape[1]]
        gain = logits[row, token] - total[row]
        score = score.gather(1, parent) + logits[row, token] - total[row]

        if check and scores.close is not None:
            rows = range(0, len(scores.close), width)
            close = either(close, [any(scores.close[row : row + width]) for row in rows])

        parents, next_tokens, values, totals, gains = (
            x.tolist() for x in (parent, token, value, score, gain)
        )
        for n, track in enumerate(tracks):
            if not track.active:
                continue
            track.close = close is not None and close[n]
            if not track.close:
                rows = scores.rows[n * width : (n + 1) * width]
                track._extend(parents[n], next_tokens[n], values[n], totals[n], gains[n], rows)

    def _extend(
        self,
        parents: list[int],
        tokens: list[int],
        values: list[float],
        scores: list[float],
        gains: list[float],
        rows: Sequence[int],
    ) -> None:
        end = self.request.special_tokens.end
        self.steps += 1
        last_step = self.steps >= self.request.options.max_new_tokens
        nodes = [
            Node(self.nodes[parent], token, gain, rows[parent])
            for parent, token, gain in zip(parents, tokens, gains, strict=True)
        ]
        self.nodes = [*nodes]
        self.parents = parents
        self.tokens = tokens
        self.values = values
        self.scores = scores
        for i, (node, token) in enumerate(zip(nodes, tokens, strict=True)):
            ended = token == end
            if values[i] > NEVER and (ended or last_step):
                self.pool.add(Candidate(node.path(), ended, scores[i], values[i]))
            if ended:
                values[i] = NEVER
        self.done = last_step or self.pool.is_settled(self._reach())
        if self.done:
            self.candidates = self.pool.candidates

    def _reach(self) -> float:
        """An upper bound of the rank of the unfinished hypotheses.

        Values only fall, and dividing by a power of the length is monotone in the length, so the
        bound is at the shortest or the longest length to come. Only MMI can raise a value; while it
        is subtracted, the bound is infinite.
        """
        best = max(self.values)
        options = self.request.options
        if best > NEVER and self.needs_prior:
            best = math.inf
        shortest = best / (self.steps + 1) ** options.length_penalty
        longest = best / options.max_new_tokens**options.length_penalty
        return max(shortest, longest)
