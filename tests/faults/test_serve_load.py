"""What a server under load does with clients that go away, with time that runs out, with a full
queue, and when it is told to stop.

Some answers never end: a model that must not end writes until it is cancelled. So whatever ends
them is what the test is about.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("httpx")

import httpx

from tests.serving import Server, train_chat

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]
CHAT = "/v1/chat/completions"
UNBOUNDED = {"max_tokens": 1_000_000, "tokens_under_way": 1_000_000_000}
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
    drain = 5.0
    server = Server([run], limits=UNBOUNDED | {"drain": drain})
    with server.client() as client:
        long = {"max_tokens": 1000, "regard": {"min_new_tokens": 1000}}
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
    assert drain - 0.5 < seconds < drain + 3
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
