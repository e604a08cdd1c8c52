"""What checkpoints cost: the share of training time that goes into saving them, fsync and SHA-256
included, at the recipe's own interval.

    python -m bench.checkpoints
    python -m bench.checkpoints --recipes chat-attention --steps 100

A recipe is trained as shipped, except that it ends after a few steps and saves more often: the mean
time of a save and of a step come from the same run. The share is the time of one save divided by
that of the steps of one interval, `train.save_every` of the recipe. Validations are left out of
both, so they do not make it smaller.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from bench.measure import DATA
from regard import checkpoint, recipe
from regard.checkpoint import Progress
from regard.train import SilentReporter, Stopped, train
from regard.train.loop import Loop

RESULTS = Path(__file__).parent / "results" / "checkpoints.json"
RECIPES = ["chat-attention", "chat-dialogue"]
SAVES = 5  # about so many are timed
WARMUP = 5  # steps that do not count
MOST = 0.03  # of training time


class Timer:
    """Adds up the time spent in a function."""

    def __init__(self, owner: Any, name: str):
        self.seconds: list[float] = []
        self._real = getattr(owner, name)
        timer = self

        def timed(*arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return timer._real(*arguments, **options)
            finally:
                timer.seconds.append(time.perf_counter() - began)

        setattr(owner, name, timed)


def measure(name: str, count: int, data: Path, saves: Timer, steps: Timer) -> dict[str, Any]:
    """Train a recipe for so many steps, and compare a save with the steps of an interval."""
    chosen = recipe.load(name)
    every = chosen.train.save_every
    changes = ["train.epochs=", "train.minutes=", "train.tokens=", f"train.steps={count}"]
    changes += [f"train.save_every={count // SAVES}", f"train.valid_every={count * 10}"]
    if name == "chat-dialogue":
        changes.append(f'data.path="{data / "dailydialog"}"')
    saves.seconds.clear()
    steps.seconds.clear()
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-checkpoints-") as folder:
        run = Path(folder) / "run"
        reporter = Stopping(count)
        with contextlib.suppress(Stopped):  # before the validation at the end, which is long
            train(chosen.override(changes), run, reporter=reporter)
        newest = run / checkpoint.FOLDER / f"step-{checkpoint.newest(run):06d}"
        size = sum(file.stat().st_size for file in newest.iterdir())
    step = statistics.mean(steps.seconds[WARMUP:])
    save = statistics.mean(saves.seconds)
    share = save / (every * step)
    return {
        "recipe": name,
        "save_every": every,
        "steps": len(steps.seconds),
        "bytes": size,
        "seconds_of_a_step": round(step, 5),
        "seconds_of_saves": [round(seconds, 4) for seconds in saves.seconds],
        "share": round(share, 6),
        "at_most": MOST,
        "holds": share <= MOST,
    }


class Stopping(SilentReporter):
    """Stops a run at its last step but one."""

    def __init__(self, count: int):
        self.last = count - 1

    def stepped(self, progress: Progress, loss: float, speed: float, done: float) -> None:
        if progress.step == self.last:
            os.kill(os.getpid(), signal.SIGINT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipes", nargs="+", default=RECIPES)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--data", type=Path, default=DATA, help="has the folder dailydialog")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    saves = Timer(checkpoint, "save")
    steps = Timer(Loop, "_step")
    rows = []
    for name in arguments.recipes:
        row = measure(name, arguments.steps, arguments.data, saves, steps)
        rows.append(row)
        print(f"{name:<18}{row['bytes'] / 1e6:8.1f} MB{100 * row['share']:8.3f} % of training time")
    record = {
        "date": datetime.now(UTC).date().isoformat(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "rows": rows,
    }
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
