"""Layers between the network and the app: what each lets pass, and what it refuses, and how."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from regard.errors import InputError
from regard.serve.safety import (
    DOCUMENT_POLICY,
    HEADERS,
    PIECE,
    BodyLayer,
    KeyLayer,
    allowed_hosts,
    body_limits,
    check_binding,
    choose_key,
    is_loopback,
    is_open,
    key_from,
    protect,
    read_key,
    same_origin,
)

pytest.importorskip("uvicorn")

from regard.serve import http_protocol  # noqa: E402
from regard.serve.http_protocol import ConnectionLimits  # noqa: E402

KEY = "a-key-of-more-than-16"
LOOPBACK = allowed_hosts()


@dataclass
class Reply:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    messages: int = 0

    @property
    def error(self) -> dict[str, Any]:
        content = json.loads(self.body)
        assert set(content) == {"error"}
        assert set(content["error"]) == {"message", "type", "param", "code"}
        assert len(self.body) < 4096
        return content["error"]


class Echo:
    """An app that reads the whole body and answers with what it received."""

    def __init__(self) -> None:
        self.calls = 0
        self.bodies: list[bytes] = []
        self.pieces = 0
        self.after: dict[str, Any] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.calls += 1
        body = b""
        more = True
        while more:
            message = await receive()
            assert message["type"] == "http.request"
            body += message["body"]
            more = message["more_body"]
            self.pieces += 1
        self.bodies.append(body)
        self.after = await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first ", "more_body": True})
        await send({"type": "http.response.body", "body": b"last"})


def call(
    app: Callable[..., Awaitable[None]],
    path: str = "/v1/models",
    *,
    method: str = "GET",
    headers: Iterable[tuple[str, str]] = (("Host", "localhost:8000"),),
    pieces: Iterable[bytes] = (b"",),
    gone: bool = False,
    query: str = "",
) -> Reply:
    """What a client would get. `gone`: it disconnects in the middle of the body."""
    reply = Reply()
    messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    if not gone:
        messages[-1]["more_body"] = False
    waiting = iter([*messages, {"type": "http.disconnect"}])

    async def receive() -> Any:
        return next(waiting)

    async def send(message: Any) -> None:
        reply.messages += 1
        if message["type"] == "http.response.start":
            reply.status = message["status"]
            names = [name for name, _ in message["headers"]]
            assert len(names) == len(set(names))
            reply.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            reply.body += message.get("body", b"")

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode("latin-1"),
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
    }
    asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]
    return reply


def call_with(
    app: Callable[..., Awaitable[None]], *headers: tuple[str, str], **named: Any
) -> Reply:
    return call(app, headers=[("Host", "localhost:8000"), *headers], **named)


# Hosts


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:8000", "[::1]", "[::1]:80"]
)
def test_loopback_names_are_answered_at_any_port(host: str) -> None:
    assert call(protect(Echo(), hosts=LOOPBACK), headers=[("Host", host)]).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "evil.example:8000",
        "localhost@evil.example",
        "localhost:8000@evil",
        "localhost:port",
        "localhost/",
        "localhost ",
        "192.168.1.5",
        "0.0.0.0",
        "[::2]",
        "::1",
        "",
        "lócalhost",
        "x" * 5000,
    ],
)
def test_other_hosts_are_refused_before_the_app_runs(host: str) -> None:
    app = Echo()
    reply = call(protect(app, hosts=LOOPBACK), path="/", headers=[("Host", host)])
    assert reply.status == 403
    assert reply.error["code"] == "host_not_allowed"
    assert app.calls == 0


def test_no_host_and_two_hosts_are_refused() -> None:
    app = protect(Echo(), hosts=LOOPBACK)
    assert call(app, headers=[]).status == 403
    assert call(app, headers=[("Host", "localhost"), ("Host", "localhost")]).status == 403


def test_names_and_the_address_of_the_server_can_be_added() -> None:
    hosts = allowed_hosts("10.0.0.7", ["Models.example", "[fd00::5]"])
    names = ["10.0.0.7", "models.example", "fd00::5", "localhost"]
    assert all(name in hosts for name in names)
    assert "10.0.0.8" not in hosts


def test_a_server_on_every_address_answers_to_addresses_but_not_to_names() -> None:
    hosts = allowed_hosts("0.0.0.0")
    assert "192.168.1.5" in hosts and "fe80::1" in hosts
    assert "evil.example" not in hosts
    assert "1" not in hosts  # a name of one label, not an address


@pytest.mark.parametrize("name", ["http://models.example", "models.example:80", "a b", "", "*"])
def test_what_is_not_a_name_cannot_be_allowed(name: str) -> None:
    with pytest.raises(
        InputError, match="not the name of a host.*without http:// and without port"
    ):
        allowed_hosts(extra=[name])


# Origins


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://localhost:8000", "localhost:8000"),
        ("http://LocalHost:8000", "localhost:8000"),
        ("http://[::1]:8000", "[::1]:8000"),
        ("https://models.example", "models.example"),
        ("https://models.example", "models.example:443"),
        ("http://models.example:80", "models.example"),
    ],
)
def test_the_page_itself_may_ask(origin: str, host: str) -> None:
    assert same_origin(origin, host)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("https://evil.example", "localhost:8000"),
        ("http://localhost:3000", "localhost:8000"),
        ("http://localhost", "localhost:8000"),
        ("http://127.0.0.1:8000", "localhost:8000"),
        ("null", "localhost:8000"),
        ("", "localhost:8000"),
        ("localhost:8000", "localhost:8000"),
        ("file://localhost:8000", "localhost:8000"),
        ("http://localhost:8000/", "localhost:8000"),
        ("http://localhost:8000.evil.example", "localhost:8000"),
        ("http://evil@localhost:8000", "localhost:8000"),
        ("https://models.example:80", "models.example"),
    ],
)
@pytest.mark.parametrize("method", ["POST", "OPTIONS", "GET"])
def test_pages_of_other_origins_are_refused(origin: str, host: str, method: str) -> None:
    app = Echo()
    headers = [("Host", host), ("Origin", origin)]
    hosts = allowed_hosts(extra=["models.example"])
    reply = call(protect(app, hosts=hosts), method=method, headers=headers)
    assert reply.status == 403
    assert reply.error["code"] == "origin_not_allowed"
    assert app.calls == 0
    assert not [name for name in reply.headers if name.startswith("access-control")]


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_pictures_and_scripts_of_other_pages_are_refused_but_links_are_not(site: str) -> None:
    app = protect(Echo(), hosts=LOOPBACK)
    fetch = ("Sec-Fetch-Site", site)
    assert call_with(app, fetch, ("Sec-Fetch-Mode", "no-cors")).status == 403
    assert call_with(app, fetch).status == 403
    link = ("Sec-Fetch-Mode", "navigate")
    assert call_with(app, fetch, link, path="/").status == 200
    assert call_with(app, fetch, link, path="/v1/lab/depth").status == 403


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_what_the_page_fetches_is_not_refused(site: str) -> None:
    app = protect(Echo(), hosts=LOOPBACK)
    fetch = [("Sec-Fetch-Site", site), ("Sec-Fetch-Mode", "cors")]
    assert call_with(app, *fetch).status == 200


# Keys


@pytest.mark.parametrize("value", [f"Bearer {KEY}", f"bearer {KEY}", f"BEARER   {KEY}  "])
def test_the_key_opens(value: str) -> None:
    app = protect(Echo(), hosts=LOOPBACK, key=KEY)
    assert call_with(app, ("Authorization", value)).status == 200


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Bearer",
        "Bearer ",
        f"Basic {KEY}",
        KEY,
        f"Bearer {KEY}x",
        f"Bearer {KEY[:-1]}",
        f"Bearer {KEY.upper()}",
        f"Bearer x {KEY}",
        "Bearer ä" + KEY,
        "Bearer " + "x" * 10_000,
    ],
)
@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/ask", "/metrics", "/v1", "/new", "//v1/models"]
)
def test_nothing_else_opens(value: str, path: str) -> None:
    app = Echo()
    reply = call_with(
        protect(app, hosts=LOOPBACK, key=KEY), ("Authorization", value), path=path, method="POST"
    )
    assert reply.status == 401
    assert reply.error["code"] == "invalid_api_key"
    assert reply.error["message"] == "the key is wrong"
    assert reply.headers["www-authenticate"] == "Bearer"
    assert app.calls == 0


def test_without_a_key_the_error_says_how_to_send_one() -> None:
    reply = call(protect(Echo(), hosts=LOOPBACK, key=KEY))
    assert reply.status == 401
    assert "Authorization: Bearer KEY" in reply.error["message"]


REPORT = "/v1/models/demo/report"


def test_with_the_key_a_document_may_be_shown_in_a_frame_for_a_minute() -> None:
    clock = [1_000_000.0]
    app = KeyLayer(Echo(), KEY, now=lambda: clock[0])
    reply = call_with(app, ("Authorization", f"Bearer {KEY}"), path=REPORT)
    query = reply.headers["x-regard-view"]
    assert KEY not in query
    shown = call(app, path=REPORT, query=query)
    assert shown.status == 200 and "x-regard-view" not in shown.headers  # it does not renew itself
    clock[0] += 61
    assert call(app, path=REPORT, query=query).status == 401


@pytest.mark.parametrize(
    ("path", "method", "change"),
    [
        ("/v1/models/other/report", "GET", ("", "")),
        ("/v1/models", "GET", ("", "")),
        ("/v1/ask", "POST", ("", "")),
        (REPORT, "POST", ("", "")),
        (REPORT, "GET", ("until=", "until=9")),
        (REPORT, "GET", ("signature=", "signature=0")),
        (REPORT, "GET", ("until=", "until=ä")),
        (REPORT, "GET", ("&", "&more=1&")),
    ],
)
def test_the_signature_of_a_document_opens_nothing_else(
    path: str, method: str, change: tuple[str, str]
) -> None:
    app = KeyLayer(Echo(), KEY, now=lambda: 1_000_000.0)
    reply = call_with(app, ("Authorization", f"Bearer {KEY}"), path=REPORT)
    query = reply.headers["x-regard-view"].replace(*change) if change[0] else ""
    query = query or reply.headers["x-regard-view"]
    assert call(app, path=path, method=method, query=query).status == 401


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/v1/models/demo/curves"])
def test_only_documents_get_a_signature(path: str) -> None:
    app = KeyLayer(Echo(), KEY)
    reply = call_with(app, ("Authorization", f"Bearer {KEY}"), path=path)
    assert reply.status == 200 and "x-regard-view" not in reply.headers


def test_two_keys_open_nothing() -> None:
    right = ("Authorization", f"Bearer {KEY}")
    app = protect(Echo(), hosts=LOOPBACK, key=KEY)
    assert call_with(app, right, right).status == 401


@pytest.mark.parametrize("path", ["/", "/page/chat.js", "/health", "/ready", "/docs"])
def test_the_page_and_its_files_need_no_key(path: str) -> None:
    assert is_open(path)
    assert call(protect(Echo(), hosts=LOOPBACK, key=KEY), path=path).status == 200


def test_the_app_does_not_keep_the_key() -> None:
    app: Any = protect(Echo(), hosts=LOOPBACK, key=KEY)
    while hasattr(app, "app"):
        assert KEY not in repr(vars(app)) and KEY.encode() not in vars(app).values()
        app = app.app


def test_the_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(first: bytes, second: bytes) -> bool:
        compared.append((first, second))
        return first == second

    monkeypatch.setattr("regard.serve.safety.hmac.compare_digest", compare)
    app = protect(Echo(), hosts=LOOPBACK, key=KEY)
    assert call_with(app, ("Authorization", "Bearer wrong")).status == 401
    assert call_with(app, ("Authorization", f"Bearer {KEY}")).status == 200
    assert [len(first) == len(second) for first, second in compared] == [True, True]


def test_the_key_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    app = protect(Echo(), hosts=LOOPBACK, key=KEY)
    call_with(app, ("Authorization", f"Bearer {KEY}"))
    call_with(app, ("Authorization", f"Bearer {KEY}x"))
    assert KEY not in caplog.text


def test_a_key_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"\n  {KEY}\r\n")
    assert read_key(file) == KEY
    assert choose_key(file, {"REGARD_KEY": "another-key-of-that-length"}) == KEY


def test_a_key_is_read_from_the_environment() -> None:
    assert key_from({"REGARD_KEY": f" {KEY}\n"}) == KEY
    assert choose_key(None, {"REGARD_KEY": KEY}) == KEY
    assert key_from({}) is None


@pytest.mark.parametrize("text", ["", " ", "secret", "x" * 15])
def test_a_short_key_is_refused_and_not_shown(text: str, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(text)
    for read in (lambda: read_key(file), lambda: key_from({"REGARD_KEY": text})):
        with pytest.raises(InputError, match="at least 16 characters.*openssl rand") as error:
            read()
        assert not text.strip() or text.strip() not in str(error.value).replace(str(file), "")


@pytest.mark.parametrize(
    "text", ["two words of enough characters", "ключ-ключ-ключ-ключ", "x\0" * 20]
)
def test_a_key_that_no_header_can_hold_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="one word of letters, figures and signs of ASCII"):
        key_from({"REGARD_KEY": text})


def test_a_large_file_is_not_a_key(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(b"x" * 10_000_000)
    with pytest.raises(InputError, match="at most 1024 characters"):
        read_key(file)


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read; got No such file or directory"):
        read_key(tmp_path / "nothing")
    with pytest.raises(InputError, match="cannot be read; got Is a directory"):
        read_key(tmp_path)


# Addresses


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
def test_loopback_needs_no_key(host: str) -> None:
    assert is_loopback(host)
    check_binding(host, has_key=False, insecure=False)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "", "192.168.1.5", "::ffff:8.8.8.8", "models.example", "localhost.x"]
)
def test_another_address_needs_a_key_or_the_flag(host: str) -> None:
    with pytest.raises(InputError, match=r"--host: .*no key.*--key-file.*REGARD_KEY.*--insecure"):
        check_binding(host, has_key=False, insecure=False)
    check_binding(host, has_key=True, insecure=False)
    check_binding(host, has_key=False, insecure=True)


# Bodies

LIMIT = 1000


def bounded(app: Callable[..., Awaitable[None]], under_way: int = 10_000) -> BodyLayer:
    return BodyLayer(app, lambda path: LIMIT, under_way)


@pytest.mark.parametrize("size", [0, 1, LIMIT])
def test_the_app_gets_the_whole_body_and_then_the_disconnect(size: int) -> None:
    app = Echo()
    reply = call(bounded(app), pieces=[b"x" * size])
    assert reply.status == 200
    assert reply.body == b"first last" and reply.messages == 3
    assert app.bodies == [b"x" * size]
    assert app.after == {"type": "http.disconnect"}


def test_an_announced_body_that_is_too_large_is_not_read() -> None:
    app = Echo()
    reply = call_with(bounded(app), ("Content-Length", str(LIMIT + 1)), pieces=[b"never read"])
    assert reply.status == 413
    assert "1,000 bytes" in reply.error["message"]
    assert app.calls == 0


@pytest.mark.parametrize("announced", [[], [("Content-Length", "5")]], ids=["none", "a lie"])
def test_bytes_are_counted_whatever_was_announced(announced: list[tuple[str, str]]) -> None:
    app = Echo()
    taken = 0

    def pieces() -> Iterable[bytes]:
        nonlocal taken
        for _ in range(1000):
            taken += 100
            yield b"x" * 100

    source = pieces()

    async def receive() -> Any:
        return {"type": "http.request", "body": next(iter(source)), "more_body": True}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(name.lower().encode(), value.encode()) for name, value in announced]
    scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
    asyncio.run(bounded(app)(scope, receive, send))
    assert sent[0]["status"] == 413
    assert LIMIT < taken <= LIMIT + 100
    assert app.calls == 0


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "identity, gzip", "GZIP"])
def test_compressed_bodies_are_refused(coding: str) -> None:
    app = Echo()
    reply = call_with(bounded(app), ("Content-Encoding", coding))
    assert reply.status == 415
    assert reply.error["message"] == "compressed bodies are not accepted"
    assert app.calls == 0


def test_identity_is_not_compressed() -> None:
    assert call_with(bounded(Echo()), ("Content-Encoding", "Identity")).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        [("Content-Length", "-1")],
        [("Content-Length", "1e3")],
        [("Content-Length", "٣")],
        [("Content-Length", "9" * 5000)],
        [("Content-Length", "3"), ("Content-Length", "4")],
        [("Content-Length", "3"), ("Transfer-Encoding", "chunked")],
    ],
)
def test_lengths_that_cannot_be_are_refused(headers: list[tuple[str, str]]) -> None:
    encoded = [(name, value.encode().decode("latin-1")) for name, value in headers]
    app = Echo()
    reply = call_with(bounded(app), *encoded)
    assert reply.status == 400
    assert "Content-Length" in reply.error["message"]
    assert app.calls == 0


def test_a_client_that_goes_away_never_reaches_the_app() -> None:
    app = Echo()
    layer = bounded(app)
    reply = call(layer, pieces=[b"x" * 10], gone=True)
    assert reply.status == 0 and app.calls == 0
    assert layer.under_way == 0


@pytest.mark.parametrize(("size", "status"), [(2 * PIECE, 429), (PIECE, 200), (10, 200)])
def test_bodies_of_all_requests_together_are_bounded(size: int, status: int) -> None:
    """A large one that comes while others hold the memory is told to come back, and does so. A
    small one does not wait for others."""
    inner: list[Reply] = []
    echo = Echo()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if not inner:
            reply = Reply()
            inner.append(reply)

            async def one_piece() -> Any:
                return {"type": "http.request", "body": b"y" * size, "more_body": False}

            async def keep(message: Any) -> None:
                reply.status = reply.status or message["status"]
                reply.headers = reply.headers or dict(message.get("headers", ()))
                reply.body += message.get("body", b"")

            await layer(scope, one_piece, keep)
        await echo(scope, receive, send)

    layer = BodyLayer(app, lambda path: 10 * PIECE, 3 * PIECE)
    outer = call(layer, pieces=[b"x" * 3 * PIECE])
    assert outer.status == 200
    assert inner[0].status == status
    if status == 429:
        assert inner[0].headers[b"retry-after"] == b"2"  # type: ignore[index]
        assert inner[0].error["message"] == "the server is reading too many large requests"
    assert layer.under_way == 0
    assert call(layer, pieces=[b"y" * size]).status == 200


@pytest.mark.parametrize(("sent", "waits"), [(PIECE + 1, False), (PIECE, True)])
def test_an_upload_of_which_nothing_more_comes_gives_its_memory_back(
    sent: int, waits: bool
) -> None:
    """The connection has a time limit of its own for those that are small."""
    layer = BodyLayer(Echo(), lambda path: 10 * PIECE, 3 * PIECE, stalled=0.01)
    reply = Reply()
    rest = asyncio.Event()
    messages = iter([{"type": "http.request", "body": b"x" * sent, "more_body": True}])

    async def receive() -> Any:
        if (message := next(messages, None)) is not None:
            return message
        await rest.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        reply.status = reply.status or message["status"]
        reply.body += message.get("body", b"")

    async def upload() -> None:
        scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
        task = asyncio.create_task(layer(scope, receive, send))
        done, _ = await asyncio.wait([task], timeout=0.2 if waits else 10)
        assert bool(done) != waits
        rest.set()
        await task

    asyncio.run(upload())
    assert reply.status == (0 if waits else 408)
    if not waits:
        assert reply.error["message"] == "nothing more of the body came for 0.01 seconds"
    assert layer.under_way == 0


def test_an_app_that_fails_gives_its_memory_back() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("a fault of the app")

    layer = bounded(app)
    with pytest.raises(RuntimeError, match="a fault of the app"):
        call(layer, pieces=[b"x" * 600])
    assert layer.under_way == 0


def test_a_body_of_single_bytes_is_few_objects() -> None:
    app = Echo()
    layer = BodyLayer(app, lambda path: 10**6, 10**7)
    call(layer, pieces=[b"x"] * 200_000)
    assert app.bodies == [b"x" * 200_000]
    assert app.pieces < 5


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/ask", "/v1/audio/transcriptions"])
def test_paths_that_take_media_take_more(path: str) -> None:
    assert body_limits()(path) == 25_000_000
    assert body_limits()(path + "/x") == 1_000_000
    assert body_limits()("/v1/completions") == 1_000_000


@pytest.mark.parametrize(("size", "status"), [(32_000, 200), (33_000, 431)])
def test_headers_are_bounded(size: int, status: int) -> None:
    app = protect(Echo(), hosts=LOOPBACK)
    reply = call_with(app, ("X-Long", "x" * size))
    assert reply.status == status
    if status == 431:
        assert reply.error["message"] == "path and headers may have at most 32,768 bytes"


# Headers of answers


def test_every_answer_has_the_security_headers() -> None:
    app = protect(Echo(), hosts=LOOPBACK, key=KEY)
    replies = [
        call_with(app, ("Authorization", f"Bearer {KEY}")),
        call_with(app),
        call(app, headers=[("Host", "evil.example")]),
        call_with(app, ("Origin", "http://evil.example")),
        call(app, path="/page/x"),
    ]
    assert [reply.status for reply in replies] == [200, 401, 403, 403, 200]
    for reply in replies:
        assert {name: reply.headers.get(name) for name in HEADERS} == HEADERS


def test_the_policy_allows_no_inline_script_and_no_other_site() -> None:
    policy = HEADERS["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy and "http" not in policy and "*" not in policy


def test_an_answer_may_have_a_policy_of_its_own() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"Content-Security-Policy", DOCUMENT_POLICY.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    reply = call(protect(app, hosts=LOOPBACK))
    policies = [
        value for name, value in reply.headers.items() if name.lower() == "content-security-policy"
    ]
    assert policies == [DOCUMENT_POLICY]
    assert reply.headers["x-content-type-options"] == "nosniff"


def test_web_sockets_are_closed() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    app = Echo()
    scope = {"type": "websocket", "path": "/v1/ask", "headers": []}
    asyncio.run(protect(app, hosts=LOOPBACK)(scope, None, send))  # type: ignore[arg-type]
    assert sent == [{"type": "websocket.close", "code": 1008}]
    assert app.calls == 0


def test_lifespan_reaches_the_app() -> None:
    scopes: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)

    scope = {"type": "lifespan"}
    asyncio.run(protect(app, hosts=LOOPBACK, key=KEY)(scope, None, None))  # type: ignore[arg-type]
    assert scopes == [scope]


# Connections and open files


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "connections"),
    [
        (1024, 1_000_000, 5128, 5000),
        (1024, 2000, 2000, 1872),
        (1024, resource.RLIM_INFINITY, 5128, 5000),
        (9000, 9000, None, 5000),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None, 5000),
        (100, 100, 100, 1),
    ],
)
def test_connections_fit_into_open_files(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: int | None, connections: int
) -> None:
    limits_set: list[tuple[int, int]] = []
    monkeypatch.setattr(http_protocol.resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(
        http_protocol.resource, "setrlimit", lambda _, pair: limits_set.append(pair)
    )
    limits = http_protocol.with_open_files(ConnectionLimits(connections=5000))
    assert limits.connections == connections
    assert limits_set == ([] if raised is None else [(raised, hard)])
