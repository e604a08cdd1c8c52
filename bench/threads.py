"""Answer times with one and several threads, alone and beside busy processes.

    python -m bench.threads RUN "How are you?"
    python -m bench.threads RUN "How are you?" --rows 64 --seconds 20

Each line is a separate process that asks the same prompt repeatedly. "spinning" and "sleeping" are
how OpenMP threads wait for each other (OMP_WAIT_POLICY), which is fixed when torch is loaded.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

POLICIES = {"ACTIVE": "spinning", "PASSIVE": "sleeping"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run")
    parser.add_argument("prompt")
    parser.add_argument("--rows", type=int, default=1, help="copies of the prompt in one call")
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of each line")
    parser.add_argument(
        "--busy",
        type=int,
        nargs="*",
        default=[0, os.cpu_count() or 1],
        help="numbers of busy processes beside it",
    )
    parser.add_argument("--threads", type=int, default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.threads is not None:
        _measure(args)
        return
    for busy in args.busy:
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
        try:
            for threads, policy in (
                (1, "PASSIVE"),
                (os.cpu_count() or 1, "PASSIVE"),
                (os.cpu_count() or 1, "ACTIVE"),
            ):
                load = os.getloadavg()[0]
                label = f"{busy} busy beside it (load {load:.1f})"
                print(f"{label}, {threads} threads {POLICIES[policy]}: ", end="", flush=True)
                command = [
                    sys.executable,
                    "-m",
                    "bench.threads",
                    *sys.argv[1:],
                    "--threads",
                    str(threads),
                ]
                subprocess.run(command, env=os.environ | {"OMP_WAIT_POLICY": policy}, check=True)
        finally:
            for other in others:
                other.kill()


def _measure(args: argparse.Namespace) -> None:
    """Time the answers in this process and print the line."""
    import torch

    from regard.bundle import load

    torch.set_num_threads(args.threads)
    bundle = load(args.run)
    prompts = [args.prompt] * args.rows
    bundle.ask(prompts)
    elapsed, cpu = [], []
    end = time.perf_counter() + args.seconds
    while time.perf_counter() < end or len(elapsed) < 3:
        start, start_cpu = time.perf_counter(), time.process_time()
        bundle.ask(prompts)
        elapsed.append(1000 * (time.perf_counter() - start))
        cpu.append(1000 * (time.process_time() - start_cpu))
    print(
        f"{statistics.median(elapsed):,.0f} ms, "
        f"fastest {min(elapsed):,.0f}, slowest {max(elapsed):,.0f}; "
        f"{statistics.median(cpu):,.0f} ms of CPU time",
        flush=True,
    )


if __name__ == "__main__":
    main()
