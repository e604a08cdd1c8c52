"""The rules of a corpus: which examples are kept, and which are held out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from regard.data.examples import DialogueExample, Example, turns_of
from regard.data.lines import EMPTY
from regard.data.reading import word_count
from regard.errors import DataError
from regard.tokenizers import plain

HELD_OUT = "also held out"  # why a training example is skipped: its prompt is in another split
TOO_MANY_WORDS = "too many words"
SHARE = "more than its share"

# Why an encoded example is left out, by number; 0: it is kept.
REASONS = (
    "",
    EMPTY,
    "label not in training",
    "too many tokens",
    "unknown word",
    "no known word",
)


@dataclass(frozen=True)
class Rules:
    """Which examples are kept, and which share of them is held out."""

    valid: float
    test: float
    max_source: int
    max_target: int
    max_words: int | None = None
    drop_unknown: bool = False
    plain_source: bool = False
    known: int = 0  # least number of known words in a source

    def __post_init__(self) -> None:
        if self.valid < 0 or self.test < 0 or self.valid + self.test >= 1:
            raise DataError(
                "nothing is left to train on",
                where="data",
                got=f"valid {self.valid}, test {self.test}",
            )

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value or name != "known"}

    def is_short(self, example: Example) -> bool:
        """Whether no side has too many words. Of a history only the last turn counts: earlier
        ones are shortened, if need be."""
        limit = self.max_words
        if limit is None:
            return True
        sides = [side for side in example if isinstance(side, str)]
        if isinstance(example, DialogueExample):
            sides[0] = turns_of(example)[0][-1]
        return all(word_count(side) <= limit for side in sides)

    def prompt(self, text: str) -> str:
        """A source as the model reads it."""
        return plain(text) if self.plain_source else text

    def refusals(self, source: Side, target: Side, *, labels: bool, text: bool) -> np.ndarray:
        """(n,): for each encoded example the number of the first reason to leave it out, in the
        order of REASONS."""
        reasons = np.zeros(len(target.lengths), np.uint8)

        def refuse(where: np.ndarray, reason: str) -> None:
            reasons[where & (reasons == 0)] = REASONS.index(reason)

        refuse((source.lengths == 0) | (target.lengths == 0), EMPTY)
        if labels:
            refuse(target.unknown > 0, "label not in training")
        refuse(target.lengths > self.max_target, "too many tokens")
        if not text:
            return reasons
        refuse(source.lengths > self.max_source, "too many tokens")
        if self.drop_unknown:
            refuse(source.unknown + target.unknown > 0, "unknown word")
        refuse(source.lengths - source.unknown < self.known, "no known word")
        return reasons


@dataclass(frozen=True)
class Side:
    """The sources or the targets of examples: their lengths, and their numbers of unknown
    tokens."""

    lengths: np.ndarray
    unknown: np.ndarray
