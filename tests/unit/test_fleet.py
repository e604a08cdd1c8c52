"""Runs on a cluster, as far as they can be seen without Ray: addresses, places, tasks."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import regard
from regard import cli, disk, recipe
from regard.cli.console import Console
from regard.cli.plan_bar import PlanBar
from regard.errors import BundleError, DataError, InputError, NoRoomError, WriteError
from regard.fleet import Fleet, FleetStopped
from regard.fleet.address import check
from regard.fleet.board import Board
from regard.fleet.place import LIMIT, Proof, pack, proof_in, unpack
from regard.fleet.worker import error_json, error_of, work
from regard.sweep import axis, sweep
from regard.sweep.trials import Pruned, Trials, forward_message
from tests.doors.test_compare_verb import RECIPES, small_plan
from tests.tiny import Silent, memorised, pairs_file

ORDER = {"home": "/", "version": regard.__version__, "threads": 1, "alone": False}


# -- what is typed ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    ["", "nonsense", "ray://", "host:port", "host:99999", "a b:1", "a..b:1", f"{'a' * 64}:1"],
)
def test_no_address_is_one_line(address: str):
    with pytest.raises(InputError, match="--ray: no address of a Ray cluster.*ray://HOST:10001"):
        check(address)


def test_an_address_where_nobody_listens_is_told_at_once():
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        port = own.getsockname()[1]
    for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
        with pytest.raises(InputError, match=f"no Ray cluster can be reached; got {address}: "):
            check(address)
    with socket.create_server(("127.0.0.1", 0)) as server:
        check(f"127.0.0.1:{server.getsockname()[1]}")
    check("auto")
    check("local")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "chat-gru", "--ray", "auto"], "--prune and --ray are for a sweep; add --sweep"),
        (["train", "chat-gru", "--sweep", "seed=1,2", "--ray", "x y"], "no address of a Ray"),
        (["compare", "chat-gru", "chat-lstm", "--ray", "x y"], "no address of a Ray cluster"),
    ],
)
def test_mistakes_end_in_one_line(words: list[str], message: str, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", sys)  # the address is looked at before it is used
    assert cli.main(words) == 2
    told = capsys.readouterr().err
    assert message in told and told.count("\n") == 1 and not list(tmp_path.iterdir())


def test_without_ray_its_extra_is_named(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    assert cli.main(["train", "chat-gru", "--sweep", "seed=1,2", "--ray", "auto"]) == 2
    told = capsys.readouterr().err
    assert told == "regard: --ray: runs on a cluster need Ray; pip install 'regard[ray]'\n"


# -- calls in threads ------------------------------------------------------------------------------


def test_results_come_as_they_end():
    second = threading.Event()

    def slow() -> str:
        return "slow" if second.wait(20) else "not told that the other one has ended"

    def fast() -> str:
        return "fast"

    results = []
    for result in Fleet("local").together([slow, fast]):
        results.append(result)
        second.set()
    assert results == ["fast", "slow"]


def test_a_signal_ends_all_calls_with_one_line():
    fleet = Fleet("local")
    ended = []

    def waits() -> None:
        try:
            while True:
                time.sleep(0.01)
                fleet.check_signals()
        finally:
            ended.append(True)

    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(FleetStopped) as stopped:
        list(fleet.together([waits, waits]))
    assert stopped.value.exit_code == 130 and ended == [True, True]
    assert "stopped; the runs under way have saved checkpoints" in str(stopped.value)
    assert "2 of them, on machines without this folder, begin again" in str(FleetStopped(2, 2))


def test_an_error_of_one_call_ends_the_others():
    fleet = Fleet("local")

    def fails() -> None:
        raise WriteError("no permission")

    def waits() -> None:
        while True:
            time.sleep(0.01)
            fleet.check_signals()

    with pytest.raises(WriteError, match="no permission"):
        list(fleet.together([waits, fails]))


# -- places ----------------------------------------------------------------------------------------


def test_a_folder_of_the_same_name_is_not_the_same_folder(tmp_path: Path):
    with proof_in(tmp_path / "new") as proof:
        assert proof.is_here
        assert not Proof(proof.file, "another").is_here
    assert not proof.is_here and not list((tmp_path / "new").iterdir())


def test_files_that_are_returned(tmp_path: Path):
    run = tmp_path / "there" / "a" / "seed=1"
    (run / "checkpoints").mkdir(parents=True)
    contents = {"result.json": b"{}", "manifest.json": b"[]", "model.safetensors": b"x" * 60}
    for name, content in contents.items():
        (run / name).write_bytes(content)
    (run / ".regard-lock").write_text("1")
    (run / "checkpoints" / "state").write_bytes(b"y" * 100)
    files = pack(tmp_path / "there")
    assert len(files) == 4 and files["a/seed=1/checkpoints/state"] == b"y" * 100
    assert set(pack(tmp_path / "there", limit=70)) == {f"a/seed=1/{name}" for name in contents}
    with pytest.raises(InputError, match="got 64 bytes; give --out a folder that all machines"):
        pack(tmp_path / "there", limit=50)
    assert LIMIT == 2**30

    order = []
    real = disk.write_bytes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            disk, "write_bytes", lambda path, data: (order.append(path), real(path, data))
        )
        unpack(files, tmp_path / "here")
    assert {path.name for path in order[-2:]} == {"result.json", "manifest.json"}
    assert (tmp_path / "here" / "a" / "seed=1" / "model.safetensors").read_bytes() == b"x" * 60
    for name in ("../outside", "/outside"):
        with pytest.raises(BundleError, match="outside of its folder"):
            unpack({name: b""}, tmp_path / "here")


# -- what a task does ------------------------------------------------------------------------------


def trial_order(folder: Path, values: dict[str, str], changes: list[str], proof: Proof) -> str:
    made = recipe.load("chat-gru", [*changes, *(f"{k}={v}" for k, v in values.items())])
    content = {
        "recipe": made.to_json(),
        "values": values,
        "score": "perplexity",
        "device": "cpu",
        "is_watched": False,
    }
    where = {"folder": str(folder), "proof": vars(proof)}
    task = {"function": "regard.sweep.remote:train_trial", "content": content}
    return json.dumps(ORDER | where | task)


def test_a_trial_is_the_same_here_there_and_on_a_machine_without_the_folder(tmp_path, monkeypatch):
    """Weights and result, without a cluster: what a task calls is called."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    changes = [
        *memorised(pairs_file(tmp_path), "encoder.width=8", "train.threads=1"),
        *("train.steps=4", "train.valid_every=2", "train.warmup_steps=1"),
    ]
    values = {"train.learning_rate": "0.01"}
    here = tmp_path / "here"
    outcome = sweep(
        lambda more: recipe.load("chat-gru", [*changes, *more]),
        [axis("train.learning_rate=0.01")],
        here,
        make_reporter=lambda _: Reporting(),
    )
    with proof_in(tmp_path / "shared") as proof:
        text, files = work(trial_order(tmp_path / "shared", values, changes, proof), None, "1")
    assert not files
    shared = json.loads(text)["value"]
    text, files = work(trial_order(tmp_path / "apart", values, changes, proof), None, "2")
    apart = json.loads(text)["value"]
    assert not (tmp_path / "apart").exists()
    unpack(files, tmp_path / "apart")

    first = outcome.trials[0]
    for result in (shared, apart):
        assert (result["score"], result["step"], result["state"]) == (first.score, 4, "done")
    name = "train.learning_rate=0.01"
    weights = [
        disk.digest(tmp_path / place / name / "model.safetensors")
        for place in ("here", "shared", "apart")
    ]
    assert len(set(weights)) == 1
    disk.verify(tmp_path / "apart" / name)
    trials = Trials(
        lambda _: None,  # pyright: ignore
        tmp_path / "apart",
        "perplexity",
        make_reporter=lambda _: Reporting(),
    )
    assert trials.trial(values).score == first.score  # so it is not made again


class Reporting(Silent):
    def __enter__(self) -> Reporting:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def test_a_cell_is_the_same_on_a_machine_without_the_folder(tmp_path: Path, monkeypatch):
    from regard.compare.cells import Cells
    from regard.compare.plan import claim, corpora_of, deciding_split, resolved

    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    plan = small_plan(seeds=(1,))
    corpora = corpora_of(plan)
    split = deciding_split(plan, corpora)
    plan = resolved(plan, corpora)
    claim(plan, tmp_path / "here")
    here = Cells(plan, tmp_path / "here", split, make_reporter=lambda _: Reporting()).go()
    contender = plan.contenders[0]
    assert contender.new is not None and contender.name == RECIPES[0]
    content = {
        "contender": contender.name,
        "recipe": contender.new.recipe(["seed=1"]).to_json(),
        "seed": 1,
        "values": {},
        "budget": [plan.budget.kind, plan.budget.amount],
        "split": split,
        "test_set": [],
        "limit": None,
        "device": "cpu",
    }
    nowhere = {"folder": str(tmp_path / "there"), "proof": {"file": "/no/such", "secret": "x"}}
    task = {"function": "regard.compare.remote:make_cell", "content": content}
    text, files = work(json.dumps(ORDER | nowhere | task), None, "1")
    assert json.loads(text)["value"] == ["done", ""]
    claim(plan, tmp_path / "there")
    unpack(files, tmp_path / "there")
    known = Cells(plan, tmp_path / "there", split, make_reporter=lambda _: Reporting()).snapshot()[
        0
    ]
    assert known.state == "done"
    assert (known.weights, known.items) == (here[0].weights, here[0].items)
    assert known.run == str(tmp_path / "there" / "runs" / RECIPES[0] / "seed=1")


def test_errors_of_a_task_name_its_machine():
    host = socket.gethostname()
    sent = error_json(DataError("no such file", where="/data/x", hint="copy it"), host)
    problem = error_of(json.loads(json.dumps(sent)))
    assert isinstance(problem, DataError)
    assert str(problem) == f"on {host}, /data/x: no such file; copy it"
    full = error_of(error_json(NoRoomError("no space left", where="/data", free=7), host))
    assert isinstance(full, WriteError) and "7 bytes free" in str(full)


def test_another_version_of_regard_is_refused(tmp_path: Path):
    order = ORDER | {"version": "0.0.1", "folder": "x", "proof": {}, "function": "", "content": {}}
    text, _ = work(json.dumps(order), None, "1")
    message = str(error_of(json.loads(text)["error"]))
    assert "another version of regard" in message and "0.0.1 here" in message


# -- messages --------------------------------------------------------------------------------------


def test_the_board_passes_messages_and_answers():
    async def talk() -> tuple[list[Any], bool, list[Any]]:
        board = Board()
        question = asyncio.create_task(board.ask("1", "validated", "{}"))
        await board.tell("2", "noted", '"x"')
        await asyncio.sleep(0)
        messages = await board.take(5)
        number = next(message[0] for message in messages if message[0] is not None)
        await board.answer(number, True)
        return messages, await question, await board.take(0.01)

    messages, answer, nothing = asyncio.run(talk())
    assert sorted(message[2] for message in messages) == ["noted", "validated"]
    assert answer is True and nothing == []


def test_messages_reach_the_reporter_and_a_pruned_run_is_told():
    reporter = Silent()
    progress = {"step": 3, "seconds": 1.0}
    assert not forward_message(reporter, None, "stepped", [progress, 0.5, 10.0, 0.3])
    assert reporter.losses == [0.5]
    assert not forward_message(reporter, None, "noted", "hello") and reporter.notes == ["hello"]

    def prunes(record: dict[str, Any]) -> None:
        if record["step"] > 2:
            raise Pruned

    assert not forward_message(reporter, prunes, "validated", {"step": 1})
    assert forward_message(reporter, prunes, "validated", {"step": 3})


def test_messages_of_a_task_that_has_ended_are_dropped():
    """It is not counted among those that begin again on a machine without the folder."""
    fleet = Fleet("local")
    assert not fleet._receive("1", "place", False)
    assert not fleet._apart
    messages: list[tuple[str, Any]] = []
    fleet._on_message["2"] = lambda kind, content: bool(messages.append((kind, content)))
    fleet._receive("2", "place", False)
    assert fleet._apart == {"2"} and not messages
    fleet._receive("2", "place", True)
    assert not fleet._apart and messages[0][1].endswith("and another one goes on")


def test_one_bar_for_several_runs_at_once(capsys):
    from regard.checkpoint import Progress

    bar = PlanBar(Console(highlight=False, width=200), 3)
    with bar, bar.reporter("a") as first, bar.reporter("b") as second:
        first.stepped(Progress(step=5), 1.5, 1.0, 0.5)
        second.stepped(Progress(step=7), 2.5, 1.0, 0.25)
        assert sum(bar.under_way.values()) == 0.75
        bar.update(1, 3)
        bar.last = -1e9
        second.stepped(Progress(step=8), 2.25, 1.0, 0.5)
    assert not bar.under_way
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "1 of 3 runs have finished; b  and 1 more",
        "1 of 3 runs have finished; b   50%  step 8  loss 2.250  and 1 more",
    ]
