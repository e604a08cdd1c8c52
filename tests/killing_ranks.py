"""Trainings by torchrun whose processes are killed.

`thirty` kills at random moments and at named ones, for `tests/faults/test_many_processes.py` and
`python -m bench.recovery`.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from regard import checkpoint, disk
from tests.tiny import captions_table, memorised, memorised_captions, pairs_file

ROOT = Path(__file__).parents[1]
STEPS = 12
SHORT = ("train.valid_every=0", "train.save_every=4", f"train.steps={STEPS}", "encoder.width=16")


def plain(folder: Path, *more: str) -> list[str]:
    """Nothing but augmentation is random. An epoch has about 8 batches, an update 3 of them."""
    return memorised(
        pairs_file(folder),
        *SHORT,
        "source.word_dropout=0.2",
        "source.prompt_dropout=0.1",
        "train.batch_tokens=48",
        "train.gradient_accumulation_steps=3",
        "train.label_smoothing=0.1",
        "train.contrastive_weight=0.5",
        "train.ema_decay=0.9",
        "train.schedule=constant",  # the same for any budget
        *more,
    )


def with_dropout(folder: Path) -> list[str]:
    return plain(folder, "encoder.dropout=0.3", "decoder.dropout=0.3")


def shardable(folder: Path) -> list[str]:
    """SGD: AdamW divides a gradient by its size, also one that is nothing but rounding errors, as
    that of the bias of keys, which no output depends on."""
    return plain(folder, "train.optimiser=sgd", "train.learning_rate=0.3", "train.warmup_steps=2")


def captions(folder: Path) -> list[str]:
    """Pictures with up to three captions, which stay together."""
    table = captions_table(folder)
    changes = memorised_captions(
        table, *SHORT[:-1], "decoder.width=16", "train.batch_examples=2", "source.random_crop=0.3"
    )
    return changes


def one_pair(folder: Path) -> list[str]:
    """Fewer examples than processes."""
    path = folder / "one.tsv"
    path.write_text("Hello!\tHi there.\n", "utf-8")
    return memorised(path, *SHORT)


JOBS = {
    "plain": ("chat-attention", plain),
    "dropout": ("chat-transformer", with_dropout),
    "captions": ("caption-attention", captions),
    "one": ("chat-attention", one_pair),
    "sharded": ("chat-transformer", shardable),
}


def as_fields(changes: list[str]) -> dict[str, object]:
    """Overrides as regard.train reads them."""
    fields: dict[str, object] = {}
    for change in changes:
        key, _, text = change.partition("=")
        try:
            fields[key] = tomllib.loads(f"value = {text}")["value"] if text else None
        except tomllib.TOMLDecodeError:
            fields[key] = text
    return fields


MARK = "REGARD_TEST"  # a variable that all processes of these tests have
OWN = f"{os.getpid()}-{secrets.token_hex(8)}"


def environment(folder: Path, cache: Path | None = None) -> dict[str, str]:
    return os.environ | {
        MARK: OWN,
        "REGARD_CACHE": str(cache or folder / "cache"),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }


def torchrun(*arguments: object, restarts: int = 0, processes: int = 2) -> list[str]:
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nproc-per-node", str(processes), "--max-restarts", str(restarts)),
        *("--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"),
        *map(str, arguments),
    ]


def last_checkpoint(run: Path) -> Path:
    step = checkpoint.newest(run)
    assert step is not None
    return run / checkpoint.FOLDER / f"step-{step:06d}"


def fingerprint(run: Path) -> dict[str, str]:
    """SHA-256 of last weights, averages, optimiser and kept weights; and the schedule."""
    last = last_checkpoint(run)
    files = [*last.glob("*.safetensors"), run / "model.safetensors"]
    sums = {file.name: disk.digest(file) for file in files}
    progress = disk.read_json(last / checkpoint.PROGRESS)
    progress.pop("seconds")
    return sums | {"progress": json.dumps(progress, sort_keys=True)}


def start(
    folder: Path,
    run: Path,
    *,
    restarts: int = 0,
    more: tuple[str, ...] = (),
    cache: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Two processes that train with dropout, by the command line."""
    base, settings = JOBS["dropout"]
    sets = [word for change in [*settings(folder), *more] for word in ("--set", change)]
    command = torchrun("-m", "regard", "train", base, "--out", run, *sets, restarts=restarts)
    return subprocess.Popen(
        command,
        env=environment(folder, cache),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def pids(process: subprocess.Popen) -> dict[int, int]:
    """The pid of each rank that torchrun has started."""
    found = {}
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    for pid in children.read_text().split() if children.exists() else ():
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for variable in variables:
            if variable.startswith(b"RANK="):
                found[int(variable.removeprefix(b"RANK="))] = int(pid)
    return found


def end_all() -> list[int]:
    """Kill what was started here and still runs, also what is stopped or has lost its parent; the
    pids."""
    killed = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={OWN}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
                killed.append(int(folder.name))
    return killed


def wait_for_checkpoint(process: subprocess.Popen, run: Path, after: int = 0) -> int:
    """The step of a checkpoint later than `after`."""
    while process.poll() is None and (checkpoint.newest(run) or 0) <= after:
        time.sleep(0.01)
    return checkpoint.newest(run) or 0


# -- kills------------------------------------------------------------------------------------------

LONGER = ("train.steps=150", "train.save_every=10", "train.valid_every=40")
START = 8.0  # seconds that processes may take until they train
MOMENTS = ("starts", "meets", "early", "late")


@dataclass
class Kill:
    """What was done to a run.

    moment     of the killed process: prepares, starts, meets, early, late
    rank       that was killed
    step       of the newest checkpoint
    recovery   seconds to the next checkpoint of other processes, unless a kill came before it
    """

    moment: str
    rank: int
    step: int
    recovery: float | None = None


def has_sockets(pid: int) -> bool:
    """A process that imports torch has none; the first ones are to the store."""
    try:
        links = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return False
    return any(link.startswith("socket:") for link in links)


class Killing:
    """A run of two processes, one of which is killed at each of these moments."""

    def __init__(
        self,
        folder: Path,
        run: Path,
        moments: Sequence[str],
        *,
        seed: int,
        pause: float = 1.0,
        more: tuple[str, ...] = (),
    ):
        self.run = run
        self.cache = folder / f"cache-{run.name}"
        self.kills: list[Kill] = []
        self._moments = moments
        self._pause = pause  # the longest after a checkpoint
        self._draw = random.Random(seed)
        self._process = start(folder, run, restarts=len(moments), more=more, cache=self.cache)
        self._killed = time.monotonic()
        self._last: set[int] = set()  # processes of the start that was hit

    def go(self) -> None:
        """To the end, which has to be a good one."""
        watch = threading.Thread(target=self._watch)
        watch.start()
        for moment in self._moments:
            self._kill(moment)
        output = self._process.communicate(timeout=500)[0].decode()
        watch.join()
        assert self._process.returncode == 0, output[-3000:]

    def _kill(self, moment: str) -> None:
        step = checkpoint.newest(self.run) or 0
        if moment == "prepares":
            self._until(lambda: self.cache.exists() and any(self.cache.iterdir()))
        elif moment == "meets":
            self._until(lambda: any(has_sockets(pid) for pid in self._new().values()))
        elif moment == "early":
            wait = self._draw.uniform(0, START)
            self._until(lambda: time.monotonic() > self._killed + wait)
        elif moment == "late":
            self._until(lambda: (checkpoint.newest(self.run) or 0) > step)
            time.sleep(self._pause * self._draw.random())
        self._until(lambda: bool(self._new()))
        ranks = self._new()
        if not ranks:
            return
        rank = self._draw.choice(sorted(ranks))
        self._last |= set(ranks.values())
        self._killed = time.monotonic()
        kill = Kill(moment, rank, checkpoint.newest(self.run) or 0)
        try:
            os.kill(ranks[rank], signal.SIGKILL)
        except ProcessLookupError:
            return
        self.kills.append(kill)

    def _new(self) -> dict[int, int]:
        """The processes that were started after the last kill."""
        return {rank: pid for rank, pid in pids(self._process).items() if pid not in self._last}

    def _until(self, condition: Callable[[], bool]) -> None:
        while self._process.poll() is None and not condition():
            time.sleep(0.005)

    def _watch(self) -> None:
        """Note when other processes than those of the last kill have saved."""
        step = 0
        while self._process.poll() is None:
            newest = checkpoint.newest(self.run) or 0
            if newest > step:
                step = newest
                last = self.kills[-1] if self.kills else None
                if last is not None and last.recovery is None and 0 in self._new():
                    last.recovery = time.monotonic() - self._killed
            time.sleep(0.01)


def thirty(folder: Path, *, kills: int = 30, a_run: int = 6) -> list[Kill]:
    """Kill until there are so many, a few times a run; each run ends with the bits of one that was
    left alone."""
    alone = start(folder, folder / "whole", more=LONGER)
    output = alone.communicate(timeout=900)[0].decode()
    assert alone.returncode == 0, output[-3000:]
    whole = fingerprint(folder / "whole")
    done: list[Kill] = []
    seed = 0
    while len(done) < kills:
        moments = ["prepares", *random.Random(seed).choices(MOMENTS, k=a_run - 1)]
        killing = Killing(folder, folder / f"killed-{seed}", moments, seed=seed, more=LONGER)
        killing.go()
        assert fingerprint(killing.run) == whole, f"run {seed}: {killing.kills}"
        done += killing.kills
        seed += 1
    return done
