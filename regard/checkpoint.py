"""Checkpoints: weights, optimiser and counters, each whole or not there. No pickle.

Where each process of a training has a shard of the model, each writes a file of its own rows,
`weights-00001-of-00002.safetensors` and so on; otherwise there is one, `weights.safetensors`.
Whatever wrote a checkpoint, it can be read whole or by rows.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from regard import disk
from regard.errors import BundleError, OtherFormatError
from regard.model import Model
from regard.weights import TensorFiles, load_tensors, size, tensors, write_tensors

FOLDER = "checkpoints"
LISTINGS = 3  # of the checkpoints, before there are none
KEPT = 2  # checkpoints
WEIGHTS = "weights.safetensors"
AVERAGE = "average.safetensors"
OPTIMISER = "optimiser.safetensors"
PROGRESS = "progress.json"

# The tensors of a training, by the name of their file: weights, average (if any), optimiser.
Content = Mapping[str, dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Progress:
    """Where training stands: all that a checkpoint needs beside tensors."""

    step: int = 0
    epoch: int = 0
    window: int = 0  # windows of this epoch already used
    batch: int = 0  # batches of this window already used
    order: int = 0  # of the batches, `regard.data.batches.ORDER`; 0: it had no number yet
    tokens: int = 0  # target tokens learned from
    seconds: float = 0.0
    skipped: int = 0  # steps not taken, because something was not a number
    best_score: float | None = None  # as it is reported; `metrics.is_better` knows the direction
    best_step: int = 0
    kept_step: int = 0  # whose weights the bundle has
    validated: int = 0  # step of the last validation
    waited: int = 0  # validations since the best
    window_nats: float = 0.0  # since the last line of the log
    window_tokens: int = 0
    data: str = ""  # fingerprint of what it learned from
    threads: int = 0  # of the processor; another number adds up in another order. 0: not known
    world: int = 0  # processes that trained together; 0: not known


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
    content[OPTIMISER] = optimiser_tensors(model, optimiser)

    def write(folder: Path) -> None:
        for name, part in content.items():
            write_tensors(folder / name, part)

    with disk.needs(sum(size(part) for part in content.values())):
        save_folder(run, progress, write)


def save_folder(
    run: Path,
    progress: Progress,
    write: Callable[[Path], object],
    sums: Mapping[str, str] | None = None,
) -> None:
    """Write a checkpoint whose tensors are written by `write`; `sums` as in `disk.write_folder`."""

    def write_all(folder: Path) -> None:
        write(folder)
        disk.write_json(folder / PROGRESS, asdict(progress))

    target = folder_of(run, progress.step)
    target.parent.mkdir(exist_ok=True)
    if target.exists() and _has_extra_files(target):
        _set_aside(target)
    disk.write_folder(target, write_all, sums)

    older = [folder for folder in _steps(run) if _step_of(folder) < progress.step]
    for folder in older[KEPT - 1 :]:
        if _has_extra_files(folder):
            _set_aside(folder)  # a person's own file is in it
        else:
            disk.remove_folder(folder)


def write_shard(
    draft: Path, target: Path, content: Content, rank: int, world: int
) -> dict[str, str]:
    """Write the files of one of several processes into the draft of a checkpoint, until they are on
    the disk; their SHA-256. Errors name the checkpoint, `target`."""
    sums = {}
    with disk.needs(sum(size(part) for part in content.values())):
        for name, part in content.items():
            shard = shard_name(name, rank, world)
            with disk.room_for(target / shard):
                write_tensors(draft / shard, part)
                disk.sync(draft / shard)
            sums[shard] = disk.digest(draft / shard)
    return sums


def shard_name(name: str, rank: int, world: int) -> str:
    """The file of one of several processes.

    >>> shard_name("weights.safetensors", 0, 2)
    'weights-00001-of-00002.safetensors'
    """
    path = Path(name)
    return f"{path.stem}-{rank + 1:05d}-of-{world:05d}{path.suffix}"


@dataclass(frozen=True)
class Choice:
    """The checkpoint to go on from, and newer ones that are damaged."""

    folder: Path
    damaged: list[tuple[Path, BundleError]] = field(default_factory=list)

    @property
    def progress(self) -> Progress:
        return _progress(self.folder)

    def set_damaged_aside(self, noted: Callable[[str], None]) -> None:
        """Rename the damaged ones, once the chosen one is loaded, so that they are never taken for
        the newest again."""
        for folder, problem in self.damaged:
            aside = _set_aside(folder)
            noted(f"{problem}; it is now {aside.name}, trying the checkpoint before it")


def choose_newest(run: Path, noted: Callable[[str], None]) -> Choice | None:
    """The newest whole checkpoint; None if there is none, and then damaged ones are named. Nothing
    on disk changes.

    A checkpoint whose only fault is an extra file is chosen if no other is whole. One that another
    version wrote is an error.
    """
    damaged: list[tuple[Path, BundleError]] = []
    with_extra_files: list[Path] = []
    chosen = None
    for folder in _steps(run):
        try:
            _verify(folder)
        except OtherFormatError:
            raise
        except BundleError as problem:
            damaged.append((folder, problem))
            continue
        _progress(folder)  # another version's file is an error, not damage
        try:
            _check_step(folder)
            with_extra_files.append(folder)
            disk.verify_folder(folder)
        except BundleError as problem:
            damaged.append((folder, problem))
        else:
            chosen = folder
            break

    if chosen is None and with_extra_files:
        chosen = with_extra_files[0]
        extra = disk.extra_files(chosen)[0]
        noted(f"{extra}: not part of the checkpoint; the file is kept, and training goes on")
        damaged = [(folder, problem) for folder, problem in damaged if folder != chosen]

    if chosen is None:
        for _, problem in damaged:
            noted(str(problem))
        return None
    newer = [entry for entry in damaged if _step_of(entry[0]) > _step_of(chosen)]
    return Choice(chosen, newer)


def set_all_aside(run: Path) -> None:
    """Rename every checkpoint of a run that begins again from its first step."""
    for folder in _steps(run):
        _set_aside(folder)


def load(
    folder: Path, model: Model, average: Model | None, optimiser: torch.optim.Optimizer
) -> None:
    """Restore a checkpoint. If it does not fit the model, that is an error."""
    files = tensor_files(folder, WEIGHTS)
    load_tensors(model, files.read(), files)
    if average is not None:
        # Without saved averages, averaging was not on yet: the mean begins with the weights.
        files = judged_weights(folder)
        load_tensors(average, files.read(), files)
    load_optimiser(optimiser, model, tensor_files(folder, OPTIMISER).read())


def tensor_files(folder: Path, name: str) -> TensorFiles:
    """The file `name` of a checkpoint, or the files of all processes that wrote it."""
    paths = tuple(folder / listed for listed in _listed(folder, name))
    return TensorFiles(paths or (folder / name,))


def _listed(folder: Path, name: str) -> list[str]:
    """The names of a file that the manifest has, or of all its shards if it has any of them."""
    files = disk.manifest(folder)
    path = Path(name)
    form = re.compile(rf"{path.stem}-\d{{5}}-of-(\d{{5}}){re.escape(path.suffix)}")
    for listed in files:
        if shard := form.fullmatch(listed):
            world = int(shard[1])
            return [shard_name(name, rank, world) for rank in range(world)]
    return [name] if name in files else []


def _verify(folder: Path) -> None:
    """All files of a checkpoint are what was written, and none that it needs is missing."""
    needed = [file for name in (WEIGHTS, OPTIMISER) for file in _listed(folder, name) or [name]]
    disk.verify(folder, *needed, PROGRESS)


def _check_step(folder: Path) -> None:
    """The step in the folder's name is that of its progress file."""
    step = _progress(folder).step
    if step != _step_of(folder):
        raise BundleError("damaged: it is of another step", where=folder, got=f"step {step}")


def _is_loadable(folder: Path) -> bool:
    """Whether the files of a checkpoint are whole, whatever else is beside them."""
    try:
        _verify(folder)
        _check_step(folder)
    except BundleError:
        return False
    return True


def _has_extra_files(folder: Path) -> bool:
    try:
        return bool(disk.extra_files(folder))
    except BundleError:
        return True  # without a manifest nobody knows whose files these are


def kept_weights(run: Path, step: int) -> dict[str, torch.Tensor] | None:
    """The weights that a run kept at `step`, if there is a whole checkpoint of that step."""
    for folder in _steps(run):
        if _step_of(folder) == step:
            if not _is_loadable(folder):
                return None
            return judged_weights(folder).read()
    return None


def newest_weights(run: Path, noted: Callable[[str], None]) -> tuple[TensorFiles, int] | None:
    """The weights that a validation would judge now, those of the newest whole checkpoint: their
    files, and their step. None if there is no whole checkpoint; damaged ones are named. Nothing on
    disk changes."""
    problems: list[BundleError] = []
    for folder in _steps(run):
        try:
            files = weights_of(folder)
        except OtherFormatError:
            raise
        except BundleError as problem:
            if not folder.is_dir():  # a trainer has removed it, after it saved a newer one
                return newest_weights(run, noted)
            problems.append(problem)
            continue
        for problem in problems:
            noted(str(problem))
        return files, _step_of(folder)
    for problem in problems:
        noted(str(problem))
    return None


def judged_weights(folder: Path) -> TensorFiles:
    """The files that validations judge: the averaged weights, if there are any."""
    return tensor_files(folder, AVERAGE if _listed(folder, AVERAGE) else WEIGHTS)


def weights_of(folder: Path) -> TensorFiles:
    """The weights of one checkpoint, `checkpoints/step-000400`, that a validation would judge."""
    files = judged_weights(folder)
    disk.verify_files(folder, *(path.name for path in files.paths), PROGRESS)
    _check_step(folder)
    return files


def newest(run: Path) -> int | None:
    """The step of the newest checkpoint; None if there is none. A folder whose progress file is
    missing or of another step does not count."""
    for folder in _steps(run):
        with contextlib.suppress(BundleError):
            _check_step(folder)
            return _step_of(folder)
    return None


def recorded(run: Path) -> Progress | None:
    """Where the newest checkpoint stands; None if there is none."""
    for folder in _steps(run):
        with contextlib.suppress(BundleError):
            _check_step(folder)
            return _progress(folder)
    return None


def recorded_data(run: Path) -> str | None:
    """The fingerprint of the data that the newest checkpoint was trained on; None if unknown."""
    progress = recorded(run)
    return None if progress is None else progress.data or None


def _steps(run: Path) -> list[Path]:
    """Newest first, and only those whose name is exactly what `save` gives.

    A listing may miss a checkpoint that a trainer saves meanwhile, and find the older ones removed.
    So an empty one is made again.
    """
    for _ in range(LISTINGS):
        if folders := _listed_steps(run):
            return folders
    return []


def _listed_steps(run: Path) -> list[Path]:
    folders = []
    for folder in (run / FOLDER).glob("step-*"):
        digits = folder.name.removeprefix("step-")
        if not digits.isdecimal() or len(digits) >= 20:
            continue
        if folder.name == _name(int(digits)) and folder.is_dir():
            folders.append(folder)
    return sorted(folders, key=_step_of, reverse=True)


def folder_of(run: Path, step: int) -> Path:
    """Where the checkpoint of a step is."""
    return run / FOLDER / _name(step)


def _name(step: int) -> str:
    return f"step-{step:06d}"


def _step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


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
    progress = Progress(**content)
    if not isinstance(progress.step, int) or not isinstance(progress.data, str):
        raise BundleError("damaged: not a progress file", where=folder / PROGRESS)
    return progress


def optimiser_tensors(model: Model, optimiser: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The state of an optimiser, by the names of parameters: `decoder.output.bias/exp_avg`."""
    return {
        f"{name}/{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimiser.state.get(parameter, {}).items()
    }


def load_optimiser(
    optimiser: torch.optim.Optimizer, model: Model, saved: dict[str, torch.Tensor]
) -> None:
    """Restore the state of an optimiser."""
    parameters = dict(model.named_parameters())
    for name, value in saved.items():
        owner, key = name.rsplit("/", 1)
        parameter = parameters[owner]
        optimiser.state[parameter][key] = value.to(parameter.device)
