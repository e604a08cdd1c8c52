"""What a reader gives: a source, which is text or an Item, and the text of its target."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

import numpy as np

from regard.tokenizers import OTHER, plain

SPLIT_NUMBERS = {"train": 0, "valid": 1, "test": 2}


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


class DialogueExample(Example):
    """An answer in a dialogue. Its source is the turns before it, one a line, oldest first.

    dialogue  identifies the dialogue, see `dialogue_key`
    speakers  who speaks in each turn of the source, OTHER or SELF
    """

    dialogue: bytes
    speakers: str

    def __new__(cls, source: str, target: str, *, dialogue: bytes, speakers: str) -> Self:
        example = super().__new__(cls, source, target)
        example.dialogue = dialogue
        example.speakers = speakers
        return example


def turns_of(example: Example) -> tuple[list[str], str]:
    """The turns of a source that is text, and who speaks in each. Outside of dialogues it is one
    turn, also if it has several lines."""
    assert isinstance(example.source, str)
    if isinstance(example, DialogueExample):
        return example.source.split("\n"), example.speakers
    return [" ".join(example.source.split())], OTHER


def dialogue_key(turns: Iterable[str]) -> bytes:
    """A hash of a dialogue, the same for dialogues that differ only in capitals and final marks.

    >>> dialogue_key(["Hi!", "Hello."]) == dialogue_key(["hi", "hello"])
    True
    """
    return hashlib.sha256("\n".join(map(plain, turns)).encode("utf-8", "replace")).digest()


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
    return _part(hashlib.sha256(identity(source)).digest(), valid, test)


def split_of(example: Example, *, valid: float, test: float) -> Literal["train", "valid", "test"]:
    """The split an example belongs to: by its dialogue, of which all examples are in one split, or
    else by its source."""
    if isinstance(example, DialogueExample):
        return _part(example.dialogue, valid, test)
    return part_of(example.source, valid=valid, test=test)


def split_numbers(hashes: np.ndarray, *, valid: float, test: float) -> np.ndarray:
    """(n,): `split_of` for many examples, by the first 8 bytes of their digests.

    >>> hashes = np.array([0, 2**63, 2**64 - 1], np.uint64)
    >>> split_numbers(hashes, valid=0.3, test=0.4)
    array([2, 1, 0], dtype=uint8)
    """
    places = hashes / 2.0**64
    splits = np.full(len(hashes), SPLIT_NUMBERS["train"], np.uint8)
    splits[places < test + valid] = SPLIT_NUMBERS["valid"]
    splits[places < test] = SPLIT_NUMBERS["test"]
    return splits


def _part(digest: bytes, valid: float, test: float) -> Literal["train", "valid", "test"]:
    place = int.from_bytes(digest[:8], "big") / 2**64
    return "test" if place < test else "valid" if place < test + valid else "train"
