"""Closed forms of the frontends that are nets of their own: residual convolutions over pictures,
and sounds.

The letters are those of layers.py; beside them I are the numbers of a place that is read, O those
of one that is made, P the places given, X those made, Q and Y the same with an edge around, G the
numbers of a place that are normalised together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from regard import recipe as r
from regard.budget.closed_form.layers import named, norm_steps, several
from regard.budget.closed_form.parts import FLOAT, Part
from regard.budget.closed_form.symbols import ZERO, Formula, Size, formula, largest, log

GROUP = 8  # channels that are normalised together if that comes out even, as in layers/residual.py


def residual(s: r.SourceResidual, B: Size) -> tuple[tuple[Part, ...], tuple[int, int]]:
    """A stage is a convolution that makes every stem-th (later every second) place only, and N
    times

        x + W_2 relu(norm(W_1 relu(norm(x))))

    with 3 x 3 places each and no bias, then relu(norm(x)); and the grid that all of them leave. The
    edge around a picture is there in memory, beside the picture; zeros are not.
    """
    parts, sides, inputs, edge = list[Part](), s.size, s.channels_in, s.padding_mode == "edge"
    for n, outputs in enumerate(s.channels):
        step, kernel_size = (2, 3) if n else (s.stem, 2 * s.stem - 1)
        left = (-(-sides[0] // step), -(-sides[1] // step))
        P, X = (
            Size("P", sides[0] * sides[1], "input positions"),
            Size("X", left[0] * left[1], "output positions"),
        )
        I, O = (
            Size("I", inputs, "input channels" if n else "input channels"),
            Size("O", outputs, "output channels"),
        )  # noqa: E741
        R, N = Size("R", kernel_size, "kernel size"), several(s.blocks)
        G = Size("G", GROUP if outputs % GROUP == 0 else outputs, "channels per group")
        enters, each = X * R**2 * I * O, 18 * X * O**2
        norm, last = norm_steps(X * G) + 1, n == len(s.channels) - 1  # with ReLU
        kept, work, room = (
            I * P + (4 * N + 1) * O * X,
            3 * O * X,
            I * P + 3 * O * X if n == 0 else 4 * O * X,
        )
        if edge:
            Q, Y = (
                _edged(name, at, wide)
                for name, at, wide in (("Q", sides, kernel_size // 2), ("Y", left, 1))
            )
            kept = (I * P if n else 0) + I * Q + (4 * N + 1) * O * X + 2 * N * O * Y
            work, room = 2 * O * X + O * Y, room + O * Y
        kept = FLOAT * kept
        if (
            last and s.dropout
        ):  # the memory is not what the last ReLU made, but what dropout made of it
            kept = kept + (FLOAT + 1) * O * X
        sizes = [P, X, *([Q, Y] if edge else []), R, I, O, G, *([N] if isinstance(N, Size) else [])]
        parts.append(
            Part(
                f"stage {n + 1}",
                tuple(sizes),
                parameters=R**2 * I * O + O + N * (18 * O**2 + 4 * O) + 2 * O,
                forward=B * (enters + N * each),
                training=B * ((3 if n else 2) * enters + 3 * N * each),  # pixels have no gradient
                start=enters + N * each,
                depth=(0 if n else 3)
                + (2 + log(R**2 * I))
                + N * (2 * norm + 2 * (1 + log(9 * O)) + 1)
                + norm,
                saved=B * kept,
                work=FLOAT * B * work,
                room=FLOAT * B * room,
            )
        )
        sides, inputs = left, outputs
    return tuple(parts), sides


def _edged(letter: str, sides: tuple[int, int], wide: int) -> Size:
    return Size(letter, (sides[0] + 2 * wide) * (sides[1] + 2 * wide), "the same, padded")


def sound(s: r.SourceSound, S: Size, D: Size, B: Size) -> tuple[Part, ...]:
    """Energies of a frame's frequencies through the mel filters, which are no weights, and
    convolutions of kernel_size 3, each of which makes every stride-th place only. The Fourier
    transform before them is one step and no multiplication.

    Sounds are as long as S places need, unless all of them are `frames` long.
    """
    A: Formula = math.prod(s.strides) * S if s.frames is None else Size("A", s.frames, "frames")
    Q, M = Size("Q", s.window // 2 + 1, "frequencies"), Size("M", s.mels, "mel bands")
    heard = log(s.hop * A) + 4  # which frames are real
    heights = 9 + log(Q) + log(M) + (0 if s.frames is None else 2)
    evening = 10 + 2 * log(A) if s.levels == "bands" else ZERO
    energies = Part(
        "mel bands",
        named(A, Q, M),
        forward=B * A * Q * M,
        training=B * A * Q * M,
        start=A * Q * M,
        depth=largest(heights, heard) + log(A) + (6 if s.levels == "absolute" else 8) + evening,
        room=FLOAT * B * A * (5 * Q + s.window),
    )
    lengths = [A]
    for n, stride in enumerate(s.strides):
        last, later = n == len(s.strides) - 1, s.strides[n + 1 :]
        lengths.append(S if last else _made(lengths[n], stride, S, later, free=s.frames is None))
    return (
        energies,
        *(_over_mels(s, lengths, M, D, B) if s.channels else _over_time(s, lengths, M, D, B)),
    )


def _over_time(
    s: r.SourceSound, lengths: list[Formula], M: Size, D: Size, B: Size
) -> Iterator[Part]:
    """The mels are the numbers of a place."""
    for n, (given, made) in enumerate(pairwise(lengths)):
        inner, dropped = D if n else M, n == len(s.strides) - 1 and s.dropout
        once = 3 * made * inner * D
        yield Part(
            f"sound convolution {n + 1}",
            named(given, made, inner, D),
            parameters=3 * inner * D + D,
            forward=B * once,
            training=(3 if n else 2) * B * once,  # energies have no gradient
            start=once,
            depth=4 + log(3 * inner),
            saved=FLOAT * B * (given * inner + made * D)
            + (B * given if n else 0)
            + (B * made * D if dropped else 0),
            work=FLOAT * B * (given * inner + made * D),
            room=FLOAT * B * (2 * given * inner + 2 * made * D),
        )


def _over_mels(
    s: r.SourceSound, lengths: list[Formula], M: Size, D: Size, B: Size
) -> Iterator[Part]:
    """The mels are places too, of which each convolution makes every second; a layer makes a
    place of those left."""
    bands, inputs, samples = M, formula(1), s.hop * lengths[0]
    for n, ((given, made), channels) in enumerate(zip(pairwise(lengths), s.channels, strict=True)):
        left, O = (
            Size("F", -(-bands.value // 2), "output bands"),
            Size("O", channels, "output channels"),
        )  # noqa: E741
        once, read, written = 9 * made * left * inputs * O, given * bands * inputs, made * left * O
        yield Part(
            f"sound convolution {n + 1}",
            named(given, made, bands, left, inputs, O),
            parameters=9 * inputs * O + O,
            forward=B * once,
            training=(3 if n else 2) * B * once,  # energies have no gradient
            start=once,
            depth=4 + log(9 * inputs),
            saved=FLOAT * B * (read + written) + (B * given if n else 0),
            work=FLOAT * B * (read + written),
            room=FLOAT * B * (samples + (3 if n else 2) * read + (1 if n else 2) * written),
        )
        bands, inputs = Size("M", left.value, "bands"), Size("I", channels, "input channels")
    S, inner = lengths[-1], inputs * bands
    yield Part(
        "sound projection",
        named(S, bands, inputs, D),
        parameters=inner * D + D,
        forward=B * S * inner * D,
        training=3 * B * S * inner * D,
        start=S * inner * D,
        depth=3 + log(inner),
        saved=FLOAT * B * S * (inner + D) + (B * S * D if s.dropout else 0),
        work=FLOAT * B * S * (inner + D),
        room=FLOAT * B * S * (inner + 2 * D),
    )


def _made(given: Formula, stride: int, S: Size, later: tuple[int, ...], *, free: bool) -> Formula:
    return (
        math.prod(later) * S if free else Size("X", -(-given.value // stride), "output positions")
    )
