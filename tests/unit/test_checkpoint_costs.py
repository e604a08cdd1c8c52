"""The benchmark of checkpoints, on tiny recipes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench import checkpoints
from regard import checkpoint, recipe
from regard.train.loop import Loop
from tests.tiny import memorised, pairs_file


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for owner, name in ((checkpoint, "save"), (Loop, "_step")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # Timer replaces it


def record_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *more: str, steps: int) -> dict:
    chosen = recipe.load("chat-gru", memorised(pairs_file(tmp_path), *more))
    monkeypatch.setattr(recipe, "load", lambda name, changes: chosen.override(changes))
    words = ["--recipes", "tiny", "--steps", str(steps), "--threads", "1", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["checkpoints", *words])
    checkpoints.main()
    return json.loads((tmp_path / "checkpoints.json").read_text())


def test_a_recipe_that_saves_after_each_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Ten batches of one example; a step takes three of them."""
    more = ["train.save_every=0", "train.batch_tokens=1", "data.valid=0"]
    more.append("train.gradient_accumulation_steps=3")
    record = record_of(tmp_path, monkeypatch, *more, steps=8)
    (row,) = record["rows"]
    assert row["save_every"] == 4 and row["share"] > 0 and row["steps"] == 7
    assert {"date", "revision", "command", "seed", "threads", "machine", "versions"} <= {*record}


def test_few_steps_are_enough_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    (row,) = record_of(tmp_path, monkeypatch, steps=checkpoints.WARMUP + 2)["rows"]
    assert len(row["seconds_of_saves"]) >= checkpoints.SAVES
    with pytest.raises(SystemExit):
        record_of(tmp_path, monkeypatch, steps=checkpoints.WARMUP + 1)
    assert "must be at least 7" in capsys.readouterr().err
