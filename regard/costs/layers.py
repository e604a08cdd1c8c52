"""Closed forms of the layers: what each costs, in symbols.

The letters are those of `regard.values`: B rows, S places of the source, T of the target, t the position of a token, D
width, E width of the memory, H heads of width K, F width inside the feed-forward part, N layers, V vocabulary, M
features of the Maclaurin kernel, R reach of a convolution. Numbers have 4 bytes.

Every function has its counterpart in regard/layers, encoders.py or decoders.py; the tests hold the two together.
"""

from __future__ import annotations

from dataclasses import dataclass

from regard.costs.parts import FLOAT, Part
from regard.costs.symbols import ZERO, Amount, Call, Formula, Size, ceil, choose, formula, largest, log, total

CHUNK, SCORES = 256, 1 << 18  # of the Maclaurin kernel, as in layers/maclaurin.py
# What decides between its forms, as there, in picoseconds of one core.
QUADRATIC, TORCH, NATIVE, SCORE, TORCH_FEATURE, NATIVE_FEATURE = 30, 25, 22, 2000, 60, 9
QUADRATIC_CALL, TORCH_CALL, HIDING = 75_000_000, 400_000_000, 1.5
STEP = 8  # axes of a block of its features, as in layers/monomials.py
REACH = 32  # of relative positions, as in layers/positions.py
NORM = 9  # steps of a normalisation beside its two sums, as in count.py
MARKS = 4  # among the tokens, as in codecs.py, which takes long to import
GATES = {"lstm": 4, "gru": 3}
STATES = {"lstm": 2, "gru": 1}
PLACE = {"lstm": 8, "gru": 10}  # steps of a cell beside log D, as in count.py


@dataclass(frozen=True)
class Lengths:
    """How much is read and written."""

    B: Size
    S: Size
    T: Size

    @classmethod
    def of(cls, batch: int, source: int, target: int) -> Lengths:
        return cls(
            Size("B", batch, "rows of a batch"),
            Size("S", source, "places of the source"),
            Size("T", target, "places of the target"),
        )

    @property
    def t(self) -> Size:
        return Size("t", self.T.value, "position of the token")


def several(layers: int) -> Formula:
    """N, or nothing that needs a letter."""
    return Size("N", layers, "layers") if layers > 1 else formula(layers)


def named(*of: Formula) -> tuple[Size, ...]:
    """Those that are letters, each once."""
    return tuple(dict.fromkeys(each for each in of if isinstance(each, Size)))


@dataclass(frozen=True)
class Stack:
    """The sizes of a stack of Transformer blocks."""

    layers: int
    width: int
    heads: int
    head_width: int
    ffn: int
    norm: str = "post"
    positions: str = "none"
    activation: str = "gelu"
    kernel: str = "softmax"
    terms: int = 3
    dropout: float = 0.0
    longest: int = 0  # places of learned positions
    grid: tuple[int, int] | None = None  # of the places of a picture, whose positions have two axes
    key_bias: bool = True
    form: str = "auto"  # of the Maclaurin kernel in a pass over many places: scores, features, or the cheaper of them

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
        return Size("K", self.head_width, "width of a head")

    @property
    def F(self) -> Size:
        return Size("F", self.ffn, "width inside the feed-forward part")

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
        return Size("M", self.M.value, f"features of a head, C(K + {self.terms - 1}, {self.terms - 1})")

    @property
    def made(self) -> Size:
        """The features that a pass over many places makes: in blocks, where some occur twice, which is faster."""
        count = length = self.head_width if self.terms > 1 else 0
        begins = range(0, self.head_width, STEP)
        for _ in range(2, self.terms):
            blocks = [
                min(STEP, self.head_width - axis) * (length - begin)
                for axis, begin in zip(range(0, self.head_width, STEP), begins, strict=True)
            ]
            begins, length = [sum(blocks[:n]) for n in range(len(blocks))], sum(blocks)
            count += length
        return Size("M'", 1 + count, "features that a pass makes, some of them twice")

    @property
    def sizes(self) -> tuple[Size, ...]:
        own = named(self.N, self.D, self.H, self.K)
        return (*own, self.features, self.made) if self.kernel == "maclaurin" else own


# ----------------------------------------------------------------------------------------------------------- attention


@dataclass(frozen=True)
class Mixing:
    """What attention does between its projections."""

    forward: Formula
    training: Formula
    depth: Formula


def mixing(s: Stack, rows: Amount, T: Formula, S: Formula, *, causal: bool, hidden: bool) -> Mixing:
    """Scores of T queries and S keys, weights, and the values mixed by them.

    Softmax runs in fused kernels, whose backward pass makes the scores once more (5 products of this size); numbers
    that are learned and added to the scores (relative positions) keep torch from using them (4 products).
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
    """Whether the Maclaurin kernel uses its features: the choice of `layers.maclaurin.cheapest` on one core of a
    machine with a C compiler (whose kernel has 3 terms). Others may choose otherwise for lengths in between."""
    if s.form != "auto":
        return s.form == "features"
    K, rows, native = s.head_width, formula(rows).value * s.heads, s.terms == 3
    pair, made = (2 * K * QUADRATIC + SCORE) * (HIDING if causal else 1), s.features.value
    scores, features = float(rows * S.value * T.value * pair), float((S.value + T.value) * made)
    features *= (K + 1 + (NATIVE_FEATURE if native else TORCH_FEATURE)) * (NATIVE if native else TORCH)
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
    """Sums over the keys, read by every query; a causal pass also makes the scores inside each chunk."""
    heads, sums = rows * s.H, s.made * (s.K + 1)
    steps = log(S) + log(s.features) + s.terms + 3
    if not causal:
        return Mixing(heads * (T + S) * sums, 3 * heads * (T + S) * sums, steps)
    inside = _chunks(T)
    return Mixing(
        heads * (2 * T * sums + inside * (2 * s.K + 1)), heads * (7 * T * sums + inside * (7 * s.K + 3)), steps
    )


def _chunks(T: Formula) -> Formula:
    """Pairs inside the chunks of a causal pass, all of a chunk's queries with all of its keys."""
    whole, rest = divmod(T.value, CHUNK)
    return Call("pairs", (T,), whole * CHUNK**2 + rest**2)


def _blocks(T: Formula, S: Formula) -> Formula:
    """Pairs of scores in blocks: a block of queries sees no key after its end."""
    tall = min(T.value, max(64, SCORES // S.value))
    ends = [min(T.value, at + tall) for at in range(0, T.value, tall)]
    return Call("pairs", (T,), sum((end - at) * end for at, end in zip([0, *ends[:-1]], ends, strict=True)))


def self_attention(name: str, s: Stack, B: Size, T: Size, t: Size | None, *, causal: bool) -> Part:
    """N layers of it: projections D x 3A and A x D with biases. `t` is the position of a token that comes singly."""
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
    """Of one layer, beside what `mixing` takes: norm, projection, rotary turning, projection, residual."""
    return norm_steps(s.D) + log(s.D) + log(s.A) + 5 + (1 if turned and s.positions == "rotary" else 0)


def _saved_attention(s: Stack, B: Size, T: Size, *, causal: bool) -> Formula:
    """Query, key, value, context, what softmax divides by; the input before and after its norm; what dropout kept."""
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
    """N layers of attention to the memory. Query D x A, key and value E x 2A, out A x D, with biases."""
    N, D, A, B, T = s.N, s.D, s.A, at.B, at.T
    whole = mixing(s, B, T, S, causal=False, hidden=True)
    queries = 2 * B * T * D * A
    keys = 2 * B * S * E * A
    if s.kernel == "maclaurin":
        sums = s.H * s.features * (s.K + 1)
        token, state, taken_in = N * (2 * D * A + sums), FLOAT * N * sums, N * (2 * S * E * A + S * sums)
        looked = log(s.features) + s.terms + 1
    else:
        token, state, taken_in = N * (2 * D * A + 2 * S * A), 2 * FLOAT * N * S * A, N * 2 * S * E * A
        looked = log(s.K) + 3 * log(S) + 6
    kept = B * T * (FLOAT * (2 * D + 2 * A + s.H + 2) + (D if s.dropout else 0)) + 2 * FLOAT * B * S * A
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
    """`each` norms a layer, and with norm = "pre" one at the end. Their steps stand with what they are around."""
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
    """On a grid learned positions have a vector for each row and for each column, and relative ones a number for each
    pair of distances."""
    parameters, shown, added = ZERO, (), 0
    if s.positions == "learned":
        L = Size("L", s.longest if s.grid is None else sum(s.grid), "places that have a vector")
        parameters, shown, added = L * s.D, (L, s.D), 1 if s.grid is None else 2
    elif s.positions == "relative":
        R = Size("R", _distances(s.grid), "distances that have a number")
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
            "encoder entrance",
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


def norm_steps(D: Formula) -> Formula:
    return 2 * log(D) + NORM


# --------------------------------------------------------------------------------------------------- embedding, output


def embedding(name: str, V: Size, D: Size, B: Size, T: Size, *, shared: bool, dropout: float, decoding: bool) -> Part:
    """e[w] sqrt(D): a look-up, and one multiplication a number, which is not counted as it is no matrix product."""
    return Part(
        f"{name} (the source's)" if shared else name,
        (V, D),
        parameters=ZERO if shared else V * D,
        depth=formula(1),
        token_depth=formula(1 if decoding else 0),
        saved=B * T * (8 + (D if dropout else 0)),
        work=FLOAT * B * T * D,
    )


def output(V: Size, D: Size, at: Lengths, *, tied: bool, bias: bool = True) -> Part:
    """logits = W h + b. Training makes loss and gradients in one pass, and a mean logit for the smoothing."""
    B, T = at.B, at.T
    return Part(
        "output (the embedding)" if tied else "output",
        (V, D),
        parameters=(ZERO if tied else V * D) + (V if bias else 0),
        forward=B * T * V * D,
        training=3 * B * T * V * D + B * T * D,
        token=V * D,
        room=FLOAT * B * T * (V + D),
        depth=1 + log(D) + (1 if bias else 0),
        token_depth=1 + log(D) + (1 if bias else 0),
    )


def alignment(V: Size, E: Size, at: Lengths, S: Formula) -> Part:
    """What training asks of the memory itself: logits of its places, twice as logarithms of probabilities, and the
    chances of all ways to say the answer so far."""
    B, T = at.B, at.T
    return Part(
        "spelling of the memory",
        (V, E),
        training=3 * B * S * V * E,
        saved=FLOAT * B * S * (2 * V + 2 * T + 1) + 8 * B * S,
        work=2 * FLOAT * B * S * V,
    )


# ---------------------------------------------------------------------------------------------- recurrent, convolution


@dataclass(frozen=True)
class Cells:
    """A stack of LSTM or GRU layers."""

    cell: str
    inputs: int
    width: int
    layers: int
    directions: int = 1
    dropout: float = 0.0

    @property
    def D(self) -> Size:
        return Size("D", self.width, "width of a direction" if self.directions == 2 else "width")

    @property
    def I(self) -> Size:  # noqa: E743
        return Size("I", self.inputs, "width of the input")

    @property
    def N(self) -> Formula:
        return several(self.layers)

    @property
    def sizes(self) -> tuple[Size, ...]:
        return named(self.N, self.first, self.D)

    @property
    def first(self) -> Formula:
        if self.inputs == self.width:
            return self.D
        return 2 * self.D if self.inputs == 2 * self.width else self.I

    @property
    def above(self) -> Formula:
        """What a layer above the first reads."""
        return self.directions * self.D

    def each_layer(self, of_first: Formula, of_others: Formula) -> Formula:
        if self.layers == 1 or of_first == of_others:
            return self.N * of_first
        return of_first + (self.N - 1) * of_others


def cells(
    name: str, c: Cells, B: Size, T: Size, *, from_zeros: bool, stepwise: bool = False, decoding: bool = False
) -> Part:
    """Gates of every place: W x + U h + b + b', an LSTM has four of them and a GRU three.

    An LSTM that is given all places runs in a fused kernel, whose gradients are twice its products. A GRU's first state
    is no parameter, so an encoder makes no gradient of it.
    """
    g, D, X = GATES[c.cell], c.D, c.directions
    once = c.each_layer(X * g * D * (c.first + D), X * g * D * (c.above + D))
    less = X * c.N * B * g * D**2 if from_zeros and c.cell == "gru" else ZERO
    steps = PLACE[c.cell] + log(D)
    if X == 2:  # a layer needs both directions of the one below, whole
        first = [PLACE[c.cell] + log(_wider(each, D)) for each in (c.first, c.above)]
        depth = c.each_layer(first[0] + (T - 1) * steps, first[1] + (T - 1) * steps)
    elif from_zeros:
        depth = PLACE[c.cell] + log(_wider(c.first, D)) + (T + c.N - 2) * steps
    else:  # the state to start from is deeper than the first input
        depth = (T + c.N - 1) * steps
    return Part(
        name,
        c.sizes,
        parameters=c.each_layer(X * g * D * (c.first + D + 2), X * g * D * (c.above + D + 2)),
        forward=B * T * once,
        training=3 * B * T * once - less,
        start=T * once if from_zeros else ZERO,
        token=once if decoding else ZERO,
        depth=ZERO if stepwise else depth,
        token_depth=PLACE[c.cell] + log(c.first) + (c.N - 1) * steps if decoding else ZERO,
        saved=_saved_cells(c, B, T, stepwise=stepwise),
        work=FLOAT * B * T * (c.first + (3 * X * D if c.cell == "gru" or stepwise else 2 * D + _padded(4 * D))),
        room=FLOAT * B * (2 * T * D + c.first + 2 * g * D) if stepwise else _room_cells(c, B, T),
        state=FLOAT * STATES[c.cell] * c.N * D if decoding else ZERO,
    )


def _saved_cells(c: Cells, B: Size, T: Size, *, stepwise: bool) -> Formula:
    """The input of each layer (for the second direction turned around), what dropout kept of it, and what a kernel
    keeps of each place."""
    X, D = c.directions, c.D
    between = c.above if c.dropout else ZERO
    if stepwise:
        of_first, of_others = FLOAT * (c.first + 8 * D), FLOAT * (c.above + 8 * D) + between
    elif c.cell == "gru":
        of_first, of_others = FLOAT * X * (c.first + 7 * D), FLOAT * X * (c.above + 7 * D) + between
    else:
        workspaces = c.each_layer(*(X * _workspace(c, each, B, T) for each in (c.first, c.above)))
        of_first, of_others = FLOAT * X * (c.first + D), FLOAT * X * (c.above + D) + between
        return B * T * c.each_layer(of_first, of_others) + workspaces
    return B * T * c.each_layer(of_first, of_others)


def _room_cells(c: Cells, B: Size, T: Size) -> Formula:
    """The input twice, the states, and what a kernel takes for one direction: gates of all places; oneDNN also copies
    the weights, and the input if it is not as wide as the state."""
    X, D, first = c.directions, c.D, c.above if c.layers > 1 else c.first
    inputs = 2 * first + (c.first if c.layers > 1 else 0)
    if c.cell == "gru":
        return FLOAT * B * T * (inputs + (2 * X + 3) * D)
    copied = ZERO if first == D else B * (T + 1) * _padded(_wider(first, D))
    return FLOAT * (B * T * (inputs + X * D + _padded(4 * D)) + 4 * D * (first + D) + copied)


def _workspace(c: Cells, inputs: Formula, B: Size, T: Size) -> Formula:
    """What oneDNN's LSTM keeps of one direction of a layer: gates, states and room for their gradients."""
    wide, gates = _padded(_wider(inputs, c.D)), _padded(4 * c.D)
    return FLOAT * B * (T * (gates + _padded(c.D)) + (T + 1) * (6 * wide + 4 * c.D))


def _wider(inputs: Formula, D: Size) -> Formula:
    return largest(inputs, D) if isinstance(inputs, Size) and inputs != D else inputs


def _padded(of: Formula) -> Formula:
    """A row's length in oneDNN: a multiple of 16, but not of 256, which would fall on the same lines of the cache."""
    up = -(-of.value // 16) * 16
    return Call("pad", (of,), up + 16 if up % 256 == 0 else up)


def convolutions(
    I: Formula,  # noqa: E741
    D: Size,
    layers: int,
    R: Size,
    B: Size,
    S: Size,
    *,
    positions: str,
    dropout: float,
) -> Part:
    """Each layer halves the places: B ceil(S / 2^n) places of it read R D numbers each, the first R I."""
    N, places = several(layers), [ceil(S, 2**n) for n in range(1, layers + 1)]
    above = total(*places)
    first, rest = places[0] * R * I * D, total(*places[1:]) * R * D**2
    weights = R * I * D + (N - 1) * R * D**2 + N * D
    if I == D:
        first, rest, weights = above * R * D**2, ZERO, N * (R * D**2 + D)
    given = [2 * (each - 1) + R for each in places]  # with the zeros past the end
    placed = 0 if positions == "none" else 1
    inputs = given[0] * I + total(*given[1:]) * D
    return Part(
        "encoder convolutions",
        named(N, I, D, R),
        parameters=weights,
        forward=B * (first + rest),
        training=3 * B * (first + rest),
        start=first + rest,
        depth=placed + 4 + log(R * I) + (N - 1) * (4 + log(R * D)) + 1,
        work=FLOAT * B * (2 * S * I + given[0] * I),
        room=FLOAT * (B * ((2 + placed) * S * I + 3 * given[0] * I + places[0] * D) + 2 * R * I * D),
        saved=FLOAT * B * (inputs + D * above) + (B * D * (above - places[-1]) if dropout else 0),
    )


# ------------------------------------------------------------------------------------------------------------ pictures


def picture_convolutions(
    size: tuple[int, int],
    colours: int,
    channels: tuple[int, ...],
    padding: tuple[int, ...],
    reach: int,
    B: Size,
    *,
    pool: bool,
) -> tuple[tuple[Part, ...], tuple[int, int]]:
    """Convolutions of reach x reach with ReLU, each of which halves the grid; and the grid that they leave."""
    parts, sides, inputs = list[Part](), size, colours
    for n, (outputs, around) in enumerate(zip(channels, padding, strict=True)):
        inner = [side + 2 * around - reach for side in sides]
        made = (inner[0] + 1, inner[1] + 1) if pool else (inner[0] // 2 + 1, inner[1] // 2 + 1)
        left = (made[0] // 2, made[1] // 2) if pool else made
        X, Y = Size("X", made[0] * made[1], "places made"), Size("Y", left[0] * left[1], "places left")
        I, O, R = Size("I", inputs, "colours"), Size("O", outputs, "channels"), Size("R", reach, "reach")  # noqa: E741
        P = Size("P", sides[0] * sides[1], "places given")
        once, last = X * R**2 * I * O, n == len(channels) - 1  # whose gradient comes in another order
        given = FLOAT * I * P if pool or n == 0 else 0  # what ReLU has made is kept with it
        parts.append(
            Part(
                f"convolution {n + 1}",
                (P, X, Y, R, I, O) if pool else (P, X, R, I, O),
                parameters=R**2 * I * O + O,
                forward=B * once,
                training=(3 if n else 2) * B * once,  # pixels have no gradient
                start=once,
                depth=3 + log(R**2 * I) + (2 if pool else 0) + (0 if n else 1),
                saved=B * (given + FLOAT * O * X + (8 * O * Y if pool else 0)),
                work=B * (8 * O * X + (12 * O * Y if last else -8 * O * Y) if pool else 8 * O * X),
                room=FLOAT * B * (I * P + 2 * O * X),
            )
        )
        sides, inputs = left, outputs
    return tuple(parts), sides


def patches(I: Size, D: Size, B: Size, S: Size, *, dropout: float) -> Part:  # noqa: E741
    """Squares of pixels through one matrix. Pixels have no gradient."""
    return Part(
        "patches",
        (I, D),
        parameters=I * D + D,
        forward=B * S * I * D,
        training=2 * B * S * I * D,
        start=S * I * D,
        depth=3 + log(I),
        saved=FLOAT * B * S * I + (B * S * D if dropout else 0),
        room=FLOAT * B * S * (I + D),
    )


# -------------------------------------------------------------------------------------------------------------- labels


def label_attention(E: Size, S: Formula, B: Size) -> Part:
    """z = a M, a = softmax(q K M), q learned."""
    once = S * E**2 + 2 * S * E
    return Part(
        "label attention",
        (E,),
        parameters=E**2 + E,
        forward=B * once,
        training=B * (3 * S * E**2 + 5 * S * E),
        start=once,
        depth=2 * (1 + log(E)) + 2 + 2 * log(S) + 3 + 1 + log(S),
        saved=FLOAT * B * (2 * S * E + S),
        work=2 * FLOAT * B * S * E,
        room=2 * FLOAT * B * S * E,
        state=FLOAT * S,
    )


def label_layer(name: str, inner: Formula, wide: Size, B: Size, *, kept: int) -> Part:
    """relu(W z + b); `kept` are the bytes of each number that it read and keeps."""
    return Part(
        name,
        named(inner, wide),
        parameters=inner * wide + wide,
        forward=B * inner * wide,
        training=3 * B * inner * wide,
        start=inner * wide,
        depth=3 + log(inner),
        saved=kept * B * inner,
        work=2 * FLOAT * B * inner,
        room=FLOAT * B * (inner + 2 * wide),
    )


def label_turn(inner: Formula, E: Size, B: Size, *, kept: int) -> Part:
    """W h, as wide as the vectors of the words that are scored."""
    return Part(
        "label turn",
        named(inner, E),
        parameters=inner * E,
        forward=B * inner * E,
        training=3 * B * inner * E,
        start=inner * E,
        depth=1 + log(inner),
        saved=kept * B * inner,
        room=FLOAT * B * (inner + E),
    )


TIED_LABELS = "label scores (the embedding)"


def label_scores(inner: Formula, C: Formula, at: Lengths, *, kept: int, tied: Size | None = None) -> Part:
    """W h + b. Only what comes first has a loss: what comes after a label is certain. `tied` is the vocabulary whose
    vectors W has; its marks have a bias and are not scored."""
    return Part(
        "label scores" if tied is None else TIED_LABELS,
        named(inner, C),
        parameters=inner * C + C if tied is None else tied,
        forward=at.B * at.T * inner * C,
        training=3 * at.B * inner * C + at.B * inner,
        token=inner * C,
        depth=3 + log(inner),
        token_depth=3 + log(inner),
        saved=kept * at.B * inner,
        room=FLOAT * at.B * at.T * (inner + 2 * C),
        state=FLOAT * inner,
    )


# ------------------------------------------------------------------------------------------------------------ decoding


def bridge(c: Cells, at: Lengths, E: Formula) -> Part:
    """The encoder's summary becomes the first state of every layer: tanh(W m + b)."""
    states = STATES[c.cell] * c.N * c.D
    return Part(
        "decoder bridge",
        named(*c.sizes, E),
        parameters=(E + 1) * states,
        forward=at.B * E * states,
        training=3 * at.B * E * states,
        start=E * states,
        depth=3 + log(E),
        saved=FLOAT * at.B * (E + 2 * states),
    )


def recurrent_attention(
    c: Cells, at: Lengths, S: Formula, E: Size, *, score: str, stepwise: bool, before: bool = False
) -> Part:
    """One look at the memory for each place, of a state h: softmax(score(h, m)), the context, tanh(W [context; h]).

    With `before` the cell reads the context, and what follows it is W h without a bias.
    """
    B, T, D = at.B, at.T, c.D
    keys, query, key_parameters = ZERO, ZERO, ZERO
    if score == "general":
        keys, key_parameters = E * D, E * D
    elif score == "additive":
        keys, query, key_parameters = E * D, D**2, E * D + D + D**2 + D
    look = query + S * D + S * E + (D**2 if before else (D + E) * D)
    memory_bytes = FLOAT * S * E + (ZERO if score == "dot" else FLOAT * S * D)
    scored = 4 + 2 * log(D) if score == "additive" else 1 + log(D)
    steps = scored + 1 + 2 * log(S) + 3 + 1 + log(S) + (ZERO if before else 3 + log(D + E))
    if score == "none":
        look, memory_bytes, steps = D**2, ZERO, 3 + log(D)
    kept = _saved_look(c, S, E, score=score, stepwise=stepwise, before=before)
    mixed = D**2 if score == "none" or before else (D + E) * D
    return Part(
        "decoder mix" if score == "none" else f"decoder attention, {score}",
        (D,) if score == "none" else (D, E),
        parameters=key_parameters + mixed + (0 if before else D),
        forward=(ZERO if score == "none" else B * S * keys) + B * T * look,
        training=3 * ((ZERO if score == "none" else B * S * keys) + B * T * look),
        start=ZERO if score == "none" else S * keys,
        token=look,
        depth=steps,
        token_depth=steps + (1 + log(D) if before else 0),
        saved=B * T * kept + FLOAT * B * S * ({"none": ZERO, "general": E + D}.get(score, E)),
        room=FLOAT * B * (T * (2 * D + E) + S * D + ((1 if stepwise else T) * 2 * S * D if score == "additive" else 0)),
        state=memory_bytes,
    )


def _saved_look(c: Cells, S: Formula, E: Size, *, score: str, stepwise: bool, before: bool) -> Formula:
    """Weights, [context; h], what tanh made and what dropout kept of it; additive scores keep tanh of every pair."""
    D = c.D
    if before:
        return (D if c.dropout else 0) + FLOAT * S + (FLOAT * S * D if score == "additive" else 0)
    copied = not stepwise and (c.cell == "gru" or score in ("none", "additive"))  # h, put in another order
    kept = FLOAT * D * (2 if copied else 1) + (D if c.dropout else 0)
    if score == "none":
        return kept
    return kept + FLOAT * (S + D + E) + (FLOAT * S * D if score == "additive" else 0)
