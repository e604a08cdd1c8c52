"""A data set is added in one file: this one declares dialogues whose turns end in __eou__, and uses
them through every command."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Literal

import pytest

from regard.data.kinds import Contents, DataKind, DataSet, SourceForm, register
from regard.data.kinds.kind import contents_of_paths
from regard.data.kinds.sections import TextFiles
from regard.data.public import Download, PublicDataSet
from regard.errors import InputError
from regard.fields import File

# -- the data set-----------------------------------------------------------------------------------

TURN = "__eou__"


class DataDialogues(TextFiles):
    """Dialogues, one a line, whose turns end in __eou__."""

    kind: Literal["marked"]
    path: File
    """The folder, relative to the folder the command runs in."""
    skip_first: bool = False
    """Leaves out the first turn of every dialogue."""


def dialogue_files(path: str) -> list[Path]:
    return sorted(Path(path).glob("dialogues_*.txt"))


def read_dialogues(path: str, *, skip_first: bool = False, tally, limit: float = 0.5) -> Iterator:
    from regard.data.examples import Example
    from regard.data.lines import read_lines
    from regard.data.reading import checked, usable

    def examples() -> Iterator[Example]:
        for file in dialogue_files(path):
            for line in read_lines(file, tally):
                turns = [turn.strip() for turn in line.split(TURN)[skip_first:-1]]
                for prompt, reply in pairwise(turns):
                    yield from usable(Example(prompt, reply), tally)

    return checked(examples(), path, tally, limit=limit)


def contents(section: DataDialogues, form: SourceForm) -> Contents:
    def reader(path: str):
        return partial(read_dialogues, path, skip_first=section.skip_first)

    return contents_of_paths(section, reader, dialogue_files)


def recognise(path: Path) -> DataSet | None:
    if not path.is_dir() or not dialogue_files(str(path)):
        return None
    return DataSet.at("marked", path, partial(read_dialogues, str(path), limit=1.0))


DIALOGUES = DataKind(
    section=DataDialogues,
    contents=contents,
    recipes={"chat": ("chat-lstm", "chat-gru")},
    words="a folder of dialogues",
    recognise=recognise,
    public=(
        PublicDataSet(
            name="toy-dialogues",
            what="Toy dialogues: 7 of them",
            licence="CC BY-NC-SA 4.0",
            downloads=(Download("dialogues.zip", "https://example.org/dialogues.zip", size=700),),
            keep=("dialogues_*.txt",),
            needs=("dialogues_text.txt",),
            size=7000,
            members=3,
        ),
    ),
)


# -- the commands-----------------------------------------------------------------------------------

WORDS = ("tea", "rain", "chess", "Rome", "jazz", "bread", "stars")
LINES = [
    f"Do you like {word} ? {TURN} Yes , {word} is fine . {TURN} Why {word} ? {TURN} Ask me later . "
    f"{TURN}"
    for word in WORDS
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "dialogues"
    path.mkdir()
    (path / "dialogues_text.txt").write_text("\n".join(LINES) + "\n")
    return path


@pytest.fixture
def regard(tmp_path: Path):
    """A command in a process of its own, in which the data set is registered."""

    def run(*words: object, code: int = 0) -> str:
        command = [sys.executable, __file__, *map(str, words)]
        root = str(Path(__file__).parents[2])
        environment = os.environ | {"PYTHONPATH": root, "REGARD_CACHE": str(tmp_path / "cache")}
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
        )
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    return run


def test_it_is_listed_inspected_and_offered(regard, folder: Path):
    assert "marked            Dialogues, one a line, whose turns end in __eou__." in regard(
        "data", "list"
    )
    record = json.loads(regard("data", "inspect", folder, "--json"))
    assert record["kind"] == "marked" and record["usable"] == 3 * len(WORDS)
    assert record["train"] == f"regard train chat-lstm --data {folder}"
    refusal = regard("train", "translate-attention", "--data", folder, code=2)
    assert "this is a folder of dialogues, which translate-attention does not learn from" in refusal
    assert f"try: regard train chat-lstm --data {folder} (or chat-gru)" in refusal


def test_it_is_trained_on_and_evaluated(regard, folder: Path, tmp_path: Path):
    sizes = ["--set", "encoder.width=14", "--set", "decoder.width=14", "--set", "data.valid=0.3"]
    out = ["--out", tmp_path / "run", "--steps", "2"]
    regard("train", "chat-lstm", "--data", folder, *out, *sizes, "--set", "data.skip_first=true")
    recipe = json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert recipe["data"]["kind"] == "marked" and recipe["data"]["skip_first"]
    assert "perplexity" in regard("evaluate", tmp_path / "run", "--data", folder)


def test_its_section_is_checked_like_every_other(regard, folder: Path, tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text(f'extends = "chat-attention"\n[data]\nkind = "marked"\npath = "{folder}"\n')
    regard("recipes", "check", file)
    file.write_text(file.read_text() + "skip_frist = true\n")
    message = regard("recipes", "check", file, code=2)
    assert 'data.skip_frist: no such field; got true; did you mean "skip_first"?' in message


def test_it_is_fetched_and_its_licence_shown(regard, folder: Path, tmp_path: Path):
    assert "CC BY-NC-SA 4.0" in regard("data", "fetch", "--list")
    site = tmp_path / "site"
    site.mkdir()
    with zipfile.ZipFile(site / "dialogues.zip", "w") as archive:
        archive.write(folder / "dialogues_text.txt", "dialogues_text.txt")
    sha256 = hashlib.sha256((site / "dialogues.zip").read_bytes()).hexdigest()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/dialogues.zip"
        try:
            told = regard("data", "fetch", "toy-dialogues", "--url", url, "--sha256", sha256)
        finally:
            server.shutdown()
            thread.join()
    assert "CC BY-NC-SA 4.0" in told
    fetched = tmp_path / "cache" / "data" / "toy-dialogues"
    assert "marked, 21 usable examples" in regard("data", "inspect", fetched)


def test_a_kind_is_registered_once_and_in_time():
    from regard import recipe

    assert "marked" not in recipe.SECTIONS["data"]
    with pytest.raises(InputError, match=r'regard.recipe is imported already.*got "marked"'):
        register(DIALOGUES)

    class Again(DataDialogues):
        kind: Literal["cornell"]

    with pytest.raises(InputError, match='has this name already; got "cornell"'):
        register(DataKind(section=Again, contents=contents, recipes={"chat": ("chat-lstm",)}))


if __name__ == "__main__":
    register(DIALOGUES)

    from regard.cli import main

    sys.exit(main())
