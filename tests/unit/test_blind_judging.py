"""Blind judging, with judges whose habits are known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench import blind_judging
from regard.errors import DataError

SENSIBLE = {"people": 0.9, "ours": 0.6, "before": 0.3}


@pytest.fixture
def items() -> list[dict]:
    return [
        {
            "history": [f"Turn {i}.", "Well?"],
            "replies": {source: f"{source} says {i}." for source in SENSIBLE},
        }
        for i in range(150)
    ]


def judged(shown: list[dict], key: list[dict], *, seed: int, slips: float) -> dict[str, bool]:
    """Each reply is sensible as often as its source is; a judge errs in the share `slips`."""
    truth = np.random.default_rng(1).random(len(shown))
    draw = np.random.default_rng(seed).random(len(shown))
    judgements = {}
    for line, chance, slip in zip(key, truth, draw, strict=True):
        sensible = bool(chance < SENSIBLE[line["sources"][0]])
        judgements[line["id"]] = sensible if slip >= slips else not sensible
    return judgements


def test_a_sheet_has_no_sources_and_every_reply_once(items: list[dict]):
    shown, key = blind_judging.sheet(items)
    assert len(shown) == 300 and len({line["item"] for line in key}) == 100
    assert all(line.keys() == {"id", "history", "reply"} for line in shown)
    for line, secret in zip(shown, key, strict=True):
        [source] = secret["sources"]
        assert line["id"] == secret["id"]
        assert items[secret["item"]]["replies"][source] == line["reply"]
        assert items[secret["item"]]["history"] == line["history"]
    order = [secret["sources"][0] for secret in key]
    assert order[:6] != [*SENSIBLE] * 2 and order != sorted(order)
    assert blind_judging.sheet(items) == (shown, key) != blind_judging.sheet(items, seed=2)


def test_a_reply_of_two_sources_is_judged_once_and_counts_for_both(items: list[dict]):
    for item in items:
        item["replies"]["before"] = item["replies"]["ours"]
    shown, key = blind_judging.sheet(items, histories=10)
    assert len(shown) == 20
    judgements = {line["id"]: "ours" in line["sources"] for line in key}
    sensible = blind_judging.report(key, judgements, judgements)["sensible"]
    assert {source: figures["value"] for source, figures in sensible.items()} == {
        "people": 0,
        "ours": 1,
        "before": 1,
    }


def test_shares_ratios_and_agreement(items: list[dict]):
    shown, key = blind_judging.sheet(items)
    first = judged(shown, key, seed=2, slips=0.0)
    second = judged(shown, key, seed=3, slips=0.1)
    result = blind_judging.report(key, first, second)
    assert result["histories"] == 100 and 0.85 < result["agreement"] < 0.95
    ids = [line["id"] for line in key]
    sklearn = pytest.importorskip("sklearn.metrics")
    kappa = sklearn.cohen_kappa_score([first[i] for i in ids], [second[i] for i in ids])
    assert result["kappa"] == pytest.approx(kappa)
    for source, share in SENSIBLE.items():
        figures = result["sensible"][source]
        low, high = figures["interval"]
        expected = 0.95 * share + 0.05 * (1 - share)  # one judge of two slips now and then
        assert low < figures["value"] < high and low < expected < high and high - low < 0.25
    ratio = result["ratio"]["ours"]["people"]
    shares = {source: figures["value"] for source, figures in result["sensible"].items()}
    assert ratio["value"] == pytest.approx(shares["ours"] / shares["people"])
    assert ratio["interval"][0] < ratio["value"] < ratio["interval"][1] < 1


def test_files_in_and_out(items: list[dict], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    paths = {name: tmp_path / f"{name}.jsonl" for name in ("items", "sheet", "key", "a", "b")}
    paths["items"].write_text("".join(json.dumps(item) + "\n" for item in items), "utf-8")
    blind_judging.main(["sheet", *(str(paths[name]) for name in ("items", "sheet", "key"))])
    assert capsys.readouterr().out == "300 replies to 100 histories\n"
    shown = [json.loads(line) for line in paths["sheet"].read_text("utf-8").splitlines()]
    judgements = [{"id": line["id"], "sensible": "ours" in line["reply"]} for line in shown]
    for judge in "ab":
        paths[judge].write_text("".join(json.dumps(line) + "\n" for line in judgements), "utf-8")
    blind_judging.main(["report", *(str(paths[name]) for name in ("key", "a", "b"))])
    result = json.loads(capsys.readouterr().out)
    assert result["sensible"]["ours"]["value"] == 1 and result["sensible"]["people"]["value"] == 0
    assert result["agreement"] == 1 and result["kappa"] == 1


def test_a_record_has_every_verdict(items: list[dict], tmp_path: Path, capsys):
    for item in items:
        item["replies"]["before"] = item["replies"]["ours"]  # judged once, a verdict of both
    _, key = blind_judging.sheet(items, histories=20)
    first = {line["id"]: "people" in line["sources"] for line in key}
    second = {line["id"]: line["item"] % 2 == 0 for line in key}
    paths = {name: tmp_path / f"{name}.jsonl" for name in ("key", "a", "b")}
    paths["key"].write_text("".join(json.dumps(line) + "\n" for line in key), "utf-8")
    for judge, verdicts in (("a", first), ("b", second)):
        lines = [json.dumps({"id": name, "sensible": said}) for name, said in verdicts.items()]
        paths[judge].write_text("\n".join(lines), "utf-8")
    record = tmp_path / "judging.json"
    command = ["report", *map(str, paths.values()), "--record", str(record)]
    with pytest.raises(DataError, match="--what: a record has to say what was judged"):
        blind_judging.main(command)
    assert not record.exists()

    blind_judging.main([*command, "--what", "Two judges of a test."])
    printed = json.loads(capsys.readouterr().out)
    stored = json.loads(record.read_text("utf-8"))
    assert stored["what"] == "Two judges of a test." and "date" in stored
    verdicts = stored["report"].pop("verdicts")
    assert stored["report"] == printed
    assert len(verdicts) == 60 == len({(line["item"], line["source"]) for line in verdicts})
    sources_of = {line["id"]: line["sources"] for line in key}
    item_of = {line["id"]: line["item"] for line in key}
    for line in verdicts:
        assert line["source"] in sources_of[line["id"]] and line["item"] == item_of[line["id"]]
        assert line["sensible"] == [line["source"] == "people", line["item"] % 2 == 0]
    for source, figures in printed["sensible"].items():  # which can be counted again
        own = [said for line in verdicts if line["source"] == source for said in line["sensible"]]
        assert sum(own) / len(own) == pytest.approx(figures["value"])


def test_missing_judgements_and_sources_are_named(items: list[dict]):
    _, key = blind_judging.sheet(items, histories=3)
    judgements = {line["id"]: True for line in key}
    with pytest.raises(DataError, match="judge 2.*none for 1 of 9: 0004"):
        blind_judging.report(key, judgements, {k: v for k, v in judgements.items() if k != "0004"})
    del items[1]["replies"]["ours"]
    with pytest.raises(DataError, match="item 2"):
        blind_judging.sheet(items)
