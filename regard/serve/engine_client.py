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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import BundleError
from regard.serve.api_errors import ApiError, being_stopped
from regard.serve.frames import BrokenFrame, read_frame_async
from regard.serve.jobs import Job, Update, cancel_frame, failure
from regard.serve.limits import Limits
from regard.serve.metrics import Metrics

LOG = logging.getLogger("regard.serve")
DEATHS = 3  # within DEATH_WINDOW seconds: the process is left alone for a while
DEATH_WINDOW = 60.0
RESTART_PAUSE = 1.0  # seconds, after a process could not be started
FIRST_PAUSE = 30.0  # seconds that a process is left alone; twice as many each time
LONGEST_PAUSE = 300.0
RATE_WINDOW = 60.0  # seconds over which the rate of finished jobs is measured
LONGEST_RETRY = 60  # seconds
STOP_SECONDS = 5.0  # that an engine process has to end after its socket is closed
LARGEST_FRAME = 1 << 26
STATUS = {"input": 400, "model": 500, "overload": 503}  # by whose fault it is


class DiedWhileLoading(BundleError):
    """An engine process that ended before it could say what is wrong with its run, if anything."""


# The number of an answer among those of its request, and what is reported of it.
Arrival = tuple[int, Update]


class Inbox:
    """What has come of the answers of one request.

    Whoever reads it gets everything that has come since the last time: a client that is slower than
    the engine gets several tokens at once, and costs one task switch for all of them. `on_change`,
    if it is set, is called instead, without a task switch.
    """

    def __init__(self) -> None:
        self.on_change: Callable[[], None] | None = None
        self.problem: ApiError | None = None  # why nothing more is waited for
        self._arrivals: list[Arrival] = []
        self._waiting: asyncio.Future[None] | None = None

    def put(self, index: int, update: Update) -> None:
        self._arrivals.append((index, update))
        self._changed()

    def fail(self, problem: ApiError) -> None:
        """End the waiting."""
        self.problem = problem
        self._changed()

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()
        elif self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def drain(self) -> list[Arrival]:
        """What has come since the last time."""
        arrivals = self._arrivals
        self._arrivals = []
        return arrivals

    async def take(self) -> list[Arrival]:
        """At least one arrival, unless there is a problem."""
        while not self._arrivals and self.problem is None:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return self.drain()


@dataclass
class Pending:
    """An answer that is waiting or under way: where its updates go, and what it counts for."""

    inbox: Inbox
    index: int  # among the answers of its request
    tokens: int
    sent_at: float
    last_token_at: float | None = None


class EngineProcessClient:
    """One engine process."""

    def __init__(self, run: Path, name: str, *, device: str, threads: int, rows: int):
        self.run = run
        self.name = name
        self.description: dict[str, Any] | None = None
        self.pending: dict[int, Pending] = {}
        self.tokens = 0  # of all that is pending
        self.rows = 0
        self.problem: str | None = None  # why it is left alone for a while
        self.retry_at = 0.0  # when it is started again, if there is a problem
        self._arguments = ["--run", str(run), "--name", name, "--device", device]
        self._arguments += ["--threads", str(threads), "--rows", str(rows)]
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._deaths: deque[float] = deque(maxlen=DEATHS)
        self._long_pauses = 0  # since it last lived for a minute
        self._started_at: float | None = None
        self._stopping = asyncio.Event()  # no more jobs will come
        self._closing = False

    @property
    def is_ready(self) -> bool:
        return self._writer is not None and self.description is not None

    @property
    def given_up(self) -> bool:
        """Whether starting it again after a pause has not helped either."""
        return not self.is_ready and self._long_pauses > 1

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the process, and wait until its model is loaded."""
        ours, theirs = socket.socketpair()
        environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
        try:
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
            reader, writer = await asyncio.open_connection(sock=ours, limit=LARGEST_FRAME)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        header = await _first_header(reader)
        if "ready" not in header:
            writer.close()
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            if "unusable" in header:
                raise BundleError(header["unusable"])
            raise DiedWhileLoading("the engine process ended while it loaded the model")
        self.description = header["ready"]
        self._writer = writer
        self._started_at = time.monotonic()
        self._reading = asyncio.create_task(self._read(reader))

    def send(self, job: Job, inbox: Inbox, first_index: int, tokens: int) -> None:
        """Send a job. Its answers have the numbers `first_index`, … among those of their request,
        and each counts for `tokens`."""
        assert self._writer is not None
        now = time.monotonic()
        for index, number in enumerate(job.numbers, first_index):
            self.pending[number] = Pending(inbox, index, tokens, now)
            self.tokens += tokens
        self._writer.write(job.to_frame().to_bytes())

    def remove(self, number: int) -> int | None:
        """Remove an answer that has ended. Returns for how many tokens it counted; None: it was
        removed before."""
        pending = self.pending.pop(number, None)
        if pending is None:
            return None
        self.tokens -= pending.tokens
        return pending.tokens

    def forget(self, number: int) -> None:
        """Cancel an answer whose updates nobody reads any more."""
        if self.remove(number) is not None and self._writer is not None:
            self._writer.write(cancel_frame(number).to_bytes())

    def drain(self) -> None:
        """Do not start it again if it dies: no more jobs will come."""
        self._stopping.set()

    async def close(self) -> None:
        self._closing = True
        self.drain()
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
        """Pass on what the process reports, until it ends. One that reports nonsense is ended."""
        try:
            while (frame := await read_frame_async(reader)) is not None:
                self.rows = frame.header.get("rows", 0)
                for update in frame.header["updates"]:
                    pending = self.pending.get(update["job"])
                    if pending is not None:
                        pending.inbox.put(pending.index, update)
        except OSError:
            pass
        except Exception as problem:
            kind = type(problem).__name__
            LOG.error("%s: the engine process sent nonsense: %s: %s", self.name, kind, problem)
        if not self._closing:
            await self._after_death()

    async def _after_death(self) -> None:
        """After the process has died: its jobs fail, and another one is started."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        status = await self._process.wait()
        LOG.error("%s: the engine process ended (status %s)", self.name, status)
        message = "the engine process ended while it answered; try again"
        interrupted = dict(self.pending)
        self.pending.clear()
        self.tokens = 0
        self.rows = 0
        for number, pending in interrupted.items():
            pending.inbox.put(pending.index, failure(number, "overload", message))
        await self._start_again()

    async def _start_again(self) -> None:
        """Start the process until it is ready. After a few deaths, or failed starts, it is left
        alone for a while: what it needs may be there later (memory, a volume with the run), and
        until then it must not take the machine's time."""
        reason = "the engine process ends again and again"
        pause = self._long_pause()
        short_pause = 0.0
        while not self._stopping.is_set():
            if pause:
                self.problem = reason
                self.retry_at = time.monotonic() + pause
                LOG.error("%s: %s; it is started again in %g s", self.name, reason, pause)
            await self._sleep(pause or short_pause)
            if self._stopping.is_set():
                return
            try:
                await self.start()
            except DiedWhileLoading as problem:
                reason = str(problem)
                pause = self._long_pause()
            except BundleError as problem:
                reason = str(problem)
                pause = self._long_pause(at_once=True)
            except OSError as problem:  # no memory, or no more processes
                reason = f"the engine process could not be started: {problem.strerror or problem}"
                pause = self._long_pause()
            else:
                self.problem = None
                return
            short_pause = RESTART_PAUSE

    def _long_pause(self, *, at_once: bool = False) -> float:
        """Count a death, or a failed start. Returns the seconds for which the process is left alone
        now; 0 unless it was the third within a minute, or the first after such a pause."""
        now = time.monotonic()
        if self._started_at is not None and now - self._started_at >= DEATH_WINDOW:
            self._long_pauses = 0  # it lived
        self._started_at = None
        self._deaths.append(now)
        recent = [death for death in self._deaths if now - death < DEATH_WINDOW]
        if len(recent) < DEATHS and not self._long_pauses and not at_once:
            return 0.0
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**self._long_pauses)
        self._long_pauses += 1
        return pause

    async def _sleep(self, seconds: float) -> None:
        """Wait, but not if the server stops meanwhile."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)


async def _first_header(reader: asyncio.StreamReader) -> dict[str, Any]:
    """What a process says about its model; empty if it has ended, or sends no frame."""
    try:
        frame = await read_frame_async(reader)
    except (BrokenFrame, OSError, ValueError):
        return {}
    return {} if frame is None else frame.header


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
        # Of this model: to find a child by its label costs more than to observe a value.
        self._first_token = self.metrics.first_token.labels(name)
        self._token = self.metrics.token.labels(name)
        self._numbers = itertools.count(1)
        # Of the answers that ended last: when, and for how many tokens each counted.
        self._ended: deque[tuple[float, int]] = deque(maxlen=1024)
        self.stopped = False
        self.processes = [
            EngineProcessClient(run, name, device=device, threads=threads, rows=limits.rows)
            for _ in range(workers)
        ]

    async def start(self) -> None:
        await asyncio.gather(*(process.start() for process in self.processes))

    async def close(self) -> None:
        await asyncio.gather(*(process.close() for process in self.processes))

    def drain(self) -> None:
        """No more jobs will come: a process that dies is not started again."""
        for process in self.processes:
            process.drain()

    def stop(self) -> None:
        """End every answer that is under way, and those that would still begin, with an error."""
        self.stopped = True
        inboxes = {
            pending.inbox for process in self.processes for pending in process.pending.values()
        }
        for inbox in inboxes:  # one for each request
            self.metrics.errors.labels(self.name, "stopped").inc()
            inbox.fail(being_stopped())

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
    def given_up(self) -> bool:
        """Whether no process can answer, and starting them again after a pause has not helped."""
        return all(process.given_up for process in self.processes)

    @property
    def under_way(self) -> int:
        """Answers that are waiting or under way."""
        return sum(len(process.pending) for process in self.processes)

    @property
    def tokens_under_way(self) -> int:
        return sum(process.tokens for process in self.processes)

    @property
    def rows(self) -> int:
        return sum(process.rows for process in self.processes)

    def next_number(self) -> int:
        return next(self._numbers)

    def check_room(self, jobs: int, tokens: int) -> None:
        """Refuse jobs for which there is no room: 429, with the time after which there may be, or
        400 if there never is."""
        limits = self.limits
        if jobs > limits.queue or tokens > limits.tokens_under_way:
            raise ApiError(400, "this request alone asks for more than the server can hold")
        missing_jobs = self.under_way + jobs - limits.queue
        missing_tokens = self.tokens_under_way + tokens - limits.tokens_under_way
        if missing_jobs <= 0 and missing_tokens <= 0:
            return
        raise ApiError(
            429,
            f"the server is busy: {self.under_way:,} answers are waiting or under way",
            code="queue_full",
            retry_after=self._retry_after(missing_jobs, missing_tokens),
        )

    def _retry_after(self, jobs: int, tokens: int = 0) -> int:
        """Seconds until so many answers have ended, and so many tokens are no longer under way, at
        the rate of the last minute.

        The rate is measured until now, so silence counts. As long as fewer than two answers have
        ended, it is as if one ended now.
        """
        now = time.monotonic()
        recent = [(moment, size) for moment, size in self._ended if now - moment < RATE_WINDOW]
        began = recent[0][0] if recent else min(self._begins(), default=now)
        sizes = [size for _, size in recent[1:]] or [self._mean_tokens()]
        seconds = now - began
        for_jobs = jobs * seconds / len(sizes)
        for_tokens = tokens * seconds / max(1, sum(sizes))
        return min(LONGEST_RETRY, max(1, math.ceil(max(for_jobs, for_tokens))))

    def _begins(self) -> list[float]:
        """When the answers that are waiting or under way came."""
        return [
            pending.sent_at for process in self.processes for pending in process.pending.values()
        ]

    def _mean_tokens(self) -> int:
        """For how many tokens an answer that is waiting or under way counts."""
        return self.tokens_under_way // max(1, self.under_way)

    def answers(self, jobs: Sequence[Job], *, tokens: int) -> Answers:
        """What will come of the answers of some jobs. Each counts for `tokens`."""
        return Answers(self, jobs, tokens)

    def deadline_passed(self) -> ApiError:
        self.metrics.errors.labels(self.name, "deadline").inc()
        return ApiError(
            503,
            f"no answer within {self.limits.deadline:g} seconds",
            code="deadline",
            retry_after=self._retry_after(1),
        )

    def measure_token(self, process: EngineProcessClient, update: Update) -> None:
        pending = process.pending.get(update["job"])
        if pending is None:  # the process has died since
            return
        now = time.monotonic()
        if pending.last_token_at is None:
            self._first_token.observe(now - pending.sent_at)
        else:
            self._token.observe(now - pending.last_token_at)
        pending.last_token_at = now

    def least_busy(self) -> EngineProcessClient:
        ready = [process for process in self.processes if process.is_ready]
        if not ready:
            raise self._cannot_answer()
        return min(ready, key=lambda process: len(process.pending))

    def _cannot_answer(self) -> ApiError:
        """For those who ask while no process is ready."""
        message = f"the model {self.name} cannot answer"
        waiting = [process for process in self.processes if process.problem]
        if len(waiting) < len(self.processes):
            return ApiError(503, f"{message}: it is being started", retry_after=1)
        first = min(waiting, key=lambda process: process.retry_at)
        seconds = max(1, math.ceil(first.retry_at - time.monotonic()))
        return ApiError(503, f"{message}: {first.problem}", retry_after=seconds)

    def ended(self, process: EngineProcessClient, update: Update) -> None:
        size = process.remove(update["job"])
        if size is not None:
            self._ended.append((time.monotonic(), size))
        if "finished" in update:
            self.metrics.tokens.labels(self.name).inc(len(update["finished"]["tokens"]))
        else:
            self.metrics.errors.labels(self.name, update["failed"]["fault"]).inc()


class Answers:
    """What comes of the answers of some jobs, until all have ended. If one fails, its error is
    raised. At the end of the block, the jobs that have not ended are cancelled.

    >>> async with engines.answers(jobs, tokens=100) as answers:  # doctest: +SKIP
    ...     async for arrivals in answers:
    ...         ...
    """

    def __init__(self, engines: Engines, jobs: Sequence[Job], tokens: int):
        self._engines = engines
        self._jobs = jobs
        self._tokens = tokens
        self._inbox = Inbox()
        self._processes: dict[int, EngineProcessClient] = {}  # by the number of an answer
        self._unfinished = 0
        self._failed: ApiError | None = None  # to be raised after what came before it
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Answers:
        """Send the jobs."""
        if self._engines.stopped:
            raise being_stopped()
        for job in self._jobs:
            process = self._engines.least_busy()
            process.send(job, self._inbox, len(self._processes), self._tokens)
            self._processes.update(dict.fromkeys(job.numbers, process))
        self._unfinished = len(self._processes)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._engines.limits.deadline, self._on_deadline)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._inbox.on_change = None
        if self._timer is not None:
            self._timer.cancel()
        for number, process in self._processes.items():
            process.forget(number)

    def _on_deadline(self) -> None:
        if self._unfinished:
            self._inbox.fail(self._engines.deadline_passed())

    def __aiter__(self) -> Answers:
        return self

    async def __anext__(self) -> list[Arrival]:
        while self._failed is None and self._unfinished:
            arrivals = self._count(await self._inbox.take())
            if arrivals:
                return arrivals
            if self._failed is None and self._inbox.problem is not None:
                raise self._inbox.problem
        if self._failed is not None:
            raise self._failed
        raise StopAsyncIteration

    async def push(self, take: Callable[[list[Arrival]], None]) -> None:
        """Call `take` with everything that still comes, as soon as it comes. This is the loop over
        arrivals without a switch to this task for each of them."""
        end = asyncio.get_running_loop().create_future()

        def on_change() -> None:
            if end.done():
                return
            try:
                if arrivals := self._count(self._inbox.drain()):
                    take(arrivals)
                if self._failed is not None:
                    raise self._failed
                if not self._unfinished:
                    end.set_result(None)
                elif self._inbox.problem is not None:
                    raise self._inbox.problem
            except Exception as problem:
                end.set_exception(problem)

        self._inbox.on_change = on_change
        on_change()  # for what has come since the last time
        await end

    def _count(self, arrivals: list[Arrival]) -> list[Arrival]:
        """Measure and count arrivals; those after a failure are left out."""
        for place, (_, update) in enumerate(arrivals):
            process = self._processes[update["job"]]
            if "token" in update or "begun" in update:
                self._engines.measure_token(process, update)
            elif "finished" in update:
                self._engines.ended(process, update)
                self._unfinished -= 1
            elif "failed" in update:
                self._engines.ended(process, update)
                self._failed = _failure(update["failed"])
                return arrivals[:place]
        return arrivals


def _failure(failed: Mapping[str, str]) -> ApiError:
    status = STATUS[failed["fault"]]
    kind = "api_error" if status == 500 else None
    retry_after = 1 if status == 503 else None
    return ApiError(status, failed["message"], kind, retry_after=retry_after)
