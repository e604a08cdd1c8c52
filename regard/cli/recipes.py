"""regard recipes: what ships, what a recipe says, whether yours is in order."""

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
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list, for programs.")] = False,
) -> None:
    """The recipes that ship with regard: name, task, data, how long training usually takes, and what it is.

    \b
    regard recipes list
    regard recipes list --json
    """
    from regard import recipe
    from regard.recipe.durations import MACHINE, MEASURED, usual

    shipped = {name: recipe.load(name) for name in recipe.names()}
    if as_json:
        records = []
        for name, each in shipped.items():
            record = {
                "name": name,
                "task": each.task,
                "data": each.data.kind,
                "minutes": each.train.minutes,
            }
            measured = MEASURED[name]._asdict() if name in MEASURED else None
            records.append(record | {"measured": measured, "summary": each.summary})
        print(json.dumps(records, indent=2, ensure_ascii=False))
        return
    rows = [("recipe", "task", "data", "takes", "what it is")]
    rows += [
        (name, each.task, each.data.kind, usual(name, each), each.summary)
        for name, each in shipped.items()
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, task, data, takes, summary in rows:
        print(
            f"{name:<{widths[0]}}  {task:<{widths[1]}}  {data:<{widths[2]}}  {takes:>{widths[3]}}  {summary}"
        )
    print(
        f"\ntakes: training as measured on {MACHINE}, or the recipe's own train.minutes; -: not measured"
    )


@recipes.command()
def show(
    name: Name,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Every value in place, what it extends and the derived ones too."
        ),
    ] = False,
) -> None:
    """A recipe as it was written.

    \b
    regard recipes show chat-transformer
    regard recipes show chat-transformer --json
    """
    from regard import recipe

    if as_json:
        print(json.dumps(recipe.load(name).to_json(), indent=2, ensure_ascii=False))
    else:
        recipe.load(name)  # what is no recipe is not shown
        print("\n".join(map(printable, recipe.text(name).split("\n"))), end="")


@recipes.command()
def check(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Recipes to read.")],
) -> None:
    """Say everything that is wrong with some recipes.

    \b
    regard recipes check mine.toml
    regard recipes check experiments/*.toml
    """
    from regard import recipe

    wrong = 0
    for file in files:
        try:
            recipe.load(file)
            print(f"{printable(file)}: in order")
        except RegardError as error:
            wrong += 1
            streams.tell(str(error))
    if wrong:
        raise typer.Exit(2)


@recipes.command()
def copy(
    name: Name,
    to: Annotated[
        Path | None,
        typer.Argument(parser=filled_path, help="A file or a folder; not given: NAME.toml here."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
) -> None:
    """Start a recipe of your own from another.

    \b
    regard recipes copy chat-attention mine.toml
    """
    from regard import recipe
    from regard.disk import write_text

    recipe.load(name)  # what is no recipe is not copied
    written = recipe.text(name)
    file_name = recipe.resolve_file(name).name
    to = Path(file_name) if to is None else to / file_name if to.is_dir() else to
    if not force:
        try:
            to.open("x").close()
        except FileExistsError:
            raise RecipeError(
                "a file is there already", where=to, hint="--force overwrites it"
            ) from None
    try:
        write_text(to, written)
    except WriteError:
        if not force:
            to.unlink()  # the empty file that kept the name
        raise
    print(f"wrote {printable(to)}; change it, then: regard train {printable(to)}")
