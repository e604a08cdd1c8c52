"""Training with several processes on this machine, against the estimate of `regard budget`.

    python -m bench.scaling
    python -m bench.scaling --recipe chat-attention --processes 2 --rounds 3

Three measurements, each process with one thread and a core of its own:

    steps        torchrun --nproc-per-node N -m regard train RECIPE, with 1 and with N processes.
                 A short and a long run; the seconds of a step are their difference by the
                 difference of their steps, so that what comes before the first step does not count
    all-reduce   torch.distributed with gloo, over loopback, of as many bytes as there are gradients
    latency      the same of one number

The estimate knows the step of one process, how much of it is the update, which every process makes
alone (measured as `regard budget` does, on as many rows), the bandwidth and the latency. It should
contain the step of N processes between its best case (all communication that the backward pass can
hide) and its worst (none). The record has both, and how far the measured step is from the nearer
one.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import measure

SHORT = 10  # steps of the short run
REPEATS = 30  # all-reduces of a measurement
# Nothing but steps: no validation, no checkpoint on the way.
STEADY = ("train.valid_every=1000000", "train.save_every=1000000", "train.clock=steps")


def main() -> None:
    parser = measure.options(__doc__, rounds=3)
    parser.add_argument("--recipe", default="chat-transformer")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60, help="of the long run")
    parser.add_argument("--set", action="append", default=[], dest="changes")
    parser.add_argument("--all-reduce", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.all_reduce is not None:
        _all_reduce(args.all_reduce)
        return
    if args.steps <= SHORT or args.processes < 2:
        parser.error(f"more than {SHORT} steps and one process")
    args.threads = 1
    with tempfile.TemporaryDirectory(prefix="regard-scaling-") as folder:
        record = _measured(args, Path(folder))
    print(_sentence(record))
    print(f"record in {measure.write('scaling', measure.facts(args) | record)}")


def _measured(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    steps: dict[int, list[float]] = {1: [], args.processes: []}
    for number in range(args.rounds):
        for processes, seconds in steps.items():
            seconds.append(_seconds_of_step(args, processes, folder / f"{number}-{processes}"))
            print(f"round {number + 1}: {processes} processes, {seconds[-1] * 1e3:.1f} ms a step")
    run = folder / "0-1" / "long"
    link = _link(args.processes, _parameters(run))
    alone, together = (statistics.median(seconds) for seconds in steps.values())
    update = _update(run)
    return {
        "recipe": args.recipe,
        "changes": args.changes,
        "processes": args.processes,
        "step_seconds": {str(key): measure.spread(value) for key, value in steps.items()},
        "link": link,
        "update_seconds": update,
        **_compared(run, args.processes, alone, together, update, link),
    }


def _seconds_of_step(args: argparse.Namespace, processes: int, folder: Path) -> float:
    runs = {"short": SHORT, "long": args.steps}
    seconds = [_train(args, processes, steps, folder / name) for name, steps in runs.items()]
    if seconds[1] <= seconds[0]:
        sys.exit("the long run took no longer than the short one: the machine is busy; try again")
    return (seconds[1] - seconds[0]) / (args.steps - SHORT)


def _train(args: argparse.Namespace, processes: int, steps: int, run: Path) -> float:
    """The seconds of all steps of a training."""
    changes = [*STEADY, "train.threads=1", f"seed={args.seed}", *args.changes]
    words = ["train", args.recipe, "--steps", str(steps), "--out", str(run), "--json"]
    words += [word for change in changes for word in ("--set", change)]
    command = [*_torchrun(processes), "-m", "regard", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=_one_thread())
    if done.returncode:
        sys.exit(f"training with {processes} processes failed: {' '.join(command)}")
    return json.loads(done.stdout.splitlines()[-1])["seconds"]


def _torchrun(processes: int) -> list[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["--nproc-per-node", str(processes), "--master-addr", "127.0.0.1"]
    return [sys.executable, "-m", "torch.distributed.run", *words, "--master-port", str(port)]


def _one_thread() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(measure.ROOT)}


def _parameters(run: Path) -> int:
    from regard.budget import budget

    return budget(run).parameters


def _update(run: Path) -> float:
    """The seconds of an update of the model of a run, by one thread."""
    words = ["budget", str(run), "--machines", "2", "--bandwidth", "1Gb", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "regard", *words],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=_one_thread(),
    )
    return json.loads(done.stdout)["scaling"]["update_seconds"]


# -- the link --------------------------------------------------------------------------------------


def _link(processes: int, parameters: int) -> dict[str, float]:
    """Bytes a second and seconds of latency between processes, as a ring sees them."""
    seconds = {}
    for name, count in (("one", 1), ("gradients", parameters)):
        command = [*_torchrun(processes), "-m", "bench.scaling", "--all-reduce", str(count)]
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env=_one_thread(),
            cwd=measure.ROOT,
        )
        seconds[name] = json.loads(done.stdout.splitlines()[-1])
    messages = 2 * (processes - 1)
    sent = messages / processes * 4 * parameters
    return {
        "all_reduce_seconds": seconds["gradients"],
        "latency": seconds["one"] / messages,
        "bandwidth": sent / max(1e-9, seconds["gradients"] - seconds["one"]),
        "gradient_bytes": 4 * parameters,
    }


def _all_reduce(count: int) -> None:
    """One of the processes: the median time of an all-reduce of so many numbers, printed."""
    import torch
    import torch.distributed as distributed

    distributed.init_process_group("gloo")
    numbers = torch.ones(count)
    times = []
    for _ in range(REPEATS):
        distributed.barrier()
        start = time.perf_counter()
        distributed.all_reduce(numbers)
        times.append(time.perf_counter() - start)
        numbers.fill_(1.0)
    if distributed.get_rank() == 0:
        print(json.dumps(statistics.median(times)), flush=True)
    distributed.destroy_process_group()


# -- the comparison --------------------------------------------------------------------------------


def _compared(
    run: Path,
    processes: int,
    alone: float,
    together: float,
    update: float,
    link: dict[str, float],
) -> dict[str, Any]:
    """The estimate of a step with so many processes, beside what was measured."""
    from regard.budget import budget
    from regard.budget.scaling import Scaling

    costs = budget(run)
    estimate = Scaling(
        costs,
        processes,
        bandwidth=link["bandwidth"],
        latency=link["latency"],
        flops=costs.flops["training"] / (alone - update),
        update=update,
    )
    row = estimate.row(processes)
    nearest = min(max(together, row.best), row.worst)
    return {
        "estimate": row.to_json(),
        "measured": {"step_seconds": together, "speed_up": alone / together},
        "outside_by": together / nearest - 1,  # 0 if it lies between best and worst
    }


def _sentence(record: dict[str, Any]) -> str:
    estimate = record["estimate"]["speed_up"]
    measured = record["measured"]["speed_up"]
    outside = record["outside_by"]
    verdict = "within the estimate" if not outside else f"{outside:+.1%} of the nearer end"
    return (
        f"{record['processes']} processes: speed-up {measured:.2f}, estimated "
        f"{estimate['worst']:.2f} to {estimate['best']:.2f}; the step is {verdict}"
    )


if __name__ == "__main__":
    main()
