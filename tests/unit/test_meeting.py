"""Processes that were started together meet, whatever an earlier start left in the store, and wait
for each other within limits."""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any, cast

import pytest
import torch.distributed as dist

from regard.torchrun import Launch
from regard.train import pulse, ranks
from regard.train.meeting import Round, _Meeting, meet
from regard.train.pulse import LostRankError, Pulse, sign_of_life
from regard.train.ranks import ManyRanks

SOON = timedelta(seconds=60)


@pytest.fixture
def store() -> dist.Store:
    return dist.HashStore()


def meet_all(store: dist.Store, world: int) -> list[Round]:
    """What processes that are started together agree on."""
    with ThreadPoolExecutor(world) as pool:
        rounds = [pool.submit(meet, store, rank, world, limit=SOON) for rank in range(world)]
        return [future.result() for future in rounds]


def test_all_agree_on_a_round(store: dist.Store):
    rounds = meet_all(store, 5)
    assert all(agreed == rounds[0] for agreed in rounds)
    assert len(set(rounds[0].tokens)) == len(rounds[0].names) == 5


def test_every_start_is_a_round_of_its_own(store: dist.Store):
    names = set()
    for _ in range(20):
        rounds = meet_all(store, 3)
        assert len({agreed.name for agreed in rounds}) == 1
        assert rounds[0].store(store).check(["beat/0", "beat/1", "beat/2"])
        assert not rounds[0].store(store).check(["work"])
        rounds[0].store(store).set("work", "")
        names.add(rounds[0].name)
    assert len(names) == 20


@pytest.mark.parametrize("dead", [0, 1, 2])
@pytest.mark.parametrize("moment", ["shown", "proposed", "answered"])
def test_processes_that_died_while_they_met_confuse_nobody(
    store: dist.Store, dead: int, moment: str
):
    """All of them are gone, at any point of their meeting; then all are started again."""
    meetings = [_Meeting(store, rank, 3) for rank in range(3)]
    if moment != "shown":
        meetings[0].agreed()
    if moment == "answered":
        for rank, meeting in enumerate(meetings):
            if rank != dead:
                meeting.agreed()
    before = store.get("proposal") if moment != "shown" else b""
    rounds = meet_all(store, 3)
    assert all(agreed == rounds[0] for agreed in rounds)
    tokens = {meeting._token for meeting in meetings}
    assert not tokens & set(rounds[0].tokens)
    assert store.get("proposal") != before


@pytest.mark.parametrize("rank", [1, 2])
def test_one_that_is_started_again_joins_those_that_still_wait(store: dist.Store, rank: int):
    """A machine of which the others do not know that its process died."""
    _Meeting(store, rank, 3)
    with ThreadPoolExecutor(3) as pool:
        others = [other for other in range(3) if other != rank]
        waiting = [pool.submit(meet, store, other, 3, limit=SOON) for other in others]
        while not store.check(["proposal"]):
            time.sleep(0.001)
        late = pool.submit(meet, store, rank, 3, limit=SOON)
        rounds: list[Round] = [future.result() for future in [*waiting, late]]
    assert all(agreed == rounds[0] for agreed in rounds)


def test_a_round_does_not_begin_without_an_answer_of_each(store: dist.Store):
    leader, second, _ = [_Meeting(store, rank, 3) for rank in range(3)]
    for _ in range(3):
        assert leader.agreed() is None
        assert second.agreed() is None
    assert leader.absent() == [2]
    assert second.absent() == [0]


def test_who_does_not_come_is_named(store: dist.Store):
    _Meeting(store, 1, 4)
    with pytest.raises(LostRankError, match=r"process 0 of 4: .*no answer from process 2, 3"):
        meet(store, 0, 4, limit=timedelta(seconds=0.1))
    with pytest.raises(LostRankError, match=r"process 3 of 4: .*no answer from process 0"):
        meet(store, 3, 4, limit=timedelta(seconds=0.1))


# -- waiting for a process that lives---------------------------------------------------------------


def rank_of_two(store: dist.Store, rank: int) -> ManyRanks:
    """One of two ranks; the signs of life of both are in the store."""
    for each in range(2):
        if not store.check([f"beat/{each}"]):
            sign_of_life(store, each)
    signs = Pulse(store, rank, ["host-a, pid 3", "host-b, pid 5"])
    launched = Launch(rank=rank, world=2, local=0)
    return ManyRanks(launched, store, dist.PrefixStore("job", store), signs)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pulse, "BEAT", 0.05)
    monkeypatch.setattr(ranks, "COLLECTIVE", timedelta(seconds=1))
    monkeypatch.setattr(ranks, "NOTED", 0.2)


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("wait", ["lead", "wait_for_all"])
def test_a_leader_that_lives_and_hangs_is_not_waited_for_endlessly(store: dist.Store, wait: str):
    leader, second = (rank_of_two(store, rank) for rank in range(2))
    leader.begin()
    second.begin()
    try:
        with pytest.raises(
            LostRankError, match=r"process 0 \(host-a, pid 3\) .*lives, but has not advanced for"
        ):
            second.lead(int) if wait == "lead" else second.wait_for_all("", print)
    finally:
        leader.leave()
        second.leave()


@pytest.mark.usefixtures("fast")
def test_one_that_advances_is_waited_for(store: dist.Store, monkeypatch: pytest.MonkeyPatch):
    """Longer than the limit, also by those who wait for the leader while it waits; and the leader
    says for whom."""
    monkeypatch.setattr(ranks, "COLLECTIVE", timedelta(seconds=4))
    leader, second = (rank_of_two(store, rank) for rank in range(2))
    leader.begin()
    second.begin()
    notes: list[str] = []

    def prepare() -> None:
        until = time.monotonic() + 6
        while time.monotonic() < until:
            second.advance()
            time.sleep(0.05)
        second.wait_for_all("", print)

    try:
        with ThreadPoolExecutor(1) as pool:
            prepared: Future[None] = pool.submit(prepare)
            leader.wait_for_all(", which prepares", notes.append)
            prepared.result()
        assert notes == ["waiting for process 1 (host-b, pid 5), which prepares"]
        assert leader._pulse._own_advances > 0
    finally:
        leader.leave()
        second.leave()


@pytest.mark.usefixtures("fast")
def test_signs_of_life_go_on_while_the_leader_does_the_last_of_its_work(store: dist.Store):
    leader, second = (rank_of_two(store, rank) for rank in range(2))
    leader.begin()
    second.begin()

    def end(rank: ManyRanks) -> None:
        rank.end()
        rank.leave()

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(end, second)
        while not store.check(["ended/1"]):
            time.sleep(0.001)
        sign = store.get("beat/1")
        until = time.monotonic() + 30
        while store.get("beat/1") == sign and time.monotonic() < until:
            time.sleep(0.01)
        assert store.get("beat/1") != sign
        assert not waiting.done()
        end(leader)
        waiting.result()


def test_a_rank_needs_the_store_no_more_when_it_says_that_it_left(store: dist.Store):
    """Else a sign of life that fails would end it with an error after the training."""
    second = rank_of_two(store, 1)
    has_left: list[bool] = []

    class Recording:
        def check(self, keys: list[str]) -> bool:
            return True

        def set(self, key: str, value: str) -> None:
            if key == "left/1":
                has_left.append(second._pulse._ended.is_set())

    second._store = cast(Any, Recording())
    second.end()
    assert has_left == [True]


@pytest.mark.parametrize(
    ("problem", "outcome"),
    [
        (KeyboardInterrupt(), ("ended by Ctrl-C", 130)),
        (SystemExit(143), ("ended by a signal", 143)),
        (LostRankError("process 1 was lost"), ("process 1 was lost", 75)),
        (ValueError("a fault"), ("a fault", 1)),
    ],
)
def test_why_a_rank_ended_is_said_to_the_others(store: dist.Store, problem, outcome):
    first, second = (rank_of_two(store, rank) for rank in range(2))
    assert first.fail(problem)
    assert second.first_failure() == (0, *outcome)
    assert not second.fail(problem)
    assert first.has_failed and second.has_failed


def test_a_rank_that_says_again_why_it_ended_was_still_the_first(store: dist.Store):
    """`lead` says it, and then `joined`, which may have other words for it."""
    first = rank_of_two(store, 0)
    assert first.fail(RuntimeError("gloo: connection closed"))
    assert first.fail(LostRankError("the connection was lost"))
    assert first.first_failure() == (0, "gloo: connection closed", 1)


def test_a_cursor_that_a_bar_has_hidden_is_shown_again(monkeypatch: pytest.MonkeyPatch):
    master, slave = os.openpty()
    with os.fdopen(slave, "w") as terminal, os.fdopen(master, "rb") as other:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setattr(sys, "stdout", None)
        pulse.show_cursor()
        assert other.read(6) == b"\x1b[?25h"


def test_the_run_of_a_job_is_remembered_whatever_the_number_of_restarts(
    store: dist.Store, tmp_path, monkeypatch: pytest.MonkeyPatch
):
    """torchrun tells the leader of no restart if another machine's process died."""
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    first = rank_of_two(store, 0)
    assert first.earlier_run is None
    first.remember(tmp_path)
    assert rank_of_two(store, 0).earlier_run == tmp_path
