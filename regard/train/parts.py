"""The share of a rank in each batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from regard.data.batches import Place
from regard.data.corpus import Split
from regard.model import OtherAnswers
from regard.tasks.task import Batch, Task, text_targets
from regard.train.ranks import Ranks

_OTHERS = 1  # the stream of random numbers that draws the answers of the contrastive loss
CONTRASTED = 0.25  # share of the examples of a batch in the contrastive loss


class Part(NamedTuple):
    """What one rank computes of a batch."""

    batch: Batch
    weight: float  # 0 if none of the rows are its own
    others: OtherAnswers | None
    share_of_others: float  # its own among those of the batch

    @property
    def tokens(self) -> float:
        """Target tokens that count."""
        return self.weight * int(self.batch.real.sum())


class Parts:
    """Cuts batches into the parts of ranks. All ranks augment the whole batch, so its examples are
    the same for any number of them.

    All ranks make the same calls of the model, because shards of it are exchanged in them: a rank
    without rows computes the first ones, with weight 0.
    """

    def __init__(self, task: Task, split: Split, *, seed: int, ranks: Ranks):
        self._task = task
        self._split = split
        self._groups = split.groups
        self._seed = seed
        self._ranks = ranks

    def part(self, place: Place, index: np.ndarray, *, contrasts: bool) -> Part:
        """This rank's part of the batch at a place, which has the examples of `index`; `contrasts`:
        with a contrastive loss."""
        split = self._split
        draw = np.random.default_rng([self._seed, *place])
        targets = [split.target[i] for i in index]
        sources = self._task.augment_pairs(split.gather_sources(index), targets, draw)
        groups = self._group_starts(index)
        own = self._ranks.own_rows(groups)
        weight = 1.0
        if own.start == own.stop:
            own = slice(0, groups[1])
            weight = 0.0
        others, share = self._others(place, sources, own) if contrasts else (None, 0.0)
        batch = self._task.batch(sources[own], targets[own])
        return Part(batch, weight, others, share * weight)

    def _group_starts(self, index: np.ndarray) -> Sequence[int]:
        """Where groups of rows begin that stay together, and the number of rows."""
        if self._groups is None:
            return range(len(index) + 1)
        numbers = np.searchsorted(self._groups, index, side="right")
        return [*np.flatnonzero(np.diff(numbers, prepend=-1)).tolist(), len(index)]

    def _others(
        self, place: Place, sources: Sequence[np.ndarray], own: slice
    ) -> tuple[OtherAnswers | None, float]:
        """Random answers of the training data, to compare with those of a part of this batch, and
        the share of them that belongs to a rank's `own` rows. An empty prompt has no answer of its
        own, so it is left out; None if all are empty."""
        draw = np.random.default_rng([self._seed, *place, _OTHERS])
        has_prompt = np.flatnonzero([len(source) > 0 for source in sources])
        count = min(len(has_prompt), math.ceil(CONTRASTED * len(sources)))
        if not count:
            return None, 0.0
        rows = draw.choice(has_prompt, count, replace=False)
        examples = draw.integers(len(self._split), size=count)
        is_own = (own.start <= rows) & (rows < own.stop)
        share = float(is_own.mean())
        if share:
            rows, examples = rows[is_own], examples[is_own]
        else:
            rows, examples = np.array([own.start]), examples[:1]
        answers = text_targets([self._split.target[i] for i in examples.tolist()])
        return OtherAnswers(torch.from_numpy(rows - own.start), *answers), share
