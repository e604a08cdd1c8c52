"""Errors of the API, in the shape that OpenAI's clients read.

Clients repeat a request that ends with a status from 500 on, so bad input never has one.
"""

from __future__ import annotations

from typing import Any

from regard.errors import printable

MAX_MESSAGE = 800  # characters of up to 4 bytes; an answer to a bad request stays small
MAX_PARAM = 100
KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    431: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class ApiError(Exception):
    """A request that is not answered: a status, and one line that says why.

    param        the field of the request that is wrong
    code         a word for programs, as in "model_not_found"
    retry_after  seconds after which the same request may succeed
    """

    def __init__(
        self,
        status: int,
        message: str,
        kind: str | None = None,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ):
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind or KINDS.get(status, "api_error")
        self.param = param
        self.code = code
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        return error_body(self.message, self.kind, param=self.param, code=self.code)

    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}


def being_stopped() -> ApiError:
    """For those who ask while the server stops, and those whose answers do not end in time."""
    return ApiError(503, "the server is being stopped", code="stopped", retry_after=5)


def error_body(
    message: str, kind: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """The body of an answer that is an error: under 4 KB, whatever it quotes of the request.

    >>> error_body("no such model", "not_found_error", code="model_not_found")["error"]["code"]
    'model_not_found'
    """
    line = _short(message.replace("\n", " "), MAX_MESSAGE)
    field = None if param is None else _short(param, MAX_PARAM)
    return {"error": {"message": line, "type": kind, "param": field, "code": code}}


def _short(text: str, length: int) -> str:
    """Text without control characters, which would take six bytes each in JSON."""
    text = printable(text[: length + 1])
    return text if len(text) <= length else f"{text[:length]}…"
