"""Readers whose lines or rows can be parsed in any order and in any process.

Most formats have a row, or a dialogue, a line. `LineExamples` reads such files line by line, as
other readers do; preparation takes them apart into blocks of lines instead, which several processes
parse at once. In CSV a quoted cell may have several lines, so that where a row begins depends on
all rows before it. One process reads the rows of `RowExamples`, and several parse them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from regard.data.examples import Example
from regard.data.lines import Tally, read_lines
from regard.data.reading import check_rows


class Parser(ABC):
    """Parses lines, without a state between them. Its fields are values of JSON."""

    kind: ClassVar[str]

    @abstractmethod
    def examples(self, lines: Iterator[str], tally: Tally, *, first: bool) -> Iterator[Example]:
        """The examples in lines; with `first` they are the first ones of a file."""


class RowParser(Parser):
    """Parses rows of a table, which may also come as lists of cells."""

    @abstractmethod
    def pairs(self, rows: Iterator[Any], tally: Tally) -> Iterator[Example]:
        """The examples in rows."""


PARSERS: dict[str, type[Parser]] = {}


ParserClass = TypeVar("ParserClass", bound=type[Parser])


def parser(cls: ParserClass) -> ParserClass:
    """Make a parser known by its kind."""
    PARSERS[cls.kind] = cls
    return cls


def to_json(parser: Parser) -> dict[str, Any]:
    return {"kind": parser.kind, **asdict(parser)}  # type: ignore[call-overload]


def from_json(data: dict[str, Any]) -> Parser:
    # Modules that declare parsers.
    from regard.data import dailydialog, dialogues, pairs, sentences  # noqa: F401

    fields = {name: value for name, value in data.items() if name != "kind"}
    return PARSERS[data["kind"]](**fields)


@dataclass(frozen=True)
class ParsedFile:
    """A file with the parser of its lines."""

    path: Path
    parser: Parser


class _Checked(Iterator[Example]):
    """Examples of a reader. At their end an error, if there were none, or if too many rows were
    bad."""

    def __init__(self, where: Path, tally: Tally, *, limit: float, hint: str | None = None):
        self._where = where
        self._tally = tally
        self._limit = limit
        self._hint = hint
        self._examples = self._read_and_check()

    def __next__(self) -> Example:
        return next(self._examples)

    def _read_and_check(self) -> Iterator[Example]:
        before = Tally(self._tally.used, self._tally.skipped.copy())
        yield from self._read()
        self.check(before)

    @abstractmethod
    def _read(self) -> Iterator[Example]: ...

    def check(self, before: Tally) -> None:
        """Raise an error if the rows counted since `before` cannot be used."""
        check_rows(self._where, self._tally, before, limit=self._limit, hint=self._hint)


class LineExamples(_Checked):
    """The examples in the lines of files.

    `files` is called once, when the first example is asked for: it looks into the files.
    """

    def __init__(
        self,
        files: Callable[[], Iterator[ParsedFile]],
        where: Path,
        tally: Tally,
        *,
        limit: float,
        hint: str | None = None,
    ):
        super().__init__(where, tally, limit=limit, hint=hint)
        self.files = files

    def _read(self) -> Iterator[Example]:
        for file in self.files():
            lines = read_lines(file.path, self._tally)
            yield from file.parser.examples(lines, self._tally, first=True)


class RowExamples(_Checked):
    """The examples in rows that have to be read one after the other. `table` returns their parser
    and the rows; it is called once, when the first example is asked for."""

    def __init__(
        self,
        table: Callable[[], tuple[RowParser, Iterator[Any]]],
        where: Path,
        tally: Tally,
        *,
        limit: float,
    ):
        super().__init__(where, tally, limit=limit)
        self.table = table

    def _read(self) -> Iterator[Example]:
        parser, rows = self.table()
        yield from parser.pairs(rows, self._tally)
