"""The models of a server by name, and their answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from regard.serve.api_errors import ApiError
from regard.serve.engine_client import Engines
from regard.serve.jobs import Job, Update

STATUS = {"input": 400, "model": 500, "overload": 503}


class Models:
    """The runs that are served."""

    def __init__(self, engines: Mapping[str, Engines]):
        self.engines = dict(engines)

    def find(self, name: str | None) -> Engines:
        """The engines of a model; a server with one run needs no name."""
        if name is None and len(self.engines) == 1:
            return next(iter(self.engines.values()))
        known = ", ".join(self.engines)
        if name is None:
            raise ApiError(400, f"missing field: model (one of {known})", param="model")
        if name not in self.engines:
            raise ApiError(
                404,
                f"no such model: {name[:100]!r} (there is {known})",
                param="model",
                code="model_not_found",
            )
        return self.engines[name]


def public_description(engines: Engines) -> dict[str, Any]:
    """What /v1/models says about a model."""
    own = engines.description
    limits = engines.limits
    about = {name: value for name, value in own.items() if name not in ("name", "vocabulary")}
    about["limits"] = {
        "max_tokens": max(limits.max_tokens, own["options"]["max_new_tokens"]),
        "num_beams": max(limits.num_beams, own["options"]["num_beams"]),
        "n": limits.n,
        "prompt_characters": limits.prompt_characters,
        "alternatives": limits.alternatives,
    }
    about["report"] = (engines.run / "report.html").is_file()
    about["curves"] = (engines.run / "metrics.jsonl").is_file()
    return {
        "id": engines.name,
        "object": "model",
        "created": engines.created,
        "owned_by": "regard",
        "regard": about,
    }


async def updates_of(engines: Engines, job: Job, tokens: int) -> AsyncGenerator[Update, None]:
    """The updates of a job; a failure is raised."""
    async with aclosing(engines.answer(job, tokens=tokens)) as updates:
        async for update in updates:
            if "failed" in update:
                raise _failure(update["failed"])
            yield update


def _failure(failed: Mapping[str, str]) -> ApiError:
    status = STATUS[failed["fault"]]
    kind = "api_error" if status == 500 else None
    retry_after = 1 if status == 503 else None
    return ApiError(status, failed["message"], kind, retry_after=retry_after)


async def answer_of(engines: Engines, job: Job, tokens: int) -> tuple[dict[str, Any], int]:
    """The whole answer of a job, and the number of tokens that it read."""
    prompt_tokens = 0
    answer: dict[str, Any] = {}
    async with aclosing(updates_of(engines, job, tokens)) as updates:
        async for update in updates:
            if "started" in update:
                prompt_tokens = update["started"]["prompt_tokens"]
            elif "finished" in update:
                answer = update["finished"]
    return answer, prompt_tokens


async def answers_of(
    engines: Engines, jobs: Sequence[Job], tokens: int
) -> list[tuple[dict[str, Any], int]]:
    """The whole answers of several jobs. If one fails, the others are cancelled."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(answer_of(engines, job, tokens)) for job in jobs]
    return [task.result() for task in tasks]


async def merged(
    engines: Engines, jobs: Sequence[Job], tokens: int
) -> AsyncGenerator[tuple[int, Update], None]:
    """The updates of several jobs as they come, each with the number of its job in the list."""
    if len(jobs) == 1:
        async with aclosing(updates_of(engines, jobs[0], tokens)) as updates:
            async for update in updates:
                yield 0, update
        return
    arrivals: asyncio.Queue[tuple[int, Update | ApiError | None]] = asyncio.Queue()

    async def follow(index: int, job: Job) -> None:
        try:
            async with aclosing(updates_of(engines, job, tokens)) as updates:
                async for update in updates:
                    arrivals.put_nowait((index, update))
            arrivals.put_nowait((index, None))
        except ApiError as problem:
            arrivals.put_nowait((index, problem))

    tasks = [asyncio.create_task(follow(index, job)) for index, job in enumerate(jobs)]
    try:
        unfinished = len(tasks)
        while unfinished:
            index, arrival = await arrivals.get()
            if isinstance(arrival, ApiError):
                raise arrival
            if arrival is None:
                unfinished -= 1
            else:
                yield index, arrival
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
