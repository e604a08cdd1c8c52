"""Closed forms of Transformer blocks: attention with softmax or the Maclaurin kernel,
feed-forward, norms and positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regard.budget.closed_form.layers import Lengths, named, norm_steps, several
from regard.budget.closed_form.parts import FLOAT, Part
from regard.budget.closed_form.symbols import (
    ZERO,
    Amount,
    Call,
    Formula,
    Size,
    choose,
    formula,
    log,
)
from regard.layers.sizes import TransformerSizes

# Sizes of the Maclaurin kernel, as in layers/maclaurin.py.
CHUNK = 256  # positions of a chunk in a causal pass
SCORES = 1 << 18  # scores of a block

# Its times on one core, in picoseconds, by which it chooses between scores and features, as there.
QUADRATIC, TORCH, NATIVE = 30, 25, 22  # per multiplication
SCORE, TORCH_FEATURE, NATIVE_FEATURE = 2000, 60, 9  # per score; per feature, in multiplications
QUADRATIC_CALL, TORCH_CALL = 75_000_000, 400_000_000  # per call
HIDING = 1.5  # factor of a causal mask

STEP = 8  # axes in a block of features, as in layers/monomials.py
REACH = 32  # largest relative distance, as in layers/positions.py


Form = Literal["auto", "scores", "features"]


@dataclass(frozen=True, kw_only=True)
class Stack(TransformerSizes):
    """The sizes of a stack of Transformer blocks, its positions, and the letters in formulas."""

    positions: str = "none"
    longest: int = 0  # number of learned positions
    grid: tuple[int, int] | None = None  # of an image, whose positions have two axes
    # how the Maclaurin kernel computes a whole sequence: by scores, features, or the cheaper one
    form: Form = "auto"

    @property
    def N(self) -> Formula:
        return several(self.layers)

    @property
    def D(self) -> Size:
        return Size("D", self.width, "width")

    @property
    def H(self) -> Size:
        return Size("H", self.heads, "heads")

    @property
    def K(self) -> Size:
        return Size("K", self.head_width, "head width")

    @property
    def F(self) -> Size:
        return Size("F", self.ffn_width, "feed-forward width")

    @property
    def A(self) -> Formula:
        """The width of all heads together: D, or H K where that differs."""
        return self.D if self.heads * self.head_width == self.width else self.H * self.K

    @property
    def biases(self) -> int:
        """How many of queries, keys and values have a bias."""
        return 3 if self.key_bias else 2

    @property
    def M(self) -> Formula:
        """Features of a head: the monomials of K variables up to degree terms - 1."""
        return choose(self.K + (self.terms - 1), self.terms - 1)

    @property
    def features(self) -> Size:
        return Size(
            "M", self.M.value, f"features of a head, C(K + {self.terms - 1}, {self.terms - 1})"
        )

    @property
    def computed_features(self) -> Size:
        """The features computed for a whole sequence: in blocks, where some occur twice, which is
        faster."""
        axes = range(0, self.head_width, STEP)
        begins = list(axes)
        length = self.head_width if self.terms > 1 else 0
        count = length
        for _ in range(2, self.terms):
            blocks = [
                min(STEP, self.head_width - axis) * (length - begin)
                for axis, begin in zip(axes, begins, strict=True)
            ]
            begins = [sum(blocks[:n]) for n in range(len(blocks))]
            length = sum(blocks)
            count += length
        return Size("M'", 1 + count, "features computed, some of them twice")

    @property
    def sizes(self) -> tuple[Size, ...]:
        sizes = named(self.N, self.D, self.H, self.K)
        if self.kernel == "maclaurin":
            return (*sizes, self.features, self.computed_features)
        return sizes


@dataclass(frozen=True)
class Mixing:
    """The cost of attention between its projections: scores, weights, weighted values."""

    forward: Formula
    training: Formula
    depth: Formula


def mixing(s: Stack, rows: Amount, T: Formula, S: Formula, *, causal: bool, hidden: bool) -> Mixing:
    """Scores of T queries and S keys, their weights, and the weighted sums of values.

    Softmax attention runs in fused kernels, whose backward pass computes the scores again (5
    products of this size). A learned bias of the scores (relative positions) keeps torch from using
    them (4 products).
    """
    if s.kernel == "maclaurin":
        if by_features(s, rows, T, S, causal=causal):
            return _from_features(s, rows, T, S, causal=causal)
        return _from_scores(s, rows, T, S, causal=causal)

    product = rows * T * S * s.A
    products_of_training = 6 if s.positions == "relative" and T is S else 7
    steps = log(s.K) + 3 * log(S) + 6 + (1 if hidden else 0)
    return Mixing(2 * product, products_of_training * product, steps)


def by_features(s: Stack, rows: Amount, T: Formula, S: Formula, *, causal: bool) -> bool:
    """Whether the Maclaurin kernel uses its features: the choice of `layers.maclaurin.cheapest`
    on one core of a machine with a C compiler (whose kernel has 3 terms). Other machines may choose
    differently at medium lengths."""
    if s.form != "auto":
        return s.form == "features"

    K = s.head_width
    M = s.features.value
    heads = formula(rows).value * s.heads
    native = s.terms == 3

    pair = (2 * K * QUADRATIC + SCORE) * (HIDING if causal else 1)
    scores = float(heads * S.value * T.value * pair)
    features = float((S.value + T.value) * M)
    if native:
        features *= (K + 1 + NATIVE_FEATURE) * NATIVE
    else:
        features *= (K + 1 + TORCH_FEATURE) * TORCH

    if causal:
        scores *= (1 + min(T.value, max(64, SCORES // S.value)) / T.value) / 2
        inside = 64 * (2 * K + 10) * NATIVE if native else CHUNK * pair + 10 * M * (K + 1)
        features += T.value * inside
    return scores + QUADRATIC_CALL >= heads * features + (0 if native else TORCH_CALL)


def _from_scores(s: Stack, rows: Amount, T: Formula, S: Formula, *, causal: bool) -> Mixing:
    """A polynomial of each score; the values have one more column, for the normaliser."""
    pairs = rows * s.H * (_pairs_in_blocks(T, S) if causal else T * S)
    steps = log(s.K) + log(S) + s.terms + 3
    return Mixing(pairs * (2 * s.K + 1), pairs * (7 * s.K + 3), steps)


def _from_features(s: Stack, rows: Amount, T: Formula, S: Formula, *, causal: bool) -> Mixing:
    """Sums of features over the keys, multiplied by every query's features; a causal pass also
    computes the scores inside each chunk."""
    heads = rows * s.H
    sums = s.computed_features * (s.K + 1)
    steps = log(S) + log(s.features) + s.terms + 3
    if not causal:
        return Mixing(heads * (T + S) * sums, 3 * heads * (T + S) * sums, steps)

    pairs = _pairs_in_chunks(T)
    return Mixing(
        heads * (2 * T * sums + pairs * (2 * s.K + 1)),
        heads * (7 * T * sums + pairs * (7 * s.K + 3)),
        steps,
    )


def _pairs_in_chunks(T: Formula) -> Formula:
    """Pairs inside the chunks of a causal pass: all queries of a chunk with all of its keys."""
    chunks, rest = divmod(T.value, CHUNK)
    return Call("pairs", (T,), chunks * CHUNK**2 + rest**2)


def _pairs_in_blocks(T: Formula, S: Formula) -> Formula:
    """Pairs of a causal pass in blocks of queries: all queries of a block with all keys up to its
    end."""
    block = min(T.value, max(64, SCORES // S.value))
    pairs = 0
    for begin in range(0, T.value, block):
        end = min(T.value, begin + block)
        pairs += (end - begin) * end
    return Call("pairs", (T,), pairs)


def self_attention(name: str, s: Stack, B: Size, T: Size, t: Size | None, *, causal: bool) -> Part:
    """N layers of self-attention: projections D x 3A and A x D, with biases. `t` is the position of
    the token in a decode step; None: there are no decode steps."""
    N, D, A = s.N, s.D, s.A
    biased = s.positions in ("alibi", "relative")
    batch = mixing(s, B, T, T, causal=causal, hidden=causal or biased)
    row = mixing(s, 1, T, T, causal=causal, hidden=causal or biased)
    outer_steps = attention_steps(s)

    token = growth = state = state_growth = token_steps = ZERO
    if t is not None and s.kernel == "maclaurin":
        sums = s.H * s.features * (s.K + 1)
        token = N * (4 * D * A + (2 if s.features.value > 1 else 1) * sums)
        state = FLOAT * N * sums
        token_steps = N * (outer_steps + log(s.features) + s.terms + 3)
    elif t is not None:
        token = N * (4 * D * A + 2 * t * A)
        growth = 2 * N * A
        state_growth = 2 * FLOAT * N * A
        token_steps = N * (outer_steps + log(s.K) + 3 * log(t) + 6 + (1 if biased else 0))

    return Part(
        name,
        s.sizes,
        parameters=N * (4 * D * A + s.biases * A + D),
        forward=N * (4 * B * T * D * A + batch.forward),
        training=N * (12 * B * T * D * A + batch.training),
        start=ZERO if causal else N * (4 * T * D * A + row.forward),
        token=token,
        growth=growth,
        depth=N * (outer_steps + batch.depth),
        token_depth=token_steps,
        saved=N * _saved_attention(s, B, T, causal=causal),
        work=FLOAT * B * T * (D + 3 * A),
        room=FLOAT * B * T * (4 * D + (6 if s.positions == "rotary" else 4) * A),
        state=state,
        state_growth=state_growth,
    )


def attention_steps(s: Stack, *, rotary: bool = True) -> Formula:
    """Steps of one layer beside those of `mixing`: norm, two projections, rotary rotation,
    residual."""
    rotation = 1 if rotary and s.positions == "rotary" else 0
    return norm_steps(s.D) + log(s.D) + log(s.A) + 5 + rotation


def _saved_attention(s: Stack, B: Size, T: Size, *, causal: bool) -> Formula:
    """Bytes saved by one layer: query, key, value, context, the normaliser of softmax, the input
    before and after its norm, and the dropout mask."""
    floats = 2 * s.D + 4 * s.A + 2
    sums = ZERO
    if s.kernel == "maclaurin":  # the context twice: joining the heads copies it
        floats = floats + s.A + s.H
        if not causal and by_features(s, B, T, T, causal=False):
            sums = FLOAT * B * s.H * s.features * (s.K + 1)
    elif s.positions == "relative":  # the attention weights: no fused kernel
        floats = floats + s.H * T
    else:  # rotated queries and keys are copies; the originals stay with the values
        floats = floats + s.H + (2 * s.A if s.positions == "rotary" else 0)
    return B * T * (FLOAT * floats + (s.D if s.dropout else 0)) + sums


def cross_attention(name: str, s: Stack, at: Lengths, S: Formula, E: Size) -> Part:
    """N layers of cross-attention: query D x A, key and value E x 2A, output A x D, with biases."""
    N, D, A, B, T = s.N, s.D, s.A, at.B, at.T
    batch = mixing(s, B, T, S, causal=False, hidden=True)
    queries = 2 * B * T * D * A
    keys = 2 * B * S * E * A
    outer_steps = attention_steps(s, rotary=False)

    saved = B * T * (FLOAT * (2 * D + 2 * A + s.H + 2) + (D if s.dropout else 0))
    saved = saved + 2 * FLOAT * B * S * A
    if s.kernel == "maclaurin":
        sums = s.H * s.features * (s.K + 1)
        prefill = N * (2 * S * E * A + S * sums)
        token = N * (2 * D * A + sums)
        state = FLOAT * N * sums
        token_steps = log(s.features) + s.terms + 1
        saved = saved + FLOAT * B * (T * A + S * s.H)
        if by_features(s, B, T, S, causal=False):
            saved = saved + FLOAT * B * s.H * s.features * (s.K + 1)
    else:
        prefill = N * 2 * S * E * A
        token = N * (2 * D * A + 2 * S * A)
        state = 2 * FLOAT * N * S * A
        token_steps = log(s.K) + 3 * log(S) + 6

    return Part(
        name,
        (*s.sizes, E),
        parameters=N * (2 * D * A + 2 * E * A + s.biases * A + D),
        forward=N * (queries + keys + batch.forward),
        training=N * (3 * queries + 3 * keys + batch.training),
        start=prefill,
        token=token,
        depth=N * (outer_steps + batch.depth),
        token_depth=N * (outer_steps + token_steps),
        saved=N * saved + FLOAT * B * S * E,
        work=FLOAT * B * (T * (D + 2 * A) + 2 * S * A),
        room=FLOAT * B * (T * (3 * D + 2 * A) + 2 * S * A),
        state=state,
    )


def feed_forward(name: str, s: Stack, B: Size, T: Size, *, decoding: bool) -> Part:
    """N layers of W_2 act(W_1 x + b_1) + b_2."""
    N, D, F = s.N, s.D, s.F
    products = 2 * D * F  # per position
    steps = norm_steps(D) + log(D) + log(F) + 6
    hidden = (1 if s.activation == "relu" and not s.dropout else 2) * F
    saved = FLOAT * (2 * D + 2 + hidden) + (D + F if s.dropout else 0)
    return Part(
        name,
        named(N, D, F),
        parameters=N * (2 * D * F + F + D),
        forward=N * B * T * products,
        training=3 * N * B * T * products,
        start=ZERO if decoding else N * T * products,
        token=N * products if decoding else ZERO,
        depth=N * steps,
        token_depth=N * steps if decoding else ZERO,
        saved=N * B * T * saved,
        work=FLOAT * B * T * (2 * D + 2 * F),
        room=FLOAT * B * T * (4 * D + 2 * F),
    )


def norms(name: str, s: Stack, each: int, B: Size, T: Size, *, decoding: bool) -> Part:
    """`each` norms per layer, and with norm = "pre" a final one. The steps of the former are
    counted with the sublayers that they normalise."""
    last = 1 if s.norm == "pre" else 0
    return Part(
        name,
        named(s.N, s.D),
        parameters=(s.N * each + last) * 2 * s.D,
        depth=formula(norm_steps(s.D) if last else 0),
        token_depth=formula(norm_steps(s.D) if last and decoding else 0),
        saved=formula(FLOAT * B * T * (s.D + 2) if last else 0),
    )


def positions(name: str, s: Stack, T: Size, *, decoding: bool) -> Part:
    """Position embeddings. On a grid, learned positions have a vector for each row and for each
    column, and relative positions a bias for each pair of distances."""
    parameters: Formula = ZERO
    sizes: tuple[Size, ...] = ()
    additions = 0  # vectors added to each position
    if s.positions == "learned":
        L = Size("L", s.longest if s.grid is None else sum(s.grid), "learned positions")
        parameters = L * s.D
        sizes = (L, s.D)
        additions = 1 if s.grid is None else 2
    elif s.positions == "relative":
        R = Size("R", _distances(s.grid), "learned distances")
        parameters = s.H * R
        sizes = (s.H, R)
    elif s.positions == "sinusoidal":
        additions = 1
    return Part(
        name,
        sizes,
        parameters=parameters,
        depth=formula(additions),
        token_depth=formula(additions if decoding else 0),
        saved=FLOAT * s.H * T**2 if s.positions in ("alibi", "relative") else ZERO,
    )


def _distances(grid: tuple[int, int] | None) -> int:
    if grid is None:
        return 2 * REACH + 1
    return (2 * grid[0] + 1) * (2 * grid[1] + 1)


def input_projection(s: Stack, inputs: int, at: Lengths) -> tuple[Part, ...]:
    """The projection from the frontend's width to the encoder's, if they differ."""
    if inputs == s.width:
        return ()
    I = Size("I", inputs, "width of the input")  # noqa: E741
    products = at.S * I * s.D
    return (
        Part(
            "encoder input projection",
            (I, s.D),
            parameters=I * s.D + s.D,
            forward=at.B * products,
            training=3 * at.B * products,
            start=products,
            depth=2 + log(I),
            saved=FLOAT * at.B * at.S * I,
            room=FLOAT * at.B * at.S * (I + s.D),
        ),
    )
