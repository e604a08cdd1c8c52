"""The bytes of a file in pieces, whatever it is packed as: plain, gzip, Zstandard or Parquet.

Every piece is small, however well a file is compressed: a bomb is read, and not held.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from regard.errors import DataError

PIECE = 1 << 16  # bytes
ZSTD_PIECE = 1 << 8  # bytes of a Zstandard file: at most 8 MB of text, as 4 bytes are 128 KB
ROWS = 256  # of a Parquet file, at a time
LARGEST_GROUP = 1 << 29  # bytes of a row group of a Parquet file, unpacked

Position = Callable[[int], object]


class NotWholeError(DataError):
    """A file that cannot be read, or not to its end."""


def pieces(path: Path, position: Position = lambda place: None) -> Iterator[bytes]:
    """The content of a file. `position` is told how many bytes of the file have been read. The
    rows of a Parquet file are lines of JSON."""
    name = path.name.lower()
    with _errors(path):
        if name.endswith(".parquet"):
            yield from _parquet_rows(path, position)
            return
        with path.open("rb") as file:
            if name.endswith((".zst", ".zstd")):
                unpacked = _zstd_pieces(file)
            elif name.endswith(".gz"):
                unpacked = _gzip_pieces(file)
            else:
                unpacked = iter(lambda: file.read(PIECE), b"")
            for piece in unpacked:
                position(file.tell())
                yield piece


def _gzip_pieces(file: BinaryIO) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=file) as unpacked:
        yield from iter(lambda: unpacked.read(PIECE), b"")


@contextlib.contextmanager
def _errors(path: Path) -> Iterator[None]:
    """What is wrong with a file, in one line."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
        packed = "Zstandard" if path.name.lower().endswith((".zst", ".zstd")) else "gzip"
        raise NotWholeError(
            f"not a whole {packed} file",
            where=path,
            got=str(problem),
            hint="copy or download it again",
        ) from None
    except OSError as problem:
        raise NotWholeError(
            "cannot be read", where=path, got=problem.strerror or str(problem)
        ) from None


def _extra(module: str, extra: str, path: Path) -> Any:
    """A module that an extra of the package installs."""
    try:
        return import_module(module)
    except ImportError:
        raise DataError(
            f"the package {module.partition('.')[0]} is missing, which reads this file",
            where=path,
            hint=f"pip install 'regard[{extra}]'",
        ) from None


# -- Zstandard--------------------------------------------------------------------------------------


def _zstd_pieces(file: BinaryIO) -> Iterator[bytes]:
    """The content of one or more frames. The input is read in small pieces, because the library
    returns everything that a piece stands for."""
    zstandard = _extra("zstandard", "zstd", Path(file.name))
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 27)
    frame = decompressor.decompressobj()
    is_begun = False
    try:
        while packed := file.read(ZSTD_PIECE):
            while packed:
                is_begun = True
                piece = frame.decompress(packed)
                packed = b""
                if frame.eof:
                    packed = frame.unused_data
                    frame = decompressor.decompressobj()
                    is_begun = False
                if piece:
                    yield piece
    except zstandard.ZstdError as problem:
        raise EOFError(str(problem)) from None
    if is_begun:
        raise EOFError("it ends too early")


# -- Parquet----------------------------------------------------------------------------------------


def _parquet_rows(path: Path, position: Position) -> Iterator[bytes]:
    """The rows as lines of JSON, by row group."""
    parquet = _extra("pyarrow.parquet", "parquet", path)
    errors = (_extra("pyarrow", "parquet", path).ArrowException, OSError, ValueError)
    size = path.stat().st_size
    try:
        with parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
            for group in range(file.num_row_groups):
                largest = file.metadata.row_group(group).total_byte_size
                if largest > LARGEST_GROUP:
                    raise DataError(
                        "a row group is too large to be read",
                        where=path,
                        got=f"{largest:,} bytes",
                        hint=f"write it with row groups of at most {LARGEST_GROUP:,} bytes",
                    )
                batches = file.iter_batches(ROWS, row_groups=[group], use_threads=False)
                for batch in batches:
                    yield _json_lines(batch)
                position(size * (group + 1) // file.num_row_groups)
    except errors as problem:
        raise NotWholeError(
            "not a whole Parquet file",
            where=path,
            got=str(problem).partition("\n")[0][:200],
            hint="copy or download it again",
        ) from None


def _json_lines(batch: Any) -> bytes:
    try:
        rows = batch.to_pylist()
    except UnicodeDecodeError:  # texts that are not UTF-8: readers of lines replace and count them
        import pyarrow

        columns = [
            column.cast(pyarrow.binary()) if pyarrow.types.is_string(column.type) else column
            for column in batch.columns
        ]
        rows = pyarrow.RecordBatch.from_arrays(columns, batch.schema.names).to_pylist()
    lines = [json.dumps(row, ensure_ascii=False, default=_as_text) for row in rows]
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")


def _as_text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return str(value)
