"""What a task does, on its machine: find its folder, call a function, and return what came of it.

The driver's address, working directory and folder are those of another machine; what is not here is
told in a line.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from regard import disk, errors
from regard.errors import InputError, RegardError, WriteError
from regard.fleet.place import Proof, pack, place_of
from regard.train.process import threads_of

PAUSE = 1.0  # seconds between two reports of progress


class Wire:
    """A task's line to the driver. A line that is cut ends no training."""

    def __init__(self, board: Any, key: str):
        self.board = board
        self.key = key

    def tell(self, kind: str, content: Any) -> None:
        with contextlib.suppress(Exception):
            self.board.tell.remote(self.key, kind, json.dumps(content))

    def ask(self, kind: str, content: Any) -> bool:
        """The driver's answer; False if there is none."""
        try:
            return bool(
                import_module("ray").get(self.board.ask.remote(self.key, kind, json.dumps(content)))
            )
        except Exception:
            return False

    def reporter(self) -> Any:
        return WireReporter(self)


class WireReporter(contextlib.AbstractContextManager["WireReporter"]):
    """Reports the progress of a run to the driver, now and then."""

    def __init__(self, wire: Wire):
        self.wire = wire
        self.last = 0.0

    def __exit__(self, *_: object) -> None:
        return None

    def began(self, facts: Any) -> None:
        pass

    def stepped(self, progress: Any, loss: float, speed: float, done: float) -> None:
        if time.monotonic() - self.last >= PAUSE:
            self.last = time.monotonic()
            self.wire.tell("stepped", [asdict(progress), loss, speed, done])

    def validated(self, record: dict[str, Any], samples: Sequence[tuple[str, str]]) -> None:
        pass

    def noted(self, message: str) -> None:
        self.wire.tell("noted", message)


def work(order: str, board: Any, key: str) -> tuple[str, dict[str, bytes]]:
    """Carry out an order of the driver, which is JSON (`cluster.Task`): a result as JSON, and files
    if the driver's folder is not here."""
    content = json.loads(order)
    host = socket.gethostname()
    home = content["home"] if os.path.isdir(content["home"]) else os.getcwd()
    wire = Wire(board, key)
    try:
        _check_version(content["version"], host)
        with (
            contextlib.chdir(home),
            place_of(content["folder"], Proof(**content["proof"])) as (folder, is_shared),
        ):
            wire.tell("place", is_shared)
            with _alone(content["alone"]), threads_of(content["threads"]):
                value = _function(content["function"])(content["content"], folder, wire)
            files = {} if is_shared else pack(folder)
    except RegardError as problem:
        return json.dumps({"error": error_json(problem, host)}), {}
    return json.dumps({"value": value}), files


def _check_version(version: str, host: str) -> None:
    own = import_module("regard").__version__
    if own != version:
        raise InputError(
            "another version of regard",
            where=host,
            got=f"{own} there, {version} here",
            hint="install the same version on all machines of the cluster",
        )


@contextlib.contextmanager
def _alone(is_alone: bool) -> Iterator[None]:
    """Two timed runs on one machine would take each other's time: the second waits."""
    if not is_alone:
        yield
        return
    path = Path(tempfile.gettempdir()) / f"regard-timed-{os.getuid()}.lock"
    with disk.lock_file(path, wait=True):
        yield


def _function(name: str) -> Any:
    module, _, function = name.partition(":")
    assert module.startswith("regard.")
    return getattr(import_module(module), function)


def error_json(problem: RegardError, host: str) -> dict[str, Any]:
    place = f"on {host}" if problem.where is None else f"on {host}, {problem.where}"
    return {
        "kind": type(problem).__name__,
        "what": problem.what,
        "where": place,
        "got": None if problem.got is None else str(problem.got),
        "hint": problem.hint,
        "details": list(problem.details),
        "exit_code": problem.exit_code,
    }


def error_of(content: dict[str, Any]) -> RegardError:
    """The error that a task ended with."""
    kind = getattr(errors, content["kind"], RegardError)
    if kind is errors.NoRoomError:  # it has other arguments, which are in its text already
        kind = WriteError
    fields = {name: content[name] for name in ("where", "got", "hint", "details")}
    problem = kind(content["what"], **fields)
    problem.exit_code = content["exit_code"]
    return problem
