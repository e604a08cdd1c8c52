"""Checkpoints: weights, optimiser and counters, each whole or not there. No pickle."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from regard import disk
from regard.bundle import load_tensors, read_tensors, size, tensors, write_tensors
from regard.errors import BundleError, OtherFormatError
from regard.model import Model

FOLDER, KEPT = "checkpoints", 2
WEIGHTS, AVERAGE, OPTIMISER, PROGRESS = (
    "weights.safetensors",
    "average.safetensors",
    "optimiser.safetensors",
    "progress.json",
)


@dataclass(frozen=True)
class Progress:
    """Where training stands: all that a checkpoint needs beside tensors."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # batches of this epoch already used
    tokens: int = 0  # target tokens learned from
    seconds: float = 0.0
    skipped: int = 0  # steps not taken, because something was not a number
    best: float | None = None  # lower is better
    best_step: int = 0
    kept_step: int = 0  # whose weights the bundle has
    validated: int = 0  # step of the last validation
    waited: int = 0  # validations since the best
    window_nats: float = 0.0  # since the last line of the log
    window_tokens: int = 0
    data: str = ""  # fingerprint of what it learned from
    threads: int = 0  # of the processor; another number adds up in another order. 0: not known


def save(
    run: Path,
    model: Model,
    average: Model | None,
    optimiser: torch.optim.Optimizer,
    progress: Progress,
) -> None:
    """Write `checkpoints/step-000400`, then forget all but the newest few."""
    content = {WEIGHTS: tensors(model)}
    if average is not None:
        content[AVERAGE] = tensors(average)
    content[OPTIMISER] = {
        f"{name}/{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimiser.state.get(parameter, {}).items()
    }

    def write(folder: Path) -> None:
        for name, part in content.items():
            write_tensors(folder / name, part)
        disk.write_json(folder / PROGRESS, asdict(progress))

    target = run / FOLDER / _name(progress.step)
    target.parent.mkdir(exist_ok=True)
    with disk.needs(sum(size(part) for part in content.values())):
        disk.write_folder(target, write)
    for old in [folder for folder in _steps(run) if folder != target][KEPT - 1 :]:
        disk.remove_folder(old)


def load_newest(
    run: Path,
    model: Model,
    average: Model | None,
    optimiser: torch.optim.Optimizer,
    noted: Callable[[str], None],
) -> Progress | None:
    """Restore the newest checkpoint that is whole, saying so for each that is not; None: there
    is none. One that is whole and still does not fit the model, or that a later version wrote,
    is an error, and stays."""
    for folder in _steps(run):
        try:
            disk.verify_folder(folder)
        except OtherFormatError:
            raise
        except BundleError as problem:
            aside = _set_aside(folder)  # so that it is never taken for the newest again
            noted(f"{problem}; it is now {aside.name}, trying the checkpoint before it")
            continue
        progress = _progress(folder)
        load_tensors(model, read_tensors(folder / WEIGHTS), folder / WEIGHTS)
        if average is not None:
            file = folder / AVERAGE
            file = (
                file if file.exists() else folder / WEIGHTS
            )  # averaging was not on yet: the mean begins here
            load_tensors(average, read_tensors(file), file)
        _load_optimiser(optimiser, model, read_tensors(folder / OPTIMISER))
        return progress
    return None


def kept_weights(run: Path, step: int) -> dict[str, torch.Tensor] | None:
    """The weights that a run kept at `step`, if there is a whole checkpoint of that step."""
    for folder in _steps(run):
        if int(folder.name[5:]) == step:
            try:
                disk.verify_folder(folder)
            except BundleError:
                return None
            average = folder / AVERAGE
            return read_tensors(average if average.exists() else folder / WEIGHTS)
    return None


def newest(run: Path) -> int | None:
    """The step of the newest checkpoint; None: there is none."""
    return next((int(folder.name[5:]) for folder in _steps(run)), None)


def _steps(run: Path) -> list[Path]:
    """Newest first, and only those whose name is exactly what `save` gives."""
    numbers = [
        int(folder.name[5:])
        for folder in (run / FOLDER).glob("step-*")
        if folder.name[5:].isdecimal()
    ]
    folders = [run / FOLDER / _name(number) for number in sorted(set(numbers), reverse=True)]
    return [folder for folder in folders if folder.is_dir()]


def _name(step: int) -> str:
    return f"step-{step:06d}"


def _set_aside(folder: Path) -> Path:
    """Give a damaged checkpoint another name. It is not removed: what is wrong may be one file
    too many."""
    aside = folder.with_name(f"{folder.name}.damaged")
    number = 1
    while aside.exists():
        number += 1
        aside = folder.with_name(f"{folder.name}.damaged-{number}")
    os.replace(folder, aside)
    return aside


def _progress(folder: Path) -> Progress:
    content: Any = disk.read_json(folder / PROGRESS)
    if not isinstance(content, dict) or not content.keys() <= {
        field.name for field in fields(Progress)
    }:
        raise BundleError("not a progress file of this version of regard", where=folder / PROGRESS)
    return Progress(**content)


def _load_optimiser(
    optimiser: torch.optim.Optimizer, model: Model, saved: dict[str, torch.Tensor]
) -> None:
    parameters = dict(model.named_parameters())
    for name, value in saved.items():
        parameter, key = name.rsplit("/", 1)
        optimiser.state[parameters[parameter]][key] = value
