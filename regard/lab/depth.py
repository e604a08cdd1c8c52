"""With a processor for every number an RNN still needs time T, a language CNN its layers, attention
log T + log D.

Depth: operations that wait for each other, one after another. Sums of n numbers are trees,
ceil(log2 n) high. The computation is traced as it runs (regard/budget/trace.py), the RNN place by
place, and must come out as

    LSTM            (7 + log(D + I)) T + log D + 2 log V + 5           a place waits for the one before
      N layers      (7 + log(D + D)) (T + N - 1)                       layer n may run n places behind the first
    language CNN    (4 + log(R D)) N + 2, stride 2, kernel_size R            whatever T; down to one place takes N = log T
    attention       3 log T + 2 log D + log K + 8                      over T: maximum, normaliser, mix

with log = ceil(log2). The work does not shrink: attention multiplies 4 T D^2 + 2 T^2 D times, an
LSTM 4 T D (D + I).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Self

import torch
from matplotlib.figure import Figure
from pydantic import Field, model_validator
from torch import Tensor

from regard.budget.trace import Trace, tree
from regard.encoders import ConvolutionEncoder
from regard.lab import cells, experiment
from regard.lab.experiment import BLUE, GREEN, ORANGE, PURPLE, RED, Claim, Report, Table
from regard.layers.attention import weights_unchecked
from regard.values import Source

OUTPUTS = 2  # classes behind the LSTM

ALSO = ("parallel", "sequential", "steps")  # what else people call it


class Settings(experiment.Settings):
    lengths: Annotated[tuple[Annotated[int, Field(ge=2, le=4096)], ...], Field(min_length=3)] = (
        4, 8, 16, 32, 64, 128, 256,
    )  # fmt: skip
    """T, the lengths measured, from short to long; powers of 2 make trees without gaps."""
    width: Annotated[int, Field(ge=1, le=512)] = 16
    """D, width of inputs, states and model."""
    heads: Annotated[int, Field(ge=1, le=64)] = 2
    """H, heads of the attention; must divide the width."""
    kernel_size: Annotated[int, Field(ge=2, le=64)] = 4
    """R, places that one place of the CNN's next layer reads."""
    layers: Annotated[int, Field(ge=1, le=16)] = 3
    """N, layers of the CNN of fixed depth and of the stacked LSTM."""

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if self.width % self.heads:
            raise ValueError(
                f"heads must divide width; got heads = {self.heads}, width = {self.width}"
            )
        if any(a >= b for a, b in pairwise(self.lengths)):
            raise ValueError(f"lengths must rise; got {list(self.lengths)}")
        return self


@torch.no_grad()
def run(settings: Settings) -> Report:
    torch.manual_seed(settings.seed)
    D, H, R, N = settings.width, settings.heads, settings.kernel_size, settings.layers
    lengths = settings.lengths
    rnn = [lstm(T, D) for T in lengths]
    stacked = [stacked_lstm(T, D, N) for T in lengths]
    fixed = [cnn(T, D, R, N) for T in lengths]
    to_one = [cnn(T, D, R, tree(T)) for T in lengths]
    seen = [attention(T, D, H) for T in lengths]
    wider = [attention(lengths[0], D * 2**n, H)[0] for n in range(4)]
    grown = list(zip(seen, lengths, strict=True))
    place, layer = 7 + tree(D + D), 4 + tree(R * D)
    claims = (
        _line("an LSTM waits for every place", lengths, rnn, place, "place"),
        Claim(
            f"{N} LSTMs upon each other: T + {N} - 1 places, not {N} T",
            f"{(N - 1) * place} above one LSTM without its output, at every T",
            _each([a[0] - place * T for a, T in zip(stacked, lengths, strict=True)]),
            all(a[0] == place * (T + N - 1) for a, T in zip(stacked, lengths, strict=True)),
        ),
        Claim(
            f"a CNN of {N} layers takes the same time for every T",
            f"{N} layers of {layer}, and 2 for masks, at every T",
            _each([a[0] for a in fixed]),
            all(a[0] == N * layer + 2 for a in fixed),
        ),
        Claim(
            "a CNN down to one place: ceil(log2 T) layers",
            f"{layer} for each halving",
            _each([(a[0] - 2) / tree(T) for a, T in zip(to_one, lengths, strict=True)]),
            all(a[0] == layer * tree(T) + 2 for a, T in zip(to_one, lengths, strict=True)),
        ),
        Claim(
            "attention grows with log T: maximum, normaliser and mix are trees over T",
            "3 for each doubling of T",
            _each([(a[0] - seen[0][0]) / (tree(T) - tree(lengths[0])) for a, T in grown if tree(T) > tree(lengths[0])]),
            all(a[0] == attention_depth(T, D, H) for a, T in grown),
        ),
        Claim(
            "and with log D: projections and scores are trees over D and K",
            "3 for each doubling of D",
            _each([b - a for a, b in pairwise(wider)]),
            all(b - a == 3 for a, b in pairwise(wider)),
        ),
        Claim(
            "the work of attention is 4 T D^2 + 2 T^2 D all the same",
            f"{4 * lengths[-1] * D * D + 2 * lengths[-1] ** 2 * D:,} multiplications at T = {lengths[-1]}",
            f"{seen[-1][1]:,}",
            all(a[1] == 4 * T * D * D + 2 * T * T * D for a, T in zip(seen, lengths, strict=True)),
        ),
    )  # fmt: skip
    kinds = {
        "LSTM": rnn,
        f"LSTM, {N} layers": stacked,
        f"CNN, {N} layers": fixed,
        "CNN to one place": to_one,
        "attention": seen,
    }
    tables = tuple(
        Table(
            title,
            ("T", *kinds),
            tuple((T, *(of[n][column] for of in kinds.values())) for n, T in enumerate(lengths)),
        )
        for column, title in enumerate(
            (
                f"Depth: steps one after another (D = {D}, H = {H}, R = {R})",
                "Work: multiplications in matrix products",
            )
        )
    )
    return Report(claims, tables, _figure(lengths, kinds))


def lstm(length: int, width: int) -> tuple[int, int]:
    """Depth and multiplications of `cells.lstm_forward` over inputs as wide as the cell."""
    weights = {
        name: torch.randn(shape) / shape[-1] ** 0.5
        for name, shape in cells.lstm_shapes(width, width, OUTPUTS).items()
    }
    x = torch.randn(1, length, width)
    with Trace() as trace:
        y, _ = cells.lstm_forward(weights, x)
    return trace.depth(y), trace.products


def stacked_lstm(length: int, width: int, layers: int) -> tuple[int, int]:
    """The top state of the last place. Each layer goes on as soon as the place below it is
    there."""
    shapes = cells.lstm_shapes(width, width, OUTPUTS)
    weights = [
        {name: torch.randn(shape) / shape[-1] ** 0.5 for name, shape in shapes.items()}
        for _ in range(layers)
    ]
    x, a, c = (
        torch.randn(1, length, width),
        [torch.zeros(1, width)] * layers,
        [torch.zeros(1, width)] * layers,
    )
    with Trace() as trace:
        for t in range(length):
            below = x[:, t]
            for n in range(layers):
                step = cells.lstm_step(weights[n], below, a[n], c[n])
                below, a[n], c[n] = step.a, step.a, step.c
    return trace.depth(a[-1]), trace.products


def cnn(length: int, width: int, kernel_size: int, layers: int) -> tuple[int, int]:
    """The states that a ConvolutionEncoder leaves."""
    encoder = ConvolutionEncoder(
        inputs=width, width=width, layers=layers, kernel_size=kernel_size
    ).eval()
    source = Source(torch.randn(1, length, width), torch.ones(1, length, dtype=torch.bool))
    with Trace() as trace:
        memory = encoder(source)
    return trace.depth(memory.states), trace.products


def attention(length: int, width: int, heads: int) -> tuple[int, int]:
    """Self-attention with its four projections and explicit weights."""
    x = torch.randn(1, length, width)
    w_q, w_k, w_v, w_o = (torch.randn(width, width) / width**0.5 for _ in range(4))

    def split(of: Tensor) -> Tensor:
        return of.unflatten(-1, (heads, -1)).transpose(1, 2)  # (B, H, T, K)

    with Trace() as trace:
        weights = weights_unchecked(split(x @ w_q), split(x @ w_k))
        y = (weights @ split(x @ w_v)).transpose(1, 2).flatten(2) @ w_o
    return trace.depth(y), trace.products


def attention_depth(length: int, width: int, heads: int) -> int:
    """The formula of the docstring.

    >>> attention_depth(8, 16, 2)
    28
    """
    return 3 * tree(length) + 2 * tree(width) + tree(width // heads) + 8


def _line(
    text: str, lengths: tuple[int, ...], measured: list[tuple[int, int]], slope: int, unit: str
) -> Claim:
    """That depth rises by exactly `slope` for each of T."""
    slopes = [
        (b[0] - a[0]) / (t - s) for (s, a), (t, b) in pairwise(zip(lengths, measured, strict=True))
    ]
    return Claim(
        text, f"{slope} steps for each {unit}", _each(slopes), all(each == slope for each in slopes)
    )


def _each(values: list[float]) -> str:
    """Values of which one is enough if they are all the same."""
    shown = [f"{value:g}" for value in dict.fromkeys(values)]
    return (
        f"{shown[0]}, always"
        if len(shown) == 1
        else ", ".join(shown) or "nothing: no doubling among these"
    )


def _figure(lengths: tuple[int, ...], kinds: dict[str, list[tuple[int, int]]]) -> Figure:
    sheet = experiment.figure(11, 4.4)
    left, right = sheet.subplots(1, 2)
    for axes, column, label in ((left, 0, "depth"), (right, 1, "multiplications")):
        for (name, of), colour, marker in zip(
            kinds.items(), (RED, ORANGE, GREEN, PURPLE, BLUE), "osD^v", strict=True
        ):
            axes.plot(
                lengths,
                [each[column] for each in of],
                color=colour,
                marker=marker,
                markersize=5,
                label=name,
            )
        axes.set_xscale("log", base=2)
        axes.set(yscale="log", xlabel="T, places", ylabel=label)
    left.set(title="time with a processor for every number")
    right.set(title="work")
    left.legend(frameon=False)
    return sheet
