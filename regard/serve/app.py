"""The application: routes, and errors in one shape."""

from __future__ import annotations

import asyncio
import html
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.errors import RegardError
from regard.serve import ask_routes, openai_routes
from regard.serve.api_errors import ApiError, being_stopped
from regard.serve.engine_client import Engines
from regard.serve.event_stream import DIRECT_WRITE, ClientGone
from regard.serve.http_protocol import cut_off, direct_write
from regard.serve.metrics import Metrics
from regard.serve.models import Models
from regard.serve.safety import refuse
from regard.serve.schemas import definitions

LOG = logging.getLogger("regard.serve")
PAGE_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
CLIENT_CLOSED = 499  # nobody reads this answer
DIRECT = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/ask"})

Endpoint = Callable[[Request], Awaitable[Response]]


class State:
    """Whether the server takes new requests."""

    def __init__(self) -> None:
        self.draining = False


class App(FastAPI):
    """An application whose OpenAPI also defines what the bodies that are read by hand refer to."""

    def openapi(self) -> dict[str, Any]:
        schema = super().openapi()
        schema.setdefault("components", {}).setdefault("schemas", {}).update(definitions())
        return schema


def create_app(engines: Mapping[str, Engines], metrics: Metrics, state: State) -> FastAPI:
    """The API and the page for these models."""
    app = App(
        title="regard",
        summary="Models that attend.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # behind a proxy the address would be wrong
    )
    models = Models(engines)
    direct: dict[str, APIRoute] = {}
    for routes in (openai_routes.router(models), ask_routes.router(models)):
        app.include_router(routes)
        for route in routes.routes:
            if isinstance(route, APIRoute) and route.path in DIRECT:
                direct[route.path] = route
    _add_status(app, models, metrics, state)
    _add_page(app)
    _add_error_handlers(app, metrics)
    app.add_middleware(DirectRoutes, routes=direct, metrics=metrics)
    app.add_middleware(RefusesWhileDraining, state=state)
    return app


class DirectRoutes:
    """Calls the endpoints of questions without FastAPI's routing, which takes as long as several
    tokens. They read their bodies themselves, so they need nothing of it."""

    def __init__(self, app: ASGIApp, routes: Mapping[str, APIRoute], metrics: Metrics):
        self.app = app
        self.routes = routes
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = None
        if scope["type"] == "http" and scope["method"] == "POST":
            route = self.routes.get(scope["path"])
        if route is None:
            await self.app(scope, receive, send)
            return
        scope["route"] = route
        endpoint: Endpoint = route.endpoint
        try:
            answer = await endpoint(Request(scope, receive))
            await answer(scope, receive, send)
        except ApiError as problem:
            self.metrics.errors.labels("", str(problem.status)).inc()
            await _answer(problem)(scope, receive, send)
        except RegardError as problem:
            await _answer(ApiError(400, str(problem)))(scope, receive, send)
        except ClientGone:
            await PlainTextResponse("", CLIENT_CLOSED)(scope, receive, send)


class RefusesWhileDraining:
    """Refuses new questions while the server is being stopped. Not a middleware of Starlette's
    own kind, which would hold streams up."""

    def __init__(self, app: ASGIApp, state: State):
        self.app = app
        self.state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.state.draining and scope["type"] == "http" and scope["method"] == "POST":
            await _answer(being_stopped())(scope, receive, send)
            return
        await self.app(scope, receive, send)


class CountsRequests:
    """Counts every answer by route and status, also those of the layers before the app. As the
    outermost layer it also knows the connection: it offers streams the short way to it, and ends
    what is still under way when the server has no time left."""

    def __init__(self, app: ASGIApp, metrics: Metrics):
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        has_begun = False

        async def send_counted(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                # The route's own path: a client must not be able to make up labels.
                path = getattr(scope.get("route"), "path", "other")
                self.metrics.requests.labels(path, str(message["status"])).inc()
            await send(message)

        write = direct_write(send)
        if write is not None:
            scope[DIRECT_WRITE] = write
        try:
            await self.app(scope, receive, send_counted)
        except asyncio.CancelledError:  # by uvicorn, at the end of the time for stopping
            if has_begun:
                cut_off(send)
            else:
                await refuse(send_counted, being_stopped())


def _add_status(app: FastAPI, models: Models, metrics: Metrics, state: State) -> None:
    @app.get("/health")
    async def health() -> JSONResponse:
        """Whether the web process answers, and some model can or will. Only a new start of the
        server may help if not."""
        if models.engines and all(engines.given_up for engines in models.engines.values()):
            return JSONResponse({"status": "failed", "models": list(models.engines)}, 503)
        return JSONResponse({"status": "ok"})

    @app.get("/ready")
    async def ready() -> JSONResponse:
        """Whether every model can answer."""
        waiting = [name for name, engines in models.engines.items() if not engines.is_ready]
        if state.draining:
            return JSONResponse({"status": "draining"}, 503)
        if waiting:
            return JSONResponse({"status": "not ready", "models": waiting}, 503)
        return JSONResponse({"status": "ready"})

    @app.get("/metrics")
    async def read_metrics() -> Response:
        """Measures in the text format of Prometheus."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_page(app: FastAPI) -> None:
    """The page's files, read once: a name that is not among them is not found."""
    contents = {
        file.name: file.read_bytes()
        for file in files("regard.serve").joinpath("page").iterdir()
        if any(file.name.endswith(ending) for ending in PAGE_TYPES)
    }

    def page_file(name: str) -> Response:
        if name not in contents:
            raise ApiError(404, "no such file")
        kind = PAGE_TYPES["." + name.rpartition(".")[2]]
        return Response(contents[name], headers={"Content-Type": kind, "Cache-Control": "no-cache"})

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return page_file("index.html")

    @app.get("/page/{name}", include_in_schema=False)
    async def file(name: str) -> Response:
        return page_file(name)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(_docs(app.openapi()))


def _docs(schema: dict[str, Any]) -> str:
    """The API as a plain page: no script, and nothing from elsewhere."""
    rows = []
    for path, methods in schema["paths"].items():
        for method, about in methods.items():
            text = html.escape(about.get("description") or about.get("summary") or "")
            name = html.escape(f"{method.upper()} {path}")
            rows.append(f"<h2><code>{name}</code></h2><p>{text}</p>")
            body = about.get("requestBody")
            if body:
                rows.append(_folded("Fields", body))
    rows.append("<h2>Parts of bodies</h2>")
    for name, part in schema["components"]["schemas"].items():
        rows.append(_folded(name, part))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>regard: the API</title>'
        '<meta name="viewport" content="width=device-width"><main><h1>The API of regard</h1>'
        '<p>For programs: <a href="/openapi.json">openapi.json</a></p>' + "".join(rows) + "</main>"
    )


def _folded(title: str, schema: dict[str, Any]) -> str:
    text = html.escape(json.dumps(schema, indent=1, ensure_ascii=False))
    return f"<details><summary>{html.escape(title)}</summary><pre>{text}</pre></details>"


def _add_error_handlers(app: FastAPI, metrics: Metrics) -> None:
    async def on_api_error(request: Request, problem: Exception) -> Response:
        assert isinstance(problem, ApiError)
        metrics.errors.labels("", str(problem.status)).inc()
        return _answer(problem)

    async def on_regard_error(request: Request, problem: Exception) -> Response:
        return _answer(ApiError(400, str(problem)))

    async def on_wrong_field(request: Request, problem: Exception) -> Response:
        assert isinstance(problem, RequestValidationError)
        first = problem.errors()[0]
        name = str(first["loc"][-1])
        return _answer(ApiError(400, f"{name}: {first['msg']}", param=name))

    async def on_http_error(request: Request, problem: Exception) -> Response:
        assert isinstance(problem, HTTPException)
        answer = _answer(ApiError(problem.status_code, str(problem.detail)))
        answer.headers.update(problem.headers or {})
        return answer

    async def on_client_gone(request: Request, problem: Exception) -> Response:
        return PlainTextResponse("", CLIENT_CLOSED)

    async def on_other(request: Request, problem: Exception) -> Response:
        LOG.error("%s %s: %s", request.method, request.url.path, type(problem).__name__)
        return _answer(ApiError(500, "the server has a fault, which is in its log", "api_error"))

    app.add_exception_handler(ApiError, on_api_error)
    app.add_exception_handler(RegardError, on_regard_error)
    app.add_exception_handler(RequestValidationError, on_wrong_field)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(ClientGone, on_client_gone)
    app.add_exception_handler(Exception, on_other)


def _answer(problem: ApiError) -> JSONResponse:
    return JSONResponse(problem.body(), problem.status, headers=problem.headers())
