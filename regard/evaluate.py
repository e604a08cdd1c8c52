"""How good a model is: likelihood of held-out answers, and scores of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from regard import metrics
from regard.data.batches import ordered
from regard.data.corpus import Split
from regard.errors import DataError
from regard.metrics import SpokenTexts, Statistic
from regard.model import Model
from regard.ranking import evenly_spread, rank_answers
from regard.search import Options
from regard.tasks.task import Input, Task
from regard.values import Answer

T = TypeVar("T")
SAMPLES = 20
RANKED = 1000  # examples whose true answers are ranked


class Answering(Protocol):
    """What is evaluated: a `regard.Bundle`."""

    @property
    def model(self) -> Model: ...

    @property
    def task(self) -> Task: ...

    def candidates(
        self, inputs: Sequence[Input], options: Options | None = None
    ) -> list[list[Answer]]: ...


@dataclass(frozen=True)
class Likelihood:
    """-log p of each of some answers, in nats, end marks included, and the numbers of tokens and of
    words it is spread over (0: labels)."""

    answer_nats: np.ndarray
    answer_tokens: np.ndarray
    answer_words: np.ndarray

    @property
    def nats(self) -> float:
        """The sum over all answers."""
        return float(self.answer_nats.sum())

    @property
    def tokens(self) -> int:
        """The sum over all answers."""
        return int(self.answer_tokens.sum())

    @property
    def words(self) -> int:
        """The sum over all answers."""
        return int(self.answer_words.sum())

    @property
    def perplexity(self) -> float:
        """For each token of the tokenizer."""
        return metrics.perplexity(self.nats, self.tokens)

    @property
    def word_perplexity(self) -> float:
        """For each word (and end mark): comparable between tokenizers."""
        return metrics.perplexity(self.nats, self.words)

    @property
    def scores(self) -> dict[str, float]:
        words = {"word_perplexity": self.word_perplexity} if self.words else {}
        return {"perplexity": self.perplexity} | words

    @property
    def statistics(self) -> dict[str, Statistic]:
        """The scores as statistics, which have intervals."""
        counts = {"perplexity": self.answer_tokens}
        if self.words:
            counts["word_perplexity"] = self.answer_words
        return {
            name: metrics.perplexities(self.answer_nats, count) for name, count in counts.items()
        }


@torch.inference_mode()
def likelihood(
    model: Model,
    task: Task,
    part: Split,
    *,
    batch_tokens: int = 8192,
    at_most: int | None = None,
    between: Callable[[], None] = lambda: None,
) -> Likelihood:
    """Over the whole part, or over its first `at_most` examples. `between` is called before each
    batch, and may raise to end it all."""
    training = model.training
    model.eval()
    size = min(len(part), at_most or len(part))
    nats = np.zeros(size)
    tokens = np.zeros(size, np.int64)
    words = np.zeros(size, np.int64)
    source, target = task.lengths(part.select(np.arange(size)))
    for index in ordered(source, target, tokens=batch_tokens, groups=part.groups):
        between()
        batch = task.batch(part.gather_sources(index), [part.target[i] for i in index])
        tokens[index] = batch.real.sum(1).numpy()
        batch = batch.to(model.device)
        memory = model.encode(batch.raw, batch.mask)
        if batch.rows is not None:
            memory = memory.rows(batch.rows)
        answer_nats = model.nats(memory, batch.tokens, batch.targets, batch.real)
        nats[index] = answer_nats.cpu().numpy()
        if task.answers_are_text:
            words[index] = [len(metrics.words(part.texts(i).target)) + 1 for i in index]
    model.train(training)
    return Likelihood(nats, tokens, words)


@dataclass(frozen=True)
class Question:
    """An input as a person sees it and as the model is given it, with every right answer."""

    shown: str
    given: Input
    references: list[str]
    cluster: int  # the same for questions that are not independent: those of one dialogue
    examples: list[int]  # their numbers in the split


def questions(
    part: Split, task: Task, *, at_most: int | None = None, rows: int | None = None
) -> list[Question]:
    """In the order of the corpus; one text, or one picture, with all its answers is one
    question. `at_most` so many are spread evenly over the part, which may go voice by voice, or
    label by label. Of a part with more than so many `rows`, only as many are read, spread evenly
    too: the others are neither questions nor references."""
    if not part.form.is_text:
        runs = _runs(part, rows if at_most is None else min(at_most, rows or at_most))
        return [
            Question(
                shown=part.source_name(r[0]),
                given=part.source[r[0]],
                references=[part.texts(i).target for i in r],
                cluster=r[0],
                examples=list(r),
            )
            for r in runs
        ]
    grouped: dict[str, Question] = {}
    numbers = evenly_spread(len(part), rows or len(part))
    clusters = clusters_of(part, np.array(numbers, np.int64))
    for i, cluster in zip(numbers, clusters.tolist(), strict=True):
        source, target = task.question(part.source_name(i), part.texts(i).target)
        if source not in grouped:
            # The text of a history does not say who speaks; its tokens do.
            given = part.source[i] if task.source.reads_history else source
            grouped[source] = Question(source, given, [], cluster, [])
        grouped[source].references.append(target)
        grouped[source].examples.append(i)
    return spread(list(grouped.values()), at_most)


def _runs(part: Split, at_most: int | None) -> list[range]:
    """The examples of each source, of at most so many sources."""
    starts = part.groups
    count = len(part) if starts is None else len(starts)
    chosen = evenly_spread(count, at_most or count)
    if starts is None:
        return [range(i, i + 1) for i in chosen]
    edges = np.append(starts, len(part))
    return [range(int(edges[i]), int(edges[i + 1])) for i in chosen]


def clusters_of(part: Split, examples: np.ndarray | None = None) -> np.ndarray:
    """(n,): a number for each of these examples (not given: all), the same for those that are not
    independent: of one dialogue, or of one picture. They are resampled together for intervals."""
    numbers = np.arange(len(part)) if examples is None else examples
    if part.dialogues is not None:
        return np.asarray(part.dialogues[numbers])
    if part.groups is None:
        return numbers
    return np.searchsorted(part.groups, numbers, side="right")


def spread(items: list[T], at_most: int | None) -> list[T]:
    """`at_most` items, spread evenly, or all."""
    return [items[i] for i in evenly_spread(len(items), at_most or len(items))]


def answers(
    bundle: Answering,
    prompts: Sequence[Input],
    options: Options | None = None,
    *,
    rows: int = 64,
    between: Callable[[], None] = lambda: None,
) -> list[str]:
    """The texts of the answers, asked in batches of like length; `between` is called before each
    batch."""
    return [best for best, *_ in ranked(bundle, prompts, options, rows=rows, between=between)]


def ranked(
    bundle: Answering,
    prompts: Sequence[Input],
    options: Options | None = None,
    *,
    rows: int = 64,
    between: Callable[[], None] = lambda: None,
) -> list[list[str]]:
    """The texts of all answers that the search finds to each prompt, best first."""
    order = sorted(range(len(prompts)), key=lambda i: _length(prompts[i]))
    texts: dict[int, list[str]] = {}
    for start in range(0, len(order), rows):
        between()
        index = order[start : start + rows]
        candidates = bundle.candidates([prompts[i] for i in index], options)
        for i, row in zip(index, candidates, strict=True):
            texts[i] = [answer.text for answer in row]
    return [texts[i] for i in range(len(prompts))]


def _length(prompt: Input) -> int:
    is_sequence = isinstance(prompt, str) or (isinstance(prompt, np.ndarray) and prompt.ndim == 1)
    return len(prompt) if is_sequence else 0


@dataclass(frozen=True)
class Sample:
    """An input, the model's answer to it, and every right answer."""

    prompt: str
    answer: str
    references: list[str]


@dataclass(frozen=True, repr=False)
class Evaluation:
    """The scores of a model on some examples.

    examples    how many there are
    prompts     how many distinct inputs were answered
    scores      numbers by name: the likelihood of the right answers, their rank among others, and
                the task's scores of the model's own answers
    intervals   the 95 % interval of each score that has one, by bootstrap over the examples
    tables      what is not a number: the labels of a classifier and its confusion matrix
    better      whether "higher" or "lower" is better, for scores of which this can be said
    baselines   scores of answers that do not depend on the input, by the name of the baseline
    references  scores of the right answers themselves
    samples     the first answers, with their inputs and right answers

    >>> result = bot.evaluate()  # doctest: +SKIP
    >>> result.scores["perplexity"], result.better["perplexity"]  # doctest: +SKIP
    (12.5, 'lower')
    """

    examples: int
    prompts: int
    scores: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    tables: dict[str, Any]
    baselines: dict[str, dict[str, float]]
    references: dict[str, float]
    samples: list[Sample]

    @property
    def better(self) -> dict[str, str]:
        directions = {name: metrics.better(name) for name in self.scores}
        return {name: direction for name, direction in directions.items() if direction}

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON can hold them; each score and table under its own name."""
        return {
            "examples": self.examples,
            "prompts": self.prompts,
            **self.scores,
            **self.tables,
            "better": self.better,
            "intervals": {name: list(bounds) for name, bounds in self.intervals.items()},
            "baselines": self.baselines,
            "references": self.references,
            "samples": [asdict(sample) for sample in self.samples],
        }

    def __repr__(self) -> str:
        scores = ", ".join(f"{name} {value:.4g}" for name, value in self.scores.items())
        return f"Evaluation({self.examples:,} examples: {scores})"


def target_texts(part: Split) -> Iterator[str]:
    """The text of every answer."""
    for i in range(len(part)):
        yield part.texts(i).target


def intervals_of(
    statistics: Mapping[str, Statistic], clusters: Sequence[int] | np.ndarray
) -> dict[str, tuple[float, float]]:
    """The 95 % interval of each statistic that has one."""
    intervals = {}
    for name, statistic in statistics.items():
        bounds = statistic.interval(clusters)
        if bounds is not None:
            intervals[name] = bounds
    return intervals


def evaluate(
    bundle: Answering,
    part: Split,
    *,
    options: Options | None = None,
    at_most: int | None = None,
    ranked_examples: int = RANKED,
    training: Split | None = None,
    samples: int = SAMPLES,
) -> Evaluation:
    """Every score of the task, and what the references themselves reach where that means
    something. At most `at_most` prompts are answered, and the true answers of at most
    `ranked_examples` are ranked. Answers are compared with those of `training`, if it is given.
    The first `samples` answers are part of the result."""
    if not len(part):
        raise DataError("no examples to evaluate on")
    task = bundle.task
    clusters = clusters_of(part)
    held_out = likelihood(bundle.model, task, part)
    scores = dict(held_out.scores)
    intervals = intervals_of(held_out.statistics, clusters)
    if task.ranks_answers and ranked_examples:
        ranking = rank_answers(bundle.model, task, part, at_most=ranked_examples)
        scores |= {name: statistic.value for name, statistic in ranking.statistics.items()}
        intervals |= intervals_of(ranking.statistics, clusters[ranking.examples])

    prompts = questions(part, task, at_most=at_most)
    references = [question.references for question in prompts]
    candidates = ranked(bundle, [question.given for question in prompts], options)
    answer_scores = task.judge(candidates, references)
    prompt_texts = [question.shown for question in prompts]
    training_texts = None if training is None else SpokenTexts(target_texts(training))
    copies = task.copies([best for best, *_ in candidates], prompt_texts, training_texts)
    scores |= answer_scores.numbers
    scores |= {name: statistic.value for name, statistic in copies.items()}
    question_clusters = [question.cluster for question in prompts]
    intervals |= intervals_of({**answer_scores.statistics, **copies}, question_clusters)
    first_references = [texts[0] for texts in references]
    reference_copies = task.copies(first_references, prompt_texts, training_texts)
    return Evaluation(
        examples=len(part),
        prompts=len(prompts),
        scores=scores,
        intervals=intervals,
        tables=dict(answer_scores.tables),
        baselines=task.baselines(references),
        references=task.of_references(first_references)
        | {name: statistic.value for name, statistic in reference_copies.items()},
        samples=[
            Sample(question.shown, first, question.references)
            for question, (first, *_) in zip(prompts[:samples], candidates[:samples], strict=True)
        ],
    )
