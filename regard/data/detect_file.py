"""What a file is: a data set of a known kind, a plain text, or a table."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from regard.data import sentences
from regard.data.dailydialog import TURN, is_dailydialog
from regard.data.detect_table import table_readings
from regard.data.dialogues import looks_like_dialogues
from regard.data.kinds import KINDS, DataSet
from regard.data.kinds.dialogues import dialogues_at
from regard.data.lines import is_binary
from regard.data.places import PACKED, plain_name
from regard.data.roles import SOUNDS, Column
from regard.errors import DataError


def recognise_kind(path: Path) -> DataSet | None:
    """The data set that a kind of data recognises in this path itself.

    The last kind is asked first: those with sounds and pictures have texts too, and a kind that a
    program registers comes before the built-in ones.
    """
    for kind in reversed(KINDS.values()):
        data_set = kind.recognise(path) if kind.recognise is not None else None
        if data_set is not None:
            return data_set
    return None


def file_readings(
    path: Path, columns: Mapping[str, Column], task: str | None, kind: str | None
) -> list[DataSet]:
    """The data sets a file can be, the likeliest first. With named columns it is a table."""
    # Kinds look at the first line, which may be all of a bomb.
    if path.name.lower().endswith(PACKED) and not _is_arrays(path) and is_binary(path):
        raise _neither(path)
    if columns:
        return table_readings(path, columns, task, kind)
    if data_set := recognise_kind(path):
        return [data_set]
    if plain_name(path).endswith(tuple(SOUNDS)):
        raise DataError(
            "one sound is no corpus",
            where=path,
            hint="give a folder, or a table with path,text",
        )
    if is_binary(path):
        raise _neither(path)
    if sentences.is_text(path):
        return text_readings(path)
    return table_readings(path, columns, task, kind)


def _is_arrays(path: Path) -> bool:
    return plain_name(path).endswith(".npz")


def _neither(path: Path) -> DataError:
    return DataError(
        "neither text nor a table",
        where=path,
        hint="one picture or sound is no corpus: give a folder, or a table of files and texts",
    )


def text_readings(path: Path) -> list[DataSet]:
    """The data sets a text can be: sentences, or dialogues with a turn a line."""
    readings = [plain_text(path)]
    can_be_dialogues, are_probable = looks_like_dialogues(path)
    if can_be_dialogues:
        readings.insert(0 if are_probable else 1, dialogues_at(path))
    return readings


def plain_text(path: Path) -> DataSet:
    """A file or folder of plain text."""
    file = sentences.text_files(path)[0]
    if is_dailydialog(file):  # to all appearance sentences, with marks in them
        raise DataError(
            f"dialogues whose turns end in {TURN} (DailyDialog), in a folder with other names",
            where=path,
            hint=f"give the file: --data {shlex.quote(str(file))}",
        )
    return DataSet.at("text", path, partial(sentences.read_text, path))
