"""Sweeps: the same recipe with several values of some fields; the validation score says which was
best.

    train.learning_rate=0.1,0.01,0.001     values: a grid, every combination of them is tried
    train.learning_rate=1e-4..1e-1         a range: optuna proposes values, on a logarithmic scale
                                           if it spans a decade
    seed=1,2,3                             seeds are no settings: the others are ranked by their
                                           mean over these

Every trial is a run of its own in the sweep's folder, named by its values, so whoever comes to the
same values again, after a kill or from another process, goes on with that run or reads off what it
reached.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import statistics
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from regard import bundle, disk
from regard.build import TASKS
from regard.errors import (
    BundleError,
    BusyError,
    DataError,
    DivergedError,
    InputError,
    NoMemoryError,
    RecipeError,
    RegardError,
    TrainingError,
    WriteError,
)
from regard.metrics import LOWER_IS_BETTER
from regard.recipe import Mark, Recipe, differences, is_whole, marks_of
from regard.train import Reporter, Stopped, train

RECORD, RESULT, STORAGE = "sweep.json", "result.json", "sweep.db"
DECADE = 10
HEARTBEAT, GRACE = (
    15,
    60,
)  # seconds: a worker on another machine that was silent for so long is dead
RETRIES = 3
TRIALS = 20  # of a range, if nothing is said
FOUND = "trial"  # under which name a storage keeps what one reached

Make = Callable[
    [Sequence[str]], Recipe
]  # the recipe with some fields changed, each written section.field=value


@dataclass(frozen=True)
class Axis:
    """A field and what it may be: some values as they were written, or a range."""

    key: str
    values: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0

    @property
    def is_range(self) -> bool:
        return not self.values

    @property
    def is_logarithmic(self) -> bool:
        return self.low > 0 and self.high / self.low >= DECADE

    def __str__(self) -> str:
        return (
            f"{self.key}={','.join(self.values) if self.values else f'{self.low:g}..{self.high:g}'}"
        )


def axis(written: str) -> Axis:
    """
    >>> axis("train.learning_rate=0.1,0.01").values, axis("decoder.hidden=[4,8],[16]").values
    (('0.1', '0.01'), ('[4,8]', '[16]'))
    >>> axis("train.learning_rate=1e-4..1e-1").is_logarithmic
    True
    >>> axis("encoder.layers=1..4").is_logarithmic
    False
    """
    key, _, value = (part.strip() for part in written.partition("="))
    if not key or not value:
        hint = "train.learning_rate=0.1,0.01 tries values, train.learning_rate=1e-4..1e-1 a range"
        raise InputError(
            "a sweep has the form section.field=values",
            where="--sweep",
            got=f'"{written}"',
            hint=hint,
        )
    if ends := _ends(value):
        try:
            low, high = (float(end) for end in ends)
        except ValueError:
            raise InputError(
                "the ends of a range are numbers", where=f"--sweep {key}", got=value
            ) from None
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise InputError(
                "a range goes from a number to a larger one", where=f"--sweep {key}", got=value
            )
        return Axis(key, low=low, high=high)
    values = [part.strip() for part in _values(value) if part.strip()]
    if not values:
        raise InputError("no value to try", where=f"--sweep {key}", got=f'"{value}"')
    for number, part in enumerate(values):
        if part in values[:number]:
            raise _twice(key, part, part)
    return Axis(key, tuple(values))


def _twice(key: str, first: str, second: str) -> InputError:
    got = second if first == second else f"{first} and {second}"
    return InputError(
        "a value is given twice", where=f"--sweep {key}", got=got, hint="name each value once"
    )


def _ends(value: str) -> tuple[str, str] | None:
    """The two ends of a range `low..high`; None if this is none, as "../x" and '"a..b"' are not.

    >>> _ends("1e-4..1e-1"), _ends("../x"), _ends("1..")
    (('1e-4', '1e-1'), None, None)
    """
    if any(mark in value for mark in "/,\"'"):
        return None
    dots = value.find("..", 1)
    if dots < 0 or not value[dots + 2 :]:
        return None
    return value[:dots], value[dots + 2 :]


def _values(value: str) -> list[str]:
    """Parts between commas, where a comma inside of a list [a,b] does not count.

    >>> _values("[4,8],[16],3")
    ['[4,8]', '[16]', '3']
    """
    cuts = [len(value)]
    inside = False
    for at in reversed(range(len(value))):
        if value[at] in "[]":
            inside = value[at] == "]"
        elif value[at] == "," and not inside:
            cuts.append(at)
    cuts.append(-1)
    return [value[before + 1 : after] for after, before in reversed(list(itertools.pairwise(cuts)))]


@dataclass(frozen=True)
class Trial:
    """One run of a sweep and what it reached; `score` is None while there is none, or it failed."""

    values: dict[str, str]
    run: str
    state: str = "waiting"  # done, failed, pruned, stopped, elsewhere
    score: float | None = None
    step: int = 0
    seconds: float = 0.0
    why: str = ""
    data: str = ""  # fingerprint of what it was trained on

    @property
    def name(self) -> str:
        return _named(self.values)

    @property
    def setting(self) -> dict[str, str]:
        """Its values without the seeds."""
        return {key: value for key, value in self.values.items() if not _is_seed(key)}


def _named(values: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in values.items())


def _is_seed(key: str) -> bool:
    """
    >>> _is_seed("seed"), _is_seed("search.seed"), _is_seed("train.learning_rate")
    (True, True, False)
    """
    return key.rpartition(".")[2] == "seed"


def _shapes_data(key: str) -> bool:
    return Mark.VOCABULARY in marks_of(key)


@dataclass(frozen=True)
class Setting:
    """Trials that differ in their seeds only, and what they reach together."""

    values: dict[str, str]
    trials: list[Trial]

    @property
    def name(self) -> str:
        return _named(self.values)

    @property
    def scores(self) -> list[float]:
        """Of the trials that are done."""
        return [
            trial.score
            for trial in self.trials
            if trial.state == "done" and trial.score is not None
        ]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.scores) if self.scores else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation over seeds, of a sample (n - 1); one seed has none."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None

    @property
    def is_complete(self) -> bool:
        return len(self.scores) == len(self.trials)

    def to_json(self) -> dict[str, Any]:
        scores = self.scores
        return {
            "values": self.values,
            "mean": self.mean,
            "standard_deviation": self.deviation,
            "lowest": min(scores, default=None),
            "highest": max(scores, default=None),
            "seeds": len(scores),
        }


@dataclass(frozen=True)
class Outcome:
    """What a sweep knows so far.

    Without seeds among its fields, `best` is the first of those that are done and have the best
    score. A seed that does well is luck: with seeds, no run is the best, and settings are ranked by
    their mean.
    """

    score: str
    trials: list[Trial] = field(default_factory=list)

    @property
    def is_mixed(self) -> bool:
        """Whether trials that should have had the same data were trained on different data.

        Fields that shape the data themselves (its section, the tokenizer, seeds) may be swept.
        """
        data: dict[str, str] = {}
        for trial in self.trials:
            if trial.state != "done" or not trial.data:
                continue
            shaping = {k: v for k, v in trial.values.items() if _shapes_data(k)}
            if data.setdefault(_named(shaping), trial.data) != trial.data:
                return True
        return False

    @property
    def ordered(self) -> list[Trial]:
        """Best first; those without a score come last."""
        return sorted(
            self.trials, key=lambda trial: (trial.score is None, self._sign * (trial.score or 0.0))
        )

    @property
    def best(self) -> Trial | None:
        if self.has_seeds or self.is_mixed:
            return None
        return next(
            (trial for trial in self.ordered if trial.state == "done" and trial.score is not None),
            None,
        )

    @property
    def has_seeds(self) -> bool:
        return any(_is_seed(key) for trial in self.trials for key in trial.values)

    @property
    def settings(self) -> list[Setting]:
        """Best mean first. One some of whose seeds are missing or failed comes after those that
        are complete, since its mean may be of the lucky ones."""
        groups: dict[str, Setting] = {}
        for trial in self.trials:
            group = groups.setdefault(_named(trial.setting), Setting(trial.setting, []))
            group.trials.append(trial)
        return sorted(
            groups.values(),
            key=lambda setting: (
                setting.mean is None,
                not setting.is_complete,
                self._sign * (setting.mean or 0.0),
            ),
        )

    @property
    def best_setting(self) -> Setting | None:
        """The first that is complete, if there is another to be better than."""
        settings = self.settings
        if len(settings) < 2 or not settings[0].is_complete or self.is_mixed:
            return None
        return settings[0]

    @property
    def _sign(self) -> int:
        return 1 if self.score in LOWER_IS_BETTER else -1

    def to_json(self) -> dict[str, Any]:
        best = self.best
        trials = [asdict(trial) for trial in self.trials]
        outcome: dict[str, Any] = {
            "score": self.score,
            "best": None if best is None else asdict(best),
            "different_data": self.is_mixed,
        }
        if self.has_seeds:
            chosen = self.best_setting
            outcome["best_setting"] = None if chosen is None else chosen.values
            outcome["settings"] = [setting.to_json() for setting in self.settings]
        return outcome | {"trials": trials}


Told = Callable[[Trial], AbstractContextManager[Reporter]]


def sweep(
    make: Make,
    axes: Sequence[Axis],
    folder: Path,
    *,
    told: Told,
    learned: Callable[[Outcome], None] = lambda _: None,
    trials: int | None = None,
    storage: str | None = None,
    prune: bool = False,
) -> Outcome:
    """Try them all, or with a range among them `trials` of them. `told` gives the reporter of
    each run, `learned` hears after each trial what is known. Ctrl-C ends it with `Stopped`; the
    same call goes on with it."""
    base = make([])
    _check(make, axes)
    disk.claim(folder, RECORD, "sweep")
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        _same_sweep(base, axes, folder)
    runs = _Runs(make, folder, base.train.score or TASKS[base.task].best, told)
    every = [] if trials or any(axis_.is_range for axis_ in axes) else _points(axes)
    if every and not storage and not prune:
        return _grid(runs, every, learned)
    where = storage or f"sqlite:///{folder / STORAGE}"
    with _storage_errors(where):
        return _searched(
            runs, axes, base, trials or len(every) or TRIALS, every, where, prune, learned
        )


def _points(axes: Sequence[Axis]) -> list[dict[str, str]]:
    """Every combination of the values."""
    names = [axis_.key for axis_ in axes]
    return [
        dict(zip(names, values, strict=True))
        for values in itertools.product(*(axis_.values for axis_ in axes))
    ]


def _check(make: Make, axes: Sequence[Axis]) -> None:
    """Everything that may be tried is a recipe."""
    if twice := [
        key for key in {axis_.key for axis_ in axes} if sum(axis_.key == key for axis_ in axes) > 1
    ]:
        raise InputError(
            "a field is swept twice",
            where="--sweep",
            got=twice[0],
            hint="name all its values at once",
        )
    for axis_ in axes:
        if axis_.key in ("train.score", "task"):
            raise InputError(f"runs that differ in {axis_.key} cannot be compared", where="--sweep")
        ends = [_written(end, whole=float(end).is_integer()) for end in (axis_.low, axis_.high)]
        recipes: list[tuple[str, Recipe]] = []
        for value in axis_.values or ends:
            try:
                made = make([f"{axis_.key}={value}"])
            except RecipeError as problem:
                first, *details = str(problem).replace("--set", "--sweep").split("\n  ")
                raise RecipeError(first, details=details) from None
            if (
                axis_.is_range
                and is_whole(made, axis_.key)
                and not (axis_.low.is_integer() and axis_.high.is_integer())
            ):
                raise InputError(
                    "a whole number",
                    where=f"--sweep {axis_.key}",
                    got=f"{axis_.low:g}..{axis_.high:g}",
                )
            for other, recipe in recipes:
                if recipe == made:  # 0.1 and 1e-1
                    raise _twice(axis_.key, other, value)
            recipes.append((value, made))


def _written(value: float, *, whole: bool) -> str:
    """A number as a folder's name and an override have it; six digits tell any two trials apart."""
    return str(int(value)) if whole else f"{value:.6g}"


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
    keys = sorted(axis_.key for axis_ in axes)
    if record.exists():
        match disk.read_json(record):
            case {"recipe": dict(made), "keys": [*swept]}:
                changed = differences(Recipe.from_json(made, record), base)
            case _:
                raise BundleError("damaged: not the record of a sweep", where=record)
        if changed or swept != keys:
            got = (
                ", ".join(changed) or f"{', '.join(map(str, swept))} there, {', '.join(keys)} here"
            )
            raise InputError(
                "this folder holds another sweep",
                where=folder,
                got=got,
                hint="choose another --out",
            )
    else:
        disk.write_json(record, {"recipe": base.to_json(), "keys": keys})


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Waits for its turn; what it guards takes moments."""
    with disk.lock_file(folder / disk.LOCK, wait=True):
        yield


# -- one trial--------------------------------------------------------------------------------------


class _Runs:
    def __init__(self, make: Make, folder: Path, score: str, told: Told):
        self.make = make
        self.folder = folder
        self.score = score
        self.told = told

    def trial(self, values: Mapping[str, str]) -> Trial:
        """What is known of these values."""
        new = Trial(dict(values), str(self.folder / _folder(Trial(dict(values), "").name)))
        try:
            result = disk.read_json(Path(new.run) / RESULT)
        except BundleError:  # none yet, or damaged: the trial is made again
            return new
        if not _is_result(result):
            return new
        return Trial(**result | {"values": new.values, "run": new.run})

    def go(self, trial: Trial, watch: Callable[[dict[str, Any]], None] | None = None) -> Trial:
        """Train to the end, from where it stands; what it reached is written into its folder."""
        if trial.state in ("done", "failed", "pruned"):
            return trial
        run = Path(trial.run)
        try:
            recipe = self.make([f"{key}={value}" for key, value in trial.values.items()])
        except (
            RecipeError
        ) as problem:  # between the ends of a range, a width that is odd for example
            return Trial(trial.values, trial.run, "failed", why=str(problem))
        try:
            with self.told(trial) as reporter:
                watched = reporter if watch is None else _Watched(reporter, watch)
                progress = train(recipe, run, reporter=watched, resume=bundle.has_begun(run))
        except BusyError:
            return Trial(trial.values, trial.run, "elsewhere")
        except _Pruned:
            result = Trial(trial.values, trial.run, "pruned")
        except DivergedError as problem:
            result = Trial(trial.values, trial.run, "failed", why=str(problem))
        except (InputError, DataError, BundleError, NoMemoryError, TrainingError) as problem:
            # Another time it may go well (the folder was refused, the data changed, memory was
            # short), so nothing is stored, and nothing is written into a folder that is not ours.
            return Trial(trial.values, trial.run, "failed", why=str(problem))
        else:
            result = Trial(
                trial.values,
                trial.run,
                "done",
                progress.best_score,
                progress.best_step,
                progress.seconds,
                data=progress.data,
            )
        content = asdict(result)
        del content["values"], content["run"]
        disk.write_json(run / RESULT, content)
        return result


def _is_result(content: Any) -> bool:
    """Whether this is what `_Runs.go` writes; a file with other types is not."""
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


def _folder(name: str) -> str:
    """A name that every disk takes, and still another for other values.

    >>> _folder("train.learning_rate=0.1"), _folder("data.path=a/b")
    ('train.learning_rate=0.1', 'data.path=a_b-0ab0ddcb')
    """
    plain = re.sub(r"[^\w.,=+-]", "_", name)[:180]
    return plain if plain == name else f"{plain}-{zlib.crc32(name.encode()):08x}"


class _Pruned(Exception):
    """Its scores so far are worse than those of most others."""


class _Watched:
    """A reporter, and somebody else who hears of every validation."""

    def __init__(self, reporter: Reporter, watch: Callable[[dict[str, Any]], None]):
        self.began, self.stepped, self.noted = reporter.began, reporter.stepped, reporter.noted
        self._told, self._watch = reporter.validated, watch

    def validated(self, record: dict[str, Any], samples: Sequence[tuple[str, str]]) -> None:
        self._told(record, samples)
        self._watch(record)


# -- a grid-----------------------------------------------------------------------------------------


def _grid(
    runs: _Runs, points: Sequence[dict[str, str]], learned: Callable[[Outcome], None]
) -> Outcome:
    known = [runs.trial(point) for point in points]

    def found() -> Outcome:
        """With what others have found out meanwhile."""
        each = zip(map(runs.trial, points), known, strict=True)
        return Outcome(runs.score, [new if new.state != "waiting" else old for new, old in each])

    for i, point in enumerate(points):
        try:
            known[i] = runs.go(runs.trial(point))
        except Stopped:
            known[i] = replace(known[i], state="stopped")
            learned(found())
            raise
        learned(found())
    return found()


# -- a search---------------------------------------------------------------------------------------


def _searched(
    runs: _Runs,
    axes: Sequence[Axis],
    base: Recipe,
    trials: int,
    every: Sequence[dict[str, str]],
    storage: str,
    prune: bool,
    learned: Callable[[Outcome], None],
) -> Outcome:
    """Trials that optuna proposes, `every` one of these before others, until there are so many
    in the storage, whoever made them."""
    optuna = _optuna()
    with _alone(runs.folder):  # two who make the tables at once are in each other's way
        study = _study(optuna, runs.folder.resolve().name, storage, base, prune)
        for point in every:
            study.enqueue_trial(point, skip_if_exists=True)
    whole = {axis_.key: axis_.is_range and is_whole(base, axis_.key) for axis_ in axes}
    minimise = runs.score in LOWER_IS_BETTER

    def objective(proposed: Any) -> float:
        values = {axis_.key: _proposed(proposed, axis_, whole[axis_.key]) for axis_ in axes}

        def watch(record: dict[str, Any]) -> None:
            if runs.score in record:
                proposed.report(
                    record[runs.score] if minimise else -record[runs.score], record["step"]
                )
                if prune and proposed.should_prune():
                    raise _Pruned

        try:
            trial = runs.go(runs.trial(values), watch)
        except (Stopped, WriteError):
            study.enqueue_trial(proposed.params)  # so that whoever comes next goes on with it
            raise
        proposed.set_user_attr(FOUND, asdict(trial))  # at once: others read it meanwhile
        if trial.state == "pruned":
            raise optuna.TrialPruned
        if trial.score is None:
            raise TrainingError(trial.why or trial.state)
        return trial.score if minimise else -trial.score

    waited_until = math.inf
    while (left := _left(optuna, study, trials)) or time.monotonic() < waited_until:
        if left > 0 or _in_state(optuna, study, "WAITING"):
            waited_until = math.inf
            try:
                study.optimize(objective, n_trials=1, catch=(TrainingError,))
            finally:
                learned(_known(runs, study))
            continue
        if not _in_state(optuna, study, "RUNNING"):
            break
        waited_until = min(waited_until, time.monotonic() + GRACE + HEARTBEAT)
        time.sleep(
            min(1.0, HEARTBEAT)
        )  # somebody is at work, or dead: then its trial comes back to us
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # heartbeats are called experimental
            optuna.storages.fail_stale_trials(study)
    return _known(runs, study)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise InputError(
            "a range, --trials, --prune and --storage need optuna",
            where="--sweep",
            hint="pip install 'regard[sweep]', or list the values: train.learning_rate=0.1,0.01",
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _without_password(text: str) -> str:
    """
    >>> _without_password("postgresql://me:p@ss@host/s?password=other&x=1")
    'postgresql://me:***@host/s?password=***&x=1'
    """
    return re.sub(
        r"(://[^:/@\s]*):[^/\s]*@", r"\1:***@", re.sub(r"(password=)[^&\s]*", r"\1***", text)
    )


def _opened(optuna: Any, name: str, url: str, prune: bool) -> Any:
    options = (
        {"connect_args": {"timeout": 60}} if url.startswith("sqlite:") else {"pool_pre_ping": True}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        storage = optuna.storages.RDBStorage(
            re.sub("^postgres(ql)?://", "postgresql+psycopg://", url),
            engine_kwargs=options,
            heartbeat_interval=HEARTBEAT,
            grace_period=GRACE,
            failed_trial_callback=optuna.storages.RetryFailedTrialCallback(max_retry=RETRIES),
        )
        return optuna.create_study(
            storage=storage,
            study_name=name,
            load_if_exists=True,
            sampler=optuna.samplers.TPESampler(constant_liar=True, n_startup_trials=5),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=3)
            if prune
            else optuna.pruners.NopPruner(),
        )


@contextlib.contextmanager
def _storage_errors(url: str) -> Iterator[None]:
    """A database that is full, read-only or gone is told in a line."""
    refusal = _optuna().exceptions.StorageInternalError
    try:
        yield
    except RegardError:
        raise
    except Exception as error:
        problem: BaseException | None = error
        while problem is not None and not isinstance(problem, refusal):
            problem = problem.__context__  # optuna stumbles over what it could not store
        if problem is None:
            raise
        raise _unusable(url, problem.__cause__ or problem) from None


def _unusable(url: str, problem: BaseException) -> InputError:
    lines = str(problem).strip().splitlines() or [type(problem).__name__]
    return InputError(
        "the storage cannot be used",
        where="--storage",
        got=f"{_without_password(url)}: {_without_password(lines[0])}",
        hint="sqlite:///PATH, or postgresql://USER@HOST/NAME after pip install 'regard[postgres]'",
    )


def _study(optuna: Any, name: str, url: str, base: Recipe, prune: bool) -> Any:
    shown = _without_password(url)
    for left in reversed(range(RETRIES)):
        try:
            study = _opened(optuna, name, url, prune)
            break
        except Exception as problem:
            lines = str(problem).strip().splitlines() or [type(problem).__name__]
            if left and re.search("already exists|duplicate key", lines[0]):
                time.sleep(1.0)  # another machine was making the same tables
                continue
            raise _unusable(url, problem) from None
    made = study.user_attrs.get("recipe")
    if made is not None and (changed := differences(Recipe.from_json(made, shown), base)):
        raise InputError(
            "the storage holds another sweep of this name", where=shown, got=", ".join(changed)
        )
    study.set_user_attr("recipe", base.to_json())
    return study


def _proposed(trial: Any, axis_: Axis, whole: bool) -> str:
    if not axis_.is_range:
        return trial.suggest_categorical(axis_.key, list(axis_.values))
    if whole:
        return str(
            trial.suggest_int(axis_.key, int(axis_.low), int(axis_.high), log=axis_.is_logarithmic)
        )
    return _written(
        trial.suggest_float(axis_.key, axis_.low, axis_.high, log=axis_.is_logarithmic), whole=False
    )


def _in_state(optuna: Any, study: Any, *names: str) -> int:
    states = tuple(getattr(optuna.trial.TrialState, name) for name in names)
    return len(study.get_trials(deepcopy=False, states=states))


def _left(optuna: Any, study: Any, trials: int) -> int:
    """Trials that nobody has begun. One that a dead worker left does not count: it comes again."""
    counted = _in_state(optuna, study, "COMPLETE", "PRUNED", "RUNNING", "WAITING")
    failed = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.FAIL,))
    counted += sum(trial.user_attrs.get(FOUND, {}).get("state") == "failed" for trial in failed)
    return max(0, trials - counted)


def _known(runs: _Runs, study: Any) -> Outcome:
    """All trials of the storage, also those of other machines; the same values once."""
    found: dict[str, Trial] = {}
    for one in study.get_trials(deepcopy=False):
        if FOUND in one.user_attrs:
            trial = Trial(**one.user_attrs[FOUND])
            if trial.state != "elsewhere" or trial.name not in found:
                found[trial.name] = trial
        elif one.params and one.state.name == "RUNNING":
            values = {
                key: value if isinstance(value, str) else f"{value:.6g}"
                for key, value in one.params.items()
            }
            found.setdefault(runs.trial(values).name, Trial(values, "", "elsewhere"))
    return Outcome(runs.score, list(found.values()))
