"""A corpus as numbers on disk: read, filtered, split and encoded once, then memory-mapped.

Nothing here holds a corpus: examples stream from the reader to the files in chunks, so it may be larger than memory.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from regard import codecs
from regard.codecs import UNKNOWN, Codec, plain
from regard.data.lines import EMPTY, Tally
from regard.data.readers import Example, part_of, word_count
from regard.errors import BundleError, DataError

FORMAT = 1
PARTS = ("train", "valid", "test")
CHUNK = 8192  # examples encoded at a time

Read = Callable[[Tally], Iterator[Example]]


# -- rows of different length -----------------------------------------------------------------------------------------


class Ragged:
    """Rows of different length in two memory-mapped files: all values one after the other, and where each row ends.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with RaggedWriter(Path(folder) / "rows", np.int32) as writer:
    ...         writer.extend([[5, 6], [], [7]])
    ...     rows = Ragged(Path(folder) / "rows", np.int32)
    ...     len(rows), rows[0].tolist(), rows.lengths.tolist()
    (3, [5, 6], [2, 0, 1])
    """

    def __init__(self, path: Path, dtype: type[np.generic]):
        self.values = _mapped(path.with_suffix(".values"), dtype)
        self.ends = _mapped(path.with_suffix(".ends"), np.int64)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int | np.integer) -> np.ndarray:
        if not 0 <= index < len(self.ends):  # also what ends a for loop
            raise IndexError(index)
        start = self.ends[index - 1] if index else 0
        return self.values[start : self.ends[index]]

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.ends, prepend=0)


class RaggedWriter:
    """Writes what Ragged reads, holding nothing."""

    def __init__(self, path: Path, dtype: type[np.generic]):
        self._path, self._dtype, self._end = path, dtype, 0

    def __enter__(self) -> RaggedWriter:
        self._values: BinaryIO = self._path.with_suffix(".values").open("wb")
        self._ends: BinaryIO = self._path.with_suffix(".ends").open("wb")
        return self

    def extend(self, rows: Iterable[Iterable[int] | bytes]) -> None:
        for row in rows:
            values = row if isinstance(row, bytes) else np.asarray(row, self._dtype).tobytes()
            self._end += len(values) // np.dtype(self._dtype).itemsize
            self._values.write(values)
            self._ends.write(self._end.to_bytes(8, "little"))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in (self._values, self._ends):
            with file:
                file.flush()
                os.fsync(file.fileno())


def _mapped(path: Path, dtype: type[np.generic]) -> np.ndarray:
    little = np.dtype(dtype).newbyteorder("<")
    # An empty file cannot be mapped.
    return np.memmap(path, little, "r") if path.stat().st_size else np.empty(0, little)


# -- the corpus -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """Training, validation or test examples: tokens without marks, and the texts they came from."""

    source: Ragged
    target: Ragged
    source_text: Ragged
    target_text: Ragged

    @classmethod
    def open(cls, folder: Path, name: str) -> Part:
        return cls(*(Ragged(folder / f"{name}-{column}", dtype) for column, dtype in _COLUMNS.items()))

    def __len__(self) -> int:
        return len(self.source)

    def texts(self, index: int | np.integer) -> Example:
        return Example(*(side[index].tobytes().decode() for side in (self.source_text, self.target_text)))


_COLUMNS: dict[str, type[np.generic]] = {
    "source": np.int32,
    "target": np.int32,
    "source-text": np.uint8,
    "target-text": np.uint8,
}


@dataclass(frozen=True)
class Corpus:
    train: Part
    valid: Part
    test: Part
    codec: Codec
    tally: Tally
    fingerprint: str  # of everything the corpus was made from


@dataclass(frozen=True)
class _Rules:
    """What is kept, and where it goes."""

    valid: float
    test: float
    max_source: int
    max_target: int
    max_words: int | None
    drop_unknown: bool
    plain_source: bool

    def short(self, example: Example) -> bool:
        return self.max_words is None or max(map(word_count, example)) <= self.max_words

    def asked(self, example: Example) -> str:
        return plain(example.source) if self.plain_source else example.source

    def refuses(self, source: list[int], target: list[int]) -> str | None:
        """Why not, or None."""
        if not source or not target:
            return EMPTY
        if len(source) > self.max_source or len(target) > self.max_target:
            return "too many tokens"
        if self.drop_unknown and (UNKNOWN in source or UNKNOWN in target):
            return "unknown word"
        return None


def prepare(
    read: Read,
    *,
    key: dict[str, Any],
    fit: Callable[[Iterator[str]], Codec],
    folder: Path,
    valid: float,
    test: float,
    read_valid: Read | None = None,
    read_test: Read | None = None,
    max_source: int,
    max_target: int,
    max_words: int | None = None,
    drop_unknown: bool = False,
    plain_source: bool = False,
) -> Corpus:
    """The corpus that `read` gives, from the cache in `folder` if it was prepared before.

    `key` says what the caller put in: the content's fingerprint and whatever shaped `read` and `fit`. A held-out part
    with its own reader takes nothing from `read`; the others are drawn from it by the prompt (`part_of`).
    """
    if valid < 0 or test < 0 or valid + test >= 1:
        raise DataError("nothing is left to train on", where="data", got=f"valid {valid}, test {test}")
    own = {"valid": read_valid, "test": read_test}
    rules = _Rules(
        valid=0.0 if read_valid else valid,
        test=0.0 if read_test else test,
        max_source=max_source,
        max_target=max_target,
        max_words=max_words,
        drop_unknown=drop_unknown,
        plain_source=plain_source,
    )
    identity = {"format": FORMAT, "key": key, "rules": asdict(rules), "own": [part for part in own if own[part]]}
    name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    final = Path(folder) / name[:32]
    corpus = _opened(final, name)
    if corpus is None:
        try:
            _publish(final, name, lambda place: _write(place, name, read, own, fit, rules))
        except OSError as problem:
            if problem.errno != errno.ENOSPC:
                raise
            free = shutil.disk_usage(folder).free
            raise DataError("no space for the prepared corpus", where=folder, got=f"{free:,} bytes free") from None
        corpus = _opened(final, name)
        if corpus is None:
            raise DataError("the prepared corpus was changed while it was written", where=final, hint="try again")
    return corpus


def _publish(final: Path, name: str, write: Callable[[Path], None]) -> None:
    """Write a folder under a temporary name, then rename it: it is there as a whole or not at all."""
    final.parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=f".{final.name}-", dir=final.parent))
    try:
        write(place)
        place.chmod(0o755)  # mkdtemp's is for the owner alone
        if final.exists() and _opened(final, name) is None:
            shutil.rmtree(final)  # damaged since it was written
        place.rename(final)
    except OSError as problem:
        if problem.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise  # otherwise somebody else was faster, with the same content
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _write(place: Path, name: str, read: Read, own: dict[str, Read | None], fit: Any, rules: _Rules) -> None:
    codec = fit(_texts(read, rules))
    codecs.write(codec, place / "codec.json")
    tally = Tally()
    with ExitStack() as stack:
        writers = {
            (part, column): stack.enter_context(RaggedWriter(place / f"{part}-{column}", dtype))
            for part in PARTS
            for column, dtype in _COLUMNS.items()
        }
        streams = [_parted(read, tally, rules)]
        streams += [_named(reader, tally, part, rules) for part, reader in own.items() if reader]
        used = 0
        for stream in streams:
            while chunk := list(islice(stream, CHUNK)):
                used += _encode(chunk, codec, rules, tally, writers)
    tally.used = used
    if not (place / "train-source.ends").stat().st_size:
        raise DataError("no usable examples to train on", got=tally.summary(), hint="are the limits on length too low?")
    sizes = {file.name: file.stat().st_size for file in sorted(place.iterdir())}
    manifest = {"fingerprint": name, "tally": tally.to_json(), "files": sizes}
    (place / "manifest.json").write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", "utf-8")


def _parted(read: Read, tally: Tally, rules: _Rules) -> Iterator[tuple[str, Example]]:
    """Examples with the part they belong to; in training none twice."""
    seen: set[int] = set()  # 8 bytes of a hash each: two different pairs among 10 million agree once in 400,000 corpora
    for example in read(tally):
        part = part_of(example.source, valid=rules.valid, test=rules.test)
        if not rules.short(example):
            tally.skip("too many words")
            continue
        if part == "train":
            digest = int.from_bytes(hashlib.blake2b("\0".join(example).encode(), digest_size=8).digest(), "big")
            if digest in seen:
                tally.duplicates += 1
                continue
            seen.add(digest)
        yield part, example


def _named(read: Read, tally: Tally, part: str, rules: _Rules) -> Iterator[tuple[str, Example]]:
    for example in read(tally):
        if rules.short(example):
            yield part, example
        else:
            tally.skip("too many words")


def _texts(read: Read, rules: _Rules) -> Iterator[str]:
    """What a codec is fitted on: the training texts, as the model will see them."""
    for part, example in _parted(read, Tally(), rules):
        if part == "train":
            yield rules.asked(example)
            yield example.target


def _encode(
    chunk: list[tuple[str, Example]],
    codec: Codec,
    rules: _Rules,
    tally: Tally,
    writers: dict[tuple[str, str], RaggedWriter],
) -> int:
    sources = codec.encode_many([rules.asked(example) for _, example in chunk])
    targets = codec.encode_many([example.target for _, example in chunk])
    used = 0
    for (part, example), source, target in zip(chunk, sources, targets, strict=True):
        reason = rules.refuses(source, target)
        if reason:
            tally.skip(reason)
            continue
        used += 1
        texts = (text.encode() for text in example)
        for column, row in zip(_COLUMNS, (source, target, *texts), strict=True):
            writers[part, column].extend([row])
    return used


def _opened(final: Path, name: str) -> Corpus | None:
    """The corpus in a folder, or None if it is not there as it was written."""
    try:
        manifest = json.loads((final / "manifest.json").read_text("utf-8"))
        whole = manifest["fingerprint"] == name and all(
            (final / file).stat().st_size == size for file, size in manifest["files"].items()
        )
        tally = Tally.from_json(manifest["tally"])
        codec = codecs.read(final / "codec.json")
    except (OSError, ValueError, KeyError, TypeError, BundleError):
        return None
    if not whole:
        return None
    train, valid, test = (Part.open(final, part) for part in PARTS)
    return Corpus(train, valid, test, codec, tally, name)


# -- what else one wants to know of a corpus --------------------------------------------------------------------------


def fingerprint(paths: Iterable[Path | str]) -> str:
    """The SHA-256 of the contents of files, in this order; a folder stands for the files in it."""
    total = hashlib.sha256()
    for path in map(Path, paths):
        for file in sorted(inner for inner in path.rglob("*") if inner.is_file()) if path.is_dir() else [path]:
            try:
                with file.open("rb") as opened:
                    total.update(hashlib.file_digest(opened, "sha256").digest())
            except OSError as problem:
                raise DataError("cannot be read", where=file, got=problem.strerror) from None
    return total.hexdigest()


def document_frequency(part: Part, size: int) -> np.ndarray:
    """(V,): in how many targets each token occurs."""
    counts = np.zeros(size, np.int64)
    lengths = part.target.lengths
    for start in range(0, len(part), CHUNK):
        rows = lengths[start : start + CHUNK]
        first = part.target.ends[start - 1] if start else 0
        tokens = part.target.values[first : first + rows.sum()].astype(np.int64)
        once = np.unique(np.repeat(np.arange(len(rows)), rows) * size + tokens)
        counts += np.bincount(once % size, minlength=size)
    return counts
