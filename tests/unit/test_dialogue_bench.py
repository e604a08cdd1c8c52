"""Variants of the dialogue benchmark: what they are trained with, and what their record says."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import dialogue, measure
from regard import recipe


def options(**more: Any) -> argparse.Namespace:
    given = {"epochs": None, "minutes": 8.0, "seed": 1, "threads": 2, "data": Path("data")}
    return argparse.Namespace(**{**given, "only": None, "record": "dialogue_variants", **more})


@pytest.mark.parametrize("name", dialogue.VARIANTS)
@pytest.mark.parametrize("epochs", [None, 1])
def test_every_variant_is_a_recipe_with_one_budget(name: str, epochs: int | None):
    changes = [*dialogue.overrides(options(epochs=epochs)), *dialogue.SMALL]
    how = recipe.load("chat-dialogue", [*changes, *dialogue.VARIANTS[name]]).train
    assert (how.epochs, how.minutes) == ((1, None) if epochs else (None, 8.0))
    assert how.steps is None and how.threads == 1


def test_a_record_keeps_its_variants_and_says_the_threads_of_training(tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    monkeypatch.setattr(measure.write, "__defaults__", (tmp_path,))
    monkeypatch.setattr(measure.read, "__defaults__", (tmp_path,))
    commands = []

    def started(command: list[str], **_: Any) -> Any:
        commands.append(command)
        output = json.dumps({"steps": 3, "figures": {"mrr": 0.2}})
        return SimpleNamespace(communicate=lambda: (output, None), returncode=0)

    monkeypatch.setattr(dialogue, "subprocess", SimpleNamespace(Popen=started, PIPE=-1))
    for name in ("turns 3", "no averaged weights"):
        dialogue.variants(options(only=[name], epochs=1))
    record = json.loads((tmp_path / "dialogue_variants.json").read_text("utf-8"))
    assert list(record["variants"]) == ["turns 3", "no averaged weights"]
    assert record["threads"] == 1
    assert [entry["threads"] for entry in record["variants"].values()] == [1, 1]
    assert all(command[-2:] == ["--epochs", "1"] for command in commands)
