"""Chat: text in, text out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard import metrics
from regard.codecs import END, PAD, START, UNKNOWN, Codec, plain
from regard.data.batches import pad
from regard.errors import InputError
from regard.masks import from_lengths
from regard.search import Marks

LONGEST = 50_000  # characters of a prompt
MARKS = Marks(start=START, end=END, never=(PAD, START, UNKNOWN))


class Batch(NamedTuple):
    """What `Model.loss` reads: a padded source, the tokens the decoder is given and those it should answer."""

    raw: Int[Tensor, "B S"]
    mask: Bool[Tensor, "B S"]
    tokens: Int[Tensor, "B T"]
    targets: Int[Tensor, "B T"]
    real: Bool[Tensor, "B T"]


class Chat:
    """How text meets the model. A source is its tokens and the end mark; an empty prompt is the end mark alone."""

    def __init__(self, *, codec: Codec, plain_source: bool, max_source: int):
        self.codec, self.plain_source, self.max_source = codec, plain_source, max_source

    def read(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Prompts as the model reads them: tokens (B, S) and mask (B, S)."""
        return self.sources([self._prompt(text) for text in texts])

    def _prompt(self, text: str) -> np.ndarray:
        if not text.strip():
            raise InputError("the prompt is empty", hint="type a sentence")
        if len(text) > LONGEST:  # do not tokenise a book to find that it is too long
            raise InputError("the prompt is too long", got=f"{len(text):,} characters", hint=self._limit)
        tokens = self.codec.encode(plain(text) if self.plain_source else text)
        if len(tokens) > self.max_source:
            raise InputError(
                "the prompt is too long", where=f"{text[:40]!r}…", got=f"{len(tokens):,} tokens", hint=self._limit
            )
        return np.asarray(tokens, dtype=np.int64)

    def places(self, text: str) -> list[str]:
        """What each place of the memory of a prompt stands for, the end mark last."""
        return [*(self.codec.decode([token]).strip() for token in self._prompt(text).tolist()), "(end)"]

    @property
    def _limit(self) -> str:
        return f"this model reads at most {self.max_source:,} tokens"

    def sources(self, rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        return padded([np.append(row, END) for row in rows])

    def batch(self, sources: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> Batch:
        raw, mask = self.sources(sources)
        tokens, real = padded([np.concatenate([[START], row]) for row in targets])
        answers, _ = padded([np.append(row, END) for row in targets])
        return Batch(raw, mask, tokens, answers, real)

    def scores(self, answers: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
        """What a chatbot's answers are judged by, beside perplexity."""
        return {
            "distinct_1": metrics.distinct(answers, 1),
            "distinct_2": metrics.distinct(answers, 2),
            "bland_share": metrics.bland_share(answers),
            "repetition": metrics.repetition(answers),
            "unique_share": metrics.unique_share(answers),
            "mean_length": metrics.mean_length(answers),
            "chrf": metrics.chrf(answers, references),
        }


def hide(sources: Sequence[np.ndarray], draw: np.random.Generator, *, words: float, prompts: float) -> list[np.ndarray]:
    """Training sources with a share of their tokens made unknown, and a share of them made empty."""
    hidden = []
    for row in sources:
        if prompts and draw.random() < prompts:
            row = row[:0]
        elif words:
            row = np.where(draw.random(len(row)) < words, UNKNOWN, row)
        hidden.append(row)
    return hidden


def padded(rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Tokens (B, S) filled up with padding, and which of them are real (B, S)."""
    tokens, lengths = pad(rows)
    return torch.from_numpy(tokens), from_lengths(torch.from_numpy(lengths))
