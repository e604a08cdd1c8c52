"""What a contender costs: multiplications, depth and memory by the formulas of `regard.budget`, and
what was measured while it trained."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from regard.budget import fits
from regard.budget.closed_form.parts import Budget
from regard.budget.closed_form.supported import NoClosedForm
from regard.budget.modules import of_model
from regard.build import model as build_model
from regard.build import task as build_task
from regard.bundle import recipe_budget
from regard.data.batches import Batches
from regard.data.corpus import Corpus
from regard.errors import InputError
from regard.ranking import evenly_spread
from regard.recipe import Recipe
from regard.runs import NewRun
from regard.tokenizers import Tokenizer

SAMPLED = 48  # batches of the first epoch whose multiplications are computed
COUNTED = 8  # of them that are run, if there is no closed form


@dataclass(frozen=True)
class Work:
    """What training and answering take, by formulas.

    parameters       of the model
    step             multiplications of a training step, the mean over batches of the first epoch
    forward          multiplications of a forward pass of one example of mean length
    depth            the longest chain of dependent operations of that pass; None if not known
    memory           bytes that a training step of mean size needs; None if not known
    steps_an_epoch   training steps
    """

    parameters: int
    step: float
    forward: int
    depth: int | None
    memory: int | None
    steps_an_epoch: float


def work_of(recipe: Recipe, corpus: Corpus) -> Work:
    """The work of a recipe on its data. A model without closed forms is built and counted, on
    fewer batches. A picture with several captions counts once for each of them."""
    tokenizer = corpus.tokenizer
    how = recipe.train
    every, mean_source, mean_target = _batch_sizes(recipe, corpus)
    sizes = [tuple(every[i].tolist()) for i in evenly_spread(len(every), SAMPLED)]
    rows, longest_source, longest_target = (round(mean) for mean in np.mean(sizes, axis=0))
    one = (1, max(1, round(mean_source)), max(1, round(mean_target)))
    steps = len(every) / how.batches_a_step
    try:
        passes = [_budget(recipe, tokenizer, *size) for size in sizes]
        batch = _budget(recipe, tokenizer, rows, longest_source, longest_target)
        example = _budget(recipe, tokenizer, *one)
    except NoClosedForm:
        few = [sizes[i] for i in evenly_spread(len(sizes), COUNTED)]
        return _counted(recipe, tokenizer, few, one, steps)
    step = float(np.mean([each.multiplications["training"] for each in passes]))
    return Work(
        parameters=example.parameters,
        step=step * how.batches_a_step,
        forward=example.multiplications["forward"],
        depth=example.depth.get("forward"),
        memory=batch.memory.get("training"),
        steps_an_epoch=steps,
    )


def _batch_sizes(recipe: Recipe, corpus: Corpus) -> tuple[np.ndarray, float, float]:
    """(n, 3): examples, longest source and longest target of each batch of the first epoch, in
    order; and the mean source and target length. Only one window of batches is in memory."""
    task = build_task(recipe, corpus.tokenizer)
    split = corpus.train
    lengths = lambda index: task.lengths(split.select(index))  # noqa: E731
    batches = Batches(
        lengths,
        len(split),
        tokens=recipe.train.batch_tokens,
        most=recipe.train.batch_examples,
        groups=split.groups,
        seed=recipe.seed,
    )
    sizes = []
    total_source = total_target = 0
    for number in range(batches.windows):
        window = batches.window(0, number)
        source, target = lengths(np.concatenate(window))
        rows = np.array([len(batch) for batch in window])
        starts = np.cumsum(rows) - rows
        longest = [np.maximum.reduceat(side, starts) for side in (source, target)]
        sizes.append(np.stack([rows, *longest], axis=1))
        total_source += int(source.sum())
        total_target += int(target.sum())
    return np.concatenate(sizes), total_source / len(split), total_target / len(split)


def _budget(recipe: Recipe, tokenizer: Tokenizer, batch: int, source: int, target: int) -> Budget:
    return recipe_budget(recipe, tokenizer, batch=batch, source_length=source, target_length=target)


def _counted(
    recipe: Recipe,
    tokenizer: Tokenizer,
    sizes: Sequence[tuple[int, int, int]],
    one: tuple[int, int, int],
    steps: float,
) -> Work:
    model = build_model(recipe, vocabulary=tokenizer.size, source_vocabulary=tokenizer.source_size)

    def counts(size: tuple[int, int, int]) -> dict[str, int]:
        rows, source, target = size
        return of_model(
            model, batch=rows, source=source, target=target, ctc_weight=recipe.train.ctc_weight
        )

    step = float(np.mean([counts(size)["training"] for size in sizes]))
    return Work(
        parameters=model.parameter_count,
        step=step * recipe.train.batches_a_step,
        forward=counts(one)["forward"],
        depth=None,
        memory=None,
        steps_an_epoch=steps,
    )


def steps_for(multiplications: float, work: Work, name: str) -> int:
    """The training steps that a number of multiplications pays for."""
    steps = round(multiplications / work.step)
    if steps < 1:
        raise InputError(
            f"less than one training step of {name}",
            where="--multiplications",
            got=f"{multiplications:.3g}",
            hint=f"a step takes {work.step:.3g}",
        )
    return steps


def matched(new: NewRun, tokenizer: Tokenizer, parameters: int) -> tuple[str, ...]:
    """The changes that give a recipe the width with which its parameters are nearest to a number
    of them."""

    def count(recipe: Recipe) -> int:
        try:
            return _budget(recipe, tokenizer, 1, 1, 1).parameters
        except NoClosedForm:
            return build_model(
                recipe, vocabulary=tokenizer.size, source_vocabulary=tokenizer.source_size
            ).parameter_count

    _, changes = fits.widest(
        new.recipe, count, parameters, name=new.name, where="--match parameters", nearest=True
    )
    return changes


# -- measured --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """What was measured in the process that trained a cell (the last one, if it was resumed).

    memory   bytes that training added to the process at its peak, or that it took on a GPU; None if
             the system does not tell
    waited   the share of the time in which the process waited for a processor that others used;
             None if the system does not tell
    """

    memory: int | None = None
    waited: float | None = None


@contextlib.contextmanager
def measuring(device: str) -> Iterator[Callable[[], Measured]]:
    """Measure what happens inside: yields a function that says what was measured so far."""
    _give_back_memory()
    on_gpu = torch.device(device).type == "cuda" if device != "auto" else torch.cuda.is_available()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    before = _memory("VmRSS")
    can_reset = _reset_peak()
    began = time.perf_counter()
    waited_before = _waited()

    def measured() -> Measured:
        memory = None
        if on_gpu:
            memory = torch.cuda.max_memory_allocated()
        elif can_reset and before is not None and (peak := _memory("VmHWM")) is not None:
            memory = max(0, peak - before)
        share = None
        waited = _waited()
        if waited is not None and waited_before is not None:
            share = (waited - waited_before) / max(1e-9, time.perf_counter() - began)
        return Measured(memory, share)

    yield measured


def _give_back_memory() -> None:
    """Give freed memory back to the system, so that the next cell does not begin with it."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _reset_peak() -> bool:
    """Make Linux forget the peak of this process so far."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _memory(field: str) -> int | None:
    """Bytes, as Linux counts them."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return None


def _waited() -> float | None:
    """Seconds in which the main thread could have run and had no processor, as Linux counts
    them."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None
