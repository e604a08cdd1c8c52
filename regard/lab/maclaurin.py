"""Attention with a truncated Maclaurin series of exp costs time linear in L instead of quadratic,
and differs from softmax by at most the Taylor remainder.

    exp(t) ~ sum_{n < terms} t^n / n! = phi(q) . phi(k),       t = q.k / sqrt(K)
    features: M = C(K + terms - 1, K) symmetric ones, or M = (K^terms - 1) / (K - 1) in full
    error: sum_s |softmax weight - series weight| <= min(2, 2 t^n / n! e^t),
           n = terms, t = |q| max |k| / sqrt(K)                (Taylor's theorem)

The same operator can be computed in two ways, with values of width E:

    quadratic form   L^2 (K + E + 1) multiplications   polynomial of all scores, times [V, 1]
    features         2 L M (E + 1) multiplications     sum over keys of phi(k) [v, 1], times phi(q)

The column of ones gives the normaliser. Features take fewer multiplications for L above
2 M (E + 1) / (K + E + 1), which is about M.

A series of even degree has no real root (degree 2 is at least 1/2): its weights are positive, and
an output is an average of the values. A series of odd degree tends to minus infinity (degree 3 at
t = -10 is -125.7): a normaliser can be near 0, and the output anywhere. Times are measured and only
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
from regard.pages.formulas import Formula

Row = tuple[int, float, float, float, int]
Length = Annotated[int, Field(ge=16, le=65536)]
Terms = Annotated[int, Field(ge=1, le=15)]
PLACES = 64  # length of the sequences for the error
BELOW = -10.0  # a score at which series of odd degree are negative

ALSO = ("taylor", "series", "linear-attention", "kernel", "features")  # synonyms of the name

# One group for each block of formulas in the docstring.
FORMULAS = (
    (
        Formula(
            r"\exp(t) \approx \sum_{n < \mathrm{terms}} \frac{t^n}{n!} "
            r"\allowbreak = \phi(q) \cdot \phi(k), \quad t = \frac{q \cdot k}{\sqrt{K}}",
            "The series, as a product of features of the query and of the key.",
        ),
        Formula(
            r"M = \frac{(K + \mathrm{terms} - 1)!}{K! \, (\mathrm{terms} - 1)!}",
            "The number of symmetric features: one for each monomial.",
        ),
        Formula(
            r"M = \frac{K^{\mathrm{terms}} - 1}{K - 1}",
            "The number of features in full: all products of components.",
        ),
        Formula(
            r"\sum_s |a_s - \hat{a}_s| \le \min(2, \; 2 \, e^t \, t^n / n!)",
            "The error of the weights â of the series against the weights a of softmax "
            "(Taylor's theorem).",
        ),
        Formula(
            r"n = \mathrm{terms}, \quad t "
            r"= \frac{\lVert q \rVert \, \max_s \lVert k_s \rVert}{\sqrt{K}}",
            "The letters of this bound.",
        ),
    ),
    (
        Formula(
            "L^2 (K + E + 1)",
            "Multiplications of the quadratic form: the polynomial of all scores, times [V, 1].",
        ),
        Formula(
            "2 L M (E + 1)",
            "Multiplications of the features: the sum over keys of φ(k) [v, 1], times φ(q).",
        ),
    ),
)


class Settings(experiment.Settings):
    width: Annotated[int, Field(ge=2, le=64)] = 16
    """K and E, the width of queries, keys and values."""
    terms: Annotated[tuple[Terms, ...], Field(min_length=2)] = (1, 3, 5, 7)
    """The numbers of terms for the error: odd and ascending, so that every degree is even."""
    norms: Annotated[tuple[Annotated[float, Field(gt=0, le=10)], ...], Field(min_length=2)] = (
        0.25,
        0.5,
        1.0,
        2.0,
    )
    """Root mean square of the components of queries and keys, ascending; 1 after a layer norm."""
    lengths: Annotated[tuple[Length, ...], Field(min_length=2)] = (
        64,
        128,
        256,
        512,
        1024,
        2048,
        4096,
    )
    """L, the sequence lengths for the times, with 3 terms."""
    repeats: Annotated[int, Field(ge=1, le=100)] = 3
    """Calls per measurement; the shortest time counts."""

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
    K = settings.width
    draws = torch.Generator().manual_seed(settings.seed)
    errors = _errors(settings, draws)
    counted_lengths = settings.lengths[: max(2, sum(L <= 1024 for L in settings.lengths))]
    work = [_counted(L, K, draws) for L in counted_lengths]
    load = load_per_core()
    times, spreads = _all_timed(settings, draws)
    crossing = _crossing(K)
    claims = (
        *_about_features(draws),
        _about_forms(draws),
        *_about_errors(settings, errors),
        *_about_work(work, K),
        *_about_degrees(),
    )

    counts = tuple(
        (w, n, how_many(w, n), sum(w**d for d in range(n)))
        for w in sorted({5, 64, K})
        for n in (3, 5)
    )
    degrees = tuple(
        (n, n - 1, polynomial(torch.tensor(BELOW, dtype=torch.float64), n).item(), _lowest(n))
        for n in range(1, 7)
    )
    tables = (
        Table("Features", ("K", "terms", "symmetric", "full"), counts),
        Table(
            f"Error: sum of |softmax weight - series weight|, worst of {PLACES} queries, K = {K}",
            ("terms", "rms of q and k", "error", "bound", "queries within their bound"),
            tuple(errors),
        ),
        Table(
            f"The series at t = {BELOW:g}, where exp(t) = {math.exp(BELOW):.2g}, "
            "and its minimum on [-12, 12]",
            ("terms", "degree", "value", "minimum"),
            degrees,
        ),
        Table(
            f"Multiplications, K = E = {K}: features take fewer above L = {crossing:.0f}",
            ("L", "quadratic form", "features"),
            tuple(work),
        ),
        Table(
            f"Measured ms, threads: {torch.get_num_threads()}, float32, "
            f"{'C kernel' if takes(torch.zeros(1, K), 3) else 'torch only'}; features are faster "
            f"than the quadratic form {faster(times, 2)}, than exact attention {faster(times, 1)}",
            ("L", "exact", "quadratic form", "features"),
            tuple(times),
        ),
    )
    note = busy(spreads, load)
    return Report(claims, tables, _figure(settings, errors, times), () if note is None else (note,))


def _about_features(draws: torch.Generator) -> tuple[Claim, ...]:
    q = _draw(7, 5, draws)
    k = _draw(11, 5, draws)
    largest = 0.0
    for terms in (1, 2, 3, 4, 5):
        for basis in ("symmetric", "full"):
            phi_q = maclaurin_features(q, terms, basis)
            phi_k = maclaurin_features(k, terms, basis)
            difference = phi_q @ phi_k.mT - polynomial(q @ k.mT, terms)
            largest = max(largest, difference.abs().max().item())
    sizes = [
        maclaurin_features(torch.zeros(w), 3, b).shape[0]
        for w in (5, 64)
        for b in ("full", "symmetric")
    ]
    return (
        zero("phi(q) . phi(k) is the series, in both bases, for 1 to 5 terms", largest),
        Claim(
            "3 terms, K = 5 and 64: 1 + K + K^2 features, or 1 + K + K (K + 1) / 2 symmetric ones",
            "31, 21, 4161, 2145",
            ", ".join(map(str, sizes)),
            sizes == [31, 21, 4161, 2145],
        ),
    )


def _about_forms(draws: torch.Generator) -> Claim:
    q, k, v = (_draw(37, 5, draws) for _ in range(3))
    largest = 0.0
    for causal in (False, True):
        outputs = [maclaurin_attention(q, k, v, causal=causal, form=form) for form in FORMS]
        if not causal:
            outputs.append(by_features(q, k, v))
        largest = max(largest, *((a - b).abs().max().item() for a, b in pairwise(outputs)))
    return zero(
        f"the forms {', '.join(FORMS)} give the same output, causal or not",
        largest,
    )


def _errors(settings: Settings, draws: torch.Generator) -> list[Row]:
    """For each number of terms and each norm: the error of the worst query, its bound, and how many
    queries are within their bound."""
    q = _draw(PLACES, settings.width, draws)
    k = _draw(PLACES, settings.width, draws)
    rows = []
    for terms in settings.terms:
        for norm in settings.norms:
            weights = polynomial(norm**2 * q @ k.mT / math.sqrt(settings.width), terms)
            weights = weights / weights.sum(-1, keepdim=True)
            exact = attention_weights(norm * q, norm * k)
            error = (weights - exact).abs().sum(-1)
            bound = maclaurin_error_bound(norm * q, norm * k, terms)
            worst = int(error.argmax())
            within = int((error <= bound + 1e-12).sum())
            rows.append((terms, norm, error[worst].item(), bound[worst].item(), within))
    return rows


def _about_errors(settings: Settings, errors: Sequence[Row]) -> tuple[Claim, ...]:
    within = sum(row[4] for row in errors)
    total = len(errors) * PLACES
    error_of = {(terms, norm): error for terms, norm, error, _, _ in errors}
    by_terms = [error_of[terms, settings.norms[0]] for terms in settings.terms]
    by_norm = [error_of[settings.terms[-1], norm] for norm in settings.norms]
    return (
        Claim(
            "the error of every query is within the bound of the Taylor remainder",
            f"{total} of {total} within",
            f"{within} of {total} within",
            within == total,
        ),
        Claim(
            f"more terms, less error (rms {settings.norms[0]:g})",
            "falling",
            _chain(by_terms, ">"),
            by_terms == sorted(by_terms, reverse=True),
        ),
        Claim(
            f"larger queries and keys, more error ({settings.terms[-1]} terms)",
            "rising",
            _chain(by_norm, "<"),
            by_norm == sorted(by_norm),
        ),
    )


def by_features(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention by the formula phi(q) sum_s phi(k_s) [v_s, 1], normalised; 3 terms, not causal."""
    phi_q = maclaurin_features(q / math.sqrt(q.shape[-1]))
    phi_k = maclaurin_features(k)
    sums = phi_k.mT @ torch.cat([v, torch.ones_like(v[:, :1])], -1)  # (M, E + 1)
    weighted = phi_q @ sums  # (L, E + 1), the last column the normaliser
    return weighted[:, :-1] / weighted[:, -1:]


def _counted(length: int, width: int, draws: torch.Generator) -> tuple[int, int, int]:
    """L, and the multiplications in matrix products of the quadratic form and of the features."""
    q, k, v = (_draw(length, width, draws) for _ in range(3))
    with FlopCounterMode(display=False) as quadratic:
        maclaurin_attention(q, k, v, form="quadratic")
    with FlopCounterMode(display=False) as features:
        by_features(q, k, v)
    return length, quadratic.get_total_flops() // 2, features.get_total_flops() // 2


def _about_work(work: Sequence[tuple[int, int, int]], width: int) -> tuple[Claim, ...]:
    def exact(text: str, column: int, formula: Callable[[int], int]) -> Claim:
        wrong = [row for row in work if row[column] != formula(row[0])]
        example = (wrong or work)[-1]
        return Claim(
            text,
            f"{formula(example[0]):,} at L = {example[0]:,}, and the formula at every L",
            f"{example[column]:,}",
            not wrong,
        )

    K = width
    M = how_many(width, 3)
    return (
        exact(
            "the quadratic form takes L^2 (K + E + 1) multiplications",
            1,
            lambda n: n * n * (2 * K + 1),
        ),
        exact(f"features take 2 L M (E + 1), M = {M}", 2, lambda n: 2 * n * M * (K + 1)),
    )


def _crossing(width: int) -> float:
    """The length L at which quadratic form and features take equally many multiplications.

    >>> round(_crossing(16))
    158
    """
    return 2 * how_many(width, 3) * (width + 1) / (2 * width + 1)


def _about_degrees() -> tuple[Claim, ...]:
    below = torch.tensor([BELOW], dtype=torch.float64)
    lowest = [_lowest(n) for n in (3, 5, 7)]
    is_average = [0 <= _output(n) <= 1 for n in (3, 5, 7)]
    odd_output = _output(4)
    return (
        near(
            f"the series of degree 3 at t = {BELOW:g} is negative",
            expected=-125.6667,
            measured=polynomial(below, 4).item(),
            within=1e-3,
        ),
        near("the minimum of degree 2 is 1/2", expected=0.5, measured=lowest[0], within=1e-6),
        Claim(
            "the minima of the even degrees 2, 4 and 6 are positive",
            "above 0",
            _chain(lowest, ","),
            min(lowest) > 0,
        ),
        Claim(
            "so their outputs are averages: for values 0 and 1, between 0 and 1",
            "3 of 3",
            f"{sum(is_average)} of 3",
            all(is_average),
        ),
        Claim(
            "the output of degree 3 need not be: scores -5 and 2.63, values 0 and 1",
            "below 0 or above 1",
            f"{odd_output:.1f}",
            not 0 <= odd_output <= 1,
        ),
    )


def _output(terms: int) -> float:
    """The output for one query with scores -5 and 2.63, and values 0 and 1."""
    q = torch.ones(1, 1)
    k = torch.tensor([[-5.0], [2.63]])
    v = torch.tensor([[0.0], [1.0]])
    return maclaurin_attention(
        q.double(), k.double(), v.double(), terms=terms, scale=1.0, allow_negative=True
    ).item()


def _lowest(terms: int) -> float:
    """The minimum of the series on [-12, 12]."""
    return polynomial(torch.linspace(-12, 12, 24001, dtype=torch.float64), terms).min().item()


# L, and ms of exact attention, of the quadratic form and of features
Times = tuple[int, float, float, float]


def _all_timed(settings: Settings, draws: torch.Generator) -> tuple[list[Times], list[float]]:
    """The times at every length, to four digits, and the spread of repeated calls."""
    rows = []
    spreads = []
    for number, length in enumerate(settings.lengths):
        experiment.progress(f"timing L = {length:,}", number, len(settings.lengths))
        seconds = _timed(length, settings.width, settings.repeats, draws)
        exact, quadratic, features = (float(f"{min(calls) * 1e3:.4g}") for calls in seconds)
        rows.append((length, exact, quadratic, features))
        spreads += [spread(calls) for calls in seconds]
    return rows, spreads


def faster(times: Sequence[Times], column: int) -> str:
    """The length from which on features are faster than `column` of the table.

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
    """Seconds of repeated calls of exact attention, quadratic form and features, alternating."""
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
            if turn:  # the first call of each is a warm-up
                seconds[n].append(perf_counter() - start)
    return seconds


def _draw(rows: int, width: int, draws: torch.Generator) -> Tensor:
    return torch.randn(rows, width, generator=draws, dtype=torch.float64)


def _chain(values: Sequence[float], between: str) -> str:
    """Values as text with an operator between them: 3 > 2 > 1."""
    return f" {between} ".join(f"{value:.3g}" for value in values).replace(" ,", ",")


def _figure(settings: Settings, errors: Sequence[Row], times: Sequence[Times]) -> Figure:
    sheet = experiment.figure(15, 4.4)
    series, error, time = sheet.subplots(1, 3)
    t = torch.linspace(-6, 3, 300, dtype=torch.float64)
    series.plot(t, t.exp(), color=BLACK, linewidth=2, label="exp")
    for n, colour in zip((2, 3, 4, 5), COLOURS[1:], strict=False):
        series.plot(
            t, polynomial(t, n), color=colour, linestyle="-" if n % 2 else "--", label=f"{n} terms"
        )
    series.axhline(0, color=BLACK, linewidth=0.6)
    series.set(ylim=(-12, 20), xlabel="t, the score", title="the series: even degrees are positive")
    for n, colour in zip(settings.terms, COLOURS[1:] * 3, strict=False):
        rows = [row for row in errors if row[0] == n]
        norms = [row[1] for row in rows]
        error.plot(norms, [row[2] for row in rows], color=colour, marker="o", label=f"{n} terms")
        error.plot(norms, [row[3] for row in rows], color=colour, linestyle=":")
    error.set(
        xscale="log",
        yscale="log",
        xlabel="rms of q and k",
        ylabel="sum of |differences of weights|",
        title=f"error against softmax, K = {settings.width}; dotted: bound",
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
        label="equally many multiplications",
    )
    time.set_xscale("log", base=2)
    time.set(
        yscale="log", xlabel="L, sequence length", ylabel="ms", title="time of one call, 3 terms"
    )
    for axes in (series, error, time):
        axes.legend(frameon=False, fontsize="small")
    return sheet
