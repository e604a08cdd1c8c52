"""Damaged, cut, missing, swapped and newer files of checkpoints and bundles: all are found and
named, and training goes on from the checkpoint before."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from regard import bundle, checkpoint, disk, recipe
from regard.errors import BundleError
from regard.train import train
from tests.records import record
from tests.tiny import Silent, memorised, pairs_file

STEPS = 6
SMALL = [
    "encoder.width=8",
    f"train.steps={STEPS}",
    "train.save_every=3",
    "train.ema_decay=0.9",
    "tokenizer.size=300",
]


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> recipe.Recipe:
    return recipe.load(
        "chat-attention", memorised(pairs_file(tmp_path_factory.mktemp("d")), *SMALL)
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, chosen: recipe.Recipe) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("damage")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        train(chosen, folder / "run", reporter=Silent())
        yield folder / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


def saved_files(run: Path) -> list[Path]:
    """The files of the bundle and of its newest checkpoint, with both manifests."""
    newest = run / checkpoint.FOLDER / f"step-{STEPS:06d}"
    names = [bundle.RECIPE, bundle.TOKENIZER, bundle.WEIGHTS, disk.MANIFEST]
    return [*(run / name for name in names), *sorted(newest.iterdir())]


@contextmanager
def changed(file: Path, content: bytes | bytearray) -> Iterator[None]:
    before = file.read_bytes()
    file.write_bytes(content)
    yield
    file.write_bytes(before)


def verify(file: Path) -> None:
    """What a load, or a resume, does first with the folder of this file."""
    needed = [bundle.RECIPE, bundle.TOKENIZER, bundle.WEIGHTS]
    if file.parent.parent.name == checkpoint.FOLDER:
        disk.verify_folder(file.parent)
        needed = [checkpoint.WEIGHTS, checkpoint.OPTIMISER, checkpoint.PROGRESS]
    disk.verify(file.parent, *needed)


def check_flips(run: Path, count: int) -> dict[str, int]:
    """Flip single bits; each is found, and the error is about a file of this folder."""
    draw = random.Random(count)
    flips: dict[str, int] = {}
    files = saved_files(run)
    for number in range(count):
        file = files[number % len(files)]
        content = bytearray(file.read_bytes())
        place = draw.randrange(len(content))
        content[place] ^= 1 << draw.randrange(8)
        with changed(file, content), pytest.raises(BundleError) as caught:
            verify(file)
        where = Path(str(caught.value.where))
        if file.name == disk.MANIFEST:
            # Itself, its folder (another format), or a file whose sum or name it has wrong.
            assert file.parent in (where, where.parent), (where, place)
        else:
            assert where == file, (where, place)
        flips[file.name] = flips.get(file.name, 0) + 1
    verify(files[0])
    verify(files[-1])
    return flips


def test_single_bits(run: Path):
    assert len(check_flips(run, 600)) == 8  # recipe.json, … and twice manifest.json


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_ten_thousand_single_bits(run: Path):
    flips = check_flips(run, 10_000)
    assert sum(flips.values()) == 10_000
    record("flipped bits", found=10_000, files=len(flips))


def test_a_flipped_bit_stops_a_load_and_not_a_resume(run: Path, chosen: recipe.Recipe):
    """The same through the doors."""
    for file in saved_files(run):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 16
        if file.parent != run:
            copy = shutil.copytree(run, run.with_name("resumed"))
            (copy / file.relative_to(run)).write_bytes(content)
            reporter = Silent()
            train(chosen, copy, reporter=reporter, resume=True)
            assert reporter.facts.resumed_at == STEPS - 3
            assert file.parent.name in reporter.notes[0] and ".damaged" in reporter.notes[0]
            shutil.rmtree(copy)
            continue
        with changed(file, content), pytest.raises(BundleError, match=file.parent.name):
            bundle.load(run)


def test_truncation_anywhere(run: Path):
    for file in saved_files(run):
        content = file.read_bytes()
        size = len(content)
        for length in {0, 1, 7, 8, 9, size // 3, size // 2, size - 2, size - 1}:
            with changed(file, content[:length]):
                # Without its last newline a manifest still says the same.
                if file.name == disk.MANIFEST and length == size - 1:
                    verify(file)
                    continue
                with pytest.raises(BundleError, match=file.name):
                    verify(file)


def test_a_longer_file_is_found(run: Path):
    for file in saved_files(run):
        with changed(file, file.read_bytes() + b"\0"), pytest.raises(BundleError, match=file.name):
            verify(file)


def test_missing_and_extra_files(run: Path):
    for file in saved_files(run):
        content = file.read_bytes()
        file.unlink()
        with pytest.raises(BundleError, match=f"{file.name}: a file is missing"):
            verify(file)
        file.write_bytes(content)
    extra = run / checkpoint.FOLDER / f"step-{STEPS:06d}" / "extra.safetensors"
    extra.write_bytes(b"")
    with pytest.raises(BundleError, match="extra.safetensors: damaged: a file that was not saved"):
        verify(extra)


def test_swapped_files(run: Path, chosen: recipe.Recipe):
    """Each file is whole, and is another one's; or of another checkpoint."""
    newest = run / checkpoint.FOLDER / f"step-{STEPS:06d}"
    before = run / checkpoint.FOLDER / f"step-{STEPS - 3:06d}"
    weights, average = newest / checkpoint.WEIGHTS, newest / checkpoint.AVERAGE
    for one, other in [(weights, average), (weights, before / checkpoint.WEIGHTS)]:
        with changed(one, other.read_bytes()), pytest.raises(BundleError, match=one.name):
            verify(one)
    shutil.rmtree(newest)
    shutil.copytree(before, newest)  # a whole checkpoint, under the name of a later one
    reporter = Silent()
    train(chosen, run, reporter=reporter, resume=True)
    assert reporter.facts.resumed_at == STEPS - 3
    assert f"it is of another step; got step {STEPS - 3}" in reporter.notes[0]


def test_a_run_holds_no_path_of_its_own(run: Path, trained: Path):
    """It may be moved; the recipe alone names where the data is."""
    for file in run.rglob("*"):
        if file.is_file() and file.name not in (bundle.RECIPE, "sessions.json", "report.html"):
            assert str(trained.parent).encode() not in file.read_bytes(), file
    bundle.load(run)
