"""The part of OpenAI's API that small models can answer."""

from __future__ import annotations

import math
import secrets
import time
import zlib
from collections.abc import Sequence
from typing import Any, cast

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.datastructures import FormData, UploadFile

from regard.search.options import Options
from regard.serve import questions
from regard.serve.api_errors import ApiError
from regard.serve.engine_client import Arrival, Engines
from regard.serve.event_stream import EventStream, answer_unless_gone, event, json_bytes
from regard.serve.fields import (
    ChatBody,
    CompletionBody,
    SharedFields,
    check_form,
)
from regard.serve.jobs import Job, Update
from regard.serve.limits import Limits
from regard.serve.models import Models, answers_of, public_description
from regard.serve.questions import Question, off_the_loop, read_body
from regard.serve.schemas import form_body, json_body

LEAST_LOGPROB = -9999.0  # of tokens whose probability is 0, as OpenAI has it
IGNORED = "X-Regard-Ignored"


def router(models: Models) -> APIRouter:
    """The routes under /v1 that OpenAI's clients call."""
    routes = APIRouter(prefix="/v1")

    @routes.get("/models")
    async def list_models() -> dict[str, Any]:
        """The models of this server."""
        data = [public_description(engines) for engines in models.engines.values()]
        return {"object": "list", "data": data}

    @routes.get("/models/{name}")
    async def one_model(name: str) -> dict[str, Any]:
        """One model."""
        return public_description(models.find(name))

    @routes.post("/chat/completions", openapi_extra=json_body(ChatBody))
    async def chat(request: Request) -> Response:
        """Reply to a conversation; also a caption, a label or a transcript of its last message."""
        content = await request.body()
        body = await read_body(ChatBody, content)
        engines = models.find(body.model)
        model = engines.description
        question = await off_the_loop(
            len(content), lambda: questions.from_messages(model, body.messages, engines.limits)
        )
        form = ChatForm(engines.name, wants_logprobs=bool(body.logprobs))
        return await _respond(request, engines, body, [question], form)

    @routes.post("/completions", openapi_extra=json_body(CompletionBody))
    async def completions(request: Request) -> Response:
        """Answer one or many prompts."""
        body = await read_body(CompletionBody, await request.body())
        engines = models.find(body.model)
        prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
        if not 1 <= len(prompts) <= engines.limits.prompts:
            most = engines.limits.prompts
            raise ApiError(400, f"1 to {most} prompts; got {len(prompts):,}", param="prompt")
        inputs = [
            questions.from_input(engines.description, prompt, engines.limits) for prompt in prompts
        ]
        form = CompletionForm(engines.name, wants_logprobs=body.logprobs is not None)
        return await _respond(request, engines, body, inputs, form)

    @routes.post("/audio/transcriptions", openapi_extra=form_body())
    async def transcriptions(request: Request) -> Response:
        """The words of a sound."""
        async with request.form(max_files=1, max_fields=16, max_part_size=10_000) as form:
            return await _transcribe(request, models, form)

    return routes


# --- answers in the shape that clients expect ---


class CompletionForm:
    """The shape of /v1/completions."""

    whole = chunk = "text_completion"
    prefix = "cmpl"

    def __init__(self, model: str, *, wants_logprobs: bool):
        self.id = f"{self.prefix}-{secrets.token_hex(12)}"
        self.created = int(time.time())
        self.model = model
        self.wants_logprobs = wants_logprobs

    def frame(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """What every answer and chunk has."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": None,
            "choices": choices,
        }

    def choice(self, index: int, answer: dict[str, Any]) -> dict[str, Any]:
        logprobs = self.logprobs(_token_records(answer)) if self.wants_logprobs else None
        return {
            "index": index,
            "text": answer["text"],
            "logprobs": logprobs,
            "finish_reason": answer["finish"],
        }

    def first(self, index: int) -> dict[str, Any] | None:
        """The chunk before the first token; None: there is none."""
        return None

    def token(self, index: int, token: dict[str, Any]) -> dict[str, Any]:
        logprobs = self.logprobs([token]) if self.wants_logprobs else None
        return {"index": index, "text": token["text"], "logprobs": logprobs, "finish_reason": None}

    def last(self, index: int, reason: str) -> dict[str, Any]:
        return {"index": index, "text": "", "logprobs": None, "finish_reason": reason}

    def logprobs(self, tokens: Sequence[dict[str, Any]]) -> dict[str, Any]:
        offsets = []
        length = 0
        for token in tokens:
            offsets.append(length)
            length += len(token["text"])
        return {
            "tokens": [token["text"] for token in tokens],
            "token_logprobs": [_finite(token["logprob"]) for token in tokens],
            "top_logprobs": [_by_text(token["alternatives"] or []) for token in tokens],
            "text_offset": offsets,
        }


class ChatForm(CompletionForm):
    """The shape of /v1/chat/completions."""

    whole = "chat.completion"
    chunk = "chat.completion.chunk"
    prefix = "chatcmpl"

    def choice(self, index: int, answer: dict[str, Any]) -> dict[str, Any]:
        logprobs = self.logprobs(_token_records(answer)) if self.wants_logprobs else None
        return {
            "index": index,
            "message": {"role": "assistant", "content": answer["text"], "refusal": None},
            "logprobs": logprobs,
            "finish_reason": answer["finish"],
        }

    def first(self, index: int) -> dict[str, Any] | None:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def token(self, index: int, token: dict[str, Any]) -> dict[str, Any]:
        choice = super().token(index, token)
        return {"index": index, "delta": {"content": choice.pop("text")}} | choice

    def last(self, index: int, reason: str) -> dict[str, Any]:
        return {"index": index, "delta": {}, "logprobs": None, "finish_reason": reason}

    def logprobs(self, tokens: Sequence[dict[str, Any]]) -> dict[str, Any]:
        content = []
        for token in tokens:
            others = token["alternatives"] or []
            top = [_entry(other["text"], _finite(other["logprob"])) for other in others]
            entry = _entry(token["text"], _finite(token["logprob"]))
            content.append(entry | {"top_logprobs": top})
        return {"content": content, "refusal": None}


def _entry(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}


def _by_text(alternatives: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The log-probabilities of alternatives; of those with the same text, that of the likeliest."""
    logprobs: dict[str, float] = {}
    for alternative in alternatives:
        logprobs.setdefault(alternative["text"], _finite(alternative["logprob"]))
    return logprobs


def _finite(logprob: float | None) -> float:
    return LEAST_LOGPROB if logprob is None else logprob


def _token_records(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The tokens of a whole answer, as a stream would have had them."""
    alternatives = answer["alternatives"] or [None] * len(answer["tokens"])
    return [
        {"token": token, "text": text, "logprob": logprob, "alternatives": others}
        for token, text, logprob, others in zip(
            answer["tokens"], answer["pieces"], answer["logprobs"], alternatives, strict=False
        )
    ]


# --- from a body to jobs, and from their updates to an answer ---


async def _respond(
    request: Request,
    engines: Engines,
    body: SharedFields,
    inputs: Sequence[Question],
    form: CompletionForm,
) -> Response:
    jobs, tokens = _jobs(engines, body, inputs, form)
    ignored = sorted({text for question in inputs for text in question.ignored})
    headers = {IGNORED: "; ".join(ignored)} if ignored else {}
    if body.stream:
        include_usage = body.stream_options is not None and body.stream_options.include_usage
        chunks = Chunks(form, jobs, include_usage=include_usage)
        return EventStream(engines.answers(jobs, tokens=tokens), chunks, headers)
    if body.stream_options is not None:
        raise ApiError(400, "stream_options needs stream = true", param="stream_options")
    answers = await answer_unless_gone(request, answers_of(engines, jobs, tokens))
    choices = [form.choice(index, answer) for index, (answer, _) in enumerate(answers)]
    choices_each = len(answers) // len(inputs)
    usage = usage_of(
        sum(read for _, read in answers[::choices_each]),
        sum(len(answer["tokens"]) for answer, _ in answers),
    )
    return JSONResponse(form.frame(form.whole, choices) | {"usage": usage}, headers=headers)


def _jobs(
    engines: Engines, body: SharedFields, inputs: Sequence[Question], form: CompletionForm
) -> tuple[list[Job], int]:
    """A job for each prompt, with an answer for each choice, and what each answer counts for."""
    model = engines.description
    limits = engines.limits
    n = _choices_each(body, len(inputs), limits)
    max_tokens = _max_tokens(body)
    alternatives = _alternatives(body)
    changes = dict(body.regard or {})
    seed = questions.take_seed(body.seed, changes)
    if seed is None:
        seed = questions.new_seed()
    options = questions.search_options(
        model,
        limits,
        temperature=body.temperature,
        top_p=body.top_p,
        max_tokens=max_tokens,
        changes=changes,
    )
    stops = questions.stop_list(body.stop, limits)
    param = "messages" if isinstance(body, ChatBody) else "prompt"
    for question in inputs:
        questions.check_length(question, limits, param)
    tokens = max(questions.tokens_of(question, options, model) for question in inputs)
    count = n * len(inputs)
    if count > 1 and count * tokens > limits.request_tokens:
        raise ApiError(
            400,
            f"{count} answers may take {count * tokens:,} tokens, in all rows of their search; "
            f"one request may take {limits.request_tokens:,}",
            param="n",
        )
    engines.check_room(count, count * tokens)
    fields = dict(options)
    jobs = [
        Job(
            numbers=tuple(engines.next_number() for _ in range(n)),
            seeds=tuple(questions.seed_of_choice(seed, choice) for choice in range(n)),
            input=question.text,
            options=fields,
            stops=stops,
            stream=bool(body.stream),
            logprobs=form.wants_logprobs,
            alternatives=alternatives,
            exact=True,
            media=question.media,
        )
        for question in inputs
    ]
    return jobs, tokens


def _choices_each(body: SharedFields, prompts: int, limits: Limits) -> int:
    """The answers of each prompt."""
    n = body.n or 1
    if n > limits.n:
        raise ApiError(400, f"n must be at most {limits.n}; got {n:,}", param="n")
    if n * prompts > limits.answers:
        message = f"prompts times n must be at most {limits.answers}; got {prompts} x {n}"
        raise ApiError(400, message, param="n")
    return n


def _max_tokens(body: SharedFields) -> int | None:
    """The tokens of an answer at most, for which chats have two fields."""
    if not isinstance(body, ChatBody):
        return body.max_tokens
    if body.max_tokens and body.max_completion_tokens:
        raise ApiError(
            400, "give max_tokens or max_completion_tokens, not both", param="max_tokens"
        )
    return body.max_completion_tokens or body.max_tokens


def _alternatives(body: SharedFields) -> int:
    """The alternatives of each token, for which chats have two fields."""
    if isinstance(body, CompletionBody):
        return body.logprobs or 0
    if not isinstance(body, ChatBody):
        return 0
    if body.top_logprobs and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs = true", param="top_logprobs")
    return body.top_logprobs or 0


class Chunks:
    """The chunks of one stream as events. The finish chunk has no content; the usage chunk has no
    choices.

    All chunks with a token and no log-probabilities are the same but for their text, so what is
    around it is encoded once for each choice.
    """

    def __init__(self, form: CompletionForm, jobs: Sequence[Job], *, include_usage: bool):
        self._form = form
        self._usage = {"usage": None} if include_usage else {}
        self._around: dict[int, tuple[bytes, bytes]] = {}
        self._choices_each = len(jobs[0].numbers)
        self._read = [0] * sum(len(job.numbers) for job in jobs)
        self._written = 0

    def events(self, arrivals: Sequence[Arrival]) -> bytes:
        return b"".join([self._event(index, update) for index, update in arrivals])

    def _event(self, index: int, update: Update) -> bytes:
        if "token" in update:
            return self.token(index, update["token"])
        if "started" in update:
            self._read[index] = update["started"]["prompt_tokens"]
            return self.choice(self._form.first(index))
        answer = update["finished"]
        self._written += len(answer["tokens"])
        return self.choice(self._form.last(index, answer["finish"]))

    def last_events(self) -> bytes:
        if not self._usage:
            return b""
        read = sum(self._read[:: self._choices_each])
        return self.usage(usage_of(read, self._written))

    def choice(self, choice: dict[str, Any] | None) -> bytes:
        """A chunk with one choice; nothing if there is none."""
        if choice is None:
            return b""
        return event(self._form.frame(self._form.chunk, [choice]) | self._usage)

    def token(self, index: int, token: dict[str, Any]) -> bytes:
        if self._form.wants_logprobs:
            return self.choice(self._form.token(index, {"alternatives": None} | token))
        if not token["text"]:  # it ends inside a character
            return b""
        around = self._around.get(index)
        if around is None:
            around = self._around[index] = self._encode_around(index)
        return around[0] + json_bytes(token["text"]) + around[1]

    def _encode_around(self, index: int) -> tuple[bytes, bytes]:
        placeholder = secrets.token_hex(8)  # in no other field
        choice = self._form.token(index, {"token": 0, "text": placeholder})
        before, _, after = self.choice(choice).partition(json_bytes(placeholder))
        return before, after

    def usage(self, usage: dict[str, int]) -> bytes:
        return event(self._form.frame(self._form.chunk, []) | {"usage": usage})


def usage_of(read: int, written: int) -> dict[str, int]:
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


# --- sounds ---


async def _transcribe(request: Request, models: Models, form: FormData) -> Response:
    check_form(form.multi_items())
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise ApiError(400, "missing field: file", param="file")
    kind = form.get("response_format") or "json"
    if kind not in ("json", "text", "verbose_json"):
        raise ApiError(
            400,
            f"response_format is json, text or verbose_json; got {str(kind)[:40]!r}",
            param="response_format",
        )
    engines = models.find(cast("str | None", form.get("model")))
    model = engines.description
    if model["input"] != "sound":
        raise ApiError(400, f"{engines.name} does not read sounds", param="model")
    options = questions.search_options(
        model, engines.limits, temperature=_temperature(form.get("temperature"))
    )
    question = Question(None, await file.read())
    if not question.media:
        raise ApiError(400, "the file is empty", param="file")
    tokens = questions.tokens_of(question, options, model)
    engines.check_room(1, tokens)
    wants_logprobs = bool(_values(form, "include"))
    job = Job(
        numbers=(engines.next_number(),),
        seeds=(questions.new_seed(),),
        input=None,
        options=options.model_dump(),
        logprobs=wants_logprobs or kind == "verbose_json",
        media=question.media,
    )
    answers = await answer_unless_gone(request, answers_of(engines, [job], tokens))
    answer = answers[0][0]
    if kind == "text":
        return PlainTextResponse(answer["text"] + "\n")
    transcript = {"text": answer["text"]}
    if kind == "verbose_json":
        transcript = _verbose_transcript(answer, options)
    if wants_logprobs:
        transcript["logprobs"] = [
            _entry(token["text"], _finite(token["logprob"])) for token in _token_records(answer)
        ]
    return JSONResponse(transcript)


def _values(form: FormData, name: str) -> list[str]:
    """The values of a list in a form, whose name may end in []."""
    values = [*form.getlist(name), *form.getlist(f"{name}[]")]
    return [value for value in values if isinstance(value, str) and value]


def _temperature(value: object) -> float | None:
    if value is None or value == "":
        return None
    try:
        temperature = float(str(value))
    except ValueError:
        temperature = math.nan
    if not 0 <= temperature <= 2:
        raise ApiError(400, "temperature is a number from 0 to 2", param="temperature")
    return temperature


def _verbose_transcript(answer: dict[str, Any], options: Options) -> dict[str, Any]:
    """A transcript in OpenAI's verbose shape.

    There is one segment, from the beginning to the end: the models do not say when a word was
    spoken, and what a token attended to is not the same. They do not say either whether anybody
    speaks, so `no_speech_prob`, which clients expect, is 0.
    """
    text = answer["text"]
    seconds = answer["seconds"]
    segments = []
    if text:
        logprobs = [_finite(logprob) for logprob in answer["logprobs"]]
        content = text.encode("utf-8", "replace")
        segment = {
            "id": 0,
            "seek": 0,
            "start": 0.0,
            "end": seconds,
            "text": text,
            "tokens": answer["tokens"],
            "temperature": options.temperature if options.do_sample else 0.0,
            "avg_logprob": math.fsum(logprobs) / len(logprobs),
            "compression_ratio": len(content) / len(zlib.compress(content)),
            "no_speech_prob": 0.0,
        }
        segments.append(segment)
    return {
        "task": "transcribe",
        "language": "",  # the model was trained on one, which has no name here
        "duration": seconds,
        "text": text,
        "segments": segments,
        "usage": {"type": "duration", "seconds": seconds},
    }
