"""Pairs of prompt and answer in a table: TSV, CSV or JSON lines, or conversations as OpenAI has
them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from regard.data.columns import choose
from regard.data.examples import Example
from regard.data.lines import Tally, clean_text
from regard.data.messages import exchanges
from regard.data.reading import checked, existing_file, spoken_value, tidy, usable
from regard.data.roles import PAIRS, Column, Roles
from regard.data.rows import read_rows
from regard.data.tables import look


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

    def examples() -> Iterator[Example]:
        for source, target in _pairs(path, source_column, target_column, tally, roles):
            yield from usable(Example(tidy(source), tidy(target)), tally)

    return checked(examples(), path, tally, limit=limit)


def _pairs(
    path: Path, source: Column, target: Column, tally: Tally, roles: Roles
) -> Iterator[tuple[str, str]]:
    table = look(path, asked=(source, target))
    kind, rows = read_rows(path, tally)
    if source is None and target is None and table.has_messages:
        yield from _messages(rows, tally)
        return
    if table.is_empty:
        for _ in islice(rows, table.header, None):  # counted by their reasons
            tally.skip("wrong field count" if kind != "jsonl" else "missing field")
        return

    choice = choose(table, roles, source, target)
    if kind == "jsonl":
        extra = None if choice.extra is None else table.names[choice.extra]
        keys = (table.names[choice.source], table.names[choice.target])
        yield from _values(rows, *keys, tally, extra)
        return
    for row in islice(rows, table.header, None):
        if len(row) != len(table.names):
            tally.skip("wrong field count")
        elif choice.extra is None:
            yield row[choice.source], row[choice.target]
        else:
            yield _joined(row[choice.source], row[choice.extra]), row[choice.target]


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
        keys = {key.lower(): key for key in reversed(row)}
        source_key = source if source in row else keys.get(source.lower())
        target_key = target if target in row else keys.get(target.lower())
        if source_key is None or target_key is None:
            tally.skip("missing field")
            continue

        prompt = row[source_key]
        answer = row[target_key]
        continuation = None
        if extra is not None:
            continuation = row.get(keys.get(extra.lower(), extra))
        if not all(map(_is_text, (prompt, answer, continuation))):
            tally.skip("field is not text")
            continue

        prompt = spoken_value(prompt, tally)
        if extra is not None:
            prompt = _joined(prompt, spoken_value(continuation, tally))
        yield prompt, spoken_value(answer, tally)


def _is_text(value: Any) -> bool:
    """Whether a value of JSON can be read as text."""
    return isinstance(value, str | int | float | None)
