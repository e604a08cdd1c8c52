"""What a file or folder is: its kind, how many examples can be used, what is wrong with the
others, and for whom."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from regard.data.detect import KINDS, RATE, SeveralDataSets, recognise
from regard.data.examples import Item, shown
from regard.data.lines import Tally
from regard.data.readers import quantiles, word_count
from regard.data.tables import LABELS, Column


def inspect(
    path: Path | str, *, source_column: Column = None, target_column: Column = None
) -> dict[str, Any]:
    """What `regard data inspect` shows: counts, lengths, three examples, and a command that
    trains on it; of a folder of several data sets, what they are."""
    try:
        seen = recognise(
            path, columns={"source_column": source_column, "target_column": target_column}
        )
    except SeveralDataSets as several:
        sets = [
            {"path": str(one.path), "kind": one.kind, "what": KINDS[one.kind].words}
            for one in several.sets
        ]
        return {"kind": "several", "sets": sets}
    tally = Tally()
    draw = random.Random(0)
    words: defaultdict[str, Counter[int]] = defaultdict(Counter)
    labels, names, seconds, samples = (
        Counter[str](),
        set[str](),
        Counter[int](),
        list[dict[str, str]](),
    )
    for i, example in enumerate(seen.read(tally=tally)):
        match example.source:
            case Item(values=values) if values.ndim == 1:
                seconds[len(values)] += 1
            case Item(name=name):
                names.add(name)
            case text if seen.kind != "text":
                words["source"][word_count(text)] += 1
        if seen.kind in ("labelled", "pictures", "medmnist"):
            labels[example.target] += 1
        else:
            words["target"][word_count(example.target)] += 1
        place = i if i < 3 else draw.randrange(i + 1)  # reservoir: each example has the same chance
        if place < 3:
            told = {} if seen.kind == "text" else {"source": shown(example.source)}
            samples[place : place + 1] = [told | {"target": example.target}]
    found: dict[str, Any] = {
        "kind": seen.kind,
        "usable": tally.used,
        "skipped": dict(sorted(tally.skipped.items())),
        "replaced_characters": tally.replaced,
        "words": {side: quantiles(lengths) for side, lengths in words.items()},
        "samples": samples,
        "train": seen.command(),
    }
    if seen.note:
        found["note"] = seen.note
    if seconds:
        total = sum(length * count for length, count in seconds.items())
        found["seconds"] = {
            name: round(length / RATE, 2) for name, length in quantiles(seconds).items()
        }
        found["seconds"] |= {"total": round(total / RATE, 1)}
    if names:
        found["pictures"] = len(names)
    if labels:
        found["labels"] = dict(labels.most_common(LABELS))
    return found
