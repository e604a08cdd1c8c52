"""Rows of different length on disk, memory-mapped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path
from types import TracebackType

import numpy as np

from regard.data.sums import SummedFile, Sums


class RaggedArray:
    """Rows of different length in two memory-mapped files: all values one after the other, and
    where each row ends.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with RaggedArrayWriter(Path(folder) / "rows", np.int32) as writer:
    ...         writer.extend([[5, 6], [], [7]])
    ...     rows = RaggedArray(Path(folder) / "rows", np.int32)
    ...     len(rows), rows[0].tolist(), rows.lengths.tolist()
    (3, [5, 6], [2, 0, 1])
    """

    def __init__(self, path: Path, dtype: type[np.generic], shape: tuple[int, ...] | None = None):
        self.values = _mapped(path.with_suffix(".values"), dtype)
        self.ends = _mapped(path.with_suffix(".ends"), np.int64)
        self.shape = shape  # of every row, if they all have the same

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int | np.integer) -> np.ndarray:
        if not 0 <= index < len(self.ends):  # also ends a for loop
            raise IndexError(index)
        end = self.ends[index]
        if self.shape is not None:  # equal rows share their values, and so their end
            return self.values[end - prod(self.shape) : end].reshape(self.shape)
        start = self.ends[index - 1] if index else 0
        return self.values[start:end]

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.ends, prepend=0)

    def select(self, index: np.ndarray) -> RaggedArray:
        """The rows with these indices, without a copy of their values."""
        return _SelectedRows(self, index)


class _SelectedRows(RaggedArray):
    """Some rows of another array."""

    def __init__(self, array: RaggedArray, index: np.ndarray):
        self._array = array
        self._index = index
        self.values = array.values
        self.ends = array.ends[index]
        self.shape = array.shape

    def __getitem__(self, index: int | np.integer) -> np.ndarray:
        return self._array[self._index[index]]

    def select(self, index: np.ndarray) -> RaggedArray:
        return _SelectedRows(self._array, self._index[index])

    @property
    def lengths(self) -> np.ndarray:
        before = self._array.ends[np.maximum(self._index - 1, 0)]
        return self.ends - np.where(self._index > 0, before, 0)


class RaggedArrayWriter:
    """Writes the files of a RaggedArray, and computes their checksums."""

    def __init__(self, path: Path, dtype: type[np.generic]):
        self._path = path
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._end = 0

    def __enter__(self) -> RaggedArrayWriter:
        self._values = SummedFile(self._path.with_suffix(".values"))
        try:
            self._ends = SummedFile(self._path.with_suffix(".ends"))
        except OSError:
            self._values.close()
            raise
        return self

    def extend(self, rows: Iterable[Sequence[int] | np.ndarray]) -> None:
        for row in rows:
            values = np.asarray(row, self._dtype)
            self.append(values, np.array([len(values)]))

    def append(self, values: np.ndarray, lengths: np.ndarray) -> None:
        """Write rows: their values, and the length of each. If all rows have one shape, a length
        of 0 repeats the row before."""
        if not len(lengths):
            return
        ends = self._end + np.cumsum(lengths)
        self._end = int(ends[-1])
        self._values.write(np.ascontiguousarray(values, self._dtype))
        self._ends.write(ends.astype("<i8"))

    @property
    def sums(self) -> dict[str, Sums]:
        """The checksums of both files, by name."""
        return {file.path.name: file.sums() for file in (self._values, self._ends)}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in (self._values, self._ends):
            file.close()


def _mapped(path: Path, dtype: type[np.generic]) -> np.ndarray:
    little_endian = np.dtype(dtype).newbyteorder("<")
    if not path.stat().st_size:  # an empty file cannot be mapped
        return np.empty(0, little_endian)
    return np.memmap(path, little_endian, "r")
