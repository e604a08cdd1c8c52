"""The schemas of bodies that are read by hand, for the OpenAPI of the server."""

from __future__ import annotations

from typing import Any

from regard.serve.fields import AskBody, Body, ChatBody, CompletionBody

REFERENCE = "#/components/schemas/{model}"
BODIES: tuple[type[Body], ...] = (ChatBody, CompletionBody, AskBody)
TRANSCRIPTION = {
    "type": "object",
    "title": "Transcription",
    "required": ["file"],
    "properties": {
        "file": {"type": "string", "format": "binary", "description": "the sound file"},
        "model": {"type": "string"},
        "response_format": {
            "type": "string",
            "enum": ["json", "text", "verbose_json"],
            "default": "json",
        },
        "temperature": {"type": "number", "minimum": 0, "maximum": 2},
        "include[]": {"type": "array", "items": {"type": "string", "enum": ["logprobs"]}},
        "timestamp_granularities[]": {
            "type": "array",
            "items": {"type": "string", "enum": ["segment"]},
        },
    },
}


def json_body(kind: type[Body]) -> dict[str, Any]:
    """What a route with such a body adds to its entry."""
    schema = _schema(kind)
    schema.pop("$defs", None)
    return _request_body("application/json", schema)


def form_body() -> dict[str, Any]:
    """The same for a transcription, which is a form."""
    return _request_body("multipart/form-data", TRANSCRIPTION)


def definitions() -> dict[str, Any]:
    """What the bodies refer to, by name."""
    parts: dict[str, Any] = {}
    for kind in BODIES:
        parts |= _schema(kind).get("$defs", {})
    return parts


def _schema(kind: type[Body]) -> dict[str, Any]:
    return kind.model_json_schema(ref_template=REFERENCE)


def _request_body(media_type: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {media_type: {"schema": schema}}}}
