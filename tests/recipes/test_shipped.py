"""Every shipped recipe is valid, has a summary, and is a base or extends one with a few lines."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from regard import cli, recipe
from regard.runs import Limits
from regard.train.run import REHEARSAL
from tests import tiny


@pytest.mark.parametrize("name", recipe.names())
def test_it_is_valid(name: str):
    shipped = recipe.load(name)
    assert shipped.summary.endswith(".")
    assert recipe.Recipe.from_json(shipped.to_json()) == shipped


@pytest.mark.parametrize(
    "name", [name for name in recipe.names() if not name.startswith("reference/")]
)
def test_a_variant_is_a_few_lines_and_each_of_them_changes_something(name: str):
    toml = tomllib.loads(recipe.text(name))
    if "extends" not in toml:
        return
    assert len(recipe.text(name).splitlines()) <= 30
    changed = "\n".join(recipe.differences(recipe.load(toml["extends"]), recipe.load(name)))
    for section, fields in toml.items():
        if isinstance(fields, dict) and "kind" not in fields:
            for field in fields:
                assert f"{section}.{field}: " in changed


def test_no_two_are_the_same():
    shipped = [recipe.load(name) for name in recipe.names()]
    for i, chosen in enumerate(shipped):
        assert all(recipe.differences(chosen, other) for other in shipped[:i])


def test_the_classic_is_what_the_specification_says():
    classic: Any = recipe.load("reference/chat-classic")
    assert (classic.data.kind, classic.data.max_words, classic.data.drop_unknown) == (
        "cornell",
        9,
        True,
    )
    assert (classic.tokenizer.kind, classic.tokenizer.min_count) == ("words", 3)
    assert (classic.encoder.layers, classic.decoder.layers) == (2, 2)
    assert (classic.encoder.width, classic.decoder.width) == (500, 500)
    assert classic.decoder.attention == "dot"
    assert (
        classic.train.learning_rate,
        classic.train.decoder_learning_rate,
        classic.train.max_grad_norm,
    ) == (1e-4, 5e-4, 50)
    assert classic.train.steps == 4000


LIMITS = {"steps": 2, "epochs": 1, "minutes": 0.1, "tokens": 1000}


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("name", recipe.names())
def test_every_recipe_takes_every_budget(name: str, limit: str):
    limits = dict.fromkeys(LIMITS) | {limit: LIMITS[limit]}
    budget = recipe.load(name, Limits(**limits).changes).train
    assert {key: getattr(budget, key) for key in LIMITS} == limits


@pytest.mark.parametrize("name", recipe.names())
def test_every_recipe_can_be_rehearsed(name: str):
    assert recipe.load(name, REHEARSAL).train.steps == 1


def _text(folder: Path) -> list[str]:
    return tiny.memorised(tiny.pairs_file(folder))


def _blanks(folder: Path) -> list[str]:
    return tiny.memorised(tiny.text_file(folder))


def _pictures(folder: Path) -> list[str]:
    return tiny.memorised_pictures(tiny.pictures_folder(folder))


def _captions(folder: Path) -> list[str]:
    return tiny.memorised_captions(tiny.captions_table(folder))


def _sounds(folder: Path) -> list[str]:
    changes = tiny.memorised_sounds(tiny.sounds_table(folder), "source.frames=40")
    return [
        change
        for change in changes
        if not change.startswith(("train.schedule", "train.warmup_steps"))
    ]


ONE_OF_EACH_TASK = {
    "chat-gru": _text,
    "translate-attention": _text,
    "blank-rnn": _blanks,
    "image-stride": _pictures,
    "caption-attention": _captions,
    "reference/speech-lstm": _sounds,
    "reference/speech-transformer": _sounds,
}


@pytest.mark.parametrize("name", ONE_OF_EACH_TASK)
def test_two_steps_are_two_steps(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    changes = [word for change in ONE_OF_EACH_TASK[name](tmp_path) for word in ("--set", change)]
    assert (
        cli.main(
            ["train", name, *changes, "--steps", "2", "--out", str(tmp_path / "run"), "--json"]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["steps"] == 2
