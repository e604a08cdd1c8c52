"""Checks of a run: its files, its checkpoints, the laws on its weights, and a resume.

Nothing in the run's folder changes: what has to be written is written to a temporary copy.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shlex import quote

from regard import bundle, checkpoint, disk, runs
from regard.checkpoint import Progress
from regard.doctor.checks import Check, failed
from regard.doctor.laws import laws
from regard.errors import BundleError, DataError, InputError, RegardError
from regard.train import METRICS, SilentReporter, train_job

STEPS = 3  # that a resume makes, twice
FILES = (bundle.RECIPE, bundle.TOKENIZER, bundle.WEIGHTS)


def examine_run(run: Path) -> Iterator[Check]:
    """Every check of a run, one after the other. Raises InputError for what is no run."""
    if not run.is_dir():
        raise InputError("no such run", where=run, hint="a run is a folder, such as runs/NAME")
    if not (run / disk.MANIFEST).exists():
        raise InputError("not a run folder: it has no manifest.json", where=run)
    manifest = _manifest(run)
    yield manifest
    if manifest.state == "ok":
        yield from _files(run)
    yield from _checkpoints(run)
    yield from _log(run)
    yield from _loaded(run)
    yield _resume(run)


# -- files -----------------------------------------------------------------------------------------


def _manifest(run: Path) -> Check:
    try:
        listed = disk.manifest(run)
    except BundleError as problem:
        hint = f"copy {disk.MANIFEST} from another copy of the run; without it nothing is trusted"
        return failed("manifest", problem, problem.hint or hint)
    return Check("manifest", "ok", f"lists {', '.join(sorted(listed))}")


def _files(run: Path) -> Iterator[Check]:
    listed = disk.manifest(run)
    for name in [*FILES, *sorted(listed.keys() - {*FILES})]:
        if name == bundle.WEIGHTS and name not in listed:
            yield Check(name, "skipped", "no validation has saved weights yet")
            continue
        try:
            disk.verify_files(run, name)
        except BundleError as problem:
            hint = f"copy {name} from another copy of the run"
            if name == bundle.WEIGHTS:
                hint = f"restore it from a checkpoint with: {_again(run)}"
            yield failed(name, problem, hint)
        else:
            yield Check(name, "ok", "is what was saved")


def _checkpoints(run: Path) -> Iterator[Check]:
    home = run / checkpoint.FOLDER
    folders = sorted(home.glob("step-*")) if home.is_dir() else []
    if not folders:
        hint = f"begin again, in place of the trained model, with: {_again(run)} --anyway"
        yield Check(checkpoint.FOLDER, "failed", "there is none to go on from", hint)
    for folder in folders:
        name = f"{checkpoint.FOLDER}/{folder.name}"
        if ".damaged" in folder.name:
            what = "was set aside as damaged, or because a file of yours is in it"
            yield Check(
                name, "skipped", what, f"remove it when you like: rm -r {quote(str(folder))}"
            )
            continue
        try:
            disk.verify_folder(folder)
            checkpoint.weights_of(folder)
        except BundleError as problem:
            if not folder.is_dir():
                continue  # a trainer has removed it
            yield failed(name, problem, f"{_again(run)} sets it aside and goes on without it")
        else:
            yield Check(name, "ok", "all its files are what was saved")


def _log(run: Path) -> Iterator[Check]:
    log = run / METRICS
    if not log.exists():
        yield Check(METRICS, "skipped", "there is none yet")
        return
    whole = len(disk.read_json_lines(log))
    lines = sum(1 for line in log.read_bytes().split(b"\n") if line.strip())
    if whole == lines:
        yield Check(METRICS, "ok", f"{lines:,} lines")
        return
    bad = lines - whole
    what = f"{bad:,} of {lines:,} lines cannot be read"
    yield Check(METRICS, "failed", what, f"{_again(run)} leaves them out; nothing else reads them")


# -- the model -------------------------------------------------------------------------------------


def _loaded(run: Path) -> Iterator[Check]:
    try:
        bot = bundle.load(run, device="cpu")
    except RegardError as problem:
        yield failed("load", problem)
        return
    yield Check("load", "ok", f"{bot.model.parameter_count:,} parameters; {bot.recipe.summary}")
    yield from laws(bot)


# -- a resume --------------------------------------------------------------------------------------


class _Losses(SilentReporter):
    """Keeps the loss of each step."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def stepped(self, progress: Progress, loss: float, speed: float, done: float) -> None:
        self.losses.append(loss)


def _resume(run: Path) -> Check:
    name = "resume"
    step = checkpoint.newest(run)
    if step is None:
        return Check(name, "skipped", "there is no checkpoint to resume from")
    if disk.is_locked(run):
        return Check(name, "skipped", "a process is training in this folder", "try again later")
    limits = runs.Limits(steps=step + STEPS)
    try:
        runs.resumed(run, limits=limits)  # only reads: whether the data is there
        with tempfile.TemporaryDirectory(prefix="regard-doctor-") as folder:
            first, second = (
                _resumed(run, Path(folder) / copy, step, limits) for copy in ("first", "second")
            )
    except (DataError, InputError) as problem:
        hint = "check it in the folder that it was trained in, with its data"
        return replace(failed(name, problem, hint), state="skipped")
    except RegardError as problem:
        return failed(name, problem)
    different = sorted(key for key in first if first[key] != second.get(key))
    if different:
        what = f"two resumes from step {step:,} differ after {STEPS} steps: {', '.join(different)}"
        hint = "results will not repeat; try REGARD_NATIVE=0 and --set train.threads=1 --anyway"
        return Check(name, "failed", what, hint)
    return Check(name, "ok", f"two resumes from step {step:,} are equal after {STEPS} steps")


def _resumed(run: Path, copy: Path, step: int, limits: runs.Limits) -> dict[str, object]:
    """The state of a copy of the run a few steps after its newest checkpoint: the SHA-256 of each
    file of weights, averages and optimiser, the counters, and the losses."""
    copy.mkdir()
    for name in {*disk.manifest(run), disk.MANIFEST, METRICS}:
        if (run / name).is_file():
            shutil.copyfile(run / name, copy / name)
    newest = Path(checkpoint.FOLDER) / f"step-{step:06d}"
    shutil.copytree(run / newest, copy / newest)

    job = runs.resumed(copy, limits=limits)
    reporter = _Losses()
    train_job(job, reporter, device="cpu")
    end = copy / checkpoint.FOLDER / f"step-{step + STEPS:06d}"
    disk.verify_folder(end)
    state: dict[str, object] = {file.name: disk.digest(file) for file in end.glob("*.safetensors")}
    progress = disk.read_json(end / checkpoint.PROGRESS)
    progress.pop("seconds")
    return state | {checkpoint.PROGRESS: progress, "losses": reporter.losses}


def _again(run: Path) -> str:
    return f"regard train --resume {quote(str(run))}"
