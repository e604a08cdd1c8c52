"""The parts of whole models, described by a recipe or by numbers alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from regard import recipe as r
from regard.budget.closed_form import attention, convolution, label, layers, recurrent, sources
from regard.budget.closed_form.attention import Stack
from regard.budget.closed_form.layers import NUM_SPECIAL_TOKENS, Lengths
from regard.budget.closed_form.parts import FLOAT, Part
from regard.budget.closed_form.recurrent import Cells
from regard.budget.closed_form.symbols import ZERO, Formula, Size, ceil, log, total

Kernel = Callable[[Stack], Stack]


@dataclass(frozen=True)
class FrontendParts:
    """The parts of a frontend, and the length and width of its output. The length may differ from
    the source length that was asked for."""

    parts: tuple[Part, ...]
    places: Size
    width: int
    grid: tuple[int, int] | None = None


@dataclass(frozen=True)
class EncoderParts:
    """The parts of frontend and encoder, and the size of the memory, their output."""

    parts: tuple[Part, ...]
    places: Formula
    width: Size
    summary: Formula = ZERO  # steps from the memory to its summary
    flat: bool = False  # whether the summary is the concatenation of all positions

    @property
    def depth(self) -> Formula:
        return total(*(part.depth for part in self.parts))

    @property
    def summary_width(self) -> Formula:
        return self.places * self.width if self.flat else self.width


@dataclass(frozen=True)
class Whole:
    """All parts of a model in order, its lengths, and the numbers of the memory between encoder
    and decoder."""

    parts: tuple[Part, ...]
    at: Lengths
    memory: Formula


def whole(
    recipe: r.Recipe, V: Size, at: Lengths, *, labels: int = 2, kernel: Kernel = lambda s: s
) -> Whole:
    """The model of a recipe that supported.py covers; `kernel` may change the attention of its
    Transformers. A new kind of source, encoder or decoder needs a case in `source`, `encoder` or
    here, and its fields in supported.py."""
    frontend = source(recipe, V, at)
    at = replace(at, S=frontend.places)
    encoded = encoder(recipe, frontend, at, kernel)
    if recipe.train.ctc_weight:
        encoded = replace(
            encoded, parts=(*encoded.parts, layers.ctc_output(V, encoded.width, at, encoded.places))
        )
    shared = isinstance(recipe.source, r.SourceTokens) and getattr(recipe.decoder, "shared", False)
    match recipe.decoder:
        case r.DecoderRecurrent() as d:
            parts = (*encoded.parts, *recurrent_decoder(d, V, at, encoded, shared=shared))
        case r.DecoderRecurrentCrossAttention() as d:
            parts = recurrent_cross_attention_decoder(d, V, at, encoded, shared=shared)
        case r.DecoderTransformer() as d:
            s = kernel(stack(d, longest=longest_target(recipe)))
            parts = transformer_decoder(s, V, at, encoded, shared=shared, tied=d.tied)
        case r.DecoderClassifier() as d:
            at = replace(at, T=Size("T", 1, "target length"))
            if recipe.task == "blank":
                vectors = Size("W", frontend.width, "width of a word's vector")
                scored = classifier(
                    d, V - NUM_SPECIAL_TOKENS, at, encoded, vectors=vectors, vocabulary=V
                )
            else:
                scored = classifier(d, Size("C", labels, "labels"), at, encoded)
            parts = (*encoded.parts, *scored)
        case _:
            raise unknown(recipe.decoder)
    return Whole(parts, at, at.B * encoded.places * encoded.width)


def unknown(section: r.Section) -> AssertionError:
    return AssertionError(
        f"{type(section).__name__} is named in supported.py and has no closed form"
    )


def longest_source(recipe: r.Recipe) -> int:
    """The number of learned positions of the encoder; those on a grid have no limit."""
    if isinstance(recipe.data, r.Sounds) and isinstance(recipe.source, r.SourceSound):
        return recipe.source.places(recipe.data.max_seconds) + 1
    return getattr(recipe.data, "max_source", 1 << 40) + 1


def longest_target(recipe: r.Recipe) -> int:
    """The number of learned positions of the decoder: the start token and the longest target."""
    return max(1 + getattr(recipe.data, "max_target", 0), recipe.search.max_new_tokens)


def source(recipe: r.Recipe, V: Size, at: Lengths) -> FrontendParts:
    """The parts of a recipe's frontend."""
    width = r.WIDTH if isinstance(recipe.encoder, r.EncoderIdentity) else recipe.encoder.width
    D = Size("D", width, "width")
    match recipe.source:
        case r.SourceTokens(dropout=dropout):
            if isinstance(recipe.encoder, r.EncoderBlank):
                D = Size("D", recipe.encoder.embedding_width, "width")
            part = layers.embedding(
                "source embedding", V, D, at.B, at.S, shared=False, dropout=dropout, decoding=False
            )
            return FrontendParts((part,), at.S, D.value)
        case r.SourceConvolutions() as s:
            pool = s.downsample == "pool"
            parts, grid = convolution.picture_convolutions(
                s.size, s.channels_in, s.channels, s.padding, s.kernel_size, at.B, pool=pool
            )
            return FrontendParts(parts, _grid_length(grid), s.channels[-1], grid)
        case r.SourceResidual() as s:
            parts, grid = sources.residual(s, at.B)
            return FrontendParts(parts, _grid_length(grid), s.channels[-1], grid)
        case r.SourceSound() as s:
            S = _sound_length(s, at.S)
            parts = sources.sound(s, S, D, at.B)
            return FrontendParts(parts, S, D.value)
        case r.SourcePatches() as s:
            grid = (s.size[0] // s.patch, s.size[1] // s.patch)
            S = _grid_length(grid)
            I = Size("I", s.channels_in * s.patch**2, "values per patch")  # noqa: E741
            return FrontendParts(
                (convolution.patches(I, D, at.B, S, dropout=s.dropout),), S, D.value, grid
            )
        case _:
            raise unknown(recipe.source)


def _sound_length(s: r.SourceSound, S: Size) -> Size:
    """The positions of a sound after its convolutions: S, unless the recipe fixes the frames."""
    stride = math.prod(s.strides)
    places = S.value
    if s.frames is not None:
        places = s.frames
        for each in s.strides:
            places = -(-places // each)
    frames = "a frame" if stride == 1 else f"{stride} frames"
    return Size(
        "S", places, f"positions of the sound, {frames} of {1000 * s.hop / s.rate:.3g} ms each"
    )


def _grid_length(grid: tuple[int, int]) -> Size:
    return Size("S", grid[0] * grid[1], "positions of the grid")


def encoder(recipe: r.Recipe, frontend: FrontendParts, at: Lengths, kernel: Kernel) -> EncoderParts:
    """The parts of a recipe's frontend and encoder."""
    if isinstance(recipe.encoder, r.EncoderIdentity):
        mean = recipe.encoder.summary == "mean"
        steps = 1 + log(at.S) if mean else ZERO
        return EncoderParts(
            frontend.parts,
            at.S,
            Size("E", frontend.width, "width of the memory"),
            steps,
            flat=not mean,
        )
    E = Size("E", recipe.encoder.width, "width of the memory")
    match recipe.encoder:
        case r.EncoderRecurrent() as e:
            own = recurrent_encoder(e, at, frontend)
            # A residual connection is a step on the way to the states, not to the summary.
            summary = ZERO - 1 if e.residual else ZERO
            return EncoderParts((*frontend.parts, own), at.S, E, summary)
        case r.EncoderBlank() as e:
            return EncoderParts((*frontend.parts, blank_encoder(e, at, frontend)), at.S, E)
        case r.EncoderTransformer() as e:
            s = replace(kernel(stack(e, longest=longest_source(recipe))), grid=frontend.grid)
            own = (*attention.input_projection(s, frontend.width, at), *transformer_encoder(s, at))
            # The summary of a blank is its position, that of other tasks the mean.
            mean = ZERO if recipe.task == "blank" else 2 + log(at.S)
            return EncoderParts((*frontend.parts, *own), at.S, E, mean)
        case r.EncoderConvolution() as e:
            D, R = Size("D", e.width, "width"), Size("R", e.kernel_size, "kernel size")
            inputs = (
                D if frontend.width == e.width else Size("I", frontend.width, "width of the input")
            )
            own = convolution.convolutions(
                inputs, D, e.layers, R, at.B, at.S, positions=e.positions, dropout=e.dropout
            )
            places = ceil(at.S, 2**e.layers)
            return EncoderParts((*frontend.parts, own), places, E, 1 + log(places))
        case _:
            raise unknown(recipe.encoder)


def stack(section: r.EncoderTransformer | r.DecoderTransformer, *, longest: int) -> Stack:
    return Stack(**vars(section.sizes), positions=section.positions, longest=longest)


def recurrent_encoder(e: r.EncoderRecurrent, at: Lengths, frontend: FrontendParts) -> Part:
    """LSTM or GRU layers in one direction or two."""
    two_way = e.directions == 2
    concatenates = two_way and e.merge == "concatenate"
    width = e.width // 2 if concatenates else e.width
    c = Cells(e.cell, frontend.width, width, e.layers, e.directions, e.dropout)
    part = recurrent.cells("encoder cells", c, at.B, at.S, from_zeros=True)

    # The indices that reverse a padded sequence are computed in parallel to the frontend.
    reversal = 4 + log(at.S) - total(*(part.depth for part in frontend.parts))
    depth = part.depth
    if two_way and reversal.value > 0:
        depth = depth + reversal
    if two_way and not concatenates:
        depth = depth + 1

    room = part.room
    if two_way and e.cell == "lstm":  # a fused kernel also reads a reversed copy of the input
        room = room + FLOAT * at.B * at.S * (c.above if c.layers > 1 else c.first)
    if e.residual:
        depth = depth + 1
    return replace(part, depth=depth, room=room)


def blank_encoder(e: r.EncoderBlank, at: Lengths, frontend: FrontendParts) -> Part:
    """A stack of cells in each direction, in parallel; the second reads the source reversed."""
    X = e.directions
    c = Cells(e.cell, frontend.width, e.width // X, e.layers, 1, e.dropout)
    part = recurrent.cells("encoder cells", c, at.B, at.S, from_zeros=True)
    reversal = 3 + log(at.S) if X == 2 else ZERO
    room = part.room
    if X == 2:
        room = room + FLOAT * at.B * at.S * (2 * c.D + c.first)
    return replace(
        part,
        parameters=X * part.parameters,
        forward=X * part.forward,
        training=X * part.training,
        start=X * part.start,
        depth=part.depth + reversal + 1,
        saved=X * part.saved + FLOAT * at.B * at.S * e.width,  # indexing saves its whole input
        room=room,
    )


def transformer_encoder(s: Stack, at: Lengths) -> tuple[Part, ...]:
    return (
        attention.positions("encoder positions", s, at.S, decoding=False),
        attention.self_attention("encoder self-attention", s, at.B, at.S, None, causal=False),
        attention.feed_forward("encoder feed-forward", s, at.B, at.S, decoding=False),
        attention.norms("encoder norms", s, 2, at.B, at.S, decoding=False),
    )


def recurrent_decoder(
    d: r.DecoderRecurrent, V: Size, at: Lengths, encoded: EncoderParts, *, shared: bool
) -> tuple[Part, ...]:
    """Cells with attention to the memory before or after them, or without attention."""
    before = d.attention_order == "before_cell"
    stepwise = before or d.input_feeding
    context_width = 0  # of what the cell reads beside the token
    if d.input_feeding:
        context_width = d.width
    elif before:
        context_width = encoded.width.value
    c = Cells(d.cell, d.width + context_width, d.width, d.layers, 1, d.dropout)
    embedding = layers.embedding(
        "target embedding", V, c.D, at.B, at.T, shared=shared, dropout=d.dropout, decoding=True
    )
    bridge = recurrent.bridge(c, at, encoded.summary_width)
    attention_part = recurrent.recurrent_attention(
        c, at, encoded.places, encoded.width, score=d.attention, stepwise=stepwise, before=before
    )
    cells = recurrent.cells(
        "decoder cells", c, at.B, at.T, from_zeros=False, stepwise=stepwise, decoding=True
    )

    if stepwise:  # a position waits for the attention at the position before
        one_position = c.N * (recurrent.CELL_STEPS[d.cell] + log(c.D))
        wider_input = log(c.first) - log(c.D)
        cells = replace(
            cells,
            depth=at.T * one_position + (at.T if before else at.T - 1) * wider_input,
        )
        attention_part = replace(
            attention_part, depth=at.T * attention_part.depth + (1 + log(c.D) if before else 0)
        )
    if d.attention != "none":  # gradients of the memory, of its keys, and their sum
        memory = FLOAT * at.B * encoded.places * encoded.width
        has_keys = d.attention in ("general", "additive")
        keys = FLOAT * at.B * encoded.places * c.D if has_keys else ZERO
        cells = replace(cells, work=cells.work + 3 * memory, room=cells.room + keys)
    if d.input_feeding:
        cells = replace(cells, state=cells.state + FLOAT * c.D)
    if before:  # the context is deeper than the token
        embedding = replace(embedding, token_depth=ZERO)
    return (
        replace(embedding, depth=ZERO),  # in parallel to the encoder
        replace(bridge, depth=encoded.summary + bridge.depth),
        cells,
        attention_part,
        layers.output(V, c.D, at, tied=d.tied),
    )


def recurrent_cross_attention_decoder(
    d: r.DecoderRecurrentCrossAttention,
    V: Size,
    at: Lengths,
    encoded: EncoderParts,
    *,
    shared: bool,
) -> tuple[Part, ...]:
    """All parts of the model: the encoder, cells that start from zero, and a Transformer block with
    cross-attention. Cells and encoder work in parallel: only the longer chain has a depth."""
    s = Stack(
        layers=1,
        width=d.width,
        heads=d.heads,
        ffn_width=d.ffn_width,
        activation="gelu",
        dropout=d.dropout,
        key_bias=d.key_bias,
    )
    c = Cells(d.cell, d.width, d.width, d.layers, 1, d.dropout)
    embedding = layers.embedding(
        "target embedding", V, s.D, at.B, at.T, shared=shared, dropout=d.dropout, decoding=True
    )
    steps = layers.norm_steps(s.D)
    input_norm = Part(
        "decoder input norm",
        (s.D,),
        parameters=2 * s.D,
        depth=steps,
        token_depth=steps,
        saved=FLOAT * at.B * at.T * (s.D + 2),
    )
    cells = replace(
        recurrent.cells("decoder cells", c, at.B, at.T, from_zeros=True, decoding=True), start=ZERO
    )
    cross_attention = attention.cross_attention(
        "decoder cross-attention", s, at, encoded.places, encoded.width
    )
    # A decode step always applies the mask, even if it hides nothing.
    cross_attention = replace(cross_attention, token_depth=cross_attention.token_depth + 1)
    query, keys = steps + 2 + log(s.D), 2 + log(encoded.width)
    own = embedding.depth + input_norm.depth + cells.depth + query
    if (encoded.depth + keys).value >= own.value:
        embedding, input_norm, cells = (
            replace(part, depth=ZERO) for part in (embedding, input_norm, cells)
        )
        cross_attention = replace(cross_attention, depth=cross_attention.depth - query + keys)
    else:
        encoded = replace(encoded, parts=tuple(replace(part, depth=ZERO) for part in encoded.parts))
    return (
        *encoded.parts,
        embedding,
        input_norm,
        cells,
        cross_attention,
        attention.feed_forward("decoder feed-forward", s, at.B, at.T, decoding=True),
        attention.norms("decoder norms", s, 2, at.B, at.T, decoding=True),
        layers.output(V, s.D, at, tied=d.tied),
    )


def classifier(
    d: r.DecoderClassifier,
    C: Formula,
    at: Lengths,
    encoded: EncoderParts,
    *,
    vectors: Size | None = None,
    vocabulary: Size | None = None,
) -> tuple[Part, ...]:
    """Pooling (the memory's summary, or attention with a learned query), layers with ReLU, scores
    of the labels. Labels that are words are scored by embeddings of width `vectors`, which may be
    those of the source's `vocabulary`."""
    width: Formula
    if d.pooling == "attention":
        parts = [label.attention(encoded.width, encoded.places, at.B)]
        width = encoded.width
    else:
        parts = [Part("summary", depth=encoded.summary)]
        width = encoded.summary_width

    mask = 1 if d.dropout else 0  # bytes that dropout saves, per number
    for n, hidden in enumerate(d.hidden, 1):
        W = Size(f"W{n}", hidden, "width of a layer")
        parts.append(label.layer(f"label layer {n}", width, W, at.B, saved_bytes=FLOAT + mask))
        width = W
        mask = FLOAT + 1 if d.hidden_dropout else 0
    if d.hidden:
        mask = 0
    if vectors is not None:
        parts.append(label.projection(width, vectors, at.B, saved_bytes=FLOAT + mask))
        width = vectors
        mask = 0

    tied = vocabulary if d.tied else None
    return (*parts, label.scores(width, C, at, saved_bytes=FLOAT + mask, tied=tied))


def language_model(s: Stack, V: Size, at: Lengths, *, tied: bool, bias: bool) -> tuple[Part, ...]:
    """A decoder without an encoder."""
    return (
        layers.embedding(
            "target embedding", V, s.D, at.B, at.T, shared=False, dropout=s.dropout, decoding=True
        ),
        attention.positions("decoder positions", s, at.T, decoding=True),
        attention.self_attention("decoder self-attention", s, at.B, at.T, at.t, causal=True),
        attention.feed_forward("decoder feed-forward", s, at.B, at.T, decoding=True),
        attention.norms("decoder norms", s, 2, at.B, at.T, decoding=True),
        layers.output(V, s.D, at, tied=tied, bias=bias),
    )


def transformer_decoder(
    s: Stack,
    V: Size,
    at: Lengths,
    encoded: EncoderParts,
    *,
    shared: bool,
    tied: bool,
    bias: bool = True,
) -> tuple[Part, ...]:
    """All parts of the model. The decoder's first self-attention and the encoder work in parallel,
    and cross-attention waits for the later of the two: only the longer chain has a depth."""
    embedding = layers.embedding(
        "target embedding", V, s.D, at.B, at.T, shared=shared, dropout=s.dropout, decoding=True
    )
    places = attention.positions("decoder positions", s, at.T, decoding=True)
    self_attention = attention.self_attention(
        "decoder self-attention", s, at.B, at.T, at.t, causal=True
    )
    cross_attention = attention.cross_attention(
        "decoder cross-attention", s, at, encoded.places, encoded.width
    )
    one_layer = (
        attention.attention_steps(s)
        + attention.mixing(s, at.B, at.T, at.T, causal=True, hidden=True).depth
    )
    query = (layers.norm_steps(s.D) if s.norm == "pre" else ZERO) + 2 + log(s.D)
    scaling = 0 if s.kernel == "maclaurin" else 1  # there the query is scaled, not the scores
    keys = 1 + log(encoded.width) + scaling
    if (encoded.depth + keys).value >= (embedding.depth + places.depth + one_layer + query).value:
        embedding, places = replace(embedding, depth=ZERO), replace(places, depth=ZERO)
        self_attention = replace(self_attention, depth=(s.N - 1) * one_layer)
        cross_attention = replace(cross_attention, depth=cross_attention.depth - query + keys)
    else:
        encoded = replace(encoded, parts=tuple(replace(part, depth=ZERO) for part in encoded.parts))
    feed_forward = attention.feed_forward("decoder feed-forward", s, at.B, at.T, decoding=True)
    keys_and_values = 2 * FLOAT * at.B * encoded.places * s.A  # of one layer
    return (
        *encoded.parts,
        embedding,
        places,
        self_attention,
        cross_attention,
        replace(feed_forward, room=feed_forward.room + keys_and_values),
        attention.norms("decoder norms", s, 3, at.B, at.T, decoding=True),
        layers.output(V, s.D, at, tied=tied, bias=bias),
    )
