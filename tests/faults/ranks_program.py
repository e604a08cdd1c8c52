"""A program for torchrun: its processes train the models of FOLDER/jobs.json together, then are
stopped, then go on with a run that one process began.

    torchrun --nproc-per-node 2 -m tests.faults.ranks_program FOLDER
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import regard
from regard import checkpoint
from regard.errors import RegardError
from regard.weights import tensors


def digest(bot: regard.Bundle) -> str:
    """Of the weights that this process got."""
    total = hashlib.sha256()
    for name, tensor in sorted(tensors(bot.model).items()):
        total.update(name.encode() + tensor.numpy().tobytes())
    return total.hexdigest()


def stop_when_saved(run: Path) -> None:
    """A signal for this process once the run has a checkpoint."""

    def watch() -> None:
        while checkpoint.newest(run) is None:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def main(folder: Path) -> None:
    rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
    jobs = json.loads((folder / "jobs.json").read_text())
    record: dict[str, object] = {}
    for name, (recipe, changes) in jobs.items():
        out = folder / f"{name}-{world}"
        record[name] = digest(regard.train(recipe, set=changes, out=out, quiet=True))

    stopped = folder / "stopped"
    recipe, changes = jobs["plain"]
    if rank == "1":
        stop_when_saved(stopped)
    try:
        regard.train(recipe, set=changes | {"train.steps": 10**6}, out=stopped, quiet=True)
    except RegardError as problem:
        record["stopped"] = problem.exit_code

    # Only the first process writes, and files of weights are too large for it.
    if rank == "0":
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    try:
        regard.train(recipe, set=changes, out=folder / "unwritable", quiet=True)
    except RegardError as problem:
        record["unwritable"] = problem.exit_code
        (folder / f"message-{rank}.txt").write_text(str(problem))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    record["halved"] = digest(regard.train(resume=folder / "halved", steps=24, quiet=True))
    (folder / f"rank-{rank}.json").write_text(json.dumps(record))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
