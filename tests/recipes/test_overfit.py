"""Every recipe learns ten pairs by heart, to zero error. A model that cannot has a mask, a shift or a shape wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard import recipe
from regard.bundle import load
from regard.search import Options
from regard.train import train
from tests.tiny import PAIRS, Silent, by_heart, pairs_file

OWN = {
    "reference/chat-classic": ["codec.min_count=1", "data.drop_unknown=false", "data.max_words=", "train.decoder_rate="]
}


@pytest.mark.parametrize("name", recipe.names())
def test_ten_pairs_by_heart(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    chosen = recipe.load(name, by_heart(pairs_file(tmp_path), "train.steps=160", *OWN.get(name, [])))
    reporter = Silent()
    train(chosen, tmp_path / "run", reporter=reporter)
    bundle = load(tmp_path / "run")
    answers = [answer.text for answer in bundle.ask([prompt for prompt, _ in PAIRS], Options(max_new_tokens=32))]
    assert answers == [reply for _, reply in PAIRS]
    assert reporter.losses[-1] < 0.1
