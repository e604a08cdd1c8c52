"""What a model costs, before it is trained: the function `budget`, the command `regard budget`.

    budget("chat-transformer", batch=32, source_length=64)    a recipe, by closed forms
    budget("runs/demo"), budget("config.json")                a run; a Hugging Face config
    budget(module, example_inputs)                            any module, counted by running it

Closed forms need neither torch nor weights. docs/budget.md says what is counted and how the closed
forms are tested.

>>> budget("image-pool").parameters == budget("image-pool", batch=1).parameters
True
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from regard.budget.closed_form.layers import Lengths
from regard.budget.closed_form.parts import Budget
from regard.errors import InputError

if TYPE_CHECKING:
    from torch import nn

    from regard.budget.modules import Counted
    from regard.recipe import Recipe

BATCH = 32
LENGTH = 64
LARGEST = 1 << 30  # of lengths, batch size, vocabulary and labels


@overload
def budget(
    what: str | Path | Recipe,
    *,
    batch: int = BATCH,
    source_length: int = LENGTH,
    target_length: int = LENGTH,
    vocabulary: int | None = None,
    labels: int | None = None,
) -> Budget: ...


@overload
def budget(what: nn.Module, example_inputs: Any, *, training: bool = False) -> Counted: ...


def budget(
    what: Any,
    example_inputs: Any = None,
    *,
    training: bool = False,
    batch: int = BATCH,
    source_length: int = LENGTH,
    target_length: int = LENGTH,
    vocabulary: int | None = None,
    labels: int | None = None,
) -> Budget | Counted:
    """The cost of a model: of a recipe, a run's folder or a config.json by closed forms, of a
    torch.nn.Module by calling it once.

    what            the name or path of a recipe, a `Recipe`, the folder of a run, a Hugging Face
                    config.json, or a module
    example_inputs  for a module: its arguments, a tensor, a tuple or a dict
    training        for a module: count a training step too
    batch, source_length, target_length
                    the sizes of one batch
    vocabulary, labels
                    for a recipe: their numbers; by default the most that the tokenizer
                    may make, and a guess

    >>> budget("chat-transformer", vocabulary=3000).parameters
    2656440
    """
    from regard.recipe import Recipe

    if isinstance(what, str | Path | Recipe):
        at = lengths(batch, source_length, target_length)
        return of(what, at, vocabulary=vocabulary, labels=labels)

    import torch

    if not isinstance(what, torch.nn.Module):
        raise InputError(
            "needs a recipe, a path or a torch.nn.Module", where="budget", got=type(what).__name__
        )
    if example_inputs is None:
        raise InputError(
            "a module is counted by calling it",
            where="example_inputs",
            hint="budget(module, example_inputs)",
        )

    from regard.budget.modules import of_module

    return of_module(what, example_inputs, training=training)


def lengths(batch: int, source_length: int, target_length: int) -> Lengths:
    """The batch size and lengths as symbols, checked."""
    _check_size("batch", batch)
    _check_size("source length", source_length)
    _check_size("target length", target_length)
    return Lengths.of(batch, source_length, target_length)


def _check_size(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
        raise InputError(f"must be a whole number >= 1 and <= {LARGEST:,}", where=name, got=value)


def kind_of(name: str | Path) -> Literal["recipe", "run", "config"]:
    """Whether a name or path is a recipe, the folder of a run, or a Hugging Face config.json (the
    file, or the folder that holds it)."""
    from regard.recipe import names

    path = Path(name)
    if path.suffix != ".toml" and str(name) in names():
        return "recipe"
    if not path.exists():
        raise InputError("no such recipe, run or config", got=name, hint=_nearest(path, names()))
    if path.suffix == ".json" or (path / "config.json").is_file():
        return "config"
    if (path / "recipe.json").is_file():
        return "run"
    if path.is_dir():
        raise InputError(
            "neither a run nor a Hugging Face model",
            where=name,
            hint="the folder holds no recipe.json and no config.json",
        )
    return "recipe"


def _nearest(path: Path, recipes: list[str]) -> str:
    """The shipped recipe, or the model beside a missing path, whose name is nearest."""
    candidates = {name: name for name in recipes}
    if path.parent.is_dir():
        for neighbour in path.parent.iterdir():
            if neighbour.suffix in (".json", ".toml") or (neighbour / "recipe.json").is_file():
                candidates[neighbour.name] = str(neighbour)
    near = get_close_matches(path.name, candidates, n=1) or get_close_matches(
        path.stem, candidates, n=1
    )
    if near:
        return f'did you mean "{candidates[near[0]]}"?'
    return "regard recipes list names the recipes"


def of(
    what: str | Path | Recipe,
    at: Lengths,
    *,
    changes: tuple[str, ...] = (),
    vocabulary: int | None = None,
    labels: int | None = None,
    title: str | None = None,
) -> Budget:
    """The budget of a recipe, a run's folder or a Hugging Face config.json, by closed forms.
    `changes` override fields of a recipe."""
    from regard.budget import huggingface, recipes
    from regard.recipe import Recipe, load

    sizes = {"vocabulary": vocabulary, "labels": labels}
    for name, value in sizes.items():
        if value is not None:
            _check_size(name, value)

    if isinstance(what, Recipe):
        title = title or f"a recipe of task {what.task}"
        return recipes.of_recipe(what, at, title=title, **sizes)

    path = Path(what)
    match kind_of(what):
        case "config":
            _refuse_sizes("a config.json", changes, sizes)
            file = path / "config.json" if path.is_dir() else path
            return huggingface.of_config(huggingface.read(file), at)
        case "run":
            _refuse_sizes("a run", changes, sizes)
            return recipes.of_run(path, at)
        case "recipe":
            return recipes.of_recipe(load(what, changes), at, title=str(what), **sizes)


def _refuse_sizes(what: str, changes: tuple[str, ...], sizes: dict[str, int | None]) -> None:
    """Raise if options change sizes that a file already fixes."""
    options = [f"--set {change}" for change in changes]
    options += [f"--{name} {value}" for name, value in sizes.items() if value is not None]
    if options:
        raise InputError(
            f"{what} fixes its own sizes",
            got=options[0],
            hint="only lengths and batch may be given",
        )
