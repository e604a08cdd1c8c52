"""A trained model with its recipe and tokenizer, saved and loaded without pickle."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, get_args, overload

import numpy as np
import torch
from torch import Tensor

from regard import build, checkpoint, disk, tokenizers
from regard.budget import budget
from regard.budget.closed_form.parts import Budget
from regard.data.corpus import Corpus, Split
from regard.device import resolve
from regard.errors import BundleError, DataError, InputError, RecipeError, did_you_mean
from regard.evaluate import RANKED, Evaluation, evaluate
from regard.model import Model
from regard.recipe import Recipe, SourceSound
from regard.resources import check_memory
from regard.retrieval import Retrieval
from regard.search import (
    BeamNode,
    Engine,
    Hypothesis,
    Options,
    Outputs,
    Request,
    StreamedToken,
    seeds_of,
)
from regard.search.engine import MAX_ROWS
from regard.tasks.conversation import is_conversation
from regard.tasks.sources import needs_array, needs_rate
from regard.tasks.task import Task, is_sound
from regard.tokenizers import END, NUM_SPECIAL_TOKENS, PAD, START, UNKNOWN, Tokenizer
from regard.values import END_NAME, Alternative, Answer, Capture, Piece
from regard.weights import load_tensors, read_tensors, size, write_tensors

if TYPE_CHECKING:
    from PIL.Image import Image

RECIPE, TOKENIZER, WEIGHTS = "recipe.json", "tokenizer.json", "model.safetensors"
RETRIEVAL = "retrieval.safetensors"  # only of runs that retrieve training answers
SPLITS = ("train", "valid", "test")
SPECIAL_NAMES = {PAD: "(padding)", START: "(start)", END: END_NAME, UNKNOWN: "(unknown)"}
LOG = logging.getLogger("regard")


Sound: TypeAlias = tuple[np.ndarray | Tensor, float]
Messages: TypeAlias = Sequence[Mapping[str, Any]]
Input: TypeAlias = "str | os.PathLike[str] | np.ndarray | Tensor | Image | Sound"
Turns: TypeAlias = Sequence[str | Mapping[str, Any]]


def _is_single(inputs: Any) -> bool:
    """Whether this is one input rather than several. A string is one input although it can be
    iterated over, and so is an array.

    >>> _is_single("Hello"), _is_single(["Hello"])
    (True, False)
    >>> _is_single(np.zeros((8, 8))), _is_single((np.zeros(8000), 8000))
    (True, True)
    >>> _is_single([{"role": "user", "content": "Hello"}])
    True
    """
    if isinstance(inputs, str | bytes | os.PathLike | np.ndarray | Tensor | Mapping):
        return True
    return is_sound(inputs) or is_conversation(inputs) or not isinstance(inputs, Iterable)


class Stream(Iterator[Piece]):
    """The pieces of an answer as they come, and after the last of them the whole `answer`.

    >>> stream = bot.stream("Tell me a joke")  # doctest: +SKIP
    >>> for piece in stream:  # doctest: +SKIP
    ...     print(piece, end="", flush=True)
    >>> stream.answer.score  # doctest: +SKIP
    -3.1
    """

    def __init__(self, pieces: Generator[Piece, None, Answer]):
        self.answer: Answer | None = None  # until all pieces have come
        self._pieces = pieces

    def __next__(self) -> Piece:
        try:
            return next(self._pieces)
        except StopIteration as end:
            if end.value is not None:
                self.answer = end.value
            raise StopIteration from None


class Trace(NamedTuple):
    """How one input was answered: the answers, best first, with the attention of every layer, and
    the hypotheses that a beam search kept at each step."""

    answers: list[Answer]
    beam: tuple[BeamNode, ...]


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
        single = _is_single(inputs)
        several: Any = [self._with_history(inputs, history)] if single else inputs
        if history is not None and not single:
            raise InputError(
                "a history is of one input",
                where="history",
                got="a list of inputs",
                hint="give each as a list of turns: ask([[*history, input], …])",
            )
        options = self.search_options(options, **changes)
        rows = self.task.read_rows(self._input_list(several, rate))
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
        if _is_single(inputs):
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
        _check_request(alternatives, capture)
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
        _check_request(alternatives, "all")
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
        _check_request(alternatives, capture)
        conversation = self._with_history(input, history)
        (row,) = self.task.read_rows(self._input_list([conversation], rate))
        return Stream(self._pieces(row, options, alternatives, capture))

    @torch.inference_mode()
    def _pieces(
        self, row: np.ndarray, options: Options, alternatives: int, capture: Capture
    ) -> Generator[Piece, None, Answer]:
        held_back: list[StreamedToken] = []  # tokens that have no text yet
        best: Hypothesis | None = None

        def arriving() -> Iterator[int]:
            nonlocal best
            tokens = self._search_tokens(row, options, alternatives, capture)
            while True:
                try:
                    token = next(tokens)
                except StopIteration as end:
                    best = end.value
                    return
                held_back.append(token)
                yield token[0]

        for text in self.task.answer_tokenizer.pieces(arriving()):
            if text:
                yield _piece(text, held_back)
                held_back.clear()
        assert best is not None
        answer = self.answers_from(row, [best])[0]
        count = len(answer.tokens) - len(held_back)
        if count < len(answer.logprobs):
            weights = None if answer.weights is None else answer.weights[count:]
            yield Piece("", answer.tokens[count:], answer.logprobs[count:], weights)
        return answer

    def answers_from(self, row: np.ndarray, hypotheses: Sequence[Hypothesis]) -> list[Answer]:
        """The answers to one input."""
        weights = hypotheses[0].weights
        places = None if weights is None else weights.shape[-1]
        grid = self.model.frontend.grid
        names = self.task.place_names(row, places, grid)
        answers = []
        for hypothesis in hypotheses:
            if not self.task.answers_are_text:
                hypothesis = _without_end(hypothesis)
            pieces = tuple(self.task.answer_tokenizer.pieces(hypothesis.tokens))
            answer = Answer(
                tokens=hypothesis.tokens,
                text="".join(pieces),
                score=hypothesis.score,
                pieces=pieces,
                logprobs=hypothesis.logprobs,
                finish=hypothesis.finish,
                weights=None if hypothesis.weights is None else hypothesis.weights.cpu(),
                place_names=names,
                grid=grid,
                alternatives=self._alternatives(hypothesis),
                attention=None if hypothesis.attention is None else hypothesis.attention.cpu(),
                rank=hypothesis.rank,
                retrieved=hypothesis.retrieved,
            )
            answers.append(answer)
        return answers

    def _alternatives(self, hypothesis: Hypothesis) -> tuple[tuple[Alternative, ...], ...] | None:
        """The alternatives at each step, with the text that each would append there, or the name of
        a special token. Those of a label are labels."""
        if hypothesis.alternatives is None:
            return None
        return tuple(
            self.alternatives_after(hypothesis.tokens[:t], step)
            for t, step in enumerate(hypothesis.alternatives)
        )

    def alternatives_after(
        self, tokens: Sequence[int], likeliest: Sequence[tuple[int, float]]
    ) -> tuple[Alternative, ...]:
        """The likeliest tokens after those of an answer so far, with the text that each would
        append."""
        decode = self.task.answer_tokenizer.decode
        length = len(decode(tokens))
        alternatives = []
        for token, probability in likeliest:
            if token in SPECIAL_NAMES and not self.task.answers_are_text:
                continue
            text = SPECIAL_NAMES.get(token) or decode([*tokens, token])[length:]
            alternatives.append(Alternative(token, text, probability))
        return tuple(alternatives)

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

    # -- options and inputs --

    def search_options(
        self, options: Options | None = None, *, greedy: bool = False, **changes: Any
    ) -> Options:
        """The recipe's search options with some of them changed.

        As on the command line, `num_beams` turns sampling off, and `greedy=True` drops what the
        recipe says about the search except `max_new_tokens`. `seed=None` draws anew at every call.

        >>> bot.search_options(num_beams=4).do_sample  # doctest: +SKIP
        False
        """
        if options is not None and not isinstance(options, Options):
            raise InputError(
                "options must be regard.Options",
                where="ask",
                got=type(options).__name__,
                hint="give single search options by name: ask(input, num_beams=2)",
            )
        if not changes and not greedy:
            return self.options if options is None else self._suits_task(options)
        if options is not None:
            names = [*(["greedy"] if greedy else []), *changes]
            raise InputError(
                "give options or single search options, not both",
                where="ask",
                got=", ".join(names),
            )

        section = {}
        for name, value in changes.items():
            if name not in Options.model_fields:
                raise InputError(
                    "no such search option",
                    where="ask",
                    got=name,
                    hint=did_you_mean(name, [*Options.model_fields, "greedy"]),
                )
            if value is not None:
                section[name] = value.item() if isinstance(value, np.generic) else value
        if "num_beams" in section:  # a beam search draws nothing
            section = {"do_sample": False, "candidates": 1, "retrieved": 0} | section

        recipe = greedy_recipe(self.recipe) if greedy else self.recipe
        try:
            chosen = recipe.replaced({"search": section}, "ask").search
        except RecipeError as problem:
            raise InputError(str(problem)) from None
        if greedy:
            check_greedy(chosen, "greedy=True")
        draws_anew = "seed" in changes and changes["seed"] is None
        return chosen.replaced(seed=None) if draws_anew else chosen

    def _suits_task(self, options: Options) -> Options:
        """The options, unless the task cannot have them: a label is one token."""
        given = {name: value for name, value in options if value is not None}
        try:
            self.recipe.replaced({"search": given}, "ask")
        except RecipeError as problem:
            raise InputError(str(problem)) from None
        return options

    def _with_history(self, value: Any, history: Turns | None) -> Any:
        """An input and the turns before it, as one list of turns."""
        if history is None:
            return value
        if self.recipe.task != "chat":
            raise InputError(
                "a history is for chats", where="history", got=f"a model for {self.recipe.task}"
            )
        if isinstance(history, str) or not isinstance(history, Sequence):
            raise InputError(
                "a history is a list of turns", where="history", got=type(history).__name__
            )
        if not isinstance(value, str | Mapping):
            raise InputError(
                "a history goes before one turn", where="history", got=type(value).__name__
            )
        return [*history, value]

    def _input_list(self, inputs: Iterable[Any], rate: float | None) -> list[Input | Turns]:
        """Inputs as a list, in which arrays of samples have their rate."""
        batch = list(inputs)
        source = self.recipe.source
        if not isinstance(source, SourceSound):
            if rate is not None:
                raise InputError(
                    "rate is for sounds, and this model reads none", where="ask", got=f"rate={rate}"
                )
            return batch

        if rate is not None and (
            isinstance(rate, bool) or not isinstance(rate, int | float | np.integer | np.floating)
        ):
            raise InputError(
                "rate must be a number, the samples a second",
                where="ask",
                got=f"rate={rate!r}",
                hint=f"as in rate={source.rate}",
            )
        sounds = []
        for sound in batch:
            if isinstance(sound, np.ndarray | Tensor):
                if rate is None:
                    raise needs_rate(sound, source.rate)
                sound = (sound, rate)
            elif isinstance(sound, int | float | np.number | list):
                if len(batch) > 1 or rate is not None or isinstance(sound, list):
                    raise needs_array(sound, source.rate)
            elif rate is not None:
                raise InputError(
                    "rate is for arrays of samples: a file says its own",
                    where="ask",
                    got=f"rate={rate}",
                )
            sounds.append(sound)
        return sounds

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


def _piece(text: str, streamed: Sequence[StreamedToken]) -> Piece:
    tokens = tuple(step.token for step in streamed)
    logprobs = tuple(step.logprob for step in streamed)
    weights = [step.weights for step in streamed if step.weights is not None]
    return Piece(text, tokens, logprobs, torch.stack(weights).cpu() if weights else None)


def _without_end(hypothesis: Hypothesis) -> Hypothesis:
    """A label without the step after it, in which a classifier's end token is certain."""
    steps = len(hypothesis.tokens)
    weights, alternatives, attention = (
        hypothesis.weights,
        hypothesis.alternatives,
        hypothesis.attention,
    )
    return replace(
        hypothesis,
        logprobs=hypothesis.logprobs[:steps],
        weights=None if weights is None else weights[:steps],
        alternatives=None if alternatives is None else alternatives[:steps],
        attention=None if attention is None else attention.first_steps(steps),
    )


def _check_request(alternatives: object, capture: object) -> None:
    if not isinstance(alternatives, int) or isinstance(alternatives, bool) or alternatives < 0:
        raise InputError("must be a whole number >= 0", where="alternatives", got=alternatives)
    if capture not in get_args(Capture):
        raise InputError(
            "no such capture", where="ask", got=capture, hint='one of "none", "cross", "all"'
        )


def greedy_recipe(recipe: Recipe) -> Recipe:
    """The recipe with a greedy search, of which only `max_new_tokens` is the recipe's own."""
    search = Options(max_new_tokens=recipe.search.max_new_tokens)
    return recipe.model_copy(update={"search": search})


def check_greedy(options: Options, where: str) -> None:
    """Refuse options that contradict a greedy search."""
    contradictions = []
    if options.num_beams > 1:
        contradictions.append(f"num_beams={options.num_beams}")
    if options.do_sample:
        contradictions.append("do_sample=true")
    if options.candidates > 1:
        contradictions.append(f"candidates={options.candidates}")
    if options.retrieved:
        contradictions.append(f"retrieved={options.retrieved}")
    if contradictions:
        raise InputError(
            "a greedy search has one beam and draws nothing",
            where=where,
            got=" and ".join(contradictions),
            hint="leave one of them out",
        )


def create(folder: Path, recipe: Recipe, tokenizer: Tokenizer) -> None:
    """Begin a run: what stays the same whatever the weights are. The manifest comes first, so
    that a folder that a kill left half-made is known to be ours."""
    disk.write_json(folder / disk.MANIFEST, {"format": disk.FORMAT, "files": {}})
    put_recipe(folder, recipe)
    text = tokenizers.dumps(tokenizer)
    with disk.needs(len(text.encode())):
        disk.put(folder, TOKENIZER, lambda draft: draft.write_text(text, "utf-8"))


def has_begun(folder: Path) -> bool:
    """Whether there is a run in this folder, all of `create` included."""
    needed = {RECIPE, TOKENIZER}
    listed = disk.manifest(folder) if (folder / disk.MANIFEST).exists() else {}
    return needed <= listed.keys() and all((folder / name).is_file() for name in needed)


def has_weights(folder: Path) -> bool:
    """Whether the weights of a run are there and are what was saved."""
    try:
        disk.verify_files(folder, WEIGHTS)
    except BundleError:
        return False
    return True


def put_weights(folder: Path, content: dict[str, Tensor]) -> None:
    with disk.needs(size(content)):
        disk.put(folder, WEIGHTS, lambda draft: write_tensors(draft, content))


def put_retrieval(folder: Path, retrieval: Retrieval) -> None:
    content = retrieval.tensors()
    with disk.needs(size(content)):
        disk.put(folder, RETRIEVAL, lambda draft: write_tensors(draft, content))


def put_recipe(folder: Path, recipe: Recipe) -> None:
    text = json.dumps(recipe.to_json(), ensure_ascii=False, indent=1)
    disk.put(folder, RECIPE, lambda draft: draft.write_text(text + "\n", "utf-8"))


def load(folder: Path | str, *, device: str | torch.device = "auto") -> Bundle:
    """The model of a run's folder, ready to be asked. Every file is checked against its SHA-256 sum
    first.

    Its weights are those that a validation kept. A run that was stopped before its first validation
    has those of its newest checkpoint, and a warning of the logger "regard" says so.

    folder   a run's folder; or one of its checkpoints, runs/demo/checkpoints/step-000400
    device   "auto" (a GPU if there is one), "cpu", "cuda" or "mps", wherever it was trained
    >>> bot = regard.load("runs/demo")  # doctest: +SKIP
    >>> bot.ask("Are you a robot?").text  # doctest: +SKIP
    'Yes I am.'
    """
    if not isinstance(folder, str | os.PathLike) or not isinstance(os.fspath(folder), str):
        raise InputError(
            "needs the path of a run's folder",
            where="load",
            got=type(folder).__name__,
            hint='as in regard.load("runs/demo")',
        )
    device = resolve(device)
    folder = Path(folder)
    if not os.path.isdir(folder):  # Path.is_dir raises for a name that is too long
        name = str(folder)
        raise BundleError(
            "no such run",
            where=name if len(name) <= 200 else f"{name[:200]}…",
            hint="train one with: regard train chat-attention",
        )
    if not (folder / disk.MANIFEST).exists():
        raise BundleError("not a run folder: it has no manifest.json", where=folder)
    weights = folder / WEIGHTS
    if folder.resolve().parent.name == checkpoint.FOLDER:
        weights = checkpoint.weights_of(folder)
        folder = folder.resolve().parent.parent
        listed = disk.manifest(folder)
        disk.verify_files(folder, RECIPE, TOKENIZER, *listed.keys() & {RETRIEVAL})
        saved = _read_weights(weights)
    elif weights.exists():
        disk.verify(folder, RECIPE, TOKENIZER, WEIGHTS)
        saved = _read_weights(weights)
    else:
        weights, saved = _checkpoint_weights(folder)
    recipe = Recipe.from_json(disk.read_json(folder / RECIPE), folder / RECIPE)
    tokenizer = tokenizers.read(folder / TOKENIZER)
    model = build.model(recipe, vocabulary=tokenizer.size, source_vocabulary=tokenizer.source_size)
    load_tensors(model, saved, weights)
    retrieval = None
    if RETRIEVAL in disk.manifest(folder):
        retrieval = Retrieval.read(folder / RETRIEVAL, tokenizer)
    return Bundle(recipe, build.task(recipe, tokenizer), model.to(device).eval(), retrieval)


def _read_weights(file: Path) -> dict[str, Tensor]:
    try:
        count = file.stat().st_size
    except FileNotFoundError:
        raise BundleError("a file is missing", where=file) from None
    check_memory(2 * count, "the weights of this run, read and in the model,")
    return read_tensors(file)


def _checkpoint_weights(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """The weights of the newest checkpoint, of a run that has kept none yet; a warning says so."""
    again = f"regard train --resume {quote(str(folder))}"
    if WEIGHTS in disk.manifest(folder):
        hint = f"restore it from a checkpoint with: {again}"
        raise BundleError("a file is missing", where=folder / WEIGHTS, hint=hint)
    disk.verify(folder, RECIPE, TOKENIZER)
    newest = checkpoint.newest_weights(folder, LOG.warning)
    if newest is None:
        raise BundleError(
            "no weights yet: neither a validation nor a checkpoint has saved any",
            where=folder,
            hint=f"train it with: {again} --minutes 1",
        )
    file, step = newest
    try:
        saved = _read_weights(file)
    except BundleError:
        if file.exists():
            raise
        return _checkpoint_weights(folder)  # a trainer has removed it, after it saved a newer one
    LOG.warning(
        "%s: not validated yet; using the weights of its checkpoint of step %s",
        folder,
        f"{step:,}",
    )
    return file, saved
