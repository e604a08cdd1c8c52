"""How the processes that were started together find each other, and none of an earlier start.

The store outlives processes, and what torchrun tells them does not say which start they belong to:
the address stays the same, and each machine counts only the restarts that its own processes caused.
So each process draws a random token and shows it, and the leader proposes a round: the tokens that
it sees. Only a process that finds its own token there answers, and the round begins when all have
answered. A token that a dead process left is never answered; the next process of its rank shows
another one, and the leader proposes another round.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from regard.train.pulse import POLL, LostRankError, has_given_sign, sign_of_life


@dataclass(frozen=True)
class Round:
    """Processes that were started together.

    name     random
    tokens   of all ranks
    names    host and pid of all ranks
    """

    name: str
    tokens: list[str]
    names: list[str]

    def store(self, base: dist.Store) -> dist.Store:
        """Keys that no other round has, by this connection to the store."""
        return dist.PrefixStore(f"round/{self.name}", base)


def meet(base: dist.Store, rank: int, world: int, *, limit: timedelta) -> Round:
    """The round of this process. All its ranks have given a first sign of life."""
    meeting = _Meeting(base, rank, world)
    minutes = limit.total_seconds() / 60
    deadline = time.monotonic() + limit.total_seconds()
    while (agreed := meeting.agreed()) is None:
        if time.monotonic() > deadline:
            absent = ", ".join(str(other) for other in meeting.absent())
            raise LostRankError(
                f"not all processes of this training came within {minutes:g} minutes",
                where=f"process {rank} of {world}",
                got=f"no answer from process {absent}",
                hint="start the same command on every machine, at about the same time",
            )
        time.sleep(POLL)
    return agreed


class _Meeting:
    """Ranks that look for each other."""

    def __init__(self, base: dist.Store, rank: int, world: int):
        self._base = base
        self._rank = rank
        self._world = world
        self._token = secrets.token_hex(16)
        self._proposed: list[bytes] = []  # what the last proposal was made of
        self._answered: Round | None = None
        name = f"{socket.gethostname()}, pid {os.getpid()}"
        base.set(f"here/{rank}", json.dumps([self._token, name]))

    def agreed(self) -> Round | None:
        """The round of this rank, once it has begun."""
        if self._rank == 0:
            self._propose()
        if not self._base.check(["proposal"]):
            return None
        proposal = Round(*json.loads(self._base.get("proposal")))
        if self._token not in proposal.tokens:
            return None
        if proposal != self._answered:
            sign_of_life(proposal.store(self._base), self._rank)
            self._answered = proposal
        begun = f"begun/{proposal.name}"
        if self._rank == 0 and not self.absent():
            self._base.set(begun, "")
        return proposal if self._base.check([begun]) else None

    def absent(self) -> list[int]:
        """The ranks that this one waits for."""
        if self._rank != 0:
            return [0]
        others = range(1, self._world)
        if self._answered is None:
            return [rank for rank in others if not self._base.check([f"here/{rank}"])]
        store = self._answered.store(self._base)
        return [rank for rank in others if not has_given_sign(store, rank)]

    def _propose(self) -> None:
        """Propose the processes that are here now, unless that is what was proposed last."""
        places = [f"here/{rank}" for rank in range(self._world)]
        if not self._base.check(places):
            return
        entries = self._base.multi_get(places)
        if entries == self._proposed:
            return
        self._proposed = entries
        tokens, names = zip(*map(json.loads, entries), strict=True)
        self._base.set("proposal", json.dumps([secrets.token_hex(16), tokens, names]))
