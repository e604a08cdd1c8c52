"""Scores of unit inputs have mean 0 and variance s^4 after scaling by 1/sqrt(K), for any D, K and
distribution of the weights.

The inputs x, y have norm 1 and width D. The weights are i.i.d. with mean 0, variance s^2 and excess
kurtosis g (0 for the normal distribution):

    q = x W_q, k = y W_k        every component: mean 0, variance s^2 |x|^2 = s^2
    E[q.k] = 0                  E[(q.k)^2] = K s^4           so q.k / sqrt(K) has variance s^4
    excess kurtosis of q.k = ((3 + g |x|_4^4) (3 + g |y|_4^4) - 3) / K        -> 0 as K grows

The K terms of q.k are independent, so by the central limit theorem the score becomes normal as K
grows, for every distribution of the weights. D has no such effect: at K = 1 a score is a product of
two numbers, whose excess kurtosis tends to 6 as D grows.

The standard deviation of unscaled scores is proportional to sqrt(K). Softmax then puts nearly all
weight on one key, and its gradient (the trace of its Jacobian, 1 - sum p^2) vanishes. Also, for
a, b ~ N(0, I_D): E[(a.b)^2] = D, and the variance of (a.b)^2 is 2 D^2 + 6 D.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, pairwise, product
from typing import Annotated, Literal, Self

import torch
from matplotlib.figure import Figure
from pydantic import Field, model_validator
from torch import Tensor

from regard.lab import experiment
from regard.lab.experiment import BLACK, BLUE, COLOURS, RED, Claim, Report, Table
from regard.pages.formulas import Formula

Law = Literal["normal", "uniform", "signs", "sparse"]
EXCESS = {"normal": 0.0, "uniform": -1.2, "signs": -2.0, "sparse": 7.0}
MOST_NUMBERS = 1 << 22  # drawn at a time, to limit memory
WIDTH = 64  # D of the inputs of the softmaxes
SIGMAS = 5.0  # allowed deviation of a measured mean, in standard deviations

ALSO = ("variance", "scaling", "sqrt", "softmax", "logits")  # synonyms of the name

# One group for each block of formulas in the docstring.
FORMULAS = (
    (
        Formula(
            r"q = x W_q, \quad k = y W_k, \quad \operatorname{Var}(q_i) = s^2 \lVert x \rVert^2 "
            "= s^2",
            "Every component of q and k has mean 0 and variance s².",
        ),
        Formula(
            r"\mathrm{E}[q \cdot k] = 0, \quad \mathrm{E}[(q \cdot k)^2] = K s^4",
            "So q·k / √K has variance s⁴.",
        ),
        Formula(
            r"\frac{(3 + g \lVert x \rVert_4^4) (3 + g \lVert y \rVert_4^4) - 3}{K}",
            "The excess kurtosis of q·k: tends to 0 as K grows.",
        ),
    ),
)


class Settings(experiment.Settings):
    laws: Annotated[tuple[Law, ...], Field(min_length=1)] = ("normal", "uniform", "signs", "sparse")
    """Distributions of the weights: normal, uniform, signs (+s or -s, equally likely) or sparse
    (0 with probability 0.9, otherwise a sign)."""
    widths: Annotated[tuple[Annotated[int, Field(ge=4, le=1024)], ...], Field(min_length=1)] = (
        8,
        64,
    )
    """D, the widths of the inputs."""
    head_widths: Annotated[
        tuple[Annotated[int, Field(ge=1, le=1024)], ...], Field(min_length=2)
    ] = (1, 4, 16, 64)
    """K, the widths of a head: 1 first, each at least twice the previous, the last 16 or more."""
    spread: Annotated[float, Field(ge=0.1, le=3)] = 1.0
    """s, the standard deviation of a weight."""
    samples: Annotated[int, Field(ge=500, le=200_000)] = 8000
    """Scores for each distribution, D and K, each with newly drawn weights."""
    keys: Annotated[int, Field(ge=2, le=1024)] = 32
    """The number of keys of a softmax."""

    @model_validator(mode="after")
    def _doubling(self) -> Self:
        # From clearly not normal to nearly normal, in steps that exceed the sampling noise.
        heads = self.head_widths
        if heads[0] != 1 or heads[-1] < 16 or any(b < 2 * a for a, b in pairwise(heads)):
            raise ValueError(
                "head_widths must at least double each time, from 1 to 16 or more; "
                f"got {list(heads)}"
            )
        return self


@dataclass(frozen=True)
class Sample:
    """Unscaled scores q.k for one distribution, D and K, with their predicted moments."""

    law: str
    width: int
    head_width: int
    scores: Tensor
    spread: float
    excess: float

    @property
    def scaled(self) -> Tensor:
        return self.scores / math.sqrt(self.head_width)

    @property
    def noise(self) -> float:
        """Standard deviation of the measured variance, relative to the variance itself."""
        return math.sqrt((self.excess + 2) / len(self.scores))

    @property
    def distance(self) -> float:
        """The Kolmogorov-Smirnov distance between the scaled scores and N(0, s^4)."""
        normal = torch.special.ndtr(self.scaled.sort().values / self.spread**2)
        steps = torch.arange(len(normal) + 1, dtype=normal.dtype) / len(normal)
        return max((normal - steps[:-1]).max().item(), (steps[1:] - normal).max().item())

    @property
    def furthest(self) -> float:
        """An upper bound for `distance`: the first term of the Edgeworth series, and sampling
        noise."""
        return abs(self.excess) / 24 * 0.551 + SIGMAS / 2 / math.sqrt(len(self.scores))


def run(settings: Settings) -> Report:
    draws = torch.Generator().manual_seed(settings.seed)
    s = settings.spread
    last = settings.head_widths[-1]
    samples = list(sampled(settings, draws))
    softmaxes = [(K, *saturation(settings, K, draws)) for K in settings.head_widths]
    squares = [(D, *squared_dot(D, settings.samples, draws)) for D in settings.widths]

    # deviations from the prediction, in standard deviations of the measurement
    means = [
        x.scores.mean().item() / (s**2 * math.sqrt(x.head_width / settings.samples))
        for x in samples
    ]
    before = [(x.scores.var().item() / (x.head_width * s**4) - 1) / x.noise for x in samples]
    after = [(x.scaled.var().item() / s**4 - 1) / x.noise for x in samples]
    limit = [x for x in samples if x.head_width == last]
    products = [x.distance for x in samples if x.head_width == 1]
    scaled = [row[1] for row in softmaxes]
    raw = [row[2] for row in softmaxes]
    everywhere = f"for every distribution, D and K ({len(samples)} cases)"
    claims = (
        _within_noise(f"the mean is 0, {everywhere}", means),
        _within_noise(f"before scaling the variance is K s^4, {everywhere}", before),
        _within_noise(f"after scaling the variance is s^4 = {s**4:g}, {everywhere}", after),
        Claim(
            f"at K = {last} the scores are normal, for every distribution of the weights",
            f"Kolmogorov-Smirnov distance to N(0, s^4) below {max(x.furthest for x in limit):.4f}",
            f"at most {max(x.distance for x in limit):.4f}",
            all(x.distance <= x.furthest for x in limit),
        ),
        Claim(
            "this is due to K, not D: at K = 1 the distance is larger, at every D",
            f"above {max(x.distance for x in limit):.4f}",
            f"{min(products):.4f} to {max(products):.4f}",
            min(products) > max(x.distance for x in limit),
        ),
        _within_noise(
            "E[(a.b)^2] = D for a, b ~ N(0, I_D)",
            [(mean - D) / noise for D, mean, noise in squares],
        ),
        Claim(
            "without scaling softmax saturates: its gradient falls as K grows",
            "falling",
            " > ".join(f"{softmax.gradient:.3f}" for softmax in raw),
            all(a.gradient > b.gradient for a, b in pairwise(raw)),
        ),
        Claim(
            f"with scaling it does not: at K = {last} the gradient is that of N(0, s^4) scores",
            f"{(target := normal_gradient(settings, draws)):.3f} ± 0.05",
            f"{scaled[-1].gradient:.3f} (unscaled {raw[-1].gradient:.3f})",
            abs(scaled[-1].gradient - target) <= 0.05,
        ),
    )
    moments = Table(
        f"Moments of the scores, s = {s:g}",
        (
            "weights",
            "D",
            "K",
            "mean",
            "variance of q.k",
            "of q.k / sqrt(K)",
            "excess kurtosis",
            "predicted",
            "distance to normal",
        ),
        tuple(_row(x) for x in samples),
    )
    softmax = Table(
        f"Softmax over {settings.keys} keys, D = {WIDTH}, normal weights",
        (
            "K",
            "entropy",
            "largest weight",
            "gradient",
            "entropy unscaled",
            "largest unscaled",
            "gradient unscaled",
        ),
        tuple(
            (K, a.entropy, a.largest, a.gradient, b.entropy, b.largest, b.gradient)
            for K, a, b in softmaxes
        ),
    )
    dots = Table(
        "a, b ~ N(0, I_D)", ("D", "E[(a.b)^2] measured"), tuple((D, mean) for D, mean, _ in squares)
    )
    return Report(claims, (moments, softmax, dots), _figure(settings, samples, softmaxes))


def weights(law: str, shape: tuple[int, ...], draws: torch.Generator) -> Tensor:
    """Random numbers of mean 0 and variance 1."""
    match law:
        case "normal":
            return torch.randn(shape, generator=draws)
        case "uniform":
            return (torch.rand(shape, generator=draws) * 2 - 1) * math.sqrt(3)
    signs = torch.randint(2, shape, generator=draws, dtype=torch.int8).float() * 2 - 1
    if law == "signs":
        return signs
    return signs * (torch.rand(shape, generator=draws) < 0.1) / math.sqrt(0.1)


def unit(shape: tuple[int, ...], draws: torch.Generator) -> Tensor:
    """Random vectors of norm 1."""
    return torch.nn.functional.normalize(torch.randn(shape, generator=draws), dim=-1)


def sampled(settings: Settings, draws: torch.Generator) -> Iterator[Sample]:
    """Scores of one pair of unit inputs for each D, with new weights for every score."""
    total = len(settings.widths) * len(settings.laws) * len(settings.head_widths)
    numbers = count()
    for D in settings.widths:
        x, y = unit((2, D), draws)
        for law, K in product(settings.laws, settings.head_widths):
            experiment.progress(f"drawing {law}, D = {D}, K = {K}", next(numbers), total)
            scores = []
            chunk = max(1, MOST_NUMBERS // (D * K))
            for first in range(0, settings.samples, chunk):
                shape = (min(chunk, settings.samples - first), K, D)
                q, k = (weights(law, shape, draws) @ vector * settings.spread for vector in (x, y))
                scores.append((q * k).sum(-1))
            excess = (
                (3 + EXCESS[law] * x.pow(4).sum()) * (3 + EXCESS[law] * y.pow(4).sum()) - 3
            ) / K
            yield Sample(law, D, K, torch.cat(scores).double(), settings.spread, excess.item())


def squared_dot(width: int, samples: int, draws: torch.Generator) -> tuple[float, float]:
    """Mean of (a.b)^2 for a, b ~ N(0, I_D), and the standard deviation of that mean."""
    a, b = torch.randn(2, samples, width, generator=draws)
    return (a * b).sum(-1).pow(2).mean().item(), math.sqrt((2 * width**2 + 6 * width) / samples)


@dataclass(frozen=True)
class Softmax:
    """Means over many softmaxes: entropy relative to its maximum, largest weight, trace of the
    Jacobian."""

    entropy: float
    largest: float
    gradient: float


def saturation(
    settings: Settings, head_width: int, draws: torch.Generator
) -> tuple[Softmax, Softmax]:
    """The softmax of one query over all keys, with and without scaling."""
    rows = min(512, settings.samples)
    x, y = unit((rows, 1, WIDTH), draws), unit((rows, settings.keys, WIDTH), draws)
    scores = []
    for x_chunk, y_chunk in zip(x.split(32), y.split(32), strict=True):
        # a pair of matrices for each row
        w_q, w_k = weights("normal", (2, len(x_chunk), WIDTH, head_width), draws) * settings.spread
        scores.append(((x_chunk @ w_q) @ (y_chunk @ w_k).mT)[:, 0])
    raw = torch.cat(scores)
    return _softmax(raw / math.sqrt(head_width)), _softmax(raw)


def normal_gradient(settings: Settings, draws: torch.Generator) -> float:
    """The gradient of a softmax over scores drawn from N(0, s^4)."""
    return _softmax(torch.randn(8192, settings.keys, generator=draws) * settings.spread**2).gradient


def _softmax(scores: Tensor) -> Softmax:
    p = scores.double().softmax(-1)
    entropy = torch.special.entr(p).sum(-1).mean() / math.log(p.shape[-1])
    return Softmax(entropy.item(), p.amax(-1).mean().item(), (1 - p.pow(2).sum(-1)).mean().item())


def _within_noise(text: str, deviations: list[float]) -> Claim:
    """A claim that no measurement deviates from its prediction by more than noise."""
    worst = max(deviations, key=abs)
    expected = f"0 ± {SIGMAS:g} standard deviations of the measurement"
    return Claim(text, expected, f"{worst:+.1f} at worst", abs(worst) <= SIGMAS)


def _row(x: Sample) -> tuple[object, ...]:
    scaled = x.scaled
    centred = scaled - scaled.mean()
    kurtosis = (centred.pow(4).mean() / centred.pow(2).mean() ** 2 - 3).item()
    variances = x.scores.var().item(), scaled.var().item()
    return (
        x.law,
        x.width,
        x.head_width,
        scaled.mean().item(),
        *variances,
        kurtosis,
        x.excess,
        x.distance,
    )


def _figure(
    settings: Settings, samples: list[Sample], softmaxes: list[tuple[int, Softmax, Softmax]]
) -> Figure:
    sheet = experiment.figure(13, 4.4)
    s = settings.spread
    spread, shape, softmax = sheet.subplots(1, 3)
    heads = settings.head_widths
    D = settings.widths[-1]
    of_width = [x for x in samples if x.width == D]
    markers = dict(zip(settings.laws, "osD^", strict=False))
    for law, colour in zip(settings.laws, COLOURS[1:], strict=False):
        of_law = [x for x in of_width if x.law == law]
        style = dict(
            color=colour, marker=markers[law], linestyle="none", markersize=7, fillstyle="none"
        )
        spread.plot(heads, [x.scores.var().item() for x in of_law], **style)
        spread.plot(heads, [x.scaled.var().item() for x in of_law], label=law, **style)
    spread.plot(heads, [K * s**4 for K in heads], color=BLACK, linewidth=1)
    spread.plot(heads, [s**4] * len(heads), color=BLACK, linewidth=1)
    spread.text(heads[-1], heads[-1] * s**4 / 3, "K s⁴\nunscaled", ha="right", va="top")
    spread.text(heads[-1], s**4 * 1.2, "s⁴, scaled", ha="right", va="bottom")
    spread.set(
        xscale="log",
        yscale="log",
        xlabel="K, width of a head",
        ylabel="variance of the scores",
        title=f"variance, D = {D}",
        xticks=heads,
        xticklabels=heads,
    )
    spread.minorticks_off()
    spread.legend(frameon=False, title="distribution of the weights")

    law = "signs" if "signs" in settings.laws else settings.laws[0]
    ends = [x for x in of_width if x.law == law and x.head_width in (heads[0], heads[-1])]
    edges = torch.linspace(-4, 4, 65, dtype=torch.float64)
    for x, colour in zip(ends, (RED, BLUE), strict=True):
        counts = (
            torch.histogram(x.scaled / s**2, edges).hist / len(x.scores) / (edges[1] - edges[0])
        )
        shape.stairs(
            counts.numpy(), edges.numpy(), color=colour, linewidth=1.5, label=f"K = {x.head_width}"
        )
    bell = torch.exp(-(edges**2) / 2) / math.sqrt(2 * math.pi)
    shape.plot(edges.numpy(), bell.numpy(), color=BLACK, linewidth=1, label="N(0, 1)")
    shape.set(
        xlabel="q·k / (√K s²)",
        ylabel="density",
        title=f"distribution of the scores, weights: {law}, D = {D}",
    )
    shape.legend(frameon=False)

    _, scaled, raw = zip(*softmaxes, strict=True)
    for rows, colour, line, label in (
        (scaled, BLUE, "-", "scaled by 1/√K"),
        (raw, RED, "--", "unscaled"),
    ):
        style = dict(color=colour, linestyle=line)
        softmax.plot(
            heads, [row.gradient for row in rows], marker="o", label=f"gradient, {label}", **style
        )
        softmax.plot(
            heads,
            [row.largest for row in rows],
            marker="^",
            label=f"largest weight, {label}",
            **style,
        )
    softmax.set(
        xscale="log",
        xlabel="K, width of a head",
        ylabel="mean",
        title=f"softmax over {settings.keys} keys",
        ylim=(0, 1),
        xticks=heads,
        xticklabels=heads,
    )
    softmax.minorticks_off()
    softmax.legend(
        frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, fontsize="small"
    )
    return sheet
