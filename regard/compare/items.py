"""Test items: what a run answers to each, and the scores of some of them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from regard import metrics
from regard.bundle import Bundle
from regard.data.corpus import Split
from regard.errors import BundleError, DivergedError
from regard.evaluate import Question, likelihood, questions, ranked, target_texts
from regard.metrics import Statistic
from regard.ranking import rank_answers
from regard.tasks.task import Task
from regard.tokenizers import UNKNOWN

RANKED = 300  # examples whose true answers are ranked


@dataclass(frozen=True)
class Item:
    """A test item, and how a run did on it.

    prompt      the input as a person sees it: a text, or the name of a picture or sound
    references  every right answer
    cluster     the same for items that are not independent: those of one dialogue
    length      the length of the input, in places of the source
    rarest      how often the rarest word of the first reference occurs among the training answers;
                None for labels
    nats        -log p of the references, and the tokens and words that it is spread over
    answers     the run's answers, best first; none if the item was not asked
    ranks, pmi_ranks
                ranks of its references among answers to other items, see `regard.ranking`
    """

    prompt: str
    references: tuple[str, ...]
    cluster: int
    length: int
    rarest: int | None
    nats: float
    tokens: int
    words: int
    answers: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    pmi_ranks: tuple[int, ...] = ()

    @property
    def key(self) -> tuple[str, tuple[str, ...]]:
        """What makes it the same item for another run."""
        return self.prompt, self.references

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value not in ((), None)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Item:
        fields: dict[str, Any] = {"rarest": None} | content
        for name, value in fields.items():
            if isinstance(value, list):
                fields[name] = tuple(value)
        return cls(**fields)


def observe(
    bundle: Bundle, part: Split, training: Split, *, at_most: int | None = None
) -> list[Item]:
    """How a run does on each item of a split of its data; at most `at_most` items are answered."""
    task = bundle.task
    every = questions(part, task)
    number_of_example = {
        example: number for number, question in enumerate(every) for example in question.examples
    }
    items = _likelihoods(bundle, part, training, every)

    if task.ranks_answers:
        ranking = rank_answers(bundle.model, task, part, at_most=RANKED)
        for place, example in enumerate(ranking.examples.tolist()):
            number = number_of_example[example]
            item = items[number]
            ranks = (*item.ranks, int(ranking.ranks[place]))
            pmi_ranks = item.pmi_ranks
            if ranking.pmi_ranks is not None:
                pmi_ranks = (*pmi_ranks, int(ranking.pmi_ranks[place]))
            items[number] = replace(item, ranks=ranks, pmi_ranks=pmi_ranks)

    some = questions(part, task, at_most=at_most)
    answers = ranked(bundle, [question.given for question in some])
    for question, texts in zip(some, answers, strict=True):
        number = number_of_example[question.examples[0]]
        items[number] = replace(items[number], answers=tuple(texts))
    return items


def _likelihoods(
    bundle: Bundle, part: Split, training: Split, every: Sequence[Question]
) -> list[Item]:
    """An item for each question, with the likelihood of its references; without answers yet."""
    task = bundle.task
    held_out = likelihood(bundle.model, task, part)
    if not np.isfinite(held_out.answer_nats).all():
        raise DivergedError("the likelihood of some answers is not a number")
    counts = Counter[str]()
    if task.answers_are_text:
        for text in target_texts(training):
            counts.update(set(metrics.words(text)))

    lengths, _ = task.lengths(part)
    items = []
    for question in every:
        index = question.examples
        item = Item(
            prompt=question.shown,
            references=tuple(question.references),
            cluster=question.cluster,
            length=int(lengths[index[0]]),
            rarest=_rarest(question.references[0], counts) if counts else None,
            nats=float(held_out.answer_nats[index].sum()),
            tokens=int(held_out.answer_tokens[index].sum()),
            words=int(held_out.answer_words[index].sum()),
        )
        items.append(item)
    return items


def _rarest(text: str, counts: Counter[str]) -> int:
    return min((counts[word] for word in metrics.words(text)), default=0)


def common(runs: Sequence[Sequence[Item]]) -> list[list[Item]]:
    """The items that all runs have, in the order of the first run and with its clusters."""
    by_key = [{item.key: item for item in items} for items in runs]
    keys = [item.key for item in runs[0] if all(item.key in own for own in by_key)]
    first = by_key[0]
    return [
        [
            replace(
                own[key],
                cluster=first[key].cluster,
                length=first[key].length,
                rarest=first[key].rarest,
            )
            for key in keys
        ]
        for own in by_key
    ]


def text_key(split: Split) -> str:
    """The SHA-256 of the texts of a part of the data (for pictures and sounds: of their names),
    which does not depend on the tokenizer."""
    digest = hashlib.sha256()
    for column in (split.source_text, split.target_text):
        digest.update(np.ascontiguousarray(column.lengths).tobytes())
        digest.update(np.ascontiguousarray(column.values).tobytes())
    return digest.hexdigest()


def has_unknown_words(split: Split) -> bool:
    """Whether its tokenizer cannot write all answers."""
    return bool((np.asarray(split.target.values) == UNKNOWN).any())


# -- scores ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ItemScore:
    """A score of a run, with a row for each of the items `index` (n,) it is about."""

    statistic: Statistic
    index: np.ndarray

    def over(self, chosen: np.ndarray) -> ItemScore:
        """The score of the items of which `chosen` (all items,) is true."""
        mine = chosen[self.index]
        rows = self.statistic.rows[mine]
        return ItemScore(replace(self.statistic, rows=rows), self.index[mine])

    def clustered(self, clusters: np.ndarray) -> Statistic:
        """The statistic with a row for each cluster of items."""
        return self.statistic.clustered(clusters[self.index])

    @property
    def of_items(self) -> np.ndarray:
        """(n,): the score that each item has alone."""
        return np.array([self.statistic.score(row) for row in self.statistic.rows])


def scores_of(items: Sequence[Item], task: Task) -> tuple[dict[str, ItemScore], dict[str, float]]:
    """The scores of a run that are functions of sums over items, and its other scores."""
    everything = np.arange(len(items))
    nats = [item.nats for item in items]
    scores = {
        "perplexity": ItemScore(
            metrics.perplexities(nats, [item.tokens for item in items]), everything
        )
    }
    if task.answers_are_text:
        words = metrics.perplexities(nats, [item.words for item in items])
        scores["word_perplexity"] = ItemScore(words, everything)
    scores |= _rank_scores("", [item.ranks for item in items])
    scores |= _rank_scores("pmi_", [item.pmi_ranks for item in items])

    index = np.array([number for number, item in enumerate(items) if item.answers], np.int64)
    if not len(index):
        return scores, {}
    asked = [items[number] for number in index]
    references = [list(item.references) for item in asked]
    judged = task.judge([list(item.answers) for item in asked], references)
    copies = task.copies([item.answers[0] for item in asked], [item.prompt for item in asked], None)
    statistics = {**judged.statistics, **copies}
    scores |= {name: ItemScore(statistic, index) for name, statistic in statistics.items()}
    plain = {name: value for name, value in judged.numbers.items() if name not in scores}
    return scores, plain


def _rank_scores(prefix: str, ranks: Sequence[Sequence[int]]) -> dict[str, ItemScore]:
    index = np.array([number for number, own in enumerate(ranks) if own], np.int64)
    if not len(index):
        return {}
    counts = [len(ranks[number]) for number in index]
    hits = [sum(rank == 1 for rank in ranks[number]) for number in index]
    reciprocals = [sum(1 / rank for rank in ranks[number]) for number in index]
    return {
        f"{prefix}hits_at_1": ItemScore(metrics.ratio(hits, counts), index),
        f"{prefix}mrr": ItemScore(metrics.ratio(reciprocals, counts), index),
    }


def items_from_json(content: Any, where: object) -> list[Item]:
    try:
        return [Item.from_json(item) for item in content]
    except (TypeError, AttributeError):
        raise BundleError("damaged: not the items of a cell", where=where) from None
