"""Checksums of the files of a prepared corpus: of each as a whole, and of its blocks.

With sums of blocks a large file can be checked in part.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from regard import disk

BLOCK = 1 << 22  # bytes


@dataclass(frozen=True)
class Sums:
    """The SHA-256 of a file, and of each of its blocks."""

    whole: str
    blocks: tuple[str, ...]


class SummedFile:
    """A new file whose checksums are computed while it is written."""

    def __init__(self, path: Path):
        self.path = path
        self._file = path.open("wb")
        self._whole = hashlib.sha256()
        self._block = hashlib.sha256()
        self._room = BLOCK  # in the block under way
        self._blocks: list[str] = []

    def write(self, content: np.ndarray) -> None:
        data = content.data.cast("B") if content.nbytes else memoryview(b"")
        self._file.write(data)
        self._whole.update(data)
        while len(data):
            part = data[: self._room]
            self._block.update(part)
            self._room -= len(part)
            data = data[len(part) :]
            if not self._room:
                self._end_block()

    def _end_block(self) -> None:
        self._blocks.append(self._block.hexdigest())
        self._block = hashlib.sha256()
        self._room = BLOCK

    def sums(self) -> Sums:
        """The checksums, when everything has been written."""
        last = [self._block.hexdigest()] if self._room < BLOCK else []
        return Sums(self._whole.hexdigest(), (*self._blocks, *last))

    def close(self) -> None:
        with self._file:
            disk.flush(self._file)


def block_sum(path: Path, number: int) -> str:
    """The checksum of a block of a file."""
    with path.open("rb") as file:
        file.seek(number * BLOCK)
        return hashlib.sha256(file.read(BLOCK)).hexdigest()
