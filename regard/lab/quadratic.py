"""Exact attention takes 2 L^2 D multiplications; explicit weights also write 2 H L^2 numbers to
memory, a fused kernel does not.

             operation                multiplications, all H heads       numbers written
    scores   S = Q K^T / sqrt(K)      L^2 D                              H L^2
    weights  A = softmax(S)           about 2 H L^2                      H L^2
    output   O = A V                  L^2 D                              L D

With its projections a layer takes 4 L D^2 + 2 L^2 D multiplications, so for L < 2 D the projections
dominate. A fused kernel (FlashAttention, Dao et al. 2022) computes the same products block by block
and never stores an L x L matrix. The claims are about counts; times and memory are measured and
only shown.
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
from regard.pages.formulas import Formula

NUMBER = 4  # bytes per float32

ALSO = ("cost", "flash", "memory", "complexity", "flops")  # synonyms of the name

# One group for each block of formulas in the docstring.
FORMULAS = (
    (
        Formula(
            r"S = \frac{Q K^\top}{\sqrt{K}}",
            "Scores: L² D multiplications; writes H L² numbers.",
        ),
        Formula(
            r"A = \operatorname{softmax}(S)",
            "Weights: about 2 H L² multiplications; writes H L² numbers.",
        ),
        Formula(
            "O = A V",
            "Output: L² D multiplications; writes L D numbers.",
        ),
    ),
)


class Settings(experiment.Settings):
    lengths: Annotated[tuple[Annotated[int, Field(ge=2, le=8192)], ...], Field(min_length=3)] = (
        64, 128, 256, 512, 1024, 2048,
    )  # fmt: skip
    """L, the sequence lengths, ascending."""
    width: Annotated[int, Field(ge=1, le=1024)] = 64
    """D, the width of all heads together."""
    heads: Annotated[int, Field(ge=1, le=64)] = 4
    """H, the number of heads; must divide the width."""
    repeats: Annotated[int, Field(ge=1, le=100)] = 9
    """Calls per measurement; the shortest time counts, because other load only adds to it."""

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if self.width % self.heads:
            raise ValueError(
                f"heads must divide width; got heads = {self.heads}, width = {self.width}"
            )
        if any(a >= b for a, b in pairwise(self.lengths)):
            raise ValueError(f"lengths must rise; got {list(self.lengths)}")
        if self.width // self.heads in self.lengths:  # q and k would be counted as scores
            raise ValueError(
                f"no length may be the width of a head; got {self.width // self.heads} for both"
            )
        return self


def explicit(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention that stores its weights."""
    return weights_unchecked(q, k) @ v


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention with torch's fused kernel."""
    return attend_unchecked(q, k, v)


@dataclass(frozen=True)
class Measured:
    """Seconds and peak memory in bytes (None: unknown) of one call, and the spread of the times."""

    seconds: float
    memory: int | None
    spread: float


@dataclass(frozen=True)
class Length:
    """Counts and measurements at one length."""

    L: int
    products: int  # multiplications of attention alone
    layer: int  # multiplications with the projections
    square: int  # bytes of L x L tensors, explicit weights
    fused_square: int  # bytes of L x L tensors, fused kernel
    fused_bytes: int  # bytes of all outputs of the fused kernel
    explicit: Measured
    fused: Measured


@torch.no_grad()
def run(settings: Settings) -> Report:
    D = settings.width
    H = settings.heads
    draws = torch.Generator().manual_seed(settings.seed)
    for form in (explicit, fused):  # warm up: the first call of a process is slower
        measure(form, _inputs(settings.lengths[0], D, H, draws), repeats=1)
    load = load_per_core()
    results = []
    for number, L in enumerate(settings.lengths):
        experiment.progress(f"measuring L = {L:,}", number, len(settings.lengths))
        results.append(_length(L, settings, draws))
    lengths = settings.lengths
    bytes_per_position = sorted({result.fused_bytes / result.L for result in results})

    claims = (
        _exact(
            "attention takes 2 L^2 D multiplications",
            results,
            lambda result: result.products,
            lambda n: 2 * n * n * D,
        ),
        near(
            "they grow with exponent 2 in L",
            expected=2,
            measured=exponent(lengths, [result.products for result in results]),
            within=1e-9,
        ),
        _exact(
            "with its projections, 4 L D^2 + 2 L^2 D",
            results,
            lambda result: result.layer,
            lambda n: 4 * n * D * D + 2 * n * n * D,
        ),
        _exact(
            "explicit attention writes 2 H L^2 numbers, scores and weights (in bytes)",
            results,
            lambda result: result.square,
            lambda n: 2 * H * n * n * NUMBER,
        ),
        _exact(
            "the fused kernel returns no L x L tensor",
            results,
            lambda result: result.fused_square,
            lambda _: 0,
        ),
        Claim(
            "it returns the output and one softmax normaliser per head and position: linear in L",
            f"{(D + H) * NUMBER} bytes per position at every L",
            ", ".join(f"{size:g}" for size in bytes_per_position),
            bytes_per_position == [(D + H) * NUMBER],
        ),
    )
    long = results[len(results) // 2 :]  # where constant costs are negligible
    tables = (
        Table(
            f"Counted: H = {H} heads, D = {D}, batch size 1, float32",
            ("L", "multiplications", "whole layer", "L x L bytes, explicit", "L x L bytes, fused"),
            tuple((r.L, r.products, r.layer, r.square, r.fused_square) for r in results),
        ),
        Table(
            f"Measured, threads: {torch.get_num_threads()}",
            ("L", "ms, explicit", "ms, fused", "peak MB, explicit", "peak MB, fused"),
            tuple(
                (
                    r.L,
                    r.explicit.seconds * 1e3,
                    r.fused.seconds * 1e3,
                    _megabytes(r.explicit),
                    _megabytes(r.fused),
                )
                for r in results
            ),
        ),
        Table(
            f"Exponents of L in these measurements, from L = {long[0].L:,} on",
            ("form", "time", "memory"),
            (
                ("explicit", *_exponents([(r.L, r.explicit) for r in long])),
                ("fused", *_exponents([(r.L, r.fused) for r in long])),
            ),
        ),
    )
    spreads = [form.spread for r in results for form in (r.explicit, r.fused)]
    note = busy(spreads, load)
    return Report(claims, tables, _figure(results), () if note is None else (note,))


def _length(length: int, settings: Settings, draws: torch.Generator) -> Length:
    """Count and measure both forms at one length."""
    D = settings.width
    H = settings.heads
    qkv = _inputs(length, D, H, draws)
    with Trace() as explicit_trace:
        explicit(*qkv)
    with Trace() as fused_trace:
        fused(*qkv)
    fused_outputs = fused_trace.written.items()
    return Length(
        length,
        products=explicit_trace.products,
        layer=whole_layer(length, D, H, draws),
        square=_square(explicit_trace, length),
        fused_square=_square(fused_trace, length),
        fused_bytes=sum(size for shape, size in fused_outputs if length in shape),
        explicit=measure(explicit, qkv, settings.repeats),
        fused=measure(fused, qkv, settings.repeats),
    )


def _exact(
    text: str,
    results: list[Length],
    count: Callable[[Length], int],
    formula: Callable[[int], int],
) -> Claim:
    """A claim that a count equals its formula at every length; the text shows one length."""
    wrong = [result for result in results if count(result) != formula(result.L)]
    example = (wrong or results)[-1]
    return Claim(
        text,
        f"{formula(example.L):,} at L = {example.L:,}, and the formula at every L",
        f"{count(example):,}",
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
    """The slope of log(value) over log(length), by least squares; NaN if a value is 0.

    >>> round(exponent([1, 2, 4], [3, 12, 48]), 9)
    2.0
    """
    if min(values) <= 0:
        return math.nan
    x = torch.tensor([math.log(length) for length in lengths], dtype=torch.float64)
    y = torch.tensor([math.log(value) for value in values], dtype=torch.float64)
    return float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())


def measure(form: Callable[..., Tensor], qkv: Sequence[Tensor], repeats: int) -> Measured:
    """Peak memory of one call, and the shortest time of `repeats` further calls."""
    memory = peak_memory(lambda: form(*qkv))
    seconds = []
    for _ in range(repeats):
        start = perf_counter()
        form(*qkv)
        seconds.append(perf_counter() - start)
    return Measured(min(seconds), memory, spread(seconds))


def peak_memory(f: Callable[[], object]) -> int | None:
    """The growth of the resident memory of this process during f() in bytes; None if unknown."""
    try:
        ctypes.CDLL(None).malloc_trim(0)  # return freed memory, or its reuse would not count
        with open("/proc/self/clear_refs", "w") as reset:
            reset.write("5")
        before = _resident("VmRSS")
    except (OSError, AttributeError):  # not Linux, or not glibc
        f()
        return None
    f()
    return max(0, _resident("VmHWM") - before)


def _resident(field: str) -> int:
    """VmRSS (resident memory) or VmHWM (its maximum) of this process in bytes."""
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
    """Bytes written to tensors of shape (..., length, length)."""
    return sum(size for shape, size in trace.written.items() if shape[-2:] == (length, length))


def _exponents(measured: Sequence[tuple[int, Measured]]) -> tuple[float, float | None]:
    """The exponent of the time, and that of the memory if it is known and not 0."""
    lengths = [L for L, _ in measured]
    sizes = [call.memory for _, call in measured if call.memory]
    time = exponent(lengths, [call.seconds for _, call in measured])
    return time, exponent(lengths, sizes) if len(sizes) == len(measured) else None


def _megabytes(measured: Measured) -> float | None:
    return None if measured.memory is None else measured.memory / 1e6


def _figure(results: list[Length]) -> Figure:
    sheet = experiment.figure(11, 4.2)
    left, right = sheet.subplots(1, 2)
    lengths = [result.L for result in results]
    forms = (
        ("explicit weights", ORANGE, "o", [result.explicit for result in results]),
        ("fused kernel", BLUE, "s", [result.fused for result in results]),
    )
    for name, colour, marker, calls in forms:
        left.plot(
            lengths,
            [call.seconds * 1e3 for call in calls],
            color=colour,
            marker=marker,
            label=name,
        )
        sizes = [call.memory / 1e6 if call.memory else math.nan for call in calls]
        right.plot(lengths, sizes, color=colour, marker=marker, label=name)
    squares = [result.square / 1e6 for result in results]
    right.plot(lengths, squares, color=BLACK, linestyle=":", label="2 H L² numbers")
    ends = (lengths[0], lengths[-1])
    top = results[-1].explicit.seconds * 1e3
    left.plot(
        ends, [top * (L / ends[1]) ** 2 for L in ends], color=BLACK, linestyle=":", label="L²"
    )
    for axes, label, title in (
        (left, "ms", "time of one call"),
        (right, "MB", "peak memory of one call"),
    ):
        axes.set_xscale("log", base=2)
        axes.set(yscale="log", xlabel="L, sequence length", ylabel=label, title=title)
        axes.legend(frameon=False)
    return sheet
