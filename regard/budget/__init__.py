"""What a model costs, before it is trained: `budget` is the function, `regard budget` the verb.

    budget("chat-transformer", batch=32, source_length=64, target_length=64)      a recipe, by closed forms
    budget("runs/demo"), budget("config.json")                                    a run; a HuggingFace config
    budget(module, example_inputs)                                                any module, counted by running

Closed forms need neither torch nor weights. See docs/budget.md for what is counted and how it is
proved.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, overload

from regard.budget.closed_form.layers import Lengths
from regard.budget.closed_form.parts import Budget
from regard.errors import InputError

if TYPE_CHECKING:
    from torch import nn

    from regard.budget.modules import Counted
    from regard.recipe import Recipe

BATCH, LENGTH = 32, 64
LARGEST = 1 << 30  # of lengths and batches


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
    """The cost of a recipe, a run's folder or a config.json by closed forms; of a torch.nn.Module
    by one call of it.

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
    for name, value in (
        ("batch", batch),
        ("source length", source_length),
        ("target length", target_length),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
            raise InputError(
                f"must be a whole number >= 1 and <= {LARGEST:,}", where=name, got=value
            )
    return Lengths.of(batch, source_length, target_length)


def of(
    what: str | Path | Recipe,
    at: Lengths,
    *,
    changes: tuple[str, ...] = (),
    vocabulary: int | None = None,
    labels: int | None = None,
    title: str | None = None,
) -> Budget:
    """By what it is: a recipe, the folder of a run, or a HuggingFace config.json; `changes`
    override a recipe."""
    from regard.budget import huggingface, recipes
    from regard.recipe import Recipe, load

    sizes = {"vocabulary": vocabulary, "labels": labels}
    for name, value in sizes.items():
        if value is not None and not 1 <= value <= LARGEST:
            raise InputError(
                f"must be a whole number >= 1 and <= {LARGEST:,}", where=name, got=value
            )
    if isinstance(what, Recipe):
        title = title or f"a recipe of task {what.task}"
        return recipes.of_recipe(what, at, title=title, vocabulary=vocabulary, labels=labels)
    path = Path(what)
    if path.suffix == ".json" or (path / "config.json").is_file():
        _no_more("a config.json", changes, sizes)
        return huggingface.of_config(
            huggingface.read(
                path if path.is_file() or path.suffix == ".json" else path / "config.json"
            ),
            at,
        )
    if (path / "recipe.json").is_file():
        _no_more("a run", changes, sizes)
        return recipes.of_run(path, at)
    return recipes.of_recipe(
        load(what, changes), at, title=str(what), vocabulary=vocabulary, labels=labels
    )


def _no_more(what: str, changes: tuple[str, ...], sizes: dict[str, int | None]) -> None:
    given = [f"--set {change}" for change in changes]
    given += [f"--{name} {value}" for name, value in sizes.items() if value is not None]
    if given:
        raise InputError(
            f"{what} says all its sizes itself",
            got=given[0],
            hint="only lengths and batch may be given",
        )


class _CallablePackage(ModuleType):
    """`regard.budget("chat-attention")` is this package called: once a part of it has been
    imported, Python gives its name to the package, and the function of the same name would be
    hidden."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return budget(*arguments, **keywords)


sys.modules[__name__].__class__ = _CallablePackage
