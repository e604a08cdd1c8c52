"""What a sweep knows: its trials, their settings, and which is best."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from regard.metrics import LOWER_IS_BETTER
from regard.recipe import Mark, marks_of


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
        return _name_of(self.values)

    @property
    def setting(self) -> dict[str, str]:
        """Its values without the seeds."""
        return {key: value for key, value in self.values.items() if not _is_seed(key)}


def _name_of(values: Mapping[str, str]) -> str:
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
        return _name_of(self.values)

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
            if data.setdefault(_name_of(shaping), trial.data) != trial.data:
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
            group = groups.setdefault(_name_of(trial.setting), Setting(trial.setting, []))
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
            setting = self.best_setting
            outcome["best_setting"] = None if setting is None else setting.values
            outcome["settings"] = [setting.to_json() for setting in self.settings]
        return outcome | {"trials": trials}
