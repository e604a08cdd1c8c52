"""Speech: a recording in, its transcript out."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from regard import metrics
from regard.errors import InputError
from regard.metrics import text_statistics
from regard.tasks.generation import TextGeneration
from regard.tasks.sources import SoundSource
from regard.tasks.task import Batch, Scores
from regard.tokenizers import END, PAD, START, Tokenizer


class Speech(TextGeneration):
    """Speech recognition, judged by CER, WER and the three similarities of the coursework, which
    count the start and end tokens too. The baselines are answers that do not depend on the sound.

    With `filled`, every text is padded to that many tokens, and the padding is learned too.
    """

    best = "cer"
    source: SoundSource

    def __init__(self, *, tokenizer: Tokenizer, source: SoundSource, filled: int | None = None):
        self.tokenizer = tokenizer
        self.source = source
        self.filled = filled

    def batch(self, sources: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> Batch:
        if self.filled is None:
            return super().batch(sources, targets)
        raw, mask = self.source.rows(sources)
        full = np.full((len(targets), self.filled + 2), PAD, np.int64)
        for line, row in zip(full, targets, strict=True):
            line[: len(row) + 2] = [START, *row, END]
        tokens = torch.from_numpy(full)
        return Batch(
            raw,
            mask,
            tokens[:, :-1],
            tokens[:, 1:],
            torch.ones_like(tokens[:, 1:], dtype=torch.bool),
        )

    def nothing(self) -> tuple[Tensor, Tensor]:
        raise InputError(
            "a sound has no prior to subtract", where="search.mmi_weight", hint="set it to 0"
        )

    def scores(self, answers: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
        right = [[self._cased(text) for text in group] for group in references]
        alike = metrics.best_similarities(
            [self._marked(answer) for answer in answers],
            [[self._marked(text) for text in group] for group in right],
        )
        return Scores.of(
            {
                "cer": text_statistics.cer(answers, right),
                "wer": text_statistics.wer(answers, right),
                "exact": text_statistics.exact_share(answers, right),
                **{name: metrics.mean(values) for name, values in alike.items()},
            }
        )

    def _cased(self, text: str) -> str:
        return text.lower() if getattr(self.tokenizer, "lower", False) else text

    def _marked(self, text: str) -> list[int]:
        return [START, *self.tokenizer.encode(text), END]

    def baselines(self, references: Sequence[Sequence[str]]) -> dict[str, dict[str, float]]:
        """Scores reached without hearing the sound: by the text of another example, and by one
        string for all that has each character as often as the texts have it on average. Both know
        the texts they are judged by."""
        first = [self._cased(group[0]) for group in references]
        order = random.Random(1).sample(range(len(first)), len(first))
        after = dict(zip(order, [*order[1:], *order[:1]], strict=True))
        others = [first[after[i]] for i in range(len(first))]
        counts = sum((Counter(text) for text in first), Counter())
        histogram = "".join(
            character * round(count / len(first)) for character, count in sorted(counts.items())
        )
        guesses = {"one string": [histogram] * len(first)}
        if len(first) > 1:
            guesses["another's text"] = others
        return {name: self.scores(guess, references).numbers for name, guess in guesses.items()}
