"""Chat: text in, text out."""

from __future__ import annotations

from collections.abc import Sequence

from regard import metrics
from regard.tasks.generation import TextGeneration
from regard.tasks.task import Scores


class Chat(TextGeneration):
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
