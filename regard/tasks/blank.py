"""Blank: a sentence with a blank for one word in, that word out.

The answer is a label over the vocabulary, predicted at the place of the blank."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from regard import metrics
from regard.data.corpus import Split
from regard.errors import InputError
from regard.tasks.sources import BLANK, TextSource
from regard.tasks.task import Batch, Input, Scores, Task, padded
from regard.tokenizers import NUM_SPECIAL_TOKENS, START, Labels, Words

MARK = START  # stands for the blank; no source has it otherwise
_WRITTEN = re.compile(r"_{2,}")
_STAND_IN = "\ue000"  # a private-use letter that replaces the blank while a text is split
NEAR = 5  # `accuracy_at_5` counts a word among this many answers


class Blank(Task):
    """Prediction of one hidden word, judged by accuracy.

    Source and target of an example are the same whole sentence. Training hides a random word of
    it each time. In held-out sentences a hash of the sentence chooses the word, so that it is
    always the same.
    """

    best = "perplexity"
    judged = 2000
    answers_are_text = False
    tokenizer: Words
    source: TextSource

    def __init__(self, *, tokenizer: Words, source: TextSource):
        self.tokenizer = tokenizer
        self.source = source
        # A word as it is written inside a sentence; `tokenizer.decode` would begin a new one.
        spellings = [tokenizer.surface.get(word, word) for word in tokenizer.words]
        self.labels = Labels(spellings)
        # (V,): True for words, False for punctuation and special tokens
        spoken = [any(character.isalnum() for character in word) for word in tokenizer.words]
        self.spoken = np.array([False] * NUM_SPECIAL_TOKENS + spoken)

    @property
    def answer_tokenizer(self) -> Labels:
        return self.labels

    # -- which word is hidden --

    def blanks(self, row: np.ndarray) -> np.ndarray:
        """The places that may be hidden: known words, or if there are none, known punctuation."""
        places = np.flatnonzero(self.spoken[row])
        return places if len(places) else np.flatnonzero(row >= NUM_SPECIAL_TOKENS)

    def fixed(self, row: np.ndarray) -> int:
        """The place that is hidden in a held-out sentence."""
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

    # -- rows of a corpus --

    def sources(self, rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        return self.source.rows([self._with_blank(row) for row in rows])

    def batch(self, sources: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> Batch:
        """The target of a row is the token of its sentence at the place of the blank."""
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

    # -- inputs and answers --

    def read_one(self, text: Input) -> np.ndarray:
        """The tokens of a sentence with one blank, for which MARK stands."""
        marks = len(_WRITTEN.findall(text)) if isinstance(text, str) else 1
        if marks != 1:
            raise InputError(
                "a sentence needs one blank" if marks == 0 else "one blank at a time",
                got=f"{text[:60]!r}, which has {marks or 'none'}",
                hint=f'write {BLANK} for one word: "the {BLANK} is on the table"',
            )
        text = _WRITTEN.sub(_STAND_IN, text) if isinstance(text, str) else text
        tokens = self.source.read_one(text)  # refuses what is too long, or no text
        words = self.tokenizer.split(text)
        if _STAND_IN not in words:  # the blank is a part of a word: "___-year-old"
            text = text.replace(_STAND_IN, f" {_STAND_IN} ")
            tokens, words = self.source.read_one(text), self.tokenizer.split(text)
        tokens[words.index(_STAND_IN)] = MARK
        return tokens

    def question(self, source: str, target: str) -> tuple[str, str]:
        row = np.asarray(self.tokenizer.encode(target))
        at = self.fixed(row)
        start, end = self.tokenizer.spans(target)[at]
        before, after = target[:start], target[end:]
        # An underscore beside the blank would be taken for a part of it.
        before = f"{before} " if before.endswith("_") else before
        after = f" {after}" if after.startswith("_") else after
        return before + BLANK + after, self.labels.decode([row[at]])

    def scores(self, answers: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
        return self.judge([[answer] for answer in answers], references)

    def judge(
        self, answers: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
    ) -> Scores:
        """The share of blanks whose word is the first answer, and of those whose word is among the
        first five, if every blank has so many answers (`search.candidates`)."""
        pairs = list(zip(answers, references, strict=True))
        names = {1: "accuracy"}
        if all(len(ranked) >= NEAR for ranked, _ in pairs):
            names[NEAR] = f"accuracy_at_{NEAR}"

        scores = {}
        for count, name in names.items():
            hits = [any(answer in right for answer in ranked[:count]) for ranked, right in pairs]
            scores[name] = metrics.share(hits)
        return Scores.of(scores)


def _hidden(row: np.ndarray, at: int | np.integer) -> np.ndarray:
    row = np.array(row)
    row[at] = MARK
    return row
