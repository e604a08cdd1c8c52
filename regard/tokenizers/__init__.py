"""Text to numbers and back: words, characters, byte-pair encoding, or labels.

In every tokenizer the tokens 0 to 3 are the special tokens PAD, START, END and UNKNOWN.
"""

from __future__ import annotations

from regard.tokenizers.base import END, NUM_SPECIAL_TOKENS, PAD, START, UNKNOWN, Tokenizer
from regard.tokenizers.bpe import BPE
from regard.tokenizers.characters import Characters
from regard.tokenizers.files import KINDS, dumps, load, read, write
from regard.tokenizers.labels import Labels
from regard.tokenizers.text import plain
from regard.tokenizers.words import Words

__all__ = [
    "BPE",
    "END",
    "KINDS",
    "NUM_SPECIAL_TOKENS",
    "PAD",
    "START",
    "UNKNOWN",
    "Characters",
    "Labels",
    "Tokenizer",
    "Words",
    "dumps",
    "load",
    "plain",
    "read",
    "write",
]
