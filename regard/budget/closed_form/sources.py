"""Closed forms of the frontends that are networks of their own: residual convolutions over images,
and convolutions over sounds.

Symbols beside those of layers.py: I and O are input and output channels, P and X input and output
positions, Q and Y the same with padding, G the channels that are normalised together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from regard import recipe as r
from regard.budget.closed_form.layers import named, norm_steps, several
from regard.budget.closed_form.parts import FLOAT, Part
from regard.budget.closed_form.symbols import ZERO, Formula, Size, formula, largest, log

GROUP = 8  # channels that are normalised together, if it divides them, as in layers/residual.py


def residual(s: r.SourceResidual, B: Size) -> tuple[tuple[Part, ...], tuple[int, int]]:
    """The stages of a residual network, and the grid after the last.

    A stage is a convolution with stride `stem` (2 after the first stage), then N blocks

        x + W_2 relu(norm(W_1 relu(norm(x))))

    of 3 x 3 convolutions without a bias, then relu(norm(x)). Edge padding is a copy of the image in
    memory; zero padding is not.
    """
    parts: list[Part] = []
    grid = s.size
    inputs = s.channels_in
    edge = s.padding_mode == "edge"
    for n, outputs in enumerate(s.channels):
        first = n == 0
        last = n == len(s.channels) - 1
        stride, kernel_size = (s.stem, 2 * s.stem - 1) if first else (2, 3)
        smaller = (-(-grid[0] // stride), -(-grid[1] // stride))

        P = Size("P", grid[0] * grid[1], "input positions")
        X = Size("X", smaller[0] * smaller[1], "output positions")
        I = Size("I", inputs, "input channels")  # noqa: E741
        O = Size("O", outputs, "output channels")  # noqa: E741
        R = Size("R", kernel_size, "kernel size")
        N = several(s.blocks)
        G = Size("G", GROUP if outputs % GROUP == 0 else outputs, "channels per group")

        entry = X * R**2 * I * O
        block = 18 * X * O**2
        norm = norm_steps(X * G) + 1  # with ReLU

        saved = I * P + (4 * N + 1) * O * X
        work = 3 * O * X
        room = I * P + 3 * O * X if first else 4 * O * X
        if edge:
            Q = _padded("Q", grid, kernel_size // 2)
            Y = _padded("Y", smaller, 1)
            saved = (ZERO if first else I * P) + I * Q + (4 * N + 1) * O * X + 2 * N * O * Y
            work = 2 * O * X + O * Y
            room = room + O * Y
        saved = FLOAT * saved
        if last and s.dropout:  # the memory is a copy of the output of the last ReLU, with a mask
            saved = saved + (FLOAT + 1) * O * X
        sizes = (P, X, Q, Y, R, I, O, G) if edge else (P, X, R, I, O, G)
        parts.append(
            Part(
                f"stage {n + 1}",
                (*sizes, *named(N)),
                parameters=R**2 * I * O + O + N * (18 * O**2 + 4 * O) + 2 * O,
                forward=B * (entry + N * block),
                training=B
                * ((2 if first else 3) * entry + 3 * N * block),  # pixels need no gradient
                start=entry + N * block,
                depth=(3 if first else 0)
                + (2 + log(R**2 * I))
                + N * (2 * norm + 2 * (1 + log(9 * O)) + 1)
                + norm,
                saved=B * saved,
                work=FLOAT * B * work,
                room=FLOAT * B * room,
            )
        )
        grid = smaller
        inputs = outputs
    return tuple(parts), grid


def _padded(symbol: str, grid: tuple[int, int], padding: int) -> Size:
    positions = (grid[0] + 2 * padding) * (grid[1] + 2 * padding)
    return Size(symbol, positions, "positions with padding")


def sound(s: r.SourceSound, S: Size, D: Size, B: Size) -> tuple[Part, ...]:
    """Mel filters, which are no weights, then convolutions of kernel size 3 with strides. The
    Fourier transform before them is one step and no multiplication.

    The sounds have as many frames as S positions need, unless all of them are `frames` long.
    """
    A: Formula = math.prod(s.strides) * S if s.frames is None else Size("A", s.frames, "frames")
    Q = Size("Q", s.window // 2 + 1, "frequencies")
    M = Size("M", s.mels, "mel bands")

    mask_steps = log(s.hop * A) + 4  # which frames are real
    mel_steps = 9 + log(Q) + log(M) + (0 if s.frames is None else 2)
    level_steps = log(A) + (6 if s.levels == "absolute" else 8)
    normalisation_steps = 10 + 2 * log(A) if s.levels == "bands" else ZERO
    mels = Part(
        "mel bands",
        named(A, Q, M),
        forward=B * A * Q * M,
        training=B * A * Q * M,
        start=A * Q * M,
        depth=largest(mel_steps, mask_steps) + level_steps + normalisation_steps,
        room=FLOAT * B * A * (5 * Q + s.window),
    )

    lengths = [A]  # before and after each convolution
    for n, stride in enumerate(s.strides[:-1]):
        if s.frames is None:
            lengths.append(math.prod(s.strides[n + 1 :]) * S)
        else:
            lengths.append(Size("X", -(-lengths[n].value // stride), "output positions"))
    lengths.append(S)

    convolutions = _over_time_and_mels if s.channels else _over_time
    return (mels, *convolutions(s, lengths, M, D, B))


def _over_time(
    s: r.SourceSound, lengths: list[Formula], M: Size, D: Size, B: Size
) -> Iterator[Part]:
    """Convolutions over time, whose input channels are the mel bands."""
    for n, (before, after) in enumerate(pairwise(lengths)):
        first = n == 0
        last = n == len(s.strides) - 1
        inputs = M if first else D
        products = 3 * after * inputs * D
        saved = FLOAT * B * (before * inputs + after * D)
        if not first:
            saved = saved + B * before
        if last and s.dropout:
            saved = saved + B * after * D
        yield Part(
            f"sound convolution {n + 1}",
            named(before, after, inputs, D),
            parameters=3 * inputs * D + D,
            forward=B * products,
            training=(2 if first else 3) * B * products,  # mels need no gradient
            start=products,
            depth=4 + log(3 * inputs),
            saved=saved,
            work=FLOAT * B * (before * inputs + after * D),
            room=FLOAT * B * (2 * before * inputs + 2 * after * D),
        )


def _over_time_and_mels(
    s: r.SourceSound, lengths: list[Formula], M: Size, D: Size, B: Size
) -> Iterator[Part]:
    """Convolutions over time and mel bands, each of which halves the bands; then a projection of
    all channels and bands of a position."""
    bands = M
    inputs = formula(1)
    samples = s.hop * lengths[0]
    for n, ((before, after), channels) in enumerate(
        zip(pairwise(lengths), s.channels, strict=True)
    ):
        first = n == 0
        half = Size("F", -(-bands.value // 2), "output bands")
        O = Size("O", channels, "output channels")  # noqa: E741
        products = 9 * after * half * inputs * O
        read = before * bands * inputs
        written = after * half * O
        room = samples + (2 * read + 2 * written if first else 3 * read + written)
        yield Part(
            f"sound convolution {n + 1}",
            named(before, after, bands, half, inputs, O),
            parameters=9 * inputs * O + O,
            forward=B * products,
            training=(2 if first else 3) * B * products,  # mels need no gradient
            start=products,
            depth=4 + log(9 * inputs),
            saved=FLOAT * B * (read + written) + (ZERO if first else B * before),
            work=FLOAT * B * (read + written),
            room=FLOAT * B * room,
        )
        bands = Size("M", half.value, "bands")
        inputs = Size("I", channels, "input channels")

    S = lengths[-1]
    width = inputs * bands
    yield Part(
        "sound projection",
        named(S, bands, inputs, D),
        parameters=width * D + D,
        forward=B * S * width * D,
        training=3 * B * S * width * D,
        start=S * width * D,
        depth=3 + log(width),
        saved=FLOAT * B * S * (width + D) + (B * S * D if s.dropout else 0),
        work=FLOAT * B * S * (width + D),
        room=FLOAT * B * S * (width + 2 * D),
    )
