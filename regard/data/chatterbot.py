"""The conversations of the PyPI package chatterbot-corpus."""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from regard.data.examples import Example
from regard.data.lines import Tally
from regard.data.reading import checked, spoken_value, usable
from regard.errors import DataError, did_you_mean

# In these two files the lines after the first are not a dialogue but several answers to it.
ALTERNATIVES = frozenset({"computers", "emotion"})


def read_chatterbot(
    *, language: str = "english", topics: Sequence[str] = (), tally: Tally
) -> Iterator[Example]:
    """Its conversations; no topics means all of them."""
    files = chatterbot_files(language, topics)
    return checked(_exchanges(files, tally), f"chatterbot-corpus/{language}", tally, limit=0.5)


def chatterbot_files(language: str = "english", topics: Sequence[str] = ()) -> list[Path]:
    """The files that `read_chatterbot` reads."""
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
    files = {file.stem: file for file in sorted((data / language).glob("*.yml"))}
    for topic in topics:
        if topic not in files:
            raise DataError(
                "no such topic",
                where=f"chatterbot-corpus/{language}",
                got=topic,
                hint=did_you_mean(topic, files),
            )
    return [files[topic] for topic in dict.fromkeys(topics)] or list(files.values())


def _exchanges(files: Iterable[Path], tally: Tally) -> Iterator[Example]:
    """Every exchange once."""
    yielded: set[Example] = set()
    for file in files:
        for conversation in _conversations(file):
            lines = [spoken_value(line, tally) for line in _turns(conversation)]
            if len(lines) < 2:
                tally.skip("fewer than two lines")
                continue
            pairs = pairwise(lines)
            if file.stem in ALTERNATIVES:
                pairs = ((lines[0], line) for line in lines[1:])
            for prompt, reply in pairs:
                example = Example(prompt, reply)
                if example in yielded:
                    tally.duplicates += 1
                else:
                    yielded.add(example)
                    yield from usable(example, tally)


def _conversations(file: Path) -> list[Any]:
    import yaml  # slow to import, and only needed here

    # Ten times as fast, where PyYAML was built with it. Both are safe loaders.
    safe_loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        text = file.read_text("utf-8-sig", errors="replace")
        return safe_loader(text).get_single_data()["conversations"]
    except (yaml.YAMLError, KeyError, TypeError) as problem:
        raise DataError(
            "not a ChatterBot corpus file", where=file, got=str(problem)[:200]
        ) from None


def _turns(conversation: Any) -> list[Any]:
    """
    # a line break is missing in the file
    >>> _turns("Which number is called two little ducks? - '22'")
    ['Which number is called two little ducks?', '22']
    """
    if isinstance(conversation, list):
        return conversation
    if isinstance(conversation, str):
        return [turn.strip(" '\"") for turn in conversation.split(" - ", 1)]
    return []
