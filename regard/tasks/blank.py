"""Blank: a sentence with a mark for one word in, that word out. It is a label over the
vocabulary, read at the mark."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from regard import metrics
from regard.data.cache import Split
from regard.errors import InputError
from regard.tasks.sources import TextSource
from regard.tasks.task import Batch, Input, Scores, Task, padded
from regard.tokenizers import MARKS, START, Labels, Words

BLANK = "___"
MARK = START  # no source has it otherwise: here the answer begins
_WRITTEN = re.compile(r"_{2,}")
_STAND_IN = "\ue000"  # a letter that no text has, while words are told apart
NEAR = 5  # answers among which a near miss may be


class Blank(Task):
    """A row of the corpus is a whole sentence on both sides. Training hides another word of it
    each time, and where nothing is hidden yet a word is chosen by the sentence itself, so that
    held-out blanks are always the same."""

    best = "perplexity"
    judged = 2000
    answers_are_text = False

    def __init__(self, *, tokenizer: Words, source: TextSource):
        self.words, self.source = tokenizer, source
        self.tokenizer = Labels(
            [tokenizer.surface.get(word, word) for word in tokenizer.words], text=tokenizer
        )
        spoken = [any(character.isalnum() for character in word) for word in tokenizer.words]
        self.spoken = np.array(
            [False] * MARKS + spoken
        )  # (V,): a word rather than a comma or a mark

    # -- which word is hidden ------------------------------------------------------------------------------------------

    def blanks(self, row: np.ndarray) -> np.ndarray:
        """The places that may be hidden: known words, or if there is none, what else is known."""
        found = np.flatnonzero(self.spoken[row])
        return found if len(found) else np.flatnonzero(row >= MARKS)

    def fixed(self, row: np.ndarray) -> int:
        """The place that is hidden when nothing is drawn."""
        places = self.blanks(row)
        return int(places[zlib.crc32(row.astype("<i4").tobytes()) % len(places)])

    def augment(
        self, sources: Sequence[np.ndarray], draw: np.random.Generator
    ) -> Sequence[np.ndarray]:
        places = [draw.choice(self.blanks(row)) for row in sources]
        return [
            _hidden(row, at)
            for row, at in zip(self.source.augment(sources, draw), places, strict=True)
        ]

    def _with_blank(self, row: np.ndarray) -> np.ndarray:
        return row if (row == MARK).any() else _hidden(row, self.fixed(row))

    # -- the model's side ----------------------------------------------------------------------------------------------

    def sources(self, rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        return self.source.rows([self._with_blank(row) for row in rows])

    def batch(self, sources: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> Batch:
        """The target of a row is what its sentence has where the source has the mark."""
        raw, mask = self.sources(sources)
        whole, _ = padded(targets)
        words = whole.gather(1, (raw == MARK).int().argmax(1)[:, None])
        return Batch(
            raw,
            mask,
            torch.full_like(words, START),
            words,
            torch.ones_like(words, dtype=torch.bool),
        )

    def nothing(self) -> tuple[Tensor, Tensor]:
        raise InputError(
            "a blank has no prior to subtract", where="search.mmi_weight", hint="set it to 0"
        )

    def lengths(self, part: Split) -> tuple[np.ndarray, np.ndarray]:
        return self.source.lengths(part), np.ones(len(part), np.int64)

    # -- people's side -------------------------------------------------------------------------------------------------

    def read(self, inputs: Sequence[Input]) -> tuple[Tensor, Tensor]:
        return self.source.rows([self.tokens(given) for given in inputs])

    def tokens(self, given: Input) -> np.ndarray:
        """A sentence with one blank as tokens, the mark among them."""
        marks = len(_WRITTEN.findall(given)) if isinstance(given, str) else 1
        if marks != 1:
            raise InputError(
                "a sentence needs one blank" if marks == 0 else "one blank at a time",
                got=f"{given[:60]!r}, which has {marks or 'none'}",
                hint=f'write {BLANK} for one word: "the {BLANK} is on the table"',
            )
        given = _WRITTEN.sub(_STAND_IN, given) if isinstance(given, str) else given
        tokens = self.source.tokens(given)  # refuses what is too long, or no text
        words = self.words.split(given)
        if _STAND_IN not in words:  # it hangs on a word: "___-year-old"
            given = given.replace(_STAND_IN, f" {_STAND_IN} ")
            tokens, words = self.source.tokens(given), self.words.split(given)
        tokens[words.index(_STAND_IN)] = MARK
        return tokens

    def question(self, source: str, target: str) -> tuple[str, str]:
        row = np.asarray(self.words.encode(target))
        at = self.fixed(row)
        start, end = self.words.spans(target)[at]
        before, after = target[:start], target[end:]
        before = (
            f"{before} " if before.endswith("_") else before
        )  # which would be taken for a part of the blank
        after = f" {after}" if after.startswith("_") else after
        return before + BLANK + after, self.tokenizer.decode([row[at]])

    def place_names(self, given: Input) -> list[str]:
        tokens = self.tokens(given).tolist()
        return [
            *(BLANK if token == MARK else self.words.decode([token]) for token in tokens),
            "(end)",
        ]

    def scores(self, answers: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
        return self.judge([[answer] for answer in answers], references)

    def judge(
        self, answers: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
    ) -> Scores:
        """The share of blanks whose word is the first answer; and whose word is among the first
        few, if all have so many (`search.candidates`)."""
        pairs = list(zip(answers, references, strict=True))
        names = {1: "accuracy"} | (
            {NEAR: f"accuracy_at_{NEAR}"} if all(len(best) >= NEAR for best, _ in pairs) else {}
        )
        near = {
            name: [any(one in right for one in best[:n]) for best, right in pairs]
            for n, name in names.items()
        }
        return Scores(
            {name: metrics.accuracy(found, [True] * len(pairs)) for name, found in near.items()}
        )


def _hidden(row: np.ndarray, at: int | np.integer) -> np.ndarray:
    row = np.array(row)
    row[at] = MARK
    return row
