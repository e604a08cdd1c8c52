"""The class `Bundle`: a model that is asked, streamed, evaluated and measured."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch

from regard import build
from regard.budget import budget
from regard.budget.closed_form.parts import Budget
from regard.bundle.answers import (
    Stream,
    Trace,
    alternatives_after,
    answers_from,
    stream_pieces,
)
from regard.bundle.inputs import Input, Messages, Turns, input_list, is_single, with_history
from regard.bundle.options import check_outputs, search_options
from regard.data.corpus import Corpus, Split
from regard.errors import DataError, InputError
from regard.evaluate import RANKED, Evaluation, evaluate
from regard.model import Model
from regard.recipe import Recipe
from regard.retrieval import Retrieval
from regard.search import (
    Engine,
    Hypothesis,
    Options,
    Outputs,
    Request,
    StreamedToken,
    seeds_of,
)
from regard.search.engine import MAX_ROWS
from regard.tasks.task import Task
from regard.tokenizers import NUM_SPECIAL_TOKENS, Tokenizer
from regard.values import Alternative, Answer, Capture, Piece

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True, repr=False)
class Bundle:
    """A trained model with its recipe and its task. `regard.load(run)` makes one, and so does
    `regard.train(recipe)`.
    >>> bot = regard.load("runs/demo")  # doctest: +SKIP
    >>> bot.ask("What are you?").text  # doctest: +SKIP
    'I am an artificial intelligence.'
    """

    recipe: Recipe
    task: Task
    model: Model
    retrieval: Retrieval | None = None  # the training answers, if the run has them

    def __repr__(self) -> str:
        return f"Bundle({self.recipe.summary!r}, {self.model.parameter_count:,} parameters)"

    @property
    def tokenizer(self) -> Tokenizer:
        """The run's own tokenizer, as `tokenizer.json` has it."""
        return self.task.tokenizer

    @property
    def options(self) -> Options:
        """The default search options: the recipe's section [search]."""
        return self.recipe.search

    # -- ask --

    @overload
    def ask(
        self,
        inputs: Input,
        options: Options | None = None,
        *,
        history: Turns | None = None,
        rate: float | None = None,
        alternatives: int = 0,
        capture: Capture = "none",
        **changes: Any,
    ) -> Answer: ...

    @overload
    def ask(
        self,
        inputs: Iterable[Input | Turns],
        options: Options | None = None,
        *,
        history: Turns | None = None,
        rate: float | None = None,
        alternatives: int = 0,
        capture: Capture = "none",
        **changes: Any,
    ) -> list[Answer]: ...

    @overload
    def ask(
        self,
        inputs: Messages,
        options: Options | None = None,
        *,
        history: None = None,
        rate: None = None,
        alternatives: int = 0,
        capture: Capture = "none",
        **changes: Any,
    ) -> Answer: ...

    def ask(
        self,
        inputs: Input | Iterable[Input | Turns] | Messages,
        options: Options | None = None,
        *,
        history: Turns | None = None,
        rate: float | None = None,
        alternatives: int = 0,
        capture: Capture = "none",
        **changes: Any,
    ) -> Answer | list[Answer]:
        """The answer to one input, or a list of the answers to several.

        inputs   one input, or a list of them. What an input is depends on the task:
                 text      a str (for the task `blank`, with ___ in the place of a word); in a
                           chat also a list of turns, oldest first: strings, or messages
                           {"role": "user" or "assistant", "content": str}
                 picture   the path of a file, a PIL image, or an array (h, w), (h, w, 1),
                           (h, w, 3) or (h, w, 4) of bytes or of floats from 0 to 1; each is
                           resized as the file of that picture would be
                 sound     the path of a file, or samples (n,) or (n, channels) with `rate=`,
                           or (samples, rate)
        options  all search options; by default the recipe's
        history  the turns before a single input, oldest first, as in a list of turns. A model
                 reads as many of them as it was trained to read (`data.turns`)
        rate     samples a second, for arrays of samples
        alternatives  so many of the likeliest tokens (or labels) are recorded at each step of an
                 answer
        capture  "cross" or "all": record the attention of every layer, see `Answer.attention`
        changes  single search options, as in `num_beams=4`, on top of the recipe's;
                 `greedy=True` takes the likeliest token at each step

        An `Answer` has tokens, text, score and weights (T, H, S): step of the answer, head, place
        of the source. Where answers are drawn, each depends on its own input and on the option
        `seed` alone: asked twice, also in one call, the same input has the same answer.
        >>> bot.ask("Are you a robot?").text  # doctest: +SKIP
        'Yes I am.'
        >>> [answer.text for answer in bot.ask(["Hello!", "Are you a robot?"])]  # doctest: +SKIP
        ['Greetings!', 'Yes I am.']
        >>> likeliest = bot.ask("Hello!", num_beams=4)  # doctest: +SKIP
        >>> bot.ask("Are you a robot?").weights.shape  # doctest: +SKIP
        torch.Size([5, 1, 5])
        >>> bot.ask("And you?", history=["How are you?", "Fine."]).text  # doctest: +SKIP
        'I am fine, too.'
        """
        single = is_single(inputs)
        several: Any = [with_history(self.recipe, inputs, history)] if single else inputs
        if history is not None and not single:
            raise InputError(
                "a history is of one input",
                where="history",
                got="a list of inputs",
                hint="give each as a list of turns: ask([[*history, input], …])",
            )
        options = self.search_options(options, **changes)
        rows = self.task.read_rows(input_list(self.recipe, several, rate))
        ranked = self.answer_rows(rows, options, alternatives=alternatives, capture=capture)
        answers = [candidates[0] for candidates in ranked]
        return answers[0] if single else answers

    def candidates(
        self,
        inputs: Iterable[Input | Turns],
        options: Options | None = None,
        *,
        alternatives: int = 0,
        capture: Capture = "none",
        **changes: Any,
    ) -> list[list[Answer]]:
        """For each of several inputs, every answer that the search finds, best first.
        >>> len(bot.candidates(["Hello!"], num_beams=5, candidates=5)[0])  # doctest: +SKIP
        5
        """
        options = self.search_options(options, **changes)
        if is_single(inputs):
            raise InputError(
                "needs a list of inputs",
                where="candidates",
                got=f"one {type(inputs).__name__}",
                hint="put it in a list: candidates([input])",
            )
        rows = self.task.read_rows(list(inputs))
        return self.answer_rows(rows, options, alternatives=alternatives, capture=capture)

    @torch.inference_mode()
    def answer_rows(
        self,
        rows: Sequence[np.ndarray],
        options: Options,
        *,
        alternatives: int = 0,
        capture: Capture = "none",
    ) -> list[list[Answer]]:
        """As `candidates`, for inputs that are read already: rows of `task.read_one`, or of a
        corpus."""
        check_outputs(alternatives, capture)
        if not rows:
            return []
        results = self._search(rows, options, alternatives, capture)
        return [
            self.answers_from(row, hypotheses)
            for row, hypotheses in zip(rows, results, strict=True)
        ]

    @torch.inference_mode()
    def trace(self, row: np.ndarray, options: Options, *, alternatives: int = 0) -> Trace:
        """The answers to one input that is read already, with the attention of every layer and
        the hypotheses of the beam search."""
        check_outputs(alternatives, "all")
        outputs = Outputs(alternatives=alternatives, capture="all", beam=True)
        (request,) = self._run([row], options, outputs)
        return Trace(self.answers_from(row, request.result()), tuple(request.beam))

    def stream(
        self,
        input: Input | Turns,  # noqa: A002 -- one of what `ask` calls inputs
        options: Options | None = None,
        *,
        history: Turns | None = None,
        rate: float | None = None,
        alternatives: int = 0,
        capture: Capture = "none",
        **changes: Any,
    ) -> Stream:
        """The answer to one input as it comes: pieces of text that add up to it, with their
        attention. The arguments are those of `ask`.
        >>> for piece in bot.stream("Tell me a joke", temperature=0.7):  # doctest: +SKIP
        ...     print(piece, end="", flush=True)
        """
        options = self.search_options(options, **changes)
        check_outputs(alternatives, capture)
        conversation = with_history(self.recipe, input, history)
        (row,) = self.task.read_rows(input_list(self.recipe, [conversation], rate))
        return Stream(self._pieces(row, options, alternatives, capture))

    @torch.inference_mode()
    def _pieces(
        self, row: np.ndarray, options: Options, alternatives: int, capture: Capture
    ) -> Generator[Piece, None, Answer]:
        tokens = self._search_tokens(row, options, alternatives, capture)
        return (
            yield from stream_pieces(
                self.task.answer_tokenizer,
                tokens,
                answer_of=lambda best: self.answers_from(row, [best])[0],
            )
        )

    def answers_from(self, row: np.ndarray, hypotheses: Sequence[Hypothesis]) -> list[Answer]:
        """The answers to one input."""
        return answers_from(self.task, self.model.frontend.grid, row, hypotheses)

    def alternatives_after(
        self, tokens: Sequence[int], likeliest: Sequence[tuple[int, float]]
    ) -> tuple[Alternative, ...]:
        """The likeliest tokens after those of an answer so far, with the text that each would
        append."""
        return alternatives_after(self.task, tokens, likeliest)

    # -- search --

    def engine(self, *, max_rows: int = MAX_ROWS) -> Engine:
        """An engine that answers requests of several callers in one batch."""
        return Engine(
            self.model,
            self.task.special_tokens,
            empty_prompt=self.task.nothing,
            retriever=self.retrieval,
            max_rows=max_rows,
            device=self.model.device,
        )

    def _search(
        self,
        rows: Sequence[np.ndarray],
        options: Options,
        alternatives: int,
        capture: Capture,
    ) -> list[list[Hypothesis]]:
        """The hypotheses for each row, best first; their weights have the places of that row."""
        outputs = Outputs(alternatives=alternatives, capture=capture)
        return [request.result() for request in self._run(rows, options, outputs)]

    def _run(self, rows: Sequence[np.ndarray], options: Options, outputs: Outputs) -> list[Request]:
        """A request for each row, all of them done."""
        engine = self.engine()
        inputs = [self.task.sources([row]) for row in rows]
        seeds = seeds_of(options, [raw.cpu().numpy().tobytes() for raw, _ in inputs])
        requests = []
        for i, (raw, mask) in enumerate(inputs):
            seed = None if seeds is None else seeds[i]
            requests.append(engine.submit(raw, mask, options, seed=seed, outputs=outputs))
        engine.run()
        return requests

    def _search_tokens(
        self, row: np.ndarray, options: Options, alternatives: int, capture: Capture
    ) -> Generator[StreamedToken, None, Hypothesis]:
        """The tokens of the best hypothesis for one row as they come, then that hypothesis."""
        engine = self.engine()
        raw, mask = self.task.sources([row])
        outputs = Outputs(alternatives=alternatives, capture=capture, stream=True)
        request = engine.submit(raw, mask, options, outputs=outputs)
        yield from engine.stream(request)
        return request.result()[0]

    # -- evaluate, budget --

    def evaluate(
        self,
        data: str | os.PathLike[str] | None = None,
        split: str = "valid",
        limit: int | None = None,
        options: Options | None = None,
        *,
        ranked: int = RANKED,
        **changes: Any,
    ) -> Evaluation:
        """Scores on held-out examples: the likelihood of their answers, their rank among others,
        and the task's scores of the model's own answers.

        data     other data of the same kind, used whole; by default the run's own
        split    the part of the run's own data: "train", "valid" or "test"
        limit    answer only so many inputs, spread evenly; the likelihood uses all examples
        options  all search options; by default the recipe's
        ranked   rank the true answers of only so many examples, spread evenly; 0: none
        changes  single search options, as in `num_beams=4`
        >>> bot.evaluate(limit=100).scores["perplexity"]  # doctest: +SKIP
        12.5
        """
        if limit is not None and (not isinstance(limit, int) or limit < 1):
            raise InputError("must be a whole number >= 1", where="limit", got=limit)
        if not isinstance(ranked, int) or ranked < 0:
            raise InputError("must be a whole number >= 0", where="ranked", got=ranked)
        options = self.search_options(options, **changes)
        training = None
        if data is None:
            corpus, part = self.own_data(split)
            training = corpus.train if split != "train" else None
        else:
            part = self.other_data(data).train
        if not len(part):
            raise DataError(
                "no examples to evaluate on",
                where="evaluate",
                got=f'split="{split}"' if data is None else data,
                hint="evaluate(data=PATH) scores other data",
            )
        return evaluate(
            self,
            part,
            options=options,
            at_most=limit,
            ranked_examples=ranked,
            training=training,
        )

    def own_data(self, split: str = "valid") -> tuple[Corpus, Split]:
        """The run's own data, and the named part of it."""
        if split not in SPLITS:
            raise InputError(
                "no such split", where="split", got=split, hint=f"one of {', '.join(SPLITS)}"
            )
        corpus = build.corpus(self.recipe, self.tokenizer)
        return corpus, getattr(corpus, split)

    def other_data(self, path: str | os.PathLike[str]) -> Corpus:
        """Other data of the same kind, all of it in the part `train`."""
        return build.other(self.recipe, self.tokenizer, Path(path))

    def budget(
        self, *, batch: int = 32, source_length: int = 64, target_length: int = 64
    ) -> Budget:
        """Parameters, operations and memory of this model, by closed forms.
        >>> bot.budget().parameters  # doctest: +SKIP
        2656440
        """
        return recipe_budget(
            self.recipe,
            self.tokenizer,
            batch=batch,
            source_length=source_length,
            target_length=target_length,
        )

    def search_options(
        self, options: Options | None = None, *, greedy: bool = False, **changes: Any
    ) -> Options:
        """The recipe's search options with some of them changed.

        As on the command line, `num_beams` turns sampling off, and `greedy=True` drops what the
        recipe says about the search except `max_new_tokens`. `seed=None` draws anew at every call.

        >>> bot.search_options(num_beams=4).do_sample  # doctest: +SKIP
        False
        """
        return search_options(self.recipe, options, greedy=greedy, **changes)

    @torch.inference_mode()
    def attends(self) -> bool:
        """Whether answers come with attention weights, as one step of the decoder shows."""
        device = self.model.device
        raw, mask = self.task.sources([self.task.source.example()])
        memory = self.model.encode(raw.to(device), mask.to(device))
        state = self.model.decoder.start(memory)
        start = torch.tensor([self.task.special_tokens.start], device=device)
        step = self.model.decoder.step(start, state)
        return step.weights is not None


def recipe_budget(
    recipe: Recipe,
    tokenizer: Tokenizer,
    *,
    batch: int = 32,
    source_length: int = 64,
    target_length: int = 64,
) -> Budget:
    """The budget of a recipe with the vocabulary of a tokenizer."""
    vocabulary = tokenizer.size
    labels = None
    if recipe.task == "classify":  # its tokenizer has the labels, and that of the source
        vocabulary = tokenizer.source_size or None
        labels = tokenizer.size - NUM_SPECIAL_TOKENS
    return budget(
        recipe,
        batch=batch,
        source_length=source_length,
        target_length=target_length,
        vocabulary=vocabulary,
        labels=labels,
    )
