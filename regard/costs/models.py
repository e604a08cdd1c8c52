"""The parts of a whole model: of a recipe, or of numbers alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from regard import recipe as r
from regard.costs import layers
from regard.costs.layers import Cells, Lengths, Stack
from regard.costs.parts import Part
from regard.costs.symbols import ZERO, Formula, Size, ceil, log, total


@dataclass(frozen=True)
class Read:
    """The source's embedding and the encoder, and the memory that they leave."""

    parts: tuple[Part, ...]
    places: Formula
    width: Size
    summary: Formula  # steps from the memory's states to its summary

    @property
    def depth(self) -> Formula:
        return total(*(part.depth for part in self.parts))


Kernel = Callable[[Stack], Stack]


def parts(recipe: r.Recipe, V: Size, at: Lengths, *, kernel: Kernel = lambda s: s) -> tuple[Part, ...]:
    """The rows of a recipe's budget, in the order in which they work; `kernel` may give its Transformers another."""
    read = encoder(recipe, V, at, kernel)
    match recipe.decoder:
        case r.DecoderRecurrent() as d:
            return (*read.parts, *recurrent_decoder(d, V, at, read))
        case r.DecoderTransformer() as d:
            s = stack(d, longest=longest_target(recipe))
            return transformer_decoder(kernel(s), V, at, read, shared=d.shared, tied=d.tied)
        case _:
            raise AssertionError("recipes.covers refuses the others")


def width(recipe: r.Recipe) -> int:
    assert not isinstance(recipe.encoder, r.EncoderFlat)
    return recipe.encoder.width


def longest_source(recipe: r.Recipe) -> int:
    """Places that learned positions of the encoder reach."""
    assert isinstance(recipe.data, r.Texts)
    return recipe.data.max_source + 1


def longest_target(recipe: r.Recipe) -> int:
    assert isinstance(recipe.data, r.Texts)
    return 1 + max(recipe.data.max_target, recipe.search.max_new_tokens)


def encoder(recipe: r.Recipe, V: Size, at: Lengths, kernel: Kernel) -> Read:
    assert isinstance(recipe.source, r.SourceTokens)
    D, E = Size("D", width(recipe), "width"), Size("E", width(recipe), "width of the memory")
    source = layers.embedding(
        "source embedding", V, D, at.B, at.S, shared=False, dropout=recipe.source.dropout, decoding=False
    )
    match recipe.encoder:
        case r.EncoderRecurrent() as e:
            return Read((source, recurrent_encoder(e, at)), at.S, E, ZERO)
        case r.EncoderTransformer() as e:
            own = transformer_encoder(kernel(stack(e, longest=longest_source(recipe))), at)
            return Read((source, *own), at.S, E, 2 + log(at.S))
        case r.EncoderConvolution() as e:
            R = Size("R", e.reach, "reach")
            part = layers.convolutions(D, e.layers, R, at.B, at.S, dropout=e.dropout)
            places = ceil(at.S, 2**e.layers)
            return Read((source, part), places, E, 1 + log(places))
        case _:
            raise AssertionError("recipes.covers refuses the others")


def stack(section: r.EncoderTransformer | r.DecoderTransformer, *, longest: int) -> Stack:
    return Stack(
        layers=section.layers,
        width=section.width,
        heads=section.heads,
        head_width=section.head_width,
        ffn=section.ffn,
        norm=section.norm,
        positions=section.positions,
        activation=section.activation,
        kernel=section.kernel,
        terms=section.terms,
        dropout=section.dropout,
        longest=longest,
    )


def recurrent_encoder(e: r.EncoderRecurrent, at: Lengths) -> Part:
    halved = e.directions == 2 and e.merge == "concatenate"
    each = e.width // 2 if halved else e.width
    c = Cells(e.cell, e.width, each, e.layers, e.directions, e.dropout)
    part = layers.cells("encoder cells", c, at.B, at.S, packed=True)
    packing = log(at.S)  # counts the places of every row first
    return replace(part, depth=part.depth + packing + (1 if e.directions == 2 and not halved else 0))


def transformer_encoder(s: Stack, at: Lengths) -> tuple[Part, ...]:
    return (
        layers.positions("encoder positions", s, at.S, decoding=False),
        layers.self_attention("encoder self-attention", s, at.B, at.S, None, causal=False),
        layers.feed_forward("encoder feed-forward", s, at.B, at.S, decoding=False),
        layers.norms("encoder norms", s, 2, at.B, at.S, decoding=False),
    )


def recurrent_decoder(d: r.DecoderRecurrent, V: Size, at: Lengths, read: Read) -> tuple[Part, ...]:
    c = Cells(d.cell, d.width * (2 if d.input_feeding else 1), d.width, d.layers, 1, d.dropout)
    embedding = layers.embedding(
        "target embedding", V, c.D, at.B, at.T, shared=d.shared, dropout=d.dropout, decoding=True
    )
    bridge = layers.bridge(c, at, read.width)
    look = layers.recurrent_attention(c, at, read.places, read.width, score=d.attention, stepwise=d.input_feeding)
    cells = layers.cells("decoder cells", c, at.B, at.T, packed=False, stepwise=d.input_feeding, decoding=True)
    if d.input_feeding:  # a place waits for where the one before it has looked
        once = c.N * (layers.PLACE[d.cell] + log(c.D))
        cells = replace(
            cells,
            depth=at.T * once + (at.T - 1) * (log(2 * c.D) - log(c.D)),
            state=cells.state + layers.FLOAT * c.D,
        )
        look = replace(look, depth=at.T * look.depth)
    return (
        replace(embedding, depth=ZERO),  # beside the encoder
        replace(bridge, depth=read.summary + bridge.depth),
        cells,
        look,
        layers.output(V, c.D, at, tied=d.tied),
    )


def language_model(s: Stack, V: Size, at: Lengths, *, tied: bool, bias: bool) -> tuple[Part, ...]:
    """A decoder that reads nothing but what it writes."""
    return (
        layers.embedding("target embedding", V, s.D, at.B, at.T, shared=False, dropout=s.dropout, decoding=True),
        layers.positions("decoder positions", s, at.T, decoding=True),
        layers.self_attention("decoder self-attention", s, at.B, at.T, at.t, causal=True),
        layers.feed_forward("decoder feed-forward", s, at.B, at.T, decoding=True),
        layers.norms("decoder norms", s, 2, at.B, at.T, decoding=True),
        layers.output(V, s.D, at, tied=tied, bias=bias),
    )


def transformer_decoder(
    s: Stack, V: Size, at: Lengths, read: Read, *, shared: bool, tied: bool, bias: bool = True
) -> tuple[Part, ...]:
    """All parts of the model. Of the depth they have the longest chain only: the decoder's first self-attention and the
    encoder work side by side, and attention to the memory waits for the later of the two."""
    embedding = layers.embedding(
        "target embedding", V, s.D, at.B, at.T, shared=shared, dropout=s.dropout, decoding=True
    )
    places = layers.positions("decoder positions", s, at.T, decoding=True)
    looking = layers.self_attention("decoder self-attention", s, at.B, at.T, at.t, causal=True)
    reading = layers.cross_attention("attention to the memory", s, at, read.places, read.width)
    one_look = layers.attention_steps(s) + layers.mixing(s, at.B, at.T, at.T, causal=True, hidden=True).depth
    query = (layers.norm_steps(s.D) if s.norm == "pre" else ZERO) + 2 + log(s.D)
    keys = 2 + log(read.width) - (1 if s.kernel == "maclaurin" else 0)  # there the query is scaled, not the scores
    if (read.depth + keys).value >= (embedding.depth + places.depth + one_look + query).value:
        embedding, places = replace(embedding, depth=ZERO), replace(places, depth=ZERO)
        looking = replace(looking, depth=(s.N - 1) * one_look)
        reading = replace(reading, depth=reading.depth - query + keys)
    else:
        read = replace(read, parts=tuple(replace(part, depth=ZERO) for part in read.parts))
    return (
        *read.parts,
        embedding,
        places,
        looking,
        reading,
        layers.feed_forward("decoder feed-forward", s, at.B, at.T, decoding=True),
        layers.norms("decoder norms", s, 3, at.B, at.T, decoding=True),
        layers.output(V, s.D, at, tied=tied, bias=bias),
    )
