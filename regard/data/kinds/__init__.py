"""Every kind of data, one record each; the modules of this package declare them by family.

A data set is added in one file: its section, its readers and its record, `DataKind`, in the `KINDS`
of a family. A program can also `register` a record of its own.
"""

from __future__ import annotations

import sys

from regard.data.kinds import (
    captions,
    conversations,
    dialogues,
    labelled,
    mixture,
    pictures,
    plain_text,
    speech,
    translation,
)
from regard.data.kinds.kind import (
    LOOKED_AT,
    Contents,
    DataKind,
    DataSet,
    Reader,
    SourceForm,
    TableKind,
)
from regard.errors import InputError

__all__ = [
    "KINDS",
    "LOOKED_AT",
    "Contents",
    "DataKind",
    "DataSet",
    "Reader",
    "SourceForm",
    "TableKind",
    "register",
]

FAMILIES = (
    conversations,
    dialogues,
    translation,
    labelled,
    plain_text,
    pictures,
    speech,
    captions,
    mixture,
)
KINDS: dict[str, DataKind] = {kind.name: kind for family in FAMILIES for kind in family.KINDS}

# Modules that build their own tables from KINDS when they are imported.
_READERS = ("regard.recipe", "regard.data.fetch")


def register(kind: DataKind) -> None:
    """Add a kind of data of your own; before anything reads a recipe."""
    if kind.name in KINDS:
        raise InputError("a kind of data has this name already", got=f'"{kind.name}"')
    for module in _READERS:
        if module in sys.modules:
            raise InputError(
                f"{module} is imported already, and would not know this kind of data",
                got=f'"{kind.name}"',
                hint="register it first",
            )
    KINDS[kind.name] = kind
