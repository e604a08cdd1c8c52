"""The Ray Serve application, as far as it can be seen without Ray."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs FastAPI (extra serve)")

from regard.errors import InputError  # noqa: E402
from regard.serve.limits import DEFAULT_LIMITS  # noqa: E402
from regard.serve.ray import (  # noqa: E402
    Arguments,
    ReplicaApp,
    SaysThatTheReplicaEnded,
    deployment_options,
    read_arguments,
    replica_settings,
)


def test_runs_come_from_the_arguments_or_the_environment():
    environment = {"REGARD_RUNS": "/models/demo:/models/numbers"}
    settings = replica_settings(Arguments(cpus=4), environment)
    assert settings.runs == {"demo": Path("/models/demo"), "numbers": Path("/models/numbers")}
    assert settings.threads == 2
    settings = replica_settings(Arguments(runs="/other", hosts="a.example, b.example"), environment)
    assert list(settings.runs) == ["other"]
    assert settings.hosts == ("a.example", "b.example")


def test_wrong_arguments_are_one_line():
    with pytest.raises(InputError, match="there is no run to serve.*REGARD_RUNS"):
        replica_settings(Arguments(), {})
    with pytest.raises(InputError, match="max_replicas is less than min_replicas"):
        replica_settings(Arguments(runs="/run", min_replicas=3, max_replicas=2), {})
    with pytest.raises(InputError, match="no such argument.*max_replica.*max_replicas"):
        read_arguments({"max_replica": "3"})
    with pytest.raises(InputError, match="workers.*greater than or equal to 1.*'0'"):
        read_arguments({"workers": "0"})


def test_the_command_line_gives_text():
    arguments = read_arguments({"runs": "/run", "max_replicas": "8", "insecure": "true"})
    assert (arguments.max_replicas, arguments.insecure) == (8, True)


@pytest.mark.parametrize("workers", [1, 2, 8, 16])
def test_ray_does_not_cut_batches_short(workers: int):
    options = deployment_options(Arguments(workers=workers), DEFAULT_LIMITS)
    scaling = options["autoscaling_config"]
    assert options["max_ongoing_requests"] > scaling["target_ongoing_requests"]
    assert scaling["target_ongoing_requests"] == workers * DEFAULT_LIMITS.rows
    assert scaling["max_replicas"] > 1
    assert options["graceful_shutdown_timeout_s"] > DEFAULT_LIMITS.drain
    assert options["max_queued_requests"] > 0


def test_a_replica_without_a_key_does_not_start(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("REGARD_KEY", raising=False)
    app = ReplicaApp(replica_settings(Arguments(runs="/no/such/run"), {}))
    messages: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        messages.append(message)

    asyncio.run(app({"type": "lifespan"}, receive, send))
    assert [message["type"] for message in messages] == ["lifespan.startup.failed"]
    assert "there is no key" in messages[0]["message"]


START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"Content-Type", b"text/event-stream; charset=utf-8")],
}
PART = {"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True}
LAST = {"type": "http.response.body", "body": b"", "more_body": False}
PLAIN = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]}


def sent(*own: dict[str, Any]) -> list[dict[str, Any]]:
    """What a client gets of an answer of which the proxy sends only this."""
    messages: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in own:
            await send(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        messages.append(message)

    asyncio.run(SaysThatTheReplicaEnded(app)({"type": "http"}, receive, send))
    return messages


def test_a_stream_whose_replica_died_ends_with_an_error():
    *passed, last = sent(START, PART)
    assert passed == [START, PART] and not last["more_body"]
    error, done = last["body"].strip().split(b"\n\n")
    assert done == b"data: [DONE]"
    content = json.loads(error.removeprefix(b"data: "))["error"]
    assert "the replica ended" in content["message"] and content["type"] == "overloaded_error"


def test_an_answer_that_never_began_is_503():
    start, body = sent()
    assert start["status"] == 503 and (b"retry-after", b"1") in start["headers"]
    assert json.loads(body["body"])["error"]["type"] == "overloaded_error"


@pytest.mark.parametrize("own", [(START, PART, LAST), (PLAIN, LAST), (PLAIN, PART)])
def test_other_answers_pass_unchanged(own: tuple[dict[str, Any], ...]):
    """Also one of a known length that is cut: the closed connection says so."""
    assert sent(*own) == list(own)
