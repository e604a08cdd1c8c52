"""A file as clean lines of text, whatever bytes it has, in bounded memory; and the tally of what
was skipped or replaced."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from regard.data.packed import PIECE, NotWholeError, Position, pieces
from regard.data.places import files_at

LINE = 1 << 20  # bytes; a longer line is not an example
EMPTY = "empty side"
SYSTEM = "system message"
UNANSWERED = "user message without a reply"
HARMLESS = (EMPTY, SYSTEM, UNANSWERED)  # reasons that say nothing bad about a file


@dataclass
class Tally:
    """What became of the rows of a corpus.

    >>> tally = Tally(used=3); tally.skip(EMPTY); tally.replaced = 2; tally.summary()
    '3 used, 1 skipped (empty side 1), 2 characters replaced'
    """

    used: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    replaced: int = 0

    def skip(self, reason: str) -> None:
        self.skipped[reason] += 1

    @property
    def bad(self) -> int:
        return self.skipped.total() - sum(self.skipped[reason] for reason in HARMLESS)

    def summary(self) -> str:
        reasons = ", ".join(
            f"{reason} {count:,}" for reason, count in sorted(self.skipped.items()) if count
        )
        parts = [
            f"{self.used:,} used",
            f"{self.skipped.total():,} skipped ({reasons})" if reasons else "",
            f"{self.duplicates:,} duplicates" if self.duplicates else "",
            f"{self.replaced:,} characters replaced" if self.replaced else "",
        ]
        return ", ".join(part for part in parts if part)

    def add(self, other: Tally) -> None:
        """Add the counts of another part of the same corpus."""
        self.used += other.used
        self.skipped += other.skipped
        self.duplicates += other.duplicates
        self.replaced += other.replaced

    def to_json(self) -> dict[str, Any]:
        skipped = dict(sorted((+self.skipped).items()))
        return {
            "used": self.used,
            "skipped": skipped,
            "duplicates": self.duplicates,
            "replaced": self.replaced,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Tally:
        return cls(**{**data, "skipped": Counter(data["skipped"])})


def read_lines(
    path: Path, tally: Tally, declared: str = "utf-8", *, gaps: bool = True
) -> Iterator[str]:
    """The lines of a file as text: any encoding with a byte order mark, else UTF-8, else (line
    by line) cp1252. If the path stands for several files, with `gaps` an empty line is between
    them."""
    for number, file in enumerate(_files(path)):
        if number and gaps:
            yield ""
        for line in _cut(_as_utf8(pieces(file), tally), tally):
            yield _decoded(line, tally, declared)


def read_blocks(path: Path, tally: Tally, position: Position, size: int) -> Iterator[bytes]:
    """The same lines of one file as blocks of whole lines, to be decoded with `block_lines`; lines
    that are too long are left out."""
    rest = bytearray()
    too_long = False  # the rest is the end of a line that is left out
    for piece in _as_utf8(pieces(path, position), tally):
        rest += piece
        while too_long or len(rest) >= size:
            end = _line_end(rest, 0 if too_long else size - 1)
            if end:
                if not too_long:
                    yield bytes(rest[:end])
                too_long = False
                del rest[:end]
                continue
            if too_long:
                del rest[:-1]  # but for a CR, which may be half of a CRLF
                break
            begin = max(rest.rfind(b"\n"), rest.rfind(b"\r", 0, len(rest) - 1)) + 1
            if len(rest) - begin <= LINE:
                break
            if begin:
                yield bytes(rest[:begin])
                del rest[:begin]
            tally.skip("line too long")
            too_long = True
    if rest and not too_long:
        yield bytes(rest)


def _line_end(content: bytearray, start: int) -> int:
    """The place after the first line end from `start` on; 0 if there is none. A CR at the end may
    be half of a CRLF, and is none yet."""
    feed = content.find(b"\n", start) + 1
    turn = content.find(b"\r", start, feed or len(content)) + 1
    if not turn or turn == len(content):
        return feed
    return turn + (content[turn : turn + 1] == b"\n")


def block_lines(block: bytes, tally: Tally, declared: str = "utf-8") -> Iterator[str]:
    """The lines of a block as text."""
    for line in block.splitlines(keepends=True):
        if len(line) > LINE:
            tally.skip("line too long")
        else:
            yield _decoded(line.rstrip(b"\r\n"), tally, declared)


def _files(path: Path) -> list[Path]:
    """The files of a path; a path that has none is opened, so that the system says why."""
    return files_at(path) or [path]


def is_binary(path: Path) -> bool:
    """Whether a file begins as no text does: one in fifty of its first bytes, or more, are
    control characters."""
    files = files_at(path)
    if not files or files[0].name.lower().endswith(".parquet"):
        return False  # what is wrong with it, its reader says
    try:
        head = b"".join(islice(_as_utf8(pieces(files[0]), Tally()), 2))[:PIECE]
    except NotWholeError:
        return False
    return 50 * len(_CONTROL.findall(head)) > len(head)


_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


_BOMS = (  # UTF-32 first: its mark begins with that of UTF-16
    (codecs.BOM_UTF8, None),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def _as_utf8(content: Iterator[bytes], tally: Tally) -> Iterator[bytes]:
    """Pieces of a file without its byte order mark, in UTF-8 if that mark says what it is in."""
    head = b""
    for piece in content:
        head += piece
        if len(head) >= 4:
            break
    mark, encoding = next(
        ((mark, encoding) for mark, encoding in _BOMS if head.startswith(mark)), (b"", None)
    )
    head = head[len(mark) :]
    if encoding is None:
        yield head
        yield from content
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    for piece in chain(filter(None, chain([head], content)), [b""]):
        text = decoder.decode(piece, final=not piece)
        tally.replaced += text.count("\ufffd")
        yield text.encode()


def _cut(pieces: Iterable[bytes], tally: Tally) -> Iterator[bytes]:
    """Lines, ended by LF, CR or CRLF only; those over the limit are skipped without being held."""
    rest = b""
    too_long = False
    for piece in pieces:
        rest += piece
        lines = rest.splitlines(keepends=True)
        # The last one may go on in the next piece, and a CR at the end may be half of a CRLF.
        rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        for line in lines:
            if too_long or len(line) > LINE:
                tally.skip("line too long")
                too_long = False
            else:
                yield line.rstrip(b"\r\n")
        if len(rest) > LINE:
            rest = b"\r" if rest.endswith(b"\r") else b""
            too_long = True
    if too_long:
        tally.skip("line too long")
    elif rest:
        yield rest.rstrip(b"\r\n")


def _decoded(line: bytes, tally: Tally, declared: str) -> str:
    """UTF-8 if it is (whatever was declared), else as declared, and single bytes that do not fit as
    cp1252.

    >>> tally = Tally()
    >>> _decoded(b"caf\\xc3\\xa9 \\x96 x", tally, "utf-8"), tally.replaced
    ('café – x', 1)
    """
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        text, count = _ESCAPED.subn(_as_cp1252, line.decode(declared, "surrogateescape"))
        tally.replaced += count
    return clean_text(text, tally)


_ESCAPED = re.compile("[\udc80-\udcff]")  # bytes that could not be decoded, as Python keeps them


def _as_cp1252(match: re.Match[str]) -> str:
    return bytes([ord(match[0]) & 0xFF]).decode("cp1252", "replace")


# NUL and other controls, soft hyphens, lone surrogates, and cp1252 characters that somebody once
# took for Latin-1.
_ODD = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\xad\ud800-\udfff\ufeff]")


def clean_text(text: str, tally: Tally) -> str:
    """Text without control characters and other characters that no one meant to write.

    >>> tally = Tally()
    >>> clean_text("it\\x92s \\xad\\xad ex\\xadample\\x00", tally), tally.replaced
    ('it’s -- example', 5)
    """

    def replacement(match: re.Match[str]) -> str:
        character = match[0]
        if "\x80" <= character <= "\x9f":
            return _as_cp1252(match)
        if character == "\xad":
            # A dash in Cornell; inside a word, a place where a line may break.
            before = text[max(match.start() - 1, 0) : match.start()]
            after = text[match.end() : match.end() + 1]
            return "" if before.isalpha() and after.isalpha() else "-"
        is_surrogate = character >= "\ud800" and character != "\ufeff"
        return "\ufffd" if is_surrogate else ""

    if text.isascii() and text.isprintable():  # much faster than the search, and nearly always
        return text
    clean, count = _ODD.subn(replacement, text)
    tally.replaced += count
    return clean
