"""train(recipe, run): the checks before the first step, then the loop."""

from __future__ import annotations

import contextlib
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard import build, bundle, checkpoint, disk, tokenizers
from regard.checkpoint import Progress
from regard.data.corpus import Corpus, Split
from regard.data.progress import reporter as progress_reporter
from regard.data.progress import reporting_to
from regard.errors import BegunError, DataError, InputError
from regard.recipe import Recipe
from regard.resources import allocations, check_memory
from regard.runs import Job
from regard.train.examples import write_examples
from regard.train.loop import Loop
from regard.train.page import ReportFile
from regard.train.process import keep_memory, stop_signals, threads_of
from regard.train.ranks import Ranks, joined
from regard.train.report import Reporter, Result, SilentReporter
from regard.train.resume import changes, resume_loop

REHEARSED = 4  # examples of each split
REHEARSAL = ["train.steps=1"]
REHEARSAL += ["search.max_new_tokens=2", "search.num_beams=1", "search.candidates=1"]
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
    ranks: Ranks | None = None,
) -> Progress:
    """Train in the folder `run`, which then holds a bundle of the best weights (or the last ones,
    see `train.keep`), and a report.html that every validation writes anew.

    A run that is resumed may have another budget. Whatever else differs from how it began is
    refused, unless `anyway`; what its weights cannot survive is refused in any case. `device` is
    not part of a run: it may be resumed on another one. `base`, the name of the recipe, and
    `command`, what was typed, are for the report. `ranks` are the processes that train together; by
    default those that torchrun started.
    """
    with contextlib.nullcontext(ranks) if ranks is not None else joined() as ranks:
        return _train_ranks(
            recipe,
            run,
            reporter=reporter,
            resume=resume,
            anyway=anyway,
            tensorboard=tensorboard,
            device=ranks.device(device),
            base=base,
            command=command,
            ranks=ranks,
        )


def _train_ranks(
    recipe: Recipe,
    run: Path,
    *,
    reporter: Reporter,
    resume: bool,
    anyway: bool,
    tensorboard: bool,
    device: torch.device,
    base: str,
    command: str,
    ranks: Ranks,
) -> Progress:
    keep_memory()
    # Before the corpus is prepared, which may take long.
    _check_memory(recipe, FEWEST_TOKENS, FEWEST_TOKENS, ranks)
    prepared = Prepared(recipe, run, resume=resume, anyway=anyway)
    corpus = prepared.corpus(ranks, reporter)

    with (
        _owned(run) if ranks.is_leader else contextlib.nullcontext(),
        threads_of(recipe.train.threads),
        stop_signals() as signals,
        allocations(),
    ):
        ranks.watch(signals)
        if ranks.is_leader and not resume:
            _refuse_other_contents(run)
        if ranks.is_leader:
            ranks.remember(run)
        if recipe.train.shard:
            _check_reach(run, ranks)
        _check_memory(recipe, corpus.tokenizer.size, corpus.tokenizer.source_size, ranks)
        loop = Loop(
            recipe, run, corpus, reporter, device=device, tensorboard=tensorboard, ranks=ranks
        )
        if resume:
            resume_loop(loop, prepared.changed, anyway)
        elif ranks.is_leader:
            bundle.create(run, recipe, corpus.tokenizer)
        if loop.retrieval is not None:
            bundle.put_retrieval(run, loop.retrieval)
        if ranks.is_leader:
            write_examples(run, loop.task, corpus)
            loop.report_file = ReportFile(run, recipe, corpus, reporter.noted)
            loop.report_file.begin(
                base=base, command=command, device=str(device), step=loop.progress.step
            )
        return loop.go(signals)


@contextlib.contextmanager
def _owned(run: Path) -> Iterator[None]:
    """The run's folder, which nobody else writes in; saves that were cut short are put right."""
    run.mkdir(parents=True, exist_ok=True)
    with disk.locked(run):
        for folder in (run, run / checkpoint.FOLDER):
            disk.recover(folder)
        yield


class Prepared:
    """The data of a run, and what changed since it began."""

    def __init__(self, recipe: Recipe, run: Path, *, resume: bool, anyway: bool):
        self.recipe = recipe
        self.run = run
        self.resume = resume
        self.anyway = anyway
        self.changed: list[str] = []

    def corpus(self, ranks: Ranks, reporter: Reporter) -> Corpus:
        """The prepared data. The leader prepares it. The first rank on each other machine checks
        what is there, or prepares it; then the others open it. Nobody goes on before all machines
        have it: the next thing that ranks do together may not take long."""
        corpus = None
        with _advancing(ranks):
            fingerprint = ranks.lead(self._prepare)
            if ranks.is_leader:
                corpus = self._corpus
            elif ranks.is_first_here:
                corpus = build.opened_corpus(self.recipe, fingerprint, check=True)
                corpus = corpus or self._prepared_again(fingerprint, ranks.rank)
        ranks.wait_for_all(", whose machine does not have the prepared data yet", reporter.noted)
        if corpus is None:
            corpus = build.opened_corpus(self.recipe, fingerprint, check=False)
        if corpus is None:
            raise DataError(
                "the prepared data is not there, though the first process of this machine has it",
                where=f"process {ranks.rank}, {socket.gethostname()}",
                hint="let REGARD_CACHE be the same folder for all processes of a machine",
            )
        return corpus

    def _prepare(self) -> str:
        if not self.resume:
            _refuse_other_contents(self.run)
        else:
            self.changed = changes(self.recipe, self.run, self.anyway)
        own = tokenizers.read(self.run / bundle.TOKENIZER) if self.resume else None
        self._corpus = build.corpus(self.recipe, own)
        if not len(self._corpus.train):
            raise DataError("no usable examples to train on", got=self._corpus.tally.summary())
        return self._corpus.fingerprint

    def _prepared_again(self, fingerprint: str, rank: int) -> Corpus:
        corpus = build.corpus(self.recipe)
        if corpus.fingerprint != fingerprint:
            raise DataError(
                "the data on this machine is not that of process 0",
                where=f"process {rank}, {socket.gethostname()}",
                got=f"fingerprint {corpus.fingerprint[:12]}, not {fingerprint[:12]}",
                hint="copy the same files to every machine, or let REGARD_CACHE be a folder that "
                "all of them share",
            )
        return corpus


def rehearse(recipe: Recipe, corpus: Corpus, device: str | torch.device = "auto") -> None:
    """Train one step on a few examples, in a folder that is removed: what the first training of a
    process imports and allocates once is then there."""
    few = replace(
        corpus,
        train=_first_examples(corpus.train),
        valid=_first_examples(corpus.valid),
        test=_first_examples(corpus.test),
    )
    recipe = recipe.override(REHEARSAL)
    with (
        tempfile.TemporaryDirectory() as folder,
        joined() as ranks,
        threads_of(recipe.train.threads),
        stop_signals() as signals,
        allocations(),
    ):
        keep_memory()
        run = Path(folder)
        target = ranks.device(device)
        loop = Loop(
            recipe, run, few, SilentReporter(), device=target, tensorboard=False, ranks=ranks
        )
        bundle.create(run, recipe, few.tokenizer)
        loop.report_file = ReportFile(run, recipe, few, lambda _: None)
        loop.report_file.begin(base="", command="", device=str(target), step=0)
        loop.go(signals)


def _first_examples(split: Split) -> Split:
    return split.select(np.arange(min(REHEARSED, len(split))))


@contextlib.contextmanager
def _advancing(ranks: Ranks) -> Iterator[None]:
    """Those that wait for a preparation inside wait as long as it goes on."""
    show = progress_reporter()

    def report(step: str, done: int, total: int | None) -> None:
        show(step, done, total)
        ranks.advance()

    with reporting_to(report):
        yield


def agreed_job(ranks: Ranks, make: Callable[[Path | None], Job]) -> Job:
    """What all ranks train: the job that the leader makes. Its argument is the folder of the run
    that was under way when torchrun started the processes again; this one is then resumed."""

    def chosen() -> dict[str, Any]:
        earlier = ranks.earlier_run
        job = make(earlier)
        if earlier is not None and job.run == earlier and bundle.has_begun(earlier):
            job = replace(job, resume=True)
        return job.to_json()

    return Job.from_json(ranks.lead(chosen))


def train_job(
    job: Job,
    reporter: SilentReporter | None = None,
    *,
    tensorboard: bool = False,
    device: str | torch.device = "auto",
    command: str = "",
    ranks: Ranks | None = None,
) -> Result:
    """Train a run that `regard.runs` describes, new or resumed."""
    with contextlib.nullcontext(ranks) if ranks is not None else joined() as ranks:
        if reporter is None or not ranks.is_leader:
            reporter = SilentReporter()
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
            ranks=ranks,
        )
        return Result(job.run, reporter.facts, progress)


def _refuse_other_contents(run: Path) -> None:
    """A new run never goes where another one is, or anybody's own files."""
    if run.is_dir() and bundle.has_begun(run):
        raise BegunError(
            "this folder already holds a run",
            where=run,
            hint=f"go on with: regard train --resume {run}, or choose another --out",
        )
    disk.claim(run, disk.MANIFEST, "run")


def _check_reach(run: Path, ranks: Ranks) -> None:
    """Each rank can write its shards into the run's folder, which the leader has locked."""
    ranks.lead(lambda: None)
    if not (run / disk.LOCK).exists():
        raise InputError(
            "the run's folder is not there, and with train.shard each process writes into it",
            where=run,
            got=f"process {ranks.rank} on {socket.gethostname()}",
            hint="let --out be a folder that all machines share",
        )


def _check_memory(recipe: Recipe, vocabulary: int, source_vocabulary: int, ranks: Ranks) -> None:
    """Weights, their gradients, the optimiser's means of them and their average fit, whatever a
    batch adds to it. A rank with a shard of them also has whole weights, for a moment: when it
    builds the model, and the leader in validations."""
    weights = build.weight_bytes(recipe, vocabulary, source_vocabulary)
    means = 2 if recipe.train.optimiser == "adamw" else 0
    copies = 2 + means + (recipe.train.ema_decay > 0)
    needed = copies * weights
    if recipe.train.shard and ranks.world > 1:
        needed = needed // ranks.world + weights
    check_memory(needed, "the weights, gradients and optimiser of this model", hint=build.SMALLER)
