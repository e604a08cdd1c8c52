"""Corpora as streams of (source, target): ChatterBot's, any file of pairs, and the Cornell movie
dialogues.

Readers never trust a file: what cannot be used is skipped and counted by reason, and no line, quote
or nesting can make them hold more than a few megabytes.
"""

from __future__ import annotations

import importlib.resources
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Literal

from regard.data.columns import choose
from regard.data.examples import Example
from regard.data.lines import EMPTY, Tally, mended, read_lines
from regard.data.messages import exchanges
from regard.data.roles import PAIRS, Column, Roles
from regard.data.rows import json_object, read_rows
from regard.data.tables import look
from regard.errors import DataError, did_you_mean

# -- the ChatterBot corpus--------------------------------------------------------------------------

# In these two files the lines after the first are not a dialogue but several answers to it.
ALTERNATIVES = frozenset({"computers", "emotion"})


def read_chatterbot(
    *, language: str = "english", topics: Sequence[str] = (), tally: Tally
) -> Iterator[Example]:
    """The conversations of the PyPI package chatterbot-corpus; no topics means all of them."""
    files = chatterbot_files(language, topics)
    return checked(_chatterbot(files, tally), f"chatterbot-corpus/{language}", tally, limit=0.5)


def chatterbot_files(language: str = "english", topics: Sequence[str] = ()) -> list[Path]:
    """The files behind `read_chatterbot`, for a fingerprint."""
    try:
        data = Path(str(importlib.resources.files("chatterbot_corpus"))) / "data"
    except ModuleNotFoundError:
        raise DataError(
            "the package chatterbot-corpus is missing",
            hint="pip install chatterbot-corpus, or give --data PATH",
        ) from None
    languages = sorted(folder.name for folder in data.iterdir() if folder.is_dir())
    if language not in languages:
        raise DataError(
            "no such language",
            where="chatterbot-corpus",
            got=language,
            hint=did_you_mean(language, languages),
        )
    known = {file.stem: file for file in sorted((data / language).glob("*.yml"))}
    for topic in topics:
        if topic not in known:
            raise DataError(
                "no such topic",
                where=f"chatterbot-corpus/{language}",
                got=topic,
                hint=did_you_mean(topic, known),
            )
    return [known[topic] for topic in dict.fromkeys(topics)] or list(known.values())


def _chatterbot(files: Iterable[Path], tally: Tally) -> Iterator[Example]:
    import yaml  # slow to import, and only needed here

    loader = getattr(
        yaml, "CSafeLoader", yaml.SafeLoader
    )  # ten times as fast, where PyYAML was built with it
    seen: set[Example] = set()
    for file in files:
        try:
            text = file.read_text("utf-8-sig", errors="replace")
            conversations = yaml.load(text, Loader=loader)["conversations"]  # noqa: S506, both are safe loaders
        except (yaml.YAMLError, KeyError, TypeError) as problem:
            raise DataError(
                "not a ChatterBot corpus file", where=file, got=str(problem)[:200]
            ) from None
        for conversation in conversations:
            lines = [_said(line, tally) for line in _turns(conversation)]
            if len(lines) < 2:
                tally.skip("fewer than two lines")
            pairs = (
                ((lines[0], line) for line in lines[1:])
                if file.stem in ALTERNATIVES
                else pairwise(lines)
            )
            for example in (Example(*pair) for pair in pairs):
                if example in seen:
                    tally.duplicates += 1
                else:
                    seen.add(example)
                    yield from usable(example, tally)


def _turns(conversation: Any) -> list[Any]:
    """
    # a line break is missing in the file
    >>> _turns("Which number is called two little ducks? - '22'")
    ['Which number is called two little ducks?', '22']
    """
    if isinstance(conversation, list):
        return conversation
    return (
        [part.strip(" '\"") for part in conversation.split(" - ", 1)]
        if isinstance(conversation, str)
        else []
    )


def _said(value: Any, tally: Tally) -> str:
    """A YAML value as somebody would say it.

    >>> [_said(value, Tally()) for value in (True, 1963, None, "two  words ")]
    ['yes', '1963', '', 'two words']
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else tidy(mended(str(value), tally))


# -- pairs------------------------------------------------------------------------------------------


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
    path = _existing_file(path)
    pairs = _pairs(path, source_column, target_column, tally, roles)
    examples = (example for pair in pairs for example in usable(Example(*map(tidy, pair)), tally))
    return checked(examples, path, tally, limit=limit)


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
    extra = None if choice.extra is None else table.names[choice.extra]
    if kind == "jsonl":
        names = table.names[choice.source], table.names[choice.target]
        yield from _values(rows, *names, tally, extra)
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
            yield mended(prompt, tally), mended(reply, tally)


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
        sides = [keys.get(name.lower()) if name not in row else name for name in (source, target)]
        if None in sides:
            tally.skip("missing field")
            continue
        values = [row[side] for side in sides if side is not None]
        if all(value is None or isinstance(value, str | int | float) for value in values):
            prompt = _said(values[0], tally)
            if extra is not None:
                follows = row.get(keys.get(extra.lower(), extra))
                if not isinstance(follows, str | int | float | None):
                    tally.skip("field is not text")
                    continue
                prompt = _joined(prompt, _said(follows, tally))
            yield prompt, _said(values[1], tally)
        else:
            tally.skip("field is not text")


# -- Cornell----------------------------------------------------------------------------------------

SEPARATOR = " +++$+++ "


def read_cornell(path: Path | str, *, tally: Tally, limit: float = 0.5) -> Iterator[Example]:
    """The Cornell Movie-Dialogs Corpus as it was published (two .txt files), or as ConvoKit's
    utterances.jsonl.

    An exchange is two consecutive lines of one conversation. Lines come in any order, so the texts
    are held in memory: about 60 MB for the whole corpus.
    """
    files = cornell_files(path)
    examples = (
        _utterances(files[0], tally) if len(files) == 1 else _movies(files[0], files[1], tally)
    )
    return checked(examples, path, tally, limit=limit)


def cornell_files(path: Path | str) -> list[Path]:
    """[utterances.jsonl] or [movie_lines.txt, movie_conversations.txt], in a folder or one level
    below it."""
    path = Path(path)
    if not path.exists():
        raise DataError("no such file or folder", where=path)
    if path.is_file() and not path.name.startswith("movie_"):
        return [path]
    folder = path.parent if path.is_file() else path
    for place in (
        folder,
        *(sorted(inner for inner in folder.iterdir() if inner.is_dir()) if path.is_dir() else ()),
    ):
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


def holds_cornell(folder: Path) -> bool:
    """Whether the corpus lies in this folder itself."""
    raw = ("movie_lines.txt", "movie_conversations.txt")
    if all((folder / name).is_file() for name in raw):
        return True
    return any((folder / name).is_file() for name in ("utterances.jsonl", "utterances.jsonl.gz"))


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
        row = json_object(line, tally)
        if row is None:
            continue
        said, name, answers = (
            row.get("text"),
            row.get("id"),
            row.get("reply-to", row.get("reply_to")),
        )
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


# -- any path---------------------------------------------------------------------------------------


def detect(path: Path | str) -> Literal["pairs", "cornell"]:
    """Which reader a path is for."""
    path = Path(path)
    if path.is_dir() or path.name.startswith(
        ("movie_lines", "movie_conversations", "utterances.jsonl")
    ):
        cornell_files(path)
        return "cornell"
    first = next(read_lines(_existing_file(path), Tally()), "")
    row = json_object(first, Tally()) if first.startswith("{") else None
    return (
        "cornell" if row and "text" in row and ("reply-to" in row or "reply_to" in row) else "pairs"
    )


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


# -- what every reader does-------------------------------------------------------------------------


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


def checked(
    examples: Iterator[Example], where: object, tally: Tally, *, limit: float
) -> Iterator[Example]:
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
