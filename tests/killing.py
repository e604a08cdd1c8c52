"""Training that is killed with SIGKILL, goes on, and ends with the same bits.

Starting Python and torch takes seconds, so this program imports them once and forks: each child
begins or resumes the run as a process of its own would. `python -m tests.killing` with a job as
JSON prints what happened as JSON; `killed` is the same for a test.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from tests import tiny

ROOT = Path(__file__).parents[1]
STEPS = 24
IN_TRAINING = 0.75  # share of the kills at random moments that are drawn over the training
SAVE_EVERY = 4

# Everything that draws at random or has a memory is on.
COMMON = [
    f"train.steps={STEPS}",
    f"train.save_every={SAVE_EVERY}",
    "train.valid_every=9",
    "train.ema_decay=0.9",
    "train.label_smoothing=0.1",
    "data.valid=0.2",
]
TEXT = [
    *COMMON,
    "encoder.dropout=0.3",
    "decoder.dropout=0.3",
    "source.word_dropout=0.2",
    "train.gradient_accumulation_steps=2",
    "train.batch_tokens=64",
]
SOUND = [
    *COMMON,
    "source.time_masks=2",
    "source.mel_masks=2",
    "source.speed_perturbation=0.1",
    "source.tempo_perturbation=0.1",
    "source.noise=0.1",
    "encoder.dropout=0.3",
]
PICTURES = [*COMMON, "source.random_crop=0.3", "train.batch_examples=4"]
CAPTIONS = [*PICTURES, "source.horizontal_flip=true", "decoder.dropout=0.3"]


def overrides(name: str, folder: Path) -> list[str]:
    """A tiny form of a recipe, with all its randomness."""
    kind = name.partition("-")[0]
    if kind == "speech":
        return tiny.memorised_sounds(folder / "sounds/sounds.csv", *SOUND)
    if kind == "caption":
        return tiny.memorised_captions(folder / "captions.tsv", *CAPTIONS)
    if kind == "image":
        return tiny.memorised_pictures(folder / "pictures", *PICTURES)
    if kind == "sentiment":
        return tiny.memorised(folder / "labelled.tsv", *TEXT)
    return tiny.memorised(folder / "pairs.tsv", *TEXT, "source.prompt_dropout=0.1")


def make_data(folder: Path) -> None:
    tiny.pairs_file(folder)
    tiny.labelled_file(folder)
    tiny.sounds_table(folder)
    tiny.captions_table(folder)
    tiny.pictures_folder(folder)


def killed(folder: Path, names: list[str], **job: Any) -> dict[str, dict[str, Any]]:
    """What happened to each recipe, from a process of its own. `kills` and `seed`: at random
    moments; `points`: at calls of functions, see `_kill_at`; `steps`: after these."""
    make_data(folder)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "PYTHONPATH": path,
        "REGARD_CACHE": str(folder / "cache"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.killing", json.dumps({"folder": str(folder)} | job), *names],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    return {name: json.loads(line) for name, line in zip(names, lines, strict=True)}


# -- a child ---------------------------------------------------------------------------------------


FATAL: set[int] = set()  # steps after which a child kills itself
RECORD = struct.Struct("iii")  # what a child tells: which of these, and two numbers
BEGAN, STEP = range(2)


def _train(chosen: Any, run: Path, steps: int) -> None:
    """Begin the run, or go on with it, and tell each step through a pipe."""
    from regard import bundle
    from regard.train import train

    def tell(*numbers: int) -> None:
        os.write(steps, RECORD.pack(*numbers))

    class Telling(tiny.Silent):
        def began(self, facts: Any) -> None:
            tell(BEGAN, facts.resumed_at, 0)

        def stepped(self, progress: Any, loss: float, speed: float, done: float) -> None:
            tell(STEP, progress.step, progress.epoch)
            if progress.step in FATAL:
                os.kill(os.getpid(), signal.SIGKILL)

    resume = run.is_dir() and bundle.has_begun(run)
    train(chosen, run, reporter=Telling(), resume=resume)


class Child:
    """A process that trains."""

    def __init__(self, chosen: Any, run: Path, sabotage: Callable[[], object] | None = None):
        self._read, write = os.pipe()
        self._told = b""  # read so far
        self.started = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._read)
            code = 1
            try:
                if sabotage is not None:
                    sabotage()
                _train(chosen, run, write)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(write)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it ended, within so many seconds."""
        until = None if seconds is None else time.monotonic() + seconds
        while os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            if until is not None and time.monotonic() > until:
                return False
            time.sleep(0.002)
        return True

    def wait_for_training(self) -> int:
        """Until it tells of its first step, or ends: the number of the last step it told of."""
        while True:
            steps = [step for kind, step, _ in self._records() if kind == STEP]
            content = b"" if steps else os.read(self._read, RECORD.size)
            if not content:
                return steps[-1] if steps else 0
            self._told += content

    def _records(self) -> list[tuple[int, int, int]]:
        whole = len(self._told) // RECORD.size * RECORD.size
        return list(RECORD.iter_unpack(self._told[:whole]))

    def end(self) -> tuple[bool, int, int, int]:
        """Whether it was killed; the step it was resumed at, the last step it made, and the epoch
        of that; -1 where it did not come so far."""
        _, status = os.waitpid(self.pid, 0)
        if not os.WIFSIGNALED(status) and os.WEXITSTATUS(status):
            raise RuntimeError("training failed, see the traceback above")
        with os.fdopen(self._read, "rb") as file:
            self._told += file.read()
        resumed_at = step = epoch = -1
        for kind, first, second in self._records():
            if kind == BEGAN:
                resumed_at = step = first
            else:
                step, epoch = first, second
        return os.WIFSIGNALED(status), resumed_at, step, epoch


def fingerprint(run: Path) -> str:
    """The SHA-256 of all that a run ends with: last weights, averages, optimiser, the state of
    the schedule, and the weights that it kept."""
    last = run / "checkpoints" / f"step-{last_step(run):06d}"
    total = hashlib.sha256()
    for file in [*sorted(last.glob("*.safetensors")), run / "model.safetensors"]:
        total.update(file.name.encode() + hashlib.sha256(file.read_bytes()).digest())
    progress = json.loads((last / "progress.json").read_text())
    progress.pop("seconds")
    total.update(json.dumps(progress, sort_keys=True).encode())
    return total.hexdigest()


def last_step(run: Path) -> int:
    """The step of the newest checkpoint."""
    return int(max((run / "checkpoints").glob("step-*")).name.removeprefix("step-"))


def log(run: Path) -> list[dict[str, Any]]:
    """The lines of the log, without times."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("seconds", "speed")} for line in lines]


# -- a run and its kills ---------------------------------------------------------------------------


class Life(NamedTuple):
    """How one process ends; without both, it trains to the end."""

    sabotage: Callable[[], object] | None = None  # called in the process
    watch: Callable[[Child], None] | None = None  # called beside it


class Run:
    """One recipe, and the state that it must end with."""

    def __init__(self, name: str, folder: Path, more: list[str], *, timed: bool):
        """`timed`: train a second time, to know how long a run takes."""
        from regard import recipe

        self.folder = folder / name
        self.cache = Path(os.environ["REGARD_CACHE"])
        self.chosen = recipe.load(name, [*overrides(name, folder), *more])
        whole = self.folder / "whole"
        child = Child(self.chosen, whole)
        child.end()
        self.state = fingerprint(whole)
        self.log = log(whole)
        self.result: dict[str, Any] = {
            "kills": 0,
            "runs": 0,
            "different": [],
            "repeated": 0,
            "in_one_epoch": 0,
            "while": {"starting": 0, "resuming": 0, "training": 0},
            "at": [],
            "steps": last_step(whole),
        }
        if timed:
            self._train_again()

    def _train_again(self) -> None:
        """Now that the corpus is prepared and the C library compiled."""
        child = Child(self.chosen, self.folder / "again")
        child.wait_for_training()
        self.until_training = time.monotonic() - child.started
        child.end()
        self.training = time.monotonic() - child.started - self.until_training
        self._compare(self.folder / "again", "a second uninterrupted run")

    def _compare(self, run: Path, what: str) -> None:
        if fingerprint(run) != self.state:
            self.result["different"].append(f"{what}: state")
        if log(run) != self.log:
            self.result["different"].append(f"{what}: log")

    def _phase(self, run: Path, resumed_at: int, step: int) -> str:
        """What a process did that was killed: it trains once it has made a step."""
        if step > resumed_at:
            return "training"
        return "resuming" if any(run.glob("checkpoints/step-*")) else "starting"

    def forget_corpus(self) -> None:
        """Kills come while the corpus is prepared, too."""
        for entry in self.cache.iterdir():
            if re.fullmatch("[0-9a-f]{32}", entry.name):
                shutil.rmtree(entry)

    def live(self, run: Path, lives: list[Life]) -> None:
        """Train in the folder; each life is killed, and then one is left alone."""
        before = 0
        epochs = []
        for life in [*lives, Life()]:
            child = Child(self.chosen, run, life.sabotage)
            if life.watch is not None:
                life.watch(child)
            was_killed, resumed_at, step, epoch = child.end()
            if resumed_at >= 0:
                self.result["repeated"] = max(self.result["repeated"], before - resumed_at)
                before = step
            if was_killed:
                self.result["kills"] += 1
                self.result["at"].append(step)
                self.result["while"][self._phase(run, resumed_at, step)] += 1
                epochs.append(epoch)
        self.result["in_one_epoch"] = max(
            [self.result["in_one_epoch"], *(epochs.count(epoch) for epoch in epochs if epoch >= 0)]
        )
        self.result["runs"] += 1
        self._compare(run, f"run {self.result['runs']}")
        shutil.rmtree(run)


def _kill_after(seconds: float) -> Life:
    """Kill so many seconds after the start of the process."""

    def watch(child: Child) -> None:
        if not child.wait(seconds):
            child.kill()

    return Life(watch=watch)


def _kill_in_training(share: float, seconds: float, steps: int) -> Life:
    """Kill after this share of the training that is left when the first step was made. All steps
    take so many seconds."""

    def watch(child: Child) -> None:
        step = child.wait_for_training()
        if not child.wait(share * seconds * (1 - step / steps)):
            child.kill()

    return Life(watch=watch)


def _kill_at(place: str, times: int, moment: str) -> Life:
    """Kill before, after, or halfway through the bytes of the n-th call of a function."""

    def sabotage() -> None:
        home, _, name = place.rpartition(".")
        module = import_module(home)
        real = getattr(module, name)
        left = times

        def replacement(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left:
                return real(*arguments, **options)
            if moment == "half":
                path, line = arguments
                with open(path, "a") as file:
                    file.write(line[: len(line) // 2])
            if moment == "after":
                real(*arguments, **options)
            os.kill(os.getpid(), signal.SIGKILL)
            return None

        setattr(module, name, replacement)

    return Life(sabotage=sabotage)


def _kill_at_step(number: int) -> Life:
    return Life(sabotage=lambda: FATAL.add(number))


def main() -> None:
    job, *names = sys.argv[1:]
    settings = json.loads(job)
    # All that a child would import, and nothing that computes: a fork has one thread.
    for module in ("regard.train", "regard.bundle", "regard.cli", "PIL.Image", "soundfile"):
        import_module(module)
    folder = Path(settings["folder"])
    for name in names:
        run = Run(name, folder, settings.get("more", []), timed="kills" in settings)
        draw = random.Random(settings.get("seed", 1))
        while run.result["kills"] < settings.get("kills", 0):
            if draw.random() < 0.3:
                run.forget_corpus()
            lives = []
            for _ in range(settings.get("lives", 5)):
                if draw.random() < IN_TRAINING:
                    lives.append(
                        _kill_in_training(draw.random(), run.training, run.result["steps"])
                    )
                else:
                    lives.append(_kill_after(draw.uniform(0, run.until_training)))
            run.live(run.folder / "killed", lives)
        for first, *more in settings.get("points", []):
            begun = [_kill_at_step(first)] if first else []
            run.live(run.folder / "killed", [*begun, *(_kill_at(*point) for point in more)])
        if steps := settings.get("steps"):
            run.live(run.folder / "killed", [_kill_at_step(step) for step in steps])
        print(json.dumps(run.result), flush=True)


if __name__ == "__main__":
    main()
