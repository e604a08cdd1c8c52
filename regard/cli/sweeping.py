"""What `regard train --sweep` shows: each run as it goes, a table of what is known, and all
curves on one plot."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from regard.cli import streams
from regard.errors import InputError, TrainingError, printable

if TYPE_CHECKING:
    from regard.runs import NewRun
    from regard.sweep import Outcome, Trial
    from regard.train import Reporter

CURVES = "curves.png"


def run_sweep(
    new: NewRun,
    texts: Sequence[str],
    out: Path | None,
    trials: int | None,
    storage: str | None,
    prune: bool,
    device: str,
    as_json: bool,
    *,
    ray: str | None = None,
) -> None:
    """Train a recipe once for each of the values in `texts`, and show what is known. `ray` is the
    address of a cluster."""
    from regard.cli.plan_bar import PlanBar, connected, console_for
    from regard.cli.progress import Bar, Lines
    from regard.fleet import Fleet
    from regard.sweep import ENDED, axis, default_folder, number_of_trials, sweep
    from regard.train import Stopped

    axes = [axis(text) for text in texts]
    fleet = None if ray is None else Fleet(ray, device=device)
    if fleet is not None:
        fleet.check()
    folder = out or default_folder(new.recipe(), axes, new.name)
    console = console_for(as_json)
    outcomes: list[Outcome] = []

    count = trials or number_of_trials(axes)
    bar = PlanBar(console, count)

    def make_reporter(trial: Trial) -> AbstractContextManager[Reporter]:
        if fleet is not None:
            return bar.reporter(trial.name)
        console.print(
            f"\n{printable(trial.name)}, in {printable(trial.run)}", soft_wrap=True, markup=False
        )
        return Bar(console) if console.is_terminal else Lines(console)

    def on_outcome(outcome: Outcome) -> None:
        outcomes.append(outcome)
        if fleet is not None:
            over = sum(trial.state in ENDED for trial in outcome.trials)
            bar.update(over, max(count, len(outcome.trials)))

    try:
        with connected(fleet), nullcontext() if fleet is None else bar:
            outcomes.append(
                sweep(
                    new.recipe,
                    axes,
                    folder,
                    make_reporter=make_reporter,
                    on_outcome=on_outcome,
                    trials=trials,
                    storage=storage,
                    prune=prune,
                    device=device,
                    fleet=fleet,
                )
            )
    except Stopped as stop:
        raise stop.of_many("sweep") from None
    finally:  # also after Ctrl-C: what is known is shown
        if outcomes:
            plot = _plotted(outcomes[-1], folder)
            if as_json:
                print(
                    json.dumps(
                        {"folder": str(folder), "curves": plot} | outcomes[-1].to_json(),
                        ensure_ascii=False,
                    )
                )
            else:
                console.print("\n" + table(outcomes[-1], plot), soft_wrap=True, markup=False)
    last = outcomes[-1].trials
    has_score = any(trial.score is not None for trial in last)
    if not has_score and any(trial.state == "failed" for trial in last):
        raise TrainingError("no trial of this sweep has a score", where=folder)


def _plotted(outcome: Outcome, folder: Path) -> str | None:
    from regard.plot import together

    runs = {trial.name: Path(trial.run) for trial in outcome.trials}
    there = {name: run for name, run in runs.items() if (run / "metrics.jsonl").is_file()}
    if not there:
        return None
    try:
        return str(together(there, outcome.score, folder / CURVES))
    except InputError as problem:  # a person's own file has this name
        streams.tell(f"no curves are drawn: {problem}")
        return None


def table(outcome: Outcome, plot: str | None) -> str:
    rows = _seed_rows(outcome) if outcome.has_seeds else _trial_rows(outcome)
    curves = [f"curves of all in {plot}"] if plot else []
    return "\n".join(printable(line) for line in [*rows, *curves, _verdict(outcome)])


def _trial_rows(outcome: Outcome) -> list[str]:
    best = outcome.best
    wide = _widest(trial.name for trial in outcome.trials)
    rows = [_head(outcome, wide)]
    for trial in outcome.ordered:
        mark = "  best" if trial == best else ""
        rows.append(_row(trial, wide, _score_width(outcome)) + mark)
    return rows


def _head(outcome: Outcome, wide: int) -> str:
    return (
        f"{'trial':<{wide}}{outcome.score:>{_score_width(outcome)}}{'best step':>12}{'seconds':>10}"
    )


def _score_width(outcome: Outcome) -> int:
    return max(12, len(outcome.score) + 2)


def _seed_rows(outcome: Outcome) -> list[str]:
    """Mean and spread over the seeds of each setting, then every run in the order it was asked
    for."""
    best = outcome.best_setting
    names = [setting.name or "all seeds" for setting in outcome.settings]
    title = f"{outcome.score} over seeds"
    wide = _widest([title, *names, *(trial.name for trial in outcome.trials)])
    rows = [f"{title:<{wide}}{'mean':>12}{'std':>10}{'lowest':>10}{'highest':>10}{'seeds':>7}"]
    for name, setting in zip(names, outcome.settings, strict=True):
        spread = [
            setting.mean,
            setting.deviation,
            min(setting.scores, default=None),
            max(setting.scores, default=None),
        ]
        mean, std, lowest, highest = (
            "-" if number is None else f"{number:.4g}" for number in spread
        )
        seeds = (
            len(setting.scores)
            if setting.is_complete
            else f"{len(setting.scores)}/{len(setting.trials)}"
        )
        mark = "  best mean" if setting == best else ""
        rows.append(f"{name:<{wide}}{mean:>12}{std:>10}{lowest:>10}{highest:>10}{seeds:>7}{mark}")
    rows += ["", _head(outcome, wide)]
    return rows + [_row(trial, wide, _score_width(outcome)) for trial in outcome.trials]


def _widest(names: Iterable[str]) -> int:
    return max(*map(len, names), 6) + 2


def _verdict(outcome: Outcome) -> str:
    """What was found out, and what to type next."""
    if not any(setting.scores for setting in outcome.settings):
        return "no run has a score yet"
    if outcome.is_mixed:
        return (
            "the data changed between these runs, so they are not compared; "
            "repeat the sweep in a new folder with --out"
        )
    if best := outcome.best:
        return f"the best run is {best.run}; ask it with: regard ask {best.run} …"
    if setting := outcome.best_setting:
        return f"the best setting, by its mean over {len(setting.scores)} seeds, is {setting.name}"
    if len(outcome.settings) == 1:
        return "runs that differ in their seeds only: the spread is chance, and none is the best"
    return "no setting has all its seeds yet"


def _row(trial: Trial, wide: int, score_width: int) -> str:
    if trial.score is None:
        why = "; ".join(line.strip() for line in trial.why.splitlines())
        return f"{trial.name:<{wide}}{trial.state:>{score_width}}  {why}".rstrip()
    score = f"{trial.score:.4g}"
    return f"{trial.name:<{wide}}{score:>{score_width}}{trial.step:>12,}{trial.seconds:>10.0f}"
