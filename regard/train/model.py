"""Training from Python: `regard.train(recipe)`, from the name of a recipe to a trained model."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch

from regard import build, checkpoint, runs, tokenizers
from regard.bundle import Bundle, load
from regard.errors import InputError, did_you_mean, printable
from regard.plot import JUDGED_ON, curves
from regard.recipe import Recipe
from regard.retrieval import Retrieval
from regard.train.ranks import Ranks, joined
from regard.train.report import Facts, SilentReporter, main_scores
from regard.train.run import agreed_job, train_job
from regard.weights import tensors

PathLike = str | os.PathLike[str]
P = ParamSpec("P")
R = TypeVar("R")


def refuse_unknown_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """A function that answers a misspelled keyword with the nearest one."""
    names = inspect.signature(function).parameters

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in names:
                raise InputError(
                    "no such argument",
                    where=function.__name__,
                    got=name,
                    hint=did_you_mean(name, names),
                )
        return function(*args, **kwargs)

    return checked


@refuse_unknown_arguments
def train(
    recipe: str | os.PathLike[str] | Recipe | None = None,
    *,
    data: PathLike | None = None,
    out: PathLike | None = None,
    set: Mapping[str, Any] | None = None,  # noqa: A002 -- as on the command line
    minutes: float | None = None,
    steps: int | None = None,
    epochs: int | None = None,
    tokens: int | None = None,
    resume: PathLike | None = None,
    anyway: bool = False,
    device: str = "auto",
    quiet: bool = False,
) -> Bundle:
    """Train a model as `regard train` does, and load it.

    recipe   the name of a shipped recipe, the path of a .toml file, or a `Recipe`
    data     your own data: a file or folder; by default the recipe's
    out      the run's folder; by default runs/RECIPE, or if that exists runs/RECIPE-2, …
    set      changes of the recipe, as in `{"encoder.width": 128}`
    minutes, steps, epochs, tokens
             when training ends, at the first of those given, instead of the recipe's own
    resume   the folder of a run that was stopped, to go on with instead of a recipe
    anyway   with `resume`: go on although the data or settings changed
    device   "auto" (a GPU if there is one), "cpu", "cuda" or "mps"
    quiet    print nothing

    In a program that torchrun started, its processes train one model together, and each of them
    gets it.

    >>> bot = regard.train("chat-attention", data="pairs.tsv", minutes=2)  # doctest: +SKIP
    >>> bot.ask("Hello!").text  # doctest: +SKIP
    'Hi there.'
    >>> bot = regard.train(resume="runs/chat-attention", minutes=5)  # doctest: +SKIP
    """
    _check_limits(steps=steps, epochs=epochs, tokens=tokens, minutes=minutes)
    _check_paths(data=data, out=out, resume=resume)
    limits = runs.Limits(steps, epochs, tokens, minutes)
    changes = _changes({} if set is None else set)
    own_data = None if data is None else Path(data)
    if resume is None:
        if anyway:
            raise InputError(
                "anyway is for a run that is resumed", where="train", hint="give resume=RUN"
            )
        base = _base(recipe)
        folder = None if out is None else Path(out)

        def make(earlier: Path | None) -> runs.Job:
            new = runs.new(base, data=own_data, changes=changes, limits=limits)
            return new.job(earlier or folder)

    elif recipe is None and out is None:
        run = Path(resume)

        def make(earlier: Path | None) -> runs.Job:
            return runs.resumed(run, data=own_data, changes=changes, limits=limits, anyway=anyway)

    else:
        raise InputError(
            "resume goes on in the run's own folder with its own recipe",
            where="train",
            got=f"out={out}" if recipe is None else "a recipe",
            hint="leave it out",
        )

    reporter = SilentReporter() if quiet else PrintingReporter()
    with joined() as ranks:
        job = agreed_job(ranks, make)
        result = train_job(job, reporter, device=device, ranks=ranks)
        if ranks.is_leader:
            with contextlib.suppress(InputError):  # a person's own file has the name of the curves
                curves(job.run)
            reporter.noted(f"{result.kept_because}; the run is {job.run}")
        return _loaded(job.run, ranks, ranks.device(device))


def _loaded(run: Path, ranks: Ranks, device: torch.device) -> Bundle:
    """The model of a run, which only the leader reads from its folder."""
    bundle = load(run, device=device) if ranks.is_leader else None

    def description() -> list[Any]:
        assert bundle is not None
        data = checkpoint.recorded_data(run)
        return [bundle.recipe.to_json(), bundle.tokenizer.to_json(), data]

    fields, vocabulary, data = ranks.lead(description)
    if bundle is None:
        recipe = Recipe.from_json(fields)
        tokenizer = tokenizers.load(vocabulary)
        sizes = {"vocabulary": tokenizer.size, "source_vocabulary": tokenizer.source_size}
        model = build.model(recipe, **sizes).to(device).eval()
        retrieval = None
        if recipe.search.retrieved:
            corpus = build.opened_corpus(recipe, data, check=True)
            retrieval = None if corpus is None else Retrieval.of(corpus.train, tokenizer)
        bundle = Bundle(recipe, build.task(recipe, tokenizer), model, retrieval)
    ranks.copy(list(tensors(bundle.model).values()))
    return bundle


def _check_limits(**limits: object) -> None:
    for name, limit in limits.items():
        if limit is None:
            continue
        if isinstance(limit, bool) or not isinstance(limit, int | float):
            raise InputError("must be a number", where=f"train, {name}", got=repr(limit))


def _check_paths(**paths: object) -> None:
    for name, path in paths.items():
        if path is not None and not isinstance(path, str | os.PathLike):
            raise InputError("must be a path", where=f"train, {name}", got=repr(path))
        if path is not None and not os.fspath(path):
            raise InputError("the path is empty", where=f"train, {name}")


def _base(recipe: object) -> str | Recipe:
    if isinstance(recipe, Recipe):
        return recipe
    if isinstance(recipe, str | os.PathLike):
        return str(recipe)
    raise InputError(
        "needs a recipe",
        where="train",
        got="none" if recipe is None else type(recipe).__name__,
        hint='as in regard.train("chat-attention")',
    )


def _changes(fields: Mapping[str, Any]) -> list[str]:
    """Changes of a recipe as the command line has them.

    >>> _changes({"encoder.width": 128, "data.path": "a.tsv", "train.minutes": None})
    ['encoder.width=128', 'data.path="a.tsv"', 'train.minutes=']
    """
    if not isinstance(fields, Mapping):
        raise InputError(
            "set must be a dict",
            where="train",
            got=type(fields).__name__,
            hint='as in set={"encoder.width": 128}',
        )
    changes = []
    for key, value in fields.items():
        try:
            text = "" if value is None else json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError):
            raise InputError(
                "not a value of a recipe", where=f"set, {key}", got=type(value).__name__
            ) from None
        changes.append(f"{key}={text}")
    return changes


class PrintingReporter(SilentReporter):
    """Prints a line for each validation."""

    def began(self, facts: Facts) -> None:
        super().began(facts)
        self.noted(f"{facts.data}; {sum(facts.parameters.values()):,} parameters")

    def validated(self, record: dict[str, Any], samples: Sequence[tuple[str, str]]) -> None:
        scores = [f"{name} {value:.4g}" for name, value in main_scores(record).items()]
        self.noted(f"step {record['step']:,}: {JUDGED_ON[record['kind']]} {', '.join(scores)}")

    def noted(self, message: str) -> None:
        print(printable(message), flush=True)
