"""Whether the first row of a table names its columns."""

from __future__ import annotations

import re
from collections import Counter

from regard.data.column_types import LABEL_WORDS, content_of, shape_of
from regard.data.roles import (
    FOREIGN_SOURCES,
    FOREIGN_TARGETS,
    KNOWN,
    LABEL_LIKE,
    LANGUAGES,
    OTHER_NAMES,
    SOURCE_NAMES,
    TARGET_NAMES,
    TURNS,
)


def is_header(rows: list[list[str]], asked: set[str]) -> bool:
    """Whether the first row names the columns: by names that are known or asked for, or because it
    differs from every row below in what a cell can be."""
    if not rows:
        return False
    first = [cell.strip() for cell in rows[0]]
    names = {cell.lower() for cell in first}
    if names & asked or len(names & KNOWN) > 1:
        return True
    if names & {*SOURCE_NAMES, *FOREIGN_SOURCES} and names & {*TARGET_NAMES, *FOREIGN_TARGETS}:
        return True
    below = [[cell.strip() for cell in row] for row in rows[1:] if len(row) == len(first)]
    if below and _has_usual_names(first, below):
        return True
    if not below or (len(first) > 1 and len(first) != usual_width(rows[1:])):
        return False
    columns = [[row[i] for row in below if row[i]] for i in range(len(first))]
    if any(
        name.lower() in LABEL_LIKE and _repeats(name, column)
        for name, column in zip(first, columns, strict=True)
    ):
        return True
    if not all(_is_name(cell) for cell in first):
        return False
    if any(_differs(cell, column) for cell, column in zip(first, columns, strict=True)):
        return True
    return _stands_out(first, below)


def _has_usual_names(first: list[str], below: list[list[str]]) -> bool:
    """Whether the first row has two usual names of columns, and no such name is below it."""
    names = {name.lower().replace(" ", "_") for name in first}
    usual = sum(name in OTHER_NAMES or name in KNOWN for name in names)
    languages = sum(name in LANGUAGES for name in names)
    if max(usual, languages) < 2:
        return False
    cells = {cell.lower() for row in below for cell in row}
    return not any(name.lower() in cells for name in first if name)


def _repeats(name: str, values: list[str]) -> bool:
    """Whether values repeat, none of them being the name above them."""
    folded = [value.lower() for value in values]
    return name.lower() not in folded and len(set(folded)) < len(folded)


def _is_name(cell: str) -> bool:
    """
    >>> [_is_name(cell) for cell in ("antwort_text", "Customer question", "Who is it?", "547", "")]
    [True, True, False, False, True]
    """
    if not cell:
        return True  # as pandas writes the name of its index
    short = len(cell) <= 50 and len(cell.split()) <= LABEL_WORDS
    return short and any(map(str.isalpha, cell)) and cell[-1] not in '.?!,;:…。？！"'


def _differs(name: str, values: list[str]) -> bool:
    """Whether a cell is of another kind than all below it: a word above numbers, ids, labels, …"""
    if len(values) < 2:
        return False
    shape = shape_of(values)
    if shape is not None:
        return shape_of([name]) != shape
    if not name or content_of(values, "") != "label":
        return False
    return name.lower() not in {value.lower() for value in values}


def _stands_out(first: list[str], below: list[list[str]]) -> bool:
    """Whether a row of bare names stands above sentences only, none of which is such a row too."""
    if len(first) < 2 or len(below) < 3:
        return False
    if any(all(map(_is_name, row)) for row in below):
        return False
    cells = {cell.lower() for row in below for cell in row}
    if any(name.lower() in cells or name.lower() in TURNS for name in first):
        return False
    bare = all(re.fullmatch(r"[^\W\d][\w.-]*", name) for name in first)
    written_as_code = bare and all(name == name.lower() or "_" in name for name in first)
    return written_as_code or len(below) >= 10


def usual_width(rows: list[list[str]]) -> int:
    """That of most rows: the first one may be broken."""
    widths = Counter(len(row) for row in rows if len(row) > 1) or Counter([2])
    return widths.most_common(1)[0][0]
