"""Closed forms of convolutions over words, and of what reads pictures: convolutions and patches."""

from __future__ import annotations

from regard.budget.closed_form.layers import named, several
from regard.budget.closed_form.parts import FLOAT, Part
from regard.budget.closed_form.symbols import ZERO, Formula, Size, ceil, log, total


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
    """Each layer halves the places: B ceil(S / 2^n) places of it read R D numbers each, the
    first R I."""
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
        room=FLOAT
        * (B * ((2 + placed) * S * I + 3 * given[0] * I + places[0] * D) + 2 * R * I * D),
        saved=FLOAT * B * (inputs + D * above) + (B * D * (above - places[-1]) if dropout else 0),
    )


def picture_convolutions(
    size: tuple[int, int],
    channels_in: int,
    channels: tuple[int, ...],
    padding: tuple[int, ...],
    kernel_size: int,
    B: Size,
    *,
    pool: bool,
) -> tuple[tuple[Part, ...], tuple[int, int]]:
    """Convolutions of kernel_size x kernel_size with ReLU, each of which halves the grid; and
    the grid that they leave."""
    parts, sides, inputs = list[Part](), size, channels_in
    for n, (outputs, pixels) in enumerate(zip(channels, padding, strict=True)):
        inner = [side + 2 * pixels - kernel_size for side in sides]
        made = (inner[0] + 1, inner[1] + 1) if pool else (inner[0] // 2 + 1, inner[1] // 2 + 1)
        left = (made[0] // 2, made[1] // 2) if pool else made
        X, Y = (
            Size("X", made[0] * made[1], "output positions"),
            Size("Y", left[0] * left[1], "positions after pooling"),
        )
        I, O, R = (
            Size("I", inputs, "input channels"),
            Size("O", outputs, "output channels"),
            Size("R", kernel_size, "kernel size"),
        )  # noqa: E741
        P = Size("P", sides[0] * sides[1], "input positions")
        once, last = (
            X * R**2 * I * O,
            n == len(channels) - 1,
        )  # whose gradient comes in another order
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
