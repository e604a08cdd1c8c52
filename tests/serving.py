"""A server as a user starts it, and runs small enough to be trained for a test."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from regard import recipe
from regard.train import train
from tests.tiny import (
    Silent,
    captions_table,
    dialogues_file,
    memorised,
    memorised_captions,
    memorised_sounds,
    pairs_file,
    sounds_table,
)

READY = re.compile(r"API +(http://\S+)/v1")
WITH_LIMITS = """
import asyncio, importlib, json, sys
from pathlib import Path
from regard.serve.http_protocol import ConnectionLimits
from regard.serve.limits import Limits
from regard.serve.server import Settings, model_names, serve
runs, limits, more = json.loads(sys.argv[1])
if "connections" in more:
    more["connections"] = ConnectionLimits(**more["connections"])
for name, value in more.pop("constants", {}).items():
    module, _, constant = name.rpartition(".")
    setattr(importlib.import_module("regard.serve." + module), constant, value)
settings = Settings(
    runs=model_names([Path(run) for run in runs]), port=0, limits=Limits(**limits), **more
)
ready = lambda port: print(f"  API   http://127.0.0.1:{port}/v1", flush=True)
asyncio.run(serve(settings, on_ready=ready))
"""


def train_chat(folder: Path, name: str = "chat", *more: str) -> Path:
    """A chatbot that has memorised ten pairs."""
    steps = "train.steps=150"
    changes = memorised(pairs_file(folder), steps, "search.do_sample=false", "search.candidates=1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", os.environ.get("REGARD_CACHE", str(folder / "cache")))
        train(recipe.load("chat-attention", [*changes, *more]), folder / name, reporter=Silent())
    return folder / name


def train_dialogues(folder: Path) -> Path:
    """A chatbot that reads three turns, and has memorised five dialogues."""
    changes = ["data.kind=dialogues", "data.turns=3", "tokenizer.min_count=1", "train.steps=400"]
    changes += ["search.do_sample=false", "search.candidates=1"]
    settings = memorised(dialogues_file(folder), *changes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        train(recipe.load("chat-attention", settings), folder / "talks", reporter=Silent())
    return folder / "talks"


def train_captions(folder: Path) -> Path:
    changes = memorised_captions(captions_table(folder), "train.steps=40")
    train(recipe.load("caption-attention", changes), folder / "captions", reporter=Silent())
    return folder / "captions"


def train_speech(folder: Path) -> Path:
    changes = memorised_sounds(sounds_table(folder), "train.steps=40")
    train(recipe.load("speech-attention", changes), folder / "speech", reporter=Silent())
    return folder / "speech"


def train_runs(
    new_folder: Callable[[str], Path], **more: Callable[[Path], Path]
) -> dict[str, Path]:
    """A run of each kind of input, and more; each trains in a new folder."""
    trainings = {"chat": train_chat, **more, "captions": train_captions, "speech": train_speech}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(new_folder("cache")))
        return {name: training(new_folder(name)) for name, training in trainings.items()}


def _without_key() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "REGARD_KEY"}


class Server:
    """`regard serve` in a process of its own. With `limits`, the same server with other bounds; and
    then with other `connections` (ConnectionLimits) and `constants` of its modules, if given."""

    def __init__(
        self,
        runs: Sequence[Path],
        *arguments: str,
        limits: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        **more: Any,
    ):
        names = [str(run) for run in runs]
        command = [sys.executable, "-m", "regard", "serve", *names, "--port", "0", *arguments]
        if limits is not None:
            given = json.dumps([names, limits, more])
            command = [sys.executable, "-c", WITH_LIMITS, given]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=_without_key() | {"OMP_NUM_THREADS": "1"} | (environment or {}),
        )
        self.errors: list[str] = []
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()
        self.url = self._wait()

    def _wait(self) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if match := READY.search(line):
                return match[1]
        self.process.wait()
        self._reader.join(5)
        raise AssertionError(f"the server did not start: {''.join(self.errors)}")

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors.extend(self.process.stderr)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def client(self, **options: Any) -> httpx.Client:
        # Without certificates, which would be read for every client and are for nothing here.
        options = {"timeout": 120, "trust_env": False, "verify": False} | options
        return httpx.Client(base_url=self.url, **options)

    def metric(self, name: str) -> float:
        """The sum of a measure over its labels. Tests ask for it again and again, so it costs
        little."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
        finally:
            connection.close()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{"))

    def wait_until_idle(self, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while self.metric("regard_jobs") or self.metric("regard_rows"):
            assert time.monotonic() < deadline, "jobs are still under way"
            time.sleep(0.02)

    def engine_pids(self) -> list[int]:
        """The processes that this server has started."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(word) for word in children.read_text().split()]

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(60)
        self._reader.join(10)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        return status

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def events_of(lines: Iterator[str]) -> list[dict[str, Any]]:
    """The events of a stream, of which the last one is [DONE]."""
    data = [line.removeprefix("data: ") for line in lines if line]
    assert data[-1] == "[DONE]"
    return [json.loads(text) for text in data[:-1]]


def stream(client: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with client.stream("POST", path, json=body | {"stream": True}) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        return events_of(response.iter_lines())
