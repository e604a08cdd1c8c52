"""kill -9 at any moment: every resume works, repeats at most one interval, and the run ends with
the bits of one that was not interrupted."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from regard import recipe
from tests.killing import BEGAN, RECORD, SAVE_EVERY, STEP, STEPS, Child, killed
from tests.records import record

RECIPES = [
    "chat-attention",
    "speech-attention",
    "caption-attention",
    "image-pool",
    "sentiment-lstm",
]

# Where a save or a resume is killed: the function, which of its calls, and before, after or in it.
# The first number of a row is the step after which the run was killed before: 0 is a new run.
SAVE = [
    ("regard.bundle.create", 1, "before"),
    ("regard.bundle.create", 1, "after"),
    ("regard.checkpoint.save", 2, "before"),
    ("regard.checkpoint.write_tensors", 4, "before"),  # weights
    ("regard.checkpoint.write_tensors", 5, "before"),  # averages
    ("regard.checkpoint.write_tensors", 6, "before"),  # optimiser
    ("regard.checkpoint.write_tensors", 6, "after"),
    ("regard.disk.digest", 20, "before"),
    ("regard.disk.sync", 25, "after"),
    ("os.replace", 12, "before"),
    ("os.replace", 13, "after"),
    ("os.replace", 20, "before"),
    ("os.replace", 21, "after"),
    ("regard.disk.remove_folder", 1, "before"),
    ("regard.disk.remove_folder", 1, "after"),
    ("regard.bundle.put_weights", 1, "before"),
    ("regard.bundle.put_weights", 1, "after"),
    ("regard.bundle.put_weights", 2, "after"),
    ("regard.disk.append_line", 1, "half"),
    ("regard.disk.append_line", 2, "after"),
    ("regard.checkpoint.save", 6, "after"),
]
RESUME = [
    ("regard.disk.recover", 1, "before"),
    ("regard.disk.recover", 2, "after"),
    ("regard.checkpoint.load", 1, "before"),
    ("regard.checkpoint.load", 1, "after"),
    ("regard.weights.read_tensors", 2, "before"),
    ("regard.disk.write_text", 1, "before"),  # the log without what will come again
    ("regard.bundle.put_recipe", 1, "before"),
    ("regard.bundle.put_recipe", 1, "after"),
]
POINTS = [*([0, point] for point in SAVE), *([10, point, point] for point in RESUME)]
QUICK = [
    [0, SAVE[1], SAVE[10], SAVE[18]],
    [10, RESUME[1], RESUME[4], RESUME[6]],
]


def check(result: dict[str, Any]) -> None:
    assert not result["different"]
    assert 0 <= result["repeated"] <= SAVE_EVERY


def test_a_child_trains_once_it_has_made_a_step():
    read, write = os.pipe()
    has_stepped = threading.Event()

    def child() -> None:
        os.write(write, RECORD.pack(BEGAN, 8, 0))
        time.sleep(0.2)
        has_stepped.set()
        os.write(write, RECORD.pack(STEP, 9, 0))

    thread = threading.Thread(target=child)
    thread.start()
    assert told(read).wait_for_training() == 9
    assert has_stepped.is_set()
    thread.join()
    os.write(write, RECORD.pack(BEGAN, 8, 0))
    os.close(write)
    assert told(read).wait_for_training() == 0  # it ended before


def told(read: int) -> Child:
    """What is known of a child that writes there."""
    child = object.__new__(Child)
    child._read = read
    child._told = b""
    return child


def test_kills_at_random_moments(tmp_path: Path):
    name = "speech-attention"
    result = killed(tmp_path, [name], kills=3, seed=5, lives=3)[name]
    check(result)
    assert result["kills"] >= 3


def test_kills_at_points_of_a_save_and_of_a_resume(tmp_path: Path):
    result = killed(tmp_path, ["chat-attention"], points=QUICK)["chat-attention"]
    check(result)
    assert result["kills"] == 3 + 1 + 3


def test_five_kills_in_one_epoch(tmp_path: Path):
    # A batch of one example each: an epoch has more steps than the run.
    more = ["train.batch_tokens=1", "train.gradient_accumulation_steps=1", "data.valid=0.0"]
    (tmp_path / "more.tsv").write_text("".join(f"Say {n}!\tYes, {n} it is.\n" for n in range(30)))
    more.append(f'data.path="{tmp_path / "more.tsv"}"')
    job = {"steps": [3, 7, 12, 18, 22], "more": more}
    result = killed(tmp_path, ["chat-attention"], **job)["chat-attention"]
    check(result)
    assert result["kills"] == result["in_one_epoch"] == 5


# The last step of each, and what it changes. Accumulation and averages are on if not said.
VARIANTS: dict[str, tuple[int, list[str]]] = {
    "constant": (STEPS, ["train.schedule=constant", "train.warmup_steps=6"]),
    "linear": (STEPS, ["train.schedule=linear", "train.warmup_steps=6"]),
    "cosine": (STEPS, ["train.schedule=cosine", "train.gradient_accumulation_steps=3"]),
    "inverse-sqrt": (STEPS, ["train.schedule=inverse-sqrt", "train.warmup_steps=6"]),
    "epochs": (
        30,
        [
            "train.schedule=epochs",
            "train.warmup_steps=2",
            "train.steps=",
            "train.epochs=10",
            "train.gradient_accumulation_steps=1",
        ],
    ),
    "cosine-over-epochs": (20, ["train.schedule=cosine", "train.steps=", "train.epochs=10"]),
    "linear-over-tokens": (52, ["train.schedule=linear", "train.steps=", "train.tokens=2000"]),
    "patience": (15, ["train.patience=2", "train.valid_every=3", "train.learning_rate=0.05"]),
    "no-averages": (STEPS, ["train.ema_decay=0", "train.gradient_accumulation_steps=1"]),
    "sgd": (STEPS, ["train.optimiser=sgd", "train.batch_growth=3"]),
}
QUICK_VARIANTS = ["patience"]


def check_variant(tmp_path: Path, variant: str, steps: list[int]) -> None:
    last, more = VARIANTS[variant]
    result = killed(tmp_path, ["chat-attention"], more=more, steps=steps)["chat-attention"]
    check(result)
    assert result["kills"] == len(steps)
    assert result["steps"] == last


@pytest.mark.parametrize("variant", QUICK_VARIANTS)
def test_each_schedule_and_each_end_of_a_run(tmp_path: Path, variant: str):
    """Killed between two checkpoints."""
    check_variant(tmp_path, variant, steps=[10])


@pytest.mark.long
@pytest.mark.parametrize("variant", VARIANTS)
def test_each_schedule_and_each_end_of_a_run_killed_often(tmp_path: Path, variant: str):
    check_variant(tmp_path, variant, steps=[2, 6, 9, 11, 13])


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [*RECIPES, "chat-transformer", "chat-maclaurin", "chat-dialogue"])
def test_a_hundred_kills_at_random_moments(tmp_path: Path, name: str):
    result = killed(tmp_path, [name], kills=100, seed=11)[name]
    moments = result["while"]
    record(
        f"kills at random moments, {name}", kills=result["kills"], runs=result["runs"], **moments
    )
    check(result)
    assert result["kills"] >= 100
    assert moments["training"] > result["kills"] / 2


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", RECIPES)
def test_kills_at_every_point_of_a_save_and_of_a_resume(tmp_path: Path, name: str):
    result = killed(tmp_path, [name], points=POINTS)[name]
    check(result)
    assert result["kills"] == len(SAVE) + 3 * len(RESUME)


def test_the_recipes_are_shipped():
    assert {*RECIPES} <= {*recipe.names()}
