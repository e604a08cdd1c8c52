"""What a table is: pairs, labelled texts, or files with texts.

Several kinds of data are tables. Names and contents of the columns tell which one it is, and for
some tables the task.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

from regard.data.column_types import may_be_labels
from regard.data.columns import UnclearColumns, are_languages, choose
from regard.data.kinds import KINDS, DataSet
from regard.data.kinds.dialogues import MESSAGES, dialogues_at
from regard.data.lines import Tally
from regard.data.pairs import read_pairs
from regard.data.recordings import Places
from regard.data.roles import LABELLED, PAIRS, REPLY_NAMES, Column, Roles
from regard.data.rows import read_rows
from regard.data.tables import Choice, Table, look
from regard.errors import DataError

MOST_NAMES = 50  # cells of a column, that are looked for as files


def table_readings(
    path: Path, columns: Mapping[str, Column], task: str | None, kind: str | None
) -> list[DataSet]:
    """The data sets a table can be, the likeliest first. `columns` are those the user named."""
    table = look(path, asked=columns.values())
    if table.format == "jsonl" and not columns:
        _refuse_conversations(table)
    if table.has_messages and not columns:
        read = partial(read_pairs, path, limit=1.0)
        pairs = DataSet.at("pairs", path, read, MESSAGES)
        if kind == "pairs":
            return [pairs]
        return [dialogues_at(path, MESSAGES), pairs]
    if table.is_empty:
        _refuse_empty(path)

    sounds = _column_of_sounds(table, columns)
    if sounds is not None:
        return [_of_columns(table, "sounds", {"path_column": sounds})]
    if files := _kind_of_files(table, columns, task):
        return [_of_columns(table, files, columns)]
    if kind in ("pairs", "labelled"):
        return [_of_columns(table, kind, columns)]
    if task == "classify":
        labelled = _of_columns(table, "labelled", columns)
        target = _choice(table, LABELLED, columns).target
        if table.holds[target] == "label" or may_be_labels(table.cells[target]):
            return [labelled]
    return _pairs_or_labels(table, columns, task)


def _pairs_or_labels(
    table: Table, columns: Mapping[str, Column], task: str | None
) -> list[DataSet]:
    try:
        choice = _choice(table, PAIRS, columns)
    except UnclearColumns as problem:
        raise _for_labels(problem, table, task, columns) from None
    pairs = _of_columns(table, "pairs", columns)
    if table.holds[choice.target] != "label":
        return [pairs]
    if pairs.columns:
        labelled = _of_columns(table, "labelled", columns)
    else:
        labelled = replace(pairs, kind="labelled", note=table.described(choice, LABELLED))
    is_named_reply = table.names[choice.target].lower() in REPLY_NAMES
    return [labelled, pairs] if is_named_reply else [labelled]


def columns_taken(path: Path, kind: str, columns: Mapping[str, Column]) -> str:
    """Which column of a table of this kind is used for what, in a line."""
    columns = {field: column for field, column in columns.items() if column is not None}
    table = look(path, asked=columns.values())
    if table.has_messages and not columns:
        return MESSAGES
    roles = _roles(kind)
    return table.described(_choice(table, roles, columns), roles)


def _refuse_conversations(table: Table) -> None:
    """Refuse ShareGPT's format, which is close to one that can be read."""
    for name, holds in zip(table.names, table.holds, strict=True):
        if name.lower() == "conversations" and holds == "nested":
            raise DataError(
                'conversations as ShareGPT has them (keys "conversations", "from", "value")',
                where=table.path,
                hint='regard reads "messages" with "role" (user, assistant) and "content", '
                "one conversation a line: rename the keys",
            )


def _refuse_empty(path: Path) -> None:
    """Say what is wrong with a table without a single usable row, if something is."""
    _, rows = read_rows(path, Tally())
    if any(isinstance(row, list) and len(row) == 1 for row in islice(rows, 1, 2)):
        command = ["regard", "train", "blank-rnn", "--data", str(path), "--set", "data.kind=text"]
        raise DataError(
            f"no usable examples in {path}: only one column",
            hint="pairs and labelled texts need two; for sentences alone: " + shlex.join(command),
        )
    list(read_pairs(path, tally=Tally(), limit=1.0))


def _kind_of_files(table: Table, columns: Mapping[str, Column], task: str | None) -> str | None:
    """The kind of a table that names files of sounds or pictures."""
    if "sound" in table.holds:
        return "sounds"
    if "picture" in table.holds:
        return "captioned"
    if "path_column" in columns:
        return {"speech": "sounds", "caption": "captioned"}.get(task or "")
    return None


def _column_of_sounds(table: Table, columns: Mapping[str, Column]) -> Column:
    """The column that names sounds beside the table without their suffix, if there is one."""
    if columns or "sound" in table.holds or "picture" in table.holds:
        return None
    places = Places(table.path.parent)
    if not places.names:
        return None
    for number, cells in enumerate(table.cells):
        sample = cells[:MOST_NAMES]
        if not sample or table.holds[number] not in ("id", "text", "number"):
            continue
        count = sum(places.file(cell) is not None for cell in sample)
        if 5 * count >= 4 * len(sample):
            return table.name(number)
    return None


def _for_labels(
    problem: UnclearColumns, table: Table, task: str | None, columns: Mapping[str, Column]
) -> UnclearColumns:
    """The same question in the words of labelled text, if the table seems to be that: one text."""
    if task in ("chat", "translate") or table.holds.count("text") > 1 or "label" not in table.holds:
        return problem
    try:
        _choice(table, LABELLED, columns)
    except UnclearColumns as question:
        return question
    return problem


def target_holds_text(path: Path, kind: str) -> bool:
    """Whether the column of answers holds texts, and not labels."""
    table = look(path)
    return table.holds[_choice(table, _roles(kind), {}).target] == "text"


def _choice(table: Table, roles: Roles, columns: Mapping[str, Column]) -> Choice:
    """The columns of these roles: those a user named, in the words of any kind, or as detected."""
    source, target = _named_columns(roles, columns)
    return choose(table, roles, source, target)


def _named_columns(roles: Roles, columns: Mapping[str, Column]) -> tuple[Column, Column]:
    source = columns.get(roles.source.field, columns.get("source_column"))
    target = columns.get(roles.target.field, columns.get("target_column"))
    if roles.source.field == "source_column":
        source = columns.get("source_column", columns.get("text_column"))
        target = columns.get("target_column", columns.get("label_column"))
    return source, target


def _of_columns(table: Table, kind: str, columns: Mapping[str, Column]) -> DataSet:
    """The table as a data set of a kind."""
    as_table = KINDS[kind].table
    assert as_table is not None
    roles = as_table.roles
    choice = _choice(table, roles, columns)
    source, target = _named_columns(roles, columns)

    pair = {roles.source.field: source, roles.target.field: target}
    named: dict[str, object] = {
        field: column for field, column in pair.items() if column is not None
    }
    recipe = ""
    if kind == "pairs" and are_languages(table, choice):
        recipe = KINDS["pairs"].recipes["translate"][0]
    return DataSet(
        kind,
        table.path,
        {"path": str(table.path), **named},
        as_table.read(table.path, source, target),
        note=table.described(choice, roles),
        columns=named,
        recipe=recipe,
    )


def _roles(kind: str) -> Roles:
    as_table = KINDS[kind].table
    assert as_table is not None
    return as_table.roles
