"""The driver's side: a cluster, and tasks that many threads wait for."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import regard
from regard.errors import InputError, RegardError, TrainingError
from regard.fleet.address import check, load_ray, unreachable
from regard.fleet.board import Board
from regard.fleet.place import Proof, proof_in, unpack
from regard.fleet.worker import error_of, work
from regard.train import Stopped
from regard.train.process import stop_signals

T = TypeVar("T")

RETRIES = 10  # of a task whose machine or process dies
MOST = 256  # tasks under way; Ray keeps those waiting for which no core is free
POLL = 0.5  # seconds
GRACE = 120.0  # seconds in which runs that are stopped may save their checkpoints

# Called with the kind and content of a task's message; returns the answer, if it is a question.
OnMessage = Callable[[str, Any], bool]


@dataclass(frozen=True)
class Task:
    """A function of this package, called on some machine as function(content, folder, wire)."""

    function: str  # module:name
    content: dict[str, Any]  # JSON
    folder: Path  # of the driver
    threads: int | None = None  # by default as many as it has cores
    alone: bool = False  # whether it is to have a machine for itself
    name: str = ""


class FleetStopped(Stopped):
    """A signal asked for the end of all tasks."""

    def __init__(self, number: int, apart: int = 0):
        lost = ""
        if apart:
            lost = f"; {apart} of them, on machines without this folder, begin again"
        RegardError.__init__(
            self, f"stopped; the runs under way have saved checkpoints{lost}",
            hint="the same command goes on",
        )  # fmt: skip
        self.exit_code = 128 + number


class Fleet:
    """A Ray cluster, while a command uses it."""

    def __init__(self, address: str, *, device: str = "auto"):
        self.address = address
        self.device = device
        self.stopping: int | None = None  # the number of the signal
        self._tasks: dict[str, Any] = {}  # by key: what Ray calls them
        self._on_message: dict[str, OnMessage] = {}
        self._begun: set[str] = set()  # keys of tasks that have a machine
        self._apart: set[str] = set()  # keys of tasks that do not have the driver's folder
        self._keys = itertools.count(1)
        self._lock = threading.Lock()
        self._proofs: dict[Path, Proof] = {}
        self._exit = contextlib.ExitStack()

    def check(self) -> None:
        """Raise if there is no Ray, or nobody listens at the address. This takes a moment;
        connecting takes seconds."""
        self.ray = load_ray()
        check(self.address)

    def __enter__(self) -> Fleet:
        self.check()
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if self.address == "local":
            options["include_dashboard"] = False
        try:
            self.ray.init(self.address, **options)
        except (OSError, ValueError, RuntimeError) as problem:
            why = str(problem).strip().partition("\n")[0]
            raise unreachable(self.address, why) from None
        self._exit.callback(self.ray.shutdown)
        affinity = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        here = self.ray.get_runtime_context().get_node_id()
        self.board = (
            self.ray.remote(Board)
            .options(
                num_cpus=0,
                max_restarts=-1,
                max_task_retries=-1,
                scheduling_strategy=affinity(here, soft=True),
            )
            .remote()
        )
        listening = threading.Thread(target=self._listen, daemon=True)
        self._ended = threading.Event()
        listening.start()
        self._exit.callback(listening.join, 5 * POLL)
        self._exit.callback(self._ended.set)
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    # -- what there is --

    def cores(self) -> list[int]:
        """The cores of each machine."""
        alive = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        return [int(each.get("CPU", 0)) for each in alive if each.get("CPU", 0) >= 1]

    def slots(self, cores: int) -> int:
        """How many tasks of so many cores run at once."""
        return max(1, sum(count // cores for count in self.cores()))

    def _gpus(self) -> int:
        """GPUs of a task: one, if they are asked for or there are any."""
        if self.device == "auto":
            return 1 if self.ray.cluster_resources().get("GPU", 0) >= 1 else 0
        return 0 if self.device == "cpu" else 1

    # -- tasks --

    def run(self, task: Task, on_message: OnMessage = lambda kind, content: False) -> Any:
        """The result of a task. It is made again, at most `RETRIES` times, if its machine dies or
        is told to end."""
        for _ in range(RETRIES + 1):
            text, files = self._result(task, on_message)
            result = json.loads(text)
            if "value" in result:
                unpack(files, task.folder)
                return result["value"]
            self.check_signals()
            if result["error"]["kind"] != Stopped.__name__:
                raise error_of(result["error"])
        raise self._ended_again(task, "the process was told to end")

    def _result(self, task: Task, on_message: OnMessage) -> tuple[str, dict[str, bytes]]:
        key = str(next(self._keys))
        cores = self._cores(task)
        order = {
            "function": task.function,
            "content": task.content,
            "folder": str(task.folder),
            "proof": vars(self._proof(task.folder)),
            "home": os.getcwd(),
            "version": regard.__version__,
            "threads": task.threads or cores,
            "alone": task.alone,
        }
        remote = self.ray.remote(work).options(
            num_cpus=cores,
            num_gpus=self._gpus(),
            max_retries=RETRIES,
            name=task.name or task.function,
        )
        with self._lock:
            self.check_signals()
            self._on_message[key] = on_message
            reference = self._tasks[key] = remote.remote(json.dumps(order), self.board, key)
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayError as problem:
            self.check_signals()
            if isinstance(problem, self.ray.exceptions.RayTaskError):
                raise  # a bug of ours; its traceback is in it
            why = str(problem).strip().partition("\n")[0]
            raise self._ended_again(task, f"{type(problem).__name__}: {why}") from None
        finally:
            with self._lock:
                del self._tasks[key], self._on_message[key]
                self._apart.discard(key)

    def _cores(self, task: Task) -> int:
        """The cores of a task: one for each thread, or all that the smallest machine has."""
        machines = self.cores()
        if task.alone:
            return min(machines, default=1)
        cores = task.threads or 1
        if machines and cores > max(machines):
            raise InputError(
                "no machine of the cluster has so many cores",
                where="train.threads",
                got=f"{cores:,}, and the largest has {max(machines):,}",
                hint=f"--set train.threads={max(machines)}",
            )
        return cores

    def _ended_again(self, task: Task, why: str) -> TrainingError:
        return TrainingError(
            f"the machine or process of a task ended {RETRIES + 1} times",
            where=task.name or None,
            got=why,
            hint="the same command tries it again",
        )

    def check_signals(self) -> None:
        """Raise if all tasks are to end; for threads that wait for something else."""
        if self.stopping is not None:
            raise FleetStopped(self.stopping)

    def _proof(self, folder: Path) -> Proof:
        """The file by which a task knows the driver's folder."""
        with self._lock:
            if folder not in self._proofs:
                self._proofs[folder] = self._exit.enter_context(proof_in(folder.absolute()))
            return self._proofs[folder]

    def together(self, calls: Sequence[Callable[[], T]]) -> Iterator[T]:
        """Make calls that wait for tasks, each in a thread, and give their results as they come.
        A signal stops all tasks, which save checkpoints, and ends it with `FleetStopped`."""
        pool = ThreadPoolExecutor(min(max(1, len(calls)), MOST))
        with stop_signals() as signals:
            waiting: set[Future[T]] = {pool.submit(call) for call in calls}
            try:
                while waiting:
                    done, waiting = wait(waiting, POLL, FIRST_COMPLETED)
                    if signals:
                        raise FleetStopped(signals[0])
                    for future in done:
                        yield future.result()
            except BaseException as problem:
                number = signals[0] if signals else int(signal.SIGINT)
                apart = len(self._apart)
                self._stop(number, pool, waiting, at_once=isinstance(problem, KeyboardInterrupt))
                if isinstance(problem, FleetStopped):
                    raise FleetStopped(number, apart) from None
                raise
            pool.shutdown()

    def _stop(
        self, number: int, pool: ThreadPoolExecutor, waiting: set[Future[T]], *, at_once: bool
    ) -> None:
        """Cancel all tasks, and wait until they have saved what they have."""
        with self._lock:
            self.stopping = number
            under_way = list(self._tasks.values())
        pool.shutdown(wait=False, cancel_futures=True)
        try:
            for task in under_way:
                self.ray.cancel(task, force=at_once)
            wait(waiting, GRACE)
        finally:
            for task in list(self._tasks.values()):
                self.ray.cancel(task, force=True)

    # -- messages --

    def _listen(self) -> None:
        while not self._ended.is_set():
            try:
                messages = self.ray.get(self.board.take.remote(POLL))
            except Exception:
                if self._ended.is_set():
                    return
                time.sleep(POLL)  # the board begins again on another machine
                continue
            for question, key, kind, content in messages:
                answer = self._receive(key, kind, json.loads(content))
                if question is not None:
                    self.board.answer.remote(question, answer)

    def _receive(self, key: str, kind: str, content: Any) -> bool:
        """Pass a message on to the caller of its task; the answer, if it is a question."""
        with self._lock:
            on_message = self._on_message.get(key)
            if on_message is None:  # the task has ended meanwhile
                return False
            if kind == "place":
                (self._apart.discard if content else self._apart.add)(key)
                if key not in self._begun:
                    self._begun.add(key)
                    return False
                kind, content = "noted", "its machine or process ended, and another one goes on"
        try:
            return on_message(kind, content)
        except Exception:  # it is reported when the task ends; messages of others must go on
            return False
