"""A run's folder as a report reads it: its recipe, its log, its sessions, and where it stands."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard import bundle, checkpoint, disk, metrics, sessions, tokenizers
from regard.checkpoint import Progress
from regard.errors import BundleError
from regard.plot import JUDGED_ON, read_log
from regard.recipe import Recipe, load, names
from regard.sessions import Session
from regard.tokenizers import Tokenizer

HELD_OUT = "valid"  # the kind of a line of the log with scores of held-out examples
LOG = "metrics.jsonl"


@dataclass(frozen=True)
class RunRecord:
    """What the folder of a run says about it.

    state  "under way", "stopped" or "done"; "" if that is not known
    lines  of metrics.jsonl
    """

    run: Path
    recipe: Recipe
    tokenizer: Tokenizer
    lines: tuple[dict[str, Any], ...]
    sessions: tuple[Session, ...]
    state: str
    step: int
    seconds: float

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.run.resolve().name

    @property
    def validations(self) -> list[dict[str, Any]]:
        """The lines of the log with scores, oldest first."""
        return [line for line in self.lines if line["kind"] in JUDGED_ON]

    @property
    def kept(self) -> dict[str, Any] | None:
        """The line about the weights that the run has kept; None if it has kept none."""
        lines = [line for line in self.validations if line.get("kept", line.get("best"))]
        return lines[-1] if lines else None

    @property
    def is_held_out(self) -> bool:
        """Whether its scores are of examples that it did not learn from."""
        return all(line["kind"] == HELD_OUT for line in self.validations)

    @property
    def samples(self) -> list[tuple[str, str]]:
        """Inputs and answers of the last validation."""
        if not self.validations:
            return []
        pairs = self.validations[-1].get("samples")
        if not isinstance(pairs, list):
            return []
        return [
            (pair[0], pair[1])
            for pair in pairs
            if isinstance(pair, list) and len(pair) == 2 and all(isinstance(s, str) for s in pair)
        ]


def base_name(recipe: Recipe, history: Sequence[Session]) -> str | None:
    """The shipped recipe that a recipe was made from: the one that was named when training began,
    one with the same summary, or the one that it extends."""
    shipped = names()
    for session in history:
        if session.base in shipped:
            return session.base
    if recipe.summary:
        for name in shipped:
            if load(name).summary == recipe.summary:
                return name
    return recipe.extends if recipe.extends in shipped else None


def read_run(run: Path) -> RunRecord:
    """The record of a run, which may be under way or stopped."""
    if not os.path.isdir(run):  # Path.is_dir raises for a name that is too long
        raise BundleError(
            "no such run",
            where=str(run)[:200],
            hint="train one with: regard train chat-attention",
        )
    if not (run / disk.MANIFEST).exists():
        raise BundleError("not a run folder: it has no manifest.json", where=run)
    disk.verify_files(run, bundle.RECIPE, bundle.TOKENIZER)
    recipe = Recipe.from_json(disk.read_json(run / bundle.RECIPE), run / bundle.RECIPE)
    progress = checkpoint.recorded(run) or Progress()
    history = sessions.read(run)
    return record_of(
        run, recipe, tokenizers.read(run / bundle.TOKENIZER), progress, _state(run, history)
    )


def record_of(
    run: Path, recipe: Recipe, tokenizer: Tokenizer, progress: Progress, state: str
) -> RunRecord:
    """The record of a run that stands at `progress`, or where its log ends."""
    lines = tuple(read_log(run)) if (run / LOG).is_file() else ()
    last = max((line["step"] for line in lines), default=0)
    seconds = [line.get("seconds") for line in lines]
    times = [float(value) for value in seconds if isinstance(value, int | float)]
    return RunRecord(
        run=run,
        recipe=recipe,
        tokenizer=tokenizer,
        lines=lines,
        sessions=tuple(sessions.read(run)),
        state=state,
        step=max(progress.step, last),
        seconds=max([progress.seconds, *times]),
    )


def _state(run: Path, history: Sequence[Session]) -> str:
    """Who holds its lock trains it; otherwise its last session says how that ended."""
    if disk.is_locked(run):
        return "under way"
    if not history:
        return ""
    return "done" if history[-1].state == "done" else "stopped"


def chosen_score(recipe: Recipe, line: dict[str, Any] | None) -> str | None:
    """The name of the score that says which weights are best."""
    name = recipe.train.score or (line or {}).get("score")
    return name if isinstance(name, str) else None


def scores_of(line: dict[str, Any]) -> dict[str, float]:
    """The scores of a line of the log."""
    return {name: value for name, value in line.items() if _is_score(name, value)}


def interval_of(line: dict[str, Any], name: str) -> tuple[float, float] | None:
    """The 95 % interval of a score of a line of the log, if it has one."""
    intervals = line.get("intervals")
    bounds = intervals.get(name) if isinstance(intervals, dict) else None
    if not isinstance(bounds, list) or len(bounds) != 2:
        return None
    if not all(isinstance(bound, int | float) and abs(bound) < 1e300 for bound in bounds):
        return None
    low, high = map(float, bounds)
    return (low, high) if low <= high else None


def _is_score(name: str, value: Any) -> bool:
    is_known = metrics.better(name) is not None or name == "mean_length"
    return is_known and isinstance(value, int | float) and not isinstance(value, bool)
