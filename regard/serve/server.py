"""What `regard serve` does: start the engines, listen, and stop without losing an answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn

from regard.disk import MANIFEST
from regard.errors import BundleError, InputError
from regard.resources import available_cores
from regard.serve.app import CountsRequests, State, create_app
from regard.serve.engine_client import Engines
from regard.serve.http_protocol import ConnectionLimits, uvicorn_settings, with_open_files
from regard.serve.limits import DEFAULT_LIMITS, Limits
from regard.serve.metrics import Metrics
from regard.serve.safety import allowed_hosts, body_limits, check_binding, protect

LOG = logging.getLogger("regard.serve")
# What it says of a bad form is in the answer; a client must not be able to fill the log.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)
BACKLOG = 2048  # connections that wait to be accepted
DRAIN_POLL = 0.05
END_SECONDS = 1.0  # in which the last errors are sent, after the time to drain


@dataclass(frozen=True)
class Settings:
    """How a server runs.

    runs         the folders of the runs, by the name of the model
    key          what clients must send; None: anybody who reaches the server may ask
    hosts        names by which requests may address the server, beside those of loopback
    workers      engine processes of each run
    threads      of an engine process; None: the cores are divided among the engine processes, but
                 one core is left to the web process and to the system
    """

    runs: dict[str, Path]
    host: str = "127.0.0.1"
    port: int = 8000
    key: str | None = field(default=None, repr=False)
    insecure: bool = False
    hosts: Sequence[str] = ()
    workers: int = 1
    threads: int | None = None
    device: str = "auto"
    limits: Limits = DEFAULT_LIMITS
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)


def model_names(runs: Sequence[Path]) -> dict[str, Path]:
    """A name for each run: that of its folder.

    >>> list(model_names([Path("runs/demo"), Path("runs/numbers/")]))
    ['demo', 'numbers']
    """
    named: dict[str, Path] = {}
    for run in runs:
        name = os.path.basename(os.path.realpath(run))  # Path.resolve raises for a loop of links
        if name in named:
            raise InputError(
                "two runs have the same name", where=name, hint="rename the folder of one of them"
            )
        named[name] = run
    return named


async def serve(settings: Settings, *, on_ready: Callable[[int], None] = lambda port: None) -> None:
    """Serve until SIGTERM or SIGINT. `on_ready` is called with the port when all models are
    loaded."""
    check_binding(settings.host, settings.key is not None, settings.insecure)
    hosts = allowed_hosts(settings.host, settings.hosts)
    for run in settings.runs.values():
        _check_run(run)
    listener = _bound(settings.host, settings.port)
    metrics = Metrics()
    engines = _engines(settings, metrics)
    try:
        await _start(engines)
    except BaseException:
        listener.close()
        raise

    state = State()
    app = protect(
        create_app(engines, metrics, state),
        hosts=hosts,
        key=settings.key,
        body_limit=body_limits(settings.limits),
    )
    server = uvicorn.Server(_config(CountsRequests(app, metrics), settings))
    stop = _stop_on_signals(server, state, engines, settings.limits)
    try:
        # Not before the models are loaded: a proxy must not wait for them, but ask another server.
        _check_address(settings.host, settings.port, lambda: listener.listen(BACKLOG))
        on_ready(listener.getsockname()[1])
        await server.serve(sockets=[listener])
    finally:
        listener.close()
        stop()
        await _close(engines)


def _engines(settings: Settings, metrics: Metrics) -> dict[str, Engines]:
    """The engines of all runs, which are not started yet."""
    threads = settings.threads or threads_of_each(len(settings.runs) * settings.workers)
    return {
        name: Engines(
            name,
            run,
            limits=settings.limits,
            workers=settings.workers,
            device=settings.device,
            threads=threads,
            metrics=metrics,
        )
        for name, run in settings.runs.items()
    }


def threads_of_each(processes: int) -> int:
    """The threads of each of so many engine processes."""
    return max(1, (available_cores() - 1) // processes)


def _check_run(run: Path) -> None:
    """Refuse what is no run at once; an engine process would need seconds to say so."""
    if not os.path.isdir(run):  # Path.is_dir raises for a name that is too long
        hint = "train one with: regard train chat-attention"
        raise BundleError("no such run", where=str(run)[:200], hint=hint)
    if not (run / MANIFEST).exists():
        raise BundleError("not a run folder: it has no manifest.json", where=run)


async def _start(engines: dict[str, Engines]) -> None:
    """Load all models at the same time. If one cannot be loaded, no process is left behind."""
    try:
        async with asyncio.TaskGroup() as group:
            for each in engines.values():
                group.create_task(each.start())
    except BaseException as problem:  # Ctrl-C, too
        await _close(engines)
        raise problem.exceptions[0] if isinstance(problem, ExceptionGroup) else problem from None


async def _close(engines: dict[str, Engines]) -> None:
    await asyncio.gather(*(each.close() for each in engines.values()))


def _bound(host: str, port: int) -> socket.socket:
    """A socket that has this address and does not listen yet."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        _check_address(host, port, lambda: listener.bind((host, port)))
    except InputError:
        listener.close()
        raise
    return listener


def _check_address(host: str, port: int, use: Callable[[], None]) -> None:
    """Use an address, or say that it cannot be used. Two servers may be bound to one as long as
    neither of them listens."""
    try:
        use()
    except OSError as problem:
        raise InputError(
            "cannot listen on this address",
            where=f"{host}:{port}",
            got=problem.strerror,
            hint="choose another with --port",
        ) from None


def _config(app: object, settings: Settings) -> uvicorn.Config:
    connections = with_open_files(settings.connections)
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        **uvicorn_settings(connections),
    )


def _stop_on_signals(
    server: uvicorn.Server, state: State, engines: dict[str, Engines], limits: Limits
) -> Callable[[], None]:
    """On SIGTERM and SIGINT: refuse new requests at once, wait for those under way, then stop.
    Answers that have not ended after `limits.drain` seconds end with an error. A second signal
    stops at once."""
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()

    async def drain() -> None:
        deadline = loop.time() + limits.drain
        while loop.time() < deadline and any(each.under_way for each in engines.values()):
            await asyncio.sleep(DRAIN_POLL)
        # What is left of the time is for clients that still read their answers.
        left = max(0.0, deadline - loop.time()) + END_SECONDS
        server.config.timeout_graceful_shutdown = left  # type: ignore[assignment]
        for each in engines.values():
            each.stop()
        server.should_exit = True

    def on_signal() -> None:
        if state.draining:
            server.should_exit = True
            server.force_exit = True
            return
        state.draining = True
        for each in engines.values():
            each.drain()
        LOG.warning("stopping: %s requests under way", sum(e.under_way for e in engines.values()))
        tasks.add(asyncio.create_task(drain()))

    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)

    def restore() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    return restore
