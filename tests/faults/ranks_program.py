"""Trainings by one and by two processes, as torchrun starts them.

    python -m tests.faults.ranks_program FOLDER

Starting Python and torch takes seconds, so this program imports them once and forks: each child has
the variables that torchrun would set. FOLDER/jobs.json has the trainings; what happened to each
process is written to FOLDER/NAME-RANK.json.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import regard
from regard import build, checkpoint
from regard.data.batches import Place
from regard.errors import RegardError
from regard.train import pulse
from regard.train.learner import Replicated
from regard.train.loop import Loop
from regard.train.parts import Part, Parts
from regard.weights import tensors

Job = tuple[str, dict[str, Any]]


@contextlib.contextmanager
def agent_store() -> Iterator[int]:
    """The store of torchrun, in a process of its own: a fork has one thread. Its port."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        os.write(write, f"{store.port}\n".encode())
        while True:
            signal.pause()
    try:
        yield int(os.read(read, 16))
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def together(
    world: int, action: Callable[[int], object], port: int, restarts: Sequence[int] = ()
) -> list[int]:
    """Start so many processes, and give each its number; their pids. `restarts` is how often the
    machine of each has started its processes again, as far as that machine knows."""
    pids = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_PORT": port}
            os.environ |= {name: str(value) for name, value in variables.items()}
            os.environ |= {"MASTER_ADDR": "localhost", "TORCHELASTIC_USE_AGENT_STORE": "True"}
            os.environ["TORCHELASTIC_RESTART_COUNT"] = str(restarts[rank] if restarts else 0)
            code = 1
            try:
                action(rank)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        pids.append(pid)
    return pids


def codes(pids: list[int]) -> list[int]:
    """How the processes ended."""
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def run(world: int, action: Callable[[int], object]) -> None:
    """Processes that end well."""
    with agent_store() as port:
        ended = codes(together(world, action, port))
    if any(ended):
        raise RuntimeError(f"training failed, see the traceback above: {ended}")


def digest(bot: regard.Bundle) -> str:
    """Of the weights that this process got."""
    total = hashlib.sha256()
    for name, tensor in sorted(tensors(bot.model).items()):
        total.update(name.encode() + tensor.numpy().tobytes())
    return total.hexdigest()


def train(job: Job, out: Path, **changes: Any) -> regard.Bundle:
    recipe, fields = job
    return regard.train(recipe, set=fields | changes, out=out, quiet=True)


# -- every process has the whole model--------------------------------------------------------------


def stop_when_saved(run: Path) -> None:
    """A signal for this process once the run has a checkpoint."""

    def watch() -> None:
        while checkpoint.newest(run) is None:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def one_process(folder: Path, jobs: dict[str, Job]) -> None:
    """The same trainings in one process, and the first half of another."""
    for name in ("plain", "captions", "one"):
        train(jobs[name], folder / f"{name}-1")
    train(jobs["plain"], folder / "whole", **{"train.steps": 24})
    halved = {"train.steps": 24, "train.save_every": 10}
    recipe, fields = jobs["plain"]
    regard.train(recipe, set=fields | halved, out=folder / "halved", steps=10, quiet=True)


def two_processes(rank: int, folder: Path, jobs: dict[str, Job]) -> None:
    record: dict[str, Any] = {}
    for name in ("plain", "dropout", "captions", "one"):
        record[name] = digest(train(jobs[name], folder / f"{name}-2"))

    stopped = folder / "stopped"
    if rank == 1:
        stop_when_saved(stopped)
    try:
        train(jobs["plain"], stopped, **{"train.steps": 10**6})
    except RegardError as problem:
        record["stopped"] = problem.exit_code

    # Only the first process writes, and files of weights are too large for it.
    if rank == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    try:
        train(jobs["plain"], folder / "unwritable")
    except RegardError as problem:
        record["unwritable"] = problem.exit_code
        (folder / f"message-{rank}.txt").write_text(str(problem))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    record["halved"] = digest(regard.train(resume=folder / "halved", steps=24, quiet=True))
    (folder / f"two-{rank}.json").write_text(json.dumps(record))


def other_worlds(
    folder: Path, jobs: dict[str, Job], worlds: Sequence[int], names: Sequence[str], steps: int
) -> None:
    """The same trainings by other numbers of processes."""
    for world in worlds:
        run(world, lambda rank, w=world: written_down(w, rank, folder, jobs, names, steps))


def written_down(
    world: int, rank: int, folder: Path, jobs: dict[str, Job], names: Sequence[str], steps: int
) -> None:
    """Write down the batches and the own rows of each, in their order."""
    real = Parts.part
    order: list[Any] = []

    def part(self: Parts, place: Place, index: np.ndarray, **options: Any) -> Part:
        own = real(self, place, index, **options)
        rows = own.batch.targets[own.batch.real].tolist() if own.weight else []
        order.append([*place, index.tolist(), rows])
        return own

    Parts.part = part
    for name in names:
        train(jobs[name], folder / f"{name}-{world}", **{"train.steps": steps})
    Parts.part = real
    (folder / f"order-{world}-{rank}.json").write_text(json.dumps(order))


def go_on_with(folder: Path, jobs: dict[str, Job], worlds: Sequence[int], steps: int) -> None:
    """A run that other numbers of processes go on with."""
    recipe, fields = jobs["plain"]
    ends = [steps * number // len(worlds) for number in range(1, len(worlds) + 1)]
    out = folder / "chain"
    fields = fields | {"train.steps": steps}
    for world, until in zip(worlds, ends, strict=True):

        def go(rank: int, until: int = until) -> None:
            if until == ends[0]:
                regard.train(recipe, set=fields, out=out, steps=until, quiet=True)
            else:
                regard.train(resume=out, steps=until, quiet=True)

        run(world, go)


# -- processes that are lost------------------------------------------------------------------------


def at_step(step: int, action: Callable[[], object]) -> None:
    """Do something when that many steps are made."""
    real = Loop._heed_all

    def heed_all(self: Loop) -> None:
        if self.progress.step == step:
            action()
        real(self)

    Loop._heed_all = heed_all


def started_again(folder: Path, jobs: dict[str, Job]) -> None:
    """The second process is killed, and its machine is the only one that counts the restart."""
    run(2, lambda rank: train(jobs["dropout"], folder / "whole"))
    out = folder / "restarted"

    def killed(rank: int) -> None:
        if rank == 1:
            at_step(6, lambda: os.kill(os.getpid(), signal.SIGKILL))
        train(jobs["dropout"], out)

    with agent_store() as port:
        record = {"killed": codes(together(2, killed, port)), "saved": checkpoint.newest(out)}
        again = together(2, lambda rank: train(jobs["dropout"], out), port, restarts=[0, 1])
        record["again"] = codes(again)
    (folder / "restarted.json").write_text(json.dumps(record))


def stopped(rank: int, folder: Path, jobs: dict[str, Job]) -> None:
    """A process is stopped, and those that are left notice it, sooner than they otherwise would."""
    pulse.SILENCE = 5.0

    def train_and_stop(own: int) -> None:
        if own == rank:
            at_step(6, lambda: os.kill(os.getpid(), signal.SIGSTOP))
        train(jobs["dropout"], folder / f"stopped-{rank}")

    with agent_store() as port:
        pids = together(2, train_and_stop, port)
        (code,) = codes([pids[1 - rank]])
        os.kill(pids[rank], signal.SIGKILL)
        codes([pids[rank]])
    (folder / f"stopped-{rank}.json").write_text(json.dumps({"pid": pids[rank], "code": code}))


def own_caches(rank: int, folder: Path, jobs: dict[str, Job]) -> None:
    """Two machines; the second does not have the prepared data, and takes long to prepare it."""
    os.environ |= {"REGARD_CACHE": str(folder / f"cache-{rank}"), "LOCAL_RANK": "0"}
    times: dict[str, float] = {}
    prepare, begin = build.corpus, Replicated.begin

    def slow_corpus(*arguments: Any) -> Any:
        if rank == 1:
            time.sleep(3)
        corpus = prepare(*arguments)
        times["prepared"] = time.monotonic()
        return corpus

    def timed_begin(self: Replicated) -> None:
        times["began"] = time.monotonic()
        begin(self)

    build.corpus, Replicated.begin = slow_corpus, timed_begin
    train(jobs["plain"], folder / "apart")
    (folder / f"apart-{rank}.json").write_text(json.dumps(times))


# -- every process has a shard of the model---------------------------------------------------------


@contextlib.contextmanager
def counted(record: dict[str, Any]) -> Iterator[None]:
    """Count the elements that a process has at the end of its training."""
    real = Loop.go

    def go(self: Loop, signals: list[int]) -> Any:
        progress = real(self, signals)
        learner = self.learner
        parameters = list(learner.model.parameters())
        states = [state for state in learner.optimiser.state.values() for state in state.values()]
        own = [getattr(tensor, "to_local", lambda t=tensor: t)() for tensor in parameters]
        own_states = [getattr(state, "to_local", lambda s=state: s)() for state in states]
        record["parameters"] = sum(parameter.numel() for parameter in parameters)
        record["own_parameters"] = sum(tensor.numel() for tensor in own)
        record["own_states"] = sum(state.numel() for state in own_states if state.ndim)
        decoder: Any = learner.model.decoder
        record["tied"] = decoder.output.weight is decoder.embedding.table.weight
        return progress

    Loop.go = go
    try:
        yield
    finally:
        Loop.go = real


def one_shard(folder: Path, jobs: dict[str, Job]) -> None:
    """The same trainings in one process, and the first half of another."""
    for name in ("sharded", "plain", "captions", "one"):
        train(jobs[name], folder / f"{name}-1")
    recipe, fields = jobs["sharded"]
    shard = fields | {"train.shard": True}
    regard.train(recipe, set=shard, out=folder / "from-1", steps=8, quiet=True)


def two_shards(rank: int, folder: Path, jobs: dict[str, Job]) -> None:
    record: dict[str, Any] = {}
    shard = {"train.shard": True}
    for name in ("sharded", "plain", "captions", "one"):
        with counted(record.setdefault(name, {})):
            bot = train(jobs[name], folder / f"{name}-shards", **shard)
        record[name]["digest"] = digest(bot)
    recipe, fields = jobs["sharded"]
    regard.train(recipe, set=fields | shard, out=folder / "from-2", steps=8, quiet=True)
    regard.train(resume=folder / "from-1", steps=12, quiet=True)

    # The second process cannot write.
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    try:
        train(jobs["sharded"], folder / "half-written", **shard)
    except RegardError as problem:
        record["half_written"] = [problem.exit_code, str(problem)]
    (folder / f"shards-{rank}.json").write_text(json.dumps(record))


def killed_in_a_save(rank: int, folder: Path, jobs: dict[str, Job]) -> None:
    """The second process is lost while it writes its part of the second checkpoint."""
    real = checkpoint.write_shard
    saves = 0

    def write_shard(*arguments: Any) -> dict[str, str]:
        nonlocal saves
        saves += 1
        if saves == 2 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments)

    checkpoint.write_shard = write_shard
    try:
        train(jobs["sharded"], folder / "killed", **{"train.shard": True})
    except RegardError as problem:
        os._exit(problem.exit_code)


def kill_and_go_on(folder: Path, jobs: dict[str, Job]) -> None:
    with agent_store() as port:
        first, second = together(2, lambda rank: killed_in_a_save(rank, folder, jobs), port)
        record: dict[str, Any] = {"codes": codes([second])}
        os.kill(first, signal.SIGTERM)  # as torchrun does
        began = time.monotonic()
        record["codes"] += codes([first])
        record["seconds"] = time.monotonic() - began
    record["saved"] = checkpoint.newest(folder / "killed")
    run(2, lambda _: regard.train(resume=folder / "killed", quiet=True))
    (folder / "killed.json").write_text(json.dumps(record))


def main(folder: Path, *chosen: str) -> None:
    jobs = json.loads((folder / "jobs.json").read_text())
    torch.set_num_threads(1)
    # All that a child would import, and nothing that computes: a fork has one thread.
    for module in ("regard.train.sharded", "regard.pages.report", "matplotlib.pyplot"):
        import_module(module)
    all_jobs = ("plain", "captions", "one")
    scenarios = {
        "one": lambda: run(1, lambda _: one_process(folder, jobs)),
        "two": lambda: run(2, lambda rank: two_processes(rank, folder, jobs)),
        "one shard": lambda: run(1, lambda _: one_shard(folder, jobs)),
        "two shards": lambda: run(2, lambda rank: two_shards(rank, folder, jobs)),
        "less": lambda: run(
            1, lambda _: regard.train(resume=folder / "from-2", steps=12, quiet=True)
        ),
        "killed": lambda: kill_and_go_on(folder, jobs),
        "restarted": lambda: started_again(folder, jobs),
        "first stopped": lambda: stopped(0, folder, jobs),
        "second stopped": lambda: stopped(1, folder, jobs),
        "apart": lambda: run(2, lambda rank: own_caches(rank, folder, jobs)),
        "few steps": lambda: other_worlds(folder, jobs, (1, 4), ("plain",), 24),
        "short chain": lambda: go_on_with(folder, jobs, (2, 1, 2), 24),
        "many steps": lambda: other_worlds(folder, jobs, (1, 2, 4), all_jobs, 60),
        "chain": lambda: go_on_with(folder, jobs, (2, 1, 2), 60),
    }
    for name in chosen:
        scenarios[name]()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
