"""Pictures: whatever file they come in they are bytes of one size, or a reason why not."""

import importlib.util
import io
import os
import shutil
import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from regard import build, recipe
from regard.data import detect
from regard.data.examples import Item
from regard.data.labelled_pictures import (
    Part,
    digits_file,
    read_digits,
    read_folders,
    read_medmnist,
)
from regard.data.lines import Tally
from regard.data.pictures import read_picture
from regard.errors import DataError, InputError
from regard.tokenizers import Labels
from tests.tiny import LABELS, pictures_folder

SHARED = Path(__file__).parents[2] / "../shared/data"
GREY: dict[str, Any] = dict(size=(7, 5), channels_in=1)


def saved(folder: Path, image: Image.Image, name: str = "a.png", **options) -> Path:
    image.save(folder / name, **options)
    return folder / name


def test_one_already_of_its_size_is_left_as_it_is(tmp_path):
    pixels = np.random.default_rng(1).integers(0, 256, (7, 5), np.uint8)
    item = read_picture(saved(tmp_path, Image.fromarray(pixels)), **GREY)
    assert np.array_equal(item.values, pixels[..., None])
    assert item.content == (tmp_path / "a.png").read_bytes()


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGB", "RGBA", "CMYK", "I;16", "I", "F"])
@pytest.mark.parametrize("channels_in", [1, 3])
def test_every_mode_becomes_grey_or_colour(tmp_path, mode, channels_in):
    if mode in ("I;16", "I", "F"):
        made = Image.fromarray(
            np.full((60, 40), 20_800, {"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode])
        )
    else:
        made = Image.new("RGB", (40, 60), (200, 30, 30)).convert(mode)
    values = read_picture(
        saved(tmp_path, made, "a.tif"), size=(7, 5), channels_in=channels_in
    ).values
    assert made.mode == mode and values.shape == (7, 5, channels_in) and values.dtype == np.uint8
    grey = 255 if mode == "F" else 81  # floats have no range but their own
    right = (
        (200, 30, 30)
        if channels_in == 3 and mode in ("P", "RGB", "RGBA", "CMYK")
        else (grey,) * channels_in
    )
    assert values.reshape(35, channels_in).mean(0) == pytest.approx(right, abs=12)


def test_sixteen_bits_keep_their_light(tmp_path):
    made = Image.fromarray(np.full((7, 5), 32768, np.uint16))
    assert abs(int(read_picture(saved(tmp_path, made), **GREY).values.mean()) - 127) <= 1


def test_what_is_transparent_is_white(tmp_path):
    item = read_picture(saved(tmp_path, Image.new("RGBA", (5, 7), (9, 9, 9, 0))), **GREY)
    assert (item.values == 255).all()
    for mode, colour in (("RGB", (9, 9, 9)), ("L", 9)):
        item = read_picture(
            saved(tmp_path, Image.new(mode, (5, 7), colour), transparency=colour), **GREY
        )
        assert (item.values == 255).all()


def test_it_is_turned_as_its_camera_says(tmp_path):
    pixels = np.zeros((10, 14), np.uint8)
    pixels[:, :7] = 255  # light on the left
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: the left is up
    item = read_picture(
        saved(tmp_path, Image.fromarray(pixels), "a.jpg", exif=exif), size=(14, 10), channels_in=1
    )
    assert item.values[0].mean() > 200 and item.values[-1].mean() < 50


def test_of_an_animation_the_first_picture_counts(tmp_path):
    frames = [Image.new("L", (5, 7), light) for light in (200, 10)]
    path = tmp_path / "a.gif"
    frames[0].save(path, save_all=True, append_images=frames[1:])
    assert abs(int(read_picture(path, **GREY).values.mean()) - 200) < 3


def huge() -> bytes:
    """A PNG of 144 megapixels in a few bytes, which says so in its head."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 12_000, 12_000, 8, 0, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n"
        + head
        + chunk(b"IDAT", zlib.compress(bytes(1000)))
        + chunk(b"IEND", b"")
    )


def test_what_is_no_picture_is_refused_in_one_line(tmp_path):
    whole = saved(
        tmp_path, Image.fromarray(np.random.default_rng(1).integers(0, 256, (64, 64), np.uint8))
    )
    bad = {
        "cut.png": whole.read_bytes()[:200],
        "empty.png": b"",
        "text.png": b"<html>not found</html>",
        "huge.png": huge(),
    }
    for name, content in bad.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError) as caught:
            read_picture(tmp_path / name, **GREY)
        assert name in str(caught.value) and "\n" not in str(caught.value)
    assert "12,000 x 12,000 pixels" in str(caught.value)
    with pytest.raises(InputError, match="no such picture"):
        read_picture(tmp_path / "nothing.png", **GREY)


# -- folders----------------------------------------------------------------------------------------


def test_folders_are_labels_and_bad_files_are_counted(tmp_path):
    home = pictures_folder(tmp_path)
    (home / "joke" / "broken.jpg").write_bytes(b"no")
    (home / "joke" / "notes.txt").write_text("not a picture")
    tally = Tally()
    examples: list[Any] = list(read_folders(home, size=(28, 28), channels_in=1, tally=tally))
    assert sorted(example.target for example in examples) == sorted(LABELS)
    assert tally.used == 10 and tally.skipped == {"not a picture that can be read": 1}
    assert {example.source.name for example in examples} == {
        f"{label}/{i}.png" for i, label in enumerate(LABELS)
    }
    assert detect.kind(home, "classify") == "pictures"


def test_names_that_are_not_utf_8_are_used(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    home = pictures_folder(tmp_path)
    os.rename(home / "joke", os.fsencode(home) + b"/jok\xe9")
    chosen = recipe.load("image-pool", ["data.kind=pictures", f"data.path={home}"])
    tokenizer = build.corpus(chosen).tokenizer
    assert isinstance(tokenizer, Labels) and "jok\ufffd" in tokenizer.labels


def test_other_names_of_the_folders_are_other_labels(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    home = pictures_folder(tmp_path)
    chosen = recipe.load("image-pool", ["data.kind=pictures", f"data.path={home}"])
    before = build.corpus(chosen)
    shutil.copytree(home, tmp_path / "copy")
    assert (
        build.corpus(
            recipe.load("image-pool", ["data.kind=pictures", f"data.path={tmp_path / 'copy'}"])
        ).fingerprint
        == before.fingerprint
    )
    (home / "joke").rename(home / "jokes")
    after = build.corpus(chosen)
    old, new = before.tokenizer, after.tokenizer
    assert isinstance(old, Labels) and "joke" in old.labels
    assert isinstance(new, Labels) and "jokes" in new.labels


def test_folders_without_pictures(tmp_path):
    with pytest.raises(DataError, match="no usable examples in"):
        read_folders(tmp_path, size=(7, 5), channels_in=1, tally=Tally())
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.png").write_bytes(b"no")
    with pytest.raises(DataError, match="no usable examples in"):
        list(read_folders(tmp_path, size=(7, 5), channels_in=1, tally=Tally()))


# -- MedMNIST---------------------------------------------------------------------------------------


def npz(folder: Path, **changes) -> Path:
    draw = np.random.default_rng(3)
    arrays = {}
    for part, count in (("train", 20), ("val", 7), ("test", 11)):
        arrays[f"{part}_images"] = draw.integers(0, 256, (count, 28, 28), np.uint8)
        arrays[f"{part}_labels"] = (np.arange(count)[:, None] % 3).astype(np.uint8)
    np.savez(folder / "med.npz", **(arrays | changes))
    return folder / "med.npz"


def test_each_part_comes_from_its_own_arrays(tmp_path):
    path = npz(tmp_path)
    form: dict[str, Any] = dict(size=(28, 28), channels_in=1)
    parts: tuple[Part, ...] = ("train", "val", "test")
    counts = {
        part: len(list(read_medmnist(path, part=part, tally=Tally(), **form))) for part in parts
    }
    assert counts == {"train": 20, "val": 7, "test": 11}
    with np.load(path) as arrays:
        first: Any = next(read_medmnist(path, part="val", tally=Tally(), **form))
        assert (
            np.array_equal(first.source.values[..., 0], arrays["val_images"][0])
            and first.target == "0"
        )
    assert detect.kind(path, "classify") == "medmnist"


def test_the_first_of_each_class(tmp_path):
    form: dict[str, Any] = dict(size=(28, 28), channels_in=1)
    read = read_medmnist(npz(tmp_path), part="test", first=(2, 1, 0), tally=Tally(), **form)
    kept: list[Any] = list(read)
    assert [(example.source.name, example.target) for example in kept] == [
        ("test/0", "0"),
        ("test/1", "1"),
        ("test/3", "0"),
    ]


def test_colours_and_other_sizes_are_fitted(tmp_path):
    path = npz(tmp_path, train_images=np.zeros((20, 64, 64, 3), np.uint8))
    (one, *_) = read_medmnist(path, part="train", size=(28, 28), channels_in=3, tally=Tally())
    assert isinstance(one.source, Item)
    assert one.source.values.shape == (28, 28, 3)


def test_bad_npz_files_are_named(tmp_path):
    def said(path):
        with pytest.raises(DataError) as caught:
            list(read_medmnist(path, part="train", size=(28, 28), channels_in=1, tally=Tally()))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "no such file" in said(tmp_path / "nothing.npz")
    (tmp_path / "html.npz").write_text("<html>")
    assert "not a whole npz file" in said(tmp_path / "html.npz")
    whole = npz(tmp_path).read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    assert "not a whole npz file" in said(tmp_path / "cut.npz")
    assert "one label for each picture" in said(
        npz(tmp_path, train_labels=np.zeros((3, 1), np.uint8))
    )
    assert "pictures must be bytes" in said(npz(tmp_path, train_images=np.zeros((20, 28, 28))))
    assert "pictures must be bytes" in said(
        npz(tmp_path, train_images=np.zeros((20, 0, 28), np.uint8))
    )
    with np.load(npz(tmp_path)) as arrays:
        np.savez_compressed(tmp_path / "packed.npz", **arrays)
    damaged = bytearray((tmp_path / "packed.npz").read_bytes())
    damaged[300:340] = bytes(40)
    (tmp_path / "packed.npz").write_bytes(damaged)
    assert "not a whole npz file" in said(tmp_path / "packed.npz")
    header = io.BytesIO()
    promised = {"descr": "|u1", "fortran_order": False, "shape": (1 << 50, 28, 28)}
    np.lib.format.write_array_header_1_0(header, promised)
    with zipfile.ZipFile(tmp_path / "lie.npz", "w") as archive:
        archive.writestr("train_images.npy", header.getvalue())
        archive.writestr("train_labels.npy", header.getvalue())
    assert "not a whole npz file" in said(tmp_path / "lie.npz")
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    assert "no array train_images" in said(tmp_path / "other.npz")


def test_an_npz_that_holds_a_pickle_is_refused(tmp_path):
    evil = np.array([{"a": 1}], dtype=object)
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, evil, allow_pickle=True)
    with zipfile.ZipFile(tmp_path / "evil.npz", "w") as archive:
        archive.writestr("train_images.npy", buffer.getvalue())
        archive.writestr("train_labels.npy", buffer.getvalue())
    with pytest.raises(DataError, match="not a whole npz file"):
        list(
            read_medmnist(
                tmp_path / "evil.npz", part="train", size=(28, 28), channels_in=1, tally=Tally()
            )
        )


@pytest.mark.skipif(not SHARED.exists(), reason="../shared/data is not here")
def test_pneumonia():
    tally = Tally()
    path = SHARED / "medmnist" / "pneumoniamnist.npz"
    examples = list(read_medmnist(path, part="val", size=(28, 28), channels_in=1, tally=tally))
    assert len(examples) == tally.used == 524 and {example.target for example in examples} == {
        "0",
        "1",
    }


# -- digits-----------------------------------------------------------------------------------------

has_sklearn = importlib.util.find_spec("sklearn") is not None


@pytest.mark.skipif(not has_sklearn, reason="scikit-learn is not installed")
def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    theirs: Any = load_digits()
    ours: list[Any] = list(read_digits(size=(8, 8), channels_in=1, tally=Tally()))
    assert [int(example.target) for example in ours] == theirs.target.tolist()
    assert all(
        np.array_equal(one.source.values[..., 0], (image * 255 // 16).astype(np.uint8))
        for one, image in zip(ours, theirs.images, strict=True)
    )


@pytest.mark.skipif(has_sklearn, reason="scikit-learn is installed")
def test_without_scikit_learn_its_name_is_said():
    with pytest.raises(DataError, match="scikit-learn is missing.*pip install scikit-learn"):
        digits_file()


# -- memory-----------------------------------------------------------------------------------------


def test_a_bomb_is_refused_before_it_is_unpacked_and_a_large_picture_needs_little(tmp_path):
    """144 megapixels of one colour in a few kilobytes, and 48 in a picture that is still taken;
    in a process of its own, because only there its memory can be told."""
    script = """
import resource, sys
from regard.data.pictures import read_picture
from regard.errors import InputError
read_picture(sys.argv[1], size=(7, 5), channels_in=3)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_picture(sys.argv[2], size=(7, 5), channels_in=3)
except InputError as problem:
    print(problem.what)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""
    small = saved(tmp_path, Image.new("RGB", (50, 70)))
    Image.new("1", (12_000, 12_000)).save(tmp_path / "bomb.png")
    assert (tmp_path / "bomb.png").stat().st_size < 100_000
    told = _run(script, small, tmp_path / "bomb.png")
    assert told[0] == "the picture is too large" and int(told[1]) < 20
    Image.new("RGB", (8000, 6000)).save(tmp_path / "large.png", compress_level=1)
    assert int(_run(script, small, tmp_path / "large.png")[0]) < 400


def _run(script: str, *paths: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, paths)], capture_output=True, text=True, check=True
    )
    return done.stdout.split("\n")[:-1]
