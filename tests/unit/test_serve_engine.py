"""The loop of an engine process, with an engine that only counts."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from regard import build, recipe
from regard.errors import BundleError, InputError
from regard.serve import engine_process
from regard.serve.engine_process import SHORT_TEXT, ActiveJob, EngineProcess
from regard.serve.frames import Frame, FrameBuffer
from regard.serve.jobs import Job, Update, cancel_frame
from regard.tasks.sources import SoundSource, TextSource
from regard.tokenizers.words import Words
from regard.values import Alternative


class CountingEngine:
    """Has work as long as a job has been read."""

    def __init__(self) -> None:
        self.rows = 0
        self.busy = False
        self.steps = 0

    def step(self) -> None:
        self.steps += 1


class CountingProcess(EngineProcess):
    """Notes which jobs were read, and after how many steps. To read one takes 0.02 seconds."""

    def __init__(self, connection: socket.socket):
        self.counting = CountingEngine()
        super().__init__(
            cast(Any, SimpleNamespace(engine=lambda max_rows: self.counting)),
            connection,
            max_rows=4,
        )
        self.seconds = 0.0
        self.read: list[int] = []
        self.steps_before: list[int] = []

    def _read(self, job: Job) -> None:
        self.seconds += 0.02
        self.read += job.numbers
        self.steps_before += [self.counting.steps] * len(job.numbers)
        self._reading.difference_update(job.numbers)
        self.counting.busy = True


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def process(
    sockets: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> CountingProcess:
    process = CountingProcess(sockets[1])
    clock = SimpleNamespace(perf_counter=lambda: process.seconds)
    monkeypatch.setattr(engine_process, "time", clock)
    return process


def job(*numbers: int, text: str | None = "Hello!", media: bytes = b"") -> Job:
    return Job(numbers, (None,) * len(numbers), text, {}, media=media)


def send(sockets: tuple[socket.socket, socket.socket], *jobs: Job, cancel: tuple = ()) -> None:
    for each in jobs:
        sockets[0].sendall(each.to_frame().to_bytes())
    for number in cancel:
        sockets[0].sendall(cancel_frame(number).to_bytes())


def test_no_more_is_read_between_two_steps_than_a_slice_allows(
    process: CountingProcess, sockets: tuple[socket.socket, socket.socket]
):
    send(sockets, *(job(number) for number in range(10)))
    for _ in range(4):
        process.turn()
    assert process.read == list(range(10))  # in the order they came
    assert process.steps_before == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]


def test_texts_that_are_left_are_read_although_nothing_else_comes(
    process: CountingProcess, sockets: tuple[socket.socket, socket.socket]
):
    """Also if the engine has ended meanwhile: nobody would wake the loop up."""
    send(sockets, *(job(number) for number in range(5)))
    process.turn()
    process.counting.busy = False
    process.turn()
    assert process.read == [0, 1, 2, 3, 4]


def test_a_text_that_is_cancelled_is_not_read(
    process: CountingProcess, sockets: tuple[socket.socket, socket.socket]
):
    send(sockets, job(1), job(2, 3), job(4, 5), cancel=(1, 2, 4, 5))
    process.turn()
    assert process.read == [2, 3]  # somebody waits for 3
    assert not process._reading


@pytest.mark.parametrize("text", [None, "x" * (SHORT_TEXT + 1)], ids=["file", "long text"])
def test_a_file_that_is_cancelled_is_not_read_and_takes_no_memory(
    process: CountingProcess, sockets: tuple[socket.socket, socket.socket], text: str | None
):
    jobs = [job(number, text=text, media=b"x" * 1000) for number in range(5)]
    send(sockets, *jobs, cancel=(0, 2, 3))
    process._receive(wait=False)
    assert len(process._large) == 2
    assert [process._large.get().numbers for _ in range(2)] == [(1,), (4,)]


def waiting_for_effect(process: CountingProcess, *numbers: int) -> None:
    for number in numbers:
        active = cast(ActiveJob, SimpleNamespace(number=number, job=job(number), row=None))
        answer = cast(Any, SimpleNamespace(tokens=("b",), logprobs=(0.0,), place_names=("a",)))
        process._measuring.add(number)
        process._effects.put((active, answer))


def test_an_effect_that_is_cancelled_is_not_measured(
    process: CountingProcess, sockets: tuple[socket.socket, socket.socket]
):
    waiting_for_effect(process, 1, 2, 3)
    send(sockets, cancel=(1, 3))
    process._receive(wait=False)
    assert len(process._effects) == 1
    assert process._effects.get()[0].number == 2


def test_an_effect_that_is_cancelled_ends_before_its_next_pass(
    process: CountingProcess,
    sockets: tuple[socket.socket, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
):
    passes: list[int] = []

    def with_effect(subject: Any, before_pass: Any) -> Any:
        for number in range(5):
            before_pass()
            passes.append(number)
            if number == 1:
                send(sockets, cancel=(7,))
                process._receive(wait=False)

    monkeypatch.setattr(engine_process, "with_effect", with_effect)
    monkeypatch.setattr(process, "_record", lambda active, answer: {})
    waiting_for_effect(process, 7)
    with pytest.raises(engine_process.Abandoned):
        process._with_effect(*process._effects.get())
    assert passes == [0, 1]


@pytest.mark.parametrize("name", ["caption-attention", "speech-attention", "translate-attention"])
def test_the_places_of_the_largest_input_are_known(name: str):
    """What is under way is bounded by them."""
    short = ["data.max_seconds=2"] if name.startswith("speech") else []
    own = recipe.load(name, short)
    tokenizer = Words.fit(["a b"], min_count=1)
    task = build.task(own, tokenizer)
    model = build.model(own, vocabulary=tokenizer.size, source_vocabulary=tokenizer.size).eval()
    places = engine_process.most_places(cast(Any, SimpleNamespace(task=task, model=model)))
    if isinstance(task.source, TextSource):
        assert places is None
        return
    row = task.source.example()
    if isinstance(task.source, SoundSource):
        row = np.resize(row, int(task.source.max_seconds * task.source.rate))
    with torch.inference_mode():
        memory = model.encode(*task.sources([row]))
    assert places == memory.mask.shape[1]


def test_an_alternative_without_a_probability_is_json():
    alternative = Alternative(5, "x", float("nan"))
    record = engine_process._alternative_record(alternative, job(1))
    assert record == {"token": 5, "text": "x", "probability": None}


@pytest.mark.parametrize(
    ("problem", "fault"),
    [
        (InputError("the prompt is empty"), "input"),
        (BundleError("the index is damaged"), "model"),
        (ValueError("no such shape"), "model"),
    ],
)
def test_only_what_is_wrong_with_the_input_is_blamed_on_it(
    sockets: tuple[socket.socket, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
    problem: Exception,
    fault: str,
):
    engine = SimpleNamespace(rows=0)
    process = EngineProcess(
        cast(Any, SimpleNamespace(engine=lambda max_rows: engine)), sockets[1], max_rows=4
    )

    def fail(own: Job) -> list[ActiveJob]:
        raise problem

    monkeypatch.setattr(process, "_submitted", fail)
    process._read(job(7))
    ((update,),) = [frame.header["updates"] for frame in received(sockets)]
    assert update["job"] == 7 and update["failed"]["fault"] == fault


def test_large_reports_are_sent_in_several_frames(
    process: CountingProcess, sockets: tuple[socket.socket, socket.socket]
):
    """Else many answers with attention that end in one step were more than a frame may have, and
    the web process took the engine process for broken."""
    updates = [{"job": number, "finished": {"text": "x" * 100_000}} for number in range(40)]
    updates.insert(7, {"job": 99, "finished": {"text": "y" * 500_000}})
    sending = threading.Thread(target=process._send, args=[updates])
    sending.start()
    frames: list[Frame] = []
    buffer = FrameBuffer()
    while sum(len(frame.header["updates"]) for frame in frames) < len(updates):
        frames += buffer.add(sockets[0].recv(1 << 20))
    sending.join()
    assert [update for frame in frames for update in frame.header["updates"]] == updates
    for frame in frames:
        is_large = len(frame.to_bytes()) > engine_process.MAX_REPORT + 100
        assert not is_large or len(frame.header["updates"]) == 1
    assert len(frames) == 22  # two answers each, and one alone


def test_an_answer_that_is_too_large_fails_alone(
    process: CountingProcess,
    sockets: tuple[socket.socket, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(engine_process, "MAX_REPORT", 1000)
    monkeypatch.setattr(engine_process, "MAX_UPDATE", 2000)
    updates = [{"job": number, "finished": {"text": "x" * 100}} for number in range(3)]
    updates[1] = {"job": 1, "finished": {"text": "x" * 2000}}
    process._send(updates)
    reported = [update for frame in received(sockets) for update in frame.header["updates"]]
    assert [reported[0], reported[2]] == [updates[0], updates[2]]
    failed = reported[1]["failed"]
    assert reported[1]["job"] == 1 and failed["fault"] == "input"
    assert "ask for fewer tokens" in failed["message"]


def test_a_fault_while_an_effect_is_measured_fails_one_answer(
    process: CountingProcess,
    sockets: tuple[socket.socket, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
):
    """And not the thread that measures those of the others."""

    def fail(active: ActiveJob, answer: Any) -> Any:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(process, "_record", fail)
    waiting_for_effect(process, 7, 8)
    threading.Thread(target=process._measure_effects, daemon=True).start()
    sockets[0].settimeout(10)
    buffer = FrameBuffer()
    frames: list[Frame] = []
    while len(frames) < 2:
        frames += buffer.add(sockets[0].recv(1 << 16))
    failed = [update for frame in frames for update in frame.header["updates"]]
    assert [update["job"] for update in failed] == [7, 8]
    assert failed[0]["failed"] == {"fault": "model", "message": "ZeroDivisionError: a fault"}


def test_effects_are_measured_after_the_tokens_are_sent(
    process: CountingProcess, monkeypatch: pytest.MonkeyPatch
):
    """An answer with no tokens to measure ends at once, and what is sent after its end is lost."""
    request = SimpleNamespace(has_begun=True, has_tokens=True, done=True)
    own = replace(job(7), effect=True)
    active = cast(Any, SimpleNamespace(number=7, job=own, request=request, has_begun=True))
    process._active[7] = active

    def add_updates(active: ActiveJob, updates: list[Update]) -> None:
        updates.append({"job": 7, "token": {}})
        process._end(active, cast(Any, None), updates)

    waiting: list[int] = []
    monkeypatch.setattr(process, "_add_updates", add_updates)
    monkeypatch.setattr(process, "_send", lambda updates: waiting.append(len(process._effects)))
    process._report()
    assert waiting == [0]
    assert len(process._effects) == 1


def received(sockets: tuple[socket.socket, socket.socket]) -> list[Frame]:
    """What the process has sent."""
    buffer = FrameBuffer()
    frames = []
    sockets[0].setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            frames += buffer.add(sockets[0].recv(1 << 20))
    return frames
