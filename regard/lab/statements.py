"""Four statements often made about sequence models, and computed here: each of them is wrong.

"Jaccard similarity ignores how often a token comes", "cosine similarity ignores magnitude". The
textbook's do: Jaccard of sets, cosine of count vectors. As libraries score texts they do not, for
with I = sum_w min(#a_w, #b_w), the intersection of multisets, and |a|, |b| the lengths of the
texts:

    Jaccard = I / (|a| + |b| - I)            cosine = I / sqrt(|a| |b|)          (Ochiai's coefficient)

`aaab` against `ab` gives 0.5 and 0.7071, where sets give 1; a text against itself written twice
gives a cosine of 0.7071, where count vectors give 1.

"An LSTM decoder cannot see the whole encoder output." One with attention does: at every step,

    h_t = LSTM(h_{t-1}, e[w_t]);  a_t = softmax(score(h_t, M));  c_t = sum_s a_ts M_s;  logits_t = f(c_t, h_t)

so the gradient of every output with respect to every place M_s of the memory is non-zero. Without
attention it is 0.

"Rotary positions are applied once." They turn q and k in every layer, by R_t at place t. Then all
scores depend on distances only, and adding a number to all places changes nothing. Rotation the
input once, as sinusoidal positions are added once, does not have this law: x_t R_t W~ R_s^T x_s^T
is no function of t - s.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor

from regard.decoders import RecurrentDecoder
from regard.lab import experiment
from regard.lab.experiment import BLUE, ORANGE, Claim, Report, Table, clean, near, zero
from regard.layers.attention import attention_weights
from regard.layers.positions import rotary
from regard.values import Memory

VOCABULARY, PADDING, LAYERS, SHIFT = 11, 2, 2, 5

ALSO = ("myths", "mistakes", "folklore")  # what else people call it


class Settings(experiment.Settings):
    repeats: Annotated[int, Field(ge=2, le=1000)] = 3
    """How often the first text repeats its first letter: 3 compares aaab with ab."""
    attention: Literal["dot", "general", "additive"] = "general"
    """How the LSTM decoder scores the places of the memory."""
    memory: Annotated[int, Field(ge=1, le=64)] = 7
    """Places of the memory, besides two of padding."""
    steps: Annotated[int, Field(ge=1, le=32)] = 5
    """Tokens that the decoder reads, and places of the rotary layers."""
    width: Annotated[int, Field(ge=2, le=64, multiple_of=2)] = 8
    """Width of decoder and memory; even, because rotary positions turn pairs."""


def run(settings: Settings) -> Report:
    r = settings.repeats
    a, b = "a" * r + "b", "ab"
    shown = f"{a} against {b}" if r <= 8 else f"{r} times a, then b, against ab"
    seen, blind = (gradients(settings, attention) for attention in (settings.attention, "none"))
    real, padding = seen[:, : settings.memory], seen[:, settings.memory :]
    every, once = (shift_changes(settings, every_layer=each) for each in (True, False))
    claims = (
        near(f'"Jaccard ignores frequency": {shown} is not 1', expected=2 / (r + 1), measured=jaccard(a, b),
             within=1e-12),
        near("only the Jaccard of sets ignores it", expected=1, measured=jaccard(set(a), set(b)), within=1e-12),
        near(f'"cosine ignores magnitude": {shown} is not 1', expected=2 / math.sqrt(2 * (r + 1)),
             measured=cosine(a, b), within=1e-12),
        near("nor is a text against itself twice", expected=math.sqrt(1 / 2), measured=cosine(a, a + a), within=1e-12),
        near("only the cosine of count vectors is", expected=1, measured=count_cosine(a, a + a), within=1e-12),
        Claim(
            '"an LSTM decoder cannot see the whole encoder output": with attention every output sees every place',
            "every gradient above 0", f"{real.min().item():.1e} to {real.max().item():.1e}", real.min().item() > 0,
        ),
        zero("but not the padding", padding.max().item()),
        zero("without attention it sees none, only a summary", blind.max().item()),
        zero(f"rotary in every layer: moving all places by {SHIFT} does not move the last layer's look", every),
        Claim(
            '"rotary is applied once": turning the input once, it does', "a change above 0.001",
            f"{once:.3f}", once > 1e-3,
        ),
    )  # fmt: skip
    pairs = [(a, b), (a, a + a), ("ab", "ba"), ("abc", "abd")]
    similarities = Table(
        "Similarities, as usually computed and as in the textbook",
        ("texts", "Jaccard", "of sets", "cosine", "of count vectors"),
        tuple(
            (_short(x, y), jaccard(x, y), jaccard(set(x), set(y)), cosine(x, y), count_cosine(x, y))
            for x, y in pairs
        ),
    )
    sensitivity = Table(
        "Gradient of the LSTM decoder's outputs with respect to the memory, over outputs and places",
        ("decoder", "smallest", "largest"),
        (
            (f"{settings.attention} attention", real.min().item(), real.max().item()),
            ("no attention", clean(blind.min().item()), clean(blind.max().item())),
        ),
    )
    turned = Table(
        f"Largest change of a weight in the last of {LAYERS} layers when all places move by {SHIFT}",
        ("rotary positions turn", "change"),
        (("q and k, in every layer", clean(every)), ("the input, once", clean(once))),
    )
    return Report(claims, (similarities, sensitivity, turned), _figure(settings, a, b, seen))


# ------------------------------------------------------------------------------------- similarities


def overlap(a: Sequence[str] | set[str], b: Sequence[str] | set[str]) -> int:
    """The size of the multiset intersection."""
    return (Counter(a) & Counter(b)).total()


def jaccard(a: Sequence[str] | set[str], b: Sequence[str] | set[str]) -> float:
    """I / (|a| + |b| - I); with sets it is the textbook's.

    >>> jaccard("aaab", "ab"), jaccard(set("aaab"), set("ab"))
    (0.5, 1.0)
    """
    common = overlap(a, b)
    return common / (len(a) + len(b) - common)


def cosine(a: Sequence[str], b: Sequence[str]) -> float:
    """I / sqrt(|a| |b|).

    >>> round(cosine("aaab", "ab"), 4)
    0.7071
    """
    return overlap(a, b) / math.sqrt(len(a) * len(b))


def count_cosine(a: Sequence[str], b: Sequence[str]) -> float:
    """The cosine of the angle between the vectors of counts.

    >>> round(count_cosine("ab", "aabb"), 12)
    1.0
    """
    x, y = Counter(a), Counter(b)
    dot = sum(x[token] * y[token] for token in x)
    return dot / math.sqrt(sum(n * n for n in x.values()) * sum(n * n for n in y.values()))


# ---------------------------------------------------------------------------- what the decoder sees


def gradients(settings: Settings, attention: str) -> Tensor:
    """How strongly output t depends on place s of the memory, (T, S): the size of a gradient."""
    D, S = settings.width, settings.memory + PADDING
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        decoder = RecurrentDecoder(
            vocabulary=VOCABULARY,
            width=D,
            layers=1,
            memory_width=D,
            summary_width=D,
            attention=attention,
        ).double()
        states, summary = (
            torch.randn(1, S, D, dtype=torch.float64),
            torch.randn(1, D, dtype=torch.float64),
        )
        tokens, direction = (
            torch.randint(VOCABULARY, (1, settings.steps)),
            torch.randn(VOCABULARY, dtype=torch.float64),
        )
    states.requires_grad_()
    logits = decoder(
        tokens, Memory(states, torch.arange(S)[None] < settings.memory, summary)
    )  # (1, T, V)
    rows = []
    for place in (logits[0] @ direction).unbind():
        found = torch.autograd.grad(place, states, retain_graph=True, allow_unused=True)[0]
        rows.append(torch.zeros(S, dtype=torch.float64) if found is None else found[0].norm(dim=-1))
    return torch.stack(rows)


# ------------------------------------------------------------------------------------------- rotary


def looking(x: Tensor, weights: Tensor, places: Tensor, *, every_layer: bool) -> Tensor:
    """Where the last of some layers of self-attention with residuals looks, (T, T). Rotary
    positions turn q and k of each layer, or the input once."""
    looked = x.new_zeros(len(x), len(x))
    if not every_layer:
        x = rotary(x, places)
    for layer in weights:
        q, k, v = x @ layer
        if every_layer:
            q, k = rotary(q, places), rotary(k, places)
        looked = attention_weights(q, k)
        x = x + looked @ v
    return looked


def shift_changes(settings: Settings, *, every_layer: bool) -> float:
    """The largest change of a weight of the last layer when all places move."""
    T, D = settings.steps + 1, settings.width
    draws = torch.Generator().manual_seed(settings.seed)
    x = torch.randn(T, D, generator=draws, dtype=torch.float64)
    weights = torch.randn(LAYERS, 3, D, D, generator=draws, dtype=torch.float64) * D**-0.5
    here, there = (
        looking(x, weights, torch.arange(T) + shift, every_layer=every_layer)
        for shift in (0, SHIFT)
    )
    return (there - here).abs().max().item()


def _short(a: str, b: str) -> str:
    return " / ".join(text if len(text) <= 12 else f"{text[:9]}..." for text in (a, b))


def _figure(settings: Settings, a: str, b: str, seen: Tensor) -> Figure:
    sheet = experiment.figure(12, 4.2)
    left, right = sheet.subplots(1, 2)
    names = [f"Jaccard\n{_short(a, b)}", f"cosine\n{_short(a, b)}", f"cosine\n{_short(a, a + a)}"]
    computed = [jaccard(a, b), cosine(a, b), cosine(a, a + a)]
    textbook = [jaccard(set(a), set(b)), count_cosine(a, b), count_cosine(a, a + a)]
    for offset, values, colour, label in (
        (-0.2, computed, BLUE, "as computed"),
        (0.2, textbook, ORANGE, "textbook"),
    ):
        drawn = left.bar(
            [n + offset for n in range(3)], values, width=0.38, color=colour, label=label
        )
        left.bar_label(drawn, fmt="%.4g", padding=2)
    left.set(
        xticks=range(3),
        xticklabels=names,
        ylim=(0, 1.3),
        ylabel="similarity",
        title="counts matter",
    )
    left.legend(frameon=False, ncols=2, loc="upper center")
    shown = seen.masked_fill(seen == 0, math.nan)
    image = right.imshow(
        shown.numpy(), cmap="viridis", norm=LogNorm() if bool(seen.any()) else None, aspect="auto"
    )
    right.set(
        xlabel="place of the memory (the last two are padding: none)",
        ylabel="output",
        # fmt: skip
        title=f"LSTM decoder with {settings.attention} attention: d output / d memory",
    )
    for axis in (right.xaxis, right.yaxis):
        axis.get_major_locator().set_params(integer=True)
    sheet.colorbar(image, ax=right, label="size of the gradient")
    return sheet
