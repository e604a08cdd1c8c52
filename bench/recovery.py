"""How long a training of two processes takes to go on after one of them is killed.

torchrun trains a small model, and a process is killed with SIGKILL at 30 moments: while the data is
prepared, while the processes start, while they meet, and while they train. Measured is the time
from a kill to the next checkpoint that the processes save which torchrun started after it. Every
run has to end with the bits of one that was left alone.

    python -m bench.recovery
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import statistics
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import torch

from bench.measure import RESULTS
from tests.killing_ranks import thirty

MOST = 10.0  # seconds, of the median


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--out", type=Path, default=RESULTS / "recovery.json")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        kills = thirty(Path(folder), kills=arguments.kills)
    load = os.getloadavg()[1]
    seconds = sorted(kill.recovery for kill in kills if kill.recovery is not None)
    median = statistics.median(seconds)
    record = {
        "date": datetime.now(UTC).date().isoformat(),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "load": round(load, 1),
        "machine": platform.machine(),
        "processes": 2,
        "kills": [dataclasses.asdict(kill) for kill in kills],
        "median": round(median, 2),
        "longest": round(seconds[-1], 2),
        "at_most": MOST,
        "holds": median <= MOST,
        "all_runs_equal": True,  # or this line would not have been reached
    }
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{len(kills)} kills, recovery: median {median:.1f} s, longest {seconds[-1]:.1f} s")


if __name__ == "__main__":
    main()
