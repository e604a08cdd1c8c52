"""The recipe and the folder of a run, new or resumed, from Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from regard import recipe, runs
from regard.data.kinds.translation import DataParallel
from regard.errors import DataError, InputError, RecipeError
from regard.runs import Limits
from regard.train import SilentReporter, train_job
from tests.tiny import memorised, pairs_file


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_new_run_is_trained_and_resumed(home: Path):
    small = [change for change in memorised(pairs_file(home)) if not change.startswith("data.")]
    new = runs.new("chat-gru", data=home / "pairs.tsv", changes=small, limits=Limits(steps=2))
    job = new.job()
    assert job.run == Path("runs/chat-gru") and not job.resume
    assert job.recipe.data.kind == "pairs" and job.recipe.train.steps == 2

    reporter = SilentReporter()
    result = train_job(job, reporter)
    assert result.progress.step == 2 and result.facts is reporter.facts
    assert result.to_json()["run"] == "runs/chat-gru"
    assert result.to_json()["best"] == {
        "value": result.progress.best_score,
        "step": result.progress.best_step,
    }
    assert new.job().run == Path("runs/chat-gru-2")

    again = train_job(runs.resumed(job.run, limits=Limits(steps=3)))
    assert (again.facts.resumed_at, again.progress.step) == (2, 3)


def test_a_recipe_itself_may_be_trained():
    chosen = recipe.load("chat-gru")
    new = runs.new(chosen, changes=["encoder.layers=3"], limits=Limits(minutes=1.5))
    deeper = chosen.override(["encoder.layers=3"])
    assert new.name == "chat" and new.recipe().encoder == deeper.encoder != chosen.encoder
    assert new.recipe(["seed=7"]).seed == 7
    train = new.recipe().train
    assert (train.minutes, train.steps, train.epochs, train.tokens) == (1.5, None, None, None)


def test_own_data_replaces_the_held_out_files_of_a_recipe(home: Path):
    """Also those of translations: a recipe for two files names four."""
    for name in ("a.en", "a.de"):
        (home / name).write_text("one\ntwo\n")
    named = ["data.kind=parallel", 'data.target_path="a.de"']
    new = runs.new("multi30k-attention", data=home / "a.en", changes=named)
    data = new.recipe().data
    assert isinstance(data, DataParallel) and data.target_path.endswith("a.de")
    assert data.valid_path is data.valid_target_path is data.test_path is None


@pytest.mark.parametrize("limit", [0, -1.0, float("inf"), float("nan")])
def test_a_limit_is_more_than_nothing(limit: float):
    with pytest.raises(InputError, match="--minutes: a budget must be more than 0; got"):
        runs.new("chat-gru", limits=Limits(minutes=limit))


def test_what_cannot_be_trained_is_told(home: Path):
    with pytest.raises(RecipeError, match="no such recipe"):
        runs.new("chat-grew")
    with pytest.raises(DataError, match="no such file or folder.*--data PATH"):
        runs.new("chat-gru", changes=["data.kind=pairs", "data.path=gone.tsv"])
    with pytest.raises(InputError, match="no such run"):
        runs.resumed(home / "gone")
    (home / "other").mkdir()
    with pytest.raises(InputError, match="not a run folder"):
        runs.resumed(home / "other")


def test_saying_what_to_train_does_not_load_torch():
    code = (
        "import sys; from regard import runs; runs.new('chat-gru').job(); "
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
