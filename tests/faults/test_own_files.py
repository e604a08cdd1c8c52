"""No command removes or overwrites what regard did not write."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from PIL import Image

from regard import checkpoint, cli, disk, recipe
from regard.errors import InputError
from regard.train import train
from tests.tiny import Silent, memorised, memorised_pictures, pairs_file, pictures_folder


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somebody's folder, with names that look like ours."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    home = tmp_path / "project"
    files = [
        "checkpoints/step-000400/mine",
        ".venv-3.12/python",
        ".model.safetensors.123",
        "metrics.jsonl",
        ".lock",
    ]
    for name in files:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("mine")
    monkeypatch.chdir(home)
    return home


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def settings(folder: Path, *more: str) -> list[str]:
    overrides = memorised(pairs_file(folder), "train.steps=2", "encoder.width=8", *more)
    return [word for change in overrides for word in ("--set", change)]


@pytest.mark.parametrize("out", [".", "checkpoints", "../project"])
def test_a_folder_of_somebody_is_refused(project: Path, tmp_path: Path, out: str, capsys):
    before = contents(project)
    assert cli.main(["train", "chat-lstm", "--out", out, *settings(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "not empty and holds no run" in error and error.count("\n") == 1
    assert contents(project) == before


def test_a_sweep_does_not_move_in_either(project: Path, tmp_path: Path, capsys):
    before = contents(project)
    words = [
        "train",
        "chat-lstm",
        "--out",
        ".",
        "--sweep",
        "train.learning_rate=0.1,0.01",
        *settings(tmp_path),
    ]
    assert cli.main(words) == 2
    assert "not empty and holds no sweep" in capsys.readouterr().err
    assert contents(project) == before


def test_a_manifest_of_another_program_is_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    page = tmp_path / "page"
    page.mkdir()
    (page / "manifest.json").write_text('{"name": "a web page", "icons": []}')
    before = contents(page)
    assert cli.main(["train", "chat-lstm", "--out", str(page), *settings(tmp_path)]) == 2
    assert contents(page) == before


@pytest.mark.parametrize(
    "words",
    [
        ["train", "chat-lstm", "--out", ""],
        ["train", "chat-lstm", "--data", ""],
        ["train", "--resume", ""],
        ["ask", "", "hello"],
        ["chat", ""],
        ["evaluate", ""],
        ["data", "inspect", ""],
        ["data", "fetch", "cornell", "--out", ""],
        ["lab", "orthogonal", "--out", ""],
        ["recipes", "copy", "chat-lstm", ""],
    ],
)
def test_an_empty_path_is_refused(project: Path, words: list[str], capsys):
    before = contents(project)
    assert cli.main(words) == 2
    assert "a path is empty" in capsys.readouterr().err
    assert contents(project) == before


def test_an_empty_folder_and_a_new_one_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    assert cli.main(["train", "chat-lstm", "--out", ".", *settings(tmp_path)]) == 0
    assert cli.main(["train", "chat-lstm", "--out", "new/deep", *settings(tmp_path)]) == 0
    capsys.readouterr()


def test_a_file_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "notes.txt").write_text("mine")
    assert (
        cli.main(["train", "chat-lstm", "--out", str(tmp_path / "notes.txt"), *settings(tmp_path)])
        == 2
    )
    assert "a file has this name" in capsys.readouterr().err
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_only_exact_names_of_our_own_are_cleaned_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Beside a run and its checkpoints, on a resume."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    run = tmp_path / "run"
    chosen = recipe.load(
        "chat-lstm", memorised(pairs_file(tmp_path), "train.steps=2", "encoder.width=8")
    )
    train(chosen, run, reporter=Silent())
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "deep").mkdir(parents=True)
    (elsewhere / "file").write_text("mine")
    own, ours = [], []
    for folder in (run, run / checkpoint.FOLDER):
        for name in (
            ".venv-3.12",
            ".model.safetensors.123",
            ".a.1",
            ".x.regard-new",
            "step-7",
            "step-000400-good",
        ):
            (folder / name).mkdir()
            (folder / name / "file").write_text("mine")
            own.append(folder / name / "file")
        for number, target in enumerate((elsewhere, elsewhere / "file", elsewhere / "nowhere")):
            link = folder / f".link.{number}.regard-new"
            link.symlink_to(target)
            own.append(link)
        (folder / ".model.safetensors.77.regard-new").write_text("half")
        (folder / ".step-000001.77.regard-new").mkdir()
        ours += [folder / ".model.safetensors.77.regard-new", folder / ".step-000001.77.regard-new"]
    longer = chosen.override(["train.steps=6", "train.save_every=1"])
    train(longer, run, reporter=Silent(), resume=True, anyway=True)
    assert all(path.is_symlink() or path.read_text() == "mine" for path in own)
    assert (elsewhere / "file").read_text() == "mine" and (elsewhere / "deep").is_dir()
    assert not any(path.exists() for path in ours)
    assert checkpoint.newest(run) == 6


def test_pictures_of_somebody_are_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    """--maps, --plot and the lab write where they are told to, but only over what they wrote
    themselves."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Image.new("L", (28, 28), 200).save("mine.png")
    Image.new("L", (28, 28), 200).save("quadratic.png")
    before = Path("mine.png").read_bytes()
    budget = ["budget", "chat-transformer", "--plot"]
    assert cli.main([*budget, "mine.png"]) == 2
    assert "did not write" in capsys.readouterr().err
    assert cli.main([*budget, "ours.png"]) == 0
    assert cli.main([*budget, "ours.png"]) == 0
    assert cli.main([*budget, "ours.svg"]) == 0
    assert cli.main([*budget, "ours.svg"]) == 0
    capsys.readouterr()
    assert cli.main(["lab", "quadratic", "--out", "."]) == 2
    assert "quadratic.png: something that regard did not write" in capsys.readouterr().err
    assert Path("mine.png").read_bytes() == before == Path("quadratic.png").read_bytes()


def test_the_picture_that_is_asked_about_is_not_the_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    home = pictures_folder(tmp_path)
    overrides = memorised_pictures(home, "train.steps=1")
    train(recipe.load("image-patches", overrides), tmp_path / "run", reporter=Silent())
    picture = next(home.rglob("*.png"))
    before = picture.read_bytes()
    assert cli.main(["ask", str(tmp_path / "run"), str(picture), "--maps", str(picture)]) == 2
    assert "did not write" in capsys.readouterr().err
    assert picture.read_bytes() == before


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_files_follow_the_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mask: int):
    """Also those that a library writes: a service of another user may have to read them."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    chosen = recipe.load(
        "chat-lstm", memorised(pairs_file(tmp_path), "train.steps=2", "encoder.width=8")
    )
    before = os.umask(mask)
    try:
        train(chosen, tmp_path / "run", reporter=Silent())
    finally:
        os.umask(before)
    modes = {
        str(file.relative_to(tmp_path / "run")): stat.S_IMODE(file.stat().st_mode)
        for file in (tmp_path / "run").rglob("*")
        if file.is_file()
    }
    assert "model.safetensors" in modes and set(modes.values()) == {0o666 & ~mask}, modes


def test_a_claim_names_what_is_there(tmp_path: Path):
    for name in "abcde":
        (tmp_path / name).touch()
    with pytest.raises(
        InputError, match=r"not empty and holds no run; got a, b, c, …; choose a new folder"
    ):
        disk.claim(tmp_path, disk.MANIFEST, "run")


@pytest.mark.parametrize(
    "content", [b"Dear diary, this was made by regard.", b"\x89PNG\r\n\x1a\n made by regard"]
)
def test_words_in_a_file_do_not_make_it_ours(tmp_path: Path, content: bytes):
    own = tmp_path / "own.png"
    own.write_bytes(content)
    with pytest.raises(InputError, match="something that regard did not write"):
        disk.claim_output(own)
    link = tmp_path / "link.png"
    link.symlink_to(tmp_path / "missing.png")
    with pytest.raises(InputError, match="something that regard did not write"):
        disk.claim_output(link)


def test_a_sweep_keeps_curves_and_folders_of_somebody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "s"
    words = ["train", "chat-gru", "--out", str(folder), *settings(tmp_path), "--steps", "2"]
    assert cli.main([*words, "--sweep", "train.learning_rate=0.1"]) == 0
    assert cli.main([*words, "--sweep", "train.learning_rate=0.1"]) == 0  # over our own curves
    (folder / "curves.png").write_bytes(b"mine")
    own = folder / "train.learning_rate=0.2"
    own.mkdir()
    (own / "notes.txt").write_text("mine")
    capsys.readouterr()
    assert cli.main([*words, "--sweep", "train.learning_rate=0.2"]) == 2
    captured = capsys.readouterr()
    assert "no trial of this sweep has a score" in captured.err
    assert contents(own) == {"notes.txt": b"mine"} or [p.name for p in own.iterdir()] == [
        "notes.txt"
    ]
    assert cli.main([*words, "--sweep", "train.learning_rate=0.1"]) == 0
    assert "no curves are drawn" in capsys.readouterr().err
    assert (folder / "curves.png").read_bytes() == b"mine"
