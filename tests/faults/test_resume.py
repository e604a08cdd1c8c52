"""Stop and go on: whatever ends a run, it resumes, and ends with the same bits."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from regard import bundle, checkpoint, cli, disk, evaluate, plot, recipe
from regard.bundle import load
from regard.checkpoint import Progress
from regard.cli import waiting
from regard.errors import BundleError, DataError, InputError, RegardError, TrainingError
from regard.train import Stopped, learner, loop, parts, resume, train, validation
from regard.train.process import PATIENCE
from regard.train.ranks import Ranks
from regard.weights import read_tensors, tensors
from tests.tiny import Silent, memorised, pairs_file

STEPS = 60


def settings(folder: Path, *more: str) -> list[str]:
    """Everything that draws at random or has a memory is on."""
    return memorised(
        pairs_file(folder),
        f"train.steps={STEPS}",
        "encoder.dropout=0.3",
        "decoder.dropout=0.3",
        "source.word_dropout=0.2",
        "source.prompt_dropout=0.1",
        "train.label_smoothing=0.1",
        "train.ema_decay=0.9",
        "train.gradient_accumulation_steps=2",
        "train.batch_tokens=64",
        "train.valid_every=15",
        "train.save_every=4",
        "data.valid=0.2",
        *more,
    )


def environment(folder: Path) -> dict[str, str]:
    root = Path(__file__).parents[2]
    return os.environ | {
        "REGARD_CACHE": str(folder / "cache"),
        "PYTHONPATH": str(root),
        "OMP_NUM_THREADS": "1",
    }


def fingerprint(run: Path) -> dict[str, str]:
    """SHA-256 of everything a run ends with: last weights, averages, optimiser, and the best
    weights."""
    last = run / checkpoint.FOLDER / f"step-{STEPS:06d}"
    files = [last / name for name in (checkpoint.WEIGHTS, checkpoint.AVERAGE, checkpoint.OPTIMISER)]
    return {file.name: disk.digest(file) for file in [*files, run / "model.safetensors"]}


def scores(run: Path) -> list[dict]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("seconds", "speed")} for line in lines]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, number: int, code: int
):
    file, run = pairs_file(tmp_path), tmp_path / "run"
    sets = [word for change in memorised(file, "train.steps=100000") for word in ("--set", change)]
    regard = [sys.executable, "-m", "regard", "train"]
    process = subprocess.Popen(
        [*regard, "chat-attention", "--out", str(run), *sets],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    while process.poll() is None and not (run / "manifest.json").exists():
        time.sleep(0.05)
    time.sleep(0.2)
    process.send_signal(number)
    error = process.communicate(timeout=30)[1].decode()
    assert process.returncode == code, error
    assert "Traceback" not in error
    assert f"regard train --resume {run}" in error
    assert list((run / checkpoint.FOLDER).glob("step-*"))
    step = checkpoint.newest(run)
    assert step is not None
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    assert cli.main(["train", "--resume", str(run), "--steps", str(step + 5)]) == 0
    assert "resuming at step" in capsys.readouterr().out


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[recipe.Recipe, Path, Path]:
    """A recipe, the folder where it was trained (run, cache and data), and a copy of the folder."""
    folder = tmp_path_factory.mktemp("trained") / "now"
    folder.mkdir()
    chosen = recipe.load("chat-attention", settings(folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        train(chosen, folder / "run", reporter=Silent())
    copy = shutil.copytree(folder, folder.with_name("copy"))
    return chosen, folder, copy


@pytest.fixture
def tiny_run(trained, monkeypatch: pytest.MonkeyPatch) -> tuple[recipe.Recipe, Path]:
    """The same run for each test, as it was, under the same paths. The data is beside it."""
    chosen, folder, copy = trained
    monkeypatch.setenv("REGARD_CACHE", str(folder / "cache"))
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    return chosen, folder / "run"


def test_a_damaged_checkpoint_is_passed_over(tiny_run):
    chosen, run = tiny_run
    newest = run / checkpoint.FOLDER / f"step-{STEPS:06d}" / checkpoint.OPTIMISER
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 4
    newest.write_bytes(content)
    reporter = Silent()
    before = disk.digest(run / "model.safetensors")
    train(chosen, run, reporter=reporter, resume=True)
    assert "optimiser.safetensors" in reporter.notes[0] and "damaged" in reporter.notes[0]
    assert reporter.facts.resumed_at == STEPS - 4
    assert disk.digest(
        newest.parent.with_name(f"{newest.parent.name}.damaged") / checkpoint.OPTIMISER
    )
    disk.verify_folder(newest.parent)
    assert disk.digest(run / "model.safetensors") == before


def test_a_whole_checkpoint_of_another_version_is_not_thrown_away(tiny_run):
    chosen, run = tiny_run

    def rewritten(change) -> None:
        for folder in (run / checkpoint.FOLDER).iterdir():
            progress = disk.read_json(folder / checkpoint.PROGRESS)
            change(progress)
            disk.put(
                folder,
                checkpoint.PROGRESS,
                lambda draft, told=progress: draft.write_text(json.dumps(told)),
            )

    rewritten(lambda progress: progress.pop("window_nats"))  # it was added later
    reporter = Silent()
    train(chosen, run, reporter=reporter, resume=True)
    assert reporter.facts.resumed_at == STEPS and not reporter.notes
    # As "best" was before it was the plain score: not to be taken for one.
    rewritten(lambda progress: progress.update(best=-1.0))
    before = state(run)
    with pytest.raises(BundleError, match="not a progress file of this version of regard"):
        train(chosen, run, reporter=Silent(), resume=True)
    assert state(run) == before


def test_a_checkpoint_of_another_order_begins_its_epoch_anew(tiny_run):
    chosen, run = tiny_run
    newest = run / checkpoint.FOLDER / f"step-{STEPS:06d}"
    progress = disk.read_json(newest / checkpoint.PROGRESS)
    del progress["order"], progress["window"]  # as it was before there were windows
    progress["batch"] = 1
    text = json.dumps(progress)
    disk.put(newest, checkpoint.PROGRESS, lambda draft: draft.write_text(text))
    reporter = Silent()
    longer = chosen.override([f"train.steps={STEPS + 1}"])
    ended = train(longer, run, reporter=reporter, resume=True)
    assert len(reporter.notes) == 1
    assert f"order of batches; epoch {progress['epoch'] + 1} begins anew" in reporter.notes[0]
    # One more update of two batches, the first of that epoch.
    assert (ended.epoch, ended.window, ended.batch) == (progress["epoch"], 0, 2)


def test_a_checkpoint_of_a_newer_format_is_refused_and_kept(tiny_run):
    chosen, run = tiny_run
    newest = run / checkpoint.FOLDER / f"step-{STEPS:06d}"
    content = disk.read_json(newest / disk.MANIFEST)
    disk.write_json(newest / disk.MANIFEST, content | {"format": disk.FORMAT + 1})
    before = state(run)
    with pytest.raises(
        BundleError,
        match=f"step-{STEPS:06d}: written by a newer regard; got format {disk.FORMAT + 1}; upgrade",
    ):
        train(chosen, run, reporter=Silent(), resume=True)
    assert state(run) == before


@pytest.mark.parametrize("format_number", [0, -1, "2", None, 2.0])
def test_a_changed_format_number_is_found(tiny_run, format_number):
    chosen, run = tiny_run
    for manifest in (
        run / disk.MANIFEST,
        run / checkpoint.FOLDER / f"step-{STEPS:06d}" / disk.MANIFEST,
    ):
        content = disk.read_json(manifest)
        disk.write_json(manifest, content | {"format": format_number})
        with pytest.raises(BundleError, match=r"manifest\.json: damaged"):
            disk.verify(manifest.parent)
        disk.write_json(manifest, content)
    assert load(run).recipe == chosen


@pytest.mark.parametrize("extra", ["average.safetensors", "notes.txt", "more"])
def test_a_file_too_many_in_a_checkpoint_is_named_and_kept(tiny_run, extra: str):
    chosen, run = tiny_run
    newest = run / checkpoint.FOLDER / f"step-{STEPS:06d}"
    if extra == "more":
        (newest / extra).mkdir()
    elif extra == "average.safetensors":  # one that was never saved, of a run without averages
        chosen = chosen.override(["train.ema_decay=0.0"])
        content = disk.read_json(newest / disk.MANIFEST)
        content["files"].pop(extra)
        disk.write_json(newest / disk.MANIFEST, content)
    else:
        (newest / extra).write_text("mine")
    reporter = Silent()
    train(chosen, run, reporter=reporter, resume=True, anyway=True)
    assert f"{extra}: damaged: a file that was not saved with it" in reporter.notes[0]
    assert f"it is now step-{STEPS:06d}.damaged" in reporter.notes[0]
    assert (newest.parent / f"step-{STEPS:06d}.damaged" / extra).exists()
    assert reporter.facts.resumed_at == STEPS - 4


def test_what_a_file_manager_leaves_is_no_damage(tiny_run):
    chosen, run = tiny_run
    (run / checkpoint.FOLDER / f"step-{STEPS:06d}" / ".DS_Store").write_bytes(b"\0")
    reporter = Silent()
    train(chosen, run, reporter=reporter, resume=True)
    assert reporter.facts.resumed_at == STEPS and not reporter.notes


@pytest.mark.parametrize("name", ["Thumbs.db", "notes.txt"])
def test_an_extra_file_in_every_checkpoint_does_not_begin_again(tiny_run, name: str):
    chosen, run = tiny_run
    for folder in (run / checkpoint.FOLDER).iterdir():
        (folder / name).write_text("mine")
    reporter = Silent()
    train(chosen.override([f"train.steps={STEPS + 12}"]), run, reporter=reporter, resume=True)
    assert reporter.facts.resumed_at == STEPS
    assert name in reporter.notes[0] and "the file is kept" in reporter.notes[0]
    own = sorted((run / checkpoint.FOLDER).rglob(name))
    assert len(own) == 2 and all(file.read_text() == "mine" for file in own)


@pytest.mark.parametrize("how", ["removed", "damaged"])
def test_without_a_checkpoint_the_trained_model_is_kept(tiny_run, how: str):
    chosen, run = tiny_run
    if how == "removed":
        shutil.rmtree(run / checkpoint.FOLDER)
    else:
        for folder in (run / checkpoint.FOLDER).iterdir():
            (folder / checkpoint.WEIGHTS).write_bytes(b"otherwise")
    before = state(run)
    shorter = chosen.override(["train.steps=4"])
    with pytest.raises(TrainingError, match="no checkpoint to go on from; the trained model is"):
        train(shorter, run, reporter=Silent(), resume=True)
    assert state(run) == before
    assert train(shorter, run, reporter=Silent(), resume=True, anyway=True).step == 4


def test_a_checkpoint_under_another_steps_name_is_not_the_newest(tiny_run):
    chosen, run = tiny_run
    home = run / checkpoint.FOLDER
    shutil.copytree(home / f"step-{STEPS - 4:06d}", home / "step-99999999999")
    assert checkpoint.newest(run) == STEPS
    reporter = Silent()
    train(chosen, run, reporter=reporter, resume=True)
    assert reporter.facts.resumed_at == STEPS
    assert f"it is of another step; got step {STEPS - 4}" in reporter.notes[0]


def test_a_new_run_does_not_go_into_a_checkpoint(tiny_run):
    chosen, run = tiny_run
    before = state(run)
    with pytest.raises(InputError, match="holds something else than a run"):
        train(chosen, run / checkpoint.FOLDER / f"step-{STEPS:06d}", reporter=Silent())
    assert state(run) == before


def test_a_damaged_log_is_no_fault(tiny_run):
    chosen, run = tiny_run
    with (run / "metrics.jsonl").open("a") as log:
        for value in ("-3.5", "NaN", "1e999", '"much"'):
            log.write(f'{{"step": 60, "kind": "valid", "perplexity": {value}}}\n')
    train(chosen, run, reporter=Silent(), resume=True)
    assert plot.curves(run).exists()


def test_a_manifest_with_other_types_is_damaged(tiny_run):
    chosen, run = tiny_run
    newest = run / checkpoint.FOLDER / f"step-{STEPS:06d}" / disk.MANIFEST
    content = disk.read_json(newest)
    content["files"][checkpoint.WEIGHTS] = 5
    disk.write_json(newest, content)
    reporter = Silent()
    train(chosen, run, reporter=reporter, resume=True)
    assert "not a manifest" in reporter.notes[0] and reporter.facts.resumed_at == STEPS - 4


def test_ctrl_c_twice_at_once_still_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    chosen = recipe.load("chat-attention", settings(tmp_path))

    class Twice(Silent):
        def stepped(self, progress, loss, speed, done) -> None:
            if progress.step == 6:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)

    reporter = Twice()
    with pytest.raises(Stopped, match="a checkpoint of step 6 is saved"):
        train(chosen, tmp_path / "run", reporter=reporter)
    assert reporter.notes == ["stopping; saving a checkpoint (Ctrl-C again drops it)"]


# -- a resume needs only the recipe, the tokenizer and a checkpoint---------------------------------


def damage(file: Path, how: str) -> None:
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-9] + b"otherwise")


@pytest.mark.parametrize("how", ["missing", "damaged"])
@pytest.mark.parametrize("finished", [True, False])
def test_kept_weights_come_back_from_their_checkpoint(tiny_run, how: str, finished: bool):
    """The last ones are kept where few examples are held out, and their checkpoint is there."""
    chosen, run = tiny_run
    before = fingerprint(run)
    damage(run / "model.safetensors", how)
    reporter = Silent()
    train(chosen, run, reporter=reporter, resume=True) if finished else train(
        chosen.override(["train.steps=61"]), run, reporter=reporter, resume=True
    )
    assert (
        "model.safetensors: damaged or missing; restored from the checkpoint of step 60"
        in reporter.notes[0]
    )
    assert not finished or fingerprint(run) == before
    load(run)


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_weights_without_a_checkpoint_are_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    run = tmp_path / "run"
    chosen = recipe.load(
        "chat-attention",
        settings(tmp_path, "train.keep=best", "train.learning_rate=0.1", "train.warmup_steps=1"),
    )
    progress = train(chosen, run, reporter=Silent())
    assert 0 < progress.kept_step < STEPS - 4  # the best came early, and its checkpoint is gone
    damage(run / "model.safetensors", how)
    reporter = Silent()
    again = train(chosen, run, reporter=reporter, resume=True)
    assert "there is no checkpoint of step" in reporter.notes[0]
    assert again.step == STEPS == again.kept_step == again.best_step
    load(run)
    validations = [line["step"] for line in scores(run) if line["kind"] == "valid"]
    assert validations == sorted(set(validations))


def test_a_byte_that_is_not_utf_8_in_the_log_is_no_end(tiny_run):
    chosen, run = tiny_run
    log = run / "metrics.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    spoilt = lines[-1].replace(b'"samples": [["', b'"samples": [["\xff', 1)
    assert spoilt != lines[-1]
    log.write_bytes(b"".join([*lines[:-1], spoilt, b'{"step": 3, "ki']))
    train(chosen.override(["train.steps=70"]), run, reporter=Silent(), resume=True)
    kinds = [(line["step"], line["kind"]) for line in scores(run)]
    assert kinds[: len(lines)] == [
        (json.loads(line)["step"], json.loads(line)["kind"]) for line in lines
    ]
    assert kinds[-1][0] == 70
    plot.curves(run)


# -- threads----------------------------------------------------------------------------------------


class Counting(Silent):
    """Remembers with how many threads each step was made."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()

    def stepped(self, progress, loss, speed, done) -> None:
        self.threads.add(torch.get_num_threads())


@pytest.fixture
def own_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("own_threads")
def test_a_resume_has_the_threads_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    chosen, run = recipe.load("chat-lstm", settings(tmp_path, "train.steps=8")), tmp_path / "run"
    torch.set_num_threads(2)
    first = Counting()
    train(chosen, run, reporter=first)
    torch.set_num_threads(1)
    longer, second = chosen.override(["train.steps=12"]), Counting()
    assert train(longer, run, reporter=second, resume=True).threads == 2
    assert first.threads == second.threads == {2}
    assert torch.get_num_threads() == 1  # the caller's own again

    third, fourth = Counting(), Counting()
    changed = longer.override(["train.steps=16", "train.threads=1"])
    train(changed, run, reporter=third, resume=True, anyway=True)
    train(changed.override(["train.steps=20"]), run, reporter=fourth, resume=True)
    assert third.threads == fourth.threads == {1}


@pytest.mark.usefixtures("own_threads")
@pytest.mark.parametrize(("before", "threads"), [(1, 1), (4, 3), (0, 3)])
def test_another_number_of_processes_has_threads_of_its_own(before: int, threads: int):
    """A run of 1, 4 or unknown processes with 3 threads each goes on with 4 of one thread."""
    ranks = Ranks()
    ranks.world = 4
    loop: Any = SimpleNamespace(
        how=recipe.load("chat-gru").train,
        ranks=ranks,
        reporter=Silent(),
        progress=Progress(threads=3, world=before),
    )
    torch.set_num_threads(1)
    number = resume._use_threads(loop)
    assert number == (threads if before in (0, 4) else 0)
    assert torch.get_num_threads() == loop.progress.threads == threads
    assert loop.progress.world == 4


@pytest.mark.usefixtures("own_threads")
def test_threads_that_cannot_be_had_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    chosen, run = recipe.load("chat-lstm", settings(tmp_path, "train.steps=2")), tmp_path / "run"
    torch.set_num_threads(2)
    train(chosen, run, reporter=Silent())
    monkeypatch.setenv("OMP_THREAD_LIMIT", "1")
    reporter = Silent()
    assert (
        train(chosen.override(["train.steps=3"]), run, reporter=reporter, resume=True).threads == 1
    )
    assert "trained with 2 threads so far and only 1 can be had here" in reporter.notes[0]
    monkeypatch.delenv("OMP_THREAD_LIMIT")
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    torch.set_num_threads(3)
    other = tmp_path / "other"
    train(chosen, other, reporter=Silent())
    reporter = Silent()
    assert (
        train(chosen.override(["train.steps=3"]), other, reporter=reporter, resume=True).threads
        == 3
    )
    assert "going on with 3 threads as before" in reporter.notes[0]


def test_what_a_removed_run_left_is_neither_gone_on_with_nor_lost(tiny_run):
    chosen, run = tiny_run
    for file in run.iterdir():
        if file.is_file():
            file.unlink()
    before = state(run)
    with pytest.raises(
        InputError, match="not empty and holds no run; got checkpoints; choose a new"
    ):
        train(chosen.override(["train.steps=8"]), run, reporter=Silent())
    assert state(run) == before and checkpoint.newest(run) == STEPS
    shutil.rmtree(run / checkpoint.FOLDER)
    train(chosen.override(["train.steps=8"]), run, reporter=Silent())
    assert checkpoint.newest(run) == 8


def test_a_model_that_cannot_be_built_leaves_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    chosen = recipe.load(
        "chat-gru",
        settings(tmp_path, "decoder.attention=dot", "decoder.width=20", "decoder.shared=false"),
    )
    with pytest.raises(InputError, match="dot"):
        train(chosen, tmp_path / "run", reporter=Silent())
    assert not (tmp_path / "run" / "manifest.json").exists()


# -- a run that is resumed as another one-----------------------------------------------------------


def changes(run: Path) -> list[tuple[int, list[str]]]:
    return [(line["step"], line["changes"]) for line in scores(run) if line["kind"] == "changed"]


def state(run: Path) -> dict[str, bytes]:
    """Everything in a run's folder but who holds its lock."""
    return {
        str(file): file.read_bytes()
        for file in run.rglob("*")
        if file.is_file() and file.name != disk.LOCK
    }


@pytest.mark.parametrize("anyway", [False, True])
def test_data_with_another_vocabulary_is_refused(tiny_run, anyway: bool):
    chosen, run = tiny_run
    before = state(run)
    (run.parent / "pairs.tsv").write_text("quite\tother\nwords\there\n" * 3)
    with pytest.raises(
        DataError, match="not what the run was trained on: it makes another vocabulary"
    ):
        train(chosen, run, reporter=Silent(), resume=True, anyway=anyway)
    assert state(run) == before


def test_changed_data_with_the_same_words(tiny_run):
    chosen, run = tiny_run
    before, longer = state(run), chosen.override(["train.steps=70"])
    lines = (run.parent / "pairs.tsv").read_text().splitlines()
    (run.parent / "pairs.tsv").write_text("\n".join(reversed(lines)))
    with pytest.raises(
        TrainingError, match=r"not what this run was trained on so far; .* add --anyway to go on"
    ):
        train(longer, run, reporter=Silent(), resume=True)
    assert state(run) == before

    progress = train(longer, run, reporter=Silent(), resume=True, anyway=True)
    assert (
        progress.step == 70 and progress.best_step > STEPS
    )  # what was best on other data says nothing
    ((step, (told,)),) = changes(run)
    assert step == STEPS and told.startswith("data: ")
    reporter = Silent()
    train(
        longer.override(["train.steps=75"]), run, reporter=reporter, resume=True
    )  # it is this run's data now
    assert reporter.facts.resumed_at == 70 and len(changes(run)) == 1


def test_data_that_only_moved_is_the_same(tiny_run):
    chosen, run = tiny_run
    shutil.move(run.parent / "pairs.tsv", run.parent / "moved.tsv")
    moved = chosen.override([f'data.path="{run.parent / "moved.tsv"}"'])
    before = fingerprint(run)
    train(moved, run, reporter=Silent(), resume=True)
    assert fingerprint(run) == before
    assert load(run).recipe == moved


def test_changed_settings(tiny_run):
    chosen, run = tiny_run
    before = state(run)
    other = chosen.override(["train.steps=70", "train.learning_rate=1e-4", "encoder.dropout=0.1"])
    with pytest.raises(TrainingError) as refused:
        train(other, run, reporter=Silent(), resume=True)
    assert str(refused.value) == (
        f"{run}: not the recipe this run began with; got encoder.dropout: 0.3 -> 0.1, "
        "train.learning_rate: 0.005 -> 0.0001; "
        "add --anyway to go on like that, or train a new run"
    )
    assert state(run) == before

    reporter = Silent()
    progress = train(other, run, reporter=reporter, resume=True, anyway=True)
    assert progress.step == 70 and reporter.facts.resumed_at == STEPS
    assert changes(run) == [
        (STEPS, ["encoder.dropout: 0.3 -> 0.1", "train.learning_rate: 0.005 -> 0.0001"])
    ]
    assert "train.learning_rate: 0.005 -> 0.0001" in reporter.notes[0]
    assert load(run).recipe == other
    before = state(run / checkpoint.FOLDER)
    train(other, run, reporter=Silent(), resume=True)  # it is this run's recipe now
    assert state(run / checkpoint.FOLDER) == before and len(changes(run)) == 1


def test_a_change_survives_a_kill_before_the_next_checkpoint(tiny_run):
    chosen, run = tiny_run
    other = chosen.override(["train.steps=70", "train.batch_tokens=96", "train.ema_decay=0"])

    class Killed(Silent):
        def stepped(self, progress, loss, speed, done) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(other, run, reporter=Killed(), resume=True, anyway=True)
    assert train(other, run, reporter=Silent(), resume=True).step == 70
    assert [step for step, _ in changes(run)] == [STEPS]


@pytest.mark.parametrize("average", ["0", "0.5"])
def test_averaging_begins_and_ends_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, average: str
):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    other = {"0": "0.5", "0.5": "0"}[average]
    chosen = recipe.load(
        "chat-gru", memorised(pairs_file(tmp_path), "train.steps=4", f"train.ema_decay={average}")
    )
    train(chosen, tmp_path / "run", reporter=Silent())
    changed = chosen.override(["train.steps=8", f"train.ema_decay={other}"])
    assert train(changed, tmp_path / "run", reporter=Silent(), resume=True, anyway=True).step == 8


def test_another_architecture_or_vocabulary_is_refused_in_any_case(tiny_run):
    chosen, run = tiny_run
    before = state(run)
    for key, value in [
        ("encoder.layers", 2),
        ("encoder.cell", "gru"),
        ("decoder.attention", "dot"),
        ("tokenizer.size", 300),
    ]:
        other, said = (
            chosen.override([f"{key}={value}", "train.learning_rate=1e-4"]),
            rf"got {key}: [^,]* -> \W?{value}\W?; train a new",
        )
        with pytest.raises(
            TrainingError, match=f"do not fit another architecture or vocabulary; {said}"
        ):
            train(other, run, reporter=Silent(), resume=True, anyway=True)
    assert state(run) == before


def test_weights_of_another_shape_are_refused_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A limit on length decides the size of the model where each place has a vector of its own."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    tiny = memorised(
        pairs_file(tmp_path), "train.steps=3", "encoder.positions=learned", "encoder.layers=1"
    )
    chosen = recipe.load("chat-transformer", tiny)
    train(chosen, tmp_path / "run", reporter=Silent())
    before = state(tmp_path / "run")
    with pytest.raises(BundleError, match="must have shape"):
        train(
            chosen.override(["data.max_source=40"]),
            tmp_path / "run",
            reporter=Silent(),
            resume=True,
            anyway=True,
        )
    assert state(tmp_path / "run") == before


# -- what a resume leaves as it was-----------------------------------------------------------------


def test_epochs_are_counted_across_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    budget = ["train.steps=", "train.epochs=3", "train.gradient_accumulation_steps=1"]
    chosen = recipe.load("chat-attention", settings(tmp_path, *budget))
    whole = train(chosen, tmp_path / "whole", reporter=Silent())
    stopped = chosen.override(["train.epochs=", f"train.steps={whole.step // 2}"])
    halfway = train(stopped, tmp_path / "run", reporter=Silent())
    assert halfway.batch > 0 and halfway.step < whole.step
    ended = train(chosen, tmp_path / "run", reporter=Silent(), resume=True)
    assert (ended.step, ended.epoch, ended.batch) == (whole.step, whole.epoch, whole.batch)


def test_resuming_a_finished_run_changes_nothing(tiny_run):
    chosen, run = tiny_run
    before, log = fingerprint(run), (run / "metrics.jsonl").read_bytes()
    train(chosen, run, reporter=Silent(), resume=True)
    assert fingerprint(run) == before and (run / "metrics.jsonl").read_bytes() == log


def test_a_longer_budget_is_remembered(tiny_run):
    chosen, run = tiny_run
    longer = chosen.override(["train.steps=70"])
    assert train(longer, run, reporter=Silent(), resume=True).step == 70
    assert json.loads((run / "recipe.json").read_text())["train"]["steps"] == 70
    disk.verify(run, "recipe.json", "tokenizer.json", "model.safetensors")


def test_a_run_is_not_overwritten(tiny_run):
    chosen, run = tiny_run
    with pytest.raises(TrainingError, match="already holds a run"):
        train(chosen, run, reporter=Silent())


def test_two_trainers_in_one_folder(tiny_run):
    chosen, run = tiny_run
    with disk.locked(run), pytest.raises(TrainingError, match=f"pid {os.getpid()}"):
        train(chosen, run, reporter=Silent(), resume=True)


def test_not_a_number_is_never_learned_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    chosen = recipe.load(
        "chat-attention",
        memorised(
            pairs_file(tmp_path),
            "train.steps=50",
            "train.learning_rate=1e38",
            "train.max_grad_norm=0.0",
        ),
    )
    with pytest.raises(TrainingError, match="not a number 5 times in a row"):
        train(chosen, tmp_path / "run", reporter=Silent())
    log = tmp_path / "run" / "metrics.jsonl"
    assert not log.exists() or "NaN" not in log.read_text()


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_the_bad_batch_is_named_and_the_last_good_checkpoint_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
):
    """From step 7 on, one of the ten batches of each step is bad."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    one_by_one = ["train.batch_tokens=1", "train.gradient_accumulation_steps=10"]
    limits = ["train.steps=20", "train.valid_every=4", "data.valid=0"]
    chosen = recipe.load("chat-attention", settings(tmp_path, *one_by_one, *limits))
    train(chosen, tmp_path / "whole", reporter=Silent())
    run = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        Poison(patch, example=7, from_step=7, what=what)
        with pytest.raises(TrainingError) as ended:
            train(chosen, run, reporter=Silent())
    assert str(ended.value) == (
        f"{run}, step 11: loss or gradient was not a number 5 times in a row; "
        "got examples 7 of the training data; the checkpoint of step 4 is kept; lower the rate "
        f"with: regard train --resume {run} --anyway --set train.learning_rate=…"
    )
    assert checkpoint.newest(run) == 4
    assert all(math.isfinite(number) for number in tensors(load(run).model)["idf"].tolist())
    reporter = Silent()
    assert train(chosen, run, reporter=reporter, resume=True).step == 20
    assert reporter.facts.resumed_at == 4
    last = Path(checkpoint.FOLDER) / "step-000020"
    for name in (checkpoint.WEIGHTS, checkpoint.AVERAGE, checkpoint.OPTIMISER):
        assert disk.digest(run / last / name) == disk.digest(tmp_path / "whole" / last / name)
    assert scores(run) == scores(tmp_path / "whole")


class Poison:
    """Makes the loss of one example, or its gradient alone, not a number, from a step on."""

    def __init__(self, patch: pytest.MonkeyPatch, *, example: int, from_step: int, what: str):
        self.bad_batches: list[object] = []
        self.is_due = False
        part, loss, step = parts.Parts.part, learner.Loss.forward, loop.Loop._step

        def remembered(owner, place, index, **options):
            made = part(owner, place, index, **options)
            if example in index:
                self.bad_batches.append(made)
            return made

        def spoilt(module, made, contrastive_weight):
            total, plain = loss(module, made, contrastive_weight)
            if not self.is_due or not any(made is bad for bad in self.bad_batches):
                return total, plain
            if what == "loss":
                return total * math.nan, plain * math.nan
            return BadGradient.apply(total), plain

        def counted(owner, group):
            self.is_due = owner.progress.step + 1 >= from_step
            return step(owner, group)

        patch.setattr(parts.Parts, "part", remembered)
        patch.setattr(learner.Loss, "forward", spoilt)
        patch.setattr(loop.Loop, "_step", counted)


class BadGradient(torch.autograd.Function):
    """A number whose gradient is none."""

    @staticmethod
    def forward(ctx, loss):
        return loss.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * math.nan


# -- signals----------------------------------------------------------------------------------------

ENDS_WITHIN = 5.0  # seconds, after the step under way
QUICK_BOUND = 60.0  # the same on a busy machine

# A training whose last save takes very long, and says that it has begun.
SLOW_SAVE = """
import sys, time
from pathlib import Path
from regard.__main__ import main
from regard.train.loop import Loop

real = Loop.save
is_saving = Path(sys.argv.pop(1))

def save(loop):
    if loop.signals:
        is_saving.touch()
        time.sleep(600)
    real(loop)

Loop.save = save
sys.exit(main())
"""


def begun_training(folder: Path, program: list[str], *more: str) -> subprocess.Popen:
    """A process that trains, and has saved a checkpoint."""
    run = folder / "run"
    changes = settings(folder, "train.steps=1000000", *more)
    sets = [word for change in changes for word in ("--set", change)]
    process = subprocess.Popen(
        [sys.executable, *program, "train", "chat-attention", "--out", str(run), *sets],
        env=environment(folder),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts programs of the background with Ctrl-C ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while process.poll() is None and checkpoint.newest(run) is None:
        time.sleep(0.05)
    return process


def ended_after(process: subprocess.Popen, number: int) -> tuple[float, str]:
    """The seconds that a process goes on after a signal, and its stderr."""
    began = time.monotonic()
    process.send_signal(number)
    try:
        error = process.communicate(timeout=100)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        error = process.communicate()[1]
    return time.monotonic() - began, error


@pytest.mark.long
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_training_within_seconds(tmp_path: Path, number: int, code: int):
    process = begun_training(tmp_path, ["-m", "regard"])
    seconds, error = ended_after(process, number)
    assert process.returncode == code, error
    assert seconds < ENDS_WITHIN
    newest = checkpoint.newest(tmp_path / "run")
    assert f"a checkpoint of step {newest:,} is saved" in error and "Traceback" not in error


@pytest.mark.parametrize("bound", [QUICK_BOUND, pytest.param(ENDS_WITHIN, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        (signal.SIGTERM, signal.SIGINT, 130),
        pytest.param(signal.SIGINT, signal.SIGINT, 130, marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, signal.SIGTERM, 143, marks=pytest.mark.long),
    ],
)
def test_a_second_signal_ends_training_at_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: int,
    second: int,
    code: int,
    bound: float,
):
    """It drops the save under way; what was saved before stays, and training goes on from it."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    run, is_saving = tmp_path / "run", tmp_path / "is-saving"
    process = begun_training(tmp_path, ["-c", SLOW_SAVE, str(is_saving)])
    process.send_signal(first)
    while process.poll() is None and not is_saving.exists():
        time.sleep(0.02)
    saved = checkpoint.newest(run)
    time.sleep(PATIENCE + 0.1)  # two Ctrl-C at once are one
    seconds, error = ended_after(process, second)
    assert process.returncode == code, error
    assert seconds < bound
    assert "Traceback" not in error and len(error.splitlines()) <= 1
    assert saved is not None and checkpoint.newest(run) == saved
    reporter = Silent()
    longer = recipe.load("chat-attention", settings(tmp_path, f"train.steps={saved + 1}"))
    train(longer, run, reporter=reporter, resume=True)
    assert reporter.facts.resumed_at == saved


class Interrupting:
    """Replaces `likelihood` and `answers` in the loop: a signal comes before a batch of a
    validation, by its number."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.number, self.batches = signal.SIGTERM, count(1)
        self.at = 0
        patch.setattr(validation, "likelihood", self.likelihood)
        patch.setattr(validation, "answers", self.answers)

    def before(self, batch: int) -> None:
        self.batches, self.at = count(1), batch

    def heard(self, between):
        def each() -> None:
            if next(self.batches) == self.at:
                os.kill(os.getpid(), self.number)
            between()

        return each

    def likelihood(self, *given, between, **more):
        return evaluate.likelihood(
            *given, between=self.heard(between), **more | {"batch_tokens": 24}
        )

    def answers(self, *given, between, **more):
        return evaluate.answers(*given, between=self.heard(between), **more | {"rows": 1})


@pytest.mark.parametrize(
    "more",
    [
        pytest.param((), marks=pytest.mark.long, id="perplexity"),
        pytest.param(("train.score=chrf", "train.patience=3"), id="chrf"),
    ],
)
def test_a_signal_in_a_validation_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple
):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    chosen = recipe.load(
        "chat-attention", settings(tmp_path, "data.valid=0.4", "train.steps=50", *more)
    )
    signals = Interrupting(monkeypatch)
    whole, run = tmp_path / "whole", tmp_path / "run"
    ended = train(chosen, whole, reporter=Silent())
    batches = next(signals.batches) - 1
    validations = 4  # at 15, 30, 45 and the end
    assert batches % validations == 0 and batches // validations > 5

    # The first batch of the first validation, its last one when it is made again, some of the
    # others, those of the end.
    each, stopped = batches // validations, []
    for batch in (1, each, each + 2, 1, each + 3, each + 1, each, 2):
        signals.before(batch)
        with pytest.raises(
            Stopped, match="a checkpoint of step .* is saved; go on with: regard train --resume"
        ) as stop:
            train(chosen, run, reporter=Silent(), resume=run.exists())
        assert stop.value.exit_code == 143
        stopped.append(checkpoint.newest(run))
        assert stopped[-1] in (15, 30, 45, 50)
    assert len(set(stopped)) == 4
    signals.before(0)
    again = train(chosen, run, reporter=Silent(), resume=True)

    def last(run: Path) -> dict[str, str]:
        return {
            file.name: disk.digest(file)
            for file in (run / checkpoint.FOLDER / "step-000050").glob("*.safetensors")
        }

    assert last(run) == last(whole) and scores(run) == scores(whole)
    assert disk.digest(run / "model.safetensors") == disk.digest(whole / "model.safetensors")
    assert (again.best_score, again.best_step, again.waited) == (
        ended.best_score,
        ended.best_step,
        ended.waited,
    )


def test_a_validation_that_was_made_again_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Killed after its line is written, before there is a checkpoint that knows of it."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    chosen = recipe.load("chat-attention", settings(tmp_path, "train.steps=20"))
    train(chosen, tmp_path / "whole", reporter=Silent())
    signals, run = Interrupting(monkeypatch), tmp_path / "run"
    signals.before(1)
    with pytest.raises(Stopped):
        train(chosen, run, reporter=Silent())

    class Killed(Silent):
        def validated(self, record, samples) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(chosen, run, reporter=Killed(), resume=True)
    assert [line["step"] for line in scores(run)] == [15]
    train(chosen, run, reporter=Silent(), resume=True)
    lines = [(line["step"], line["kind"]) for line in scores(run)]
    assert lines == [(line["step"], line["kind"]) for line in scores(tmp_path / "whole")]


@pytest.fixture(scope="module")
def stopped_early(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with averaged weights that was stopped before its first validation."""
    folder = tmp_path_factory.mktemp("early")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        chosen = recipe.load("chat-attention", settings(folder))
        with pytest.raises(Stopped):
            train(chosen, folder / "run", reporter=Stopping(6))
    return folder / "run"


def contents(run: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}


def test_a_run_without_a_validation_answers_with_its_newest_checkpoint(
    stopped_early: Path, monkeypatch: pytest.MonkeyPatch, caplog, capsys
):
    run = stopped_early
    monkeypatch.setenv("REGARD_CACHE", str(run.parent / "cache"))
    monkeypatch.setattr(waiting, "LATE", 1000.0)  # a slow machine says that it is busy
    before = contents(run)
    averages = read_tensors(run / "checkpoints/step-000006/average.safetensors")
    assert not (run / "model.safetensors").exists()

    bot = bundle.load(run)
    for name, tensor in tensors(bot.model).items():
        torch.testing.assert_close(tensor, averages[name], rtol=0, atol=0)
    told = f"{run}: not validated yet; using the weights of its checkpoint of step 6"
    assert caplog.messages == [told]

    for verb in (["ask", str(run), "Hello!"], ["evaluate", str(run), "--split", "train"]):
        assert cli.main([*verb, "--greedy", "--set", "max_new_tokens=5"]) == 0
        printed = capsys.readouterr()
        assert printed.out and printed.err == f"regard: {told}\n"
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello!\n"))
    assert cli.main(["chat", str(run)]) == 0
    assert capsys.readouterr().err == f"regard: {told}\n"
    assert contents(run) == before


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    stopped_early: Path, tmp_path: Path, caplog
):
    run = shutil.copytree(stopped_early, tmp_path / "run")
    newest = run / "checkpoints/step-000006/average.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    before = contents(run)
    bundle.load(run)
    assert caplog.messages == [
        f"{newest}: damaged: its contents are not what was saved",
        f"{run}: not validated yet; using the weights of its checkpoint of step 4",
    ]
    assert contents(run) == before

    shutil.rmtree(run / "checkpoints")
    with pytest.raises(BundleError) as refused:
        bundle.load(run)
    assert str(refused.value) == (
        f"{run}: no weights yet: neither a validation nor a checkpoint has saved any; "
        f"train it with: regard train --resume {run} --minutes 1"
    )


class Stopping(Silent):
    """Sends a signal after a step."""

    def __init__(self, step: int):
        super().__init__()
        self.step = step

    def stepped(self, progress, loss, speed, done) -> None:
        if progress.step == self.step:
            os.kill(os.getpid(), signal.SIGINT)


def test_what_is_told_of_a_stop_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    run, bad = (
        tmp_path / "run",
        ["train.learning_rate=1e38", "train.max_grad_norm=0.0", "train.warmup_steps=0"],
    )
    chosen = recipe.load("chat-attention", memorised(pairs_file(tmp_path), "train.steps=50", *bad))
    again = f"regard train --resume {run}"

    def told(step: int, **how) -> str:
        with pytest.raises(RegardError) as stop:
            train(chosen.override(how.pop("change", [])), run, reporter=Stopping(step), **how)
        return str(stop.value)

    # The first step is taken and spoils the weights, the second is not a number.
    assert told(2) == (
        "stopped; the last steps were not numbers, and no checkpoint had been saved before them; "
        f"begin again from the first step with: {again}"
    )
    assert checkpoint.newest(run) is None
    assert "no checkpoint was saved before" in told(
        0, resume=True
    )  # no signal: it ends after five in a row
    assert told(1, resume=True) == f"stopped; a checkpoint of step 1 is saved; go on with: {again}"
    assert told(3, resume=True) == (
        "stopped; the last steps were not numbers and are not saved, "
        "the checkpoint of step 1 is kept; "
        f"go on from there with: {again}"
    )
    assert checkpoint.newest(run) == 1
    assert f"the checkpoint of step 1 is kept; lower the rate with: {again} --anyway" in told(
        0, resume=True
    )
