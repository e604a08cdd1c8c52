"""Training: one plain loop for every model, which can be killed at any moment.

Data order is a function of (seed, epoch) and every other draw of a seed and counters, so a
checkpoint is weights, optimiser and counters; a run that was stopped and resumed ends with the same
bits as one that was not. (If its budget is minutes, the clock decides where the schedule stands,
and two runs are never quite the same.)

    model.py        the function regard.train(recipe), which trains a model and returns it
    run.py          train(recipe, run): the checks before the first step, then the loop;
                    train_job(job) does it for a job of regard.runs
    loop.py         steps, validations and checkpoints
    learner.py      model, optimiser and averaged weights, as all processes hold them
    sharded.py      the same where each process has a part of every tensor
    parts.py        the part of a batch that a process computes
    resume.py       where a stopped run stands, and what may have changed since
    validation.py   the scores of held-out examples
    log.py          metrics.jsonl
    report.py       what a reporter is told
    page.py         report.html, written anew at every validation
    process.py      threads, signals, memory
    ranks.py        the processes that train together
    pulse.py        how they notice that one is lost
"""

from __future__ import annotations

from regard.train.log import CHANGED, FITTED, METRICS, TRAIN, VALID
from regard.train.process import effective_threads, keep_memory
from regard.train.ranks import OtherRankError, joined
from regard.train.report import (
    Facts,
    Reporter,
    Result,
    SilentReporter,
    Stopped,
    keeps_last,
    kept_because,
)
from regard.train.run import agreed_job, rehearse, train, train_job

__all__ = [
    "CHANGED",
    "FITTED",
    "METRICS",
    "TRAIN",
    "VALID",
    "Facts",
    "OtherRankError",
    "Reporter",
    "Result",
    "SilentReporter",
    "Stopped",
    "agreed_job",
    "effective_threads",
    "joined",
    "keep_memory",
    "keeps_last",
    "kept_because",
    "rehearse",
    "train",
    "train_job",
]
