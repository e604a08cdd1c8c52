"""Ready-made plans on a person's own data, as small as they can be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from regard import cli
from regard.compare import ready
from tests.tiny import pairs_file, pictures_folder, sounds_table

SMALL = [
    "data.valid=0.3",
    "data.test=0.3",
    "train.save_every=0",
    "train.threads=1",
]
TEXT = ["encoder.width=8", "search.num_beams=1", "search.max_new_tokens=5"]
CHAT = [*TEXT, "tokenizer.min_count=1"]
MACLAURIN = ["encoder.heads=2", "decoder.heads=2"]
SOUND = [*TEXT, "source.rate=8000", "source.mels=20"]
PICTURE = ["source.random_crop=0.0"]
QUICK = ("lstm-vs-gru", "pool-vs-stride")  # one matches widths, the other tunes
DATA: dict[str, tuple[Callable[[Path], Path], list[str]]] = {
    "attention-for-translation": (pairs_file, TEXT),
    "lstm-vs-attention": (pairs_file, CHAT),
    "lstm-vs-gru": (pairs_file, TEXT),
    "pool-vs-stride": (pictures_folder, PICTURE),
    "positions": (pairs_file, TEXT),
    "softmax-vs-maclaurin": (pairs_file, [*TEXT, *MACLAURIN]),
    "speech-lstm-vs-transformer": (sounds_table, SOUND),
}


def test_every_plan_is_tested():
    assert sorted(DATA) == ready.names()


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else pytest.mark.long) for name in DATA],
)
def test_a_ready_made_plan_takes_own_data(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    make, changes = DATA[name]
    data = make(tmp_path)
    words = ["compare", "--plan", name, "--data", str(data), "--steps", "2", "--seeds", "1"]
    sets = [word for change in [*SMALL, *changes] for word in ("--set", change)]
    assert cli.main([*words, *sets, "--limit", "2", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    record = json.loads((tmp_path / "out" / "comparison.json").read_text("utf-8"))
    plan = ready.load(name).plan()
    assert [each["name"] for each in record["contenders"]] == [c.name for c in plan.contenders]
    for contender in record["contenders"]:
        (run,) = contender["seeds"]
        recipe = json.loads((Path(run["run"]) / "recipe.json").read_text("utf-8"))
        assert run["state"] == "done" and recipe["data"]["path"] == str(data)
        assert contender["tuning"] is None or contender["tuning"]["trials"] == plan.trials
    assert record["is_complete"] and record["budget"] == "2 steps"
    assert record["question"] == plan.question
    assert all(f"{pair['verdict']}." in printed for pair in record["pairs"])
    score = plan.score or record["score"]
    assert record["score"] == score and all(score in c["scores"] for c in record["contenders"])
