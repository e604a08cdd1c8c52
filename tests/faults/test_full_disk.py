"""A disk that is full, as small disks are: what was saved before is intact, the message says what
is needed and free, and with room again the run goes on to the same bits."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from regard import bundle, checkpoint, cli, disk, recipe
from regard.errors import NoRoomError
from regard.train import Stopped, train
from tests.records import record
from tests.tiny import Silent, memorised, pairs_file

STEPS = 6
PAGE = 4096


class Stopping(Silent):
    """Sends a signal after three steps."""

    def stepped(self, progress, loss, speed, done) -> None:
        if progress.step == 3:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Path, Callable[[int], None]]]:
    """A file system of its own in memory, and a function that leaves so many bytes of it free."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs (root)")

    def leave(count: int) -> None:
        usage = shutil.disk_usage(folder)
        size = max(PAGE, usage.used + count)
        subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)

    try:
        yield folder, leave
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def files(run: Path) -> dict[str, str]:
    last = run / checkpoint.FOLDER / f"step-{STEPS:06d}"
    return {file.name: disk.digest(file) for file in last.glob("*.safetensors")}


def check_sizes(
    count: int, small_disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    folder, leave = small_disk
    changes = memorised(pairs_file(tmp_path), f"train.steps={STEPS}", "train.save_every=3")
    chosen = recipe.load("chat-lstm", changes)
    whole = tmp_path / "whole"
    train(chosen, whole, reporter=Silent())
    begun = tmp_path / "begun"
    with pytest.raises(Stopped):
        train(chosen, begun, reporter=Stopping())
    size = sum(file.stat().st_size for file in (begun / checkpoint.FOLDER).rglob("*"))
    refused = set()
    for number in range(count):
        leave(32 << 20)
        run = shutil.copytree(begun, folder / "run")
        leave(number * size // count)
        with pytest.raises(NoRoomError) as caught:
            train(chosen, run, reporter=Silent(), resume=True)
        message = str(caught.value)
        assert "no space left on the disk" in message and "bytes free" in message
        assert "what was saved before is intact" in message
        if Path(str(caught.value.where)).parent.name == checkpoint.FOLDER:
            assert caught.value.needed is not None and caught.value.needed > caught.value.free
        refused.add(Path(str(caught.value.where)).name)

        # The old checkpoint, and the old bundle, load from the full disk.
        disk.verify_folder(run / checkpoint.FOLDER / "step-000003")
        assert checkpoint.newest(run) == 3
        bundle.load(run)
        # `ask` needs no room.
        assert cli.main(["ask", str(run), "Hello!", "--greedy"]) == 0
        capsys.readouterr()

        leave(32 << 20)
        train(chosen, run, reporter=Silent(), resume=True)
        assert files(run) == files(whole)
        shutil.rmtree(run)
    assert "step-000006" in refused


def test_four_sizes_of_a_disk(small_disk, tmp_path: Path, monkeypatch, capsys):
    check_sizes(4, small_disk, tmp_path, monkeypatch, capsys)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_twenty_sizes_of_a_disk(small_disk, tmp_path: Path, monkeypatch, capsys):
    check_sizes(20, small_disk, tmp_path, monkeypatch, capsys)
    record("sizes of a full disk", sizes=20)


def test_a_new_run_on_a_full_disk_is_one_line(small_disk, tmp_path: Path, monkeypatch, capsys):
    folder, leave = small_disk
    leave(0)
    changes = memorised(pairs_file(tmp_path), "train.steps=2", "encoder.width=8")
    sets = [word for change in changes for word in ("--set", change)]
    monkeypatch.setenv("REGARD_CACHE", str(folder / "cache"))
    words = ["train", "chat-lstm", "--out", str(folder / "run"), *sets]
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "no space left" in error.lower()
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "no space left" in error.lower()
    leave(8 << 20)
    assert cli.main(words) == 0
