"""`regard data export`: the built-in data as files, which are the same data."""

from __future__ import annotations

import csv
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.cli import main
from regard.data import drawn, labelled_pictures, pictures, spoken
from regard.data.inspect import inspect
from regard.data.lines import Tally
from regard.data.recordings import Hearing, read_ljspeech

voices = pytest.mark.skipif(
    importlib.util.find_spec("espeakng_loader") is None, reason="needs the package espeakng-loader"
)
FORM = {"size": (28, 28), "channels_in": 1}


def exported(folder: Path, kind: str, *more: str, capsys) -> dict:
    assert main(["data", "export", kind, str(folder), "--json", *more]) == 0
    return json.loads(capsys.readouterr().out)


def table(file: str) -> list[dict[str, str]]:
    with open(file, encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def test_digits_are_those_that_are_built_in(tmp_path: Path, capsys):
    told = exported(tmp_path / "digits", "digits", "--count", "30", capsys=capsys)
    rows = table(told["table"])
    assert [row["path"] for row in rows] == told["files"] and len(set(told["files"])) == 30
    built_in: list[Any] = list(labelled_pictures.read_digits(**FORM, tally=Tally()))
    for row in rows:
        example = built_in[int(row["path"][-8:-4])]
        values = pictures.read_picture(tmp_path / "digits" / row["path"], **FORM).values
        assert (row["label"], row["path"][0]) == (example.target, example.target)
        assert np.array_equal(values, example.source.values)
    seen = inspect(tmp_path / "digits")
    assert (seen["kind"], seen["usable"], sum(seen["labels"].values())) == ("pictures", 30, 30)
    assert seen["train"] == f"regard train image-pool --data {tmp_path}/digits"


def test_drawings_are_those_of_their_seed(tmp_path: Path, capsys):
    told = exported(tmp_path / "drawings", "drawings", "--count", "7", "--seed", "1", capsys=capsys)
    form: dict[str, Any] = {"size": (48, 48), "channels_in": 3}
    built_in: Iterator[Any] = drawn.read_drawn(count=7, seed=1, **form, tally=Tally())
    for row, example in zip(table(told["table"]), built_in, strict=True):
        assert row["text"] == example.target
        values = pictures.read_picture(tmp_path / "drawings" / row["path"], **form).values
        assert np.array_equal(values, example.source.values)
    other = exported(tmp_path / "other", "drawings", "--count", "7", capsys=capsys)
    assert table(other["table"]) != table(told["table"])
    seen = inspect(tmp_path / "drawings")
    assert (seen["kind"], seen["usable"], seen["pictures"]) == ("captioned", 7, 7)
    assert (
        seen["train"] == f"regard train caption-attention --data {tmp_path}/drawings/captions.csv"
    )


@voices
def test_voices_are_those_of_their_seed(tmp_path: Path, capsys):
    exported(tmp_path / "voices", "voices", "--count", "20", "--seed", "3", capsys=capsys)
    how = Hearing(8000, 10.0)
    built_in: Iterator[Any] = spoken.read_spoken("test", count=160, seed=3, how=how, tally=Tally())
    files: Iterator[Any] = read_ljspeech(tmp_path / "voices", how=how, tally=Tally())
    for own, example in zip(files, built_in, strict=True):
        assert own.target == example.target
        assert np.array_equal(own.source.values, example.source.values)
    assert inspect(tmp_path / "voices")["kind"] == "ljspeech"


@pytest.mark.parametrize(
    ("kind", "recipe"),
    [
        ("digits", "image-pool"),
        ("drawings", "caption-attention"),
        pytest.param("voices", "speech-attention", marks=voices),
    ],
)
def test_what_was_exported_can_be_trained_on_and_asked(
    kind: str, recipe: str, tmp_path: Path, monkeypatch, capsys
):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "new" / "folder"
    assert main(["data", "export", kind, str(folder), "--count", "40"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"wrote 40 files into {folder}; the right answers are in {folder}/")
    ask, train = (line.partition(": ")[2].split()[1:] for line in said[1:])
    assert train == ["train", recipe, "--data", str(folder)]
    assert main([*train, "--steps", "1", "--out", str(tmp_path / "run")]) == 0
    assert main(["ask", str(tmp_path / "run"), ask[2]]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"{ask[2]}  ->  ")


def test_nothing_is_overwritten(tmp_path: Path, capsys):
    (tmp_path / "mine.txt").write_text("mine")
    for folder, said in [
        (tmp_path, f"{tmp_path}: the folder is not empty; name a new one: nothing is overwritten"),
        (tmp_path / "mine.txt", f"{tmp_path}/mine.txt: not a folder"),
    ]:
        assert main(["data", "export", "digits", str(folder)]) == 2
        assert capsys.readouterr().err == f"regard: {said}\n"
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"] and (
        tmp_path / "mine.txt"
    ).read_text() == "mine"
    (tmp_path / "empty").mkdir()
    assert main(["data", "export", "digits", str(tmp_path / "empty"), "--count", "1"]) == 0


def test_an_export_that_fails_leaves_nothing(tmp_path: Path, capsys, monkeypatch):
    def full(scene, draw):
        raise OSError(28, "No space left on device", str(tmp_path))

    monkeypatch.setattr(drawn, "picture", full)
    assert main(["data", "export", "drawings", str(tmp_path / "drawings")]) == 2
    assert capsys.readouterr().err == f"regard: {tmp_path}: No space left on device\n"
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_names_file_and_bytes_and_leaves_nothing(tmp_path: Path, capsys, monkeypatch):
    folder = tmp_path / "deep" / "drawings"
    write = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if "captions" in path.name:
            raise OSError(28, "No space left on device")
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    assert main(["data", "export", "drawings", str(folder), "--count", "3"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"regard: {folder}/captions.csv: no space left on the disk")
    assert "needed" in error and "free" in error and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_files_go_into_the_folder_itself(tmp_path: Path, capsys):
    """So a mount point, or a link to a folder on another disk, will do."""
    disk, link = tmp_path / "disk", tmp_path / "link"
    disk.mkdir()
    link.symlink_to(disk)
    inode = disk.stat().st_ino
    assert main(["data", "export", "digits", str(link), "--count", "2"]) == 0
    assert link.is_symlink() and disk.stat().st_ino == inode
    assert (disk / "labels.csv").is_file()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["disk", "link"]


def test_what_is_put_there_meanwhile_stays(tmp_path: Path, capsys, monkeypatch):
    folder = tmp_path / "drawings"
    drawing = drawn.drawing

    def meanwhile(seed: int, number: int):
        if number == 1:
            (folder / "captions.csv").write_text("mine")
        return drawing(seed, number)

    monkeypatch.setattr(drawn, "drawing", meanwhile)
    assert main(["data", "export", "drawings", str(folder), "--count", "2"]) == 2
    assert "captions.csv: something of this name was put there" in capsys.readouterr().err
    assert [file.name for file in folder.iterdir()] == ["captions.csv"]
    assert (folder / "captions.csv").read_text() == "mine"


def test_paths_cannot_colour_the_terminal(tmp_path: Path, capsys):
    assert main(["data", "export", "digits", str(tmp_path / "a\x1b[31m"), "--count", "1"]) == 0
    output = capsys.readouterr().out
    assert "\x1b" not in output and output.count("\n") == 3


def test_mistakes_are_one_line(tmp_path: Path, capsys):
    for words, said in [
        (["digts"], 'data export: no such data; got "digts"; did you mean "digits"?'),
        (
            ["digits", "--count", "1798"],
            "--count: there are not so many digits; got 1,798; 1,797 at most",
        ),
    ]:
        assert main(["data", "export", words[0], str(tmp_path / "new"), *words[1:]]) == 2
        assert capsys.readouterr().err == f"regard: {said}\n"
    assert main(["data", "export", "digits", ""]) == 2
    assert capsys.readouterr().err.startswith("regard: a path is empty; ")
    assert list(tmp_path.iterdir()) == []
