"""What a task is: how its inputs and answers meet the model, and what its answers are judged by.
Nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from regard.data.batches import pad
from regard.data.cache import Split
from regard.masks import from_lengths
from regard.search import SpecialTokens
from regard.tokenizers import END, PAD, START, UNKNOWN, Tokenizer

# what a person gives: text; a file, PIL image or array of a picture; a file or (samples, rate) of a
# sound
Input = Any


def is_sound(given: object) -> bool:
    """Whether this is (samples, rate): an array or tensor, and a number.

    >>> is_sound((np.zeros(3), 8000)), is_sound(("a prompt", "another"))
    (True, False)
    """
    match given:
        case (np.ndarray() | Tensor(), int() | float() | np.integer() | np.floating()):
            return isinstance(given, tuple)
    return False


class Batch(NamedTuple):
    """What `Model.loss` reads: a padded source, the tokens the decoder is given and those it
    should answer."""

    raw: Shaped[Tensor, "R ..."]
    mask: Bool[Tensor, "R S"]
    tokens: Int[Tensor, "B T"]
    targets: Int[Tensor, "B T"]
    real: Bool[Tensor, "B T"]
    rows: Int[Tensor, " B"] | None = None  # which row of raw each has; None: raw has one for each


class Scores(NamedTuple):
    """What answers reach: numbers, which are logged and may choose the best weights, and what
    else there is to see."""

    numbers: dict[str, float]
    tables: Mapping[str, Any] = {}


class Task(ABC):
    tokenizer: Tokenizer  # of the answers, and of the source if that is text
    special_tokens: SpecialTokens = SpecialTokens(start=START, end=END, never=(PAD, START, UNKNOWN))
    best: ClassVar[str]  # the score that chooses the best weights, unless a recipe names another
    watched: ClassVar[bool] = (
        True  # answers are judged at every validation, not only where they choose the weights
    )
    judged: ClassVar[int] = 200  # examples that are answered then
    answers_are_text: ClassVar[bool] = True  # so that perplexity a word means something

    @abstractmethod
    def read(self, inputs: Sequence[Input]) -> tuple[Tensor, Tensor]:
        """What people give, as the model's frontend reads it: raw (B, …) and mask (B, S).
        Refuses what it cannot take."""

    @abstractmethod
    def sources(self, rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        """The same of rows of a cached corpus."""

    @abstractmethod
    def batch(self, sources: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> Batch:
        """Rows of a cached corpus, to learn from."""

    @abstractmethod
    def nothing(self) -> tuple[Tensor, Tensor]:
        """An input that says nothing, on which the decoder is a language model of answers."""

    def augment(
        self, sources: Sequence[np.ndarray], draw: np.random.Generator
    ) -> Sequence[np.ndarray]:
        """What training shows of its sources; every draw is made with `draw`."""
        return sources

    def augment_pairs(
        self,
        sources: Sequence[np.ndarray],
        targets: Sequence[np.ndarray],
        draw: np.random.Generator,
    ) -> Sequence[np.ndarray]:
        """The same, where what may be done to a source depends on its answer."""
        return self.augment(sources, draw)

    @abstractmethod
    def lengths(self, part: Split) -> tuple[np.ndarray, np.ndarray]:
        """What each example costs in a batch, in places of the source and of the target."""

    @abstractmethod
    def place_names(self, given: Input) -> list[str]:
        """What each place of the memory stands for."""

    @abstractmethod
    def scores(self, answers: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
        """What answers are judged by, beside their likelihood."""

    def baselines(self, references: Sequence[Sequence[str]]) -> dict[str, dict[str, float]]:
        """Scores that answers reach without looking at the input, by what makes them, where that
        says something."""
        return {}

    def judge(
        self, answers: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
    ) -> Scores:
        """The same, of the best answers to each input, as many as the search gives."""
        return self.scores([best for best, *_ in answers], references)

    def question(self, source: str, target: str) -> tuple[str, str]:
        """What a held-out example asks a person, and the right answer, from its two texts."""
        return source, target

    def of_references(self, references: Sequence[str]) -> dict[str, float]:
        """What the references themselves reach, where that says something."""
        return {}


def padded(rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Tokens (B, S) filled up with padding, and which of them are real (B, S)."""
    tokens, lengths = pad(rows)
    return torch.from_numpy(tokens), from_lengths(torch.from_numpy(lengths))


def text_batch(raw: Tensor, mask: Tensor, targets: Sequence[np.ndarray]) -> Batch:
    """A batch whose answers are text: the decoder reads the start mark and the tokens, and says
    the tokens and the end."""
    tokens, real = padded([np.concatenate([[START], row]) for row in targets])
    answers, _ = padded([np.append(row, END) for row in targets])
    return Batch(raw, mask, tokens, answers, real)
