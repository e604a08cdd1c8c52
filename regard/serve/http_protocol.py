"""HTTP connections with time limits: clients that are silent, slow, or do not read are cut off.

uvicorn waits for the headers and the body of a request, and for a client to take its answer, as
long as the client likes. Here each of these has a time limit that bytes do not extend.

    connect ─ headers ─► request ─ body ─► answer ─ idle (uvicorn's timeout_keep_alive) ─► headers …
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol, RequestResponseCycle

from regard.serve.api_errors import ApiError
from regard.serve.limits import MB
from regard.serve.safety import ENCODED_HEADERS, HEADER_BYTES, error_content

# uvicorn warns of every request that is not HTTP; a scan of ports must not fill the log.
LOG = logging.getLogger("regard.serve.http")
LOG.setLevel(logging.ERROR)
FRAMING_HEADERS = frozenset({b"content-length", b"transfer-encoding", b"connection"})
CHUNKED = b"\r\ntransfer-encoding: chunked\r\n"
SPARE_FILES = 128  # for logs, pipes of engines, uploads


@dataclass(frozen=True)
class ConnectionLimits:
    """Bounds of connections.

    headers         seconds until the headers of a request are complete
    body            seconds until its body is complete
    writing         seconds in which a client takes its answer, or at least `taken` bytes of it
    taken           bytes
    rest_seconds    seconds for the rest of a body that has its answer already (it was refused)
    rest_bytes      bytes of that rest which are read and dropped
    idle            seconds that a connection is kept without a request
    header_bytes    bytes of the headers of a request
    connections     connections at the same time
    """

    headers: float = 10.0
    body: float = 30.0
    writing: float = 30.0
    taken: int = 64 * 1024
    rest_seconds: float = 5.0
    rest_bytes: int = 32 * MB
    idle: int = 5
    header_bytes: int = HEADER_BYTES
    connections: int = 4096


def uvicorn_settings(limits: ConnectionLimits | None = None) -> dict[str, Any]:
    """Arguments of `uvicorn.Config` with which connections have these limits."""
    limits = limits or ConnectionLimits()
    return dict(
        http=protocol_with(limits),
        ws="none",
        timeout_keep_alive=limits.idle,
        h11_max_incomplete_event_size=limits.header_bytes,
        server_header=False,
        proxy_headers=False,  # nobody else says which address a request came from
    )


def with_open_files(limits: ConnectionLimits) -> ConnectionLimits:
    """The same limits, with no more connections than files the process may open. Raises the
    process's own limit of open files if it is allowed to."""
    wanted = limits.connections + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return limits
    return replace(limits, connections=max(1, min(limits.connections, soft - SPARE_FILES)))


def protocol_with(connection_limits: ConnectionLimits) -> type[TimedProtocol]:
    """The protocol's class for these limits; uvicorn makes its instances itself."""

    class Protocol(TimedProtocol):
        limits = connection_limits

    return Protocol


class Connection(h11.Connection):
    """h11's connection, with short ways where h11 takes longer than to make a token's event.

    A part of a chunked answer changes no state, so only its framing is left (RFC 9112, 7.1). h11
    adds headers about the body to those of an answer, and checks all of them again each time; here
    it gets only those that concern it.
    """

    chunked = False

    def send(self, event: h11.Event) -> bytes | None:  # type: ignore[override]
        if self.chunked and type(event) is h11.Data:
            size = len(event.data)
            return b"%x\r\n%b\r\n" % (size, event.data) if size else b""
        if type(event) is h11.Response:
            return self._send_head(event)
        if type(event) is h11.EndOfMessage:
            self.chunked = False
        return super().send(event)

    def _send_head(self, event: h11.Response) -> bytes:
        framing: list[tuple[bytes, bytes]] = []
        others: list[bytes] = []
        for name, value in event.headers:
            if name in FRAMING_HEADERS:
                framing.append((name, value))
            else:
                others.append(b"%b: %b\r\n" % (name, value))
        head = super().send(
            h11.Response(status_code=event.status_code, headers=framing, reason=event.reason)
        )
        self.chunked = CHUNKED in head.lower()
        return head.removesuffix(b"\r\n") + b"".join(others) + b"\r\n"


class OneWriteTransport:
    """A transport that sends everything that is written in one turn of the loop at once.

    An answer is written in small parts: its head, events, the end of a chunk. For each, the system
    takes longer than we take to make it.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop):
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []
        self.written = 0  # bytes

    def write(self, data: bytes) -> None:
        if not data:
            return
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)
        self.written += len(data)

    def _flush(self) -> None:
        parts = self._parts
        if parts:
            self._parts = []
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._flush()  # an answer was given before the connection was cut off
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() + sum(map(len, self._parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def direct_write(send: object) -> Callable[[bytes], None] | None:
    """What sends a part of an answer that has begun without the messages of ASGI and the layers
    that pass them on. None if `send` is not that of this protocol.

    It does not wait for a client that reads slowly: the rest of its answer is kept in memory, and
    `TimedProtocol` bounds the time.
    """
    cycle = getattr(send, "__self__", None)
    if not isinstance(cycle, RequestResponseCycle):
        return None
    transport = cycle.transport
    connection = cycle.conn

    def write(part: bytes) -> None:
        if part and not cycle.disconnected:
            transport.write(connection.send(h11.Data(data=part)))

    return write


def cut_off(send: object) -> None:
    """Close the connection of an answer that has begun and will not be completed."""
    cycle = getattr(send, "__self__", None)
    if isinstance(cycle, RequestResponseCycle):
        cycle.disconnected = True  # uvicorn does not wonder where the rest is
        cycle.transport.abort()


class TimedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1, with time limits.

    `phase` is what the connection waits for, and of which request. A timer starts when the phase
    changes, so bytes that come within a phase do not extend it.
    """

    limits: ClassVar[ConnectionLimits] = ConnectionLimits()

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.logger = LOG
        self.conn = Connection(h11.SERVER, self.limits.header_bytes)
        self.phase: tuple[str, object] = ("idle", None)
        self.phase_timer: asyncio.TimerHandle | None = None
        self.write_timer: asyncio.TimerHandle | None = None
        self.rest = 0

    # Events of the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.writer = OneWriteTransport(transport, self.loop)
        super().connection_made(self.writer)  # type: ignore[arg-type]
        _send_at_once(transport)
        # Whatever the system does not take at once starts the timer of `pause_writing`: also a
        # transport that is closed waits for its last bytes to be taken, if need be for ever.
        transport.set_write_buffer_limits(high=0)

        if len(self.connections) > self.limits.connections:
            message = "the server has too many connections"
            self._end_with(ApiError(503, message, code="overloaded", retry_after=5))
            return
        self._update_phase()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self.phase[0] == "rest":
            self.rest += len(data)
            if self.rest > self.limits.rest_bytes:
                self.transport.abort()
                return
        super().data_received(data)
        self._update_phase()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self.phase_timer, self.write_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_write_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.write_timer is not None:
            self.write_timer.cancel()
            self.write_timer = None

    # Events of requests

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_phase()

    def send_400_response(self, msg: str) -> None:
        """For requests that are not HTTP: the same shape of errors as everywhere else."""
        self._end_with(ApiError(400, "the request is not valid HTTP/1.1"))

    def _unsupported_upgrade_warning(self) -> None:
        """Who asks for a web socket gets an ordinary answer; the log has no use for it."""

    # Time limits

    def _update_phase(self) -> None:
        """Start the timer of what the connection waits for now, if that has changed."""
        phase = (self._waits_for(), self.cycle)
        if phase == self.phase:
            return

        self.phase = phase
        self.rest = 0
        if self.phase_timer is not None:
            self.phase_timer.cancel()
            self.phase_timer = None
        seconds = {
            "headers": self.limits.headers,
            "body": self.limits.body,
            "rest": self.limits.rest_seconds,
        }.get(phase[0])
        if seconds is not None and not self.transport.is_closing():
            self.phase_timer = self.loop.call_later(seconds, self._on_timeout)

    def _waits_for(self) -> str:
        """`headers` or `body` of a request, the `rest` of a body that has its answer, or nothing
        that has a limit here (`idle`)."""
        state = self.conn.their_state
        if state is h11.IDLE:
            has_bytes = bool(self.conn.trailing_data[0])
            # After a refused body has come to its end, uvicorn's own timer is off.
            kept_alive = self.timeout_keep_alive_task is not None
            return "idle" if kept_alive and not has_bytes else "headers"
        if state is h11.SEND_BODY:
            return "rest" if self.cycle.response_complete else "body"
        return "idle"

    def _on_timeout(self) -> None:
        part = self.phase[0]
        if part == "rest":
            self.transport.abort()
        else:
            self._end_with(ApiError(408, f"the {part} of the request took too long"))

    def _start_write_timer(self) -> None:
        self.write_timer = self.loop.call_later(
            self.limits.writing, self._on_write_timeout, self._taken()
        )

    def _taken(self) -> int:
        """The bytes of answers that have left this process."""
        return self.writer.written - self.transport.get_write_buffer_size()

    def _on_write_timeout(self, taken_before: int) -> None:
        if self._taken() - taken_before >= self.limits.taken:
            self._start_write_timer()
        else:
            self.transport.abort()

    # Ends of connections

    def _end_with(self, error: ApiError) -> None:
        """Answer with an error, if no answer has begun, and close the connection."""
        if self.transport.is_closing():
            return
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return

        if self.cycle is not None:
            self.cycle.disconnected = True  # its app has nobody to answer any more
            self.cycle.message_event.set()
        self.transport.write(whole_answer(error))
        self.transport.close()


def _send_at_once(transport: asyncio.Transport) -> None:
    """Turn Nagle's algorithm off: with it, every second part of an answer, and so every other
    token of a stream, waits 40 ms for the client to confirm the one before. asyncio does this only
    for sockets that were made with a protocol number."""
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def whole_answer(error: ApiError) -> bytes:
    """The last answer of a connection, as bytes: one that no app has made."""
    content = error_content(error)
    reason = STATUS_PHRASES[error.status]
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
        (b"connection", b"close"),
        *((name.lower().encode(), value.encode()) for name, value in error.headers().items()),
        *ENCODED_HEADERS,
    ]
    lines = [b"HTTP/1.1 %d %s" % (error.status, reason)]
    lines += [b"%s: %s" % header for header in headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + content
