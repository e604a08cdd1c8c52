"""Closed forms of LSTM and GRU layers, and of the attention of a recurrent decoder."""

from __future__ import annotations

from dataclasses import dataclass

from regard.budget.closed_form.layers import Lengths, named, several
from regard.budget.closed_form.parts import FLOAT, Part
from regard.budget.closed_form.symbols import ZERO, Call, Formula, Size, largest, log

GATES = {"lstm": 4, "gru": 3}
STATES = {"lstm": 2, "gru": 1}  # h and c, or h alone
CELL_STEPS = {"lstm": 8, "gru": 10}  # beside log D, as in trace.py


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
        """The input width of the first layer."""
        if self.inputs == self.width:
            return self.D
        return 2 * self.D if self.inputs == 2 * self.width else self.I

    @property
    def above(self) -> Formula:
        """The input width of the other layers."""
        return self.directions * self.D

    def each_layer(self, of_first: Formula, of_others: Formula) -> Formula:
        """The sum over all layers."""
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
    """The gates of every position, W x + U h + b + b': four in an LSTM, three in a GRU.

    `from_zeros`: the first state is zero, as in an encoder. `stepwise`: positions are computed one
    by one, as their input depends on the attention at the position before; `decoding`: there are
    decode steps.

    A fused LSTM kernel has twice the products in its backward pass. A GRU that starts from zeros
    computes no gradient of its first state.
    """
    g, D, X = GATES[c.cell], c.D, c.directions
    products = c.each_layer(X * g * D * (c.first + D), X * g * D * (c.above + D))  # per position
    no_gradient = X * c.N * B * g * D**2 if from_zeros and c.cell == "gru" else ZERO

    steps = CELL_STEPS[c.cell] + log(D)
    if X == 2:  # a layer waits for the last position of both directions of the layer below
        first, above = (
            CELL_STEPS[c.cell] + log(_wider(inputs, D)) for inputs in (c.first, c.above)
        )
        depth = c.each_layer(first + (T - 1) * steps, above + (T - 1) * steps)
    elif from_zeros:
        depth = CELL_STEPS[c.cell] + log(_wider(c.first, D)) + (T + c.N - 2) * steps
    else:  # the first state is deeper than the first input
        depth = (T + c.N - 1) * steps

    if stepwise:
        room = FLOAT * B * (2 * T * D + c.first + 2 * g * D)
    else:
        room = _room_cells(c, B, T)
    gates = 3 * X * D if c.cell == "gru" or stepwise else 2 * D + _padded(4 * D)
    return Part(
        name,
        c.sizes,
        parameters=c.each_layer(X * g * D * (c.first + D + 2), X * g * D * (c.above + D + 2)),
        forward=B * T * products,
        training=3 * B * T * products - no_gradient,
        start=T * products if from_zeros else ZERO,
        token=products if decoding else ZERO,
        depth=ZERO if stepwise else depth,
        token_depth=CELL_STEPS[c.cell] + log(c.first) + (c.N - 1) * steps if decoding else ZERO,
        saved=_saved_cells(c, B, T, stepwise=stepwise),
        work=FLOAT * B * T * (c.first + gates),
        room=room,
        state=FLOAT * STATES[c.cell] * c.N * D if decoding else ZERO,
    )


def _saved_cells(c: Cells, B: Size, T: Size, *, stepwise: bool) -> Formula:
    """Bytes saved: the input of each layer (reversed for the second direction), the dropout mask,
    and what a kernel saves for each position."""
    X, D = c.directions, c.D
    mask = c.above if c.dropout else ZERO
    if stepwise:
        of_first = FLOAT * (c.first + 8 * D)
        of_others = FLOAT * (c.above + 8 * D) + mask
        return B * T * c.each_layer(of_first, of_others)
    if c.cell == "gru":
        of_first = FLOAT * X * (c.first + 7 * D)
        of_others = FLOAT * X * (c.above + 7 * D) + mask
        return B * T * c.each_layer(of_first, of_others)

    of_first = FLOAT * X * (c.first + D)
    of_others = FLOAT * X * (c.above + D) + mask
    workspaces = c.each_layer(X * _workspace(c, c.first, B, T), X * _workspace(c, c.above, B, T))
    return B * T * c.each_layer(of_first, of_others) + workspaces


def _room_cells(c: Cells, B: Size, T: Size) -> Formula:
    """Bytes of a forward pass: the input twice, the states, and the gates of all positions of one
    direction. oneDNN also copies the weights, and the input if it is not as wide as the state."""
    X, D = c.directions, c.D
    last = c.above if c.layers > 1 else c.first  # the input width of the last layer
    inputs = 2 * last + (c.first if c.layers > 1 else 0)
    if c.cell == "gru":
        return FLOAT * B * T * (inputs + (2 * X + 3) * D)
    copied = ZERO if last == D else B * (T + 1) * _padded(_wider(last, D))
    return FLOAT * (B * T * (inputs + X * D + _padded(4 * D)) + 4 * D * (last + D) + copied)


def _workspace(c: Cells, inputs: Formula, B: Size, T: Size) -> Formula:
    """The workspace of oneDNN's LSTM for one direction of a layer: gates, states and space for
    their gradients."""
    gates = _padded(4 * c.D)
    widest = _padded(_wider(inputs, c.D))
    return FLOAT * B * (T * (gates + _padded(c.D)) + (T + 1) * (6 * widest + 4 * c.D))


def _wider(inputs: Formula, D: Size) -> Formula:
    return largest(inputs, D) if isinstance(inputs, Size) and inputs != D else inputs


def _padded(length: Formula) -> Formula:
    """The length of a row in oneDNN: the next multiple of 16, but not one of 256, whose rows would
    compete for the same cache lines."""
    rounded = -(-length.value // 16) * 16
    return Call("pad", (length,), rounded + 16 if rounded % 256 == 0 else rounded)


def bridge(c: Cells, at: Lengths, E: Formula) -> Part:
    """The first state of every layer, from the encoder's summary m: tanh(W m + b)."""
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
    """Attention of each position's state h to the memory: weights softmax(score(h, m)), their
    context, and tanh(W [context; h]).

    `before`: attention comes before the cell, which reads the context, and the output is W h
    without a bias.
    """
    B, T, D = at.B, at.T, c.D
    attends = score != "none"

    output = (D + E) * D if attends and not before else D**2
    keys = query = key_parameters = ZERO
    if score == "general":
        keys = key_parameters = E * D
    elif score == "additive":
        keys = E * D
        query = D**2
        key_parameters = E * D + D + D**2 + D

    if attends:
        products = query + S * D + S * E + output  # per position
        score_steps = 4 + 2 * log(D) if score == "additive" else 1 + log(D)
        if score in ("general", "scaled"):
            score_steps = score_steps + 1  # the scale
        output_steps = ZERO if before else 3 + log(D + E)
        steps = score_steps + 1 + 2 * log(S) + 3 + 1 + log(S) + output_steps
        state = FLOAT * S * E + (ZERO if score in ("dot", "scaled") else FLOAT * S * D)
    else:
        products = output
        steps = 3 + log(D)
        state = ZERO

    saved_memory = {"none": ZERO, "general": E + D}.get(score, E)
    saved = _saved_attention(c, S, E, score=score, stepwise=stepwise, before=before)
    room = T * (2 * D + E) + S * D
    if score == "additive":
        room = room + (1 if stepwise else T) * 2 * S * D
    return Part(
        f"decoder attention, {score}" if attends else "decoder attention output",
        (D, E) if attends else (D,),
        parameters=key_parameters + output + (0 if before else D),
        forward=B * S * keys + B * T * products,
        training=3 * (B * S * keys + B * T * products),
        start=S * keys,
        token=products,
        depth=steps,
        token_depth=steps + (1 + log(D) if before else 0),
        saved=B * T * saved + FLOAT * B * S * saved_memory,
        room=FLOAT * B * room,
        state=state,
    )


def _saved_attention(
    c: Cells, S: Formula, E: Size, *, score: str, stepwise: bool, before: bool
) -> Formula:
    """Bytes saved per position: attention weights, [context; h], the output of tanh and its dropout
    mask; additive scores save tanh of every pair."""
    D = c.D
    mask = D if c.dropout else 0
    pairs = FLOAT * S * D if score == "additive" else 0
    if before:
        return mask + FLOAT * S + pairs

    copied = not stepwise and (c.cell == "gru" or score in ("none", "additive"))  # h, transposed
    saved = FLOAT * D * (2 if copied else 1) + mask
    if score == "none":
        return saved
    return saved + FLOAT * (S + D + E) + pairs
