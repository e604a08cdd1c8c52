"""Closed forms of a classifier: attention pooling, hidden layers, scores of the labels."""

from __future__ import annotations

from regard.budget.closed_form.layers import Lengths, named
from regard.budget.closed_form.parts import FLOAT, Part
from regard.budget.closed_form.symbols import Formula, Size, log


def attention(E: Size, S: Formula, B: Size) -> Part:
    """z = a M with a = softmax(q K M), where q is learned."""
    products = S * E**2 + 2 * S * E
    return Part(
        "label attention",
        (E,),
        parameters=E**2 + E,
        forward=B * products,
        training=B * (3 * S * E**2 + 5 * S * E),
        start=products,
        depth=2 * (1 + log(E)) + 2 + 2 * log(S) + 3 + 1 + log(S),
        saved=FLOAT * B * (2 * S * E + S),
        work=2 * FLOAT * B * S * E,
        room=2 * FLOAT * B * S * E,
        state=FLOAT * S,
    )


def layer(name: str, I: Formula, W: Size, B: Size, *, saved_bytes: int) -> Part:  # noqa: E741
    """relu(W z + b); `saved_bytes` are those saved per number of the input."""
    return Part(
        name,
        named(I, W),
        parameters=I * W + W,
        forward=B * I * W,
        training=3 * B * I * W,
        start=I * W,
        depth=3 + log(I),
        saved=saved_bytes * B * I,
        work=2 * FLOAT * B * I,
        room=FLOAT * B * (I + 2 * W),
    )


def projection(I: Formula, E: Size, B: Size, *, saved_bytes: int) -> Part:  # noqa: E741
    """W h: a projection to the width of the word embeddings that score the labels."""
    return Part(
        "label projection",
        named(I, E),
        parameters=I * E,
        forward=B * I * E,
        training=3 * B * I * E,
        start=I * E,
        depth=1 + log(I),
        saved=saved_bytes * B * I,
        room=FLOAT * B * (I + E),
    )


TIED = "label scores (the embedding)"


def scores(
    I: Formula,  # noqa: E741
    C: Formula,
    at: Lengths,
    *,
    saved_bytes: int,
    tied: Size | None = None,
) -> Part:
    """W h + b. Only the label itself has a loss: the end that follows it is certain. `tied` is the
    vocabulary whose embedding is W; special tokens have a bias and no score."""
    return Part(
        "label scores" if tied is None else TIED,
        named(I, C),
        parameters=I * C + C if tied is None else tied,
        forward=at.B * at.T * I * C,
        training=3 * at.B * I * C + at.B * I,
        token=I * C,
        depth=3 + log(I),
        token_depth=3 + log(I),
        saved=saved_bytes * at.B * I,
        room=FLOAT * at.B * at.T * (I + 2 * C),
        state=FLOAT * I,
    )
