"""A reader of one's own dialogues: JSON lines with a list of turns each, or a text with a turn a
line and an empty line between dialogues."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from regard.data.examples import DialogueExample, Example
from regard.data.lines import Tally, clean_text, read_lines
from regard.data.messages import TURN_FORMS, role_replies
from regard.data.parsers import LineExamples, ParsedFile, Parser, parser
from regard.data.places import files_at, plain_name
from regard.data.reading import checked, existing_file
from regard.data.replies import replies
from regard.data.roles import TURN_KEYS
from regard.data.rows import SUFFIXES
from regard.data.sentences import is_wrapped

SAMPLE = 400  # lines by which a file is recognised
MOST_TURNS = 10_000  # of a dialogue in a text: one without empty lines is read in parts


def read_dialogues(
    path: Path | str, *, tally: Tally, turns: int = 1, limit: float = 0.5
) -> Iterator[Example]:
    """The answers in dialogues, each with up to `turns` turns before it.

    In a text every turn but the first of a dialogue is an answer, and so it is in JSON lines whose
    turns are strings. Where turns have roles, as in OpenAI's fine-tuning files, the answers are the
    messages of the assistant.
    """
    path = existing_file(path)
    if is_json(path):
        lines = DialogueParser(turns)
        return LineExamples(
            lambda: (ParsedFile(file, lines) for file in files_at(path)),
            path,
            tally,
            limit=limit,
            hint=TURN_FORMS,
        )
    return checked(_read_text(path, tally, turns), path, tally, limit=limit)


def is_json(path: Path) -> bool:
    """Whether a file has JSON in its lines, by its name or by its first line."""
    if SUFFIXES.get(Path(plain_name(path)).suffix) == "jsonl":
        return True
    lines = (line.strip() for line in read_lines(path, Tally()))
    return next(filter(None, lines), "").startswith(("{", "["))


# -- JSON lines-------------------------------------------------------------------------------------


@parser
@dataclass(frozen=True)
class DialogueParser(Parser):
    """Parses lines of JSON, each of which is a dialogue."""

    kind = "dialogues"

    turns: int

    def examples(self, lines: Iterator[str], tally: Tally, *, first: bool) -> Iterator[Example]:
        return _parsed(lines, tally, self.turns)


def _parsed(lines: Iterator[str], tally: Tally, history: int) -> Iterator[DialogueExample]:
    for line in lines:
        if not line.strip():
            continue
        row = _parse(line)
        turns = turns_in(row)
        if row is None:
            tally.skip("not JSON")
        elif turns is None:
            tally.skip("no list of turns")
        elif turns and all(isinstance(turn, dict) for turn in turns):
            yield from role_replies(turns, tally, history=history)
        elif not all(isinstance(turn, str) for turn in turns):
            tally.skip("turn is not text")
        elif len(turns) < 2:
            tally.skip("fewer than two turns")
        else:
            texts = [clean_text(turn, tally) for turn in turns]
            yield from replies(texts, tally, history=history)


def _parse(line: str) -> Any:
    """The value of a line, None if it is not JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def turns_in(row: Any) -> list[Any] | None:
    """The list of turns that a value is, or that it has under one of TURN_KEYS.

    >>> turns_in({"id": 7, "Dialog": ["Hi!", "Hello."]}), turns_in({"text": "Hi!"})
    (['Hi!', 'Hello.'], None)
    """
    if isinstance(row, list):
        return row
    if not isinstance(row, dict):
        return None
    values = {str(key).lower(): value for key, value in row.items()}
    for key in TURN_KEYS:
        if isinstance(values.get(key), list):
            return values[key]
    return None


def has_dialogues(path: Path) -> bool:
    """Whether most of the first JSON lines of a file are dialogues."""
    lines = islice((line for line in read_lines(path, Tally()) if line.strip()), SAMPLE)
    are_dialogues = []
    for line in lines:
        turns = turns_in(_parse(line)) or []
        is_dialogue = all(isinstance(turn, str | dict) for turn in turns)
        are_dialogues.append(is_dialogue and len(turns) > 0)
    return sum(are_dialogues) * 2 > len(are_dialogues)


# -- text-------------------------------------------------------------------------------------------


def _read_text(path: Path, tally: Tally, history: int) -> Iterator[DialogueExample]:
    for turns in _blocks(read_lines(path, tally)):
        if len(turns) < 2:
            tally.skip("fewer than two turns")
        else:
            yield from replies(turns, tally, history=history)


def _blocks(lines: Iterator[str]) -> Iterator[list[str]]:
    """Lines up to the next empty one, at most MOST_TURNS of them."""
    for is_filled, block in groupby(lines, key=lambda line: bool(line.strip())):
        while is_filled and (part := list(islice(block, MOST_TURNS))):
            yield part


def looks_like_dialogues(path: Path) -> tuple[bool, bool]:
    """Whether a text can be dialogues, and whether it probably is.

    It can be if most of its blocks have several lines, which are not broken at a margin. It
    probably is if a twentieth of the lines are questions.
    """
    lines = list(islice(read_lines(path, Tally()), SAMPLE))
    blocks = list(_blocks(iter(lines)))
    several = [block for block in blocks if len(block) > 1]
    if len(blocks) < 2 or 2 * len(several) < len(blocks) or is_wrapped(lines):
        return False, False
    turns = [line.rstrip() for block in blocks for line in block]
    questions = sum(turn.endswith(("?", "？", "؟")) for turn in turns)
    return True, 20 * questions >= len(turns)
