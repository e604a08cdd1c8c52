"""One trial: a run in a folder named by its values, with result.json when it is done."""

from __future__ import annotations

import math
import re
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from regard import bundle, disk
from regard.checkpoint import Progress
from regard.errors import (
    BegunError,
    BundleError,
    BusyError,
    DataError,
    DivergedError,
    InputError,
    NoMemoryError,
    RecipeError,
    TrainingError,
)
from regard.fleet import Fleet, Task
from regard.recipe import Recipe
from regard.sweep.outcome import Trial
from regard.train import Reporter, train

RESULT = "result.json"
ENDED = ("done", "failed", "pruned")  # states that a result has
PAUSE = 2.0  # seconds until a run that another process has is tried again

# The recipe with some fields changed, each written section.field=value.
Make = Callable[[Sequence[str]], Recipe]
# Makes the reporter of a trial's run.
MakeReporter = Callable[[Trial], AbstractContextManager[Reporter]]


class Trials:
    """The trials of a sweep, each a run in the sweep's folder. With a fleet they are trained by
    its machines; `alone` if each is to have a machine for itself."""

    def __init__(
        self,
        make: Make,
        folder: Path,
        score: str,
        make_reporter: MakeReporter,
        device: str = "auto",
        fleet: Fleet | None = None,
        *,
        alone: bool = False,
    ):
        self.make = make
        self.folder = folder
        self.score = score
        self.make_reporter = make_reporter
        self.device = device
        self.fleet = fleet
        self.alone = alone

    def trial(self, values: Mapping[str, str]) -> Trial:
        """What is known of these values."""
        new = Trial(dict(values), str(self.folder / folder_name(Trial(dict(values), "").name)))
        try:
            result = disk.read_json(Path(new.run) / RESULT)
        except BundleError:  # none yet, or damaged: the trial is made again
            return new
        if not _is_result(result):
            return new
        return Trial(**result | {"values": new.values, "run": new.run})

    def go(self, trial: Trial, watch: Callable[[dict[str, Any]], None] | None = None) -> Trial:
        """Train to the end, from where it stands; what it reached is written into its folder."""
        if trial.state in ENDED:
            return trial
        try:
            recipe = self.make([f"{key}={value}" for key, value in trial.values.items()])
        except RecipeError as problem:
            # Between the ends of a range; a width that is odd for example.
            return replace(trial, state="failed", why=str(problem))
        if self.fleet is not None:
            return self._train_remotely(self.fleet, trial, recipe, watch)

        run = Path(trial.run)
        try:
            with self.make_reporter(trial) as reporter:
                observer = reporter if watch is None else _WatchingReporter(reporter, watch)
                progress = train(
                    recipe,
                    run,
                    reporter=observer,
                    resume=bundle.has_begun(run),
                    device=self.device,
                )
        except (BusyError, BegunError):  # another process has it, or was faster
            return replace(trial, state="elsewhere")
        except Pruned:
            result = replace(trial, state="pruned")
        except DivergedError as problem:
            result = replace(trial, state="failed", why=str(problem))
        except (InputError, DataError, BundleError, NoMemoryError, TrainingError) as problem:
            # Another time it may go well (the folder was refused, the data changed, memory was
            # short), so nothing is stored, and nothing is written into a folder that is not ours.
            return replace(trial, state="failed", why=str(problem))
        else:
            result = replace(
                trial,
                state="done",
                score=progress.best_score,
                step=progress.best_step,
                seconds=progress.seconds,
                data=progress.data,
            )
        content = asdict(result)
        del content["values"], content["run"]
        disk.write_json(run / RESULT, content)
        return result

    def _train_remotely(
        self,
        fleet: Fleet,
        trial: Trial,
        recipe: Recipe,
        watch: Callable[[dict[str, Any]], None] | None,
    ) -> Trial:
        """The same by a machine of a fleet. A run that another process has is waited for: it may
        be a task whose machine has just died."""
        task = Task(
            "regard.sweep.remote:train_trial",
            {
                "recipe": recipe.to_json(),
                "values": trial.values,
                "score": self.score,
                "device": self.device,
                "is_watched": watch is not None,
            },
            folder=self.folder,
            threads=recipe.train.threads,
            alone=self.alone,
            name=trial.name,
        )
        with self.make_reporter(trial) as reporter:
            on_message = partial(forward_message, reporter, watch)
            try:
                while (result := fleet.run(task, on_message))["state"] == "elsewhere":
                    time.sleep(PAUSE)
            except TrainingError as problem:  # its machines died again and again
                return replace(trial, state="failed", why=str(problem))
        return Trial(**result | {"values": trial.values, "run": trial.run})


def forward_message(
    reporter: Reporter,
    watch: Callable[[dict[str, Any]], None] | None,
    kind: str,
    content: Any,
) -> bool:
    """Pass a message of a task on to a reporter; whether the run is to end."""
    if kind == "stepped":
        progress, loss, speed, done = content
        reporter.stepped(Progress(**progress), loss, speed, done)
    elif kind == "noted":
        reporter.noted(content)
    elif kind == "validated" and watch is not None:
        try:
            watch(content)
        except Pruned:
            return True
    return False


def _is_result(content: Any) -> bool:
    """Whether this is what `Trials.go` writes; a file with other types is not."""
    if not isinstance(content, dict):
        return False
    match {"why": "", "data": ""} | content:
        case {
            "state": "done" | "failed" | "pruned",
            "score": int() | float() | None,
            "step": int(),
            "seconds": int() | float(),
            "why": str(),
            "data": str(),
            **others,
        }:
            score = content["score"]
            return not others and (score is None or math.isfinite(score))
    return False


def folder_name(name: str) -> str:
    """A name that every disk takes, and still another for other values.

    >>> folder_name("train.learning_rate=0.1"), folder_name("data.path=a/b")
    ('train.learning_rate=0.1', 'data.path=a_b-0ab0ddcb')
    """
    plain = re.sub(r"[^\w.,=+-]", "_", name)[:180]
    return plain if plain == name else f"{plain}-{zlib.crc32(name.encode()):08x}"


class Pruned(Exception):
    """Its scores so far are worse than those of most others."""


class _WatchingReporter:
    """A reporter that also passes every validation to `watch`."""

    def __init__(self, reporter: Reporter, watch: Callable[[dict[str, Any]], None]):
        self.began, self.stepped, self.noted = reporter.began, reporter.stepped, reporter.noted
        self._validated = reporter.validated
        self._watch = watch

    def validated(self, record: dict[str, Any], samples: Sequence[tuple[str, str]]) -> None:
        self._validated(record, samples)
        self._watch(record)
