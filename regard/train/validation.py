"""Validation: the scores of held-out examples, and a few answers to look at."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regard.bundle import Bundle
from regard.data.corpus import Corpus
from regard.errors import DivergedError
from regard.evaluate import (
    answers,
    clusters_of,
    intervals_of,
    likelihood,
    questions,
    ranked,
    spread,
    target_texts,
)
from regard.metrics import SpokenTexts, Statistic
from regard.model import Model
from regard.ranking import rank_answers
from regard.recipe import Recipe
from regard.retrieval import Retrieval
from regard.tasks.task import Task

SAMPLES = 3
JUDGED = 200  # training examples to validate on, if none are held out
RANKED = 64  # examples whose true answers are ranked: 20 answers to each are read
MOST_ROWS = 50  # of a table that is logged at every validation
ROWS = 16  # prompts answered at a time: a signal waits for no more
RESAMPLED = 10_000  # examples, or dialogues: the interval of a score of more takes too long
READ = 16_384  # examples that the prompts are chosen from: the start of a training reads no more
COMPARED = 200_000  # training answers: to look for copies among more takes too long


@dataclass(frozen=True)
class Scores:
    """What a validation found; `intervals` are those of some of the numbers, of 95 %."""

    numbers: dict[str, Any]
    intervals: dict[str, tuple[float, float]]
    tables: dict[str, Any]
    samples: list[tuple[str, str]]  # input, answer


class Validation:
    """The examples that weights are scored on: held-out ones, or the first of training if nothing
    is held out."""

    def __init__(
        self, recipe: Recipe, task: Task, corpus: Corpus, retrieval: Retrieval | None = None
    ):
        self.recipe = recipe
        self.task = task
        self.retrieval = retrieval
        self.score = recipe.train.score or task.best
        """The name of the score that says which weights are best."""
        self.is_held_out = len(corpus.valid) > 0
        self._split = corpus.valid if self.is_held_out else corpus.train
        self._judged = len(corpus.valid) or min(JUDGED, len(corpus.train))
        prompts = questions(self._split, task, rows=READ)
        self._samples = spread(prompts, SAMPLES)
        self._is_greedy = task.judged_greedily and self.score == "perplexity"
        self._questions = spread(prompts, task.judged)
        self._references = [question.references for question in self._questions]
        baselines = task.baselines(self._references)
        self._baselines = {"baselines": baselines} if baselines else {}
        self._training_texts = None  # read when they are first asked for
        if self.is_held_out and len(corpus.train) <= COMPARED:
            self._training_texts = SpokenTexts(target_texts(corpus.train))

    @property
    def judged(self) -> int:
        """The number of examples the score is of."""
        return self._judged if self.score == "perplexity" else len(self._questions)

    def scores(self, model: Model, run: Path, between: Callable[[], None]) -> Scores:
        """The scores of a model, which is in evaluation mode; `between` is called now and then and
        may raise."""
        bot = Bundle(self.recipe, self.task, model, self.retrieval)
        held_out = likelihood(model, self.task, self._split, at_most=self._judged, between=between)
        if not math.isfinite(held_out.nats):
            raise DivergedError(
                "the weights are not numbers any more",
                where=run,
                hint="lower train.learning_rate",
            )

        numbers = dict(held_out.scores)
        first = clusters_of(self._split, np.arange(self._judged))
        intervals = self._intervals(held_out.statistics, first)
        if self.task.ranks_answers:
            ranking = rank_answers(model, self.task, self._split, at_most=RANKED, between=between)
            numbers |= {name: statistic.value for name, statistic in ranking.statistics.items()}
            of_ranked = clusters_of(self._split, ranking.examples)
            intervals |= self._intervals(ranking.statistics, of_ranked)

        options = bot.search_options(greedy=True) if self._is_greedy else None
        inputs = [question.given for question in self._questions]
        candidates = ranked(bot, inputs, options, rows=ROWS, between=between)
        answer_scores = self.task.judge(candidates, self._references)
        prompts = [question.shown for question in self._questions]
        best = [first for first, *_ in candidates]
        copies = self.task.copies(best, prompts, self._training_texts)
        numbers |= answer_scores.numbers
        numbers |= {name: statistic.value for name, statistic in copies.items()}
        clusters = [question.cluster for question in self._questions]
        intervals |= self._intervals({**answer_scores.statistics, **copies}, clusters)
        tables = {
            name: rows for name, rows in answer_scores.tables.items() if len(rows) <= MOST_ROWS
        }
        tables |= self._baselines

        texts = answers(bot, [question.given for question in self._samples], between=between)
        samples = [
            (question.shown, text) for question, text in zip(self._samples, texts, strict=True)
        ]
        return Scores(numbers, intervals, tables, samples)

    def _intervals(
        self, statistics: Mapping[str, Statistic], clusters: Sequence[int] | np.ndarray
    ) -> dict[str, tuple[float, float]]:
        """The intervals of scores of held-out examples; none if they would take long. They have
        random numbers of their own, so training is the same with and without them."""
        if not self.is_held_out or len(np.unique(clusters)) > RESAMPLED:
            return {}
        intervals = intervals_of(statistics, clusters)
        return {name: bounds for name, bounds in intervals.items() if np.isfinite(bounds).all()}
