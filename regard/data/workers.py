"""A pool of worker processes, and how many there are.

The processes are programs of their own and not forks: this process may have threads, and a script
that calls `regard` needs no `if __name__ == "__main__"`.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from regard.data.worker import Task, work
from regard.errors import DataError, InputError
from regard.resources import available_cores

ALONE = 4  # tasks of a step that this process does before it starts others
MOST = 16  # processes, unless REGARD_WORKERS says more: each takes about 100 MB


def worker_count() -> int:
    """$REGARD_WORKERS, or the number of cores that this process may use, at most MOST."""
    count = os.environ.get("REGARD_WORKERS")
    if count is None:
        return min(available_cores(), MOST)
    if not count.isdecimal() or not 1 <= int(count) <= 1024:
        raise InputError("must be a number from 1 to 1024", where="REGARD_WORKERS", got=count)
    return int(count)


class WorkerEnded(DataError):
    """A worker that was killed. What was done before is kept."""


class Workers:
    """Carries out tasks, in this process while they are few, and then in several."""

    def __init__(self, count: int):
        self._count = count
        self._threads: ThreadPoolExecutor | None = None
        self._processes: list[subprocess.Popen[bytes]] = []
        self._own = threading.local()
        self._lock = threading.Lock()
        self._has_ended = False

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:  # a thread may be starting a process
            self._has_ended = True
            for process in self._processes:
                process.kill()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):  # what was not sent is not needed
                        pipe.close()

    def run(
        self, tasks: Iterable[Task | dict[str, Any]], *, total: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """The results of tasks, in their order. A task that is a dictionary without bytes was done
        before, and is its own result. With a `total` it is known from the start whether the tasks
        are many."""
        done_alone = ALONE if total is not None and total > ALONE else 0
        pending: deque[Future[dict[str, Any]] | dict[str, Any]] = deque()
        for task in tasks:
            if isinstance(task, dict):
                pending.append(task)
            elif self._count == 1 or (self._threads is None and done_alone < ALONE):
                done_alone += 1
                pending.append(work(*task))
            else:
                pending.append(self._submit(task))
            while len(pending) > self._count + 1 or (pending and isinstance(pending[0], dict)):
                yield _result(pending.popleft())
        while pending:
            yield _result(pending.popleft())

    def _submit(self, task: Task) -> Future[dict[str, Any]]:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._count, "regard-preparation")
        return self._threads.submit(self._send, task)

    def _start(self) -> subprocess.Popen[bytes]:
        """A new process, unless all are to end."""
        with self._lock:
            if self._has_ended:
                raise CancelledError
            process = _started()
            self._processes.append(process)
            return process

    def _send(self, task: Task) -> dict[str, Any]:
        """Send a task to this thread's process, and wait for the result."""
        header, payload = task
        process = getattr(self._own, "process", None)
        if process is None:
            process = self._start()
            self._own.process = process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(header | {"size": len(payload)}).encode() + b"\n")
            process.stdin.write(payload)
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line.endswith(b"\n"):  # nothing, or the first part of a result
            raise WorkerEnded(
                "a process that prepares the corpus ended",
                where=f"pid {process.pid}",
                got=f"exit code {process.wait()}",
                hint="is there enough memory? REGARD_WORKERS=1 uses one process; the same command "
                "goes on from there",
            )
        return json.loads(line)


def _started() -> subprocess.Popen[bytes]:
    package = str(Path(__file__).parents[2])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "TOKENIZERS_PARALLELISM": "false",  # there is a process for each core
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    # In a group of its own Ctrl-C does not reach it: it ends when its standard input does.
    return subprocess.Popen(
        [sys.executable, "-m", "regard.data.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        process_group=0,
    )


def _result(pending: Future[dict[str, Any]] | dict[str, Any]) -> dict[str, Any]:
    result = pending if isinstance(pending, dict) else pending.result()
    if "error" in result:
        raise DataError(**result["error"])
    if "system_error" in result:
        raise OSError(*result["system_error"])
    return result
