"""The search options that chat, ask and evaluate share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from regard.bundle import Bundle
    from regard.search import Options

Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a search option of the recipe, as in num_beams=4 or top_p=0.9.",
    ),
]
Greedy = Annotated[
    bool,
    typer.Option(
        "--greedy",
        help="Greedy search. Of the recipe's search options, only max_new_tokens applies.",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", help="Seed of sampling. Each input has its own random numbers."),
]


def names_of(changes: list[str] | None) -> set[str]:
    """The options that are changed.

    >>> sorted(names_of(["num_beams=4", "search.top_p=0.9"]))
    ['num_beams', 'top_p']
    """
    return {change.partition("=")[0].removeprefix("search.").strip() for change in changes or []}


def options(
    bundle: Bundle,
    changes: list[str] | None,
    greedy: bool,
    seed: int | None,
    *,
    best: int | None = None,
) -> Options:
    """The recipe's search options with changes; with `greedy`, only its `max_new_tokens`. The
    `best` answers of several need as many beams."""
    from regard.bundle import check_greedy, greedy_recipe

    recipe = greedy_recipe(bundle.recipe) if greedy else bundle.recipe
    names = names_of(changes)
    overrides = []
    if "num_beams" in names and "do_sample" not in names:  # a beam search draws nothing
        overrides += ["search.do_sample=false", "search.candidates=1", "search.retrieved=0"]
    for change in changes or []:
        overrides.append(change if change.startswith("search.") else f"search.{change}")
    if seed is not None:
        overrides.append(f"search.seed={seed}")

    chosen = recipe.override(overrides).search
    if greedy:
        check_greedy(chosen, "--greedy")
    if best is not None and best > 1:
        beams = max(best, chosen.num_beams)
        chosen = chosen.replaced(do_sample=False, num_beams=beams, candidates=best, retrieved=0)
    return chosen
