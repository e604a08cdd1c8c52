"""The search options of a call: the recipe's own, with those changed that the caller names."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np

from regard.errors import InputError, RecipeError, did_you_mean
from regard.recipe import Recipe
from regard.search import Options
from regard.values import Capture


def search_options(
    recipe: Recipe, options: Options | None = None, *, greedy: bool = False, **changes: Any
) -> Options:
    """The recipe's search options with some of them changed; see `Bundle.search_options`."""
    if options is not None and not isinstance(options, Options):
        raise InputError(
            "options must be regard.Options",
            where="ask",
            got=type(options).__name__,
            hint="give single search options by name: ask(input, num_beams=2)",
        )
    if not changes and not greedy:
        if options is None:
            return recipe.search
        _check_fits(recipe, options)
        return options
    if options is not None:
        names = [*(["greedy"] if greedy else []), *changes]
        raise InputError(
            "give options or single search options, not both",
            where="ask",
            got=", ".join(names),
        )

    section = _section(changes)
    base = greedy_recipe(recipe) if greedy else recipe
    try:
        search = base.replaced({"search": section}, "ask").search
    except RecipeError as problem:
        raise InputError(str(problem)) from None
    if greedy:
        check_greedy(search, "greedy=True")
    draws_anew = "seed" in changes and changes["seed"] is None
    return search.replaced(seed=None) if draws_anew else search


def _section(changes: dict[str, Any]) -> dict[str, Any]:
    """Single search options as a section [search] of a recipe."""
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
    return section


def _check_fits(recipe: Recipe, options: Options) -> None:
    """Refuse options that the task cannot have: a label is one token."""
    section = {name: value for name, value in options if value is not None}
    try:
        recipe.replaced({"search": section}, "ask")
    except RecipeError as problem:
        raise InputError(str(problem)) from None


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


def check_outputs(alternatives: object, capture: object) -> None:
    """Refuse outputs that a search does not have."""
    if not isinstance(alternatives, int) or isinstance(alternatives, bool) or alternatives < 0:
        raise InputError("must be a whole number >= 0", where="alternatives", got=alternatives)
    if capture not in get_args(Capture):
        raise InputError(
            "no such capture", where="ask", got=capture, hint='one of "none", "cross", "all"'
        )
