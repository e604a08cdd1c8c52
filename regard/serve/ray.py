"""The same API on many machines: an application of Ray Serve.

    REGARD_RUNS=runs/demo serve run regard.serve.ray:app
    serve run regard.serve.ray:app runs=/models/demo key_file=/run/secrets/key max_replicas=8

`app` is a builder, so nothing happens when this module is imported. Each replica is a web process
with engine processes of its own, which end with it, also if it is killed.

Ray's proxy may listen on every address (`proxy_location`, `http_options`), and a replica cannot see
that. So a key is needed, unless `insecure` says that anybody may ask. Replicas read it themselves,
from a file or from REGARD_KEY in the environment of `ray start`: it is in no argument that Ray's
dashboard shows.

If a replica dies in the middle of a stream, Ray's proxy only closes the connection, which some
clients take for the end of the answer. With this in the environment of `ray start` they get an
error:

    RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=regard.serve.ray.proxy_middlewares
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from regard.errors import InputError, RegardError, did_you_mean
from regard.serve.api_errors import ApiError
from regard.serve.app import State, create_app
from regard.serve.engine_client import Engines
from regard.serve.event_stream import DONE, event
from regard.serve.limits import DEFAULT_LIMITS, Limits
from regard.serve.metrics import Metrics
from regard.serve.safety import (
    App,
    Message,
    Receive,
    Scope,
    Send,
    allowed_hosts,
    body_limits,
    choose_key,
    protect,
    refuse,
)
from regard.serve.server import model_names

LOG = logging.getLogger("regard.serve")


class Arguments(BaseModel):
    """What `serve run regard.serve.ray:app NAME=VALUE…` may say.

    runs          folders of runs, separated by ":"; else those of REGARD_RUNS
    key_file      a file with the key, on every machine; else REGARD_KEY
    insecure      whether requests need no key
    hosts         names by which requests may address the service, separated by ","
    workers       engine processes of each run, in each replica
    cpus          cores of a replica
    min_replicas  replicas without any load
    max_replicas  replicas under the highest load
    """

    model_config = ConfigDict(extra="forbid")

    runs: str | None = None
    key_file: str | None = None
    insecure: bool = False
    hosts: str = ""
    workers: Annotated[int, Field(ge=1, le=256)] = 1
    cpus: Annotated[int, Field(ge=1, le=1024)] = 1
    min_replicas: Annotated[int, Field(ge=1, le=1000)] = 1
    max_replicas: Annotated[int, Field(ge=1, le=1000)] = 4
    device: str = "auto"


@dataclass(frozen=True)
class ReplicaSettings:
    """What a replica needs to begin. It is sent to it, so the key is not in it."""

    runs: dict[str, Path]
    key_file: Path | None
    insecure: bool
    hosts: tuple[str, ...]
    workers: int
    threads: int
    device: str
    limits: Limits = DEFAULT_LIMITS


def app(arguments: Arguments | Mapping[str, Any]) -> Any:
    """The application of Ray Serve. The command line and configuration files give a mapping, with
    every value as text."""
    arguments = read_arguments(arguments)
    try:
        serve = import_module("ray.serve")
    except ImportError:
        raise InputError("this needs Ray Serve", hint="pip install 'regard[serve,ray]'") from None
    settings = replica_settings(arguments, os.environ)
    replica = serve.ingress(ReplicaApp(settings))(Replica)
    return serve.deployment(name="regard", **deployment_options(arguments, settings.limits))(
        replica
    ).bind()


def read_arguments(arguments: Arguments | Mapping[str, Any]) -> Arguments:
    if isinstance(arguments, Arguments):
        return arguments
    try:
        return Arguments.model_validate(dict(arguments))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
    name = str(problem["loc"][0])
    if problem["type"] == "extra_forbidden":
        raise InputError(
            "no such argument", got=name, hint=did_you_mean(name, Arguments.model_fields)
        )
    raise InputError(problem["msg"], where=name, got=repr(problem["input"]))


def replica_settings(arguments: Arguments, environment: Mapping[str, str]) -> ReplicaSettings:
    """The settings of each replica, checked where the application is built."""
    text = arguments.runs if arguments.runs is not None else environment.get("REGARD_RUNS", "")
    runs = [Path(part).absolute() for part in text.split(os.pathsep) if part]
    if not runs:
        raise InputError("there is no run to serve", hint="give runs=FOLDER, or set REGARD_RUNS")
    if arguments.max_replicas < arguments.min_replicas:
        raise InputError(
            "max_replicas is less than min_replicas",
            got=f"{arguments.max_replicas} and {arguments.min_replicas}",
        )
    hosts = tuple(name.strip() for name in arguments.hosts.split(",") if name.strip())
    return ReplicaSettings(
        runs=model_names(runs),
        key_file=None if arguments.key_file is None else Path(arguments.key_file).absolute(),
        insecure=arguments.insecure,
        hosts=hosts,
        workers=arguments.workers,
        threads=max(1, arguments.cpus // (len(runs) * arguments.workers)),
        device=arguments.device,
    )


def deployment_options(arguments: Arguments, limits: Limits) -> dict[str, Any]:
    """How Ray scales and stops replicas. Its defaults do not suit an engine that batches:

    max_ongoing_requests     5 by default, so a batch would never be full. Here it is our queue, and
                             our 429 with Retry-After is what clients see first; with many workers
                             it is twice what their batches hold, so that the target can be passed
    target_ongoing_requests  2 by default, so one batch would start 32 replicas
    max_replicas             1 by default, so nothing would scale
    max_queued_requests      without a bound by default, in the memory of the proxy
    graceful_shutdown        20 seconds by default, less than our drain
    """
    rows = limits.rows * arguments.workers
    return {
        "max_ongoing_requests": max(limits.queue, 2 * rows),
        "max_queued_requests": limits.queue,
        "autoscaling_config": {
            "min_replicas": arguments.min_replicas,
            "max_replicas": arguments.max_replicas,
            "target_ongoing_requests": rows,
        },
        "graceful_shutdown_timeout_s": limits.drain + 10,
        "health_check_period_s": 5,
        "health_check_timeout_s": 10,
        "ray_actor_options": {"num_cpus": arguments.cpus},
    }


class ReplicaApp:
    """The ASGI app of a replica: engines start and end with its lifespan."""

    def __init__(self, settings: ReplicaSettings):
        self.settings = settings
        self.engines: dict[str, Engines] = {}
        self._app: App | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        assert self._app is not None
        await self._app(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self._start()
        except RegardError as problem:
            LOG.error("%s", problem)
            await self._close()
            await send({"type": "lifespan.startup.failed", "message": str(problem)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _start(self) -> None:
        settings = self.settings
        key = choose_key(settings.key_file, os.environ)
        if key is None and not settings.insecure:
            raise InputError(
                "Ray's proxy may be reached from other machines, and there is no key",
                hint="give key_file=FILE, or set REGARD_KEY where `ray start` runs; "
                "insecure=true allows anybody",
            )
        metrics = Metrics()
        for name, run in settings.runs.items():
            engines = Engines(
                name,
                run,
                limits=settings.limits,
                workers=settings.workers,
                device=settings.device,
                threads=settings.threads,
                metrics=metrics,
            )
            self.engines[name] = engines
            await engines.start()
        self._app = protect(
            create_app(self.engines, metrics, State()),
            hosts=allowed_hosts("0.0.0.0", settings.hosts),  # noqa: S104 -- the proxy listens
            key=key,
            body_limit=body_limits(settings.limits),
        )

    async def _close(self) -> None:
        for engines in self.engines.values():
            await engines.close()

    def check(self) -> None:
        """Raise if a model cannot answer and will not be able to: Ray then replaces the replica."""
        for name, engines in self.engines.items():
            problems = [process.problem for process in engines.processes]
            if all(problems):
                raise RuntimeError(f"{name}: {problems[0]}")


class Replica:
    """What Ray runs; `serve.ingress` adds the app, as `self.app`."""

    app: ReplicaApp

    def check_health(self) -> None:
        self.app.check()


# --- in Ray's proxy ---


class SaysThatTheReplicaEnded:
    """Ends an answer that the proxy has given up: with an error event in a stream, with 503 if
    nothing has been sent yet."""

    def __init__(self, app: App):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        progress = Progress(send)
        await self.app(scope, receive, progress.send)
        problem = ApiError(503, "the replica ended while it answered; try again", retry_after=1)
        if not progress.started:
            await refuse(send, problem)
        elif progress.streams and not progress.complete:
            content = event(problem.body()) + DONE
            await send({"type": "http.response.body", "body": content, "more_body": False})


class Progress:
    """How far an answer has come."""

    def __init__(self, send: Send):
        self._send = send
        self.started = False
        self.streams = False
        self.complete = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            headers = {name.lower(): value for name, value in message.get("headers", ())}
            self.streams = headers.get(b"content-type", b"").startswith(b"text/event-stream")
        elif message["type"] == "http.response.body":
            self.complete = not message.get("more_body", False)
        await self._send(message)


def proxy_middlewares() -> list[Any]:
    """What Ray's proxy is to call for each request."""
    from starlette.middleware import Middleware

    return [Middleware(SaysThatTheReplicaEnded)]
