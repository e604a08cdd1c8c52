"""The record of a kind of data, and the values its functions return.

A module of this package is loaded with every recipe. So it imports the readers, which load numpy,
inside its functions.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from regard.data.columns import same_columns
from regard.data.kinds.sections import DataSection
from regard.data.places import is_file
from regard.data.public import PublicDataSet
from regard.data.roles import Column, Roles

if TYPE_CHECKING:
    from regard.data.examples import Example

Reader = Callable[..., Iterator["Example"]]
"""A function of a `tally` that yields examples."""


@dataclass(frozen=True)
class SourceForm:
    """The form in which a model reads pictures and sounds. The defaults are for looking at data."""

    size: tuple[int, int] = (32, 32)
    channels_in: int = 3
    crop: bool = False
    rate: int = 8000  # samples a second
    max_seconds: float = 60.0

    def picture(self) -> dict[str, Any]:
        """The arguments of a reader of pictures."""
        return {"size": self.size, "channels_in": self.channels_in, "crop": self.crop}


LOOKED_AT = SourceForm()


@dataclass(frozen=True)
class Contents:
    """The contents of a section [data]: the reader of the training data, readers of separate
    validation and test data, and every file they depend on. Synthetic data depends on the source
    files that generate it. A mixture has `parts`, and each may have a share of the training
    examples."""

    train: Reader
    files: list[Path]
    valid: Reader | None = None
    test: Reader | None = None
    parts: tuple[Contents, ...] = ()
    share: float | None = None

    def with_share(self, share: float | None) -> Contents:
        return replace(self, share=share)


@dataclass(frozen=True)
class DataSet:
    """A data set on disk: its kind, the fields of [data] that select it, and a reader of all of it
    that accepts any number of bad rows."""

    kind: str
    path: Path
    fields: dict[str, object]
    read: Reader
    note: str = ""  # which column or file is used for what
    columns: dict[str, object] = field(default_factory=dict)  # those that the user named
    recipe: str = ""  # the recommended one; empty: the first of its kind
    held_out: dict[str, object] | None = None  # fields that select only the held-out part

    @classmethod
    def at(cls, kind: str, path: Path, read: Reader, note: str = "") -> DataSet:
        """A data set that only its path selects."""
        return cls(kind, path, {"path": str(path)}, read, note)

    def command(self, recipe: str | None = None) -> str:
        """The command that trains on it."""
        from regard.data.kinds import KINDS

        recommended = self.recipe or next(iter(KINDS[self.kind].recipes.values()))[0]
        command = ["regard", "train", recipe or recommended, "--data", str(self.path)]
        for name, value in self.columns.items():
            command += ["--set", f"data.{name}={value}"]
        return shlex.join(command)


class TableKind(NamedTuple):
    """The roles of the columns of a table, and the reader of such a table for two columns."""

    roles: Roles
    read: Callable[[Path, Column, Column], Reader]


@dataclass(frozen=True)
class DataKind:
    """A kind of data: everything regard knows about it."""

    section: type[DataSection]
    """Its section [data], whose `kind` is its name and whose docstring describes it."""
    contents: Callable[[Any, SourceForm], Contents]
    """The readers and files of a section, for a model that reads pictures or sounds in a form."""
    recipes: Mapping[str, tuple[str, ...]]
    """For each of its tasks the recipes that learn from it; the first is recommended."""
    words: str = ""
    """What it is in a message, such as "a table of pairs"; empty if it has no files."""
    recognise: Callable[[Path], DataSet | None] | None = None
    """The data set that a file or folder is; None if it is not of this kind."""
    is_member: Callable[[Path], bool] | None = None
    """Whether a file in a folder is a data set of this kind."""
    table: TableKind | None = None
    """How a table of this kind is read."""
    public: tuple[PublicDataSet, ...] = ()
    """The data sets of this kind that `regard data fetch` can download."""
    elsewhere: str = ""
    """Where to get it, if it is a well-known data set that cannot be fetched."""

    @property
    def name(self) -> str:
        return get_args(self.section.model_fields["kind"].annotation)[0]


# -- helpers for sections---------------------------------------------------------------------------


def contents_of_paths(
    section: Any, reader: Callable[[str], Reader], files: Callable[[str], list[Path]]
) -> Contents:
    """The contents of a section with a `path`, and optionally a `valid_path` and a `test_path`."""
    valid = None if section.valid_path is None else reader(section.valid_path)
    test = None if section.test_path is None else reader(section.test_path)
    train = reader(section.path)

    all_files = []
    for path in (section.path, section.valid_path, section.test_path):
        if path:
            all_files += files(path)
    return Contents(train, all_files, valid, test)


def columns_of(
    section: Any, path: str, roles: Roles, source: Column, target: Column
) -> tuple[Column, Column]:
    """The columns of one of a section's files: validation and test files have the columns of the
    training file."""
    if path == section.path or not (is_file(section.path) and is_file(path)):
        return source, target
    return same_columns(Path(section.path), Path(path), roles, source, target)
