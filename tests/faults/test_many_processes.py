"""Training with several processes: the same examples and losses as with one, and no hang, whatever
happens to one of them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import regard
from regard import checkpoint, disk
from regard.errors import BundleError
from regard.train.pulse import SILENCE, SILENCE_AFTER_SIGNAL, LostRankError
from tests import killing_ranks
from tests.killing_ranks import (
    JOBS,
    LONGER,
    ROOT,
    as_fields,
    environment,
    fingerprint,
    last_checkpoint,
    pids,
    start,
    wait_for_checkpoint,
)
from tests.records import record
from tests.tiny import PAIRS

TOLERANCE = 2e-5  # of weights after a few steps, for another order of sums


@pytest.fixture(autouse=True)
def no_process_is_left():
    """Trainings of a million steps end with their test, also if it fails."""
    yield
    killing_ranks.end_all()


def test_what_a_failed_test_leaves_is_killed(tmp_path: Path):
    """Also a process that is stopped, and one whose parent has ended."""
    program = "import os, subprocess, sys; null = open(os.devnull, 'w'); "
    program += "print(subprocess.Popen(sys.argv[1:], stdout=null, stderr=null).pid)"
    sleep = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
    own = environment(tmp_path)
    stopped = subprocess.Popen(sleep, env=own)
    parent = [sys.executable, "-S", "-c", program, *sleep]
    orphan = int(subprocess.run(parent, env=own, capture_output=True, check=True).stdout)
    other = subprocess.Popen(sleep)
    os.kill(stopped.pid, signal.SIGSTOP)
    try:
        assert set(killing_ranks.end_all()) == {stopped.pid, orphan}
        assert stopped.wait() == -signal.SIGKILL
        assert other.poll() is None
    finally:
        for process in (stopped, other):
            process.kill()
            process.wait()


def trained_weights(run: Path) -> dict[str, torch.Tensor]:
    return checkpoint.tensor_files(last_checkpoint(run), checkpoint.WEIGHTS).read()


def difference(run: Path, other: Path) -> float:
    ours, theirs = trained_weights(run), trained_weights(other)
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


def losses(run: Path) -> list[float]:
    """The training losses in the log."""
    lines = disk.read_json_lines(run / "metrics.jsonl")
    return [line["loss"] for line in lines if line["kind"] == "train"]


@pytest.fixture(scope="module")
def trained(once) -> Path:
    """The folder with the same trainings by one and by two processes."""
    return once("ranks", lambda folder: run_program(folder, "one", "two"))


@pytest.fixture(scope="module")
def shards(once) -> Path:
    """The same, where each of the two processes has a part of every tensor."""
    scenarios = "one shard", "two shards", "less", "killed"
    return once("shards", lambda folder: run_program(folder, *scenarios))


@pytest.fixture(scope="module")
def lost(once) -> Path:
    """Trainings that lose a process, or nearly."""
    scenarios = "restarted", "second stopped", "apart"
    return once("lost", lambda folder: run_program(folder, *scenarios))


def run_program(folder: Path, *scenarios: str) -> None:
    jobs = {name: (base, as_fields(settings(folder))) for name, (base, settings) in JOBS.items()}
    (folder / "jobs.json").write_text(json.dumps(jobs))
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.ranks_program", str(folder), *scenarios],
        env=environment(folder),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (folder / "errors.txt").write_text(done.stderr)


def records(folder: Path, name: str) -> list[dict]:
    """What each of two processes says."""
    return [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.timeout(600)
class TestTwoProcesses:
    @pytest.mark.parametrize("name", ["plain", "captions", "one"])
    def test_the_same_curve_as_one_process(self, trained: Path, name: str):
        assert difference(trained / f"{name}-1", trained / f"{name}-2") < TOLERANCE

    def test_every_process_gets_the_model(self, trained: Path):
        first, second = records(trained, "two")
        assert first == second

    def test_a_signal_to_one_saves_and_stops_all(self, trained: Path):
        assert [record["stopped"] for record in records(trained, "two")] == [143, 143]
        assert checkpoint.newest(trained / "stopped") is not None

    def test_a_save_that_fails_ends_all(self, trained: Path):
        assert [record["unwritable"] for record in records(trained, "two")] == [2, 2]
        messages = [(trained / f"message-{rank}.txt").read_text() for rank in range(2)]
        assert "cannot be written: File too large" in messages[0]
        assert messages[1] == f"process 0 of this training ended: {messages[0]}"

    def test_a_run_of_one_process_goes_on_with_two(self, trained: Path):
        assert difference(trained / "whole", trained / "halved") < TOLERANCE
        last = disk.read_json(trained / "halved/checkpoints/step-000024/progress.json")
        whole = disk.read_json(trained / "whole/checkpoints/step-000024/progress.json")
        for field in ("epoch", "window", "batch", "tokens"):
            assert last[field] == whole[field]

    def test_killed_and_started_again(self, trained: Path):
        """By torchrun and the command line."""
        run = trained / "killed-by-torchrun"
        killing = killing_ranks.Killing(trained, run, ["late"], seed=3, pause=0)
        killing.go()
        assert [kill.moment for kill in killing.kills] == ["late"]
        assert fingerprint(run) == fingerprint(trained / "dropout-2")


def check_stopped(folder: Path, rank: int) -> None:
    """The process that is left has named the one that was stopped."""
    record = json.loads((folder / f"stopped-{rank}.json").read_text())
    assert record["code"] == LostRankError.exit_code
    errors = (folder / "errors.txt").read_text()
    assert f"regard: process {rank} (" in errors
    assert f"pid {record['pid']}) of this training has been silent for 5 s" in errors


@pytest.mark.timeout(300)
class TestLostProcesses:
    """As torchrun starts them, with less time for signs of life."""

    def test_started_again_by_machines_that_count_differently(self, lost: Path):
        """torchrun counts the restarts of each machine; only one of them had a process die."""
        record = json.loads((lost / "restarted.json").read_text())
        assert record["killed"][1] == -signal.SIGKILL
        assert record["saved"] == 4
        assert record["again"] == [0, 0]
        assert fingerprint(lost / "restarted") == fingerprint(lost / "whole")

    def test_one_that_is_stopped_is_named(self, lost: Path):
        check_stopped(lost, 1)

    @pytest.mark.long
    def test_the_first_one_that_is_stopped_is_named(self, tmp_path: Path):
        run_program(tmp_path, "first stopped")
        check_stopped(tmp_path, 0)

    def test_a_machine_that_prepares_the_data_is_waited_for(self, lost: Path):
        """Before the first collective call, which has a time limit."""
        times = [json.loads((lost / f"apart-{rank}.json").read_text()) for rank in range(2)]
        assert times[1]["prepared"] > times[0]["prepared"] + 3
        assert min(time["began"] for time in times) > times[1]["prepared"]


@pytest.mark.timeout(600)
class TestShards:
    """train.shard=true: each of two processes has a part of every tensor."""

    @pytest.mark.parametrize("name", ["sharded", "plain", "captions", "one"])
    def test_the_same_curve_as_one_process(self, shards: Path, name: str):
        run = shards / f"{name}-shards"
        assert difference(shards / f"{name}-1", run) < TOLERANCE
        assert losses(run) == pytest.approx(losses(shards / f"{name}-1"), rel=1e-4)

    def test_each_process_has_half_of_the_elements(self, shards: Path):
        for name in ("sharded", "plain"):
            first, second = (record[name] for record in records(shards, "shards"))
            total = first["parameters"]
            assert first["own_parameters"] + second["own_parameters"] == total
            for part in (first, second):
                # Of an odd number of rows, the first process has one more.
                assert part["own_parameters"] == pytest.approx(total / 2, rel=0.02)
        assert first["own_states"] == 2 * first["own_parameters"]  # the two means of AdamW

    def test_a_tied_weight_stays_one_weight(self, shards: Path):
        assert all(record["sharded"]["tied"] for record in records(shards, "shards"))
        assert trained_weights(shards / "sharded-shards").keys() == (
            trained_weights(shards / "sharded-1").keys()
        )

    def test_averages_are_those_of_one_process(self, shards: Path):
        ours, theirs = (
            checkpoint.judged_weights(last_checkpoint(shards / name)).read()
            for name in ("sharded-shards", "sharded-1")
        )
        assert max(float((ours[name] - theirs[name]).abs().max()) for name in ours) < TOLERANCE

    def test_the_bundle_is_a_plain_one(self, shards: Path):
        first, second = (record["sharded"] for record in records(shards, "shards"))
        assert first["digest"] == second["digest"]
        prompts = [prompt for prompt, _ in PAIRS[:3]]
        bots = [
            regard.load(shards / name, device="cpu") for name in ("sharded-1", "sharded-shards")
        ]
        ours, theirs = ([bot.ask(prompt).text for prompt in prompts] for bot in bots)
        assert ours == theirs
        of_checkpoint = regard.load(last_checkpoint(shards / "sharded-shards"), device="cpu")
        assert [of_checkpoint.ask(prompt).text for prompt in prompts] == ours

    @pytest.mark.parametrize("name", ["from-1", "from-2"])
    def test_another_number_of_processes_goes_on(self, shards: Path, name: str):
        """From one process to two, and from two to one."""
        files = sorted(path.name for path in last_checkpoint(shards / name).glob("weights*"))
        of_two = ["weights-00001-of-00002.safetensors", "weights-00002-of-00002.safetensors"]
        assert files == (of_two if name == "from-1" else ["weights.safetensors"])
        assert difference(shards / "sharded-1", shards / name) < TOLERANCE

    def test_a_process_that_cannot_write_ends_all(self, shards: Path):
        (code, message), (other_code, other) = (
            record["half_written"] for record in records(shards, "shards")
        )
        assert code == other_code == 2
        shard = "step-000004/weights-00002-of-00002.safetensors"
        assert f"{shard}: cannot be written: File too large" in other
        assert message == f"process 1 of this training ended: {other}"
        assert checkpoint.newest(shards / "half-written") is None

    def test_killed_in_a_save(self, shards: Path):
        """The checkpoint before stays, and the run ends with the bits of one that was not killed.
        The other process waits for the lost one no longer than a few seconds after a signal."""
        record = json.loads((shards / "killed.json").read_text())
        assert record["codes"] == [-signal.SIGKILL, LostRankError.exit_code]
        assert record["saved"] == 4
        errors = (shards / "errors.txt").read_text()
        assert f"of this training has been silent for {SILENCE_AFTER_SIGNAL:.0f} s" in errors
        assert fingerprint(shards / "killed") == fingerprint(shards / "sharded-shards")

    def test_a_flipped_bit_is_found_and_named(self, shards: Path, tmp_path: Path):
        run = shutil.copytree(shards / "sharded-shards", tmp_path / "run")
        shard = last_checkpoint(run) / "average-00002-of-00002.safetensors"
        content = bytearray(shard.read_bytes())
        content[-3] ^= 4
        shard.write_bytes(content)
        with pytest.raises(BundleError, match=f"{shard.name}: damaged: its contents are not what"):
            regard.load(last_checkpoint(run))
        notes: list[str] = []
        choice = checkpoint.choose_newest(run, notes.append)
        assert choice is not None and choice.folder.name == "step-000008"
        assert f"{shard.name}: damaged" in str(choice.damaged[0][1])

    def test_a_missing_shard_is_named(self, shards: Path, tmp_path: Path):
        run = shutil.copytree(shards / "sharded-shards", tmp_path / "run")
        shard = last_checkpoint(run) / "optimiser-00002-of-00002.safetensors"
        shard.unlink()
        choice = checkpoint.choose_newest(run, print)
        assert choice is not None and choice.folder.name == "step-000008"
        assert f"{shard.name}: a file is missing" in str(choice.damaged[0][1])


# -- the whole figures------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_thirty_kills_at_random_moments(tmp_path: Path):
    """And while the data is prepared, while processes start, and while they meet."""
    kills = killing_ranks.thirty(tmp_path)
    assert {kill.moment for kill in kills} == {"prepares", *killing_ranks.MOMENTS}
    seconds = [kill.recovery for kill in kills if kill.recovery is not None]
    median = statistics.median(seconds)
    figures = {
        "kills": len(kills),
        "timed": len(seconds),
        "median": median,
        "longest": max(seconds),
    }
    record("kills of one of two processes", **figures)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_is_stopped_is_named(tmp_path: Path, rank: int):
    process = start(tmp_path, tmp_path / "run", more=("train.steps=1000000",))
    wait_for_checkpoint(process, tmp_path / "run")
    ranks = pids(process)
    os.kill(ranks[rank], signal.SIGSTOP)
    began = time.monotonic()
    while is_running(ranks[1 - rank]) and time.monotonic() - began < 120:
        time.sleep(0.1)
    assert time.monotonic() - began < 60
    output = process.communicate(timeout=120)[0].decode()  # torchrun kills it after 30 s
    assert f"regard: process {rank} (" in output
    assert f"pid {ranks[rank]}) of this training has been silent for {SILENCE:.0f} s" in output


def compare_orders(folder: Path, worlds: tuple[int, ...]) -> list[list]:
    """Each step has the same batch whatever the number of processes, and each row is one
    process's; the batches of one process."""
    alone = json.loads((folder / "order-1-0.json").read_text())
    for world in worlds:
        files = [folder / f"order-{world}-{rank}.json" for rank in range(world)]
        orders = [json.loads(file.read_text()) for file in files]
        for steps in zip(alone, *orders, strict=True):
            whole, *parts = steps
            assert all(part[:-1] == whole[:-1] for part in parts)
            assert [token for part in parts for token in part[-1]] == whole[-1]
    return alone


def compare_chain(folder: Path) -> None:
    """A run that several numbers of processes made stands where that of one process does."""
    last, whole = (
        disk.read_json(last_checkpoint(folder / name) / checkpoint.PROGRESS)
        for name in ("chain", "plain-1")
    )
    for field in ("step", "epoch", "window", "batch", "tokens"):
        assert last[field] == whole[field]


@pytest.mark.timeout(600)
class TestOtherNumbersOfProcesses:
    """24 steps are three epochs."""

    def test_four_have_the_batches_and_losses_of_one(self, tmp_path: Path):
        few = tmp_path
        run_program(few, "few steps", "short chain")
        alone = compare_orders(few, (4,))
        epochs = {epoch for epoch, *_ in alone}
        for epoch in sorted(epochs)[:-1]:
            indices = [index for batch in alone if batch[0] == epoch for index in batch[3]]
            assert sorted(indices) == list(range(len(indices)))  # each example once
        assert len(epochs) > 2
        assert losses(few / "plain-4") == pytest.approx(losses(few / "plain-1"), rel=1e-3)

        compare_chain(few)  # by two, then one, then two processes
        assert difference(few / "chain", few / "plain-1") < TOLERANCE


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_same_curve_and_order_on_one_two_and_four_processes(tmp_path: Path):
    """Also with batches that have fewer rows than there are processes, and a single example."""
    run_program(tmp_path, "many steps")
    alone = compare_orders(tmp_path, (2, 4))
    assert len({tuple(index) for _, _, _, index, _ in alone}) > 8
    assert min(len(index) for _, _, _, index, _ in alone) == 1
    for world in (2, 4):
        for name in ("plain", "captions", "one"):
            run = tmp_path / f"{name}-{world}"
            assert losses(run) == pytest.approx(losses(tmp_path / f"{name}-1"), rel=1e-3)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_two_processes_then_one_then_two(tmp_path: Path):
    run_program(tmp_path, "many steps", "chain")
    compare_chain(tmp_path)
    assert losses(tmp_path / "chain") == pytest.approx(losses(tmp_path / "plain-1"), rel=1e-3)


def is_running(pid: int) -> bool:
    """Not if it has ended, also if its parent has not noticed yet."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


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

    def start(
        self, side: int, folder: Path, run: Path, *more: str, restarts: int = 0
    ) -> subprocess.Popen[bytes]:
        """torchrun as docs/many-machines.md has it."""
        base, settings = JOBS["dropout"]
        sets = [word for change in [*settings(folder), *more] for word in ("--set", change)]
        command = [
            *("ip", "netns", "exec", self.names[side]),
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", str(restarts)),
            *("--rdzv-id", "1", "--rdzv-backend", "c10d"),
            *("--rdzv-endpoint", f"{self.addresses[0]}:29400"),
            *("--rdzv-conf", f"is_host={1 - side}", "--local-addr", self.addresses[side]),
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
@pytest.mark.parametrize("side", [0, 1])
def test_a_process_that_is_killed_on_one_machine(
    tmp_path: Path, two_machines: TwoMachines, side: int
):
    """Three times. torchrun counts the restarts of each machine alone."""
    run = tmp_path / "run"
    sides = [two_machines.start(each, tmp_path, run, *LONGER, restarts=6) for each in range(2)]
    victims: set[int] = set()
    step = 0
    for _ in range(3):
        step = wait_for_checkpoint(sides[side], run, after=step)
        (victim,) = pids(sides[side]).values()
        os.kill(victim, signal.SIGKILL)
        victims.add(victim)
    outputs = [process.communicate(timeout=900)[0].decode() for process in sides]
    assert [process.returncode for process in sides] == [0, 0], outputs
    assert len(victims) == 3
    here = start(tmp_path, tmp_path / "here", more=LONGER)
    here.communicate(timeout=600)
    assert fingerprint(run) == fingerprint(tmp_path / "here")
    record(f"kills on machine {side}", kills=len(victims))


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("side", [0, 1])
def test_a_process_that_is_stopped_on_one_machine(
    tmp_path: Path, two_machines: TwoMachines, side: int
):
    """The other one fails and names it. torchrun waits for a stopped process, so it goes on then;
    it ends as well."""
    run = tmp_path / "run"
    sides = [two_machines.start(each, tmp_path, run, "train.steps=1000000") for each in range(2)]
    wait_for_checkpoint(sides[0], run)
    ranks = [next(iter(pids(process).values())) for process in sides]
    os.kill(ranks[side], signal.SIGSTOP)
    began = time.monotonic()
    while is_running(ranks[1 - side]) and time.monotonic() - began < 120:
        time.sleep(0.1)
    seconds = time.monotonic() - began
    record(f"a process that is stopped on machine {side}", seconds=seconds)
    assert seconds < 60
    with contextlib.suppress(ProcessLookupError):
        os.kill(ranks[side], signal.SIGCONT)
    outputs = [process.communicate(timeout=300)[0].decode() for process in sides]
    silent = f"pid {ranks[side]}) of this training has been silent for {SILENCE:.0f} s"
    assert f"regard: process {side} (" in outputs[1 - side]
    assert silent in outputs[1 - side], outputs[1 - side][-2000:]


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_cable_that_is_pulled_ends_both_sides(tmp_path: Path, two_machines: TwoMachines):
    """The processes, that is: torchrun itself may wait for the cable far longer."""
    run = tmp_path / "run"
    sides = [two_machines.start(side, tmp_path, run, "train.steps=1000000") for side in range(2)]
    wait_for_checkpoint(sides[0], run)
    ranks = [next(iter(pids(process).values())) for process in sides]
    two_machines.cut()
    began = time.monotonic()
    while any(map(is_running, ranks)) and time.monotonic() - began < 120:
        time.sleep(0.1)
    seconds = time.monotonic() - began
    record("a cable that is pulled", seconds=seconds)
    assert seconds < 60
    for process in sides:
        process.kill()
    outputs = [process.communicate(timeout=60)[0].decode() for process in sides]
    assert "regard: process 1 (" in outputs[0] and "has been silent" in outputs[0]
    assert "regard: the store of this training" in outputs[1], outputs[1][-2000:]
