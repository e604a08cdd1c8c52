"""regard recipes: list, show, check and copy recipes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from regard.cli import streams
from regard.cli.paths import filled_path
from regard.errors import RecipeError, RegardError, WriteError, printable

recipes = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""List, show, check and copy recipes.

\b
regard recipes copy chat-attention mine.toml
regard recipes check mine.toml
regard train mine.toml""",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A shipped recipe, or a .toml file.")]


@recipes.command("list")
def list_recipes(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the shipped recipes: name, task, data, training time and summary.

    \b
    regard recipes list
    regard recipes list --json
    """
    from regard import recipe
    from regard.recipe.durations import MACHINE, MEASURED, usual

    shipped = {name: recipe.load(name) for name in recipe.names()}
    if as_json:
        records = []
        for name, chosen in shipped.items():
            record = {
                "name": name,
                "task": chosen.task,
                "data": chosen.data.kind,
                "minutes": chosen.train.minutes,
                "measured": MEASURED[name]._asdict() if name in MEASURED else None,
                "summary": chosen.summary,
            }
            records.append(record)
        print(json.dumps(records, indent=2, ensure_ascii=False))
        return

    rows = [("recipe", "task", "data", "takes", "summary")]
    for name, chosen in shipped.items():
        rows.append((name, chosen.task, chosen.data.kind, usual(name, chosen), chosen.summary))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, task, data, takes, summary in rows:
        print(
            f"{name:<{widths[0]}}  {task:<{widths[1]}}  {data:<{widths[2]}}  "
            f"{takes:>{widths[3]}}  {summary}"
        )
    print(
        f"\ntakes: training time as measured on {MACHINE}, or the recipe's train.minutes; "
        "-: not measured"
    )


@recipes.command()
def show(
    name: Name,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print JSON with all values: own, inherited and derived."),
    ] = False,
) -> None:
    """Print a recipe as it is written.

    \b
    regard recipes show chat-transformer
    regard recipes show chat-transformer --json
    """
    from regard import recipe

    if as_json:
        print(json.dumps(recipe.load(name).to_json(), indent=2, ensure_ascii=False))
    else:
        recipe.load(name)  # refuses a file that is not a recipe
        print("\n".join(map(printable, recipe.text(name).split("\n"))), end="")


@recipes.command()
def check(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Recipes to check.")],
) -> None:
    """Report every error in one or more recipes.

    \b
    regard recipes check mine.toml
    regard recipes check experiments/*.toml
    """
    from regard import recipe

    invalid = 0
    for file in files:
        try:
            recipe.load(file)
            print(f"{printable(file)}: in order")
        except RegardError as error:
            invalid += 1
            streams.tell(str(error))
    if invalid:
        raise typer.Exit(2)


@recipes.command()
def copy(
    name: Name,
    to: Annotated[
        Path | None,
        typer.Argument(
            parser=filled_path, help="A file or a folder; default: NAME.toml in this folder."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Copy a recipe, to start your own from it.

    \b
    regard recipes copy chat-attention mine.toml
    """
    from regard import recipe
    from regard.disk import write_text

    recipe.load(name)  # refuses a file that is not a recipe
    toml = recipe.text(name)
    file_name = recipe.resolve_file(name).name
    if to is None:
        to = Path(file_name)
    elif to.is_dir():
        to = to / file_name

    if not force:
        try:
            to.open("x").close()
        except FileExistsError:
            raise RecipeError(
                "a file is there already", where=to, hint="--force overwrites it"
            ) from None
    try:
        write_text(to, toml)
    except WriteError:
        if not force:
            to.unlink()  # the empty file created above
        raise
    print(f"wrote {printable(to)}; change it, then: regard train {printable(to)}")
