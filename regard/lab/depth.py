"""With unlimited processors an RNN takes time proportional to T, a CNN to its number of layers, and
self-attention to log T + log D.

Depth is the length of the longest chain of operations that depend on each other. The sum of n
numbers is a tree of height ceil(log2 n). The depth of each model is measured by tracing its forward
pass (regard/budget/trace.py), for the RNN step by step, and equals, with log = ceil(log2):

    LSTM             (7 + log(D + I)) T + log D + 2 log V + 5      each step depends on the last one
      N layers       (7 + log(D + D)) (T + N - 1)                  layer n runs n steps behind
    CNN, N layers    (4 + log(R D)) N + 2                          independent of T
      to length 1    N = log T layers                              stride 2, kernel size R
    self-attention   3 log T + 2 log D + log K + 8                 over T: maximum, sum, average

The number of multiplications stays the same: 4 T D^2 + 2 T^2 D for self-attention, 4 T D (D + I)
for an LSTM.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, NamedTuple, Self

import torch
from matplotlib.figure import Figure
from pydantic import Field, model_validator
from torch import Tensor

from regard.budget.trace import Trace, tree
from regard.encoders import ConvolutionEncoder
from regard.lab import cells, experiment
from regard.lab.experiment import BLUE, GREEN, ORANGE, PURPLE, RED, Claim, Report, Table
from regard.layers.attention import weights_unchecked
from regard.pages.formulas import Formula
from regard.values import Source

OUTPUTS = 2  # classes of the output layer of the LSTM

ALSO = ("parallel", "sequential", "steps")  # synonyms of the name

# One group for each block of formulas in the docstring.
FORMULAS = (
    (
        Formula(
            r"d = (7 + \log(D + I)) \, T + \log D + 2 \log V + 5",
            "The depth d of an LSTM: each step depends on the last one.",
        ),
        Formula(
            r"d = (7 + \log(D + D)) (T + N - 1)",
            "LSTM of N layers: layer n runs n steps behind.",
        ),
        Formula(
            r"d = (4 + \log(R D)) \, N + 2",
            "CNN of N layers with kernel size R: independent of T.",
        ),
        Formula(
            r"N = \log T",
            "CNN with stride 2: the number of layers down to length 1.",
        ),
        Formula(
            r"d = 3 \log T + 2 \log D + \log K + 8",
            "Self-attention: maximum, sum and average over T.",
        ),
    ),
)


class Settings(experiment.Settings):
    lengths: Annotated[tuple[Annotated[int, Field(ge=2, le=4096)], ...], Field(min_length=3)] = (
        4, 8, 16, 32, 64, 128, 256,
    )  # fmt: skip
    """T, the sequence lengths, ascending; for powers of 2 all trees are complete."""
    width: Annotated[int, Field(ge=1, le=512)] = 16
    """D, the width of inputs and states."""
    heads: Annotated[int, Field(ge=1, le=64)] = 2
    """H, the number of attention heads; must divide the width."""
    kernel_size: Annotated[int, Field(ge=2, le=64)] = 4
    """R, the kernel size of the CNN."""
    layers: Annotated[int, Field(ge=1, le=16)] = 3
    """N, the number of layers of the CNN of fixed depth and of the stacked LSTM."""

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
    D = settings.width
    H = settings.heads
    R = settings.kernel_size
    N = settings.layers
    lengths = settings.lengths

    rnn = [lstm(T, D) for T in lengths]
    stacked = [stacked_lstm(T, D, N) for T in lengths]
    fixed = [cnn(T, D, R, N) for T in lengths]
    to_one = [cnn(T, D, R, tree(T)) for T in lengths]
    self_attention = [attention(T, D, H) for T in lengths]
    wider = [attention(lengths[0], D * 2**n, H).depth for n in range(4)]

    step = 7 + tree(D + D)
    layer = 4 + tree(R * D)
    shortest = lengths[0]
    per_doubling = [
        (cost.depth - self_attention[0].depth) / (tree(T) - tree(shortest))
        for cost, T in zip(self_attention, lengths, strict=True)
        if tree(T) > tree(shortest)
    ]
    claims = (
        _line("the depth of an LSTM is linear in T", lengths, rnn, step, "step"),
        Claim(
            f"{N} stacked LSTMs: the depth of T + {N} - 1 steps, not of {N} T",
            f"{(N - 1) * step} more than one LSTM without its output layer, at every T",
            _distinct([cost.depth - step * T for cost, T in zip(stacked, lengths, strict=True)]),
            all(cost.depth == step * (T + N - 1) for cost, T in zip(stacked, lengths, strict=True)),
        ),
        Claim(
            f"the depth of a CNN with {N} layers does not depend on T",
            f"{N} layers of {layer}, and 2 for masks, at every T",
            _distinct([cost.depth for cost in fixed]),
            all(cost.depth == N * layer + 2 for cost in fixed),
        ),
        Claim(
            "a CNN that reduces the sequence to length 1 needs ceil(log2 T) layers",
            f"{layer} for each halving",
            _distinct(
                [(cost.depth - 2) / tree(T) for cost, T in zip(to_one, lengths, strict=True)]
            ),
            all(cost.depth == layer * tree(T) + 2 for cost, T in zip(to_one, lengths, strict=True)),
        ),
        Claim(
            "self-attention grows with log T: softmax's maximum and sum, and the weighted average",
            "3 for each doubling of T",
            _distinct(per_doubling),
            all(
                cost.depth == attention_depth(T, D, H)
                for cost, T in zip(self_attention, lengths, strict=True)
            ),
        ),
        Claim(
            "and with log D: projections and scores are sums over D and K",
            "3 for each doubling of D",
            _distinct([b - a for a, b in pairwise(wider)]),
            all(b - a == 3 for a, b in pairwise(wider)),
        ),
        Claim(
            "self-attention still takes 4 T D^2 + 2 T^2 D multiplications",
            f"{attention_products(lengths[-1], D):,} at T = {lengths[-1]}",
            f"{self_attention[-1].products:,}",
            all(
                cost.products == attention_products(T, D)
                for cost, T in zip(self_attention, lengths, strict=True)
            ),
        ),
    )
    models = {
        "LSTM": rnn,
        f"LSTM, {N} layers": stacked,
        f"CNN, {N} layers": fixed,
        "CNN to length 1": to_one,
        "self-attention": self_attention,
    }
    depths = Table(
        f"Depth: longest chain of dependent operations (D = {D}, H = {H}, R = {R})",
        ("T", *models),
        tuple((T, *(costs[n].depth for costs in models.values())) for n, T in enumerate(lengths)),
    )
    products = Table(
        "Work: multiplications in matrix products",
        ("T", *models),
        tuple(
            (T, *(costs[n].products for costs in models.values())) for n, T in enumerate(lengths)
        ),
    )
    return Report(claims, (depths, products), _figure(lengths, models))


class Cost(NamedTuple):
    """Depth and multiplications of one forward pass."""

    depth: int
    products: int


def lstm(length: int, width: int) -> Cost:
    """The cost of `cells.lstm_forward` for inputs as wide as the cell."""
    weights = {
        name: torch.randn(shape) / shape[-1] ** 0.5
        for name, shape in cells.lstm_shapes(width, width, OUTPUTS).items()
    }
    x = torch.randn(1, length, width)
    with Trace() as trace:
        y, _ = cells.lstm_forward(weights, x)
    return Cost(trace.depth(y), trace.products)


def stacked_lstm(length: int, width: int, layers: int) -> Cost:
    """The cost of the last state of the top layer.

    A step of a layer depends on its previous step and on the same step of the layer below.
    """
    shapes = cells.lstm_shapes(width, width, OUTPUTS)
    weights = [
        {name: torch.randn(shape) / shape[-1] ** 0.5 for name, shape in shapes.items()}
        for _ in range(layers)
    ]
    x = torch.randn(1, length, width)
    a = [torch.zeros(1, width)] * layers
    c = [torch.zeros(1, width)] * layers
    with Trace() as trace:
        for t in range(length):
            inputs = x[:, t]
            for n in range(layers):
                step = cells.lstm_step(weights[n], inputs, a[n], c[n])
                a[n] = step.a
                c[n] = step.c
                inputs = step.a  # of the next layer
    return Cost(trace.depth(a[-1]), trace.products)


def cnn(length: int, width: int, kernel_size: int, layers: int) -> Cost:
    """The cost of a ConvolutionEncoder."""
    encoder = ConvolutionEncoder(
        inputs=width, width=width, layers=layers, kernel_size=kernel_size
    ).eval()
    source = Source(torch.randn(1, length, width), torch.ones(1, length, dtype=torch.bool))
    with Trace() as trace:
        memory = encoder(source)
    return Cost(trace.depth(memory.states), trace.products)


def attention(length: int, width: int, heads: int) -> Cost:
    """The cost of multi-head self-attention with its four projections and explicit weights."""
    x = torch.randn(1, length, width)
    w_q, w_k, w_v, w_o = (torch.randn(width, width) / width**0.5 for _ in range(4))

    def split(projected: Tensor) -> Tensor:
        return projected.unflatten(-1, (heads, -1)).transpose(1, 2)  # (B, H, T, K)

    with Trace() as trace:
        weights = weights_unchecked(split(x @ w_q), split(x @ w_k))
        y = (weights @ split(x @ w_v)).transpose(1, 2).flatten(2) @ w_o
    return Cost(trace.depth(y), trace.products)


def attention_depth(length: int, width: int, heads: int) -> int:
    """The depth of self-attention by the formula above.

    >>> attention_depth(8, 16, 2)
    28
    """
    return 3 * tree(length) + 2 * tree(width) + tree(width // heads) + 8


def attention_products(length: int, width: int) -> int:
    """The multiplications of self-attention with its projections, 4 T D^2 + 2 T^2 D.

    >>> attention_products(8, 16)
    10240
    """
    return 4 * length * width**2 + 2 * length**2 * width


def _line(text: str, lengths: tuple[int, ...], costs: list[Cost], slope: int, unit: str) -> Claim:
    """A claim that depth rises by exactly `slope` per unit of T."""
    points = zip(lengths, [cost.depth for cost in costs], strict=True)
    slopes = [(depth_b - depth_a) / (b - a) for (a, depth_a), (b, depth_b) in pairwise(points)]
    return Claim(
        text,
        f"{slope} for each {unit}",
        _distinct(slopes),
        all(measured == slope for measured in slopes),
    )


def _distinct(values: list[float]) -> str:
    """The distinct values as text."""
    texts = [f"{value:g}" for value in dict.fromkeys(values)]
    if not texts:
        return "nothing: no doubling among these lengths"
    return f"{texts[0]}, always" if len(texts) == 1 else ", ".join(texts)


def _figure(lengths: tuple[int, ...], models: dict[str, list[Cost]]) -> Figure:
    sheet = experiment.figure(11, 4.4)
    left, right = sheet.subplots(1, 2)
    styles = zip(models.items(), (RED, ORANGE, GREEN, PURPLE, BLUE), "osD^v", strict=True)
    for (name, costs), colour, marker in styles:
        style = {"color": colour, "marker": marker, "markersize": 5, "label": name}
        left.plot(lengths, [cost.depth for cost in costs], **style)
        right.plot(lengths, [cost.products for cost in costs], **style)
    for axes, label in ((left, "depth"), (right, "multiplications")):
        axes.set_xscale("log", base=2)
        axes.set(yscale="log", xlabel="T, sequence length", ylabel=label)
    left.set(title="depth: time with unlimited processors")
    right.set(title="work")
    left.legend(frameon=False)
    return sheet
