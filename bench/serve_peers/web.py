"""What the servers of the peers have in common: arguments, and a FastAPI app that streams."""

from __future__ import annotations

import argparse
import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from regard.serve.event_stream import DONE, event
from regard.serve.openai_routes import ChatForm, usage_of

MODEL = "run"


class Piece(NamedTuple):
    """The text of one token of an answer."""

    text: str


class End(NamedTuple):
    """The end of an answer: how many tokens it has, and why it ended."""

    tokens: int
    reason: str


Pieces = AsyncGenerator[Piece | End, None]
Answer = Callable[[str, int], Pieces]  # of a prompt, with so many tokens at most


def arguments(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--threads", type=int, default=1, help="threads of the model")
    parser.add_argument("--rows", type=int, default=64, help="the most rows of a batch")
    parser.add_argument("--wait", type=float, default=0.01, help="seconds to wait for a full batch")
    return parser


def create_app(answer: Answer) -> FastAPI:
    """POST /v1/chat/completions, for greedy search and streams only."""
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> StreamingResponse:
        body = await request.json()
        pieces = answer(body["messages"][-1]["content"], body["max_tokens"])
        return StreamingResponse(_events(pieces), media_type="text/event-stream")

    return app


async def _events(pieces: Pieces) -> AsyncGenerator[bytes, None]:
    form = ChatForm(MODEL, wants_logprobs=False)

    def chunk(choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
        return event(form.frame(form.chunk, choices) | {"usage": usage})

    first = form.first(0)
    assert first is not None
    is_first = True
    async for piece in pieces:
        if is_first:
            is_first = False
            yield chunk([first])
        if isinstance(piece, End):
            yield chunk([form.last(0, piece.reason)])
            yield chunk([], usage_of(0, piece.tokens))
        elif piece.text:
            yield chunk([form.token(0, {"token": 0, "text": piece.text})])
    yield DONE


def serve(app: FastAPI) -> None:
    """Serve on a free port of loopback, and print its number."""
    # asyncio sends small writes at once (TCP_NODELAY) only if the socket's protocol is named.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(2048)
    print(f"port {listener.getsockname()[1]}", flush=True)
    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="on")
    asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))
