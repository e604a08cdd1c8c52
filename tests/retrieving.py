"""A real index of random training answers."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from regard.data.corpus import COLUMNS, TOKENS, Split
from regard.data.ragged import RaggedArrayWriter
from regard.retrieval import Retrieval
from regard.tokenizers import Characters, Tokenizer


def split_of(prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> Split:
    """Examples as a corpus has them on disk; their texts are empty."""
    with tempfile.TemporaryDirectory() as folder:
        rows = {"source": prompts, "target": answers}
        for column, dtype in COLUMNS.items():
            with RaggedArrayWriter(Path(folder) / f"train-{column}", dtype) as writer:
                writer.extend(rows.get(column, [[]] * len(prompts)))
        return Split.open(Path(folder), "train", TOKENS)


def tokenizer_of(size: int, *, turns: bool = False) -> Tokenizer:
    special = 6 if turns else 4
    return Characters([chr(97 + i) for i in range(size - special)], turns=turns)


def random_rows(count: int, longest: int, first: int, size: int, seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [
        [draw.randrange(first, size) for _ in range(draw.randrange(1, longest + 1))]
        for _ in range(count)
    ]


def random_retrieval(size: int, *, examples: int = 29) -> Retrieval:
    """An index of random prompts and answers over a vocabulary of this size."""
    prompts = random_rows(examples, 13, 4, size, seed=1)
    answers = random_rows(examples, 7, 4, size, seed=2)
    return Retrieval.of(split_of(prompts, answers), tokenizer_of(size))


def as_array(row: Sequence[int]) -> np.ndarray:
    return np.array(row, np.int64)
