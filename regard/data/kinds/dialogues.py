"""Whole dialogues: DailyDialog, and one's own."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from regard.data.kinds.conversations import DIALOGUE
from regard.data.kinds.kind import (
    Contents,
    DataKind,
    DataSet,
    Reader,
    SourceForm,
    contents_of_paths,
)
from regard.data.kinds.sections import DialogueFiles
from regard.data.places import files_at, is_file, plain_name
from regard.data.public import Download, PublicDataSet
from regard.fields import File

if TYPE_CHECKING:
    from regard.data.examples import Example
    from regard.data.lines import Tally

MESSAGES = "keys: messages; source = user, target = the assistant message after it"


# -- DailyDialog------------------------------------------------------------------------------------


class DataDailyDialog(DialogueFiles):
    """DailyDialog, as distributed: everyday English dialogues, one a line, whose turns end in
    __eou__."""

    kind: Literal["dailydialog"]
    path: File
    """A file, or the corpus's folder, relative to the folder the command runs in. The validation
    and test files of a folder are used as such."""

    def note(self) -> str | None:
        from regard.data.dailydialog import dailydialog_files

        return _splits(Path(self.path), dailydialog_files(self.path))


def _dailydialog(section: DataDailyDialog, form: SourceForm) -> Contents:
    from regard.data.dailydialog import dailydialog_files, read_dailydialog

    files = dailydialog_files(section.path)
    for split, path in (("valid", section.valid_path), ("test", section.test_path)):
        if path is not None:
            files[split] = dailydialog_files(path)["train"]
    readers = {}
    for split, file in files.items():
        readers[split] = partial(read_dailydialog, file, turns=section.turns)
    all_files = list(chain.from_iterable(map(files_at, files.values())))
    return Contents(readers["train"], all_files, readers.get("valid"), readers.get("test"))


def _recognise_dailydialog(path: Path) -> DataSet | None:
    from regard.data.dailydialog import dailydialog_files, is_dailydialog
    from regard.data.sentences import is_text

    if not (path.is_dir() or is_text(path)) or not is_dailydialog(path):
        return None
    files = dailydialog_files(path)
    read = partial(_read_all, list(files.values()))
    return DataSet.at("dailydialog", path, read, _splits(path, files) or "")


def _splits(path: Path, files: dict[str, Path]) -> str | None:
    """The files of a folder that are used, by split."""
    if not path.is_dir():
        return None
    return ", ".join(f"{split} = {file.relative_to(path)}" for split, file in files.items())


def _read_all(files: list[Path], *, tally: Tally) -> Iterator[Example]:
    from regard.data.dailydialog import read_dailydialog

    for file in files:
        yield from read_dailydialog(file, tally=tally, limit=1.0)


SPLITS = (
    "train/dialogues_train.txt",
    "validation/dialogues_validation.txt",
    "test/dialogues_test.txt",
)
DAILYDIALOG = PublicDataSet(
    name="dailydialog",
    what="DailyDialog: 13,118 everyday dialogues, English",
    licence="CC BY-NC-SA 4.0: not for commercial use; cite Li et al. 2017",
    downloads=(
        Download(
            "ijcnlp_dailydialog.zip",
            "http://yanran.li/files/ijcnlp_dailydialog.zip",
            size=4_475_921,
            sum="sha256:c641e88cbf21fd7c1b57289387f9107d33fe8685a2b37fe8066b82776535ea89",
        ),
    ),
    inside="ijcnlp_dailydialog",
    keep=("dialogues_text.txt", "readme.txt", *SPLITS),
    needs=SPLITS,
    archives=("train.zip", "validation.zip", "test.zip"),
    size=17_000_000,
    members=50,
)


# -- one's own--------------------------------------------------------------------------------------


class DataDialogues(DialogueFiles):
    """Your own dialogues: JSON lines with a list of turns each, also in OpenAI's "messages" format,
    or a text with a turn a line and an empty line between dialogues."""

    kind: Literal["dialogues"]
    path: File
    """The file, relative to the folder the command runs in."""

    def note(self) -> str | None:
        path = Path(self.path)
        return MESSAGES if is_file(path) and _has_messages(path) else None


def _dialogues(section: DataDialogues, form: SourceForm) -> Contents:
    from regard.data.dialogues import read_dialogues
    from regard.data.reading import existing_files

    def reader(path: str) -> Reader:
        return partial(read_dialogues, path, turns=section.turns)

    return contents_of_paths(section, reader, existing_files)


def _recognise_dialogues(path: Path) -> DataSet | None:
    """JSON lines with dialogues. A table with messages may be another kind too, and so may a text:
    they are recognised later."""
    from regard.data.dialogues import has_dialogues
    from regard.data.rows import SUFFIXES

    is_json_lines = is_file(path) and SUFFIXES.get(Path(plain_name(path)).suffix) == "jsonl"
    if not is_json_lines or not has_dialogues(path) or _has_messages(path):
        return None
    return dialogues_at(path)


def _has_messages(path: Path) -> bool:
    from regard.data.dialogues import is_json
    from regard.data.tables import look

    return is_json(path) and look(path).has_messages


def dialogues_at(path: Path, note: str = "") -> DataSet:
    """The dialogues in a file."""
    from regard.data.dialogues import read_dialogues

    return DataSet.at("dialogues", path, partial(read_dialogues, path, limit=1.0), note)


KINDS = (
    DataKind(
        section=DataDailyDialog,
        contents=_dailydialog,
        recipes={"chat": DIALOGUE},
        words="a corpus of dialogues (DailyDialog)",
        recognise=_recognise_dailydialog,
        public=(DAILYDIALOG,),
    ),
    DataKind(
        section=DataDialogues,
        contents=_dialogues,
        recipes={"chat": DIALOGUE},
        words="a file of dialogues",
        recognise=_recognise_dialogues,
    ),
)
