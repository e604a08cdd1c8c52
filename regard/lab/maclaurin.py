"""Attention with a few terms of exp costs L M E instead of L^2 K, and is softmax up to the
remainder of the series.

    exp(t) ~ sum_{n<terms} t^n / n! = phi(q) . phi(k),  t = q.k / sqrt(K)
    symmetric features: M = C(K + terms - 1, K)         full: M = (K^terms - 1)/(K - 1)
    sum_s |softmax weight - series weight| <= 2 t^n / n! e^t,  n = terms, t = |q| max |k| / sqrt(K), and <= 2

    quadratic form   L^2 (K + E + 1) multiplications    the polynomial of the scores, the last column the normaliser
    features         2 L M (E + 1)                      sums of the keys' features once, then every query for itself

so the features can only win for L above 2 M (E + 1) / (K + E + 1), which is about M. An even top
degree has no root (degree 2 is at least 1/2), its weights are positive and a context stays within
its values. An odd one goes to minus infinity: degree 3 at t = -10 is -125.7, and a normaliser near
0 sends a context anywhere. The bound is that of Taylor's theorem. Times are measured and only
shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from time import perf_counter
from typing import Annotated, Self

import torch
from matplotlib.figure import Figure
from pydantic import Field, model_validator
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from regard.lab import experiment
from regard.lab.experiment import BLACK, BLUE, COLOURS, ORANGE, Claim, Report, Table, near, zero
from regard.lab.timing import busy, load_per_core, spread
from regard.layers.attention import attend, attention_weights
from regard.layers.maclaurin import (
    FORMS,
    maclaurin_attention,
    maclaurin_error_bound,
    maclaurin_features,
    polynomial,
)
from regard.layers.monomials import how_many
from regard.layers.native import takes

Row = tuple[int, float, float, float, int]
Length = Annotated[int, Field(ge=16, le=65536)]
Terms = Annotated[int, Field(ge=1, le=15)]
PLACES = 64  # of the sequences whose error is measured
BELOW = -10.0  # the score at which odd degrees are shown to fail

ALSO = ("taylor", "series", "linear-attention", "kernel", "features")  # what else people call it


class Settings(experiment.Settings):
    width: Annotated[int, Field(ge=2, le=64)] = 16
    """K and E, the width of queries, keys and values."""
    terms: Annotated[tuple[Terms, ...], Field(min_length=2)] = (1, 3, 5, 7)
    """Terms of the series whose error is measured: odd numbers that rise, so that every top
    degree is even."""
    norms: Annotated[tuple[Annotated[float, Field(gt=0, le=10)], ...], Field(min_length=2)] = (
        0.25,
        0.5,
        1.0,
        2.0,
    )
    """Root mean square of the numbers in queries and keys, rising; a layer norm makes it 1."""
    lengths: Annotated[tuple[Length, ...], Field(min_length=2)] = (
        64,
        128,
        256,
        512,
        1024,
        2048,
        4096,
    )
    """L, the lengths whose time is measured, with 3 terms."""
    repeats: Annotated[int, Field(ge=1, le=100)] = 3
    """Each time is the shortest of this many."""

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        for name in ("terms", "norms", "lengths"):
            values = getattr(self, name)
            if any(a >= b for a, b in pairwise(values)):
                raise ValueError(f"{name} must rise; got {list(values)}")
        if any(n % 2 == 0 for n in self.terms):
            raise ValueError(f"terms must be odd; got {list(self.terms)}")
        return self


@torch.no_grad()
def run(settings: Settings) -> Report:
    K, draws = settings.width, torch.Generator().manual_seed(settings.seed)
    errors = _errors(settings, draws)
    work = [
        _counted(L, K, draws)
        for L in settings.lengths[: max(2, sum(L <= 1024 for L in settings.lengths))]
    ]
    load = load_per_core()
    times, spreads = _all_timed(settings, draws)
    crossing = _crossing(K)
    claims = (*_about_features(draws), _about_forms(draws), *_about_errors(settings, errors), *_about_work(work, K),
              *_about_degrees())  # fmt: skip
    counts = tuple(
        (w, n, how_many(w, n), sum(w**d for d in range(n)))
        for w in sorted({5, 64, K})
        for n in (3, 5)
    )
    odd = tuple(
        (n, n - 1, polynomial(torch.tensor(BELOW, dtype=torch.float64), n).item(), _lowest(n))
        for n in range(1, 7)
    )
    tables = (
        Table("Features", ("K", "terms", "symmetric", "full"), counts),
        Table(
            f"Error against softmax: sum of |differences of weights|, of the worst of {PLACES} queries, K = {K}",
            ("terms", "rms of q and k", "measured", "its bound", "queries within theirs"),
            tuple(errors),
        ),
        Table(f"The series at t = {BELOW:g}, where exp is {math.exp(BELOW):.2g}, and its smallest value on [-12, 12]",
              ("terms", "top degree", "value", "smallest"), odd),
        Table(f"Counted multiplications, K = E = {K}: features have fewer above L = {crossing:.0f}",
              ("L", "quadratic form", "features"), tuple(work)),
        Table(
            f"Measured ms with {torch.get_num_threads()} of torch's threads, float32, "
            f"{'C kernel' if takes(torch.zeros(1, K), 3) else 'torch only'}; features are faster than the quadratic "
            f"form {faster(times, 2)}, than exact attention {faster(times, 1)}",
            ("L", "exact", "quadratic form", "features"), tuple(times)),
    )  # fmt: skip
    note = busy(spreads, load)
    return Report(claims, tables, _figure(settings, errors, times), () if note is None else (note,))


def _about_features(draws: torch.Generator) -> tuple[Claim, ...]:
    q, k = _draw(7, 5, draws), _draw(11, 5, draws)
    off = max(
        (
            maclaurin_features(q, n, basis) @ maclaurin_features(k, n, basis).mT
            - polynomial(q @ k.mT, n)
        )
        .abs()
        .max()
        .item()
        for n in (1, 2, 3, 4, 5)
        for basis in ("symmetric", "full")
    )
    sizes = [
        maclaurin_features(torch.zeros(w), 3, b).shape[0]
        for w in (5, 64)
        for b in ("full", "symmetric")
    ]
    return (
        zero("phi(q) . phi(k) is the series, in both bases, for 1 to 5 terms", off),
        Claim("3 terms at K = 5 and 64 take 1 + K + K^2 features, or 1 + K + K (K + 1) / 2 symmetric ones",
              "31, 21, 4161, 2145", ", ".join(map(str, sizes)), sizes == [31, 21, 4161, 2145]),
    )  # fmt: skip


def _about_forms(draws: torch.Generator) -> Claim:
    q, k, v = (_draw(37, 5, draws) for _ in range(3))
    off = 0.0
    for causal in (False, True):
        contexts = [maclaurin_attention(q, k, v, causal=causal, form=form) for form in FORMS]
        contexts += [] if causal else [by_features(q, k, v)]
        off = max(off, *((a - b).abs().max().item() for a, b in pairwise(contexts)))
    return zero(f"{', '.join(FORMS)} are one operator, causal or not", off)


def _errors(settings: Settings, draws: torch.Generator) -> list[Row]:
    """For each number of terms and each norm: the worst query's error, its bound, and how many
    are within theirs."""
    q, k = _draw(PLACES, settings.width, draws), _draw(PLACES, settings.width, draws)
    rows = []
    for terms in settings.terms:
        for norm in settings.norms:
            weights = polynomial(norm**2 * q @ k.mT / math.sqrt(settings.width), terms)
            off = (
                (weights / weights.sum(-1, keepdim=True) - attention_weights(norm * q, norm * k))
                .abs()
                .sum(-1)
            )
            bound = maclaurin_error_bound(norm * q, norm * k, terms)
            worst = int(off.argmax())
            within = int((off <= bound + 1e-12).sum())
            rows.append((terms, norm, off[worst].item(), bound[worst].item(), within))
    return rows


def _about_errors(settings: Settings, errors: Sequence[Row]) -> tuple[Claim, ...]:
    within, every = sum(row[4] for row in errors), len(errors) * PLACES
    table = {(terms, norm): off for terms, norm, off, _, _ in errors}
    first = [table[n, settings.norms[0]] for n in settings.terms]
    grown = [table[settings.terms[-1], norm] for norm in settings.norms]
    return (
        Claim("no query's error is above the bound of the Taylor remainder", f"{every} of {every} within",
              f"{within} of {every} within", within == every),
        Claim(f"more terms, less error (rms {settings.norms[0]:g})", "falling", _chain(first, ">"),
              first == sorted(first, reverse=True)),
        Claim(f"larger queries and keys, more error ({settings.terms[-1]} terms)", "rising", _chain(grown, "<"),
              grown == sorted(grown)),
    )  # fmt: skip


def by_features(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The formula as it stands: all features of all places, sums of the keys', then every query."""
    phi_q, phi_k = maclaurin_features(q / math.sqrt(q.shape[-1])), maclaurin_features(k)
    sums = phi_k.mT @ torch.cat([v, torch.ones_like(v[:, :1])], -1)  # (M, E + 1)
    numbers = phi_q @ sums
    return numbers[:, :-1] / numbers[:, -1:]


def _counted(length: int, width: int, draws: torch.Generator) -> tuple[int, int, int]:
    """Multiplications of matrix products in the quadratic form and in that with features."""
    q, k, v = (_draw(length, width, draws) for _ in range(3))
    with FlopCounterMode(display=False) as quadratic:
        maclaurin_attention(q, k, v, form="quadratic")
    with FlopCounterMode(display=False) as features:
        by_features(q, k, v)
    return length, quadratic.get_total_flops() // 2, features.get_total_flops() // 2


def _about_work(work: Sequence[tuple[int, int, int]], width: int) -> tuple[Claim, ...]:
    def exact(text: str, column: int, formula: Callable[[int], int]) -> Claim:
        wrong = [row for row in work if row[column] != formula(row[0])]
        shown = (wrong or work)[-1]
        return Claim(
            text,
            f"{formula(shown[0]):,} at L = {shown[0]:,}, and so at every L",
            f"{shown[column]:,}",
            not wrong,
        )

    K, M = width, how_many(width, 3)
    return (
        exact(
            "the quadratic form multiplies L^2 (K + E + 1) times", 1, lambda n: n * n * (2 * K + 1)
        ),
        exact(f"features 2 L M (E + 1) times, M = {M}", 2, lambda n: 2 * n * M * (K + 1)),
    )


def _crossing(width: int) -> float:
    """The length at which quadratic form and features multiply equally often.

    >>> round(_crossing(16))
    158
    """
    return 2 * how_many(width, 3) * (width + 1) / (2 * width + 1)


def _about_degrees() -> tuple[Claim, ...]:
    below = torch.tensor([BELOW], dtype=torch.float64)
    lowest = [_lowest(n) for n in (3, 5, 7)]
    inside, outside = [0 <= _pulled_apart(n) <= 1 for n in (3, 5, 7)], _pulled_apart(4)
    return (
        near(f"degree 3 at t = {BELOW:g}", expected=-125.6667, measured=polynomial(below, 4).item(), within=1e-3),
        near("degree 2 is at least 1/2", expected=0.5, measured=lowest[0], within=1e-6),
        Claim("even top degrees 2, 4, 6 are positive everywhere", "above 0", _chain(lowest, ","), min(lowest) > 0),
        Claim("so with them a context stays between its values, 0 and 1", "3 of 3", f"{sum(inside)} of 3", all(inside)),
        Claim("and with degree 3 it need not: one key at t = -5, one at 2.63", "outside of 0 to 1", f"{outside:.1f}",
              not 0 <= outside <= 1),
    )  # fmt: skip


def _pulled_apart(terms: int) -> float:
    """The context of one query over values 0 and 1, whose keys score -5 and 2.63."""
    q, k, v = torch.ones(1, 1), torch.tensor([[-5.0], [2.63]]), torch.tensor([[0.0], [1.0]])
    return maclaurin_attention(
        q.double(), k.double(), v.double(), terms=terms, scale=1.0, allow_negative=True
    ).item()


def _lowest(terms: int) -> float:
    """The smallest value of the series on [-12, 12]."""
    return polynomial(torch.linspace(-12, 12, 24001, dtype=torch.float64), terms).min().item()


Times = tuple[
    int, float, float, float
]  # L, and ms of exact attention, of the quadratic form and of features


def _all_timed(settings: Settings, draws: torch.Generator) -> tuple[list[Times], list[float]]:
    """The times of every length, to as many digits as are shown, and how far repeated calls
    differ."""
    rows, spreads = [], []
    for number, length in enumerate(settings.lengths):
        experiment.progress(f"timing L = {length:,}", number, len(settings.lengths))
        seconds = _timed(length, settings.width, settings.repeats, draws)
        exact, quadratic, features = (float(f"{min(calls) * 1e3:.4g}") for calls in seconds)
        rows.append((length, exact, quadratic, features))
        spreads += [spread(calls) for calls in seconds]
    return rows, spreads


def faster(times: Sequence[Times], column: int) -> str:
    """From which length on features are faster than a column of the table, at it and at all that
    are longer.

    >>> faster([(64, 1.0, 3.0, 2.0), (128, 4.0, 3.0, 2.0), (256, 9.0, 1.0, 2.0)], 1)
    'from L = 128 on'
    >>> faster([(64, 1.0, 3.0, 2.0), (128, 4.0, 3.0, 2.0), (256, 9.0, 1.0, 2.0)], 2)
    'not at L = 256'
    """
    first = None
    for row in reversed(times):
        if row[3] >= row[column]:
            break
        first = row[0]
    return f"not at L = {times[-1][0]:,}" if first is None else f"from L = {first:,} on"


def _timed(length: int, width: int, repeats: int, draws: torch.Generator) -> list[list[float]]:
    """Seconds of repeated calls of exact attention, of the quadratic form and of that with
    features, in turns."""
    q, k, v = (_draw(length, width, draws).float() for _ in range(3))
    calls: tuple[Callable[[], Tensor], ...] = (
        lambda: attend(q, k, v),
        lambda: maclaurin_attention(q, k, v, form="quadratic"),
        lambda: maclaurin_attention(q, k, v, form="chunked"),
    )
    seconds: list[list[float]] = [[] for _ in calls]
    for turn in range(repeats + 1):
        for n, call in enumerate(calls):
            start = perf_counter()
            call()
            if turn:  # the first call of each pays for what is made once
                seconds[n].append(perf_counter() - start)
    return seconds


def _draw(rows: int, width: int, draws: torch.Generator) -> Tensor:
    return torch.randn(rows, width, generator=draws, dtype=torch.float64)


def _chain(values: Sequence[float], between: str) -> str:
    return f" {between} ".join(f"{value:.3g}" for value in values).replace(" ,", ",")


def _figure(settings: Settings, errors: Sequence[Row], times) -> Figure:
    sheet = experiment.figure(15, 4.4)
    series, error, time = sheet.subplots(1, 3)
    t = torch.linspace(-6, 3, 300, dtype=torch.float64)
    series.plot(t, t.exp(), color=BLACK, linewidth=2, label="exp")
    for n, colour in zip((2, 3, 4, 5), COLOURS[1:], strict=False):
        series.plot(
            t, polynomial(t, n), color=colour, linestyle="-" if n % 2 else "--", label=f"{n} terms"
        )
    series.axhline(0, color=BLACK, linewidth=0.6)
    series.set(
        ylim=(-12, 20), xlabel="t, the score", title="the series: even top degrees stay positive"
    )
    for n, colour in zip(settings.terms, COLOURS[1:] * 3, strict=False):
        rows = [row for row in errors if row[0] == n]
        norms = [row[1] for row in rows]
        error.plot(norms, [row[2] for row in rows], color=colour, marker="o", label=f"{n} terms")
        error.plot(norms, [row[3] for row in rows], color=colour, linestyle=":")
    error.set(
        xscale="log",
        yscale="log",
        xlabel="rms of q and k",
        ylabel="sum of |differences|",
        title=f"error against softmax, K = {settings.width}; dotted: bound",
        # fmt: skip
        xticks=settings.norms,
        xticklabels=[f"{norm:g}" for norm in settings.norms],
    )
    error.minorticks_off()
    lengths = [row[0] for row in times]
    for column, (name, colour) in enumerate(
        (("exact", BLACK), ("quadratic form", ORANGE), ("features", BLUE)), 1
    ):
        time.plot(lengths, [row[column] for row in times], color=colour, marker="o", label=name)
    time.axvline(
        _crossing(settings.width),
        color=BLACK,
        linewidth=0.8,
        linestyle=":",
        label="as many multiplications",
    )
    time.set_xscale("log", base=2)
    time.set(yscale="log", xlabel="L, places", ylabel="ms", title="time of one call, 3 terms")
    for axes in (series, error, time):
        axes.legend(frameon=False, fontsize="small")
    return sheet
