"""regard data: what can be read, what a file holds, and public data sets to fetch."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.paths import filled_path
from regard.errors import printable

if TYPE_CHECKING:
    from regard.cli.console import Console
    from regard.data.download import Progress
    from regard.data.public import PublicDataSet

QUIET_SECONDS = 10  # between two lines when there is no terminal

data = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""List, inspect, fetch and export data sets.

\b
regard data list
regard data inspect pairs.tsv
regard data fetch cornell
regard data export digits digits/""",
)


@data.command("list")
def list_data(
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list, for programs.")] = False,
) -> None:
    """List the kinds of data that can be read.

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
    path: Annotated[
        Path,
        typer.Argument(
            parser=filled_path,
            metavar="PATH",
            help="A file or folder, a pattern in quotes, or - for standard input.",
        ),
    ],
    source_column: Annotated[
        str | None, typer.Option(help="Name or number of the column with the prompt.")
    ] = None,
    target_column: Annotated[
        str | None, typer.Option(help="Name or number of the column with the answer.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """Say what a file or folder is: its usable examples, what is wrong with the others, samples.

    \b
    regard data inspect pairs.tsv
    regard data inspect cornell/ --json
    regard data inspect LJSpeech-1.1/
    regard data inspect 'part-*.jsonl.gz'
    """
    from regard.data.inspect import inspect as look

    record = look(path, source_column=source_column, target_column=target_column)
    print(json.dumps(record, ensure_ascii=False, indent=1) if as_json else _page(path, record))


@data.command()
def fetch(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A data set; --list names them.")
    ] = None,
    list_all: Annotated[
        bool, typer.Option("--list", help="What can be fetched, with sizes and licences.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(parser=filled_path, help="Its folder. Default: one in the cache."),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="Another address of the file, or of the folder of several files, ending in /."
        ),
    ] = None,
    sha256: Annotated[
        str | None,
        typer.Option(help="The SHA-256 the file should have, instead of the one regard knows."),
    ] = None,
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="Restore fetched files that are missing or were changed since."
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="The result as JSON on stdout; the rest on stderr.")
    ] = False,
) -> None:
    """Download a public data set, check and unpack it.

    A download that was stopped, by Ctrl-C or a broken connection, is resumed when run again.
    Fetched files that you changed are overwritten only with --again, other files never.

    \b
    regard data fetch --list
    regard data fetch cornell
    regard data fetch ljspeech --out /data/ljspeech --url https://mirror.example/LJSpeech-1.1.tar.bz2
    """
    from regard.cli.console import Console
    from regard.data.fetch import SETS, choose, folder_of
    from regard.data.fetch import fetch as bring
    from regard.errors import InputError

    if list_all:
        rows = [_facts(data_set) for data_set in SETS.values()]
        if as_json:
            print(json.dumps(rows, ensure_ascii=False, indent=1))
        else:
            print("\n\n".join(map(_description, rows)))
        return
    if name is None:
        raise InputError(
            "no data set named", hint=f"regard data fetch NAME; known: {', '.join(SETS)}"
        )
    data_set = choose(name, url=url, sha256=sha256)
    folder = folder_of(data_set, out)
    console = Console(stderr=as_json, highlight=False)
    description = _description(_facts(data_set) | {"into": str(folder)})
    console.print(description, soft_wrap=True, markup=False)
    began = time.monotonic()
    try:
        with _progress(console) as progress:
            record = bring(data_set, folder, progress, again=again)
    except KeyboardInterrupt:
        print("regard: what has come is kept; the same command goes on from there", file=sys.stderr)
        raise
    if as_json:
        print(json.dumps(record, ensure_ascii=False, indent=1))
        return
    done = f"fetched in {time.monotonic() - began:.0f} s"
    if record["already"]:
        done = "it is there already"
    count = "1 file" if record["files"] == 1 else f"{record['files']:,} files"
    print(f"{done}: {count}, {_size(record['bytes'])}")
    for download in record["downloads"]:
        if download["checked"] is None:
            sha256 = download["sha256"]
            print(f"its checksum was not known beforehand; this file has sha256 {sha256}")
    if data_set.wants:
        print(f"it still needs {data_set.wants}")
    command = shlex.join(["regard", "data", "inspect", record["folder"]])
    print(printable(f"look at it with: {command}"))


@data.command("export")
def export_data(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="digits, drawings or voices.")],
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="A new folder, or an empty one.", parser=filled_path),
    ],
    count: Annotated[int, typer.Option(min=1, max=100_000, help="The number of files.")] = 100,
    seed: Annotated[
        int,
        typer.Option(
            min=0, max=2**32 - 1, help="Which ones. Recipes are trained on the drawings of seed 1."
        ),
    ] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """Write some of the built-in data as files, with a table of the right answers.

    Digits are pictures in a folder for each label; image-pool is trained on most of them.
    Drawings have a table of captions. Voices have the layout of LJ Speech, are not in the
    training data of speech-attention, and need the extra "speech".

    \b
    regard data export digits digits/
    regard data export drawings drawings/ --count 20
    regard data export voices voices/ --seed 7
    """
    from regard.data.export import export

    exported = export(kind, folder, count=count, seed=seed)
    table = str(folder / exported.table)
    if as_json:
        record = {
            "folder": str(folder),
            "files": exported.files,
            "table": table,
            "recipe": exported.recipe,
        }
        print(json.dumps(record, ensure_ascii=False, indent=1))
        return
    files = "1 file" if count == 1 else f"{count:,} files"
    ask = ["regard", "ask", f"runs/{exported.recipe}", str(folder / exported.files[0])]
    train = ["regard", "train", exported.recipe, "--data", str(folder)]
    print(printable(f"wrote {files} into {folder}; the right answers are in {table}"))
    print(printable(f"ask about one with: {shlex.join(ask)}"))
    print(printable(f"train on them with: {shlex.join(train)}"))


def _facts(data_set: PublicDataSet) -> dict[str, Any]:
    """What a person should know before the download begins."""
    return {
        "name": data_set.name,
        "what": data_set.what,
        "from": data_set.address,
        "files": len(data_set.downloads),
        "bytes": data_set.bytes,
        "exact": all(download.exact for download in data_set.downloads),
        "licence": data_set.licence,
        "sums": [download.sum for download in data_set.downloads],
    }


def _description(facts: dict[str, Any]) -> str:
    count = facts["files"]
    size = _size(facts["bytes"])
    if not facts["exact"]:
        size = f"about {size}"
    if count > 1:
        size += f", {count} files"
    rows = {
        "from": facts["from"],
        "size": size,
        "licence": facts["licence"],
        "sum": _sums(facts["sums"]),
        "into": facts.get("into"),
    }
    lines = [f"{facts['name']}: {facts['what']}"]
    lines += [f"  {name:<9}{printable(value)}" for name, value in rows.items() if value]
    return "\n".join(lines)


def _sums(sums: list[str | None]) -> str:
    """
    >>> _sums(["md5:07"]), _sums([None]), _sums(["md5:07", None])
    ('md5 07', 'not known', 'known for 1 of the 2 files')
    """
    known = [digest for digest in sums if digest]
    if len(sums) == 1:
        return known[0].replace(":", " ") if known else "not known"
    number = "each" if len(known) == len(sums) else f"{len(known)}"
    return f"known for {number} of the {len(sums)} files"


def _size(count: float) -> str:
    """
    >>> _size(999), _size(9_916_637), _size(2_748_572_632)
    ('999 bytes', '9.9 MB', '2.7 GB')
    """
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


@contextmanager
def _progress(console: Console) -> Iterator[Progress]:
    """A bar in a terminal; elsewhere a line now and then."""
    if console.is_terminal:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import Progress as Bar

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
        )
        with Bar(*columns, TimeRemainingColumn(), console=console) as bar:
            tasks: dict[str, Any] = {}

            def draw(name: str, done: int, total: int | None) -> None:
                if name not in tasks:
                    tasks[name] = bar.add_task(name, total=total)
                bar.update(tasks[name], completed=done, total=total)

            yield draw
        return
    last_line = time.monotonic()

    def say(name: str, done: int, total: int | None) -> None:
        nonlocal last_line
        if time.monotonic() - last_line >= QUIET_SECONDS:
            last_line = time.monotonic()
            of = "" if total is None else f" of {_size(total)}"
            console.print(f"  {name}: {_size(done)}{of}", soft_wrap=True, markup=False)

    yield say


def _page(path: Path, record: dict[str, Any]) -> str:
    """The record of `inspect` as lines of text."""
    if record["kind"] == "several":
        return _several(path, record["sets"])
    lines = [f"{path}: {record['kind']}, {record['usable']:,} usable examples"]
    if "pictures" in record:
        lines[0] += f" of {record['pictures']:,} pictures"
    if "dialogues" in record:
        lines[0] += f" of {record['dialogues']:,} dialogues"
    if "note" in record:
        lines.append(f"  {record['note']}")
    lines += [f"  skipped {count:,}: {reason}" for reason, count in record["skipped"].items()]
    if record["replaced_characters"]:
        lines.append(f"  {record['replaced_characters']:,} characters replaced")

    counts = {f"{side} words": words for side, words in record["words"].items()}
    counts |= {name: record[name] for name in ("seconds", "labels") if name in record}
    for what, numbers in counts.items():
        listed = ", ".join(f"{name} {number:,}" for name, number in numbers.items())
        lines.append(f"  {what}: {listed}")
    lines += [f"    {'  ->  '.join(sample.values())}" for sample in record["samples"]]
    if "dialogues" in record:
        lines.append("  a model reads earlier turns too with --set data.turns=3")
    lines.append(f"train on it with: {record['train']}")
    return "\n".join(map(printable, lines))


def _several(path: Path, data_sets: list[dict[str, str]]) -> str:
    """A command to look at each of several data sets in a folder."""
    commands = {}
    for data_set in data_sets:
        command = shlex.join(["regard", "data", "inspect", data_set["path"]])
        commands[command] = data_set["what"]
    width = max(map(len, commands))
    lines = [f"{path}: {len(commands)} data sets; look at one with:"]
    lines += [f"  {command:<{width}}   # {what}" for command, what in commands.items()]
    return "\n".join(lines)
