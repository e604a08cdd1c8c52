"""Our side of the benchmarks: signatures to be filled in. The benchmarks call nothing of the library but these.

The model of both speed benchmarks has the sizes of `bench.peers.hf.make`: a Transformer of 4+4 layers, width 128, 4
heads, FFN 256 (ReLU), dropout 0.1, source, target and output embeddings tied. Ids come from `training_speed.corpus`:
0 pads, 1 starts, 2 ends; sources and targets both end in 2 and neither holds 0 or 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from bench.measure import Speed

Ids = list[int]


def make(vocabulary: int, seed: int) -> Any:
    """The model, untrained."""


def train_steps(
    model: Any, pairs: Sequence[tuple[Ids, Ids]], *, tokens: int, warmup: int, steps: int, seed: int
) -> Speed:
    """`warmup` steps, then `steps` steps on the clock, with label smoothing 0.1, AdamW and clipping at norm 1.

    `tokens` is how many real target tokens a batch should hold on average: what the peer's batches hold. How sentences
    are put together is ours to choose. Returns the real target tokens (end marks counted, padding not) of the steps on
    the clock and their seconds, from the end of the last warm-up step to the end of the last step, so that making
    batches counts. Data order follows `seed`.
    """


def never_end(model: Any) -> Any:
    """The model with its end and padding marks made impossible, at no cost in the loop: answers of full length."""


def greedy(model: Any, sources: Sequence[Ids], max_new_tokens: int) -> list[Ids]:
    """One batch of sources, answered greedily; only the produced tokens, without the start and without padding."""


class Chatbot(Protocol):
    """What bench.cornell asks of a trained chatbot."""

    def nats(self, pairs: Sequence[tuple[str, str]]) -> float:
        """Total -ln P(raw reply text and end mark | raw prompt), over all pairs."""
        ...

    def reply(self, prompt: str) -> str: ...


def chat(pairs: Sequence[tuple[str, str]], minutes: float, seed: int) -> Chatbot:
    """Our chatbot, trained on all raw pairs for `minutes` on the clock (some sides are empty: drop those pairs)."""
