"""One plain loop that trains every model, and can be killed at any moment.

Data order is a function of (seed, epoch) and every other draw of (seed, step), so a checkpoint is
weights, optimiser and counters; a run that was stopped and resumed ends with the same bits as one
that was not. (If its budget is minutes, the clock decides where the schedule stands, and two runs
are never quite the same.)

The module can be called: `regard.train(recipe)` trains a model and loads it, see `regard.training`.

>>> bot = regard.train("chat-attention", minutes=2)  # doctest: +SKIP
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from regard import build, bundle, checkpoint, disk, metrics, tokenizers
from regard.bundle import Bundle
from regard.checkpoint import Progress
from regard.data.batches import batches
from regard.data.cache import Corpus, document_frequency
from regard.errors import DataError, DivergedError, RegardError, TrainingError
from regard.evaluate import answers, likelihood, questions, ranked
from regard.optimise import factor, optimiser, used_up
from regard.recipe import Recipe, Train, differences
from regard.resources import allocations, check_memory
from regard.tasks.task import Batch

METRICS = "metrics.jsonl"
TRAIN, VALID, CHANGED = "train", "valid", "changed"  # kinds of its lines
# instead of VALID where nothing is held out: scores of what the model learns from
FITTED = "training_examples"
LOG_EVERY = 20
BAD_STEPS_IN_A_ROW = 5
PATIENCE = 1.0  # seconds in which a second Ctrl-C is taken for the first
SAMPLES = 3
ENOUGH = 200  # held-out examples to tell the best weights by
JUDGED = 200  # training examples to validate on, if none are held out
MOST_ROWS = 50  # of a table that is logged at every validation
FEWEST_TOKENS = tokenizers.MARKS + 1  # of any vocabulary
ROWS = 16  # prompts answered at a time at a validation: a signal waits for no more

BUDGET = frozenset(
    {"train.steps", "train.epochs", "train.tokens", "train.minutes"}
)  # a run may be given another
PLACES = frozenset(
    [f"data.{part}{side}path" for part in ("", "valid_", "test_") for side in ("", "target_")]
    + ["data.images", "data.valid_images"]
)  # files may move: what is in them counts
BENDING = (
    "seed",
    "data.",
    "train.",
    "search.",
    "source.plain",
    "source.word_dropout",
    "source.prompt_dropout",
)
BENDING += (
    "source.time_masks",
    "source.time_mask_width",
    "source.mel_masks",
    "source.mel_mask_width",
    "source.speed_perturbation",
)
BENDING += (
    "source.tempo_perturbation",
    "source.trim",
    "source.spectral_tilt",
    "source.noise",
    "source.random_crop",
    "source.horizontal_flip",
)
DROPOUT = (".dropout", ".hidden_dropout")


@dataclass(frozen=True)
class Facts:
    """What is known before the first step."""

    recipe: Recipe
    parameters: dict[str, int]
    vocabulary: int
    examples: dict[str, int]
    data: str
    resumed_at: int
    score: str  # that says which weights are best
    judged: int  # examples it is of

    @property
    def judged_part(self) -> str:
        return "validation" if self.examples["valid"] else "training"


def keeps_last(how: Train, held_out: int) -> bool:
    """Whether a run ends with its last weights, not with its best."""
    return how.keep == "last" or (how.keep == "auto" and held_out < ENOUGH)


def kept_because(facts: Facts, progress: Progress) -> str:
    """Which weights a run ended with, and the rule that chose them."""
    how, held_out = facts.recipe.train, facts.examples["valid"]
    if keeps_last(how, held_out):
        count = f"{held_out:,} examples are" if held_out != 1 else "1 example is"
        why = f"{count} held out, fewer than {ENOUGH} (train.keep=auto)"
        if held_out == 0:
            why = "no examples are held out (train.keep=auto)"
        if how.keep == "last":
            why = "train.keep=last says so"
        return f"kept the last weights, step {progress.kept_step:,}, because {why}"
    extreme = "lowest" if facts.score in metrics.LOWER_IS_BETTER else "highest"
    value = "" if progress.best is None else f", {abs(progress.best):.4g},"
    judged = f"{facts.judged:,} {facts.judged_part} examples"
    why = f"{extreme} {facts.score}{value} on {judged}"
    return f"kept the weights of step {progress.kept_step:,}: {why}"


class Reporter(Protocol):
    """Receives the progress of training."""

    def began(self, facts: Facts) -> None: ...
    def stepped(self, progress: Progress, loss: float, speed: float, done: float) -> None: ...
    def validated(self, record: dict[str, Any], samples: Sequence[tuple[str, str]]) -> None: ...
    def noted(self, message: str) -> None: ...


class Stopped(RegardError):
    """A signal asked for the end at `step`; the newest checkpoint is of the step `saved`, None:
    there is none."""

    def __init__(self, number: int, run: Path, *, step: int, saved: int | None):
        again = f"regard train --resume {run}"
        if saved is None:
            super().__init__(
                "stopped; the last steps were not numbers, "
                "and no checkpoint had been saved before them",
                hint=f"begin again from the first step with: {again}",
            )
        elif saved < step:
            super().__init__(
                "stopped; the last steps were not numbers and are not saved, "
                f"the checkpoint of step {saved:,} is kept",
                hint=f"go on from there with: {again}",
            )
        else:
            super().__init__(
                f"stopped; a checkpoint of step {step:,} is saved", hint=f"go on with: {again}"
            )
        self.exit_code = 128 + number

    def of_sweep(self) -> RegardError:
        """The same for a run of a sweep, where the sweep's own command goes on with it."""
        stop = RegardError(self.what, hint="the same command goes on with this sweep")
        stop.exit_code = self.exit_code
        return stop


class _Asked(Exception):
    """A signal came."""


def train(
    recipe: Recipe,
    run: Path,
    *,
    reporter: Reporter,
    resume: bool = False,
    anyway: bool = False,
    tensorboard: bool = False,
) -> Progress:
    """Train in the folder `run`, which then holds a bundle of the best weights (or the last ones,
    see `train.keep`).

    A run that is resumed may have another budget. Whatever else differs from how it began is
    refused, unless `anyway`; what its weights cannot survive is refused in any case.
    """
    if not resume:
        _refuse_other_contents(run)
    keep_memory()
    _check_memory(
        recipe, FEWEST_TOKENS, FEWEST_TOKENS
    )  # before the corpus is prepared, which may take long
    changed = _changes(recipe, run, anyway) if resume else []
    corpus = build.corpus(recipe, tokenizers.read(run / bundle.TOKENIZER) if resume else None)
    if not len(corpus.train):
        raise DataError("no usable examples to train on", got=corpus.tally.summary())
    run.mkdir(parents=True, exist_ok=True)
    with disk.locked(run), _threads(recipe.train.threads), _signals() as asked, allocations():
        for folder in (run, run / checkpoint.FOLDER):
            disk.recover(folder)
        if not resume:
            _refuse_other_contents(run)
        loop = _Loop(recipe, run, corpus, reporter, tensorboard)
        if resume:
            loop.resume(changed, anyway)
        else:
            bundle.create(run, recipe, corpus.tokenizer)
        return loop.go(asked)


def _changes(recipe: Recipe, run: Path, anyway: bool) -> list[str]:
    """What is not as the run's own recipe has it, budgets aside, if the run can go on like that."""
    before = Recipe.from_json(disk.read_json(run / bundle.RECIPE), run / bundle.RECIPE)
    changed = {line.partition(":")[0]: line for line in differences(before, recipe)}
    changed = {key: line for key, line in changed.items() if key not in BUDGET}
    if rigid := [
        line
        for key, line in changed.items()
        if not key.startswith(BENDING) and not key.endswith(DROPOUT)
    ]:
        raise TrainingError(
            "the weights of this run do not fit another architecture or vocabulary",
            where=run,
            got=", ".join(rigid),
            hint="train a new run for that",
        )
    refused = [line for key, line in changed.items() if key not in PLACES]
    if refused and not anyway:
        raise TrainingError(
            "not the recipe this run began with",
            where=run,
            got=", ".join(refused),
            hint="add --anyway to go on like that, or train a new run",
        )
    return list(changed.values())


def inverse_document_frequency(corpus: Corpus) -> Tensor:
    """log(answers / answers with this token), 0 for a token in every answer: the IDF of each
    token."""
    counts = torch.from_numpy(document_frequency(corpus.train, corpus.tokenizer.size)).double()
    return torch.log((1 + len(corpus.train)) / (1 + counts)).float()


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


class _Loop:
    def __init__(
        self, recipe: Recipe, run: Path, corpus: Corpus, reporter: Reporter, tensorboard: bool
    ):
        self.recipe = recipe
        self.how = recipe.train
        self.run = run
        self.corpus = corpus
        self.reporter = reporter
        self.task = build.task(recipe, corpus.tokenizer)
        _check_memory(recipe, corpus.tokenizer.size, corpus.tokenizer.source_size)
        self.model = build.model(
            recipe, vocabulary=corpus.tokenizer.size, source_vocabulary=corpus.tokenizer.source_size
        )
        self.model.idf.copy_(inverse_document_frequency(corpus))
        self.average = copy.deepcopy(self.model) if self.how.ema_decay else None
        self.optimiser = optimiser(self.model, self.how)
        self.progress = Progress(data=corpus.fingerprint, threads=effective_threads())
        self.saved = None
        self.lost_weights = False
        self.log = _Log(run, tensorboard=tensorboard)
        self.held_out = corpus.valid if len(corpus.valid) else corpus.train
        self.judged = len(corpus.valid) or min(
            JUDGED, len(corpus.train)
        )  # examples whose likelihood is a score
        self.samples = questions(self.held_out, self.task, at_most=SAMPLES)
        self.score = self.how.score or self.task.best
        answering = self.task.watched or self.score != "perplexity"
        self.questions = (
            questions(self.held_out, self.task, at_most=self.task.judged) if answering else []
        )
        baselines = (
            self.task.baselines([question.references for question in self.questions])
            if self.questions
            else {}
        )
        self.baselines = {"baselines": baselines} if baselines else {}

    # -- going on with a run that was stopped --------------------------------------------

    def resume(self, changed: list[str], anyway: bool) -> None:
        """Stand where the newest checkpoint stands. What is `changed` is written down where it
        can be found again."""
        restored = checkpoint.load_newest(
            self.run, self.model, self.average, self.optimiser, self.reporter.noted
        )
        if restored is None:
            self._begin_again(anyway)
        else:
            self.saved = self.progress = restored
            self._use_threads(restored.threads)
            if restored.data != self.corpus.fingerprint:
                if not anyway:
                    raise TrainingError(
                        "the data is not what this run was trained on so far",
                        where=self.run,
                        hint="resume with the data it began with, "
                        "add --anyway to go on with this, or train a new run",
                    )
                changed = [
                    *changed,
                    f"data: {restored.data[:12]} -> {self.corpus.fingerprint[:12]}",
                ]
        if self.progress.kept_step and not bundle.has_weights(self.run):
            self._rebuild_weights()
        self.log.forget(after=self.progress)
        if changed:
            self._change(changed)
        bundle.put_recipe(
            self.run, self.recipe
        )  # last: until it is there, the change can be asked for once more

    def _begin_again(self, anyway: bool) -> None:
        """Without a checkpoint a run starts at its first step, unless a trained model is there."""
        if bundle.WEIGHTS in disk.manifest(self.run) and not anyway:
            raise TrainingError(
                "there is no checkpoint to go on from; the trained model is kept",
                where=self.run,
                hint="--anyway begins again from the first step",
            )
        checkpoint.set_all_aside(self.run)
        self.reporter.noted("no whole checkpoint yet; beginning again from the first step")

    def _use_threads(self, number: int) -> None:
        """As many threads as before, where the recipe does not say: sums over other parts differ
        in the last bits."""
        if self.how.threads is None and number:
            torch.set_num_threads(number)
        threads = effective_threads()
        if self.how.threads is None and threads != number:
            self.reporter.noted(
                f"this run was trained with {number} threads so far "
                f"and only {threads} can be had here; "
                "it goes on, but does not end with the same bits"
            )
        elif threads > (os.cpu_count() or 1):
            self.reporter.noted(
                f"going on with {threads} threads as before, so that it ends with the same bits; "
                f"this machine has {os.cpu_count()} cores, "
                f"and --anyway --set train.threads={os.cpu_count()} may be faster"
            )
        self.progress = replace(self.progress, threads=threads)

    def _rebuild_weights(self) -> None:
        """The weights of the bundle are damaged or missing. Those of the same step are in its
        checkpoint, if there still is one; otherwise what the best score was says nothing any
        more, and the newest weights are validated."""
        step = self.progress.kept_step
        weights = checkpoint.kept_weights(self.run, step)
        lost = f"{self.run / bundle.WEIGHTS}: damaged or missing"
        if weights is not None:
            bundle.put_weights(self.run, weights)
            self.reporter.noted(f"{lost}; restored from the checkpoint of step {step:,}")
            return
        self.reporter.noted(
            f"{lost}, and there is no checkpoint of step {step:,} any more; "
            f"the weights of step {self.progress.step:,} take its place"
        )
        self.lost_weights = True
        validated = min(self.progress.validated, self.progress.step - 1)
        self.progress = replace(
            self.progress, best=None, best_step=0, kept_step=0, waited=0, validated=validated
        )

    def _change(self, changed: list[str]) -> None:
        """Go on in another way: forget what no longer means anything, and say so."""
        keys = {line.partition(":")[0] for line in changed}
        if keys & {
            "data",
            "seed",
            "train.batch_tokens",
            "train.batch_examples",
        }:  # the epoch has other batches now, so it begins anew
            self.progress = replace(self.progress, batch=0)
        answered = self.score != "perplexity" and any(key.startswith("search.") for key in keys)
        if answered or keys & {
            "data",
            "train.score",
        }:  # the best score so far cannot be compared with the next one
            self.progress = replace(self.progress, best=None, best_step=0, waited=0)
        self.progress = replace(self.progress, data=self.corpus.fingerprint)
        for model in (self.model, self.average):
            if model is not None:
                model.idf.copy_(inverse_document_frequency(self.corpus))
        if (
            self.saved is not None
        ):  # a run that is killed before its next checkpoint does not go back
            self._save()
        self.log.add(self.progress, CHANGED, {"changes": changed})
        self.reporter.noted(f"going on with a change, {', '.join(changed)}")

    # -- the loop ------------------------------------------------------------------------

    def go(self, asked: list[int]) -> Progress:
        """Train to the end of the budget, or until a signal is `asked`."""
        self.asked = asked
        self.plan = self._plan()
        self.recent = _Recent(self.progress)
        self.clock = time.perf_counter() - self.progress.seconds
        self.reporter.began(self._facts())
        try:
            self._train()
        except _Asked:
            if self.saved != self.progress and not self.recent.bad:
                self.reporter.noted("stopping; saving a checkpoint (Ctrl-C again drops it)")
                self._save()
            saved = checkpoint.newest(self.run)
            raise Stopped(asked[0], self.run, step=self.progress.step, saved=saved) from None
        finally:
            self.log.close()
        return self.progress

    def _heed(self) -> None:
        if self.asked:
            raise _Asked

    def _train(self) -> None:
        self.model.train()
        # It was not finished when a signal came, or the weights that were kept are lost.
        if self.progress.step and (self._is_due() or self.lost_weights):
            self._validate()
            self._save()
        while not self._finished():
            if self.progress.batch >= len(self.plan):
                self.progress = replace(self.progress, epoch=self.progress.epoch + 1, batch=0)
                self.plan = self._plan()
            self._update(
                self.plan[
                    self.progress.batch : self.progress.batch + self.how.gradient_accumulation_steps
                ]
            )
            if self._is_due() and not self.recent.bad:
                self._validate()
            if self._ends(self.how.save_every) and not self.recent.bad:
                self._save()
            self._heed()
        if self.progress.validated != self.progress.step:
            self._validate()
        if self.saved != self.progress:
            self._save()

    def _is_due(self) -> bool:
        """A validation at this step, and it has not been made."""
        return self._ends(self.how.valid_every) and self.progress.validated != self.progress.step

    def _ends(self, every: int) -> bool:
        """So many steps end here, or, with 0, an epoch."""
        return self.progress.step % every == 0 if every else self.progress.batch >= len(self.plan)

    def _plan(self) -> list[np.ndarray]:
        """The batches of this epoch."""
        source, target = self.task.lengths(self.corpus.train)
        tokens, most = self.how.batch_tokens, self.how.batch_examples
        seed, epoch, groups = self.recipe.seed, self.progress.epoch, self.corpus.train.groups
        return batches(
            source, target, tokens=tokens, most=most, groups=groups, seed=seed, epoch=epoch
        )

    def _finished(self) -> bool:
        return self._done() >= 1 or bool(
            self.how.patience and self.progress.waited >= self.how.patience
        )

    def _done(self) -> float:
        now = self.progress
        return used_up(
            self.how,
            step=now.step,
            epochs=self._epochs(),
            tokens=now.tokens,
            minutes=now.seconds / 60,
        )

    def _epochs(self) -> float:
        """Passes over the data so far; the last one may be under way."""
        return self.progress.epoch + self.progress.batch / len(self.plan)

    def _update(self, group: Sequence[np.ndarray]) -> None:
        nats, tokens = self._step(group)
        taken = math.isfinite(nats)
        self.progress = replace(
            self.progress,
            step=self.progress.step + 1,
            batch=self.progress.batch + len(group),
            tokens=self.progress.tokens + tokens,
            seconds=time.perf_counter() - self.clock,
            skipped=self.progress.skipped + (not taken),
        )
        self.recent.add(nats, tokens, self.progress.seconds, taken)
        self.progress = replace(
            self.progress, window_nats=self.recent.nats, window_tokens=self.recent.tokens
        )
        if self.recent.bad == BAD_STEPS_IN_A_ROW:
            saved, again = (
                checkpoint.newest(self.run),
                f"regard train --resume {self.run} --anyway --set train.learning_rate=…",
            )
            kept = (
                "no checkpoint was saved before"
                if saved is None
                else f"the checkpoint of step {saved:,} is kept"
            )
            raise DivergedError(
                f"loss or gradient was not a number {BAD_STEPS_IN_A_ROW} times in a row",
                where=f"{self.run}, step {self.progress.step}",
                got=f"examples {', '.join(str(i) for i in group[0][:5])}, …",
                hint=f"{kept}; lower the rate with: {again}",
            )
        self.reporter.stepped(self.progress, self.recent.loss, self.recent.speed, self._done())
        if (self.progress.step % LOG_EVERY == 0 or self._done() >= 1) and self.recent.tokens:
            rate = max(part["lr"] for part in self.optimiser.param_groups)
            self.log.add(
                self.progress,
                TRAIN,
                {"loss": self.recent.loss, "speed": self.recent.speed, "rate": rate},
            )
            self.recent.clear(self.progress.seconds)
            self.progress = replace(self.progress, window_nats=0.0, window_tokens=0)

    def _step(self, group: Sequence[np.ndarray]) -> tuple[float, int]:
        """One update from a group of batches: its nats and target tokens. If anything is not a
        number, none is made."""
        torch.manual_seed(_seed(self.recipe.seed, self.progress.step))
        micro_batches = [self._batch(index, number) for number, index in enumerate(group)]
        total, nats = sum(int(batch.real.sum()) for batch in micro_batches), 0.0
        for batch in micro_batches:
            loss, plain = self.model.loss(
                *batch, smoothing=self.how.label_smoothing, align=self.how.ctc_weight
            )
            (loss / total).backward()
            nats += float(plain)
        norm = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), self.how.max_grad_norm or math.inf, foreach=True
        )
        healthy = math.isfinite(nats) and bool(norm.isfinite())
        if healthy:
            share = factor(self.how, self.progress.step, self._done(), self._epochs())
            for part in self.optimiser.param_groups:
                part["lr"] = part["peak"] * share
            self.optimiser.step()
            self._follow()
        self.optimiser.zero_grad(set_to_none=True)
        return (nats if healthy else math.nan), total

    def _batch(self, index: np.ndarray, number: int) -> Batch:
        part = self.corpus.train
        draw = np.random.default_rng(
            [self.recipe.seed, self.progress.epoch, self.progress.batch + number]
        )
        targets = [part.target[i] for i in index]
        return self.task.batch(
            self.task.augment_pairs(part.gather_sources(index), targets, draw), targets
        )

    @torch.no_grad()
    def _follow(self) -> None:
        """The running mean of the weights. A young one forgets faster, so that the first weights
        do not stay in it."""
        if self.average is not None:
            decay = min(self.how.ema_decay, (1 + self.progress.step) / (10 + self.progress.step))
            torch._foreach_lerp_(
                list(self.average.parameters()), list(self.model.parameters()), 1 - decay
            )

    # -- validation, checkpoints, reports -------------------------------------------

    def _validate(self) -> None:
        """Score the weights that would be kept, and keep them if they are the best so far. A
        signal ends it before anything has changed; it is then made again when the run is
        resumed."""
        judged = self.average if self.average is not None else self.model
        judged.eval()
        bot = Bundle(self.recipe, self.task, judged)
        held_out = likelihood(
            judged, self.task, self.held_out, at_most=self.judged, between=self._heed
        )
        if not math.isfinite(held_out.nats):
            raise DivergedError(
                "the weights are not numbers any more",
                where=self.run,
                hint="lower train.learning_rate",
            )
        record, tables = dict(held_out.scores), {}
        if self.questions:
            candidates = ranked(
                bot, [question.given for question in self.questions], rows=ROWS, between=self._heed
            )
            scores = self.task.judge(
                candidates, [question.references for question in self.questions]
            )
            record |= scores.numbers
            tables = {
                name: table for name, table in scores.tables.items() if len(table) <= MOST_ROWS
            } | self.baselines
        texts = answers(bot, [question.given for question in self.samples], between=self._heed)
        samples = [
            (question.shown, answer) for question, answer in zip(self.samples, texts, strict=True)
        ]
        self.model.train()

        score = record[self.score] if self.score in metrics.LOWER_IS_BETTER else -record[self.score]
        best = math.isfinite(score) and (self.progress.best is None or score < self.progress.best)
        kept = best or keeps_last(self.how, len(self.corpus.valid))
        if kept:
            bundle.put_weights(self.run, bundle.tensors(judged))
        self.progress = replace(
            self.progress,
            best=score if best else self.progress.best,
            best_step=self.progress.step if best else self.progress.best_step,
            kept_step=self.progress.step if kept else self.progress.kept_step,
            validated=self.progress.step,
            waited=0 if best else self.progress.waited + 1,
            seconds=time.perf_counter() - self.clock,
        )
        record = record | {"best": best, "kept": kept, "score": self.score}
        kind = VALID if len(self.corpus.valid) else FITTED
        self.log.add(self.progress, kind, record | tables | {"samples": samples})
        self.reporter.validated({"step": self.progress.step, "kind": kind} | record, samples)

    def _save(self) -> None:
        checkpoint.save(self.run, self.model, self.average, self.optimiser, self.progress)
        self.saved = self.progress

    def _facts(self) -> Facts:
        parts, counted = {}, set()
        for name in ("frontend", "encoder", "decoder"):
            own = set(getattr(self.model, name).parameters()) - counted
            parts[name], counted = sum(p.numel() for p in own), counted | own
        corpus = self.corpus
        return Facts(
            recipe=self.recipe,
            parameters=parts,
            vocabulary=self.task.tokenizer.size,
            examples={
                "train": len(corpus.train),
                "valid": len(corpus.valid),
                "test": len(corpus.test),
            },
            data=corpus.tally.summary(),
            resumed_at=self.progress.step,
            score=self.score,
            judged=self.judged if self.score == "perplexity" else len(self.questions),
        )


class _Recent:
    """The last few steps, for the progress bar and the log."""

    def __init__(self, progress: Progress):
        self.bad = 0
        self.loss = self.speed = math.nan
        self.clear(progress.seconds)
        self.nats, self.tokens = progress.window_nats, progress.window_tokens  # of before a resume

    def clear(self, seconds: float) -> None:
        self.nats, self.tokens, self.since, self.timed = 0.0, 0, seconds, 0

    def add(self, nats: float, tokens: int, seconds: float, taken: bool) -> None:
        self.bad = 0 if taken else self.bad + 1
        if not taken:
            return
        self.nats, self.tokens, self.timed = (
            self.nats + nats,
            self.tokens + tokens,
            self.timed + tokens,
        )
        self.loss = self.nats / self.tokens
        if seconds > self.since:
            self.speed = self.timed / (seconds - self.since)


class _Log:
    """metrics.jsonl: a line for every few steps, for every validation, and for every change of a
    run under way."""

    def __init__(self, run: Path, *, tensorboard: bool):
        self.path = run / METRICS
        self.events = run / "tensorboard"
        with self._writing_events():
            self.board = _board(self.events) if tensorboard else None

    def forget(self, *, after: Progress) -> None:
        """Leave out what will come again."""
        if self.path.exists():
            records = [
                record for record in disk.read_json_lines(self.path) if _belongs(record, after)
            ]
            lines = [json.dumps(record, allow_nan=False) for record in records]
            disk.write_text(self.path, "".join(f"{line}\n" for line in lines))

    def add(self, progress: Progress, kind: str, record: dict[str, Any]) -> None:
        head = {
            "step": progress.step,
            "epoch": progress.epoch,
            "kind": kind,
            "seconds": round(progress.seconds, 3),
        }
        finite = {k: v for k, v in record.items() if not isinstance(v, float) or math.isfinite(v)}
        disk.append_line(self.path, json.dumps(head | finite, allow_nan=False))
        if self.board is not None:
            with self._writing_events():
                for name, value in finite.items():
                    if isinstance(value, float):
                        self.board.add_scalar(f"{kind}/{name}", value, progress.step)

    def close(self) -> None:
        if self.board is not None:
            with self._writing_events():
                self.board.close()

    @contextlib.contextmanager
    def _writing_events(self) -> Iterator[None]:
        try:
            yield
        except OSError as problem:  # from a thread of TensorBoard's own, which names no file
            raise disk.refusal(self.events, problem) or problem from None


def _belongs(record: dict[str, Any], progress: Progress) -> bool:
    until = {VALID: progress.validated, FITTED: progress.validated, CHANGED: math.inf}
    match record:
        case {"kind": str(kind), "step": int(step)}:
            return step <= until.get(kind, progress.step)
    return False


def _board(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise TrainingError(
            "TensorBoard is not installed", hint="pip install 'regard[tensorboard]'"
        ) from None
    return SummaryWriter(str(folder))


def _seed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def effective_threads() -> int:
    """Threads that really work: torch's number, as far as OpenMP's own limits let it."""
    threads = torch.get_num_threads()
    limit = os.environ.get("OMP_THREAD_LIMIT", "")
    if limit.isdecimal() and int(limit):
        threads = min(threads, int(limit))
    if os.environ.get("OMP_DYNAMIC", "").lower() in ("true", "1"):
        threads = min(threads, os.cpu_count() or 1)
    return threads


@contextlib.contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """A number of threads, and afterwards the caller's own again."""
    before = torch.get_num_threads()
    if number:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """The signals that asked for an end, as they come.

    A second Ctrl-C within `PATIENCE` seconds is ignored (a key pressed twice); a later signal ends
    everything at once, by an exception, so that the terminal is restored.
    """
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    caught = (signal.SIGINT, signal.SIGTERM)

    first = 0.0

    def ask(number: int, _: Any) -> None:
        nonlocal first
        if not asked:
            asked.append(number)
            first = time.monotonic()
        elif number == signal.SIGTERM:
            raise SystemExit(128 + number)
        elif time.monotonic() - first > PATIENCE:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, ask) for number in caught}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def keep_memory() -> None:
    """Ask glibc to keep freed memory. It would give large blocks back to the system after every
    operation and take them again page by page, which costs small models up to half their time."""
    with contextlib.suppress(OSError, AttributeError):
        trim_threshold, mmap_threshold = -1, -3
        libc = ctypes.CDLL(None)
        libc.mallopt(mmap_threshold, 1 << 30)
        libc.mallopt(trim_threshold, (1 << 31) - 1)


class _CallableModule(ModuleType):
    """This module, callable as `regard.train("chat-attention")`.

    Importing a module binds it to its name in the package, which hides a function of the same
    name; so the module calls that function.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Bundle:
        from regard.training import train_model  # which imports this module

        return train_model(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
