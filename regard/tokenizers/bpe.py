"""BPE: byte-level byte-pair encoding, learned and applied by the library `tokenizers`."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import Any, ClassVar

import numpy as np
from tokenizers import Tokenizer as HubTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from regard.errors import InputError
from regard.tokenizers.base import NUM_SPECIAL_TOKENS, UNKNOWN, Tokenizer, flat_rows
from regard.tokenizers.text import replace_surrogates
from regard.tokenizers.word_table import WordTable, interleave, is_regular

_LINE_BREAK = "Ċ"  # as byte-level BPE writes it
MANY = 256  # texts, from which on each word is encoded once


class BPE(Tokenizer):
    """Byte-level byte-pair encoding: a frequent word is one token, a rare one several, and no
    text is unknown.

    >>> tokenizer = BPE.fit(["hello hello hello"], size=270)
    >>> tokenizer.decode(tokenizer.encode("Hello, wörld <pad>"))
    'Hello, wörld <pad>'
    """

    kind = "bpe"

    # Byte-level BPE writes every byte as one of 256 characters, none of which is a space, so no
    # text can be encoded as one of these.
    _special_tokens: ClassVar = ["mark pad", "mark start", "mark end", "mark unknown"]
    _turn_tokens: ClassVar = ["mark other", "mark self"]

    def __init__(self, tokenizer: HubTokenizer):
        self.size = tokenizer.get_vocab_size(with_added_tokens=False)
        self._tokenizer = tokenizer

        vocabulary = tokenizer.get_vocab(with_added_tokens=False)
        entries = sorted((token, entry) for entry, token in vocabulary.items())
        numbers = [token for token, _ in entries]
        names = [entry for _, entry in entries]
        if numbers != list(range(self.size)) or names[:NUM_SPECIAL_TOKENS] != self._special_tokens:
            raise ValueError("tokens must be numbered from 0, the four special tokens first")
        self.turns = names[NUM_SPECIAL_TOKENS:][:2] == self._turn_tokens

        self._words = WordTable(self._encode_all, vocabulary.get(_LINE_BREAK, UNKNOWN))
        own = json.loads(tokenizer.to_str())
        parts = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
        self._splits_at_spaces = (
            own.get("normalizer") is None
            and _LINE_BREAK in vocabulary
            and parts.items() <= (own.get("pre_tokenizer") or {}).items()
        )

        byte = _byte_of_character()
        self._bytes = [b""] * self.num_special_tokens
        for entry in names[self.num_special_tokens :]:
            self._bytes.append(bytes(byte[character] for character in entry))

    @classmethod
    def fit(
        cls, texts: Iterable[str], *, size: int = 4000, min_count: int = 2, turns: bool = False
    ) -> BPE:
        """A tokenizer of at most `size` tokens, learned from `texts`."""
        special_tokens = [*cls._special_tokens, *(cls._turn_tokens if turns else ())]
        if size < len(special_tokens) + 256:
            raise InputError(
                "too few pieces",
                where="size",
                got=size,
                hint=f"use {len(special_tokens) + 256} or more",
            )
        learner = HubTokenizer(models.BPE())
        learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        # `decode` does not use this decoder, but other programs that load the JSON do.
        learner.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            min_frequency=min_count,
            show_progress=False,
            special_tokens=special_tokens,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        )
        learner.train_from_iterator((replace_surrogates(text) for text in texts), trainer)

        # The library looks for added tokens in the text; special tokens must not be found there.
        learned = json.loads(learner.to_str())
        learned["added_tokens"] = []
        return cls(HubTokenizer.from_str(json.dumps(learned)))

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(replace_surrogates(text), add_special_tokens=False).ids

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        values, ends = self.encode_rows(texts)
        tokens = values.tolist()
        edges = [0, *ends.tolist()]
        return [tokens[edges[i] : edges[i + 1]] for i in range(len(texts))]

    def encode_rows(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of many texts, of which each word is encoded once.

        A space begins a new part in byte-level BPE, so that the tokens of a text are those of its
        words, each with the space before it. This holds if there is no other white space.
        """
        if len(texts) < MANY or not self._splits_at_spaces:
            return flat_rows(self._encode_all(texts))
        rows = self._words.rows(texts)
        if rows is not None:
            return rows

        are_regular = np.array([is_regular(text) for text in texts])
        regular = self._words.rows(list(compress(texts, are_regular)))
        others = self._encode_all(list(compress(texts, ~are_regular)))
        assert regular is not None
        return interleave(are_regular, regular, flat_rows(others))

    def _encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        encodings = self._tokenizer.encode_batch_fast(
            [replace_surrogates(text) for text in texts], add_special_tokens=False
        )
        return [encoding.ids for encoding in encodings]

    def pieces(self, tokens: Iterable[int]) -> Iterator[str]:
        # A character may be spread over several tokens. The incremental decoder holds its first
        # bytes back until the rest has come.
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token in tokens:
            yield decoder.decode(self._bytes[token])

    def to_json(self) -> dict[str, Any]:
        """The format of the library `tokenizers`: `tokenizers.Tokenizer.from_file` loads it."""
        return json.loads(self._tokenizer.to_str())

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> BPE:
        if data["added_tokens"] or data["model"]["type"] != "BPE":
            raise ValueError("not a tokenizer written by this program")
        return cls(HubTokenizer.from_str(json.dumps(data)))


def _byte_of_character() -> dict[str, int]:
    """The byte behind each character of byte-level BPE: printable bytes are their own character,
    the others have the characters from 256 on."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }
