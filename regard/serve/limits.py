"""Every bound of the server."""

from __future__ import annotations

from dataclasses import dataclass

MB = 1_000_000


@dataclass(frozen=True)
class Limits:
    """What one request, and all requests together, may ask for. Beyond a bound of one request the
    answer is 400 or 413, beyond one of all requests 429.

    queue              jobs of one run that are waiting or under way
    tokens_under_way   tokens that these have read or may write, times the rows they are read in
    rows               rows of the engine's batch
    n                  choices of one request
    prompts            prompts of one request
    answers            answers of one request: prompts times choices. Several requests fit into the
                       queue, so one alone does not keep the others out
    request_tokens     tokens of one request with several answers, counted as `tokens_under_way`
    num_beams          beams or candidates of a search
    retrieved          training answers that are candidates of a search
    max_tokens         tokens of an answer
    prompt_characters  characters of an input, history included
    messages           messages of a conversation
    stops              stop strings, and characters of each
    alternatives       alternatives of each token
    prefix             tokens that an answer may begin with
    deadline           seconds after which a job is cancelled
    drain              seconds that jobs have left after SIGTERM; then they end with an error
    text_bytes         bytes of the body of a request that has only text
    media_bytes        bytes of the body of a request that may have a sound or a picture
    """

    queue: int = 512
    tokens_under_way: int = 400_000
    rows: int = 64
    n: int = 8
    prompts: int = 64
    answers: int = 64
    request_tokens: int = 200_000
    num_beams: int = 16
    retrieved: int = 32
    max_tokens: int = 512
    prompt_characters: int = 100_000
    messages: int = 256
    stops: tuple[int, int] = (4, 200)
    alternatives: int = 20
    prefix: int = 512
    deadline: float = 120.0
    drain: float = 30.0
    text_bytes: int = 1 * MB
    media_bytes: int = 25 * MB


DEFAULT_LIMITS = Limits()
