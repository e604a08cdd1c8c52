"""Characters: one token a character."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from regard.tokenizers.base import (
    UNKNOWN,
    Tokenizer,
    checked_entries,
    most_frequent,
)
from regard.tokenizers.text import replace_surrogates


class Characters(Tokenizer):
    """One token a character.

    >>> tokenizer = Characters.fit(["abba", "cab"])
    >>> tokenizer.encode("bad")
    [5, 4, 3]
    >>> tokenizer.decode([5, 4, 6])
    'bac'
    """

    kind = "characters"

    def __init__(self, characters: Sequence[str], *, lower: bool = False, turns: bool = False):
        self.characters = tuple(characters)
        self.lower = lower
        self.turns = turns
        self.size = self.num_special_tokens + len(self.characters)
        self._token = {
            character: self.num_special_tokens + i for i, character in enumerate(self.characters)
        }

    @classmethod
    def fit(
        cls,
        texts: Iterable[str],
        *,
        lower: bool = False,
        min_count: int = 1,
        alphabet: str | None = None,
        turns: bool = False,
    ) -> Characters:
        """A tokenizer of the characters in `texts`, or of those in `alphabet`, if given."""
        counts = [] if alphabet is not None else cls.count(texts, lower=lower)
        return cls.from_counts(
            counts, lower=lower, min_count=min_count, alphabet=alphabet, turns=turns
        )

    @classmethod
    def count(cls, texts: Iterable[str], *, lower: bool = False) -> list[Counter[str]]:
        """How often characters occur."""
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(replace_surrogates(text.lower() if lower else text))
        return [counts]

    @classmethod
    def from_counts(
        cls,
        counts: Sequence[Counter[str]],
        *,
        lower: bool = False,
        min_count: int = 1,
        alphabet: str | None = None,
        turns: bool = False,
    ) -> Characters:
        """A tokenizer of the characters that occur often enough, or of those in `alphabet`."""
        if alphabet is not None:
            return cls(list(dict.fromkeys(alphabet)), lower=lower, turns=turns)
        return cls(most_frequent(counts[0], min_count), lower=lower, turns=turns)

    def encode(self, text: str) -> list[int]:
        if self.lower:
            text = text.lower()
        return [self._token.get(character, UNKNOWN) for character in text]

    def pieces(self, tokens: Iterable[int]) -> Iterator[str]:
        first = self.num_special_tokens
        for token in tokens:
            yield self.characters[token - first] if token >= first else ""

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "lower": self.lower,
            "characters": list(self.characters),
            **({"turns": True} if self.turns else {}),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Characters:
        return cls(
            checked_entries(data["characters"]),
            lower=bool(data["lower"]),
            turns=data.get("turns") is True,
        )
