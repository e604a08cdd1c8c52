"""Locks, and the one folder of what can be made again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from regard import disk
from regard.errors import BusyError


def test_a_lock_has_one_holder(tmp_path: Path):
    with disk.lock_file(tmp_path / "lock") as first:
        assert first is not None
        with disk.lock_file(tmp_path / "lock") as second:
            assert second is None
    with disk.lock_file(tmp_path / "lock", wait=True) as third:
        assert third is not None


def test_the_second_writer_of_a_folder_is_told_who_the_first_is(tmp_path: Path):
    busy = pytest.raises(BusyError, match=f"got pid {os.getpid()}")
    with disk.locked(tmp_path), busy, disk.locked(tmp_path):
        pass
    with disk.locked(tmp_path):
        pass


def test_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("REGARD_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert disk.cache_folder() == Path("/home/somebody/.cache/regard")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert disk.cache_folder() == tmp_path / "regard"
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "own"))
    assert disk.cache_folder() == tmp_path / "own"
