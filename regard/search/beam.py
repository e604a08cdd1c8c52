"""Beam search: the rows of a request are its best unfinished hypotheses.

Each step keeps the `num_beams` best extensions. Finished ones go to the pool of their request, and
the next step fills their place. A request ends as soon as no unfinished hypothesis can displace an
answer of its pool.

A hypothesis has two sums of log-probabilities: its score, by the model, and its search score, by
the logits after the processors. The search maximises the latter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from regard.device import widest_float
from regard.search.choice import rank_tolerance, score_tolerance
from regard.search.hypotheses import BeamNode, Candidate, Node
from regard.search.options import Options
from regard.search.processors import NEVER
from regard.search.requests import Request
from regard.search.tracks import Scores, Track, either


class Pool:
    """The best finished answers of a beam search.

    Answers whose ranks are tied with that of the last place are kept too, so that rounding does not
    decide which of them is in the pool.
    """

    def __init__(self, size: int, options: Options):
        self.size = size
        self.options = options
        self.candidates: list[Candidate] = []  # best first
        self.finished = 0  # the number of answers added, also of those not kept
        self.tolerance = rank_tolerance(options, options.max_new_tokens)

    def add(self, candidate: Candidate) -> None:
        """Add a finished answer, and remove those that it displaces."""
        self.finished += 1
        self.candidates.append(candidate)
        self.candidates.sort(key=self.rank, reverse=True)
        if len(self.candidates) > self.size:
            least = self.rank(self.candidates[self.size - 1]) - self.tolerance
            self.candidates = [rival for rival in self.candidates if self.rank(rival) >= least]

    def is_settled(self, reach: float) -> bool:
        """Whether no further answer can change the pool, if none has a rank above `reach`."""
        if self.options.early_stopping and self.finished >= self.options.num_beams:
            return True
        if reach == NEVER:
            return True
        is_full = len(self.candidates) >= self.size
        return is_full and self.rank(self.candidates[self.size - 1]) >= reach + self.tolerance

    def rank(self, candidate: Candidate) -> float:
        """The search score with the length penalty."""
        return candidate.search_score / candidate.length**self.options.length_penalty


class BeamSearch(Track):
    """Beam search of one request, in `num_beams` rows. At each step, a row may continue the
    hypothesis of any other row."""

    reorders = True

    def __init__(self, request: Request, width: int | None = None):
        options = request.options
        width = width or options.num_beams
        super().__init__(request, width, prior_rows=request.subtracts_prior)
        # All rows start with the same empty hypothesis: only the first may be extended.
        self.search_scores = [0.0] + [NEVER] * (width - 1)
        self.scores = [0.0] * width
        self.pool = Pool(width if options.re_ranks else options.candidates, options)
        request.beam = []  # a search that begins again records again
        self.recorded: list[int | None] = [None] * width  # the node of each row in it

    @classmethod
    def advance(cls, tracks: Sequence[BeamSearch], scores: Scores, *, detect_ties: bool) -> None:
        logits, processed = scores.logits, scores.processed
        width = tracks[0].width
        # In double precision, as sums of many log-probabilities need: (tracks, width).
        value = torch.tensor(
            [track.search_scores for track in tracks],
            dtype=widest_float(logits.device),
            device=logits.device,
        )
        normaliser = logits.logsumexp(-1)  # log p(token) = logits[token] - normaliser

        # The width + 1 best extensions of each row contain the width + 1 best of its track. One
        # more than are kept, because it shows whether the choice is a near tie.
        best, tokens = processed.topk(min(width + 1, processed.shape[1]))
        extended = ((value.flatten() - normaliser)[:, None] + best).view(len(tracks), -1)
        value, place = extended.topk(min(width + 1, extended.shape[1]))
        near_tie = None
        if detect_ties and value.shape[1] > width:
            tolerance = score_tolerance(tracks[0].request.options)
            near_tie = (value[:, width] > value[:, width - 1] - tolerance).tolist()
        if detect_ties and scores.near_tie is not None:
            first_rows = range(0, len(scores.near_tie), width)
            near_tie = either(
                near_tie, [any(scores.near_tie[row : row + width]) for row in first_rows]
            )
        value, place = value[:, :width], place[:, :width]

        parent = place // best.shape[1]  # the row within its track
        first_row = torch.arange(0, len(logits), width, device=logits.device)
        row = first_row[:, None] + parent
        token = tokens[row, place % best.shape[1]]
        logprob = logits[row, token] - normaliser[row]

        parents, next_tokens, search_scores, logprobs = (
            x.tolist() for x in (parent, token, value, logprob)
        )
        for n, track in enumerate(tracks):
            if not track.active:
                continue
            track.near_tie = near_tie is not None and near_tie[n]
            if not track.near_tie:
                rows = scores.rows[n * width : (n + 1) * width]
                track._extend(parents[n], next_tokens[n], search_scores[n], logprobs[n], rows)

    def _extend(
        self,
        parents: list[int],
        tokens: list[int],
        search_scores: list[float],
        logprobs: list[float],
        rows: Sequence[int],
    ) -> None:
        """Extend the hypotheses by one token: row i continues that of row `parents[i]` with
        `tokens[i]`. `rows` are the numbers of the track's rows in the batch."""
        end = self.request.special_tokens.end
        self.steps += 1
        last_step = self.steps >= self.request.options.max_new_tokens
        nodes = [
            Node(self.nodes[parent], token, logprob, rows[parent])
            for parent, token, logprob in zip(parents, tokens, logprobs, strict=True)
        ]
        self.nodes = [*nodes]
        self.parents = parents
        self.tokens = tokens
        self.search_scores = search_scores
        self.scores = [
            self.scores[parent] + logprob for parent, logprob in zip(parents, logprobs, strict=True)
        ]
        if self.request.outputs.beam:
            self._record()
        for i, (node, token) in enumerate(zip(nodes, tokens, strict=True)):
            ended = token == end
            if search_scores[i] > NEVER and (ended or last_step):
                candidate = Candidate(node.path(), ended, self.scores[i], search_scores[i])
                self.pool.add(candidate)
            if ended:
                search_scores[i] = NEVER  # so that the next step does not extend it
        self.done = last_step or self.pool.is_settled(self._reach())
        if self.done:
            self.candidates = self.pool.candidates

    def _record(self) -> None:
        """Add the hypotheses of this step to `request.beam`."""
        nodes = self.request.beam
        recorded: list[int | None] = []
        for beam, (parent, token) in enumerate(zip(self.parents, self.tokens, strict=True)):
            node = self.nodes[beam]
            assert node is not None
            if self.search_scores[beam] == NEVER:
                recorded.append(None)  # it extends a hypothesis that has ended
                continue
            recorded.append(len(nodes))
            ended = token == self.request.special_tokens.end
            before = self.recorded[parent]
            nodes.append(
                BeamNode(
                    self.steps - 1, beam, before, token, node.logprob, self.scores[beam], ended
                )
            )
        self.recorded = recorded

    def _reach(self) -> float:
        """An upper bound of the ranks that the unfinished hypotheses can reach.

        A longer hypothesis has a lower value, and value / length ** length_penalty is monotone in
        the length, so the bound is at the shortest or the longest length to come. Only MMI can
        raise a value: while it applies, the bound is infinite.
        """
        best = max(self.search_scores)
        options = self.request.options
        if best > NEVER and self.needs_prior:
            best = math.inf
        shortest = best / (self.steps + 1) ** options.length_penalty
        longest = best / options.max_new_tokens**options.length_penalty
        return max(shortest, longest)
