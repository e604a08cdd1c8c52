"""The fields of a recipe by their marks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from regard.fields import Section
from regard.marks import Mark, own_marks
from regard.recipe.whole import SECTIONS, Recipe


def marks_of(key: str) -> frozenset[Mark]:
    """The marks of a field, which is `section.field`, or the name of a field outside of sections.
    No `kind` is FREE, because it selects the other fields.

    >>> sorted(mark.name for mark in marks_of("data.path"))
    ['FREE', 'PATH']
    """
    if item := re.fullmatch(r"(data)\.(sources)\.\d+\.(\w+)", key):  # of a mixture
        section, sources, name = item.groups()
        return marks_of(f"{section}.{sources if name == 'share' else name}")
    section, _, name = key.rpartition(".")
    if not section:
        return own_marks(Recipe.model_fields[name])

    marks = own_marks(Recipe.model_fields[section])
    if name == "kind":
        return marks - {Mark.FREE}
    for model in SECTIONS[section].values():
        if name in model.model_fields:
            return own_marks(model.model_fields[name]) or marks
    return marks


def values_with(recipe: Recipe, mark: Mark) -> dict[str, Any]:
    """The fields of a recipe that have a mark, `{"section.field": value}`."""
    values = dict(leaves(recipe.to_json()))
    return {key: value for key, value in values.items() if mark in marks_of(key)}


def data_fields(section: type[Section], mark: Mark) -> list[str]:
    """The fields of a section [data] that have a mark."""
    return [name for name in section.model_fields if mark in marks_of(f"data.{name}")]


def leaves(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Flatten nested tables to ("section.field", value), and lists of tables to
    ("section.field.0.field", value)."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            yield from leaves(dict(enumerate(value)), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
