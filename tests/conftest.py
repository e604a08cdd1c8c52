"""Shapes are checked in the tests of parts, laws and recipes: the signatures' jaxtyping
annotations, enforced by beartype. Tests of doors and faults train the same models again, and
mostly in processes of their own; checks would make them a third slower."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import hypothesis
import jaxtyping
import pytest
from jaxtyping import install_import_hook

if "PYTEST_XDIST_WORKER" in os.environ:
    # Before anything imports torch: workers share the cores already, and processes they start
    # should not add to it.
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

CHECKED = ["values", "layers", "frontends", "encoders", "decoders", "model", "tasks"]
# The rest of search handles single rows in Python, which checks would make several times slower.
CHECKED += ["search.choice", "search.processors", "search.over_memory"]
# With PEP 484's tower, as pyright has it: an int will do where a float is asked for.
CHECKER = "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
install_import_hook([f"regard.{module}" for module in CHECKED], CHECKER)
UNCHECKED = {"doors", "faults"}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    jaxtyping.config.update("jaxtyping_disable", item.path.parent.name in UNCHECKED)


# The same examples in every run; HYPOTHESIS_PROFILE=default looks for new ones. No deadline: a
# machine shared with others is slow at times.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], None]], Path]:
    """Fills a folder of this name once for all worker processes, which may each have a part of the
    tests of a file. The others wait, so this is for what keeps all cores busy."""

    def filled(name: str, fill: Callable[[Path], None]) -> Path:
        root = tmp_path_factory.getbasetemp()
        if "PYTEST_XDIST_WORKER" in os.environ:
            root = root.parent
        folder, is_filled = root / name, root / f"{name}-filled"
        with (root / f"{name}-lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_filled.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of one that failed
                folder.mkdir()
                fill(folder)
                is_filled.touch()
        return folder

    return filled


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real corpora beside the repository (see README); they are too large, and not ours, to be
    in it."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the corpora in {folder}, which is not there")
    return folder
