"""[data]: the training, validation and test data. Each kind of data declares its own section."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from regard.data.kinds import KINDS
from regard.data.kinds.sections import Captions, Pictures, Sounds, Texts

if TYPE_CHECKING:
    Data = Texts | Pictures | Sounds | Captions
else:
    _SECTIONS = tuple(kind.section for kind in KINDS.values())
    Data = Annotated[Union[_SECTIONS], Field(discriminator="kind")]  # noqa: UP007, made of a tuple

READS: dict[str, tuple[str, ...]] = {}  # the kinds of data each task can be trained on
for _kind in KINDS.values():
    for _task in _kind.recipes:
        READS[_task] = (*READS.get(_task, ()), _kind.name)

__all__ = ["READS", "Captions", "Data", "Pictures", "Sounds", "Texts"]
