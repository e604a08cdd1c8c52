"""Chat: text in, text out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from regard import metrics
from regard.data.corpus import Split
from regard.tasks.sources import TextSource
from regard.tasks.task import Batch, Input, Scores, Task, text_batch
from regard.tokenizers import Tokenizer


class Writing(Task):
    """A task whose answers are text, without scores."""

    best = "perplexity"

    def __init__(self, *, tokenizer: Tokenizer, source: TextSource):
        self.tokenizer = tokenizer
        self.source = source

    def read(self, inputs: Sequence[Input]) -> tuple[Tensor, Tensor]:
        return self.source.read(inputs)

    def sources(self, rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        return self.source.rows(rows)

    def batch(self, sources: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> Batch:
        raw, mask = self.source.rows(sources)
        return text_batch(raw, mask, targets)

    def nothing(self) -> tuple[Tensor, Tensor]:
        return self.source.rows([np.empty(0, np.int64)])

    def augment(
        self, sources: Sequence[np.ndarray], draw: np.random.Generator
    ) -> Sequence[np.ndarray]:
        return self.source.augment(sources, draw)

    def lengths(self, part: Split) -> tuple[np.ndarray, np.ndarray]:
        return self.source.lengths(part), part.target.lengths + 1

    def place_names(self, given: Input) -> list[str]:
        return self.source.place_names(given)


class Chat(Writing):
    """Conversation, judged by the diversity, blandness and length of the answers, and by chrF."""

    # Each reply is chosen from many draws: hundreds of them would take longer than the training.
    watched = False

    def scores(self, answers: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
        return Scores(
            {
                "distinct_1": metrics.distinct(answers, 1),
                "distinct_2": metrics.distinct(answers, 2),
                "bland_share": metrics.bland_share(answers),
                "repetition": metrics.repetition(answers),
                "unique_share": metrics.unique_share(answers),
                "mean_length": metrics.mean_length(answers),
                "chrf": metrics.chrf(answers, references),
            }
        )

    def of_references(self, references: Sequence[str]) -> dict[str, float]:
        return {
            "distinct_2": metrics.distinct(references, 2),
            "mean_length": metrics.mean_length(references),
        }
