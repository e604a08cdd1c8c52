"""Describe a data set: its kind, its examples, what is wrong with the others, who can use it."""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.data.column_types import LABELS
from regard.data.detect import SeveralDataSets, recognise
from regard.data.examples import DialogueExample, Example, Item, shown
from regard.data.hashes import HashSet, hash_of
from regard.data.kinds import KINDS, LOOKED_AT, DataSet
from regard.data.lines import Tally
from regard.data.reading import quantiles, word_count
from regard.data.roles import Column

SAMPLES = 3
MOST_LABELS = 100_000  # that are counted: with more they are no labels


def inspect(
    path: Path | str, *, source_column: Column = None, target_column: Column = None
) -> dict[str, Any]:
    """The record that `regard data inspect` prints: counts, lengths, three examples, and a command
    that trains on it; of a folder of several data sets, a list of them."""
    columns = {"source_column": source_column, "target_column": target_column}
    try:
        data_set = recognise(path, columns=columns)
    except SeveralDataSets as several:
        return {"kind": "several", "sets": [_entry(data_set) for data_set in several.sets]}

    tally = Tally()
    statistics = _Statistics(KINDS[data_set.kind].section.answer)
    for example in data_set.read(tally=tally):
        statistics.add(example)

    record: dict[str, Any] = {
        "kind": data_set.kind,
        "usable": tally.used,
        "skipped": dict(sorted(tally.skipped.items())),
        "replaced_characters": tally.replaced,
        "words": statistics.words(),
        "samples": statistics.samples,
        "train": data_set.command(),
    }
    if data_set.note:
        record["note"] = data_set.note
    if statistics.sound_lengths:
        record["seconds"] = statistics.seconds()
    if statistics.pictures:
        record["pictures"] = len(statistics.pictures)
    if statistics.dialogues:
        record["dialogues"] = len(statistics.dialogues)
    if statistics.labels:
        record["labels"] = dict(statistics.labels.most_common(LABELS))
    return record


def _entry(data_set: DataSet) -> dict[str, str]:
    words = KINDS[data_set.kind].words
    return {"path": str(data_set.path), "kind": data_set.kind, "what": words}


@dataclass
class _Statistics:
    """Counts over examples, and a random sample of them."""

    answer: str  # of the kind of data
    source_words: Counter[int] = field(default_factory=Counter)
    target_words: Counter[int] = field(default_factory=Counter)
    sound_lengths: Counter[int] = field(default_factory=Counter)  # in samples of a sound
    pictures: HashSet = field(default_factory=HashSet)
    dialogues: HashSet = field(default_factory=HashSet)
    labels: Counter[str] = field(default_factory=Counter)
    samples: list[dict[str, str]] = field(default_factory=list)
    count: int = 0
    draw: random.Random = field(default_factory=lambda: random.Random(0))

    def add(self, example: Example) -> None:
        source, target = example
        if isinstance(example, DialogueExample):
            self.dialogues.add(hash_of(example.dialogue))
        if isinstance(source, str):
            if self.answer != "blank":  # otherwise source and target are the same
                self.source_words[word_count(source)] += 1
        elif source.values.ndim == 1:
            self.sound_lengths[len(source.values)] += 1
        else:
            self.pictures.add(hash_of(os.fsencode(source.name)))

        if self.answer == "label":
            if target in self.labels or len(self.labels) < MOST_LABELS:
                self.labels[target] += 1
        else:
            self.target_words[word_count(target)] += 1
        self._sample(source, target)

    def _sample(self, source: str | Item, target: str) -> None:
        """Reservoir sampling: each example has the same chance."""
        place = self.count if self.count < SAMPLES else self.draw.randrange(self.count + 1)
        self.count += 1
        if place >= SAMPLES:
            return
        sample = {"target": target}
        if self.answer != "blank":
            sample = {"source": shown(source), "target": target}
        self.samples[place : place + 1] = [sample]

    def words(self) -> dict[str, dict[str, int]]:
        sides = {"source": self.source_words, "target": self.target_words}
        return {side: quantiles(lengths) for side, lengths in sides.items() if lengths}

    def seconds(self) -> dict[str, float]:
        rate = LOOKED_AT.rate
        total = sum(length * count for length, count in self.sound_lengths.items())
        lengths = quantiles(self.sound_lengths)
        seconds = {name: round(length / rate, 2) for name, length in lengths.items()}
        return seconds | {"total": round(total / rate, 1)}
