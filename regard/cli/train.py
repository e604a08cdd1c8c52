"""regard train: from a recipe to a run."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.alone import refuse_under_torchrun
from regard.cli.devices import Device, Ray
from regard.cli.paths import filled_path
from regard.cli.waiting import Waiting
from regard.errors import InputError, printable
from regard.torchrun import launch

if TYPE_CHECKING:
    from regard.cli.progress import Bar, Lines
    from regard.runs import Job
    from regard.train import Result


def train(
    ctx: typer.Context,
    recipe: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="A shipped recipe, or a .toml file.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            parser=filled_path,
            help="Your own data: pairs (.tsv, .csv, .jsonl, .parquet, also .gz or .zst), labelled "
            "texts or pictures, sounds, plain text, …; a pattern in quotes; - for standard input.",
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a field of the recipe, as in encoder.width=128.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=filled_path,
            help="The run's folder. Default: runs/RECIPE, or if that exists runs/RECIPE-2, …",
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(parser=filled_path, help="Continue the stopped run in this folder."),
    ] = None,
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway",
            help="With --resume: continue even if the data changed, --set changes settings, or no "
            "checkpoint is left (then from the first step). This is recorded in metrics.jsonl. "
            "Another architecture or vocabulary is still refused.",
        ),
    ] = False,
    steps: Annotated[int | None, typer.Option(help="Stop after this many updates.")] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Stop after this many passes over the data.")
    ] = None,
    tokens: Annotated[int | None, typer.Option(help="Stop after this many target tokens.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Stop after this many minutes.")] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUES",
            help="Train once for each value of a field, KEY=0.1,0.01, or search a range of "
            "values, KEY=1e-4..1e-1. Several --sweep make a grid. The same command continues a "
            "sweep that was stopped.",
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(min=1, help="With --sweep over a range: the number of runs. Default: 20."),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            help="With --sweep: a database that several machines share, postgresql://… (needs the "
            "extra postgres). Default: a file in the sweep's folder."
        ),
    ] = None,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="With --sweep: stop runs early that do worse than most."),
    ] = False,
    tensorboard: Annotated[bool, typer.Option(help="Also write events for TensorBoard.")] = False,
    ray: Ray = None,
    device: Device = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON on stdout, progress on stderr.")
    ] = False,
) -> None:
    """Train a model from a recipe. Ctrl-C saves a checkpoint, from which --resume continues.

    A resumed run has the same result as one that was not interrupted. Under torchrun several
    processes train one model, on one machine or many.

    \b
    regard train chat-attention --minutes 2
    regard train chat-transformer --data pairs.tsv --set encoder.width=128
    regard train chat-attention --minutes 1 --sweep train.learning_rate=0.01,0.003,0.001
    regard train chat-gru --steps 2000 --sweep train.learning_rate=1e-4..1e-1 --ray auto
    regard train --resume runs/chat-attention
    regard train --resume runs/chat-attention --minutes 5 --anyway --set train.learning_rate=1e-4
    torchrun --nproc-per-node 2 -m regard train chat-transformer --out runs/two
    """
    from regard import runs

    command = shlex.join(["regard", *ctx.obj])
    limits = runs.Limits(steps=steps, epochs=epochs, tokens=tokens, minutes=minutes)
    if not sweep and (trials or storage or prune or ray):
        raise InputError(
            "--trials, --storage, --prune and --ray are for a sweep",
            hint="add --sweep train.learning_rate=1e-4..1e-1",
        )
    if resume is not None:
        _refuse_with_resume(recipe, out, sweep)
        run = resume

        def go_on(earlier: Path | None) -> Job:
            return runs.resumed(run, data=data, changes=changes or (), limits=limits, anyway=anyway)

        _train(go_on, as_json, tensorboard, device, command)
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
    if sweep:
        from regard.cli.sweeping import run_sweep

        refuse_under_torchrun(
            "a sweep trains its runs one after the other, each in one process",
            where="--sweep",
            hint="leave torchrun out; --ray or --storage shares a sweep among machines",
        )
        new = runs.new(recipe, data=data, changes=changes or (), limits=limits)
        run_sweep(new, sweep, out, trials, storage, prune, device, as_json, ray=ray)
        return
    base = recipe

    def begin(earlier: Path | None) -> Job:
        new = runs.new(base, data=data, changes=changes or (), limits=limits)
        return new.job(earlier or out)

    _train(begin, as_json, tensorboard, device, command)


def _refuse_with_resume(recipe: str | None, out: Path | None, sweep: list[str] | None) -> None:
    """What --resume cannot be combined with."""
    if sweep:
        raise InputError(
            "a sweep continues when its command is given again", hint="leave --resume out"
        )
    if recipe or out:
        raise InputError(
            "--resume continues a run in its own folder with its own recipe",
            got=recipe or f"--out {out}",
            hint="with --resume, only a budget, --data and --set may be given",
        )


def _train(
    make: Callable[[Path | None], Job],
    as_json: bool,
    tensorboard: bool,
    device: str,
    command: str,
) -> None:
    """Train the job that `make` makes. Of several processes that torchrun started, the first makes
    it, prints and writes."""
    started = launch()
    if started.is_alone:
        alone = make(None)  # before torch is loaded, so that a mistake is told at once
        make = lambda _: alone  # noqa: E731
    with Waiting("loading") if started.rank == 0 else contextlib.nullcontext():
        from regard.cli.console import Console
        from regard.cli.preparing import Preparing
        from regard.cli.progress import Bar, Lines
        from regard.plot import curves
        from regard.train import OtherRankError, agreed_job, joined, train_job

    try:
        with joined() as ranks:
            ranks.device(device)  # before anything is printed
            job = agreed_job(ranks, make)
            if not ranks.is_leader:
                train_job(job, device=device, ranks=ranks)
                return
            console = Console(stderr=as_json, highlight=False)
            console.print(f"run       {printable(job.run)}", soft_wrap=True, markup=False)
            reporting = Bar(console) if console.is_terminal else Lines(console)
            with Preparing(console), reporting as reporter:
                result = train_job(
                    job,
                    reporter,
                    tensorboard=tensorboard,
                    device=device,
                    command=command,
                    ranks=ranks,
                )
    except OtherRankError as problem:  # that process says why
        raise typer.Exit(problem.exit_code) from None
    try:
        plot = f"curves in {curves(job.run)}"
    except InputError as problem:  # a person's own file has this name
        plot = f"no curves are drawn: {problem}"
    report = _report(job.run, device)
    if as_json:
        console.print(printable(report), soft_wrap=True, markup=False)
        print(json.dumps(result.to_json()))
        return
    for line in [*_summary(job, result, reporter, plot), report]:
        console.print(printable(line), soft_wrap=True, markup=False)


def _report(run: Path, device: str) -> str:
    """Write the report, and say where it is. A page is never worth a training: whatever goes wrong
    is told, and that is all."""
    from regard.pages.report import FILE, report

    try:
        with Waiting("writing the report"):
            path = report(run, device=device).save(run / FILE)
    except KeyboardInterrupt:
        return f"the report is not written; make it with: regard report {shlex.quote(str(run))}"
    except Exception as problem:
        return f"the report is not written: {problem}"
    return f"read all about it in: {path}"


def _summary(job: Job, result: Result, reporter: Bar | Lines, plot: str) -> list[str]:
    """How training ended, and what to type next."""
    from regard.cli.progress import clock

    progress = result.progress
    done = f"done: {progress.step:,} steps in {clock(progress.seconds)}; {plot}"
    if job.resume and progress.step == result.facts.resumed_at:
        more = f"regard train --resume {job.run} --steps {2 * progress.step}"
        done = f"nothing is left to do: {progress.step:,} steps are made; go on with: {more}"

    lines = [done, result.kept_because]
    if not reporter.scores_are_finite:
        lower = job.recipe.train.learning_rate / 10
        lines.append(
            "the last scores are not finite: the learning rate is likely too high; "
            f"try --set train.learning_rate={lower:g}"
        )
    return [*lines, _next(job)]


def _next(job: Job) -> str:
    recipe = job.recipe
    if recipe.task == "chat":
        return f"talk to it with: regard chat {job.run}"
    inputs = {"tokens": '"..."', "sound": "SOUND.wav"}
    example = inputs.get(recipe.source.kind, "PICTURE.png")
    if recipe.task == "blank":
        example = '"the ___ of a sentence"'
    return f"ask it with: regard ask {job.run} {example}"
