"""Closed forms of Transformer blocks: attention with softmax or the Maclaurin kernel, and what
is around it."""

from __future__ import annotations

from dataclasses import dataclass

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

CHUNK, SCORES = 256, 1 << 18  # of the Maclaurin kernel, as in layers/maclaurin.py
# What decides between its forms, as there, in picoseconds of one core.
QUADRATIC, TORCH, NATIVE, SCORE, TORCH_FEATURE, NATIVE_FEATURE = 30, 25, 22, 2000, 60, 9
QUADRATIC_CALL, TORCH_CALL, HIDING = 75_000_000, 400_000_000, 1.5
STEP = 8  # axes of a block of its features, as in layers/monomials.py
REACH = 32  # of relative positions, as in layers/positions.py


@dataclass(frozen=True)
class Stack:
    """The sizes of a stack of Transformer blocks."""

    layers: int
    width: int
    heads: int
    head_width: int
    ffn_width: int
    norm: str = "post"
    positions: str = "none"
    activation: str = "gelu"
    kernel: str = "softmax"
    terms: int = 3
    dropout: float = 0.0
    longest: int = 0  # places of learned positions
    grid: tuple[int, int] | None = None  # of the places of a picture, whose positions have two axes
    key_bias: bool = True
    # of the Maclaurin kernel in a pass over many places: scores, features, or the cheaper of them
    form: str = "auto"

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
        """The width of all heads together: D, unless they have a width of their own."""
        return self.D if self.heads * self.head_width == self.width else self.H * self.K

    @property
    def biases(self) -> int:
        """Of queries, keys and values."""
        return 3 if self.key_bias else 2

    @property
    def M(self) -> Formula:
        return choose(self.K + (self.terms - 1), self.terms - 1)

    @property
    def features(self) -> Size:
        return Size(
            "M", self.M.value, f"features of a head, C(K + {self.terms - 1}, {self.terms - 1})"
        )

    @property
    def made(self) -> Size:
        """The features that a pass over many places makes: in blocks, where some occur twice,
        which is faster."""
        count = length = self.head_width if self.terms > 1 else 0
        begins = range(0, self.head_width, STEP)
        for _ in range(2, self.terms):
            blocks = [
                min(STEP, self.head_width - axis) * (length - begin)
                for axis, begin in zip(range(0, self.head_width, STEP), begins, strict=True)
            ]
            begins, length = [sum(blocks[:n]) for n in range(len(blocks))], sum(blocks)
            count += length
        return Size("M'", 1 + count, "features computed, some of them twice")

    @property
    def sizes(self) -> tuple[Size, ...]:
        own = named(self.N, self.D, self.H, self.K)
        return (*own, self.features, self.made) if self.kernel == "maclaurin" else own


@dataclass(frozen=True)
class Mixing:
    """What attention does between its projections."""

    forward: Formula
    training: Formula
    depth: Formula


def mixing(s: Stack, rows: Amount, T: Formula, S: Formula, *, causal: bool, hidden: bool) -> Mixing:
    """Scores of T queries and S keys, weights, and the values mixed by them.

    Softmax runs in fused kernels, whose backward pass makes the scores once more (5 products of
    this size); numbers that are learned and added to the scores (relative positions) keep torch
    from using them (4 products).
    """
    if s.kernel == "maclaurin":
        return _series(s, rows, T, S, causal=causal)
    once = rows * T * S * s.A
    steps = log(s.K) + 3 * log(S) + 6 + (1 if hidden else 0)
    return Mixing(2 * once, (6 if s.positions == "relative" and T is S else 7) * once, steps)


def _series(s: Stack, rows: Amount, T: Formula, S: Formula, *, causal: bool) -> Mixing:
    form = _by_features if by_features(s, rows, T, S, causal=causal) else _from_scores
    return form(s, rows, T, S, causal=causal)


def by_features(s: Stack, rows: Amount, T: Formula, S: Formula, *, causal: bool) -> bool:
    """Whether the Maclaurin kernel uses its features: the choice of `layers.maclaurin.cheapest`
    on one core of a machine with a C compiler (whose kernel has 3 terms). Others may choose
    otherwise for lengths in between."""
    if s.form != "auto":
        return s.form == "features"
    K, rows, native = s.head_width, formula(rows).value * s.heads, s.terms == 3
    pair, made = (2 * K * QUADRATIC + SCORE) * (HIDING if causal else 1), s.features.value
    scores, features = float(rows * S.value * T.value * pair), float((S.value + T.value) * made)
    features *= (K + 1 + (NATIVE_FEATURE if native else TORCH_FEATURE)) * (
        NATIVE if native else TORCH
    )
    if causal:
        scores *= (1 + min(T.value, max(64, SCORES // S.value)) / T.value) / 2
        inside = 64 * (2 * K + 10) * NATIVE if native else CHUNK * pair + 10 * made * (K + 1)
        features += T.value * inside
    return scores + QUADRATIC_CALL >= rows * features + (0 if native else TORCH_CALL)


def _from_scores(s: Stack, rows: Amount, T: Formula, S: Formula, *, causal: bool) -> Mixing:
    """Polynomials of all scores; the values have one column more, for the normaliser."""
    each = rows * s.H * (_blocks(T, S) if causal else T * S)
    return Mixing(each * (2 * s.K + 1), each * (7 * s.K + 3), log(s.K) + log(S) + s.terms + 3)


def _by_features(s: Stack, rows: Amount, T: Formula, S: Formula, *, causal: bool) -> Mixing:
    """Sums over the keys, read by every query; a causal pass also makes the scores inside each
    chunk."""
    heads, sums = rows * s.H, s.made * (s.K + 1)
    steps = log(S) + log(s.features) + s.terms + 3
    if not causal:
        return Mixing(heads * (T + S) * sums, 3 * heads * (T + S) * sums, steps)
    inside = _chunks(T)
    return Mixing(
        heads * (2 * T * sums + inside * (2 * s.K + 1)),
        heads * (7 * T * sums + inside * (7 * s.K + 3)),
        steps,
    )


def _chunks(T: Formula) -> Formula:
    """Pairs inside the chunks of a causal pass, all of a chunk's queries with all of its keys."""
    whole, rest = divmod(T.value, CHUNK)
    return Call("pairs", (T,), whole * CHUNK**2 + rest**2)


def _blocks(T: Formula, S: Formula) -> Formula:
    """Pairs of scores in blocks: a block of queries sees no key after its end."""
    tall = min(T.value, max(64, SCORES // S.value))
    ends = [min(T.value, at + tall) for at in range(0, T.value, tall)]
    return Call(
        "pairs", (T,), sum((end - at) * end for at, end in zip([0, *ends[:-1]], ends, strict=True))
    )


def self_attention(name: str, s: Stack, B: Size, T: Size, t: Size | None, *, causal: bool) -> Part:
    """N layers of it: projections D x 3A and A x D with biases. `t` is the position of a token
    that comes singly."""
    N, D, A = s.N, s.D, s.A
    biased = s.positions in ("alibi", "relative")
    whole = mixing(s, B, T, T, causal=causal, hidden=causal or biased)
    one = mixing(s, 1, T, T, causal=causal, hidden=causal or biased)
    around = attention_steps(s)
    token = growth = state = more = token_steps = ZERO
    if t is not None and s.kernel == "maclaurin":
        token = N * (4 * D * A + (2 if s.features.value > 1 else 1) * s.H * s.features * (s.K + 1))
        state = FLOAT * N * s.H * s.features * (s.K + 1)
        token_steps = N * (around + log(s.features) + s.terms + 3)
    elif t is not None:
        token, growth, more = N * (4 * D * A + 2 * t * A), 2 * N * A, 2 * FLOAT * N * A
        token_steps = N * (around + log(s.K) + 3 * log(t) + 6 + (1 if biased else 0))
    return Part(
        name,
        s.sizes,
        parameters=N * (4 * D * A + s.biases * A + D),
        forward=N * (4 * B * T * D * A + whole.forward),
        training=N * (12 * B * T * D * A + whole.training),
        start=ZERO if causal else N * (4 * T * D * A + one.forward),
        token=token,
        growth=growth,
        depth=N * (around + whole.depth),
        token_depth=token_steps,
        saved=N * _saved_attention(s, B, T, causal=causal),
        work=FLOAT * B * T * (D + 3 * A),
        room=FLOAT * B * T * (4 * D + (6 if s.positions == "rotary" else 4) * A),
        state=state,
        state_growth=more,
    )


def attention_steps(s: Stack, *, turned: bool = True) -> Formula:
    """Of one layer, beside what `mixing` takes: norm, projection, rotary rotation, projection,
    residual."""
    return (
        norm_steps(s.D) + log(s.D) + log(s.A) + 5 + (1 if turned and s.positions == "rotary" else 0)
    )


def _saved_attention(s: Stack, B: Size, T: Size, *, causal: bool) -> Formula:
    """Query, key, value, context, what softmax divides by; the input before and after its norm;
    what dropout kept."""
    floats, sums = 2 * s.D + 4 * s.A + 2, ZERO
    if s.kernel == "maclaurin":  # the context twice, as its heads are put side by side in a copy
        floats = floats + s.A + s.H
        if not causal and by_features(s, B, T, T, causal=False):
            sums = FLOAT * B * s.H * s.features * (s.K + 1)
    elif s.positions == "relative":  # the weights themselves: no fused kernel
        floats = floats + s.H * T
    else:  # turned queries and keys are new, and the old stay with the values
        floats = floats + s.H + (2 * s.A if s.positions == "rotary" else 0)
    return B * T * (FLOAT * floats + (s.D if s.dropout else 0)) + sums


def cross_attention(name: str, s: Stack, at: Lengths, S: Formula, E: Size) -> Part:
    """N layers of attention to the memory. Query D x A, key and value E x 2A, out A x D, with
    biases."""
    N, D, A, B, T = s.N, s.D, s.A, at.B, at.T
    whole = mixing(s, B, T, S, causal=False, hidden=True)
    queries = 2 * B * T * D * A
    keys = 2 * B * S * E * A
    if s.kernel == "maclaurin":
        sums = s.H * s.features * (s.K + 1)
        token, state, taken_in = (
            N * (2 * D * A + sums),
            FLOAT * N * sums,
            N * (2 * S * E * A + S * sums),
        )
        looked = log(s.features) + s.terms + 1
    else:
        token, state, taken_in = (
            N * (2 * D * A + 2 * S * A),
            2 * FLOAT * N * S * A,
            N * 2 * S * E * A,
        )
        looked = log(s.K) + 3 * log(S) + 6
    kept = (
        B * T * (FLOAT * (2 * D + 2 * A + s.H + 2) + (D if s.dropout else 0))
        + 2 * FLOAT * B * S * A
    )
    if s.kernel == "maclaurin":
        kept = kept + FLOAT * B * (T * A + S * s.H)
        if by_features(s, B, T, S, causal=False):
            kept = kept + FLOAT * B * s.H * s.features * (s.K + 1)
    return Part(
        name,
        (*s.sizes, E),
        parameters=N * (2 * D * A + 2 * E * A + s.biases * A + D),
        forward=N * (queries + keys + whole.forward),
        training=N * (3 * queries + 3 * keys + whole.training),
        start=taken_in,
        token=token,
        depth=N * (attention_steps(s, turned=False) + whole.depth),
        token_depth=N * (attention_steps(s, turned=False) + looked),
        saved=N * kept + FLOAT * B * S * E,
        work=FLOAT * B * (T * (D + 2 * A) + 2 * S * A),
        room=FLOAT * B * (T * (3 * D + 2 * A) + 2 * S * A),
        state=state,
    )


def feed_forward(name: str, s: Stack, B: Size, T: Size, *, decoding: bool) -> Part:
    """W_2 act(W_1 x + b_1) + b_2, N layers of it."""
    N, D, F = s.N, s.D, s.F
    once = 2 * D * F
    steps = norm_steps(D) + log(D) + log(F) + 6
    inside = (1 if s.activation == "relu" and not s.dropout else 2) * F
    saved = FLOAT * (2 * D + 2 + inside) + (D + F if s.dropout else 0)
    return Part(
        name,
        named(N, D, F),
        parameters=N * (2 * D * F + F + D),
        forward=N * B * T * once,
        training=3 * N * B * T * once,
        start=ZERO if decoding else N * T * once,
        token=N * once if decoding else ZERO,
        depth=N * steps,
        token_depth=N * steps if decoding else ZERO,
        saved=N * B * T * saved,
        work=FLOAT * B * T * (2 * D + 2 * F),
        room=FLOAT * B * T * (4 * D + 2 * F),
    )


def norms(name: str, s: Stack, each: int, B: Size, T: Size, *, decoding: bool) -> Part:
    """`each` norms a layer, and with norm = "pre" one at the end. Their steps stand with what
    they are around."""
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
    """On a grid learned positions have a vector for each row and for each column, and relative
    ones a number for each pair of distances."""
    parameters, shown, added = ZERO, (), 0
    if s.positions == "learned":
        L = Size("L", s.longest if s.grid is None else sum(s.grid), "learned positions")
        parameters, shown, added = L * s.D, (L, s.D), 1 if s.grid is None else 2
    elif s.positions == "relative":
        R = Size("R", _distances(s.grid), "learned distances")
        parameters, shown = s.H * R, (s.H, R)
    elif s.positions == "sinusoidal":
        added = 1
    return Part(
        name,
        shown,
        parameters=parameters,
        depth=formula(added),
        token_depth=formula(added if decoding else 0),
        saved=FLOAT * s.H * T**2 if s.positions in ("alibi", "relative") else ZERO,
    )


def _distances(grid: tuple[int, int] | None) -> int:
    return 2 * REACH + 1 if grid is None else (2 * grid[0] + 1) * (2 * grid[1] + 1)


def enter(s: Stack, inputs: int, at: Lengths) -> tuple[Part, ...]:
    """What makes the encoder's width of what the frontend has, where they differ."""
    if inputs == s.width:
        return ()
    inner = Size("I", inputs, "width of the input")
    once = at.S * inner * s.D
    return (
        Part(
            "encoder input projection",
            (inner, s.D),
            parameters=inner * s.D + s.D,
            forward=at.B * once,
            training=3 * at.B * once,
            start=once,
            depth=2 + log(inner),
            saved=FLOAT * at.B * at.S * inner,
            room=FLOAT * at.B * at.S * (inner + s.D),
        ),
    )
