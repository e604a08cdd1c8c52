"""Caption: a picture in, a sentence out."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from regard import metrics
from regard.data.corpus import Split
from regard.errors import InputError
from regard.metrics import text_statistics
from regard.tasks.sources import PictureSource
from regard.tasks.task import Batch, Scores, Task, text_batch
from regard.tokenizers import Tokenizer

SIDES = re.compile(r"\b(left|right)", re.IGNORECASE)  # wrong for a mirrored picture


class Caption(Task):
    """Picture captioning, judged by BLEU and chrF.

    A picture may have several captions: it is encoded once for all of them in a batch, and an
    answer is compared with each.
    """

    best = "bleu_4"
    judged = 400
    source: PictureSource

    def __init__(self, *, tokenizer: Tokenizer, source: PictureSource):
        self.tokenizer = tokenizer
        self.source = source

    def batch(self, sources: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> Batch:
        numbers = _picture_numbers(sources)
        if numbers[-1] == len(numbers) - 1:  # each has its own
            raw, mask = self.source.rows(sources)
            return text_batch(raw, mask, targets)
        first = np.flatnonzero(np.diff(numbers, prepend=-1))
        distinct = [sources[i] for i in first.tolist()]
        raw, mask = self.source.rows(distinct)
        return text_batch(raw, mask, targets)._replace(rows=torch.from_numpy(numbers))

    def nothing(self) -> tuple[Tensor, Tensor]:
        raise InputError(
            "a picture cannot say nothing", where="search.mmi_weight", hint="set it to 0"
        )

    def augment_pairs(
        self,
        sources: Sequence[np.ndarray],
        targets: Sequence[np.ndarray],
        draw: np.random.Generator,
    ) -> Sequence[np.ndarray]:
        """Augmented pictures: the same for all captions of a picture, and not mirrored if one of
        them says left or right."""
        numbers = _picture_numbers(sources)
        first = np.flatnonzero(np.diff(numbers, prepend=-1))
        sided = [False] * len(first)
        if self.source.horizontal_flip:
            for number, target in zip(numbers.tolist(), targets, strict=True):
                if SIDES.search(self.tokenizer.decode(target.tolist())):
                    sided[number] = True
        augmented = self.source.augment([sources[i] for i in first.tolist()], draw, sided=sided)
        return [augmented[number] for number in numbers.tolist()]

    def lengths(self, part: Split) -> tuple[np.ndarray, np.ndarray]:
        return self.source.lengths(part), part.target.lengths + 1

    def scores(self, answers: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
        """BLEU and chrF of lower-case words without punctuation, as is usual for captions; `exact`
        compares the sentences as they are."""
        words = [_words(text) for text in answers]
        right = [[_words(text) for text in group] for group in references]
        return Scores.of(
            {
                **text_statistics.bleus(words, right),
                "chrf": text_statistics.chrf(words, right),
                "exact": text_statistics.exact_share(answers, references),
                "unique_share": metrics.unique_share(answers),
                "mean_length": text_statistics.mean_length(words),
            }
        )

    def of_references(self, references: Sequence[str]) -> dict[str, float]:
        words = [_words(text) for text in references]
        return {
            "unique_share": metrics.unique_share(references),
            "mean_length": metrics.mean_length(words),
        }


def _picture_numbers(sources: Sequence[np.ndarray]) -> np.ndarray:
    """(B,): the number of each example's picture. Neighbours with the same array share one."""
    new = [n > 0 and source is not sources[n - 1] for n, source in enumerate(sources)]
    return np.cumsum(new)


def _words(text: str) -> str:
    """The words of a text, in lower case and without punctuation.

    >>> _words("A dog's ball, on the grass .")
    "a dog's ball on the grass"
    """
    return " ".join(word for word in metrics.words(text) if re.match(r"\w", word)) or "."
