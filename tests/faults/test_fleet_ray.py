"""A real Ray cluster of two nodes on this machine: a node that dies, Ctrl-C, and the same results
as without it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.doors.test_compare_verb import RECIPES, SMALL, sets
from tests.tiny import memorised, pairs_file

if importlib.util.find_spec("ray") is None:
    pytest.skip("needs Ray: pip install ray", allow_module_level=True)

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return os.environ | {
        "HOME": str(tmp_path),  # Ray writes a token there
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "REGARD_CACHE": str(tmp_path / "cache"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
    }


def on_cluster(what: str, out: Path, words: list[str], environment: dict[str, str]) -> Any:
    with tempfile.TemporaryDirectory(prefix="ray") as folder:  # paths of its sockets must be short
        command = [sys.executable, "-m", "tests.ray_fleet", what, folder, str(out), *words]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT, timeout=850
        )
    assert done.returncode == 0
    return json.loads(done.stdout.splitlines()[-1])


def regard(words: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "regard", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)


def outcome_of(cell: Path) -> dict[str, Any]:
    """What a cell says that does not depend on who made it and how fast."""
    content = json.loads(cell.read_text("utf-8"))
    for name in ("run", "seconds", "measured"):
        del content[name]
    return content


def test_a_plan_ends_with_every_cell_though_a_node_dies(tmp_path: Path, environment):
    # Long enough that the cell is still trained when its node dies.
    steady = sets(*SMALL, "train.save_every=50", "train.valid_every=1000")
    words = ["compare", *RECIPES, "--steps", "600", "--seeds", "2", "--score", "bleu", *steady]
    words += ["--json", "--out"]
    result = on_cluster("compare", tmp_path / "ray", [*words, str(tmp_path / "ray")], environment)
    assert result["code"] == 0, result["err"]
    record = json.loads(result["out"])  # nothing else is on stdout
    assert record["is_complete"]

    killed = Path(result["killed"])
    assert (killed / "result.json").exists()
    assert "its machine or process ended, and another one goes on" in result["err"]
    sessions = json.loads((killed / "sessions.json").read_text())
    assert len(sessions if isinstance(sessions, list) else sessions["sessions"]) == 2

    # The same without Ray: the same weights and answers.
    assert regard([*words, str(tmp_path / "here")], environment).returncode == 0
    cells = sorted(path.name for path in (tmp_path / "here" / "cells").glob("*.json"))
    assert len(cells) == 4
    for name in cells:
        here, there = (outcome_of(tmp_path / where / "cells" / name) for where in ("here", "ray"))
        assert here == there

    # Nothing is done again.
    files = sorted((tmp_path / "ray" / "cells").glob("*.json"))
    before = [path.stat().st_mtime_ns for path in files]
    again = on_cluster("run", tmp_path / "ray", [*words, str(tmp_path / "ray")], environment)
    assert again["code"] == 0 and json.loads(again["out"])["pairs"] == record["pairs"]
    assert [path.stat().st_mtime_ns for path in files] == before


def test_ctrl_c_leaves_runs_that_go_on(tmp_path: Path, environment):
    tiny = memorised(pairs_file(tmp_path), "encoder.width=8", "train.threads=1")
    changes = [*tiny, "train.steps=400", "train.save_every=20", "train.valid_every=200"]
    out = tmp_path / "s"
    words = ["train", "chat-gru", *sets(*changes), "--out", str(out), "--json"]
    words += ["--sweep", "train.learning_rate=0.001,0.01"]
    result = on_cluster("stop", out, words, environment)
    assert result["code"] == 130, result["err"]
    last = result["err"].splitlines()[-1]
    assert last.startswith("regard: stopped; the runs under way have saved checkpoints; ")
    assert last.endswith("the same command goes on with this sweep")
    assert "Traceback" not in result["err"]
    assert [trial["state"] for trial in json.loads(result["out"])["trials"]] == ["stopped"] * 2
    saved = {
        run.parent.name: max(int(path.name.removeprefix("step-")) for path in run.glob("step-*"))
        for run in out.glob("*/checkpoints")
    }
    assert len(saved) == 2 and all(0 < step < 400 for step in saved.values())

    done = regard(words, environment)  # without Ray
    assert done.returncode == 0
    for name, step in saved.items():
        assert f"resuming at step {step:,}" in done.stderr, name


def test_a_search_makes_as_many_trials_as_asked(tmp_path: Path, environment):
    pytest.importorskip("optuna")
    tiny = memorised(pairs_file(tmp_path), "encoder.width=8", "train.threads=1")
    changes = [*tiny, "train.steps=6", "train.valid_every=3"]
    out = tmp_path / "s"
    words = ["train", "chat-gru", *sets(*changes), "--out", str(out), "--json", "--prune"]
    words += ["--sweep", "train.learning_rate=1e-4..1e-1", "--trials", "5"]
    result = on_cluster("run", out, words, environment)
    assert result["code"] == 0, result["err"]
    trials = json.loads(result["out"])["trials"]
    assert len(trials) == 5
    assert {trial["state"] for trial in trials} <= {"done", "pruned"}
    assert len(list(out.glob("*/result.json"))) == 5


@pytest.mark.parametrize("address", ["auto", "127.0.0.1:1", "ray://127.0.0.1:1"])
def test_a_cluster_that_is_not_there_is_one_line(tmp_path: Path, environment, address: str):
    words = ["train", "chat-gru", "--sweep", "seed=1,2", "--out", str(tmp_path / "s")]
    done = regard([*words, "--ray", address], environment)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(
        f"regard: --ray: no Ray cluster can be reached; got {address}: "
    )
    assert "Traceback" not in done.stderr and not (tmp_path / "s").exists()
