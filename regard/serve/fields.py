"""The bodies of requests.

A field that OpenAI's API has and this server does not support is refused by name, unless its value
is the one that changes nothing. A value out of range is refused, never clamped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from regard.errors import did_you_mean
from regard.serve.api_errors import ApiError

# Fields of OpenAI's API that are not supported, and the values that change nothing.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "audio": (None,),
    "best_of": (None, 1),
    "echo": (None, False),
    "frequency_penalty": (None, 0),
    "function_call": (None, "none", "auto"),
    "functions": (None, []),
    "logit_bias": (None, {}),
    "metadata": (None, {}),
    "modalities": (None, ["text"]),
    "moderation": (None,),
    "parallel_tool_calls": (None, True, False),
    "prediction": (None,),
    "presence_penalty": (None, 0),
    "prompt_cache_key": (None,),
    "prompt_cache_options": (None, {}, {"mode": "implicit"}),
    "prompt_cache_retention": (None,),
    "reasoning_effort": (None, "none"),
    "safety_identifier": (None,),
    "service_tier": (None, "auto", "default"),
    "store": (None, False),
    "suffix": (None, ""),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "verbosity": (None, "medium"),
    "web_search_options": (None,),
}

# The same for /v1/audio/transcriptions, a form, whose values are texts. A list is several fields of
# one name, which some clients end in [].
TRANSCRIPTION_FIELDS = frozenset(
    {"file", "model", "response_format", "temperature", "include", "timestamp_granularities"}
)
TRANSCRIPTION_VALUES: dict[str, tuple[str, ...]] = {
    "include": ("", "logprobs"),
    "timestamp_granularities": ("", "segment"),
}
UNSUPPORTED_IN_TRANSCRIPTIONS: dict[str, tuple[str, ...]] = {
    "chunking_strategy": ("",),
    "keywords": ("",),
    "known_speaker_names": ("",),
    "known_speaker_references": ("",),
    "language": ("",),
    "languages": ("",),
    "prompt": ("",),
    "stream": ("", "false", "False"),
}

MAX_SEED = 2**63 - 1
MAX_SIGNS = 250_000  # commas, colons and brackets of a body, those of texts included
MAX_VALUES = 10_000  # names and values of a body
PIECE = 1 << 20  # bytes of a body that are looked at in one go


class Body(BaseModel):
    """A body whose fields are all known, and of the right type without conversion."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


AnyBody = TypeVar("AnyBody", bound=Body)


class StreamOptions(Body):
    include_usage: bool = False
    include_obfuscation: bool | None = None

    @field_validator("include_obfuscation")
    @classmethod
    def _is_off(cls, value: bool | None) -> bool | None:
        if value:
            raise PydanticCustomError("unsupported", "is not supported")
        return value


class ResponseFormat(Body):
    type: Literal["text"] = "text"


class SharedFields(Body):
    """What requests for chat and for plain completions have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    stop: str | list[str] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-MAX_SEED, le=MAX_SEED)] | None = None
    user: str | None = None
    regard: dict[str, Any] | None = None
    """Search options of regard, as in the section [search] of a recipe."""


class ImageUrl(Body):
    """`detail` changes nothing: a model reads all pictures in the size it was trained with."""

    url: str
    detail: Literal["auto", "low", "high"] | None = None


class InputAudio(Body):
    """`format` changes nothing: a file says itself what it is."""

    data: str
    format: Literal["wav", "mp3", "flac", "ogg"] | None = None


class TextPart(Body):
    type: Literal["text"]
    text: str


class ImagePart(Body):
    type: Literal["image_url"]
    image_url: ImageUrl


class AudioPart(Body):
    type: Literal["input_audio"]
    input_audio: InputAudio


Part = Annotated[TextPart | ImagePart | AudioPart, Field(discriminator="type")]


class Message(Body):
    model_config = ConfigDict(extra="ignore", strict=True)  # answers of others come back with more

    role: Literal["system", "developer", "user", "assistant"]
    # Only an assistant's turn may have none: clients send back calls of tools, and refusals.
    content: Annotated[str | list[Part] | None, Field(validate_default=True)] = None
    name: str | None = None

    @field_validator("content")
    @classmethod
    def _has_content(
        cls, content: str | list[Part] | None, info: ValidationInfo
    ) -> str | list[Part] | None:
        if content is None and info.data.get("role") != "assistant":
            raise PydanticCustomError("missing", "a text or a list of parts is needed")
        return content


class ChatBody(SharedFields):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None


class CompletionBody(SharedFields):
    prompt: str | list[str]
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None


class Picture(Body):
    picture: str


class Sound(Body):
    sound: str


class AskBody(Body):
    """A question to any kind of model.

    input         a text, a conversation, {"picture": data URI} or {"sound": data URI}
    options       search options, as in the section [search] of a recipe
    greedy        the likeliest token at each step, whatever the recipe says
    attention     whether the answer says where it attended
    alternatives  how many of the likeliest tokens each step has
    effect        whether the effect of hiding each place is measured
    prefix        tokens with which the answer begins
    """

    model: str | None = None
    input: str | Picture | Sound | list[Message]
    options: dict[str, Any] = Field(default_factory=dict)
    greedy: bool = False
    seed: Annotated[int, Field(ge=-MAX_SEED, le=MAX_SEED)] | None = None
    stop: str | list[str] | None = None
    stream: bool = False
    attention: bool = False
    alternatives: Annotated[int, Field(ge=0)] = 0
    effect: bool = False
    prefix: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)


def parse_json(content: bytes) -> dict[str, Any]:
    """The JSON object of a body.

    Reading a million small values takes a hundred times their bytes of memory, and checking them
    minutes, so they are counted first.
    """
    signs = _count_signs(content)
    if signs > MAX_SIGNS:
        raise ApiError(400, "the body has too many values")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise ApiError(400, "the body is not UTF-8") from None
    try:
        data = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply") from None
    except ValueError as problem:
        raise ApiError(400, f"the body is not JSON: {problem}") from None
    if not isinstance(data, dict):
        raise ApiError(400, f"the body must be a JSON object; got {_kind(data)}")
    # A sign comes with two names or values at most, and half a character can only be an escape.
    if 2 * signs > MAX_VALUES or b"\\u" in content:
        _check_values(data)
    return data


def _count_signs(content: bytes) -> int:
    """How many commas, colons and brackets that open there are. In pieces, between which other
    threads go on."""
    count = 0
    for start in range(0, len(content), PIECE):
        piece = content[start : start + PIECE]
        count += len(piece) - len(piece.translate(None, b",:[{"))
    return count


def _check_values(data: dict[str, Any]) -> None:
    """Refuse what is JSON but too much, or not text: JSON can write halves of characters."""
    waiting: list[Any] = [data]
    count = 0
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            _check_characters(value)
            continue
        parts: list[Any] = []
        if isinstance(value, dict):
            parts = [*value.keys(), *value.values()]
        elif isinstance(value, list):
            parts = value
        count += len(parts)
        if count > MAX_VALUES:
            raise ApiError(400, "the body has too many values")
        waiting.extend(parts)


def _check_characters(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ApiError(400, "the body has half of a character (a lone surrogate)") from None


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number of JSON")


def checked(kind: type[AnyBody], data: dict[str, Any]) -> AnyBody:
    """The body as its fields, or an ApiError that names the first wrong one."""
    data = dict(data)
    for name, harmless in UNSUPPORTED.items():
        if name in data and name not in kind.model_fields:
            value = data.pop(name)
            if not any(_is_same(value, other) for other in harmless):
                raise _unsupported(name)
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        problem = _clearest(error.errors(include_url=False, include_context=False))
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply") from None
    raise _field_error(kind, problem)


def check_form(items: Iterable[tuple[str, object]]) -> None:
    """Refuse the first field of a form for a transcription that is unknown, or that would change
    something and is not supported."""
    for written, value in items:
        name = written.partition("[")[0]
        harmless = TRANSCRIPTION_VALUES.get(name) or UNSUPPORTED_IN_TRANSCRIPTIONS.get(name)
        if harmless is None:
            if written not in TRANSCRIPTION_FIELDS:
                raise ApiError(400, f"unknown field: {written[:60]}", param=name[:60])
        elif value not in harmless or written not in (name, f"{name}[]"):
            raise _unsupported(name)


def _is_same(value: Any, other: Any) -> bool:
    """Whether two values of JSON are the same: 0.0 is 0, but false is not."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and isinstance(other, int | float) and not isinstance(other, bool):
        return value == other
    return type(value) is type(other) and value == other


def _unsupported(name: str) -> ApiError:
    return ApiError(400, f"{name} is not supported", param=name, code="unsupported")


def _clearest(problems: Sequence[Any]) -> Any:
    """The first problem. If that only says that a list is not a text where both may be, the one
    that is deepest inside the list."""
    *before, last = problems[0]["loc"]
    if last != "str":
        return problems[0]
    others = [each for each in problems if list(each["loc"][: len(before)]) == before]
    return max(others, key=lambda each: len(each["loc"]))


def _path(location: Sequence[Any]) -> list[str]:
    """The names on the way to a field, without those of pydantic's own types. A part of a message
    has a field of the name of its type: image_url.image_url is one step."""
    parts: list[str] = []
    for part in map(str, location):
        is_type = part.startswith(("function-", "list["))
        if not is_type and parts[-1:] != [part]:
            parts.append(part)
    return parts


def _field_error(kind: type[Body], problem: Any) -> ApiError:
    parts = _path(problem["loc"])
    name = ".".join(parts[:6])
    if problem["type"] == "extra_forbidden":
        hint = did_you_mean(parts[-1], kind.model_fields) if len(parts) == 1 else None
        message = f"unknown field: {name}"
        return ApiError(400, f"{message} ({hint})" if hint else message, param=name)
    if problem["type"] == "missing":
        return ApiError(400, f"missing field: {name}", param=name)
    if problem["type"] == "unsupported":
        return _unsupported(name)
    return ApiError(400, f"{name}: {problem['msg']}", param=name)


def _kind(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
