"""Sounds with transcripts: synthetic voices, LJ Speech, FSDD, tables of sound files."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from regard.data.kinds.kind import (
    LOOKED_AT,
    Contents,
    DataKind,
    DataSet,
    Reader,
    SourceForm,
    TableKind,
    contents_of_paths,
)
from regard.data.kinds.sections import Sounds, SplitSection
from regard.data.lines import Tally, read_lines
from regard.data.public import Download, PublicDataSet
from regard.data.roles import SPOKEN, Column
from regard.fields import Column as ColumnField
from regard.fields import File, HeldOutFile, Seed, Text

if TYPE_CHECKING:
    from regard.data.examples import Example
    from regard.data.recordings import Hearing

SPEECH = ("speech-attention", "speech-transformer")


def _hearing(section: Sounds, form: SourceForm) -> Hearing:
    from regard.data.recordings import Hearing

    max_characters = section.max_target if section.truncate else None
    return Hearing(form.rate, section.max_seconds, max_characters)


def _looking() -> Hearing:
    from regard.data.recordings import Hearing

    return Hearing(LOOKED_AT.rate, LOOKED_AT.max_seconds)


# -- synthetic voices-------------------------------------------------------------------------------


class DataSpoken(Sounds):
    """Synthetic speech: numbers and commands in the voices of eSpeak NG (extra "speech"); no
    download."""

    kind: Literal["spoken"]
    count: Annotated[int, Field(ge=100, le=100_000)] = 6000
    """Number of distinct training sounds; validation and test sets have an eighth as many each,
    with unseen speakers."""
    seed: Seed = 1
    """The seed they are drawn with."""


def _spoken(section: DataSpoken, form: SourceForm) -> Contents:
    from regard.data import spoken

    def reader(part: spoken.Part) -> Reader:
        how = _hearing(section, form)
        return partial(spoken.read_spoken, part, count=section.count, seed=section.seed, how=how)

    return Contents(reader("train"), spoken.makers(), reader("valid"), reader("test"))


# -- LJ Speech--------------------------------------------------------------------------------------


class DataLjspeech(SplitSection, Sounds):
    """A folder in the format of LJ Speech: metadata.csv, and a folder wavs."""

    kind: Literal["ljspeech"]
    path: File
    """The folder, relative to the folder the command runs in."""
    split: Literal["hash", "order"] = "hash"
    """How the data is split: by a hash of each sound, or in the order of the file into training,
    validation and test."""

    @classmethod
    def undivided(cls) -> dict[str, object]:
        return {"split": "hash"}


def _ljspeech(section: DataLjspeech, form: SourceForm) -> Contents:
    from regard.data import recordings

    read = partial(recordings.read_ljspeech, section.path, how=_hearing(section, form))
    files = recordings.ljspeech_files(section.path)
    if section.split == "hash":
        return Contents(read, files)
    read = partial(read, shares=section.shares)
    return Contents(
        partial(read, part="train"),
        files,
        partial(read, part="valid") if section.valid else None,
        partial(read, part="test") if section.test else None,
    )


def _recognise_ljspeech(path: Path) -> DataSet | None:
    metadata = path / "metadata.csv"
    if not metadata.is_file() or not (path / "wavs").is_dir():
        return None
    if "|" not in next(read_lines(metadata, Tally()), ""):
        return None

    from regard.data.recordings import read_ljspeech

    return DataSet.at("ljspeech", path, partial(read_ljspeech, path, how=_looking(), limit=1.0))


LJSPEECH = PublicDataSet(
    name="ljspeech",
    what="LJ Speech 1.1: 13,100 clips of one voice, 24 hours, English, with transcripts",
    licence="public domain",
    downloads=(
        Download(
            "LJSpeech-1.1.tar.bz2",
            "https://data.keithito.com/data/speech/LJSpeech-1.1.tar.bz2",
            size=2_748_572_632,
            sum="sha256:be1a30453f28eb8dd26af4101ae40cbf2c50413b1bb21936cbcdc6fae3de8aa5",
        ),
    ),
    inside="LJSpeech-1.1",
    keep=("README", "metadata.csv", "wavs/*.wav"),
    needs=("metadata.csv", "wavs/LJ001-0001.wav"),
    size=3_801_111_440,
    members=13_200,
)


# -- the Free Spoken Digit Dataset------------------------------------------------------------------


class DataFsdd(SplitSection, Sounds):
    """A folder in the format of the Free Spoken Digit Dataset: {digit}_{speaker}_{index}.wav."""

    kind: Literal["fsdd"]
    path: File
    """The folder, relative to the folder the command runs in."""
    hold_out: Text | None = None
    """A speaker whose recordings are the test set, and who is not in the training data."""
    usual_test: bool = True
    """The test set is the usual one, recordings 0 to 4 of every speaker, unless `hold_out` is set;
    false: the share `test`."""
    voices: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Number of synthetic digits by eSpeak NG (extra "speech") added to the training data."""

    @model_validator(mode="after")
    def _voices_need_a_test_set(self) -> Self:
        if self.voices and not self.usual_test and self.hold_out is None:
            raise ValueError(
                "voices need a test set of recordings: usual_test or hold_out; "
                f"got voices = {self.voices}"
            )
        return self

    @classmethod
    def undivided(cls) -> dict[str, object]:
        return {"hold_out": None, "usual_test": False}


def _fsdd(section: DataFsdd, form: SourceForm) -> Contents:
    from regard.data import recordings, spoken

    how = _hearing(section, form)
    files = [file for file, *_ in recordings.fsdd_files(section.path).named]
    read = partial(recordings.read_fsdd, section.path, how=how, hold_out=section.hold_out)
    if not section.usual_test and section.hold_out is None:
        return Contents(read, files)
    train: Reader = partial(read, part="train")
    test: Reader = partial(read, part="test")
    if section.voices:
        train = _concatenated(train, partial(spoken.read_digits, count=section.voices, how=how))
        files += spoken.makers()
    return Contents(train, files, test=test)


def _concatenated(*readers: Reader) -> Reader:
    """A reader of the examples of several readers, one after the other."""

    def read(*, tally: Tally) -> Iterator[Example]:
        return chain.from_iterable(reader(tally=tally) for reader in readers)

    return read


def _recognise_fsdd(path: Path) -> DataSet | None:
    from regard.data.recordings import is_fsdd, read_fsdd

    if not path.is_dir() or not is_fsdd(path):
        return None
    return DataSet.at("fsdd", path, partial(read_fsdd, path, how=_looking(), limit=1.0))


# -- tables-----------------------------------------------------------------------------------------


class DataSounds(SplitSection, Sounds):
    """A table of sound files and transcripts: CSV, TSV or JSON lines."""

    kind: Literal["sounds"]
    path: File
    """The table, relative to the folder the command runs in; paths in it are relative to the
    table."""
    path_column: ColumnField | None = None
    """Name or number (from 1) of the column with the sound files; not set: detected by its name
    ("path", "audio", …) or contents."""
    text_column: ColumnField | None = None
    """Name or number (from 1) of the column with the transcripts; not set: detected by its name
    ("text", "transcript", …) or contents."""
    valid_path: HeldOutFile | None = None
    """A separate table for validation; the share `valid` is then not held out."""
    test_path: HeldOutFile | None = None
    """A separate table for testing; the share `test` is then not held out."""


def _sounds(section: DataSounds, form: SourceForm) -> Contents:
    from regard.data import recordings

    columns = section.columns
    read = partial(recordings.read_sounds, how=_hearing(section, form), **columns)
    return contents_of_paths(
        section, lambda path: partial(read, path), partial(recordings.sounds_files, **columns)
    )


def _read_sounds(path: Path, source: Column, target: Column) -> Reader:
    from regard.data.recordings import read_sounds

    columns = {"path_column": source, "text_column": target}
    return partial(read_sounds, path, how=_looking(), **columns, limit=1.0)


KINDS = (
    DataKind(
        section=DataSpoken,
        contents=_spoken,
        recipes={"speech": SPEECH},
    ),
    DataKind(
        section=DataLjspeech,
        contents=_ljspeech,
        recipes={"speech": SPEECH},
        words="a set of recordings with transcripts (LJ Speech)",
        recognise=_recognise_ljspeech,
        public=(LJSPEECH,),
    ),
    DataKind(
        section=DataFsdd,
        contents=_fsdd,
        recipes={"speech": ("speech-fsdd", *SPEECH)},
        words="a folder of spoken digits",
        recognise=_recognise_fsdd,
        elsewhere="https://github.com/Jakobovski/free-spoken-digit-dataset (its folder recordings)",
    ),
    DataKind(
        section=DataSounds,
        contents=_sounds,
        recipes={"speech": SPEECH},
        words="a table of recordings with transcripts",
        table=TableKind(SPOKEN, _read_sounds),
    ),
)
