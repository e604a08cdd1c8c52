"""The training loop: steps, validations and checkpoints."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard import build, bundle, checkpoint, metrics
from regard.checkpoint import Progress
from regard.data.batches import ORDER, Batches, Place
from regard.data.corpus import Corpus
from regard.errors import DivergedError, RegardError
from regard.model import Model
from regard.optimise import factor, used_up
from regard.recipe import Recipe
from regard.retrieval import Retrieval
from regard.sessions import State
from regard.train.learner import Learner, Replicated
from regard.train.log import FITTED, TRAIN, VALID, Log
from regard.train.page import ReportFile
from regard.train.parts import Part, Parts
from regard.train.process import effective_threads, release_memory
from regard.train.ranks import STOP_SIGNALS, Ranks
from regard.train.report import Facts, Reporter, Stopped, keeps_last
from regard.train.validation import Scores, Validation
from regard.weights import tensors

LOG_EVERY = 20
RELEASE_EVERY = 25  # steps between two returns of freed memory to the system
BAD_STEPS_IN_A_ROW = 5
EXAMPLES_NAMED = 5  # of a batch


class _StopSignal(Exception):
    """A signal asked for the end."""

    def __init__(self, number: int):
        self.number = number


def inverse_document_frequency(corpus: Corpus) -> Tensor:
    """log(answers / answers with this token), 0 for a token in every answer: the IDF of each
    token."""
    counts = torch.from_numpy(corpus.frequency).double()
    return torch.log((1 + len(corpus.train)) / (1 + counts)).float()


class Loop:
    """A run under way: its model, its optimiser, and where it stands."""

    def __init__(
        self,
        recipe: Recipe,
        run: Path,
        corpus: Corpus,
        reporter: Reporter,
        *,
        device: torch.device,
        tensorboard: bool,
        ranks: Ranks,
    ):
        self.recipe = recipe
        self.how = recipe.train
        self.run = run
        self.corpus = corpus
        self.reporter = reporter
        self.device = device
        self.ranks = ranks
        self.task = build.task(recipe, corpus.tokenizer)
        self.learner = self._learner()
        self.learner.set_idf(inverse_document_frequency(corpus))
        self.progress = Progress(
            data=corpus.fingerprint, threads=effective_threads(), world=ranks.world, order=ORDER
        )
        self.saved: Progress | None = None  # of the newest checkpoint
        self.clock = time.perf_counter()  # when its seconds began
        self.lost_weights = False  # those that were kept, and there is no checkpoint of them
        self.bad_examples = np.empty(0, np.int64)  # of the batch that ended the run
        self.log = Log(run, tensorboard=tensorboard) if ranks.is_leader else None
        self.retrieval = None
        if recipe.search.retrieved and ranks.is_leader:  # only the leader answers
            self.retrieval = Retrieval.of(corpus.train, corpus.tokenizer)
        self.validation = Validation(recipe, self.task, corpus, self.retrieval)
        self.report_file: ReportFile | None = None  # that shows people how it goes

    def _learner(self) -> Learner:
        """The model with its initial weights. It is built on the CPU: the same weights whatever the
        device."""
        tokenizer = self.corpus.tokenizer

        def make() -> Model:
            return build.model(
                self.recipe, vocabulary=tokenizer.size, source_vocabulary=tokenizer.source_size
            )

        if self.how.shard and self.ranks.world > 1:
            from regard.train.sharded import Sharded  # it takes a second to import

            return Sharded(make, self.how, self.device, self.ranks)
        return Replicated(make(), self.how, self.device, self.ranks)

    def go(self, signals: list[int]) -> Progress:
        """Train to the end of the budget, or until there is a number in `signals`."""
        self.signals = signals
        self.learner.begin()
        self.batches = self._batches()
        self.parts = Parts(self.task, self.corpus.train, seed=self.recipe.seed, ranks=self.ranks)
        self.recent = _Recent(self.progress)
        self.clock = time.perf_counter() - self.progress.seconds
        self.reporter.began(self._facts())
        if self.how.shard and self.ranks.world == 1:
            self.reporter.noted(
                "train.shard: this process has the whole model; "
                "torchrun starts several: torchrun --nproc-per-node 2 -m regard train …"
            )
        try:
            self._train()
        except _StopSignal as stop:
            if self.saved != self.progress and not self.recent.bad:
                self.reporter.noted("stopping; saving a checkpoint (Ctrl-C again drops it)")
                self.save()
            saved = self.ranks.lead(lambda: checkpoint.newest(self.run))
            self._show("stopped")
            step, world = self.progress.step, self.ranks.world
            raise Stopped(stop.number, self.run, step=step, saved=saved, world=world) from None
        except RegardError:
            self._show("stopped")
            raise
        else:
            self._show("done")
        finally:
            if self.log is not None:
                self.log.close()
        return self.progress

    def _heed(self) -> None:
        """Stop if this rank knows of a signal; if not, those that wait for it wait on."""
        self.ranks.advance()
        if self.signals:
            raise _StopSignal(self.signals[0])

    def _heed_all(self) -> None:
        """Stop if any rank knows of a signal: all of them stop at the same step."""
        known = self.ranks.sum(*(float(number in self.signals) for number in STOP_SIGNALS))
        for number, ranks in zip(STOP_SIGNALS, known, strict=True):
            if ranks:
                raise _StopSignal(number)

    def _train(self) -> None:
        self.learner.model.train()
        # It was not finished when a signal came, or the weights that were kept are lost.
        if self.progress.step and (self._is_due() or self.lost_weights):
            self._validate()
            self.save()
        while not self._finished():
            if self.batches.is_at_end(self.place):
                self.progress = replace(
                    self.progress, epoch=self.progress.epoch + 1, window=0, batch=0
                )
            group, after = self.batches.take(self.place, self._batches_a_step())
            self._update(group, after)
            if self._is_due() and not self.recent.bad:
                self._validate()
            if self._ends(self.how.save_every) and not self.recent.bad:
                self.save()
            self._heed_all()
        if self.progress.validated != self.progress.step:
            self._validate()
        if self.saved != self.progress:
            self.save()

    def _is_due(self) -> bool:
        """A validation at this step, and it has not been made."""
        return self._ends(self.how.valid_every) and self.progress.validated != self.progress.step

    def _ends(self, every: int) -> bool:
        """So many steps end here, or, with 0, an epoch."""
        if every:
            return self.progress.step % every == 0
        return self.batches.is_at_end(self.place)

    @property
    def place(self) -> Place:
        """Where the next batch is."""
        return Place(self.progress.epoch, self.progress.window, self.progress.batch)

    def _batches(self) -> Batches:
        """The batches of all epochs."""
        split = self.corpus.train
        return Batches(
            lambda index: self.task.lengths(split.select(index)),
            len(split),
            tokens=self.how.batch_tokens,
            most=self.how.batch_examples,
            groups=split.groups,
            seed=self.recipe.seed,
        )

    def _batches_a_step(self) -> int:
        """The batches whose gradients the next step accumulates."""
        growth = 1 + int(self._done() * self.how.batch_growth)
        return self.how.gradient_accumulation_steps * min(growth, self.how.batch_growth)

    def _finished(self) -> bool:
        has_patience = not self.how.patience or self.progress.waited < self.how.patience
        return self._done() >= 1 or not has_patience

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
        return self.progress.epoch + self.batches.share(self.place)

    def _update(self, group: Sequence[tuple[Place, np.ndarray]], after: Place) -> None:
        nats, tokens, seconds = self._step(group)
        taken = math.isfinite(nats)
        self.progress = replace(
            self.progress,
            step=self.progress.step + 1,
            window=after.window,
            batch=after.batch,
            tokens=self.progress.tokens + tokens,
            seconds=seconds,
            skipped=self.progress.skipped + (not taken),
        )
        self.recent.add(nats, tokens, self.progress.seconds, taken)
        self.progress = replace(
            self.progress, window_nats=self.recent.nats, window_tokens=self.recent.tokens
        )
        if self.recent.bad == BAD_STEPS_IN_A_ROW:
            raise self._divergence()
        self.reporter.stepped(self.progress, self.recent.loss, self.recent.speed, self._done())
        if self.progress.step % RELEASE_EVERY == 0:
            release_memory()
        if (self.progress.step % LOG_EVERY == 0 or self._done() >= 1) and self.recent.tokens:
            self._log_window()

    def _log_window(self) -> None:
        """A line about the steps since the last one."""
        rate = max(part["lr"] for part in self.learner.optimiser.param_groups)
        window = {"loss": self.recent.loss, "speed": self.recent.speed, "rate": rate}
        if self.log is not None:
            self.log.add(self.progress, TRAIN, window)
        self.recent.clear(self.progress.seconds)
        self.progress = replace(self.progress, window_nats=0.0, window_tokens=0)

    def _divergence(self) -> DivergedError:
        saved = checkpoint.newest(self.run)
        kept = "no checkpoint was saved before"
        if saved is not None:
            kept = f"the checkpoint of step {saved:,} is kept"
        again = f"regard train --resume {self.run} --anyway --set train.learning_rate=…"
        examples = [str(index) for index in self.bad_examples]
        if len(examples) > EXAMPLES_NAMED:
            examples[EXAMPLES_NAMED:] = ["…"]
        return DivergedError(
            f"loss or gradient was not a number {BAD_STEPS_IN_A_ROW} times in a row",
            where=f"{self.run}, step {self.progress.step}",
            got=f"examples {', '.join(examples)} of the training data",
            hint=f"{kept}; lower the rate with: {again}",
        )

    def _step(self, group: Sequence[tuple[Place, np.ndarray]]) -> tuple[float, int, float]:
        """One update from a group of batches: its nats and target tokens, and the clock. If
        anything is not a number, none is made."""
        parts = self._parts_of_step(group)
        tokens = self.ranks.sum(*(part.tokens for part in parts))
        nats = self._backward(parts, tokens, sum(tokens))
        seconds = time.perf_counter() - self.clock if self.ranks.is_leader else 0.0
        nats, seconds = self.ranks.sum(nats, seconds)
        norm = self.learner.clip_gradients(self.how.max_grad_norm)
        optimiser = self.learner.optimiser
        healthy = math.isfinite(nats) and math.isfinite(norm)
        if healthy:
            share = factor(self.how, self.progress.step, self._done(), self._epochs())
            for parameters in optimiser.param_groups:
                parameters["lr"] = parameters["peak"] * share
            optimiser.step()
            # A young average forgets faster, so that the first weights do not stay in it.
            young = (1 + self.progress.step) / (10 + self.progress.step)
            self.learner.update_average(min(self.how.ema_decay, young))
        optimiser.zero_grad(set_to_none=True)
        if not healthy and self.recent.bad + 1 == BAD_STEPS_IN_A_ROW:
            self.bad_examples = self._find_bad_examples(group, tokens)
        return (nats if healthy else math.nan), round(sum(tokens)), seconds

    def _parts_of_step(self, group: Sequence[tuple[Place, np.ndarray]]) -> list[Part]:
        """What this rank computes in a step; random numbers of the model come from its seed."""
        torch.manual_seed(_seed(self.recipe.seed, self.progress.step, self.ranks.rank))
        contrasts = self._contrasts()
        return [self.parts.part(place, index, contrasts=contrasts) for place, index in group]

    def _find_bad_examples(
        self, group: Sequence[tuple[Place, np.ndarray]], tokens: Sequence[float]
    ) -> np.ndarray:
        """The examples of the batch whose loss or gradient is not a number: the step is computed
        again, batch by batch. Those of all batches, if only the sum of these is not one."""
        for (_, index), part, count in zip(group, self._parts_of_step(group), tokens, strict=True):
            (nats,) = self.ranks.sum(self._backward([part], [count], sum(tokens)))
            norm = self.learner.clip_gradients(0.0)
            self.learner.optimiser.zero_grad(set_to_none=True)
            if not (math.isfinite(nats) and math.isfinite(norm)):
                return index
        return np.concatenate([index for _, index in group])

    def _backward(self, parts: Sequence[Part], tokens: Sequence[float], total: float) -> float:
        """Gradients of the loss per token, where each batch has so many `tokens` on all ranks, and
        the step a `total`; the nats of this rank."""
        nats = 0.0
        # As the mean over ranks is taken, not the sum, a loss counts for all of them.
        divisor = total / self.ranks.world
        for number, (part, count) in enumerate(zip(parts, tokens, strict=True)):
            is_last = number == len(parts) - 1
            with contextlib.nullcontext() if is_last else self.learner.accumulating():
                loss, plain = self.learner.loss(part, self._contrastive_weight(part, count))
                (loss * part.weight / divisor).backward()
            nats += part.weight * float(plain)
        return nats

    def _contrasts(self) -> bool:
        """Whether the contrastive loss has begun."""
        return bool(self.how.contrastive_weight) and self._done() >= self.how.contrastive_start

    def _contrastive_weight(self, part: Part, tokens: float) -> float:
        """`Model.loss` multiplies the mean over a rank's other answers by its tokens. This makes
        it the mean over those of all ranks, times the `tokens` of the batch."""
        if not part.share_of_others:
            return 0.0
        return self.how.contrastive_weight * part.share_of_others * (tokens / part.tokens)

    # -- validation and checkpoints ---------------------------------------------------------

    def _validate(self) -> None:
        """Score the weights that would be kept, and keep them if they are the best so far. A
        signal ends it before anything has changed; it is then made again when the run is
        resumed."""
        began = time.perf_counter()
        judged = self.learner.judged()
        self._leave_out(began)
        outcome = self.ranks.lead(lambda: self._validate_here(judged))
        if outcome["signal"]:
            raise _StopSignal(outcome["signal"])
        self.progress = Progress(**outcome["progress"])

    def _validate_here(self, judged: Model | None) -> dict[str, Any]:
        """A validation by the leader: the signal that ended it, and the progress after it."""
        assert judged is not None  # the leader has it
        try:
            self._judge(judged)
        except _StopSignal as stop:
            return {"signal": stop.number, "progress": asdict(self.progress)}
        return {"signal": 0, "progress": asdict(self.progress)}

    def _judge(self, judged: Model) -> None:
        began = time.perf_counter()
        judged.eval()
        scores = self.validation.scores(judged, self.run, between=self._heed)
        self.learner.model.train()

        name = self.validation.score
        score = scores.numbers[name]
        best_score = self.progress.best_score
        is_best = math.isfinite(score) and (
            best_score is None or metrics.is_better(name, score, best_score)
        )
        is_kept = is_best or keeps_last(self.how, len(self.corpus.valid))
        if is_kept:
            bundle.put_weights(self.run, tensors(judged))
        self._leave_out(began)
        step = self.progress.step
        self.progress = replace(
            self.progress,
            best_score=score if is_best else best_score,
            best_step=step if is_best else self.progress.best_step,
            kept_step=step if is_kept else self.progress.kept_step,
            validated=step,
            waited=0 if is_best else self.progress.waited + 1,
            seconds=time.perf_counter() - self.clock,
        )
        self._report(scores, is_best=is_best, is_kept=is_kept)
        began = time.perf_counter()
        self._show("under way")
        self._leave_out(began)

    def _report(self, scores: Scores, *, is_best: bool, is_kept: bool) -> None:
        record = scores.numbers | {
            "best": is_best,
            "kept": is_kept,
            "score": self.validation.score,
        }
        kind = VALID if self.validation.is_held_out else FITTED
        assert self.log is not None  # only the leader validates
        extra: dict[str, Any] = {"samples": scores.samples}
        if scores.intervals:
            extra["intervals"] = scores.intervals
        self.log.add(self.progress, kind, record | scores.tables | extra)
        self.reporter.validated({"step": self.progress.step, "kind": kind} | record, scores.samples)

    def _show(self, state: State) -> None:
        """Write the report as far as it is known."""
        if self.report_file is not None:
            self.report_file.write(self.progress, state)

    def save(self) -> None:
        """Write a checkpoint."""
        began = time.perf_counter()
        self.learner.save(self.run, self.progress)
        self.saved = self.progress
        self._leave_out(began)

    def _leave_out(self, began: float) -> None:
        """With `train.clock = "steps"`, the time since `began` does not count."""
        if self.how.clock == "steps":
            self.clock += time.perf_counter() - began

    def _facts(self) -> Facts:
        parts = {}
        counted: set[Tensor] = set()
        for name in ("frontend", "encoder", "decoder"):
            own = set(getattr(self.learner.model, name).parameters()) - counted
            parts[name] = sum(parameter.numel() for parameter in own)
            counted |= own
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
            score=self.validation.score,
            judged=self.validation.judged,
            device=str(self.device),
        )


class _Recent:
    """The last few steps, for the progress bar and the log."""

    def __init__(self, progress: Progress):
        self.bad = 0
        self.loss = self.speed = math.nan
        self.clear(progress.seconds)
        self.nats = progress.window_nats  # of before a resume
        self.tokens = progress.window_tokens

    def clear(self, seconds: float) -> None:
        self.nats = 0.0
        self.tokens = 0
        self.timed = 0  # tokens since `since`
        self.since = seconds

    def add(self, nats: float, tokens: int, seconds: float, taken: bool) -> None:
        self.bad = 0 if taken else self.bad + 1
        if not taken:
            return
        self.nats += nats
        self.tokens += tokens
        self.timed += tokens
        self.loss = self.nats / self.tokens
        if seconds > self.since:
            self.speed = self.timed / (seconds - self.since)


def _seed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))
