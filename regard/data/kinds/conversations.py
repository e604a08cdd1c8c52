"""Conversations: the ChatterBot corpus, tables of pairs, the Cornell Movie-Dialogs Corpus."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Strict

from regard.data.kinds.kind import (
    Contents,
    DataKind,
    DataSet,
    Reader,
    SourceForm,
    TableKind,
    columns_of,
    contents_of_paths,
)
from regard.data.kinds.sections import DialogueFiles, TextFiles, Texts
from regard.data.public import Download, PublicDataSet
from regard.data.roles import PAIRS, Column
from regard.fields import Column as ColumnField
from regard.fields import File, Text

CHAT = ("chat-attention", "chat-transformer", "chat-lstm", "chat-gru")
DIALOGUE = ("chat-dialogue", *CHAT)
TRANSLATE = ("translate-attention", "translate-transformer")
BLANK = ("blank-rnn", "blank-transformer")


# -- ChatterBot-------------------------------------------------------------------------------------


class DataChatterbot(Texts):
    """The conversations of the package chatterbot-corpus, which is installed with regard; no
    download."""

    kind: Literal["chatterbot"]
    language: Text = "english"
    """Language of the corpus."""
    topics: Annotated[tuple[Text, ...], Strict(False)] = ()
    """Topics to use, such as "ai" and "humor"; empty: all."""


def _chatterbot(section: DataChatterbot, form: SourceForm) -> Contents:
    from regard.data.chatterbot import chatterbot_files, read_chatterbot

    read = partial(read_chatterbot, language=section.language, topics=section.topics)
    return Contents(read, chatterbot_files(section.language, section.topics))


# -- pairs------------------------------------------------------------------------------------------


class DataPairs(TextFiles):
    """Pairs of prompt and answer in a file: TSV, CSV or JSON lines, also in OpenAI's "messages"
    format."""

    kind: Literal["pairs"]
    path: File
    """The file, relative to the folder the command runs in."""
    source_column: ColumnField | None = None
    """Name or number (from 1) of the column with the prompt; not set: detected from names and
    contents."""
    target_column: ColumnField | None = None
    """Name or number (from 1) of the column with the answer; not set: detected from names and
    contents."""


def _pairs(section: DataPairs, form: SourceForm) -> Contents:
    from regard.data.pairs import read_pairs
    from regard.data.reading import existing_files

    def reader(path: str) -> Reader:
        source, target = columns_of(
            section, path, PAIRS, section.source_column, section.target_column
        )
        return partial(read_pairs, path, source_column=source, target_column=target)

    return contents_of_paths(section, reader, existing_files)


def _read_pairs(path: Path, source: Column, target: Column) -> Reader:
    from regard.data.pairs import read_pairs

    columns = {"source_column": source, "target_column": target}
    return partial(read_pairs, path, **columns, limit=1.0, roles=PAIRS)


# -- Cornell----------------------------------------------------------------------------------------


class DataCornell(DialogueFiles):
    """The Cornell Movie-Dialogs Corpus, in its original format or as utterances.jsonl of
    ConvoKit."""

    kind: Literal["cornell"]
    path: File
    """The corpus's folder, relative to the folder the command runs in."""


def _cornell(section: DataCornell, form: SourceForm) -> Contents:
    from regard.data.cornell import cornell_files, read_cornell

    def reader(path: str) -> Reader:
        return partial(read_cornell, path, turns=section.turns)

    return contents_of_paths(section, reader, cornell_files)


def _recognise_cornell(path: Path) -> DataSet | None:
    from regard.data.cornell import is_cornell, read_cornell
    from regard.data.sentences import is_text

    if is_text(path) or not is_cornell(path):
        return None
    return DataSet.at("cornell", path, partial(read_cornell, path, limit=1.0))


CORNELL = PublicDataSet(
    name="cornell",
    what="Cornell Movie-Dialogs Corpus: 220,579 exchanges of film characters, English",
    licence="none stated; cite Danescu-Niculescu-Mizil and Lee 2011",
    downloads=(
        Download(
            "cornell_movie_dialogs_corpus.zip",
            "https://www.cs.cornell.edu/~cristian/data/cornell_movie_dialogs_corpus.zip",
            size=9_916_637,
            sum="sha256:3bde8a571f615201bc2d2453e22878090719638592f774720eddec739de8c900",
        ),
    ),
    inside="cornell movie-dialogs corpus",
    keep=("*.txt",),
    needs=("movie_lines.txt", "movie_conversations.txt"),
    size=45_000_000,
    members=50,
)


KINDS = (
    DataKind(
        section=DataChatterbot,
        contents=_chatterbot,
        recipes={"chat": CHAT, "blank": BLANK},
    ),
    DataKind(
        section=DataPairs,
        contents=_pairs,
        recipes={"chat": CHAT, "translate": TRANSLATE},
        words="a table of pairs",
        table=TableKind(PAIRS, _read_pairs),
    ),
    DataKind(
        section=DataCornell,
        contents=_cornell,
        recipes={"chat": DIALOGUE},
        words="a corpus of film dialogues (Cornell)",
        recognise=_recognise_cornell,
        public=(CORNELL,),
    ),
)
