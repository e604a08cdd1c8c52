"""A reader of the newest weights while they are saved again and again: no failure, and never half
of one save and half of another."""

from __future__ import annotations

import logging
import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from regard import bundle, checkpoint, disk, recipe
from regard.checkpoint import Progress
from regard.model import Model
from regard.train import train
from regard.weights import tensors
from tests.records import record
from tests.tiny import Silent, memorised, pairs_file


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reading")
    changes = memorised(pairs_file(folder), "train.steps=1", "encoder.width=8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        train(recipe.load("chat-gru", changes), folder / "run", reporter=Silent())
    return folder / "run"


def read_while(write: Callable[[], object], read: Callable[[], float]) -> list[float]:
    """What is read, again and again, until a process that writes has ended."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the fork uses none of torch's threads
        child = os.fork()
    if child == 0:
        code = 1
        try:
            write()
            code = 0
        finally:
            os._exit(code)
    values = []
    try:
        while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            values.append(read())
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(child, 0)
    assert status == 0
    values.append(read())
    return values


def fill(model: Model, number: int) -> None:
    with torch.no_grad():
        for tensor in tensors(model).values():
            tensor.fill_(number)


def the_number(model: Model) -> float:
    """What `fill` filled all weights with; of two saves there would be two."""
    numbers = {value for tensor in tensors(model).values() for value in tensor.unique().tolist()}
    assert len(numbers) == 1, "torn: parts of several saves"
    return numbers.pop()


def check_checkpoints(trained: Path, tmp_path: Path, saves: int) -> None:
    """A run that has no validated weights yet: a load takes its newest checkpoint."""
    run = tmp_path / "run"
    run.mkdir()
    bot = bundle.load(trained)
    bundle.create(run, bot.recipe, bot.tokenizer)
    model = bot.model
    optimiser = torch.optim.AdamW(model.parameters())

    def save(number: int) -> None:
        fill(model, number)
        checkpoint.save(run, model, None, optimiser, Progress(step=number))

    save(1)
    values = read_while(
        lambda: [save(number) for number in range(2, saves + 1)],
        lambda: the_number(bundle.load(run).model),
    )
    assert values == sorted(values) and values[-1] == saves and len(values) > 3


def check_weights(trained: Path, tmp_path: Path, saves: int) -> None:
    """The weights that a validation keeps, replaced under a reader."""
    run = tmp_path / "run"
    run.mkdir()
    bot = bundle.load(trained)
    bundle.create(run, bot.recipe, bot.tokenizer)
    model = bot.model

    def save(number: int) -> None:
        fill(model, number)
        bundle.put_weights(run, tensors(model))

    save(1)
    values = read_while(
        lambda: [save(number) for number in range(2, saves + 1)],
        lambda: the_number(bundle.load(run).model),
    )
    assert values == sorted(values) and values[-1] == saves and len(values) > 3
    disk.verify(run, bundle.WEIGHTS)


@pytest.mark.parametrize("check", [check_checkpoints, check_weights])
def test_a_reader_during_saves(check, trained: Path, tmp_path: Path, caplog):
    caplog.set_level(logging.ERROR)
    check(trained, tmp_path, 60)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("check", [check_checkpoints, check_weights])
def test_a_reader_during_a_thousand_saves(check, trained: Path, tmp_path: Path, caplog):
    caplog.set_level(logging.ERROR)
    check(trained, tmp_path, 1000)
    record(f"a reader during saves, {check.__name__}", saves=1000)
