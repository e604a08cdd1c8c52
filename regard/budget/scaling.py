"""How training scales over several machines: an estimate before anything is trained.

Data parallelism, as `torchrun -m regard train` has it: every machine computes a part of each batch,
then all add up their gradients by a ring all-reduce. With N machines, M multiplications of a step
and P parameters

    computation     M / (N R)                              R multiplications a second of a machine
    communication   2 (N - 1) G / (N W) + 2 (N - 1) (K + E) a
                    G = 4 P bytes of gradients, W bytes a second of a link, a seconds of latency,
                    K = ceil(G / 25 MiB) buckets of DDP, E = 3 short exchanges of a step

The ring is that of Patarasuk and Yuan (2009): each machine sends (N - 1)/N of the gradients twice,
in 2 (N - 1) messages. Without overlap a step takes both times; that is the worst case. DDP begins
to send while the backward pass still runs; in the best case only what is longer than the backward
pass adds to a step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from regard.budget.closed_form.parts import FLOAT, Budget
from regard.errors import InputError

BUCKET = 25 << 20  # bytes of a bucket of DistributedDataParallel, by default
EXCHANGES = 3  # short ones in each step: tokens, loss, signals
LATENCY = 50e-6  # seconds of a message, by default: Ethernet and TCP
MOST_MACHINES = 1 << 16
PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
TIMES = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
NUMBER = r"([0-9][0-9,_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*"

ASSUMPTIONS = (
    "every machine computes 1/N of each batch at this rate; in truth small parts are slower",
    "all links have this bandwidth in both directions at once, and nothing else uses them",
    "gradients have 4 bytes and are sent in every step: no gradient accumulation, no compression",
    "reading data, validations and checkpoints take no time; of the update only what was measured",
)


# -- quantities ------------------------------------------------------------------------------------


def bandwidth(text: str) -> float:
    """Bytes a second. A small b is bits, as on the labels of networks, a capital B bytes.

    >>> bandwidth("10Gb"), bandwidth("1.25 GB/s"), bandwidth("100Mbit")
    (1250000000.0, 1250000000.0, 12500000.0)
    """
    match = re.fullmatch(NUMBER + r"([kKMGT]?)(bits?|bps|b|B)(?:/s)?", text.strip())
    value = _number(match)
    if match is None or not 0 < value < math.inf:
        raise InputError(
            "must be a bandwidth above 0",
            where="--bandwidth",
            got=f'"{text[:40]}"',
            hint="as in 10Gb (gigabits a second) or 1.25GB (gigabytes a second)",
        )
    return value * PREFIXES[match[2].lower()] / (1 if match[3] == "B" else 8)


def latency(text: str) -> float:
    """Seconds.

    >>> latency("50us"), latency("0.2 ms"), latency("0us")
    (5e-05, 0.0002, 0.0)
    """
    match = re.fullmatch(NUMBER + r"(ns|us|µs|ms|s)", text.strip())
    value = _number(match)
    if match is None or not math.isfinite(value):
        raise InputError(
            "must be a time", where="--latency", got=f'"{text[:40]}"', hint="as in 50us or 0.2ms"
        )
    return float(f"{value * TIMES[match[2]]:.12g}")


def flops(text: str) -> float:
    """Floating-point operations a second.

    >>> flops("50G"), flops("1.5 TFLOPS"), flops("2e9")
    (50000000000.0, 1500000000000.0, 2000000000.0)
    """
    match = re.fullmatch(NUMBER + r"([kKMGTP]?)(?:flops?(?:/s)?)?", text.strip(), re.IGNORECASE)
    value = _number(match)
    if match is None or not 0 < value < math.inf:
        raise InputError(
            "must be a rate above 0",
            where="--flops",
            got=f'"{text[:40]}"',
            hint="FLOPs that one machine makes in a second, as in 50G or 1.5T",
        )
    return value * PREFIXES[match[2].lower()]


def _number(match: re.Match[str] | None) -> float:
    return 0.0 if match is None else float(match[1].replace(",", "").replace("_", ""))


# -- formulas of real numbers ----------------------------------------------------------------------


@dataclass(frozen=True)
class Real:
    """A number and the expression it is the value of, as `symbols.Formula` for whole numbers.

    >>> N, W = Real.named("N", 8), Real.named("W", 1.25e9)
    >>> e = 2 * (N - 1) / (N * W)
    >>> e.symbols, e.numbers, f"{e.value:.3g}"
    ('2 (N - 1) / (N W)', '2·(8 - 1)/(8·1.25e+09)', '1.4e-09')
    """

    symbols: str
    numbers: str
    value: float
    level: int = 3  # of its outermost operator: 1 sum, 2 product or quotient, 3 none

    @classmethod
    def named(cls, name: str, value: float) -> Real:
        return cls(name, _short(value), value)

    @classmethod
    def of(cls, value: Real | float) -> Real:
        return value if isinstance(value, Real) else cls(_short(value), _short(value), value)

    def __add__(self, other: Real | float) -> Real:
        return self._joined(" + ", Real.of(other), self.value + Real.of(other).value)

    def __sub__(self, other: Real | float) -> Real:
        return self._joined(" - ", Real.of(other), self.value - Real.of(other).value)

    def __mul__(self, other: Real | float) -> Real:
        right = Real.of(other)
        return Real(
            f"{self._in(2)[0]} {right._in(2)[0]}",
            f"{self._in(2)[1]}·{right._in(2)[1]}",
            self.value * right.value,
            level=2,
        )

    def __rmul__(self, other: float) -> Real:
        return Real.of(other) * self

    def __truediv__(self, other: Real | float) -> Real:
        right = Real.of(other)
        return Real(
            f"{self._in(2)[0]} / {right._in(3)[0]}",
            f"{self._in(2)[1]}/{right._in(3)[1]}",
            self.value / right.value,
            level=2,
        )

    def _joined(self, operator: str, right: Real, value: float) -> Real:
        level = 2 if operator == " - " else 1
        return Real(
            self.symbols + operator + right._in(level)[0],
            self.numbers + operator + right._in(level)[1],
            value,
            level=1,
        )

    def _in(self, level: int) -> tuple[str, str]:
        """Its texts as a part of an operation, in brackets where they need them."""
        if self.level < level:
            return f"({self.symbols})", f"({self.numbers})"
        return self.symbols, self.numbers


def longest(first: Real, second: Real) -> Real:
    return Real(
        f"max({first.symbols}, {second.symbols})",
        f"max({first.numbers}, {second.numbers})",
        max(first.value, second.value),
    )


def _short(value: float) -> str:
    if float(value).is_integer() and abs(value) < 1e15 and (value < 1e9 or value % 1e6):
        return f"{int(value):,}"
    return f"{value:.6g}"


# -- the estimate ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A step with some machines, without overlap (worst) and with as much as can be (best)."""

    machines: int
    computation: float  # seconds
    communication: float
    worst: float
    best: float
    alone: float  # seconds of a step on one machine

    def speed_up(self, seconds: float) -> float:
        return self.alone / seconds

    def efficiency(self, seconds: float) -> float:
        return self.alone / seconds / self.machines

    def to_json(self) -> dict[str, Any]:
        return {
            "machines": self.machines,
            "computation_seconds": self.computation,
            "communication_seconds": self.communication,
            "step_seconds": {"worst": self.worst, "best": self.best},
            "speed_up": {"worst": self.speed_up(self.worst), "best": self.speed_up(self.best)},
            "efficiency": {
                "worst": self.efficiency(self.worst),
                "best": self.efficiency(self.best),
            },
        }


@dataclass(frozen=True)
class Scaling:
    """An estimate for up to so many machines.

    bandwidth, latency   of each link, in bytes a second and seconds
    flops                FLOPs a second of one machine
    is_measured          whether they were measured here
    """

    budget: Budget
    machines: int
    bandwidth: float
    latency: float
    flops: float
    is_measured: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.machines <= MOST_MACHINES:
            raise InputError(
                f"must be a whole number >= 1 and <= {MOST_MACHINES:,}",
                where="--machines",
                got=self.machines,
            )

    @property
    def gradients(self) -> int:
        """Bytes."""
        return FLOAT * self.budget.parameters

    @property
    def buckets(self) -> int:
        return -(-self.gradients // BUCKET)

    def formulas(self, machines: int | None = None) -> dict[str, Real]:
        """The times of a step, in seconds."""
        N = Real.named("N", machines or self.machines)
        G = Real.named("G", self.gradients)
        K = Real.named("K", self.buckets)
        W = Real.named("W", self.bandwidth)
        a = Real.named("a", self.latency)
        R = Real.named("R", self.flops / 2)
        work = self.budget.multiplications
        forward = Real.named("F", work["forward"])
        training = Real.named("M", work["training"])
        messages = 2 * (N - 1)
        computation = training / (N * R)
        communication = messages * G / (N * W) + messages * (K + EXCHANGES) * a
        backward = (training - forward) / (N * R)
        return {
            "computation": computation,
            "communication": communication,
            "step, worst case": computation + communication,
            "step, best case": forward / (N * R) + longest(backward, communication),
        }

    def row(self, machines: int) -> Row:
        times = self.formulas(machines)
        alone = self.budget.multiplications["training"] * 2 / self.flops
        communication = times["communication"].value
        return Row(
            machines,
            times["computation"].value,
            communication,
            worst=times["step, worst case"].value,
            best=times["step, best case"].value,
            alone=alone,
        )

    def rows(self) -> list[Row]:
        """1, 2, 4, … machines, and all of them."""
        return [self.row(machines) for machines in sorted({*self._powers(), self.machines})]

    def _powers(self) -> Iterator[int]:
        machines = 1
        while machines <= self.machines:
            yield machines
            machines *= 2

    @property
    def half_batch(self) -> int | None:
        """The batch with which all machines communicate for as long as they compute, without
        overlap: half of the time; None for one machine."""
        if self.machines == 1:
            return None
        rows = self.budget.size("B")
        row = self.row(self.machines)
        return max(1, math.ceil(rows * row.communication / row.computation))

    def to_json(self) -> dict[str, Any]:
        return {
            "bandwidth_bytes_per_second": self.bandwidth,
            "latency_seconds": self.latency,
            "flops_per_second": self.flops,
            "is_measured": self.is_measured,
            "gradient_bytes": self.gradients,
            "sent_bytes": 2 * (self.machines - 1) * self.gradients / self.machines,
            "buckets": self.buckets,
            "rows": [row.to_json() for row in self.rows()],
            "half_batch": self.half_batch,
            "formulas": {
                name: {"symbols": each.symbols, "numbers": each.numbers, "seconds": each.value}
                for name, each in self.formulas().items()
            },
            "assumptions": list(ASSUMPTIONS),
        }
