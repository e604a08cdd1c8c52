"""Corpora as streams of (source, target): ChatterBot's, any file of pairs, and the Cornell movie dialogues.

Readers never trust a file: what cannot be used is skipped and counted by reason, and no line, quote or nesting can make
them hold more than a few megabytes.
"""

from __future__ import annotations

import csv
import importlib.resources
import json
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, Literal

from regard.data.examples import Example
from regard.data.lines import EMPTY, Tally, mended, read_lines
from regard.errors import DataError, did_you_mean

QUOTED = 50  # lines that one quoted CSV field may span before we hold its quote to be a mistake

Column = str | int | None


# -- the ChatterBot corpus --------------------------------------------------------------------------------------------

# In these two files the lines after the first are not a dialogue but several answers to it.
ALTERNATIVES = frozenset({"computers", "emotion"})


def read_chatterbot(*, language: str = "english", topics: Sequence[str] = (), tally: Tally) -> Iterator[Example]:
    """The conversations of the PyPI package chatterbot-corpus; no topics means all of them."""
    files = chatterbot_files(language, topics)
    return checked(_chatterbot(files, tally), f"chatterbot-corpus/{language}", tally, limit=0.5)


def chatterbot_files(language: str = "english", topics: Sequence[str] = ()) -> list[Path]:
    """The files behind `read_chatterbot`, for a fingerprint."""
    try:
        data = Path(str(importlib.resources.files("chatterbot_corpus"))) / "data"
    except ModuleNotFoundError:
        raise DataError(
            "the package chatterbot-corpus is missing", hint="pip install chatterbot-corpus, or give --data PATH"
        ) from None
    languages = sorted(folder.name for folder in data.iterdir() if folder.is_dir())
    if language not in languages:
        raise DataError(
            "no such language", where="chatterbot-corpus", got=language, hint=did_you_mean(language, languages)
        )
    known = {file.stem: file for file in sorted((data / language).glob("*.yml"))}
    for topic in topics:
        if topic not in known:
            raise DataError(
                "no such topic", where=f"chatterbot-corpus/{language}", got=topic, hint=did_you_mean(topic, known)
            )
    return [known[topic] for topic in dict.fromkeys(topics)] or list(known.values())


def _chatterbot(files: Iterable[Path], tally: Tally) -> Iterator[Example]:
    import yaml  # slow to import, and only needed here

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where PyYAML was built with it
    seen: set[Example] = set()
    for file in files:
        try:
            text = file.read_text("utf-8-sig", errors="replace")
            conversations = yaml.load(text, Loader=loader)["conversations"]  # noqa: S506, both are safe loaders
        except (yaml.YAMLError, KeyError, TypeError) as problem:
            raise DataError("not a ChatterBot corpus file", where=file, got=str(problem)[:200]) from None
        for conversation in conversations:
            lines = [_said(line, tally) for line in _turns(conversation)]
            if len(lines) < 2:
                tally.skip("fewer than two lines")
            pairs = ((lines[0], line) for line in lines[1:]) if file.stem in ALTERNATIVES else pairwise(lines)
            for example in (Example(*pair) for pair in pairs):
                if example in seen:
                    tally.duplicates += 1
                else:
                    seen.add(example)
                    yield from usable(example, tally)


def _turns(conversation: Any) -> list[Any]:
    """
    >>> _turns("Which number is called two little ducks? - '22'")  # a line break is missing in the file
    ['Which number is called two little ducks?', '22']
    """
    if isinstance(conversation, list):
        return conversation
    return [part.strip(" '\"") for part in conversation.split(" - ", 1)] if isinstance(conversation, str) else []


def _said(value: Any, tally: Tally) -> str:
    """A YAML value as somebody would say it.

    >>> [_said(value, Tally()) for value in (True, 1963, None, "two  words ")]
    ['yes', '1963', '', 'two words']
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else tidy(mended(str(value), tally))


# -- pairs ------------------------------------------------------------------------------------------------------------

SOURCES = ("prompt", "source", "question", "input", "text", "src", "sentence", "review")
LABELS = ("label", "class", "sentiment")
TARGETS = ("reply", "target", "answer", "output", "response", "completion", "tgt", *LABELS)


def read_pairs(
    path: Path | str,
    *,
    source_column: Column = None,
    target_column: Column = None,
    tally: Tally,
    limit: float = 0.5,
) -> Iterator[Example]:
    """A pair a line: TSV (not quoted), CSV or JSONL, also gzipped.

    Columns are given by name or by number from 1; without them they are the first known names of the header
    (prompt, reply; question, answer; ...) or else the first and the second column; the fields of JSON have to be known.
    """
    path = _existing_file(path)
    lines = read_lines(path, tally)
    first = next(lines, "")
    lines = chain([first], lines)
    kind = _format(path, first)
    if kind == "jsonl":
        pairs = _objects(lines, source_column, target_column, tally)
    else:
        rows = (line.split("\t") for line in lines if line) if kind == "tsv" else _csv_rows(lines, first, tally)
        pairs = _columns(rows, source_column, target_column, tally, path)
    examples = (example for pair in pairs for example in usable(Example(*map(tidy, pair)), tally))
    return checked(examples, path, tally, limit=limit)


def column_named(path: Path, names: Iterable[str]) -> str | None:
    """The first of the names that the first line of a table has: as a cell, or as a field of its object."""
    first = next(read_lines(path, Tally()), "")
    match _format(path, first):
        case "jsonl":
            cells = list(_json(first, Tally()) or ())
        case "tsv":
            cells = first.split("\t")
        case _:
            cells = next(_csv_rows(iter([first]), first, Tally()), [])
    there = {cell.strip().lower() for cell in cells}
    return next((name for name in names if name in there), None)


def _format(path: Path, first: str) -> str:
    name = path.name.lower().removesuffix(".gz")
    for suffix, kind in ((".tsv", "tsv"), (".csv", "csv"), (".jsonl", "jsonl"), (".ndjson", "jsonl")):
        if name.endswith(suffix):
            return kind
    if first.lstrip().startswith("{"):
        return "jsonl"
    return "tsv" if "\t" in first else "csv"


def _csv_rows(lines: Iterator[str], first: str, tally: Tally) -> Iterator[list[str]]:
    """The rows of a CSV file. A quote that does not close costs its own line, not the rest of the file."""
    unquoted = re.sub('"[^"]*"?', "", first)
    delimiter = next((mark for mark in ",;\t|" if mark in unquoted), ",")
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
        if '"' not in waiting[0]:
            row, taken = waiting[0].split(delimiter) if waiting[0] else [], 1
        else:
            ran_out, reader = False, csv.reader(feed(), delimiter=delimiter)
            try:
                row, taken = next(reader), reader.line_num
            except csv.Error:
                row, taken = [], reader.line_num
                tally.skip("field too long")
            if ran_out:
                row, taken = [], 1
                tally.skip("unclosed quote")
        for _ in range(taken):
            waiting.popleft()
        if row:
            yield row


def _columns(
    rows: Iterator[list[str]], source: Column, target: Column, tally: Tally, path: Path
) -> Iterator[tuple[str, str]]:
    ahead = list(islice(rows, 100))
    if not ahead:
        return
    names = [cell.strip().lower() for cell in ahead[0]]
    if _is_header(names, ahead[1:], source, target):
        if len(names) < 2:
            raise DataError("only one column", where=path, hint="a pair needs two")
        del ahead[0]
        source, target = _known(names, source, target)
    else:  # the usual width: the first row may be a broken one
        widths = Counter(len(row) for row in ahead if len(row) > 1) or Counter([2])
        names = [""] * widths.most_common(1)[0][0]
    left = _index(source, 0, names, path)
    right = _index(target, 1, names, path)
    if left == right and source is None:
        left = 1
    elif left == right and target is None:
        right = 0
    for row in chain(ahead, rows):
        if len(row) != len(names):
            tally.skip("wrong field count")
        else:
            yield row[left], row[right]


def _is_header(names: list[str], rows: list[list[str]], source: Column, target: Column) -> bool:
    """Two of the names are known, or one that was asked for; or there is one of labels, above others that repeat."""
    if len(set(names) & {*SOURCES, *TARGETS}) > 1:
        return True
    if any(isinstance(column, str) and column.lower() in names for column in (source, target)):
        return True
    for i, name in enumerate(names):
        below = [row[i].strip().lower() for row in rows if len(row) == len(names)] if name in LABELS else []
        if name not in below and len(set(below)) < len(below):
            return True
    return False


def _known(names: Iterable[str], source: Column, target: Column) -> tuple[Column, Column]:
    """
    >>> _known(["id", "question", "answer"], None, None)
    ('question', 'answer')
    """
    names = set(names)
    if source is None:
        source = next((name for name in SOURCES if name in names), None)
    if target is None:
        target = next((name for name in TARGETS if name in names and name != source), None)
    return source, target


def _index(column: Column, default: int, names: list[str], path: Path) -> int:
    if column is None:
        return default
    if isinstance(column, str) and column.lower() in names:
        return names.index(column.lower())
    number = int(column) if isinstance(column, int) or column.isdecimal() else 0
    if not 1 <= number <= len(names):
        hint = did_you_mean(str(column), names) if any(names) else f"no header; use a number from 1 to {len(names)}"
        raise DataError("no such column", where=path, got=column, hint=hint)
    return number - 1


def _objects(lines: Iterator[str], source: Column, target: Column, tally: Tally) -> Iterator[tuple[str, str]]:
    for line in lines:
        row = _json(line, tally)
        if row is None:
            continue
        left, right = (_field(column, list(row)) for column in _known(map(str.lower, row), source, target))
        if left not in row or right not in row:
            tally.skip("missing field")
        elif not all(row[side] is None or isinstance(row[side], str | int | float) for side in (left, right)):
            tally.skip("field is not text")
        else:
            yield _said(row[left], tally), _said(row[right], tally)


def _field(column: Column, names: list[str]) -> Column:
    """The name of a numbered field, unless the number is itself a name; capitals make no difference.

    >>> _field("prompt", ["id", "Prompt"]), _field(1, ["id", "Prompt"])
    ('Prompt', 'id')
    """
    if isinstance(column, str) and column not in names:
        column = next((name for name in names if name.lower() == column.lower()), column)
    number = int(column) if column not in names and column is not None and str(column).isdecimal() else 0
    return names[number - 1] if 1 <= number <= len(names) else column


def _json(line: str, tally: Tally) -> dict[str, Any] | None:
    if not line.strip():
        return None
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        tally.skip("not JSON")
        return None
    if not isinstance(row, dict):
        tally.skip("not an object")
        return None
    return row


# -- Cornell ----------------------------------------------------------------------------------------------------------

SEPARATOR = " +++$+++ "


def read_cornell(path: Path | str, *, tally: Tally, limit: float = 0.5) -> Iterator[Example]:
    """The Cornell Movie-Dialogs Corpus as it was published (two .txt files), or as ConvoKit's utterances.jsonl.

    An exchange is two consecutive lines of one conversation. Lines come in any order, so the texts are held in memory:
    about 60 MB for the whole corpus.
    """
    files = cornell_files(path)
    examples = _utterances(files[0], tally) if len(files) == 1 else _movies(files[0], files[1], tally)
    return checked(examples, path, tally, limit=limit)


def cornell_files(path: Path | str) -> list[Path]:
    """[utterances.jsonl] or [movie_lines.txt, movie_conversations.txt], in a folder or one level below it."""
    path = Path(path)
    if not path.exists():
        raise DataError("no such file or folder", where=path)
    if path.is_file() and not path.name.startswith("movie_"):
        return [path]
    folder = path.parent if path.is_file() else path
    for place in (folder, *(sorted(inner for inner in folder.iterdir() if inner.is_dir()) if path.is_dir() else ())):
        raw = [place / "movie_lines.txt", place / "movie_conversations.txt"]
        if all(file.is_file() for file in raw):
            return raw
        for name in ("utterances.jsonl", "utterances.jsonl.gz"):
            if (place / name).is_file():
                return [place / name]
    raise DataError(
        "not the Cornell corpus",
        where=path,
        hint="expected movie_lines.txt and movie_conversations.txt, or utterances.jsonl",
    )


def _movies(lines: Path, conversations: Path, tally: Tally) -> Iterator[Example]:
    texts: dict[str, str] = {}
    for line in read_lines(lines, tally, declared="cp1252"):
        fields = (line + " " if line.endswith(SEPARATOR.rstrip()) else line).split(SEPARATOR)
        if len(fields) != 5:
            tally.skip("wrong field count")
        elif fields[0] in texts:
            tally.skip("line id used twice")
        else:
            texts[fields[0]] = tidy(fields[4])
    for line in read_lines(conversations, tally, declared="cp1252"):
        fields = line.split(SEPARATOR)
        if len(fields) != 4:
            tally.skip("wrong field count")
            continue
        for first, second in pairwise(re.findall(r"'([^']*)'", fields[3])):
            yield from _exchange(texts, first, second, tally)


def _utterances(path: Path, tally: Tally) -> Iterator[Example]:
    texts: dict[str, str] = {}
    replies: list[tuple[str, str]] = []
    for line in read_lines(path, tally):
        row = _json(line, tally)
        if row is None:
            continue
        said, name, answers = row.get("text"), row.get("id"), row.get("reply-to", row.get("reply_to"))
        if not isinstance(name, str) or not isinstance(said, str | None):
            tally.skip("missing field")
        elif name in texts:
            tally.skip("line id used twice")
        else:
            texts[name] = _said(said, tally)
            if answers is not None:
                replies.append((str(answers), name))
    for first, second in replies:
        yield from _exchange(texts, first, second, tally)


def _exchange(texts: dict[str, str], first: str, second: str, tally: Tally) -> Iterator[Example]:
    if first in texts and second in texts:
        yield from usable(Example(texts[first], texts[second]), tally)
    else:
        tally.skip("dangling id")


# -- any path ---------------------------------------------------------------------------------------------------------


def detect(path: Path | str) -> Literal["pairs", "cornell"]:
    """Which reader a path is for."""
    path = Path(path)
    if path.is_dir() or path.name.startswith(("movie_lines", "movie_conversations", "utterances.jsonl")):
        cornell_files(path)
        return "cornell"
    first = next(read_lines(_existing_file(path), Tally()), "")
    row = _json(first, Tally()) if first.startswith("{") else None
    return "cornell" if row and "text" in row and ("reply-to" in row or "reply_to" in row) else "pairs"


def files(path: Path | str) -> list[Path]:
    """The files a corpus consists of, for a fingerprint."""
    return cornell_files(path) if detect(path) == "cornell" else [Path(path)]


def word_count(text: str) -> int:
    return len(text.split())


def quantiles(lengths: Counter[int]) -> dict[str, int]:
    ordered = sorted(lengths.items())

    def at(share: float) -> int:
        left = share * lengths.total()
        for length, count in ordered:
            left -= count
            if left <= 0:
                return length
        return ordered[-1][0]

    return {"median": at(0.5), "p95": at(0.95), "max": ordered[-1][0]}


# -- what every reader does -------------------------------------------------------------------------------------------


def _existing_file(path: Path | str) -> Path:
    path = Path(path)
    if not path.exists():
        raise DataError("no such file", where=path)
    if not path.is_file():
        raise DataError("not a file", where=path)
    return path


def usable(example: Example, tally: Tally) -> Iterator[Example]:
    if example.source and example.target:
        tally.used += 1
        yield example
    else:
        tally.skip(EMPTY)


def checked(examples: Iterator[Example], where: object, tally: Tally, *, limit: float) -> Iterator[Example]:
    """The examples; at their end an error if there were none, or if too many rows were bad."""
    used, bad = tally.used, tally.bad
    yield from examples
    used, bad = tally.used - used, tally.bad - bad
    if used == 0:
        raise DataError(f"no usable examples in {where}", got=tally.summary())
    if bad > limit * (used + bad):
        raise DataError(
            f"{bad:,} of {used + bad:,} rows are bad",
            where=where,
            got=tally.summary(),
            hint="is it another format, or are the columns others?",
        )


def tidy(text: str) -> str:
    """One line, unless it is code, whose lines matter.

    >>> tidy("Sure,\\n I do. "), tidy("Here:\\n```\\nx = 1\\n```\\n")
    ('Sure, I do.', 'Here:\\n```\\nx = 1\\n```')
    """
    return text.strip() if "```" in text else " ".join(text.split())
