"""A save that is killed at any of its lines leaves the state before it or the state after it."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from regard import build, bundle, checkpoint, disk, recipe, tokenizers
from regard.checkpoint import Progress
from regard.errors import BundleError
from regard.train import train
from regard.weights import read_tensors
from tests.tiny import Silent, memorised, pairs_file

TRACED = {module.__file__ for module in (disk, checkpoint, bundle, shutil)}
STEP = 5


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    overrides = memorised(pairs_file(folder), f"train.steps={STEP}", "encoder.width=8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        train(recipe.load("chat-lstm", overrides), folder / "run", reporter=Silent())
    return folder / "run"


def killed_at_line(number: int, action: Callable[[], object]) -> bool:
    """Run `action` in a process that kills itself before the given line of a save; False: it
    ended before that. Of a line that comes again and again, the first two times count."""
    times: Counter[tuple[str, int]] = Counter()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal number
        if frame.f_code.co_filename not in TRACED:
            return None
        if event == "line":
            line = (frame.f_code.co_filename, frame.f_lineno)
            times[line] += 1
            number -= times[line] <= 2
            if number == 0 and times[line] <= 2:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the fork uses none of torch's threads
        child = os.fork()
    if child == 0:
        sys.settrace(trace)
        try:
            action()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def load(run: Path) -> tuple[bundle.Bundle, torch.optim.Optimizer]:
    chosen = recipe.Recipe.from_json(disk.read_json(run / bundle.RECIPE), run)
    tokenizer = tokenizers.read(run / bundle.TOKENIZER)
    model = build.model(chosen, vocabulary=tokenizer.size, source_vocabulary=tokenizer.source_size)
    loaded = bundle.Bundle(chosen, build.task(chosen, tokenizer), model)
    return loaded, torch.optim.AdamW(model.parameters())


def load_newest(
    run: Path, bot: bundle.Bundle, optimiser: torch.optim.Optimizer, noted: Callable[[str], None]
) -> Progress | None:
    choice = checkpoint.choose_newest(run, noted)
    if choice is None:
        return None
    checkpoint.load(choice.folder, bot.model, None, optimiser)
    choice.set_damaged_aside(noted)
    return choice.progress


EVERY = pytest.param(1, marks=pytest.mark.long, id="every line")
SEVENTH = pytest.param(7, id="every seventh line")


@pytest.mark.parametrize("stride", [SEVENTH, EVERY])
@pytest.mark.parametrize("again", [True, False], ids=["saved again", "saved first"])
def test_a_checkpoint_survives_a_kill_at_every_line_of_its_save(
    trained: Path, tmp_path: Path, again: bool, stride: int
):
    model, optimiser = load(trained)
    step = STEP if again else STEP + 1
    outcomes = set()
    for number in count(1, stride):
        run = shutil.copytree(trained, tmp_path / "run")
        assert load_newest(run, model, optimiser, print) is not None
        progress = Progress(step=step, tokens=123)
        killed = killed_at_line(
            number, lambda r=run, p=progress: checkpoint.save(r, model.model, None, optimiser, p)
        )
        notes: list[str] = []
        disk.recover(run / checkpoint.FOLDER)
        found = load_newest(run, model, optimiser, notes.append)
        assert found is not None, f"lost by a kill at line {number}"
        assert found.step in (STEP, step) and not notes
        names = {path.name for path in (run / checkpoint.FOLDER).iterdir()}
        assert names <= {f"step-{STEP:06d}", f"step-{step:06d}"}
        outcomes.add(found.tokens == 123)
        shutil.rmtree(run)
        if not killed:
            break
    assert number > 60 and outcomes == {True, False}


@pytest.mark.parametrize("stride", [SEVENTH, EVERY])
def test_weights_survive_a_kill_at_every_line_of_their_save(
    trained: Path, tmp_path: Path, stride: int
):
    weights = {name: tensor + 1 for name, tensor in read_tensors(trained / bundle.WEIGHTS).items()}
    sums = set()
    for number in count(1, stride):
        run = shutil.copytree(trained, tmp_path / "run")
        killed = killed_at_line(number, lambda r=run: bundle.put_weights(r, weights))
        bundle.load(run)
        disk.recover(run)
        sums.add(disk.digest(run / bundle.WEIGHTS))
        assert not [path.name for path in run.iterdir() if "regard-new" in path.name]
        shutil.rmtree(run)
        if not killed:
            break
    assert number > 30 and len(sums) == 2


@pytest.mark.parametrize("stride", [SEVENTH, EVERY])
def test_a_run_that_is_killed_while_it_is_created_can_be_begun_again(
    trained: Path, tmp_path: Path, stride: int
):
    model, _ = load(trained)
    states = set()
    for number in count(1, stride):
        run = tmp_path / "run"
        run.mkdir()
        with disk.locked(run):
            killed = killed_at_line(
                number, lambda r=run: bundle.create(r, model.recipe, model.tokenizer)
            )
        disk.claim(run, disk.MANIFEST, "run")
        states.add(bundle.has_begun(run))
        if bundle.has_begun(run):
            disk.verify(run, bundle.RECIPE, bundle.TOKENIZER)
        shutil.rmtree(run)
        if not killed:
            break
    assert states == {True, False}


def test_a_failed_second_rename_puts_the_old_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    disk.write_folder(tmp_path / "a", lambda draft: (draft / "text").write_text("old"))
    replace = os.replace

    def failing(source: Path, target: Path) -> None:
        if "regard-new" in str(source) and target == tmp_path / "a":
            raise OSError("the disk is gone")
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError, match="the disk is gone"):
        disk.write_folder(tmp_path / "a", lambda draft: (draft / "text").write_text("new"))
    assert (tmp_path / "a" / "text").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_half_that_is_not_whole_is_not_taken(tmp_path: Path):
    """The old one comes back, also where it is damaged: what is wrong with it is then said by
    name."""
    disk.write_folder(tmp_path / "a", lambda draft: (draft / "text").write_text("old"))
    (tmp_path / "a").rename(tmp_path / ".a.7.regard-old")
    (tmp_path / ".a.7.regard-new").mkdir()
    (tmp_path / ".a.7.regard-new" / "text").write_text("ne")
    (tmp_path / ".a.7.regard-old" / "text").write_text("ol")
    disk.recover(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    with pytest.raises(BundleError, match=r"text: damaged"):
        disk.verify_folder(tmp_path / "a")


def test_an_old_folder_that_cannot_be_put_back_at_once_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    disk.write_folder(tmp_path / "a", lambda draft: (draft / "text").write_text("old"))
    replace = os.replace

    def failing(source: Path, target: Path) -> None:
        if target == tmp_path / "a":
            raise OSError("the disk is gone")
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError, match="the disk is gone"):
        disk.write_folder(tmp_path / "a", lambda draft: (draft / "text").write_text("new"))
    monkeypatch.undo()
    disk.recover(tmp_path)
    assert (tmp_path / "a" / "text").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
