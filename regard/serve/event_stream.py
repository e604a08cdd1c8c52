"""Answers that come piece by piece, as server-sent events, and answers that nobody waits for."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from regard.serve.api_errors import ApiError

DONE = b"data: [DONE]\n\n"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # no proxy holds a token back

T = TypeVar("T")


class ClientGone(Exception):
    """The client has closed the connection before it had its answer."""


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def json_bytes(data: object) -> bytes:
    return _encode(data).encode("utf-8", "replace")


def event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + json_bytes(data) + b"\n\n"


class EventStream(Response):
    """Server-sent events. An error before the first of them is an answer with its own status. If
    the client goes away, the events are closed at once, also while they wait, so that the job
    behind them is cancelled."""

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncGenerator[bytes, None], headers: Mapping[str, str] | None = None
    ):
        super().__init__(None, headers=HEADERS | dict(headers or {}))
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(ClientGone):
            async with contextlib.aclosing(self._events), while_connected(receive):
                await self._send_all(send)

    async def _send_all(self, send: Send) -> None:
        part = await anext(self._events)
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await _send_part(send, part)
        try:
            async for part in self._events:
                await _send_part(send, part)
        except ApiError as problem:  # the status has been sent already
            await _send_part(send, event(problem.body()))
        await send({"type": "http.response.body", "body": DONE, "more_body": False})


async def _send_part(send: Send, part: bytes) -> None:
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
