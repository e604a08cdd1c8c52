"""The contenders of a comparison with the scores of their runs on the common items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from regard import build, bundle, tokenizers
from regard.compare.cells import Cell
from regard.compare.items import Item, ItemScore, common, scores_of
from regard.compare.plan import Contender, Plan, own_recipe
from regard.compare.statistics import SeedScores
from regard.compare.verdict import LOG_SCALE, Side
from regard.errors import DataError
from regard.tasks.task import Task


@dataclass(frozen=True)
class Scored:
    """The runs of a contender with their scores on the common items: for each score one of each
    seed."""

    contender: Contender
    cells: list[Cell]  # all of them
    task: Task | None  # None if no cell is done
    scores: dict[str, list[ItemScore]]
    numbers: dict[str, list[float]]

    @property
    def done(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.state == "done"]

    @property
    def side(self) -> Side:
        failures = [cell for cell in self.cells if cell.state == "failed"]
        why = failures[0].why.partition(";")[0] if failures else ""
        return Side(self.contender.name, len(self.done), len(failures), why)

    def seeds(
        self, name: str, clusters: np.ndarray, chosen: np.ndarray | None = None
    ) -> SeedScores:
        """A score of its runs, on all items or on the `chosen` ones."""
        scores = self.scores[name]
        if chosen is not None:
            scores = [score.over(chosen) for score in scores]
        clustered = [score.clustered(clusters) for score in scores]
        return SeedScores(clustered, is_log=name in LOG_SCALE)


def score_contenders(plan: Plan, cells: Sequence[Cell]) -> tuple[list[Item], list[Scored]]:
    """The common items of all cells, and the contenders with their scores on them."""
    done = [cell for cell in cells if cell.state == "done"]
    shared = common([cell.items for cell in done]) if done else []
    if done and not shared[0]:
        raise DataError(
            "the contenders have no test item in common",
            where=" and ".join(contender.name for contender in plan.contenders[:2]),
            hint="give them the same data with --set data.…",
        )
    items_of = dict(zip((cell.name for cell in done), shared, strict=True))
    scored = []
    for contender in plan.contenders:
        own = [cell for cell in cells if cell.contender == contender.name]
        task = None
        scores: dict[str, list[ItemScore]] = {}
        numbers: dict[str, list[float]] = {}
        for cell in own:
            if cell.state != "done":
                continue
            task = task or _task(cell)
            statistics, others = scores_of(items_of[cell.name], task)
            for name, statistic in statistics.items():
                scores.setdefault(name, []).append(statistic)
            for name, value in others.items():
                numbers.setdefault(name, []).append(value)
        scored.append(Scored(contender, own, task, scores, numbers))
    return (shared[0] if done else []), scored


def _task(cell: Cell) -> Task:
    run = Path(cell.run)
    return build.task(own_recipe(run), tokenizers.read(run / bundle.TOKENIZER))
