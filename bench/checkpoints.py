"""What checkpoints cost: the share of training time that goes into saving them, fsync and SHA-256
included, at the recipe's own interval.

    python -m bench.checkpoints
    python -m bench.checkpoints --recipes chat-attention --steps 100

A recipe is trained as shipped, except that it ends after a few steps and saves more often: the mean
time of a save and of a step come from the same run. The share is the time of one save divided by
that of the steps of one interval, `train.save_every` of the recipe; 0 is an epoch. Validations are
left out of both, so they do not make it smaller.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import measure
from regard import checkpoint, recipe
from regard.checkpoint import Progress
from regard.train import SilentReporter, Stopped, train
from regard.train.loop import Loop

RECIPES = ["chat-attention", "chat-dialogue"]
SAVES = 5  # about so many are timed
WARMUP = 5  # steps that do not count
MOST = 0.03  # of training time


class Timer:
    """Adds up the time spent in a function."""

    def __init__(self, owner: Any, name: str):
        self.seconds: list[float] = []
        self.owner: Any = None  # what it was called with last
        self._real = getattr(owner, name)
        timer = self

        def timed(*arguments: Any, **options: Any) -> Any:
            timer.owner = arguments[0]
            began = time.perf_counter()
            try:
                return timer._real(*arguments, **options)
            finally:
                timer.seconds.append(time.perf_counter() - began)

        setattr(owner, name, timed)


def cost(chosen: recipe.Recipe, count: int, saves: Timer, steps: Timer) -> dict[str, Any]:
    """Train a recipe for so many steps, and compare a save with the steps of an interval."""
    changes = ["train.epochs=", "train.minutes=", "train.tokens=", f"train.steps={count}"]
    changes += [f"train.save_every={max(1, count // SAVES)}", f"train.valid_every={count * 10}"]
    saves.seconds.clear()
    steps.seconds.clear()
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-checkpoints-") as folder:
        run = Path(folder) / "run"
        reporter = Stopping(count)
        with contextlib.suppress(Stopped):  # before the validation at the end, which is long
            train(chosen.override(changes), run, reporter=reporter)
        newest = run / checkpoint.FOLDER / f"step-{checkpoint.newest(run):06d}"
        size = sum(file.stat().st_size for file in newest.iterdir())
    every = chosen.train.save_every or steps_of_an_epoch(steps.owner)
    step = statistics.mean(steps.seconds[WARMUP:])
    save = statistics.mean(saves.seconds)
    share = save / (every * step)
    return {
        "save_every": every,
        "steps": len(steps.seconds),
        "bytes": size,
        "seconds_of_a_step": round(step, 5),
        "seconds_of_saves": [round(seconds, 4) for seconds in saves.seconds],
        "share": round(share, 6),
        "at_most": MOST,
        "holds": share <= MOST,
    }


def steps_of_an_epoch(loop: Loop) -> int:
    """The steps between two saves of a recipe that saves after each epoch."""
    batches = sum(len(loop.batches.window(0, number)) for number in range(loop.batches.windows))
    return math.ceil(batches / loop.how.gradient_accumulation_steps)


class Stopping(SilentReporter):
    """Stops a run at its last step but one."""

    def __init__(self, count: int):
        self.last = count - 1

    def stepped(self, progress: Progress, loss: float, speed: float, done: float) -> None:
        if progress.step == self.last:
            os.kill(os.getpid(), signal.SIGINT)


def main() -> None:
    parser = measure.options(__doc__)
    parser.add_argument("--recipes", nargs="+", default=RECIPES)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path, default=measure.RESULTS, help="folder for the record")
    args = parser.parse_args()
    if args.steps < WARMUP + 2:
        parser.error(f"--steps must be at least {WARMUP + 2}: the first {WARMUP} do not count")
    saves = Timer(checkpoint, "save")
    steps = Timer(Loop, "_step")
    rows = []
    for name in args.recipes:
        changes = [f"seed={args.seed}", f"train.threads={args.threads}"]
        if name == "chat-dialogue":
            changes.append(f'data.path="{args.data / "dailydialog"}"')
        row: dict[str, Any] = {"recipe": name} | cost(
            recipe.load(name, changes), args.steps, saves, steps
        )
        rows.append(row)
        print(f"{name:<18}{row['bytes'] / 1e6:8.1f} MB{100 * row['share']:8.3f} % of training time")
    print(measure.write("checkpoints", measure.facts(args) | {"rows": rows}, args.out))


if __name__ == "__main__":
    main()
