"""A recipe's names -> frontend, encoder, decoder: the one model."""

from __future__ import annotations

import torch

from regard import codecs
from regard import recipe as r
from regard.decoders import (
    Decoder,
    OneShot,
    RecurrentBlockDecoder,
    RecurrentDecoder,
    TransformerDecoder,
    Writer,
)
from regard.encoders import (
    ConvolutionEncoder,
    Encoder,
    FlatEncoder,
    RecurrentEncoder,
    TransformerEncoder,
    TwoWayEncoder,
)
from regard.frontends import Convolutions, Frontend, Patches, ResidualConvolutions, Sound, Tokens
from regard.layers.positions import Alibi, Learned, NoPositions, Positions, Relative, Rotary, Sinusoidal
from regard.model import Model
from regard.tasks.blank import MARK

UNCOUNTABLE = 1 << 63  # bytes
SMALLER = "encoder.width, decoder.width, layers and codec.size make them smaller"


def model(recipe: r.Recipe, *, vocabulary: int, source_vocabulary: int | None = None) -> Model:
    """The model with its first weights, which the recipe's seed decides. The source has the vocabulary of the answers,
    unless another is given."""
    torch.manual_seed(recipe.seed)
    return _model(recipe, vocabulary, source_vocabulary)


def weight_bytes(recipe: r.Recipe, vocabulary: int, source_vocabulary: int | None = None) -> int:
    """Bytes of all weights and tables, from a model that has shapes and no numbers. The first call takes a second."""
    try:
        with torch.device("meta"):
            shapes = _model(recipe, vocabulary, source_vocabulary)
    except RuntimeError as error:  # a tensor of more numbers than torch can count
        if "overflow" not in str(error):
            raise
        return UNCOUNTABLE
    return sum(tensor.nbytes for tensor in (*shapes.parameters(), *shapes.buffers()))


def _model(recipe: r.Recipe, vocabulary: int, source_vocabulary: int | None) -> Model:
    sees = frontend(recipe, vocabulary=vocabulary if source_vocabulary is None else source_vocabulary)
    reads = encoder(recipe, inputs=sees.width, grid=sees.grid)
    writes = decoder(
        recipe,
        vocabulary=vocabulary,
        memory_width=reads.width,
        summary_width=reads.summary_width,
        vectors=sees.width if recipe.task == "blank" else None,
    )
    if isinstance(sees, Tokens) and isinstance(writes, Writer) and getattr(recipe.decoder, "shared", False):
        sees.embedding = writes.embedding
    if isinstance(sees, Tokens) and isinstance(writes, OneShot) and getattr(recipe.decoder, "tied", False):
        writes.output.share(sees.embedding)
    return Model(frontend=sees, encoder=reads, decoder=writes)


def frontend(recipe: r.Recipe, *, vocabulary: int) -> Frontend:
    width = r.WIDTH if isinstance(recipe.encoder, r.EncoderFlat) else recipe.encoder.width
    match recipe.source:
        case r.SourceTokens() as s:
            width = recipe.encoder.vectors if isinstance(recipe.encoder, r.EncoderTwoWay) else width
            mark = MARK if recipe.task == "blank" else None
            return Tokens(vocabulary=vocabulary, width=width, dropout=s.dropout, mark=mark)
        case r.SourceConvolutions() as s:
            return Convolutions(
                size=s.size, colours=s.colours, channels=s.channels, padding=s.padding, reach=s.reach, halve=s.halve
            )
        case r.SourceResidual() as s:
            return ResidualConvolutions(
                size=s.size,
                colours=s.colours,
                channels=s.channels,
                blocks=s.blocks,
                stem=s.stem,
                around=s.around,
                dropout=s.dropout,
            )
        case r.SourcePatches() as s:
            return Patches(size=s.size, colours=s.colours, patch=s.patch, width=width, dropout=s.dropout)
        case r.SourceSound() as s:
            return Sound(
                rate=s.mel_rate,
                mels=s.mels,
                window=s.window,
                hop=s.hop,
                width=width,
                strides=s.strides,
                channels=s.channels,
                frames=s.frames,
                span=s.span,
                levels=s.levels,
                tempo=s.tempo,
                time_masks=s.time_masks,
                widest_time=s.widest_time,
                mel_masks=s.mel_masks,
                widest_mels=s.widest_mels,
                dropout=s.dropout,
            )


def encoder(recipe: r.Recipe, *, inputs: int, grid: tuple[int, int] | None = None) -> Encoder:
    match recipe.encoder:
        case r.EncoderRecurrent() as e:
            return RecurrentEncoder(
                inputs=inputs,
                width=e.width,
                layers=e.layers,
                cell=e.cell,
                directions=e.directions,
                merge=e.merge,
                dropout=e.dropout,
            )
        case r.EncoderTwoWay() as e:
            return TwoWayEncoder(
                inputs=inputs,
                width=e.width,
                layers=e.layers,
                cell=e.cell,
                directions=e.directions,
                dropout=e.dropout,
            )
        case r.EncoderTransformer() as e:
            return TransformerEncoder(
                inputs=inputs,
                width=e.width,
                layers=e.layers,
                heads=e.heads,
                head_width=e.head_width,
                inner=e.ffn,
                positions=positions(e, longest=grid or longest_source(recipe) + 1),
                norm=e.norm,
                activation=e.activation,
                dropout=e.dropout,
                kernel=e.kernel,
                terms=e.terms,
                key_bias=e.key_bias,
            )
        case r.EncoderConvolution() as e:
            return ConvolutionEncoder(
                inputs=inputs,
                width=e.width,
                layers=e.layers,
                reach=e.reach,
                positions={"none": NoPositions(), "sinusoidal": Sinusoidal(width=inputs)}[e.positions],
                activation=e.activation,
                dropout=e.dropout,
            )
        case r.EncoderFlat() as e:
            assert grid is not None  # a recipe without pictures is refused
            return FlatEncoder(inputs=inputs, places=grid[0] * grid[1], summary=e.summary)


def longest_source(recipe: r.Recipe) -> int:
    """Most tokens of a text, or places of a sound, in training."""
    if isinstance(recipe.data, r.Sounds):
        assert isinstance(recipe.source, r.SourceSound)  # a recipe with sounds as something else is refused
        return recipe.source.places(recipe.data.max_seconds)
    return 0 if isinstance(recipe.data, r.Pictures | r.Captions) else recipe.data.max_source


def decoder(
    recipe: r.Recipe, *, vocabulary: int, memory_width: int, summary_width: int, vectors: int | None = None
) -> Decoder:
    """`vectors` is the width of a label's vector, where labels are words."""
    match recipe.decoder:
        case r.DecoderRecurrent() as d:
            return RecurrentDecoder(
                vocabulary=vocabulary,
                width=d.width,
                layers=d.layers,
                memory_width=memory_width,
                summary_width=summary_width,
                cell=d.cell,
                attention=d.attention,
                looks=d.looks,
                input_feeding=d.input_feeding,
                dropout=d.dropout,
                tied=d.tied,
            )
        case r.DecoderRecurrentBlock() as d:
            return RecurrentBlockDecoder(
                vocabulary=vocabulary,
                width=d.width,
                layers=d.layers,
                memory_width=memory_width,
                heads=d.heads,
                inner=d.ffn,
                cell=d.cell,
                dropout=d.dropout,
                key_bias=d.key_bias,
                tied=d.tied,
            )
        case r.DecoderTransformer() as d:
            longest = 0 if isinstance(recipe.data, r.Pictures) else recipe.data.max_target
            longest = max(1 + longest, recipe.search.max_new_tokens)  # the last token it says is not read again
            return TransformerDecoder(
                vocabulary=vocabulary,
                width=d.width,
                layers=d.layers,
                memory_width=memory_width,
                heads=d.heads,
                head_width=d.head_width,
                inner=d.ffn,
                positions=positions(d, longest=longest),
                norm=d.norm,
                activation=d.activation,
                dropout=d.dropout,
                kernel=d.kernel,
                terms=d.terms,
                key_bias=d.key_bias,
                tied=d.tied,
            )
        case r.DecoderOneShot() as d:
            return OneShot(
                vocabulary=vocabulary,
                memory_width=memory_width,
                summary_width=summary_width,
                marks=codecs.MARKS,
                end=codecs.END,
                reads=d.reads,
                hidden=d.hidden,
                dropout=d.dropout,
                hidden_dropout=d.hidden_dropout,
                vectors=vectors,
            )


def positions(section: r.EncoderTransformer | r.DecoderTransformer, *, longest: int | tuple[int, int]) -> Positions:
    """`longest` is the number of places, or the height and width of a grid of them."""
    axes = 1 if isinstance(longest, int) else 2
    match section.positions:
        case "none":
            return NoPositions()
        case "sinusoidal":
            return Sinusoidal(width=section.width, axes=axes)
        case "learned":
            return Learned(width=section.width, longest=longest)
        case "rotary":
            return Rotary(head_width=section.head_width, axes=axes)
        case "alibi":
            return Alibi(heads=section.heads, axes=axes)
        case "relative":
            return (
                Relative(heads=section.heads)
                if isinstance(longest, int)
                else Relative(heads=section.heads, reach=longest)
            )
