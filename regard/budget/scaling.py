"""How training scales over several machines: an estimate before anything is trained.

Data parallelism, as `torchrun -m regard train` has it: every machine computes a part of each batch,
then all add up their gradients by a ring all-reduce. With N machines, M multiplications of a step
and P parameters

    computation     M / (N R)                              R multiplications a second of a machine
    update          U                                      seconds; every machine makes all of it
    communication   2 (N - 1) G / (N W) + 2 (N - 1) (K + E) a
                    G = 4 P bytes of gradients, W bytes a second of a link, a seconds of latency,
                    K = ceil(G / 25 MiB) buckets of DDP, E = 3 short exchanges of a step

The ring is that of Patarasuk and Yuan (2009): each machine sends (N - 1)/N of the gradients twice,
in 2 (N - 1) messages. Without overlap a step takes all three times; that is the worst case. DDP
begins to send while the backward pass still runs; in the best case only what is longer than the
backward pass adds to a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from regard.budget.closed_form.parts import FLOAT, Budget
from regard.budget.closed_form.real import Real, longest
from regard.errors import InputError

BUCKET = 25 << 20  # bytes of a bucket of DistributedDataParallel, by default
EXCHANGES = 3  # short ones in each step: tokens, loss, signals
LATENCY = 50e-6  # seconds of a message, by default: Ethernet and TCP
MOST_MACHINES = 1 << 16

ASSUMPTIONS = (
    "every machine computes 1/N of each batch at this rate; in truth small parts are slower",
    "all links have this bandwidth in both directions at once, and nothing else uses them",
    "gradients have 4 bytes and are sent in every step: no gradient accumulation, no compression",
    "reading data, validations, checkpoints and an update that was not measured take no time",
)


@dataclass(frozen=True)
class Row:
    """A step with some machines, without overlap (worst) and with as much as can be (best)."""

    machines: int
    computation: float  # seconds
    communication: float
    update: float
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
            "update_seconds": self.update,
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
    flops                FLOPs a second of one machine, of the forward and the backward pass
    update               seconds of the update; 0 if it was not measured
    is_measured          whether flops and update were measured here
    """

    budget: Budget
    machines: int
    bandwidth: float
    latency: float
    flops: float
    update: float = 0.0
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
        worst = computation + communication
        best = forward / (N * R) + longest(backward, communication)
        if self.update:
            U = Real.named("U", self.update)
            worst = worst + U
            best = best + U
        return {
            "computation": computation,
            "communication": communication,
            "step, worst case": worst,
            "step, best case": best,
        }

    def row(self, machines: int) -> Row:
        times = self.formulas(machines)
        alone = self.budget.multiplications["training"] * 2 / self.flops + self.update
        communication = times["communication"].value
        return Row(
            machines,
            times["computation"].value,
            communication,
            self.update,
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
        """The batch with which all machines communicate for as long as they compute and update,
        without overlap: half of the time; None for one machine."""
        if self.machines == 1:
            return None
        rows = self.budget.size("B")
        row = self.row(self.machines)
        return max(1, math.ceil(rows * (row.communication - row.update) / row.computation))

    def to_json(self) -> dict[str, Any]:
        return {
            "bandwidth_bytes_per_second": self.bandwidth,
            "latency_seconds": self.latency,
            "flops_per_second": self.flops,
            "update_seconds": self.update,
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
