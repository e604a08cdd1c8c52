"""Inputs of every format with random mutations: each is read, or refused with an error of ours;
never another exception, and never more memory than a bound."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

from regard import recipe
from regard.data.album import Album, ResizedPictures
from regard.data.captions import read_captioned, read_coco, read_flickr8k
from regard.data.cornell import read_cornell
from regard.data.dailydialog import read_dailydialog
from regard.data.dialogues import read_dialogues
from regard.data.labelled_pictures import read_medmnist
from regard.data.lines import Tally
from regard.data.pairs import read_pairs
from regard.data.parallel import read_parallel
from regard.data.pictures import MOST_PIXELS, read_picture
from regard.data.recordings import Hearing, read_ljspeech
from regard.data.sentences import read_text
from regard.data.sound import read_sound
from regard.errors import RegardError
from tests.records import record

try:
    import zstandard
except ImportError:
    zstandard = None
try:
    import pyarrow
except ImportError:
    pyarrow = None

ROOT = Path(__file__).parents[2]
QUICK = 60
# Bytes that Python and numpy allocate (tracemalloc).
PEAK = 16e6
# Bytes by which a process grows that reads all mutants of a format, with what libraries allocate in
# C: pixels of pillow, samples of libsndfile, windows of Zstandard, pages of arrow.
GROWTH = 64e6
# The same for pictures whose header alone says how large they are: the most pixels that are read,
# four bytes each.
CANVAS = ["bmp", "gif", "webp", "tiff"]
CANVAS_GROWTH = GROWTH + 4 * MOST_PIXELS
TOKENS = [b"\0", b"\n", b"\r", b"\t", b",", b'"', b"{", b"[", b"\xff\xfe", b"\xef\xbb\xbf"]
TOKENS += [b"\xed\xa0\x80", b"\xe2\x80\xa8", b" +++$+++ ", b"__eou__", b"9" * 400, b"'", b"\\u"]
PAIRS = [("Hello, you!", "Hi there."), ("How are you?", "Fine, thanks."), ("Bye", "See you")] * 4


def _mutated(content: bytes, draw: random.Random) -> bytes:
    """One to eight changes: bits, cuts, copies, and bytes that mean something."""
    data = bytearray(content)
    for _ in range(draw.randint(1, 8)):
        place = draw.randrange(len(data) + 1)
        kind = draw.randrange(6)
        if kind == 0 and place < len(data):
            data[place] ^= 1 << draw.randrange(8)
        elif kind == 1:
            data[place:place] = draw.choice(TOKENS)
        elif kind == 2:
            del data[place : place + draw.randint(1, 40)]
        elif kind == 3:
            data[place:place] = data[place : place + draw.randint(1, 60)]
        elif kind == 4:
            data[place : place + 4] = draw.randbytes(4)
        elif draw.random() < 0.2:
            del data[place:]
    return bytes(data)


def _sound(form: str) -> bytes:
    buffer = io.BytesIO()
    time = np.arange(1600) / 8000
    soundfile.write(buffer, np.sin(2 * np.pi * 440 * time) * 0.5, 8000, format=form)
    return buffer.getvalue()


def _picture(form: str) -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(1).integers(0, 256, (16, 16, 3), np.uint8)
    Image.fromarray(pixels).save(buffer, form)
    return buffer.getvalue()


def _coco() -> bytes:
    images = [{"id": n, "file_name": "p.png"} for n in range(6)]
    captions = [{"image_id": n, "caption": f"a red square {n}"} for n in range(6)]
    return json.dumps({"images": images, "annotations": captions}).encode()


def _convokit() -> bytes:
    rows = [
        {"id": f"L{n}", "text": f"text {n}", "reply-to": f"L{n - 1}" if n % 4 else None}
        for n in range(12)
    ]
    return "\n".join(map(json.dumps, rows)).encode()


def _lines(separator: str) -> bytes:
    return "".join(f"{source}{separator}{target}\n" for source, target in PAIRS).encode()


CORNELL = "".join(f"L{n} +++$+++ u0 +++$+++ m0 +++$+++ ANN +++$+++ text {n}\n" for n in range(9))
NAMES = ", ".join(f"'L{n}'" for n in range(9))
MESSAGES = [
    {"messages": [{"role": "user", "content": a}, {"role": "assistant", "content": b}]}
    for a, b in PAIRS
]
RECIPE = b"""extends = "chat-attention"
seed = 3

[data]
kind = "pairs"
path = "a.tsv"
valid = 0.1

[encoder]
width = 32

[train]
steps = 10
learning_rate = 1e-3
schedule = "cosine"
"""
SOUNDS = ("wav", "flac", "ogg", "aiff", "au")
PICTURES = ("png", "jpeg", "bmp", "gif", "webp", "tiff")
JSON_PAIRS = [{"prompt": source, "reply": target} for source, target in PAIRS]
JSON_LINES = "\n".join(map(json.dumps, JSON_PAIRS)).encode()
TURNS = [["Hi.", f"Hello {n}.", "How are you?", "Fine, thanks."] for n in range(6)]


def _dialogue_lines() -> bytes:
    """Turns as lines, an empty line between dialogues."""
    return "\n\n".join("\n".join(turns) for turns in TURNS).encode()


def _npz() -> bytes:
    """As MedMNIST's files."""
    buffer = io.BytesIO()
    arrays = {}
    for split in ("train", "val", "test"):
        arrays[f"{split}_images"] = np.arange(6 * 8 * 8, dtype=np.uint8).reshape(6, 8, 8)
        arrays[f"{split}_labels"] = np.arange(6, dtype=np.uint8).reshape(6, 1) % 3
    np.savez(buffer, **arrays)  # not compressed, so that headers are mutated
    return buffer.getvalue()


def _zstd() -> bytes:
    return b"" if zstandard is None else zstandard.ZstdCompressor().compress(JSON_LINES)


def _parquet() -> bytes:
    if pyarrow is None:
        return b""
    from pyarrow import parquet

    buffer = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(JSON_PAIRS), buffer)
    return buffer.getvalue()


Reader = Callable[[Path, Tally], Any]


def _pairs(path: Path, tally: Tally) -> Any:
    return list(read_pairs(path, tally=tally))


def _dialogues(path: Path, tally: Tally) -> Any:
    return list(read_dialogues(path, tally=tally, turns=3))


def _medmnist(path: Path, tally: Tally) -> Any:
    return list(read_medmnist(path, part="train", size=(8, 8), channels_in=1, tally=tally))


def _pictures(path: Path) -> ResizedPictures:
    return ResizedPictures(lambda: Album(path.parent), size=(16, 16), channels_in=3)


def _captions(path: Path, tally: Tally) -> Any:
    return list(read_captioned(path, pictures=_pictures(path), tally=tally))


def _captions_of_coco(path: Path, tally: Tally) -> Any:
    return list(read_coco(path, pictures=_pictures(path), tally=tally))


def _captions_of_flickr8k(path: Path, tally: Tally) -> Any:
    return list(read_flickr8k(path.parent, part=None, pictures=_pictures(path), tally=tally))


def _ljspeech(path: Path, tally: Tally) -> Any:
    return list(read_ljspeech(path.parent, how=Hearing(rate=8000, max_seconds=9), tally=tally))


def _cornell(path: Path, tally: Tally) -> Any:
    return list(read_cornell(path.parent, tally=tally))


def _one_sound(path: Path, _: Tally) -> Any:
    return read_sound(path, rate=8000, max_seconds=9)


def _one_picture(path: Path, _: Tally) -> Any:
    return read_picture(path, size=(16, 16), channels_in=3)


def _parallel(path: Path, tally: Tally) -> Any:
    return list(read_parallel(path, path.with_name("other.de"), tally=tally))


FORMATS: dict[str, tuple[str, bytes, Reader]] = {
    "tsv": ("a.tsv", _lines("\t"), _pairs),
    "csv": ("a.csv", _lines(";"), _pairs),
    "jsonl": ("a.jsonl", JSON_LINES, _pairs),
    "gz": ("a.jsonl.gz", gzip.compress(JSON_LINES, mtime=0), _pairs),
    "zst": ("a.jsonl.zst", _zstd(), _pairs),
    "parquet": ("a.parquet", _parquet(), _pairs),
    "dialogues of lines": ("a.txt", _dialogue_lines(), _dialogues),
    "dialogues of turns": ("a.jsonl", "\n".join(map(json.dumps, TURNS)).encode(), _dialogues),
    "dialogues of messages": ("a.jsonl", "\n".join(map(json.dumps, MESSAGES)).encode(), _dialogues),
    "npz": ("a.npz", _npz(), _medmnist),
    "messages": ("a.jsonl", "\n".join(map(json.dumps, MESSAGES)).encode(), _pairs),
    "cornell": (
        "movie_lines.txt",
        CORNELL.encode(),
        _cornell,
    ),
    "convokit": ("utterances.jsonl", _convokit(), _cornell),
    "dailydialog": (
        "dialogues_train.txt",
        b"Hi . __eou__ Hello , you . __eou__ Bye . __eou__\n" * 6,
        lambda path, tally: list(read_dailydialog(path, tally=tally, turns=3)),
    ),
    "plain text": (
        "a.txt",
        b"A sentence of several words.\nAnother one follows it here.\n" * 6,
        lambda path, tally: list(read_text(path, tally=tally)),
    ),
    "parallel": ("a.en", b"one line\nanother line\n" * 6, _parallel),
    "captions": ("a.tsv", b"path\ttext\n" + b"p.png\ta red square\n" * 6, _captions),
    "coco": ("captions_train.json", _coco(), _captions_of_coco),
    "flickr8k": ("Flickr8k.token.txt", b"p.png#0\ta red square\n" * 6, _captions_of_flickr8k),
    "ljspeech": ("metadata.csv", b"a|Number 1|number one\n" * 6, _ljspeech),
    "recipe": ("a.toml", RECIPE, lambda path, _: recipe.load(path)),
    **{form: (f"a.{form}", _sound(form.upper()), _one_sound) for form in SOUNDS},
    **{form: (f"a.{form}", _picture(form.upper()), _one_picture) for form in PICTURES},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return filled(tmp_path)


def filled(tmp_path: Path) -> Path:
    """What some of the formats need beside their file."""
    (tmp_path / "other.de").write_text("eine Zeile\nnoch eine\n" * 6)
    (tmp_path / "p.png").write_bytes(_picture("PNG"))
    (tmp_path / "wavs").mkdir()
    (tmp_path / "wavs" / "a.wav").write_bytes(_sound("WAV"))
    conversation = f"u0 +++$+++ u2 +++$+++ m0 +++$+++ [{NAMES}]\n"
    (tmp_path / "movie_conversations.txt").write_text(conversation)
    return tmp_path


def check(form: str, folder: Path, count: int) -> tuple[int, int]:
    """How many were read, and how many refused."""
    name, content, read = FORMATS[form]
    if not content:
        pytest.skip("a package is not installed")
    draw = random.Random(count)
    path = folder / name
    path.write_bytes(content)
    read(path, Tally())  # as it is, it can be read
    outcomes = [0, 0]
    tracemalloc.start()
    try:
        for _ in range(count):
            mutant = _mutated(content, draw)
            path.write_bytes(mutant)
            try:
                read(path, Tally())
                outcomes[0] += 1
            except RegardError as problem:
                outcomes[1] += "\n" not in str(problem)  # one that is not one line is missed below
            except Exception as problem:
                pytest.fail(f"{type(problem).__name__}: {problem}\nof {mutant!r}")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < PEAK
    return outcomes[0], outcomes[1]


@pytest.mark.parametrize("form", FORMATS)
def test_mutated_inputs(form: str, folder: Path):
    assert sum(check(form, folder, QUICK)) == QUICK


def resident(field: str) -> int:
    """Bytes of resident memory of this process; VmHWM: the most so far."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if field in line)
    return int(line.split()[1]) * 1024


def growth(form: str, folder: Path, count: int) -> int:
    """Bytes of resident memory that reading mutants adds to this process, at its peak."""
    name, content, read = FORMATS[form]
    path = filled(folder) / name
    path.write_bytes(content)
    read(path, Tally())  # imports what it needs
    before = resident("VmRSS")
    check(form, folder, count)
    return resident("VmHWM") - before


def check_growth(form: str, folder: Path, count: int) -> int:
    """In a process of its own, whose peak is of this format alone."""
    if not FORMATS[form][1]:
        pytest.skip("a package is not installed")
    module = "tests.faults.test_mutated_inputs"
    program = f"from {module} import *; print(growth({form!r}, Path({str(folder)!r}), {count}))"
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < (CANVAS_GROWTH if form in CANVAS else GROWTH)
    return int(done.stdout)


IN_C = ["png", "jpeg", "wav", "flac", "ogg", "zst", "parquet"]  # formats that libraries in C read


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
@pytest.mark.parametrize("form", IN_C)
def test_resident_memory_of_mutated_inputs(form: str, tmp_path: Path):
    check_growth(form, tmp_path, QUICK)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
@pytest.mark.parametrize("form", FORMATS)
def test_resident_memory_of_ten_thousand_mutated_inputs(form: str, tmp_path: Path):
    grown = check_growth(form, tmp_path, 10_000)
    record(f"resident memory of mutated inputs, {form}", mutants=10_000, bytes=grown)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("form", FORMATS)
def test_ten_thousand_mutated_inputs(form: str, folder: Path):
    read, refused = check(form, folder, 10_000)
    record(f"mutated inputs, {form}", mutants=10_000, read=read, refused=refused)
    assert read + refused == 10_000
