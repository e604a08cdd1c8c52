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


def swept(
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
    known: list[Outcome] = []

    count = trials or number_of_trials(axes)
    bar = PlanBar(console, count)

    def told(trial: Trial) -> AbstractContextManager[Reporter]:
        if fleet is not None:
            return bar.told(trial.name)
        console.print(
            f"\n{printable(trial.name)}, in {printable(trial.run)}", soft_wrap=True, markup=False
        )
        return Bar(console) if console.is_terminal else Lines(console)

    def learned(outcome: Outcome) -> None:
        known.append(outcome)
        if fleet is not None:
            over = sum(trial.state in ENDED for trial in outcome.trials)
            bar.learned(over, max(count, len(outcome.trials)))

    try:
        with connected(fleet), nullcontext() if fleet is None else bar:
            known.append(
                sweep(
                    new.recipe,
                    axes,
                    folder,
                    told=told,
                    learned=learned,
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
        if known:
            plot = _plotted(known[-1], folder)
            if as_json:
                print(
                    json.dumps(
                        {"folder": str(folder), "curves": plot} | known[-1].to_json(),
                        ensure_ascii=False,
                    )
                )
            else:
                console.print("\n" + table(known[-1], plot), soft_wrap=True, markup=False)
    trials_made = known[-1].trials
    has_score = any(trial.score is not None for trial in trials_made)
    if not has_score and any(trial.state == "failed" for trial in trials_made):
        raise TrainingError("no trial of this sweep has a score", where=folder)


def _plotted(known: Outcome, folder: Path) -> str | None:
    from regard.plot import together

    runs = {trial.name: Path(trial.run) for trial in known.trials}
    there = {name: run for name, run in runs.items() if (run / "metrics.jsonl").is_file()}
    if not there:
        return None
    try:
        return str(together(there, known.score, folder / CURVES))
    except InputError as problem:  # a person's own file has this name
        streams.tell(f"no curves are drawn: {problem}")
        return None


def table(known: Outcome, plot: str | None) -> str:
    rows = _seed_rows(known) if known.has_seeds else _trial_rows(known)
    curves = [f"curves of all in {plot}"] if plot else []
    return "\n".join(printable(line) for line in [*rows, *curves, _verdict(known)])


def _trial_rows(known: Outcome) -> list[str]:
    best = known.best
    wide = _widest(trial.name for trial in known.trials)
    rows = [_head(known, wide)]
    for trial in known.ordered:
        mark = "  best" if trial == best else ""
        rows.append(_row(trial, wide, _score_width(known)) + mark)
    return rows


def _head(known: Outcome, wide: int) -> str:
    return f"{'trial':<{wide}}{known.score:>{_score_width(known)}}{'best step':>12}{'seconds':>10}"


def _score_width(known: Outcome) -> int:
    return max(12, len(known.score) + 2)


def _seed_rows(known: Outcome) -> list[str]:
    """Mean and spread over the seeds of each setting, then every run in the order it was asked
    for."""
    best = known.best_setting
    names = [setting.name or "all seeds" for setting in known.settings]
    title = f"{known.score} over seeds"
    wide = _widest([title, *names, *(trial.name for trial in known.trials)])
    rows = [f"{title:<{wide}}{'mean':>12}{'std':>10}{'lowest':>10}{'highest':>10}{'seeds':>7}"]
    for name, setting in zip(names, known.settings, strict=True):
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
    rows += ["", _head(known, wide)]
    return rows + [_row(trial, wide, _score_width(known)) for trial in known.trials]


def _widest(names: Iterable[str]) -> int:
    return max(*map(len, names), 6) + 2


def _verdict(known: Outcome) -> str:
    """What was found out, and what to type next."""
    if not any(setting.scores for setting in known.settings):
        return "no run has a score yet"
    if known.is_mixed:
        return (
            "the data changed between these runs, so they are not compared; "
            "repeat the sweep in a new folder with --out"
        )
    if best := known.best:
        return f"the best run is {best.run}; ask it with: regard ask {best.run} …"
    if setting := known.best_setting:
        return f"the best setting, by its mean over {len(setting.scores)} seeds, is {setting.name}"
    if len(known.settings) == 1:
        return "runs that differ in their seeds only: the spread is chance, and none is the best"
    return "no setting has all its seeds yet"


def _row(trial: Trial, wide: int, score_width: int) -> str:
    if trial.score is None:
        why = "; ".join(line.strip() for line in trial.why.splitlines())
        return f"{trial.name:<{wide}}{trial.state:>{score_width}}  {why}".rstrip()
    score = f"{trial.score:.4g}"
    return f"{trial.name:<{wide}}{score:>{score_width}}{trial.step:>12,}{trial.seconds:>10.0f}"
