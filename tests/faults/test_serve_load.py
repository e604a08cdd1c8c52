"""What a server under load does with clients that go away, with time that runs out, with a full
queue, and when it is told to stop.

Some answers never end: a model that must not end writes until it is cancelled. So whatever ends
them is what the test is about.
"""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import socket
import sys
import threading
import time
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("httpx")

import httpx
import torch

import regard
from regard import bundle
from regard.weights import tensors
from tests.serving import Server, train_chat, train_speech

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]
CHAT = "/v1/chat/completions"
UNBOUNDED = {"max_tokens": 1_000_000} | dict.fromkeys(
    ("request_tokens", "tokens_under_way"), 1_000_000_000
)
ENDLESS = {"max_tokens": 1_000_000, "regard": {"min_new_tokens": 999_999}, "temperature": 0}
PATIENCE = 30.0  # seconds; nothing should come near it


def hello(prompt: str = "Hello!", **changes: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": prompt}], "temperature": 0} | changes


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_chat(tmp_path_factory.mktemp("chat"))


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE) -> float:
    """Wait, and return how long it took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < seconds, "it did not happen in time"
        time.sleep(0.01)
    return time.monotonic() - started


class Stream:
    """The answer to one request, read by a thread of its own."""

    def __init__(self, server: Server, body: dict[str, Any]):
        self.status = 0
        self.lines: list[str] = []
        self.broke: Exception | None = None
        self._server = server
        self._body = body | {"stream": True}
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            with (
                self._server.client() as client,
                client.stream("POST", CHAT, json=self._body) as answer,
            ):
                self.status = answer.status_code
                for line in answer.iter_lines():
                    if line:
                        self.lines.append(line.removeprefix("data: "))
        except httpx.HTTPError as problem:
            self.broke = problem

    def begin(self) -> Stream:
        """Wait for its first tokens."""
        wait_until(lambda: len(self.lines) > 2)
        return self

    def end(self) -> Stream:
        """Wait for its end."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the stream does not end"
        assert self.broke is None, self.broke
        return self

    @property
    def text(self) -> str:
        """The text of a stream that is whole."""
        assert self.status == 200 and self.lines[-1] == "[DONE]", self.lines[-2:]
        chunks = [json.loads(line) for line in self.lines[:-1]]
        choices = [chunk["choices"][0] for chunk in chunks]
        assert choices[-1]["finish_reason"] is not None
        return "".join(choice["delta"].get("content", "") for choice in choices)

    @property
    def error(self) -> dict[str, Any]:
        """The error with which a stream ended that had begun."""
        assert self.status == 200 and self.lines[-1] == "[DONE]", self.lines[-2:]
        return checked_error(json.loads(self.lines[-2]))


def checked_error(body: dict[str, Any]) -> dict[str, Any]:
    """An error in OpenAI's shape."""
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"] and "\n" not in body["error"]["message"]
    return body["error"]


# SIGTERM


def test_sigterm_under_load(run: Path) -> None:
    """Streams that end in time are whole. At the end of the time, the others end with an error."""
    drain = 10.0
    server = Server([run], limits=UNBOUNDED | {"drain": drain})
    with server.client() as client:
        long = {"max_tokens": 500, "regard": {"min_new_tokens": 500}}
        alone = client.post(CHAT, json=hello(**long)).json()["choices"][0]["message"]["content"]
        streams = [Stream(server, hello(**long)) for _ in range(4)]
        endless = [Stream(server, hello(**ENDLESS)) for _ in range(2)]
        for stream in (*streams, *endless):
            stream.begin()
        plain: list[httpx.Response] = []

        def ask() -> None:
            with server.client() as own:
                plain.append(own.post(CHAT, json=hello(**ENDLESS)))

        thread = threading.Thread(target=ask)
        thread.start()
        wait_until(lambda: server.metric("regard_jobs") >= 3)
        half = socket.create_connection(("127.0.0.1", server.port), PATIENCE)
        half.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n".encode())
        half.sendall(b"Content-Length: 100\r\n\r\n{")

        server.process.send_signal(signal.SIGTERM)
        started = time.monotonic()
        wait_until(lambda: client.get("/ready").status_code == 503, 2.0)
        assert client.get("/ready").json() == {"status": "draining"}
        refused = client.post(CHAT, json=hello())
        assert refused.status_code == 503
        assert checked_error(refused.json())["code"] == "stopped"
        assert client.get("/health").status_code == 200

        status = server.process.wait(PATIENCE)
        seconds = time.monotonic() - started
    thread.join(PATIENCE)
    assert status == 0
    assert drain - 0.5 < seconds < drain + 15
    for stream in streams:
        assert stream.end().text == alone
    for stream in endless:
        assert stream.end().error["code"] == "stopped"
    assert plain[0].status_code == 503
    assert checked_error(plain[0].json())["code"] == "stopped"
    with half:  # a body that never comes to its end
        assert half.recv(65_536).startswith(b"HTTP/1.1 503 ")
    server.stop()
    first, *more = server.errors
    assert first.startswith("stopping: ")
    assert not more or more == ["Cancel 1 running task(s), timeout graceful shutdown exceeded\n"]


# Clients that go away


def rows_leave(server: Server, rows: float = 0) -> None:
    """The engine itself reports its rows, and an answer that never ends would keep them: what has
    to happen within 250 ms has happened in any case, or never will."""
    wait_until(lambda: server.metric("regard_rows") == rows, 5.0)
    wait_until(lambda: server.metric("regard_jobs") == rows, 5.0)


def leave(server: Server, body: dict[str, Any], path: str = CHAT) -> socket.socket:
    """Send a request; the caller closes the connection."""
    content = json.dumps(body).encode()
    raw = socket.create_connection(("127.0.0.1", server.port), PATIENCE)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    raw.sendall(head.encode() + content)
    return raw


@pytest.fixture(scope="module")
def small(run: Path) -> Iterator[Server]:
    """A server whose batch has four rows."""
    server = Server([run], limits=UNBOUNDED | {"rows": 4})
    yield server
    assert server.stop() == 0
    assert not [line for line in server.errors if "stopping" not in line]


LONG = {"max_tokens": 1000, "regard": {"min_new_tokens": 999}}


@pytest.fixture(scope="module")
def alone(small: Server) -> str:
    """The text of a long answer, from a server that does nothing else."""
    with small.client() as client:
        return client.post(CHAT, json=hello(**LONG)).json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_client_that_goes_away_frees_its_rows(small: Server, alone: str, is_stream: bool) -> None:
    """While others have theirs: their texts are those that they get alone."""
    neighbour = Stream(small, hello(**LONG)).begin()
    with leave(small, hello(**ENDLESS, n=2, stream=is_stream)) as raw:
        wait_until(lambda: small.metric("regard_rows") == 3)
        if is_stream:
            assert raw.recv(65_536).startswith(b"HTTP/1.1 200 ")
    wait_until(lambda: small.metric("regard_jobs") <= 1, 5.0)
    wait_until(lambda: small.metric("regard_rows") <= 1, 5.0)
    assert neighbour.end().text == alone
    rows_leave(small)


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_client_that_goes_away_while_it_is_queued(
    small: Server, alone: str, is_stream: bool
) -> None:
    """Its answers never begin: they would keep the rows for ever."""
    neighbours = [Stream(small, hello(**LONG)).begin() for _ in range(4)]
    with leave(small, hello(**ENDLESS, n=4, stream=is_stream)):
        wait_until(lambda: small.metric("regard_jobs") > 4)
        assert small.metric("regard_rows") == 4
    for neighbour in neighbours:
        assert neighbour.end().text == alone
    rows_leave(small)


@pytest.mark.parametrize("is_stream", [False, True])
def test_clients_that_go_away_while_their_files_are_read(tmp_path: Path, is_stream: bool) -> None:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(2 * 8000 * 20))
    uri = "data:audio/wav;base64," + base64.b64encode(file.getvalue()).decode()
    body = {"input": {"sound": uri}, "greedy": True, "stream": is_stream}
    body["options"] = {"max_new_tokens": 1_000_000, "min_new_tokens": 999_999}
    with Server([train_speech(tmp_path)], limits=UNBOUNDED) as server:
        clients = [leave(server, body, "/v1/ask") for _ in range(12)]
        wait_until(lambda: server.metric("regard_jobs") == 12)
        for client in clients:
            client.close()
        wait_until(lambda: server.metric("regard_jobs") == 0, 5.0)
        with server.client() as client:  # the engine has read all that came before
            body["options"] = {"max_new_tokens": 1}
            assert client.post("/v1/ask", json=body | {"stream": False}).status_code == 200
        rows_leave(server)


def test_a_client_that_does_not_read_is_cut_off_and_its_rows_are_free(run: Path) -> None:
    """Its stream is written past ASGI, so nothing in the app waits for it."""
    limits = UNBOUNDED | {"rows": 4}
    with Server([run], limits=limits, connections={"writing": 1.0}) as server:
        lazy = socket.socket()
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.connect(("127.0.0.1", server.port))
        content = json.dumps(hello(**ENDLESS, stream=True)).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
        with lazy:
            lazy.sendall(head.encode() + content)
            wait_until(lambda: server.metric("regard_rows") == 1)
            other = Stream(server, hello(**LONG)).end()
            assert other.text
            wait_until(lambda: server.metric("regard_jobs") == 0)
            rows_leave(server)


# Time that runs out


def test_a_deadline_ends_answers_with_an_error(run: Path) -> None:
    with Server([run], limits=UNBOUNDED | {"deadline": 3.0}) as server:
        stream = Stream(server, hello(**ENDLESS))
        with server.client() as client:
            answer = client.post(CHAT, json=hello(**ENDLESS))
            assert answer.status_code == 503
            assert checked_error(answer.json())["code"] == "deadline"
            assert int(answer.headers["retry-after"]) >= 1
            assert stream.end().error["code"] == "deadline"
            rows_leave(server)
            measures = client.get("/metrics").text
            assert 'regard_errors_total{kind="deadline",model="chat"} 2.0' in measures
            assert client.post(CHAT, json=hello()).status_code == 200


# Full queues


def test_a_full_queue_says_when_to_come_back(run: Path) -> None:
    """At the rate at which answers have ended; and the rest of the server answers as ever."""
    with Server([run], limits=UNBOUNDED | {"queue": 16}) as server, server.client() as client:
        ended = []
        for _ in range(4):
            time.sleep(1)
            assert client.post(CHAT, json=hello()).status_code == 200
            ended.append(time.monotonic())
        seconds_each = (ended[-1] - ended[0]) / 3
        full = [Stream(server, hello(**ENDLESS, n=8)).begin() for _ in range(2)]
        assert full[0].status == full[1].status == 200
        for n in (1, 4, 8):
            answer = client.post(CHAT, json=hello(n=n))
            assert answer.status_code == 429
            assert checked_error(answer.json())["code"] == "queue_full"
            wanted = n * seconds_each
            assert wanted - 1 < int(answer.headers["retry-after"]) < wanted + 2
        too_many = client.post(CHAT, json=hello(stream=True, n=8))
        assert too_many.status_code == 429 and "retry-after" in too_many.headers
        for path in ("/health", "/", "/page/main.js", "/ready", "/v1/models"):
            assert client.get(path).status_code == 200, path


def test_a_request_that_never_fits_is_a_bad_one(run: Path) -> None:
    limits = {"queue": 4, "tokens_under_way": 100}
    with Server([run], limits=limits) as server, server.client() as client:
        for body in (hello(n=8), hello(max_tokens=101)):
            answer = client.post(CHAT, json=body)
            assert answer.status_code == 400
            assert "alone" in checked_error(answer.json())["message"]


def test_tokens_under_way_are_bounded(run: Path) -> None:
    """By what may still be written, and not by what the number of requests is."""
    limits = UNBOUNDED | {"tokens_under_way": 1_001_000}
    with Server([run], limits=limits) as server, server.client() as client:
        endless = Stream(server, hello(**ENDLESS)).begin()
        answer = client.post(CHAT, json=hello(max_tokens=1000))
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert checked_error(answer.json())["code"] == "queue_full"
        assert client.post(CHAT, json=hello(max_tokens=500)).status_code == 200
        assert endless.status == 200


# A model that fails


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose embeddings of some tokens of BROKEN, and of no other prompt, are not numbers."""
    short = ("decoder.tied=false", "train.steps=5")
    run = train_chat(tmp_path_factory.mktemp("broken"), "chat", *short)
    bot = regard.load(run)
    rows = set(bot.task.read_one(BROKEN).tolist()) - set(bot.task.read_one("Hello!").tolist())
    weights = {name: tensor.clone() for name, tensor in tensors(bot.model).items()}
    weights["frontend.embedding.table.weight"][list(rows)] = torch.nan
    bundle.put_weights(run, weights)
    return run


BROKEN = "Who wrote Faust?"


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_model_that_fails_fails_one_request(broken: Path, is_stream: bool) -> None:
    limits = {"max_tokens": 1000, "deadline": 60.0}
    with Server([broken], limits=limits) as server, server.client() as client:
        alone = client.post(CHAT, json=hello(**LONG)).json()["choices"][0]["message"]["content"]
        neighbours = [Stream(server, hello(**LONG)).begin() for _ in range(3)]
        body = hello(BROKEN, max_tokens=20, logprobs=True)
        if is_stream:
            error = Stream(server, body).end().error
        else:
            answer = client.post(CHAT, json=body)
            assert answer.status_code == 500
            error = checked_error(answer.json())
        assert "the model's logits are not numbers" in error["message"]
        assert error["type"] == "api_error"
        for neighbour in neighbours:
            assert neighbour.end().text == alone
        rows_leave(server)
        assert client.post(CHAT, json=hello()).status_code == 200


# Measures


def test_the_time_to_the_first_token_is_that_of_plain_requests_too(small: Server) -> None:
    def first() -> tuple[float, float]:
        names = ("regard_first_token_seconds_count", "regard_first_token_seconds_sum")
        return tuple(map(small.metric, names))  # type: ignore[return-value]

    changes: list[dict[str, Any]] = [
        {},
        {"stop": ["zzz"]},
        {"regard": {"num_beams": 3, "min_new_tokens": 999}},
    ]
    for more in changes:
        count, seconds = first()
        started = time.monotonic()
        with small.client() as client:
            assert client.post(CHAT, json=hello(**LONG | more)).status_code == 200
        whole = time.monotonic() - started
        assert first()[0] == count + 1
        assert first()[1] - seconds < whole / 2


# Deaths


def test_an_engine_that_dies_three_times_is_left_alone(run: Path) -> None:
    with Server([run]) as server, server.client() as client:
        for death in range(3):
            (engine,) = server.engine_pids()
            os.kill(engine, signal.SIGKILL)
            if death < 2:
                wait_until(lambda last=engine: server.engine_pids() not in ([], [last]))
                wait_until(lambda: client.get("/ready").status_code == 200)
        wait_until(lambda: server.engine_pids() == [])
        time.sleep(1)
        assert server.engine_pids() == []
        assert client.get("/ready").json() == {"status": "not ready", "models": ["chat"]}
        answer = client.post(CHAT, json=hello())
        assert answer.status_code == 503
        assert "ended 3 times within a minute" in checked_error(answer.json())["message"]
        assert client.get("/health").status_code == 200
