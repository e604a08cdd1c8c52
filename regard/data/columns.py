"""Which columns of a table are source and target.

Where names and contents leave exactly one choice it is taken, and can be shown; everywhere else the
user is asked.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from regard.data.column_types import median_words
from regard.data.roles import (
    CAPTIONED,
    INPUT,
    INSTRUCTION,
    LABEL_LIKE,
    LABELLED,
    LANGUAGES,
    OTHER_NAMES,
    PAIRS,
    SPOKEN,
    TEXT,
    TURN_KEYS,
    VAGUE,
    Column,
    Role,
    Roles,
)
from regard.data.tables import Choice, Table, look, shown
from regard.errors import DataError

SENTENCE = 3  # words, at least


class UnclearColumns(DataError):
    """It is not plain which columns are meant; `columns` is a guess, as fields of a recipe."""

    def __init__(self, table: Table, roles: Roles, columns: Mapping[str, object]):
        self.roles = roles
        self.columns = dict(columns)
        what = (
            f"it is not plain which column is {roles.source.word} and which is {roles.target.word}"
        )
        contents = table.contents()
        if table.format == "jsonl":
            expected = " and ".join(" or ".join(role.names[:4]) for role in roles)
            contents = f"{contents}; expected: {expected}"
        super().__init__(
            f"{what}; {contents}", where=table.path, hint=f"say which: {settings(columns)}"
        )


def settings(columns: Mapping[str, object]) -> str:
    """
    >>> settings({"source_column": "my text", "target_column": 3})
    "--set 'data.source_column=my text' --set data.target_column=3"
    """
    words = (
        word for field, value in columns.items() for word in ("--set", f"data.{field}={value}")
    )
    return shlex.join(words)


def choose(table: Table, roles: Roles, source: Column = None, target: Column = None) -> Choice:
    """The columns of source and target: as they were given, by known names, or by what the columns
    hold. What that does not decide is asked."""
    left = None if source is None else table.number(source)
    right = None if target is None else table.number(target)
    if left is not None and left == right:
        raise DataError(
            f"{roles.source.word} and {roles.target.word} are the same column",
            where=table.path,
            got=shown(table.names[left]),
            hint=table.contents(),
        )
    if len(table.names) < 2:
        name = ", ".join(map(shown, table.names)) or None
        hint = "a pair needs two"
        if name is not None and name.lower() in TURN_KEYS:
            hint = f'a dialogue is a list of turns: {{"{name}": ["Hi!", "Hello."]}}'
        raise DataError("only one column", where=table.path, got=name, hint=hint)
    is_given = left is not None or right is not None
    if not is_given and (choice := _instruction(table, roles) or _languages(table, roles)):
        return choice
    if left is None:
        left = _named(table, roles.source, {right})
    if right is None:
        right = _named(table, roles.target, {left})
    if left is not None and right is not None:
        choice = Choice(left, right)
        if not is_given and _is_doubtful(table, roles, choice):
            raise _unclear(table, roles, None, None)
        return choice
    if left is None and right is None:
        return _by_content(table, roles)
    return _other(table, roles, left, right, is_given=is_given)


def _instruction(table: Table, roles: Roles) -> Choice | None:
    """Alpaca's columns: the prompt is `instruction`, followed by a non-empty `input`."""
    if roles is not PAIRS or not table.has_names:
        return None
    folded = [name.lower() for name in table.names]
    if folded.count(INSTRUCTION) != 1 or folded.count(INPUT) != 1:
        return None
    source, extra = folded.index(INSTRUCTION), folded.index(INPUT)
    target = _named(table, roles.target, {source, extra})
    if target is None or table.holds[source] in ("id", "nested", "empty"):
        return None
    return Choice(source, target, extra)


def _languages(table: Table, roles: Roles) -> Choice | None:
    """Two columns called after languages, in their order, if no others hold text."""
    if roles is not PAIRS or not table.has_names:
        return None
    columns = [i for i, name in enumerate(table.names) if name.lower() in LANGUAGES]
    texts = [i for i, holds in enumerate(table.holds) if holds == "text"]
    if len(columns) != 2 or not set(texts) <= set(columns):
        return None
    usable = {"text", "label", "constant"}
    return Choice(*columns) if all(table.holds[i] in usable for i in columns) else None


def are_languages(table: Table, choice: Choice) -> bool:
    """Whether both columns are called after languages."""
    names = [table.names[i].lower() for i in (choice.source, choice.target)]
    return table.has_names and all(name in LANGUAGES for name in names)


def _named(table: Table, role: Role, taken: set[int | None]) -> int | None:
    """The column whose name is known for a role: the whole name, or else a word of it. Of several,
    those that hold what the role needs."""
    if not table.has_names:
        return None
    folded = [name.lower() for name in table.names]
    free = [i for i in range(len(folded)) if i not in taken]
    exact = [i for name in dict.fromkeys(role.names) for i in free if folded[i] == name]
    if exact:
        fitting = [i for i in exact if table.holds[i] in role.holds]
        first = (fitting or exact)[0]
        alike = [i for i in fitting if folded[i] == folded[first]]
        return first if len(alike) < 2 else None

    words = {name for name in role.names if name not in VAGUE}
    partly = [i for i in free if words & _words_of(table.names[i]) and table.holds[i] in role.holds]
    return partly[0] if len(partly) == 1 else None


def _words_of(name: str) -> set[str]:
    """
    >>> sorted(_words_of("customerQuestion_text"))
    ['customer', 'question', 'text']
    """
    spaced = re.sub(r"([a-z])([A-Z])", r"\1 \2", name)
    return {word.lower() for word in re.split(r"[\W_]+", spaced) if word}


def _is_doubtful(table: Table, roles: Roles, choice: Choice) -> bool:
    """Whether a column of a known name holds something else than its role needs, while a column of
    text is left over."""
    left_over = table.left_over(choice)
    if not left_over:
        return False
    if table.holds[choice.source] not in roles.source.holds:
        return True
    target = table.holds[choice.target]
    if target == "label":
        name = table.names[choice.target].lower()
        return name not in LABEL_LIKE and roles is PAIRS
    return target not in roles.target.holds and target != "number"


def _fitting(table: Table, role: Role, taken: int | None = None) -> list[int]:
    return [i for i, holds in enumerate(table.holds) if holds in role.holds and i != taken]


def _other(
    table: Table, roles: Roles, left: int | None, right: int | None, *, is_given: bool
) -> Choice:
    """One side is known; the other is what is left, if that is one column."""
    role = roles.target if right is None else roles.source
    taken = left if right is None else right
    fitting = _fitting(table, role, taken)
    if roles in (SPOKEN, CAPTIONED) and right is None:
        fitting = _sentences(table, fitting)
    if is_given and not fitting:  # whoever names one column may mean another that is no text
        fitting = [
            i
            for i, holds in enumerate(table.holds)
            if holds in ("label", "constant", "text") and i != taken
        ]
    if len(fitting) != 1:
        raise _unclear(table, roles, left, right)
    if table.format == "jsonl" and not is_given and table.holds[fitting[0]] != "label":
        raise _unclear(table, roles, left, right)  # two keys that hold text need not be a pair
    return Choice(fitting[0] if left is None else left, fitting[0] if right is None else right)


def _sentences(table: Table, columns: list[int]) -> list[int]:
    """Of columns that could describe a file, those that do not repeat few values (as the names of
    speakers do), if there are any."""
    varied = [
        i
        for i in columns
        if table.holds[i] == "text" and 2 * len(set(table.cells[i])) > len(table.cells[i])
    ]
    unnamed = [i for i in varied if not _words_of(table.names[i]) & OTHER_NAMES]
    return unnamed or varied or columns


def _by_content(table: Table, roles: Roles) -> Choice:
    sources = _fitting(table, roles.source)
    if roles.source.holds != TEXT:  # files and what is said of them
        targets = _sentences(table, _fitting(table, roles.target))
        if len(sources) == len(targets) == 1:
            return Choice(sources[0], targets[0])
        raise _unclear(table, roles, sources[0] if len(sources) == 1 else None, None)
    labels = [i for i, holds in enumerate(table.holds) if holds == "label"]
    if table.format == "jsonl":  # the order of keys says nothing
        raise _unclear(table, roles, None, None)
    texts = sources if sources else labels
    if table.header and any(_are_names(table.cells[i]) for i in texts) and len(texts) < 3:
        raise _unclear(table, roles, None, None)  # a name is no prompt
    if len(sources) == len(labels) == 1:
        return Choice(sources[0], labels[0])
    if len(sources) == 2 and not labels:
        return Choice(sources[0], sources[1])
    if len(table.names) == 2 and set(table.holds) <= {"text", "label", "constant", "empty"}:
        return Choice(0, 1)
    if len(table.names) == 2 and not table.header and table.holds[0] == table.holds[1]:
        return Choice(0, 1)  # one is no more of an id than the other
    raise _unclear(table, roles, None, None)


def _are_names(values: Iterable[str]) -> bool:
    """Whether nearly all values are bare words, or names: few words, each with a capital.

    >>> _are_names(["Albert Einstein", "Ludwig van Beethoven"]), _are_names(["How are you"])
    (True, False)
    """
    values = list(values)
    names = sum(_is_proper_name(value) for value in values)
    return bool(values) and (names >= 0.8 * len(values) or median_words(values) <= 1)


def _is_proper_name(value: str) -> bool:
    words = value.split()
    if not 1 <= len(words) <= 4 or value[-1] in "?!,;:…":
        return False
    return words[0][0].isupper() and words[-1][0].isupper()


def _unclear(table: Table, roles: Roles, left: int | None, right: int | None) -> UnclearColumns:
    """The question which columns are meant, with a guess."""
    source = left
    target = right
    if source is None:
        source = _guess(table, roles.source, roles, {target})
    if target is None:
        target = _guess(table, roles.target, roles, {source})
    is_given = left is not None or right is not None
    if not is_given and roles is PAIRS and table.holds[source] == table.holds[target] == "text":
        source, target = _ordered(table, source, target)
    columns = {roles.source.field: table.name(source), roles.target.field: table.name(target)}
    return UnclearColumns(table, roles, columns)


def _guess(table: Table, role: Role, roles: Roles, taken: set[int | None]) -> int:
    """The likeliest column of a role: by what it holds, by its name, by whether it holds sentences;
    of equals the first."""
    other = roles.target if role is roles.source else roles.source

    def rank(i: int) -> tuple[int, int, int, int]:
        holds = table.holds[i]
        is_label = role is LABELLED.target and holds == "label"
        fits = 0 if is_label else 1 if holds == "text" and "text" in role.holds else 2
        if holds in role.holds and "text" not in role.holds:
            fits = 0
        if holds not in role.holds:
            fits = {"label": 3, "constant": 4, "number": 5}.get(holds, 6)
        words = _words_of(table.names[i]) if table.has_names else set()
        words -= VAGUE
        is_named = -1 if words & set(role.names) else 1 if words & set(other.names) else 0
        is_name = int(holds == "text" and _are_names(table.cells[i]))
        is_short = int(median_words(table.cells[i]) < SENTENCE)
        return fits, is_name, is_named, is_short

    return min((i for i in range(len(table.names)) if i not in taken), key=rank)


def _ordered(table: Table, source: int, target: int) -> tuple[int, int]:
    """Two columns of text, in their order, unless a name says which is which."""
    words = [_words_of(table.names[i]) - VAGUE for i in (source, target)]
    source_names, target_names = set(PAIRS.source.names), set(PAIRS.target.names)
    if words[0] & source_names or words[1] & target_names:
        return source, target
    return min(source, target), max(source, target)


def same_columns(
    path: Path, other: Path, roles: Roles, source: Column, target: Column
) -> tuple[Column, Column]:
    """The columns to read in another table that goes with this one: those of the same names, where
    both have names. A few rows of validation could be taken for something else than the many that
    train."""
    table = look(path, asked=(source, target))
    if table.is_empty or not table.has_names:
        return source, target
    choice = choose(table, roles, source, target)
    names = table.name(choice.source), table.name(choice.target)
    beside = {name.lower() for name in look(other, asked=names).names}
    return names if all(str(name).lower() in beside for name in names) else (source, target)
