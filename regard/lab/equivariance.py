"""Self-attention without positions gives a permuted output for a permuted input: Y(PX) = P Y(X),
not Y(PX) = Y(X).

    A(PX) = softmax(P X W~ X^T P^T) = P A(X) P^T          softmax goes along rows, so P passes through it
    Y(PX) = P A(X) P^T P X W_v = P A(X) X W_v = P Y(X)    for every permutation P, since P^T P = I

That is equivariance. "The same output after a permutation" would be invariance, and is wrong; only
what forgets the order of the places afterwards, such as their mean, is invariant. A causal mask
does not move with the inputs, and positions belong to the place and not to the input: each of them
breaks the law, which is what they are for.
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

Order = Literal["none", "causal", "sinusoidal", "rotary"]
CASES: dict[Order, str] = {
    "none": "no mask, no positions",
    "causal": "causal mask",
    "sinusoidal": "sinusoidal positions",
    "rotary": "rotary positions",
}
BROKEN = 1e-3  # a relative difference above this is none of rounding

ALSO = ("permutation", "permute", "order", "invariance")  # what else people call it


class Settings(experiment.Settings):
    length: Annotated[int, Field(ge=3, le=64)] = 7
    """Places of the input."""
    width: Annotated[int, Field(ge=2, le=64, multiple_of=2)] = 10
    """D and K, even, because rotary positions turn pairs."""
    permutations: Annotated[int, Field(ge=1, le=1000)] = 20
    """Permutations tried."""


def run(settings: Settings) -> Report:
    T, D = settings.length, settings.width
    draws = torch.Generator().manual_seed(settings.seed)
    x = torch.randn(T, D, generator=draws, dtype=torch.float64)
    weights = torch.randn(3, D, D, generator=draws, dtype=torch.float64) * D**-0.5
    orders = [_permutation(T, draws) for _ in range(settings.permutations)]
    found: dict[Order, Differences] = {
        order: differences(x, weights, orders, order) for order in CASES
    }
    plain = found["none"]
    claims = (
        zero("Y(PX) = P Y(X) without mask and positions: equivariant", max(plain.from_permuted)),
        _broken(
            '"the same output after a permutation", Y(PX) = Y(X), is wrong: not invariant',
            plain.from_same,
        ),
        zero("the mean over the places is invariant", max(plain.of_means)),
        *(
            _broken(f"Y(PX) = P Y(X) is broken by: {CASES[order]}", each.from_permuted)
            for order, each in found.items()
            if order != "none"
        ),
    )
    table = Table(
        f"Differences relative to |Y(X)|, smallest and largest over {settings.permutations} permutations of {T} places",
        ("order is told by", "|Y(PX) - P Y(X)|", "", "|Y(PX) - Y(X)|", "", "of their means", ""),
        tuple(
            (
                CASES[order],
                *_ends(each.from_permuted),
                *_ends(each.from_same),
                *_ends(each.of_means),
            )
            for order, each in found.items()
        ),
    )
    return Report(claims, (table,), _figure(x, weights, orders[0], found))


def layer(x: Tensor, weights: Tensor, order: Order) -> Tensor:
    """One head of self-attention (T, D) -> (T, D) that knows the order of its places in one way
    or in none."""
    places = torch.arange(len(x))
    if order == "sinusoidal":
        x = x + sinusoidal(places, x.shape[-1]).to(x.dtype)
    q, k, v = x @ weights
    if order == "rotary":
        q, k = rotary(q, places), rotary(k, places)
    return attend(q, k, v, causal=order == "causal")


@dataclass(frozen=True)
class Differences:
    """Of Y(PX), one for each permutation, relative to the size of Y(X)."""

    from_permuted: list[float]
    from_same: list[float]
    of_means: list[float]


def differences(x: Tensor, weights: Tensor, orders: list[Tensor], order: Order) -> Differences:
    """How far Y(PX) is from P Y(X), from Y(X), and its mean from that of Y(X)."""
    y = layer(x, weights, order)
    moved = [(p, layer(x[p], weights, order)) for p in orders]

    def size(difference: Tensor) -> float:
        return (torch.linalg.norm(difference) / torch.linalg.norm(y)).item()

    return Differences(
        from_permuted=[size(a - y[p]) for p, a in moved],
        from_same=[size(a - y) for _, a in moved],
        of_means=[size(a.mean(0) - y.mean(0)) for _, a in moved],
    )


def _ends(values: list[float]) -> tuple[float, float]:
    return clean(min(values)), clean(max(values))


def _permutation(length: int, draws: torch.Generator) -> Tensor:
    """A random one that moves something: at least one place not its own."""
    found = torch.randperm(length, generator=draws)
    return found.roll(1) if bool((found == torch.arange(length)).all()) else found


def _broken(text: str, found: list[float]) -> Claim:
    measured = f"{min(found):.3f} for the permutation that changes least"
    return Claim(text, f"a difference above {BROKEN:g}", measured, min(found) > BROKEN)


def _figure(x: Tensor, weights: Tensor, order: Tensor, found: dict[Order, Differences]) -> Figure:
    sheet = experiment.figure(12, 4.4)
    shown, bars = cast(Sequence[SubFigure], sheet.subfigures(1, 2, width_ratios=(1.25, 1)))
    y, moved = layer(x, weights, "none"), layer(x[order], weights, "none")
    most = y.abs().max().item()
    panels = shown.subplots(1, 3, sharey=True)
    for axes, values, title in zip(
        panels, (y, moved, y[order]), ("Y(X)", "Y(PX)", "P Y(X)"), strict=True
    ):
        image = axes.imshow(values.numpy(), cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
        axes.set(title=title, xlabel="component")
        axes.xaxis.get_major_locator().set_params(integer=True)
    panels[0].set(ylabel="place")
    shown.colorbar(image, ax=panels, shrink=0.8)
    shown.suptitle("no mask, no positions: the second is the third, not the first")
    axes = bars.subplots()
    floor, last = 1e-17, len(found) - 1
    for n, (case, each) in enumerate(found.items()):
        axes.plot([max(value, floor) for value in each.from_permuted], [last - n] * len(each.from_permuted), "o",
                  color=BLUE if case == "none" else RED, alpha=0.5)  # fmt: skip
    axes.set(yticks=range(last, -1, -1), yticklabels=CASES.values(), ylim=(-0.5, last + 0.7))
    axes.axvline(1e-10, color="0.5", linestyle=":", linewidth=1)
    axes.text(
        1.5e-10,
        last + 0.4,
        "rounding is left of this line",
        color="0.35",
        va="center",
        fontsize="small",
    )
    axes.set(xscale="log", xlim=(floor, 10), xlabel="|Y(PX) - P Y(X)| / |Y(X)|")
    bars.suptitle("what breaks the law, a dot a permutation")
    return sheet
