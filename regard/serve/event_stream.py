"""Answers that come piece by piece, as server-sent events, and answers that nobody waits for."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from regard.serve.api_errors import ApiError
from regard.serve.engine_client import Answers, Arrival

DONE = b"data: [DONE]\n\n"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # no proxy holds a token back

# In a request's scope: a function that sends a part of an answer that has begun.
DIRECT_WRITE = "regard.write"

T = TypeVar("T")


class ClientGone(Exception):
    """The client has closed the connection before it had its answer."""


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def json_bytes(data: object) -> bytes:
    return _encode(data).encode("utf-8", "replace")


def event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + json_bytes(data) + b"\n\n"


class Encoder(Protocol):
    """What makes the events of a stream from what comes of its answers."""

    def events(self, arrivals: Sequence[Arrival]) -> bytes: ...

    def last_events(self) -> bytes:
        """After all answers have ended, before DONE."""
        ...


class EventStream(Response):
    """Server-sent events. An error before the first of them is an answer with its own status. If
    the client goes away, the jobs behind them are cancelled at once.

    Events are messages of ASGI. If the server offers a shorter way (`DIRECT_WRITE`), those after
    the first take it.
    """

    media_type = "text/event-stream"

    def __init__(
        self, answers: Answers, encoder: Encoder, headers: Mapping[str, str] | None = None
    ):
        super().__init__(None, headers=HEADERS | dict(headers or {}))
        del self.headers["content-length"]
        self._answers = answers
        self._encoder = encoder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(ClientGone):
            async with while_connected(receive), self._answers as answers:
                await self._send_all(answers, send, scope.get(DIRECT_WRITE))

    async def _send_all(
        self, answers: Answers, send: Send, write: Callable[[bytes], None] | None
    ) -> None:
        encode = self._encoder.events
        part = b""
        while not part:
            part = encode(await anext(answers))
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await _send_part(send, part)
        try:
            if write is not None:
                await answers.push(lambda arrivals: write(encode(arrivals)))
            else:
                async for arrivals in answers:
                    await _send_part(send, encode(arrivals))
            rest = self._encoder.last_events()
        except ApiError as problem:  # the status has been sent already
            rest = event(problem.body())
        await send({"type": "http.response.body", "body": rest + DONE, "more_body": False})


async def _send_part(send: Send, part: bytes) -> None:
    if part:
        await send({"type": "http.response.body", "body": part, "more_body": True})


@contextlib.asynccontextmanager
async def while_connected(
    receive: Callable[[], Awaitable[Mapping[str, Any]]],
) -> AsyncGenerator[None, None]:
    """Cancels what is done inside, and raises ClientGone, if the client closes the connection."""
    task = asyncio.current_task()
    assert task is not None
    cancelled_before = task.cancelling()
    is_gone = False

    async def watch() -> None:
        nonlocal is_gone
        while (await receive())["type"] != "http.disconnect":
            pass
        is_gone = True
        task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if is_gone and task.uncancel() <= cancelled_before:
            raise ClientGone from None
        raise
    finally:
        watcher.cancel()


async def answer_unless_gone(request: Request, work: Awaitable[T]) -> T:
    """The result of some work for a client that does not stream."""
    async with while_connected(request.receive):
        return await work
