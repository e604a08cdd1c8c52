"""Runs on a device and in a precision: for every task, and with files that move between devices."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import regard
from regard import build, bundle, checkpoint, cli, recipe
from regard.errors import TrainingError
from regard.recipe import Recipe
from regard.search import Options
from regard.train import train
from regard.train.learner import Replicated
from regard.train.loop import Loop
from regard.train.ranks import Ranks
from regard.weights import tensors
from tests.recipes.test_overfit import ten
from tests.tiny import Silent

META = torch.device("meta")
CPU = torch.device("cpu")
# Every task, kind of source, encoder and decoder.
EACH_TASK = [
    "chat-attention",
    "chat-maclaurin",
    "translate-gru",
    "translate-convolution",
    "speech-attention",
    "reference/speech-lstm",
    "caption-attention",
    "caption-transformer",
    "image-pool",
    "image-patches",
    "sentiment-lstm",
    "blank-rnn",
    "blank-transformer",
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


def small(name: str, folder: Path, *more: str) -> tuple[Recipe, list[str]]:
    """A recipe with ten examples, and their inputs."""
    changes, inputs, _ = ten(name, folder)
    return recipe.load(name, [*changes, *more]), inputs


def loop_of(chosen: Recipe, run: Path, on: torch.device) -> Loop:
    """A run before its first step."""
    corpus = build.corpus(chosen)
    run.mkdir()
    bundle.create(run, chosen, corpus.tokenizer)
    return Loop(chosen, run, corpus, Silent(), device=on, tensorboard=False, ranks=Ranks())


@pytest.mark.parametrize("name", EACH_TASK)
def test_tensors_of_a_run_are_made_where_its_model_is(name: str, tmp_path: Path):
    """Steps in bfloat16 with an average of the weights, validation with answers, a checkpoint; then
    a bundle that is asked, also in bfloat16, and evaluated. A tensor that names no device would be
    on `meta`."""
    steps = ["train.steps=2", "train.ema_decay=0.9", "train.precision=bfloat16"]
    chosen, inputs = small(name, tmp_path, *steps, "search.max_new_tokens=4")
    loop = loop_of(chosen, tmp_path / "run", CPU)
    with META:
        assert loop.go([]).step == 2

    bot = bundle.load(tmp_path / "run", device="cpu")
    with META:
        answer = bot.ask(inputs[0], capture="all", alternatives=2)
        pieces = list(bot.stream(inputs[0]))
        bot.attends()
        bot.evaluate(split="train", limit=2)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rough = bot.ask(inputs[0], capture="all")
    assert "".join(str(piece) for piece in pieces) == answer.text
    for weights in (answer.weights, rough.weights):
        assert weights is None or weights.device == CPU


def test_weights_and_optimiser_come_to_the_device_of_the_run(tmp_path: Path, monkeypatch):
    """Written on one device, read on another; `meta` stands for the other."""
    chosen, _ = small(
        "chat-transformer",
        tmp_path,
        "train.steps=2",
        "train.ema_decay=0.9",
        "decoder.tied=false",  # a model on `meta` has no shared weights
    )
    train(chosen, tmp_path / "run", reporter=Silent(), device="cpu")

    learner = loop_of(chosen, tmp_path / "other", META).learner
    assert isinstance(learner, Replicated)
    choice = checkpoint.choose_newest(tmp_path / "run", print)
    assert choice is not None and choice.progress.step == 2
    learner.load(choice.folder)
    states = [tensor for state in learner.optimiser.state.values() for tensor in state.values()]
    models = [learner.model, learner.average]
    assert None not in models
    weights = [tensor for model in models if model for tensor in tensors(model).values()]
    assert states and {tensor.device for tensor in (*states, *weights)} == {META}

    monkeypatch.setattr(bundle, "resolve", lambda _: META)
    model = bundle.load(tmp_path / "run").model
    assert {tensor.device for tensor in (*model.parameters(), *model.buffers())} == {META}


@pytest.mark.parametrize(
    "name", ["chat-attention", "chat-maclaurin", "image-patches", "speech-transformer"]
)
def test_bfloat16_learns_as_float32_does(name: str, tmp_path: Path):
    changes, inputs, expected = ten(name, tmp_path)
    exact, rough = Silent(), Silent()
    one_step = recipe.load(name, [*changes, "train.steps=1"])
    train(one_step, tmp_path / "float32", reporter=exact, device="cpu")
    chosen = recipe.load(name, [*changes, "train.precision=bfloat16"])
    train(chosen, tmp_path / "run", reporter=rough, device="cpu")
    assert rough.losses[0] == pytest.approx(exact.losses[0], rel=0.02)
    assert rough.losses[0] != exact.losses[0]
    assert rough.losses[-1] < 0.1
    bot = bundle.load(tmp_path / "run")
    assert [answer.text for answer in bot.ask(inputs, Options(max_new_tokens=32))] == expected
    assert {weight.dtype for weight in bot.model.parameters()} == {torch.float32}


def test_another_precision_is_another_recipe(tmp_path: Path):
    chosen, _ = small("chat-gru", tmp_path, "train.steps=1")
    run = tmp_path / "run"
    train(chosen, run, reporter=Silent())
    other = chosen.override(["train.precision=bfloat16", "train.steps=2"])
    with pytest.raises(TrainingError, match='train.precision: "float32" -> "bfloat16"'):
        train(other, run, reporter=Silent(), resume=True)
    reporter = Silent()
    assert train(other, run, reporter=reporter, resume=True, anyway=True).step == 2


def test_the_commands_take_a_device(tmp_path: Path, capsys):
    changes, inputs, _ = ten("chat-gru", tmp_path)
    sets = [word for change in changes for word in ("--set", change)]
    run = str(tmp_path / "run")
    half = ["--set", "train.precision=bfloat16", "--steps", "2", "--device", "cpu"]
    assert cli.main(["train", "chat-gru", *sets, *half, "--out", run]) == 0
    assert "device    cpu, bfloat16\n" in capsys.readouterr().out
    assert cli.main(["ask", run, inputs[0], "--device", "cpu"]) == 0
    assert cli.main(["evaluate", run, "--split", "train", "--limit", "2", "--device", "auto"]) == 0
    assert cli.main(["train", "--resume", run, "--steps", "3", "--device", "cpu"]) == 0
    bot = regard.train(resume=run, steps=4, device="cpu", quiet=True)
    assert bot.model.device == CPU
