"""Four statements often made about sequence models are wrong, as computing them shows.

1. "Jaccard similarity ignores token frequency", 2. "cosine similarity ignores magnitude".
Both are true of the textbook definitions: Jaccard of sets, cosine of count vectors. Libraries that
compare texts use multisets instead. With I = sum_w min(#a_w, #b_w), the size of the multiset
intersection, and |a|, |b| the lengths of the texts:

    Jaccard = I / (|a| + |b| - I)            cosine = I / sqrt(|a| |b|)    (Ochiai coefficient)

`aaab` and `ab` have similarities 0.5 and 0.7071, where sets give 1. A text and the same text
written twice have a cosine of 0.7071, where count vectors give 1.

3. "An LSTM decoder cannot see the whole encoder output."
With attention it can. At every step,

    h_t = LSTM(h_{t-1}, e[w_t])              a_t = softmax(score(h_t, M))
    c_t = sum_s a_ts M_s                     logits_t = f(c_t, h_t)

so the gradient of every output with respect to every state M_s of the encoder is non-zero. Without
attention it is 0.

4. "Rotary positions are applied once."
They rotate q and k in every layer, by R_t at position t. All scores then depend on distances only,
and shifting all positions changes nothing. Rotating the input once, as sinusoidal positions are
added once, does not have this property: x_t R_t W~ R_s^T x_s^T is not a function of t - s.
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

from regard.decoders import AttentionScore, RecurrentDecoder
from regard.lab import experiment
from regard.lab.experiment import BLUE, ORANGE, Claim, Report, Table, clean, near, zero
from regard.layers.attention import attention_weights
from regard.layers.positions import rotary
from regard.pages.formulas import Formula
from regard.values import Memory

VOCABULARY = 11  # tokens of the LSTM decoder
PADDING = 2  # positions at the end of its memory
LAYERS = 2  # of the stack with rotary positions
SHIFT = 5  # added to all its positions

ALSO = ("myths", "mistakes", "folklore")  # synonyms of the name

# One group for each block of formulas in the docstring.
FORMULAS = (
    (
        Formula(
            r"\mathrm{Jaccard} = \frac{I}{|a| + |b| - I}",
            "Similarity of multisets.",
        ),
        Formula(
            r"\mathrm{cosine} = \frac{I}{\sqrt{|a| \, |b|}}",
            "The Ochiai coefficient.",
        ),
    ),
    (
        Formula(
            r"h_t = \mathrm{LSTM}(h_{t-1}, e[w_t])",
            "The state of the decoder.",
        ),
        Formula(
            r"a_t = \operatorname{softmax}(\operatorname{score}(h_t, M))",
            "Its weights on the encoder's states M.",
        ),
        Formula(
            r"c_t = \sum_s a_{ts} M_s, \quad \mathrm{logits}_t = f(c_t, h_t)",
            "The context, an average of all of them, and the output.",
        ),
    ),
)


class Settings(experiment.Settings):
    repeats: Annotated[int, Field(ge=2, le=1000)] = 3
    """How often the first text repeats its first letter; 3 compares aaab with ab."""
    attention: Literal["dot", "general", "additive"] = "general"
    """The attention score of the LSTM decoder."""
    memory: Annotated[int, Field(ge=1, le=64)] = 7
    """S, the length of the memory, without two positions of padding."""
    steps: Annotated[int, Field(ge=1, le=32)] = 5
    """T, the number of decoder steps; the rotary layers have T + 1 positions."""
    width: Annotated[int, Field(ge=2, le=64, multiple_of=2)] = 8
    """D, the width of decoder and memory; even, because rotary positions rotate pairs."""


def run(settings: Settings) -> Report:
    r = settings.repeats
    a = "a" * r + "b"
    b = "ab"
    texts = f"{a} and {b}" if r <= 8 else f"{r} times a, then b, and ab"
    with_attention = gradients(settings, settings.attention)  # (T, S + padding)
    without_attention = gradients(settings, "none")
    real = with_attention[:, : settings.memory]
    padding = with_attention[:, settings.memory :]
    every_layer = shift_changes(settings, every_layer=True)
    input_once = shift_changes(settings, every_layer=False)

    claims = (
        near(
            f'"Jaccard ignores frequency": of {texts} as multisets it is not 1',
            expected=2 / (r + 1),
            measured=jaccard(a, b),
            within=1e-12,
        ),
        near(
            "the Jaccard similarity of sets ignores frequency: it is 1",
            expected=1,
            measured=jaccard(set(a), set(b)),
            within=1e-12,
        ),
        near(
            f'"cosine ignores magnitude": of {texts} as multisets it is not 1',
            expected=2 / math.sqrt(2 * (r + 1)),
            measured=cosine(a, b),
            within=1e-12,
        ),
        near(
            "of a text and the same text twice, as multisets, it is not 1 either",
            expected=math.sqrt(1 / 2),
            measured=cosine(a, a + a),
            within=1e-12,
        ),
        near(
            "the cosine of count vectors ignores magnitude: it is 1",
            expected=1,
            measured=count_cosine(a, a + a),
            within=1e-12,
        ),
        Claim(
            '"an LSTM decoder cannot see the whole encoder output": with attention, every output '
            "depends on every encoder state",
            "every gradient above 0",
            f"{real.min().item():.1e} to {real.max().item():.1e}",
            real.min().item() > 0,
        ),
        zero("outputs do not depend on padding", padding.max().item()),
        zero(
            "without attention, they do not depend on the encoder states, only on their summary",
            without_attention.max().item(),
        ),
        zero(
            f"rotary positions in every layer: shifting all positions by {SHIFT} does not change "
            "the attention weights",
            every_layer,
        ),
        Claim(
            '"rotary is applied once": if only the input is rotated, shifting changes them',
            "a change above 0.001",
            f"{input_once:.3f}",
            input_once > 1e-3,
        ),
    )
    pairs = [(a, b), (a, a + a), ("ab", "ba"), ("abc", "abd")]
    similarities = Table(
        "Similarities of multisets, and the textbook definitions",
        ("texts", "Jaccard", "of sets", "cosine", "of count vectors"),
        tuple(
            (_short(x, y), jaccard(x, y), jaccard(set(x), set(y)), cosine(x, y), count_cosine(x, y))
            for x, y in pairs
        ),
    )
    sensitivity = Table(
        "Norms of the gradients of the LSTM decoder's outputs with respect to the encoder states",
        ("decoder", "smallest", "largest"),
        (
            (f"{settings.attention} attention", real.min().item(), real.max().item()),
            (
                "no attention",
                clean(without_attention.min().item()),
                clean(without_attention.max().item()),
            ),
        ),
    )
    shifts = Table(
        f"Largest change of an attention weight in the last of {LAYERS} layers when all positions "
        f"shift by {SHIFT}",
        ("rotary positions rotate", "change"),
        (("q and k, in every layer", clean(every_layer)), ("the input, once", clean(input_once))),
    )
    figure = _figure(settings, a, b, with_attention)
    return Report(claims, (similarities, sensitivity, shifts), figure)


# ------------------------------------------------------------------------------------- similarities


def overlap(a: Sequence[str] | set[str], b: Sequence[str] | set[str]) -> int:
    """The size of the multiset intersection."""
    return (Counter(a) & Counter(b)).total()


def jaccard(a: Sequence[str] | set[str], b: Sequence[str] | set[str]) -> float:
    """Jaccard similarity, I / (|a| + |b| - I), of multisets; of sets if the arguments are sets.

    >>> jaccard("aaab", "ab"), jaccard(set("aaab"), set("ab"))
    (0.5, 1.0)
    """
    common = overlap(a, b)
    return common / (len(a) + len(b) - common)


def cosine(a: Sequence[str], b: Sequence[str]) -> float:
    """Cosine similarity of multisets (Ochiai coefficient), I / sqrt(|a| |b|).

    >>> round(cosine("aaab", "ab"), 4)
    0.7071
    """
    return overlap(a, b) / math.sqrt(len(a) * len(b))


def count_cosine(a: Sequence[str], b: Sequence[str]) -> float:
    """The cosine of the angle between the vectors of token counts.

    >>> round(count_cosine("ab", "aabb"), 12)
    1.0
    """
    x, y = Counter(a), Counter(b)
    dot = sum(x[token] * y[token] for token in x)
    return dot / math.sqrt(sum(n * n for n in x.values()) * sum(n * n for n in y.values()))


# ------------------------------------------------------------------------------------- LSTM decoder


def gradients(settings: Settings, attention: AttentionScore) -> Tensor:
    """The norm of the gradient of output t with respect to encoder state s, (T, S + padding)."""
    D = settings.width
    S = settings.memory + PADDING
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
        states = torch.randn(1, S, D, dtype=torch.float64)
        summary = torch.randn(1, D, dtype=torch.float64)
        tokens = torch.randint(VOCABULARY, (1, settings.steps))
        direction = torch.randn(VOCABULARY, dtype=torch.float64)
    states.requires_grad_()
    is_real = torch.arange(S)[None] < settings.memory
    logits = decoder(tokens, Memory(states, is_real, summary))  # (1, T, V)

    norms = []
    for output in (logits[0] @ direction).unbind():
        gradient = torch.autograd.grad(output, states, retain_graph=True, allow_unused=True)[0]
        if gradient is None:  # the output does not depend on the states
            norms.append(torch.zeros(S, dtype=torch.float64))
        else:
            norms.append(gradient[0].norm(dim=-1))
    return torch.stack(norms)


# ------------------------------------------------------------------------------------------- rotary


def last_weights(x: Tensor, weights: Tensor, places: Tensor, *, every_layer: bool) -> Tensor:
    """The attention weights (T, T) of the last of several self-attention layers with residual
    connections. Rotary positions rotate q and k of each layer, or the input once."""
    attention = x.new_zeros(len(x), len(x))
    if not every_layer:
        x = rotary(x, places)
    for layer in weights:
        q, k, v = x @ layer
        if every_layer:
            q, k = rotary(q, places), rotary(k, places)
        attention = attention_weights(q, k)
        x = x + attention @ v
    return attention


def shift_changes(settings: Settings, *, every_layer: bool) -> float:
    """The largest change of an attention weight of the last layer when all positions shift."""
    T = settings.steps + 1
    D = settings.width
    draws = torch.Generator().manual_seed(settings.seed)
    x = torch.randn(T, D, generator=draws, dtype=torch.float64)
    weights = torch.randn(LAYERS, 3, D, D, generator=draws, dtype=torch.float64) * D**-0.5
    places = torch.arange(T)
    original = last_weights(x, weights, places, every_layer=every_layer)
    shifted = last_weights(x, weights, places + SHIFT, every_layer=every_layer)
    return (shifted - original).abs().max().item()


def _short(a: str, b: str) -> str:
    return " / ".join(text if len(text) <= 12 else f"{text[:9]}..." for text in (a, b))


def _figure(settings: Settings, a: str, b: str, gradient_norms: Tensor) -> Figure:
    sheet = experiment.figure(12, 4.2)
    left, right = sheet.subplots(1, 2)
    names = [f"Jaccard\n{_short(a, b)}", f"cosine\n{_short(a, b)}", f"cosine\n{_short(a, a + a)}"]
    of_multisets = [jaccard(a, b), cosine(a, b), cosine(a, a + a)]
    textbook = [jaccard(set(a), set(b)), count_cosine(a, b), count_cosine(a, a + a)]
    for offset, values, colour, label in (
        (-0.2, of_multisets, BLUE, "of multisets"),
        (0.2, textbook, ORANGE, "textbook"),
    ):
        bars = left.bar(
            [n + offset for n in range(3)], values, width=0.38, color=colour, label=label
        )
        left.bar_label(bars, fmt="%.4g", padding=2)
    left.set(
        xticks=range(3),
        xticklabels=names,
        ylim=(0, 1.3),
        ylabel="similarity",
        title="similarity of texts",
    )
    left.legend(frameon=False, ncols=2, loc="upper center")
    non_zero = gradient_norms.masked_fill(gradient_norms == 0, math.nan)
    norm = LogNorm() if bool(gradient_norms.any()) else None
    image = right.imshow(non_zero.numpy(), cmap="viridis", norm=norm, aspect="auto")
    right.set(
        xlabel="encoder state (the last two are padding: no gradient)",
        ylabel="output",
        title=f"LSTM decoder with {settings.attention} attention: d output / d memory",
    )
    for axis in (right.xaxis, right.yaxis):
        axis.get_major_locator().set_params(integer=True)
    sheet.colorbar(image, ax=right, label="norm of the gradient")
    return sheet
