"""Files made to do harm, wherever a file is read: nothing in them is executed, nothing is unpacked
without a bound, and the error is one line."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import pickle
import shutil
import struct
import sys
import time
import tracemalloc
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from regard import build, bundle, checkpoint, cli, disk, recipe
from regard.data import cache
from regard.layers import native
from regard.train import train
from regard.weights import read_tensors, write_tensors
from tests.tiny import (
    Silent,
    memorised,
    memorised_pictures,
    memorised_sounds,
    pairs_file,
    pictures_folder,
    sounds_table,
)

STEP = "step-000002"
SECONDS = 5.0  # until a file is refused; of this process, so that others do not count
SMALL = ("train.steps=2", "encoder.width=8", "train.ema_decay=0.9", "tokenizer.size=300")


_watched: list[list[str]] = []  # the pickles that were read while somebody watched


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if event == "pickle.find_class" and _watched:
        name = ".".join(map(str, arguments))
        _watched[-1].append(name)
        raise RuntimeError(f"a pickle was read: {name}")


sys.addaudithook(_audit)  # it cannot be removed, and does nothing while nobody watches


@pytest.fixture(autouse=True)
def no_pickle_is_read(request: pytest.FixtureRequest) -> Iterator[None]:
    """By nothing in this process, also not by the packages that we use."""
    if request.node.name == "test_the_payloads_work":
        yield
        return
    names: list[str] = []
    _watched.append(names)
    try:
        yield
    finally:
        _watched.remove(names)
    assert not names


class Payload:
    """Makes a folder when it is loaded."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def forms(target: Path) -> dict[str, bytes]:
    """Pickles as different programs write them."""
    buffer, array, archive = io.BytesIO(), io.BytesIO(), io.BytesIO()
    torch.save({"weight": Payload(target)}, buffer)
    np.save(array, np.array([Payload(target)], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(archive, "w") as file:
        for name in ("train_images.npy", "train_labels.npy", "test_images.npy", "test_labels.npy"):
            file.writestr(name, array.getvalue())
    return {
        "text": pickle.dumps(Payload(target), protocol=0),
        "binary": pickle.dumps(Payload(target), protocol=4),
        "torch": buffer.getvalue(),
        "npy": array.getvalue(),
        "npz": archive.getvalue(),
    }


FORMS = ["text", "binary", "torch", "npy", "npz"]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """What a payload would make. It is not there at the end."""
    return tmp_path / "executed"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("malicious")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        chosen = recipe.load("chat-gru", memorised(pairs_file(folder), *SMALL))
        train(chosen, folder / "run", reporter=Silent())
        patch.setenv("REGARD_CACHE", str(folder / "cache of pictures"))
        pictures = recipe.load(
            "image-pool", memorised_pictures(pictures_folder(folder), *SMALL[:1])
        )
        train(pictures, folder / "pictures-run", reporter=Silent())
        patch.setenv("REGARD_CACHE", str(folder / "cache of sounds"))
        sounds = recipe.load("speech-attention", memorised_sounds(sounds_table(folder), *SMALL[:1]))
        train(sounds, folder / "sounds-run", reporter=Silent())
    return folder / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(trained.parent / "cache", tmp_path / "cache")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return shutil.copytree(trained, tmp_path / "run")


def one_line(capsys, *words: object) -> str:
    capsys.readouterr()
    code = cli.main([str(word) for word in words])
    error = capsys.readouterr().err
    assert code == 2, error
    assert error.startswith("regard: ") and error.count("\n") == 1 and len(error) < 1000, error
    return error


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """What is done inside takes little time."""
    began = time.process_time()
    yield
    assert time.process_time() - began < SECONDS


def plant(file: Path, content: bytes, *, with_sum: bool) -> None:
    """Put the content there; `with_sum` as somebody who writes the manifest too."""
    if with_sum:
        disk.put(file.parent, file.name, lambda draft: draft.write_bytes(content))
    else:
        file.write_bytes(content)


def test_the_payloads_work(target: Path):
    """Otherwise the tests below show nothing."""
    for name, content in forms(target).items():
        if name in ("text", "binary"):
            pickle.loads(content)
        elif name == "torch":
            torch.load(io.BytesIO(content), weights_only=False)
        else:
            loaded = np.load(io.BytesIO(content), allow_pickle=True)
            loaded["train_images"] if name == "npz" else loaded
        assert target.is_dir(), name
        target.rmdir()


def test_pickles_are_noticed():
    """Otherwise the fixture above shows nothing."""
    with pytest.raises(RuntimeError, match=r"a pickle was read: collections\.Counter"):
        pickle.loads(pickle.dumps(Counter()))
    assert _watched[-1] == ["collections.Counter"]
    _watched[-1].clear()


def test_no_pickle_is_read_by_the_usual_commands(tmp_path, capsys, monkeypatch):
    """Whole and undamaged: a new run, a resume, answers, scores, a report."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    pairs = pairs_file(tmp_path)
    sets = memorised(pairs, *SMALL, "data.valid=0.4")
    words = [word for change in sets for word in ("--set", change)]
    new = str(tmp_path / "new")
    for command in (
        ["train", "chat-gru", *words, "--out", new],
        ["train", "--resume", new, "--steps", "3"],
        ["ask", new, "Hello!"],
        ["evaluate", new, "--data", str(pairs)],
        ["report", new],
    ):
        assert cli.main(command) == 0, (command, capsys.readouterr().err)


# -- runs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_sum", [True, False])
@pytest.mark.parametrize("name", [bundle.RECIPE, bundle.TOKENIZER, bundle.WEIGHTS, disk.MANIFEST])
def test_pickles_in_a_bundle(run, target, capsys, name: str, with_sum: bool):
    if name == disk.MANIFEST and with_sum:
        pytest.skip("a manifest has no sum")
    for content in forms(target).values():
        plant(run / name, content, with_sum=with_sum)
        assert str(run) in one_line(capsys, "ask", run, "Hello!")
    assert str(run) in one_line(capsys, "evaluate", run)
    assert str(run) in one_line(capsys, "report", run)
    assert cli.main(["doctor", str(run)]) == 1
    assert not target.exists()


@pytest.mark.parametrize("with_sum", [True, False])
@pytest.mark.parametrize(
    "name",
    [checkpoint.WEIGHTS, checkpoint.AVERAGE, checkpoint.OPTIMISER, checkpoint.PROGRESS],
)
def test_pickles_in_a_checkpoint(run, target, capsys, name: str, with_sum: bool):
    file = run / checkpoint.FOLDER / STEP / name
    for content in forms(target).values():
        plant(file, content, with_sum=with_sum)
        error = one_line(capsys, "train", "--resume", run, "--steps", "3")
        assert str(run) in error
    assert not target.exists()


def shard(run: Path) -> list[Path]:
    """The files of the newest checkpoint, as two processes would have written them."""
    folder = run / checkpoint.FOLDER / STEP
    progress = checkpoint.Progress(**disk.read_json(folder / checkpoint.PROGRESS))
    contents = {file.name: read_tensors(file) for file in folder.glob("*.safetensors")}
    paths: list[Path] = []

    def write(draft: Path) -> None:
        for name, whole in contents.items():
            halves: list[dict[str, torch.Tensor]] = [{}, {}]
            for key, tensor in whole.items():
                if tensor.ndim and len(tensor) > 1:
                    parts = tensor.tensor_split(2)
                    halves[1][key] = parts[1].contiguous()
                else:
                    parts = (tensor,)
                halves[0][key] = parts[0].contiguous()
            for rank, half in enumerate(halves):
                path = draft / checkpoint.shard_name(name, rank, 2)
                write_tensors(path, half)
                paths.append(folder / path.name)

    checkpoint.save_folder(run, progress, write)
    return paths


@pytest.mark.parametrize("with_sum", [True, False])
def test_pickles_in_a_checkpoint_of_shards(run, target, capsys, with_sum: bool):
    paths = shard(run)
    assert len(paths) == 6
    resume = ["train", "--resume", str(run), "--steps", "2"]
    assert cli.main(resume) == 0  # as it is, it can be read
    assert checkpoint.newest(run) == 2 and paths[1].exists()
    content = forms(target)
    for number, path in enumerate(paths):
        before = path.read_bytes()
        plant(path, content[FORMS[number % len(FORMS)]], with_sum=with_sum)
        error = one_line(capsys, "train", "--resume", run, "--steps", "3")
        assert str(run) in error
        assert cli.main(["doctor", str(run)]) == 1
        for damaged in (run / checkpoint.FOLDER).glob("*.damaged"):
            damaged.rename(run / checkpoint.FOLDER / STEP)
        plant(path, before, with_sum=with_sum)
    assert not target.exists()


@pytest.mark.parametrize("name", ["sessions.json", "metrics.jsonl"])
def test_pickles_beside_a_run(run, target, capsys, name: str):
    """Nothing depends on these files, so nothing more than a note is said about them."""
    for content in forms(target).values():
        (run / name).write_bytes(content)
        for words in (["report", run], ["train", "--resume", run, "--steps", "2"], ["doctor", run]):
            code = cli.main([str(word) for word in words])
            error = capsys.readouterr().err
            assert code in (0, 1, 2) and "Traceback" not in error, error
            assert "a fault in regard" not in error, error
    assert not target.exists()


@pytest.mark.parametrize("kind", ["sweep", "compare"])
def test_pickles_in_sweeps_and_comparisons(tmp_path, target, capsys, monkeypatch, kind: str):
    """Every file that is read when one goes on, but those of its runs, which are tested above."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    changes = memorised(pairs_file(tmp_path), "encoder.width=8")
    words = ["train", "chat-gru", "--sweep", "train.learning_rate=0.1,0.01"]
    if kind == "compare":
        words = ["compare", "chat-gru", "chat-lstm", "--seeds", "1", "--split", "valid"]
    words += [word for change in changes for word in ("--set", change)]
    words += ["--set", "data.valid=0.4", "--steps", "1", "--out", str(tmp_path / "out")]
    assert cli.main(words) == 0, capsys.readouterr().err
    kept = [file for file in sorted((tmp_path / "out").rglob("*.json*")) if is_of_no_run(file)]
    files = {file.name: file for file in kept}  # one of each name
    assert "result.json" in files and "metrics.jsonl" in files
    for number, file in enumerate(files.values()):
        before = file.read_bytes()
        file.write_bytes(forms(target)[FORMS[number % len(FORMS)]])
        code = cli.main(words)
        error = capsys.readouterr().err
        lines = [line for line in error.splitlines() if not line.endswith(" …")]
        assert code in (0, 2) and "a fault in regard" not in error, error
        assert "Traceback" not in error and (code == 0 or len(lines) == 1), error
        file.write_bytes(before)
    assert not target.exists()


def is_of_no_run(file: Path) -> bool:
    """Whether a file of a sweep is not among those of a run that the tests above plant."""
    own = {bundle.RECIPE, bundle.TOKENIZER, checkpoint.PROGRESS, disk.MANIFEST}
    return file.name not in own or (file.parent / "sweep.json").exists()


def test_pickles_in_the_cache_of_corpora(run, target, caplog, tmp_path):
    (folder,) = (path for path in (tmp_path / "cache").iterdir() if len(path.name) == 32)
    chosen = recipe.Recipe.from_json(disk.read_json(run / bundle.RECIPE), run)
    for number, file in enumerate(sorted(folder.iterdir())):
        before = file.read_bytes()
        file.write_bytes(forms(target)[FORMS[number % len(FORMS)]])
        caplog.clear()
        assert len(build.corpus(chosen, None).train) == 10
        assert "is not trusted" in caplog.text
        assert (folder / file.name).read_bytes() == before
    assert not target.exists()


def test_pickles_among_remembered_sums(tmp_path, target, monkeypatch):
    """What $REGARD_CACHE/digests has of large files."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "REMEMBERED", 1)
    pairs = pairs_file(tmp_path)
    os.utime(pairs, ns=(1, 1))
    monkeypatch.setattr(cache, "_stamp", lambda file: [file.stat().st_size, 1, 1, 1])
    expected = cache.fingerprint([pairs])
    (file,) = (tmp_path / "cache" / "digests").iterdir()
    for content in forms(target).values():
        file.write_bytes(content)
        assert cache.fingerprint([pairs]) == expected
    assert not target.exists()


def test_pickles_as_retrieved_answers(tmp_path, target, capsys, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    changes = memorised(pairs_file(tmp_path), *SMALL, "search.retrieved=2")
    run = tmp_path / "run"
    train(recipe.load("chat-gru", changes), run, reporter=Silent())
    for with_sum in (True, False):
        for content in forms(target).values():
            plant(run / bundle.RETRIEVAL, content, with_sum=with_sum)
            assert bundle.RETRIEVAL in one_line(capsys, "ask", run, "Hello!")
    assert not target.exists()


def test_pickles_in_the_database_of_a_sweep(tmp_path, target, capsys, monkeypatch):
    pytest.importorskip("optuna")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    changes = memorised(pairs_file(tmp_path), "encoder.width=8", "data.valid=0.4")
    words = ["train", "chat-gru", "--sweep", "train.learning_rate=0.01..0.1", "--trials", "1"]
    words += [word for change in changes for word in ("--set", change)]
    words += ["--steps", "1", "--out", str(tmp_path / "out")]
    assert cli.main(words) == 0, capsys.readouterr().err
    for content in forms(target).values():
        (tmp_path / "out" / "sweep.db").write_bytes(content)
        assert "sweep.db" in one_line(capsys, *words)
    assert not target.exists()


# -- inputs ----------------------------------------------------------------------------------------


def packed_as(suffix: str, content: bytes) -> bytes:
    """The content in a file of this kind that is whole."""
    buffer = io.BytesIO()
    match suffix:
        case "gz":
            return gzip.compress(content)
        case "zst":
            zstandard = pytest.importorskip("zstandard")
            return zstandard.ZstdCompressor().compress(content)
        case "parquet":
            pyarrow = pytest.importorskip("pyarrow")
            parquet = pytest.importorskip("pyarrow.parquet")
            table = pyarrow.table({"prompt": [content, b"x"], "reply": [content, b"y"]})
            parquet.write_table(table, buffer)
        case _:
            with zipfile.ZipFile(buffer, "w") as archive:
                archive.writestr("a.tsv", content)
    return buffer.getvalue()


BARE = ("a.tsv", "a.csv", "a.jsonl", "a.json", "a.txt", "a.npz", "a.npy", "a.pkl", "a.pt")
PACKED = ("a.zip", "a.parquet", "a.tsv.gz", "a.jsonl.zst")


@pytest.mark.parametrize("form", ["text", "torch"])
@pytest.mark.parametrize(
    ("name", "packed"),
    [(name, False) for name in (*BARE, *PACKED)] + [(name, True) for name in PACKED],
)
def test_pickles_as_data(tmp_path, target, capsys, monkeypatch, name: str, form: str, packed: bool):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    content = forms(target)[form]
    if packed:
        content = packed_as(name.rpartition(".")[2], content)
    (tmp_path / name).write_bytes(content)
    words = ["train", "chat-gru", "--data", tmp_path / name, "--steps", "1", "--out"]
    code = cli.main([str(word) for word in (*words, tmp_path / "run")])
    error = capsys.readouterr().err
    assert code in (0, 2), error  # as text, some of it may be lines
    assert "Traceback" not in error and "a fault in regard" not in error
    cli.main(["data", "inspect", str(tmp_path / name)])
    assert not target.exists()


@pytest.mark.parametrize("form", FORMS)
def test_pickles_as_medmnist_recipes_and_questions(tmp_path, trained, target, capsys, form: str):
    content = forms(target)[form]
    for name in ("a.npz", "a.toml", "a.png", "a.wav", "a.txt", "config.json"):
        (tmp_path / name).write_bytes(content)
    medmnist = ["--set", "data.kind=medmnist", "--set", f'data.path="{tmp_path / "a.npz"}"']
    error = one_line(capsys, "train", "image-pool", *medmnist, "--out", tmp_path / "run")
    assert "a.npz" in error
    assert "a.toml" in one_line(capsys, "train", tmp_path / "a.toml")
    assert "a.toml" in one_line(capsys, "recipes", "show", tmp_path / "a.toml")
    assert "a.toml" in one_line(capsys, "compare", "--plan", tmp_path / "a.toml")
    assert "config.json" in one_line(capsys, "budget", tmp_path / "config.json")
    pictures = trained.parent / "pictures-run"
    assert "a.png" in one_line(capsys, "ask", pictures, tmp_path / "a.png")
    sounds = trained.parent / "sounds-run"
    assert "a.wav" in one_line(capsys, "ask", sounds, tmp_path / "a.wav")
    cli.main(["ask", str(trained), "--file", str(tmp_path / "a.txt"), "--greedy"])
    cli.main(["evaluate", str(trained), "--data", str(tmp_path / "a.txt")])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err and "a fault in regard" not in captured.err
    assert not target.exists()


# -- code ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled_library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(tmp_path_factory.mktemp("cache")))
        library = native.library.__wrapped__()
    if library is None:
        pytest.skip("there is no compiler")
    return Path(library._name).read_bytes()


@pytest.mark.parametrize("whose", ["ours", "writable by others", "somebody else's"])
def test_a_library_that_others_may_write_is_compiled_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled_library: bytes, whose: str
):
    """$REGARD_CACHE may be a folder that several people share."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    compilations: list[list[str]] = []

    def compile_quickly(command: list[str], **_: object) -> None:
        compilations.append(command)
        Path(command[-1]).write_bytes(compiled_library)

    monkeypatch.setattr(native.subprocess, "run", compile_quickly)
    assert native.library.__wrapped__() is not None
    (file,) = (tmp_path / "native").iterdir()
    assert file.stat().st_mode & 0o777 == 0o755
    if whose == "writable by others":
        file.chmod(0o775)
    elif whose == "somebody else's":
        monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
        if file.stat().st_uid == 0:
            os.chown(file, 12345, -1)
    assert native.library.__wrapped__() is not None
    assert len(compilations) == (1 if whose == "ours" else 2)


# -- safetensors -----------------------------------------------------------------------------------


def safetensors(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def tensor(**fields: object) -> bytes:
    default = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    return json.dumps({"decoder.output.weight": default | fields}).encode()


HEADERS: dict[str, bytes] = {
    "empty": b"",
    "seven bytes": b"1234567",
    "2^63 bytes of header": safetensors(b"{}", length=1 << 63),
    "2^64-1 bytes of header": safetensors(b"{}", length=(1 << 64) - 1),
    "a header beyond the end": safetensors(b"{}", length=1 << 20),
    "150 MB of spaces": safetensors(b"{}" + b" " * 150_000_000),
    "deep JSON": safetensors(b'{"a":' * 100_000),
    "not UTF-8": safetensors(b"\xff" * 100),
    "a shape of 2^60": safetensors(tensor(shape=[1 << 60]), b"\0" * 8),
    "a shape that overflows": safetensors(tensor(shape=[1 << 32, 1 << 32, 4]), b"\0" * 8),
    "a negative shape": safetensors(tensor(shape=[-2]), b"\0" * 8),
    "offsets beyond the end": safetensors(tensor(data_offsets=[0, 1 << 50]), b"\0" * 8),
    "offsets backwards": safetensors(tensor(data_offsets=[8, 0]), b"\0" * 8),
    "an unknown type": safetensors(tensor(dtype="PICKLE"), b"\0" * 8),
    "another model": safetensors(tensor(), b"\0" * 8),
}


@pytest.mark.parametrize("name", HEADERS)
def test_absurd_headers_of_weights(run, capsys, name: str):
    plant(run / bundle.WEIGHTS, HEADERS[name], with_sum=True)
    with at_once():
        assert "model.safetensors" in one_line(capsys, "ask", run, "Hello!")
    newest = run / checkpoint.FOLDER / STEP / checkpoint.WEIGHTS
    plant(newest, HEADERS[name], with_sum=True)
    with at_once():
        assert str(run) in one_line(capsys, "train", "--resume", run, "--steps", "3")


def test_weights_that_fit_are_read_after_all(run):
    """The manifest that `plant` writes is not what is refused above."""
    content = (run / bundle.WEIGHTS).read_bytes()
    plant(run / bundle.WEIGHTS, content, with_sum=True)
    assert read_tensors(run / bundle.WEIGHTS)
    bundle.load(run)


# -- bombs -----------------------------------------------------------------------------------------


def _npz_bomb(folder: Path) -> Path:
    """4 GB of zeros in 4 MB."""
    header = io.BytesIO()
    shape = (5_000_000, 28, 28)
    described = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, described)
    with zipfile.ZipFile(
        folder / "bomb.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1
    ) as archive:
        for name in ("train_images.npy", "train_labels.npy"):
            with archive.open(name, "w", force_zip64=True) as file:
                file.write(header.getvalue())
                for _ in range(240):
                    file.write(bytes(1 << 24))
    return folder / "bomb.npz"


def _gzip_bomb(folder: Path) -> Path:
    path = folder / "bomb.tsv.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(4):
            file.write(bytes(1 << 24))
    return path


def _png_bomb(folder: Path) -> Path:
    path = folder / "bomb.png"
    Image.new("1", (12_000, 12_000)).save(path, optimize=True)
    return path


def _zstd_bomb(folder: Path) -> Path:
    zstandard = pytest.importorskip("zstandard")
    path = folder / "bomb.tsv.zst"
    with path.open("wb") as file, zstandard.ZstdCompressor().stream_writer(file) as writer:
        for _ in range(64):
            writer.write(bytes(1 << 24))
    return path


@pytest.mark.parametrize("bomb", [_gzip_bomb, _zstd_bomb, _png_bomb])
def test_bombs_are_not_unpacked(tmp_path, trained, capsys, monkeypatch, bomb: Callable):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    path = bomb(tmp_path)
    tracemalloc.start()
    try:
        with at_once():
            if path.suffix == ".png":
                error = one_line(capsys, "ask", trained.parent / "pictures-run", path)
            else:
                words = ["train", "chat-gru", "--data", path, "--out", tmp_path / "r"]
                error = one_line(capsys, *words)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.name in error and peak < 100e6


@pytest.mark.long
def test_a_bomb_of_arrays_is_not_unpacked(tmp_path, capsys):
    path = _npz_bomb(tmp_path)
    medmnist = ["--set", "data.kind=medmnist", "--set", f'data.path="{path}"']
    tracemalloc.start()
    try:
        with at_once():
            error = one_line(capsys, "train", "image-pool", *medmnist, "--out", tmp_path / "run")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "bomb.npz" in error and peak < 100e6
