"""What every reader does: keep usable examples, count the others, and complain about bad files.

Readers never trust a file: what cannot be used is skipped and counted by reason, and no line, quote
or nesting can make them hold more than a few megabytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from regard.data.examples import Example
from regard.data.lines import EMPTY, Tally, clean_text
from regard.data.places import exists, files_at, is_file
from regard.errors import DataError

E = TypeVar("E", bound=Example)


def existing_file(path: Path | str) -> Path:
    """The path of a file, of several files, or of standard input."""
    path = Path(path)
    if not exists(path):
        raise DataError("no such file", where=path)
    if not is_file(path):
        raise DataError("not a file", where=path)
    return path


def existing_files(path: Path | str) -> list[Path]:
    """The files that a path stands for."""
    return files_at(existing_file(path))


def usable(example: Example, tally: Tally) -> Iterator[Example]:
    """The example, if both sides have a text."""
    if example.source and example.target:
        tally.used += 1
        yield example
    else:
        tally.skip(EMPTY)


def checked(
    examples: Iterator[E], where: object, tally: Tally, *, limit: float, hint: str | None = None
) -> Iterator[E]:
    """The examples; at their end an error if there were none, or if too many rows were bad. `hint`
    says what a row has to be."""
    before = Tally(tally.used, tally.skipped.copy())
    yield from examples
    check_rows(where, tally, before, limit=limit, hint=hint)


def check_rows(
    where: object, tally: Tally, before: Tally, *, limit: float, hint: str | None = None
) -> None:
    """Raise an error if no row since `before` was usable, or if too many were bad."""
    used = tally.used - before.used
    bad = tally.bad - before.bad
    if used == 0:
        raise DataError(f"no usable examples in {where}", got=tally.summary(), hint=hint)
    if bad > limit * (used + bad):
        raise DataError(
            f"{bad:,} of {used + bad:,} rows are bad",
            where=where,
            got=tally.summary(),
            hint=hint or "is it another format, or are the columns others?",
        )


def tidy(text: str) -> str:
    """One line, unless it is code, whose lines matter.

    >>> tidy("Sure,\\n I do. "), tidy("Here:\\n```\\nx = 1\\n```\\n")
    ('Sure, I do.', 'Here:\\n```\\nx = 1\\n```')
    """
    if text.isascii() and text.isprintable() and "  " not in text:  # no white space but " "
        return text.strip(" ")
    return text.strip() if "```" in text else " ".join(text.split())


def spoken_value(value: Any, tally: Tally) -> str:
    """A value of YAML or JSON as somebody would say it.

    >>> [spoken_value(value, Tally()) for value in (True, 1963, None, "two  words ")]
    ['yes', '1963', '', 'two words']
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else tidy(clean_text(str(value), tally))


def word_count(text: str) -> int:
    return len(text.split())


def quantiles(lengths: Counter[int]) -> dict[str, int]:
    """Median, 95th percentile and maximum of lengths with their counts.

    >>> quantiles(Counter({3: 9, 50: 1}))
    {'median': 3, 'p95': 50, 'max': 50}
    """
    ordered = sorted(lengths.items())

    def at(share: float) -> int:
        left = share * lengths.total()
        for length, count in ordered:
            left -= count
            if left <= 0:
                return length
        return ordered[-1][0]

    return {"median": at(0.5), "p95": at(0.95), "max": ordered[-1][0]}
