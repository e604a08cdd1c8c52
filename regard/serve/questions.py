"""From the body of a request to jobs: the input a model reads, and the options of its search."""

from __future__ import annotations

import asyncio
import base64
import binascii
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

from regard.errors import InputError
from regard.search.options import Options
from regard.serve.api_errors import ApiError
from regard.serve.fields import (
    AnyBody,
    AudioPart,
    ImagePart,
    Message,
    Picture,
    Sound,
    TextPart,
    checked,
    parse_json,
)
from regard.serve.jobs import Turns
from regard.serve.limits import Limits

LARGE_BODY = 1 << 18  # bytes of a body that takes longer to read than a step of the engine
BASE64_PIECE = 1 << 20  # characters, four for each three bytes
CHARACTERS_A_TOKEN = 3  # a cautious guess for words and BPE, to bound what is under way

T = TypeVar("T")


@dataclass(frozen=True)
class Question:
    """What a model reads: a text or conversation, or the bytes of a file."""

    text: str | Turns | None
    media: bytes = b""
    ignored: tuple[str, ...] = field(default=())  # what was in the request and is not read

    @property
    def characters(self) -> int:
        if self.text is None:
            return 0
        if isinstance(self.text, str):
            return len(self.text)
        return sum(len(turn["content"]) for turn in self.text)


async def off_the_loop(size: int, read: Callable[[], T]) -> T:
    """What `read` makes of a body of so many bytes. Large ones are read in a thread, so that the
    streams of others go on."""
    if size <= LARGE_BODY:
        return read()
    return await asyncio.to_thread(read)


async def read_body(kind: type[AnyBody], content: bytes) -> AnyBody:
    """The body of a request, checked."""
    return await off_the_loop(len(content), lambda: checked(kind, parse_json(content)))


def from_messages(
    model: Mapping[str, Any], messages: Sequence[Message], limits: Limits
) -> Question:
    """The input in a conversation: all of it for a chat, the last message for other tasks."""
    if len(messages) > limits.messages:
        raise ApiError(
            400,
            f"a conversation has at most {limits.messages} messages; got {len(messages):,}",
            param="messages",
        )
    ignored = ()
    if any(message.role in ("system", "developer") for message in messages):
        ignored = ("system message: this model was not trained with one",)
    talk = [
        message
        for message in messages
        if message.role in ("user", "assistant") and message.content is not None
    ]
    if not talk:
        raise ApiError(400, "there is no message of the user", param="messages")
    if model["input"] != "text":
        return Question(None, _media(talk[-1], model["input"]), ignored)
    if model["task"] == "chat":
        turns = [{"role": message.role, "content": _text(message)} for message in talk]
        # The others are not read: a long chat does not become too long for the server.
        return Question(turns[-max(1, model["turns"]) :], ignored=ignored)
    if talk[-1].role != "user":
        raise ApiError(400, "the last message must be the user's", param="messages")
    return Question(_text(talk[-1]), ignored=ignored)


def from_input(
    model: Mapping[str, Any], value: str | Picture | Sound | list[Message], limits: Limits
) -> Question:
    """The input of /v1/ask."""
    if isinstance(value, list):
        return from_messages(model, value, limits)
    kind = {str: "text", Picture: "picture", Sound: "sound"}[type(value)]
    if kind != model["input"]:
        raise ApiError(
            400, f"this model reads {_PLURAL[model['input']]}; got a {kind}", param="input"
        )
    if isinstance(value, str):
        return Question(value)
    return Question(None, data_uri(value.picture if isinstance(value, Picture) else value.sound))


_PLURAL = {"text": "text", "picture": "pictures", "sound": "sounds"}


def _text(message: Message) -> str:
    if isinstance(message.content, str):
        return message.content
    texts = []
    for part in message.content or []:
        if not isinstance(part, TextPart):
            raise ApiError(400, "this model reads text only", param="messages")
        texts.append(part.text)
    return "\n".join(texts)


def _media(message: Message, kind: str) -> bytes:
    """The one picture or sound of a message. Text beside it is not read."""
    part_type = ImagePart if kind == "picture" else AudioPart
    content = message.content if isinstance(message.content, list) else []
    parts = [part for part in content if isinstance(part, part_type)]
    if len(parts) != 1:
        raise ApiError(
            400,
            f"this model reads one {kind} in the last message; got {len(parts)}",
            param="messages",
        )
    part = parts[0]
    if isinstance(part, ImagePart):
        return data_uri(part.image_url.url)
    assert isinstance(part, AudioPart)
    return from_base64(part.input_audio.data)


def data_uri(text: str) -> bytes:
    """The bytes of a data URI. Nothing is ever fetched from another address.

    >>> data_uri("data:image/png;base64,aGk=")
    b'hi'
    """
    head, comma, content = text.partition(",")
    if not head.startswith("data:") or not comma:
        start = text[:40] + ("…" if len(text) > 40 else "")
        raise ApiError(
            400, f"must be a data URI, as nothing is fetched from elsewhere; got {start!r}"
        )
    if not head.endswith(";base64"):
        raise ApiError(400, "a data URI must be in base64")
    return from_base64(content)


def from_base64(text: str) -> bytes:
    """The bytes of a file. They are decoded in pieces, between which other threads go on.

    >>> from_base64("aGk=")
    b'hi'
    """
    padding = text.find("=")
    if padding >= 0 and padding < len(text) - 2:  # in the middle of a piece it would be accepted
        raise ApiError(400, "not base64")
    pieces = range(0, len(text), BASE64_PIECE)
    try:
        content = b"".join(
            [
                base64.b64decode(text[start : start + BASE64_PIECE], validate=True)
                for start in pieces
            ]
        )
    except (binascii.Error, ValueError):
        raise ApiError(400, "not base64") from None
    if not content:
        raise ApiError(400, "the file is empty")
    return content


def search_options(
    model: Mapping[str, Any],
    limits: Limits,
    *,
    greedy: bool = False,
    temperature: float | None = None,
    top_p: float | None = None,
    max_tokens: int | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Options:
    """The recipe's search options, changed as a request says.

    A temperature of 0 is a greedy search. Any other, or `top_p`, draws; then a recipe that does not
    draw has one candidate. `changes` are options of regard, and come last.
    """
    own = tuple(model["options"].items())
    try:
        if changes:
            options = _changed(own, greedy, temperature, top_p, max_tokens)
            if "num_beams" in changes:  # a beam search draws nothing
                options |= {"do_sample": False, "candidates": 1, "retrieved": 0}
            chosen = Options(**options | dict(changes))
        else:
            chosen = _plain_options(own, greedy, temperature, top_p, max_tokens)
    except InputError as problem:
        raise ApiError(400, str(problem), param="options") from None
    _check_bounds(chosen, model, limits)
    return chosen


Items = tuple[tuple[str, Any], ...]


@lru_cache(maxsize=256, typed=True)  # most requests ask for the same
def _plain_options(
    own: Items,
    greedy: bool,
    temperature: float | None,
    top_p: float | None,
    max_tokens: int | None,
) -> Options:
    return Options(**_changed(own, greedy, temperature, top_p, max_tokens))


def _changed(
    own: Items,
    greedy: bool,
    temperature: float | None,
    top_p: float | None,
    max_tokens: int | None,
) -> dict[str, Any]:
    """The recipe's own options, changed by the fields of OpenAI's API."""
    options = dict(own)
    if greedy or temperature == 0:
        options = {"max_new_tokens": options["max_new_tokens"]}
    elif temperature is not None or top_p is not None:
        if not options["do_sample"]:
            options |= {"do_sample": True, "num_beams": 1, "candidates": 1}
        if temperature is not None:
            options["temperature"] = temperature
        if top_p is not None:
            options["top_p"] = top_p
    if max_tokens is not None:
        options["max_new_tokens"] = max_tokens
    return options


def _check_bounds(options: Options, model: Mapping[str, Any], limits: Limits) -> None:
    """Refuse what would take too long or too much memory. A recipe's own options are allowed."""
    own = model["options"]
    bounds = {
        "max_new_tokens": limits.max_tokens,
        "num_beams": limits.num_beams,
        "candidates": limits.num_beams,
        "retrieved": limits.retrieved,
    }
    for name, bound in bounds.items():
        value = getattr(options, name)
        bound = max(bound, own[name])
        if value > bound:
            param = "max_tokens" if name == "max_new_tokens" else name
            raise ApiError(400, f"{param} must be at most {bound}; got {value:,}", param=param)
    rows = rows_of(options)
    bound = max(limits.rows, rows_of(Options(**own)))
    if rows > bound:
        message = "beams or candidates and retrieved answers, twice as many with mmi_weight"
        raise ApiError(
            400, f"{message}, must be at most {bound} together; got {rows}", param="options"
        )


def rows_of(options: Options) -> int:
    """The rows of the batch that an answer takes."""
    rows = options.num_beams if options.num_beams > 1 else options.candidates
    rows += options.retrieved
    return 2 * rows if options.mmi_weight and options.mmi_steps else rows


def tokens_of(question: Question, options: Options, model: Mapping[str, Any]) -> int:
    """What a job counts for: places that it reads and tokens that it may write, times the rows. A
    picture or sound counts as the largest does."""
    if question.text is None:
        read = model["places"]
    else:
        a_token = 1 if model["reads_characters"] else CHARACTERS_A_TOKEN
        read = question.characters // a_token + 1
        if model["max_source"]:
            read = min(read, model["max_source"])
    return rows_of(options) * (read + options.max_new_tokens)


def check_length(question: Question, limits: Limits, param: str) -> None:
    """Refuse an input that is too long: 413 if it is more than a body of text may have, although
    that of a body which may have files is larger."""
    if question.characters > limits.text_bytes:
        message = f"a text may have at most {limits.text_bytes:,} bytes"
        raise ApiError(413, message, param=param, code="request_too_large")
    if question.characters > limits.prompt_characters:
        raise ApiError(
            400,
            f"the input has at most {limits.prompt_characters:,} characters; "
            f"got {question.characters:,}",
            param=param,
            code="context_length_exceeded",
        )


def stop_list(stop: str | Sequence[str] | None, limits: Limits) -> tuple[str, ...]:
    """The stop strings of a request."""
    stops = [] if stop is None else [stop] if isinstance(stop, str) else list(stop)
    count, length = limits.stops
    if len(stops) > count:
        raise ApiError(400, f"at most {count} stop strings; got {len(stops)}", param="stop")
    for text in stops:
        if not text or len(text) > length:
            raise ApiError(400, f"a stop string has 1 to {length} characters", param="stop")
    return tuple(stops)


def take_seed(seed: int | None, changes: dict[str, Any]) -> int | None:
    """The seed of a request, if it has one: its own field, or among our options, which then have
    none."""
    among_options = changes.pop("seed", None)
    if seed is None:
        seed = among_options
    if seed is None:
        return None
    if isinstance(seed, bool) or not isinstance(seed, int) or abs(seed) >= 2**63:
        raise ApiError(400, "seed must be a whole number of 64 bits", param="seed")
    return seed


def new_seed() -> int:
    """A seed for a request that has none."""
    return secrets.randbits(31)


def seed_of_choice(seed: int, choice: int) -> int:
    """The seed of one of several choices. That of the first is the request's own."""
    return (seed + choice) % 2**63
