"""The step that fits the tokenizer to the training texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from regard import tokenizers
from regard.data import stages
from regard.data.parts import Part
from regard.data.preparation import Preparation
from regard.data.progress import Progress, report, reporter
from regard.data.shards import Shard
from regard.data.shares import is_at_most, thresholds
from regard.data.worker import Task, counters
from regard.data.workers import Workers
from regard.errors import RegardError
from regard.tokenizers import Fit, Labels, Tokenizer


class TokenizerFit:
    """The fit of a tokenizer to the training examples of divided data. Of more than `most` bytes
    of text, byte-pair encoding is learned from a part that is selected by a hash."""

    def __init__(self, preparation: Preparation, parts: list[Part], workers: Workers, *, most: int):
        self._preparation = preparation
        self._parts = parts
        self._workers = workers
        self._most = most

    def kept(self, path: Path) -> Tokenizer:
        """The tokenizer in a file, fitted if it is not there."""
        try:
            return tokenizers.read(path)
        except RegardError:  # it is not there, or not whole
            pass
        tokenizer = self._fitted()
        if self._preparation.labels and not isinstance(tokenizer, Labels):
            tokenizer = Labels.fit(self._targets(), text=tokenizer)
        assert tokenizer is not None
        draft = path.with_suffix(".new")
        tokenizers.write(tokenizer, draft)
        draft.replace(path)
        return tokenizer

    def _fitted(self) -> Tokenizer | None:
        fit = self._preparation.fit
        if fit is None:
            return None
        if not isinstance(fit, Fit) or not fit.counts:
            return fit(self._texts(reporter()))
        tasks = (self._count_task(part, fit) for part in self._parts)
        counts: Sequence[Any] = []
        total = len(self._parts)
        for number, result in enumerate(self._workers.run(tasks, total=total), 1):
            counts = fit.add(counts, counters(result["counts"]))
            report("fitting the tokenizer", number, total)
        return fit.finish(counts)

    def _count_task(self, part: Part, fit: Fit) -> Task:
        return {
            "step": "count",
            "shard": str(part.examples),
            "fit": asdict(fit),
            "rules": asdict(self._preparation.rules),
            "labels": self._preparation.labels,
        }, self._rows(part).tobytes()

    def _texts(self, report: Progress) -> Iterator[str]:
        """The texts a tokenizer is fitted to. They may be taken by another thread, so `report` is
        that of this one."""
        preparation = self._preparation
        share = self._share()
        for number, part in enumerate(self._parts, 1):
            shard = Shard.load(part.examples)
            rows = self._rows(part)
            if share < 1:
                rows = rows[_mixed(shard["hash"][rows]) < share]
            yield from stages.texts(shard, rows, preparation.rules, labels=preparation.labels)
            report("fitting the tokenizer", number, len(self._parts))

    def _share(self) -> float:
        """The share of the texts that `most` allows."""
        total = 0
        for part in self._parts:
            rows = self._rows(part)
            shard = Shard.load(part.examples)
            total += int(shard.lengths("source-text")[rows].sum())
            total += int(shard.lengths("target-text")[rows].sum())
        return self._most / max(total, self._most)

    def _targets(self) -> Iterator[str]:
        for part in self._parts:
            shard = Shard.load(part.examples, "target-text", "target-text.ends")
            yield from shard.texts("target-text", self._rows(part).tolist())

    def _rows(self, part: Part) -> np.ndarray:
        """The training rows of a shard that the tokenizer is fitted to."""
        rows = part.training_rows
        if self._thresholds is None:
            return rows
        return rows[is_at_most(part.column("hash")[rows], self._thresholds[part.number])]

    @cached_property
    def _thresholds(self) -> list[int] | None:
        """The largest hash of each data set of a mixture with shares."""
        if not self._preparation.has_shares:
            return None
        hashes = [(part.number, part.column("hash")[part.training_rows]) for part in self._parts]
        return thresholds(self._preparation.readers, hashes)


def _mixed(hashes: np.ndarray) -> np.ndarray:
    """A number from 0 to 1 for each hash, unrelated to its size, which decides shares."""
    return (hashes * np.uint64(0x9E3779B97F4A7C15)) / 2.0**64
