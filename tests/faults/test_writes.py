"""Files that the system refuses to write: one line that names them, exit code 2, and what was
there before stays."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from regard import build, cli, disk, recipe
from regard.errors import NoRoomError, WriteError
from tests.tiny import captions_table, memorised, memorised_captions, pairs_file


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """What `ulimit -f` sets: longer files end in EFBIG."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def one_line(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    capsys.readouterr()
    code = cli.main([str(word) for word in words])
    error = capsys.readouterr().err
    assert code == 2, error
    assert error.startswith("regard: ") and error.count("\n") == 1
    assert "a fault in regard" not in error
    return error


def overrides(folder: Path, *more: str) -> list[str]:
    return [word for change in memorised(pairs_file(folder), *more) for word in ("--set", change)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("writes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        assert (
            cli.main(
                [
                    "train",
                    "chat-gru",
                    "--out",
                    str(folder / "run"),
                    *overrides(folder, "train.steps=3"),
                ]
            )
            == 0
        )
    return folder / "run"


# -- a full disk------------------------------------------------------------------------------------


def full(path: Path) -> Path:
    """Whatever is written to `path`, or to its draft, goes to a disk without any space."""
    disk.draft_of(path).symlink_to("/dev/full")
    return path


def test_a_full_disk_says_what_is_needed_and_what_is_free(tmp_path: Path):
    path = full(tmp_path / "file.json")
    with pytest.raises(NoRoomError) as caught:
        disk.write_json(path, {"numbers": [7] * 1000})
    needed = len(json.dumps({"numbers": [7] * 1000}, indent=1)) + 1
    assert caught.value.needed == needed and caught.value.free > 0
    free = f"{caught.value.free:,} bytes free, {needed:,} needed"
    expected = f"{path}: no space left on the disk; got {free}; what was"
    assert str(caught.value).startswith(expected)
    assert not list(tmp_path.iterdir())


def test_a_line_that_does_not_fit_says_so_too(tmp_path: Path):
    log = tmp_path / "metrics.jsonl"
    log.symlink_to("/dev/full")
    with pytest.raises(NoRoomError, match=r"metrics.jsonl: no space left .* bytes free, 6 needed"):
        disk.append_line(log, "hello")


def test_a_folder_that_does_not_fit_is_named_and_so_are_all_its_bytes(tmp_path: Path):
    def write(draft: Path) -> None:
        disk.write_json(full(draft / "progress.json"), {})

    said = r"step-000400: no space left .* bytes free, 12,345 needed"
    with pytest.raises(NoRoomError, match=said) as caught, disk.needs(12_345):
        disk.write_folder(tmp_path / "step-000400", write)
    assert caught.value.where == tmp_path / "step-000400"
    assert not list(tmp_path.iterdir())


# -- a limit on the size of files-------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "every", "file"),
    [
        (100, "save", "recipe.json"),
        (20_000, "save", "checkpoints/step-000002"),
        (20_000, "valid", "model.safetensors"),
    ],
)
def test_training_names_what_it_cannot_write(
    tmp_path: Path, capsys, monkeypatch, size: int, every: str, file: str
):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    changes = memorised(pairs_file(tmp_path), f"train.{every}_every=2", "train.steps=4")
    build.corpus(recipe.load("chat-gru", changes))  # prepared before files are limited
    sets = [word for change in changes for word in ("--set", change)]
    with largest_file(size):
        error = one_line(capsys, "train", "chat-gru", "--out", tmp_path / "run", *sets)
    assert f"{tmp_path / 'run' / file}: cannot be written: File too large; ulimit -f" in error


def test_the_log_and_the_curves_are_named(run: Path, tmp_path: Path, capsys):
    from regard.plot import curves

    with (
        largest_file(3),
        pytest.raises(WriteError, match=r"metrics.jsonl: cannot be written: File too large"),
    ):
        disk.append_line(tmp_path / "metrics.jsonl", "a line")
    before = (run / "curves.png").read_bytes()
    with (
        largest_file(300),
        pytest.raises(WriteError, match=r"curves.png: cannot be written: File too large"),
    ):
        curves(run)
    assert (run / "curves.png").read_bytes() == before


def test_the_prepared_corpus_is_named(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    sets = overrides(tmp_path)
    with largest_file(30):
        error = one_line(capsys, "train", "chat-gru", "--out", tmp_path / "run", *sets)
    assert f"{tmp_path / 'cache'}/" in error and "cannot be written: File too large" in error
    assert not list((tmp_path / "cache").iterdir()) and not (tmp_path / "run").exists()


def test_maps_are_named(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    changes = memorised_captions(captions_table(tmp_path), "train.steps=2")
    sets = [word for change in changes for word in ("--set", change)]
    assert cli.main(["train", "caption-attention", "--out", str(tmp_path / "run"), *sets]) == 0
    ask = ["ask", tmp_path / "run", tmp_path / "0.png", "--set", "min_new_tokens=2", "--maps"]
    with largest_file(300):
        assert "maps.png: cannot be written: File too large" in one_line(
            capsys, *ask, tmp_path / "maps.png"
        )
    assert not (tmp_path / "maps.png").exists()
    assert "--maps: the file of the maps must end in .png" in one_line(capsys, *ask, tmp_path)
    (tmp_path / "pipe.png").symlink_to("/dev/full")
    error = one_line(capsys, *ask, tmp_path / "pipe.png")
    assert "pipe.png: something that regard did not write" in error
    assert Path("/dev/full").is_char_device() and (tmp_path / "pipe.png").is_symlink()


def test_the_lab_names_its_page(tmp_path: Path, capsys):
    words = ["lab", "heads", "--out", tmp_path, "--html"]
    with largest_file(300):
        assert "heads.png: cannot be written: File too large" in one_line(capsys, *words)
    assert not list(tmp_path.iterdir())


def test_a_copied_recipe_is_whole_or_not_there(tmp_path: Path, capsys):
    mine, other = tmp_path / "mine.toml", tmp_path / "other.toml"
    mine.write_text("mine")
    with largest_file(20):
        assert "mine.toml: cannot be written" in one_line(
            capsys, "recipes", "copy", "chat-gru", mine, "--force"
        )
        assert "other.toml: cannot be written" in one_line(
            capsys, "recipes", "copy", "chat-gru", other
        )
    assert mine.read_text() == "mine"
    assert [file.name for file in tmp_path.iterdir()] == ["mine.toml"]


def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path, capsys):
    os.mkfifo(tmp_path / "pipe")
    error = one_line(capsys, "recipes", "copy", "chat-gru", tmp_path / "pipe", "--force")
    assert "pipe: cannot be written: not a regular file" in error
    assert (tmp_path / "pipe").is_fifo()


# -- standard output--------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["recipes", "list"],
        ["recipes", "list", "--json"],
        ["recipes", "show", "chat-gru"],
        ["--help"],
        ["train", "--help"],
        ["--version"],
        ["ask", "RUN", "Hello!"],
        ["ask", "RUN", "Hello!", "--json"],
        ["train", "--resume", "RUN"],
    ],
)
def test_a_full_standard_output_is_one_line(run: Path, words: list[str]):
    words = [str(run) if word == "RUN" else word for word in words]
    with open("/dev/full", "w") as out:
        done = subprocess.run(
            [sys.executable, "-m", "regard", *words], stdout=out, stderr=subprocess.PIPE, text=True
        )
    lines = done.stderr.splitlines()
    waits = [line for line in lines if line.endswith(" …")]  # a busy machine
    assert lines == [*waits, "regard: standard output: No space left on device"]
    assert done.returncode == 2


def test_a_full_standard_error_too_leaves_the_exit_code():
    with open("/dev/full", "w") as out:
        done = subprocess.run(
            [sys.executable, "-m", "regard", "recipes", "list"], stdout=out, stderr=out
        )
    assert done.returncode == 2
