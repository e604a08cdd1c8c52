"""What every tokenizer has in common: its interface, the special tokens, and counting entries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, ClassVar

import numpy as np

PAD, START, END, UNKNOWN = 0, 1, 2, 3
NUM_SPECIAL_TOKENS = 4  # of every tokenizer
OTHER_TURN, SELF_TURN = 4, 5  # further ones, of tokenizers for histories (`turns`)

# Distinct entries that a fit keeps at most, so that a huge corpus does not fill the memory.
MAX_COUNTED = 2_000_000


class Tokenizer(ABC):
    """Text to tokens and back.

    `encode` never produces a special token except UNKNOWN; `decode` ignores special tokens.
    """

    kind: ClassVar[str]
    size: int  # of the vocabulary, special tokens included
    turns: bool = False  # whether it has the two turn tokens

    @property
    def turn_tokens(self) -> tuple[int, ...]:
        """The tokens that begin a turn of the other speaker and of oneself, if it has them."""
        return (OTHER_TURN, SELF_TURN) if self.turns else ()

    @property
    def num_special_tokens(self) -> int:
        """The number of special tokens, and so the first token that is not one."""
        return NUM_SPECIAL_TOKENS + len(self.turn_tokens)

    @property
    def source_tokenizer(self) -> Tokenizer:
        """The tokenizer of the source, if that is text: this one, unless answers are labels."""
        return self

    @property
    def source_size(self) -> int:
        """The size of the source's vocabulary; 0 if the source is not text."""
        return self.size

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without start and end."""

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text."""
        return [self.encode(text) for text in texts]

    def encode_rows(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of all texts, one text after the other, and where each text ends."""
        return flat_rows(self.encode_many(texts))

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens. More tokens only ever append to it, so answers can be streamed."""
        return "".join(self.pieces(tokens))

    @abstractmethod
    def pieces(self, tokens: Iterable[int]) -> Iterator[str]:
        """The text that each token appends to the text of the tokens before it.

        A piece comes as soon as its token does, so `tokens` may be an iterator that is still being
        filled. A token that ends inside a character has an empty piece; the whole character
        belongs to the token that completes it.
        """

    @abstractmethod
    def to_json(self) -> dict[str, Any]: ...

    @classmethod
    @abstractmethod
    def from_json(cls, data: dict[str, Any]) -> Tokenizer: ...


def flat_rows(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Lists of tokens as one array, and where each list ends.

    >>> flat_rows([[5, 6], [], [7]])
    (array([5, 6, 7], dtype=int32), array([2, 2, 3]))
    """
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.fromiter(chain.from_iterable(rows), np.int32, total), ends


def most_frequent(counts: Counter[str], min_count: int) -> list[str]:
    """Entries that occur at least `min_count` times, the most frequent first.

    Ties are in alphabetical order, so that a fit does not depend on the order of the texts.
    """
    frequent = (item for item in counts.items() if item[1] >= min_count)
    return [entry for entry, _ in sorted(frequent, key=lambda item: (-item[1], item[0]))]


def forget_rare(counts: Counter[str]) -> None:
    """Remove the rarest entries until at most MAX_COUNTED are left."""
    threshold = 1
    while len(counts) > MAX_COUNTED:
        for entry in [entry for entry, count in counts.items() if count <= threshold]:
            del counts[entry]
        threshold *= 2


def checked_entries(value: Any) -> list[str]:
    """A vocabulary as read from JSON: distinct, non-empty strings."""
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise ValueError("expected a list of non-empty strings")
    if len(set(value)) != len(value):
        raise ValueError("an entry occurs twice")
    return value
