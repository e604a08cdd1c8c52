"""A run that answers from memory, and `regard serve` in a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from regard import cli
from tests.tiny import memorised, pairs_file


def memorised_run(folder: Path) -> Path:
    """A run that knows every answer of `tests.tiny.PAIRS`, with the name "run"."""
    changes = memorised(pairs_file(folder), "train.steps=150", "tokenizer.min_count=1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        sets = [word for change in changes for word in ("--set", change)]
        assert cli.main(["train", "chat-attention", "--out", str(folder / "run"), *sets]) == 0
    return folder / "run"


class ServerProcess:
    """A server under way: `url` without a path."""

    def __init__(self, process: subprocess.Popen[str], url: str):
        self.process = process
        self.url = url

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def stop(self) -> int:
        """The status with which it ends after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def server(run: Path, *options: str, key: str | None = None) -> Iterator[ServerProcess]:
    command = [sys.executable, "-m", "regard", "serve", str(run), "--port", "0", *options]
    environment = {name: value for name, value in os.environ.items() if name != "REGARD_KEY"}
    if key is not None:
        environment["REGARD_KEY"] = key
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    try:
        output = ""
        while "API" not in output:
            line = process.stdout.readline()
            assert line, f"the server has ended after: {output}"
            output += line
        match = re.search(r"(http://\S+)/v1", output)
        assert match is not None
        yield ServerProcess(process, match[1])
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
