"""Batches that grow in training."""

from __future__ import annotations

import pytest

from regard import recipe
from regard.train import train
from regard.train.loop import Loop
from tests.tiny import Silent, memorised, pairs_file


def sizes(tmp_path, monkeypatch: pytest.MonkeyPatch, *changes: str) -> list[int]:
    """The number of batches, of one example each, of each step of a training."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    step = Loop._step
    seen: list[int] = []

    def counted(loop: Loop, group):
        seen.append(len(group))
        return step(loop, group)

    monkeypatch.setattr(Loop, "_step", counted)
    sets = memorised(pairs_file(tmp_path), "train.batch_tokens=1", *changes)
    train(recipe.load("chat-attention", sets), tmp_path / "run", reporter=Silent())
    return seen


def test_they_grow_after_equal_shares_of_the_budget(tmp_path, monkeypatch: pytest.MonkeyPatch):
    growing = sizes(tmp_path, monkeypatch, "train.steps=6", "train.batch_growth=2")
    assert growing == [1, 1, 1, 2, 2, 2]


def test_they_multiply_with_accumulation(tmp_path, monkeypatch: pytest.MonkeyPatch):
    more = ["train.steps=2", "train.batch_growth=2", "train.gradient_accumulation_steps=3"]
    assert sizes(tmp_path, monkeypatch, *more) == [3, 6]
    assert recipe.load("chat-attention", more).train.batches_a_step == 4.5
