"""A reader of DailyDialog (Li et al. 2017): a dialogue a line, whose turns end in __eou__."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from regard.data.detokenise import detokenise
from regard.data.examples import Example
from regard.data.lines import Tally, read_lines
from regard.data.parsers import LineExamples, ParsedFile, Parser, parser
from regard.data.places import exists, files_at, is_file
from regard.data.reading import existing_file
from regard.data.replies import replies
from regard.errors import DataError

TURN = "__eou__"
WHOLE = "dialogues_text.txt"  # all dialogues
NAMES = {"train": "train", "valid": "validation", "test": "test"}
LOOKED_AT = 5  # first lines: a mark in one of them tells the format


def read_dailydialog(
    file: Path | str, *, tally: Tally, turns: int = 1, limit: float = 0.5
) -> Iterator[Example]:
    """The answers in the dialogues of a file, each with up to `turns` turns before it. Spaces that
    tokenising left around marks are removed."""
    path = existing_file(file)
    lines = DailyDialogParser(turns)
    return LineExamples(
        lambda: (ParsedFile(file, lines) for file in files_at(path)), path, tally, limit=limit
    )


@parser
@dataclass(frozen=True)
class DailyDialogParser(Parser):
    """Parses lines, each of which is a dialogue."""

    kind = "dailydialog"

    turns: int

    def examples(self, lines: Iterator[str], tally: Tally, *, first: bool) -> Iterator[Example]:
        for line in lines:
            if not line.strip():
                continue
            dialogue = [detokenise(turn) for turn in line.split(TURN)]
            if not dialogue[-1]:
                dialogue.pop()  # what follows the last mark
            if len(dialogue) < 2:
                tally.skip("fewer than two turns")
            else:
                yield from replies(dialogue, tally, history=self.turns)


def dailydialog_files(path: Path | str) -> dict[str, Path]:
    """The files of the corpus by split: "train", "valid" and "test". A path that is a file is
    "train". In a folder the files have the names of the published archive. The archive has the
    splits as archives inside; if these were not unpacked, its file of all dialogues is "train"."""
    path = Path(path)
    if not exists(path):
        raise DataError("no such file or folder", where=path)
    if is_file(path):
        return {"train": path}
    files: dict[str, Path] = {}
    for split, name in NAMES.items():
        for place in (path, path / name):
            file = place / f"dialogues_{name}.txt"
            if file.is_file():
                files.setdefault(split, file)
    if "train" in files:
        return files
    if (path / WHOLE).is_file():
        return {"train": path / WHOLE}
    if len(files) == 1:
        return dict(zip(["train"], files.values(), strict=True))
    raise DataError(
        "not DailyDialog", where=path, hint=f"expected dialogues_train.txt or {WHOLE} in it"
    )


def is_dailydialog(path: Path) -> bool:
    """Whether a folder has the corpus in it, or a file is of its format."""
    if path.is_dir():
        try:
            path = dailydialog_files(path)["train"]
        except DataError:
            return False
    lines = islice(read_lines(path, Tally()), LOOKED_AT)
    return any(TURN in line for line in lines)
