"""LSTM and GRU gradients derived by hand equal those of autograd, and a checker names each common
mistake in deriving them.

Backpropagation through time for an LSTM. dv is dL/dv; for a gate g, dg is the gradient before its
sigmoid or tanh. Gradients of weights and biases are summed over time. regard/lab/cells.py has these
formulas as code, and those of the GRU:

    dy  = yhat - y                          dW_y = dy a^T,   db_y = dy
    da  = W_y^T dy + da_next                dc = da o (1 - tanh(c)^2) + dc_next
    do  = da tanh(c) o (1 - o)              df = dc c_prev f (1 - f)
    dc~ = dc u (1 - c~^2)                   du = dc c~ u (1 - u)
    dW_g = dg [a_prev; x]^T,  db_g = dg     for each gate g of f, u, o, c~
    [da_next; dx] = W_f^T df + W_u^T du + W_o^T do + W_c^T dc~,    dc_next = dc f

Common mistakes: 1 - c~ instead of 1 - c~^2; y - yhat; da_next omitted; db_o omitted; x instead of
[a_prev; x]; a bias gradient times a^T; the derivative of a gate applied twice. Most of them leave
all shapes right, so only a comparison of numbers reveals them.
`regard.lab.checker.check_gradients` makes this comparison and names the mistake.
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
    BackwardPass,
    GradientCheck,
    Problem,
    check_gradients,
    lstm_backward_pass,
    outer,
    problem,
)
from regard.lab.experiment import Claim, Report, Table, clean, zero
from regard.pages.formulas import Formula

STEP = 1e-5  # of the finite differences, whose own error is then about 1e-10

Size = Annotated[int, Field(ge=1, le=32)]

ALSO = (
    "backprop",
    "backpropagation",
    "bptt",
    "lstm",
    "gru",
    "autograd",
)  # synonyms of the name

# One group for each block of formulas in the docstring.
FORMULAS = (
    (
        Formula(
            r"dy = \hat{y} - y, \quad dW_y = dy \, a^\top, \quad db_y = dy",
            "The output, softmax and loss together.",
        ),
        Formula(
            r"da = W_y^\top dy + da_{\mathrm{next}}",
            "The hidden state: from the output and from the next step.",
        ),
        Formula(
            r"dc = da \odot o \odot (1 - \tanh^2 c) + dc_{\mathrm{next}}",
            "The cell state. ⊙ multiplies component by component.",
        ),
        Formula(
            r"do = da \odot \tanh c \odot o \odot (1 - o)",
            "The output gate.",
        ),
        Formula(
            r"df = dc \odot c_{\mathrm{prev}} \odot f \odot (1 - f)",
            "The forget gate.",
        ),
        Formula(
            r"du = dc \odot \tilde{c} \odot u \odot (1 - u)",
            "The input gate.",
        ),
        Formula(
            r"d \tilde{c} = dc \odot u \odot (1 - \tilde{c}^2)",
            "The candidate: the square is often forgotten.",
        ),
        Formula(
            r"dW_g = dg \, [a_{\mathrm{prev}}; x]^\top, \quad db_g = dg",
            "For each gate g of f, u, o and c̃.",
        ),
        Formula(
            r"[da_{\mathrm{next}}; dx] \allowbreak = W_f^\top df + W_u^\top du "
            r"\allowbreak + W_o^\top do + W_c^\top d \tilde{c}",
            "Passed on to the previous step, and to the input.",
        ),
        Formula(
            r"dc_{\mathrm{next}} = dc \odot f",
            "Passed on to the previous step.",
        ),
    ),
)


class Settings(experiment.Settings):
    rows: Size = 2
    """B, the batch size."""
    length: Annotated[int, Field(ge=2, le=32)] = 5
    """T, the sequence length; at least 2, or mistakes in the recurrence have no effect."""
    inputs: Size = 3
    """I, the width of the inputs."""
    width: Size = 7
    """D, the width of the cell."""
    outputs: Annotated[int, Field(ge=2, le=64)] = 11
    """V, the number of classes."""


@dataclass(frozen=True)
class Mistake:
    """An LSTM backward pass with one mistake, in the form that `check_gradients` takes."""

    wrong: str  # the formula with the mistake
    right: str
    gradients: Callable[[BackwardPass, cells.LSTMCache], Mapping[str, Tensor]]
    message: str  # must be part of the checker's answer
    mistakes: tuple[str, ...] = ()

    def __call__(
        self, weights: cells.Weights, cache: cells.LSTMCache, targets: Tensor
    ) -> Mapping[str, Tensor]:
        return self.gradients(lstm_backward_pass(weights, cache, targets, self.mistakes), cache)


def _unchanged(back: BackwardPass, cache: cells.LSTMCache) -> Mapping[str, Tensor]:
    """The gradients of a backward pass that has the mistake already."""
    return back.gradients


def _x_alone(back: BackwardPass, cache: cells.LSTMCache) -> Mapping[str, Tensor]:
    """Weight gradients from x only; those of the weights of a are 0."""
    zeros = torch.zeros_like(cache.a)
    return back.gradients | {
        f"W_{g}": outer(back.deltas[g], torch.cat([zeros, cache.x], -1)) for g in "fuoc"
    }


MISTAKES = (
    Mistake(
        "dc~ = dc u (1 - c~)",
        "dc u (1 - c~^2)",
        _unchanged,
        "1 - c~, where it should be",
        ("candidate",),
    ),
    Mistake(
        "dc~ = dc u (1 - W_c [a; x] - b_c)",
        "dc u (1 - c~^2)",
        _unchanged,
        "1 - (the argument of its tanh)",
        ("candidate-inside",),
    ),
    Mistake("da = W_y^T dy", "W_y^T dy + da_next", _unchanged, "da_next is missing", ("da_next",)),
    Mistake(
        "dy = y - yhat", "yhat - y", _unchanged, "y - yhat, where it should be yhat - y", ("y",)
    ),
    Mistake(
        "db_y = y - yhat",
        "yhat - y",
        lambda back, _: back.gradients | {"b_y": -back.gradients["b_y"]},
        "y - yhat, where it should be yhat - y",
    ),
    Mistake(
        "db_y = dy a^T",
        "dy",
        lambda back, _: back.gradients | {"b_y": outer(back.deltas["y"], back.inputs["y"])},
        "where it should be the delta alone",
    ),
    Mistake(
        "no db_o",
        "do",
        lambda back, _: {name: part for name, part in back.gradients.items() if name != "b_o"},
        "b_o: missing",
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
            back.gradients | {"b_u": (back.deltas["u"] * back.derivatives["u"]).sum((0, 1))}
        ),
        "the derivative of the gate is applied twice",
    ),
)


def run(settings: Settings) -> Report:
    sizes = settings.model_dump()
    claims = []
    rows = []
    for kind in CELLS:
        example = problem(kind, **sizes)
        by_hand = CELLS[kind].backward(example.weights, example.cache, example.targets)
        exact = by_autograd(kind, example)
        numeric = by_differences(kind, example)
        exact_errors = []
        numeric_errors = []
        for name, gradient in by_hand.items():
            shape = "x".join(map(str, gradient.shape))
            exact_errors.append(relative_error(gradient, exact[name]))
            numeric_errors.append(relative_error(gradient, numeric[name]))
            rows.append((kind, name, shape, clean(exact_errors[-1]), below(numeric_errors[-1])))
        claims += [
            zero(f"{kind.upper()}: gradients by hand = autograd", max(exact_errors)),
            Claim(
                f"{kind.upper()}: gradients by hand = finite differences",
                "0 (below 1e-06)",
                below(max(numeric_errors)),
                max(numeric_errors) <= 1e-6,
            ),
        ]

    checks = []
    for number, mistake in enumerate(MISTAKES):
        experiment.progress("checking mistakes", number, len(MISTAKES))
        checks.append(check_gradients(mistake, cell="lstm", **sizes))
    for mistake, check in zip(MISTAKES, checks, strict=True):
        is_named = mistake.message in str(check)
        gradients = f"{len(check.wrong)} of {len(gradient_names())} gradients wrong"
        claims.append(
            Claim(
                f"the checker finds: {mistake.wrong}",
                f"message: {mistake.message}",
                f"{'this message' if is_named else 'another message'}; {gradients}",
                is_named and not check,
            )
        )

    tables = (
        Table(
            "Relative error of the gradients derived by hand",
            ("cell", "gradient", "shape", "against autograd", "against finite differences"),
            tuple(rows),
        ),
        Table(
            "Mistakes, and what the checker says",
            (
                "mistake",
                "right",
                "wrong gradients",
                "smallest error",
                "largest error",
                "first line of the checker",
            ),
            tuple(_row(mistake, check) for mistake, check in zip(MISTAKES, checks, strict=True)),
        ),
    )
    return Report(tuple(claims), tables, _figure(checks))


def by_autograd(kind: str, example: Problem) -> dict[str, Tensor]:
    """The gradients of the same forward pass by autograd."""
    leaves = {name: value.clone().requires_grad_() for name, value in _variables(example).items()}
    gradients = torch.autograd.grad(_loss(kind, example, leaves), [*leaves.values()])
    return dict(zip(leaves, gradients, strict=True))


def by_differences(kind: str, example: Problem) -> dict[str, Tensor]:
    """Central differences, (L(w + h) - L(w - h)) / 2h, for every entry of every variable."""
    variables = _variables(example)
    gradients = {}
    for name, value in variables.items():
        gradient = torch.empty_like(value)
        for index in range(value.numel()):
            h = torch.zeros(value.numel(), dtype=value.dtype)
            h[index] = STEP
            h = h.view_as(value)
            above = _loss(kind, example, variables | {name: value + h})
            below = _loss(kind, example, variables | {name: value - h})
            gradient.view(-1)[index] = (above - below) / (2 * STEP)
        gradients[name] = gradient
    return gradients


def relative_error(a: Tensor, b: Tensor) -> float:
    """|a - b| / |b|"""
    return ((a - b).norm() / b.norm()).item()


def below(error: float) -> str:
    """A rounding error as a power of ten that bounds it on other machines, too.

    >>> below(3.2e-9)
    'below 1e-08'
    """
    return f"below {10 ** math.ceil(math.log10(3 * error)):.0e}" if error else "0"


def gradient_names() -> list[str]:
    """The gradients of an LSTM."""
    return list(CELLS["lstm"].formulas)


def _variables(example: Problem) -> dict[str, Tensor]:
    """What L is differentiated by: weights, inputs and initial states."""
    return {**example.weights, "x": example.x, **example.starts}


def _loss(kind: str, example: Problem, variables: Mapping[str, Tensor]) -> Tensor:
    weights = {name: variables[name] for name in example.weights}
    starts = {name: variables[name] for name in example.starts}
    y, _ = CELLS[kind].forward(weights, variables["x"], **starts)
    return cells.loss(y, example.targets)


def _row(mistake: Mistake, check: GradientCheck) -> tuple[object, ...]:
    errors = [finding.error for finding in check.wrong if finding.error is not None]
    first_line = str(check).splitlines()[1].strip() if check.wrong else "nothing"
    return (
        mistake.wrong,
        mistake.right,
        len(check.wrong),
        clean(min(errors)) if errors else None,
        clean(max(errors)) if errors else None,
        first_line,
    )


def _figure(checks: list[GradientCheck]) -> Figure:
    sheet = experiment.figure(11, 4.6)
    axes = sheet.subplots()
    names = gradient_names()
    errors = torch.full((len(checks), len(names)), math.nan)
    for row, check in enumerate(checks):
        for finding in check.wrong:
            column = names.index(finding.name)
            if finding.error is None:
                label = "none" if finding.kind == "missing" else "shape"
                axes.text(column, row, label, ha="center", va="center")
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
    sheet.colorbar(image, ax=axes, label="relative error", pad=0.01)
    axes.set_xticks(range(len(names)), names)
    axes.set_yticks(range(len(checks)), [mistake.wrong for mistake in MISTAKES])
    axes.set_xticks([n - 0.5 for n in range(len(names) + 1)], minor=True)
    axes.set_yticks([n - 0.5 for n in range(len(checks) + 1)], minor=True)
    axes.grid(which="minor", color="0.8", linewidth=0.5)
    axes.tick_params(which="minor", length=0)
    axes.set(title="relative error of each gradient of an LSTM after each mistake (empty: right)")
    return sheet
