"""What the web process asks of an engine process, and what that reports.

Both are frames (`regard.serve.frames`): JSON, and for a job the bytes of its sound or picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from regard.serve.frames import Frame

Turns = list[dict[str, str]]  # messages with "role" and "content", oldest first
Fault = Literal["input", "model", "overload"]


@dataclass(frozen=True)
class Job:
    """One input, and how to answer it.

    numbers       one for each answer: the choices of a request have the same input, which is read
                  and encoded once
    seeds         of sampling, one for each answer; None: a function of the options and the input
    input         a text or a conversation; None if `media` is the file of a sound or picture
    options       fields of `regard.search.Options`
    stops         strings that end the answer; they are not part of it
    prefix        tokens with which the answer begins
    stream        whether tokens are reported as they come
    logprobs      whether log-probabilities are reported, which cost a pass over the vocabulary
    attention     whether weights over the source are reported
    alternatives  how many of the likeliest tokens are reported for each step, with their
                  probabilities in a few digits
    exact         whether these have log-probabilities instead, as exact as that of the token
    effect        whether the effect of hiding each place is measured
    """

    numbers: tuple[int, ...]
    seeds: tuple[int | None, ...]
    input: str | Turns | None
    options: dict[str, Any]
    stops: tuple[str, ...] = ()
    prefix: tuple[int, ...] = ()
    stream: bool = False
    logprobs: bool = False
    attention: bool = False
    alternatives: int = 0
    exact: bool = False
    effect: bool = False
    media: bytes = b""

    def to_frame(self) -> Frame:
        header = {name: value for name, value in vars(self).items() if name != "media"}
        return Frame({"job": header}, self.media)

    @classmethod
    def from_frame(cls, frame: Frame) -> Job:
        header = dict(frame.header["job"])
        for name in ("numbers", "seeds", "stops", "prefix"):
            header[name] = tuple(header[name])
        return cls(**header, media=frame.rest)


def cancel_frame(number: int) -> Frame:
    return Frame({"cancel": number})


# Updates are dictionaries, because there is one for each token: {"job": number, KIND: content}. The
# number is that of an answer of a job.
#
#     begun      True: an answer that is not streamed has its first token
#     started    {"prompt_tokens", "place_names", "grid"}
#     token      {"token", "text", "logprob", "weights"?, "alternatives"?}
#     finished   the answer, see `regard.serve.engine_process.answer_record`
#     failed     {"fault", "message"}
Update = dict[str, Any]


def failure(number: int, fault: Fault, message: str) -> Update:
    return {"job": number, "failed": {"fault": fault, "message": message}}
