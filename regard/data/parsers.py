"""Readers whose lines can be parsed in any order and in any process.

Most formats have a row, or a dialogue, a line. `LineExamples` reads such files line by line, as
other readers do; preparation takes them apart into blocks of lines instead, which several processes
parse at once.
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
    from regard.data import dailydialog, dialogues, pairs  # noqa: F401

    fields = {name: value for name, value in data.items() if name != "kind"}
    return PARSERS[data["kind"]](**fields)


@dataclass(frozen=True)
class ParsedFile:
    """A file with the parser of its lines."""

    path: Path
    parser: Parser


class LineExamples(Iterator[Example]):
    """The examples in the lines of files. At their end an error, if there were none, or if too
    many rows were bad.

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
        self.files = files
        self._where = where
        self._tally = tally
        self._limit = limit
        self._hint = hint
        self._examples = self._read()

    def __next__(self) -> Example:
        return next(self._examples)

    def _read(self) -> Iterator[Example]:
        before = Tally(self._tally.used, self._tally.skipped.copy())
        for file in self.files():
            lines = read_lines(file.path, self._tally)
            yield from file.parser.examples(lines, self._tally, first=True)
        self.check(before)

    def check(self, before: Tally) -> None:
        """Raise an error if the rows counted since `before` cannot be used."""
        check_rows(self._where, self._tally, before, limit=self._limit, hint=self._hint)
