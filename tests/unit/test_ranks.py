"""The share of each rank: together they have the rows of one process, whatever their number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from regard import build, disk, recipe
from regard.cli import alone, main
from regard.data.batches import Place
from regard.data.progress import report, reporting_to
from regard.errors import InputError
from regard.torchrun import Launch, launch
from regard.train.loop import Loop
from regard.train.parts import Part, Parts
from regard.train.ranks import Ranks
from regard.train.run import _advancing, _check_reach
from tests.tiny import (
    Silent,
    captions_table,
    memorised,
    memorised_captions,
    memorised_sounds,
    pairs_file,
    sounds_table,
)

EPOCH = 3


class Share(Ranks):
    """One of several ranks, without the others."""

    def __init__(self, rank: int, world: int):
        self.rank = rank
        self.world = world


def chat(folder: Path) -> recipe.Recipe:
    changes = ("source.word_dropout=0.3", "source.prompt_dropout=0.2", "train.batch_tokens=90")
    contrast = ("train.contrastive_weight=0.5", "train.steps=9")
    return recipe.load("chat-attention", memorised(pairs_file(folder), *changes, *contrast))


def captions(folder: Path) -> recipe.Recipe:
    changes = ("train.batch_examples=3", "source.random_crop=0.3", "source.horizontal_flip=true")
    table = captions_table(folder)
    return recipe.load("caption-attention", memorised_captions(table, *changes, "train.steps=9"))


def speech(folder: Path) -> recipe.Recipe:
    changes = ("train.batch_examples=4", "source.speed_perturbation=0.1", "source.noise=0.01")
    table = sounds_table(folder)
    return recipe.load("speech-attention", memorised_sounds(table, *changes, "train.steps=9"))


@pytest.fixture(scope="module", params=[chat, captions, speech])
def loop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loop:
    folder = tmp_path_factory.mktemp("ranks")
    make: Callable[[Path], recipe.Recipe] = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        chosen = make(folder)
        corpus = build.corpus(chosen)
    device = torch.device("cpu")
    made = Loop(chosen, folder, corpus, Silent(), device=device, tensorboard=False, ranks=Ranks())
    made.batches = made._batches()
    return made


def rows(batch) -> list[tuple]:
    """The rows of a batch without padding: source, tokens, targets."""
    of = range(len(batch.tokens)) if batch.rows is None else batch.rows.tolist()
    # A picture has no padding, and the mask of a sound is of frames.
    has_tokens = batch.raw.shape == batch.mask.shape
    content = []
    for row, source in enumerate(of):
        real = batch.real[row]
        raw = batch.raw[source]
        raw = raw[batch.mask[source]] if has_tokens else raw
        values = np.trim_zeros(raw.flatten().numpy(), "b")
        content.append((values.tobytes(), batch.tokens[row][real].tolist()))
        content[-1] += (batch.targets[row][real].tolist(),)
    return content


def part(loop: Loop, ranks: Ranks, place: Place, index: np.ndarray) -> Part:
    of_rank = Parts(loop.task, loop.corpus.train, seed=loop.recipe.seed, ranks=ranks)
    return of_rank.part(place, index, contrasts=loop.how.contrastive_weight > 0)


@pytest.mark.parametrize("world", [2, 3, 5, 17])
def test_ranks_share_the_rows_of_a_batch(loop: Loop, world: int):
    place = Place(EPOCH, 0, 0)
    count = 0
    while not loop.batches.is_at_end(place):
        ((_, index),), after = loop.batches.take(place, 1)
        whole = part(loop, Ranks(), place, index)
        parts = [part(loop, Share(rank, world), place, index) for rank in range(world)]
        shares = [part for part in parts if part.weight]
        assert [row for part in shares for row in rows(part.batch)] == rows(whole.batch)
        assert sum(part.tokens for part in parts) == whole.tokens
        assert all(len(part.batch.tokens) > 0 for part in parts)
        # All ranks make the same calls of the model, or shards of it could not be exchanged.
        assert all((part.others is None) == (whole.others is None) for part in parts)
        if whole.others is not None:
            assert sum(part.share_of_others for part in parts) == pytest.approx(1)
        place = after
        count += 1
    assert count > 1


@pytest.fixture
def group_of_one():
    """What DDP needs, without other processes."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group_of_one")
def test_gradients_are_exchanged_once_an_update(loop: Loop, tmp_path: Path):
    """However many batches it has."""
    many = Loop(
        loop.recipe,
        tmp_path,
        loop.corpus,
        Silent(),
        device=torch.device("cpu"),
        tensorboard=False,
        ranks=Share(0, 2),
    )
    many.batches = many._batches()
    many.parts = Parts(many.task, many.corpus.train, seed=many.recipe.seed, ranks=Ranks())
    many.learner.begin()
    buckets = []

    def hook(_, bucket):  # torch refuses annotations that are strings
        buckets.append(bucket.index())
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    assert isinstance(many.learner.loss, DistributedDataParallel)
    many.learner.loss.register_comm_hook(None, hook)
    exchanges = []
    for number in (1, 2):
        group, _ = many.batches.take(Place(EPOCH, 0, 0), number)
        assert len(group) == number
        many._step(group)
        exchanges.append(list(buckets))
        buckets.clear()
    assert exchanges[0] == exchanges[1]
    assert exchanges[0]


def test_captions_of_a_picture_stay_together():
    starts = [0, 2, 4, 5, 8, 9, 10]  # six pictures, ten captions
    shares = [Share(rank, 4).own_rows(starts) for rank in range(4)]
    assert [(share.start, share.stop) for share in shares] == [(0, 2), (2, 5), (5, 8), (8, 10)]


def test_what_torchrun_says(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RANK", raising=False)
    assert launch() == Launch() and launch().is_alone
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert launch().is_alone  # torchrun with one process
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("MASTER_PORT", "no number")
    with pytest.raises(InputError, match="the environment variable MASTER_PORT: not a number"):
        launch()
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job-7")
    started = launch()
    assert (started.rank, started.world, started.job) == (3, 4, "job-7")
    assert started.address[1] == 29500 and not started.has_agent


@pytest.mark.parametrize(
    "words",
    [
        ["compare", "chat-lstm", "chat-gru", "--tokens", "1000"],
        ["train", "chat-gru", "--steps", "5", "--sweep", "seed=1,2"],
    ],
)
def test_commands_for_one_process_are_refused_under_torchrun(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(alone, "QUIET", 0.0)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_PORT", "29500")
    errors = []
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        assert main(words) == 2
        errors.append(capsys.readouterr().err)
    what = "one after the other, each in one process; got 2 processes of torchrun; leave torchrun"
    assert errors[0].count("\n") == 1 and what in errors[0]
    assert errors[1] == ""  # the first process has said it


class Counting(Ranks):
    """Counts how often it was said that work goes on."""

    advances = 0

    def advance(self) -> None:
        self.advances += 1


def test_others_wait_as_long_as_a_preparation_goes_on():
    ranks = Counting()
    shown: list[tuple[str, int, int | None]] = []
    with reporting_to(lambda *step: shown.append(step)), _advancing(ranks):
        for number in range(3):
            report("reading", number, 3)
    assert ranks.advances == len(shown) == 3


def test_others_wait_as_long_as_a_validation_goes_on(loop: Loop, monkeypatch: pytest.MonkeyPatch):
    ranks = Counting()
    monkeypatch.setattr(loop, "ranks", ranks)
    monkeypatch.setattr(loop, "signals", [], raising=False)
    loop.validation.scores(loop.learner.model.eval(), loop.run, between=loop._heed)
    assert ranks.advances > 1


def test_a_folder_that_only_one_machine_has_is_refused(tmp_path: Path):
    """With train.shard each process writes into it."""
    with pytest.raises(InputError, match=r"process 1 on .*let --out be a folder that all"):
        _check_reach(tmp_path / "run", Share(1, 2))
    with disk.locked(tmp_path):
        _check_reach(tmp_path, Share(1, 2))
