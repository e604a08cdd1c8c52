"""Parallel text: two files in two languages, aligned line by line."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from regard.data.examples import Example
from regard.data.lines import Tally, read_lines
from regard.data.places import is_file
from regard.data.reading import checked, tidy, usable
from regard.errors import DataError


def read_parallel(
    source: Path | str, target: Path | str, *, tally: Tally, limit: float = 0.5
) -> Iterator[Example]:
    """Line i of one file is the translation of line i of the other; both may be packed as .gz or
    .zst. Files of different length are refused: from the first missing line on, all would be
    wrong."""
    paths = [Path(source), Path(target)]
    for path in paths:
        if not is_file(path):
            raise DataError("no such file", where=path)

    def examples() -> Iterator[Example]:
        sources, targets = (_whole_lines(path, tally) for path in paths)
        for source_line, target_line in zip_longest(sources, targets):
            if source_line is None or target_line is None:
                counts = [sum(1 for _ in _whole_lines(path, Tally())) for path in paths]
                raise DataError(
                    "the files do not go line by line",
                    where=f"{paths[0]} and {paths[1]}",
                    got=f"{counts[0]:,} and {counts[1]:,} lines",
                )
            yield from usable(Example(tidy(source_line), tidy(target_line)), tally)

    return checked(examples(), paths[0], tally, limit=limit)


def _whole_lines(path: Path, tally: Tally) -> Iterator[str]:
    """Every line: one that is too long would be skipped, and all after it would have the wrong
    partner."""
    skipped = tally.skipped["line too long"]
    for line in read_lines(path, tally, gaps=False):
        if tally.skipped["line too long"] > skipped:
            raise DataError("a line is too long to be a sentence", where=path)
        yield line
