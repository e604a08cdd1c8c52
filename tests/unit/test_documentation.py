"""What the documentation says about the source tree is true."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULES = {
    path.stem if path.is_file() else f"{path.name}/"
    for path in (ROOT / "regard").iterdir()
    if path.suffix == ".py" or (path / "__init__.py").exists()
} - {"__init__", "__main__"}


def section(page: str, title: str) -> str:
    return (ROOT / page).read_text("utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_rows_of_the_architecture_are_those_of_the_contract():
    lines = re.findall(r"^    (\S.*)$", section("docs/architecture.md", "Rows of modules"), re.M)
    rows = [re.split(r" {3,}", line)[0].split() for line in lines]
    names = [name for row in rows for name in row]
    assert sorted(names) == sorted(MODULES)

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    levels = {}
    for level, layer in enumerate(reversed(layers)):
        for name in re.findall(r"\w+", layer):
            levels[name] = level
    order = [levels[name.rstrip("/")] for name in names]
    assert order == sorted(order)


def test_every_path_of_the_source_tree_exists():
    tree = section("README.md", "Source tree").partition("```text\n")[2].partition("```")[0]
    paths = re.findall(r"\S*(?:/|\.py)(?=\s|$)", tree)
    assert len(paths) > 15
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_file_that_a_page_names_exists():
    """Paths in backticks, such as `tests/laws/test_devices.py` or `search/engine.py`."""
    gone = []
    for page in ("docs/architecture.md", "CONTRIBUTING.md", "docs/reliability.md"):
        text = (ROOT / page).read_text("utf-8")
        for path in re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.(?:py|c|toml|md))?)`", text):
            inside = (ROOT / "regard").rglob(path.rstrip("/"))
            if not (ROOT / path).exists() and not any(inside):
                gone.append(f"{page}: {path}")
    assert gone == []
