"""What stands between the network and the app: ASGI layers, and the rules of keys and addresses.

    Headers ► Size ► Host ► Origin ► Key ► Body ► app

Each layer answers a request itself, as an error of the API, or passes it on. None of them looks at
the messages of an answer's body, so streams are not held up. `protect` puts them together.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any

from regard.errors import InputError, printable
from regard.serve.api_errors import ApiError
from regard.serve.limits import DEFAULT_LIMITS, MB, Limits

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PAGE_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "media-src 'self' data: blob:",
        "connect-src 'self'",
        "frame-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)

# For documents with scripts and styles of their own (reports, pages of the lab): they may run, but
# as a stranger, without the page's storage and without a connection to anywhere.
DOCUMENT_POLICY = "; ".join(
    [
        "sandbox allow-scripts allow-downloads",
        "default-src 'none'",
        "script-src 'unsafe-inline'",
        "style-src 'unsafe-inline'",
        "img-src data: blob:",
        "media-src data:",
        "font-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'self'",
    ]
)

HEADERS = {
    "content-security-policy": PAGE_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(self)",
    "cache-control": "no-store",
}
ENCODED_HEADERS = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
EVERY_ADDRESS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104
AUTHORITY = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9_.-]+))(?::([0-9]{0,5}))?")
DEFAULT_PORTS = {"http": "80", "https": "443"}

OPEN_PATHS = frozenset({"/", "/health", "/ready", "/docs", "/openapi.json", "/favicon.ico"})
OPEN_FOLDERS = ("/page/", "/docs/")

MEDIA_PATHS = frozenset({"/v1/chat/completions", "/v1/ask", "/v1/audio/transcriptions"})
HEADER_BYTES = 32 * 1024
BODIES_UNDER_WAY = 128 * MB
PIECE = 64 * 1024  # bytes of a body that the app gets at once, or a little more
STALLED = 5.0  # seconds in which nothing of a large body comes

# Pages with scripts of their own, which our page shows in a frame. A frame sends no key, so it asks
# with a signature, which is good for one page and a short time.
DOCUMENT_PATH = re.compile(r"/v1/(models/[^/]+/report|lab/[^/]+)")
VIEW_HEADER = b"x-regard-view"
VIEW_SECONDS = 60
VIEW_QUERY = re.compile("until=([0-9]{1,12})&signature=([0-9a-f]{64})")

SHORTEST_KEY = 16
LONGEST_KEY = 1024
KEY = re.compile(r"[!-~]+")  # what a header can hold
KEY_HINT = "make one with: openssl rand -hex 24"


def protect(
    app: App,
    *,
    hosts: AllowedHosts,
    key: str | None = None,
    body_limit: Callable[[str], int] | None = None,
    bodies_under_way: int = BODIES_UNDER_WAY,
) -> App:
    """The app behind all layers.

    hosts             names that a request may address the server by
    key               what clients must send; None: anybody may ask
    body_limit        the largest body of a request, in bytes, by its path
    bodies_under_way  bytes that the bodies of all requests may have together
    """
    app = BodyLayer(app, body_limit or body_limits(), bodies_under_way)
    if key is not None:
        app = KeyLayer(app, key)
    app = OriginLayer(app)
    app = HostLayer(app, hosts)
    app = SizeLayer(app)
    return HeadersLayer(app)


# Addresses and keys: what the command line is checked with


@dataclass(frozen=True)
class AllowedHosts:
    """Names that a request may address the server by.

    A page elsewhere can make its own name point to this machine (DNS rebinding), and is then "the
    same origin" for a browser. But its requests still carry that name. An address in figures
    cannot be pointed elsewhere, so all of them may be allowed.

    names          lower case, without port and brackets
    any_address    every address in figures, for a server that listens on all of them
    """

    names: frozenset[str]
    any_address: bool = False

    def __contains__(self, name: str) -> bool:
        return name in self.names or (self.any_address and is_address(name))


def allowed_hosts(host: str = "127.0.0.1", extra: Iterable[str] = ()) -> AllowedHosts:
    """Loopback, the address the server listens on, and names that were added.

    >>> "localhost" in allowed_hosts(), "models.example" in allowed_hosts()
    (True, False)
    >>> "models.example" in allowed_hosts("0.0.0.0", ["models.example"])
    True
    """
    added = {_host_name(name) for name in extra}
    if host in EVERY_ADDRESS:
        return AllowedHosts(LOOPBACK_NAMES | added, any_address=True)
    return AllowedHosts(LOOPBACK_NAMES | added | {_host_name(host)})


def _host_name(text: str) -> str:
    if is_address(text.strip("[]")):
        return text.strip("[]").lower()
    name = text.lower()
    authority = split_authority(name)
    if authority is None or authority[0] != name:
        raise InputError(
            "not the name of a host", got=text, hint="a name without http:// and without port"
        )
    return name


def is_address(name: str) -> bool:
    """Whether a host is an address in figures, not a name."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address. Of names only `localhost` is known.

    >>> is_loopback("127.0.0.2"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    if not is_address(host):
        return False
    address = ip_address(host)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def check_binding(host: str, has_key: bool, insecure: bool) -> None:
    """Refuse to offer models to the network by accident."""
    if is_loopback(host) or has_key or insecure:
        return
    raise InputError(
        "other machines can reach this address, and there is no key",
        where="--host",
        got=host or "an empty address, which means every address",
        hint="give --key-file FILE or set REGARD_KEY, or allow anybody with --insecure",
    )


def choose_key(path: Path | None, environment: Mapping[str, str]) -> str | None:
    """The key of a file if one is named, else of the environment, else none."""
    return key_from(environment) if path is None else read_key(path)


def read_key(path: Path) -> str:
    """The key that is the only line of a file."""
    try:
        with path.open("rb") as file:
            content = file.read(LONGEST_KEY + 3)
    except OSError as error:
        raise InputError(
            "the file of the key cannot be read", where=path, got=error.strerror, hint=KEY_HINT
        ) from None
    return _check_key(content.decode("utf-8", errors="replace"), path)


def key_from(environment: Mapping[str, str]) -> str | None:
    """The key in REGARD_KEY, or None. A variable that is there but empty is an error: whoever sets
    it means to have a key."""
    text = environment.get("REGARD_KEY")
    return None if text is None else _check_key(text, "REGARD_KEY")


def _check_key(text: str, where: object) -> str:
    """The key without space around it. Errors never show it."""
    key = text.strip()
    if len(key) < SHORTEST_KEY:
        raise InputError(
            f"a key needs at least {SHORTEST_KEY} characters",
            where=where,
            got=len(key),
            hint=KEY_HINT,
        )
    if len(key) > LONGEST_KEY:
        raise InputError(f"a key has at most {LONGEST_KEY} characters", where=where, hint=KEY_HINT)
    if not KEY.fullmatch(key):
        raise InputError(
            "a key is one word of letters, figures and signs of ASCII", where=where, hint=KEY_HINT
        )
    return key


def body_limits(limits: Limits = DEFAULT_LIMITS) -> Callable[[str], int]:
    """The largest body for a path: more where sounds and pictures come in.

    >>> body_limits()("/v1/completions"), body_limits()("/v1/ask")
    (1000000, 25000000)
    """

    def limit(path: str) -> int:
        return limits.media_bytes if path in MEDIA_PATHS else limits.text_bytes

    return limit


# Layers


class HeadersLayer:
    """Security headers on every answer. One that the app has set stays as it is."""

    def __init__(self, app: App):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return

        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = _with_security(message.get("headers", ()))
            await send(message)

        await self.app(scope, receive, send_with_headers)


def _with_security(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    headers = list(headers)
    present = {name.lower() for name, _ in headers}
    missing = [header for header in ENCODED_HEADERS if header[0] not in present]
    return headers + missing


class SizeLayer:
    """Refuses long headers. h11 bounds only those that come in several pieces."""

    def __init__(self, app: App, limit: int = HEADER_BYTES):
        self.app = app
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._size(scope) > self.limit:
            message = f"path and headers may have at most {self.limit:,} bytes"
            await refuse(send, ApiError(431, message, "invalid_request_error"))
            return
        await self.app(scope, receive, send)

    def _size(self, scope: Scope) -> int:
        path = len(scope["path"]) + len(scope.get("query_string", b""))
        return path + sum(len(name) + len(value) + 4 for name, value in scope["headers"])


class HostLayer:
    """Refuses requests that address the server by another name: DNS rebinding."""

    def __init__(self, app: App, hosts: AllowedHosts):
        self.app = app
        self.hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._allows(scope):
            await refuse(send, self._error(scope))
            return
        await self.app(scope, receive, send)

    def _allows(self, scope: Scope) -> bool:
        values = header_values(scope, b"host")
        if len(values) != 1:
            return False
        authority = split_authority(values[0])
        return authority is not None and authority[0] in self.hosts

    def _error(self, scope: Scope) -> ApiError:
        values = header_values(scope, b"host")
        name = printable(values[0][:100]) if values else "no host"
        message = f"this server does not answer to {name}; allow a name with --allow-host"
        return ApiError(403, message, code="host_not_allowed")


class OriginLayer:
    """Refuses requests that pages of other origins make, preflights included.

    A browser sends `Origin` with every request that a script of another page makes, and newer ones
    say `Sec-Fetch-Site` for images and the like, too. A link from elsewhere may lead to the page,
    but not to what makes the server compute.
    """

    def __init__(self, app: App):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (self._is_foreign(scope) or self._is_embedded(scope)):
            message = "requests of pages of other origins are refused"
            await refuse(send, ApiError(403, message, code="origin_not_allowed"))
            return
        await self.app(scope, receive, send)

    def _is_foreign(self, scope: Scope) -> bool:
        origins = header_values(scope, b"origin")
        hosts = header_values(scope, b"host")
        if not origins:
            return False
        return len(origins) != 1 or len(hosts) != 1 or not same_origin(origins[0], hosts[0])

    def _is_embedded(self, scope: Scope) -> bool:
        elsewhere = {"cross-site", "same-site"} & set(header_values(scope, b"sec-fetch-site"))
        is_link = header_values(scope, b"sec-fetch-mode") == ["navigate"]
        return bool(elsewhere) and not (is_link and is_open(scope["path"]))


class KeyLayer:
    """Asks for the key, except for the page and its files, /docs, /health and /ready.

    Paths that are not known to be open need the key: a route that is added is closed at first. Only
    a hash of the key is kept, so neither a traceback nor a dump of the app shows it.

    Who reads a document (a report, a page of the lab) with the key gets a query with it, with which
    a frame may read the same document without the key for a minute: until=…&signature=….
    """

    def __init__(self, app: App, key: str, now: Callable[[], float] = time.time):
        self.app = app
        self.digest = sha256(key.encode()).digest()
        self.now = now

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_open(scope["path"]):
            await self.app(scope, receive, send)
            return
        is_document = DOCUMENT_PATH.fullmatch(scope["path"]) and scope["method"] == "GET"
        if self._has_key(scope):
            view = self._view_query(scope["path"]) if is_document else None
            await self.app(scope, receive, send if view is None else _with_view(send, view))
        elif is_document and self._has_signature(scope):
            await self.app(scope, receive, send)
        else:
            await refuse(send, self._error(scope), (b"www-authenticate", b"Bearer"))

    def _view_query(self, path: str) -> bytes:
        until = int(self.now()) + VIEW_SECONDS
        return f"until={until}&signature={self._signature(path, until)}".encode()

    def _signature(self, path: str, until: int) -> str:
        content = f"view {until} {path}".encode("utf-8", "surrogatepass")
        return hmac.new(self.digest, content, sha256).hexdigest()

    def _has_signature(self, scope: Scope) -> bool:
        match = VIEW_QUERY.fullmatch(scope.get("query_string", b"").decode("latin-1"))
        if match is None:
            return False
        until = int(match[1])
        same = hmac.compare_digest(match[2], self._signature(scope["path"], until))
        return same and self.now() <= until

    def _has_key(self, scope: Scope) -> bool:
        values = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(values) != 1:
            return False
        scheme, _, token = values[0].partition(b" ")
        # Hashes have one length, so the time tells nothing about that of the key either.
        same = hmac.compare_digest(sha256(token.strip()).digest(), self.digest)
        return same and scheme.lower() == b"bearer"

    def _error(self, scope: Scope) -> ApiError:
        message = "the key is wrong"
        if not header_values(scope, b"authorization"):
            message = "this server needs a key: send the header Authorization: Bearer KEY"
        return ApiError(401, message, code="invalid_api_key")


def _with_view(send: Send, query: bytes) -> Send:
    async def send_with_view(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (VIEW_HEADER, query)]
        await send(message)

    return send_with_view


def is_open(path: str) -> bool:
    """Whether a path needs no key.

    >>> is_open("/page/chat.js"), is_open("/v1/models"), is_open("//v1/models")
    (True, False, False)
    """
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDERS)


class BodyLayer:
    """Reads the body before the app begins, and refuses one that is too large.

    What a request says about its length is believed only to refuse it at once; the bytes that come
    are counted. `under_way` is what the bodies of all requests have in memory now. If that is too
    much, only large ones are refused, those with more than one PIECE: a text of a few hundred bytes
    does not wait for uploads. A large one of which nothing comes for `stalled` seconds ends, so
    that those who send quickly get its memory.
    """

    def __init__(
        self,
        app: App,
        limit: Callable[[str], int],
        bodies_under_way: int,
        stalled: float = STALLED,
    ):
        self.app = app
        self.limit = limit
        self.bodies_under_way = bodies_under_way
        self.stalled = stalled
        self.under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        limit = self.limit(scope["path"])
        body = Body()
        try:
            check_framing(scope, limit)
            await self._read(body, receive, limit)
            if not body.disconnected:
                await self.app(scope, body.replay(receive), send)
        except BodyError as error:
            headers = [(b"accept-encoding", b"identity")] if error.status == 415 else []
            await refuse(send, error, *headers)
        finally:
            self.under_way -= body.size

    async def _read(self, body: Body, receive: Receive, limit: int) -> None:
        while not body.complete and not body.disconnected:
            size = body.add(await self._next(body, receive))
            self.under_way += size
            if body.size > limit:
                raise too_large(limit)
            if size and body.size > PIECE and self.under_way > self.bodies_under_way:
                message = "the server is reading too many large requests"
                raise BodyError(429, message, code="overloaded", retry_after=2)

    async def _next(self, body: Body, receive: Receive) -> Message:
        if body.size <= PIECE:  # the connection's own time limit is enough
            return await receive()
        try:
            async with asyncio.timeout(self.stalled):
                return await receive()
        except TimeoutError:
            message = f"nothing more of the body came for {self.stalled:g} seconds"
            raise BodyError(408, message) from None


class BodyError(ApiError):
    """A body that the app never sees."""


class Body:
    """Bytes of a body, on their way from the server to the app."""

    def __init__(self) -> None:
        self.pieces: deque[bytearray] = deque()
        self.size = 0
        self.complete = False
        self.disconnected = False

    def add(self, message: Message) -> int:
        """Take what a message has, and return its number of bytes."""
        if message["type"] == "http.disconnect":
            self.disconnected = True
            return 0
        content = message.get("body", b"")
        # A body that comes byte by byte must not become a million objects.
        if self.pieces and len(self.pieces[-1]) < PIECE:
            self.pieces[-1] += content
        else:
            self.pieces.append(bytearray(content))
        self.complete = not message.get("more_body", False)
        self.size += len(content)
        return len(content)

    def replay(self, receive: Receive) -> Receive:
        """The same bytes again, and then whatever comes: a client that goes away."""

        async def next_message() -> Message:
            if not self.pieces:
                return await receive()
            content = bytes(self.pieces.popleft())
            return {"type": "http.request", "body": content, "more_body": bool(self.pieces)}

        return next_message


def check_framing(scope: Scope, limit: int) -> None:
    """Refuse what can be refused before the body is read."""
    lengths = header_values(scope, b"content-length")
    encodings = header_values(scope, b"content-encoding")
    if any(encoding.strip().lower() not in ("", "identity") for encoding in encodings):
        raise BodyError(415, "compressed bodies are not accepted", code="unsupported_encoding")
    if lengths and header_values(scope, b"transfer-encoding"):
        # Two servers in a row could disagree on where the request ends.
        raise BodyError(400, "a request has Content-Length or Transfer-Encoding, not both")
    if not lengths:
        return
    if len(lengths) > 1 or not re.fullmatch("[0-9]{1,20}", lengths[0]):
        raise BodyError(400, "Content-Length is not a number")
    if int(lengths[0]) > limit:
        raise too_large(limit)


def too_large(limit: int) -> BodyError:
    message = f"the body of this request may have at most {limit:,} bytes"
    return BodyError(413, message, code="request_too_large")


# What layers have in common


def header_values(scope: Scope, name: bytes) -> list[str]:
    """All values of a header. ASGI has names in lower case, values as bytes."""
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


def split_authority(text: str) -> tuple[str, str] | None:
    """Name and port ("" if there is none) of a Host header, or None if it is not one.

    >>> split_authority("[::1]:8000"), split_authority("localhost"), split_authority("a@b")
    (('::1', '8000'), ('localhost', ''), None)
    """
    match = AUTHORITY.fullmatch(text.lower())
    if match is None:
        return None
    address, name, port = match.groups()
    return address or name, port or ""


def same_origin(origin: str, host: str) -> bool:
    """Whether an Origin header names the host that the request is for. The scheme is not compared:
    behind a proxy the server does not know it.

    >>> same_origin("http://localhost:8000", "localhost:8000")
    True
    >>> same_origin("http://localhost:3000", "localhost:8000")
    False
    """
    scheme, separator, rest = origin.partition("://")
    port = DEFAULT_PORTS.get(scheme.lower())
    theirs = split_authority(rest)
    ours = split_authority(host)
    if not separator or port is None or theirs is None or ours is None:
        return False
    return (theirs[0], theirs[1] or port) == (ours[0], ours[1] or port)


async def refuse(send: Send, error: ApiError, *headers: tuple[bytes, bytes]) -> None:
    """Answer with an error of the API."""
    content = error_content(error)
    own = [(name.lower().encode(), value.encode()) for name, value in error.headers().items()]
    start = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
        *own,
        *headers,
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": start})
    await send({"type": "http.response.body", "body": content})


def error_content(error: ApiError) -> bytes:
    """The bytes of an error's JSON."""
    return json.dumps(error.body(), ensure_ascii=False).encode("utf-8", errors="replace")
