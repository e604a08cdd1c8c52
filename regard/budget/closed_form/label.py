"""Closed forms of decoders whose answer is a label."""

from __future__ import annotations

from regard.budget.closed_form.layers import Lengths, named
from regard.budget.closed_form.parts import FLOAT, Part
from regard.budget.closed_form.symbols import Formula, Size, log


def attention(E: Size, S: Formula, B: Size) -> Part:
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


def layer(name: str, inner: Formula, wide: Size, B: Size, *, kept: int) -> Part:
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


def turn(inner: Formula, E: Size, B: Size, *, kept: int) -> Part:
    """W h, as wide as the vectors of the words that are scored."""
    return Part(
        "label projection",
        named(inner, E),
        parameters=inner * E,
        forward=B * inner * E,
        training=3 * B * inner * E,
        start=inner * E,
        depth=1 + log(inner),
        saved=kept * B * inner,
        room=FLOAT * B * (inner + E),
    )


TIED = "label scores (the embedding)"


def scores(inner: Formula, C: Formula, at: Lengths, *, kept: int, tied: Size | None = None) -> Part:
    """W h + b. Only what comes first has a loss: what comes after a label is certain. `tied` is
    the vocabulary whose vectors W has; its marks have a bias and are not scored."""
    return Part(
        "label scores" if tied is None else TIED,
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
