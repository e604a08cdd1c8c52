"""The web process's side of the engine processes of one run.

`Engines` starts them, sends each job to the one with the fewest, restarts one that dies, and keeps
what is under way within the bounds of `Limits`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import os
import socket
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.errors import BundleError
from regard.serve.api_errors import ApiError
from regard.serve.frames import BrokenFrame, Frame, read_frame_async
from regard.serve.jobs import Job, Update, cancel_frame, failure
from regard.serve.limits import Limits
from regard.serve.metrics import Metrics

LOG = logging.getLogger("regard.serve")
DEATHS = 3  # within DEATH_WINDOW seconds: the process is left alone
DEATH_WINDOW = 60.0
RATE_WINDOW = 60.0  # seconds over which the rate of finished jobs is measured
STOP_SECONDS = 5.0  # that an engine process has to end after its socket is closed
LARGEST_FRAME = 1 << 26


@dataclass
class Pending:
    """A job that is waiting or under way: its updates, and what it counts for."""

    updates: asyncio.Queue[Update]
    tokens: int
    sent_at: float = field(default_factory=time.monotonic)
    last_token_at: float | None = None


class EngineProcessClient:
    """One engine process."""

    def __init__(self, run: Path, name: str, *, device: str, threads: int, rows: int):
        self.run = run
        self.name = name
        self.description: dict[str, Any] | None = None
        self.pending: dict[int, Pending] = {}
        self.rows = 0
        self.problem: str | None = None  # why it cannot be used
        self._arguments = ["--run", str(run), "--name", name, "--device", device]
        self._arguments += ["--threads", str(threads), "--rows", str(rows)]
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._deaths: deque[float] = deque(maxlen=DEATHS)
        self._closing = False

    @property
    def is_ready(self) -> bool:
        return self._writer is not None and self.description is not None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the process, and wait until its model is loaded."""
        ours, theirs = socket.socketpair()
        environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "regard.serve.engine_process",
            "--socket",
            str(theirs.fileno()),
            *self._arguments,
            pass_fds=[theirs.fileno()],
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the web process, which lets jobs finish
            env=environment,
        )
        theirs.close()
        reader, writer = await asyncio.open_connection(sock=ours, limit=LARGEST_FRAME)
        frame = await _first_frame(reader)
        if frame is None or "ready" not in frame.header:
            writer.close()
            await self._process.wait()
            reason = "the engine process ended while it loaded the model"
            raise BundleError(reason if frame is None else frame.header["unusable"])
        self.description = frame.header["ready"]
        self._writer = writer
        self._reading = asyncio.create_task(self._read(reader))

    def send(self, job: Job, tokens: int) -> Pending:
        assert self._writer is not None
        pending = Pending(asyncio.Queue(), tokens)
        self.pending[job.number] = pending
        self._writer.write(job.to_frame().to_bytes())
        return pending

    def forget(self, number: int) -> None:
        """Cancel a job whose updates nobody reads any more."""
        if self.pending.pop(number, None) is not None and self._writer is not None:
            self._writer.write(cancel_frame(number).to_bytes())

    async def close(self) -> None:
        self._closing = True
        if self._writer is not None:
            self._writer.close()
        if self._process is None:
            return
        if not self.is_ready:  # it is still loading its model, and would go on
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        try:
            await asyncio.wait_for(self._process.wait(), STOP_SECONDS)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(BrokenFrame, OSError):
            while (frame := await read_frame_async(reader)) is not None:
                self.rows = frame.header.get("rows", 0)
                for update in frame.header["updates"]:
                    pending = self.pending.get(update["job"])
                    if pending is not None:
                        pending.updates.put_nowait(update)
        if not self._closing:
            await self._restart()

    async def _restart(self) -> None:
        """After the process has died: its jobs fail, and another one is started."""
        self._writer = None
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        status = await self._process.wait()
        LOG.error("%s: the engine process ended (status %s); starting it again", self.name, status)
        message = "the engine process ended while it answered; try again"
        for number, pending in self.pending.items():
            pending.updates.put_nowait(failure(number, "overload", message))
        self.pending.clear()
        self.rows = 0
        self._deaths.append(time.monotonic())
        recent = [death for death in self._deaths if time.monotonic() - death < DEATH_WINDOW]
        if len(recent) >= DEATHS:
            self.problem = f"the engine process ended {DEATHS} times within a minute"
            LOG.error("%s: %s; it is left alone", self.name, self.problem)
            return
        try:
            await self.start()
        except BundleError as problem:
            self.problem = str(problem)
            LOG.error("%s: %s", self.name, problem)


async def _first_frame(reader: asyncio.StreamReader) -> Frame | None:
    try:
        return await read_frame_async(reader)
    except (BrokenFrame, OSError):
        return None


class Engines:
    """All engine processes of one run, behind one name."""

    def __init__(
        self,
        name: str,
        run: Path,
        *,
        limits: Limits,
        workers: int = 1,
        device: str = "auto",
        threads: int = 1,
        metrics: Metrics | None = None,
    ):
        self.name = name
        self.run = run
        self.limits = limits
        self.created = int(time.time())
        self.metrics = metrics or Metrics()
        self.metrics.watch(name, lambda: self.under_way, lambda: self.rows)
        self._numbers = itertools.count(1)
        self._finished: deque[float] = deque(maxlen=1024)
        self.processes = [
            EngineProcessClient(run, name, device=device, threads=threads, rows=limits.rows)
            for _ in range(workers)
        ]

    async def start(self) -> None:
        await asyncio.gather(*(process.start() for process in self.processes))

    async def close(self) -> None:
        await asyncio.gather(*(process.close() for process in self.processes))

    @property
    def description(self) -> dict[str, Any]:
        """What is known about the model."""
        for process in self.processes:
            if process.description is not None:
                return process.description
        raise ApiError(503, f"the model {self.name} is not loaded yet", retry_after=1)

    @property
    def is_ready(self) -> bool:
        return any(process.is_ready for process in self.processes)

    @property
    def under_way(self) -> int:
        """Jobs that are waiting or under way."""
        return sum(len(process.pending) for process in self.processes)

    @property
    def tokens_under_way(self) -> int:
        return sum(
            pending.tokens for process in self.processes for pending in process.pending.values()
        )

    @property
    def rows(self) -> int:
        return sum(process.rows for process in self.processes)

    def next_number(self) -> int:
        return next(self._numbers)

    def check_room(self, jobs: int, tokens: int) -> None:
        """Refuse jobs for which there is no room: 429, with the time after which there may be."""
        limits = self.limits
        full = self.under_way + jobs > limits.queue
        too_many_tokens = self.tokens_under_way + tokens > limits.tokens_under_way
        if not full and not too_many_tokens:
            return
        if not self.under_way:
            raise ApiError(400, "this request alone asks for more than the server can hold")
        raise ApiError(
            429,
            f"the server is busy: {self.under_way:,} requests are under way",
            code="queue_full",
            retry_after=self._retry_after(jobs),
        )

    def _retry_after(self, jobs: int) -> int:
        """Seconds until so many jobs have ended, at the rate of the last minute."""
        now = time.monotonic()
        recent = [moment for moment in self._finished if now - moment < RATE_WINDOW]
        if len(recent) < 2:
            return 1
        rate = (len(recent) - 1) / max(recent[-1] - recent[0], 1e-3)
        return min(60, max(1, math.ceil(jobs / rate)))

    async def answer(self, job: Job, *, tokens: int) -> AsyncGenerator[Update, None]:
        """The updates of a job, to its last one. Closing this iterator cancels the job."""
        process = self._least_busy()
        pending = process.send(job, tokens)
        deadline = pending.sent_at + self.limits.deadline
        try:
            while True:
                update = await self._next_update(pending, deadline)
                yield update
                if "finished" in update or "failed" in update:
                    self._ended(process, job, update)
                    return
        finally:
            process.forget(job.number)

    async def _next_update(self, pending: Pending, deadline: float) -> Update:
        remaining = deadline - time.monotonic()
        try:
            async with asyncio.timeout(max(remaining, 0.001)):
                update = await pending.updates.get()
        except TimeoutError:
            self.metrics.errors.labels(self.name, "deadline").inc()
            raise ApiError(
                503,
                f"no answer within {self.limits.deadline:g} seconds",
                code="deadline",
                retry_after=self._retry_after(1),
            ) from None
        if "token" in update:
            self._measure_token(pending)
        return update

    def _measure_token(self, pending: Pending) -> None:
        now = time.monotonic()
        if pending.last_token_at is None:
            self.metrics.first_token.labels(self.name).observe(now - pending.sent_at)
        else:
            self.metrics.token.labels(self.name).observe(now - pending.last_token_at)
        pending.last_token_at = now

    def _least_busy(self) -> EngineProcessClient:
        ready = [process for process in self.processes if process.is_ready]
        if not ready:
            problem = next((p.problem for p in self.processes if p.problem), "it is being started")
            raise ApiError(503, f"the model {self.name} cannot answer: {problem}", retry_after=1)
        return min(ready, key=lambda process: len(process.pending))

    def _ended(self, process: EngineProcessClient, job: Job, update: Update) -> None:
        process.pending.pop(job.number, None)
        self._finished.append(time.monotonic())
        if "finished" in update:
            self.metrics.tokens.labels(self.name).inc(len(update["finished"]["tokens"]))
        else:
            self.metrics.errors.labels(self.name, update["failed"]["fault"]).inc()
