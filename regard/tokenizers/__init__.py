"""Text to numbers and back: words, characters, pieces of words, or labels. In every tokenizer
0-3 are the four marks."""

from __future__ import annotations

import codecs
import json
import re
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from tokenizers import Tokenizer as HubTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from regard.errors import BundleError, DataError, InputError, did_you_mean

PAD, START, END, UNKNOWN = 0, 1, 2, 3
MARKS = 4  # the first token that is not a mark

# distinct entries a fit keeps at most, so that a huge corpus does not fill the memory
_COUNTED = 2_000_000


class Tokenizer(ABC):
    """Text to tokens and back. Special tokens are never produced by `encode` (except UNKNOWN)
    and are ignored by `decode`."""

    kind: ClassVar[str]
    size: int  # the vocabulary, marks included

    @property
    def reads(self) -> Tokenizer:
        """The tokenizer of the source, where that is text: the same, unless answers are labels."""
        return self

    @property
    def source_size(self) -> int:
        """The vocabulary of the source; 0: it is not text."""
        return self.size

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without start and end."""

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    @abstractmethod
    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens; more tokens only ever add to it, so that answers can be streamed."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]: ...

    @classmethod
    @abstractmethod
    def from_json(cls, data: dict[str, Any]) -> Tokenizer: ...


class Characters(Tokenizer):
    """
    >>> tokenizer = Characters.fit(["abba", "cab"])
    >>> tokenizer.encode("bad")
    [5, 4, 3]
    >>> tokenizer.decode([5, 4, 6])
    'bac'
    """

    kind = "characters"

    def __init__(self, characters: Sequence[str], *, lower: bool = False):
        self.characters, self.lower = tuple(characters), lower
        self.size = MARKS + len(self.characters)
        self._token = {character: MARKS + i for i, character in enumerate(self.characters)}

    @classmethod
    def fit(
        cls,
        texts: Iterable[str],
        *,
        lower: bool = False,
        min_count: int = 1,
        alphabet: str | None = None,
    ) -> Characters:
        if alphabet is not None:
            return cls(list(dict.fromkeys(alphabet)), lower=lower)
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(_mended(text.lower() if lower else text))
        return cls(_frequent(counts, min_count), lower=lower)

    def encode(self, text: str) -> list[int]:
        token = self._token
        return [
            token.get(character, UNKNOWN) for character in (text.lower() if self.lower else text)
        ]

    def decode(self, tokens: Iterable[int]) -> str:
        return "".join(self.characters[token - MARKS] for token in tokens if token >= MARKS)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "lower": self.lower, "characters": list(self.characters)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Characters:
        return cls(_strings(data["characters"]), lower=bool(data["lower"]))


class Words(Tokenizer):
    """Words and punctuation marks. Lower-cased words come back as they are usually written.

    >>> tokenizer = Words.fit(["You know I don't, John.", "What don't you know?"])
    >>> tokenizer.decode(tokenizer.encode("i don't know, john. what?"))
    "I don't know, John. What?"
    """

    kind = "words"

    def __init__(
        self, words: Sequence[str], *, lower: bool = True, surface: dict[str, str] | None = None
    ):
        self.words, self.lower, self.surface = tuple(words), lower, dict(surface or {})
        self.size = MARKS + len(self.words)
        self._token = {word: MARKS + i for i, word in enumerate(self.words)}

    @classmethod
    def fit(
        cls, texts: Iterable[str], *, size: int = 20_000, min_count: int = 1, lower: bool = True
    ) -> Words:
        counts: Counter[str] = Counter()
        forms: Counter[str] = Counter()  # as written, where writing says something about the word
        for text in texts:
            tokens = list(_split(_mended(text)))
            counts.update(token.lower() for token in tokens) if lower else counts.update(tokens)
            if lower and not text.isupper():
                forms.update(_inside_sentences(tokens))
            _forget_rare(counts)
            _forget_rare(forms)
        words = _frequent(counts, min_count)[: max(size - MARKS, 0)]
        return cls(words, lower=lower, surface=_usual_forms(words, forms) if lower else None)

    def encode(self, text: str) -> list[int]:
        token = self._token
        return [token.get(word.lower() if self.lower else word, UNKNOWN) for word in _split(text)]

    def split(self, text: str) -> list[str]:
        """The words and marks that `encode` makes numbers of."""
        return list(_split(text))

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where each of them stands in the text."""
        return [match.span() for match in _TOKEN.finditer(text)]

    def decode(self, tokens: Iterable[int]) -> str:
        parts: list[str] = []
        glued = starting = True  # no space before the next word; the next word begins a sentence
        for word in (self.words[token - MARKS] for token in tokens if token >= MARKS):
            if not (glued or word[0] in _ATTACHED_LEFT):
                parts.append(" ")
            glued = word in _ATTACHED_RIGHT
            if _is_word(word):
                parts.append(self._written(word, starting))
                starting = False
            else:
                parts.append(_STRAIGHT.get(word, word))
                starting = starting or _ends_sentence(word)
        return "".join(parts)

    def _written(self, word: str, starting: bool) -> str:
        form = self.surface.get(word, word)
        return form[0].upper() + form[1:] if self.lower and starting and form.islower() else form

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "lower": self.lower,
            "words": list(self.words),
            "surface": self.surface,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Words:
        surface = data["surface"]
        if not isinstance(surface, dict) or not all(
            isinstance(form, str) and form for form in surface.values()
        ):
            raise ValueError("surface must map words to their written form")
        return cls(_strings(data["words"]), lower=bool(data["lower"]), surface=surface)


class BPE(Tokenizer):
    """Byte-level byte-pair encoding: frequent words are one token, rare ones several, and nothing
    is ever unknown.

    >>> tokenizer = BPE.fit(["hello hello hello"], size=270)
    >>> tokenizer.decode(tokenizer.encode("Hello, wörld <pad>"))
    'Hello, wörld <pad>'
    """

    kind = "bpe"

    # Byte-level BPE writes every byte as one of 256 characters, none of which is a space: text can
    # never become a mark.
    _marks: ClassVar = ["mark pad", "mark start", "mark end", "mark unknown"]

    def __init__(self, tokenizer: HubTokenizer):
        self.size = tokenizer.get_vocab_size(with_added_tokens=False)
        self._tokenizer = tokenizer
        byte = _bytes_of_characters()
        pieces = sorted(
            (token, piece) for piece, token in tokenizer.get_vocab(with_added_tokens=False).items()
        )
        if [token for token, _ in pieces] != list(range(self.size)) or [
            p for _, p in pieces[:MARKS]
        ] != self._marks:
            raise ValueError("tokens must be numbered from 0, the four marks first")
        self._bytes = [
            b"" if token < MARKS else bytes(byte[c] for c in piece) for token, piece in pieces
        ]

    @classmethod
    def fit(cls, texts: Iterable[str], *, size: int = 4000, min_count: int = 2) -> BPE:
        if size < MARKS + 256:
            raise InputError(
                "too few pieces", where="size", got=size, hint=f"use {MARKS + 256} or more"
            )
        learner = HubTokenizer(models.BPE())
        learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        learner.decoder = (
            decoders.ByteLevel()
        )  # not ours, which also streams, but others may read the JSON
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            min_frequency=min_count,
            show_progress=False,
            special_tokens=cls._marks,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        )
        learner.train_from_iterator((_mended(text) for text in texts), trainer)
        learned = json.loads(learner.to_str())
        learned[
            "added_tokens"
        ] = []  # an added token is looked for in the text; ours are only numbers
        return cls(HubTokenizer.from_str(json.dumps(learned)))

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(_mended(text), add_special_tokens=False).ids

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        encoded = self._tokenizer.encode_batch_fast(
            [_mended(text) for text in texts], add_special_tokens=False
        )
        return [one.ids for one in encoded]

    def decode(self, tokens: Iterable[int]) -> str:
        # A character may be spread over several pieces: its first bytes wait here until the rest
        # has come.
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return decoder.decode(b"".join(self._bytes[token] for token in tokens))

    def to_json(self) -> dict[str, Any]:
        """As the library `tokenizers` writes it, so that it can be loaded there too."""
        return json.loads(self._tokenizer.to_str())

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> BPE:
        if data["added_tokens"] or data["model"]["type"] != "BPE":
            raise ValueError("not a tokenizer written by this program")
        return cls(HubTokenizer.from_str(json.dumps(data)))


class Labels(Tokenizer):
    """One token a label. Where labels are given to text, the tokenizer of that text is kept with
    them.

    >>> tokenizer = Labels.fit(["pos", "neg", "pos"], text=Characters("ab"))
    >>> tokenizer.encode("pos"), tokenizer.decode([4]), tokenizer.reads.encode("ba"), tokenizer.size
    ([5], 'neg', [5, 4], 6)
    """

    kind = "labels"

    def __init__(self, labels: Sequence[str], *, text: Tokenizer | None = None):
        if isinstance(text, Labels):
            raise ValueError("labels are given to text, not to labels")
        self.labels, self.text = tuple(labels), text
        self.size = MARKS + len(self.labels)
        self._token = {label: MARKS + i for i, label in enumerate(self.labels)}

    @classmethod
    def fit(
        cls, targets: Iterable[str], *, text: Tokenizer | None = None, most: int = 10_000
    ) -> Labels:
        """Labels in the order of the alphabet, numbers in that of their size: class 0 comes
        first, and 10 after 9."""
        found: set[str] = set()
        for target in targets:
            found.add(target)
            if len(found) > most:
                hint = "is the column of labels another one?"
                raise DataError("too many labels", got=f"more than {most:,}", hint=hint)
        if len(found) == 1:
            hint = "is the column of labels another one?"
            raise DataError(
                "one label leaves nothing to tell apart", got=f'only "{found.pop()}"', hint=hint
            )
        return cls(
            sorted(
                found,
                key=lambda label: (not label.isdecimal(), len(label) * label.isdecimal(), label),
            ),
            text=text,
        )

    @property
    def source_size(self) -> int:
        return 0 if self.text is None else self.text.size

    @property
    def reads(self) -> Tokenizer:
        if self.text is None:
            raise InputError("these labels are not given to text", where="tokenizer")
        return self.text

    def encode(self, text: str) -> list[int]:
        return [self._token.get(text, UNKNOWN)]

    def decode(self, tokens: Iterable[int]) -> str:
        return " ".join(self.labels[token - MARKS] for token in tokens if token >= MARKS)

    def to_json(self) -> dict[str, Any]:
        text = None if self.text is None else self.text.to_json()
        return {"kind": self.kind, "labels": list(self.labels), "text": text}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Labels:
        text = None if data["text"] is None else load(data["text"], where="text")
        return cls(_strings(data["labels"]), text=text)


KINDS: dict[str, type[Tokenizer]] = {kind.kind: kind for kind in (Words, Characters, BPE, Labels)}


def load(data: dict[str, Any], *, where: object = "tokenizer") -> Tokenizer:
    """The tokenizer that `to_json` wrote down.

    >>> load({"kind": "characters", "lower": False, "characters": ["a", "b"]}).encode("ab")
    [4, 5]
    """
    kind = data.get("kind") if isinstance(data, dict) else None
    if isinstance(data, dict) and "model" in data:  # as the library `tokenizers` writes it
        kind = BPE.kind
    if not isinstance(kind, str) or kind not in KINDS:
        raise BundleError(
            "not a tokenizer",
            where=where,
            got=f"kind {kind!r}",
            hint=did_you_mean(str(kind), KINDS),
        )
    try:
        return KINDS[kind].from_json(data)
    except Exception as problem:  # tokenizers raises bare Exception for a tokenizer it cannot read
        raise BundleError(
            f"malformed {kind} tokenizer",
            where=where,
            got=f"{type(problem).__name__}: {problem}"[:200],
        ) from None


def read(path: Path | str) -> Tokenizer:
    try:
        data = json.loads(Path(path).read_text("utf-8"))
    except FileNotFoundError:
        raise BundleError("no such tokenizer file", where=path) from None
    except (ValueError, RecursionError) as problem:
        raise BundleError("not a JSON file", where=path, got=str(problem)[:200]) from None
    return load(data, where=path)


def write(tokenizer: Tokenizer, path: Path | str) -> None:
    Path(path).write_text(dumps(tokenizer), "utf-8")


def dumps(tokenizer: Tokenizer) -> str:
    return json.dumps(tokenizer.to_json(), ensure_ascii=False, sort_keys=True) + "\n"


def plain(text: str) -> str:
    """A prompt without what does not matter for the question. Never empty, unless the text is.

    >>> plain("Hi,  How’s it going?!")
    "hi how's it going"
    >>> plain("?!")
    '?!'
    """
    unified = " ".join(unicodedata.normalize("NFC", text.lower()).translate(_CURLY).split())
    without_commas = " ".join(_COMMAS.sub(" ", unified).split())
    return without_commas.rstrip("?!.… ") or unified or text


_CURLY = str.maketrans("‘’‛`´“”„‟", "'''''\"\"\"\"")
_COMMAS = re.compile(r",(?!\d)|(?<!\d),")


# -- words: how a sentence falls into words and marks, and how they stand together again------------

# A letter is whatever is not a space or punctuation: \w would tear the vowel signs of Hindi or Thai
# off their words.
_LETTER = (
    r"[^\s!-/:-@\[-`{-~"  # ASCII
    r"\u00a1\u00a3\u00a7\u00ab\u00b6\u00b7\u00bb\u00bf\u060c\u061b\u061f\u0964\u2010-\u2027\u2030-\u205e\u20ac"
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
    """The words and marks of a text. A straight quote becomes an opening or a closing one, by the
    spaces around it.

    >>> list(_split('Say "don\\'t", the students\\' way...'))
    ['Say', '“', "don't", '”', ',', 'the', 'students', '’', 'way', '...']
    """
    for match in _TOKEN.finditer(text):
        token, start, end = match[0], match.start(), match.end()
        if token in _OPENING:
            opens = (
                (start == 0 or text[start - 1] in " \t\n([{“‘\"'-")
                and end < len(text)
                and not text[end].isspace()
            )
            yield (_OPENING if opens else _CLOSING)[token]
        elif len(token) > 3 and not _is_word(token):
            yield token[:3]  # "?????" is a "???"
        else:
            yield token.replace("’", "'") if len(token) > 1 else token


def _is_word(token: str) -> bool:
    """
    >>> [_is_word(token) for token in ("don't", "U.S.", "3", "...", "”")]
    [True, True, True, False, False]
    """
    return any(character.isalnum() for character in token)


def _ends_sentence(token: str) -> bool:
    return token[0] in "!?。！？।؟" or token == "."


def _inside_sentences(tokens: Sequence[str]) -> Iterator[str]:
    """Words whose capital, if any, is their own and not that of the sentence."""
    starting = True
    for token in tokens:
        if _is_word(token):
            if not starting:
                yield token
            starting = False
        else:
            starting = starting or _ends_sentence(token) or token in ("...", "…", ":")


def _usual_forms(words: Sequence[str], forms: Counter[str]) -> dict[str, str]:
    """For each lower-cased word its most frequent form, where that is another one."""
    best: dict[str, tuple[int, str]] = {}
    for form, count in forms.items():
        word = form.lower()
        best[word] = max(best.get(word, (0, "")), (count, form))
    usual = {word: form for word, (_, form) in best.items()}

    def written(word: str) -> str:
        if word in usual:
            return usual[word]
        head, apostrophe, tail = word.partition(
            "'"
        )  # "I've", seen at the start only, is written as "I" is
        return usual.get(head, head) + apostrophe + tail

    return {word: form for word in sorted(words) if (form := written(word)) != word}


# -- shared by the tokenizers-----------------------------------------------------------------------

_SURROGATE = re.compile("[\ud800-\udfff]")


def _mended(text: str) -> str:
    """Lone surrogates cannot be written as bytes."""
    return _SURROGATE.sub("\ufffd", text)


def _frequent(counts: Counter[str], min_count: int) -> list[str]:
    """Most frequent first; ties in the order of the alphabet, so that a fit does not depend on
    the order of texts."""
    kept = (item for item in counts.items() if item[1] >= min_count)
    return [entry for entry, _ in sorted(kept, key=lambda item: (-item[1], item[0]))]


def _forget_rare(counts: Counter[str]) -> None:
    """When there are too many entries, forget the rarest (what matters is at the other end)."""
    least = 1
    while len(counts) > _COUNTED:
        for entry in [entry for entry, count in counts.items() if count <= least]:
            del counts[entry]
        least *= 2


def _strings(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
        raise ValueError("expected a list of non-empty strings")
    if len(set(value)) != len(value):
        raise ValueError("an entry occurs twice")
    return value


def _bytes_of_characters() -> dict[str, int]:
    """The byte behind each character of byte-level BPE: printable ones stand for themselves, the
    rest from 256 on."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }
