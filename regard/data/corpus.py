"""A corpus as numbers: its training, validation and test split, and its tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.examples import Example
from regard.data.lines import Tally
from regard.data.ragged import RaggedArray
from regard.tokenizers import Tokenizer

SPLITS = ("train", "valid", "test")
COLUMNS: dict[str, type[np.generic]] = {
    "source": np.int32,  # or as the corpus's Form says
    "target": np.int32,
    "source-text": np.uint8,
    "target-text": np.uint8,
}
DIALOGUE = "dialogue"  # a further column, of corpora with dialogues
FREQUENCY = "train-target.frequency"  # the file of `Corpus.frequency`
ROWS = 8192  # targets counted at a time


@dataclass(frozen=True)
class Form:
    """What the sources of a corpus are as numbers: their type, and their shape if they all have the
    same."""

    dtype: type[np.generic]
    shape: tuple[int, ...] | None = None

    @property
    def is_text(self) -> bool:
        return self.dtype is np.int32

    def to_json(self) -> list[Any]:
        return [np.dtype(self.dtype).name, self.shape]


TOKENS = Form(np.int32)


@dataclass(frozen=True)
class Split:
    """Training, validation or test examples: tokens without special tokens (or pictures, or
    samples), and the texts they came from; a picture or sound has its name there.

    `dialogues` (n,) has for each example the number of its dialogue; None if no example of the
    corpus is from a dialogue. In a corpus that has both, examples from no dialogue have a number
    for each distinct source.
    """

    form: Form
    source: RaggedArray
    target: RaggedArray
    source_text: RaggedArray
    target_text: RaggedArray
    dialogues: np.ndarray | None = None

    @classmethod
    def open(cls, folder: Path, name: str, form: Form, *, dialogues: bool = False) -> Split:
        numbers = None
        if dialogues:
            numbers = RaggedArray(folder / f"{name}-{DIALOGUE}", np.int64).values
        return cls(
            form,
            source=RaggedArray(folder / f"{name}-source", form.dtype, form.shape),
            target=RaggedArray(folder / f"{name}-target", COLUMNS["target"]),
            source_text=RaggedArray(folder / f"{name}-source-text", COLUMNS["source-text"]),
            target_text=RaggedArray(folder / f"{name}-target-text", COLUMNS["target-text"]),
            dialogues=numbers,
        )

    def __len__(self) -> int:
        return len(self.source)

    def select(self, index: np.ndarray) -> Split:
        """The examples with these indices, without a copy of their values."""
        return Split(
            self.form,
            source=self.source.select(index),
            target=self.target.select(index),
            source_text=self.source_text.select(index),
            target_text=self.target_text.select(index),
            dialogues=None if self.dialogues is None else self.dialogues[index],
        )

    @property
    def groups(self) -> np.ndarray | None:
        """(n,): where each run of examples with the same source begins, such as the captions of one
        picture; None: each has its own."""
        if self.form.shape is None or not len(self):
            return None
        starts = np.flatnonzero(np.diff(self.source.ends, prepend=0))
        return None if len(starts) == len(self) else starts

    def gather_sources(self, index: Iterable[int | np.integer]) -> list[np.ndarray]:
        """The sources of examples; neighbours with the same source share one array."""
        sources: list[np.ndarray] = []
        last_end = None
        for i in index:
            end = self.source.ends[i]
            is_same = self.form.shape is not None and end == last_end
            sources.append(sources[-1] if is_same else self.source[i])
            last_end = end
        return sources

    def texts(self, index: int | np.integer) -> Example:
        return Example(self.source_name(index), self.target_text[index].tobytes().decode())

    def source_name(self, index: int | np.integer) -> str:
        """The source as text, or its name."""
        return self.source_text[index].tobytes().decode()


@dataclass(frozen=True)
class Corpus:
    train: Split
    valid: Split
    test: Split
    tokenizer: Tokenizer
    tally: Tally
    frequency: np.ndarray  # (V,): the number of training targets each token occurs in
    fingerprint: str  # of everything the corpus was prepared from


def read_frequency(folder: Path) -> np.ndarray:
    """The frequencies in a corpus's folder."""
    return np.fromfile(folder / FREQUENCY, "<i8")


def document_frequency(values: np.ndarray, lengths: np.ndarray, size: int) -> np.ndarray:
    """(V,): the number of rows each token occurs in. The rows follow one another in `values`.

    >>> document_frequency(np.array([2, 2, 1, 2]), np.array([3, 1]), size=4)
    array([0, 1, 2, 0])
    """
    counts = np.zeros(size, np.int64)
    first = 0
    for start in range(0, len(lengths), ROWS):
        rows = lengths[start : start + ROWS]
        tokens = values[first : first + rows.sum()].astype(np.int64)
        first += len(tokens)
        row_of_token = np.repeat(np.arange(len(rows)), rows)
        distinct = np.unique(row_of_token * size + tokens)
        counts += np.bincount(distinct % size, minlength=size)
    return counts
