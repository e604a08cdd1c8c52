"""The commands and the Python of README.md work as they are written, with small budgets."""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from regard import cli, recipe
from regard.train import train
from tests.tiny import (
    PAIRS,
    Silent,
    memorised,
    memorised_pictures,
    memorised_sounds,
    pairs_file,
    pictures_folder,
    sounds_table,
)

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")

# Commands that are not run here, each with the reason.
NOT_RUN = {
    "make demo": "creates .venv and trains for two minutes; its commands are those of test_verbs",
    "pip install .": "installs; test_packaging looks into the wheel",
    "pip install '.[speech,reviews]'": "installs",
    "pip install -c constraints.txt .": "installs; make does the same for the tests",
    "pip download -c constraints.txt -d wheels . 'setuptools>=77' torch==2.13.0": "downloads",
    "pip install --no-index --find-links wheels -c constraints.txt .": "installs",
    "pip install '.[serve]'": "installs",
    "regard serve runs/chat-attention runs/demo-translation": "does not end; test_serve starts it",
    "curl http://127.0.0.1:8000/v1/completions -d "
    """'{"model": "chat-attention", "prompt": "Hello!"}'""": "test_serve_clients runs curl",
    "regard lab all": "a minute or two; test_lab runs every experiment",
}
SHORT = (  # what every training of the README gets, so that it takes seconds
    "train.steps=2",
    "train.epochs=",
    "train.batch_tokens=512",
    "search.max_new_tokens=8",
)


class Block(NamedTuple):
    """A code block: its language, its text and the line it starts at."""

    language: str
    text: str
    line: int


def code_blocks(page: str) -> list[Block]:
    """The fenced code blocks of a page."""
    fences = re.finditer(r"^```(\w*)\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    return [Block(fence[1], fence[2], page.count("\n", 0, fence.start()) + 1) for fence in fences]


def shell_commands(page: str) -> Iterator[str]:
    """Each command of the page's shell blocks, without its comment."""
    for block in code_blocks(page):
        if block.language != "sh":
            continue
        for line in block.text.splitlines():
            command = re.sub(r"\s+# .*", "", line).strip()
            if command:
                yield command


def shortened(words: list[str]) -> list[str]:
    """A command with a budget of a few steps, if it trains."""
    if words[:1] != ["train"]:
        return words
    if "--minutes" in words:
        place = words.index("--minutes")
        words = words[:place] + words[place + 2 :]
    return words + [word for change in SHORT for word in ("--set", change)]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the files that the README takes for granted."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    pairs_file(tmp_path)
    sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    config = sizes | dict(model_type="bert", vocab_size=50, max_position_embeddings=64)
    (tmp_path / "config.json").write_text(json.dumps(config))
    Image.fromarray(np.full((8, 8), 128, np.uint8)).save(tmp_path / "seven.png")
    return tmp_path


def test_every_block_says_what_it_is():
    assert {block.language for block in code_blocks(README)} == {"sh", "python", "text"}
    outside = re.sub(r"^```\w*\n.*?^```$", "", README, flags=re.MULTILINE | re.DOTALL)
    assert not re.findall(r"^ {4}\S.*", outside, flags=re.MULTILINE)


def test_every_command_is_run_here_or_listed_with_a_reason():
    commands = list(shell_commands(README))
    unknown = [command for command in commands if not command.startswith("regard ")]
    assert set(unknown) <= set(NOT_RUN), "neither run nor listed in NOT_RUN"
    assert set(NOT_RUN) <= set(commands), "listed in NOT_RUN, but no longer in the README"


def test_the_commands_work(home: Path, capsys, monkeypatch):
    for command in shell_commands(README):
        if command in NOT_RUN:
            continue
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{PAIRS[0][0]}\n/attend\n/quit\n"))
        code = cli.main(shortened(shlex.split(command)[1:]))
        streams = capsys.readouterr()
        assert code == 0, f"{command}\n{streams.err}"
        assert streams.out.strip(), command


def test_the_python_works(home: Path):
    runs = home / "runs"
    changes = {
        "demo": ("chat-attention", memorised(home / "pairs.tsv", "train.steps=2")),
        "image-pool": (
            "image-pool",
            memorised_pictures(pictures_folder(home, side=8), "train.steps=2"),
        ),
        "speech-attention": (
            "speech-attention",
            memorised_sounds(sounds_table(home), "train.steps=2"),
        ),
    }
    for name, (base, settings) in changes.items():
        train(recipe.load(base, settings), runs / name, reporter=Silent())

    samples = np.sin(np.linspace(0, 900, 4000)).astype(np.float32)
    for block in code_blocks(README):
        if block.language == "python":
            code = "\n" * block.line + block.text  # so that an error names the line of the README
            exec(compile(code, "README.md", "exec"), {"samples": samples})


PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
)


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_files_and_headings(name: str):
    page = ROOT / name
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name}: no {link}"
        if anchor:
            assert anchor in anchors(target.read_text("utf-8")), f"{name}: no {link}"


def anchors(page: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_index_names_every_page():
    pages = {name for name in PAGES if not name.startswith("docs/lab/") and name != "README.md"}
    index = README[README.index("## Documentation") :]
    assert pages == {link for link in re.findall(r"\]\(([^)#]+\.md)\)", index) if "lab" not in link}


def test_the_records_of_the_figures_exist():
    section = README[README.index("## Figures") : README.index("## Parameters")]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| ")]
    names = {name.strip() for row in rows[1:] for name in row[4].split(",")}
    missing = [name for name in names if not (ROOT / f"bench/results/{name}.json").exists()]
    assert names and not missing
