"""Text generation: what tasks with text as their answer have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from regard.data.corpus import Split
from regard.tasks.sources import Source
from regard.tasks.task import Batch, Task, text_batch
from regard.tokenizers import Tokenizer


class TextGeneration(Task):
    """A task whose answers are text, without scores."""

    best = "perplexity"

    def __init__(self, *, tokenizer: Tokenizer, source: Source):
        self.tokenizer = tokenizer
        self.source = source
        never = (*self.special_tokens.never, *tokenizer.turn_tokens)
        self.special_tokens = replace(self.special_tokens, never=never)

    def batch(self, sources: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> Batch:
        raw, mask = self.source.rows(sources)
        return text_batch(raw, mask, targets)

    def nothing(self) -> tuple[Tensor, Tensor]:
        return self.source.rows([np.empty(0, np.int64)])

    def lengths(self, part: Split) -> tuple[np.ndarray, np.ndarray]:
        return self.source.lengths(part), part.target.lengths + 1
