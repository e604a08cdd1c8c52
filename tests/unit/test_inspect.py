"""`regard data inspect` says what a path is, whatever it is, and names a command that trains on
it."""

from __future__ import annotations

import gzip
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard import recipe
from regard.data import detect
from regard.data.inspect import inspect
from regard.errors import DataError
from tests.tiny import labelled_file, pictures_folder


def medmnist(folder: Path) -> Path:
    images, labels = np.zeros((4, 28, 28), np.uint8), np.array([[0], [1], [1], [1]])
    parts: dict[str, Any] = {
        f"{part}_{what}": it
        for part in ("train", "val", "test")
        for what, it in (("images", images), ("labels", labels))
    }
    np.savez(folder / "it.npz", **parts)
    return folder / "it.npz"


def parallel(folder: Path) -> Path:
    for language, line in (("de", "Ein Haus."), ("en", "A house."), ("fr", "Une maison.")):
        with gzip.open(folder / f"train.{language}.gz", "wt") as file:
            file.write(f"{line}\n" * 7)
        (folder / f"val.{language}").write_text(line)
    return folder


def polarity(folder: Path) -> Path:
    (folder / "bad.txt").write_text("dull\nnever again\n")
    (folder / "good.txt").write_text("a joy\n")
    return folder


def prose(folder: Path) -> Path:
    (folder / "novel.txt").write_text("It was a dark night. The rain fell in torrents.\n")
    return folder


@pytest.mark.parametrize(
    ("make", "kind", "usable", "fits"),
    [
        (medmnist, "medmnist", 12, "image-pool"),
        (pictures_folder, "pictures", 10, "image-pool"),
        (parallel, "parallel", 7, "translate-attention"),
        (polarity, "labelled", 3, "sentiment-cnn"),
        (prose, "text", 2, "blank-rnn"),
    ],
)
def test_what_it_is(make, kind: str, usable: int, fits: str, tmp_path: Path):
    found = inspect(make(tmp_path))
    assert (found["kind"], found["usable"]) == (kind, usable)
    command = found["train"].split()
    assert command[:3] == ["regard", "train", fits]
    assert kind in recipe.READS[recipe.load(fits).task] and len(found["samples"]) == min(3, usable)


def test_labels_are_counted(tmp_path: Path):
    assert inspect(medmnist(tmp_path))["labels"] == {"1": 9, "0": 3}
    (tmp_path / "texts").mkdir()
    assert inspect(polarity(tmp_path / "texts"))["labels"] == {"bad": 2, "good": 1}


def test_a_table_of_labels_is_not_one_of_replies(tmp_path: Path):
    table = tmp_path / "reviews.tsv"
    table.write_text(
        "".join(f"film {n} is fine\t{'good' if n % 2 else 'bad'}\n" for n in range(40))
    )
    assert inspect(table)["labels"] == {"bad": 20, "good": 20}
    table.write_text("".join(f"film {n} is fine\tso is {n}\n" for n in range(40)))
    assert inspect(table)["kind"] == "pairs"
    assert inspect(labelled_file(tmp_path))["usable"] == 10


def test_two_languages_are_named(tmp_path: Path):
    found = inspect(parallel(tmp_path))
    assert found["train"] == f"regard train translate-attention --data {tmp_path}"
    fields = detect.recognise(tmp_path).fields
    assert fields == {
        "path": str(tmp_path / "train.en.gz"),
        "target_path": str(tmp_path / "train.de.gz"),
        "valid_path": str(tmp_path / "val.en"),
        "valid_target_path": str(tmp_path / "val.de"),
    }
    for file in tmp_path.glob("val.*"):
        file.unlink()
    assert detect.recognise(tmp_path).fields["valid_path"] is None
    assert found["samples"][0] == {"source": "A house.", "target": "Ein Haus."}


def test_a_command_can_be_typed_as_it_is_shown(tmp_path: Path):
    (tmp_path / "my data").mkdir()
    table = tmp_path / "my data" / "it.tsv"
    table.write_text("".join(f"{n}\tfilm {n} is fine\tso is {n}\n" for n in range(40)))
    words = shlex.split(inspect(table, source_column=2, target_column=3)["train"])
    assert words[2:5] == ["chat-attention", "--data", str(table)]
    data: Any = recipe.load(
        "chat-attention", ["data.kind=pairs", f'data.path="{table}"', *words[6::2]]
    ).data
    assert (data.source_column, data.target_column) == (2, 3)


def test_a_folder_with_one_packed_file_is_that_file(tmp_path: Path):
    """As `regard data fetch octmnist` leaves it."""
    (tmp_path / "fetched.json").write_text("{}")
    packed = medmnist(tmp_path)
    assert inspect(tmp_path) == inspect(packed)
    pictures_folder(tmp_path)
    assert inspect(tmp_path / "pictures")["kind"] == "pictures"
    np.savez(tmp_path / "pictures" / "features.npz", a=np.zeros(3))
    assert inspect(tmp_path / "pictures")["kind"] == "pictures"


def test_nothing_validates_on_what_it_trains_on(tmp_path: Path):
    for name in ("dev", "news", "test"):
        for language in ("de", "en"):
            (tmp_path / f"{name}.{language}").write_text("a line\n")
    fields = detect.recognise(tmp_path).fields
    assert fields["path"] == str(tmp_path / "news.en")
    assert fields["valid_path"] == str(tmp_path / "dev.en")
    for file in tmp_path.glob("news.*"):
        file.unlink()
    fields = detect.recognise(tmp_path).fields
    assert fields["path"] == str(tmp_path / "dev.en") and fields["valid_path"] is None


def test_one_picture_is_no_corpus(tmp_path: Path):
    (tmp_path / "it.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(64)))
    with pytest.raises(DataError, match="neither text nor a table"):
        inspect(tmp_path / "it.png")
    for encoding in ("utf-8", "utf-16"):
        (tmp_path / "it.txt").write_text("It rains in Spain.\n" * 9, encoding)
        assert inspect(tmp_path / "it.txt")["kind"] == "text"


def test_what_is_nothing(tmp_path: Path):
    (tmp_path / "it.bin").write_bytes(b"\0\1")
    with pytest.raises(DataError, match="nothing here that regard can read"):
        inspect(tmp_path)
