"""Exact attention multiplies 2 L^2 D times; explicit weights also write 2 H L^2 numbers, a fused
kernel does not.

    scores   S = Q K^T / sqrt(K)         L^2 K for each of H heads: L^2 D      H L^2 numbers written
    weights  A = softmax(S)              about 2 H L^2 to scale and divide     H L^2 numbers written
    output   O = A V                     L^2 K for each of H heads: L^2 D      L D numbers

With its projections a layer takes 4 L D^2 + 2 L^2 D, so below L = 2 D the projections are the
larger part. A fused kernel (FlashAttention, Dao et al. 2022) makes the same products a block at a
time and never writes the L x L numbers down. Times and memory are measured and shown; the claims
are about what is counted.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import Annotated, Self

import torch
from matplotlib.figure import Figure
from pydantic import Field, model_validator
from torch import Tensor

from regard.budget.trace import Trace
from regard.lab import experiment
from regard.lab.experiment import BLACK, BLUE, ORANGE, Claim, Report, Table, near
from regard.lab.timing import busy, load_per_core, spread
from regard.layers.attention import attend_unchecked, weights_unchecked

NUMBER = 4  # bytes of a float32

ALSO = ("cost", "flash", "memory", "complexity", "flops")  # what else people call it


class Settings(experiment.Settings):
    lengths: Annotated[tuple[Annotated[int, Field(ge=2, le=8192)], ...], Field(min_length=3)] = (
        64, 128, 256, 512, 1024, 2048,
    )  # fmt: skip
    """L, the lengths measured, from short to long."""
    width: Annotated[int, Field(ge=1, le=1024)] = 64
    """D, width of all heads together."""
    heads: Annotated[int, Field(ge=1, le=64)] = 4
    """H, heads; must divide the width."""
    repeats: Annotated[int, Field(ge=1, le=100)] = 9
    """Each time is the shortest of this many: what else the machine does only makes it longer."""

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if self.width % self.heads:
            raise ValueError(
                f"heads must divide width; got heads = {self.heads}, width = {self.width}"
            )
        if any(a >= b for a, b in pairwise(self.lengths)):
            raise ValueError(f"lengths must rise; got {list(self.lengths)}")
        if self.width // self.heads in self.lengths:  # q and k would look like scores
            raise ValueError(
                f"no length may be the width of a head; got {self.width // self.heads} for both"
            )
        return self


def explicit(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """With the weights in sight."""
    return weights_unchecked(q, k) @ v


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """On torch's kernel."""
    return attend_unchecked(q, k, v)


@dataclass(frozen=True)
class Measured:
    """One call: seconds, peak bytes (None: not known), and how far repeated calls differ."""

    seconds: float
    memory: int | None
    spread: float


@dataclass(frozen=True)
class Length:
    """What was counted and measured at one length."""

    L: int
    products: int  # of attention alone
    layer: int  # with its projections
    square: int  # bytes in L x L tensors, explicit
    fused_square: int
    fused_bytes: int  # in all that the fused kernel hands back
    explicit: Measured
    fused: Measured


@torch.no_grad()
def run(settings: Settings) -> Report:
    D, H = settings.width, settings.heads
    draws = torch.Generator().manual_seed(settings.seed)
    for form in (explicit, fused):  # the first call of a process pays for what is made once
        measure(form, _inputs(settings.lengths[0], D, H, draws), repeats=1)
    load = load_per_core()
    every = []
    for number, L in enumerate(settings.lengths):
        experiment.progress(f"measuring L = {L:,}", number, len(settings.lengths))
        every.append(_length(L, settings, draws))
    lengths = settings.lengths
    places = sorted({each.fused_bytes / each.L for each in every})
    claims = (
        _exact(
            "attention multiplies 2 L^2 D times",
            every,
            lambda e: e.products,
            lambda n: 2 * n * n * D,
        ),
        near(
            "so its exponent in L is 2",
            expected=2,
            measured=exponent(lengths, [e.products for e in every]),
            within=1e-9,
        ),
        _exact(
            "with its projections, 4 L D^2 + 2 L^2 D",
            every,
            lambda e: e.layer,
            lambda n: 4 * n * D * D + 2 * n * n * D,
        ),
        _exact(
            "explicit weights write 2 H L^2 numbers, scores and weights, in bytes",
            every,
            lambda e: e.square,
            lambda n: 2 * H * n * n * NUMBER,
        ),
        _exact(
            "the fused kernel hands back none of them", every, lambda e: e.fused_square, lambda _: 0
        ),
        Claim(
            "what it hands back grows as L: the output, and one normaliser for each head and place",
            f"{(D + H) * NUMBER} bytes a place at every L",
            ", ".join(f"{each:g}" for each in places),
            places == [(D + H) * NUMBER],
        ),
    )
    half = every[len(every) // 2 :]  # where what is paid once no longer counts
    tables = (
        Table(
            f"Counted: H = {H} heads, D = {D}, one row, float32",
            ("L", "multiplications", "whole layer", "L x L bytes, explicit", "L x L bytes, fused"),
            tuple((e.L, e.products, e.layer, e.square, e.fused_square) for e in every),
        ),
        Table(
            f"Measured, {torch.get_num_threads()} of torch's threads",
            ("L", "ms, explicit", "ms, fused", "MB at the peak, explicit", "MB at the peak, fused"),
            tuple(
                (
                    e.L,
                    e.explicit.seconds * 1e3,
                    e.fused.seconds * 1e3,
                    _mega(e.explicit),
                    _mega(e.fused),
                )
                for e in every
            ),
        ),
        Table(
            f"Exponent of L in what was measured, from L = {half[0].L:,} on",
            ("form", "time", "memory"),
            (
                ("explicit", *_exponents([(e.L, e.explicit) for e in half])),
                ("fused", *_exponents([(e.L, e.fused) for e in half])),
            ),
        ),
    )
    note = busy([form.spread for each in every for form in (each.explicit, each.fused)], load)
    return Report(claims, tables, _figure(every), () if note is None else (note,))


def _length(length: int, settings: Settings, draws: torch.Generator) -> Length:
    D, H = settings.width, settings.heads
    given = _inputs(length, D, H, draws)
    with Trace() as seen:
        explicit(*given)
    with Trace() as hidden:
        fused(*given)
    return Length(
        length,
        products=seen.products,
        layer=whole_layer(length, D, H, draws),
        square=_square(seen, length),
        fused_square=_square(hidden, length),
        fused_bytes=sum(size for shape, size in hidden.written.items() if length in shape),
        explicit=measure(explicit, given, settings.repeats),
        fused=measure(fused, given, settings.repeats),
    )


def _exact(
    text: str, every: list[Length], counted: Callable[[Length], int], formula: Callable[[int], int]
) -> Claim:
    """That a count is its formula at every length."""
    wrong = [each for each in every if counted(each) != formula(each.L)]
    shown = (wrong or every)[-1]
    return Claim(
        text,
        f"{formula(shown.L):,} at L = {shown.L:,}, and so at every L",
        f"{counted(shown):,}",
        holds=not wrong,
    )


def whole_layer(length: int, width: int, heads: int, draws: torch.Generator) -> int:
    """Multiplications of self-attention with its four projections."""
    x = torch.randn(1, length, width, generator=draws)
    w_q, w_k, w_v, w_o = (torch.randn(width, width, generator=draws) / width**0.5 for _ in range(4))
    with Trace() as trace:
        q, k, v = ((x @ w).unflatten(-1, (heads, -1)).transpose(1, 2) for w in (w_q, w_k, w_v))
        _ = explicit(q, k, v).transpose(1, 2).flatten(2) @ w_o
    return trace.products


def exponent(lengths: Sequence[int], values: Sequence[float]) -> float:
    """The slope of log(value) over log(length), by least squares; not a number where a value is 0.

    >>> round(exponent([1, 2, 4], [3, 12, 48]), 9)
    2.0
    """
    if min(values) <= 0:
        return math.nan
    x = torch.tensor([math.log(length) for length in lengths], dtype=torch.float64)
    y = torch.tensor([math.log(value) for value in values], dtype=torch.float64)
    return float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())


def measure(form: Callable[..., Tensor], given: Sequence[Tensor], repeats: int) -> Measured:
    memory, seconds = peak_memory(lambda: form(*given)), []
    for _ in range(repeats):
        start = perf_counter()
        form(*given)
        seconds.append(perf_counter() - start)
    return Measured(min(seconds), memory, spread(seconds))


def peak_memory(f: Callable[[], object]) -> int | None:
    """How many bytes this process grows by while f runs, in whole pages; None where the system
    does not tell."""
    try:
        ctypes.CDLL(None).malloc_trim(
            0
        )  # memory that was freed and kept would be used again unseen
        with open("/proc/self/clear_refs", "w") as reset:
            reset.write("5")
        before = _resident("VmRSS")
    except (OSError, AttributeError):  # not Linux, or not glibc
        f()
        return None
    f()
    return max(0, _resident("VmHWM") - before)


def _resident(field: str) -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))


def _inputs(
    length: int, width: int, heads: int, draws: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    shape = (1, heads, length, width // heads)
    return (
        torch.randn(shape, generator=draws),
        torch.randn(shape, generator=draws),
        torch.randn(shape, generator=draws),
    )


def _square(trace: Trace, length: int) -> int:
    """Bytes written into tensors of length x length."""
    return sum(size for shape, size in trace.written.items() if shape[-2:] == (length, length))


def _exponents(measured: Sequence[tuple[int, Measured]]) -> tuple[float, float | None]:
    """Of the time, and of the memory if it is known and not nothing."""
    lengths = [L for L, _ in measured]
    sizes = [each.memory for _, each in measured if each.memory]
    time = exponent(lengths, [each.seconds for _, each in measured])
    return time, exponent(lengths, sizes) if len(sizes) == len(measured) else None


def _mega(measured: Measured) -> float | None:
    return None if measured.memory is None else measured.memory / 1e6


def _figure(every: list[Length]) -> Figure:
    sheet = experiment.figure(11, 4.2)
    left, right = sheet.subplots(1, 2)
    lengths = [each.L for each in every]
    forms = (
        ("explicit weights", ORANGE, "o", [each.explicit for each in every]),
        ("fused kernel", BLUE, "s", [each.fused for each in every]),
    )
    for name, colour, marker, measured in forms:
        left.plot(
            lengths,
            [each.seconds * 1e3 for each in measured],
            color=colour,
            marker=marker,
            label=name,
        )
        sizes = [math.nan if not each.memory else each.memory / 1e6 for each in measured]
        right.plot(lengths, sizes, color=colour, marker=marker, label=name)
    squares = [each.square / 1e6 for each in every]
    right.plot(lengths, squares, color=BLACK, linestyle=":", label="2 H L² numbers")
    ends, top = (lengths[0], lengths[-1]), every[-1].explicit.seconds * 1e3
    left.plot(
        ends, [top * (L / ends[1]) ** 2 for L in ends], color=BLACK, linestyle=":", label="L²"
    )
    for axes, label, title in (
        (left, "ms", "time of one call"),
        (right, "MB", "memory of one call at its peak"),
    ):
        axes.set_xscale("log", base=2)
        axes.set(yscale="log", xlabel="L, places", ylabel=label, title=title)
        axes.legend(frameon=False)
    return sheet
