"""Greedy search and sampling: every row of a request is an answer of its own.

Training answers that were retrieved have rows too. Their tokens are given (teacher forcing), so
their log-probabilities, attention weights and alternatives are recorded like those of the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import compress

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import cross_entropy, pad

from regard.search import choice
from regard.search.hypotheses import Candidate, Node
from regard.search.requests import Request
from regard.search.tracks import Scores, Track, either


class Sampling(Track):
    """Greedy search or sampling of one request, in one row for each candidate, then one for each
    retrieved answer. Rows whose answer is finished stay in the batch until they are dropped."""

    def __init__(self, request: Request):
        candidates = request.options.candidates
        width = candidates + len(request.retrieved)
        super().__init__(request, width, prior_rows=request.subtracts_prior)
        self.draws = None  # (width, max_new_tokens), or None: greedy
        if request.draws is not None:
            # the numbers of retrieved answers decide nothing
            self.draws = pad(request.draws, (0, 0, 0, len(request.retrieved)))
        end = request.special_tokens.end
        # The tokens that each row begins with; of retrieved answers, all of them.
        self.forced: list[tuple[int, ...]] = [request.prefix] * candidates
        self.forced += [(*answer.tokens, end) for answer in request.retrieved]

    def drop_idle_rows(self) -> list[int]:
        rows = super().drop_idle_rows()
        self.forced = [self.forced[row] for row in rows]
        if self.draws is not None:
            self.draws = self.draws[rows]
        return rows

    @classmethod
    def advance(cls, tracks: Sequence[Sampling], scores: Scores, *, detect_ties: bool) -> None:
        options = tracks[0].request.options
        if options.do_sample:
            uniform = torch.cat([track._uniform() for track in tracks]).to(scores.logits.device)
            token, near_tie = choice.draw(scores.processed, uniform, options)
        elif detect_ties:
            token, near_tie = choice.greedy(scores.processed, choice.score_tolerance(options))
        else:
            token, near_tie = choice.likeliest(scores.processed), None
        tied_rows = either(near_tie, scores.near_tie) if detect_ties else None
        _force_tokens(tracks, token, tied_rows)

        # With many rows this takes a tenth of the time: skipped unless a request wants scores.
        if any(track.request.wants_scores for track in tracks):
            logprobs = (-cross_entropy(scores.logits, token, reduction="none")).tolist()
        else:
            logprobs = [0.0] * len(scores.rows)

        tokens = token.tolist()
        if len(tokens) == len(tracks):  # one row each, as in a server: no slices of lists
            for n, track in enumerate(tracks):
                if not track.active:
                    continue
                track.near_tie = tied_rows is not None and tied_rows[n]
                if not track.near_tie:
                    track._extend_only_row(tokens[n], logprobs[n], scores.rows[n])
            return
        first = 0
        for track in tracks:
            rows = slice(first, first + track.width)
            first += track.width
            if not track.active:
                continue
            track.near_tie = tied_rows is not None and any(compress(tied_rows[rows], track.running))
            if not track.near_tie:
                track._extend(tokens[rows], logprobs[rows], scores.rows[rows])

    def _uniform(self) -> torch.Tensor:
        """The random number of each row for its next token."""
        assert self.draws is not None
        step = min(self.steps, self.draws.shape[1] - 1)
        return self.draws[:, step]

    def _extend(self, tokens: list[int], logprobs: Sequence[float], rows: Sequence[int]) -> None:
        end = self.request.special_tokens.end
        self.steps += 1
        self.tokens = tokens
        last_step = self.steps >= self.request.options.max_new_tokens
        for i, token in enumerate(tokens):
            if not self.running[i]:
                continue
            node = Node(self.nodes[i], token, logprobs[i], rows[i])
            self.nodes[i] = node
            if token == end or last_step:
                self._finish(i, node, ended=token == end)

    def _extend_only_row(self, token: int, logprob: float, row: int) -> None:
        """`_extend`, for a track of one row, which runs until the track has ended."""
        self.steps += 1
        self.tokens = [token]
        node = Node(self.nodes[0], token, logprob, row)
        self.nodes[0] = node
        ended = token == self.request.special_tokens.end
        if ended or self.steps >= self.request.options.max_new_tokens:
            self._finish(0, node, ended=ended)

    def _finish(self, row: int, node: Node, *, ended: bool) -> None:
        path = node.path()
        score = math.fsum(step.logprob for step in path)
        self.candidates.append(Candidate(path, ended, score, score))
        self.running[row] = False
        self.done = not any(self.running)
        self.count_idle_rows()


def _force_tokens(
    tracks: Sequence[Sampling], token: Int[Tensor, " R"], tied_rows: list[bool] | None
) -> None:
    """Replace the choice of rows whose next token is given, which is no near tie."""
    rows: list[int] = []
    forced: list[int] = []
    row = 0
    for track in tracks:
        for tokens in track.forced:
            if track.steps < len(tokens):
                rows.append(row)
                forced.append(tokens[track.steps])
            row += 1
    if not rows:
        return
    token[rows] = token.new_tensor(forced)
    if tied_rows is not None:
        for row in rows:
            tied_rows[row] = False
