"""A cell on another machine: what a task of a fleet calls there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regard.compare.cells import CELLS, Cell, Cells
from regard.compare.plan import Budget, Contender, Plan
from regard.fleet import Wire
from regard.recipe import Recipe
from regard.runs import NewRun


def make_cell(content: dict[str, Any], folder: Path, wire: Wire) -> tuple[str, str]:
    """Train and evaluate a cell in the folder of its plan; its state, and why it failed."""
    recipe = Recipe.from_json(content["recipe"], "the recipe of a task")
    contender = Contender(content["contender"], NewRun(recipe))
    plan = Plan(
        (contender,),
        seeds=(content["seed"],),
        budget=Budget(*content["budget"]),
        test_set=tuple(content["test_set"]),
        limit=content["limit"],
    )
    cells = Cells(
        plan,
        folder,
        content["split"],
        make_reporter=lambda _: wire.reporter(),
        device=content["device"],
    )
    (folder / CELLS).mkdir(parents=True, exist_ok=True)
    (stored,) = cells.snapshot()
    if stored.is_over:  # by a task whose machine died after it, or by another process
        return stored.state, stored.why
    new = Cell(stored.contender, stored.seed, stored.run, values=content["values"])
    cell = cells.make(contender, new)
    return cell.state, cell.why
