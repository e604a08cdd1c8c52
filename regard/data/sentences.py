"""Plain text as sentences: a file of any size, or the texts of another corpus.

An example is a sentence on both sides: what is hidden of it, and when, is for the task to say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Literal

from regard.data.examples import Example
from regard.data.hashes import HashSet, hash_of
from regard.data.lines import Tally, read_lines
from regard.data.parsers import LineExamples, ParsedFile, Parser, parser
from regard.data.places import files_at, is_file, plain_name
from regard.data.reading import checked, tidy, word_count
from regard.errors import DataError

LONGEST = 2000  # characters; a longer sentence is none
FEWEST = 3  # words, so that something stands around a blank
SAMPLE = 400  # lines that tell how a file is laid out
FEW_FILES = 64  # that are each divided into shards of their own
TABLES = (
    *(".tsv", ".csv", ".jsonl", ".ndjson", ".json", ".npz", ".parquet"),
    *(".toml", ".yml", ".yaml", ".html", ".xml"),
)

Layout = Literal["auto", "lines", "wrapped"]


def read_text(path: Path | str, *, layout: Layout = "auto", tally: Tally) -> Iterator[Example]:
    """The sentences of a file, or of every .txt file of a folder, also gzipped; nothing but the
    paragraph under way is held. In "lines" every line is a sentence or a paragraph; "wrapped"
    text has paragraphs with empty lines between them; "auto" looks at the first lines of each
    file."""
    files = text_files(path)
    # Many files are small: they are read in this process, so that they share shards.
    if len(files) <= FEW_FILES and not any(_is_wrapped_file(file, layout) for file in files):
        parsed = [ParsedFile(file, SentenceParser()) for file in files]
        return LineExamples(lambda: iter(parsed), Path(path), tally, limit=1.0)

    def examples() -> Iterator[Example]:
        for file in files:
            yield from _sentences(_paragraphs(file, layout, tally), tally)

    # Any number of bad rows: most lines may be no sentences but headings and the like.
    return checked(examples(), path, tally, limit=1.0)


def text_files(path: Path | str) -> list[Path]:
    """The files that `read_text` reads."""
    path = Path(path)
    if is_file(path):
        return files_at(path)
    if not path.is_dir():
        raise DataError("no such file or folder", where=path)
    texts = (file for file in path.rglob("*") if plain_name(file).endswith(".txt"))
    files = sorted(file for file in texts if file.is_file())
    if not files:
        raise DataError(
            f"no usable examples in {path}", got="no .txt files, also packed as .gz or .zst"
        )
    return files


def sentences_of(
    read: Callable[..., Iterator[Example]], *, targets: bool
) -> Callable[..., Iterator[Example]]:
    """A reader of the sentences in the sources of another reader, and in its `targets`."""

    def texts(tally: Tally) -> Iterator[str]:
        for example in read(tally=tally):
            for text in example[: 1 + targets]:
                if isinstance(text, str):
                    yield text

    def read_sentences(*, tally: Tally) -> Iterator[Example]:
        rows = Tally()
        yielded = HashSet()
        for example in _sentences(texts(rows), tally):
            if yielded.add(hash_of(example.target.encode("utf-8", "replace"))):
                yield example
            else:  # an answer is often the next prompt
                tally.used -= 1
                tally.duplicates += 1
        tally.replaced += rows.replaced

    return read_sentences


def is_text(path: Path | str) -> bool:
    """A file that is text rather than a table: few of its first lines have tabs or braces."""
    path = Path(path)
    if not is_file(path) or plain_name(path).endswith(TABLES):
        return False
    lines = [line for line in islice(read_lines(path, Tally()), SAMPLE) if line.strip()]
    odd = sum("\t" in line or line.lstrip().startswith(("{", "[")) for line in lines)
    return bool(lines) and odd < 0.1 * len(lines)


# -- paragraphs-------------------------------------------------------------------------------------


def _paragraphs(file: Path, layout: Layout, tally: Tally) -> Iterator[str]:
    lines = read_lines(file, tally)
    return _joined(lines) if _is_wrapped_file(file, layout) else lines


def _is_wrapped_file(file: Path, layout: Layout) -> bool:
    if layout != "auto":
        return layout == "wrapped"
    return is_wrapped(list(islice(read_lines(file, Tally()), SAMPLE)))


def is_wrapped(lines: list[str]) -> bool:
    """Lines broken at a margin: there are empty ones between paragraphs, none is very long, and
    those that another line follows are nearly full.

    >>> lines = ["It was the best of times, it was the", "worst of times, it was the age of"]
    >>> is_wrapped([*lines, "wisdom.", "", "No."])
    True
    >>> is_wrapped(["A man sleeps.", "Two women talk in front of a large red house.", "", "A dog."])
    False
    """
    lines = [line.rstrip() for line in lines]
    inside = sorted(len(line) for line, after in pairwise(lines) if line and after)
    longest = max(map(len, lines), default=0)
    if not inside or "" not in lines or longest > 120:
        return False
    return inside[len(inside) // 2] >= 0.75 * longest


def _joined(lines: Iterator[str]) -> Iterator[str]:
    """The paragraphs of wrapped text. One that does not end is given out in pieces, each up to
    its last full stop."""
    held = ""
    for line in lines:
        if not line.strip():
            yield held
            held = ""
            continue
        # A word broken at the margin is put together again.
        broken = held.endswith("-") and held[-2:-1].isalpha()
        held = held[:-1] + line.strip() if broken else f"{held} {line.strip()}"
        if len(held) > 8 * LONGEST:
            *whole, rest = list(split(held)) or [""]
            yield from whole or [held]  # without any full stop there is no end to wait for
            held = rest if whole else ""
    yield held


@parser
@dataclass(frozen=True)
class SentenceParser(Parser):
    """Parses lines, each of which is a sentence or a paragraph."""

    kind = "sentences"

    def examples(self, lines: Iterator[str], tally: Tally, *, first: bool) -> Iterator[Example]:
        return _sentences(lines, tally)


# -- sentences--------------------------------------------------------------------------------------

_END = re.compile(
    # a stop, and no small letter after it
    r"(?<=[.!?…])[\"'”’)\]]*\s+(?=[\"'“‘(\[¿¡]*[^\W_a-zà-öø-ÿ])"
    r"|(?<=[。！？।؟])\s*"
)
_GOES_ON = re.compile(
    r"(?:\b(?:mr|mrs|ms|dr|st|prof|rev|hon|gen|col|capt|lt|sgt|jr|sr|vs|etc|no|vol|fig|e\.g|i\.e|cf)\.|\b[^\W\d_]\.)$",
    re.IGNORECASE,
)  # titles, abbreviations and initials, after which a sentence goes on


def split(paragraph: str) -> Iterator[str]:
    """
    >>> list(split('Mr. Smith met J. R. Hill. "Why?" he asked. "No. 5 is mine!" Then 3 left.'))
    ['Mr. Smith met J. R. Hill.', '"Why?" he asked.', '"No. 5 is mine!"', 'Then 3 left.']
    """
    start = 0
    for match in _END.finditer(paragraph):
        end = match.start() + len(match[0].rstrip())
        if _GOES_ON.search(paragraph, max(start, match.start() - 8), match.start()) is None:
            yield paragraph[start:end]
            start = match.end()
    yield paragraph[start:]


def _sentences(paragraphs: Iterator[str], tally: Tally) -> Iterator[Example]:
    lines = (line for paragraph in paragraphs for line in split(paragraph))
    for sentence in map(tidy, lines):
        if not sentence:
            continue
        if len(sentence) > LONGEST:
            tally.skip("sentence too long")
        elif word_count(sentence) < FEWEST:
            tally.skip("fewer than three words")
        elif "__" in sentence:
            tally.skip("has a blank already")
        else:
            tally.used += 1
            yield Example(sentence, sentence)
