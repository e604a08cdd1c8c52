"""Clients that are silent, slow, greedy or lie, against a real server on loopback.

Tests of what a limit ends have a server with SHORT limits, and wait for them. The others have one
with the limits of every server, so that a busy machine does not meet them; and where a client has
to be faster than a limit, the limit grows until it is (`in_time`).
"""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

uvicorn = pytest.importorskip("uvicorn")

from regard.serve.http_protocol import ConnectionLimits, uvicorn_settings  # noqa: E402
from regard.serve.safety import HEADERS, allowed_hosts, protect  # noqa: E402

KEY = "a-key-of-more-than-16"
SHORT = ConnectionLimits(
    headers=0.6, body=0.8, writing=0.8, rest_seconds=0.5, rest_bytes=4_000_000, idle=1
)
PATIENCE = 60.0  # seconds until a test gives up; nothing should come near it
PIECE = b"x" * 65_536
LARGE = 5_000_000


class Recorder:
    """An app that notes what reached it. /endless never stops writing, /two waits in between, and
    /sixty and /large have 60 KB and more at once."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.disconnected = threading.Event()
        self.reset()

    def reset(self) -> None:
        self.paths: list[str] = []
        self.sizes: list[int] = []
        self.go_on.clear()
        self.disconnected.clear()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._lifespan(receive, send)
            return
        self.paths.append(scope["path"])
        size = 0
        more = True
        while more:
            message = await receive()
            size += len(message.get("body", b""))
            more = message.get("more_body", False)
        self.sizes.append(size)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/endless":
            await self._endless(receive, send)
        elif scope["path"] == "/sixty":
            await send({"type": "http.response.body", "body": b"x" * 60_000, "more_body": True})
        elif scope["path"] == "/large":
            await send({"type": "http.response.body", "body": b"x" * LARGE, "more_body": True})
        elif scope["path"] == "/two":
            await send({"type": "http.response.body", "body": b"first", "more_body": True})
            while not self.go_on.is_set():
                await asyncio.sleep(0.01)
        await send({"type": "http.response.body", "body": b"last"})

    async def _lifespan(self, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _endless(self, receive: Any, send: Any) -> None:
        gone = asyncio.ensure_future(receive())
        while not gone.done():
            await send({"type": "http.response.body", "body": PIECE, "more_body": True})
            await asyncio.sleep(0)
        self.disconnected.set()


@dataclass
class Serving:
    port: int
    app: Recorder
    server: Any
    thread: threading.Thread

    def connect(self, buffer: int = 0) -> socket.socket:
        client = socket.socket()
        if buffer:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        client.settimeout(PATIENCE)
        client.connect(("127.0.0.1", self.port))
        return client

    def get(self, path: str = "/", **headers: str) -> Answer:
        return self.send(request("GET", path, **headers))

    def send(self, content: bytes) -> Answer:
        with closing(self.connect()) as client:
            client.sendall(content)
            return read_answer(client)

    def open_connections(self) -> int:
        return len(self.server.server_state.connections)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        assert self.headers["content-type"] == "application/json"
        assert len(self.body) < 4096
        assert {name: self.headers.get(name) for name in HEADERS} == HEADERS
        return json.loads(self.body)["error"]


@contextmanager
def serving(
    limits: ConnectionLimits = SHORT, key: str | None = None, buffer: int = 0
) -> Iterator[Serving]:
    """A server. `buffer`: bytes that the system holds back for a client that does not read."""
    app = Recorder()
    config = uvicorn.Config(
        protect(app, hosts=allowed_hosts(), key=key),
        log_config=None,
        timeout_graceful_shutdown=1,
        **uvicorn_settings(limits),
    )
    server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    if buffer:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield Serving(listener.getsockname()[1], app, server, thread)
    finally:
        app.go_on.set()
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the server does not end"


@pytest.fixture(scope="module")
def running_short() -> Iterator[Serving]:
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def running() -> Iterator[Serving]:
    with serving(ConnectionLimits()) as server:
        yield server


@contextmanager
def as_if_new(running: Serving) -> Iterator[Serving]:
    """The same server for many tests."""
    yield running
    running.app.go_on.set()
    wait_until(lambda: running.open_connections() == 0, "a connection is left over")
    running.app.reset()


@pytest.fixture
def short(running_short: Serving) -> Iterator[Serving]:
    with as_if_new(running_short) as server:
        yield server


@pytest.fixture
def server(running: Serving) -> Iterator[Serving]:
    with as_if_new(running) as server:
        yield server


def in_time(client_in_time: Callable[[float], None]) -> None:
    """A client that has to be faster than a limit, which is that many seconds. On a busy machine it
    may come too late; then it is tried again with a longer limit."""
    for seconds in (0.5, 2.0, 8.0):
        try:
            client_in_time(seconds)
            return
        except (AssertionError, OSError):
            if seconds == 8.0:
                raise


def wait_until(condition: Callable[[], bool], what: str = "nothing happened") -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def request(method: str, path: str, body: bytes = b"", /, **headers: str) -> bytes:
    own = {"Host": "localhost"}
    if body:
        own["Content-Length"] = str(len(body))
    own |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in own.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def read_answer(client: socket.socket) -> Answer:
    """One answer; the connection may stay open after it."""
    content = b""
    while b"\r\n\r\n" not in content:
        piece = client.recv(65_536)
        assert piece, f"closed before an answer: {content!r}"
        content += piece
    head, _, body = content.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    pairs = [line.split(": ", 1) for line in lines]
    headers = {name.lower(): value for name, value in pairs}
    length = int(headers.get("content-length", 0))
    chunked = headers.get("transfer-encoding") == "chunked"
    while len(body) < length or (chunked and not body.endswith(b"0\r\n\r\n")):
        piece = client.recv(65_536)
        assert piece, "closed within an answer"
        body += piece
    return Answer(int(first.split()[1]), headers, body)


def rest_of(client: socket.socket) -> bytes:
    """All that comes until the server closes."""
    content = b""
    try:
        while piece := client.recv(65_536):
            content += piece
    except ConnectionResetError:
        pass
    return content


def drip(client: socket.socket, content: bytes, seconds: float = 0.05) -> bytes:
    """Send byte by byte until the server closes; return what it says."""
    client.settimeout(seconds)
    said = b""
    try:
        for number in range(len(content)):
            client.sendall(content[number : number + 1])
            try:
                piece = client.recv(65_536)
            except TimeoutError:
                continue
            if not piece:
                return said
            said += piece
    except (ConnectionResetError, BrokenPipeError):
        return said
    pytest.fail("the server took every byte")


def taken_of(client: socket.socket, piece: bytes, size: int) -> int:
    """Bytes that the server, and the buffers on the way, take of a body until it closes."""
    for taken in range(0, size, len(piece)):
        try:
            client.sendall(piece)
        except (ConnectionResetError, BrokenPipeError):
            return taken
    return size


# Slow clients


def test_the_limits_are_those_of_the_documentation() -> None:
    limits = ConnectionLimits()
    assert (limits.headers, limits.body, limits.writing) == (10.0, 30.0, 30.0)


def test_a_silent_client_is_closed_and_others_are_answered(short: Serving) -> None:
    silent = [short.connect() for _ in range(50)]
    started = time.monotonic()
    assert short.get("/").status == 200
    assert rest_of(silent[0]).startswith(b"HTTP/1.1 408 ")
    assert time.monotonic() - started >= 0.3
    wait_until(lambda: short.open_connections() == 0, "silent connections are kept")
    for client in silent:
        client.close()


def test_bytes_do_not_extend_the_time_of_headers(short: Serving) -> None:
    with closing(short.connect()) as client:
        said = drip(client, request("GET", "/", X_Padding="x" * 10_000))
    assert said.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert b"the headers of the request took too long" in said
    assert short.app.paths == []


def test_the_time_of_headers_counts_for_the_next_request_too(short: Serving) -> None:
    with closing(short.connect()) as client:
        client.sendall(request("GET", "/"))
        assert read_answer(client).status == 200
        time.sleep(0.1)
        said = drip(client, request("GET", "/again", X_Padding="x" * 10_000))
    assert said.startswith(b"HTTP/1.1 408 ")
    assert short.app.paths == ["/"]


def test_bytes_do_not_extend_the_time_of_a_body(short: Serving) -> None:
    with closing(short.connect()) as client:
        client.sendall(request("POST", "/v1/ask", Content_Length="10000"))
        said = drip(client, b"x" * 10_000)
    assert b"the body of the request took too long" in said
    assert short.app.paths == []


def test_chunks_do_not_extend_the_time_of_a_body(short: Serving) -> None:
    with closing(short.connect()) as client:
        client.sendall(request("POST", "/v1/ask", Transfer_Encoding="chunked"))
        said = drip(client, b"1\r\nx\r\n" * 1000)
    assert b"the body of the request took too long" in said
    assert short.app.paths == []


def test_a_head_request_with_a_slow_body_ends_cleanly(
    short: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(short.connect()) as client:
        client.sendall(request("HEAD", "/", Content_Length="100"))
        assert rest_of(client).startswith(b"HTTP/1.1 408 ")
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_slow_body_that_is_in_time_is_answered() -> None:
    def client_in_time(limit: float) -> None:
        with serving(replace(SHORT, body=limit)) as server, closing(server.connect()) as client:
            client.sendall(request("POST", "/v1/ask", Content_Length="4"))
            for _ in range(4):
                time.sleep(limit / 16)
                client.sendall(b"x")
            assert read_answer(client).status == 200
            assert server.app.sizes == [4]

    in_time(client_in_time)


def test_a_client_that_does_not_read_is_cut_off(short: Serving) -> None:
    with closing(short.connect()) as client:
        client.sendall(request("GET", "/endless"))
        assert short.app.disconnected.wait(PATIENCE), "it writes to nobody, for ever"
        wait_until(lambda: short.open_connections() == 0)
    assert short.get("/").status == 200


def test_an_answer_that_is_complete_but_not_taken_is_dropped() -> None:
    """The app is done, and only the connection remains: with few bytes left it must end as well."""
    limits = replace(SHORT, idle=60)
    with serving(limits, buffer=2048) as server, closing(server.connect(2048)) as client:
        client.sendall(request("GET", "/sixty"))
        wait_until(lambda: server.app.paths == ["/sixty"])
        wait_until(lambda: server.open_connections() == 0, "kept for a client that does not read")


def test_a_client_that_reads_slowly_keeps_its_answer() -> None:
    """One piece of an answer takes several times the limit, but some of it is always taken."""

    def client_in_time(limit: float) -> None:
        limits = replace(SHORT, writing=limit, taken=1000)
        with serving(limits, buffer=65_536) as server, closing(server.connect(65_536)) as client:
            client.sendall(request("GET", "/large"))
            total = 0
            started = time.monotonic()
            while total < LARGE:
                piece = client.recv(100_000)
                assert piece, "cut off"
                total += len(piece)
                time.sleep(limit / 20)
            assert time.monotonic() - started > 2 * limit

    in_time(client_in_time)


def test_no_part_of_an_answer_waits_for_the_one_before(server: Serving) -> None:
    with closing(server.connect()) as client:
        client.sendall(request("GET", "/two"))
        wait_until(lambda: server.app.paths == ["/two"])
        (connection,) = server.server.server_state.connections
        raw = connection.transport.get_extra_info("socket")
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_server_ends_although_a_client_does_not_read() -> None:
    with serving(replace(SHORT, writing=1.0)) as server:
        client = server.connect()
        client.sendall(request("GET", "/endless"))
        wait_until(lambda: server.app.paths == ["/endless"])
    client.close()


def test_streams_are_not_held_up(server: Serving) -> None:
    with closing(server.connect()) as client:
        client.sendall(request("GET", "/two"))
        content = b""
        while b"first" not in content:
            content += client.recv(65_536)
        assert b"last" not in content
        server.app.go_on.set()
        while b"last" not in content:
            content += client.recv(65_536)


def test_an_answer_may_take_longer_than_any_limit(short: Serving) -> None:
    with closing(short.connect()) as client:
        client.sendall(request("GET", "/two"))
        time.sleep(1.5)
        short.app.go_on.set()
        assert b"last" in read_answer(client).body


def test_a_connection_that_is_kept_idle_is_closed(short: Serving) -> None:
    with closing(short.connect()) as client:
        client.sendall(request("GET", "/"))
        assert read_answer(client).status == 200
        assert rest_of(client) == b""


def test_requests_one_after_another_on_one_connection() -> None:
    """Together they take longer than a connection may be idle, and than headers may take."""

    def client_in_time(limit: float) -> None:
        limits = replace(SHORT, headers=2 * limit, body=2 * limit, idle=math.ceil(limit))
        with serving(limits) as server, closing(server.connect()) as client:
            for _ in range(5):
                client.sendall(request("POST", "/v1/ask", b"hello"))
                assert read_answer(client).status == 200
                time.sleep(math.ceil(limit) / 4)
            assert server.app.sizes == [5] * 5

    in_time(client_in_time)


def test_requests_sent_ahead_are_all_answered(short: Serving) -> None:
    with closing(short.connect()) as client:
        client.sendall(request("GET", "/1") + request("POST", "/2", b"body") + b"GET /3 HT")
        content = b""
        while content.count(b"HTTP/1.1 200") < 2:
            content += client.recv(65_536)
        assert b"HTTP/1.1 408" in rest_of(client)
    assert short.app.paths == ["/1", "/2"]


# Large and false bodies


def test_200_megabytes_are_refused_and_not_read(server: Serving) -> None:
    """They are not even sent: a server that waited for them would not answer."""
    with closing(server.connect()) as client:
        client.sendall(request("POST", "/v1/ask", Content_Length="200000000"))
        answer = read_answer(client)
    assert answer.status == 413
    assert "25,000,000 bytes" in answer.error["message"]
    assert server.app.paths == []


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_a_client_that_sends_200_megabytes_regardless_is_cut_off(
    short: Serving, framing: str
) -> None:
    headers = {"Content_Length": "200000000"}
    piece = PIECE
    if framing == "chunked":
        headers = {"Transfer_Encoding": "chunked"}
        piece = b"%x\r\n%s\r\n" % (len(PIECE), PIECE)
    with closing(short.connect()) as client:
        client.sendall(request("POST", "/v1/completions", **headers))
        assert taken_of(client, piece, 200_000_000) < 100_000_000
        assert read_answer(client).status == 413  # what came before the end can still be read
    assert short.app.paths == []


def test_a_refused_body_that_never_ends_is_cut_off(short: Serving) -> None:
    with closing(short.connect()) as client:
        client.sendall(request("POST", "/v1/ask", Content_Length="200000000"))
        assert read_answer(client).status == 413
        drip(client, b"x" * 10_000)


def test_a_body_is_refused_and_the_connection_stays(server: Serving) -> None:
    """The rest of a body that is a little too large is dropped; the next request is answered."""
    with closing(server.connect()) as client:
        client.sendall(request("POST", "/v1/completions", Content_Length="1000003"))
        assert read_answer(client).status == 413
        client.sendall(b"x" * 1_000_003 + request("GET", "/next"))
        assert read_answer(client).status == 200
    assert server.app.paths == ["/next"]


def test_nothing_after_a_refused_body_is_closed(short: Serving) -> None:
    with closing(short.connect()) as client:
        client.sendall(request("POST", "/v1/completions", Content_Length="1000003"))
        assert read_answer(client).status == 413
        client.sendall(b"x" * 1_000_003)
        assert b"408" in rest_of(client)


def test_a_body_shorter_than_announced_never_reaches_the_app(short: Serving) -> None:
    with closing(short.connect()) as client:
        client.sendall(request("POST", "/v1/ask", Content_Length="10") + b"short")
        assert b"the body of the request took too long" in rest_of(client)
    with closing(short.connect()) as client:
        client.sendall(request("POST", "/v1/ask", Content_Length="10") + b"short")
    wait_until(lambda: short.open_connections() == 0)
    assert short.app.paths == []


def test_a_body_longer_than_announced_is_cut_where_it_was_announced(server: Serving) -> None:
    with closing(server.connect()) as client:
        client.sendall(request("POST", "/v1/ask", Content_Length="3") + b"onetwo and more\r\n\r\n")
        answers = rest_of(client)
    assert answers.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 400 " in answers and b"not valid HTTP" in answers
    assert server.app.sizes == [3]


def test_two_lengths_are_refused(server: Serving) -> None:
    content = request("POST", "/v1/ask", Content_Length="3", Transfer_Encoding="chunked")
    assert server.send(content + b"0\r\n\r\n").status == 400
    content = request("POST", "/v1/ask", b"three", content_length="7")
    assert server.send(content).status == 400
    assert server.app.paths == []


def test_a_gzip_bomb_is_refused_unopened(server: Serving) -> None:
    bomb = gzip.compress(b"\0" * 20_000_000)
    answer = server.send(request("POST", "/v1/ask", bomb, Content_Encoding="gzip"))
    assert answer.status == 415
    assert answer.error["code"] == "unsupported_encoding"
    assert server.app.paths == []


def test_a_client_that_asks_first_is_refused_before_it_sends(server: Serving) -> None:
    with closing(server.connect()) as client:
        headers = {"Content_Length": "200000000", "Expect": "100-continue"}
        client.sendall(request("POST", "/v1/ask", **headers))
        assert read_answer(client).status == 413
    with closing(server.connect()) as client:
        client.sendall(request("POST", "/v1/ask", Content_Length="4", Expect="100-continue"))
        assert client.recv(65_536).startswith(b"HTTP/1.1 100 ")
        client.sendall(b"body")
        assert read_answer(client).status == 200


# Requests that are not HTTP


@pytest.mark.parametrize(
    "content",
    [
        b"\r\n\r\n",
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20,
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /v1/ask HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=[
        "blank lines", "words", "TLS", "no host", "two hosts", "negative length",
        "bytes in the path", "bad chunk",
    ],
)  # fmt: skip
def test_what_is_not_http_is_an_error_of_the_api(
    server: Serving, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    answer = server.send(content)
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"
    assert answer.headers["connection"] == "close"
    assert server.app.paths == []
    assert not caplog.records


@pytest.mark.parametrize(
    "content",
    [
        request("GET", "/", X="x" * 40_000),
        request("GET", "/")[:-2] + b"X: y\r\n" * 10_000 + b"\r\n",
        request("GET", "/" + "x" * 40_000),
        request("GET", "/?" + "x" * 40_000),
        request("GET", "/", X="x" * 1_000_000),
    ],
    ids=["long header", "many headers", "long path", "long query", "longer than a buffer"],
)
def test_long_headers_are_refused(server: Serving, content: bytes) -> None:
    """In one piece, or in several: then it is not known how long they would have become."""
    assert server.send(content).status in (400, 431)
    with closing(server.connect()) as client:
        client.sendall(content[:20])
        time.sleep(0.1)
        client.sendall(content[20:])
        answer = read_answer(client)
    assert answer.status in (400, 431)
    assert answer.error["type"] == "invalid_request_error"
    assert server.app.paths == []


def test_a_bad_chunk_after_the_answer_closes_without_a_second_answer(
    server: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(server.connect()) as client:
        headers = {"Transfer_Encoding": "chunked", "Content_Encoding": "gzip"}
        client.sendall(request("POST", "/v1/ask", **headers))
        assert read_answer(client).status == 415
        client.sendall(b"not a chunk\r\n" * 10)
        assert rest_of(client) == b""
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_web_socket_is_not_opened(server: Serving) -> None:
    answer = server.get("/", Connection="Upgrade", Upgrade="websocket", Sec_WebSocket_Version="13")
    assert answer.status == 200


# Names, origins, keys


def test_foreign_hosts_and_origins_are_refused(server: Serving) -> None:
    assert server.get("/").status == 200
    assert server.get("/", Host="evil.example").error["code"] == "host_not_allowed"
    assert server.get("/", Host=f"evil.example:{server.port}").status == 403
    assert server.get("/", Origin="http://evil.example").error["code"] == "origin_not_allowed"
    assert server.get("/", Origin="http://localhost").status == 200
    assert server.app.paths == ["/", "/"]


def test_wrong_and_missing_keys_are_refused_and_never_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    # A server without a log of requests, as `regard serve` is, turns it off for its process; so may
    # a library that configures all loggers.
    requests_log = logging.getLogger("uvicorn.access")
    monkeypatch.setattr(requests_log, "propagate", False)
    monkeypatch.setattr(requests_log, "handlers", [caplog.handler])
    monkeypatch.setattr(requests_log, "disabled", False)
    caplog.set_level(logging.DEBUG, logger="uvicorn.access")
    with serving(key=KEY) as server:
        wrong = "another-key-of-that-length"
        assert server.get("/v1/models").status == 401
        assert server.get("/metrics").status == 401
        assert server.get("/v1/models", Authorization=f"Bearer {wrong}").status == 401
        assert server.get("/v1/models", Authorization=f"Bearer {KEY}").status == 200
        assert server.get("/").status == 200
        assert server.app.paths == ["/v1/models", "/"]
    assert "/v1/models" in caplog.text  # there is a log of requests
    assert KEY not in caplog.text and wrong not in caplog.text


@pytest.mark.parametrize(
    "path", ["/page/../v1/models", "/page/%2e%2e/v1/models", "/V1/models", "/%76%31/models"]
)
def test_no_way_of_writing_a_path_goes_around_the_key(path: str) -> None:
    """Whatever the app is given without a key, it is not a path that needs one."""
    with serving(key=KEY) as server:
        answer = server.get(path)
        assert answer.status == 401 or server.app.paths[0].startswith("/page/../")


# Many connections


def test_connections_are_bounded_and_come_free_again() -> None:
    with serving(replace(SHORT, connections=20, headers=3.0)) as server:
        clients = [server.connect() for _ in range(20)]
        wait_until(lambda: server.open_connections() == 20)
        with closing(server.connect()) as extra:
            answer = read_answer(extra)
        assert answer.status == 503
        assert answer.error["message"] == "the server has too many connections"
        assert answer.headers["retry-after"] == "5"
        for client in clients:
            client.close()
        wait_until(lambda: server.open_connections() == 0)
        assert server.get("/").status == 200
