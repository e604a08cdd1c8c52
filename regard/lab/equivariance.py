"""Self-attention without positional encoding is permutation-equivariant, Y(PX) = P Y(X), and not
permutation-invariant, Y(PX) = Y(X).

    A(PX) = softmax(P X W~ X^T P^T) = P A(X) P^T         softmax acts on rows, so P commutes with it
    Y(PX) = P A(X) P^T P X W_v = P A(X) X W_v = P Y(X)   for every permutation P, since P^T P = I

Equivariance means that a permuted input gives the permuted output. Invariance would mean that it
gives the same output; that holds only for what discards the order, such as the mean of the outputs
over the sequence. A causal mask and positional encodings are not permuted together with the inputs,
so each of them breaks equivariance: this is how attention learns about order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, cast

import torch
from matplotlib.figure import Figure, SubFigure
from pydantic import Field
from torch import Tensor

from regard.lab import experiment
from regard.lab.experiment import BLUE, RED, Claim, Report, Table, clean, zero
from regard.layers.attention import attend
from regard.layers.positions import rotary, sinusoidal
from regard.pages.formulas import Formula

Order = Literal["none", "causal", "sinusoidal", "rotary"]
CASES: dict[Order, str] = {
    "none": "no mask, no positions",
    "causal": "causal mask",
    "sinusoidal": "sinusoidal positions",
    "rotary": "rotary positions",
}
BROKEN = 1e-3  # a relative difference above this is not a rounding error

ALSO = ("permutation", "permute", "order", "invariance")  # synonyms of the name

# One group for each block of formulas in the docstring.
FORMULAS = (
    (
        Formula(
            r"A(P X) = \operatorname{softmax}(P X \tilde{W} X^\top P^\top) "
            r"\allowbreak = P A(X) P^\top",
            "Softmax acts on rows, so the permutation P commutes with it.",
        ),
        Formula(
            r"Y(P X) = P A(X) P^\top P X W_v \allowbreak = P A(X) X W_v \allowbreak = P Y(X)",
            "For every permutation P, since PᵀP = I.",
        ),
    ),
)


class Settings(experiment.Settings):
    length: Annotated[int, Field(ge=3, le=64)] = 7
    """T, the length of the sequence."""
    width: Annotated[int, Field(ge=2, le=64, multiple_of=2)] = 10
    """D and K; even, because rotary positions rotate pairs."""
    permutations: Annotated[int, Field(ge=1, le=1000)] = 20
    """The number of random permutations."""


def run(settings: Settings) -> Report:
    T = settings.length
    D = settings.width
    draws = torch.Generator().manual_seed(settings.seed)
    x = torch.randn(T, D, generator=draws, dtype=torch.float64)
    weights = torch.randn(3, D, D, generator=draws, dtype=torch.float64) * D**-0.5
    permutations = [_permutation(T, draws) for _ in range(settings.permutations)]
    by_case: dict[Order, Differences] = {
        order: differences(x, weights, permutations, order) for order in CASES
    }
    plain = by_case["none"]
    claims = (
        zero(
            "without mask and positions, Y(PX) = P Y(X): equivariant",
            max(plain.from_permuted),
        ),
        _broken("without mask and positions, Y(PX) is not Y(X): not invariant", plain.from_same),
        zero("the mean of the outputs over the sequence is invariant", max(plain.of_means)),
        *(
            _broken(f"Y(PX) = P Y(X) does not hold with: {CASES[order]}", difference.from_permuted)
            for order, difference in by_case.items()
            if order != "none"
        ),
    )
    table = Table(
        f"Differences relative to |Y(X)|, minimum and maximum over {settings.permutations} "
        f"permutations of {T} positions",
        (
            "information about order",
            "|Y(PX) - P Y(X)|",
            "",
            "|Y(PX) - Y(X)|",
            "",
            "of their means",
            "",
        ),
        tuple(
            (
                CASES[order],
                *_range(difference.from_permuted),
                *_range(difference.from_same),
                *_range(difference.of_means),
            )
            for order, difference in by_case.items()
        ),
    )
    return Report(claims, (table,), _figure(x, weights, permutations[0], by_case))


def layer(x: Tensor, weights: Tensor, order: Order) -> Tensor:
    """One head of self-attention (T, D) -> (T, D), with information about order or without."""
    places = torch.arange(len(x))
    if order == "sinusoidal":
        x = x + sinusoidal(places, x.shape[-1]).to(x.dtype)
    q, k, v = x @ weights
    if order == "rotary":
        q, k = rotary(q, places), rotary(k, places)
    return attend(q, k, v, causal=order == "causal")


@dataclass(frozen=True)
class Differences:
    """How far Y(PX) is from other outputs, for each permutation, relative to |Y(X)|."""

    from_permuted: list[float]
    from_same: list[float]
    of_means: list[float]


def differences(
    x: Tensor, weights: Tensor, permutations: list[Tensor], order: Order
) -> Differences:
    """How far Y(PX) is from P Y(X), from Y(X), and its mean from the mean of Y(X)."""
    y = layer(x, weights, order)
    outputs = [(p, layer(x[p], weights, order)) for p in permutations]  # P and Y(PX)

    def size(difference: Tensor) -> float:
        return (torch.linalg.norm(difference) / torch.linalg.norm(y)).item()

    return Differences(
        from_permuted=[size(y_p - y[p]) for p, y_p in outputs],
        from_same=[size(y_p - y) for _, y_p in outputs],
        of_means=[size(y_p.mean(0) - y.mean(0)) for _, y_p in outputs],
    )


def _range(values: list[float]) -> tuple[float, float]:
    return clean(min(values)), clean(max(values))


def _permutation(length: int, draws: torch.Generator) -> Tensor:
    """A random permutation other than the identity."""
    permutation = torch.randperm(length, generator=draws)
    is_identity = bool((permutation == torch.arange(length)).all())
    return permutation.roll(1) if is_identity else permutation


def _broken(text: str, differences: list[float]) -> Claim:
    """A claim that an identity fails for every permutation."""
    smallest = min(differences)
    return Claim(
        text,
        f"a difference above {BROKEN:g} for every permutation",
        f"at least {smallest:.3f}",
        smallest > BROKEN,
    )


def _figure(
    x: Tensor, weights: Tensor, permutation: Tensor, by_case: dict[Order, Differences]
) -> Figure:
    sheet = experiment.figure(12, 4.4)
    outputs, dots = cast(Sequence[SubFigure], sheet.subfigures(1, 2, width_ratios=(1.25, 1)))
    y = layer(x, weights, "none")
    y_p = layer(x[permutation], weights, "none")
    limit = y.abs().max().item()
    panels = outputs.subplots(1, 3, sharey=True)
    for axes, values, title in zip(
        panels, (y, y_p, y[permutation]), ("Y(X)", "Y(PX)", "P Y(X)"), strict=True
    ):
        image = axes.imshow(values.numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
        axes.set(title=title, xlabel="component")
        axes.xaxis.get_major_locator().set_params(integer=True)
    panels[0].set(ylabel="position")
    outputs.colorbar(image, ax=panels, shrink=0.8)
    outputs.suptitle("no mask, no positions: Y(PX) = P Y(X), and not Y(X)")

    axes = dots.subplots()
    floor = 1e-17
    last = len(by_case) - 1
    for n, (case, difference) in enumerate(by_case.items()):
        values = [max(value, floor) for value in difference.from_permuted]
        colour = BLUE if case == "none" else RED
        axes.plot(values, [last - n] * len(values), "o", color=colour, alpha=0.5)
    axes.set(yticks=range(last, -1, -1), yticklabels=CASES.values(), ylim=(-0.5, last + 0.7))
    axes.axvline(1e-10, color="0.5", linestyle=":", linewidth=1)
    axes.text(
        1.5e-10,
        last + 0.4,
        "left of this line: rounding errors",
        color="0.35",
        va="center",
        fontsize="small",
    )
    axes.set(xscale="log", xlim=(floor, 10), xlabel="|Y(PX) - P Y(X)| / |Y(X)|")
    dots.suptitle("what breaks equivariance (one dot per permutation)")
    return sheet
