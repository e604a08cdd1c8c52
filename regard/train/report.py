"""What training tells whoever started it: the facts at the start, progress, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from regard import metrics
from regard.checkpoint import Progress
from regard.errors import RegardError
from regard.recipe import Recipe, Train

# Scores that are not in a line of text, because others there say much the same.
SECONDARY = {
    *("mrr", "pmi_mrr", "accuracy_at_5", "precision", "recall"),
    *("bleu_1", "bleu_2", "bleu_3", "bleu_4", "chrf", "jaccard", "cosine", "damerau_levenshtein"),
    *("distinct_1", "distinct_2", "unique_share", "mean_length"),
    *("prompt_copy_share", "training_copy_share"),
}
ENOUGH = 200  # held-out examples to tell the best weights by


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
    device: str = "cpu"

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
    value = "" if progress.best_score is None else f", {progress.best_score:.4g},"
    judged = f"{facts.judged:,} {facts.judged_part} examples"
    why = f"{extreme} {facts.score}{value} on {judged}"
    return f"kept the weights of step {progress.kept_step:,}: {why}"


def main_scores(record: dict[str, Any]) -> dict[str, float]:
    """The scores of a validation that are printed: the one that chooses the weights, and those that
    are not secondary. All are in metrics.jsonl."""
    chosen = record.get("score")
    return {
        name: value
        for name, value in record.items()
        if isinstance(value, float) and (name not in SECONDARY or name == chosen)
    }


class Reporter(Protocol):
    """Receives the progress of training."""

    def began(self, facts: Facts) -> None: ...
    def stepped(self, progress: Progress, loss: float, speed: float, done: float) -> None: ...
    def validated(self, record: dict[str, Any], samples: Sequence[tuple[str, str]]) -> None: ...
    def noted(self, message: str) -> None: ...


class SilentReporter:
    """Shows nothing, and keeps the facts."""

    facts: Facts

    def began(self, facts: Facts) -> None:
        self.facts = facts

    def stepped(self, progress: Progress, loss: float, speed: float, done: float) -> None:
        pass

    def validated(self, record: dict[str, Any], samples: Sequence[tuple[str, str]]) -> None:
        pass

    def noted(self, message: str) -> None:
        pass


@dataclass(frozen=True)
class Result:
    """A run that has ended."""

    run: Path
    facts: Facts
    progress: Progress

    @property
    def kept_because(self) -> str:
        """Which weights were kept, and why."""
        return kept_because(self.facts, self.progress)

    def to_json(self) -> dict[str, Any]:
        progress = self.progress
        best = None
        if progress.best_score is not None:
            best = {"value": progress.best_score, "step": progress.best_step}
        return {
            "run": str(self.run),
            "kept_step": progress.kept_step,
            "kept_because": self.kept_because,
            "steps": progress.step,
            "seconds": progress.seconds,
            "score": self.facts.score,
            "scored_on": f"{self.facts.judged_part} examples",
            "best": best,
        }


class Stopped(RegardError):
    """A signal asked for the end at `step`; the newest checkpoint is of the step `saved`, None:
    there is none. `world` processes have trained."""

    def __init__(self, number: int, run: Path, *, step: int, saved: int | None, world: int = 1):
        again = f"regard train --resume {run}"
        if world > 1:
            again = f"torchrun … -m {again}"
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

    def of_many(self, what: str) -> RegardError:
        """The same for a run of a sweep or a comparison, whose own command goes on with it."""
        stop = RegardError(self.what, hint=f"the same command goes on with this {what}")
        stop.exit_code = self.exit_code
        return stop
