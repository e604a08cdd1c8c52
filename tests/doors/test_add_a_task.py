"""docs/add-a-task.md, applied to a copy of the package, adds a task that trains and answers."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doors.test_readme import code_blocks, shell_commands
from tests.tiny import pairs_file

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "add-a-task.md").read_text("utf-8")
SMALL = "--set train.steps=2 --set encoder.width=16 --set decoder.width=16 --set data.valid=0.3"


def apply_diff(diff: str, home: Path) -> None:
    """Replace the old lines of each hunk by the new ones; each must occur exactly once."""
    header, _, body = diff.partition("\n")
    path = home / header.removeprefix("--- ")
    text = path.read_text("utf-8")
    for hunk in body.split("@@\n"):
        lines = hunk.splitlines()
        old = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
        new = "".join(f"{line[1:]}\n" for line in lines if line[0] in " +")
        assert text.count(old) == 1, f"{header} has {text.count(old)} times:\n{old}"
        text = text.replace(old, new)
    path.write_text(text, "utf-8")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package that has the page's task."""
    home = tmp_path_factory.mktemp("package")
    shutil.copytree(ROOT / "regard", home / "regard", ignore=shutil.ignore_patterns("__pycache__"))
    for block in code_blocks(PAGE):
        if block.language == "diff":
            apply_diff(block.text, home)
        elif block.language in ("python", "toml"):
            header, _, content = block.text.partition("\n")
            (home / header.removeprefix("# ")).write_text(content, "utf-8")
    pairs_file(home)
    return home


def test_every_block_is_used():
    assert {block.language for block in code_blocks(PAGE)} == {"python", "diff", "toml", "sh"}


def test_the_commands_of_the_page_work(package: Path):
    environment = os.environ | {
        "PYTHONPATH": str(package),
        "REGARD_CACHE": str(package / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    commands = list(shell_commands(PAGE))
    assert [command.split()[1] for command in commands] == ["train", "ask", "evaluate", "budget"]
    for command in commands:
        short = command.replace("--minutes 8", SMALL)
        words = [sys.executable, "-m", *shlex.split(short)]
        done = subprocess.run(
            words, cwd=package, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        if " evaluate " in command:
            assert re.search(r"\bcer\b", done.stdout) and re.search(r"\bexact\b", done.stdout)
