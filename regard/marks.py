"""Marks: what the rest of the package has to know about a field, said where the field is defined.

A mark stands in the type of a field, `Annotated[Share, Mark.TRAINING]`. The fields of a section
have the marks of the section (`encoder: Annotated[Encoder, Mark.WEIGHTS]` in the recipe), unless
they have marks of their own, which then replace those. A field has the same marks in every kind of
its section.

`marks_of("data.path")`, `values_with(recipe, Mark.VOCABULARY)` and others in marked.py read them.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Annotated, Any, get_args, get_origin

from pydantic.fields import FieldInfo


class Mark(Enum):
    """A fact about a field."""

    PATH = "a file or folder, which may move: its contents count"
    HELD_OUT = "a file or folder of validation or test data"
    COLUMN = "selects a column of a table"
    VOCABULARY = "changes the prepared data: its examples, their tokens or the vocabulary"
    WEIGHTS = "trained weights fit only the value they were trained with"
    TRAINING = "training only: a trained model does not depend on it"
    SEARCH = "how answers are searched for"
    LIMIT = "says when training ends; a run may be resumed with another value"
    BATCHES = "decides the batches of an epoch"
    FREE = "costs nothing: the budget is the same for all values"


def own_marks(field: FieldInfo) -> frozenset[Mark]:
    """The marks in the type of a field, without those of its section."""
    inner = _metadata(field.annotation)
    return frozenset(item for item in (*field.metadata, *inner) if isinstance(item, Mark))


def _metadata(annotation: Any) -> Iterator[Any]:
    """What stands beside the types of a union, as in `Annotated[str, Mark.PATH] | None`."""
    for argument in get_args(annotation):
        if get_origin(argument) is Annotated:
            yield from argument.__metadata__
