"""Words: one token a word or punctuation mark."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from regard.tokenizers.base import (
    UNKNOWN,
    Tokenizer,
    checked_entries,
    forget_rare,
    most_frequent,
)
from regard.tokenizers.text import replace_surrogates


class Words(Tokenizer):
    """One token a word or punctuation mark.

    With `lower`, words are encoded in lower case; `surface` has the usual spelling of those that
    are not written in lower case, and `decode` uses it.

    >>> tokenizer = Words.fit(["You know I don't, John.", "What don't you know?"])
    >>> tokenizer.decode(tokenizer.encode("i don't know, john. what?"))
    "I don't know, John. What?"
    """

    kind = "words"

    def __init__(
        self,
        words: Sequence[str],
        *,
        lower: bool = True,
        surface: dict[str, str] | None = None,
        turns: bool = False,
    ):
        self.words = tuple(words)
        self.lower = lower
        self.surface = dict(surface or {})
        self.turns = turns
        self.size = self.num_special_tokens + len(self.words)
        self._token = {word: self.num_special_tokens + i for i, word in enumerate(self.words)}

    @classmethod
    def fit(
        cls,
        texts: Iterable[str],
        *,
        size: int = 20_000,
        min_count: int = 1,
        lower: bool = True,
        turns: bool = False,
    ) -> Words:
        """A tokenizer of the most frequent words in `texts`, at most `size` tokens."""
        counts = cls.count(texts, lower=lower)
        return cls.from_counts(counts, size=size, min_count=min_count, lower=lower, turns=turns)

    @classmethod
    def count(cls, texts: Iterable[str], *, lower: bool = True) -> list[Counter[str]]:
        """How often words occur, and how often each spelling inside sentences, capitals
        included."""
        counts: Counter[str] = Counter()
        forms: Counter[str] = Counter()
        for text in texts:
            tokens = list(_split(replace_surrogates(text)))
            counts.update(token.lower() for token in tokens) if lower else counts.update(tokens)
            if lower and not text.isupper():
                forms.update(_inside_sentences(tokens))
            forget_rare(counts)
            forget_rare(forms)
        return [counts, forms]

    @classmethod
    def from_counts(
        cls,
        counts: Sequence[Counter[str]],
        *,
        size: int = 20_000,
        min_count: int = 1,
        lower: bool = True,
        turns: bool = False,
    ) -> Words:
        """A tokenizer of the most frequent words, at most `size` tokens."""
        word_counts, forms = counts
        special_tokens = cls([], turns=turns).size
        words = most_frequent(word_counts, min_count)[: max(size - special_tokens, 0)]
        surface = _usual_forms(words, forms) if lower else None
        return cls(words, lower=lower, surface=surface, turns=turns)

    def encode(self, text: str) -> list[int]:
        token = self._token
        return [token.get(word.lower() if self.lower else word, UNKNOWN) for word in _split(text)]

    def split(self, text: str) -> list[str]:
        """The words and marks that `encode` numbers."""
        return list(_split(text))

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Start and end of each word and mark in the text."""
        return [match.span() for match in _TOKEN.finditer(text)]

    def pieces(self, tokens: Iterable[int]) -> Iterator[str]:
        attached = True  # no space before the next word
        sentence_start = True
        for token in tokens:
            if token < self.num_special_tokens:
                yield ""
                continue
            word = self.words[token - self.num_special_tokens]
            space = "" if attached or word[0] in _ATTACHED_LEFT else " "
            attached = word in _ATTACHED_RIGHT
            if _is_word(word):
                yield space + self._spelling(word, sentence_start)
                sentence_start = False
            else:
                yield space + _STRAIGHT.get(word, word)
                sentence_start = sentence_start or _ends_sentence(word)

    def _spelling(self, word: str, sentence_start: bool) -> str:
        form = self.surface.get(word, word)
        if self.lower and sentence_start and form.islower():
            return form[0].upper() + form[1:]
        return form

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "lower": self.lower,
            "words": list(self.words),
            "surface": self.surface,
            **({"turns": True} if self.turns else {}),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Words:
        surface = data["surface"]
        if not isinstance(surface, dict) or not all(
            isinstance(form, str) and form for form in surface.values()
        ):
            raise ValueError("surface must map words to their written form")
        return cls(
            checked_entries(data["words"]),
            lower=bool(data["lower"]),
            surface=surface,
            turns=data.get("turns") is True,
        )


# A letter is whatever is neither space nor punctuation: \w would separate the vowel signs of Hindi
# or Thai from their words.
_LETTER = (
    r"[^\s!-/:-@\[-`{-~"  # ASCII
    r"\u00a1\u00a3\u00a7\u00ab\u00b6\u00b7\u00bb\u00bf\u060c\u061b\u061f\u0964"
    r"\u2010-\u2027\u2030-\u205e\u20ac"
    r"\u3001-\u3011\uff01-\uff0f\uff1a-\uff20]"
)
_TOKEN = re.compile(
    rf"\b(?:mr|mrs|ms|dr|st)\.(?=\s)"  # titles, whose point does not end a sentence
    rf"|(?<!{_LETTER})(?:[^\W\d_]\.){{2,}}"  # U.S., e.g.
    rf"|\d+(?:[.,:]\d+)+"  # 1,000.50 and 10:30
    rf"|{_LETTER}+(?:['’-]{_LETTER}+)*"  # don't, mother-in-law, 20th
    r"|\.{2,}|[!?]+|-{2,}|\S",
    re.IGNORECASE,
)
_ATTACHED_LEFT = frozenset(".,!?;:%)]}…”’»،؛؟।、。！？/")
_ATTACHED_RIGHT = frozenset("([{“‘«¿¡$£€#@/")
_STRAIGHT = {"“": '"', "”": '"', "‘": "'", "’": "'"}
_OPENING = {'"': "“", "'": "‘"}
_CLOSING = {'"': "”", "'": "’"}


def _split(text: str) -> Iterator[str]:
    """The words and marks of a text. A straight quote becomes an opening or a closing one,
    depending on the spaces around it.

    >>> list(_split('Say "don\\'t", the students\\' way...'))
    ['Say', '“', "don't", '”', ',', 'the', 'students', '’', 'way', '...']
    """
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token in _OPENING:
            yield _OPENING[token] if _opens(text, match.start(), match.end()) else _CLOSING[token]
        elif len(token) > 3 and not _is_word(token):
            yield token[:3]  # "?????" becomes "???"
        else:
            yield token.replace("’", "'") if len(token) > 1 else token


def _opens(text: str, start: int, end: int) -> bool:
    """Whether the straight quote text[start:end] is an opening one."""
    free_before = start == 0 or text[start - 1] in " \t\n([{“‘\"'-"
    return free_before and end < len(text) and not text[end].isspace()


def _is_word(token: str) -> bool:
    """Whether a token is a word or number, not a punctuation mark.

    >>> [_is_word(token) for token in ("don't", "U.S.", "3", "...", "”")]
    [True, True, True, False, False]
    """
    return any(character.isalnum() for character in token)


def _ends_sentence(token: str) -> bool:
    return token[0] in "!?。！？।؟" or token == "."


def _inside_sentences(tokens: Sequence[str]) -> Iterator[str]:
    """The words that do not begin a sentence: a capital letter belongs to the word itself."""
    sentence_start = True
    for token in tokens:
        if _is_word(token):
            if not sentence_start:
                yield token
            sentence_start = False
        elif _ends_sentence(token) or token in ("...", "…", ":"):
            sentence_start = True


def _usual_forms(words: Sequence[str], forms: Counter[str]) -> dict[str, str]:
    """The most frequent spelling of each lower-case word, if it is a different one."""
    best: dict[str, tuple[int, str]] = {}
    for form, count in forms.items():
        word = form.lower()
        best[word] = max(best.get(word, (0, "")), (count, form))
    usual = {word: form for word, (_, form) in best.items()}

    def spelling(word: str) -> str:
        if word in usual:
            return usual[word]
        # "I've", if it only ever begins a sentence, is spelled as "I" is.
        head, apostrophe, tail = word.partition("'")
        return usual.get(head, head) + apostrophe + tail

    return {word: form for word in sorted(words) if (form := spelling(word)) != word}
