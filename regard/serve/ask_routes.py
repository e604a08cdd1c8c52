"""/v1/ask, for every kind of model, and what the page shows beside it."""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

from regard import lab
from regard.budget import lengths
from regard.budget.report import Questions, report
from regard.budget.subject import NumbersModel
from regard.disk import read_json_lines
from regard.errors import RegardError
from regard.serve import examples, questions
from regard.serve.api_errors import ApiError
from regard.serve.engine_client import Arrival, Engines
from regard.serve.event_stream import EventStream, answer_unless_gone, event
from regard.serve.fields import AskBody
from regard.serve.jobs import Job, Update
from regard.serve.models import Models, answers_of
from regard.serve.openai_routes import usage_of
from regard.serve.questions import Question, off_the_loop, read_body
from regard.serve.safety import DOCUMENT_POLICY
from regard.serve.schemas import json_body

LOG = logging.getLogger("regard.serve")
MAX_CURVE_LINES = 20_000
TRAINING = "train"  # the kind of most lines of metrics.jsonl
LAB_SECONDS = 300.0  # of an experiment, and of waiting for another one to end
RETRY_LAB = 30  # seconds
LENGTHS = tuple(2**power for power in range(4, 16))  # of the budget tab: its plot and its slider
TERMS = 3  # of the Maclaurin series

T = TypeVar("T")


def router(models: Models) -> APIRouter:
    """/v1/ask, and the routes of the page's tabs."""
    routes = APIRouter(prefix="/v1")
    pages = LabPages()

    @routes.post("/ask", openapi_extra=json_body(AskBody))
    async def ask(request: Request) -> Response:
        """Ask a model of any task: text, a conversation, a picture or a sound."""
        content = await request.body()
        body = await read_body(AskBody, content)
        engines = models.find(body.model)
        model = engines.description
        question = await off_the_loop(
            len(content), lambda: questions.from_input(model, body.input, engines.limits)
        )
        job, tokens, seed = _job(engines, body, question)
        form = AskForm(engines.name, seed if job.options["do_sample"] else None)
        if body.stream:
            return EventStream(engines.answers([job], tokens=tokens), form)
        answers = await answer_unless_gone(request, answers_of(engines, [job], tokens))
        answer, prompt_tokens = answers[0]
        return JSONResponse(form.whole(answer, prompt_tokens))

    @routes.get("/models/{name}/curves")
    async def curves(name: str) -> list[dict[str, Any]]:
        """What the training of a model has recorded."""
        file = models.find(name).run / "metrics.jsonl"
        if not file.is_file():
            raise ApiError(404, f"{name} has no record of its training")
        return await _content(_curve_lines, file, f"the record of the training of {name}")

    @routes.get("/models/{name}/report")
    async def run_report(name: str) -> Response:
        """The report of a run."""
        file = models.find(name).run / "report.html"
        if not file.is_file():
            raise ApiError(404, f"{name} has no report; make one with: regard report RUN")
        return _document(await _content(_text, file, f"the report of {name}"))

    @routes.get("/models/{name}/examples/{file}")
    async def example(name: str, file: str) -> Response:
        """A picture or sound of the run's own data."""
        model = models.find(name)
        description = model.description
        if description["input"] == "text" or file not in description["examples"]:
            raise ApiError(404, f"{name} has no example {file[:60]!r}")
        try:
            content, kind = await asyncio.to_thread(examples.read, model.run, file)
        except OSError:
            raise ApiError(404, f"the example {file!r} of {name} is not there any more") from None
        return Response(content, media_type=kind)

    @routes.get("/budget")
    async def budget(
        width: Annotated[int, Query(ge=1, le=65536)] = 512,
        layers: Annotated[int, Query(ge=1, le=256)] = 6,
        heads: Annotated[int, Query(ge=1, le=256)] = 8,
        length: Annotated[int, Query(ge=1, le=1_000_000)] = 512,
        vocabulary: Annotated[int, Query(ge=5, le=10_000_000)] = 8000,
        batch: Annotated[int, Query(ge=1, le=65536)] = 1,
    ) -> dict[str, Any]:
        """What a Transformer of these sizes costs, with softmax and with linear attention."""
        sizes = f"vocabulary={vocabulary},encoder={layers},decoder={layers}"
        sizes += f",width={width},heads={heads}"
        try:
            return await asyncio.to_thread(_budget, sizes, batch, length)
        except RegardError as problem:
            raise ApiError(400, str(problem)) from None

    @routes.get("/lab")
    async def experiments() -> list[dict[str, str]]:
        """The experiments of the lab."""
        claims = await asyncio.to_thread(_claims)
        return [{"name": name, "summary": claim} for name, claim in claims.items()]

    @routes.get("/lab/{name}")
    async def experiment(name: str, request: Request) -> Response:
        """The page of an experiment, which is run when it is first asked for."""
        if name not in await asyncio.to_thread(_claims):
            raise ApiError(404, f"no such experiment: {name[:60]!r}")
        return _document(await answer_unless_gone(request, pages.page(name)))

    return routes


@cache
def _claims() -> dict[str, str]:
    """The claims of all experiments; to read their files takes half a second."""
    return lab.claims()


def _document(text: str) -> HTMLResponse:
    """A page with a script of its own, which the browser runs apart from ours."""
    headers = {"Content-Security-Policy": DOCUMENT_POLICY, "X-Frame-Options": "SAMEORIGIN"}
    return HTMLResponse(text, headers=headers)


def _job(engines: Engines, body: AskBody, question: Question) -> tuple[Job, int, int]:
    """The job of a question, what it counts for, and its seed."""
    model = engines.description
    limits = engines.limits
    if body.alternatives > limits.alternatives:
        most = limits.alternatives
        raise ApiError(400, f"alternatives must be at most {most}", param="alternatives")
    if len(body.prefix) > limits.prefix:
        raise ApiError(400, f"prefix has at most {limits.prefix} tokens", param="prefix")
    questions.check_length(question, limits, "input")
    changes = dict(body.options)
    seed = questions.take_seed(body.seed, changes)
    if seed is None:
        seed = questions.new_seed()
    if body.prefix:
        changes = {"num_beams": 1, "candidates": 1, "retrieved": 0} | changes
        if model["options"]["do_sample"] and not body.greedy:
            changes = {"do_sample": True} | changes
    options = questions.search_options(model, limits, greedy=body.greedy, changes=changes)
    tokens = questions.tokens_of(question, options, model)
    engines.check_room(1, tokens)
    job = Job(
        numbers=(engines.next_number(),),
        seeds=(questions.seed_of_choice(seed, 0),),
        input=question.text,
        options=options.model_dump(),
        stops=questions.stop_list(body.stop, limits),
        prefix=tuple(body.prefix),
        stream=body.stream,
        logprobs=True,
        attention=body.attention,
        alternatives=body.alternatives,
        effect=body.effect,
        media=question.media,
    )
    return job, tokens, seed


class AskForm:
    """The shape of an answer of /v1/ask."""

    def __init__(self, model: str, seed: int | None):
        self.id = f"ask-{secrets.token_hex(12)}"
        self.created = int(time.time())
        self.model = model
        self.seed = seed
        self.read = 0  # tokens of the input

    def whole(self, answer: dict[str, Any], read: int) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "answer",
            "created": self.created,
            "model": self.model,
            "seed": self.seed,
            "answer": answer,
            "usage": usage_of(read, len(answer["tokens"])),
        }

    def events(self, arrivals: Sequence[Arrival]) -> bytes:
        events = []
        for _, update in arrivals:
            if "started" in update:
                self.read = update["started"]["prompt_tokens"]
            events.append(event(self._event(update, self.read)))
        return b"".join(events)

    def last_events(self) -> bytes:
        return b""

    def _event(self, update: Update, read: int) -> dict[str, Any]:
        if "started" in update:
            start = {"type": "start", "id": self.id, "model": self.model, "seed": self.seed}
            return start | update["started"]
        if "token" in update:
            return {"type": "token"} | update["token"]
        return {"type": "end"} | self.whole(update["finished"], read)


async def _content(read: Callable[[Path], T], file: Path, what: str) -> T:
    """What `read` makes of a file of a run. That it cannot be read is not the fault of whoever
    asks."""
    try:
        return await asyncio.to_thread(read, file)
    except (OSError, UnicodeDecodeError) as problem:
        LOG.error("%s: %s", file, problem)
        raise ApiError(500, f"{what} cannot be read") from None


def _text(file: Path) -> str:
    return file.read_text("utf-8")


def _curve_lines(file: Path) -> list[dict[str, Any]]:
    """The numbers of each line. Of very many lines, some of those about training steps and all of
    the others, such as validations."""
    lines = [
        {
            name: value
            for name, value in line.items()
            if name == "kind" or isinstance(value, int | float)
        }
        for line in read_json_lines(file)
    ]
    every = -(-len(lines) // MAX_CURVE_LINES) or 1
    return [
        line
        for number, line in enumerate(lines)
        if number % every == 0 or line.get("kind", TRAINING) != TRAINING
    ]


def _budget(sizes: str, batch: int, length: int) -> dict[str, Any]:
    reports = {}
    for name, terms in (("softmax", None), ("linear", TERMS)):
        subject = NumbersModel("--transformer", sizes, terms)
        reports[name] = report(subject, lengths(batch, length, length), Questions()).to_json()
    by_length = []
    for other in LENGTHS:
        point: dict[str, Any] = {"length": other}
        for name, terms in (("softmax", None), ("linear", TERMS)):
            subject = NumbersModel("--transformer", sizes, terms)
            budget = subject.budget(lengths(batch, other, other))
            point[name] = budget.multiplications["forward"]
        by_length.append(point)
    return reports | {"by_length": by_length, "terms": TERMS}


class LabPages:
    """Pages of experiments, each made by `regard lab NAME --html` when it is first asked for. One
    experiment runs at a time."""

    def __init__(self) -> None:
        self._pages: dict[str, str] = {}
        self._lock = asyncio.Lock()

    async def page(self, name: str) -> str:
        """The page of an experiment. One that is made already waits for nothing."""
        if name in self._pages:
            return self._pages[name]
        await self._take_turn()
        try:
            if name not in self._pages:
                self._pages[name] = await self._run(name)
        finally:
            self._lock.release()
        return self._pages[name]

    async def _take_turn(self) -> None:
        try:
            async with asyncio.timeout(LAB_SECONDS):
                await self._lock.acquire()
        except TimeoutError:
            message = "another experiment is running; try again"
            raise ApiError(503, message, code="deadline", retry_after=RETRY_LAB) from None

    async def _run(self, name: str) -> str:
        with tempfile.TemporaryDirectory(prefix="regard-lab-") as folder:
            command = [sys.executable, "-m", "regard", "lab", name, "--html", "--json"]
            process = await asyncio.create_subprocess_exec(
                *command,
                "--out",
                folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                await asyncio.wait_for(process.wait(), LAB_SECONDS)
            except TimeoutError:
                message = f"the experiment {name} took more than {LAB_SECONDS:g} seconds"
                hint = f"make its page with: regard lab {name} --html"
                raise ApiError(503, f"{message}; {hint}", code="deadline") from None
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            page = Path(folder) / f"{name}.html"
            if not page.is_file():
                raise ApiError(503, f"the experiment {name} did not write its page")
            return page.read_text("utf-8")
