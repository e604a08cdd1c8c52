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


def event(data: Mapping[str, Any]) -> bytes:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return b"data: " + text.encode("utf-8", "replace") + b"\n\n"


class EventStream(Response):
    """Server-sent events. If the client goes away, the events are closed at once, also while they
    wait, so that the job behind them is cancelled."""

    media_type = "text/event-stream"

    def __init__(
        self,
        first: bytes,
        events: AsyncGenerator[bytes, None],
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(None, headers=HEADERS | dict(headers or {}))
        del self.headers["content-length"]
        self._first = first
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        async with contextlib.aclosing(self._events):
            await send(start)
            await unless_gone(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        await _send_part(send, self._first)
        try:
            async for part in self._events:
                await _send_part(send, part)
                # Many tokens may be waiting: others have their turn, and a client that has gone is
                # noticed.
                await asyncio.sleep(0)
        except ApiError as problem:  # the status has been sent already
            await _send_part(send, event(problem.body()))
        await _send_part(send, DONE)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_part(send: Send, part: bytes) -> None:
    await send({"type": "http.response.body", "body": part, "more_body": True})


async def unless_gone(
    receive: Callable[[], Awaitable[Mapping[str, Any]]], work: Awaitable[T]
) -> T | None:
    """The result of some work. It is cancelled if the client closes the connection; then None."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for unfinished in (task, gone):
            unfinished.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _until_gone(receive: Callable[[], Awaitable[Mapping[str, Any]]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def stream_answer(
    request: Request, events: AsyncGenerator[bytes, None], headers: Mapping[str, str] | None = None
) -> EventStream:
    """A stream of these events. An error before the first one keeps its own status."""
    try:
        first = await answer_unless_gone(request, anext(events))
    except BaseException:
        await events.aclose()
        raise
    return EventStream(first, events, headers)


async def answer_unless_gone(request: Request, work: Awaitable[T]) -> T:
    """The result of some work for a client that does not stream."""
    result = await unless_gone(request.receive, work)
    if result is None:
        raise ClientGone
    return result
