"""The rows of a table of text: TSV, CSV or JSON lines."""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

from regard.data.lines import Tally, read_lines
from regard.data.places import files_at, plain_name
from regard.errors import DataError

Format = Literal["tsv", "csv", "jsonl"]

QUOTED = 50  # lines that one quoted CSV field may span before its quote counts as a mistake
DELIMITER_LINES = 20  # that tell the delimiter of a CSV file
SUFFIXES: dict[str, Format] = {
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "jsonl",  # its rows are read as such lines
}


def format_of(path: Path, first: str) -> Format:
    name = plain_name(path)
    for suffix, kind in SUFFIXES.items():
        if name.endswith(suffix):
            return kind
    if first.lstrip().startswith("{"):
        return "jsonl"
    return "tsv" if "\t" in first else "csv"


def read_rows(path: Path, tally: Tally) -> tuple[Format, Iterator[Any]]:
    """The format of a file, and its rows: lists of cells, or objects. If the path stands for
    several files, the names of the columns come once, from the first one."""
    files = files_at(path)
    if len(files) < 2:
        return _rows_of_file(path, tally)
    kind, rows = _rows_of_file(files[0], tally)
    return kind, _chained(rows, files[1:], kind, tally)


def _chained(
    rows: Iterator[Any], files: Iterable[Path], kind: Format, tally: Tally
) -> Iterator[Any]:
    first = next(rows, None)
    if first is not None:
        yield first
    yield from rows
    for file in files:
        _, rows = _rows_of_file(file, tally)
        for number, row in enumerate(rows):
            if number or row != first or kind == "jsonl":
                yield row


def _rows_of_file(path: Path, tally: Tally) -> tuple[Format, Iterator[Any]]:
    lines = read_lines(path, tally)
    head = list(islice(lines, 1))
    kind = format_of(path, "".join(head))
    if kind == "jsonl":
        objects = (json_object(line, tally) for line in chain(head, lines))
        return kind, (row for row in objects if row is not None)
    if kind == "tsv":
        return kind, (line.split("\t") for line in chain(head, lines) if line)
    head += islice(lines, DELIMITER_LINES - 1)
    return kind, _csv_rows(chain(head, lines), delimiter_of(head), tally)


def json_object(line: str, tally: Tally) -> dict[str, Any] | None:
    try:
        row = _parsed(line)
    except (ValueError, RecursionError):
        if line.strip():
            tally.skip("not JSON")
        return None
    if not isinstance(row, dict):
        tally.skip("not an object")
        return None
    return row


_DECODER = json.JSONDecoder()


def _parsed(line: str) -> Any:
    """`json.loads`, in two thirds of the time if no space is around the value."""
    try:
        value, end = _DECODER.raw_decode(line)
    except ValueError:
        return json.loads(line)
    return value if end == len(line) else json.loads(line)


_UNPACK = {".gz": "zcat", ".zst": "zstdcat", ".zstd": "zstdcat"}


def is_json_lines(path: Path) -> bool:
    """Whether a .json file has an object a line, and is not COCO's; an array is refused."""
    lines = (line for line in read_lines(path, Tally()) if line.strip())
    first = next(lines, "").strip()
    if first.startswith("["):
        rows = plain_name(path).removesuffix(".json") + ".jsonl"
        unpack = [_UNPACK.get(path.suffix.lower(), "cat"), str(path)]
        convert = f"{shlex.join(unpack)} | jq -c '.[]' > {shlex.quote(rows)}"
        raise DataError(
            "a JSON array, of which regard reads the form with one object a line (.jsonl)",
            where=path,
            hint=f"convert it, for example: {convert}",
        )
    row = json_object(first, Tally())
    return row is not None and not {"images", "annotations"} & row.keys()


def delimiter_of(lines: Iterable[str]) -> str:
    """The mark that most lines have the same number of times.

    >>> delimiter_of(["Well, yes;no", "a, b, c;d", "e;f, g"]), delimiter_of(["only one column"])
    (';', ',')
    """
    unquoted = [re.sub('"[^"]*"?', "", line) for line in lines if line]

    def agreement(mark: str) -> int:
        counts = Counter(line.count(mark) for line in unquoted if mark in line)
        return max(counts.values(), default=0)

    return max(",;\t|", key=agreement)  # the first of those that agree as well


def _csv_rows(lines: Iterator[str], delimiter: str, tally: Tally) -> Iterator[list[str]]:
    """The rows of a CSV file. A quote that does not close costs its own line only."""
    waiting: deque[str] = deque()  # lines read ahead of the row they belong to
    ran_out = False

    def feed() -> Iterator[str]:
        nonlocal ran_out
        for i in range(QUOTED):
            if i == len(waiting):
                waiting.extend(islice(lines, 1))
            if i == len(waiting):
                break
            yield waiting[i] + "\n"
        ran_out = True  # the csv module asks for another line only while a quote is open

    while waiting or (waiting := deque(islice(lines, 1))):
        line_count = 1
        if '"' not in waiting[0]:
            row = waiting[0].split(delimiter) if waiting[0] else []
        else:
            ran_out = False
            reader = csv.reader(feed(), delimiter=delimiter)
            try:
                row = next(reader)
            except csv.Error:
                row = []
                tally.skip("field too long")
            line_count = reader.line_num
            if ran_out:
                row = []
                line_count = 1
                tally.skip("unclosed quote")
        for _ in range(line_count):
            waiting.popleft()
        if row:
            yield row
