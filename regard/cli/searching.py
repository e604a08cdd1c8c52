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
        help="Change how answers are found, as in num_beams=4 or top_p=0.9.",
    ),
]
Greedy = Annotated[
    bool, typer.Option("--greedy", help="The likeliest token at each step, and nothing else.")
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", help="Decides the draws when sampling, together with the input."),
]


def options(bundle: Bundle, changes: list[str] | None, greedy: bool, seed: int | None) -> Options:
    """The recipe's search with changes; `greedy` begins from a plain one."""
    from regard.build import options as built
    from regard.recipe import Search

    recipe = bundle.recipe
    if greedy:
        recipe = recipe.model_copy(
            update={"search": Search(max_new_tokens=recipe.search.max_new_tokens)}
        )
    changes = [
        change if change.startswith("search.") else f"search.{change}" for change in changes or []
    ]
    if any("num_beams=" in change for change in changes) and not any(
        "do_sample=" in change for change in changes
    ):
        changes = [
            "search.do_sample=false",
            "search.candidates=1",
            *changes,
        ]  # who asks for beams does not want draws
    if seed is not None:
        changes.append(f"search.seed={seed}")
    return built(recipe.override(changes).search)
