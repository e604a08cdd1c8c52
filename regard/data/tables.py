"""Tables of text (TSV, CSV, JSON lines): their columns, and what each of them holds.

A table says nothing about its columns but their names, if it has any. So a sample of its rows is
looked at: columns of ids, numbers, dates and file names are told from columns of text and of
labels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.column_types import NESTED, content_of, median_words
from regard.data.headers import is_header, usual_width
from regard.data.lines import Tally
from regard.data.roles import Column, Holds, Roles
from regard.data.rows import Format, read_rows
from regard.errors import DataError, did_you_mean

SAMPLE_ROWS = 1000
SAMPLE_CHARACTERS = 1 << 20  # of a sample: rows may be long
MOST_KEYS = 200  # of the objects of a sample
SHOWN_COLUMNS = 12  # in a message
LONG_TEXT = 40  # words


class Choice(NamedTuple):
    """The numbers, from 0, of the columns that are source and target; `extra` is a column whose
    text, where there is some, follows the source's."""

    source: int
    target: int
    extra: int | None = None


@dataclass(frozen=True)
class Table:
    """What a sample of a table's rows tells."""

    path: Path
    format: Format
    header: bool  # the first row is one; objects have keys instead
    names: tuple[str, ...]  # as they are written; without a header 1, 2, …
    cells: tuple[tuple[str, ...], ...]  # the sample, by column, without empty cells
    holds: tuple[Holds, ...]

    def number(self, column: str | int) -> int:
        """The number, from 0, of a column given by its name or by its number from 1."""
        word = str(column).strip().lower()
        places = []
        if self.has_names:
            places = [i for i, name in enumerate(self.names) if name.lower() == word]
        if isinstance(column, str) and len(places) > 1:
            raise DataError(
                "two columns have this name",
                where=self.path,
                got=column,
                hint=f"use a number: {' or '.join(str(place + 1) for place in places)}",
            )
        if isinstance(column, str) and places:
            return places[0]
        number = int(word) if word.isdecimal() else 0
        if 1 <= number <= len(self.names):
            return number - 1
        hint = f"no header; use a number from 1 to {len(self.names)}"
        if self.has_names:
            hint = did_you_mean(str(column), self.names) or ""
        raise DataError("no such column", where=self.path, got=column, hint=hint)

    def name(self, number: int) -> str | int:
        """What names a column in a recipe: its name, or its number where that would be read as
        something else."""
        name = self.names[number]
        is_word = re.fullmatch(r"[^\W\d](?:[\w .-]*\w)?", name) is not None
        is_value = name.lower() in ("true", "false", "inf", "nan")
        is_unique = [other.lower() for other in self.names].count(name.lower()) == 1
        is_usable = is_word and not is_value and is_unique and self.has_names
        return name if is_usable else number + 1

    @property
    def has_names(self) -> bool:
        return self.header or self.format == "jsonl"

    @property
    def is_empty(self) -> bool:
        return not any(self.cells)

    @property
    def has_messages(self) -> bool:
        """Whether its objects are conversations, as OpenAI has them: lists called "messages"."""
        if self.format != "jsonl":
            return False
        columns = zip(self.names, self.cells, strict=True)
        return any(name.lower() == "messages" and NESTED in cells for name, cells in columns)

    def described(self, choice: Choice, roles: Roles) -> str:
        """Which column is taken for what, in a line.

        >>> holds = ("id", "text", "text")
        >>> table = Table(Path("a"), "csv", True, ("id", "a", "b"), ((), (), ()), holds)
        >>> from regard.data.roles import PAIRS
        >>> table.described(Choice(1, 2), PAIRS)
        'columns: id, a, b; source = a, target = b'
        """
        names = list(self.names[:SHOWN_COLUMNS])
        if len(self.names) > SHOWN_COLUMNS:
            names.append(f"… ({len(self.names)} in all)")
        columns = ", ".join(shown(name) for name in names)
        if not self.has_names:
            columns = f"{len(self.names)}, no header"
        source = str(self.name(choice.source))
        if choice.extra is not None:
            source += f" and {self.name(choice.extra)}"
        target = self.name(choice.target)
        word = "keys" if self.format == "jsonl" else "columns"
        note = f"{word}: {columns}; {roles.source.word} = {source}, {roles.target.word} = {target}"
        unused = [shown(self.names[i]) for i in self.left_over(choice)]
        if unused:
            note += f"; text not used: {', '.join(unused[:3])}{', …' if len(unused) > 3 else ''}"
        return note

    def left_over(self, choice: Choice) -> list[int]:
        """The columns of text that are not used."""
        return [i for i, holds in enumerate(self.holds) if holds == "text" and i not in choice]

    def contents(self) -> str:
        """Every column with what it holds."""
        columns = [
            f"{shown(name) if self.has_names else number} ({self._content(number - 1)})"
            for number, name in enumerate(self.names[:SHOWN_COLUMNS], 1)
        ]
        if len(self.names) > SHOWN_COLUMNS:
            columns.append(f"… ({len(self.names)} in all)")
        word = "keys" if self.format == "jsonl" else "columns"
        return f"{word}: {', '.join(columns)}"

    def _content(self, number: int) -> str:
        words = {
            "id": "ids",
            "number": "numbers",
            "date": "dates",
            "label": f"{len(set(self.cells[number]))} labels",
            "picture": "files of pictures",
            "sound": "files of sounds",
            "constant": "always the same",
            "nested": "lists or objects",
        }
        if self.holds[number] == "text" and median_words(self.cells[number]) >= LONG_TEXT:
            return "long text"
        return words.get(self.holds[number], self.holds[number])


def shown(name: str) -> str:
    """The name of a column in a line of a message.

    >>> shown("first\\nsecond"), shown("")
    ('first second', '(no name)')
    """
    line = " ".join("".join(c if c.isprintable() else " " for c in name).split())
    line = line if len(line) <= 40 else f"{line[:39]}…"
    return line or "(no name)"


def look(path: Path, *, asked: Iterable[Column] = ()) -> Table:
    """A table's columns, from a sample of its rows. A first row that has one of the names `asked`
    for is a header."""
    kind, rows = read_rows(path, Tally())
    sample = list(_sample(rows))
    if kind == "jsonl":
        header = False
        names, columns = _by_key(sample)
    else:
        header = is_header(sample, {column.lower() for column in asked if isinstance(column, str)})
        width = len(sample[0]) if header else usual_width(sample)
        names = tuple(str(i + 1) for i in range(width))
        if header:
            names = tuple(cell.strip() for cell in sample[0])
        complete = [row for row in sample[header:] if len(row) == width]
        columns = [[row[i].strip() for row in complete] for i in range(width)]
    filled = tuple(tuple(cell for cell in column if cell) for column in columns)
    holds: tuple[Holds, ...] = tuple(
        content_of(cells, name) for cells, name in zip(filled, names, strict=True)
    )
    return Table(path, kind, header, names, filled, holds)


def _sample(rows: Iterator[Any]) -> Iterator[Any]:
    left = SAMPLE_CHARACTERS
    for row in islice(rows, SAMPLE_ROWS):
        yield row
        cells = row if isinstance(row, list) else row.values()
        left -= sum(len(str(cell)) for cell in cells)
        if left < 0:
            break


def _by_key(objects: list[dict[str, Any]]) -> tuple[tuple[str, ...], list[list[str]]]:
    """The keys of objects, whose capitals make no difference, and their values."""
    names: dict[str, str] = {}
    columns: dict[str, list[str]] = {}
    for row in objects:
        for key, value in row.items():
            folded = key.lower()
            if folded not in names and len(names) == MOST_KEYS:
                continue
            names.setdefault(folded, key)
            columns.setdefault(folded, []).append(_cell(value))
    return tuple(names.values()), list(columns.values())


def _cell(value: Any) -> str:
    if isinstance(value, list | dict):
        return NESTED
    return "" if value is None else str(value).strip()
