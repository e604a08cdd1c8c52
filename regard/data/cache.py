"""A corpus as numbers on disk: read, filtered, split and encoded once, then memory-mapped.

Nothing here holds a corpus: examples stream from the reader to the files in chunks, so it may be
larger than memory.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from regard import disk, tokenizers
from regard.data.examples import Example, Item, identity, part_of, shown
from regard.data.lines import EMPTY, Tally
from regard.data.readers import word_count
from regard.errors import DataError, NoRoomError
from regard.tokenizers import UNKNOWN, Labels, Tokenizer, plain

FORMAT = 3
SPLITS = ("train", "valid", "test")
CHUNK = 8192  # examples encoded at a time
FEW = 64  # the same of pictures and sounds, which are larger
MANIFEST, TOKENIZER, TALLY = "manifest.json", "tokenizer.json", "tally.json"
HELD_OUT = "also held out"  # why a training example is skipped: its prompt is in a held-out file
OLD_DRAFT = 24 * 60 * 60  # seconds after which a draft belongs to nobody any more
_DRAFT = re.compile(r"\.[0-9a-f]{32}-[a-z0-9_]{8}")  # as `_publish` names it

LOG = logging.getLogger("regard")

Read = Callable[[Tally], Iterator[Example]]


# -- rows of different length-----------------------------------------------------------------------


class RaggedArray:
    """Rows of different length in two memory-mapped files: all values one after the other, and
    where each row ends.

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
        self.shape = shape  # of every row, if they are all alike

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int | np.integer) -> np.ndarray:
        if not 0 <= index < len(self.ends):  # also what ends a for loop
            raise IndexError(index)
        if self.shape is not None:  # rows that are the same end at the same place
            return self.values[self.ends[index] - prod(self.shape) : self.ends[index]].reshape(
                self.shape
            )
        start = self.ends[index - 1] if index else 0
        return self.values[start : self.ends[index]]

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.ends, prepend=0)


class RaggedArrayWriter:
    """Writes what RaggedArray reads, holding nothing."""

    def __init__(self, path: Path, dtype: type[np.generic]):
        self._path, self._dtype, self._end = path, dtype, 0
        self.last: object = None  # what the last row was made of, if its writer wants to know

    def __enter__(self) -> RaggedArrayWriter:
        self._values: BinaryIO = self._path.with_suffix(".values").open("wb")
        self._ends: BinaryIO = self._path.with_suffix(".ends").open("wb")
        return self

    def extend(self, rows: Iterable[Iterable[int] | np.ndarray | bytes]) -> None:
        for row in rows:
            values = row if isinstance(row, bytes) else np.asarray(row, self._dtype).tobytes()
            self._end += len(values) // np.dtype(self._dtype).itemsize
            self._values.write(values)
            self.repeat()

    def repeat(self) -> None:
        """The last row once more; only where all rows have one shape."""
        self._ends.write(self._end.to_bytes(8, "little"))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in (self._values, self._ends):
            with file:
                disk.flush(file)


def _mapped(path: Path, dtype: type[np.generic]) -> np.ndarray:
    little = np.dtype(dtype).newbyteorder("<")
    # An empty file cannot be mapped.
    return np.memmap(path, little, "r") if path.stat().st_size else np.empty(0, little)


# -- the corpus-------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """What the sources of a corpus are as numbers: of which type, and of one shape or of any
    length."""

    dtype: type[np.generic]
    shape: tuple[int, ...] | None = None

    @property
    def is_text(self) -> bool:
        return self.dtype is np.int32

    def to_json(self) -> list[Any]:
        return [np.dtype(self.dtype).name, self.shape]


TOKENS = Form(np.int32)


@dataclass(frozen=True)
class Split:
    """Training, validation or test examples: tokens without marks (or pictures, or samples), and
    the texts they came from; what is not text has its name there."""

    form: Form
    source: RaggedArray
    target: RaggedArray
    source_text: RaggedArray
    target_text: RaggedArray

    @classmethod
    def open(cls, folder: Path, name: str, form: Form) -> Split:
        return cls(
            form,
            RaggedArray(folder / f"{name}-source", form.dtype, form.shape),
            *(
                RaggedArray(folder / f"{name}-{column}", dtype)
                for column, dtype in _COLUMNS.items()
                if column != "source"
            ),
        )

    def __len__(self) -> int:
        return len(self.source)

    @property
    def groups(self) -> np.ndarray | None:
        """(n,): where each run of examples begins that have one source, such as sentences for
        one picture; None: each has its own."""
        if self.form.shape is None or not len(self):
            return None
        starts = np.flatnonzero(np.diff(self.source.ends, prepend=0))
        return None if len(starts) == len(self) else starts

    def gather_sources(self, index: Iterable[int | np.integer]) -> list[np.ndarray]:
        """The sources of examples; neighbours that have the same one have the same array."""
        found: list[np.ndarray] = []
        end = None
        for i in index:
            same = self.form.shape is not None and end == self.source.ends[i]
            found.append(found[-1] if same else self.source[i])
            end = self.source.ends[i]
        return found

    def texts(self, index: int | np.integer) -> Example:
        return Example(self.source_name(index), self.target_text[index].tobytes().decode())

    def source_name(self, index: int | np.integer) -> str:
        """The source as text, or its name."""
        return self.source_text[index].tobytes().decode()


_COLUMNS: dict[str, type[np.generic]] = {
    "source": np.int32,
    "target": np.int32,
    "source-text": np.uint8,
    "target-text": np.uint8,
}
_FILES = {TOKENIZER, TALLY} | {
    f"{part}-{column}.{kind}"
    for part in SPLITS
    for column in _COLUMNS
    for kind in ("values", "ends")
}


@dataclass(frozen=True)
class Corpus:
    train: Split
    valid: Split
    test: Split
    tokenizer: Tokenizer
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
    known: int = 0

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value or name != "known"}

    def short(self, example: Example) -> bool:
        limit = self.max_words
        return limit is None or all(
            word_count(side) <= limit for side in example if isinstance(side, str)
        )

    def asked(self, text: str) -> str:
        return plain(text) if self.plain_source else text

    def refuses(
        self, source: Sequence[int] | np.ndarray, target: list[int], *, labels: bool
    ) -> str | None:
        """Why not, or None."""
        if not len(source) or not target:
            return EMPTY
        if labels and UNKNOWN in target:
            return "label not in training"
        if isinstance(source, np.ndarray):
            return "too many tokens" if len(target) > self.max_target else None
        if len(source) > self.max_source or len(target) > self.max_target:
            return "too many tokens"
        if self.drop_unknown and (UNKNOWN in source or UNKNOWN in target):
            return "unknown word"
        return "no known word" if sum(token != UNKNOWN for token in source) < self.known else None


def prepare(
    read: Read,
    *,
    key: dict[str, Any],
    fit: Callable[[Iterator[str]], Tokenizer] | None,
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
    known: int = 0,
    form: Form = TOKENS,
    labels: bool = False,
) -> Corpus:
    """The corpus that `read` gives, from the cache in `folder` if it was prepared before.

    `key` says what the caller put in: the content's fingerprint and whatever shaped `read` and
    `fit`. A held-out part with its own reader takes nothing from `read`; the others are drawn from
    it by the prompt (`part_of`). What `read` gives of the prompts in such a held-out file is left
    out: nobody trains on what they are judged by.

    `fit` makes the tokenizer from all texts of the training part, on both sides; with `labels`,
    from its sources alone (None: they are not text), and the targets make the labels that are kept
    with it. `form` says what a source is.

    Every file of a cached corpus is checked against its SHA-256 whenever it is opened. That reads
    it once from end to end, which the first epoch does anyway, and takes about a second a gigabyte;
    one that fails is made anew.
    """
    if valid < 0 or test < 0 or valid + test >= 1:
        raise DataError(
            "nothing is left to train on", where="data", got=f"valid {valid}, test {test}"
        )
    own = {"valid": read_valid, "test": read_test}
    rules = _Rules(
        valid=0.0 if read_valid else valid,
        test=0.0 if read_test else test,
        max_source=max_source,
        max_target=max_target,
        max_words=max_words,
        drop_unknown=drop_unknown,
        plain_source=plain_source,
        known=known,
    )
    made_of = {
        "format": FORMAT,
        "key": key,
        "rules": rules.to_json(),
        "own": [part for part in own if own[part]],
    }
    if made_of["own"]:
        made_of["apart"] = (
            True  # their prompts are left out of training, which they were not always
        )
    if form != TOKENS or labels:
        made_of["form"] = [*form.to_json(), labels]
    name = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()
    final = Path(folder) / name[:32]
    fault = _fault(final, name)
    if fault is not None:
        if final.exists():
            LOG.warning("%s: this cached corpus is not trusted (%s) and made anew", final, fault)
        try:
            _publish(
                final, name, lambda place: _write(place, name, read, own, fit, rules, form, labels)
            )
        except OSError as problem:
            if problem.errno != errno.ENOSPC:
                raise
            raise _refused(final, problem) from None
        fault = _fault(final, name)
        if fault is not None:
            raise DataError(
                "the prepared corpus was changed while it was written",
                where=final,
                got=fault,
                hint="try again",
            )
    tally = Tally.from_json(json.loads((final / TALLY).read_text("utf-8")))
    train, held_out, tested = (Split.open(final, part, form) for part in SPLITS)
    return Corpus(train, held_out, tested, tokenizers.read(final / TOKENIZER), tally, name)


def _publish(final: Path, name: str, write: Callable[[Path], None]) -> None:
    """Write a folder under a temporary name, then rename it: it is there as a whole or not at
    all."""
    final.parent.mkdir(parents=True, exist_ok=True)
    _remove_old_drafts(final.parent)
    place = Path(tempfile.mkdtemp(prefix=f".{final.name}-", dir=final.parent))
    try:
        write(place)
        place.chmod(0o755)  # mkdtemp's is for the owner alone
        if final.exists() and _fault(final, name) is not None:
            shutil.rmtree(final)  # damaged since it was written
        place.rename(final)
    except OSError as problem:
        if problem.errno not in (
            errno.ENOTEMPTY,
            errno.EEXIST,
        ):  # otherwise somebody else was faster
            written = sum(file.stat().st_size for file in place.iterdir())
            shutil.rmtree(place, ignore_errors=True)  # so that what is free does not count it
            raise _refused(final, problem, written) from None
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _remove_old_drafts(folder: Path) -> None:
    """Remove the drafts of processes that were killed: folders of exactly the names that `_publish`
    gives, which nobody has written to for a day."""
    for draft in folder.iterdir():
        if not _DRAFT.fullmatch(draft.name) or draft.is_symlink() or not draft.is_dir():
            continue
        with contextlib.suppress(OSError):
            entries = [draft, *draft.iterdir()]
            latest = max(entry.lstat().st_mtime for entry in entries)
            if time.time() - latest > OLD_DRAFT:
                shutil.rmtree(draft, ignore_errors=True)


def _refused(final: Path, problem: OSError, written: int = 0) -> Exception:
    """What to tell of an error that came after so many bytes; one that names a file is of that
    file."""
    refused = disk.refusal(
        final, problem, hint="REGARD_CACHE names another folder for prepared corpora"
    )
    if isinstance(refused, NoRoomError):
        return refused.needing(written, at_least=True)
    return problem if refused is None or problem.filename is not None else refused


def _write(
    place: Path,
    name: str,
    read: Read,
    own: dict[str, Read | None],
    fit: Callable[[Iterator[str]], Tokenizer] | None,
    rules: _Rules,
    form: Form,
    labels: bool,
) -> None:
    apart = {
        _hash(identity(example.source))
        for reader in own.values()
        if reader
        for example in reader(Tally())
    }
    tokenizer = None if fit is None else fit(_texts(read, rules, apart, targets=not labels))
    if labels and not isinstance(tokenizer, Labels):
        tokenizer = Labels.fit(
            (example.target for example in _trained(read, rules, apart)), text=tokenizer
        )
    assert tokenizer is not None
    tokenizers.write(tokenizer, place / TOKENIZER)
    # What we leave out is counted apart: a reader complains when too many rows are bad, and these
    # are not.
    tally, ours = Tally(), Tally()
    with ExitStack() as stack:
        writers = {
            (part, column): stack.enter_context(
                RaggedArrayWriter(place / f"{part}-{column}", dtype)
            )
            for part in SPLITS
            for column, dtype in (_COLUMNS | {"source": form.dtype}).items()
        }
        streams = [_parted(read, tally, ours, rules, apart)]
        streams += [
            _named(reader, tally, ours, part, rules) for part, reader in own.items() if reader
        ]
        used = 0
        for stream in streams:
            while chunk := list(islice(stream, CHUNK if form.is_text else FEW)):
                used += _encode(chunk, tokenizer, rules, form, ours, writers)
    tally.used, tally.duplicates = used, tally.duplicates + ours.duplicates
    tally.skipped += ours.skipped
    if not (place / "train-source.ends").stat().st_size:
        hint = "are the limits on length too low?"
        if ours.skipped[HELD_OUT]:
            hint = "every prompt stands in valid_path or test_path too; hold out other ones"
        raise DataError("no usable examples to train on", got=tally.summary(), hint=hint)
    _write_json(place / TALLY, tally.to_json())
    sums = {file.name: disk.digest(file) for file in place.iterdir()}
    _write_json(place / MANIFEST, {"fingerprint": name, "files": sums})


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", "utf-8")


def _hash(content: bytes) -> int:
    """8 bytes: two different ones among 10 million agree once in 400,000 corpora."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")


def _whole(example: Example) -> bytes:
    """All of an example. Texts count as they are written here."""
    source = example.source.encode() if isinstance(example.source, str) else example.source.content
    return source + b"\0" + example.target.encode()


def _parted(
    read: Read, tally: Tally, ours: Tally, rules: _Rules, apart: Set[int]
) -> Iterator[tuple[str, Example]]:
    """Examples with the part they belong to; in training none twice, and none whose prompt is
    set `apart`."""
    seen: set[int] = set()
    for example in read(tally):
        part = part_of(example.source, valid=rules.valid, test=rules.test)
        if not rules.short(example):
            ours.skip("too many words")
            continue
        if apart and _hash(identity(example.source)) in apart:
            ours.skip(HELD_OUT)
            continue
        if part == "train":
            digest = _hash(_whole(example))
            if digest in seen:
                ours.duplicates += 1
                continue
            seen.add(digest)
        yield part, example


def _named(
    read: Read, tally: Tally, ours: Tally, part: str, rules: _Rules
) -> Iterator[tuple[str, Example]]:
    for example in read(tally):
        if rules.short(example):
            yield part, example
        else:
            ours.skip("too many words")


def _trained(read: Read, rules: _Rules, apart: Set[int]) -> Iterator[Example]:
    return (
        example
        for part, example in _parted(read, Tally(), Tally(), rules, apart)
        if part == "train"
    )


def _texts(read: Read, rules: _Rules, apart: Set[int], *, targets: bool) -> Iterator[str]:
    """What a tokenizer is fitted on: the training texts, as the model will see them."""
    for example in _trained(read, rules, apart):
        if isinstance(example.source, str):
            yield rules.asked(example.source)
        if targets:
            yield example.target


def _encode(
    chunk: list[tuple[str, Example]],
    tokenizer: Tokenizer,
    rules: _Rules,
    form: Form,
    tally: Tally,
    writers: dict[tuple[str, str], RaggedArrayWriter],
) -> int:
    sources = _sources([example.source for _, example in chunk], tokenizer, rules, form)
    targets = tokenizer.encode_many([example.target for _, example in chunk])
    used = 0
    for (part, example), source, target in zip(chunk, sources, targets, strict=True):
        reason = rules.refuses(source, target, labels=isinstance(tokenizer, Labels))
        if reason:
            tally.skip(reason)
            continue
        used += 1
        texts = (shown(side).encode() for side in example)
        for column, row in zip(_COLUMNS, (source, target, *texts), strict=True):
            if (
                column == "source"
                and form.shape is not None
                and example.source is writers[part, column].last
            ):
                writers[part, column].repeat()  # another sentence for the same picture
                continue
            writers[part, column].extend([row])
        writers[part, "source"].last = example.source
    return used


def _sources(
    given: Sequence[str | Item], tokenizer: Tokenizer, rules: _Rules, form: Form
) -> Sequence[list[int]] | Sequence[np.ndarray]:
    items = [one for one in given if isinstance(one, Item)]
    if not items:
        return tokenizer.source_tokenizer.encode_many(
            [rules.asked(one) for one in given if isinstance(one, str)]
        )
    for item in items:
        wrong = item.values.dtype != form.dtype or form.shape not in (None, item.values.shape)
        if wrong or len(items) != len(given):
            raise DataError(
                f"sources must be {form.to_json()}",
                where=item.name,
                got=f"{item.values.dtype} {item.values.shape}",
            )
    return [item.values.reshape(-1) for item in items]


def _fault(final: Path, name: str) -> str | None:
    """Why the folder is not the corpus that was written into it, or None if it is."""
    try:
        manifest = json.loads((final / MANIFEST).read_text("utf-8"))
        if manifest["fingerprint"] != name:
            return "it is of another corpus"
        if manifest["files"].keys() != _FILES:
            return "its manifest lists other files"
        for file, digest in manifest["files"].items():
            if disk.digest(final / file) != digest:
                return f"{file} is not what was written"
    except FileNotFoundError as problem:
        return f"{Path(problem.filename).name} is missing"
    except OSError as problem:
        return problem.strerror or "it cannot be read"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "its manifest cannot be read"
    return None


# -- what else one wants to know of a corpus--------------------------------------------------------


def fingerprint(paths: Iterable[Path | str]) -> str:
    """The SHA-256 of the contents of files, in this order; a folder stands for the files in it."""
    total = hashlib.sha256()
    for path in map(Path, paths):
        for file in (
            sorted(inner for inner in path.rglob("*") if inner.is_file())
            if path.is_dir()
            else [path]
        ):
            try:
                with file.open("rb") as opened:
                    total.update(hashlib.file_digest(opened, "sha256").digest())
            except OSError as problem:
                raise DataError("cannot be read", where=file, got=problem.strerror) from None
    return total.hexdigest()


def document_frequency(part: Split, size: int) -> np.ndarray:
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
