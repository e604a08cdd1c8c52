"""What a reader gives: a source, which is text or an Item, and the text of its target."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from regard.tokenizers import plain


@dataclass(frozen=True, eq=False)
class Item:
    """A source that is not text: a picture (h, w, channels) of bytes, or a sound of 16-bit
    samples."""

    name: str  # what a person is shown in its place
    values: np.ndarray
    content: bytes  # as it was found, before it was fitted to a model: what decides its part


class Example(NamedTuple):
    source: str | Item
    target: str


def identity(source: str | Item) -> bytes:
    """What two sources share that are the same: the plain text, or the bytes of a picture or sound.

    >>> identity("How are you?") == identity("how are you")
    True
    """
    return plain(source).encode("utf-8", "replace") if isinstance(source, str) else source.content


def shown(source: str | Item) -> str:
    return source if isinstance(source, str) else legible(source.name)


def legible(name: str) -> str:
    """The name of a file as text: bytes of it that are not UTF-8 are replaced.

    >>> legible(os.fsdecode(b"caf\\xe9.png"))
    'caf\ufffd.png'
    """
    return os.fsencode(name).decode("utf-8", "replace")


def part_of(source: str | Item, *, valid: float, test: float) -> Literal["train", "valid", "test"]:
    """The part an example belongs to, by its source alone: the same question never sits on both
    sides.

    >>> part_of("How are you?", valid=0.1, test=0.1) == part_of("how are you", valid=0.1, test=0.1)
    True
    """
    digest = hashlib.sha256(identity(source)).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    return "test" if place < test else "valid" if place < test + valid else "train"
