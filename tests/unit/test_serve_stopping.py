"""How long a server takes to stop, how long the files for deployment let it, and engine processes
that do not start."""

from __future__ import annotations

import asyncio
import re
import socket
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")

from regard.errors import BundleError  # noqa: E402
from regard.serve import engine_client  # noqa: E402
from regard.serve.engine_client import STOP_SECONDS, EngineProcessClient  # noqa: E402
from regard.serve.limits import DEFAULT_LIMITS  # noqa: E402
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


def restarted(
    monkeypatch: pytest.MonkeyPatch, starts: list[Exception | None]
) -> tuple[EngineProcessClient, list[Exception | None]]:
    """A client whose process has died, after it was started again. Each start has a result of
    `starts`; returned are those that nobody asked for."""
    monkeypatch.setattr(engine_client, "RESTART_PAUSE", 0.0)
    client = EngineProcessClient(Path("run"), "run", device="cpu", threads=1, rows=4)
    client._process = cast(Any, DeadProcess())

    async def start() -> None:
        if (problem := starts.pop(0)) is not None:
            raise problem

    monkeypatch.setattr(client, "start", start)
    asyncio.run(client._restart())
    return client, starts


def test_a_start_that_the_system_refuses_is_tried_again(monkeypatch: pytest.MonkeyPatch):
    client, rest = restarted(monkeypatch, [OSError(12, "Cannot allocate memory"), None])
    assert client.problem is None and rest == []


def test_a_process_that_cannot_be_started_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    refused = OSError(12, "Cannot allocate memory")
    client, rest = restarted(monkeypatch, [refused, refused, None])
    assert rest == [None]  # two refusals and the death are three
    assert client.problem == "the engine process could not be started: Cannot allocate memory"
    client, rest = restarted(monkeypatch, [BundleError("the manifest is damaged"), None])
    assert client.problem == "the manifest is damaged" and rest == [None]


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
