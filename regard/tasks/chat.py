"""Chat: text in, text out."""

from __future__ import annotations

from collections.abc import Container, Sequence

from regard import metrics
from regard.metrics import Statistic, text_statistics
from regard.tasks.generation import TextGeneration
from regard.tasks.task import Scores


class Chat(TextGeneration):
    """Conversation, judged by the words shared with the reference (BLEU, chrF), and by the
    diversity, blandness, length and originality of the replies."""

    ranks_answers = True
    # A reply is chosen from many draws: some hundred of them would take longer than the training.
    judged = 100
    judged_greedily = True

    def scores(self, answers: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
        return Scores.of(
            {
                **text_statistics.bleus(answers, references, orders=(1, 2, 4)),
                "chrf": text_statistics.chrf(answers, references),
                **self._of_texts(answers),
            }
        )

    def _of_texts(self, texts: Sequence[str]) -> dict[str, Statistic | float]:
        return {
            "distinct_1": metrics.distinct(texts, 1),
            "distinct_2": metrics.distinct(texts, 2),
            "unique_share": metrics.unique_share(texts),
            "bland_share": text_statistics.bland_share(texts),
            "repetition": text_statistics.repetition(texts),
            "mean_length": text_statistics.mean_length(texts),
        }

    def of_references(self, references: Sequence[str]) -> dict[str, float]:
        return Scores.of(self._of_texts(references)).numbers

    def copies(
        self, answers: Sequence[str], prompts: Sequence[str], training: Container[str] | None
    ) -> dict[str, Statistic]:
        shares = {"prompt_copy_share": text_statistics.prompt_copy_share(answers, prompts)}
        if training is not None:
            shares["training_copy_share"] = text_statistics.training_copy_share(answers, training)
        return shares
