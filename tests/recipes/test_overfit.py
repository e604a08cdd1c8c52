"""Every recipe overfits ten examples to zero error. One that cannot has a wrong mask, shift or
shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from regard import build, recipe
from regard.bundle import load
from regard.evaluate import questions
from regard.search import Options
from regard.train import train
from tests.tiny import (
    LABELS,
    PAIRS,
    WORDS,
    Silent,
    captions_table,
    labelled_file,
    memorised,
    memorised_captions,
    memorised_pictures,
    memorised_sounds,
    pairs_file,
    pictures_folder,
    sounds_table,
    text_file,
)

OWN = {
    "reference/chat-classic": [
        "tokenizer.min_count=1",
        "data.drop_unknown=false",
        "data.max_words=",
        "train.decoder_learning_rate=",
    ],
    "speech-fsdd": ["train.steps=200"],  # its source has twice as many places
}


def ten(name: str, folder: Path) -> tuple[list[str], list[str], list[str]]:
    """Overrides with which a recipe overfits ten examples, their inputs, and their answers."""
    chosen = recipe.load(name)
    if chosen.task == "caption":
        path = captions_table(folder, several=False)
        inputs = [str(folder / f"{i}.png") for i in range(10)]
        learning_rate = "2e-3" if chosen.decoder.kind == "transformer" else "5e-3"
        changes = memorised_captions(
            path,
            "train.steps=120",
            "train.decoder_learning_rate=",
            f"train.learning_rate={learning_rate}",
        )
        return changes, inputs, [caption for _, caption in PAIRS]

    if chosen.task == "speech":
        path = sounds_table(folder)
        assert isinstance(chosen.source, recipe.SourceSound)
        frames = "source.frames=40" if chosen.source.frames else "source.frames="
        inputs = [str(path.parent / f"{i}.wav") for i in range(10)]
        return memorised_sounds(path, "train.steps=120", frames), inputs, WORDS

    if chosen.source.kind != "tokens":
        path = pictures_folder(folder)
        inputs = [str(path / label / f"{i}.png") for i, label in enumerate(LABELS)]
        return memorised_pictures(path, "train.steps=120"), inputs, LABELS

    prompts = [prompt for prompt, _ in PAIRS]
    replies = [reply for _, reply in PAIRS]
    if chosen.task == "classify":
        changes = memorised(labelled_file(folder), "train.steps=60", "tokenizer.min_count=1")
        return changes, prompts, LABELS
    if chosen.task == "blank":
        changes = memorised(text_file(folder), "train.steps=160", "tokenizer.min_count=1")
        corpus = build.corpus(recipe.load(name, changes))
        asked = questions(corpus.train, build.task(chosen, corpus.tokenizer))
        inputs = [question.given for question in asked]
        return changes, inputs, [question.references[0] for question in asked]
    return memorised(pairs_file(folder), "train.steps=160"), prompts, replies


def named() -> list[Any]:
    """All recipes; those built of the same kinds of parts as one before are long tests."""
    seen: set[tuple[Any, ...]] = set()
    cases = []
    for name in recipe.names():
        chosen = recipe.load(name)
        cell = getattr(chosen.encoder, "cell", None)
        attention = getattr(chosen.decoder, "attention", None)
        kernels = getattr(chosen.encoder, "kernel", None), getattr(chosen.decoder, "kernel", None)
        kinds = chosen.source.kind, chosen.encoder.kind, chosen.decoder.kind
        parts = (chosen.task == "blank", *kinds, *kernels, cell, attention)
        cases.append(pytest.param(name, marks=pytest.mark.long) if parts in seen else name)
        seen.add(parts)
    return cases


@pytest.mark.parametrize("name", named())
def test_overfits_ten_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    changes, inputs, expected = ten(name, tmp_path)
    chosen = recipe.load(name, [*changes, *OWN.get(name, [])])
    reporter = Silent()
    train(chosen, tmp_path / "run", reporter=reporter)
    bundle = load(tmp_path / "run")
    assert [answer.text for answer in bundle.ask(inputs, Options(max_new_tokens=32))] == expected
    assert reporter.losses[-1] < 0.1
