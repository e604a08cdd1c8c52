"""The Cornell Movie-Dialogs Corpus."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from regard.data.examples import Example
from regard.data.lines import Tally, read_lines
from regard.data.reading import checked, existing_file, spoken_value, tidy, usable
from regard.data.rows import json_object
from regard.errors import DataError

SEPARATOR = " +++$+++ "
RAW = ("movie_lines.txt", "movie_conversations.txt")
CONVOKIT = ("utterances.jsonl", "utterances.jsonl.gz")


def read_cornell(path: Path | str, *, tally: Tally, limit: float = 0.5) -> Iterator[Example]:
    """The corpus as it was published (two .txt files), or as ConvoKit's utterances.jsonl.

    An exchange is two consecutive lines of one conversation. Lines come in any order, so the texts
    are held in memory: about 60 MB for the whole corpus.
    """
    files = cornell_files(path)
    if len(files) == 1:
        examples = _utterances(files[0], tally)
    else:
        examples = _movies(files[0], files[1], tally)
    return checked(examples, path, tally, limit=limit)


def cornell_files(path: Path | str) -> list[Path]:
    """[utterances.jsonl] or [movie_lines.txt, movie_conversations.txt], in a folder or one level
    below it."""
    path = Path(path)
    if not path.exists():
        raise DataError("no such file or folder", where=path)
    if path.is_file() and not path.name.startswith("movie_"):
        return [path]
    folders = [path.parent]
    if path.is_dir():
        folders = [path, *sorted(inner for inner in path.iterdir() if inner.is_dir())]
    for folder in folders:
        files = _files_in(folder)
        if files:
            return files
    raise DataError(
        "not the Cornell corpus",
        where=path,
        hint="expected movie_lines.txt and movie_conversations.txt, or utterances.jsonl",
    )


def _files_in(folder: Path) -> list[Path]:
    """The corpus's files in this folder itself; none if it is not there."""
    raw = [folder / name for name in RAW]
    if all(file.is_file() for file in raw):
        return raw
    for name in CONVOKIT:
        if (folder / name).is_file():
            return [folder / name]
    return []


def is_cornell(path: Path | str) -> bool:
    """Whether a folder has the corpus in it, or a file is one of its files."""
    path = Path(path)
    if path.is_dir():
        return bool(_files_in(path))
    if path.name.startswith(("movie_lines", "movie_conversations", "utterances.jsonl")):
        cornell_files(path)  # says what is missing
        return True
    first = next(read_lines(existing_file(path), Tally()), "")
    row = json_object(first, Tally()) if first.startswith("{") else None
    return row is not None and "text" in row and ("reply-to" in row or "reply_to" in row)


def _movies(lines: Path, conversations: Path, tally: Tally) -> Iterator[Example]:
    texts: dict[str, str] = {}
    for line in read_lines(lines, tally, declared="cp1252"):
        if line.endswith(SEPARATOR.rstrip()):  # an empty text
            line += " "
        fields = line.split(SEPARATOR)
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
        row = json_object(line, tally)
        if row is None:
            continue
        text = row.get("text")
        name = row.get("id")
        reply_to = row.get("reply-to", row.get("reply_to"))
        if not isinstance(name, str) or not isinstance(text, str | None):
            tally.skip("missing field")
        elif name in texts:
            tally.skip("line id used twice")
        else:
            texts[name] = spoken_value(text, tally)
            if reply_to is not None:
                replies.append((str(reply_to), name))
    for first, second in replies:
        yield from _exchange(texts, first, second, tally)


def _exchange(texts: dict[str, str], first: str, second: str, tally: Tally) -> Iterator[Example]:
    if first in texts and second in texts:
        yield from usable(Example(texts[first], texts[second]), tally)
    else:
        tally.skip("dangling id")
