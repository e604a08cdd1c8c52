"""Requests that are meant to do harm, against `regard serve` itself."""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import json
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time
import wave
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("httpx")

from regard.serve.safety import HEADERS
from tests.serving import Server, train_captions, train_chat, train_speech

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]
KEY = "a-key-of-more-than-16"
HELLO: dict[str, Any] = {
    "model": "chat",
    "messages": [{"role": "user", "content": "Hello!"}],
    "max_tokens": 1,
}
CHAT = "/v1/chat/completions"
REFUSED = (400, 404, 413, 415, 422)
PATIENCE = 120.0  # seconds; nothing should come near it


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes
    seconds: float

    @property
    def error(self) -> dict[str, Any]:
        assert len(self.body) < 4096
        error = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"] and "\n" not in error["message"]
        return error


class Client:
    """A connection that is opened again whenever the server has closed it."""

    def __init__(self, server: Server):
        self.port = server.port
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        if body is not None and not isinstance(body, bytes | str):
            body = json.dumps(body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        started = time.monotonic()
        if self.connection.sock is not None and _is_closed(self.connection.sock):
            self.connection.close()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.request(method, path, body, named)
        # Whoever sends too slowly what was refused already is cut off; the answer has come before.
        response = self.connection.getresponse()
        content = response.read()
        pairs = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, pairs, content, time.monotonic() - started)

    def get(self, path: str, **headers: str) -> Reply:
        return self.ask("GET", path, **headers)

    def post(self, path: str, body: Any, **headers: str) -> Reply:
        return self.ask("POST", path, body, **headers)


def _is_closed(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        sock.settimeout(PATIENCE)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(tmp_path_factory.mktemp("cache")))
        small = ("train.steps=5", "encoder.width=8")
        return [
            train_chat(tmp_path_factory.mktemp("chat"), "chat", *small),
            train_captions(tmp_path_factory.mktemp("captions")),
            train_speech(tmp_path_factory.mktemp("speech")),
        ]


@pytest.fixture(scope="module")
def server(runs: list[Path]) -> Iterator[Server]:
    server = Server(runs)
    yield server
    assert server.stop() == 0
    assert not [line for line in server.errors if "stopping" not in line]


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    client = Client(server)
    yield client
    assert client.post(CHAT, HELLO).status == 200
    assert server.process.poll() is None
    client.connection.close()


# Bodies


def hello(**fields: str) -> str:
    """A good request with more fields, each of them JSON text."""
    more = "".join(f',"{name}":{text}' for name, text in fields.items())
    return json.dumps(HELLO)[:-1] + more + "}"


def ask(**fields: str) -> str:
    more = "".join(f',"{name}":{text}' for name, text in fields.items())
    return '{"model":"chat","input":"Hello!"' + more + "}"


MANY = 2_000_000
GREEDY = {
    "fields": (CHAT, lambda: json.dumps(HELLO | {f"k{i}": 1 for i in range(MANY // 2)})),
    "numbers for messages": (CHAT, lambda: '{"messages":[' + "1," * MANY + "1]}"),
    "lists for messages": (CHAT, lambda: '{"messages":[' + "[]," * 4 * MANY + "1]}"),
    "messages": (CHAT, lambda: json.dumps(HELLO | {"messages": HELLO["messages"] * 200_000})),
    "parts": (
        CHAT,
        lambda: (
            '{"model":"chat","messages":[{"role":"user","content":['
            + '{"type":"text","text":"a"},' * 200_000
            + "1]}]}"
        ),
    ),
    "options": (CHAT, lambda: hello(regard=json.dumps({f"k{i}": 1 for i in range(MANY // 4)}))),
    "numbers for input": ("/v1/ask", lambda: '{"input":[' + "1," * MANY + "1]}"),
    "prefix": ("/v1/ask", lambda: ask(prefix="[" + "1," * MANY + "1]")),
    "stop": ("/v1/ask", lambda: ask(stop="[" + '"a",' * MANY + '"a"]')),
    "prompts": ("/v1/completions", lambda: '{"prompt":[' + '"a",' * 240_000 + '"a"]}'),
    "one long text": (CHAT, lambda: json.dumps({"messages": "x" * 24_000_000})),
}


@pytest.mark.parametrize("name", GREEDY)
def test_a_greedy_body_costs_little_time_and_memory(
    server: Server, client: Client, name: str
) -> None:
    """Without bounds on the values of a body, some of these took minutes and gigabytes."""
    path, body = GREEDY[name]
    content = body()
    assert len(content) < 25_000_000
    before = processor_seconds(server.process.pid)
    with Watch(server):
        reply = client.post(path, content)
    assert reply.status in (400, 413)
    assert reply.error
    assert processor_seconds(server.process.pid) - before < 20  # whatever else the machine does
    assert peak_megabytes(server.process.pid) < 700


LONG = "x" * 10**7
LONG_PROMPTS = [  # a body of completions has no files, so none is that long
    (CHAT, HELLO | {"messages": [{"role": "user", "content": LONG}]}, 413),
    ("/v1/completions", {"model": "chat", "prompt": LONG}, 413),
    ("/v1/ask", {"model": "chat", "input": LONG}, 413),
]


@pytest.mark.parametrize(("path", "body", "status"), LONG_PROMPTS, ids=lambda part: str(part)[:20])
def test_a_prompt_of_10_megabytes_is_refused(
    client: Client, path: str, body: dict[str, Any], status: int
) -> None:
    """How soon is measured by the long form of this test."""
    codes = {400: "context_length_exceeded", 413: "request_too_large"}
    reply = client.post(path, json.dumps(body))
    assert reply.status == status
    assert reply.error["code"] == codes[status]


@pytest.mark.long
@pytest.mark.parametrize(("path", "body", "status"), LONG_PROMPTS, ids=lambda part: str(part)[:20])
def test_a_prompt_of_10_megabytes_is_refused_within_a_second(
    client: Client, path: str, body: dict[str, Any], status: int
) -> None:
    content = json.dumps(body)
    replies = [client.post(path, content) for _ in range(5)]
    assert {reply.status for reply in replies} == {status}
    assert min(reply.seconds for reply in replies) < 1.0  # other work may hold one up


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """200 MB of JSON, in less than one."""
    pack = zlib.compressobj(1, wbits=31)
    parts = [pack.compress(b'{"input": "')]
    parts += [pack.compress(b"x" * 1_000_000) for _ in range(200)]
    parts += [pack.compress(b'"}'), pack.flush()]
    return b"".join(parts)


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "deflate", "br", "identity, gzip"])
def test_a_compressed_body_is_refused_unopened(
    server: Server, client: Client, bomb: bytes, encoding: str
) -> None:
    """415, not 413: its size is nobody's concern, because it is never unpacked. Accept-Encoding
    says what to send instead, as RFC 9110 (15.5.16) asks for."""
    assert len(bomb) < 1_000_000
    for path in (CHAT, "/v1/completions", "/v1/ask", "/v1/audio/transcriptions"):
        reply = client.post(path, bomb, Content_Encoding=encoding)
        assert reply.status == 415
        assert reply.error["code"] == "unsupported_encoding"
        assert reply.headers["accept-encoding"] == "identity"
    assert peak_megabytes(server.process.pid) < 700


class Watch:
    """Asks for /health while something else goes on; `worst` is the longest wait."""

    def __init__(self, server: Server):
        self.worst = 0.0
        self._client = Client(server)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._ended.is_set():
            started = time.monotonic()
            try:
                assert self._client.get("/health").status == 200
            except (OSError, http.client.HTTPException):  # an idle connection that was just closed
                self._client.connection.close()
            self.worst = max(self.worst, time.monotonic() - started)
            time.sleep(0.02)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._client.connection.close()


def processor_seconds(pid: int) -> float:
    """What a process has computed so far, which does not grow while others do."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def peak_megabytes(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


@pytest.mark.parametrize(
    "character", ["x", "😀", "\0", '"', "\\", "\u202e"], ids=lambda text: ascii(text)
)
def test_errors_that_quote_the_request_stay_small(client: Client, character: str) -> None:
    long = character * 50_000
    bodies = [
        HELLO | {long: 1},
        HELLO | {"model": long},
        HELLO | {"regard": {long: 1}},
        HELLO | {"regard": {"num_beams": long}},
        HELLO | {"stop": long},
        HELLO | {"temperature": long},
        HELLO | {"messages": [{"role": long, "content": "a"}]},
        HELLO | {"messages": [{"role": "user", "content": [{"type": long}]}]},
        HELLO | {"messages": [{"role": "user", "content": [{"type": "text", "text": 1, long: 1}]}]},
        HELLO | {"stream_options": {long: 1}},
    ]
    for body in bodies:
        reply = client.post(CHAT, body)
        assert reply.status in REFUSED
        assert reply.error
    reply = client.post("/v1/ask", {"model": "captions", "input": {"picture": long}})
    assert reply.status == 400 and reply.error


BAD_TEXT = {
    "empty": b"",
    "not UTF-8": b'{"model":"\xff"}',
    "UTF-16": '{"model":"chat"}'.encode("utf-16"),
    "BOM": b"\xef\xbb\xbf{}",
    "NaN": hello(temperature="NaN"),
    "infinity": hello(temperature="1e999"),
    "minus infinity in options": hello(regard='{"temperature":-1e999}'),
    "10,000 digits": hello(seed="9" * 10_000),
    "40 digits": hello(max_tokens="9" * 40),
    "deep": "[" * 500_000,
    "deep object": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "deep options": hello(regard='{"num_beams":' + "[" * 900 + "]" * 900 + "}"),
    "half a character": hello(user=r'"\ud800"'),
    "half a character in a name": '{"\\udfff":1}',
    "half a character in options": hello(regard=r'{"\ud800":1}'),
    "half a character in the text": json.dumps(HELLO).replace("Hello", r"\ud800"),
    "a list": "[]",
    "a form": "model=chat&messages=hello",
    "cut": json.dumps(HELLO)[:-5],
    "twice": json.dumps(HELLO) * 2,
}


@pytest.mark.parametrize("name", BAD_TEXT)
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/ask"])
def test_what_is_not_a_body_is_a_bad_request(client: Client, name: str, path: str) -> None:
    reply = client.post(path, BAD_TEXT[name])
    assert reply.status == 400
    assert reply.error["type"] == "invalid_request_error"


def test_a_body_of_200_megabytes_is_refused_before_it_comes(server: Server) -> None:
    with closing(socket.create_connection(("127.0.0.1", server.port), PATIENCE)) as raw:
        raw.sendall(
            b"POST /v1/ask HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000000\r\n\r\n"
        )
        assert raw.recv(65_536).startswith(b"HTTP/1.1 413 ")


# Names and addresses


@pytest.mark.parametrize(
    "path",
    [
        "/page/../app.py",
        "/page/../../errors.py",
        "/page/%2e%2e/app.py",
        "/page/..%2fapp.py",
        "/page/..%252fapp.py",
        "/page/%2fetc%2fpasswd",
        "/page//etc/passwd",
        "/page/index.html%00.js",
        "/page/.",
        "/page/__init__.py",
        "/page/index.html/",
        "/v1/models/..%2f..%2fetc/report",
        "/v1/models/%2e%2e/curves",
        "/v1/models/chat%2f..%2fchat/report",
        "/v1/lab/..%2f..%2fcli",
        "/v1/lab/%2e%2e",
        "/etc/passwd",
        "/../../../../etc/passwd",
        "http://localhost/etc/passwd",
    ],
)
def test_no_file_outside_the_page_is_served(client: Client, path: str) -> None:
    reply = client.get(path)
    assert reply.status == 404
    assert reply.error["type"] == "not_found_error"


def test_every_answer_has_the_security_headers(client: Client) -> None:
    replies = [client.get(path) for path in ("/", "/health", "/v1/models", "/none", "/docs")]
    replies += [client.post(CHAT, HELLO), client.post(CHAT, {}), client.get("/", Host="evil")]
    for reply in replies:
        own = {"cache-control"} if reply.headers["cache-control"] == "no-cache" else set()
        assert {name for name in HEADERS if reply.headers.get(name) != HEADERS[name]} == own
        assert "server" not in reply.headers


def test_names_and_origins_of_others_are_refused(client: Client) -> None:
    for path in ("/", "/v1/models", "/health"):
        assert client.get(path, Host="evil.example").status == 403
        assert client.get(path, Origin="http://evil.example").status == 403
    assert client.post(CHAT, HELLO, Origin="null").status == 403
    own = f"http://127.0.0.1:{client.port}"
    assert client.post(CHAT, HELLO, Origin=own).status == 200


def test_nothing_is_fetched_from_an_address(client: Client) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
        for url in (
            f"http://127.0.0.1:{port}/x.png",
            f"//127.0.0.1:{port}/x",
            "file:///etc/passwd",
        ):
            image = {"type": "image_url", "image_url": {"url": url}}
            body = {"model": "captions", "messages": [{"role": "user", "content": [image]}]}
            assert client.post(CHAT, body).status == 400
            for model, field in (("captions", "picture"), ("speech", "sound")):
                reply = client.post("/v1/ask", {"model": model, "input": {field: url}})
                assert reply.status == 400
                assert "data URI" in reply.error["message"]
        listener.settimeout(0.2)
        with pytest.raises(TimeoutError):  # every answer has come: nothing is still to be fetched
            listener.accept()


@pytest.mark.parametrize("source", ["file", "environment"])
def test_the_key_is_needed_and_is_nowhere_to_be_read(
    runs: list[Path], tmp_path: Path, source: str
) -> None:
    (tmp_path / "key").write_text(KEY + "\n")
    arguments = ["--key-file", str(tmp_path / "key")] if source == "file" else []
    environment = {"REGARD_KEY": KEY} if source == "environment" else {}
    server = Server(runs[:1], *arguments, environment=environment)
    try:
        client = Client(server)
        assert client.get("/").status == client.get("/health").status == 200
        for path in ("/v1/models", "/metrics", "/v1/nothing"):
            assert client.get(path).status == 401
            assert client.get(path, Authorization="Bearer wrong").status == 401
        assert client.post(CHAT, HELLO).error["code"] == "invalid_api_key"
        assert client.post(CHAT, HELLO, Authorization=f"Bearer {KEY}").status == 200
        for pid in (server.process.pid, *server.engine_pids()):
            assert KEY not in Path(f"/proc/{pid}/cmdline").read_text()
        for pid in server.engine_pids():
            assert KEY not in Path(f"/proc/{pid}/environ").read_text()
        client.connection.close()
    finally:
        assert server.stop() == 0
    assert KEY not in "".join(server.errors)


# Pictures and sounds


def png(width: int, height: int, rows: bytes) -> bytes:
    """A grey picture with one bit a pixel."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows, 9)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def wav(seconds: float, rate: int = 8000, channels: int = 1) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(channels)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(b"\1\2" * channels * int(seconds * rate))
    return file.getvalue()


SIDE = 30_000
BAD_PICTURES = {
    "a bomb": lambda: png(SIDE, SIDE, bytes((SIDE // 8 + 1) * SIDE)),
    "no pixels": lambda: png(0, 0, b""),
    "cut": lambda: png(64, 64, random.Random(7).randbytes(9 * 64))[:300],
    "words": lambda: b"hello",
    "script": lambda: b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>",
    "PostScript": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n",
    "24 MB of nothing": lambda: bytes(17_000_000),
}
BAD_SOUNDS = {
    "words": lambda: b"hello",
    "no samples": lambda: wav(0),
    "an hour": lambda: wav(1500),
    "100 channels": lambda: wav(0.1, channels=100),
    "10^9 a second": lambda: wav(0, rate=10**9),
    "a length that lies": lambda: wav(0.5)[:40] + b"\xff\xff\xff\x7f" + wav(0.5)[44:],
    "cut": lambda: wav(0.5)[:30],
}


def data_uri(content: bytes) -> str:
    return "data:application/octet-stream;base64," + base64.b64encode(content).decode()


@pytest.mark.parametrize("name", BAD_PICTURES)
def test_bad_pictures(server: Server, client: Client, name: str) -> None:
    picture = data_uri(BAD_PICTURES[name]())
    replies = [
        client.post("/v1/ask", {"model": "captions", "input": {"picture": picture}}),
        client.post(
            CHAT,
            {
                "model": "captions",
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": picture}}],
                    }
                ],
            },
        ),
    ]
    for reply in replies:
        assert reply.status == 400
        assert " at 0x" not in reply.error["message"]
    assert max(map(peak_megabytes, server.engine_pids())) < 2500


@pytest.mark.parametrize("name", BAD_SOUNDS)
def test_bad_sounds(server: Server, client: Client, name: str) -> None:
    content = BAD_SOUNDS[name]()
    assert len(content) < 25_000_000
    form = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nspeech\r\n'
    form += b'--x\r\nContent-Disposition: form-data; name="file"; filename="../../a.wav"\r\n\r\n'
    form += content + b"\r\n--x--\r\n"
    kind = {"Content_Type": "multipart/form-data; boundary=x"}
    replies = [client.post("/v1/audio/transcriptions", form, **kind)]
    if len(content) < 18_000_000:
        sound = data_uri(content)
        replies.append(client.post("/v1/ask", {"model": "speech", "input": {"sound": sound}}))
    for reply in replies:
        assert reply.status in (400, 413)
        assert " at 0x" not in reply.error["message"]
    assert max(map(peak_megabytes, server.engine_pids())) < 2500


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data", b"--x--"),
        ("multipart/form-data; boundary=", b"--x--"),
        ("multipart/form-data; boundary=x", b""),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\n\r\n--x--"),
        ("multipart/form-data; boundary=x", b"--x\r\nContent-Disposition: form-data\r\n\r\n1"),
        ("multipart/form-data; boundary=x", b'--x\r\nX: y\r\n\r\n1\r\n--x--\r\n' * 100),
        ("multipart/form-data; boundary=x", b"--x\r\n" + b"a" * 900_000),
        ("multipart/form-data; boundary=x",
         b'--x\r\nContent-Disposition: form-data; name="f"\r\n\r\n1\r\n' * 1000 + b"--x--\r\n"),
        ("multipart/form-data; boundary=x",
         b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\n' + b"1" * 900_000),
        ("multipart/form-data; boundary=" + "y" * 5000, b"--x--"),
        ("application/x-www-form-urlencoded", b"model=speech&file=x"),
        ("application/x-www-form-urlencoded", b"a=b&" * 200_000),
        ("application/json", b'{"model":"speech"}'),
        ("\xff", b"x"),
    ],
)  # fmt: skip
def test_forms_that_are_none(client: Client, kind: str, body: bytes) -> None:
    reply = client.post("/v1/audio/transcriptions", body, Content_Type=kind)
    assert reply.status in (400, 413)
    assert reply.error


# Random bodies

SEEDS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, HELLO | {"temperature": 0.5, "top_p": 0.9, "seed": 3, "n": 2, "stop": ["a", "b"]}),
    (CHAT, HELLO | {"logprobs": True, "top_logprobs": 2, "regard": {"num_beams": 2}}),
    (CHAT, HELLO | {"stream": True, "stream_options": {"include_usage": True}}),
    ("/v1/completions", {"model": "chat", "prompt": ["Hello!", "Who?"], "max_tokens": 1}),
    (
        "/v1/ask",
        {
            "model": "chat",
            "input": "Hello!",
            "options": {"max_new_tokens": 1, "num_beams": 1},
            "attention": True,
            "alternatives": 3,
            "prefix": [20],
            "greedy": True,
        },
    ),
    ("/v1/ask", {"model": "captions", "input": {"picture": data_uri(png(4, 4, bytes(8)))}}),
]
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 2**64, 10**400, 0.5, -0.0, 1e308, "", "\0",
    "\u202e", "😀" * 100, "null", "chat", [], [[]], [None], {}, {"": {}}, {"a": [1, {"b": None}]},
    ["a"] * 50, "x" * 5000, {"picture": "data:,"}, {"sound": "data:audio/wav;base64,"},
]  # fmt: skip


def random_body(draw: random.Random) -> tuple[str, bytes]:
    """A good request with something wrong, or something else altogether."""
    path, good = draw.choice(SEEDS)
    way = draw.randrange(6)
    if way == 0:
        return path, draw.randbytes(draw.randrange(200))
    body = json.loads(json.dumps(good))
    if way <= 3:
        for _ in range(draw.randrange(1, 4)):
            _spoil(draw, body)
        return path, json.dumps(body).encode()
    content = bytearray(json.dumps(body, ensure_ascii=draw.random() < 0.5).encode())
    for _ in range(draw.randrange(1, 6)):
        place = draw.randrange(len(content))
        if way == 4:
            content[place] = draw.randrange(256)
        else:
            del content[place : place + draw.randrange(1, 20)]
            content[place:place] = draw.choice([b"", b'"', b"}", b"[", b"\\u", b"\xff", b"1e9"])
        if not content:
            break
    return path, bytes(content)


def _spoil(draw: random.Random, body: Any) -> None:
    """Put an odd value, or an odd name, anywhere in a body."""
    while isinstance(body, dict | list) and body:
        key = draw.choice(list(body)) if isinstance(body, dict) else draw.randrange(len(body))
        inner = body[key]
        if isinstance(inner, dict | list) and inner and draw.random() < 0.6:
            body = inner
            continue
        if isinstance(body, dict) and draw.random() < 0.2:
            body[draw.choice(["", "x", "num_beams", "n", "stream", "model", "😀"])] = inner
        body[key] = deepcopy(draw.choice(ODD))
        return


def post_random_bodies(client: Client, count: int, seed: int) -> Counter[int]:
    draw = random.Random(seed)
    statuses: Counter[int] = Counter()
    for number in range(count):
        path, body = random_body(draw)
        reply = client.post(path, body)
        statuses[reply.status] += 1
        context = f"number {number} of seed {seed}: {path} {body[:500]!r} {reply.body[:500]!r}"
        assert reply.status == 200 or reply.status in REFUSED, context
        if reply.status != 200:
            assert len(reply.body) < 4096 and reply.error, context
        elif reply.headers["content-type"].startswith("text/event-stream"):
            assert reply.body.endswith(b"data: [DONE]\n\n"), context
        else:
            json.loads(reply.body)
    return statuses


def test_random_bodies(client: Client) -> None:
    statuses = post_random_bodies(client, 2000, seed=7)
    assert statuses[400] > 500 and statuses[200] > 20  # it is not all refused for one reason


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_random_bodies(server: Server, client: Client) -> None:
    post_random_bodies(client, 5000, seed=11)
    before = resident_megabytes(server.process.pid)
    post_random_bodies(client, 95_000, seed=13)
    assert resident_megabytes(server.process.pid) < before + 100


def resident_megabytes(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_requests_made_from_the_schema(server: Server, client: Client, tmp_path: Path) -> None:
    pytest.importorskip("schemathesis")
    command = [
        *(sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()"),
        *("run", f"{server.url}/openapi.json", "--checks", "not_a_server_error"),
        *("--max-examples", "100", "--seed", "7", "--no-color", "--request-timeout", "60"),
    ]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-2000:]
    assert "POST /v1/chat/completions" in client.get("/docs").body.decode()


# Slow clients, with the limits that are the server's own


@pytest.mark.long
def test_slow_clients_are_closed_in_time(server: Server) -> None:
    """Silent and dripping in the headers: 10 s. Dripping in the body: 30 s."""
    head = b"POST /v1/ask HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n"
    port = server.port
    seconds: dict[str, list[float]] = {"silent": [], "headers": [], "body": []}

    def drip(name: str, first: bytes, then: bytes) -> None:
        with closing(socket.create_connection(("127.0.0.1", port))) as raw:
            raw.settimeout(0.5)
            started = time.monotonic()
            raw.sendall(first)
            try:
                while time.monotonic() - started < 60:
                    try:
                        if not raw.recv(65_536):
                            break
                    except TimeoutError:
                        raw.sendall(then)
            except OSError:
                pass
            seconds[name].append(time.monotonic() - started)

    cases = {"silent": (b"", b""), "headers": (head, b"x"), "body": (head + b"\r\n", b"x")}
    threads = [
        threading.Thread(target=drip, args=(name, *parts))
        for name, parts in cases.items()
        for _ in range(20)
    ]
    with Watch(server) as watch:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert watch.worst < 5
    for name, least, most in (("silent", 9, 20), ("headers", 9, 20), ("body", 29, 40)):
        assert least < min(seconds[name]) and max(seconds[name]) < most, name
