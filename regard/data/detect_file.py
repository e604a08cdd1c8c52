"""What a file is: a data set of a known kind, a plain text, or a table."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from regard.data import sentences
from regard.data.detect_table import table_readings
from regard.data.kinds import KINDS, DataSet
from regard.data.lines import Tally, is_binary, read_lines
from regard.data.roles import SOUNDS, Column
from regard.errors import DataError

TURN = "__eou__"  # ends a turn of DailyDialog


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
    if columns:
        return table_readings(path, columns, task, kind)
    if data_set := recognise_kind(path):
        return [data_set]
    if path.name.lower().removesuffix(".gz").endswith(tuple(SOUNDS)):
        raise DataError(
            "one sound is no corpus",
            where=path,
            hint="give a folder, or a table with path,text",
        )
    if is_binary(path):
        raise DataError(
            "neither text nor a table",
            where=path,
            hint="one picture or sound is no corpus: give a folder, or a table of files and texts",
        )
    if sentences.is_text(path):
        return [plain_text(path)]
    return table_readings(path, columns, task, kind)


def plain_text(path: Path) -> DataSet:
    """A file or folder of plain text."""
    first = next(read_lines(sentences.text_files(path)[0], Tally()), "")
    if TURN in first:  # to all appearance sentences, with marks in them
        raise DataError(
            f"dialogues whose turns end in {TURN} (DailyDialog), which cannot be read yet",
            where=path,
            hint="a prompt, a tab and its reply in a line can: "
            "regard train chat-attention --data pairs.tsv",
        )
    return DataSet.at("text", path, partial(sentences.read_text, path))
