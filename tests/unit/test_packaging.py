"""What an installed regard contains besides Python files."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import regard

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
NOT_PYTHON = {
    path.relative_to(ROOT / "regard")
    for path in (ROOT / "regard").rglob("*")
    if path.is_file() and path.suffix not in (".py", ".pyc")
}


def test_every_file_that_is_not_python_is_declared():
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["regard"]
    declared = {
        path.relative_to(ROOT / "regard")
        for pattern in patterns
        for path in (ROOT / "regard").glob(pattern)
    }
    assert declared == NOT_PYTHON
    assert {Path("py.typed"), Path("layers/step.c")} <= declared


def test_a_package_is_required_once():
    project = PROJECT["project"]
    for requirements in (project["dependencies"], *project["optional-dependencies"].values()):
        names = [re.split(r"[\[<>=; ]", requirement)[0] for requirement in requirements]
        assert len(names) == len({*names})


def test_make_bench_makes_the_records_of_the_documentation():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    (line,) = re.findall(r"for name in (.*?); do", makefile)
    names = line.split()
    assert {"checkpoints", "recovery", "scaling", "serve"} <= {*names}
    preparation = "python -m bench.preparation --peer-pairs 1000000 --check-resume\n"
    assert preparation in makefile  # without options, its record lacks figures that are quoted
    assert all((ROOT / "bench" / f"{name}.py").exists() for name in names)


def test_the_citation_has_the_version_of_the_package():
    assert f"\nversion: {regard.__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")


@pytest.mark.long
def test_a_wheel_contains_them(tmp_path: Path):
    copy = tmp_path / "copy"  # setuptools leaves a folder `build` where it works
    ignored = shutil.ignore_patterns(".*", "build", "runs", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT, copy, ignore=ignored)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), "."]
    subprocess.run(command, cwd=copy, check=True)
    (wheel,) = tmp_path.glob("regard-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"regard/{path.as_posix()}" for path in NOT_PYTHON} <= names
    assert not [name for name in names if name.startswith(("tests/", "bench/"))]
