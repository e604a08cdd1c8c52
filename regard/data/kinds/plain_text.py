"""Plain text, of which a model learns to fill in missing words."""

from __future__ import annotations

from functools import partial
from typing import Literal

from regard.data.kinds.conversations import BLANK
from regard.data.kinds.kind import Contents, DataKind, SourceForm, contents_of_paths
from regard.data.kinds.sections import TextFiles
from regard.fields import File


class DataText(TextFiles):
    """Plain text of any size, also packed as .gz or .zst: a file, or a folder of .txt files."""

    answer = "blank"

    kind: Literal["text"]
    path: File
    """The file or folder, relative to the folder the command runs in."""
    layout: Literal["auto", "lines", "wrapped"] = "auto"
    """Line breaks: "lines", every line is a sentence or a paragraph; "wrapped", paragraphs are
    hard-wrapped and separated by empty lines; "auto", detected from the first lines."""


def _text(section: DataText, form: SourceForm) -> Contents:
    from regard.data import sentences

    return contents_of_paths(
        section,
        lambda path: partial(sentences.read_text, path, layout=section.layout),
        sentences.text_files,
    )


KINDS = (
    DataKind(
        section=DataText,
        contents=_text,
        recipes={"blank": BLANK},
        words="plain text",
    ),
)
