"""Training: one plain loop for every model, which can be killed at any moment.

Data order is a function of (seed, epoch) and every other draw of (seed, step), so a checkpoint is
weights, optimiser and counters; a run that was stopped and resumed ends with the same bits as one
that was not. (If its budget is minutes, the clock decides where the schedule stands, and two runs
are never quite the same.)

The package can be called: `regard.train(recipe)` trains a model and returns it.

>>> bot = regard.train("chat-attention", minutes=2)  # doctest: +SKIP

    model.py        regard.train(recipe): what Python calls
    run.py          train(recipe, run): the checks before the first step, then the loop;
                    train_job(job) does it for a job of regard.runs
    loop.py         steps, validations and checkpoints
    resume.py       where a stopped run stands, and what may have changed since
    validation.py   the scores of held-out examples
    log.py          metrics.jsonl
    report.py       what a reporter is told
    process.py      threads, signals, memory
"""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any

from regard.bundle import Bundle
from regard.errors import InputError, did_you_mean
from regard.train.log import CHANGED, FITTED, METRICS, TRAIN, VALID
from regard.train.model import train_model
from regard.train.process import effective_threads, keep_memory
from regard.train.report import (
    Facts,
    Reporter,
    Result,
    SilentReporter,
    Stopped,
    keeps_last,
    kept_because,
)
from regard.train.run import train, train_job

__all__ = [
    "CHANGED",
    "FITTED",
    "METRICS",
    "TRAIN",
    "VALID",
    "Facts",
    "Reporter",
    "Result",
    "SilentReporter",
    "Stopped",
    "effective_threads",
    "keep_memory",
    "keeps_last",
    "kept_because",
    "train",
    "train_job",
    "train_model",
]


class _CallablePackage(ModuleType):
    """This package, callable as `regard.train("chat-attention")`.

    Importing the package binds it to the name `regard.train`, which hides a function of the same
    name; so the package calls that function.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Bundle:
        known = inspect.signature(train_model).parameters
        for name in kwargs:
            if name not in known:
                hint = did_you_mean(name, known)
                raise InputError("no such argument", where="train", got=name, hint=hint)
        return train_model(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
