"""Positional encodings act at one of three points: added to the input once, rotating q and k in
every layer, or added to the scores in every layer.

Self-attention without them cannot tell the order of its inputs. With theta_j =
10000^(-2j/D):

    sinusoidal   x_t + p(t),   p(t)_2j = sin(t theta_j),   p(t)_2j+1 = cos(t theta_j)
    learned      x_t + e[t]
    rotary       each pair (x1, x2) of q and k at position t is rotated by t theta_j:
                 (x1 cos t theta_j - x2 sin t theta_j, x1 sin t theta_j + x2 cos t theta_j)
    alibi        q_i . k_j / sqrt(K) - m_h |i - j|,   m_h = 2^(-8h/H)
    relative     q_i . k_j / sqrt(K) + b_h[clip(j - i)]

Rotary positions must be applied in every layer. If only the first layer rotates q and k, the layers
above it do not depend on order. If only the input is rotated, W^q and W^k mix the rotated pairs,
and the scores depend on absolute positions instead of distances.

The last table is about extrapolation: for each kind a small model is trained at one length to name
the last letter before each position, and tested at longer lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Self

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.errors import InputError
from regard.lab import experiment
from regard.lab.experiment import COLOURS, Claim, Report, Table, zero
from regard.layers.attention import attend
from regard.layers.multihead import MultiHead
from regard.layers.positions import (
    Alibi,
    Learned,
    NoPositions,
    Positions,
    Relative,
    Rotary,
    Sinusoidal,
    alibi,
    alibi_slopes,
    rotary,
    rotary_phases,
    sinusoidal,
)
from regard.pages.formulas import Formula

KINDS = {  # operation, and where it is applied
    "none": ("nothing", "-"),
    "sinusoidal": ("adds sines and cosines", "the input, once"),
    "learned": ("adds a learned vector", "the input, once"),
    "rotary": ("rotates pairs by the position", "q and k, every layer"),
    "alibi": ("subtracts slope x distance", "the scores, every layer"),
    "relative": ("adds a learned number per distance", "the scores, every layer"),
}
TOKENS = (
    (1.0, 2.0, 3.0, 4.0),
    (0.5, -1.0, 2.0, 0.0),
    (-1.5, 0.25, 1.0, -2.0),
    (3.0, 1.0, -1.0, 0.5),
)
DISTANCES = (0, 1, 2, 4, 8, 16, 32, 64)
SHIFT = 1000  # added to all positions
ROTATED = ("every layer", "the first layer", "the input")

ALSO = (
    "rotary",
    "rope",
    "alibi",
    "sinusoidal",
    "position",
    "extrapolation",
)  # synonyms of the name

# One group for each block of formulas in the docstring.
FORMULAS = (
    (
        Formula(
            r"x_t + p(t), \quad p(t)_{2j} = \sin(t \theta_j), \quad p(t)_{2j+1} = \cos(t \theta_j)",
            "Sinusoidal: added to the input.",
        ),
        Formula(
            "x_t + e[t]",
            "Learned: added to the input.",
        ),
        Formula(
            r"(x_1 \cos t \theta_j - x_2 \sin t \theta_j, \; "
            r"\allowbreak x_1 \sin t \theta_j + x_2 \cos t \theta_j)",
            "Rotary: each pair (x_1, x_2) of q and k at position t is rotated by t θ_j.",
        ),
        Formula(
            r"\frac{q_i \cdot k_j}{\sqrt{K}} - m_h |i - j|, \quad m_h = 2^{-8h/H}",
            "ALiBi: a penalty on distance, with a slope for each head.",
        ),
        Formula(
            r"\frac{q_i \cdot k_j}{\sqrt{K}} + b_h[\operatorname{clip}(j - i)]",
            "Relative: a learned bias for each distance.",
        ),
    ),
)


class Settings(experiment.Settings):
    width: Annotated[int, Field(ge=4, le=128)] = 32
    """D, the width of the models."""
    heads: Annotated[int, Field(ge=1, le=16)] = 4
    """H, the number of heads."""
    layers: Annotated[int, Field(ge=2, le=8)] = 3
    """N, the number of layers of the stack in which rotary positions are applied."""
    length: Annotated[int, Field(ge=4, le=64)] = 16
    """The training length; models are tested at 1, 2, 4 and 8 times this length."""
    letters: Annotated[int, Field(ge=2, le=26)] = 4
    """The number of different letters."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.2
    """The share of positions that hold a letter; the others are blank."""
    steps: Annotated[int, Field(ge=1, le=5000)] = 150
    """Training steps for each kind, with batches of 64 sequences."""

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if self.width % (2 * self.heads):
            raise ValueError(
                "width must be a multiple of 2 heads; "
                f"got width = {self.width}, heads = {self.heads}"
            )
        return self


def run(settings: Settings) -> Report:
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        claims, tables = exact(settings)
        scores, relative = trained(settings)
    lengths = [settings.length * times for times in (1, 2, 4, 8)]
    tables.append(
        Table(
            f"accuracy, trained at length {settings.length}",
            ("kind", *(f"length {length}" for length in lengths)),
            tuple(
                (kind, *("refused" if score is None else score for score in row))
                for kind, row in scores.items()
            ),
        )
    )
    return Report(
        (*claims, *extrapolation(scores)),
        tuple(tables),
        _figure(settings, scores, relative, lengths),
    )


# ------------------------------------------------------------------------------- exact properties


def exact(settings: Settings) -> tuple[list[Claim], list[Table]]:
    """The claims and tables that need no training."""
    D = settings.width
    H = settings.heads
    N = settings.layers
    K = D // H
    T = 4 * settings.length
    places = torch.arange(T)

    q, k = rand(T, K), rand(T, K)
    scores = rotary(q, places) @ rotary(k, places).T
    shifted_scores = rotary(q, places + SHIFT) @ rotary(k, places + SHIFT).T
    slopes = alibi_slopes(H).double()
    bias = alibi(places, places, slopes)
    step_errors = {kind: stepped(positions, T) for kind, positions in kinds(settings, T).items()}
    stacks = {where: once(where, settings) for where in ROTATED}
    shift_changes = {where: change for where, (change, _) in stacks.items()}
    ordered = {where: f"{layers} of {N}" for where, (_, layers) in stacks.items()}
    rotations = counted(N, settings)
    example, example_error = worked()
    claims = [
        zero(
            "sinusoidal: p(t) . p(t + d) = sum_j cos(d theta_j), for every t",
            _sinusoidal_error(places, D),
            1e-4,
        ),
        zero(
            "rotary: the example, four tokens at positions 1..4, equals the formula", example_error
        ),
        zero(
            f"rotary: scores depend on distances only: shifted by {SHIFT}, they are the same",
            (shifted_scores - scores).abs().max().item(),
        ),
        zero(
            "alibi: the bias of distance 0 is 0",
            bias.diagonal(dim1=1, dim2=2).abs().max().item(),
        ),
        Claim(
            f"rotary: q and k are rotated in each of {N} layers, not once",
            f"{2 * N} rotations",
            f"{rotations} rotations",
            rotations == 2 * N,
        ),
        zero(
            f"rotary in every layer: shifting all positions by {SHIFT} does not change the output",
            shift_changes["every layer"],
        ),
        Claim(
            "rotary in the first layer only: the other layers do not depend on order",
            f"1 of {N} depend on it, against {N} of {N}",
            f"{ordered['the first layer']}, against {ordered['every layer']}",
            (stacks["the first layer"][1], stacks["every layer"][1]) == (1, N),
        ),
        Claim(
            "rotary at the input only: the output depends on absolute positions",
            "changes by more than 0.001",
            f"{shift_changes['the input']:.2g}",
            shift_changes["the input"] > 1e-3,
        ),
        zero(
            "every kind: decoding step by step with cached keys gives the parallel output",
            max(step_errors.values()),
        ),
    ]
    tables = [
        Table(
            "Kinds of positional encodings",
            ("kind", "operation", "applied to", "parameters", "step by step - parallel"),
            tuple(
                (
                    kind,
                    *KINDS[kind],
                    sum(parameter.numel() for parameter in positions.parameters()),
                    round(step_errors[kind], 9),
                )
                for kind, positions in kinds(settings, T).items()
            ),
        ),
        Table(
            "Rotary example: theta_1 = 1, theta_2 = 0.01",
            ("position", "x1", "x2", "x3", "x4", "x1'", "x2'", "x3'", "x4'"),
            tuple(
                (place, *x, *y)
                for place, (x, y) in enumerate(zip(TOKENS, example.tolist(), strict=True), 1)
            ),
        ),
        Table(
            "Effect of distance alone on a score",
            (
                "distance",
                "sinusoidal p . p",
                "rotary of 1 . 1",
                *(f"alibi, slope {m:g}" for m in slopes.tolist()),
            ),
            tuple(
                (
                    d,
                    rotary_phases(torch.tensor(d), D).real.sum().item(),
                    2 * rotary_phases(torch.tensor(d), K).real.sum().item(),
                    *(0.0 - m * d for m in slopes.tolist()),
                )
                for d in DISTANCES
            ),
        ),
        Table(
            f"Rotary in a stack of {N} layers",
            (
                "applied in",
                f"change of the output, positions shifted by {SHIFT:,}",
                "layers that depend on order",
            ),
            tuple((where, round(shift_changes[where], 9), ordered[where]) for where in ROTATED),
        ),
    ]
    return claims, tables


def _sinusoidal_error(places: Tensor, width: int) -> float:
    """The largest error of p(t) . p(t + d) = sum_j cos(d theta_j), at t = 0 and t = SHIFT."""
    expected = rotary_phases(places, width).real.sum(-1)
    errors = []
    for start in (0, SHIFT):
        table = sinusoidal(places + start, width)
        products = (table[:1] @ table.T)[0]
        errors.append((products - expected).abs().max().item())
    return max(errors)


def rand(*shape: int) -> Tensor:
    """Normal random numbers in float64."""
    return torch.randn(*shape, dtype=torch.float64)


def kinds(settings: Settings, longest: int) -> dict[str, Positions]:
    """One module of each kind, for sequences of at most `longest` positions."""
    width = settings.width
    heads = settings.heads
    return {
        "none": NoPositions(),
        "sinusoidal": Sinusoidal(width=width),
        "learned": Learned(width=width, num_positions=longest),
        "rotary": Rotary(head_width=width // heads),
        "alibi": Alibi(heads=heads),
        "relative": Relative(heads=heads, max_distance=settings.length - 1),
    }


def worked() -> tuple[Tensor, float]:
    """The rotated tokens (4, 4), and their largest difference from the formula written out."""
    x = torch.tensor(TOKENS, dtype=torch.float64)
    places = torch.arange(1, 5)
    angles = places[:, None] * torch.tensor([1.0, 0.01], dtype=torch.float64)
    cos, sin = angles.cos(), angles.sin()
    x1, x2 = x[:, 0::2], x[:, 1::2]
    by_hand = torch.stack([x1 * cos - x2 * sin, x1 * sin + x2 * cos], dim=-1).flatten(1)
    rotated = rotary(x, places)
    return rotated, (rotated - by_hand).abs().max().item()


def stepped(positions: Positions, length: int) -> float:
    """The largest difference between `length` decoding steps and one parallel forward pass."""
    heads = positions.heads or 2
    width = positions.width or heads * (positions.head_width or 8)
    layer = MultiHead(width=width, heads=heads, positions=positions).double()
    x = rand(2, length, width)
    with torch.no_grad():
        state = layer.start(rows=2)
        outputs = []
        for x_t in x.unbind(1):
            output, state = layer.step(x_t, state)
            outputs.append(output)
        return (torch.stack(outputs, dim=1) - layer(x, causal=True)).abs().max().item()


def once(where: str, settings: Settings) -> tuple[float, int]:
    """A stack of self-attention layers with rotary positions applied in one of three ways.

    Returns how much its output changes when all positions shift, and how many of its layers depend
    on order (are not permutation-equivariant).
    """
    D = settings.width
    T = settings.length
    N = settings.layers
    matrices = rand(N, 3, D, D) / D**0.5
    permutation = torch.randperm(T)
    x = rand(T, D)
    places = torch.arange(T)

    def layer(n: int, x: Tensor, places: Tensor) -> Tensor:
        q, k, v = (x @ matrix for matrix in matrices[n])
        if where == "every layer" or (where == "the first layer" and n == 0):
            q, k = rotary(q, places), rotary(k, places)
        return x + attend(q, k, v)

    def stack(places: Tensor) -> Tensor:
        y = rotary(x, places) if where == "the input" else x
        for n in range(N):
            y = layer(n, y, places)
        return y

    change = (stack(places + SHIFT) - stack(places)).abs().max().item()
    ordered = 0
    for n in range(N):
        difference = layer(n, x[permutation], places) - layer(n, x, places)[permutation]
        ordered += difference.abs().max().item() > 1e-6
    return change, ordered


def counted(layers: int, settings: Settings) -> int:
    """The number of rotations in one forward pass through a stack of layers."""
    count = 0

    class Counted(Rotary):
        def rotation(self, places: Tensor | int) -> Callable[[Tensor], Tensor]:
            rotate = super().rotation(places)

            def counting(x: Tensor) -> Tensor:
                nonlocal count
                count += 1
                return rotate(x)

            return counting

    positions = Counted(head_width=settings.width // settings.heads)
    x = torch.randn(1, 5, settings.width)
    for _ in range(layers):
        x = MultiHead(width=settings.width, heads=settings.heads, positions=positions)(x)
    return count


# ---------------------------------------------------------------------------------- extrapolation


class Tiny(nn.Module):
    """One Transformer layer (self-attention, feed-forward) that predicts a letter per position."""

    def __init__(self, positions: Positions, *, width: int, heads: int, letters: int):
        super().__init__()
        adds = positions.width is not None  # to the input, not in the layer
        self.embedding = nn.Embedding(letters + 1, width)
        self.positions = positions
        self.norm = nn.LayerNorm(width)
        self.self_attention = MultiHead(
            width=width, heads=heads, positions=None if adds else positions
        )
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )
        self.out = nn.Linear(width, letters)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.positions.add(self.embedding(tokens), torch.arange(tokens.shape[1]))
        x = x + self.self_attention(self.norm(x))
        return self.out(x + self.feed_forward(x))


def lines(
    rows: int, length: int, settings: Settings, draws: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Random sequences of blanks (0) and letters (1..) that start with a letter, and as targets the
    last letter up to each position."""
    letters = torch.randint(1, settings.letters + 1, (rows, length), generator=draws)
    tokens = letters * (torch.rand(rows, length, generator=draws) < settings.share)
    tokens[:, 0] = letters[:, 0]
    last = torch.where(tokens > 0, torch.arange(length), 0).cummax(1).values
    return tokens, tokens.gather(1, last) - 1


def trained(settings: Settings) -> tuple[dict[str, list[float | None]], Tensor]:
    """The accuracy of each kind at 1, 2, 4 and 8 times the training length (None: refused), and the
    learned biases of `relative` (H, distances)."""
    scores: dict[str, list[float | None]] = {}
    table = torch.zeros(())
    for number, kind in enumerate(KINDS):
        torch.manual_seed(settings.seed)
        positions = kinds(settings, settings.length)[kind]
        model = Tiny(
            positions, width=settings.width, heads=settings.heads, letters=settings.letters
        )
        draws = torch.Generator().manual_seed(settings.seed)
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
        for step in range(settings.steps):
            experiment.progress(
                f"training with {kind}", number * settings.steps + step, len(KINDS) * settings.steps
            )
            tokens, last = lines(64, settings.length, settings, draws)
            optimiser.zero_grad()
            F.cross_entropy(model(tokens).flatten(0, 1), last.flatten()).backward()
            optimiser.step()
        scores[kind] = [_score(model, settings.length * times, settings) for times in (1, 2, 4, 8)]
        if isinstance(positions, Relative):
            table = positions.table.detach()
    return scores, table


@torch.no_grad()
def _score(model: Tiny, length: int, settings: Settings) -> float | None:
    """The accuracy over the last positions, half the training length; None if `model` refuses."""
    tokens, last = lines(
        max(8, 16384 // length),
        length,
        settings,
        torch.Generator().manual_seed(settings.seed + length),
    )
    try:
        correct = model(tokens).argmax(-1) == last
    except InputError:
        return None
    return correct[:, -(settings.length // 2) :].double().mean().item()


def extrapolation(scores: dict[str, list[float | None]]) -> tuple[Claim, ...]:
    """The claims about accuracy beyond the training length."""

    def loss(kind: str, column: int) -> float:
        """The loss of accuracy at 2, 4 or 8 times the training length."""
        trained, longer = scores[kind][0], scores[kind][column]
        return 1.0 if trained is None or longer is None else trained - longer

    none = scores["none"][0] or 0.0
    others = [row[0] or 0.0 for kind, row in scores.items() if kind != "none"]
    refused = scores["learned"][1:] == [None] * 3
    return (
        Claim(
            "at the training length every kind is more accurate than none",
            f"above {none:.3f}",
            f"at least {min(others):.3f}",
            min(others) > none + 0.05,
        ),
        Claim(
            "learned positions do not exist beyond the training length",
            "refused",
            "refused" if refused else "answered",
            refused,
        ),
        Claim(
            "sinusoidal positions do not extrapolate: at 2 times the training length",
            "loses more than 0.2",
            f"loses {loss('sinusoidal', 1):.3f}",
            loss("sinusoidal", 1) > 0.2,
        ),
        Claim(
            "rotary positions extrapolate a little: at 2 and 8 times the training length",
            "loses under 0.1, then over 0.15",
            f"loses {loss('rotary', 1):.3f}, then {loss('rotary', 3):.3f}",
            loss("rotary", 1) < 0.1 and loss("rotary", 3) > 0.15,
        ),
        Claim(
            "alibi extrapolates: at 8 times the training length",
            "loses under 0.05",
            f"loses {loss('alibi', 3):.3f}",
            loss("alibi", 3) < 0.05,
        ),
        Claim(
            "relative positions, with clipped distances, lose less than rotary: at 8 times the "
            "training length",
            f"loses less than {loss('rotary', 3):.3f}",
            f"loses {loss('relative', 3):.3f}",
            loss("relative", 3) < loss("rotary", 3),
        ),
    )


def _figure(
    settings: Settings, scores: dict[str, list[float | None]], relative: Tensor, lengths: list[int]
) -> Figure:
    sheet = experiment.figure(13, 7.5)
    (wave, distance, rotation), (slope, number, length) = sheet.subplots(2, 3)
    D = settings.width
    K = D // settings.heads
    T = 4 * settings.length
    places = torch.arange(T)
    image = wave.imshow(
        sinusoidal(places, D).T.numpy(), cmap="RdBu", aspect="auto", vmin=-1, vmax=1
    )
    wave.set(title="sinusoidal: p(t)", xlabel="position t", ylabel="component")
    sheet.colorbar(image, ax=wave)
    distance.plot(
        (rotary_phases(places, D).real.sum(-1) / (D / 2)).tolist(),
        color=COLOURS[1],
        label=f"sinusoidal, D = {D}",
    )
    distance.plot(
        (rotary_phases(places, K).real.sum(-1) / (K / 2)).tolist(),
        color=COLOURS[2],
        label=f"rotary, K = {K}",
    )
    distance.set(
        title="score of a vector with itself, shifted",
        xlabel="distance",
        ylabel="relative to distance 0",
    )
    distance.legend(frameon=False)
    pair = rotary(torch.tensor([[1.0, 0.0, 1.0, 0.0]]).repeat(9, 1), torch.arange(9))
    for x, y in pair[:, :2].tolist():
        rotation.annotate("", (x, y), (0, 0), arrowprops={"arrowstyle": "->", "color": COLOURS[2]})
    for place, (x, y) in enumerate(pair[:, :2].tolist()):
        rotation.text(1.12 * x, 1.12 * y, str(place), ha="center", va="center")
    rotation.set(
        title="rotary: the first pair at positions 0..8",
        xlim=(-1.3, 1.3),
        ylim=(-1.3, 1.3),
        aspect="equal",
    )
    for h, m in enumerate(alibi_slopes(settings.heads).tolist()):
        slope.plot([-m * place for place in range(T)], color=COLOURS[1 + h % 6], label=f"m = {m:g}")
    slope.set(title="alibi: bias of the scores", xlabel="distance")
    max_distance = (relative.shape[-1] - 1) // 2
    for h, row in enumerate(relative.tolist()):
        number.plot(
            range(-max_distance, 1),
            row[: max_distance + 1],
            color=COLOURS[1 + h % 6],
            label=f"head {h + 1}",
        )
    number.set(title="relative: learned bias of the scores", xlabel="key - query")
    for colour, (kind, row) in zip(COLOURS, scores.items(), strict=False):
        points = [(at, score) for at, score in zip(lengths, row, strict=True) if score is not None]
        length.plot(*zip(*points, strict=True), "o-", color=colour, label=kind)
    length.set(
        title=f"trained at length {settings.length}",
        xlabel="test length",
        ylabel="accuracy",
        ylim=(0, 1.02),
    )
    length.set_xscale("log", base=2)
    length.set_xticks(lengths, [str(at) for at in lengths])
    for axes in (slope, number, length):
        axes.legend(frameon=False, fontsize="small")
    return sheet
