"""What a folder is: a data set of several files, the folder of one, or of texts or pictures by
label."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from regard import disk
from regard.data import labelled, sentences
from regard.data.columns import UnclearColumns
from regard.data.detect_file import file_readings, plain_text, recognise_kind
from regard.data.detect_table import target_holds_text
from regard.data.kinds import KINDS, LOOKED_AT, DataSet
from regard.data.labelled_pictures import read_folders
from regard.data.lines import Tally, read_lines
from regard.data.pairs import read_pairs
from regard.data.places import PACKED, plain_name
from regard.data.roles import PICTURES, SOUNDS
from regard.data.rows import SUFFIXES
from regard.errors import DataError

RUN = "recipe.json"  # in a folder with a manifest
TABLES = tuple(f"{suffix}{packed}" for suffix in SUFFIXES for packed in ("", *PACKED))
SPLIT_NAMES = frozenset(
    {"val", "valid", "dev", "train", "training", "validation", "test", "testing", "eval"}
)
MOST_ENTRIES = 500  # of a folder, that are looked at as data sets of their own
MOST_SHOWN = 12  # data sets in a message


class SeveralDataSets(DataError):
    """A folder of several data sets, where one is wanted."""

    def __init__(self, path: Path, sets: Sequence[DataSet]):
        self.sets = list(sets)
        paths = [
            f"{shlex.join(['--data', str(data_set.path)])} ({data_set.kind})"
            for data_set in self.sets[:MOST_SHOWN]
        ]
        if len(self.sets) > MOST_SHOWN:
            paths.append(f"… ({len(self.sets)} in all)")
        super().__init__(
            f"{len(self.sets)} data sets are here", where=path, hint=f"give one: {', '.join(paths)}"
        )


def folder_readings(path: Path) -> list[DataSet]:
    """The data sets a folder can be, the likeliest first."""
    if (path / RUN).is_file() and (path / disk.MANIFEST).is_file():
        run = shlex.quote(str(path))
        raise DataError(
            "a run, not data", where=path, hint=f"regard ask {run} or regard evaluate {run}"
        )
    if data_set := recognise_kind(path):
        return [data_set]

    questions: list[UnclearColumns] = []
    members = _members(path, depth=2, questions=questions)
    if len(members) == len(questions) == 1:
        raise questions[0]

    labels = _label_folders(path)
    are_splits = bool(labels) and {folder.name.lower() for folder in labels} <= SPLIT_NAMES
    if len(labels) >= 2 and not are_splits and not any(map(_has_pictures, members)):
        return [_pictures(path)]
    if are_splits and not members:
        members = [_pictures(folder) for folder in labels if _label_folders(folder)]

    if len(members) == 1:
        return members
    if members:
        raise SeveralDataSets(path, members)
    if labels:
        return [_pictures(path)]
    _refuse_sounds(path)
    return _texts(path)


# -- data sets in a folder--------------------------------------------------------------------------


def _members(folder: Path, depth: int, questions: list[UnclearColumns]) -> list[DataSet]:
    """The data sets in a folder and in its folders: files, or folders of files that belong
    together. Questions about the columns of a table are added to `questions`."""
    members: list[DataSet] = []
    for entry in _entries(folder):
        if entry.is_dir():
            data_set = recognise_kind(entry)
            if data_set:
                members.append(data_set)
            elif depth > 1:
                members += _members(entry, depth - 1, questions)
        elif _is_data_file(entry):
            try:
                members.append(file_readings(entry, {}, None, None)[0])
            except UnclearColumns as problem:  # a table all the same
                questions.append(problem)
                read = partial(read_pairs, entry, limit=1.0)
                members.append(DataSet.at("pairs", entry, read))
            except DataError:
                continue
    return members


def _entries(folder: Path) -> list[Path]:
    """The entries of a folder that are not hidden: folders and data files, at most
    MOST_ENTRIES."""
    try:
        entries = [entry for entry in folder.iterdir() if not entry.name.startswith((".", "__"))]
    except OSError as problem:
        raise DataError("cannot be read", where=folder, got=problem.strerror) from None
    candidates = sorted(entry for entry in entries if entry.is_dir() or _is_data_file(entry))
    return candidates[:MOST_ENTRIES]


def _is_data_file(file: Path) -> bool:
    name = file.name.lower()
    if name.endswith(TABLES) or name == "captions.txt":
        return True
    return any(kind.is_member(file) for kind in KINDS.values() if kind.is_member is not None)


def _has_pictures(data_set: DataSet) -> bool:
    """Whether the pictures beside a data set are its own, and not labelled by their folders."""
    if data_set.path.is_dir() or data_set.kind in ("coco", "sounds"):
        return True
    if data_set.kind != "captioned":
        return False
    return target_holds_text(data_set.path, "captioned")  # and is no list of labels once more


def _refuse_sounds(path: Path) -> None:
    """Refuse a folder of sounds without a table: it has neither texts nor labels."""
    sounds = [file for file in _files_in(path) if file.suffix.lower() in SOUNDS]
    if not sounds:
        return
    texts = sum(file.with_suffix(".txt").is_file() for file in sounds)
    beside = f", {texts:,} of them with a .txt file of their name" if texts else ""
    raise DataError(
        "a folder of sounds without a table of what is said in them",
        where=path,
        got=f"{len(sounds):,} sounds{beside}",
        hint="put a table beside them, for example texts.csv with the columns path,text",
    )


def _files_in(path: Path) -> list[Path]:
    """The files of a folder and of the folders in it."""
    entries = sorted(path.iterdir())
    folders = [entry for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    files = []
    for folder in (path, *folders):
        files += [file for file in sorted(folder.iterdir()) if file.is_file()]
    return files


# -- pictures by label------------------------------------------------------------------------------


def _label_folders(path: Path) -> list[Path]:
    """The folders that have pictures in them, at any depth."""
    folders = []
    for folder in sorted(path.iterdir()):
        if not folder.is_dir() or folder.name.startswith("."):
            continue
        if any(file.suffix.lower() in PICTURES for file in folder.rglob("*")):
            folders.append(folder)
    return folders


def _pictures(path: Path) -> DataSet:
    read = partial(read_folders, path, **LOOKED_AT.picture(), limit=1.0)
    return DataSet.at("pictures", path, read)


# -- texts------------------------------------------------------------------------------------------


def _texts(path: Path) -> list[DataSet]:
    """A folder of texts: by label, or just texts."""
    files = _labelled_files(path)
    readings: list[DataSet] = []
    if files:
        labels = labelled.labels_of(files, path)
        is_by_folder = any(file.parent != path for file in files)
        if not any(map(_names_split, labels)):
            read = partial(labelled.read_labelled, path, limit=1.0)
            readings.append(DataSet.at("labelled", path, read))
        elif is_by_folder and all(map(_names_split, labels)):
            splits = dict.fromkeys(labels)
            raise SeveralDataSets(path, [_texts(path / split)[0] for split in splits])
    if any(plain_name(file).endswith(".txt") for file in path.rglob("*")):
        readings.append(plain_text(path))
    if not readings:
        raise DataError(
            f"no usable examples in {path}: nothing here that regard can read",
            hint="regard data list names what it can; is it the folder above or below?",
        )
    if len(readings) == 2 and files[0].parent == path and all(map(_is_wrapped, files[:3])):
        readings.reverse()  # books, not a text a line
    return readings


def _labelled_files(path: Path) -> list[Path]:
    """The files of labelled texts; none if every label has one text, because then they are
    names."""
    try:
        files = labelled.labelled_files(path)
    except DataError:
        return []
    labels = labelled.labels_of(files, path)
    is_by_folder = any(file.parent != path for file in files)
    return [] if _occur_once(files, labels, is_by_folder=is_by_folder) else files


def _occur_once(files: list[Path], labels: list[str], *, is_by_folder: bool) -> bool:
    """Whether every label has one text."""
    if is_by_folder:
        return len(set(labels)) == len(labels)
    if len({file.stem for file in files}) == 1:  # rt-polarity.neg and rt-polarity.pos
        return False
    return not any(map(_has_two_lines, files))


def _has_two_lines(file: Path) -> bool:
    lines = islice(read_lines(file, Tally(), declared="cp1252"), 2)
    return sum(1 for line in lines if line.strip()) == 2


def _is_wrapped(file: Path) -> bool:
    return sentences.is_wrapped(list(islice(read_lines(file, Tally()), sentences.SAMPLE)))


def _names_split(label: str) -> bool:
    """
    >>> _names_split("dialogues_train"), _names_split("positive")
    (True, False)
    """
    return not SPLIT_NAMES.isdisjoint(re.split(r"[^a-z]+", label.lower()))
