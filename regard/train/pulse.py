"""Signs of life: how a process of a training notices that another one is lost."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from itertools import count

import torch.distributed as dist

from regard.errors import TrainingError, printable

BEAT = 1.0  # seconds between two signs of life of a rank
SILENCE = 30.0  # seconds without one after which a rank is lost
# The same after a signal. torchrun sends one to all that are left if one is lost, and starts no
# process again before they have ended.
SILENCE_AFTER_SIGNAL = 5.0
NOTICE = 3.0  # seconds that a process has to notice itself that another failed
POLL = 0.02  # seconds between two looks at the store


class LostRankError(TrainingError):
    """A process of this training was lost. The exit code is that of a temporary failure: the same
    command may succeed."""

    exit_code = 75


class Pulse:
    """A rank's signs of life, and the watch over those of others.

    One thread counts in the store and reads the counters of others: the leader those of all, the
    others that of the leader. Another one judges, because reading may block if the network fails.
    Blocked collective calls cannot be interrupted, so a lost rank ends the process.

    A rank may live and yet hang. So there is a second counter, of what its main thread has done of
    a long piece of work: `advance` counts, and those that wait for this rank look at `advances`.
    """

    def __init__(self, store: dist.Store, rank: int, names: Sequence[str]):
        self._store = store
        self._rank = rank
        self.names = names
        self._peers = list(range(1, len(names))) if rank == 0 else [0]
        self._counters: dict[int, bytes] = {}
        self._heard: dict[int, float] = {}
        self._own_advances = 0
        self._answered = 0.0  # when the store last answered
        self._ended = threading.Event()
        self._has_told = False
        self.signals: list[int] = []
        self.failure: tuple[int, str, int] | None = None  # rank, message, exit code

    def start(self) -> None:
        """All ranks have given their first sign of life."""
        self._hear_all()
        for target in (self._beat, self._judge):
            threading.Thread(target=target, name=f"ranks{target.__name__}", daemon=True).start()

    def stop(self) -> None:
        self._ended.set()

    def advance(self) -> None:
        """The main thread of this rank has done a part of its work."""
        self._own_advances += 1

    def advances(self, peer: int) -> int:
        """How often that rank has done a part of its work, as far as this one knows."""
        _, _, advances = self._counters.get(peer, b"").partition(b" ")
        return int(advances or 0)

    def fail(self, message: str, exit_code: int) -> bool:
        """Write why this rank ends, unless another one was first."""
        record = json.dumps([self._rank, message, exit_code])
        try:
            return self._store.compare_set("failed", "", record).decode() == record
        except (RuntimeError, dist.DistError):  # the store is gone, and with it all who read it
            return True

    def first_failure(self) -> tuple[int, str, int]:
        rank, message, exit_code = json.loads(self._store.get("failed"))
        return rank, message, exit_code

    def _hear_all(self) -> None:
        self._answered = time.monotonic()
        self._heard = dict.fromkeys(self._peers, self._answered)

    def _beat(self) -> None:
        for number in count(1):
            if self._ended.wait(BEAT):
                return
            try:
                self._exchange(number)
            except (RuntimeError, dist.DistError) as problem:
                if not self._ended.is_set():
                    self._end(f"the store of this training is gone ({first_line(problem)})")
                return

    def _exchange(self, number: int) -> None:
        sign_of_life(self._store, self._rank, number, self._own_advances)
        counters = self._store.multi_get([f"beat/{peer}" for peer in self._peers])
        now = time.monotonic()
        for peer, counter in zip(self._peers, counters, strict=True):
            if self._counters.get(peer) != counter:
                self._counters[peer] = counter
                self._heard[peer] = now
        if self.signals and not self._has_told:
            self._store.set("stop", str(self.signals[0]))
            self._has_told = True
        if not self.signals and self._store.check(["stop"]):
            self.signals.append(int(self._store.get("stop")))
        if self.failure is None and self._store.check(["failed"]):
            failure = self.first_failure()
            if failure[0] != self._rank:
                self.failure = failure
                threading.Timer(NOTICE, self._follow, [failure[2]]).start()
        self._answered = now

    def _follow(self, exit_code: int) -> None:
        """The main thread has not noticed that another rank failed: it waits for it."""
        if not self._ended.is_set():
            show_cursor()
            os._exit(exit_code)

    def _judge(self) -> None:
        last = time.monotonic()
        while not self._ended.wait(BEAT):
            now = time.monotonic()
            if now - last > SILENCE / 2:  # this process was stopped itself
                self._hear_all()
            last = now
            allowed = SILENCE_AFTER_SIGNAL if self.signals else SILENCE
            if now - self._answered > allowed:
                self._end(f"the store of this training has not answered for {allowed:.0f} s")
            for peer, heard in self._heard.items():
                if now - heard > allowed and self.failure is None:
                    name = f"process {peer} ({self.names[peer]})"
                    self._end(f"{name} of this training has been silent for {allowed:.0f} s")

    def _end(self, message: str) -> None:
        """End this process at once, and say why if no other did."""
        code = LostRankError.exit_code
        hint = "torchrun starts all processes again if --max-restarts allows it"
        writer = threading.Thread(target=self.fail, args=(message, code), daemon=True)
        writer.start()
        writer.join(BEAT)
        show_cursor()
        print(f"regard: {printable(message)}; {hint}", file=sys.stderr, flush=True)
        os._exit(code)


def show_cursor() -> None:
    """A progress bar hides it, and has no time to show it again."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or not there
            if stream.isatty():
                os.write(stream.fileno(), b"\x1b[?25h")


def sign_of_life(store: dist.Store, rank: int, number: int = 0, advances: int = 0) -> None:
    store.set(f"beat/{rank}", f"{number} {advances}")


def has_given_sign(store: dist.Store, rank: int) -> bool:
    return store.check([f"beat/{rank}"])


def first_line(problem: BaseException) -> str:
    return str(problem).strip().partition("\n")[0][:120]
