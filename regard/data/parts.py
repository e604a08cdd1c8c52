"""The shards of a corpus while it is prepared, and which of their rows are used."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from regard.data.shards import Shard
from regard.data.stages import TRAIN

# Of the selection: a row is used, or why it is not.
USED, LONG, HELD, DUPLICATE = range(4)


@dataclass
class Part:
    """A shard of a data set: the paths of its examples and of its tokens. `status` says for each
    row whether it is used, or why not."""

    examples: Path
    number: int  # of the data set
    separate: bool
    status: np.ndarray

    @property
    def tokens(self) -> Path:
        return self.examples.with_suffix(".tokens")

    @property
    def rows(self) -> np.ndarray:
        """The rows that are used."""
        return np.flatnonzero(self.status == USED)

    def column(self, name: str) -> np.ndarray:
        return Shard.load(self.examples, name)[name]

    @property
    def training_rows(self) -> np.ndarray:
        """The rows that are used for training."""
        return np.flatnonzero((self.column("split") == TRAIN) & (self.status == USED))


def divided(parts: list[Part]) -> list[Part]:
    """The shards of data that is divided into splits."""
    return [part for part in parts if not part.separate]


def separate(parts: list[Part]) -> list[Part]:
    """The shards of data that is a split of its own."""
    return [part for part in parts if part.separate]
