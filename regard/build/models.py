"""Build the model of a recipe: frontend, encoder, decoder."""

from __future__ import annotations

import torch

from regard import recipe as r
from regard import tokenizers
from regard.decoders import (
    AutoregressiveDecoder,
    ClassifierDecoder,
    Decoder,
    RecurrentCrossAttentionDecoder,
    RecurrentDecoder,
    TransformerDecoder,
)
from regard.encoders import (
    BlankEncoder,
    ConvolutionEncoder,
    Encoder,
    IdentityEncoder,
    RecurrentEncoder,
    TransformerEncoder,
)
from regard.frontends import Convolutions, Frontend, Patches, ResidualConvolutions, Sound, Tokens
from regard.layers.positions import (
    Alibi,
    Learned,
    NoPositions,
    Positions,
    Relative,
    Rotary,
    Sinusoidal,
)
from regard.model import Model
from regard.tasks.blank import MARK

UNCOUNTABLE = 1 << 63  # bytes, of a model with more elements than torch can count
SMALLER = "encoder.width, decoder.width, layers and tokenizer.size make them smaller"


def model(recipe: r.Recipe, *, vocabulary: int, source_vocabulary: int | None = None) -> Model:
    """The model with initial weights drawn from the recipe's seed. `source_vocabulary` defaults to
    `vocabulary`, that of the answers."""
    torch.manual_seed(recipe.seed)
    return _model(recipe, vocabulary, source_vocabulary)


def weight_bytes(recipe: r.Recipe, vocabulary: int, source_vocabulary: int | None = None) -> int:
    """Bytes of all parameters and buffers, counted on the meta device. The first call takes a
    second."""
    try:
        with torch.device("meta"):
            skeleton = _model(recipe, vocabulary, source_vocabulary)
    except RuntimeError as error:  # a tensor with more elements than torch can count
        if "overflow" not in str(error):
            raise
        return UNCOUNTABLE
    return sum(tensor.nbytes for tensor in (*skeleton.parameters(), *skeleton.buffers()))


def _model(recipe: r.Recipe, vocabulary: int, source_vocabulary: int | None) -> Model:
    if source_vocabulary is None:
        source_vocabulary = vocabulary
    frontend = build_frontend(recipe, vocabulary=source_vocabulary)
    encoder = build_encoder(recipe, inputs=frontend.width, grid=frontend.grid)
    decoder = build_decoder(
        recipe,
        vocabulary=vocabulary,
        memory_width=encoder.width,
        summary_width=encoder.summary_width,
        vectors=frontend.width if recipe.task == "blank" else None,
    )

    shared = getattr(recipe.decoder, "shared", False)
    tied = getattr(recipe.decoder, "tied", False)
    if isinstance(frontend, Tokens) and isinstance(decoder, AutoregressiveDecoder) and shared:
        frontend.embedding = decoder.embedding
    if isinstance(frontend, Tokens) and isinstance(decoder, ClassifierDecoder) and tied:
        decoder.output.share(frontend.embedding)
    return Model(frontend=frontend, encoder=encoder, decoder=decoder)


def build_frontend(recipe: r.Recipe, *, vocabulary: int) -> Frontend:
    """The frontend of a recipe's [source]; `vocabulary` is that of the source."""
    width = r.WIDTH if isinstance(recipe.encoder, r.EncoderIdentity) else recipe.encoder.width
    match recipe.source:
        case r.SourceTokens() as s:
            if isinstance(recipe.encoder, r.EncoderBlank):
                width = recipe.encoder.embedding_width
            mark = MARK if recipe.task == "blank" else None
            return Tokens(vocabulary=vocabulary, width=width, dropout=s.dropout, mark=mark)
        case r.SourceConvolutions() as s:
            return Convolutions(
                size=s.size,
                channels_in=s.channels_in,
                channels=s.channels,
                padding=s.padding,
                kernel_size=s.kernel_size,
                downsample=s.downsample,
            )
        case r.SourceResidual() as s:
            return ResidualConvolutions(
                size=s.size,
                channels_in=s.channels_in,
                channels=s.channels,
                blocks=s.blocks,
                stem=s.stem,
                padding_mode=s.padding_mode,
                dropout=s.dropout,
            )
        case r.SourcePatches() as s:
            return Patches(
                size=s.size,
                channels_in=s.channels_in,
                patch=s.patch,
                width=width,
                dropout=s.dropout,
            )
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
                dynamic_range=s.dynamic_range,
                levels=s.levels,
                tempo_perturbation=s.tempo_perturbation,
                time_masks=s.time_masks,
                time_mask_width=s.time_mask_width,
                mel_masks=s.mel_masks,
                mel_mask_width=s.mel_mask_width,
                dropout=s.dropout,
            )


def build_encoder(recipe: r.Recipe, *, inputs: int, grid: tuple[int, int] | None = None) -> Encoder:
    """The encoder of a recipe; `inputs` is the width of its source, `grid` the size of a picture's
    feature map."""
    match recipe.encoder:
        case r.EncoderRecurrent() as e:
            return RecurrentEncoder(
                inputs=inputs,
                width=e.width,
                layers=e.layers,
                cell=e.cell,
                directions=e.directions,
                merge=e.merge,
                residual=e.residual,
                dropout=e.dropout,
            )
        case r.EncoderBlank() as e:
            return BlankEncoder(
                inputs=inputs,
                width=e.width,
                layers=e.layers,
                cell=e.cell,
                directions=e.directions,
                dropout=e.dropout,
            )
        case r.EncoderTransformer() as e:
            return TransformerEncoder(
                e.sizes,
                inputs=inputs,
                positions=positions(e, longest=grid or longest_source(recipe) + 1),
            )
        case r.EncoderConvolution() as e:
            return ConvolutionEncoder(
                inputs=inputs,
                width=e.width,
                layers=e.layers,
                kernel_size=e.kernel_size,
                positions=Sinusoidal(width=inputs)
                if e.positions == "sinusoidal"
                else NoPositions(),
                activation=e.activation,
                dropout=e.dropout,
            )
        case r.EncoderIdentity() as e:
            assert grid is not None  # recipes with other data are rejected
            return IdentityEncoder(inputs=inputs, places=grid[0] * grid[1], summary=e.summary)


def longest_source(recipe: r.Recipe) -> int:
    """Maximum number of tokens of a text, or of places of a sound, in training."""
    if isinstance(recipe.data, r.Sounds):
        assert isinstance(recipe.source, r.SourceSound)  # recipes with other sources are rejected
        return recipe.source.places(recipe.data.max_seconds)
    if isinstance(recipe.data, r.Pictures | r.Captions):
        return 0
    return recipe.data.max_source


def build_decoder(
    recipe: r.Recipe,
    *,
    vocabulary: int,
    memory_width: int,
    summary_width: int,
    vectors: int | None = None,
) -> Decoder:
    """The decoder of a recipe; `vectors` is the size of label embeddings if labels are words."""
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
                attention_order=d.attention_order,
                input_feeding=d.input_feeding,
                dropout=d.dropout,
                tied=d.tied,
            )
        case r.DecoderRecurrentCrossAttention() as d:
            return RecurrentCrossAttentionDecoder(
                vocabulary=vocabulary,
                width=d.width,
                layers=d.layers,
                memory_width=memory_width,
                heads=d.heads,
                ffn_width=d.ffn_width,
                cell=d.cell,
                dropout=d.dropout,
                key_bias=d.key_bias,
                tied=d.tied,
            )
        case r.DecoderTransformer() as d:
            max_target = 0 if isinstance(recipe.data, r.Pictures) else recipe.data.max_target
            # In training 1 + max_target, with the start token. In search the last token is not
            # an input.
            longest = max(1 + max_target, recipe.search.max_new_tokens)
            return TransformerDecoder(
                d.sizes,
                vocabulary=vocabulary,
                memory_width=memory_width,
                positions=positions(d, longest=longest),
                tied=d.tied,
            )
        case r.DecoderClassifier() as d:
            return ClassifierDecoder(
                vocabulary=vocabulary,
                memory_width=memory_width,
                summary_width=summary_width,
                num_special_tokens=tokenizers.NUM_SPECIAL_TOKENS,
                end=tokenizers.END,
                pooling=d.pooling,
                hidden=d.hidden,
                dropout=d.dropout,
                hidden_dropout=d.hidden_dropout,
                vectors=vectors,
            )


def positions(
    section: r.EncoderTransformer | r.DecoderTransformer, *, longest: int | tuple[int, int]
) -> Positions:
    """The position encoding of an encoder or decoder; `longest` is the maximum number of places, or
    the height and width of a grid."""
    axes = 1 if isinstance(longest, int) else 2
    match section.positions:
        case "none":
            return NoPositions()
        case "sinusoidal":
            return Sinusoidal(width=section.width, axes=axes)
        case "learned":
            return Learned(width=section.width, num_positions=longest)
        case "rotary":
            return Rotary(head_width=section.head_width, axes=axes)
        case "alibi":
            return Alibi(heads=section.heads, axes=axes)
        case "relative":
            if isinstance(longest, int):
                return Relative(heads=section.heads)
            return Relative(heads=section.heads, max_distance=longest)
