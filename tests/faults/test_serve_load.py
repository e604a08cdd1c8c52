"""What a server under load does with clients that go away, with time that runs out, with a full
queue, and when it is told to stop.

Some answers never end: a model that must not end writes until it is cancelled. So whatever ends
them is what the test is about, and what they are neighbours of never has to hurry. Times are only
there so that a test that hangs comes to an end.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import json
import os
import select
import signal
import socket
import sys
import threading
import time
import wave
from collections.abc import Callable, Iterator
from contextlib import ExitStack
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
from tests.tiny import PAIRS

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]
CHAT = "/v1/chat/completions"
UNBOUNDED = {"max_tokens": 1_000_000} | dict.fromkeys(
    ("request_tokens", "tokens_under_way"), 1_000_000_000
)
ENDLESS = {"max_tokens": 1_000_000, "regard": {"min_new_tokens": 999_999}, "temperature": 0}
LONG = {"max_tokens": 1000, "regard": {"min_new_tokens": 999}}  # ENDLESS begins with its text
PATIENCE = 120.0  # seconds; nothing should come near it


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
    """The answer to one request, read by a thread of its own. A plain socket and a reader that does
    next to nothing: on a busy machine, too, it is never the server that waits for it."""

    def __init__(self, server: Server, body: dict[str, Any]):
        self.lines: list[bytes] = []
        self._socket = leave(server, body | {"stream": True})
        self._is_whole = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        last = b""
        try:
            with self._socket.makefile("rb") as answer:
                for line in answer:
                    last = line
                    if line.startswith(b"HTTP/1.1 "):
                        self.status = int(line.split()[1])
                    elif line.startswith(b"data: "):
                        self.lines.append(line.removeprefix(b"data: ").rstrip())
                    elif line == b"0\r\n":  # the last chunk: not the connection, the answer ends
                        self._is_whole = True
                        return
        except OSError as problem:
            last = repr(problem).encode()
        self.lines.append(b"not whole: " + last)

    def begin(self) -> Stream:
        """Wait for its first tokens."""
        wait_until(lambda: len(self.lines) > 2)
        return self

    def end(self) -> Stream:
        """Wait for its end."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the stream does not end"
        assert self._is_whole, self.lines[-2:]
        assert self.status == 200 and self.lines[-1] == b"[DONE]", self.lines[-2:]
        self.close()
        return self

    def close(self) -> None:
        """Go away, whatever is still to come."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE)
        self._socket.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def text(self) -> str:
        """The text of a stream that is whole."""
        choices = [json.loads(line)["choices"][0] for line in self.lines[:-1]]
        assert choices[-1]["finish_reason"] is not None
        return "".join(choice["delta"].get("content", "") for choice in choices)

    def beginning(self, length: int) -> str:
        """The first characters of an answer that goes on, as soon as there are so many."""
        text = ""
        read = 0
        started = time.monotonic()
        while len(text) < length:
            assert time.monotonic() - started < PATIENCE, "it does not go on"
            time.sleep(0.02)
            lines = self.lines[read:]
            read += len(lines)
            deltas = [json.loads(line)["choices"][0]["delta"] for line in lines]
            text += "".join(delta.get("content", "") for delta in deltas)
        return text[:length]

    @property
    def error(self) -> dict[str, Any]:
        """The error with which a stream ended that had begun."""
        return checked_error(json.loads(self.lines[-2]))


def leave(server: Server, body: dict[str, Any], path: str = CHAT) -> socket.socket:
    """Send a request; the caller closes the connection."""
    content = json.dumps(body).encode()
    raw = socket.create_connection(("127.0.0.1", server.port), PATIENCE)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    raw.sendall(head.encode() + content)
    return raw


def checked_error(body: dict[str, Any]) -> dict[str, Any]:
    """An error in OpenAI's shape."""
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"] and "\n" not in body["error"]["message"]
    return body["error"]


# SIGTERM


def test_sigterm_lets_streams_come_to_their_end(run: Path) -> None:
    server = Server([run], limits=UNBOUNDED | {"drain": 600.0})
    with server.client() as client, ExitStack() as stack:
        long = {"max_tokens": 3000, "regard": {"min_new_tokens": 3000}}
        alone = client.post(CHAT, json=hello(**long)).json()["choices"][0]["message"]["content"]
        streams = [stack.enter_context(Stream(server, hello(**long))) for _ in range(4)]
        for stream in streams:
            stream.begin()
        server.process.send_signal(signal.SIGTERM)
        for stream in streams:
            assert stream.end().text == alone
        assert server.process.wait(PATIENCE) == 0
    server.stop()
    (line,) = server.errors
    assert line.startswith("stopping: ") and not line.startswith("stopping: 0 ")


def test_sigterm_ends_what_does_not_end_with_an_error(run: Path) -> None:
    """And meanwhile nothing new is begun."""
    drain = 3.0
    patient = {"server.END_SECONDS": 5.0}  # in which a busy machine sends the last errors
    server = Server([run], limits=UNBOUNDED | {"drain": drain}, constants=patient)
    with server.client() as client, ExitStack() as stack:
        endless = [stack.enter_context(Stream(server, hello(**ENDLESS))) for _ in range(2)]
        for stream in endless:
            stream.begin()
        plain: list[httpx.Response] = []

        def ask() -> None:
            with server.client() as own:
                plain.append(own.post(CHAT, json=hello(**ENDLESS)))

        thread = threading.Thread(target=ask)
        thread.start()
        wait_until(lambda: server.metric("regard_jobs") == 3)
        half = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), PATIENCE))
        half.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n".encode())
        half.sendall(b"Content-Length: 100\r\n\r\n{")

        server.process.send_signal(signal.SIGTERM)
        started = time.monotonic()
        wait_until(lambda: client.get("/ready").status_code == 503)
        assert client.get("/ready").json() == {"status": "draining"}
        refused = client.post(CHAT, json=hello())
        assert refused.status_code == 503
        assert checked_error(refused.json())["code"] == "stopped"
        assert client.get("/health").status_code == 200

        status = server.process.wait(PATIENCE)
        assert time.monotonic() - started > drain - 0.5
        thread.join(PATIENCE)
        assert status == 0
        for stream in endless:
            assert stream.end().error["code"] == "stopped"
        assert plain[0].status_code == 503
        assert checked_error(plain[0].json())["code"] == "stopped"
        # a body that never comes to its end
        assert half.recv(65_536).startswith(b"HTTP/1.1 503 ")
    server.stop()
    first, *more = server.errors
    assert first.startswith("stopping: ")
    assert not more or more == ["Cancel 1 running task(s), timeout graceful shutdown exceeded\n"]


# Clients that go away


def rows_leave(server: Server, rows: float = 0) -> None:
    """The engine itself reports its rows, and an answer that never ends would keep them: what has
    to happen within 250 ms has happened in any case, or never will. (How long it takes is
    measured in test_serve_long.)"""
    wait_until(lambda: server.metric("regard_rows") == rows)
    wait_until(lambda: server.metric("regard_jobs") == rows)


@pytest.fixture(scope="module")
def small(run: Path) -> Iterator[Server]:
    """A server whose batch has four rows, and which gives up clients that read nothing soon."""
    limits = UNBOUNDED | {"rows": 4, "queue": 16}
    server = Server([run], limits=limits, connections={"writing": 3.0})
    yield server
    assert server.stop() == 0
    assert not [line for line in server.errors if "stopping" not in line]


@pytest.fixture(scope="module")
def alone(small: Server) -> str:
    """The text of a long answer, from a server that does nothing else."""
    with small.client() as client:
        return client.post(CHAT, json=hello(**LONG)).json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_client_that_goes_away_frees_its_rows(small: Server, alone: str, is_stream: bool) -> None:
    """While others have theirs: their texts are those that they get alone."""
    with Stream(small, hello(**ENDLESS)).begin() as neighbour:
        with leave(small, hello(**ENDLESS, n=2, stream=is_stream)) as raw:
            wait_until(lambda: small.metric("regard_rows") == 3)
            if is_stream:
                assert raw.recv(65_536).startswith(b"HTTP/1.1 200 ")
        rows_leave(small, 1)
        assert neighbour.beginning(len(alone)) == alone
    rows_leave(small)


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_client_that_goes_away_while_it_is_queued(
    small: Server, alone: str, is_stream: bool
) -> None:
    """Its answers never begin: they would keep the rows for ever."""
    with ExitStack() as stack:
        neighbours = [stack.enter_context(Stream(small, hello(**ENDLESS))) for _ in range(4)]
        for neighbour in neighbours:
            neighbour.begin()
        with leave(small, hello(**ENDLESS, n=4, stream=is_stream)):
            wait_until(lambda: small.metric("regard_jobs") == 8)
            assert small.metric("regard_rows") == 4
        rows_leave(small, 4)
        for neighbour in neighbours:
            assert neighbour.beginning(len(alone)) == alone
    rows_leave(small)


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server([train_speech(tmp_path_factory.mktemp("speech"))], limits=UNBOUNDED) as server:
        yield server


@pytest.mark.parametrize("is_stream", [False, True])
def test_clients_that_go_away_while_their_files_are_read(speech: Server, is_stream: bool) -> None:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(2 * 8000 * 20))
    uri = "data:audio/wav;base64," + base64.b64encode(file.getvalue()).decode()
    body = {"input": {"sound": uri}, "greedy": True, "stream": is_stream}
    body["options"] = {"max_new_tokens": 1_000_000, "min_new_tokens": 999_999}
    clients = [leave(speech, body, "/v1/ask") for _ in range(12)]
    wait_until(lambda: speech.metric("regard_jobs") == 12)
    for client in clients:
        client.close()
    wait_until(lambda: speech.metric("regard_jobs") == 0)
    with speech.client() as client:  # the engine has read all that came before
        body["options"] = {"max_new_tokens": 1}
        assert client.post("/v1/ask", json=body | {"stream": False}).status_code == 200
    rows_leave(speech)


def test_a_client_that_does_not_read_is_cut_off_and_its_rows_are_free(small: Server) -> None:
    """Its stream is written past ASGI, so nothing in the app waits for it."""
    begun = small.metric("regard_first_token_seconds_count")
    lazy = socket.socket()
    lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    lazy.connect(("127.0.0.1", small.port))
    content = json.dumps(hello(**ENDLESS, stream=True)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    with lazy:
        lazy.sendall(head.encode() + content)
        wait_until(lambda: small.metric("regard_first_token_seconds_count") == begun + 1)
        assert Stream(small, hello(**LONG)).end().text
        rows_leave(small)


# Time that runs out


def test_a_deadline_ends_answers_with_an_error(run: Path) -> None:
    with (
        Server([run], limits=UNBOUNDED | {"deadline": 5.0}) as server,
        server.client() as client,
    ):
        client.post(CHAT, json=hello())  # so that the stream begins long before its deadline
        with Stream(server, hello(**ENDLESS)).begin() as stream:
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


def test_a_full_queue_says_when_to_come_back(small: Server) -> None:
    """And the rest of the server answers as ever. (When exactly is a matter of the unit tests.)"""
    with ExitStack() as stack, small.client() as client:
        for _ in range(2):
            stack.enter_context(Stream(small, hello(**ENDLESS, n=8)))
        wait_until(lambda: small.metric("regard_jobs") == 16)
        for body in (hello(), hello(n=4), hello(n=8), hello(n=8, stream=True)):
            answer = client.post(CHAT, json=body)
            assert answer.status_code == 429
            assert checked_error(answer.json())["code"] == "queue_full"
            assert 1 <= int(answer.headers["retry-after"]) <= 60
        for path in ("/health", "/", "/page/main.js", "/ready", "/v1/models"):
            assert client.get(path).status_code == 200, path
        assert small.metric("regard_jobs") == 16
    rows_leave(small)


def test_of_a_burst_each_client_gets_its_own_answer_or_the_time_to_wait(small: Server) -> None:
    """And nobody is cut off. (1,000 clients are in test_serve_long.)"""
    prompts = [prompt for prompt, _ in PAIRS] * 10
    (engine,) = small.engine_pids()
    os.kill(engine, signal.SIGSTOP)  # none of the first ends before the rest have come
    try:
        clients = [leave(small, hello(prompt, stream=True)) for prompt in prompts]
        wait_until(lambda: len(select.select(clients, [], [], 0)[0]) == len(prompts) - 16)
    finally:
        os.kill(engine, signal.SIGCONT)
    whole = 0
    for prompt, client in zip(prompts, clients, strict=True):
        answer = http.client.HTTPResponse(client)
        answer.begin()
        content = b""
        while not content.endswith((b"data: [DONE]\n\n", b"}")):
            piece = answer.read1()
            assert piece, content
            content += piece
        client.close()
        if answer.status == 429:
            assert int(answer.headers["retry-after"]) >= 1
            continue
        whole += 1
        chunks = [json.loads(line[6:]) for line in content.splitlines() if line[6:7] == b"{"]
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        assert "".join(delta.get("content", "") for delta in deltas) == dict(PAIRS)[prompt]
    assert whole == 16
    rows_leave(small)


@pytest.fixture(scope="module")
def bounded(run: Path) -> Iterator[Server]:
    """A server that holds little at a time."""
    limits = UNBOUNDED | {"queue": 4, "max_tokens": 1_030_000, "tokens_under_way": 1_001_000}
    with Server([run], limits=limits) as server:
        yield server


def test_a_request_that_never_fits_is_a_bad_one(bounded: Server) -> None:
    with bounded.client() as client:
        for body in (hello(n=8), hello(max_tokens=1_020_000)):
            answer = client.post(CHAT, json=body)
            assert answer.status_code == 400
            assert "alone" in checked_error(answer.json())["message"]


def test_tokens_under_way_are_bounded(bounded: Server) -> None:
    """By what may still be written, and not by what the number of requests is."""
    with Stream(bounded, hello(**ENDLESS)).begin() as endless, bounded.client() as client:
        answer = client.post(CHAT, json=hello(max_tokens=1000))
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert checked_error(answer.json())["code"] == "queue_full"
        assert client.post(CHAT, json=hello(max_tokens=500)).status_code == 200
        assert endless.status == 200
    rows_leave(bounded)


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


@pytest.fixture(scope="module")
def failing(broken: Path) -> Iterator[Server]:
    with Server([broken], limits=UNBOUNDED) as server:
        yield server


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_model_that_fails_fails_one_request(failing: Server, is_stream: bool) -> None:
    with ExitStack() as stack:
        client = stack.enter_context(failing.client())
        alone = client.post(CHAT, json=hello(**LONG)).json()["choices"][0]["message"]["content"]
        neighbours = [stack.enter_context(Stream(failing, hello(**ENDLESS))) for _ in range(3)]
        for neighbour in neighbours:
            neighbour.begin()
        body = hello(BROKEN, max_tokens=20, logprobs=True)
        if is_stream:
            error = Stream(failing, body).end().error
        else:
            answer = client.post(CHAT, json=body)
            assert answer.status_code == 500
            error = checked_error(answer.json())
        assert "the model's logits are not numbers" in error["message"]
        assert error["type"] == "api_error"
        rows_leave(failing, 3)
        for neighbour in neighbours:
            assert neighbour.beginning(len(alone)) == alone
        assert client.post(CHAT, json=hello()).status_code == 200
    rows_leave(failing)


# Measures


@pytest.mark.parametrize(
    "more",
    [{}, {"stop": ["zzz"]}, {"regard": {"num_beams": 3, "min_new_tokens": 999_999}}],
    ids=["plain", "stop", "beams"],
)
def test_the_first_token_of_plain_requests_is_measured_when_it_comes(
    small: Server, more: dict[str, Any]
) -> None:
    """Not at the end of the answer: this one has none."""
    begun = small.metric("regard_first_token_seconds_count")
    with leave(small, hello(**ENDLESS | more)):
        wait_until(lambda: small.metric("regard_first_token_seconds_count") == begun + 1)
    rows_leave(small)
    assert small.metric("regard_first_token_seconds_count") == begun + 1


# Deaths


def test_an_engine_that_dies_three_times_is_left_alone(run: Path) -> None:
    # To start three times may take long on a busy machine.
    patient = {"engine_client.DEATH_WINDOW": 3600.0, "engine_client.FIRST_PAUSE": 3600.0}
    with Server([run], limits={}, constants=patient) as server, server.client() as client:
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
        assert "ends again and again" in checked_error(answer.json())["message"]
        assert client.get("/health").status_code == 200
