"""regard budget: what a model costs, before it is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.paths import filled_path
from regard.errors import InputError, printable


def budget(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE", help="A recipe, a run's folder, or a Hugging Face config.json."
        ),
    ] = None,
    transformer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=VALUE,…",
            help="From numbers: vocabulary, encoder, decoder, width, heads, ffn_width, tied.",
        ),
    ] = None,
    lstm: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=VALUE,…", help="From numbers: width, inputs, layers, directions."
        ),
    ] = None,
    gru: Annotated[
        str | None, typer.Option(metavar="NAME=VALUE,…", help="From numbers: as --lstm.")
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=VALUE,…", help="From numbers: width, heads, head_width, causal."
        ),
    ] = None,
    batch: Annotated[int, typer.Option(help="B, the batch size.")] = 32,
    source_length: Annotated[
        int | None,
        typer.Option(help="S, the source length; default 64, with --transformer 2048."),
    ] = None,
    target_length: Annotated[
        int | None,
        typer.Option(help="T, the target length; default 64, with --transformer 2048."),
    ] = None,
    length: Annotated[int | None, typer.Option(help="Source and target length.")] = None,
    vocabulary: Annotated[
        int | None,
        typer.Option(help="V, the vocabulary size; default: the limit of the recipe's tokenizer."),
    ] = None,
    labels: Annotated[
        int | None, typer.Option(help="C, the labels of a classifier; default: a guess.")
    ] = None,
    terms: Annotated[
        int | None,
        typer.Option(help="Linear attention with this many Maclaurin terms instead of softmax."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a field, as in encoder.width=128."),
    ] = None,
    formulas: Annotated[
        bool, typer.Option("--formulas", help="Show each figure's formula, in symbols and numbers.")
    ] = False,
    count: Annotated[
        bool,
        typer.Option(
            "--count", help="Also build the model, run it, and compare (a recipe or a run)."
        ),
    ] = False,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="The largest batch and length that fit, as in 8GB."),
    ] = None,
    fit: Annotated[
        str | None,
        typer.Option(
            metavar="parameters=N", help="The largest width with at most N parameters, as in 5M."
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            parser=filled_path,
            metavar="FILE",
            help="Plot cost against length as a .png or .svg file.",
        ),
    ] = None,
    machines: Annotated[
        int | None,
        typer.Option(metavar="N", help="How training scales over N machines; needs --bandwidth."),
    ] = None,
    bandwidth: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="With --machines: of their network, 10Gb (bits) or 1.25GB (bytes) a second.",
        ),
    ] = None,
    latency: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="With --machines: of a message, as in 5us. [50us]"),
    ] = None,
    flops: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="With --machines: FLOPs a second of one machine, as in 50G. Default: measured "
            "here, by training the model for three seconds.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON, for programs.")] = False,
) -> None:
    """Compute parameters, multiplications, memory and depth of a model by formulas.

    \b
    regard budget chat-transformer --formulas
    regard budget chat-transformer --memory 8GB
    regard budget chat-attention --fit parameters=5M
    regard budget chat-transformer --terms 3 --length 2048 --plot cost.png
    regard budget --transformer vocabulary=30000,encoder=12,decoder=8,width=1024,heads=8
    regard budget --lstm width=512,layers=2 --length 100
    regard budget runs/demo --count
    regard budget bert/config.json --memory 8GB
    regard budget chat-transformer --machines 8 --bandwidth 10Gb
    """
    from regard.budget import lengths
    from regard.budget.report import Network, Questions, Report, report
    from regard.budget.subject import NamedModel, NumbersModel
    from regard.budget.text import DEFINITIONS, formula_lines, scaling_formula_lines, text

    numbers = {"--transformer": transformer, "--lstm": lstm, "--gru": gru, "--attention": attention}
    number_options = [option for option, sizes in numbers.items() if sizes is not None]
    models = ([] if what is None else [what]) + number_options
    if len(models) != 1:
        raise InputError(
            "needs one model",
            got=" and ".join(models) or None,
            hint="a recipe, a run, a config.json, or one of " + ", ".join(numbers),
        )

    if length is not None and (source_length is not None or target_length is not None):
        raise InputError(
            "--length sets both lengths", hint="leave out --source-length and --target-length"
        )
    default = 2048 if transformer is not None else 64
    at = lengths(
        batch,
        _first(length, source_length, default),
        _first(length, target_length, default),
    )

    if what is not None:
        subject = NamedModel(what, tuple(changes or ()), vocabulary, labels, terms)
    else:
        option = number_options[0]
        recipe_options = {
            "--set": changes,
            "--vocabulary": vocabulary,
            "--labels": labels,
            "--fit": fit,
            "--count": count,
        }
        for recipe_option, value in recipe_options.items():
            if value:
                raise InputError(f"{recipe_option} is for recipes", got=option)
        subject = NumbersModel(option, str(numbers[option]), terms)

    network = None
    if machines is not None and bandwidth is not None:
        network = Network(machines, bandwidth, latency, flops)
    elif machines is not None:
        raise InputError(
            "--machines needs the bandwidth of their network",
            hint="--bandwidth 10Gb is ten gigabits a second",
        )
    elif bandwidth or latency or flops:
        raise InputError(
            "--bandwidth, --latency and --flops are for --machines", hint="--machines 8"
        )
    ask = Questions(
        memory=memory, fit=fit, count=count, plot=plot, formulas=formulas, scaling=network
    )
    answer = report(subject, at, ask)
    if as_json:
        print(json.dumps(answer.to_json(), indent=1, ensure_ascii=False))
        return
    print("\n".join(map(printable, text(answer))))
    if formulas and isinstance(answer, Report):
        lines = formula_lines(answer.budget)
        if answer.scaling is not None:
            lines += scaling_formula_lines(answer.scaling)
        print("\n" + "\n".join(lines))
    print("\n" + DEFINITIONS)


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)
