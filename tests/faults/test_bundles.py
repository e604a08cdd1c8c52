"""A bundle that is not what was saved is refused by name; nothing in it is ever executed."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from regard import bundle, cli, disk, recipe
from regard.errors import BundleError
from regard.search import Options
from regard.train import train
from regard.weights import load_tensors, read_tensors, tensors
from tests.tiny import PAIRS, Silent, memorised, pairs_file

FILES = ["recipe.json", "tokenizer.json", "model.safetensors"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        train(
            recipe.load("chat-lstm", memorised(pairs_file(folder), "train.steps=30")),
            folder / "run",
            reporter=Silent(),
        )
    return folder / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "elsewhere" / "copy")


def test_it_loads_elsewhere_and_answers_the_same(trained: Path, run: Path):
    prompts = [prompt for prompt, _ in PAIRS]
    options = Options(max_new_tokens=9)
    assert bundle.load(run).ask(prompts, options) == bundle.load(trained).ask(prompts, options)
    assert str(trained.parent) not in (run / "model.safetensors").read_bytes().decode("latin-1")


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_bit_is_found(run: Path, name: str):
    path, draw = run / name, random.Random(3)
    content = path.read_bytes()
    for _ in range(60):
        bad = bytearray(content)
        bad[draw.randrange(len(bad))] ^= 1 << draw.randrange(8)
        path.write_bytes(bad)
        with pytest.raises(BundleError, match=f"{name}: damaged"):
            bundle.load(run)


@pytest.mark.parametrize("name", FILES)
def test_a_cut_or_missing_file_is_named(run: Path, name: str):
    path = run / name
    content = path.read_bytes()
    for size in (0, 1, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(BundleError, match=name):
            bundle.load(run)
    path.unlink()
    with pytest.raises(BundleError, match=f"{name}: a file is missing"):
        bundle.load(run)


def test_missing_weights_are_restored_by_what_the_error_says(run: Path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(run.parent / "cache"))
    before = (run / "model.safetensors").read_bytes()
    (run / "model.safetensors").unlink()
    with pytest.raises(BundleError) as refused:
        bundle.load(run)
    hint = str(refused.value).partition("restore it from a checkpoint with: regard ")[2]
    assert hint == f"train --resume {run}" and cli.main(hint.split()) == 0
    assert (run / "model.safetensors").read_bytes() == before


def test_a_newer_format_is_refused(run: Path):
    manifest = json.loads((run / "manifest.json").read_text())
    disk.write_json(run / "manifest.json", manifest | {"format": 99})
    with pytest.raises(BundleError, match="newer regard; got format 99; upgrade"):
        bundle.load(run)


def test_a_manifest_cannot_point_elsewhere(run: Path):
    elsewhere = {"../copy/tokenizer.json": [disk.digest(run / "tokenizer.json")]}
    disk.write_json(
        run / "manifest.json", {"format": disk.FORMAT, "files": disk.manifest(run) | elsewhere}
    )
    with pytest.raises(BundleError, match=r"manifest\.json: damaged: not a manifest"):
        bundle.load(run)


@pytest.mark.parametrize("name", ["recipe.json", "tokenizer.json", "model.safetensors"])
def test_a_manifest_without_a_file_is_named_itself(run: Path, name: str):
    files = disk.manifest(run)
    files["a" + name] = files.pop(name)
    disk.write_json(run / "manifest.json", {"format": disk.FORMAT, "files": files})
    with pytest.raises(BundleError, match=rf"manifest\.json: damaged: it does not list {name}"):
        bundle.load(run)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\x80\x04.", b"[" * 100_000])
def test_a_broken_manifest_is_named(run: Path, content: bytes):
    (run / "manifest.json").write_bytes(content)
    with pytest.raises(BundleError, match=r"manifest\.json: damaged"):
        bundle.load(run)


def test_not_a_run(tmp_path: Path):
    with pytest.raises(BundleError, match="no such run; train one with"):
        bundle.load(tmp_path / "nothing")
    with pytest.raises(BundleError, match="not a run folder"):
        bundle.load(tmp_path)


def test_weights_of_another_recipe_are_refused(run: Path):
    weights = read_tensors(run / "model.safetensors")
    with pytest.raises(BundleError, match="not those of this recipe"):
        load_tensors(bundle.load(run).model, {"stranger": weights.popitem()[1]}, "here")


def test_a_reader_finds_a_whole_bundle_at_every_moment_of_a_save(
    run: Path, monkeypatch: pytest.MonkeyPatch
):
    """Load between all the steps of a save: every rename of it."""
    seen = []
    real = disk.os.replace

    def replace(a, b):
        bundle.load(run)
        real(a, b)
        bundle.load(run)
        seen.append(Path(b).name)

    weights = {name: tensor + 1 for name, tensor in read_tensors(run / "model.safetensors").items()}
    monkeypatch.setattr(disk.os, "replace", replace)
    bundle.put_weights(run, weights)
    assert seen == ["manifest.json", "model.safetensors", "manifest.json"]
    loaded = tensors(bundle.load(run).model)
    assert all((loaded[name] == tensor).all() for name, tensor in weights.items())
