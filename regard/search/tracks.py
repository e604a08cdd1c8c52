"""Tracks: the search of one request inside a batch of many.

A track has some rows of the batch. At each step of the decoder, all tracks with the same options
choose their next tokens together (`advance`), so that a batch of equal requests costs a few calls
of torch whatever their number.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Bool, Float
from torch import Tensor

from regard.search.hypotheses import Candidate, Node
from regard.search.requests import Request


@dataclass(frozen=True)
class Scores:
    """What a group of tracks chooses its next tokens from: one row for each row of the tracks."""

    logits: Float[Tensor, "R V"]  # of the model
    processed: Float[Tensor, "R V"]  # after the processors
    rows: Sequence[int]  # the row of the batch that each is
    # Rows in which rounding could change what the processors exclude; None: not of interest.
    close: Bool[Tensor, " R"] | None


class Track(ABC):
    """The rows of one request in a batch. With `prior_rows`, each has a second one that gives the
    same answer to an empty prompt."""

    chooses: ClassVar[bool] = True  # whether it chooses its tokens, and needs the processors

    def __init__(self, request: Request, width: int, *, prior_rows: bool = False):
        self.request = request
        self.prior_rows = prior_rows
        self.nodes: list[Node | None] = [None] * width  # the hypothesis that each row continues
        self.tokens = [request.special_tokens.start] * width  # what each row reads next
        self.parents: Sequence[int] = range(width)  # the row of the last step that each continues
        self.steps = 0  # tokens chosen so far
        self.candidates: list[Candidate] = []  # finished answers
        self.active = True  # False: it has ended, but its rows are still in the batch
        self.done = False  # `candidates` are complete
        self.close = False  # rounding could have changed the last choice, which was not made
        # Its place in the batch:
        self.first_row = 0
        self.first_prior_row = 0
        self.clock = 0  # the step of the batch at which it chose its first token

    @property
    def width(self) -> int:
        """The number of rows, without those over the empty prompt."""
        return len(self.tokens)

    @property
    def needs_prior(self) -> bool:
        """Whether the rows over the empty prompt are still needed."""
        return self.prior_rows and self.steps < self.request.options.mmi_steps

    @property
    @abstractmethod
    def finished(self) -> Sequence[bool]:
        """For each row, whether it need not be computed any more, while the track is active."""

    @property
    def idle_rows(self) -> int:
        """Rows in the batch that need not be computed any more."""
        prior_rows = self.width if self.prior_rows else 0
        if not self.active:
            return self.width + prior_rows
        finished = sum(self.finished)
        if not self.prior_rows:
            return finished
        return finished + (finished if self.needs_prior else prior_rows)

    @abstractmethod
    def keep_rows(self, rows: Sequence[int]) -> None:
        """Keep these rows only; `tokens`, `nodes` and `parents` are shortened already."""

    def drop_finished(self) -> None:
        """Remove finished rows."""
        rows = [row for row, finished in enumerate(self.finished) if not finished]
        if len(rows) < self.width:
            self.parents = [self.parents[row] for row in rows]
            self.tokens = [self.tokens[row] for row in rows]
            self.nodes = [self.nodes[row] for row in rows]
            self.keep_rows(rows)
        self.prior_rows = self.needs_prior

    @classmethod
    @abstractmethod
    def advance(cls, tracks: Sequence[Track], scores: Scores, *, check: bool) -> None:
        """Choose the next token of every row of tracks with the same options. With `check`, a
        track in which rounding could change a choice is marked `close`, and nothing is chosen."""
