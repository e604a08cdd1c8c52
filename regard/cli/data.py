"""regard data: what can be read, and what a file holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

data = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""What regard can read, and what a file of yours holds.

\b
regard data list
regard data inspect pairs.tsv""",
)


@data.command("list")
def list_data(as_json: Annotated[bool, typer.Option("--json", help="A JSON list, for programs.")] = False) -> None:
    """The kinds of data that can be read.

    \b
    regard data list
    """
    from regard.recipe import SECTIONS

    kinds = {kind: (model.__doc__ or "").strip() for kind, model in SECTIONS["data"].items()}
    if as_json:
        print(json.dumps([{"kind": kind, "what": what} for kind, what in kinds.items()]))
    else:
        print("\n".join(f"{kind:<18}{' '.join(what.split())}" for kind, what in kinds.items()))


@data.command()
def inspect(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A file or folder.")],
    source_column: Annotated[str | None, typer.Option(help="Name or number of the column with the prompt.")] = None,
    target_column: Annotated[str | None, typer.Option(help="Name or number of the column with the answer.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """How many usable examples a file has, what is wrong with the others, and three of them.

    \b
    regard data inspect pairs.tsv
    regard data inspect cornell/ --json
    """
    from regard.data.readers import inspect as look

    found = look(path, source_column=source_column, target_column=target_column)
    print(json.dumps(found, ensure_ascii=False, indent=1) if as_json else _shown(path, found))


def _shown(path: Path, found: dict[str, Any]) -> str:
    lines = [f"{path}: {found['kind']}, {found['usable']:,} usable examples"]
    lines += [f"  skipped {count:,}: {reason}" for reason, count in found["skipped"].items()]
    if found["replaced_characters"]:
        lines.append(f"  {found['replaced_characters']:,} characters replaced")
    for side, words in found["words"].items():
        lines.append(f"  {side}: " + ", ".join(f"{name} {count:,}" for name, count in words.items()) + " words")
    lines += [f"    {one['source']}  ->  {one['target']}" for one in found["samples"]]
    lines.append(f"train on it with: regard train chat-attention --data {path}")
    return "\n".join(lines)
