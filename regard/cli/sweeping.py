"""What `regard train --sweep` shows: each run as it goes, a table of what is known, and all curves on one plot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import printable

if TYPE_CHECKING:
    from regard.sweep import Make, Outcome, Trial
    from regard.train import Reporter

CURVES = "curves.png"


def swept(
    make: Make,
    written: Sequence[str],
    folder: Path,
    trials: int | None,
    storage: str | None,
    prune: bool,
    as_json: bool,
) -> None:
    from rich.console import Console

    from regard.cli.train import Bar, Lines
    from regard.sweep import axis, sweep
    from regard.train import Stopped

    console = Console(stderr=as_json, highlight=False)
    known: list[Outcome] = []

    def told(trial: Trial) -> AbstractContextManager[Reporter]:
        console.print(f"\n{printable(trial.name)}, in {printable(trial.run)}", soft_wrap=True, markup=False)
        return Bar(console) if console.is_terminal else Lines(console)

    axes = [axis(one) for one in written]
    try:
        known.append(
            sweep(make, axes, folder, told=told, learned=known.append, trials=trials, storage=storage, prune=prune)
        )
    except Stopped:
        console.print("the same command goes on with this sweep", markup=False)
        raise
    finally:  # also after Ctrl-C: what is known is shown
        if known:
            plot = _plotted(known[-1], folder)
            if as_json:
                print(json.dumps({"folder": str(folder), "curves": plot} | known[-1].to_json(), ensure_ascii=False))
            else:
                console.print("\n" + table(known[-1], plot), soft_wrap=True, markup=False)


def _plotted(known: Outcome, folder: Path) -> str | None:
    from regard.plot import together

    runs = {trial.name: Path(trial.run) for trial in known.trials}
    there = {name: run for name, run in runs.items() if (run / "metrics.jsonl").is_file()}
    return str(together(there, known.score, folder / CURVES)) if there else None


def table(known: Outcome, plot: str | None) -> str:
    best = known.best
    wide = max([len(trial.name) for trial in known.trials] + [6]) + 2
    rows = [f"{'trial':<{wide}}{known.score:>12}{'best step':>12}{'seconds':>10}"]
    rows += [_row(trial, wide) + ("  best" if trial == best else "") for trial in known.ordered]
    rows += [f"curves of all in {plot}"] if plot else []
    rows += (
        [f"the best run is {best.run}; ask it with: regard ask {best.run} …"] if best else ["no run has a score yet"]
    )
    return "\n".join(map(printable, rows))


def _row(trial: Trial, wide: int) -> str:
    if trial.score is None:
        why = "; ".join(line.strip() for line in trial.why.splitlines())
        return f"{trial.name:<{wide}}{trial.state:>12}  {why}".rstrip()
    numbers: tuple[Any, ...] = (f"{trial.score:.4g}", f"{trial.step:,}", f"{trial.seconds:.0f}")
    return f"{trial.name:<{wide}}{numbers[0]:>12}{numbers[1]:>12}{numbers[2]:>10}"
