"""Columns of numbers in one file: the shards of a corpus while it is prepared."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ALIGNED = 8  # bytes, at which every column begins


@dataclass
class Shard:
    """Columns by name, and facts that JSON can hold. A column of rows of different length is two:
    the values, and under NAME.ends where each row ends."""

    columns: dict[str, np.ndarray]
    facts: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    def lengths(self, name: str) -> np.ndarray:
        return np.diff(self.columns[f"{name}.ends"], prepend=0)

    def texts(self, name: str, rows: Iterable[int]) -> list[str]:
        """The rows of a column as text."""
        content = self.columns[name].tobytes()
        ends = self.columns[f"{name}.ends"].tolist()
        return [content[ends[row - 1] if row else 0 : ends[row]].decode() for row in rows]

    def save(self, path: Path) -> None:
        """Write it under a temporary name, then rename it: the file is whole or not there. It is
        not synced: after a power failure `load` notices the damage, and it is made again."""
        header: dict[str, Any] = {"facts": self.facts, "columns": {}}
        checksum = 0
        for name, column in self.columns.items():
            header["columns"][name] = [column.dtype.str, len(column)]
            checksum = zlib.crc32(_bytes(column), checksum)
        header["checksum"] = checksum
        draft = path.with_name(f"{path.name}.{os.getpid()}.new")
        with draft.open("wb") as file:
            file.write(_padded(json.dumps(header).encode() + b"\n"))
            for column in self.columns.values():
                file.write(_bytes(column))
                file.write(bytes(-column.nbytes % ALIGNED))
        draft.replace(path)

    @classmethod
    def load(cls, path: Path, *names: str, check: bool = False) -> Shard:
        """The shard in a file, memory-mapped; only the named columns, if there are names. With
        `check`, ValueError if it is damaged."""
        with path.open("rb") as file:
            line = file.readline()
        header = json.loads(line)
        size = path.stat().st_size
        memory = np.memmap(path, np.uint8, "r") if size else np.empty(0, np.uint8)
        columns: dict[str, np.ndarray] = {}
        start = len(_padded(line))
        checksum = 0
        for name, (dtype, length) in header["columns"].items():
            count = np.dtype(dtype).itemsize * length
            content = memory[start : start + count]
            if len(content) != count:
                raise ValueError(f"{path.name} is cut short")
            if check:
                checksum = zlib.crc32(_bytes(content), checksum)
            if not names or name in names:
                columns[name] = content.view(dtype)
            start += count + -count % ALIGNED
        if check and checksum != header["checksum"]:
            raise ValueError(f"{path.name} is not what was written")
        return cls(columns, header["facts"])


def is_whole(path: Path) -> bool:
    """Whether a shard is there, and undamaged."""
    try:
        Shard.load(path, check=True)
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return True


def _bytes(column: np.ndarray) -> memoryview:
    return np.ascontiguousarray(column).data.cast("B") if len(column) else memoryview(b"")


def _padded(line: bytes) -> bytes:
    return line + bytes(-len(line) % ALIGNED)


def text_column(name: str, texts: Sequence[bytes]) -> dict[str, np.ndarray]:
    """A column of texts."""
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    values = np.frombuffer(b"".join(texts), np.uint8)
    return {name: values, f"{name}.ends": np.cumsum(lengths)}


def array_column(
    name: str, rows: Sequence[np.ndarray], dtype: type[np.generic]
) -> dict[str, np.ndarray]:
    """A column of arrays."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    values = np.concatenate(rows) if rows else np.empty(0, dtype)
    return {name: values, f"{name}.ends": np.cumsum(lengths)}


def select(values: np.ndarray, ends: np.ndarray, keep: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The values of the rows to keep, and their lengths.

    >>> ends = np.array([2, 3, 5])
    >>> select(np.array([5, 6, 7, 8, 9]), ends, np.array([True, False, True]))
    (array([5, 6, 8, 9]), array([2, 2]))
    """
    lengths = np.diff(ends, prepend=0)
    if keep.all():
        return values, lengths
    return values[np.repeat(keep, lengths)], lengths[keep]
