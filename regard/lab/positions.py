"""Positions enter attention in three places: added once at the input, turning q and k in every
layer, or on the scores.

Attention without positions sees a bag of words. Each kind puts the order in at one place:

    sinusoidal   x_t + p(t),  p(t)_2j = sin(t theta_j), p(t)_2j+1 = cos(t theta_j),  theta_j = 10000^(-2j/D)
    learned      x_t + e[t]
    rotary       (x1, x2) -> (x1 cos t theta_j - x2 sin t theta_j, x1 sin t theta_j + x2 cos t theta_j)   of q and k
    alibi        q_i . k_j / sqrt(K) - m_h |i - j|,   m_h = 2^(-8h/H)
    relative     q_i . k_j / sqrt(K) + b_h[clip(j - i)]

Rotary is not applied once. Turned only in the first layer, the layers above see no order; turned
only at the input, W^q and W^k mix the pairs afterwards and the scores depend on where the text
stands, not on distances.

Last, a small model a kind learns at one length to name the last letter it saw, and is asked at
longer ones.
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

KINDS = {  # what it does, and where
    "none": ("nothing", "-"),
    "sinusoidal": ("adds fixed waves", "the input, once"),
    "learned": ("adds a learned vector", "the input, once"),
    "rotary": ("turns pairs by the place", "q and k, every layer"),
    "alibi": ("subtracts slope x distance", "the scores, every layer"),
    "relative": ("adds a learned number a distance", "the scores, every layer"),
}
TOKENS = (
    (1.0, 2.0, 3.0, 4.0),
    (0.5, -1.0, 2.0, 0.0),
    (-1.5, 0.25, 1.0, -2.0),
    (3.0, 1.0, -1.0, 0.5),
)
DISTANCES = (0, 1, 2, 4, 8, 16, 32, 64)
TURNED = ("every layer", "the first layer", "the input")

ALSO = (
    "rotary",
    "rope",
    "alibi",
    "sinusoidal",
    "position",
    "extrapolation",
)  # what else people call it


class Settings(experiment.Settings):
    width: Annotated[int, Field(ge=4, le=128)] = 32
    """D, the width of the models."""
    heads: Annotated[int, Field(ge=1, le=16)] = 4
    """H, their heads."""
    layers: Annotated[int, Field(ge=2, le=8)] = 3
    """Layers of the stack that is turned once, or in every layer."""
    length: Annotated[int, Field(ge=4, le=64)] = 16
    """The length that the models learn at; they are asked at 1, 2, 4 and 8 times that."""
    letters: Annotated[int, Field(ge=2, le=26)] = 4
    """Different letters among the blanks."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.2
    """The share of places that hold a letter."""
    steps: Annotated[int, Field(ge=1, le=5000)] = 150
    """Steps that each kind learns for, 64 lines a step."""

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width must be a multiple of 2 heads; got width = {self.width}, heads = {self.heads}"
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
            f"share of letters named, learned at length {settings.length}",
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


# ---- what holds exactly


def exact(settings: Settings) -> tuple[list[Claim], list[Table]]:
    D, H, N = settings.width, settings.heads, settings.layers
    K, T = D // H, 4 * settings.length
    places, far = torch.arange(T), 1000
    table, moved = sinusoidal(places, D), sinusoidal(places + far, D)
    q, k = rand(T, K), rand(T, K)
    scores = rotary(q, places) @ rotary(k, places).T
    away = rotary(q, places + far) @ rotary(k, places + far).T
    slopes = alibi_slopes(H).double()
    bias = alibi(places, places, slopes)
    cached = {kind: stepped(made, T) for kind, made in kinds(settings, T).items()}
    stacks = {where: once(where, settings) for where in TURNED}
    seen = {where: f"{sees} of {N}" for where, (_, sees) in stacks.items()}
    turns = counted(N, settings)
    claims = [
        zero("sinusoidal: p(t) . p(t + d) = sum_j cos(d theta_j), whatever t",
             max(((t[:1] @ t.T)[0] - rotary_phases(places, D).real.sum(-1)).abs().max().item() for t in (table, moved)), 1e-4),
        zero("rotary: the worked table, four tokens at places 1..4, is the formula", worked()[1]),
        zero(f"rotary: scores depend on the distance only: {far} places further they are the same",
             (away - scores).abs().max().item()),
        zero("alibi: nothing is subtracted from a place's own score", bias.diagonal(dim1=1, dim2=2).abs().max().item()),
        Claim(f"rotary turns q and k in each of {N} layers, not once", f"{2 * N} turns", f"{turns} turns",
              turns == 2 * N),
        zero("rotary in every layer: the text moved, the output does not", stacks["every layer"][0]),
        Claim("rotary in the first layer only: the others are blind to order", f"1 of {N} see it, against {N} of {N}",
              f"{seen['the first layer']}, against {seen['every layer']}",
              (stacks["the first layer"][1], stacks["every layer"][1]) == (1, N)),
        Claim("rotary at the input only: the output depends on where the text stands", "changes by more than 0.001",
              f"{stacks['the input'][0]:.2g}", stacks["the input"][0] > 1e-3),
        zero("every kind: step by step with cached keys is all at once", max(cached.values())),
    ]  # fmt: skip
    tables = [
        Table(
            "kinds of positions",
            ("kind", "does", "where", "learned numbers", "cached - whole"),
            tuple(
                (kind, *KINDS[kind], sum(p.numel() for p in made.parameters()), round(cached[kind], 9))
                for kind, made in kinds(settings, T).items()
            ),
        ),
        Table(
            "rotary, worked: theta_1 = 1, theta_2 = 0.01",
            ("place", "x1", "x2", "x3", "x4", "x1'", "x2'", "x3'", "x4'"),
            tuple((place, *x, *y) for place, (x, y) in enumerate(zip(TOKENS, worked()[0].tolist(), strict=True), 1)),
        ),
        Table(
            "what distance alone does to a score",
            ("distance", "sinusoidal p . p", "rotary of 1 . 1", *(f"alibi, slope {m:g}" for m in slopes.tolist())),
            tuple(
                (d, rotary_phases(torch.tensor(d), D).real.sum().item(), 2 * rotary_phases(torch.tensor(d), K).real.sum().item(),
                 *(0.0 - m * d for m in slopes.tolist()))
                for d in DISTANCES
            ),
        ),
        Table(
            f"rotary in a stack of {N} layers",
            ("turned in", "text moved by 1,000: output changes by", "layers that see order"),
            tuple((where, round(stacks[where][0], 9), seen[where]) for where in TURNED),
        ),
    ]  # fmt: skip
    return claims, tables


def rand(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def kinds(settings: Settings, longest: int) -> dict[str, Positions]:
    width, heads = settings.width, settings.heads
    return {
        "none": NoPositions(),
        "sinusoidal": Sinusoidal(width=width),
        "learned": Learned(width=width, longest=longest),
        "rotary": Rotary(head_width=width // heads),
        "alibi": Alibi(heads=heads),
        "relative": Relative(heads=heads, max_distance=settings.length - 1),
    }


def worked() -> tuple[Tensor, float]:
    """The turned tokens (4, 4), and how far they are from the formula as it is written."""
    x, places = torch.tensor(TOKENS, dtype=torch.float64), torch.arange(1, 5)
    angles = places[:, None] * torch.tensor([1.0, 0.01], dtype=torch.float64)
    cos, sin, even, odd = angles.cos(), angles.sin(), x[:, 0::2], x[:, 1::2]
    by_hand = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(1)
    turned = rotary(x, places)
    return turned, (turned - by_hand).abs().max().item()


def stepped(positions: Positions, length: int) -> float:
    """The largest difference between `length` steps and all places at once."""
    heads = positions.heads or 2
    width = positions.width or heads * (positions.head_width or 8)
    layer = MultiHead(width=width, heads=heads, positions=positions).double()
    x = rand(2, length, width)
    with torch.no_grad():
        state, places = layer.start(rows=2), []
        for place in x.unbind(1):
            out, state = layer.step(place, state)
            places.append(out)
        return (torch.stack(places, dim=1) - layer(x, causal=True)).abs().max().item()


def once(where: str, settings: Settings) -> tuple[float, int]:
    """A stack of attention layers, turned in one of three ways: how much its output changes when
    the text stands 1,000 places further, and how many of its layers see order (their output is
    not just re-ordered with their input)."""
    D, T, N = settings.width, settings.length, settings.layers
    matrices, order = rand(N, 3, D, D) / D**0.5, torch.randperm(T)
    x, places = rand(T, D), torch.arange(T)

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

    apart = [
        (layer(n, x[order], places) - layer(n, x, places)[order]).abs().max().item()
        for n in range(N)
    ]
    return (stack(places + 1000) - stack(places)).abs().max().item(), sum(
        each > 1e-6 for each in apart
    )


def counted(layers: int, settings: Settings) -> int:
    """How often a stack of layers turns something in one forward pass."""
    count = 0

    class Counted(Rotary):
        def rotation(self, places: Tensor | int) -> Callable[[Tensor], Tensor]:
            turn = super().rotation(places)

            def counting(x: Tensor) -> Tensor:
                nonlocal count
                count += 1
                return turn(x)

            return counting

    positions, x = (
        Counted(head_width=settings.width // settings.heads),
        torch.randn(1, 5, settings.width),
    )
    for _ in range(layers):
        x = MultiHead(width=settings.width, heads=settings.heads, positions=positions)(x)
    return count


# ---- what a small model learns


class Tiny(nn.Module):
    """One layer of attention and one of thought, over blanks and letters."""

    def __init__(self, positions: Positions, *, width: int, heads: int, letters: int):
        super().__init__()
        adds = positions.width is not None  # then at the input, not in the layer
        self.embedding, self.positions = nn.Embedding(letters + 1, width), positions
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
    """Blanks (0) and letters (1..), the first place always a letter; and the last letter seen up
    to each place."""
    letters = torch.randint(1, settings.letters + 1, (rows, length), generator=draws)
    tokens = letters * (torch.rand(rows, length, generator=draws) < settings.share)
    tokens[:, 0] = letters[:, 0]
    last = torch.where(tokens > 0, torch.arange(length), 0).cummax(1).values
    return tokens, tokens.gather(1, last) - 1


def trained(settings: Settings) -> tuple[dict[str, list[float | None]], Tensor]:
    """For each kind the share of right answers at 1, 2, 4 and 8 times the length of training
    (None: refused), over the last half of a length; and the numbers that `relative` learned (H,
    distances)."""
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
    tokens, last = lines(
        max(8, 16384 // length),
        length,
        settings,
        torch.Generator().manual_seed(settings.seed + length),
    )
    try:
        right = model(tokens).argmax(-1) == last
    except InputError:
        return None
    return right[:, -(settings.length // 2) :].double().mean().item()


def extrapolation(scores: dict[str, list[float | None]]) -> tuple[Claim, ...]:
    def lost(kind: str, at: int) -> float:
        own, then = scores[kind][0], scores[kind][at]
        return 1.0 if own is None or then is None else own - then

    none, others = (
        scores["none"][0] or 0.0,
        [row[0] or 0.0 for kind, row in scores.items() if kind != "none"],
    )
    refused = scores["learned"][1:] == [None] * 3
    return (
        Claim("at the length of training every kind beats none", f"above {none:.3f}", f"at least {min(others):.3f}",
              min(others) > none + 0.05),
        Claim("learned positions end where training ended", "refused beyond", "refused" if refused else "answered",
              refused),
        Claim("sinusoidal positions it never met mislead it: at twice the length", "loses more than 0.2",
              f"loses {lost('sinusoidal', 1):.3f}", lost("sinusoidal", 1) > 0.2),
        Claim("rotary goes a little further, not far: at 2 and 8 times the length", "loses under 0.1, then over 0.15",
              f"loses {lost('rotary', 1):.3f}, then {lost('rotary', 3):.3f}",
              lost("rotary", 1) < 0.1 and lost("rotary", 3) > 0.15),
        Claim("alibi does not mind: at 8 times the length", "loses under 0.05", f"loses {lost('alibi', 3):.3f}",
              lost("alibi", 3) < 0.05),
        Claim("relative, its distances clipped, stays ahead of rotary: at 8 times the length",
              f"loses less than {lost('rotary', 3):.3f}", f"loses {lost('relative', 3):.3f}",
              lost("relative", 3) < lost("rotary", 3)),
    )  # fmt: skip


def _figure(
    settings: Settings, scores: dict[str, list[float | None]], relative: Tensor, lengths: list[int]
) -> Figure:
    sheet = experiment.figure(13, 7.5)
    (wave, distance, turn), (slope, number, length) = sheet.subplots(2, 3)
    D, K, T = settings.width, settings.width // settings.heads, 4 * settings.length
    places = torch.arange(T)
    image = wave.imshow(
        sinusoidal(places, D).T.numpy(), cmap="RdBu", aspect="auto", vmin=-1, vmax=1
    )
    wave.set(title="sinusoidal: what is added", xlabel="place", ylabel="number of the vector")
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
        title="score of a vector with itself, moved",
        xlabel="distance",
        ylabel="share of the score at 0",
    )
    distance.legend(frameon=False)
    pair = rotary(torch.tensor([[1.0, 0.0, 1.0, 0.0]]).repeat(9, 1), torch.arange(9))
    for x, y in pair[:, :2].tolist():
        turn.annotate("", (x, y), (0, 0), arrowprops={"arrowstyle": "->", "color": COLOURS[2]})
    for place, (x, y) in enumerate(pair[:, :2].tolist()):
        turn.text(1.12 * x, 1.12 * y, str(place), ha="center", va="center")
    turn.set(
        title="rotary: the first pair at places 0..8",
        xlim=(-1.3, 1.3),
        ylim=(-1.3, 1.3),
        aspect="equal",
    )
    for h, m in enumerate(alibi_slopes(settings.heads).tolist()):
        slope.plot([-m * place for place in range(T)], color=COLOURS[1 + h % 6], label=f"m = {m:g}")
    slope.set(title="alibi: what is added to the scores", xlabel="distance")
    reach = (relative.shape[-1] - 1) // 2
    for h, row in enumerate(relative.tolist()):
        number.plot(
            range(-reach, 1), row[: reach + 1], color=COLOURS[1 + h % 6], label=f"head {h + 1}"
        )
    number.set(title="relative: what was learned", xlabel="key - query")
    for colour, (kind, row) in zip(COLOURS, scores.items(), strict=False):
        shown = [(at, score) for at, score in zip(lengths, row, strict=True) if score is not None]
        length.plot(*zip(*shown, strict=True), "o-", color=colour, label=kind)
    length.set(
        title=f"learned at length {settings.length}, asked at",
        xlabel="length",
        ylabel="letters named",
        ylim=(0, 1.02),
    )
    length.set_xscale("log", base=2)
    length.set_xticks(lengths, [str(each) for each in lengths])
    for axes in (slope, number, length):
        axes.legend(frameon=False, fontsize="small")
    return sheet
