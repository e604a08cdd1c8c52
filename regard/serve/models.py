"""The models of a server by name, and their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from regard.serve.api_errors import ApiError
from regard.serve.engine_client import Engines
from regard.serve.jobs import Job

PRIVATE = frozenset({"name", "vocabulary", "places", "reads_characters"})  # of a description


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
    about = {name: value for name, value in own.items() if name not in PRIVATE}
    about["limits"] = {
        "max_tokens": max(limits.max_tokens, own["options"]["max_new_tokens"]),
        "num_beams": max(limits.num_beams, own["options"]["num_beams"]),
        "n": limits.n,
        "answers": limits.answers,
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


async def answers_of(
    engines: Engines, jobs: Sequence[Job], tokens: int
) -> list[tuple[dict[str, Any], int]]:
    """The whole answers of some jobs, each with the number of tokens that it read. If one fails,
    the others are cancelled."""
    count = sum(len(job.numbers) for job in jobs)
    prompt_tokens = [0] * count
    answers: list[dict[str, Any]] = [{}] * count
    async with engines.answers(jobs, tokens=tokens) as batches:
        async for arrivals in batches:
            for index, update in arrivals:
                if "started" in update:
                    prompt_tokens[index] = update["started"]["prompt_tokens"]
                elif "finished" in update:
                    answers[index] = update["finished"]
    return list(zip(answers, prompt_tokens, strict=True))
