"""How long a server takes to stop, how long the files for deployment let it, and engine processes
that do not start."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")

from regard.errors import BundleError  # noqa: E402
from regard.serve import engine_client, engine_process  # noqa: E402
from regard.serve.api_errors import ApiError  # noqa: E402
from regard.serve.app import State, create_app  # noqa: E402
from regard.serve.engine_client import (  # noqa: E402
    STOP_SECONDS,
    DiedWhileLoading,
    EngineProcessClient,
    Engines,
)
from regard.serve.frames import LENGTHS, Frame  # noqa: E402
from regard.serve.jobs import failure  # noqa: E402
from regard.serve.limits import DEFAULT_LIMITS, Limits  # noqa: E402
from regard.serve.metrics import Metrics  # noqa: E402
from regard.serve.server import END_SECONDS  # noqa: E402

DEPLOY = Path(__file__).parents[2] / "deploy"


def seconds_of(file: str, pattern: str) -> float:
    (number,) = re.findall(pattern, (DEPLOY / file).read_text("utf-8"))
    return float(number)


def test_a_server_has_stopped_before_it_is_killed():
    longest = DEFAULT_LIMITS.drain + END_SECONDS + STOP_SECONDS
    assert longest < seconds_of("compose.yaml", r"stop_grace_period: (\d+)s")
    assert longest < seconds_of("Dockerfile", r"docker stop --time (\d+)")
    pre_stop = seconds_of("kubernetes.yaml", r'command: \["sleep", "(\d+)"\]')
    grace = seconds_of("kubernetes.yaml", r"terminationGracePeriodSeconds: (\d+)")
    assert pre_stop + longest < grace


# An engine process that dies


class DeadProcess:
    """A process that has ended."""

    def kill(self) -> None:
        raise ProcessLookupError

    async def wait(self) -> int:
        return -9


class Clock:
    """Seconds that pass only when somebody waits."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Restarted:
    """A client whose processes die. Each start has a result of `starts`: an error, or the seconds
    that the process lives; when there is none left, the server stops."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, starts: list[Exception | float]):
        self.clock = Clock()
        self.pauses: list[float] = []
        self.problems: list[tuple[str | None, bool]] = []  # in each pause
        self.client = EngineProcessClient(Path("run"), "run", device="cpu", threads=1, rows=4)
        self.client._process = cast(Any, DeadProcess())
        self._starts = starts
        monkeypatch.setattr(engine_client, "time", self.clock)
        monkeypatch.setattr(self.client, "start", self._start)
        monkeypatch.setattr(self.client, "_sleep", self._sleep)
        asyncio.run(self._deaths())

    async def _deaths(self) -> None:
        while not self.client._stopping.is_set():
            await self.client._after_death()

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.problems.append((self.client.problem, self.client.given_up))
        self.clock.now += seconds

    async def _start(self) -> None:
        if not self._starts:
            self.client.drain()
            return
        result = self._starts.pop(0)
        if isinstance(result, Exception):
            raise result
        self.client._started_at = self.clock.now
        self.clock.now += result


LOADING = "the engine process ended while it loaded the model"


def test_a_start_that_the_system_refuses_is_tried_again(monkeypatch: pytest.MonkeyPatch):
    restarted = Restarted(monkeypatch, [OSError(12, "Cannot allocate memory")])
    assert restarted.client.problem is None
    assert restarted.pauses == [0, 1]


def test_a_process_that_dies_while_it_loads_is_started_again(monkeypatch: pytest.MonkeyPatch):
    """As when the system kills it because memory is short for a moment."""
    restarted = Restarted(monkeypatch, [DiedWhileLoading(LOADING)])
    assert restarted.client.problem is None
    assert restarted.pauses == [0, 1]


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (DiedWhileLoading(LOADING), LOADING),
        (
            OSError(12, "Cannot allocate memory"),
            "the engine process could not be started: Cannot allocate memory",
        ),
    ],
)
def test_a_process_that_cannot_be_started_is_tried_again_after_longer_and_longer_pauses(
    monkeypatch: pytest.MonkeyPatch, problem: Exception, message: str
):
    restarted = Restarted(monkeypatch, [problem] * 8)
    assert restarted.pauses == [0, 1, 30, 60, 120, 240, 300, 300, 300]
    assert restarted.problems[:2] == [(None, False)] * 2
    # After the first pause there is hope; when that start has failed as well, there is not.
    assert restarted.problems[2:] == [(message, False), *[(message, True)] * 6]
    assert restarted.client.problem is None  # the last start went well


def test_a_run_that_cannot_be_used_is_tried_again_after_a_pause(monkeypatch: pytest.MonkeyPatch):
    restarted = Restarted(monkeypatch, [BundleError("the manifest is damaged")])
    assert restarted.pauses == [0, 30]
    assert restarted.problems[1] == ("the manifest is damaged", False)


def test_a_process_that_dies_again_and_again_gets_its_rest(monkeypatch: pytest.MonkeyPatch):
    restarted = Restarted(monkeypatch, [5.0, 5.0, 5.0, 5.0, 100.0, 5.0])
    assert restarted.pauses == [0, 0, 30, 60, 120, 0, 0]  # after 100 seconds it had lived
    message = "the engine process ends again and again"
    assert [problem for problem, _ in restarted.problems[2:5]] == [message] * 3


def test_a_server_that_drains_starts_no_process_again(monkeypatch: pytest.MonkeyPatch):
    client = EngineProcessClient(Path("run"), "run", device="cpu", threads=1, rows=4)
    client._process = cast(Any, DeadProcess())
    starts: list[int] = []

    async def start() -> None:
        starts.append(1)

    monkeypatch.setattr(client, "start", start)
    client.drain()
    asyncio.run(asyncio.wait_for(client._after_death(), 5))
    assert not starts


def test_what_is_no_report_ends_the_process():
    """Its jobs would wait until their deadline otherwise."""

    async def read(content: bytes) -> str:
        client = EngineProcessClient(Path("run"), "run", device="cpu", threads=1, rows=4)
        client._process = cast(Any, DeadProcess())
        client.drain()
        inbox = engine_client.Inbox()
        client.pending[7] = engine_client.Pending(inbox, 0, 10, 0.0)
        reader = asyncio.StreamReader()
        reader.feed_data(content)
        await asyncio.wait_for(client._read(reader), 5)
        ((_, update),) = inbox.drain()
        return update["failed"]["message"]

    no_json = LENGTHS.pack(3, 0) + b"{a}"
    for content in (no_json, Frame({"rows": 1}).to_bytes(), Frame({"updates": [5]}).to_bytes()):
        message = asyncio.run(read(content))
        assert message == "the engine process ended while it answered; try again"


def test_a_server_is_healthy_as_long_as_a_model_can_answer_or_will():
    class Client(EngineProcessClient):
        def __init__(self, pauses: int):
            super().__init__(Path("run"), "run", device="cpu", threads=1, rows=4)
            self._long_pauses = pauses

    def status(*models: list[int]) -> int:
        engines = {}
        for number, pauses in enumerate(models):
            engines[str(number)] = Engines(str(number), Path("run"), limits=DEFAULT_LIMITS)
            engines[str(number)].processes = [Client(each) for each in pauses]
        app = create_app(engines, Metrics(), State())
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/health", "headers": []}
        scope |= {"query_string": b"", "root_path": ""}
        asyncio.run(app(scope, receive, send))
        return sent[0]["status"]

    assert status([0]) == status([1, 2]) == status([2], [0]) == 200
    assert status([2]) == status([2, 3], [4]) == 503


# When there is room again


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> tuple[Engines, Clock]:
    """Engines with a queue of 16 answers and 1,000 tokens, and a clock."""
    clock = Clock()
    monkeypatch.setattr(engine_client, "time", SimpleNamespace(monotonic=clock.monotonic, time=int))
    limits = Limits(queue=16, tokens_under_way=1000)
    return Engines("run", Path("run"), limits=limits), clock


def add(engines: Engines, count: int, tokens: int) -> None:
    process = engines.processes[0]
    for _ in range(count):
        now = engine_client.time.monotonic()
        number = engines.next_number()
        process.pending[number] = engine_client.Pending(engine_client.Inbox(), 0, tokens, now)
        process.tokens += tokens


def end(engines: Engines, count: int) -> None:
    process = engines.processes[0]
    for number in list(process.pending)[:count]:
        engines.ended(process, failure(number, "model", "none"))


def refused(engines: Engines, jobs: int, tokens: int) -> tuple[int, int | None]:
    with pytest.raises(ApiError) as caught:
        engines.check_room(jobs, tokens)
    return caught.value.status, caught.value.retry_after


def test_the_time_to_come_back_counts_silence(busy: tuple[Engines, Clock]):
    engines, clock = busy
    add(engines, 16, 10)
    end(engines, 2)
    add(engines, 2, 10)
    assert refused(engines, 1, 1) == (429, 1)
    clock.now += 12.5
    assert refused(engines, 1, 1) == (429, 13)  # one answer in 12.5 seconds
    assert refused(engines, 3, 3) == (429, 38)
    clock.now += 30
    assert refused(engines, 1, 1) == (429, 43)
    clock.now += 30
    assert refused(engines, 1, 1) == (429, 60)  # the longest that is said


def test_the_time_to_come_back_is_that_of_what_is_short(busy: tuple[Engines, Clock]):
    engines, clock = busy
    add(engines, 8, 100)
    for _ in range(5):  # 4 answers and 400 tokens in 8 seconds
        end(engines, 1)
        clock.now += 2
    clock.now -= 2
    add(engines, 5, 100)
    engines.check_room(8, 200)  # it fits
    assert refused(engines, 9, 9) == (429, 2)  # 1 answer
    assert refused(engines, 12, 12) == (429, 8)  # 4 answers
    assert refused(engines, 1, 350) == (429, 3)  # 150 tokens
    assert refused(engines, 9, 800) == (429, 12)  # 600 tokens, which take longer than an answer


def test_without_any_end_the_time_to_come_back_is_that_of_waiting(busy: tuple[Engines, Clock]):
    engines, clock = busy
    add(engines, 16, 10)
    assert refused(engines, 1, 1) == (429, 1)
    clock.now += 20
    assert refused(engines, 1, 1) == (429, 20)
    assert refused(engines, 2, 2) == (429, 40)


def test_what_never_fits_is_a_bad_request_whatever_else_runs(busy: tuple[Engines, Clock]):
    engines, _ = busy
    for _ in range(2):
        assert refused(engines, 17, 17) == (400, None)
        assert refused(engines, 1, 1001) == (400, None)
        add(engines, 1, 10)


def test_who_asks_a_model_that_is_left_alone_is_told_when_to_come_back(
    busy: tuple[Engines, Clock],
):
    engines, clock = busy
    process = engines.processes[0]
    with pytest.raises(ApiError) as caught:
        engines.least_busy()
    assert caught.value.status == 503 and caught.value.retry_after == 1
    process.problem = "the manifest is damaged"
    process.retry_at = clock.now + 29.5
    with pytest.raises(ApiError) as caught:
        engines.least_busy()
    assert caught.value.status == 503 and caught.value.retry_after == 30
    assert caught.value.message == "the model run cannot answer: the manifest is damaged"


def test_an_engine_process_ignores_what_is_sent_to_all_processes_of_the_service(tmp_path: Path):
    """It ends with its socket, when the web process says so."""
    ours, theirs = socket.socketpair()
    calls: dict[int, object] = {}
    command = ["engine_process", "--socket", str(theirs.fileno()), "--run", str(tmp_path / "none")]
    command += ["--name", "none", "--rows", "4"]
    with pytest.MonkeyPatch.context() as patch, ours, theirs:
        patch.setattr("sys.argv", command)
        patch.setattr(engine_process, "socket", SimpleNamespace(socket=lambda fileno: theirs))
        patch.setattr(engine_process.signal, "signal", calls.__setitem__)
        patch.setattr(engine_process.torch, "set_num_threads", lambda threads: None)
        with pytest.raises(SystemExit):
            engine_process.main()
    assert calls == {signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: signal.SIG_IGN}


@pytest.mark.parametrize(
    "content", [LENGTHS.pack(3, 0) + b"{a}", Frame({}).to_bytes(), b"\xff" * 9, b""]
)
def test_a_process_that_says_nothing_about_its_model_is_ended(
    monkeypatch: pytest.MonkeyPatch, content: bytes
):
    """As one of another version, if the package was replaced under a server."""
    ended = asyncio.Event()

    async def speak(*words: str, **_: object) -> SimpleNamespace:
        os.write(int(words[words.index("--socket") + 1]), content)
        return SimpleNamespace(kill=ended.set, wait=ended.wait)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", speak)

    async def start() -> None:
        client = EngineProcessClient(Path("run"), "run", device="cpu", threads=1, rows=4)
        with pytest.raises(DiedWhileLoading):
            await asyncio.wait_for(client.start(), 5)

    asyncio.run(start())
    assert ended.is_set()


def test_the_socket_of_a_dead_process_is_closed():
    async def die() -> int:
        ours, theirs = socket.socketpair()
        client = EngineProcessClient(Path("run"), "run", device="cpu", threads=1, rows=4)
        client._process = cast(Any, DeadProcess())
        client.drain()
        with theirs:
            _, client._writer = await asyncio.open_connection(sock=ours)
            await client._after_death()
            await asyncio.sleep(0)
        return ours.fileno()

    assert asyncio.run(die()) == -1


def test_a_refused_start_leaves_no_socket_behind(monkeypatch: pytest.MonkeyPatch):
    client = EngineProcessClient(Path("run"), "run", device="cpu", threads=1, rows=4)
    sockets: list[socket.socket] = []
    make = socket.socketpair

    def pair() -> tuple[socket.socket, socket.socket]:
        sockets.extend(make())
        return sockets[0], sockets[1]

    async def refuse(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(socket, "socketpair", pair)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)

    async def start() -> list[int]:
        sockets.clear()  # of the loop's own
        with pytest.raises(OSError, match="memory"):
            await client.start()
        return [each.fileno() for each in sockets]

    assert asyncio.run(start()) == [-1, -1]
