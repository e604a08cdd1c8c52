"""The parts of a whole model: of a recipe, or of numbers alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from regard import recipe as r
from regard.budget.closed_form import attention, convolution, label, layers, recurrent, sources
from regard.budget.closed_form.attention import Stack
from regard.budget.closed_form.layers import MARKS, Lengths
from regard.budget.closed_form.parts import FLOAT, Part
from regard.budget.closed_form.recurrent import Cells
from regard.budget.closed_form.symbols import ZERO, Formula, Size, ceil, log, total

Kernel = Callable[[Stack], Stack]


@dataclass(frozen=True)
class Seen:
    """What a frontend makes of the raw input: `places` that the encoder reads, whatever length
    was asked for."""

    parts: tuple[Part, ...]
    places: Size
    width: int
    grid: tuple[int, int] | None = None


@dataclass(frozen=True)
class Read:
    """Frontend and encoder, and the memory that they leave."""

    parts: tuple[Part, ...]
    places: Formula
    width: Size
    summary: Formula = ZERO  # steps from the memory's states to its summary
    flat: bool = False  # whether the summary is all places side by side

    @property
    def depth(self) -> Formula:
        return total(*(part.depth for part in self.parts))

    @property
    def summarised(self) -> Formula:
        """The width of the summary."""
        return self.places * self.width if self.flat else self.width


@dataclass(frozen=True)
class Whole:
    """All parts of a model in the order in which they work, its lengths, and the memory between
    encoder and decoder."""

    parts: tuple[Part, ...]
    at: Lengths
    memory: Formula


def whole(
    recipe: r.Recipe, V: Size, at: Lengths, *, labels: int = 2, kernel: Kernel = lambda s: s
) -> Whole:
    """Of a recipe that is `known`; `kernel` may give its Transformers another. A new kind of
    source, encoder or decoder needs a case in `source`, `encoder` or here, and its fields in
    known.py."""
    seen = source(recipe, V, at)
    at = replace(at, S=seen.places)
    read = encoder(recipe, seen, at, kernel)
    if recipe.train.ctc_weight:
        read = replace(read, parts=(*read.parts, layers.ctc_output(V, read.width, at, read.places)))
    shared = isinstance(recipe.source, r.SourceTokens) and getattr(recipe.decoder, "shared", False)
    match recipe.decoder:
        case r.DecoderRecurrent() as d:
            parts = (*read.parts, *recurrent_decoder(d, V, at, read, shared=shared))
        case r.DecoderRecurrentCrossAttention() as d:
            parts = recurrent_block_decoder(d, V, at, read, shared=shared)
        case r.DecoderTransformer() as d:
            s = kernel(stack(d, longest=longest_target(recipe)))
            parts = transformer_decoder(s, V, at, read, shared=shared, tied=d.tied)
        case r.DecoderClassifier() as d:
            at = replace(at, T=Size("T", 1, "target length"))
            if recipe.task == "blank":
                vectors = Size("W", seen.width, "width of a word's vector")
                scored = one_shot(d, V - MARKS, at, read, vectors=vectors, vocabulary=V)
            else:
                scored = one_shot(d, Size("C", labels, "labels"), at, read)
            parts = (*read.parts, *scored)
        case _:
            raise unknown(recipe.decoder)
    return Whole(parts, at, at.B * read.places * read.width)


def unknown(section: r.Section) -> AssertionError:
    return AssertionError(f"{type(section).__name__} is named in known.py and has no form")


def longest_source(recipe: r.Recipe) -> int:
    """Places that learned positions of the encoder kernel_size; those on a grid kernel_size just
    as far as they must."""
    if isinstance(recipe.data, r.Sounds) and isinstance(recipe.source, r.SourceSound):
        return recipe.source.places(recipe.data.max_seconds) + 1
    return getattr(recipe.data, "max_source", 1 << 40) + 1


def longest_target(recipe: r.Recipe) -> int:
    """Places that learned positions of the decoder kernel_size: the start mark stands before the
    first of its tokens."""
    return max(1 + getattr(recipe.data, "max_target", 0), recipe.search.max_new_tokens)


def source(recipe: r.Recipe, V: Size, at: Lengths) -> Seen:
    D = Size(
        "D",
        r.WIDTH if isinstance(recipe.encoder, r.EncoderIdentity) else recipe.encoder.width,
        "width",
    )
    match recipe.source:
        case r.SourceTokens(dropout=dropout):
            if isinstance(recipe.encoder, r.EncoderBlank):
                D = Size("D", recipe.encoder.embedding_width, "width")
            part = layers.embedding(
                "source embedding", V, D, at.B, at.S, shared=False, dropout=dropout, decoding=False
            )
            return Seen((part,), at.S, D.value)
        case r.SourceConvolutions() as s:
            pool = s.downsample == "pool"
            parts, grid = convolution.picture_convolutions(
                s.size, s.channels_in, s.channels, s.padding, s.kernel_size, at.B, pool=pool
            )
            return Seen(parts, _places(grid), s.channels[-1], grid)
        case r.SourceResidual() as s:
            parts, grid = sources.residual(s, at.B)
            return Seen(parts, _places(grid), s.channels[-1], grid)
        case r.SourceSound() as s:
            S = _heard(s, at.S)
            parts = sources.sound(s, S, D, at.B)
            return Seen(parts, S, D.value)
        case r.SourcePatches() as s:
            grid = (s.size[0] // s.patch, s.size[1] // s.patch)
            S, I = _places(grid), Size("I", s.channels_in * s.patch**2, "values per patch")  # noqa: E741
            return Seen((convolution.patches(I, D, at.B, S, dropout=s.dropout),), S, D.value, grid)
        case _:
            raise unknown(recipe.source)


def _heard(s: r.SourceSound, asked: Size) -> Size:
    """The places that convolutions leave of a sound: those asked for, unless all sounds have as
    many frames."""
    each, places = math.prod(s.strides), asked.value
    if s.frames is not None:
        places = s.frames
        for stride in s.strides:
            places = -(-places // stride)
    frames = "a frame" if each == 1 else f"{each} frames"
    return Size(
        "S", places, f"positions of the sound, {frames} of {1000 * s.hop / s.rate:.3g} ms each"
    )


def _places(grid: tuple[int, int]) -> Size:
    return Size("S", grid[0] * grid[1], "positions of the grid")


def encoder(recipe: r.Recipe, seen: Seen, at: Lengths, kernel: Kernel) -> Read:
    if isinstance(recipe.encoder, r.EncoderIdentity):
        mean = recipe.encoder.summary == "mean"
        steps = 1 + log(at.S) if mean else ZERO
        return Read(
            seen.parts, at.S, Size("E", seen.width, "width of the memory"), steps, flat=not mean
        )
    E = Size("E", recipe.encoder.width, "width of the memory")
    match recipe.encoder:
        case r.EncoderRecurrent() as e:
            return Read((*seen.parts, recurrent_encoder(e, at, seen)), at.S, E)
        case r.EncoderBlank() as e:
            return Read((*seen.parts, two_way_encoder(e, at, seen)), at.S, E)
        case r.EncoderTransformer() as e:
            s = replace(kernel(stack(e, longest=longest_source(recipe))), grid=seen.grid)
            own = (*attention.input_projection(s, seen.width, at), *transformer_encoder(s, at))
            mean = (
                ZERO if recipe.task == "blank" else 2 + log(at.S)
            )  # there the asked place is the summary
            return Read((*seen.parts, *own), at.S, E, mean)
        case r.EncoderConvolution() as e:
            D, R = Size("D", e.width, "width"), Size("R", e.kernel_size, "kernel size")
            reads = D if seen.width == e.width else Size("I", seen.width, "width of the input")
            own = convolution.convolutions(
                reads, D, e.layers, R, at.B, at.S, positions=e.positions, dropout=e.dropout
            )
            places = ceil(at.S, 2**e.layers)
            return Read((*seen.parts, own), places, E, 1 + log(places))
        case _:
            raise unknown(recipe.encoder)


def stack(section: r.EncoderTransformer | r.DecoderTransformer, *, longest: int) -> Stack:
    return Stack(
        layers=section.layers,
        width=section.width,
        heads=section.heads,
        head_width=section.head_width,
        ffn_width=section.ffn_width,
        norm=section.norm,
        positions=section.positions,
        activation=section.activation,
        kernel=section.kernel,
        terms=section.terms,
        dropout=section.dropout,
        longest=longest,
        key_bias=section.key_bias,
    )


def recurrent_encoder(e: r.EncoderRecurrent, at: Lengths, seen: Seen) -> Part:
    halved = e.directions == 2 and e.merge == "concatenate"
    each = e.width // 2 if halved else e.width
    c = Cells(e.cell, seen.width, each, e.layers, e.directions, e.dropout)
    part = recurrent.cells("encoder cells", c, at.B, at.S, from_zeros=True)
    rotation = (
        4 + log(at.S) - total(*(part.depth for part in seen.parts))
    )  # places are counted beside the frontend
    rotation = rotation if e.directions == 2 and rotation.value > 0 else ZERO
    fused = e.directions == 2 and e.cell == "lstm"  # beside its input, what it reads turned around
    reads = FLOAT * at.B * at.S * (c.above if c.layers > 1 else c.first) if fused else ZERO
    depth = part.depth + rotation + (1 if e.directions == 2 and not halved else 0)
    return replace(part, depth=depth, room=part.room + reads)


def two_way_encoder(e: r.EncoderBlank, at: Lengths, seen: Seen) -> Part:
    """A stack in each direction, side by side; the second reads real places from the last one
    on."""
    X = e.directions
    c = Cells(e.cell, seen.width, e.width // X, e.layers, 1, e.dropout)
    part = recurrent.cells("encoder cells", c, at.B, at.S, from_zeros=True)
    turned = 3 + log(at.S) if X == 2 else ZERO
    moved = e.width  # what is looked up by its place is kept whole
    return replace(
        part,
        parameters=X * part.parameters,
        forward=X * part.forward,
        training=X * part.training,
        start=X * part.start,
        depth=part.depth + turned + 1,
        saved=X * part.saved + FLOAT * at.B * at.S * moved,
        room=part.room + (FLOAT * at.B * at.S * (2 * c.D + c.first) if X == 2 else 0),
    )


def transformer_encoder(s: Stack, at: Lengths) -> tuple[Part, ...]:
    return (
        attention.positions("encoder positions", s, at.S, decoding=False),
        attention.self_attention("encoder self-attention", s, at.B, at.S, None, causal=False),
        attention.feed_forward("encoder feed-forward", s, at.B, at.S, decoding=False),
        attention.norms("encoder norms", s, 2, at.B, at.S, decoding=False),
    )


def recurrent_decoder(
    d: r.DecoderRecurrent, V: Size, at: Lengths, read: Read, *, shared: bool
) -> tuple[Part, ...]:
    before, stepwise = (
        d.attention_order == "before_cell",
        d.attention_order == "before_cell" or d.input_feeding,
    )
    more = d.width if d.input_feeding else read.width.value if before else 0
    c = Cells(d.cell, d.width + more, d.width, d.layers, 1, d.dropout)
    embedding = layers.embedding(
        "target embedding", V, c.D, at.B, at.T, shared=shared, dropout=d.dropout, decoding=True
    )
    bridge = recurrent.bridge(c, at, read.summarised)
    look = recurrent.recurrent_attention(
        c, at, read.places, read.width, score=d.attention, stepwise=stepwise, before=before
    )
    cells = recurrent.cells(
        "decoder cells", c, at.B, at.T, from_zeros=False, stepwise=stepwise, decoding=True
    )
    if stepwise:  # a place waits for where the one before it has looked
        place = recurrent.CELL_STEPS[d.cell]
        once, wider = c.N * (place + log(c.D)), log(c.first) - log(c.D)
        cells = replace(cells, depth=at.T * once + (at.T if before else at.T - 1) * wider)
        look = replace(look, depth=at.T * look.depth + (1 + log(c.D) if before else 0))
    seen = (
        FLOAT * at.B * read.places * read.width
    )  # gradients of the memory, of its keys, of both together
    keys = FLOAT * at.B * read.places * c.D if d.attention in ("general", "additive") else ZERO
    if d.attention != "none":
        cells = replace(cells, work=cells.work + 3 * seen, room=cells.room + keys)
    if d.input_feeding:
        cells = replace(cells, state=cells.state + FLOAT * c.D)
    if before:  # the context is deeper than the token
        embedding = replace(embedding, token_depth=ZERO)
    return (
        replace(embedding, depth=ZERO),  # beside the encoder
        replace(bridge, depth=read.summary + bridge.depth),
        cells,
        look,
        layers.output(V, c.D, at, tied=d.tied),
    )


def recurrent_block_decoder(
    d: r.DecoderRecurrentCrossAttention, V: Size, at: Lengths, read: Read, *, shared: bool
) -> tuple[Part, ...]:
    """All parts of the model: cells that start from zero, and a block that reads the memory. Of
    the depth they have the longer chain: cells and encoder work side by side."""
    s = Stack(
        1,
        d.width,
        d.heads,
        d.width // d.heads,
        d.ffn_width,
        norm="pre",
        dropout=d.dropout,
        key_bias=d.key_bias,
    )
    c = Cells(d.cell, d.width, d.width, d.layers, 1, d.dropout)
    embedding = layers.embedding(
        "target embedding", V, s.D, at.B, at.T, shared=shared, dropout=d.dropout, decoding=True
    )
    steps = layers.norm_steps(s.D)
    entrance = Part(
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
    reading = attention.cross_attention("decoder cross-attention", s, at, read.places, read.width)
    reading = replace(
        reading, token_depth=reading.token_depth + 1
    )  # a step hides places whether there are any or not
    query, keys = steps + 2 + log(s.D), 2 + log(read.width)
    own = embedding.depth + entrance.depth + cells.depth + query
    if (read.depth + keys).value >= own.value:
        embedding, entrance, cells = (
            replace(part, depth=ZERO) for part in (embedding, entrance, cells)
        )
        reading = replace(reading, depth=reading.depth - query + keys)
    else:
        read = replace(read, parts=tuple(replace(part, depth=ZERO) for part in read.parts))
    return (
        *read.parts,
        embedding,
        entrance,
        cells,
        reading,
        attention.feed_forward("decoder feed-forward", s, at.B, at.T, decoding=True),
        attention.norms("decoder norms", s, 2, at.B, at.T, decoding=True),
        layers.output(V, s.D, at, tied=d.tied),
    )


def one_shot(
    d: r.DecoderClassifier,
    C: Formula,
    at: Lengths,
    read: Read,
    *,
    vectors: Size | None = None,
    vocabulary: Size | None = None,
) -> tuple[Part, ...]:
    """One look at the memory (its summary, or what a learned query sees), layers with ReLU,
    scores of the labels. Where those are words they have `vectors`, which may be those of the
    source's `vocabulary`."""
    attends, kept = d.pooling == "attention", 1 if d.dropout else 0
    look = (
        label.attention(read.width, read.places, at.B)
        if attends
        else Part("summary", depth=read.summary)
    )
    inner = read.width if attends else read.summarised
    parts, widths = (
        [look],
        [Size(f"W{n}", width, "width of a layer") for n, width in enumerate(d.hidden, 1)],
    )
    for n, wide in enumerate(widths, 1):
        parts.append(label.layer(f"label layer {n}", inner, wide, at.B, saved_bytes=FLOAT + kept))
        inner, kept = wide, (FLOAT + 1 if d.hidden_dropout else 0)
    kept = 0 if widths else kept
    if vectors is not None:
        parts.append(label.projection(inner, vectors, at.B, saved_bytes=FLOAT + kept))
        inner, kept = vectors, 0
    tied = vocabulary if d.tied else None
    return (*parts, label.scores(inner, C, at, saved_bytes=FLOAT + kept, tied=tied))


def language_model(s: Stack, V: Size, at: Lengths, *, tied: bool, bias: bool) -> tuple[Part, ...]:
    """A decoder that reads nothing but what it writes."""
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
    s: Stack, V: Size, at: Lengths, read: Read, *, shared: bool, tied: bool, bias: bool = True
) -> tuple[Part, ...]:
    """All parts of the model. Of the depth they have the longest chain only: the decoder's first
    self-attention and the encoder work side by side, and attention to the memory waits for the
    later of the two."""
    embedding = layers.embedding(
        "target embedding", V, s.D, at.B, at.T, shared=shared, dropout=s.dropout, decoding=True
    )
    places = attention.positions("decoder positions", s, at.T, decoding=True)
    looking = attention.self_attention("decoder self-attention", s, at.B, at.T, at.t, causal=True)
    reading = attention.cross_attention("decoder cross-attention", s, at, read.places, read.width)
    one_look = (
        attention.attention_steps(s)
        + attention.mixing(s, at.B, at.T, at.T, causal=True, hidden=True).depth
    )
    query = (layers.norm_steps(s.D) if s.norm == "pre" else ZERO) + 2 + log(s.D)
    keys = (
        2 + log(read.width) - (1 if s.kernel == "maclaurin" else 0)
    )  # there the query is scaled, not the scores
    if (read.depth + keys).value >= (embedding.depth + places.depth + one_look + query).value:
        embedding, places = replace(embedding, depth=ZERO), replace(places, depth=ZERO)
        looking = replace(looking, depth=(s.N - 1) * one_look)
        reading = replace(reading, depth=reading.depth - query + keys)
    else:
        read = replace(read, parts=tuple(replace(part, depth=ZERO) for part in read.parts))
    inside = attention.feed_forward("decoder feed-forward", s, at.B, at.T, decoding=True)
    return (
        *read.parts,
        embedding,
        places,
        looking,
        reading,
        replace(
            inside, room=inside.room + 2 * FLOAT * at.B * read.places * s.A
        ),  # keys and values of the layer
        attention.norms("decoder norms", s, 3, at.B, at.T, decoding=True),
        layers.output(V, s.D, at, tied=tied, bias=bias),
    )
