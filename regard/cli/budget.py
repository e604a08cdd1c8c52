"""regard budget: what a model costs, before it is trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.paths import filled_path
from regard.errors import InputError, printable

if TYPE_CHECKING:
    from regard.budget.closed_form.attention import Stack
    from regard.budget.closed_form.layers import Lengths
    from regard.budget.closed_form.parts import Budget, Part
    from regard.budget.closed_form.supported import NoClosedForm
    from regard.budget.closed_form.symbols import Formula
    from regard.budget.fits import Fit
    from regard.recipe import Recipe

DEFINITIONS = """\
multiplications  those inside matrix products, convolutions, attention and recurrent cells;
                 positions hidden by a causal mask count, elementwise operations do not
FLOPs            2 x multiplications: one multiplication and one addition each
forward          a forward pass over B rows of S source and T target positions, no padding
training         forward pass, loss and backward pass of the same batch
prefill          all work for one row before its first token: encoder, keys and values
decode step      one token of one row, at position t = T
State            what one row keeps between decode steps: key/value cache, recurrent state
depth            longest chain of dependent operations; a sum of n takes log n = ceil(log2 n)
memory           4 bytes per number; activations are what the backward pass needs;
                 peak training memory is the most that weights, gradients, optimiser state
                 and activations take at any moment of a training step"""


def budget(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECIPE]", help="A recipe, a run's folder, or a HuggingFace config.json."
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
    as_json: Annotated[bool, typer.Option("--json", help="JSON, for programs.")] = False,
) -> None:
    """Parameters, multiplications, memory and depth of a model, by formulas: no weights are built.

    \b
    regard budget chat-transformer --formulas
    regard budget chat-transformer --memory 8GB
    regard budget chat-attention --fit parameters=5M
    regard budget chat-transformer --terms 3 --length 2048 --plot cost.png
    regard budget --transformer vocabulary=30000,encoder=12,decoder=8,width=1024,heads=8
    regard budget --lstm width=512,layers=2 --length 100
    regard budget runs/demo --count
    regard budget bert/config.json --memory 8GB
    """
    from regard.budget import fits, lengths

    numbers = {"--transformer": transformer, "--lstm": lstm, "--gru": gru, "--attention": attention}
    number_options = [option for option, text in numbers.items() if text is not None]
    models = ([] if what is None else [what]) + number_options
    if len(models) != 1:
        raise InputError(
            "needs one model",
            got=" and ".join(models) or None,
            hint="a recipe, a run, a config.json, or one of " + ", ".join(numbers),
        )

    if length is not None and (source_length is not None or target_length is not None):
        raise InputError("--length is both lengths", hint="give it alone")
    default = 2048 if transformer is not None else 64
    at = lengths(
        batch,
        _first(length, source_length, default),
        _first(length, target_length, default),
    )

    model: _NamedModel | _NumbersModel
    if what is not None:
        model = _NamedModel(what, tuple(changes or ()), vocabulary, labels, terms)
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
        model = _NumbersModel(option, str(numbers[option]), terms)

    memory_bytes = None if memory is None else fits.amount(memory, fits.BYTES, "--memory")
    _report(model, at, _Options(formulas, count, memory, memory_bytes, fit, plot), as_json)


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)


@dataclass(frozen=True)
class _Options:
    """What to show beside the budget."""

    formulas: bool
    count: bool
    memory: str | None  # as typed
    memory_bytes: int | None
    fit: str | None
    plot: Path | None


@dataclass(frozen=True)
class _NamedModel:
    """A recipe, a run or a config.json."""

    name: str
    changes: tuple[str, ...]
    vocabulary: int | None
    labels: int | None
    terms: int | None

    @cached_property
    def kind(self) -> str:
        from regard.budget import kind_of

        return kind_of(self.name)

    @property
    def all_changes(self) -> tuple[str, ...]:
        """The changes of --set, and those that --terms stands for."""
        if self.terms is None:
            return self.changes
        if self.kind != "recipe":
            raise InputError("--terms is for recipes and numbers", got=self.name)

        from regard.recipe import load

        recipe = load(self.name, self.changes)
        kernels: list[str] = []
        for side in ("encoder", "decoder"):
            if getattr(recipe, side).kind == "transformer":
                kernels += [f"{side}.kernel=maclaurin", f"{side}.terms={self.terms}"]
        if not kernels:
            raise InputError(
                "--terms is for Transformers",
                where=self.name,
                got=f"encoder.kind = {recipe.encoder.kind}",
            )
        return (*self.changes, *kernels)

    @cached_property
    def recipe(self) -> Recipe:
        if self.kind != "recipe":
            raise InputError("needs a recipe", got=self.name)

        from regard.recipe import load

        return load(self.name, self.all_changes)

    def budget(self, at: Lengths) -> Budget:
        from regard.budget import of

        is_recipe = self.kind == "recipe"
        return of(
            self.recipe if is_recipe else self.name,
            at,
            changes=() if is_recipe else self.all_changes,
            vocabulary=self.vocabulary,
            labels=self.labels,
            title=self.name,
        )

    def cost_by_length(self, kernel: Callable[[Stack], Stack]) -> Callable[[int], int]:
        """Multiplications of a forward pass of one row, as a function of the length."""
        from regard.budget.closed_form.layers import Lengths
        from regard.budget.closed_form.models import whole
        from regard.budget.closed_form.symbols import Size

        recipe = self.recipe
        shortest = self.budget(Lengths.of(1, 1, 1))
        V = Size("V", shortest.size("V"))
        C = shortest.size("C")

        def cost(n: int) -> int:
            model = whole(recipe, V, Lengths.of(1, n, n), labels=C, kernel=kernel)
            return sum(part.forward.value for part in model.parts)

        return cost

    def count(self, at: Lengths) -> dict[str, int]:
        """Parameters and multiplications of the model itself, which is built and run."""
        from regard import bundle
        from regard.budget.modules import built, of_model

        if self.kind == "recipe":
            recipe = self.recipe
            model = built(recipe, self.vocabulary, self.labels)
        elif self.kind == "run":
            run = bundle.load(self.name)
            recipe = run.recipe
            model = run.model
        else:
            raise InputError("--count needs a recipe or a run", got=self.name)

        counts = of_model(
            model,
            batch=at.B.value,
            source=at.S.value,
            target=1 if recipe.decoder.kind == "classifier" else at.T.value,
            ctc_weight=recipe.train.ctc_weight,
        )
        return {"parameters": model.parameter_count} | counts

    @property
    def attends(self) -> bool:
        return "transformer" in (self.recipe.encoder.kind, self.recipe.decoder.kind)


class _NumbersModel:
    """A model from numbers alone."""

    kind = "numbers"

    def __init__(self, option: str, text: str, terms: int | None):
        from regard.budget import numbers

        self.option = option
        self.terms = terms
        if terms is not None and not self.attends:
            raise InputError("--terms is for attention", got=option)

        classes = {
            "--transformer": numbers.Transformer,
            "--attention": numbers.Attention,
            "--lstm": numbers.Recurrent,
            "--gru": numbers.Recurrent,
        }
        if terms is not None:
            text += f",kernel=maclaurin,terms={terms}"
        self.numbers: Any = numbers.read(classes[option], text, option)

    @property
    def attends(self) -> bool:
        return self.option in ("--transformer", "--attention")

    def budget(self, at: Lengths) -> Budget:
        from regard.budget import numbers

        if self.option == "--attention":
            return numbers.attention(self.numbers, at)
        if self.option != "--transformer":
            return numbers.recurrent(self.numbers, self.option.removeprefix("--"), at)

        budget = numbers.transformer(self.numbers, at)
        if self.numbers.tied != "none" or not self.numbers.output_bias:
            parameters = numbers.untied(self.numbers, at)
            note = f"nothing tied and with an output bias: {parameters:,} parameters"
            budget = replace(budget, notes=(*budget.notes, note))
        return budget

    def cost_by_length(self, kernel: Callable[[Stack], Stack]) -> Callable[[int], int]:
        """Multiplications of a forward pass of one row, as a function of the length."""
        from regard.budget import numbers
        from regard.budget.closed_form.attention import Stack
        from regard.budget.closed_form.layers import Lengths

        if not self.attends:
            return lambda n: self.budget(Lengths.of(1, n, n)).multiplications["forward"]

        stack = kernel(Stack(layers=1, width=1, heads=1, ffn_width=1))
        sizes = self.numbers.model_copy(update={"kernel": stack.kernel, "terms": stack.terms})
        make = numbers.transformer if self.option == "--transformer" else numbers.attention

        def cost(n: int) -> int:
            return make(sizes, Lengths.of(1, n, n), form=stack.form).multiplications["forward"]

        return cost


_Model = _NamedModel | _NumbersModel
_Json = dict[str, Any]  # what options add to the JSON of the budget


def _report(model: _Model, at: Lengths, options: _Options, as_json: bool) -> None:
    """Print the budget and what the options ask for."""
    from regard.budget.closed_form.supported import NoClosedForm

    lines: list[str] = []
    more: _Json = {}
    try:
        if options.fit is not None:
            assert isinstance(model, _NamedModel)
            model = _fit_width(model, at, options.fit, lines, more)
        budget = model.budget(at)
    except NoClosedForm as error:
        only_count = not (options.fit or options.formulas or options.memory or options.plot)
        if not options.count or not only_count:
            raise
        assert isinstance(model, _NamedModel)
        _report_count(model, at, error, as_json)
        return

    if options.memory is not None and options.memory_bytes is not None:
        lines += _memory_lines(model, budget, at, options.memory, options.memory_bytes, more)
    if options.count:
        lines += _count_lines(model, budget, at, more)
    if options.plot is not None:
        lines.append(_write_plot(model, budget, options.plot, more))

    if as_json:
        print(json.dumps(budget.to_json() | more, indent=1, ensure_ascii=False))
        return
    print("\n".join(map(printable, [*_table(budget), *lines])))
    if options.formulas:
        print("\n" + "\n".join(_formulas(budget)))
    print("\n" + DEFINITIONS)


def _fit_width(
    model: _NamedModel, at: Lengths, target: str, lines: list[str], more: _Json
) -> _NamedModel:
    """The model with the width that --fit asks for."""
    from regard.budget import fits, of

    _ = model.recipe  # raises unless the model is a recipe

    def make(recipe: Recipe) -> Budget:
        return of(recipe, at, vocabulary=model.vocabulary, labels=model.labels, title=model.name)

    width, overrides = fits.width(model.name, model.all_changes, make, target)
    changes = (*model.changes, *overrides)
    command = f"regard train {model.name} " + " ".join(f"--set {change}" for change in changes)
    lines.append(f"fits            width {width:,}, in steps of {fits.STEP}: {command}")
    more["fit"] = {"width": width}
    return replace(model, changes=changes)


def _memory_lines(
    model: _Model, budget: Budget, at: Lengths, text: str, memory: int, more: _Json
) -> list[str]:
    """What fits in a memory. Of a HuggingFace config the activations are not known, so only its
    weights and its key/value cache are compared with the memory."""
    from regard.budget import fits

    fits_by_use = fits.in_memory(model.budget, at, memory)
    more["fits"] = {
        use: {fit.what: fit.largest for fit in fits_of_use}
        for use, fits_of_use in fits_by_use.items()
    }
    lines = [f"in {text.strip()} fit"]
    if "training" not in budget.memory:
        weights = budget.memory["weights"]
        more["weights_fit"] = weights <= memory
        verdict = "yes" if weights <= memory else "no"
        lines.append(f"  weights       {verdict}, {_size(weights)}")

    settings = {"batch": "at these lengths", "length": f"at batch {at.B.value:,}"}
    for use, fits_of_use in fits_by_use.items():
        phrases = [_fit_phrase(fit, settings[fit.what]) for fit in fits_of_use]
        lines.append(f"  {use:<12}  " + ", or ".join(phrases))

    if "training" not in budget.memory:
        least = sum(budget.memory[name] for name in ("weights", "gradients", "optimiser"))
        if least > memory:
            lines.append(f"  training      no: {_size(least)} without activations")
        else:
            lines.append(
                "  training      depends on the activations, which are not known for a "
                f"config.json: {_size(least)} without them"
            )
    return lines


def _fit_phrase(fit: Fit, setting: str) -> str:
    from regard.budget.fits import LARGEST

    if fit.largest is None:
        return f"no {fit.what}"
    if fit.largest >= LARGEST:
        return f"a {fit.what} of {LARGEST:,} or more {setting}"
    limit = " (its positions end there)" if fit.limit else ""
    return f"a {fit.what} of {fit.largest:,}{limit} {setting}"


def _count_lines(model: _Model, budget: Budget, at: Lengths, more: _Json) -> list[str]:
    """Build and run the model; each count beside its formula's value."""
    assert isinstance(model, _NamedModel)
    counts = model.count(at)
    more["counted"] = counts

    closed = {"parameters": budget.parameters} | budget.multiplications
    lines = ["", f"{'counted by running':<24}{'count':>20}  {'formula':>20}"]
    for name, count in counts.items():
        difference = count - closed[name]
        verdict = f"differs by {difference:+,}" if difference else "equal"
        label = NAMES.get(name, name)
        lines.append(f"  {label:<22}{count:>20,}  {closed[name]:>20,}  {verdict}")
    return lines


def _report_count(model: _NamedModel, at: Lengths, reason: NoClosedForm, as_json: bool) -> None:
    """Print the counts of a model that has no closed form."""
    counts = model.count(at)
    parameters = counts.pop("parameters")
    if as_json:
        report = {
            "title": model.name,
            "parameters": parameters,
            "multiplications": counts,
            "flops": {name: 2 * count for name, count in counts.items()},
            "memory": {},
            "depth": {},
            "parts": [],
            "notes": [reason.what],
        }
        print(json.dumps(report, indent=1))
        return

    print(printable(f"{model.name}: {reason.what}"))
    print(f"\n{'counted by running':<24}{'multiplications':>20}  {'FLOPs':>20}")
    for name, count in counts.items():
        print(f"  {NAMES.get(name, name):<22}{count:>20,}  {2 * count:>20,}")
    print(f"parameters{parameters:>34,}\n\n{DEFINITIONS}")


def _write_plot(model: _Model, budget: Budget, file: Path, more: _Json) -> str:
    from regard.budget import fits, plot

    if file.suffix not in (".png", ".svg"):
        raise InputError("must end in .png or .svg", where="--plot", got=file)
    if not file.parent.is_dir():
        raise InputError("no such folder", where="--plot", got=file.parent)
    if fits.fixed(model.budget):
        raise InputError(
            "its lengths are fixed: there is nothing to plot against",
            where="--plot",
            got=budget.title,
        )

    terms = model.terms or 3
    softmax = model.cost_by_length(lambda stack: replace(stack, kernel="softmax"))
    series = None
    if model.attends:
        series = model.cost_by_length(
            lambda stack: replace(
                stack, kernel="maclaurin", terms=terms, form="features", positions="none"
            )
        )
    crossover = plot.draw(file, printable(budget.title), softmax, series, terms=terms)
    more["plot"] = str(file)
    more["crossover"] = crossover

    line = f"wrote {file}"
    if crossover:
        line += f"; {terms} Maclaurin terms need fewer multiplications from length {crossover:,} on"
    return line


# ------------------------------------------------------------------------------------------- tables

NAMES = {  # fields of a Part -> what is printed
    "start": "prefill",
    "token": "decode step",
    "growth": "decode step, per earlier token",
    "token_depth": "depth of a decode step",
    "saved": "bytes of activations",
    "work": "bytes of working memory, training",
    "room": "bytes of working memory, inference",
    "state": "bytes of State",
    "state_growth": "bytes of State per token",
}


def _table(budget: Budget) -> list[str]:
    """Sizes, a row for each part, totals, and the lines about the whole model."""
    from regard.budget.closed_form.parts import columns

    work = ["parameters", "forward", "training"]
    if budget.sum("token").value:
        work.append("token")
    if budget.depth:
        work.append("depth")
    with_memory = bool(budget.memory.get("activations"))
    length = budget.size("T") or budget.size("L")

    def row(name: str, value_of: Callable[[str], int]) -> list[str]:
        cells = [_count(value_of(column)) for column in work]
        if with_memory:
            state = value_of("state") + length * value_of("state_growth")
            cells += [_size(size) if size else "-" for size in (value_of("saved"), state)]
        return [name, *cells]

    def part_row(part: Part) -> list[str]:
        return row(part.name, lambda column: getattr(part, column).value)

    memory_header = ["activations", "State"] if with_memory else []
    header = ["", *(NAMES.get(column, column) for column in work), *memory_header]
    total = row("total", lambda column: budget.sum(column).value)
    flops = ["FLOPs"]
    for column in work:
        is_work = column in ("forward", "training", "token")
        flops.append(f"{2 * budget.sum(column).value:,}" if is_work else "")
    flops += [""] * len(memory_header)

    rows = [header, *(part_row(part) for part in budget.parts if columns(part)), total, flops]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [_aligned(row, widths) for row in rows]
    rule = "-" * (sum(widths) + 2 * len(widths) - 2)
    sizes = ", ".join(f"{size.name} = {size.value:,} ({size.meaning})" for size in budget.sizes)
    return [
        budget.title,
        sizes,
        "",
        *lines[:-2],
        rule,
        *lines[-2:],
        "",
        *_whole(budget),
        *(f"note            {note}" for note in budget.notes),
        *_shapes(budget),
    ]


def _aligned(row: list[str], widths: list[int]) -> str:
    """The first cell to the left, the others to the right."""
    cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
    return "  ".join([row[0].ljust(widths[0]), *cells]).rstrip()


def _whole(budget: Budget) -> list[str]:
    """The lines about the whole model, below the table."""
    work = budget.multiplications
    depth = budget.depth
    memory = budget.memory
    lines: list[str] = []

    if work["start"]:
        lines.append(f"prefill         {work['start']:,} multiplications per row")
    if work["token"]:
        growth = "the same at every position"
        if work["growth"]:
            growth = f"{work['growth']:,} more for each earlier token"
        lines.append(
            f"decode step     {work['token']:,} multiplications at this position, {growth}"
        )
    if depth:
        step = f", a decode step {depth['token']:,}" if depth["token"] else ""
        lines.append(f"depth           forward pass {depth['forward']:,} sequential steps{step}")
    if memory.get("state"):
        growth = "constant"
        if memory["state_token"]:
            growth = f"{_size(memory['state_token'])} more per token"
        lines.append(f"State           {_size(memory['state'])} per row at this position, {growth}")
    if "training" in memory:
        lines.append(f"training        {_size(memory['training'])} peak; {_memory_parts(memory)}")
        lines.append(f"inference       {_size(memory['inference'])} peak of a forward pass")
    else:
        lines.append(f"memory          {_memory_parts(memory)}")
    return lines


def _memory_parts(memory: dict[str, int]) -> str:
    names = ("weights", "gradients", "optimiser", "activations")
    return ", ".join(f"{name} {_size(memory[name])}" for name in names if name in memory)


def _shapes(budget: Budget) -> list[str]:
    if not budget.shapes:
        return []
    widest = max(len(name) for name, _ in budget.shapes)
    lines = ["", "shapes"]
    for name, shape in budget.shapes:
        letters = " x ".join(getattr(axis, "name", str(axis)) for axis in shape)
        numbers = " x ".join(f"{getattr(axis, 'value', axis):,}" for axis in shape)
        lines.append(f"  {name:<{widest}}  {letters:<14}  {numbers}")
    return lines


def _count(count: int) -> str:
    return f"{count:,}" if count else "-"


def _size(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:,} bytes"


def _formulas(budget: Budget) -> list[str]:
    """Every figure of the table: symbols, numbers, value."""
    from regard.budget.closed_form.parts import columns

    lines: list[str] = []
    for part in budget.parts:
        own_sizes = [size for size in part.sizes if size not in budget.sizes]
        sizes = ", ".join(f"{size.name} = {size.value:,}" for size in own_sizes)
        lines.append(f"{part.name}  ({sizes})" if sizes else part.name)
        for name, formula in columns(part).items():
            lines += _formula(NAMES.get(name, name), formula)

    lines.append("memory, in bytes")
    for name, formula in budget.bytes.items():
        lines += _formula("state per token" if name == "state_token" else name, formula)
    return lines


def _formula(name: str, formula: Formula) -> list[str]:
    if formula.symbols == formula.numbers:
        return [f"  {name}: {formula.value:,}"]
    return [f"  {name}: {formula.symbols}", f"    = {formula.numbers}", f"    = {formula.value:,}"]
