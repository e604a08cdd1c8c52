"""Closed forms of convolutions over tokens and over images, and of image patches."""

from __future__ import annotations

from regard.budget.closed_form.layers import named, several
from regard.budget.closed_form.parts import FLOAT, Part
from regard.budget.closed_form.symbols import Formula, Size, ceil, log, total


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
    """Convolutions over a sequence, with stride 2: layer n has ceil(S / 2^n) output positions, and
    each reads R D numbers (R I in the first layer)."""
    N = several(layers)
    outputs = [ceil(S, 2**n) for n in range(1, layers + 1)]
    inputs = [2 * (output - 1) + R for output in outputs]  # with the zeros past the end
    all_outputs = total(*outputs)

    if I == D:
        products = all_outputs * R * D**2
        weights = N * (R * D**2 + D)
    else:
        products = outputs[0] * R * I * D + total(*outputs[1:]) * R * D**2
        weights = R * I * D + (N - 1) * R * D**2 + N * D

    added = 0 if positions == "none" else 1
    saved = FLOAT * B * (inputs[0] * I + total(*inputs[1:]) * D + D * all_outputs)
    if dropout:
        saved = saved + B * D * (all_outputs - outputs[-1])
    room = B * ((2 + added) * S * I + 3 * inputs[0] * I + outputs[0] * D) + 2 * R * I * D
    return Part(
        "encoder convolutions",
        named(N, I, D, R),
        parameters=weights,
        forward=B * products,
        training=3 * B * products,
        start=products,
        depth=added + 4 + log(R * I) + (N - 1) * (4 + log(R * D)) + 1,
        work=FLOAT * B * (2 * S * I + inputs[0] * I),
        room=FLOAT * room,
        saved=saved,
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
    """Convolutions with ReLU over an image, each of which halves the grid by pooling or by its
    stride; and the grid after the last."""
    parts: list[Part] = []
    grid = size
    inputs = channels_in
    for n, (outputs, pixels) in enumerate(zip(channels, padding, strict=True)):
        first = n == 0
        last = n == len(channels) - 1
        free = [side + 2 * pixels - kernel_size for side in grid]
        if pool:
            convolved = (free[0] + 1, free[1] + 1)
            smaller = (convolved[0] // 2, convolved[1] // 2)
        else:
            convolved = smaller = (free[0] // 2 + 1, free[1] // 2 + 1)

        P = Size("P", grid[0] * grid[1], "input positions")
        X = Size("X", convolved[0] * convolved[1], "output positions")
        Y = Size("Y", smaller[0] * smaller[1], "positions after pooling")
        I = Size("I", inputs, "input channels")  # noqa: E741
        O = Size("O", outputs, "output channels")  # noqa: E741
        R = Size("R", kernel_size, "kernel size")

        products = X * R**2 * I * O
        # Without pooling the input of a later layer is saved as the output of the ReLU before it.
        saved = (FLOAT * I * P if pool or first else 0) + FLOAT * O * X
        work = 8 * O * X
        if pool:
            saved = saved + 8 * O * Y
            work = work + (12 * O * Y if last else -8 * O * Y)  # the last gradient comes permuted
        parts.append(
            Part(
                f"convolution {n + 1}",
                (P, X, Y, R, I, O) if pool else (P, X, R, I, O),
                parameters=R**2 * I * O + O,
                forward=B * products,
                training=(2 if first else 3) * B * products,  # pixels need no gradient
                start=products,
                depth=3 + log(R**2 * I) + (2 if pool else 0) + (1 if first else 0),
                saved=B * saved,
                work=B * work,
                room=FLOAT * B * (I * P + 2 * O * X),
            )
        )
        grid = smaller
        inputs = outputs
    return tuple(parts), grid


def patches(I: Size, D: Size, B: Size, S: Size, *, dropout: float) -> Part:  # noqa: E741
    """A linear projection of squares of pixels. Pixels need no gradient."""
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
