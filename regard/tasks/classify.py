"""Classify: a text or a picture in, a label out, which is an answer of one token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from regard import metrics
from regard.data.corpus import Split
from regard.errors import InputError
from regard.tasks.sources import Source
from regard.tasks.task import Batch, Scores, Task
from regard.tokenizers import START, Labels


class Classify(Task):
    """Classification of texts or pictures, judged by accuracy, precision, recall and F1."""

    best = "accuracy"
    judged = 2000
    answers_are_text = False

    def __init__(self, *, tokenizer: Labels, source: Source):
        self.tokenizer = tokenizer
        self.labels = tokenizer.labels
        self.source = source

    def batch(self, sources: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> Batch:
        """The target is the label alone, without the end token."""
        raw, mask = self.source.rows(sources)
        labels = torch.from_numpy(np.stack(targets).astype(np.int64))
        return Batch(
            raw,
            mask,
            torch.full_like(labels, START),
            labels,
            torch.ones_like(labels, dtype=torch.bool),
        )

    def nothing(self) -> tuple[Tensor, Tensor]:
        raise InputError(
            "a label has no prior to subtract", where="search.mmi_weight", hint="set it to 0"
        )

    def lengths(self, part: Split) -> tuple[np.ndarray, np.ndarray]:
        return self.source.lengths(part), part.target.lengths

    def scores(self, answers: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
        """Scores of labels. An example with several right labels may be answered with any."""
        wanted = [
            answer if answer in right else right[0]
            for answer, right in zip(answers, references, strict=True)
        ]
        pairs = zip(answers, wanted, strict=True)
        scores = {
            "accuracy": metrics.share([answer == label for answer, label in pairs]),
            "precision": metrics.precision(answers, wanted),
            "recall": metrics.recall(answers, wanted),
            "f1": metrics.f1(answers, wanted),
            **metrics.macro_statistics(answers, wanted, classes=self.labels),
        }
        counts = metrics.confusion(answers, wanted, classes=self.labels)["counts"]
        return Scores.of(scores, {"labels": list(self.labels), "confusion": counts})
