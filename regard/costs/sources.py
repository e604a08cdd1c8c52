"""Closed forms of the frontends that are nets of their own: residual convolutions over pictures, and sounds.

The letters are those of layers.py; beside them I are the numbers of a place that is read, O or D those of one that is
made, X the places made, G the numbers of a place that are normalised together.
"""

from __future__ import annotations

from regard.costs.layers import norm_steps, several
from regard.costs.parts import FLOAT, Part
from regard.costs.symbols import Size, log

GROUP = 8  # channels that are normalised together if that comes out even, as in layers/residual.py


def residual(
    size: tuple[int, int], colours: int, channels: tuple[int, ...], blocks: int, stem: int, B: Size, *, dropout: float
) -> tuple[tuple[Part, ...], tuple[int, int]]:
    """A stage is a convolution that makes every stem-th (later every second) place only, and N times

        x + W_2 relu(norm(W_1 relu(norm(x))))

    with 3 x 3 places each and no bias; and the grid that all of them leave.
    """
    parts, sides, inputs = list[Part](), size, colours
    for n, outputs in enumerate(channels):
        step, reach = (2, 3) if n else (stem, 2 * stem - 1)
        left = (-(-sides[0] // step), -(-sides[1] // step))
        P, X = Size("P", sides[0] * sides[1], "places given"), Size("X", left[0] * left[1], "places made")
        I, O = Size("I", inputs, "channels read" if n else "colours"), Size("O", outputs, "channels")  # noqa: E741
        R, N = Size("R", reach, "reach"), several(blocks)
        G = Size("G", GROUP if outputs % GROUP == 0 else outputs, "channels of a group")
        enters, each = X * R**2 * I * O, 18 * X * O**2
        norm, last = norm_steps(X * G) + 1, n == len(channels) - 1  # with ReLU; the last stage ends in one more
        kept = FLOAT * (I * P + 4 * N * O * X)
        if last:  # what the last ReLU made is the memory, unless dropout makes another of it
            kept = kept + (2 * FLOAT + 1 if dropout else FLOAT) * O * X
        sizes = [P, X, R, I, O, G, *([N] if isinstance(N, Size) else [])]
        parts.append(
            Part(
                f"stage {n + 1}",
                tuple(sizes),
                parameters=R**2 * I * O + O + N * (18 * O**2 + 4 * O) + (2 * O if last else 0),
                forward=B * (enters + N * each),
                training=B * ((3 if n else 2) * enters + 3 * N * each),  # pixels have no gradient
                start=enters + N * each,
                depth=(0 if n else 3)
                + (2 + log(R**2 * I))
                + N * (2 * norm + 2 * (1 + log(9 * O)) + 1)
                + (norm if last else 0),
                saved=B * kept,
                work=3 * FLOAT * B * O * X,
                room=FLOAT * B * (I * P + 3 * O * X if n == 0 else 4 * O * X),
            )
        )
        sides, inputs = left, outputs
    return tuple(parts), sides
