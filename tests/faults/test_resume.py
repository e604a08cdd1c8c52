"""Stop and go on: whatever ends a run, it resumes, and ends with the same bits."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from regard import checkpoint, disk, recipe
from regard.errors import DataError, TrainingError
from regard.train import train
from tests.tiny import Silent, by_heart, pairs_file

STEPS = 60


def settings(folder: Path, *more: str) -> list[str]:
    """Everything that draws at random or has a memory is on."""
    return by_heart(
        pairs_file(folder),
        f"train.steps={STEPS}",
        "encoder.dropout=0.3",
        "decoder.dropout=0.3",
        "source.word_dropout=0.2",
        "source.empty=0.1",
        "train.smoothing=0.1",
        "train.average=0.9",
        "train.accumulate=2",
        "train.batch_tokens=64",
        "train.valid_every=15",
        "train.save_every=4",
        "data.valid=0.2",
        *more,
    )


def command(folder: Path, run: Path) -> list[str]:
    """A program that begins the run, or goes on with it."""
    code = (
        "import sys; from pathlib import Path; from regard import recipe; from regard.train import train\n"
        "from tests.tiny import Silent; from tests.faults.test_resume import settings\n"
        "folder, run = Path(sys.argv[1]), Path(sys.argv[2])\n"
        "chosen = recipe.load(sys.argv[3], settings(folder))\n"
        "train(chosen, run, reporter=Silent(), resume=(run / 'manifest.json').exists())\n"
    )
    return [sys.executable, "-c", code, str(folder), str(run)]


def environment(folder: Path) -> dict[str, str]:
    root = Path(__file__).parents[2]
    return os.environ | {"REGARD_CACHE": str(folder / "cache"), "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}


def fingerprint(run: Path) -> dict[str, str]:
    """SHA-256 of everything a run ends with: last weights, averages, optimiser, and the best weights."""
    last = run / checkpoint.FOLDER / f"step-{STEPS:06d}"
    files = [last / name for name in (checkpoint.WEIGHTS, checkpoint.AVERAGE, checkpoint.OPTIMISER)]
    return {file.name: disk.digest(file) for file in [*files, run / "model.safetensors"]}


def scores(run: Path) -> list[dict]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("seconds", "speed")} for line in lines]


def killed_and_resumed(folder: Path, name: str, kills: int, seed: int) -> tuple[Path, int]:
    """A run that was killed with SIGKILL `kills` times at random moments, then left alone."""
    run, draw, done = folder / "killed", random.Random(seed), 0
    while True:
        process = subprocess.Popen([*command(folder, run), name], env=environment(folder), stderr=subprocess.PIPE)
        if done < kills:
            _wait_for_a_new_checkpoint(process, run)
            time.sleep(draw.random() * 0.2)
            process.send_signal(signal.SIGKILL)
        error = process.communicate(timeout=100)[1].decode()
        if process.returncode == 0:
            return run, done
        assert process.returncode == -signal.SIGKILL, error
        done += 1


def _wait_for_a_new_checkpoint(process: subprocess.Popen, run: Path) -> None:
    """So that every kill hits a run that is training, not one that is still importing torch."""
    before = set((run / checkpoint.FOLDER).glob("step-*"))
    while process.poll() is None and set((run / checkpoint.FOLDER).glob("step-*")) <= before:
        time.sleep(0.005)


def uninterrupted(folder: Path, name: str) -> Path:
    run = folder / "whole"
    subprocess.run([*command(folder, run), name], env=environment(folder), check=True, timeout=100)
    return run


@pytest.mark.parametrize("name", ["chat-attention", "chat-transformer"])
def test_killed_runs_end_with_the_same_bits(tmp_path: Path, name: str):
    whole = uninterrupted(tmp_path, name)
    killed, kills = killed_and_resumed(tmp_path, name, kills=3, seed=5)
    assert kills >= 1
    assert fingerprint(killed) == fingerprint(whole)
    assert scores(killed) == scores(whole)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [n for n in recipe.names() if n.startswith("chat-")])
def test_killed_many_times(tmp_path: Path, name: str):
    whole = uninterrupted(tmp_path, name)
    for seed in range(4):
        folder = tmp_path / str(seed)
        folder.mkdir()
        killed, _ = killed_and_resumed(folder, name, kills=5, seed=seed)
        assert fingerprint(killed) == fingerprint(whole)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_says_how_to_go_on(tmp_path: Path, number: int, code: int):
    file, run = pairs_file(tmp_path), tmp_path / "run"
    sets = [word for change in by_heart(file, "train.steps=100000") for word in ("--set", change)]
    regard = [sys.executable, "-m", "regard", "train"]
    process = subprocess.Popen(
        [*regard, "chat-attention", "--out", str(run), *sets],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    while process.poll() is None and not (run / "manifest.json").exists():
        time.sleep(0.05)
    time.sleep(1)
    process.send_signal(number)
    error = process.communicate(timeout=30)[1].decode()
    assert process.returncode == code, error
    assert "Traceback" not in error
    assert f"regard train --resume {run}" in error
    assert list((run / checkpoint.FOLDER).glob("step-*"))
    steps = str(
        json.loads(next((run / checkpoint.FOLDER).glob("step-*")).joinpath("progress.json").read_text())["step"] + 5
    )
    again = subprocess.run(
        [*regard, "--resume", str(run), "--steps", steps], env=environment(tmp_path), capture_output=True, text=True
    )
    assert again.returncode == 0, again.stderr
    assert "resuming at step" in again.stdout


@pytest.fixture
def tiny_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    chosen = recipe.load("chat-attention", settings(tmp_path))
    train(chosen, tmp_path / "run", reporter=Silent())
    return chosen, tmp_path / "run"


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
    assert not newest.parent.exists() or disk.verify(newest.parent) is None
    assert disk.digest(run / "model.safetensors") == before


def test_other_data_is_refused(tiny_run, tmp_path: Path):
    chosen, run = tiny_run
    (tmp_path / "pairs.tsv").write_text("quite\tother\nwords\there\n" * 3)
    with pytest.raises(DataError, match="not what the run was trained on: it makes another vocabulary"):
        train(chosen, run, reporter=Silent(), resume=True)


def test_changed_data_with_the_same_words_is_refused(tiny_run, tmp_path: Path):
    chosen, run = tiny_run
    lines = (tmp_path / "pairs.tsv").read_text().splitlines()
    (tmp_path / "pairs.tsv").write_text("\n".join(reversed(lines)))
    with pytest.raises(TrainingError, match="not what this run was trained on so far"):
        train(chosen, run, reporter=Silent(), resume=True)


def test_epochs_are_counted_across_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    budget = ["train.steps=", "train.epochs=3", "train.accumulate=1"]
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
    disk.verify(run, "recipe.json", "codec.json", "model.safetensors")


def test_drafts_of_killed_saves_are_swept(tiny_run):
    chosen, run = tiny_run
    (run / checkpoint.FOLDER / ".step-000008.123").mkdir()
    (run / ".model.safetensors.123").write_text("half")
    train(chosen, run, reporter=Silent(), resume=True)
    assert not [p for folder in (run, run / checkpoint.FOLDER) for p in folder.glob(".*.123")]


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
        "chat-attention", by_heart(pairs_file(tmp_path), "train.steps=50", "train.rate=1e30", "train.clip=0.0")
    )
    with pytest.raises(TrainingError, match="not a number 5 times in a row"):
        train(chosen, tmp_path / "run", reporter=Silent())
    log = tmp_path / "run" / "metrics.jsonl"
    assert not log.exists() or "NaN" not in log.read_text()
