"""Caption: a picture in, a sentence out."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from regard import metrics
from regard.data.cache import Split
from regard.errors import InputError
from regard.tasks.sources import PictureSource
from regard.tasks.task import Batch, Input, Scores, Task, text_batch
from regard.tokenizers import Tokenizer

SIDES = re.compile(r"\b(left|right)", re.IGNORECASE)  # what a mirror would make wrong


class Caption(Task):
    """A picture may have several sentences: it is read once for all that stand together in a
    batch, and an answer is compared with each of them."""

    best = "bleu_4"
    judged = 400

    def __init__(self, *, tokenizer: Tokenizer, source: PictureSource):
        self.tokenizer, self.source = tokenizer, source

    def read(self, inputs: Sequence[Input]) -> tuple[Tensor, Tensor]:
        return self.source.read(inputs)

    def sources(self, rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        return self.source.rows(rows)

    def batch(self, sources: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> Batch:
        which = _which(sources)
        if which[-1] == len(which) - 1:  # each has its own
            return text_batch(*self.source.rows(sources), targets)
        distinct = [
            source for source, n in zip(sources, np.diff(which, prepend=-1), strict=True) if n
        ]
        return text_batch(*self.source.rows(distinct), targets)._replace(
            rows=torch.from_numpy(which)
        )

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
        """A picture is shown in the same way to all its sentences, and never as in a mirror if
        one of them tells left from right."""
        which = _which(sources)
        first = np.flatnonzero(np.diff(which, prepend=-1))
        sided = [False] * len(first)
        if self.source.horizontal_flip:
            for n, target in zip(which.tolist(), targets, strict=True):
                sided[n] = (
                    sided[n] or SIDES.search(self.tokenizer.decode(target.tolist())) is not None
                )
        varied = self.source.augment([sources[i] for i in first.tolist()], draw, sided=sided)
        return [varied[n] for n in which.tolist()]

    def lengths(self, part: Split) -> tuple[np.ndarray, np.ndarray]:
        return self.source.lengths(part), part.target.lengths + 1

    def place_names(self, given: Input) -> list[str]:
        return self.source.place_names(given)

    def scores(self, answers: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
        """BLEU and chrF of words alone, lower-cased and without marks, as captions are usually
        judged; `exact` is of the sentence as it is written."""
        said, right = (
            [_words(text) for text in answers],
            [[_words(text) for text in group] for group in references],
        )
        return Scores(
            {
                **metrics.bleus(said, right),
                "chrf": metrics.chrf(said, right),
                "exact": metrics.exact_share(answers, references),
                "unique_share": metrics.unique_share(answers),
                "mean_length": metrics.mean_length(said),
            }
        )

    def of_references(self, references: Sequence[str]) -> dict[str, float]:
        said = [_words(text) for text in references]
        return {
            "unique_share": metrics.unique_share(references),
            "mean_length": metrics.mean_length(said),
        }


def _which(sources: Sequence[np.ndarray]) -> np.ndarray:
    """(B,): the number of its picture for each example; neighbours with the same array have the
    same picture."""
    new = [n > 0 and source is not sources[n - 1] for n, source in enumerate(sources)]
    return np.cumsum(new)


def _words(text: str) -> str:
    """
    >>> _words("A dog's ball, on the grass .")
    "a dog's ball on the grass"
    """
    return " ".join(word for word in metrics.words(text) if re.match(r"\w", word)) or "."
