"""What /metrics reports, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

FIRST_TOKEN_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
TOKEN_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1)


class Metrics:
    """Measures by model; `errors` are by kind, so that a refused request can be told from a
    failed one."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own = self.registry
        self.requests = Counter(
            "regard_requests", "Requests by path and status", ["path", "status"], registry=own
        )
        self.tokens = Counter(
            "regard_tokens",
            "Tokens of whole answers; not of those that failed or whose client went away",
            ["model"],
            registry=own,
        )
        self.errors = Counter(
            "regard_errors", "Requests that failed, by kind", ["model", "kind"], registry=own
        )
        self.first_token = Histogram(
            "regard_first_token_seconds",
            "Seconds from a request to the first token of each answer, streamed or not",
            ["model"],
            buckets=FIRST_TOKEN_BUCKETS,
            registry=own,
        )
        self.token = Histogram(
            "regard_token_seconds",
            "Seconds between two tokens of a stream",
            ["model"],
            buckets=TOKEN_BUCKETS,
            registry=own,
        )
        self._queue = Gauge("regard_jobs", "Jobs waiting or under way", ["model"], registry=own)
        self._rows = Gauge("regard_rows", "Rows of the batch", ["model"], registry=own)

    def watch(self, model: str, jobs: Callable[[], float], rows: Callable[[], float]) -> None:
        """Report the jobs and rows of a model at the time of each reading."""
        self._queue.labels(model).set_function(jobs)
        self._rows.labels(model).set_function(rows)

    def text(self) -> bytes:
        return generate_latest(self.registry)
