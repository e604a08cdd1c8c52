"""Training with several processes: the same examples and losses as with one, and no hang, whatever
happens to one of them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import torch

import regard
from regard import checkpoint, disk
from regard.train.ranks import SILENCE
from regard.weights import read_tensors
from tests.tiny import captions_table, memorised, memorised_captions, pairs_file

ROOT = Path(__file__).parents[2]
STEPS = 12
SHORT = ("train.valid_every=0", "train.save_every=4", f"train.steps={STEPS}", "encoder.width=16")
TOLERANCE = 2e-5  # of weights after a few steps, for another order of sums


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


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {
        "REGARD_CACHE": str(folder / "cache"),
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


def trained_weights(run: Path) -> dict[str, torch.Tensor]:
    step = checkpoint.newest(run)
    assert step is not None
    return read_tensors(run / checkpoint.FOLDER / f"step-{step:06d}" / checkpoint.WEIGHTS)


def difference(run: Path, other: Path) -> float:
    ours, theirs = trained_weights(run), trained_weights(other)
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


def fingerprint(run: Path) -> dict[str, str]:
    """SHA-256 of last weights, averages, optimiser and kept weights; and the schedule."""
    step = checkpoint.newest(run)
    last = run / checkpoint.FOLDER / f"step-{step:06d}"
    files = [last / name for name in (checkpoint.WEIGHTS, checkpoint.AVERAGE, checkpoint.OPTIMISER)]
    sums = {file.name: disk.digest(file) for file in [*files, run / "model.safetensors"]}
    progress = disk.read_json(last / checkpoint.PROGRESS)
    progress.pop("seconds")
    return sums | {"progress": json.dumps(progress, sort_keys=True)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def jobs(folder: Path) -> dict[str, tuple[str, dict[str, object]]]:
    made = {name: (base, as_fields(settings(folder))) for name, (base, settings) in JOBS.items()}
    (folder / "jobs.json").write_text(json.dumps(made))
    return made


@pytest.fixture(scope="module")
def alone(folder: Path, jobs) -> Path:
    """The same trainings in one process, and the first half of another."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        for name in ("plain", "captions", "one"):
            base, changes = jobs[name]
            regard.train(base, set=changes, out=folder / f"{name}-1", quiet=True)
        base, changes = jobs["plain"]
        regard.train(base, set=changes, out=folder / "whole", steps=24, quiet=True)
        longer = changes | {"train.steps": 24, "train.save_every": 10}
        regard.train(base, set=longer, out=folder / "halved", steps=10, quiet=True)
        torch.set_num_threads(before)
    return folder


@pytest.fixture(scope="module")
def together(alone: Path) -> list[dict]:
    """What each of two processes says of the same trainings."""
    command = torchrun("-m", "tests.faults.ranks_program", alone)
    done = subprocess.run(
        command, env=environment(alone), cwd=ROOT, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((alone / f"rank-{rank}.json").read_text()) for rank in range(2)]


# -- processes that are killed or stopped-----------------------------------------------------------


def start(folder: Path, run: Path, *, restarts: int = 0, more: tuple[str, ...] = ()):
    """Two processes that train with dropout, by the command line."""
    base, settings = JOBS["dropout"]
    sets = [word for change in [*settings(folder), *more] for word in ("--set", change)]
    command = torchrun("-m", "regard", "train", base, "--out", run, *sets, restarts=restarts)
    return subprocess.Popen(
        command, env=environment(folder), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
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


def wait_for_checkpoint(process: subprocess.Popen, run: Path, after: int = 0) -> int:
    """The step of a checkpoint later than `after`."""
    while process.poll() is None and (checkpoint.newest(run) or 0) <= after:
        time.sleep(0.01)
    return checkpoint.newest(run) or 0


def kill_randomly(
    folder: Path, run: Path, *, kills: int, seed: int, more: tuple[str, ...] = ()
) -> int:
    """Train while a random process is killed again and again; the number of kills."""
    draw = random.Random(seed)
    process = start(folder, run, restarts=kills, more=more)
    done = step = 0
    while done < kills:
        step = wait_for_checkpoint(process, run, after=step)
        time.sleep(draw.random())
        ranks = pids(process)
        if process.poll() is not None or len(ranks) < 2:
            break
        os.kill(ranks[draw.randrange(2)], signal.SIGKILL)
        done += 1
    output = process.communicate(timeout=500)[0].decode()
    assert process.returncode == 0, output[-3000:]
    return done


class TestTwoProcesses:
    pytestmark = pytest.mark.timeout(600)

    @pytest.mark.parametrize("name", ["plain", "captions", "one"])
    def test_the_same_curve_as_one_process(self, folder: Path, together, name: str):
        assert difference(folder / f"{name}-1", folder / f"{name}-2") < TOLERANCE

    def test_every_process_gets_the_model(self, together):
        first, second = together
        assert first == second

    def test_a_signal_to_one_saves_and_stops_all(self, folder: Path, together):
        assert [record["stopped"] for record in together] == [143, 143]
        assert checkpoint.newest(folder / "stopped") is not None

    def test_a_save_that_fails_ends_all(self, folder: Path, together):
        assert [record["unwritable"] for record in together] == [2, 2]
        messages = [(folder / f"message-{rank}.txt").read_text() for rank in range(2)]
        assert "cannot be written: File too large" in messages[0]
        assert messages[1] == f"process 0 of this training ended: {messages[0]}"

    def test_a_run_of_one_process_goes_on_with_two(self, folder: Path, together):
        assert difference(folder / "whole", folder / "halved") < TOLERANCE
        last = disk.read_json(folder / "halved/checkpoints/step-000024/progress.json")
        whole = disk.read_json(folder / "whole/checkpoints/step-000024/progress.json")
        for field in ("epoch", "window", "batch", "tokens"):
            assert last[field] == whole[field]

    def test_killed_and_started_again(self, folder: Path, together):
        run = folder / "killed"
        kills = kill_randomly(folder, run, kills=1, seed=3)
        assert kills == 1
        assert fingerprint(run) == fingerprint(folder / "dropout-2")


# -- the whole figures------------------------------------------------------------------------------

LONGER = ("train.steps=150", "train.save_every=10", "train.valid_every=40")


def uninterrupted(folder: Path) -> Path:
    process = start(folder, folder / "whole", more=LONGER)
    output = process.communicate(timeout=900)[0].decode()
    assert process.returncode == 0, output[-3000:]
    return folder / "whole"


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_thirty_kills_at_random_moments(tmp_path: Path):
    whole = fingerprint(uninterrupted(tmp_path))
    kills = seed = 0
    while kills < 30:
        run = tmp_path / f"killed-{seed}"
        kills += kill_randomly(tmp_path, run, kills=6, seed=seed, more=LONGER)
        assert fingerprint(run) == whole
        seed += 1


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_is_stopped_is_named(tmp_path: Path, rank: int):
    process = start(tmp_path, tmp_path / "run", more=("train.steps=1000000",))
    wait_for_checkpoint(process, tmp_path / "run")
    ranks = pids(process)
    os.kill(ranks[rank], signal.SIGSTOP)
    began = time.monotonic()
    other = Path(f"/proc/{ranks[1 - rank]}")
    while other.exists() and time.monotonic() - began < 120:
        time.sleep(0.1)
    assert time.monotonic() - began < 60
    output = process.communicate(timeout=120)[0].decode()  # torchrun kills it after 30 s
    assert f"regard: process {rank} (" in output
    assert f"pid {ranks[rank]}) of this training has been silent for {SILENCE:.0f} s" in output


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_same_curve_on_one_two_and_four_processes(tmp_path: Path):
    base, settings = JOBS["plain"]
    sets = [word for change in settings(tmp_path) for word in ("--set", change)]
    arguments = ("-m", "regard", "train", base, *sets, "--out")
    for processes in (1, 2, 4):
        command = torchrun(*arguments, tmp_path / str(processes), processes=processes)
        subprocess.run(command, env=environment(tmp_path), cwd=ROOT, check=True, timeout=600)
    assert difference(tmp_path / "1", tmp_path / "2") < TOLERANCE
    assert difference(tmp_path / "1", tmp_path / "4") < TOLERANCE


# -- two machines, as network namespaces------------------------------------------------------------


class TwoMachines:
    """Two network namespaces with addresses of their own, joined by a virtual cable."""

    def __init__(self) -> None:
        self.names = [f"regard-{os.getpid()}-{side}" for side in range(2)]
        self.addresses = ["10.213.77.1", "10.213.77.2"]

    def __enter__(self) -> TwoMachines:
        cables = [f"rg{os.getpid() % 10**6}{side}" for side in "ab"]
        for name in self.names:
            self.ip("netns", "add", name)
        self.ip("link", "add", cables[0], "type", "veth", "peer", "name", cables[1])
        for name, cable, address in zip(self.names, cables, self.addresses, strict=True):
            self.ip("link", "set", cable, "netns", name)
            self.ip("-n", name, "link", "set", cable, "name", "cable")
            self.ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
            for device in ("cable", "lo"):
                self.ip("-n", name, "link", "set", device, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.names:
            self.ip("netns", "delete", name)

    def ip(self, *arguments: str) -> None:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
        if done.returncode:
            raise OSError(done.stderr.strip())

    def cut(self) -> None:
        """Pull the cable."""
        self.ip("-n", self.names[1], "link", "set", "cable", "down")

    def start(self, side: int, folder: Path, run: Path, *more: str) -> subprocess.Popen:
        base, settings = JOBS["dropout"]
        sets = [word for change in [*settings(folder), *more] for word in ("--set", change)]
        command = [
            *("ip", "netns", "exec", self.names[side]),
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--nnodes", "2", "--node-rank", str(side), "--nproc-per-node", "1"),
            *("--master-addr", self.addresses[0], "--master-port", "29400"),
            *("-m", "regard", "train", base, "--out", str(run), *sets),
        ]
        own = {"GLOO_SOCKET_IFNAME": "cable", "REGARD_CACHE": str(folder / f"cache-{side}")}
        return subprocess.Popen(
            command,
            env=environment(folder) | own,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )


@pytest.fixture
def two_machines():
    try:
        machines = TwoMachines().__enter__()
    except OSError as problem:
        pytest.skip(f"no network namespaces here: {problem}")
    yield machines
    machines.__exit__()


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_two_machines_with_caches_of_their_own(tmp_path: Path, two_machines: TwoMachines):
    """The second one has neither the run's folder nor the prepared data."""
    run = tmp_path / "run"
    sides = [two_machines.start(side, tmp_path, run) for side in range(2)]
    outputs = [process.communicate(timeout=600)[0].decode() for process in sides]
    assert [process.returncode for process in sides] == [0, 0], outputs
    here = start(tmp_path, tmp_path / "here")
    here.communicate(timeout=600)
    assert fingerprint(run) == fingerprint(tmp_path / "here")


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_cable_that_is_pulled_ends_both_sides(tmp_path: Path, two_machines: TwoMachines):
    run = tmp_path / "run"
    sides = [two_machines.start(side, tmp_path, run, "train.steps=1000000") for side in range(2)]
    wait_for_checkpoint(sides[0], run)
    two_machines.cut()
    began = time.monotonic()
    outputs = [process.communicate(timeout=300)[0].decode() for process in sides]
    assert all(process.returncode != 0 for process in sides)
    assert "regard: process 1 (" in outputs[0] and "has been silent" in outputs[0]
    assert "regard: the store of this training" in outputs[1], outputs[1][-2000:]
    assert time.monotonic() - began < 120
