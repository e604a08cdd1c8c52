"""Translate: a text in, its translation to another language or notation out."""

from __future__ import annotations

from collections.abc import Sequence

from regard import metrics
from regard.metrics import text_statistics
from regard.tasks.generation import TextGeneration
from regard.tasks.task import Scores


class Translate(TextGeneration):
    """Translation, judged by BLEU, chrF and the share of exact answers."""

    ranks_answers = True

    def scores(self, answers: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
        return Scores.of(
            {
                "bleu": text_statistics.bleu(answers, references),
                "chrf": text_statistics.chrf(answers, references),
                "exact": text_statistics.exact_share(answers, references),
                "mean_length": text_statistics.mean_length(answers),
            }
        )

    def of_references(self, references: Sequence[str]) -> dict[str, float]:
        return {"mean_length": metrics.mean_length(references)}
