"""Closed forms of LSTM and GRU layers, and of a recurrent decoder's look at the memory."""

from __future__ import annotations

from dataclasses import dataclass

from regard.budget.closed_form.layers import Lengths, named, several
from regard.budget.closed_form.parts import FLOAT, Part
from regard.budget.closed_form.symbols import ZERO, Call, Formula, Size, largest, log

GATES = {"lstm": 4, "gru": 3}
STATES = {"lstm": 2, "gru": 1}
PLACE = {"lstm": 8, "gru": 10}  # steps of a cell beside log D, as in count.py


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
    name: str,
    c: Cells,
    B: Size,
    T: Size,
    *,
    from_zeros: bool,
    stepwise: bool = False,
    decoding: bool = False,
) -> Part:
    """Gates of every place: W x + U h + b + b', an LSTM has four of them and a GRU three.

    An LSTM that is given all places runs in a fused kernel, whose gradients are twice its products.
    A GRU's first state is no parameter, so an encoder makes no gradient of it.
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
        work=FLOAT
        * B
        * T
        * (c.first + (3 * X * D if c.cell == "gru" or stepwise else 2 * D + _padded(4 * D))),
        room=FLOAT * B * (2 * T * D + c.first + 2 * g * D) if stepwise else _room_cells(c, B, T),
        state=FLOAT * STATES[c.cell] * c.N * D if decoding else ZERO,
    )


def _saved_cells(c: Cells, B: Size, T: Size, *, stepwise: bool) -> Formula:
    """The input of each layer (for the second direction turned around), what dropout kept of it,
    and what a kernel keeps of each place."""
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
    """The input twice, the states, and what a kernel takes for one direction: gates of all
    places; oneDNN also copies the weights, and the input if it is not as wide as the state."""
    X, D, first = c.directions, c.D, c.above if c.layers > 1 else c.first
    inputs = 2 * first + (c.first if c.layers > 1 else 0)
    if c.cell == "gru":
        return FLOAT * B * T * (inputs + (2 * X + 3) * D)
    copied = ZERO if first == D else B * (T + 1) * _padded(_wider(first, D))
    return FLOAT * (B * T * (inputs + X * D + _padded(4 * D)) + 4 * D * (first + D) + copied)


def _workspace(c: Cells, inputs: Formula, B: Size, T: Size) -> Formula:
    """What oneDNN's LSTM keeps of one direction of a layer: gates, states and room for their
    gradients."""
    wide, gates = _padded(_wider(inputs, c.D)), _padded(4 * c.D)
    return FLOAT * B * (T * (gates + _padded(c.D)) + (T + 1) * (6 * wide + 4 * c.D))


def _wider(inputs: Formula, D: Size) -> Formula:
    return largest(inputs, D) if isinstance(inputs, Size) and inputs != D else inputs


def _padded(of: Formula) -> Formula:
    """A row's length in oneDNN: a multiple of 16, but not of 256, which would fall on the same
    lines of the cache."""
    up = -(-of.value // 16) * 16
    return Call("pad", (of,), up + 16 if up % 256 == 0 else up)


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
    """One look at the memory for each place, of a state h: softmax(score(h, m)), the context,
    tanh(W [context; h]).

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
        "decoder attention output" if score == "none" else f"decoder attention, {score}",
        (D,) if score == "none" else (D, E),
        parameters=key_parameters + mixed + (0 if before else D),
        forward=(ZERO if score == "none" else B * S * keys) + B * T * look,
        training=3 * ((ZERO if score == "none" else B * S * keys) + B * T * look),
        start=ZERO if score == "none" else S * keys,
        token=look,
        depth=steps,
        token_depth=steps + (1 + log(D) if before else 0),
        saved=B * T * kept + FLOAT * B * S * ({"none": ZERO, "general": E + D}.get(score, E)),
        room=FLOAT
        * B
        * (
            T * (2 * D + E)
            + S * D
            + ((1 if stepwise else T) * 2 * S * D if score == "additive" else 0)
        ),
        state=memory_bytes,
    )


def _saved_look(
    c: Cells, S: Formula, E: Size, *, score: str, stepwise: bool, before: bool
) -> Formula:
    """Weights, [context; h], what tanh made and what dropout kept of it; additive scores keep
    tanh of every pair."""
    D = c.D
    if before:
        return (D if c.dropout else 0) + FLOAT * S + (FLOAT * S * D if score == "additive" else 0)
    copied = not stepwise and (
        c.cell == "gru" or score in ("none", "additive")
    )  # h, put in another order
    kept = FLOAT * D * (2 if copied else 1) + (D if c.dropout else 0)
    if score == "none":
        return kept
    return kept + FLOAT * (S + D + E) + (FLOAT * S * D if score == "additive" else 0)
