"""regard compare: do models differ, by how much, and at what cost?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.alone import refuse_under_torchrun
from regard.cli.devices import Device, Ray
from regard.cli.evaluate import Split
from regard.cli.paths import filled_path
from regard.cli.waiting import Waiting
from regard.errors import InputError

if TYPE_CHECKING:
    from regard.compare.plan import Budget, Plan


def compare(
    contenders: Annotated[
        list[str] | None,
        typer.Argument(metavar="RECIPE|RUN …", help="Recipes to train, or finished runs."),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="A ready-made plan or a .toml file; “list” shows the plans."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(parser=filled_path, help="Your own data, for all contenders."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a field of all recipes."),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="N|LIST", help="How many seeds, or which: 0,1,2. [3]")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Budget of each run: minutes of training. [5]")
    ] = None,
    tokens: Annotated[int | None, typer.Option(help="Budget: target tokens.")] = None,
    multiplications: Annotated[
        float | None, typer.Option(help="Budget: multiplications of training, as in 2e12.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Budget: updates.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Budget: passes over the data.")] = None,
    match: Annotated[
        str | None,
        typer.Option(
            metavar="parameters",
            help="Choose widths so that all have about as many parameters as the first.",
        ),
    ] = None,
    tune: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUES",
            help="Try these values for each contender and keep the one with the best validation "
            "score: train.learning_rate=1e-2,1e-3.",
        ),
    ] = None,
    score: Annotated[
        str | None, typer.Option(help="The score of the verdict. Default: the task's.")
    ] = None,
    split: Annotated[
        Split | None,
        typer.Option(help="The split of the verdict. Default: test, or valid without one."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Answer at most this many items.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=filled_path,
            help="The folder of the comparison. Default: runs/compare-A-vs-B. The same command "
            "continues a comparison that was stopped, and several processes may share one.",
        ),
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Compare even if the training data differ.")
    ] = False,
    ray: Ray = None,
    device: Device = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON, progress on stderr.")
    ] = False,
) -> None:
    """Compare models on equal terms: the same data, budget, seeds and number of tuning trials.

    Recipes are trained with each seed; runs are compared as they are. The verdict is a sentence
    that claims no more than the seeds and test items support. Validation does not count towards
    the budget.

    \b
    regard compare chat-lstm chat-attention --minutes 2
    regard compare chat-attention chat-transformer --multiplications 2e12 --match parameters
    regard compare sentiment-lstm sentiment-gru --tokens 50000 --tune train.learning_rate=1e-3,4e-3
    regard compare runs/a runs/b
    regard compare chat-lstm chat-gru --tokens 1000000 --ray auto
    regard compare --plan list
    """
    refuse_under_torchrun(
        "a comparison trains its models one after the other, each in one process",
        where="compare",
        hint="leave torchrun out; --ray, or the same --out, shares a comparison among machines",
    )
    if plan == "list":
        print(_plan_list())
        return
    names = contenders or []
    if plan is not None and names:
        raise InputError(
            "a plan has its own contenders", where="--plan", got=names[0], hint="leave one out"
        )
    if split == Split.train:
        raise InputError(
            "models are not compared on training examples",
            where="--split",
            got="train",
            hint="use test or valid",
        )
    if match not in (None, "parameters"):
        raise InputError("cannot be matched", where="--match", got=match, hint="use parameters")
    budget = _budget(
        minutes=minutes,
        tokens=tokens,
        steps=steps,
        epochs=epochs,
        multiplications=multiplications,
    )
    with Waiting("loading"):
        from regard.cli.comparing import run_comparison
        from regard.compare.plan import Plan as ComparisonPlan
        from regard.compare.plan import axes_of, contenders_of, seeds_of
        from regard.compare.ready import load

        if plan is None:
            full_plan = ComparisonPlan(contenders_of(names, data=data, changes=changes or ()))
        else:
            full_plan = load(plan).plan(data=data, changes=changes or ())
        if seeds is not None:
            full_plan = replace(full_plan, seeds=seeds_of(seeds))
        if tune:
            full_plan = replace(full_plan, tune=axes_of(tune))
        full_plan = replace(
            full_plan,
            budget=budget or full_plan.budget,
            match="parameters" if match else full_plan.match,
            split=split.value if split else full_plan.split,
            limit=limit or full_plan.limit,
            score=score or full_plan.score,
            anyway=anyway,
        )
    _refuse_budget_of_runs(full_plan, budget)
    words = _words(
        names,
        {
            "plan": plan,
            "data": data,
            "set": changes,
            "seeds": seeds,
            "minutes": minutes,
            "tokens": tokens,
            "multiplications": multiplications,
            "steps": steps,
            "epochs": epochs,
            "match": match,
            "tune": tune,
            "score": score,
            "split": split.value if split else None,
            "limit": limit,
            "anyway": anyway,
        },
    )
    run_comparison(full_plan, out, device, as_json, words=words, ray=ray)


def _words(names: Sequence[str], options: Mapping[str, Any]) -> list[str]:
    """The words of the command that makes the comparison again, without its folder.

    >>> _words(["a", "b"], {"seeds": "3", "tune": ["x=1,2"], "limit": None, "anyway": True})
    ['a', 'b', '--seeds', '3', '--tune', 'x=1,2', '--anyway']
    """
    words = list(names)
    for name, value in options.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not None and value is not False:
            for each in value if isinstance(value, list) else [value]:
                text = f"{each:g}" if isinstance(each, float) else str(each)
                words += [f"--{name}", text]
    return words


def _budget(**amounts: float | None) -> Budget | None:
    """The one budget that was given."""
    from regard.compare.plan import Budget

    given = {name: amount for name, amount in amounts.items() if amount is not None}
    if len(given) > 1:
        options = " and ".join(f"--{name}" for name in given)
        raise InputError("several budgets", got=options, hint="keep one of them")
    for kind, amount in given.items():
        if not 0 < amount <= 1e18:
            raise InputError("a budget must be more than 0", where=f"--{kind}", got=f"{amount:g}")
        return Budget(kind, amount)  # pyright: ignore[reportArgumentType]
    return None


def _refuse_budget_of_runs(plan: Plan, budget: Budget | None) -> None:
    if budget is not None and plan.contenders and not plan.trained:
        raise InputError(
            "finished runs are not trained, so they have no budget",
            where=f"--{budget.kind}",
            hint="leave it out, or give recipes instead of runs",
        )


def _plan_list() -> str:
    from regard.compare.ready import load, names

    lines = [f"{name:<28}{load(name).content.summary}" for name in names()]
    return "\n".join([*lines, "", "begin one with: regard compare --plan NAME"])
