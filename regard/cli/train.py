"""regard train: from a recipe to a run."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.paths import filled_path
from regard.cli.waiting import Waiting
from regard.errors import InputError, printable

if TYPE_CHECKING:
    from regard.checkpoint import Progress
    from regard.recipe import Recipe
    from regard.runs import Job
    from regard.train import Facts

DECODER_SIZES = (
    "layers",
    "width",
    "attention",
    "heads",
    "head_width",
    "ffn_width",
    "reads",
    "hidden",
)
QUIET_SECONDS = 10  # between two lines when there is no terminal


def train(
    recipe: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="A shipped recipe, or a .toml file.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            parser=filled_path,
            help="Your own data: pairs (.tsv, .csv, .jsonl, .gz), labelled texts or pictures, "
            "sounds, plain text, …",
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a field, as in encoder.width=128."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=filled_path,
            help="The run's folder; not given: runs/RECIPE, or if that exists runs/RECIPE-2, …",
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(parser=filled_path, help="Go on with a run that was stopped or killed."),
    ] = None,
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway",
            help="With --resume: go on although the data changed, settings are changed with --set, "
            "or no checkpoint is left (then from the first step). It is written "
            "down in metrics.jsonl. Another architecture or vocabulary stays refused.",
        ),
    ] = False,
    steps: Annotated[int | None, typer.Option(help="End after this many updates.")] = None,
    epochs: Annotated[
        int | None, typer.Option(help="End after this many passes over the data.")
    ] = None,
    tokens: Annotated[int | None, typer.Option(help="End after this many target tokens.")] = None,
    minutes: Annotated[float | None, typer.Option(help="End after this many minutes.")] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUES",
            help="Train once for each value, as in train.learning_rate=0.1,0.01, "
            "or search a range, train.learning_rate=1e-4..1e-1; "
            "several make a grid. The same command goes on with a sweep that was stopped.",
        ),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Of a sweep over a range: runs in all; 20.")
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            help="Of a sweep: a database many machines share, postgresql://… (extra postgres); "
            "a file in its folder."
        ),
    ] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Of a sweep: end runs early that do worse than most.")
    ] = False,
    tensorboard: Annotated[bool, typer.Option(help="Also write events for TensorBoard.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="The result as JSON on stdout; progress on stderr.")
    ] = False,
) -> None:
    """Train a model. Ctrl-C saves a checkpoint; --resume goes on from it with the same result.

    \b
    regard train chat-attention --minutes 2
    regard train chat-transformer --data pairs.tsv --set encoder.width=128
    regard train chat-attention --minutes 1 --sweep train.learning_rate=0.01,0.003,0.001
    regard train --resume runs/chat-attention
    regard train --resume runs/chat-attention --minutes 5 --anyway --set train.learning_rate=1e-4
    """
    from regard import runs

    limits = runs.Limits(steps=steps, epochs=epochs, tokens=tokens, minutes=minutes)
    if not sweep and (trials or storage or prune):
        raise InputError(
            "--trials, --storage and --prune are for a sweep",
            hint="add --sweep train.learning_rate=1e-4..1e-1",
        )
    if resume is not None:
        if sweep:
            raise InputError(
                "a sweep goes on when its command is given again", hint="leave --resume out"
            )
        if recipe or out:
            raise InputError(
                "--resume goes on in the run's own folder with its own recipe",
                got=recipe or f"--out {out}",
                hint="beside it a budget may be given, --data, and --set",
            )
        job = runs.resumed(resume, data=data, changes=changes or (), limits=limits, anyway=anyway)
        _run(job, as_json, tensorboard=tensorboard)
        return

    if anyway:
        raise InputError(
            "--anyway is for a run that is resumed", hint="regard train --resume RUN --anyway"
        )
    if recipe is None:
        raise InputError(
            "no recipe given",
            hint="regard recipes list shows them; try: regard train chat-attention",
        )
    new = runs.new(recipe, data=data, changes=changes or (), limits=limits)
    if sweep:
        from regard.cli.sweeping import default_folder, swept

        folder = out or default_folder(new.recipe(), sweep, new.name)
        swept(new.recipe, sweep, folder, trials, storage, prune, as_json)
        return
    _run(new.job(out), as_json, tensorboard=tensorboard)


def _run(job: Job, as_json: bool, *, tensorboard: bool) -> None:
    recipe, run, resume = job.recipe, job.run, job.resume
    with Waiting("loading"):
        from rich.console import Console

        from regard.plot import curves
        from regard.train import kept_because
        from regard.train import train as go

    console = Console(stderr=as_json, highlight=False)
    console.print(f"run       {printable(run)}", soft_wrap=True, markup=False)
    with Bar(console) if console.is_terminal else Lines(console) as reporter:
        progress = go(
            recipe,
            run,
            reporter=reporter,
            resume=resume,
            anyway=job.anyway,
            tensorboard=tensorboard,
        )
    try:
        plot = f"curves in {curves(run)}"
    except InputError as problem:  # a person's own file has this name
        plot = f"no curves are drawn: {problem}"
    facts = reporter.facts
    because = kept_because(facts, progress)
    if as_json:
        best = (
            None
            if progress.best is None
            else {"value": abs(progress.best), "step": progress.best_step}
        )
        record = {
            "run": str(run),
            "kept_step": progress.kept_step,
            "kept_because": because,
            "steps": progress.step,
            "seconds": progress.seconds,
            "score": facts.score,
            "scored_on": f"{facts.judged_part} examples",
            "best": best,
        }
        print(json.dumps(record))
        return
    lines = [f"done: {progress.step:,} steps in {_clock(progress.seconds)}; {plot}", because]
    if resume and progress.step == facts.resumed_at:
        more = f"regard train --resume {run} --steps {2 * progress.step}"
        lines[0] = f"nothing is left to do: {progress.step:,} steps are made; go on with: {more}"
    if not reporter.scores_are_finite:
        lines.append(
            "the last scores are not finite: the learning rate is likely too high; "
            f"try --set train.learning_rate={recipe.train.learning_rate / 10:g}"
        )
    lines.append(_next(recipe, run))
    for line in lines:
        console.print(printable(line), soft_wrap=True, markup=False)


def _next(recipe: Recipe, run: Path) -> str:
    if recipe.task == "chat":
        return f"talk to it with: regard chat {run}"
    given = {"tokens": '"..."', "sound": "SOUND.wav"}.get(recipe.source.kind, "PICTURE.png")
    given = '"the ___ of a sentence"' if recipe.task == "blank" else given
    return f"ask it with: regard ask {run} {given}"


def _sizes(section: Any, names: Sequence[str]) -> str:
    """The kind of a section, and those of the named sizes it has."""
    said = {name: getattr(section, name) for name in names if getattr(section, name, ()) != ()}
    shown = [
        f"{value} layers" if name == "layers" else f"{name} {value}" for name, value in said.items()
    ]
    return ", ".join([section.kind, *shown])


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def _left(progress: Progress, done: float) -> str:
    return _clock(progress.seconds / done * (1 - done)) if done > 0.01 else "-:--"


class _Shown:
    """What a bar and plain lines have in common."""

    def __init__(self, console: Any):
        self.console = console
        self.reading = Waiting("reading data")
        self.scores_are_finite = True  # those of the last validation

    def began(self, facts: Facts) -> None:
        from regard.build import columns_taken

        self.reading.end()
        self.facts = facts
        recipe = facts.recipe
        columns = columns_taken(recipe.data)
        counts = ", ".join(f"{count:,} {name}" for name, count in facts.examples.items())
        self.console.print(
            f"data      {printable(facts.data)}\n"
            f"{f'          {printable(columns)}{chr(10)}' if columns else ''}"
            f"          {counts}; "
            f"vocabulary {facts.vocabulary:,} ({recipe.tokenizer.kind})\n"
            f"encoder   {_sizes(recipe.encoder, ('layers', 'width'))}\n"
            f"decoder   {_sizes(recipe.decoder, DECODER_SIZES)}\n"
            f"parameters {sum(facts.parameters.values()):,} "
            f"({', '.join(f'{name} {count:,}' for name, count in facts.parameters.items())})",
            soft_wrap=True,
            markup=False,
        )
        if facts.resumed_at:
            self.noted(f"resuming at step {facts.resumed_at:,}")

    def validated(self, record: dict[str, Any], samples: Sequence[tuple[str, str]]) -> None:
        from regard.plot import JUDGED_ON

        numbers = {name: value for name, value in record.items() if isinstance(value, float)}
        self.scores_are_finite = all(map(math.isfinite, numbers.values()))
        scores = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
        self.console.print(
            f"step {record['step']:,}: {JUDGED_ON[record['kind']]} {scores}"
            f"{'  (best so far)' if record['best'] else ''}",
            soft_wrap=True,
            markup=False,
        )
        for prompt, answer in samples:
            self.console.print(
                f"    {printable(prompt)}  ->  {printable(answer)}", soft_wrap=True, markup=False
            )

    def noted(self, message: str) -> None:
        self.reading.end()
        self.console.print(printable(message), soft_wrap=True, markup=False)


class Lines(_Shown):
    """Plain lines, now and then."""

    def __enter__(self) -> Lines:
        self.last = time.monotonic()
        self.reading.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.reading.end()

    def stepped(self, progress: Progress, loss: float, speed: float, done: float) -> None:
        if time.monotonic() - self.last >= QUIET_SECONDS:
            self.last = time.monotonic()
            self.console.print(
                f"step {progress.step:,}  {done:4.0%}  {_facts(loss, speed)}  "
                f"left {_left(progress, done)}",
                soft_wrap=True,
                markup=False,
            )
            sys.stdout.flush()


class Bar(_Shown):
    """A progress bar with loss, perplexity, speed and the time left."""

    def __enter__(self) -> Bar:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Live

        self.live = Live(
            TextColumn("step {task.fields[step]:,}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%  {task.fields[facts]}  left {task.fields[left]}"),
            console=self.console,
        )
        self.bar = self.live.add_task("", total=1.0, step=0, facts="", left="-:--")
        self.reading.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.reading.end()
        if self.live.live.is_started:
            self.live.stop()

    def began(self, facts: Facts) -> None:
        super().began(facts)
        self.live.start()  # not before: there is nothing to show while the data is read

    def stepped(self, progress: Progress, loss: float, speed: float, done: float) -> None:
        self.live.update(
            self.bar,
            completed=done,
            step=progress.step,
            facts=_facts(loss, speed),
            left=_left(progress, done),
        )


def _facts(loss: float, speed: float) -> str:
    shown = (
        []
        if math.isnan(loss)
        else [f"loss {loss:.3f}", f"perplexity {math.exp(min(loss, 20)):.1f}"]
    )
    return "  ".join(shown + ([] if math.isnan(speed) else [f"{speed:,.0f} tokens/s"]))
