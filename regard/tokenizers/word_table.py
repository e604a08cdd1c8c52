"""A table of the tokens of words, so that each word of many texts is encoded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from regard.tokenizers.base import flat_rows

MOST_WORDS = 250_000  # that a table remembers: about 40 MB
LIST = 100  # words that are encoded together

# Before the first word of a text. Other words have a space before them.
_FIRST = "\0"

EncodeAll = Callable[[list[str]], list[list[int]]]


class WordTable:
    """Encodes texts by word. `encode_all` encodes texts, and `line_break` is its token of a line
    break, which is never part of another token.

    All tokens are in one array, one word after the other, and the tokens of many texts are
    gathered from it at once. Words are encoded in lists with a word a line: a call of the library
    costs more than a word.
    """

    def __init__(self, encode_all: EncodeAll, line_break: int):
        self._encode_all = encode_all
        self._line_break = line_break
        self._clear()

    def _clear(self) -> None:
        self._numbers = _Numbers()
        self._tokens = np.empty(0, np.int32)
        self._ends = np.zeros(2, np.int64)  # word i is from ends[i] to ends[i + 1]; 0 is empty

    def rows(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray] | None:
        """The tokens of texts, and where each text ends; None if a text is not words with single
        spaces between them."""
        if not texts:
            return np.empty(0, np.int32), np.empty(0, np.int64)
        joined = _FIRST + f" {_FIRST}".join(texts)
        words = joined.split()
        if " ".join(words) != joined or joined.count(_FIRST) != len(texts):
            return None
        if len(self._numbers) > MOST_WORDS:
            self._clear()
        numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int64, len(words))
        self._encode_new()

        starts = self._ends[numbers]
        lengths = self._ends[numbers + 1] - starts
        ends = np.cumsum(lengths)
        places = np.arange(int(ends[-1])) + np.repeat(starts - (ends - lengths), lengths)
        word_counts = np.fromiter((text.count(" ") for text in texts), np.int64, len(texts))
        return self._tokens[places], ends[np.cumsum(word_counts + 1) - 1]

    def _encode_new(self) -> None:
        """Encode the words that were numbered since the last call."""
        words = self._numbers.new
        if not words:
            return
        lines = [f"{_with_space(word)}\n" for word in words]
        lists = ["".join(lines[i : i + LIST]) for i in range(0, len(lines), LIST)]
        tokens, _ = flat_rows(self._encode_all(lists))
        is_break = tokens == self._line_break
        ends = np.flatnonzero(is_break) - np.arange(len(words))  # without the breaks
        self._ends = np.append(self._ends, self._ends[-1] + ends)
        self._tokens = np.append(self._tokens, tokens[~is_break])
        words.clear()


def is_regular(text: str) -> bool:
    """Whether a text is words with single spaces between them, so that a table can encode it.

    >>> is_regular("two words"), is_regular("two  words"), is_regular("")
    (True, False, True)
    """
    return _FIRST not in text and " ".join(text.split()) == text


def interleave(
    is_first: np.ndarray,
    first: tuple[np.ndarray, np.ndarray],
    second: tuple[np.ndarray, np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """The rows of two ragged arrays in one: where `is_first`, the next row of the first one.

    >>> first = np.array([5, 6]), np.array([2])
    >>> interleave(np.array([False, True]), first, (np.array([7]), np.array([1])))
    (array([7, 5, 6]), array([1, 3]))
    """
    lengths = np.empty(len(is_first), np.int64)
    lengths[is_first] = np.diff(first[1], prepend=0)
    lengths[~is_first] = np.diff(second[1], prepend=0)
    is_of_first = np.repeat(is_first, lengths)
    values = np.empty(len(is_of_first), first[0].dtype)
    values[is_of_first] = first[0]
    values[~is_of_first] = second[0]
    return values, np.cumsum(lengths)


class _Numbers(dict[str, int]):
    """Words by number, in the order in which they were first looked up."""

    def __init__(self) -> None:
        super().__init__({_FIRST: 0})  # an empty text
        self.new: list[str] = []

    def __missing__(self, word: str) -> int:
        number = len(self)
        self[word] = number
        self.new.append(word)
        return number


def _with_space(word: str) -> str:
    return word[1:] if word[0] == _FIRST else f" {word}"
