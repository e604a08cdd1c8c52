"""Figures of long tests are kept if that is asked for, each beside the others."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bench import measure
from tests.records import record


def test_figures_are_kept_if_that_is_asked_for(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    monkeypatch.delenv("REGARD_RECORD", raising=False)
    record("kills", count=3)
    assert "kills {'count': 3}" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("REGARD_RECORD", "1")
    record("kills", count=3)
    record("flips", found=5)
    record("kills", count=4)
    kept = json.loads((tmp_path / "reliability.json").read_text("utf-8"))
    assert {what: entry["figures"] for what, entry in kept.items()} == {
        "kills": {"count": 4},
        "flips": {"found": 5},
    }
    for entry in kept.values():
        assert entry["cores"] == os.cpu_count()
        assert entry["revision"] == measure.revision()
        assert entry["date"].startswith("20")


@pytest.mark.parametrize("value", ["", "0"])
def test_nothing_is_kept_if_it_is_turned_off(tmp_path: Path, monkeypatch, value: str):
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    monkeypatch.setenv("REGARD_RECORD", value)
    record("kills", count=3)
    assert not list(tmp_path.iterdir())
