"""What a file or folder is, and which recipes learn from it: the one answer of every command.

Recipes are named here and not loaded: data never sees a recipe. A test checks that each name exists
and fits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

from regard.data.columns import UnclearColumns
from regard.data.detect_file import file_readings
from regard.data.detect_folder import SeveralDataSets, folder_readings
from regard.data.detect_table import columns_taken
from regard.data.kinds import KINDS, DataSet
from regard.data.lines import Tally
from regard.data.places import exists, is_file, is_pattern
from regard.data.roles import Column
from regard.errors import DataError

__all__ = [
    "DoesNotFit",
    "SeveralDataSets",
    "columns_taken",
    "fits",
    "kind",
    "recognise",
]


class DoesNotFit(DataError):
    """Data that a recipe does not learn from, with the recipes that do."""

    def __init__(self, data_set: DataSet, recipe: str, task: str):
        self.data_set = data_set
        data_kind = KINDS[data_set.kind]
        first, *others = chain.from_iterable(data_kind.recipes.values())
        hint = f"try: {data_set.command(first)}"
        if others:
            hint += f" (or {', '.join(others)})"
        is_labelled_table = data_set.kind == "labelled" and is_file(data_set.path)
        if is_labelled_table and task in KINDS["pairs"].recipes:
            hint += "; if its labels are replies, add --set data.kind=pairs"
        what = f"this is {data_kind.words}, which {recipe} does not learn from"
        super().__init__(what, where=data_set.path, hint=hint)


def recognise(
    path: Path | str,
    *,
    columns: Mapping[str, Column] | None = None,
    recipe: str | None = None,
    task: str | None = None,
    source: str | None = None,
    kind: str | None = None,
) -> DataSet:
    """The data set that PATH is.

    With a `task` and the kind of its `source`, as a recipe has them, data that it cannot learn from
    is refused with the recipes that can; `recipe` is the name that the user gave. `kind` is the
    data a run was trained on: a table is read as that, whatever its contents look like."""
    path = Path(path)
    columns = {field: column for field, column in (columns or {}).items() if column is not None}
    try:
        readings = _readings(path, columns, task, kind)
    except UnclearColumns as problem:
        raise _question(problem, path, recipe, task) from None
    if task is None:
        return readings[0]
    fitting = [data_set for data_set in readings if fits(data_set.kind, task, source)]
    fitting.sort(key=lambda data_set: data_set.kind != kind)
    if fitting:
        return fitting[0]
    raise DoesNotFit(readings[0], recipe or task, task)


def kind(path: Path | str, task: str) -> str:
    """The kind of data, as a recipe names it, that a file or folder is for this task."""
    return recognise(path, task=task).kind


def fits(kind: str, task: str, source: str | None) -> bool:
    """Whether a task that reads a kind of source, as recipes name both, can learn from this kind.

    >>> fits("labelled", "classify", "tokens"), fits("labelled", "classify", "patches")
    (True, False)
    >>> fits("pairs", "speech", None)
    False
    """
    own_input = KINDS[kind].section.input
    source_input = {"tokens": "text", "sound": "sound", None: own_input}.get(source, "picture")
    return task in KINDS[kind].recipes and source_input == own_input


def _readings(
    path: Path, columns: Mapping[str, Column], task: str | None, kind: str | None
) -> list[DataSet]:
    """The data sets that PATH can be, the likeliest first."""
    if not exists(path):
        what = "no file matches" if is_pattern(path) else "no such file or folder"
        raise DataError(what, where=path)
    if not path.is_dir():
        return file_readings(path, columns, task, kind)
    try:
        data_sets = folder_readings(path)
        file = data_sets[0].path
    except UnclearColumns as problem:
        if not columns:
            raise
        data_sets = []
        file = Path(str(problem.where))
    if not columns:
        return data_sets
    if not is_file(file):
        raise DataError(
            f"{KINDS[data_sets[0].kind].words} has no columns to choose",
            where=path,
            got=", ".join(str(column) for column in columns.values()),
            hint="name columns of a table only",
        )
    return file_readings(file, columns, task, kind)


def _question(
    problem: UnclearColumns, path: Path, recipe: str | None, task: str | None
) -> DataError:
    """The question which columns are meant, with a command that can be typed."""
    columns = {field: _column(value) for field, value in problem.columns.items()}
    hint = "no two of them can be learned from"
    with contextlib.suppress(DataError):
        readings = _readings(path, columns, task, None)
        fitting = [data_set for data_set in readings if task in KINDS[data_set.kind].recipes]
        data_set = (fitting or readings)[0]
        if next(data_set.read(tally=Tally()), None) is not None:
            command = data_set.command(recipe if fitting else None)
            hint = f"say which, for example: {command}"
    return DataError(problem.what, where=problem.where, hint=hint)


def _column(value: object) -> Column:
    return value if isinstance(value, int) else str(value)
