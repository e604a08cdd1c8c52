"""How many threads an answer should have, alone and beside busy processes.

    python -m bench.threads RUN "How are you?"
    python -m bench.threads RUN "How are you?" --rows 64 --seconds 20

Each line is a process of its own that asks the same prompt again and again. "spinning" and
"sleeping" are how OpenMP's threads wait for each other (OMP_WAIT_POLICY), which is decided when
torch is loaded.
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
    parser.add_argument("--rows", type=int, default=1, help="the prompt so many times in one call")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each line")
    parser.add_argument(
        "--busy", type=int, nargs="*", default=[0, os.cpu_count() or 1], help="processes beside it"
    )
    parser.add_argument("--threads", type=int, default=None, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.threads is not None:
        _measure(given)
        return
    for busy in given.busy:
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
        try:
            for threads, policy in (
                (1, "PASSIVE"),
                (os.cpu_count() or 1, "PASSIVE"),
                (os.cpu_count() or 1, "ACTIVE"),
            ):
                load = os.getloadavg()[0]
                print(
                    f"{busy} busy beside it (load {load:.1f}), {threads} threads {POLICIES[policy]}: ",
                    end="",
                    flush=True,
                )
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


def _measure(given: argparse.Namespace) -> None:
    import torch

    from regard.bundle import load

    torch.set_num_threads(given.threads)
    bundle = load(given.run)
    prompts = [given.prompt] * given.rows
    bundle.ask(prompts)
    elapsed, used = [], []
    end = time.perf_counter() + given.seconds
    while time.perf_counter() < end or len(elapsed) < 3:
        began, began_cpu = time.perf_counter(), time.process_time()
        bundle.ask(prompts)
        elapsed.append(1000 * (time.perf_counter() - began))
        used.append(1000 * (time.process_time() - began_cpu))
    print(
        f"{statistics.median(elapsed):,.0f} ms, fastest {min(elapsed):,.0f}, slowest {max(elapsed):,.0f}; "
        f"{statistics.median(used):,.0f} ms of processor time",
        flush=True,
    )


if __name__ == "__main__":
    main()
