"""A search: trials that optuna proposes, in a database that several machines may share."""

from __future__ import annotations

import contextlib
import math
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from regard import disk
from regard.errors import InputError, RegardError, TrainingError, WriteError
from regard.metrics import LOWER_IS_BETTER
from regard.recipe import Recipe, differences, is_whole
from regard.sweep.axes import Axis, number_text
from regard.sweep.outcome import Outcome, Trial
from regard.sweep.trials import Pruned, Trials
from regard.train import Stopped

# Seconds: a worker on another machine that was silent for so long is dead.
HEARTBEAT, GRACE = 15, 60
RETRIES = 3
TRIAL_KEY = "trial"  # under which name a storage keeps what a trial reached


def run_study(
    runs: Trials,
    axes: Sequence[Axis],
    base: Recipe,
    trials: int,
    every: Sequence[dict[str, str]],
    storage: str,
    prune: bool,
    on_outcome: Callable[[Outcome], None],
) -> Outcome:
    """Train with values that optuna proposes, `every` one of these before others, until the storage
    has `trials` trials, whoever made them."""
    optuna = _optuna()
    # Two processes that create the tables at once would fail.
    with disk.lock_file(runs.folder / disk.LOCK, wait=True):
        study = _study(optuna, runs.folder.resolve().name, storage, base, prune)
        for point in every:
            study.enqueue_trial(point, skip_if_exists=True)

    proposals = _Proposals(optuna, study, runs, axes, base, prune)
    work = partial(_work, optuna, study, proposals, trials, on_outcome)
    if runs.fleet is None:
        work()
    else:
        workers = min(trials, runs.fleet.slots(base.train.threads or 1))
        for _ in runs.fleet.together([work] * workers):
            pass
    return _outcome(runs, study)


def _work(
    optuna: Any,
    study: Any,
    proposals: _Proposals,
    trials: int,
    on_outcome: Callable[[Outcome], None],
) -> None:
    """Make trials until the storage has `trials`, as one of several workers."""
    waited_until = math.inf
    while True:
        with _Turn(proposals.turns) as turn:
            if _left(optuna, study, trials) > 0 or _in_state(optuna, study, "WAITING"):
                waited_until = math.inf
                try:
                    study.optimize(
                        partial(proposals.train, turn), n_trials=1, catch=(TrainingError,)
                    )
                finally:
                    on_outcome(_outcome(proposals.runs, study))
                continue
            if not _in_state(optuna, study, "RUNNING") or time.monotonic() >= waited_until:
                return
        # Somebody is at work, or dead: then its trial comes back to us.
        waited_until = min(waited_until, time.monotonic() + GRACE + HEARTBEAT)
        time.sleep(min(1.0, HEARTBEAT))
        if proposals.runs.fleet is not None:
            proposals.runs.fleet.check_signals()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # heartbeats are called experimental
            optuna.storages.fail_stale_trials(study)


class _Turn(contextlib.AbstractContextManager["_Turn"]):
    """The turn of one of several workers to look whether a trial is left. It has it until its trial
    has begun, so that all workers together begin as many as were asked for."""

    def __init__(self, turns: threading.Lock):
        self._turns = turns
        self._has_it = False

    def __enter__(self) -> _Turn:
        self._turns.acquire()
        self._has_it = True
        return self

    def __exit__(self, *_: object) -> None:
        self.pass_on()

    def pass_on(self) -> None:
        if self._has_it:
            self._has_it = False
            self._turns.release()


class _Proposals:
    """The values that a study proposes, and what training with them reaches. Optuna minimises, so
    a score where more is better is given to it with a minus."""

    def __init__(
        self,
        optuna: Any,
        study: Any,
        runs: Trials,
        axes: Sequence[Axis],
        base: Recipe,
        prune: bool,
    ):
        self.optuna = optuna
        self.study = study
        self.runs = runs
        self.axes = axes
        self.prune = prune
        self.whole = {axis.key: axis.is_range and is_whole(base, axis.key) for axis in axes}
        self.sign = 1 if runs.score in LOWER_IS_BETTER else -1
        self.turns = threading.Lock()

    def train(self, turn: _Turn, proposal: Any) -> float:
        """Train with the proposed values; the score for optuna."""
        turn.pass_on()
        values = {axis.key: _suggest(proposal, axis, self.whole[axis.key]) for axis in self.axes}
        try:
            trial = self.runs.go(self.runs.trial(values), partial(self._watch, proposal))
        except (Stopped, WriteError):
            self.study.enqueue_trial(proposal.params)  # so that whoever comes next goes on with it
            raise
        proposal.set_user_attr(TRIAL_KEY, asdict(trial))  # at once: others read it meanwhile
        if trial.state == "pruned":
            raise self.optuna.TrialPruned
        if trial.score is None:
            raise TrainingError(trial.why or trial.state)
        return self.sign * trial.score

    def _watch(self, proposal: Any, record: dict[str, Any]) -> None:
        """Tell optuna of a validation; a trial that does worse than most ends here."""
        if self.runs.score not in record:
            return
        proposal.report(self.sign * record[self.runs.score], record["step"])
        if self.prune and proposal.should_prune():
            raise Pruned


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


def _open_study(optuna: Any, name: str, url: str, prune: bool) -> Any:
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
def storage_errors(url: str) -> Iterator[None]:
    """Report a database that is full, read-only or gone in one line."""
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
    address = _without_password(url)
    for left in reversed(range(RETRIES)):
        try:
            study = _open_study(optuna, name, url, prune)
            break
        except Exception as problem:
            lines = str(problem).strip().splitlines() or [type(problem).__name__]
            if left and re.search("already exists|duplicate key", lines[0]):
                time.sleep(1.0)  # another machine was making the same tables
                continue
            raise _unusable(url, problem) from None
    stored = study.user_attrs.get("recipe")
    if stored is not None and (changed := differences(Recipe.from_json(stored, address), base)):
        raise InputError(
            "the storage holds another sweep of this name", where=address, got=", ".join(changed)
        )
    study.set_user_attr("recipe", base.to_json())
    return study


def _suggest(trial: Any, axis: Axis, whole: bool) -> str:
    if not axis.is_range:
        return trial.suggest_categorical(axis.key, list(axis.values))
    if whole:
        return str(
            trial.suggest_int(axis.key, int(axis.low), int(axis.high), log=axis.is_logarithmic)
        )
    return number_text(
        trial.suggest_float(axis.key, axis.low, axis.high, log=axis.is_logarithmic), whole=False
    )


def _in_state(optuna: Any, study: Any, *names: str) -> int:
    states = tuple(getattr(optuna.trial.TrialState, name) for name in names)
    return len(study.get_trials(deepcopy=False, states=states))


def _left(optuna: Any, study: Any, trials: int) -> int:
    """Trials that nobody has begun. One that a dead worker left does not count: it comes again."""
    counted = _in_state(optuna, study, "COMPLETE", "PRUNED", "RUNNING", "WAITING")
    failed = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.FAIL,))
    counted += sum(trial.user_attrs.get(TRIAL_KEY, {}).get("state") == "failed" for trial in failed)
    return max(0, trials - counted)


def _outcome(runs: Trials, study: Any) -> Outcome:
    """All trials of the storage, also those of other machines; the same values once."""
    trials: dict[str, Trial] = {}
    for stored in study.get_trials(deepcopy=False):
        if TRIAL_KEY in stored.user_attrs:
            trial = Trial(**stored.user_attrs[TRIAL_KEY])
            if trial.state != "elsewhere" or trial.name not in trials:
                trials[trial.name] = trial
        elif stored.params and stored.state.name == "RUNNING":
            values = {
                key: value if isinstance(value, str) else f"{value:.6g}"
                for key, value in stored.params.items()
            }
            trials.setdefault(runs.trial(values).name, Trial(values, "", "elsewhere"))
    return Outcome(runs.score, list(trials.values()))
