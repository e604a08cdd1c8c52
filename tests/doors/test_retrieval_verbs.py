"""A run that retrieves training answers: trained, asked, streamed, resumed, damaged."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import pytest

import regard
from regard import bundle, cli, disk, recipe
from regard.bundle import Bundle
from regard.errors import BundleError, InputError, RecipeError
from regard.serve.engine_process import EngineProcess
from regard.serve.jobs import Job, Update
from regard.train import train
from tests.tiny import PAIRS, Silent, memorised, pairs_file

SEARCH = ["search.retrieved=3", "search.retrieval_weight=100.0"]


def trained(home: Path, *more: str) -> Path:
    chosen = recipe.load("chat-attention", [*memorised(pairs_file(home)), "train.steps=2", *more])
    train(chosen, home / "run", reporter=Silent())
    return home / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("retrieval")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(home / "cache"))
        return trained(home, *SEARCH)


@pytest.fixture(autouse=True)
def cache(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(run.parent / "cache"))


@pytest.fixture(scope="module")
def bot(run: Path) -> Bundle:
    return regard.load(run)


def test_a_model_that_has_learned_nothing_answers_with_a_training_answer(bot: Bundle) -> None:
    prompts = [prompt for prompt, _ in PAIRS]
    answers = bot.ask(prompts)
    for answer, (_, expected) in zip(answers, PAIRS, strict=True):
        assert answer.retrieved
        assert answer.text == bot.tokenizer.decode(bot.tokenizer.encode(expected))
        assert answer.weights is not None
        assert len(answer.logprobs) == len(answer.weights) == len(answer.tokens) + 1
        assert answer.score == pytest.approx(sum(answer.logprobs), rel=1e-5)


def test_every_door_gives_the_same_answer(
    bot: Bundle, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt, _ = PAIRS[3]
    answer = bot.ask(prompt)
    stream = bot.stream(prompt)
    assert "".join(map(str, stream)) == answer.text
    assert stream.answer == answer and answer.retrieved

    engine = bot.engine()
    request = engine.submit(*bot.task.read([prompt]), bot.options)
    engine.run()
    assert request.result()[0].tokens == answer.tokens and request.result()[0].retrieved

    assert cli.main(["ask", str(run), prompt, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["answer"] == answer.text and printed["retrieved"] is True
    assert bot.ask(prompt, capture="all") == answer


def test_beams_and_greedy_search_retrieve_nothing(bot: Bundle) -> None:
    assert bot.search_options(num_beams=2).retrieved == 0
    assert bot.search_options(greedy=True).retrieved == 0
    assert not bot.ask("Hello!", greedy=True).retrieved
    with pytest.raises(InputError, match="retrieved above 0 needs num_beams = 1"):
        bot.ask("Hello!", num_beams=2, retrieved=3)
    with pytest.raises(InputError, match="retrieved=2"):
        bot.ask("Hello!", greedy=True, retrieved=2)


def test_the_run_is_whole_without_its_data(run: Path, bot: Bundle, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(run, moved)
    assert bundle.RETRIEVAL in disk.manifest(moved)
    assert regard.load(moved).ask(PAIRS[0][0]) == bot.ask(PAIRS[0][0])
    # a checkpoint has the answers of its run
    (newest,) = sorted((moved / "checkpoints").glob("step-*"))[-1:]
    assert regard.load(newest).ask(PAIRS[0][0]).retrieved

    file = moved / bundle.RETRIEVAL
    file.write_bytes(file.read_bytes()[:-1] + b"\x07")
    with pytest.raises(BundleError, match=r"damaged.*" + bundle.RETRIEVAL + r"|retrieval"):
        regard.load(moved)
    file.unlink()
    with pytest.raises(BundleError, match="a file is missing"):
        regard.load(moved)


def test_a_run_without_training_answers_says_so_and_can_get_them(tmp_path: Path) -> None:
    run = trained(tmp_path)
    assert not (run / bundle.RETRIEVAL).exists()
    before = (run / bundle.WEIGHTS).read_bytes()
    plain = regard.load(run)
    with pytest.raises(InputError, match="which this run does not have; got retrieved = 2"):
        plain.ask("Hello!", retrieved=2)
    assert not plain.ask("Hello!").retrieved

    changes = ["--set", "search.retrieved=2", "--set", "search.retrieval_weight=100.0"]
    assert cli.main(["train", "--resume", str(run), "--anyway", *changes]) == 0
    assert (run / bundle.WEIGHTS).read_bytes() == before  # nothing was trained
    assert regard.load(run).ask("Hello!").retrieved


def test_only_texts_are_retrieved_for_texts() -> None:
    with pytest.raises(RecipeError, match="search.retrieved: for chat and translation only"):
        recipe.load("image-pool", ["search.retrieved=2"])


def test_the_server_answers_like_the_bundle(bot: Bundle) -> None:
    prompt, _ = PAIRS[5]
    mine, theirs = socket.socketpair()
    with mine, theirs:
        process = EngineProcess(bot, mine, max_rows=8)
        options = bot.options.model_dump()
        job = Job(numbers=(1,), seeds=(None,), input=prompt, options=options, attention=True)
        (active,) = process._submitted(job)
        process.engine.run()
        updates: list[Update] = []
        process._add_updates(active, updates)
        last = updates[-1]
        answer = bot.ask(prompt)
        assert last["finished"]["text"] == answer.text
        assert last["finished"]["retrieved"] is True
        assert len(last["finished"]["weights"]) == len(answer.tokens) + 1
