"""The step that selects: duplicates and prompts that are held out are found by their hashes."""

from __future__ import annotations

import numpy as np

from regard.data.hashes import distinct, first_places, is_in
from regard.data.lines import Tally
from regard.data.parts import DUPLICATE, HELD, LONG, USED, Part, divided, separate
from regard.data.preparation import Preparation
from regard.data.progress import report
from regard.data.rules import HELD_OUT, TOO_MANY_WORDS
from regard.data.stages import TRAIN


def select_rows(preparation: Preparation, parts: list[Part]) -> Tally:
    """Find the rows of divided data that are not used: too long ones, those whose prompt is held
    out, and in training duplicates. They are marked in `status` and counted."""
    _find_held_out(preparation, parts)
    _find_duplicates(divided(parts))
    left_out = Tally()
    for part in parts:
        counts = np.bincount(part.status, minlength=DUPLICATE + 1)
        left_out.skipped[TOO_MANY_WORDS] += int(counts[LONG])
        left_out.skipped[HELD_OUT] += int(counts[HELD])
        left_out.duplicates += int(counts[DUPLICATE])
    report("finding duplicates", 1, 1)
    return left_out


def _find_held_out(preparation: Preparation, parts: list[Part]) -> None:
    in_separate = distinct(part.column("prompt") for part in separate(parts))
    held_out = np.empty(0, np.uint64)
    if preparation.may_be_in_both:
        held_out = distinct(
            part.column("prompt")[part.column("split") != TRAIN] for part in divided(parts)
        )
    if not len(in_separate) and not len(held_out):
        return
    for part in divided(parts):
        is_training = part.column("split") == TRAIN
        prompts = part.column("prompt")
        is_held = is_in(prompts, in_separate) | (is_training & is_in(prompts, held_out))
        part.status[is_held & (part.status == USED)] = HELD


def _find_duplicates(parts: list[Part]) -> None:
    columns = [part.column("hash")[part.training_rows] for part in parts]
    first = first_places(columns)
    start = 0
    for part, column in zip(parts, columns, strict=True):
        places = np.arange(start, start + len(column))
        is_copy = first[places] != places
        part.status[part.training_rows[is_copy]] = DUPLICATE
        start += len(column)
