"""The gradients of LSTM and GRU by hand are those of autograd, and each usual mistake in deriving
them is named.

An LSTM's way back, d for dL/d, all summed over time (regard/lab/cells.py has it line by line, and
the GRU's):

    dy = yhat - y                              db_y = dy,  dW_y = dy a^T
    da = W_y^T dy + da_next                    dc = da o (1 - tanh(c)^2) + dc_next
    do = da tanh(c) o (1 - o)                  before the sigmoid, likewise
    df = dc c_prev f (1 - f)                   du = dc c~ u (1 - u)               dc~ = dc u (1 - c~^2)
    dW_g = dg [a_prev; x]^T,  db_g = dg        for each of f, u, o, c~
    [da_next; dx] = W_f^T df + W_u^T du + W_o^T do + W_c^T dc~,                   dc_next = dc f

The mistakes are: 1 - c~ in place of 1 - c~^2; y - yhat; no da_next; b_o left out; x alone in place
of [a_prev; x]; a bias times a^T; a slope taken twice. Most of them leave every shape right and
change the numbers by a few percent here, by as much as they are there, so nothing but comparing
numbers shows them. `regard.lab.checker.check_gradients` compares them, and says which mistake it
was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor

from regard.lab import cells, experiment
from regard.lab.checker import (
    CELLS,
    GradientCheck,
    Problem,
    WayBack,
    check_gradients,
    lstm_way_back,
    outer,
    problem,
)
from regard.lab.experiment import Claim, Report, Table, clean, zero

STEP = 1e-5  # of the finite differences; their own error is near 1e-10 then

Size = Annotated[int, Field(ge=1, le=32)]

ALSO = (
    "backprop",
    "backpropagation",
    "bptt",
    "lstm",
    "gru",
    "autograd",
)  # what else people call it


class Settings(experiment.Settings):
    rows: Size = 2
    """B, rows of the batch."""
    length: Annotated[int, Field(ge=2, le=32)] = 5
    """T, places; a mistake over time shows only with two or more."""
    inputs: Size = 3
    """I, width of the inputs."""
    width: Size = 7
    """D, width of the cell."""
    outputs: Annotated[int, Field(ge=2, le=64)] = 11
    """V, classes of the softmax."""


@dataclass(frozen=True)
class Mistake:
    written: str
    right: str
    spoil: Callable[[WayBack, cells.LSTMCache], Mapping[str, Tensor]]
    told: str  # what must be in the checker's answer
    slips: tuple[str, ...] = ()

    def __call__(
        self, weights: cells.Weights, cache: cells.LSTMCache, targets: Tensor
    ) -> Mapping[str, Tensor]:
        return self.spoil(lstm_way_back(weights, cache, targets, self.slips), cache)


def _slipped(back: WayBack, cache: cells.LSTMCache) -> Mapping[str, Tensor]:
    return back.gradients


def _x_alone(back: WayBack, cache: cells.LSTMCache) -> Mapping[str, Tensor]:
    """The weights of x; those of a are given nothing."""
    nothing = torch.zeros_like(cache.a)
    return back.gradients | {
        f"W_{g}": outer(back.deltas[g], torch.cat([nothing, cache.x], -1)) for g in "fuoc"
    }


MISTAKES = (
    Mistake(
        "dc~ = dc u (1 - c~)",
        "dc u (1 - c~^2)",
        _slipped,
        "1 - c~, where it should be",
        ("candidate",),
    ),
    Mistake(
        "dc~ = dc u (1 - W_c [a; x] - b_c)",
        "dc u (1 - c~^2)",
        _slipped,
        "1 - (what is inside its tanh)",
        ("candidate-inside",),
    ),
    Mistake("da = W_y^T dy", "W_y^T dy + da_next", _slipped, "da_next is left out", ("da_next",)),
    Mistake("dy = y - yhat", "yhat - y", _slipped, "y - yhat, where it should be yhat - y", ("y",)),
    Mistake(
        "db_y = y - yhat",
        "yhat - y",
        lambda back, _: back.gradients | {"b_y": -back.gradients["b_y"]},
        "y - yhat, where it should be yhat - y",
    ),
    Mistake(
        "db_y = dy a^T",
        "dy",
        lambda back, _: back.gradients | {"b_y": outer(back.deltas["y"], back.reads["y"])},
        "where a bias takes the delta alone",
    ),
    Mistake(
        "no db_o",
        "do",
        lambda back, _: {name: part for name, part in back.gradients.items() if name != "b_o"},
        "b_o: left out",
    ),
    Mistake(
        "dW_g = dg x^T",
        "dg [a_prev; x]^T",
        _x_alone,
        "with x only, where it should be (delta) [a_prev; x]^T",
    ),
    Mistake(
        "db_u = du u (1 - u)",
        "du",
        lambda back, cache: (
            back.gradients | {"b_u": (back.deltas["u"] * back.slopes["u"]).sum((0, 1))}
        ),
        "the slope of the gate is applied twice",
    ),
)


def run(settings: Settings) -> Report:
    sizes = settings.model_dump()
    claims, rows = [], []
    for kind in CELLS:
        given = problem(kind, **sizes)
        hand = CELLS[kind].backward(given.weights, given.cache, given.targets)
        exact, numeric = by_autograd(kind, given), by_differences(kind, given)
        own = [
            (name, "x".join(map(str, part.shape)), far(part, exact[name]), far(part, numeric[name]))
            for name, part in hand.items()
        ]
        worst = max(row[3] for row in own)
        claims += [
            zero(f"{kind.upper()} by hand = autograd, all gradients", max(row[2] for row in own)),
            Claim(
                f"{kind.upper()} by hand = finite differences",
                "0 (below 1e-06)",
                below(worst),
                worst <= 1e-6,
            ),
        ]
        rows += [
            (kind, name, shape, clean(first), below(second)) for name, shape, first, second in own
        ]
    checks = []
    for number, mistake in enumerate(MISTAKES):
        experiment.progress("looking for mistakes", number, len(MISTAKES))
        checks.append(check_gradients(mistake, cell="lstm", **sizes))
    for mistake, check in zip(MISTAKES, checks, strict=True):
        said = mistake.told in str(check)
        claims.append(
            Claim(
                f"{mistake.written} is caught",
                f"said: {mistake.told}",
                f"{'said' if said else 'not said'}; {len(check.wrong)} of {len(hand_names())} gradients wrong",
                said and not check,
            )
        )
    tables = (
        Table(
            "The right gradients: relative error of those by hand",
            ("cell", "gradient", "shape", "against autograd", "against differences"),
            tuple(rows),
        ),
        Table(
            "The wrong ones, through the checker",
            (
                "written",
                "right",
                "wrong gradients",
                "smallest error",
                "largest error",
                "what the checker says first",
            ),
            tuple(_row(mistake, check) for mistake, check in zip(MISTAKES, checks, strict=True)),
        ),
    )
    return Report(tuple(claims), tables, _figure(checks))


def by_autograd(kind: str, given: Problem) -> dict[str, Tensor]:
    """The gradients by autograd, through the same way forward."""
    leaves = {name: part.clone().requires_grad_() for name, part in _numbers(given).items()}
    return dict(
        zip(
            leaves, torch.autograd.grad(_loss(kind, given, leaves), [*leaves.values()]), strict=True
        )
    )


def by_differences(kind: str, given: Problem) -> dict[str, Tensor]:
    """(L(w + h) - L(w - h)) / 2h for every single number w."""
    numbers, made = _numbers(given), {}
    for name, part in numbers.items():
        slopes = torch.empty_like(part)
        for place in range(part.numel()):
            h = torch.zeros(part.numel(), dtype=part.dtype)
            h[place] = STEP
            above, below = (
                _loss(kind, given, numbers | {name: part + s * h.view_as(part)}) for s in (1, -1)
            )
            slopes.view(-1)[place] = (above - below) / (2 * STEP)
        made[name] = slopes
    return made


def far(a: Tensor, b: Tensor) -> float:
    """|a - b| / |b|"""
    return ((a - b).norm() / b.norm()).item()


def below(error: float) -> str:
    """An error that is only rounding, as a power of ten that it stays under on other machines too.

    >>> below(3.2e-9)
    'below 1e-08'
    """
    return f"below {10 ** math.ceil(math.log10(3 * error)):.0e}" if error else "0"


def hand_names() -> list[str]:
    return list(CELLS["lstm"].formulas)


def _numbers(given: Problem) -> dict[str, Tensor]:
    return {**given.weights, "x": given.x, **given.starts}


def _loss(kind: str, given: Problem, numbers: Mapping[str, Tensor]) -> Tensor:
    weights = {name: numbers[name] for name in given.weights}
    starts = {name: numbers[name] for name in given.starts}
    return cells.loss(CELLS[kind].forward(weights, numbers["x"], **starts)[0], given.targets)


def _row(mistake: Mistake, check: GradientCheck) -> tuple[object, ...]:
    errors = [finding.error for finding in check.wrong if finding.error is not None]
    said = str(check).splitlines()[1].strip() if check.wrong else "nothing"
    return (
        mistake.written,
        mistake.right,
        len(check.wrong),
        clean(min(errors)) if errors else None,
        clean(max(errors)) if errors else None,
        said,
    )


def _figure(checks: list[GradientCheck]) -> Figure:
    sheet = experiment.figure(11, 4.6)
    axes = sheet.subplots()
    names = hand_names()
    errors = torch.full((len(checks), len(names)), math.nan)
    for row, check in enumerate(checks):
        for finding in check.wrong:
            column = names.index(finding.name)
            if finding.error is None:
                axes.text(
                    column,
                    row,
                    "none" if finding.kind == "missing" else "shape",
                    ha="center",
                    va="center",
                )
            else:
                errors[row, column] = finding.error
                shade = "white" if finding.error < 0.3 else "black"
                axes.text(
                    column,
                    row,
                    f"{finding.error:.2g}",
                    ha="center",
                    va="center",
                    color=shade,
                    fontsize=9,
                )
    image = axes.imshow(errors.numpy(), norm=LogNorm(0.01, 2), cmap="viridis", aspect="auto")
    sheet.colorbar(image, ax=axes, label="|given - right| / |right|", pad=0.01)
    axes.set_xticks(range(len(names)), names)
    axes.set_yticks(range(len(checks)), [mistake.written for mistake in MISTAKES])
    axes.set_xticks([n - 0.5 for n in range(len(names) + 1)], minor=True)
    axes.set_yticks([n - 0.5 for n in range(len(checks) + 1)], minor=True)
    axes.grid(which="minor", color="0.8", linewidth=0.5)
    axes.tick_params(which="minor", length=0)
    axes.set(title="what each mistake does to each gradient of an LSTM (empty: it is right)")
    return sheet
