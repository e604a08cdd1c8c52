"""train(recipe, run): the checks before the first step, then the loop."""

from __future__ import annotations

from pathlib import Path

import torch

from regard import build, bundle, checkpoint, disk, tokenizers
from regard.checkpoint import Progress
from regard.device import resolve
from regard.errors import DataError, TrainingError
from regard.recipe import Recipe
from regard.resources import allocations, check_memory
from regard.runs import Job
from regard.train.loop import Loop
from regard.train.page import ReportFile
from regard.train.process import keep_memory, stop_signals, threads_of
from regard.train.report import Reporter, Result, SilentReporter
from regard.train.resume import changes, resume_loop

FEWEST_TOKENS = tokenizers.NUM_SPECIAL_TOKENS + 1  # of any vocabulary


def train(
    recipe: Recipe,
    run: Path,
    *,
    reporter: Reporter,
    resume: bool = False,
    anyway: bool = False,
    tensorboard: bool = False,
    device: str | torch.device = "auto",
    base: str = "",
    command: str = "",
) -> Progress:
    """Train in the folder `run`, which then holds a bundle of the best weights (or the last ones,
    see `train.keep`), and a report.html that every validation writes anew.

    A run that is resumed may have another budget. Whatever else differs from how it began is
    refused, unless `anyway`; what its weights cannot survive is refused in any case. `device` is
    not part of a run: it may be resumed on another one. `base`, the name of the recipe, and
    `command`, what was typed, are for the report.
    """
    device = resolve(device)
    if not resume:
        _refuse_other_contents(run)
    keep_memory()
    # Before the corpus is prepared, which may take long.
    _check_memory(recipe, FEWEST_TOKENS, FEWEST_TOKENS)
    changed = changes(recipe, run, anyway) if resume else []
    corpus = build.corpus(recipe, tokenizers.read(run / bundle.TOKENIZER) if resume else None)
    if not len(corpus.train):
        raise DataError("no usable examples to train on", got=corpus.tally.summary())

    run.mkdir(parents=True, exist_ok=True)
    with (
        disk.locked(run),
        threads_of(recipe.train.threads),
        stop_signals() as signals,
        allocations(),
    ):
        for folder in (run, run / checkpoint.FOLDER):
            disk.recover(folder)
        if not resume:
            _refuse_other_contents(run)
        _check_memory(recipe, corpus.tokenizer.size, corpus.tokenizer.source_size)
        loop = Loop(recipe, run, corpus, reporter, device=device, tensorboard=tensorboard)
        if resume:
            resume_loop(loop, changed, anyway)
        else:
            bundle.create(run, recipe, corpus.tokenizer)
        if loop.retrieval is not None:
            bundle.put_retrieval(run, loop.retrieval)
        loop.report_file = ReportFile(run, recipe, corpus, reporter.noted)
        loop.report_file.begin(
            base=base, command=command, device=str(device), step=loop.progress.step
        )
        return loop.go(signals)


def train_job(
    job: Job,
    reporter: SilentReporter | None = None,
    *,
    tensorboard: bool = False,
    device: str | torch.device = "auto",
    command: str = "",
) -> Result:
    """Train a run that `regard.runs` describes, new or resumed."""
    reporter = reporter or SilentReporter()
    progress = train(
        job.recipe,
        job.run,
        reporter=reporter,
        resume=job.resume,
        anyway=job.anyway,
        tensorboard=tensorboard,
        device=device,
        base=job.base,
        command=command,
    )
    return Result(job.run, reporter.facts, progress)


def _refuse_other_contents(run: Path) -> None:
    """A new run never goes where another one is, or anybody's own files."""
    if run.is_dir() and bundle.has_begun(run):
        raise TrainingError(
            "this folder already holds a run",
            where=run,
            hint=f"go on with: regard train --resume {run}, or choose another --out",
        )
    disk.claim(run, disk.MANIFEST, "run")


def _check_memory(recipe: Recipe, vocabulary: int, source_vocabulary: int) -> None:
    """Weights, their gradients, the optimiser's means of them and their average fit, whatever a
    batch adds to it."""
    weights = build.weight_bytes(recipe, vocabulary, source_vocabulary)
    means = 2 if recipe.train.optimiser == "adamw" else 0
    copies = 2 + means + (recipe.train.ema_decay > 0)
    check_memory(
        copies * weights, "the weights, gradients and optimiser of this model", hint=build.SMALLER
    )
