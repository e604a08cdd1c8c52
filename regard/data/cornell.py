"""A reader of the Cornell Movie-Dialogs Corpus (Danescu-Niculescu-Mizil and Lee 2011)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from regard.data.examples import DialogueExample, dialogue_key
from regard.data.lines import Tally, read_lines
from regard.data.reading import checked, existing_file, spoken_value
from regard.data.replies import last_reply, one_line, replies
from regard.data.rows import json_object
from regard.errors import DataError

SEPARATOR = " +++$+++ "  # between the fields of a line
RAW = ("movie_lines.txt", "movie_conversations.txt")  # both, as published
DANGLING = "dangling id"  # why an exchange is skipped: the text of a line is missing
CONVOKIT = ("utterances.jsonl", "utterances.jsonl.gz")  # one of them, from ConvoKit


def read_cornell(
    path: Path | str, *, tally: Tally, turns: int = 1, limit: float = 0.5
) -> Iterator[DialogueExample]:
    """The answers in the dialogues of the corpus, each with up to `turns` lines before it.

    `path` is a folder, or a file of the corpus, as it was published (two .txt files) or as
    ConvoKit's utterances.jsonl. `tally` counts what is used and what is skipped; at the end a
    DataError is raised if more than the share `limit` of the exchanges and lines is bad. Lines come
    in any order, so all texts are held in memory: about 60 MB for the whole corpus.
    """
    files = cornell_files(path)
    if len(files) == 1:
        examples = _read_convokit(files[0], tally, turns)
    else:
        examples = _read_raw(files[0], files[1], tally, turns)
    return checked(examples, path, tally, limit=limit)


def cornell_files(path: Path | str) -> list[Path]:
    """The files of the corpus, [utterances.jsonl] or [movie_lines.txt, movie_conversations.txt].
    They are looked for in a folder and one level below it, or beside a file; a DataError is raised
    if they are missing."""
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
    """The files of the corpus in this folder itself; an empty list if it has none."""
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
        cornell_files(path)  # raises an error if the other file is missing
        return True
    first_line = next(read_lines(existing_file(path), Tally()), "")
    row = json_object(first_line, Tally()) if first_line.startswith("{") else None
    return row is not None and "text" in row and ("reply-to" in row or "reply_to" in row)


def _read_raw(
    lines: Path, conversations: Path, tally: Tally, turns: int
) -> Iterator[DialogueExample]:
    """The dialogues of the published files: one has the text of each line, the other the line ids
    of each conversation."""
    texts: dict[str, str] = {}  # by line id
    for line in read_lines(lines, tally, declared="cp1252"):
        if line.endswith(SEPARATOR.rstrip()):  # an empty text, without the space before it
            line += " "
        fields = line.split(SEPARATOR)
        if len(fields) != 5:
            tally.skip("wrong field count")
        elif fields[0] in texts:
            tally.skip("line id used twice")
        else:
            texts[fields[0]] = one_line(fields[4])
    for line in read_lines(conversations, tally, declared="cp1252"):
        fields = line.split(SEPARATOR)
        if len(fields) != 4:
            tally.skip("wrong field count")
            continue
        line_ids = re.findall(r"'([^']*)'", fields[3])  # of "['L194', 'L195', 'L196']"
        dialogue = [texts.get(line_id) for line_id in line_ids]
        yield from replies(dialogue, tally, history=turns, missing=DANGLING)


def _read_convokit(path: Path, tally: Tally, turns: int) -> Iterator[DialogueExample]:
    """The dialogues of ConvoKit's file, in which each line has the id of the line it replies to.
    Lines that lead to the same first line are one dialogue."""
    texts: dict[str, str] = {}  # by line id
    reply_to: dict[str, str] = {}
    for line in read_lines(path, tally):
        row = json_object(line, tally)
        if row is None:
            continue
        text = row.get("text")
        line_id = row.get("id")
        previous = row.get("reply-to", row.get("reply_to"))
        if not isinstance(line_id, str) or not isinstance(text, str | None):
            tally.skip("missing field")
        elif line_id in texts:
            tally.skip("line id used twice")
        else:
            texts[line_id] = one_line(spoken_value(text, tally))
            if previous is not None:
                reply_to[line_id] = str(previous)

    dialogues: dict[str, list[list[str]]] = {}  # by first line, the ids up to each of its lines
    for line_id in texts:
        ids = _ids_up_to(line_id, reply_to)
        dialogues.setdefault(ids[0], []).append(ids)
    for lines in dialogues.values():
        lines.sort(key=len)
        key = dialogue_key(texts[ids[-1]] for ids in lines)
        for ids in lines:
            window = [texts.get(line_id) for line_id in ids[-turns - 1 :]]
            if len(window) > 1:
                yield from last_reply(window, tally, key=key, missing=DANGLING)


def _ids_up_to(line_id: str, reply_to: dict[str, str]) -> list[str]:
    """The ids of the lines that lead to a line, from the first one to itself. Lines that reply to
    each other in a circle are followed once."""
    ids = {line_id: None}
    while (line_id := reply_to.get(line_id, "")) and line_id not in ids:
        ids[line_id] = None
    return list(ids)[::-1]
