"""Validations during training have the intervals that `evaluate` gives, and so has the report."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import pytest

import regard
from regard import disk, recipe
from regard.pages.report import FILE
from regard.pages.run_record import interval_of
from regard.train import train, validation
from tests.tiny import PAIRS, Silent, memorised

HELD_OUT = ("data.valid=0.5",)


def trained(folder: Path, *more: str) -> Path:
    """A run of four steps, two of which are validated, on enough pairs to rank 20 replies."""
    many = folder / "many.tsv"
    pairs = [f"{prompt} {i}\t{reply} {i}\n" for prompt, reply in PAIRS for i in range(8)]
    many.write_text("".join(pairs), "utf-8")
    small = ("encoder.width=8", "train.steps=4", "train.valid_every=2", "search.max_new_tokens=5")
    run = folder / "run"
    train(recipe.load("chat-gru", memorised(many, *small, *more)), run, reporter=Silent())
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("intervals")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        return trained(folder, *HELD_OUT)


@pytest.fixture(autouse=True)
def cache(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(run.parent / "cache"))


def validations(run: Path) -> list[dict[str, Any]]:
    lines = disk.read_json_lines(run / "metrics.jsonl")
    return [line for line in lines if line["kind"] in ("valid", "training_examples")]


def test_every_validation_has_the_intervals_of_evaluate(run: Path):
    assert len(validations(run)) == 2
    for line in validations(run):
        for name, (low, high) in line["intervals"].items():
            assert low <= line[name] <= high
    kept = [line for line in validations(run) if line["kept"]][-1]
    result = regard.load(run).evaluate(limit=100, ranked=validation.RANKED, greedy=True)
    assert kept["intervals"].keys() == result.intervals.keys()
    assert kept["intervals"].keys() >= {"perplexity", "hits_at_1", "mrr", "bleu_2", "bland_share"}
    for name, bounds in result.intervals.items():
        assert kept[name] == pytest.approx(result.scores[name], rel=1e-5)
        assert kept["intervals"][name] == pytest.approx(list(bounds), rel=1e-4)
    assert kept["training_copy_share"] == result.scores["training_copy_share"]


def test_the_page_that_training_writes_has_bands_and_intervals(run: Path):
    text = html.unescape((run / FILE).read_text("utf-8"))
    line = [line for line in validations(run) if line["kept"]][-1]
    for name in ("perplexity", "hits_at_1", "training_copy_share"):
        low, high = line["intervals"][name]
        assert f"{low:.4g} to {high:.4g}" in text
    assert "95 % interval" in text and 'class="band"' in text
    assert "A band is the 95 % interval of each score." in text


def test_a_log_of_an_earlier_version_has_neither(run: Path, tmp_path: Path):
    older = tmp_path / "run"
    older.mkdir()
    for file in run.iterdir():
        if file.is_file():
            (older / file.name).write_bytes(file.read_bytes())
    lines = list(disk.read_json_lines(run / "metrics.jsonl"))
    for line in lines:
        line.pop("intervals", None)
    (older / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = regard.report(older, limit=2)
    figures = [figure for section in page.sections for figure in section.figures]
    assert figures and not any('class="band"' in figure for figure in figures)


@pytest.mark.parametrize(
    "intervals",
    [None, [], 3, {}, {"mrr": None}, {"mrr": [1]}, {"mrr": ["a", "b"]}, {"mrr": [2, 1]}]
    + [{"mrr": [0, 1e301]}, {"mrr": [0, [1]]}, {"mrr": [1, 2, 3]}],
)
def test_a_damaged_interval_is_none(intervals: Any):
    assert interval_of({"intervals": intervals}, "mrr") is None
    assert interval_of({"intervals": {"mrr": [0, 0.5]}}, "mrr") == (0.0, 0.5)


def test_nothing_held_out_has_no_intervals(tmp_path: Path):
    for line in validations(trained(tmp_path, "data.valid=0")):
        assert "intervals" not in line and "training_copy_share" not in line


def test_what_would_take_long_is_left_out(run: Path, tmp_path: Path, monkeypatch):
    """And the weights are the same to the last bit."""
    monkeypatch.setattr(validation, "RESAMPLED", 0)
    monkeypatch.setattr(validation, "COMPARED", 0)
    other = trained(tmp_path, *HELD_OUT)
    for line in validations(other):
        assert "intervals" not in line and "training_copy_share" not in line
    weights = [disk.digest(path / "model.safetensors") for path in (run, other)]
    assert weights[0] == weights[1]
