"""Re-ranking: which of several answers is best, beyond their likelihood.

    rank =   (log p(T|S) - mmi_weight * log p(T|nothing)) / length ** length_penalty
           + idf_weight * mean idf of distinct tokens
           + retrieval_weight * similarity of the prompts, for a retrieved training answer

MMI makes replies less bland: an answer that is likely whatever was asked is penalised (Li et al.
2016, "A Diversity-Promoting Objective Function for Neural Conversation Models": MMI-antiLM, over
the first tokens). To exclude nonsense, it chooses among plausible tokens only (Li et al. 2023,
"Contrastive Decoding").
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy

from regard.search.choice import TIE_TOLERANCE, rank_tolerance
from regard.search.hypotheses import Candidate, Hypothesis
from regard.search.options import Options
from regard.search.requests import Request
from regard.search.tracks import Scores, Track

# Nats per token by which an answer may be less likely than the likeliest and still win re-ranking.
MAX_LAG_NATS = 1.0

Tokens = tuple[int, ...]


class PriorScoring(Track):
    """Computes log p(T|nothing) of each candidate of a request. Its rows read the tokens of the
    candidates (teacher forcing), given the memory of the empty prompt."""

    chooses = False

    def __init__(
        self,
        request: Request,
        candidates: Sequence[Candidate],
        hypotheses: Mapping[Tokens, Hypothesis],
    ):
        super().__init__(request, len(candidates))
        self.candidates = list(candidates)
        self.hypotheses = hypotheses
        self.totals = [0.0] * len(candidates)
        self.candidate_of_row = list(range(len(candidates)))  # the candidate of each row

    def drop_idle_rows(self) -> list[int]:
        rows = super().drop_idle_rows()
        self.candidate_of_row = [self.candidate_of_row[row] for row in rows]
        return rows

    @classmethod
    def advance(cls, tracks: Sequence[PriorScoring], scores: Scores, *, detect_ties: bool) -> None:
        targets = [target for track in tracks for target in track._targets()]
        target = torch.tensor(targets, device=scores.logits.device)
        losses = cross_entropy(scores.logits, target, reduction="none").tolist()
        first = 0
        for track in tracks:
            rows = slice(first, first + track.width)
            first += track.width
            if track.active:
                track._add(losses[rows])

    def _targets(self) -> list[int]:
        """The next token of each row's candidate; the end token after its last."""
        end = self.request.special_tokens.end
        targets = []
        for i in self.candidate_of_row:
            path = self.candidates[i].path
            targets.append(path[self.steps].token if self.steps < len(path) else end)
        return targets

    def _add(self, losses: Sequence[float]) -> None:
        """Add the log-probability of one token to each candidate that is not complete yet."""
        self.tokens = self._targets()
        self.steps += 1
        for row, loss in enumerate(losses):
            if not self.running[row]:
                continue
            i = self.candidate_of_row[row]
            self.totals[i] -= loss
            self.running[row] = self.candidates[i].length > self.steps
        self.done = not any(self.running)
        self.count_idle_rows()

    def scores(self) -> dict[Tokens, float]:
        """log p(T|nothing) of each answer."""
        pairs = zip(self.candidates, self.totals, strict=True)
        return {candidate.tokens: total for candidate, total in pairs}


def distinct(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates without duplicates."""
    return list({candidate.tokens: candidate for candidate in candidates}.values())


def ranked(
    candidates: Sequence[Candidate],
    options: Options,
    prior_scores: Mapping[Tokens, float],
    idf: Float[Tensor, " V"] | None,
    similarity: Mapping[Tokens, float],
) -> tuple[list[tuple[float, Candidate]], bool]:
    """The best `options.candidates` of these distinct candidates with their ranks, best first, and
    whether rounding could change their order. With re-ranking, answers that are MAX_LAG_NATS less
    likely than the likeliest come last, except training answers that were retrieved, whose
    `similarity` is known: people wrote them. A single candidate is ranked without MMI and IDF."""
    if len(candidates) == 1:
        only = candidates[0]
        value = only.score if options.mmi_weight else only.search_score
        return [(value / only.length**options.length_penalty, only)], False

    least = -math.inf
    if options.re_ranks:
        least = max(candidate.score / candidate.length for candidate in candidates) - MAX_LAG_NATS

    def rank(candidate: Candidate) -> float:
        # The value of a beam includes MMI for its first tokens; here the whole answer counts.
        value = candidate.score if options.mmi_weight else candidate.search_score
        bonus = 0.0
        if options.mmi_weight:
            value -= options.mmi_weight * prior_scores[candidate.tokens]
        if options.idf_weight and idf is not None:
            bonus = options.idf_weight * _mean_idf(candidate.tokens, idf)
        if options.retrieval_weight:
            bonus += options.retrieval_weight * similarity.get(candidate.tokens, 0.0)
        return value / candidate.length**options.length_penalty + bonus

    def is_plausible(candidate: Candidate) -> bool:
        is_retrieved = candidate.tokens in similarity
        return is_retrieved or candidate.score / candidate.length >= least

    order = [(is_plausible(candidate), rank(candidate), candidate) for candidate in candidates]
    order.sort(key=lambda item: item[:2], reverse=True)

    own = [candidate for candidate in candidates if candidate.tokens not in similarity]
    near_tie = _is_near_tie(order, options) or (options.re_ranks and _is_at_bound(own, least))
    return [(value, candidate) for _, value, candidate in order[: options.candidates]], near_tie


def _is_near_tie(order: Sequence[tuple[bool, float, Candidate]], options: Options) -> bool:
    """Whether rounding could change which candidates are returned, or their order. Each comes with
    whether it is plausible, and its rank."""
    longest = max(candidate.length for _, _, candidate in order)
    tolerance = rank_tolerance(options, longest)
    return any(
        a[0] == b[0] and a[1] - b[1] < tolerance
        for a, b in pairwise(order[: options.candidates + 1])
    )


def _is_at_bound(candidates: Sequence[Candidate], least: float) -> bool:
    """Whether rounding could change which candidates are plausible."""
    return any(
        abs(candidate.score / candidate.length - least) < TIE_TOLERANCE for candidate in candidates
    )


def _mean_idf(tokens: Tokens, idf: Float[Tensor, " V"]) -> float:
    words = sorted(set(tokens))
    if not words:
        return 0.0
    return math.fsum(idf[words].tolist()) / len(words)
