"""A trial on another machine: what a task of a fleet calls there."""

from __future__ import annotations

import socket
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from regard.fleet import Wire
from regard.recipe import Recipe
from regard.sweep.trials import ENDED, Pruned, Trials


def train_trial(content: dict[str, Any], folder: Path, wire: Wire) -> dict[str, Any]:
    """Train a trial in its run below the folder; what it reached, as JSON."""
    recipe = Recipe.from_json(content["recipe"], "the recipe of a task")
    trials = Trials(
        lambda _: recipe,
        folder,
        content["score"],
        lambda _: wire.reporter(),
        content["device"],
    )

    def watch(record: dict[str, Any]) -> None:
        if wire.ask("validated", record):
            raise Pruned

    trial = trials.go(trials.trial(content["values"]), watch if content["is_watched"] else None)
    if trial.state == "failed" and trials.trial(content["values"]).state not in ENDED:
        # Nothing is stored: it may be the fault of this machine.
        trial = replace(trial, why=f"{trial.why} (on {socket.gethostname()})")
    return asdict(trial)
