"""Tracks: the search of one request inside a batch of many.

A track has one row of the batch for each hypothesis that it follows. At each step of the decoder,
all tracks with the same options choose their next tokens together (`advance`), so the number of
torch calls does not grow with the number of such requests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from regard.search.hypotheses import Candidate, Node
from regard.search.requests import Request


@dataclass(frozen=True)
class Scores:
    """The scores from which a group of tracks chooses its next tokens: the rows of the first track,
    then those of the second, and so on."""

    logits: Float[Tensor, "R V"]  # of the model
    processed: Float[Tensor, "R V"]  # the same after the logits processors
    rows: Sequence[int]  # the number of each row in the batch
    # Whether rounding could change what the processors exclude, by row; None: in no row.
    near_tie: list[bool] | None


class Track(ABC):
    """The search of one request: its rows in a batch, and the answers it has finished.

    With `prior_rows`, each row has a second one, which reads the same tokens given the empty
    prompt: MMI subtracts its log-probabilities.
    """

    chooses: ClassVar[bool] = True  # False: its tokens are given, and no processor is applied
    reorders: ClassVar[bool] = False  # whether a row may continue another row of the last step

    def __init__(self, request: Request, width: int, *, prior_rows: bool = False):
        self.request = request
        self.prior_rows = prior_rows
        self.nodes: list[Node | None] = [None] * width  # the hypothesis that each row continues
        self.tokens = [request.special_tokens.start] * width  # what each row reads next
        self.parents: Sequence[int] = range(width)  # the row of the last step that each continues
        self.running = [True] * width  # False: the row has finished its answer
        self.steps = 0  # tokens chosen so far
        self.candidates: list[Candidate] = []  # finished answers
        self.active = True  # False: it has ended, but its rows are still in the batch
        self.done = False  # `candidates` are complete
        self.near_tie = False  # rounding could change the next choice, which is not made
        self.idle_rows = 0  # the number of its rows that need not be computed any more
        # Its place in the batch:
        self.first_row = 0
        self.first_prior_row = 0
        self.joined_at = 0  # the step of the batch at which it chose its first token

    @property
    def width(self) -> int:
        """The number of rows, without those of the empty prompt."""
        return len(self.tokens)

    @property
    def needs_prior(self) -> bool:
        """Whether the rows of the empty prompt are still needed."""
        return self.prior_rows and self.steps < self.request.options.mmi_steps

    def count_idle_rows(self) -> None:
        """Set `idle_rows`, after a row or the whole track has ended."""
        computed = self.running.count(True) if self.active else 0
        needed = 2 * computed if self.needs_prior else computed
        self.idle_rows = self.width * (2 if self.prior_rows else 1) - needed

    def end(self) -> None:
        """Mark all rows of this track as idle."""
        self.active = False
        self.count_idle_rows()

    def drop_idle_rows(self) -> list[int]:
        """Remove the rows that need not be computed any more. Returns the numbers of the others."""
        rows = [row for row, running in enumerate(self.running) if running]
        self.parents = [self.parents[row] for row in rows]
        self.tokens = [self.tokens[row] for row in rows]
        self.nodes = [self.nodes[row] for row in rows]
        self.running = [True] * len(rows)
        self.prior_rows = self.needs_prior
        self.idle_rows = 0
        return rows

    @classmethod
    @abstractmethod
    def advance(cls, tracks: Sequence[Track], scores: Scores, *, detect_ties: bool) -> None:
        """Choose the next token of every row of tracks with the same options. With `detect_ties`, a
        track in which rounding could change the choice is marked `near_tie` and does not choose."""


def either(a: list[bool] | None, b: list[bool] | None) -> list[bool] | None:
    """`a or b`, element by element; None stands for all False."""
    if a is None or b is None:
        return a or b
    return [first or second for first, second in zip(a, b, strict=True)]
