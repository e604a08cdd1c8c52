"""Text to numbers and back: words, characters, byte-pair encoding, or labels.

In every tokenizer the tokens 0 to 3 are the special tokens PAD, START, END and UNKNOWN. In
tokenizers for dialogues 4 and 5 are special too: they begin a turn of the other speaker, and of the
one who answers.
"""

from __future__ import annotations

from regard.tokenizers.base import (
    END,
    NUM_SPECIAL_TOKENS,
    OTHER_TURN,
    PAD,
    SELF_TURN,
    START,
    UNKNOWN,
    Tokenizer,
    flat_rows,
)
from regard.tokenizers.bpe import BPE
from regard.tokenizers.characters import Characters
from regard.tokenizers.files import KINDS, dumps, load, read, write
from regard.tokenizers.fitting import Fit
from regard.tokenizers.labels import Labels
from regard.tokenizers.text import plain
from regard.tokenizers.turns import OTHER, SELF, join_turns
from regard.tokenizers.words import Words

__all__ = [
    "BPE",
    "END",
    "KINDS",
    "NUM_SPECIAL_TOKENS",
    "OTHER",
    "OTHER_TURN",
    "PAD",
    "SELF",
    "SELF_TURN",
    "START",
    "UNKNOWN",
    "Characters",
    "Fit",
    "Labels",
    "Tokenizer",
    "Words",
    "dumps",
    "flat_rows",
    "join_turns",
    "load",
    "plain",
    "read",
    "write",
]
