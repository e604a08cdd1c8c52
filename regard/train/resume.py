"""Resuming: where a stopped run stands, and what may have changed since.

A run may go on with another budget, and with files that moved. `anyway` allows other training data
and settings; weights that do not fit are refused in any case.
"""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from regard import bundle, checkpoint, disk
from regard.checkpoint import Choice, Progress
from regard.data.batches import ORDER
from regard.errors import TrainingError
from regard.recipe import Mark, Recipe, differences, marks_of
from regard.train.log import CHANGED
from regard.train.loop import Loop, inverse_document_frequency
from regard.train.process import effective_threads

OTHER_DATA = "data"  # the key of a change of what the files contain


def changes(recipe: Recipe, run: Path, anyway: bool) -> list[str]:
    """What is not as the run's own recipe has it, budgets aside, if the run can go on like that."""
    before = Recipe.from_json(disk.read_json(run / bundle.RECIPE), run / bundle.RECIPE)
    lines = {line.partition(":")[0]: line for line in differences(before, recipe)}
    marks = {key: marks_of(key) for key in lines}

    rigid = [line for key, line in lines.items() if Mark.WEIGHTS in marks[key]]
    if rigid:
        raise TrainingError(
            "the weights of this run do not fit another architecture or vocabulary",
            where=run,
            got=", ".join(rigid),
            hint="train a new run for that",
        )

    harmless = {Mark.LIMIT, Mark.PATH}
    refused = [line for key, line in lines.items() if not marks[key] & harmless]
    if refused and not anyway:
        raise TrainingError(
            "not the recipe this run began with",
            where=run,
            got=", ".join(refused),
            hint="add --anyway to go on like that, or train a new run",
        )
    return [line for key, line in lines.items() if Mark.LIMIT not in marks[key]]


def resume_loop(loop: Loop, changed: list[str], anyway: bool) -> None:
    """Stand where the newest checkpoint stands, on every rank. What is `changed` is written down
    where it can be found again."""
    choice: Choice | None = None

    def choose() -> str | None:
        nonlocal choice
        choice = checkpoint.choose_newest(loop.run, loop.reporter.noted)
        return None if choice is None else str(choice.folder)

    folder = loop.ranks.lead(choose)
    if folder is not None:
        loop.learner.load(Path(folder))
    stand = loop.ranks.lead(lambda: _stand(loop, choice, changed, anyway))
    loop.progress = Progress(**stand["progress"])
    loop.saved = None if stand["saved"] is None else Progress(**stand["saved"])
    loop.lost_weights = stand["lost_weights"]
    if stand["threads"]:
        torch.set_num_threads(stand["threads"])
    changed = stand["changed"]
    if changed and loop.saved is not None:
        loop.save()  # a run that is killed before its next checkpoint does not go back
    if loop.ranks.is_leader:
        _write_down(loop, changed)


def _stand(loop: Loop, choice: Choice | None, changed: list[str], anyway: bool) -> dict[str, Any]:
    """Where a run stands that goes on from a checkpoint, and all that changed; for the leader."""
    threads = 0
    if choice is None:
        _begin_again(loop, anyway)
    else:
        choice.set_damaged_aside(loop.reporter.noted)
        loop.saved = loop.progress = choice.progress
        threads = _use_threads(loop)
        changed = changed + _data_change(loop, choice.progress.data, anyway)
        _use_order(loop)
    if loop.progress.kept_step and not bundle.has_weights(loop.run):
        _rebuild_weights(loop)
    assert loop.log is not None  # the leader has it
    loop.log.forget(after=loop.progress)
    if changed:
        _change(loop, changed)
    return {
        "progress": asdict(loop.progress),
        "saved": None if loop.saved is None else asdict(loop.saved),
        "lost_weights": loop.lost_weights,
        "threads": threads,
        "changed": changed,
    }


def _write_down(loop: Loop, changed: list[str]) -> None:
    """Log the changes and save the recipe."""
    if changed:
        assert loop.log is not None  # the leader has it
        loop.log.add(loop.progress, CHANGED, {"changes": changed})
        loop.reporter.noted(f"going on with a change, {', '.join(changed)}")
    # Last: until the new recipe is there, the change can be asked for once more.
    bundle.put_recipe(loop.run, loop.recipe)


def _data_change(loop: Loop, before: str, anyway: bool) -> list[str]:
    """The line about other data than `before`, if the run may go on with that."""
    now = loop.corpus.fingerprint
    if before == now:
        return []
    if not anyway:
        raise TrainingError(
            "the data is not what this run was trained on so far",
            where=loop.run,
            hint="resume with the data it began with, "
            "add --anyway to go on with this, or train a new run",
        )
    return [f"{OTHER_DATA}: {before[:12]} -> {now[:12]}"]


def _begin_again(loop: Loop, anyway: bool) -> None:
    """Without a checkpoint a run starts at its first step, unless a trained model is there."""
    if bundle.WEIGHTS in disk.manifest(loop.run) and not anyway:
        raise TrainingError(
            "there is no checkpoint to go on from; the trained model is kept",
            where=loop.run,
            hint="--anyway begins again from the first step",
        )
    checkpoint.set_all_aside(loop.run)
    loop.reporter.noted("no whole checkpoint yet; beginning again from the first step")


def _use_threads(loop: Loop) -> int:
    """As many threads as before, where the recipe does not say: sums over other parts differ
    in the last bits. The number of every process; 0: each has its own. With another number of
    processes the bits are others anyway, and so are the threads that each should have."""
    number = loop.progress.threads
    if loop.progress.world not in (0, loop.ranks.world):
        loop.progress = replace(loop.progress, threads=effective_threads(), world=loop.ranks.world)
        return 0
    if loop.how.threads is None and number:
        torch.set_num_threads(number)
    threads = effective_threads()
    if loop.how.threads is None and threads != number:
        loop.reporter.noted(
            f"this run was trained with {number} threads so far "
            f"and only {threads} can be had here; "
            "it goes on, but does not end with the same bits"
        )
    elif threads > (os.cpu_count() or 1):
        loop.reporter.noted(
            f"going on with {threads} threads as before, so that it ends with the same bits; "
            f"this machine has {os.cpu_count()} cores, "
            f"and --anyway --set train.threads={os.cpu_count()} may be faster"
        )
    loop.progress = replace(loop.progress, threads=threads, world=loop.ranks.world)
    return torch.get_num_threads()


def _use_order(loop: Loop) -> None:
    """A checkpoint of a version with another order of batches does not say which examples of its
    epoch are left."""
    before = loop.progress
    if before.order == ORDER:
        return
    loop.progress = replace(before, window=0, batch=0, order=ORDER)
    if before.batch:
        loop.reporter.noted(
            f"{loop.run}: this checkpoint was saved by a version of regard "
            f"with another order of batches; epoch {before.epoch + 1} begins anew"
        )


def _rebuild_weights(loop: Loop) -> None:
    """The weights of the bundle are damaged or missing. Those of the same step are in its
    checkpoint, if there still is one; otherwise what the best score was says nothing any
    more, and the newest weights are validated."""
    step = loop.progress.kept_step
    weights = checkpoint.kept_weights(loop.run, step)
    lost = f"{loop.run / bundle.WEIGHTS}: damaged or missing"
    if weights is not None:
        bundle.put_weights(loop.run, weights)
        loop.reporter.noted(f"{lost}; restored from the checkpoint of step {step:,}")
        return
    loop.reporter.noted(
        f"{lost}, and there is no checkpoint of step {step:,} any more; "
        f"the weights of step {loop.progress.step:,} take its place"
    )
    loop.lost_weights = True
    validated = min(loop.progress.validated, loop.progress.step - 1)
    loop.progress = replace(
        loop.progress, best_score=None, best_step=0, kept_step=0, waited=0, validated=validated
    )


def _change(loop: Loop, changed: list[str]) -> None:
    """Go on in another way: forget what no longer means anything."""
    keys = {line.partition(":")[0] for line in changed}
    is_other_data = OTHER_DATA in keys
    marks = frozenset[Mark]().union(*(marks_of(key) for key in keys - {OTHER_DATA}))
    if is_other_data or Mark.BATCHES in marks:
        loop.progress = replace(loop.progress, window=0, batch=0)  # the epoch has other batches
    answered = loop.validation.score != "perplexity" and Mark.SEARCH in marks
    if answered or is_other_data or "train.score" in keys:
        # The best score so far cannot be compared with the next one.
        loop.progress = replace(loop.progress, best_score=None, best_step=0, waited=0)
    loop.progress = replace(loop.progress, data=loop.corpus.fingerprint)
    loop.learner.set_idf(inverse_document_frequency(loop.corpus))
