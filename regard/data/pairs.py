"""Pairs of prompt and answer in a table: TSV, CSV or JSON lines, or conversations as OpenAI has
them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from regard.data.columns import choose
from regard.data.examples import Example
from regard.data.lines import EMPTY, Tally, clean_text
from regard.data.messages import exchanges
from regard.data.parsers import LineExamples, ParsedFile, RowExamples, RowParser, parser
from regard.data.places import files_at
from regard.data.reading import existing_file, spoken_value, tidy
from regard.data.roles import PAIRS, Column, Roles
from regard.data.rows import Format, json_object, read_rows
from regard.data.tables import look, shown
from regard.errors import DataError


def read_pairs(
    path: Path | str,
    *,
    source_column: Column = None,
    target_column: Column = None,
    tally: Tally,
    limit: float = 0.5,
    roles: Roles = PAIRS,
) -> Iterator[Example]:
    """A pair a line: TSV (not quoted), CSV or JSONL, also gzipped; or a conversation a line, as
    OpenAI has them.

    Columns are given by name or by number from 1; without them they are known by their names
    (prompt, reply; question, answer; …) or by what they hold, and where that is not plain they are
    asked for (`columns.choose`).
    """
    path = existing_file(path)
    kind, _ = read_rows(path, Tally())
    if kind == "csv":

        def table() -> tuple[RowParser, Iterator[Any]]:
            parser = _parser(path, source_column, target_column, roles)
            _, rows = read_rows(path, tally)
            return parser, islice(rows, parser.header, None)

        return RowExamples(table, path, tally, limit=limit)

    def files() -> Iterator[ParsedFile]:
        table = _parser(path, source_column, target_column, roles)
        for file in files_at(path):
            yield ParsedFile(file, replace(table, path=str(file)))

    return LineExamples(files, path, tally, limit=limit)


def _parser(path: Path, source: Column, target: Column, roles: Roles) -> TableParser:
    """The parser of a table, after a look at its first rows."""
    table = look(path, asked=(source, target))
    if source is None and target is None and table.has_messages:
        return TableParser(table.format, "messages")
    if table.is_empty:
        return TableParser(table.format, "nothing", list(table.names), header=table.header)
    choice = choose(table, roles, source, target)
    columns = [choice.source, choice.target]
    if choice.extra is not None:
        columns.append(choice.extra)
    return TableParser(
        table.format,
        "columns",
        names=list(table.names),
        columns=columns,
        header=table.header,
    )


@parser
@dataclass(frozen=True)
class TableParser(RowParser):
    """Parses the rows of a table. `columns` are the numbers, from 0, of source and target, and of
    the column whose text follows the source's, if there is one."""

    kind = "table"

    format: Format
    holds: Literal["columns", "messages", "nothing"]
    names: list[str] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    header: bool = False
    path: str = ""  # of the file, for messages

    def examples(self, lines: Iterator[str], tally: Tally, *, first: bool) -> Iterator[Example]:
        if self.format == "jsonl":
            objects = (json_object(line, tally) for line in lines)
            yield from self.pairs((row for row in objects if row is not None), tally)
            return
        rows: Iterator[list[str]] = (line.split("\t") for line in lines if line)
        if first and self.header:
            self._check_header(next(rows, None))
        yield from self.pairs(rows, tally)

    def _check_header(self, row: list[str] | None) -> None:
        """Every file of a table begins with the same names."""
        names = None if row is None else [cell.strip() for cell in row]
        if names is not None and names != self.names:
            raise DataError(
                "files of one table have different columns",
                where=self.path,
                got=f"{', '.join(map(shown, names))} and {', '.join(map(shown, self.names))}",
                hint="give files with the same first line",
            )

    def pairs(self, rows: Iterator[Any], tally: Tally) -> Iterator[Example]:
        is_tidy = self.format == "jsonl" and self.holds == "columns"
        for source, target in self._texts(rows, tally):
            if not is_tidy:
                source = tidy(source)
                target = tidy(target)
            if source and target:
                tally.used += 1
                yield Example(source, target)
            else:
                tally.skip(EMPTY)

    def _texts(self, rows: Iterator[Any], tally: Tally) -> Iterator[tuple[str, str]]:
        if self.holds == "messages":
            yield from _messages(rows, tally)
            return
        if self.holds == "nothing":
            for _ in rows:  # counted by their reasons
                tally.skip("wrong field count" if self.format != "jsonl" else "missing field")
            return

        source, target, *extra = self.columns
        if self.format == "jsonl":
            more = self.names[extra[0]] if extra else None
            yield from _values(rows, self.names[source], self.names[target], tally, more)
            return
        for row in rows:
            if len(row) != len(self.names):
                tally.skip("wrong field count")
            elif extra:
                yield _joined(row[source], row[extra[0]]), row[target]
            else:
                yield row[source], row[target]


def _joined(first: str, second: str) -> str:
    """
    >>> _joined("Translate.", "Good morning"), _joined("Hello!", " ")
    ('Translate.\\nGood morning', 'Hello!')
    """
    return f"{first}\n{second}" if second.strip() else first


def _messages(rows: Iterator[dict[str, Any]], tally: Tally) -> Iterator[tuple[str, str]]:
    for row in rows:
        for prompt, reply in exchanges(row, tally):
            yield clean_text(prompt, tally), clean_text(reply, tally)


def _values(
    rows: Iterator[dict[str, Any]],
    source: str,
    target: str,
    tally: Tally,
    extra: str | None = None,
) -> Iterator[tuple[str, str]]:
    """The two values of every object; capitals of their keys make no difference. A value of `extra`
    follows the source's."""
    for row in rows:
        source_key: str | None = source
        target_key: str | None = target
        keys: dict[str, str] = {}
        if extra is not None or source not in row or target not in row:
            keys = {key.lower(): key for key in reversed(row)}
            source_key = source if source in row else keys.get(source.lower())
            target_key = target if target in row else keys.get(target.lower())
        if source_key is None or target_key is None:
            tally.skip("missing field")
            continue

        prompt = row[source_key]
        answer = row[target_key]
        if type(prompt) is str and type(answer) is str and extra is None:  # nearly always
            yield tidy(clean_text(prompt, tally)), tidy(clean_text(answer, tally))
            continue

        continuation = None
        if extra is not None:
            continuation = row.get(keys.get(extra.lower(), extra))
        if not all(map(_is_text, (prompt, answer, continuation))):
            tally.skip("field is not text")
            continue

        prompt = spoken_value(prompt, tally)
        if extra is not None:
            prompt = tidy(_joined(prompt, spoken_value(continuation, tally)))
        yield prompt, spoken_value(answer, tally)


def _is_text(value: Any) -> bool:
    """Whether a value of JSON can be read as text."""
    return isinstance(value, str | int | float | None)
