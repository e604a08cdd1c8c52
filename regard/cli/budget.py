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
    from regard.budget.closed_form.parts import Budget
    from regard.budget.closed_form.supported import NoClosedForm
    from regard.budget.closed_form.symbols import Formula
    from regard.recipe import Recipe

DEFINITIONS = """\
multiplications  products of two numbers inside matrix products, convolutions, attention and recurrent cells; places
                 that a causal mask hides are counted, what is done number by number (norms, gates, softmax) is not
FLOPs            2 x multiplications: each product is also added
forward          B rows read S places and are given T, without padding; training: with loss and gradients
token            one row, the token at position t = T; reading: what one row needs before its first token
State            what one row carries from token to token, at that position
depth            operations that wait for each other; a sum of n numbers takes log n = ceil(log2 n)
memory           numbers of 4 bytes; activations: what training keeps for the gradients; training: they, weights,
                 gradients and the optimiser's means at the fullest moment"""


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
        str | None, typer.Option(metavar="NAME=VALUE,…", help="The same of a GRU.")
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=VALUE,…", help="From numbers: width, heads, head_width, causal."
        ),
    ] = None,
    batch: Annotated[int, typer.Option(help="B, rows of a batch.")] = 32,
    source_length: Annotated[
        int | None,
        typer.Option(help="S, places of the source; not given: 64, with --transformer 2048."),
    ] = None,
    target_length: Annotated[
        int | None, typer.Option(help="T, places of the target; not given: likewise.")
    ] = None,
    length: Annotated[int | None, typer.Option(help="Both lengths at once.")] = None,
    vocabulary: Annotated[
        int | None, typer.Option(help="V; not given: the most the recipe's tokenizer may make.")
    ] = None,
    labels: Annotated[
        int | None, typer.Option(help="C, of a classifier; not given: a guess.")
    ] = None,
    terms: Annotated[
        int | None,
        typer.Option(help="Attention by so many terms of the Maclaurin series instead of softmax."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a field, as in encoder.width=128."),
    ] = None,
    formulas: Annotated[
        bool, typer.Option("--formulas", help="Each figure's formula, in symbols and numbers.")
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
            metavar="parameters=N", help="The width that has so many parameters, as in 5M."
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            parser=filled_path,
            metavar="FILE",
            help="Cost against length as a .png or .svg picture.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON, for programs.")] = False,
) -> None:
    """What a model costs: parameters, multiplications, memory, depth. By formulas: no weights are built.

    \b
    regard budget chat-transformer --formulas
    regard budget chat-transformer --memory 8GB
    regard budget chat-attention --fit parameters=5M
    regard budget chat-transformer --terms 3 --length 2048 --plot cost.png
    regard budget --transformer vocabulary=30000,encoder=12,decoder=8,width=1024,heads=4,head_width=192,ffn_width=512
    regard budget --lstm width=512,layers=2 --length 100
    regard budget runs/demo --count
    regard budget bert/config.json
    """
    from regard.budget import lengths

    numbers = {"--transformer": transformer, "--lstm": lstm, "--gru": gru, "--attention": attention}
    given = [name for name, value in numbers.items() if value is not None]
    if len(given) + (what is not None) != 1:
        raise InputError(
            "needs one model",
            got=" and ".join(([what] if what else []) + given) or None,
            hint="a recipe, a run, a config.json, or one of " + ", ".join(numbers),
        )
    usual = 2048 if transformer is not None else 64
    if length is not None and (source_length is not None or target_length is not None):
        raise InputError("--length is both lengths", hint="give it alone")
    at = lengths(batch, _first(length, source_length, usual), _first(length, target_length, usual))
    if what is not None:
        model = _Named(what, tuple(changes or ()), vocabulary, labels, terms)
    else:
        for option, value in _recipes_only(changes, vocabulary, labels, fit, count):
            if value:
                raise InputError(f"{option} is for recipes", got=given[0])
        model = _Numbers(given[0], str(numbers[given[0]]), terms)
    asked = _Asked(formulas, count, memory, fit, plot)
    _tell(model, at, asked, as_json)


def _recipes_only(*given: object) -> list[tuple[str, object]]:
    return list(zip(("--set", "--vocabulary", "--labels", "--fit", "--count"), given, strict=True))


def _first(*of: int | None) -> int:
    return next(each for each in of if each is not None)


@dataclass(frozen=True)
class _Asked:
    """What is wanted beside the budget."""

    formulas: bool
    count: bool
    memory: str | None
    fit: str | None
    plot: Path | None


@dataclass(frozen=True)
class _Named:
    """A recipe, a run or a config.json."""

    name: str
    changes: tuple[str, ...]
    vocabulary: int | None
    labels: int | None
    terms: int | None

    @property
    def is_recipe(self) -> bool:
        path = Path(self.name)
        return not (
            path.suffix == ".json"
            or (path / "config.json").is_file()
            or (path / "recipe.json").is_file()
        )

    @property
    def all_changes(self) -> tuple[str, ...]:
        if self.terms is None:
            return self.changes
        if not self.is_recipe:
            raise InputError("--terms is for recipes and numbers", got=self.name)
        from regard.recipe import load

        recipe = load(self.name, self.changes)
        sides = [
            side for side in ("encoder", "decoder") if getattr(recipe, side).kind == "transformer"
        ]
        if not sides:
            raise InputError(
                "--terms is for Transformers",
                where=self.name,
                got=f"encoder.kind = {recipe.encoder.kind}",
            )
        kernels = [
            f"{side}.{field}"
            for side in sides
            for field in ("kernel=maclaurin", f"terms={self.terms}")
        ]
        return (*self.changes, *kernels)

    @cached_property
    def recipe(self) -> Recipe:
        if not self.is_recipe:
            raise InputError("needs a recipe", got=self.name)
        from regard.recipe import load

        return load(self.name, self.all_changes)

    def budget(self, at: Lengths) -> Budget:
        from regard.budget import of

        what = self.recipe if self.is_recipe else self.name
        changes = () if self.is_recipe else self.all_changes
        return of(
            what,
            at,
            changes=changes,
            vocabulary=self.vocabulary,
            labels=self.labels,
            title=self.name,
        )

    def line(self, kernel: Callable[[Stack], Stack]) -> Callable[[int], int]:
        from regard.budget.closed_form.layers import Lengths
        from regard.budget.closed_form.models import whole
        from regard.budget.closed_form.symbols import Size

        recipe, known = self.recipe, self.budget(Lengths.of(1, 1, 1))
        V, C = Size("V", known.size("V")), known.size("C")

        def line(n: int) -> int:
            made = whole(recipe, V, Lengths.of(1, n, n), labels=C, kernel=kernel)
            return sum(part.forward.value for part in made.parts)

        return line

    def count(self, at: Lengths) -> dict[str, int]:
        """Parameters and multiplications of the model itself, which is built and run."""
        from regard import bundle
        from regard.budget.modules import built, of_model

        if self.is_recipe:
            recipe, model = self.recipe, built(self.recipe, self.vocabulary, self.labels)
        elif (Path(self.name) / "recipe.json").is_file():
            run = bundle.load(self.name)
            recipe, model = run.recipe, run.model
        else:
            raise InputError("--count needs a recipe or a run", got=self.name)
        target = 1 if recipe.decoder.kind == "classifier" else at.T.value
        counted = of_model(
            model, batch=at.B.value, source=at.S.value, target=target, align=recipe.train.ctc_weight
        )
        return {"parameters": model.parameter_count} | counted

    @property
    def attends(self) -> bool:
        recipe = self.recipe
        return "transformer" in (recipe.encoder.kind, recipe.decoder.kind)


class _Numbers:
    """A model from numbers alone."""

    is_recipe = False

    def __init__(self, option: str, written: str, terms: int | None):
        from regard.budget import numbers

        self.option, self.terms = option, terms
        kinds = {
            "--transformer": numbers.Transformer,
            "--attention": numbers.Attention,
            "--lstm": numbers.Recurrent,
            "--gru": numbers.Recurrent,
        }
        if terms is not None and not self.attends:
            raise InputError("--terms is for attention", got=option)
        more = "" if terms is None else f",kernel=maclaurin,terms={terms}"
        self.numbers: Any = numbers.read(kinds[option], written + more, option)

    @property
    def attends(self) -> bool:
        return self.option in ("--transformer", "--attention")

    def budget(self, at: Lengths) -> Budget:
        from regard.budget import numbers

        if self.option == "--transformer":
            made = numbers.transformer(self.numbers, at)
            if self.numbers.tied != "none" or not self.numbers.output_bias:
                note = f"nothing tied and with an output bias: {numbers.untied(self.numbers, at):,} parameters"
                made = replace(made, notes=(*made.notes, note))
            return made
        if self.option == "--attention":
            return numbers.attention(self.numbers, at)
        return numbers.recurrent(self.numbers, self.option.removeprefix("--"), at)

    def line(self, kernel: Callable[[Stack], Stack]) -> Callable[[int], int]:
        from regard.budget import numbers
        from regard.budget.closed_form.attention import Stack
        from regard.budget.closed_form.layers import Lengths

        if not self.attends:
            return lambda n: self.budget(Lengths.of(1, n, n)).multiplications["forward"]
        like = kernel(Stack(1, 1, 1, 1, 1))
        chosen = self.numbers.model_copy(update={"kernel": like.kernel, "terms": like.terms})
        make = numbers.transformer if self.option == "--transformer" else numbers.attention
        return lambda n: make(chosen, Lengths.of(1, n, n), form=like.form).multiplications[
            "forward"
        ]


def _tell(model: _Named | _Numbers, at: Lengths, asked: _Asked, as_json: bool) -> None:
    from regard.budget.closed_form.supported import NoClosedForm

    lines: list[str] = []
    told: dict[str, Any] = {}
    try:
        if asked.fit is not None:
            assert isinstance(model, _Named)
            model = _fitted(model, at, asked.fit, lines, told)
        made = model.budget(at)
    except NoClosedForm as error:
        if not asked.count or asked.fit or asked.formulas or asked.memory or asked.plot:
            raise
        assert isinstance(model, _Named)
        _tell_count(model, at, error, as_json)
        return
    if asked.memory is not None:
        lines += _rooms(model, made, at, asked.memory, told)
    if asked.count:
        lines += _counted(model, made, at, told)
    if asked.plot is not None:
        lines.append(_plotted(model, made, asked.plot, told))
    if as_json:
        print(json.dumps(made.to_json() | told, indent=1, ensure_ascii=False))
        return
    print("\n".join(map(printable, [*_table(made), *lines])))
    if asked.formulas:
        print("\n" + "\n".join(_formulas(made)))
    print("\n" + DEFINITIONS)


def _fitted(model: _Named, at: Lengths, aim: str, lines: list[str], told: dict[str, Any]) -> _Named:
    from regard.budget import fits, of

    _ = model.recipe  # there must be one

    def make(recipe: Recipe) -> Budget:
        return of(recipe, at, vocabulary=model.vocabulary, labels=model.labels, title=model.name)

    width, sets = fits.width(model.name, model.all_changes, make, aim)
    told["fit"] = {"width": width}
    command = " ".join(f"--set {each}" for each in (*model.changes, *sets))
    lines.append(
        f"fits            width {width:,}, in steps of {fits.STEP}: regard train {model.name} {command}"
    )
    return replace(model, changes=(*model.changes, *sets))


def _rooms(
    model: _Named | _Numbers, made: Budget, at: Lengths, size: str, told: dict[str, Any]
) -> list[str]:
    from regard.budget import fits

    if "training" not in made.memory:
        raise InputError(
            "--memory needs a recipe, a run or numbers: activations of other code are not known"
        )
    room = fits.amount(size, fits.BYTES, "--memory")
    found = fits.in_memory(model.budget, at, room)
    told["fits"] = {use: {one.what: one.largest for one in both} for use, both in found.items()}
    lines = [f"in {size.strip()} fit"]
    for use, both in found.items():
        beside = {"batch": "at these lengths", "length": f"at batch {at.B.value:,}"}
        said = [
            f"a {one.what} of {_many(one)} {beside[one.what]}" if one.largest else f"no {one.what}"
            for one in both
        ]
        lines.append(f"  {use:<12}  " + ", or ".join(said))
    return lines


def _many(found: Any) -> str:
    from regard.budget.fits import LARGEST

    if found.largest >= LARGEST:
        return f"{LARGEST:,} or more"
    return f"{found.largest:,}" + (" (its positions end there)" if found.limit else "")


def _counted(
    model: _Named | _Numbers, made: Budget, at: Lengths, told: dict[str, Any]
) -> list[str]:
    """The model is built and run; each figure beside its formula's."""
    assert isinstance(model, _Named)
    told["counted"] = counted = model.count(at)
    closed = {"parameters": made.parameters} | made.multiplications
    lines = ["", f"{'counted by running':<24}{'count':>20}  {'formula':>20}"]
    for name, count in counted.items():
        verdict = "equal" if count == closed[name] else f"differs by {count - closed[name]:+,}"
        lines.append(f"  {name:<22}{count:>20,}  {closed[name]:>20,}  {verdict}")
    return lines


def _tell_count(model: _Named, at: Lengths, why: NoClosedForm, as_json: bool) -> None:
    """Of a model without closed forms: what running it shows."""
    counted = model.count(at)
    parameters = counted.pop("parameters")
    if as_json:
        flops = {name: 2 * count for name, count in counted.items()}
        made = {
            "title": model.name,
            "parameters": parameters,
            "multiplications": counted,
            "flops": flops,
        }
        print(
            json.dumps(
                made | {"memory": {}, "depth": {}, "parts": [], "notes": [why.what]}, indent=1
            )
        )
        return
    print(printable(f"{model.name}: {why.what}"))
    print(f"\n{'counted by running':<24}{'multiplications':>20}  {'FLOPs':>20}")
    for name, count in counted.items():
        print(f"  {name:<22}{count:>20,}  {2 * count:>20,}")
    print(f"parameters{parameters:>34,}\n\n{DEFINITIONS}")


def _plotted(model: _Named | _Numbers, made: Budget, file: Path, told: dict[str, Any]) -> str:
    from regard.budget import fits, plot

    if file.suffix not in (".png", ".svg"):
        raise InputError("must end in .png or .svg", where="--plot", got=file)
    if not file.parent.is_dir():
        raise InputError("no such folder", where="--plot", got=file.parent)
    if fits.fixed(model.budget):
        raise InputError(
            "its lengths are fixed: there is nothing to plot against",
            where="--plot",
            got=made.title,
        )
    terms = model.terms or 3
    exact = model.line(lambda s: replace(s, kernel="softmax"))
    series = None
    if model.attends:
        series = model.line(
            lambda s: replace(s, kernel="maclaurin", terms=terms, form="features", positions="none")
        )
    meet = plot.draw(file, printable(made.title), exact, series, terms=terms)
    told["plot"], told["crossover"] = str(file), meet
    said = f"; the series of {terms} terms multiplies less from {meet:,} places on" if meet else ""
    return f"wrote {file}{said}"


# ------------------------------------------------------------------------------------------- tables


def _table(made: Budget) -> list[str]:
    """Parts, totals, then what is said of the whole."""
    from regard.budget.closed_form.parts import columns

    work = ["parameters", "forward", "training", *(["token"] if made.sum("token").value else [])]
    work += ["depth"] if made.depth else []
    held = {"activations": "saved", "State": "state"} if made.memory.get("activations") else {}
    at = made.size("T") or made.size("L")

    def row(name: str, of: Callable[[str], int]) -> tuple[str, ...]:
        state = of("state") + at * of("state_growth")
        sizes = [state if column == "state" else of(column) for column in held.values()]
        return (
            name,
            *(_cell(of(column)) for column in work),
            *(_size(size) if size else "-" for size in sizes),
        )

    shown = [part for part in made.parts if columns(part)]
    rows = [("", *work, *held)]
    rows += [
        row(part.name, lambda column, part=part: getattr(part, column).value) for part in shown
    ]
    rows.append(row("total", lambda column: made.sum(column).value))
    flops = [
        f"{2 * made.sum(name).value:,}" if name in ("forward", "training", "token") else ""
        for name in work
    ]
    rows.append(("FLOPs", *flops, *("" for _ in held)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = "-" * (sum(widths) + 2 * len(widths) - 2)
    body = [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)),
            ]
        ).rstrip()
        for row in rows
    ]
    sizes = ", ".join(f"{size.name} = {size.value:,} {size.meaning}" for size in made.sizes)
    lines = [made.title, sizes, "", body[0], *body[1:-2], rule, *body[-2:], ""]
    return [
        *lines,
        *_whole(made),
        *(f"note            {note}" for note in made.notes),
        *_shapes(made),
    ]


def _whole(made: Budget) -> list[str]:
    lines, work, held = [], made.multiplications, made.memory
    if work["start"]:
        lines.append(
            f"reading         {work['start']:,} multiplications a row, before its first token"
        )
    if work["token"]:
        grows = (
            f"{work['growth']:,} more for each token before it"
            if work["growth"]
            else "the same at every position"
        )
        lines.append(f"a token         {work['token']:,} multiplications at this position, {grows}")
    if made.depth:
        token = f", a token {made.depth['token']:,}" if made.depth["token"] else ""
        lines.append(
            f"depth           forward {made.depth['forward']:,} steps one after another{token}"
        )
    if held.get("state"):
        grows = f"{_size(held['state_token'])} more a token" if held["state_token"] else "constant"
        lines.append(f"State           {_size(held['state'])} a row at this position, {grows}")
    if "training" in held:
        lines.append(
            f"training        {_size(held['training'])} at the fullest moment; of it {_of(held)}"
        )
        lines.append(
            f"inference       {_size(held['inference'])} at the fullest moment of a forward pass"
        )
    else:
        lines.append(f"memory          {_of(held)}")
    return lines


def _of(held: dict[str, int]) -> str:
    names = ("weights", "gradients", "optimiser", "activations")
    return ", ".join(f"{name} {_size(held[name])}" for name in names if name in held)


def _shapes(made: Budget) -> list[str]:
    if not made.shapes:
        return []
    widest = max(len(name) for name, _ in made.shapes)
    lines = ["", "signals"]
    for name, shape in made.shapes:
        letters = " x ".join(getattr(axis, "name", str(axis)) for axis in shape)
        numbers = " x ".join(f"{getattr(axis, 'value', axis):,}" for axis in shape)
        lines.append(f"  {name:<{widest}}  {letters:<14}  {numbers}")
    return lines


def _cell(count: int) -> str:
    return f"{count:,}" if count else "-"


def _size(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:,} bytes"


NAMES = {
    "growth": "token, each further position",
    "start": "reading",
    "token_depth": "depth of a token",
    "saved": "bytes kept for gradients",
    "work": "bytes worked on with gradients",
    "room": "bytes worked on without gradients",
    "state": "bytes of State a row",
    "state_growth": "bytes of State a token",
}


def _formulas(made: Budget) -> list[str]:
    """Every figure of the table: symbols, numbers, value."""
    from regard.budget.closed_form.parts import columns

    lines = []
    for part in made.parts:
        sizes = ", ".join(
            f"{size.name} = {size.value:,}" for size in part.sizes if size not in made.sizes
        )
        lines.append(f"{part.name}{f'  ({sizes})' if sizes else ''}")
        for name, formula in columns(part).items():
            lines += _formula(NAMES.get(name, name), formula)
    lines.append("memory, in bytes")
    for name, formula in made.bytes.items():
        lines += _formula(name, formula)
    return lines


def _formula(name: str, formula: Formula) -> list[str]:
    if formula.symbols == formula.numbers:
        return [f"  {name}: {formula.value:,}"]
    return [f"  {name}: {formula.symbols}", f"    = {formula.numbers}", f"    = {formula.value:,}"]
