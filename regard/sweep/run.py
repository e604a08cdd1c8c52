"""sweep(make, axes, folder): the checks before the first trial, then a grid or a search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from regard import disk
from regard.build import TASKS
from regard.device import resolve
from regard.errors import BundleError, InputError, RecipeError
from regard.fleet import Fleet
from regard.recipe import Recipe, differences, is_whole
from regard.runs import FOLDER, free_folder
from regard.sweep.axes import Axis, given_twice, number_text, points
from regard.sweep.outcome import Outcome
from regard.sweep.study import run_study, storage_errors
from regard.sweep.trials import Make, MakeReporter, Trials
from regard.train import Stopped

RECORD, STORAGE = "sweep.json", "sweep.db"
TRIALS = 20  # of a range, if nothing is said


def sweep(
    make: Make,
    axes: Sequence[Axis],
    folder: Path,
    *,
    make_reporter: MakeReporter,
    on_outcome: Callable[[Outcome], None] = lambda _: None,
    trials: int | None = None,
    storage: str | None = None,
    prune: bool = False,
    device: str = "auto",
    fleet: Fleet | None = None,
) -> Outcome:
    """Train with all values, or, if one axis is a range, with `trials` of them.

    `make_reporter` makes the reporter of each run; `on_outcome` is called after each trial. Ctrl-C
    ends the sweep with `Stopped`; the same call continues it. The machines of a `fleet` train the
    runs, several at once."""
    if fleet is None:
        resolve(device)  # an error now, not in each trial
    base = make([])
    _check(make, axes)
    disk.claim(folder, RECORD, "sweep")
    folder.mkdir(parents=True, exist_ok=True)
    # What the lock guards takes moments.
    with disk.lock_file(folder / disk.LOCK, wait=True):
        _same_sweep(base, axes, folder)
    score = base.train.score or TASKS[base.task].best
    runs = Trials(make, folder, score, make_reporter, device, fleet)
    every = [] if trials or _has_range(axes) else points(axes)
    if every and not storage and not prune:
        return _grid(runs, every, on_outcome)
    where = storage or f"sqlite:///{folder / STORAGE}"
    with storage_errors(where):
        return run_study(
            runs, axes, base, trials or len(every) or TRIALS, every, where, prune, on_outcome
        )


def number_of_trials(axes: Sequence[Axis]) -> int:
    """How many there are if nothing is said."""
    return TRIALS if _has_range(axes) else len(points(axes))


def _has_range(axes: Sequence[Axis]) -> bool:
    return any(axis.is_range for axis in axes)


def _check(make: Make, axes: Sequence[Axis]) -> None:
    """Everything that may be tried is a recipe."""
    keys = [axis.key for axis in axes]
    for key in keys:
        if keys.count(key) > 1:
            raise InputError(
                "a field is swept twice",
                where="--sweep",
                got=key,
                hint="name all its values at once",
            )
    for axis in axes:
        if axis.key in ("train.score", "task"):
            raise InputError(f"runs that differ in {axis.key} cannot be compared", where="--sweep")
        _check_values(make, axis)


def _check_values(make: Make, axis: Axis) -> None:
    """Every value of a field, or both ends of its range, makes a recipe, and another one."""
    ends = [number_text(end, whole=float(end).is_integer()) for end in (axis.low, axis.high)]
    recipes: list[tuple[str, Recipe]] = []
    for value in axis.values or ends:
        try:
            recipe = make([f"{axis.key}={value}"])
        except RecipeError as problem:
            first, *details = str(problem).replace("--set", "--sweep").split("\n  ")
            raise RecipeError(first, details=details) from None

        has_whole_ends = axis.low.is_integer() and axis.high.is_integer()
        if axis.is_range and is_whole(recipe, axis.key) and not has_whole_ends:
            raise InputError(
                "a whole number",
                where=f"--sweep {axis.key}",
                got=f"{axis.low:g}..{axis.high:g}",
            )
        for other, other_recipe in recipes:
            if other_recipe == recipe:  # 0.1 and 1e-1
                raise given_twice(axis.key, other, value)
        recipes.append((value, recipe))


def default_folder(base: Recipe, axes: Sequence[Axis], name: str) -> Path:
    """runs/NAME-sweep, or the first of runs/NAME-sweep-2, … that is new or holds this sweep."""
    return free_folder(FOLDER / f"{name}-sweep", lambda folder: is_free_for(base, axes, folder))


def is_free_for(base: Recipe, axes: Sequence[Axis], folder: Path) -> bool:
    """Whether the folder does not exist, or holds this very sweep."""
    if not folder.exists():
        return True
    if not (folder / RECORD).exists():
        return False
    try:
        _same_sweep(base, axes, folder)
    except (InputError, RecipeError, BundleError):
        return False
    return True


def _same_sweep(base: Recipe, axes: Sequence[Axis], folder: Path) -> None:
    """The folder is this sweep's own; other values of the same fields may join it."""
    record = folder / RECORD
    keys = sorted(axis.key for axis in axes)
    if not record.exists():
        disk.write_json(record, {"recipe": base.to_json(), "keys": keys})
        return
    match disk.read_json(record):
        case {"recipe": dict(tree), "keys": [*other_keys]}:
            changed = differences(Recipe.from_json(tree, record), base)
        case _:
            raise BundleError("damaged: not the record of a sweep", where=record)
    if changed or other_keys != keys:
        fields = f"{', '.join(map(str, other_keys))} there, {', '.join(keys)} here"
        raise InputError(
            "this folder holds another sweep",
            where=folder,
            got=", ".join(changed) or fields,
            hint="choose another --out",
        )


def _grid(
    runs: Trials, points: Sequence[dict[str, str]], on_outcome: Callable[[Outcome], None]
) -> Outcome:
    """Train with each of these values, in this order; with a fleet, several at once."""
    trials = [runs.trial(point) for point in points]

    def outcome() -> Outcome:
        """With what other processes have reached meanwhile."""
        newest = []
        for point, trial in zip(points, trials, strict=True):
            stored = runs.trial(point)
            newest.append(trial if stored.state == "waiting" else stored)
        return Outcome(runs.score, newest)

    def go(number: int) -> None:
        try:
            trials[number] = runs.go(runs.trial(points[number]))
        except Stopped:
            trials[number] = replace(trials[number], state="stopped")
            raise

    calls = [partial(go, number) for number in range(len(points))]
    try:
        for _ in (call() for call in calls) if runs.fleet is None else runs.fleet.together(calls):
            on_outcome(outcome())
    except Stopped:
        on_outcome(outcome())
        raise
    return outcome()
