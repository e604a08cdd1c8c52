"""Sounds with texts: folders like LJSpeech's and FSDD's, and tables of files and texts.

A sound is never trusted: what its header says is looked at before anything is unpacked, what cannot
be used is counted and skipped, and no more than `max_seconds` of a file are unpacked.
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from regard.data.examples import Example, Item
from regard.data.lines import EMPTY, Tally, read_lines
from regard.data.pairs import read_pairs
from regard.data.reading import checked, tidy
from regard.data.roles import SOUNDS as SUFFIXES
from regard.data.roles import SPOKEN, Column
from regard.data.spelled import english
from regard.errors import DataError, InputError

LARGEST_FILE = 256 << 20  # bytes
SLOWEST, FASTEST = 1_000, 192_000  # samples a second
MOST_CHANNELS = 8
BLOCK = 1 << 16  # frames unpacked at a time
LOUDEST = 32767
# floats a little above 1 are clipped, as in a file; these are integers that became floats
FLOAT_LIMIT = 100.0
HIGHEST_PEAK = (
    1e9  # of samples that should be in -1..1; some programs write whole numbers as floats
)
# what an AU file says that does not know its size, and RF64 in place of a larger one
UNSAID = 0xFFFFFFFF
UNKNOWN = 2**63 - 1  # frames of a FLAC file that came out of a pipe; libsndfile cannot go on in it


# -- one sound--------------------------------------------------------------------------------------


def read_sound(path: Path | str, *, rate: int, max_seconds: float) -> Item:
    """A file as 16-bit samples of one channel, `rate` a second."""
    path = Path(path)
    try:
        if path.exists() and not path.is_file():  # a device may never end
            raise InputError("not a file", where=path)
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(
                "the sound's file is too large", where=path, got=f"{path.stat().st_size:,} bytes"
            )
        content = path.read_bytes()
    except (FileNotFoundError, ValueError):  # ValueError: a name with a zero in it
        raise InputError("no such sound", where=path) from None
    except OSError as problem:
        raise InputError("cannot be read", where=path, got=problem.strerror) from None
    samples, found = _unpacked(content, max_seconds, path)
    made = resampled(samples, found, rate)
    if not len(made):
        raise InputError(
            "too short a sound", where=path, got=f"{len(samples):,} samples of {found:,} a second"
        )
    return Item(str(path), made, hashlib.sha256(content).digest())


def from_samples(
    samples: np.ndarray, own_rate: float, *, rate: int, max_seconds: float
) -> np.ndarray:
    """What `read_sound` makes of a file with these samples, `own_rate` a second: (n,) or (n,
    channels), floats from -1 to 1 or integers of 8 (unsigned), 16 or 32 bits."""
    if not SLOWEST <= own_rate <= FASTEST or own_rate != int(own_rate):
        raise InputError(
            f"the rate of a sound must be a whole number from {SLOWEST:,} to {FASTEST:,}",
            got=f"{own_rate:g}",
        )
    own_rate = int(own_rate)
    if samples.ndim not in (1, 2) or (
        samples.ndim == 2 and not 1 <= samples.shape[1] <= MOST_CHANNELS
    ):
        channels_first = samples.ndim == 2 and 1 <= samples.shape[0] <= MOST_CHANNELS
        raise InputError(
            f"samples have shape (n,) or (n, channels), with at most {MOST_CHANNELS} channels",
            got=f"{samples.dtype} {samples.shape}",
            hint="move its channels to the end: transpose it" if channels_first else None,
        )
    if not len(samples):
        raise InputError("a sound of no samples")
    if len(samples) > max_seconds * own_rate:
        raise InputError(too_long(max_seconds), got=f"{len(samples) / own_rate:,.1f} seconds")
    values = _as_floats(samples)
    if values.ndim == 2:
        values = values.mean(1, dtype=np.float64).astype(np.float32)
    made = resampled(values, own_rate, rate)
    if not len(made):
        raise InputError(
            "too short a sound", got=f"{len(samples):,} samples of {own_rate:,} a second"
        )
    return made


def _as_floats(samples: np.ndarray) -> np.ndarray:
    """Samples as 32-bit floats from -1 to 1, by the same division with which libsndfile reads
    integers."""
    if samples.dtype == np.int16 or samples.dtype == np.int32:
        return (samples / -float(np.iinfo(samples.dtype).min)).astype(np.float32)
    if samples.dtype == np.uint8:
        return ((samples.astype(np.float32) - 128) / 128).astype(np.float32)
    if not np.issubdtype(samples.dtype, np.floating):
        raise InputError(
            "samples are floats from -1 to 1, or integers of type uint8, int16 or int32",
            got=str(samples.dtype),
        )
    values = samples.astype(np.float32)
    if not np.isfinite(values).all():
        raise InputError("samples that are not numbers")
    highest = float(np.abs(values).max())
    if highest > FLOAT_LIMIT:
        raise InputError(
            "samples that are floats go from -1 to 1",
            got=f"up to {highest:,.0f}",
            hint="if they are those of 16-bit integers, divide them by 32768",
        )
    return values


def resampled(samples: np.ndarray, found: int, rate: int) -> np.ndarray:
    """Samples in -1..1, `found` a second, as 16-bit ones of another rate."""
    import soxr

    if found != rate:
        samples = soxr.resample(samples, found, rate)
    return np.rint(samples.clip(-1, 1) * LOUDEST).astype(np.int16)


def loud(samples: np.ndarray, share: float) -> slice:
    """From the first sample that has this share of the peak to the last; with 0, all of them.

    >>> loud(np.array([0, 1, -50, 0, 30, 1], np.int16), 0.02)
    slice(1, 6, None)
    """
    if not share:
        return slice(0, len(samples))
    heights = np.abs(samples.astype(np.int32))
    found = np.flatnonzero(heights >= share * heights.max())
    return slice(int(found[0]), int(found[-1]) + 1)


def _unpacked(content: bytes, max_seconds: float, where: Path) -> tuple[np.ndarray, int]:
    """The mean of the channels, and the rate."""
    import soundfile

    if not content:
        raise InputError("an empty file", where=where)
    _whole(content, where)
    try:
        with soundfile.SoundFile(_Content(content)) as sound:
            rate, channels, promised = sound.samplerate, sound.channels, sound.frames
            if not SLOWEST <= rate <= FASTEST:
                raise InputError(
                    f"its rate must be {SLOWEST:,} to {FASTEST:,} samples a second",
                    where=where,
                    got=f"{rate:,}",
                )
            if channels > MOST_CHANNELS:
                raise InputError(f"more than {MOST_CHANNELS} channels", where=where, got=channels)
            if promised == UNKNOWN:
                raise InputError(
                    "a sound that does not say its length",
                    where=where,
                    hint="save it as a file again",
                )
            if promised > max_seconds * rate:
                raise InputError(
                    too_long(max_seconds), where=where, got=f"{promised / rate:,.1f} seconds"
                )
            parts, count = [], 0
            while count < promised and len(
                part := sound.read(BLOCK, dtype="float32", always_2d=True)
            ):
                if not np.isfinite(part).all():
                    raise InputError("samples that are not numbers", where=where)
                parts.append(part.mean(1, dtype=np.float64).astype(np.float32))
                count += len(part)
    except soundfile.LibsndfileError as problem:
        raise InputError(
            "not a sound that can be read", where=where, got=str(problem.error_string)[:120]
        ) from None
    if count < promised:
        raise InputError(
            "the sound is cut short", where=where, got=f"{count:,} of {promised:,} samples"
        )
    if not count:
        raise InputError("a sound of no samples", where=where)
    samples = np.concatenate(parts)
    peak = float(np.abs(samples).max())
    if peak > HIGHEST_PEAK:  # filters that change the rate would overflow
        raise InputError("samples far outside of -1..1", where=where, got=f"{peak:.3g}")
    return samples, rate


class _Content(io.BytesIO):
    """The bytes of a file for libsndfile, whose read and seek raise nothing.

    libsndfile reads through callbacks, and Python prints the traceback of an exception in one to
    the terminal. A seek to a place that does not exist, as a damaged header asks for, leaves the
    position where it is instead: libsndfile compares the two and reports the error itself.
    """

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        try:
            return super().seek(offset, whence)
        except (ValueError, OverflowError):
            return self.tell()


def too_long(max_seconds: float) -> str:
    return f"longer than {max_seconds:g} seconds"


FORMS = {b"RIFF": "<4sI", b"RF64": "<4sI", b"RIFX": ">4sI", b"FORM": ">4sI"}
CHUNKS = {b"WAVE": b"data", b"AIFF": b"SSND", b"AIFC": b"SSND"}


def _whole(content: bytes, where: Path) -> None:
    """Refuses a file whose header promises more samples than there are, and an Ogg file without
    its last page: libsndfile reads what is left of either and says nothing."""
    if content[:4] in FORMS and content[8:12] in CHUNKS:
        form, samples, at, large = FORMS[content[:4]], CHUNKS[content[8:12]], 12, 0
        while at + 8 <= len(content):
            name, size = struct.unpack_from(form, content, at)
            if name == b"ds64" and at + 24 <= len(content):  # sizes that need more than 4 bytes
                large = struct.unpack_from("<Q", content, at + 16)[0]
            if name == samples:
                _long_enough(content, at + 8, large if large and size == UNSAID else size, where)
            at += 8 + size + size % 2
    elif content[:4] == b".snd" and len(content) >= 12:
        start, size = struct.unpack_from(">II", content, 4)
        _long_enough(content, start, 0 if size == UNSAID else size, where)
    elif content[:4] == b"OggS":
        last = content.rfind(b"OggS")
        if not (len(content) > last + 5 and content[last + 5] & 4):
            raise InputError("the sound is cut short", where=where, got="no last page")


def _long_enough(content: bytes, start: int, size: int, where: Path) -> None:
    if start + size > len(content):
        raise InputError(
            "the sound is cut short", where=where, got=f"{len(content) - start:,} of {size:,} bytes"
        )


# -- many of them-----------------------------------------------------------------------------------


class Row(NamedTuple):
    """A file and what is said in it."""

    path: Path
    name: str
    text: str


@dataclass(frozen=True)
class Hearing:
    """How sounds are read: their rate, the longest that is used, and where their texts are cut."""

    rate: int
    max_seconds: float
    cut: int | None = None

    def examples(self, rows: Iterable[Row], tally: Tally) -> Iterator[Example]:
        for row in rows:
            text = tidy(row.text)[: self.cut]
            if not text:
                tally.skip(EMPTY)
                continue
            try:
                item = read_sound(row.path, rate=self.rate, max_seconds=self.max_seconds)
            except InputError as problem:
                tally.skip(problem.what)
                continue
            tally.used += 1
            yield Example(Item(row.name, item.values, item.content), text)


Part = Literal["all", "train", "valid", "test"]


# -- LJSpeech---------------------------------------------------------------------------------------


def read_ljspeech(
    path: Path | str,
    *,
    how: Hearing,
    part: Part = "all",
    shares: tuple[float, float] = (0.0, 0.0),
    tally: Tally,
    limit: float = 0.5,
) -> Iterator[Example]:
    """metadata.csv (`id|text|text with numbers spelled out`) and wavs/. A `part` is cut out in
    the file's own order: first what trains, then the `shares` that validate and test."""

    def rows() -> Iterator[Row]:
        counted = (
            tally if part in ("all", "train") else Tally()
        )  # what is wrong with the table counts once
        yield from _in_order(_ljspeech(path, counted), part, shares)

    return checked(how.examples(rows(), tally), path, tally, limit=limit)


def ljspeech_files(path: Path | str) -> list[Path]:
    return [
        _metadata(path),
        *(row.path for row in _ljspeech(path, Tally()) if os.path.isfile(row.path)),
    ]


def _metadata(path: Path | str) -> Path:
    file = Path(path) / "metadata.csv"
    if not file.is_file():
        raise DataError(
            "not an LJSpeech folder", where=path, hint="expected metadata.csv and a folder wavs"
        )
    return file


def _ljspeech(path: Path | str, tally: Tally) -> list[Row]:
    rows: list[Row] = []
    for line in read_lines(_metadata(path), tally):
        fields = line.split("|")
        if len(fields) not in (2, 3) or not fields[0].strip() or "/" in fields[0]:
            tally.skip("wrong field count")
            continue
        name = f"{fields[0].strip()}.wav"
        rows.append(Row(Path(path) / "wavs" / name, name, fields[-1] or fields[1]))
    return rows


def _in_order(rows: list[Row], part: Part, shares: tuple[float, float]) -> list[Row]:
    valid, test = (round(share * len(rows)) for share in shares)
    train = len(rows) - valid - test
    ends = {
        "all": (0, len(rows)),
        "train": (0, train),
        "valid": (train, train + valid),
        "test": (train + valid, None),
    }
    return rows[slice(*ends[part])]


# -- FSDD-------------------------------------------------------------------------------------------

_NAMED = re.compile(r"(\d)_([^_/]+)_(\d+)$")
USUAL_TEST = 5  # recordings 0 to 4 of each digit and speaker


def read_fsdd(
    path: Path | str,
    *,
    how: Hearing,
    part: Part = "all",
    hold_out: str | None = None,
    tally: Tally,
    limit: float = 0.5,
) -> Iterator[Example]:
    """A folder named like the Free Spoken Digit Dataset, {digit}_{speaker}_{index}.wav; the text
    is the digit's word. Its test part is one speaker, if one is to be held out, or else the
    recordings 0 to 4 of everybody."""
    files = fsdd_files(path)
    speakers = {speaker for _, _, speaker, _ in files.named}
    if hold_out is not None and hold_out not in speakers:
        raise DataError(
            "no such speaker",
            where=path,
            got=hold_out,
            hint=f"known: {', '.join(sorted(speakers))}",
        )

    def chosen() -> Iterator[Row]:
        for _ in range(files.others if part in ("all", "train") else 0):
            tally.skip("not named {digit}_{speaker}_{index}")
        for file, digit, speaker, index in files.named:
            tests = speaker == hold_out if hold_out else index < USUAL_TEST
            if part == "all" or tests == (part == "test"):
                yield Row(file, file.name, english(digit))

    return checked(how.examples(chosen(), tally), path, tally, limit=limit)


class Recordings(NamedTuple):
    named: list[tuple[Path, int, str, int]]  # file, digit, speaker, index
    others: int


def fsdd_files(path: Path | str) -> Recordings:
    """In the order of speaker, digit and index."""
    path = Path(path)
    if not path.is_dir():
        raise DataError("no such folder", where=path)
    home = path / "recordings" if (path / "recordings").is_dir() else path
    sounds = sorted(file for file in home.iterdir() if file.suffix.lower() in SUFFIXES)
    matches = [(file, match) for file in sounds if (match := _NAMED.match(file.stem))]
    if not matches:
        raise DataError(
            f"no usable examples in {path}",
            hint="expected files named {digit}_{speaker}_{index}.wav",
        )
    named = [(file, int(match[1]), match[2], int(match[3])) for file, match in matches]
    return Recordings(
        sorted(named, key=lambda one: (one[2], one[1], one[3])), len(sounds) - len(named)
    )


def is_fsdd(path: Path) -> bool:
    """Whether a folder has files of such names."""
    home = path / "recordings" if (path / "recordings").is_dir() else path
    return any(
        file.suffix.lower() in SUFFIXES and _NAMED.match(file.stem) for file in home.iterdir()
    )


MOST_PLACES = 4  # folders in a message

# -- tables-----------------------------------------------------------------------------------------


def read_sounds(
    path: Path | str,
    *,
    how: Hearing,
    path_column: Column = None,
    text_column: Column = None,
    tally: Tally,
    limit: float = 0.5,
) -> Iterator[Example]:
    """A table (CSV, TSV, JSON lines) with a file and a text a row; paths count from the table's
    own folder."""
    rows = _table(path, path_column, text_column, tally)
    return checked(how.examples(rows, tally), path, tally, limit=limit)


def sounds_files(
    path: Path | str, *, path_column: Column = None, text_column: Column = None
) -> list[Path]:
    rows = _table(path, path_column, text_column, Tally())
    return [Path(path), *(row.path for row in rows if os.path.isfile(row.path))]


def _table(
    path: Path | str, path_column: Column, text_column: Column, tally: Tally
) -> Iterator[Row]:
    path = Path(path)
    rows = Tally()
    if not path.is_file():
        raise DataError("no such file", where=path)
    places = Places(path.parent)
    missing: list[str] = []
    is_any_there = False
    columns = {"source_column": path_column, "target_column": text_column}
    for name, text in read_pairs(path, **columns, tally=rows, limit=1.0, roles=SPOKEN):
        file = places.file(str(name))
        is_any_there = is_any_there or file is not None
        if file is None:
            missing.append(str(name))
        yield Row(file or path.parent / str(name), str(name), text)
    if missing and not is_any_there:
        folders = ", ".join(str(folder) for folder in places.folders[:MOST_PLACES])
        raise DataError(
            "none of its sounds is there",
            where=path,
            got=missing[0],
            hint=f"looked for in {folders}",
        )
    tally.skipped += rows.skipped
    tally.replaced += rows.replaced


class Places:
    """Where sounds that a table names may be: beside it, or in folders there, two levels deep. A
    name may lack its suffix."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.folders = [folder]
        for _ in range(2):
            self.folders += [
                inner
                for place in tuple(self.folders)
                for inner in sorted(place.iterdir())
                if inner.is_dir() and not inner.name.startswith(".") and inner not in self.folders
            ]

    @functools.cached_property
    def names(self) -> dict[str, Path]:
        """The sounds by name and by name without suffix; one that several have is none of them."""
        by_name: dict[str, set[Path]] = {}
        for folder in self.folders:
            for file in sorted(folder.iterdir()):
                if file.suffix.lower() in SUFFIXES:
                    by_name.setdefault(file.name, set()).add(file)
                    by_name.setdefault(file.stem, set()).add(file)
        return {name: files.pop() for name, files in by_name.items() if len(files) == 1}

    def file(self, name: str) -> Path | None:
        """The file of this name, if there is one."""
        try:
            if name and (self.folder / name).is_file():
                return self.folder / name
        except (OSError, ValueError):  # a name that no file can have
            return None
        return self.names.get(re.split(r"[/\\]", name)[-1])
