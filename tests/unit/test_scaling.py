"""The estimate of scaling: its formulas against a ring all-reduce that is simulated."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction

import pytest

from regard.budget import lengths, of
from regard.budget.closed_form.real import Real, longest
from regard.budget.quantities import bandwidth, flops, latency
from regard.budget.scaling import BUCKET, Scaling
from regard.cli import main
from regard.errors import InputError

AT = lengths(12, 7, 5)


@pytest.fixture(scope="module")
def eight() -> Scaling:
    budget = of("chat-transformer", AT, vocabulary=3000)
    return Scaling(budget, 8, bandwidth=1.25e9, latency=5e-5, flops=5e10)


def ring(machines: int, numbers: int) -> tuple[list[Fraction], int]:
    """What each machine sends in a ring all-reduce, in numbers, and in how many messages; every
    machine ends with the sum of all."""
    parts = [Fraction(numbers, machines)] * machines
    held = [[{owner} for _ in range(machines)] for owner in range(machines)]
    sent = [Fraction(0)] * machines
    messages = 0
    for turn in range(2 * (machines - 1)):
        moves = []
        for machine in range(machines):
            part = (machine - turn) % machines
            moves.append(((machine + 1) % machines, part, set(held[machine][part])))
            sent[machine] += parts[part]
        for to, part, owners in moves:
            held[to][part] |= owners
        messages += 1
    everybody = set(range(machines))
    assert all(owners == everybody for machine in held for owners in machine)
    return sent, messages


def test_every_machine_makes_the_whole_update(eight: Scaling):
    """Two steps that take equally long on one machine: the one with more update scales less."""
    alone = eight.row(1).alone
    share = 0.25
    updating = replace(eight, flops=eight.flops / (1 - share), update=share * alone)
    row, without = updating.row(8), eight.row(8)
    assert row.alone == pytest.approx(alone)
    assert row.computation == pytest.approx((1 - share) * alone / 8)
    assert row.worst == pytest.approx(row.computation + row.communication + share * alone)
    assert row.speed_up(row.best) < min(4.0, without.speed_up(without.best))
    work = updating.formulas()["step, worst case"]
    assert "U" in work.symbols and work.value == pytest.approx(row.worst)


@pytest.mark.parametrize("machines", [1, 2, 3, 7, 8])
def test_bytes_and_messages_are_those_of_a_ring(eight: Scaling, machines: int):
    sent, messages = ring(machines, eight.budget.parameters)
    assert len(set(sent)) == 1
    instant = replace(eight, machines=machines, latency=0.0)
    seconds = instant.row(machines).communication
    assert seconds == pytest.approx(float(4 * sent[0]) / eight.bandwidth)
    wide = replace(eight, machines=machines, bandwidth=math.inf, latency=1.0)
    buckets = math.ceil(4 * eight.budget.parameters / BUCKET)
    assert wide.row(machines).communication == pytest.approx(messages * (buckets + 3))


def test_a_free_network_scales_perfectly_and_none_helps_without(eight: Scaling):
    free = replace(eight, bandwidth=math.inf, latency=0.0)
    for row in free.rows():
        assert row.worst == pytest.approx(row.alone / row.machines)
        assert row.efficiency(row.best) == pytest.approx(1.0)
    slow = replace(eight, bandwidth=1.0)
    assert all(row.speed_up(row.best) < 1e-3 for row in slow.rows()[1:])


def test_the_best_case_hides_what_the_backward_pass_can(eight: Scaling):
    work = eight.budget.multiplications
    for speed in (1e7, 1e8, 1e9, 1e12):
        row = replace(eight, bandwidth=speed).row(8)
        forward = row.computation * work["forward"] / work["training"]
        assert row.best <= row.worst
        assert row.best >= max(row.computation, forward + row.communication) - 1e-12
        assert row.worst == pytest.approx(row.computation + row.communication)


def test_half_of_the_time_is_communication_at_the_half_batch(eight: Scaling):
    half = eight.half_batch
    assert half is not None
    budget = of("chat-transformer", lengths(half, 7, 5), vocabulary=3000)
    row = replace(eight, budget=budget).row(8)
    assert row.communication / row.worst == pytest.approx(0.5, abs=0.5 / half + 1e-3)
    assert replace(eight, machines=1).half_batch is None


def test_rows_are_powers_of_two_and_all(eight: Scaling):
    assert [row.machines for row in replace(eight, machines=6).rows()] == [1, 2, 4, 6]
    assert [row.machines for row in eight.rows()] == [1, 2, 4, 8]


def test_formulas_show_what_they_compute(eight: Scaling):
    for formula in eight.formulas().values():
        text = formula.numbers.replace("·", "*").replace(",", "")
        if "max(" in text:  # whose comma went with those of the numbers
            continue
        assert eval(text) == pytest.approx(formula.value, rel=1e-4)
    communication = eight.formulas()["communication"]
    assert communication.symbols == "2 (N - 1) G / (N W) + 2 (N - 1) (K + 3) a"
    a, b = Real.named("a", 2.0), Real.named("b", 5.0)
    difference = a - (b - a)
    assert (difference.symbols, difference.value) == ("a - (b - a)", -1.0)
    assert longest(a, b).symbols == "max(a, b)" and longest(a, b).value == 5.0
    assert (a / (a * b)).numbers == "2/(2·5)"


def test_small_b_is_bits():
    assert bandwidth("8Gb") == bandwidth("1GB") == bandwidth("1 GB/s") == bandwidth("8,000Mbit")
    assert latency("1ms") == latency("1000us")
    assert flops("1T") == flops("1000 GFLOPS") == 1e12


@pytest.mark.parametrize("text", ["", "10", "10gigs", "-1Gb", "0Gb", "1e999Gb", "Gb"])
def test_no_bandwidth_is_one_line(text: str):
    with pytest.raises(InputError, match="--bandwidth: must be a bandwidth above 0"):
        bandwidth(text)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--machines", "8"], "--machines needs the bandwidth of their network"),
        (["--flops", "3G"], "are for --machines"),
        (["--machines", "0", "--bandwidth", "1Gb", "--flops", "1G"], "must be a whole number >= 1"),
        (["--machines", "2", "--bandwidth", "1Gb", "--latency", "5"], "as in 50us or 0.2ms"),
        (["--machines", "2", "--bandwidth", "1Gb", "--flops", "fast"], "as in 50G or 1.5T"),
    ],
)
def test_mistakes_end_in_one_line(words: list[str], message: str, capsys):
    assert main(["budget", "chat-lstm", *words]) == 2
    told = capsys.readouterr().err
    assert message in told and told.count("\n") == 1


def test_through_the_door(capsys):
    words = ["budget", "chat-lstm", "--machines", "8", "--bandwidth", "1Gb", "--flops", "50G"]
    assert main([*words, "--formulas"]) == 0
    shown = capsys.readouterr().out
    assert "scaling over machines, worst case (no overlap) to best case (overlap)\n" in shown
    assert "  communication: 2 (N - 1) G / (N W) + 2 (N - 1) (K + 3) a\n" in shown
    assert "rate            50 GFLOPs a second of each machine, as given\n" in shown
    assert "assumption      " in shown
    assert main([*words, "--json"]) == 0
    scaling = json.loads(capsys.readouterr().out)["scaling"]
    assert [row["machines"] for row in scaling["rows"]] == [1, 2, 4, 8]
    assert scaling["rows"][0]["speed_up"] == {"worst": 1.0, "best": 1.0}
    assert not scaling["is_measured"]


def test_a_model_from_numbers_cannot_be_measured(capsys):
    words = ["budget", "--lstm", "width=8", "--machines", "2", "--bandwidth", "1Gb"]
    assert main(words) == 2
    assert "--flops says how many FLOPs" in capsys.readouterr().err
    assert main([*words, "--flops", "1G"]) == 0


def test_the_rate_is_measured_by_steps(capsys, monkeypatch):
    from regard.budget import rate

    monkeypatch.setattr(rate, "SECONDS", 0.0)
    words = ["budget", "chat-gru", "--batch", "2", "--length", "3", "--vocabulary", "50"]
    words += ["--set", "encoder.width=8", "--machines", "2", "--bandwidth", "1Gb", "--json"]
    assert main(words) == 0
    answer = json.loads(capsys.readouterr().out)
    scaling = answer["scaling"]
    assert scaling["is_measured"]
    alone = scaling["rows"][0]
    step = alone["computation_seconds"]
    assert step == pytest.approx(answer["flops"]["training"] / scaling["flops_per_second"])
    assert 1e-5 < step < 60
    assert 0 < scaling["update_seconds"] < 60
    assert alone["step_seconds"]["worst"] == pytest.approx(step + scaling["update_seconds"])
