"""Many streaming clients in one process.

    python -m bench.serve_peers.clients < load.json

The load: {"port", "clients", "max_tokens", "spread", "prompts": one for each request}. Every client
connects first. Their first requests come at random moments of the first `spread` seconds, and each
client sends its next one when it has read the last answer. What is measured: seconds from a request
to the first text of its answer (`first_wave` for the first request of each client, `first` for the
others), seconds between two pieces of text, the tokens of each answer, and the seconds of all
together.

An event costs a search in a few bytes, no JSON is parsed, and the process has one asyncio loop, so
that the clients take little from the servers they measure. `cpu` says how much they took.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
import resource
import sys
import time
from typing import Any

CONTENT = re.compile(rb'"content":"((?:[^"\\]|\\.)+)"')
USAGE = re.compile(rb'"completion_tokens":(\d+)')
END = b"0\r\n\r\n"
PATIENCE = 600.0  # seconds


class Client(asyncio.Protocol):
    """One connection, which asks one question after the other."""

    def __init__(self, load: Load):
        self.load = load
        self.buffer = bytearray()
        self.done = asyncio.get_running_loop().create_future()
        self.number = -1
        self.asked = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def ask(self) -> None:
        """Send the next request, if there is one left."""
        request = self.load.next_request()
        if request is None:
            self.transport.close()
            self._end()
            return
        self.number, content = request
        self.asked += 1
        self.buffer.clear()
        self.text = b""
        self.last = 0.0
        self.ended = False
        self.start = time.perf_counter()
        self.transport.write(content)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self.buffer += data
        while (end := self.buffer.find(b"\n\n")) >= 0:
            self._read_event(bytes(self.buffer[:end]), now)
            del self.buffer[: end + 2]
        if self.ended and self.buffer.endswith(END):
            self.load.finished += 1
            self.ask()

    def _read_event(self, event: bytes, now: float) -> None:
        if not event.startswith(b"HTTP/1.1 200") and event.startswith(b"HTTP/"):
            self._fail(event[:60])
            return
        if b"data: [DONE]" in event:
            self.ended = True
            self.load.texts[self.number] = hashlib.sha256(self.text).hexdigest()
            return
        content = CONTENT.search(event)
        if content is not None:
            self.text += content[1]
            if self.last:
                self.load.gaps.append(now - self.last)
            elif self.asked == 1:
                self.load.first_wave.append(now - self.start)
            else:
                self.load.first.append(now - self.start)
            self.last = now
        usage = USAGE.search(event)
        if usage is not None:
            self.load.lengths.append(int(usage[1]))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self._fail(b"connection lost")

    def _fail(self, reason: bytes) -> None:
        self.load.failures.append(reason.decode(errors="replace"))
        self.transport.close()
        self._end()

    def _end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


class Load:
    """The requests of all clients, and what came of them."""

    def __init__(self, port: int, clients: int, max_tokens: int, spread: float, prompts: list[str]):
        self.port = port
        self.clients = clients
        self.spread = spread
        self.requests = [self._request(prompt, max_tokens) for prompt in prompts]
        self.sent = 0
        self.finished = 0
        self.lengths: list[int] = []  # tokens of each answer
        self.first_wave: list[float] = []
        self.first: list[float] = []
        self.gaps: list[float] = []
        self.texts: dict[int, str] = {}
        self.failures: list[str] = []

    def _request(self, prompt: str, max_tokens: int) -> bytes:
        body = {
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        content = json.dumps(body).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        return head.encode() + content

    def next_request(self) -> tuple[int, bytes] | None:
        if self.sent == len(self.requests):
            return None
        number = self.sent
        self.sent += 1
        return number, self.requests[number]

    async def run(self) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        clients = []
        for _ in range(self.clients):
            _, client = await loop.create_connection(lambda: Client(self), "127.0.0.1", self.port)
            clients.append(client)
        cpu = _cpu()
        start = time.perf_counter()
        draw = random.Random(0)
        for client in clients:
            loop.call_later(self.spread * draw.random(), client.ask)
        await asyncio.wait_for(asyncio.gather(*(client.done for client in clients)), PATIENCE)
        return {
            "seconds": time.perf_counter() - start,
            "cpu": _cpu() - cpu,
            "tokens": sum(self.lengths),
            "lengths": self.lengths,
            "finished": self.finished,
            "failures": self.failures[:10],
            "failed": len(self.failures),
            "first_wave": self.first_wave,
            "first": self.first,
            "gaps": self.gaps,
            "texts": [self.texts.get(number) for number in range(len(self.requests))],
        }


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard) if soft < 4096 else soft, hard))
    print(json.dumps(asyncio.run(Load(**json.load(sys.stdin)).run())))


if __name__ == "__main__":
    main()
