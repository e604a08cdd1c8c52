"""Ranking the true answer to an input among true answers to other inputs.

A reply may be good and still have no word in common with the reference, so BLEU and chrF say little
about a chat model, and perplexity says nothing about the use it makes of the prompt. Ranking does:
which of 20 replies was given to this prompt? Without reading the prompt, one in 20 is right.

    likelihood   log p(reply | prompt) / tokens, the end token included
    PMI          log p(reply | prompt) - log p(reply | nothing), pointwise mutual information: a
                 reply that is likely after any prompt gains nothing from it

PMI needs a model that was trained on empty prompts too (`source.prompt_dropout`).

The other 19 replies are from other dialogues and to other prompts, and all 20 texts differ by more
than case and spaces. They are drawn from the answers of the examples that are ranked, and of some
more if these are few, so that log p(reply | nothing) is computed for few replies. The draws depend
on a seed only, so all models rank the same sets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from regard import metrics
from regard.data.batches import ordered
from regard.data.corpus import Split
from regard.metrics import Statistic
from regard.model import Model
from regard.tasks.task import Task, text_targets
from regard.values import Memory

CANDIDATES = 20  # the true answer and 19 others
PROMPTS = 64  # prompts encoded at a time
POOL = 10  # the examples to draw from are at least so many times the candidates of a set


@dataclass(frozen=True)
class Ranking:
    """The rank of the true answer to each example, from 1; an equal score counts as a better one.

    examples    (n,): the numbers of the examples in their split
    ranks       (n,): by likelihood
    pmi_ranks   (n,): by PMI; None if the model has not learned p(answer)
    """

    examples: np.ndarray
    ranks: np.ndarray
    pmi_ranks: np.ndarray | None

    @property
    def statistics(self) -> dict[str, Statistic]:
        """hits@1, the share of examples whose true answer is first, and MRR, the mean of 1 / rank;
        none if nothing could be ranked."""
        statistics = {}
        for prefix, ranks in (("", self.ranks), ("pmi_", self.pmi_ranks)):
            if ranks is not None and len(ranks):
                statistics[f"{prefix}hits_at_1"] = metrics.share(ranks == 1)
                statistics[f"{prefix}mrr"] = metrics.mean(1 / ranks)
        return statistics


@torch.inference_mode()
def rank_answers(
    model: Model,
    task: Task,
    part: Split,
    *,
    at_most: int | None = None,
    candidates: int = CANDIDATES,
    seed: int = 1,
    batch_tokens: int = 8192,
    between: Callable[[], None] = lambda: None,
) -> Ranking:
    """Rank the true answers to `at_most` examples, spread evenly over the part. Examples for which
    the part has too few other answers are left out. `between` is called before each batch, and may
    raise to end it all."""
    sets = candidate_sets(part, at_most=at_most, candidates=candidates, seed=seed)
    training = model.training
    model.eval()
    scorer = _Scorer(model, task, part, batch_tokens, between)
    nats = scorer.nats(sets)
    tokens = part.target.select(sets.ravel()).lengths.reshape(sets.shape)
    ranks = rank_of_first(-nats / (tokens + 1))
    pmi_ranks = None
    if task.source.prompt_dropout:
        pmi_ranks = rank_of_first(scorer.prior_nats(sets) - nats)
    model.train(training)
    return Ranking(sets[:, 0], ranks, pmi_ranks)


def rank_of_first(scores: np.ndarray) -> np.ndarray:
    """(n,): the rank of the first score of each row. An equal score, and one that is not a number,
    counts as better.

    >>> rank_of_first(np.array([[0.5, 0.2, 0.1], [0.5, 0.5, 0.1], [0.5, 0.9, np.nan]]))
    array([1, 2, 3])
    """
    return (~(scores < scores[:, :1])).sum(1)


def candidate_sets(
    part: Split, *, at_most: int | None = None, candidates: int = CANDIDATES, seed: int = 1
) -> np.ndarray:
    """(n, candidates): in each row an example, and then others whose answers are ranked with its
    own."""
    count = at_most or len(part)
    pool = evenly_spread(len(part), max(count, POOL * candidates))
    draw = _Draw(part, pool, candidates, seed)
    sets = [draw.candidates_of(i) for i in evenly_spread(len(part), count)]
    complete = [members for members in sets if len(members) == candidates]
    return np.array(complete, np.int64).reshape(-1, candidates)


def evenly_spread(size: int, count: int) -> list[int]:
    """The numbers of `count` of `size` examples, spread evenly, or of all.

    >>> evenly_spread(8, 3)
    [0, 2, 5]
    """
    count = min(size, count)
    return [i * size // count for i in range(count)]


class _Draw:
    """Draws the candidates of examples from a pool of examples."""

    def __init__(self, part: Split, pool: list[int], candidates: int, seed: int):
        self.part = part
        self.pool = pool
        self.candidates = candidates
        self.seed = seed
        self.words = cache(lambda i: tuple(metrics.words(part.texts(i).target)))

    def candidates_of(self, example: int) -> list[int]:
        """The example and others: fewer than `candidates` if the pool has too few."""
        members = [example]
        texts = {self.words(example)}
        prompt = self.part.source_name(example)
        random = np.random.Generator(np.random.PCG64([self.seed, example]))
        for place in random.permutation(len(self.pool)).tolist():
            if len(members) == self.candidates:
                break
            other = self.pool[place]
            text = self.words(other)
            if text in texts or self._is_same_dialogue(example, other):
                continue
            if self.part.source_name(other) == prompt:
                continue
            texts.add(text)
            members.append(other)
        return members

    def _is_same_dialogue(self, example: int, other: int) -> bool:
        dialogues = self.part.dialogues
        return dialogues is not None and dialogues[example] == dialogues[other]


class _Scorer:
    """Computes -log p of whole answers, in nats."""

    def __init__(
        self,
        model: Model,
        task: Task,
        part: Split,
        batch_tokens: int,
        between: Callable[[], None],
    ):
        self.model = model
        self.task = task
        self.part = part
        self.batch_tokens = batch_tokens
        self.between = between

    def _lengths(self, examples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.task.lengths(self.part.select(examples))

    def nats(self, sets: np.ndarray) -> np.ndarray:
        """(n, candidates): each candidate as the answer to the first example of its set. A prompt
        is encoded once."""
        nats = np.empty(sets.shape)
        order = np.argsort(self._lengths(sets[:, 0])[0], kind="stable")
        for start in range(0, len(order), PROMPTS):
            self.between()
            index = order[start : start + PROMPTS]
            raw, mask = self.task.sources(self.part.gather_sources(sets[index, 0]))
            memory = self.model.encode(raw.to(self.model.device), mask.to(self.model.device))
            rows = np.repeat(np.arange(len(index)), sets.shape[1])
            nats[index] = self._answer_nats(memory, rows, sets[index].ravel()).reshape(
                len(index), -1
            )
        return nats

    def prior_nats(self, sets: np.ndarray) -> np.ndarray:
        """(n, candidates): each candidate as the answer to an empty prompt. An answer that is in
        several sets is scored once."""
        answers, places = np.unique(sets, return_inverse=True)
        raw, mask = self.task.nothing()
        memory = self.model.encode(raw.to(self.model.device), mask.to(self.model.device))
        rows = np.zeros(len(answers), np.int64)
        return self._answer_nats(memory, rows, answers)[places].reshape(sets.shape)

    def _answer_nats(self, memory: Memory, rows: np.ndarray, answers: np.ndarray) -> np.ndarray:
        """(n,): the answer of example answers[i], given the row rows[i] of the memory."""
        device = self.model.device
        nats = np.empty(len(answers))
        places = np.full(len(answers), memory.mask.shape[1], np.int64)
        _, lengths = self._lengths(answers)
        for index in ordered(places, lengths, tokens=self.batch_tokens):
            self.between()
            batch = text_targets([self.part.target[i] for i in answers[index]])
            tokens, targets, real = (tensor.to(device) for tensor in batch)
            memories = memory.rows(torch.from_numpy(rows[index]).to(device))
            nats[index] = self.model.nats(memories, tokens, targets, real).cpu().numpy()
        return nats
