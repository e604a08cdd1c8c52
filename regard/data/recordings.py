"""Sounds with transcripts: folders in the format of LJ Speech and FSDD, and tables of sound files.

What cannot be used is counted and skipped.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from regard.data.examples import Example, Item
from regard.data.lines import EMPTY, Tally, read_lines
from regard.data.pairs import read_pairs
from regard.data.reading import checked, tidy
from regard.data.roles import SOUNDS, SPOKEN, Column
from regard.data.sound import read_sound
from regard.data.spelled import english
from regard.errors import DataError, InputError

MOST_PLACES = 4  # folders in a message


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
        # What is wrong with the table counts once.
        rows_tally = tally if part in ("all", "train") else Tally()
        yield from _in_order(_ljspeech(path, rows_tally), part, shares)

    return checked(how.examples(rows(), tally), path, tally, limit=limit)


def ljspeech_files(path: Path | str) -> list[Path]:
    """The files that `read_ljspeech` reads."""
    sounds = [row.path for row in _ljspeech(path, Tally()) if os.path.isfile(row.path)]
    return [_metadata(path), *sounds]


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

    def rows() -> Iterator[Row]:
        for _ in range(files.others if part in ("all", "train") else 0):
            tally.skip("not named {digit}_{speaker}_{index}")
        for file, digit, speaker, index in files.named:
            is_test = speaker == hold_out if hold_out else index < USUAL_TEST
            if part == "all" or is_test == (part == "test"):
                yield Row(file, file.name, english(digit))

    return checked(how.examples(rows(), tally), path, tally, limit=limit)


class Recordings(NamedTuple):
    """The files of a folder: those named as in FSDD, and the number of others."""

    named: list[tuple[Path, int, str, int]]  # file, digit, speaker, index
    others: int


def fsdd_files(path: Path | str) -> Recordings:
    """The recordings in the order of speaker, digit and index."""
    path = Path(path)
    if not path.is_dir():
        raise DataError("no such folder", where=path)
    home = path / "recordings" if (path / "recordings").is_dir() else path
    sounds = sorted(file for file in home.iterdir() if file.suffix.lower() in SOUNDS)
    matches = [(file, match) for file in sounds if (match := _NAMED.match(file.stem))]
    if not matches:
        raise DataError(
            f"no usable examples in {path}",
            hint="expected files named {digit}_{speaker}_{index}.wav",
        )
    named = [(file, int(match[1]), match[2], int(match[3])) for file, match in matches]
    named.sort(key=lambda recording: (recording[2], recording[1], recording[3]))
    return Recordings(named, len(sounds) - len(named))


def is_fsdd(path: Path) -> bool:
    """Whether a folder has files of such names."""
    home = path / "recordings" if (path / "recordings").is_dir() else path
    return any(file.suffix.lower() in SOUNDS and _NAMED.match(file.stem) for file in home.iterdir())


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
    is_any_present = False
    columns = {"source_column": path_column, "target_column": text_column}
    for name, text in read_pairs(path, **columns, tally=rows, limit=1.0, roles=SPOKEN):
        file = places.file(str(name))
        is_any_present = is_any_present or file is not None
        if file is None:
            missing.append(str(name))
        yield Row(file or path.parent / str(name), str(name), text)
    if missing and not is_any_present:
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
        level = [folder]
        for _ in range(2):
            level = [inner for place in level for inner in _visible_folders(place)]
            self.folders += level

    @functools.cached_property
    def names(self) -> dict[str, Path]:
        """The sounds by name and by name without suffix; one that several have is none of them."""
        by_name: dict[str, set[Path]] = {}
        for folder in self.folders:
            for file in sorted(folder.iterdir()):
                if file.suffix.lower() in SOUNDS:
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


def _visible_folders(folder: Path) -> list[Path]:
    entries = sorted(folder.iterdir())
    return [entry for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
