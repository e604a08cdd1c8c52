"""What the web process does between connections and engines: when it listens, what it reads in a
thread, and whom it takes for a client that does not read."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")

from regard.errors import BundleError, InputError  # noqa: E402
from regard.search import Options  # noqa: E402
from regard.serve import ask_routes, questions, server  # noqa: E402
from regard.serve.api_errors import ApiError  # noqa: E402
from regard.serve.app import State, create_app  # noqa: E402
from regard.serve.engine_client import Engines  # noqa: E402
from regard.serve.http_protocol import ConnectionLimits, OneWriteTransport, protocol_with  # noqa: E402
from regard.serve.limits import Limits  # noqa: E402
from regard.serve.metrics import Metrics  # noqa: E402
from regard.serve.questions import LARGE_BODY  # noqa: E402
from regard.serve.server import Settings, serve  # noqa: E402

# When it listens


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "manifest.json").write_text("{}")
    return tmp_path


def test_nobody_is_connected_before_the_models_are_loaded(
    run: Path, monkeypatch: pytest.MonkeyPatch
):
    """A proxy would wait for them, although another server could answer."""
    ports: list[int] = []
    bound = server._bound

    def remember(host: str, port: int) -> socket.socket:
        listener = bound(host, port)
        ports.append(listener.getsockname()[1])
        return listener

    async def start(engines: Engines) -> None:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", ports[0]), timeout=5)
        raise BundleError("no model here")

    monkeypatch.setattr(server, "_bound", remember)
    monkeypatch.setattr(Engines, "start", start)
    with pytest.raises(BundleError, match="no model here"):
        asyncio.run(serve(Settings(runs={"run": run}, port=0)))


def test_a_wrong_name_of_a_host_is_told_before_the_models_are_loaded(
    run: Path, monkeypatch: pytest.MonkeyPatch
):
    async def start(engines: Engines) -> None:
        pytest.fail("models are loaded for nothing, and their processes are left behind")

    monkeypatch.setattr(Engines, "start", start)
    with pytest.raises(InputError, match="not the name of a host; got http://models.example"):
        asyncio.run(serve(Settings(runs={"run": run}, port=0, hosts=("http://models.example",))))


def test_an_address_that_another_server_took_meanwhile_is_one_line(
    run: Path, monkeypatch: pytest.MonkeyPatch
):
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]

        async def start(engines: Engines) -> None:
            other.listen(1)

        monkeypatch.setattr(Engines, "start", start)
        message = f"127.0.0.1:{port}: cannot listen on this address.*--port"
        with pytest.raises(InputError, match=message):
            asyncio.run(serve(Settings(runs={"run": run}, port=port)))


# What is read in a thread

DESCRIPTION = {
    "task": "caption",
    "input": "picture",
    "options": dict(Options()),
    "max_source": None,
    "turns": 0,
    "places": 36,
    "reads_characters": False,
}


def app_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An app with a model whose queue has no room for anything."""
    engines = Engines("model", Path("run"), limits=Limits(queue=0))
    engines.processes[0].description = DESCRIPTION
    return create_app({"model": engines}, Metrics(), State())


async def failure(app: Any, path: str, content: bytes, method: str = "POST") -> dict[str, Any]:
    """The error that a request is answered with."""
    sent: list[Any] = []
    messages = iter([{"type": "http.request", "body": content, "more_body": False}])

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": []}
    await app(scope | {"query_string": b"", "root_path": ""}, receive, send)
    return json.loads(sent[1]["body"])["error"]


def question(path: str, size: int) -> bytes:
    picture = "data:image/png;base64," + base64.b64encode(b"x" * size).decode()
    body: dict[str, Any] = {"input": {"picture": picture}}
    if path.endswith("chat/completions"):
        part = {"type": "image_url", "image_url": {"url": picture}}
        body = {"messages": [{"role": "user", "content": [part]}]}
    return json.dumps(body).encode()


@pytest.mark.parametrize("path", ["/v1/ask", "/v1/chat/completions"])
def test_streams_go_on_while_a_large_body_is_read(path: str, monkeypatch: pytest.MonkeyPatch):
    """Whoever reads it waits here for the loop, which would stand still otherwise."""
    turns: list[bool] = []
    turn = threading.Event()

    def wait(content: Any, real: Any) -> Any:
        turns.append(turn.wait(5))
        turn.clear()
        return real(content)

    real_parse = questions.parse_json
    monkeypatch.setattr(questions, "parse_json", lambda content: wait(content, real_parse))
    real_decode = questions.from_base64
    monkeypatch.setattr(questions, "from_base64", lambda text: wait(text, real_decode))

    async def ask() -> dict[str, Any]:
        async def others() -> None:
            while True:
                turn.set()
                await asyncio.sleep(0.001)

        running = asyncio.create_task(others())
        error = await failure(app_of(monkeypatch), path, question(path, LARGE_BODY))
        running.cancel()
        return error

    error = asyncio.run(ask())
    assert turns == [True, True]
    assert "this request alone asks for more" in error["message"]  # it was read


def test_a_small_body_needs_no_thread(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise AssertionError("a thread")

    monkeypatch.setattr(asyncio, "to_thread", refuse)
    error = asyncio.run(failure(app_of(monkeypatch), "/v1/ask", question("/v1/ask", 1000)))
    assert "this request alone asks for more" in error["message"]


@pytest.mark.parametrize("tab", ["report", "curves"])
def test_a_file_of_a_run_that_cannot_be_read_is_one_line(
    tab: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "report.html").write_bytes(b"\xff")
    (tmp_path / "metrics.jsonl").touch()

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(ask_routes, "read_json_lines", refuse)
    app = create_app({"model": Engines("model", tmp_path, limits=Limits())}, Metrics(), State())
    error = asyncio.run(failure(app, f"/v1/models/model/{tab}", b"", "GET"))
    assert error["message"].endswith("of model cannot be read") and error["type"] == "api_error"


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 100])
def test_base64_in_pieces_is_what_it_is_at_once(size: int, monkeypatch: pytest.MonkeyPatch):
    content = bytes(range(size))
    text = base64.b64encode(content).decode()
    monkeypatch.setattr(questions, "BASE64_PIECE", 4)
    assert questions.from_base64(text) == content
    for wrong in (text + "=", text[:-1], f"{text}AAAA" if "=" in text else text + "A", text + "é"):
        with pytest.raises(ApiError, match="not base64"):
            questions.from_base64(wrong)


# Who does not read


class Buffer:
    """A transport whose client takes nothing unless told so."""

    def __init__(self) -> None:
        self.size = 0
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.size += len(data)

    def get_write_buffer_size(self) -> int:
        return self.size

    def abort(self) -> None:
        self.aborted = True


@pytest.mark.parametrize(("taken", "aborted"), [(0, True), (99, True), (100, False)])
def test_what_is_written_meanwhile_is_not_what_a_client_has_not_taken(taken: int, aborted: bool):
    """The buffer of a long stream may grow although the client takes what it can."""
    kind = protocol_with(ConnectionLimits(taken=100))
    buffer = Buffer()
    loop = SimpleNamespace(call_soon=lambda flush: flush(), call_later=lambda *arguments: arguments)
    protocol: Any = kind.__new__(kind)
    protocol.loop = loop
    protocol.writer = OneWriteTransport(buffer, loop)  # type: ignore[arg-type]
    protocol.transport = protocol.writer
    protocol.writer.write(b"x" * 1000)
    protocol.writer._flush()
    protocol._start_write_timer()
    _, check, *before = protocol.write_timer
    protocol.writer.write(b"x" * 5000)  # the stream goes on
    protocol.writer._flush()
    buffer.size -= taken
    check(*before)
    assert buffer.aborted == aborted
