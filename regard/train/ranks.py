"""The processes of one training (ranks): who leads, who has which rows, and what happens if one of
them is lost. torchrun starts them; a process that was started alone is a rank of one.
"""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from regard.device import device_count, resolve
from regard.errors import DivergedError, InputError, RegardError, TrainingError
from regard.torchrun import Launch, launch
from regard.train.meeting import meet
from regard.train.pulse import POLL, LostRankError, Pulse, first_line
from regard.train.report import Stopped

COLLECTIVE = timedelta(minutes=30)  # the longest that a rank may wait for one that does not advance
MEETING = timedelta(minutes=10)  # the longest that a process waits for the others to be started
NOTED = 10.0  # seconds that the leader waits before it says for whom
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

T = TypeVar("T")
_sessions = count()  # a program may train several times


class OtherRankError(TrainingError):
    """Another process of this training failed and has said why, so this one ends as well."""

    def __init__(self, rank: int, message: str, exit_code: int):
        super().__init__(f"process {rank} of this training ended: {message}")
        self.exit_code = exit_code


class Ranks:
    """The processes of a training, as one of them sees them: here it is alone."""

    rank = 0
    world = 1
    is_leader = True
    is_first_here = True  # on this machine

    def device(self, name: str | torch.device) -> torch.device:
        """The device of this rank."""
        return resolve(name)

    def lead(self, action: Callable[[], T]) -> T:
        """The result of an action that only the leader carries out: something that JSON can say."""
        return action()

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, in their order, for the leader; nothing for the others. A value
        is something that JSON can say."""
        return [value]

    def wait_for_all(self, why: str, noted: Callable[[str], None]) -> None:
        """Nobody goes on before all ranks have come here. If the leader has to wait, `noted` gets a
        line that says for which process, and `why`."""

    def advance(self) -> None:
        """This rank has done a part of what others wait for. They wait as long as it does."""

    def sum(self, *numbers: float) -> list[float]:
        """The sums over all ranks."""
        return list(numbers)

    def copy(self, tensors: Sequence[Tensor]) -> None:
        """Give these tensors the leader's values."""

    def own_rows(self, groups: Sequence[int]) -> slice:
        """The rows of a batch that are this rank's; may be none. `groups` are where groups of rows
        begin that stay together, and the number of rows."""
        first = (len(groups) - 1) * self.rank // self.world
        last = (len(groups) - 1) * (self.rank + 1) // self.world
        return slice(groups[first], groups[last])

    def watch(self, signals: list[int]) -> None:
        """From now on, a signal that one rank gets comes to the `signals` of all."""

    def check(self) -> None:
        """Raise an error if another rank failed."""

    @property
    def earlier_run(self) -> Path | None:
        """The run of this job that was under way when torchrun started its processes again."""
        return None

    def remember(self, run: Path) -> None:
        """If the processes are started again, they go on with this run."""


class ManyRanks(Ranks):
    """The same where there are several."""

    def __init__(
        self,
        launched: Launch,
        store: dist.Store,
        job_store: dist.Store,
        pulse: Pulse,
    ):
        self.rank = launched.rank
        self.world = launched.world
        self.is_leader = launched.rank == 0
        self.is_first_here = launched.local == 0
        self._launch = launched
        self._store = store
        self._job_store = job_store
        self._numbers = count()
        self._was_first: bool | None = None  # to fail
        self._pulse = pulse

    # -- beginning and end -----------------------------------------------------------------------

    def begin(self) -> None:
        """Show signs of life, and watch those of others."""
        self._pulse.start()

    def connect(self) -> None:
        """Make the group of processes that exchange tensors."""
        with _reaching(self._launch):
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if device_count("cuda") else "gloo",
                store=dist.PrefixStore("group", self._store),
                rank=self.rank,
                world_size=self.world,
                timeout=COLLECTIVE,
            )

    def end(self) -> None:
        """All ranks have come to their end. The others show signs of life until the leader has done
        the last of its work; it may own the store, so it leaves when all others have."""
        if not self.is_leader:
            self._store.set(f"ended/{self.rank}", "")
            self._wait("ended/0", 0)
            self.leave()  # the store may be gone as soon as the leader knows
            self._store.set(f"left/{self.rank}", "")
            return
        for rank in range(1, self.world):
            self._wait(f"ended/{rank}", rank)
        self._store.set("ended/0", "")
        for rank in range(1, self.world):
            self._wait(f"left/{rank}", rank)

    def fail(self, problem: BaseException) -> bool:
        """Tell the others why this rank ends, the first time; False: another one had failed
        before."""
        if self._was_first is None:
            self._was_first = self._pulse.fail(*_outcome(problem))
        return self._was_first

    @property
    def has_failed(self) -> bool:
        return self._was_first is not None

    def leave(self) -> None:
        """Show no more signs of life, and expect none."""
        self._pulse.stop()

    def first_failure(self) -> tuple[int, str, int]:
        """The rank, message and exit code of the first failure."""
        return self._pulse.first_failure()

    # -- what the loop asks ----------------------------------------------------------------------

    def device(self, name: str | torch.device) -> torch.device:
        device = resolve(name)
        if device.type != "cuda" or device.index is not None:
            return device
        if self._launch.local >= device_count("cuda"):
            raise InputError(
                "more processes than GPUs on this machine",
                where=f"process {self.rank}",
                got=f"{device_count('cuda')} GPUs",
                hint="give torchrun a smaller --nproc-per-node",
            )
        return torch.device("cuda", self._launch.local)

    def lead(self, action: Callable[[], T]) -> T:
        key = f"lead/{next(self._numbers)}"
        if self.is_leader:
            try:
                result = action()
            except BaseException as problem:
                self.fail(problem)
                raise
            self._store.set(key, json.dumps(result))
            return result
        self._wait(key, 0)
        return json.loads(self._store.get(key))

    def gather(self, value: T) -> list[T]:
        key = f"gather/{next(self._numbers)}"
        if not self.is_leader:
            self._store.set(f"{key}/{self.rank}", json.dumps(value))
            return []
        values = [value]
        for rank in range(1, self.world):
            self._wait(f"{key}/{rank}", rank)
            values.append(json.loads(self._store.get(f"{key}/{rank}")))
        return values

    def wait_for_all(self, why: str, noted: Callable[[str], None]) -> None:
        key = f"here/{next(self._numbers)}"
        if not self.is_leader:
            self._store.set(f"{key}/{self.rank}", "")
            self._wait(key, 0)
            return
        for rank in range(1, self.world):
            line = f"waiting for process {rank} ({self._pulse.names[rank]}){why}"
            self._wait(f"{key}/{rank}", rank, lambda line=line: noted(line))
        self._store.set(key, "")

    def advance(self) -> None:
        self._pulse.advance()

    def sum(self, *numbers: float) -> list[float]:
        total = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(total)
        return total.tolist()

    def copy(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            dist.broadcast(tensor, src=0)

    def watch(self, signals: list[int]) -> None:
        self._pulse.signals = signals

    def check(self) -> None:
        if self._pulse.failure is not None:
            raise OtherRankError(*self._pulse.failure)

    @property
    def earlier_run(self) -> Path | None:
        if not self._job_store.check(["run"]):
            return None
        return Path(self._job_store.get("run").decode())

    def remember(self, run: Path) -> None:
        self._job_store.set("run", str(run.absolute()))

    def _wait(self, key: str, rank: int, noted: Callable[[], object] | None = None) -> None:
        """Wait until that rank has set a key. The pulse ends the wait if a process is lost. If it
        lives but does not advance, the limit does. `noted` is called if it takes long."""
        began = since = time.monotonic()
        advances = self._pulse.advances(rank)
        while not self._store.check([key]):
            self.check()
            now = time.monotonic()
            if advances != self._pulse.advances(rank):
                advances = self._pulse.advances(rank)
                since = now
                self.advance()  # others may wait for this one
            if now - since > COLLECTIVE.total_seconds():
                raise self._hanging(rank)
            if noted is not None and now - began > NOTED:
                noted()
                noted = None
            time.sleep(POLL)

    def _hanging(self, rank: int) -> LostRankError:
        minutes = COLLECTIVE.total_seconds() / 60
        return LostRankError(
            f"process {rank} ({self._pulse.names[rank]}) of this training lives, "
            f"but has not advanced for {minutes:g} minutes",
            where=f"process {self.rank}",
            hint="torchrun starts all processes again if --max-restarts allows it",
        )


@contextlib.contextmanager
def joined() -> Iterator[Ranks]:
    """The ranks of this training. An error of one ends all of them."""
    launched = launch()
    if launched.is_alone:
        yield Ranks()
        return
    owns_group = not dist.is_initialized()
    ranks = _join(launched, next(_sessions))
    ranks.begin()
    agreed = None
    try:
        if owns_group:
            ranks.connect()
        try:
            yield ranks
        except (Stopped, DivergedError) as problem:
            if ranks.has_failed:
                raise
            agreed = problem  # by all ranks
        ranks.end()
    except OtherRankError:
        raise
    except BaseException as problem:
        problem = _as_lost(problem)
        if ranks.fail(problem):
            raise problem from None
        raise OtherRankError(*ranks.first_failure()) from None
    finally:
        ranks.leave()
    if owns_group:
        dist.destroy_process_group()
    if agreed is not None and ranks.is_leader:
        raise agreed
    if agreed is not None:
        raise OtherRankError(0, str(agreed), agreed.exit_code)


def _outcome(problem: BaseException) -> tuple[str, int]:
    """The message and the exit code of what ends a rank; of a signal too."""
    match problem:
        case KeyboardInterrupt():
            return "ended by Ctrl-C", 128 + signal.SIGINT
        case SystemExit(code=int(code)):
            return "ended by a signal", code
    return str(problem), getattr(problem, "exit_code", 1)


def _as_lost(problem: BaseException) -> BaseException:
    """A failed collective call as an error about the training."""
    is_network = isinstance(problem, dist.DistError) or (
        isinstance(problem, RuntimeError) and "gloo" in str(problem)
    )
    if not is_network or isinstance(problem, RegardError):
        return problem
    return LostRankError(
        "the connection to another process of this training was lost",
        got=first_line(problem),
        hint="torchrun starts all processes again if --max-restarts allows it",
    )


def _join(launched: Launch, session: int) -> ManyRanks:
    """Meet the other processes."""
    host, port = launched.address
    owns_store = launched.rank == 0 and not launched.has_agent
    with _reaching(launched):
        # A connection serves one call at a time, and the pulse must not wait for another's.
        base, own = (
            dist.PrefixStore(
                f"regard/{launched.job}/{session}",
                dist.TCPStore(
                    host, port, is_master=is_server, timeout=MEETING, wait_for_workers=False
                ),
            )
            for is_server in (owns_store, False)
        )
        agreed = meet(base, launched.rank, launched.world, limit=MEETING)
    return ManyRanks(
        launched,
        agreed.store(base),
        dist.PrefixStore("job", base),
        Pulse(agreed.store(own), launched.rank, agreed.names),
    )


@contextlib.contextmanager
def _reaching(launched: Launch) -> Iterator[None]:
    """Say what to check if processes do not reach each other."""
    try:
        yield
    except (RuntimeError, dist.DistError) as problem:
        host, port = launched.address
        raise LostRankError(
            "the processes of this training do not reach each other",
            where=f"process {launched.rank} of {launched.world}, {host}:{port}",
            got=first_line(problem),
            hint="check --nnodes, the addresses and, with several networks, GLOO_SOCKET_IFNAME",
        ) from None
