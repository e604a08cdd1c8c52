"""[tokenizer], [source], [encoder], [decoder]: what a model is made of."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, Strict, model_validator

from regard.recipe.fields import LARGEST, WIDTH, Section, Share, Size, Text, Whole

# ---------------------------------------------------------------------------------------- tokenizer


class TokenizerWords(Section):
    """A token is a word or a punctuation mark."""

    kind: Literal["words"]
    size: Size = 20_000
    """Most words in the vocabulary, the most frequent first."""
    min_count: Size = 1
    """Words seen fewer times than this in the training data are unknown."""
    lower: bool = True
    """Lower-cases all text."""


class TokenizerCharacters(Section):
    """A token is a character."""

    kind: Literal["characters"]
    min_count: Size = 1
    """Characters seen fewer times than this in the training data are unknown."""
    lower: bool = False
    """Lower-cases all text."""
    alphabet: Text | None = None
    """The characters there are, marks aside; not given: those of the training data."""


class TokenizerBPE(Section):
    """A token is a piece of a word, by byte pair encoding: no word is unknown."""

    kind: Literal["bpe"]
    size: Annotated[int, Field(ge=260, le=LARGEST)] = 4000
    """Most pieces in the vocabulary; it holds the 256 bytes and 4 marks in any case."""
    min_count: Size = 2
    """Two pieces are joined into one only if they stand together this often, so a small corpus
    makes few pieces."""


class TokenizerLabels(Section):
    """Labels alone, of what is not text; those of texts come by themselves."""

    kind: Literal["labels"]


# ------------------------------------------------------------------------------------------- source


class SourceTokens(Section):
    """The prompt as tokens of the tokenizer."""

    kind: Literal["tokens"]
    plain: bool = True
    """Lower-cases prompts and drops their final punctuation, so that "Hello!" and "hello" are
    the same prompt."""
    dropout: Share = 0.1
    """Share of the embedding's numbers set to zero in training."""
    word_dropout: Share = 0.0
    """Share of the prompt's tokens hidden in training."""
    prompt_dropout: Share = 0.0
    """Share of the training pairs whose prompt is hidden completely, so that the decoder also
    learns how likely an answer is by itself; `search.mmi_weight` needs it."""


Side = Annotated[int, Field(ge=1, le=4096)]


class _Picture(Section):
    size: Annotated[tuple[Side, Side], Strict(False)] = (28, 28)
    """Height and width in pixels; pictures of another size are fitted to it."""
    channels_in: Literal[1, 3] = 1
    """1: grey, 3: red, green and blue."""
    fit: Literal["stretch", "crop"] = "stretch"
    """How a picture gets the shape of `size`: stretched, or with what is too much cut off on
    both sides."""
    random_crop: Share = 0.0
    """Training sees a part of each picture, cut out at random and stretched to the whole size;
    the most that is cut off of a side."""
    horizontal_flip: bool = False
    """Training sees half of the pictures as in a mirror, but none whose caption says left or
    right."""


class SourceConvolutions(_Picture):
    """A picture as the grid that convolutions leave of it, each followed by ReLU and halving the
    grid."""

    kind: Literal["convolutions"]
    channels: Annotated[tuple[Size, ...], Strict(False), Field(min_length=1, max_length=16)] = (
        8,
        16,
    )
    """Numbers at each place after each convolution; as many convolutions as there are."""
    padding: Annotated[tuple[Whole, ...], Strict(False)] = Field(
        default_factory=lambda data: (1,) * len(data["channels"])
    )
    """Pixels of zero put around the input of each; derived: 1 for each."""
    kernel_size: Annotated[int, Field(ge=1, le=31)] = 3
    """Height and width of each convolution."""
    downsample: Literal["pool", "stride"] = "pool"
    """Halves the grid by the largest of each 2 x 2 places, or by making every second place only."""

    @model_validator(mode="after")
    def _as_many(self) -> Self:
        if len(self.padding) != len(self.channels):
            raise ValueError(
                f"padding needs a number for each of channels; got {len(self.padding)} for {len(self.channels)}"
            )
        return self


class SourceResidual(_Picture):
    """A picture as the grid that a deeper net leaves of it: a first convolution, then stages of
    residual convolutions with group norm, each stage on a grid half as fine as the one before."""

    kind: Literal["residual"]
    channels: Annotated[tuple[Size, ...], Strict(False), Field(min_length=1, max_length=8)] = (
        32,
        64,
        128,
    )
    """Numbers at each place in each stage; as many stages as there are."""
    blocks: Annotated[int, Field(ge=1, le=64)] = 2
    """Residual convolutions in each stage, of two layers each."""
    stem: Annotated[int, Field(ge=1, le=32)] = 4
    """The first convolution makes every so many-th place only."""
    padding_mode: Literal["zeros", "edge"] = "zeros"
    """What a convolution reads around a picture: zeros, by which it knows how far the edge is;
    or the outermost points again, so that no place stands out by where it is."""
    dropout: Share = 0.0
    """Share of the numbers of the grid set to zero in training."""


class SourcePatches(_Picture):
    """A picture as squares, each a place, which all go through one matrix."""

    kind: Literal["patches"]
    patch: Side = 4
    """Height and width of a square; they must tile the picture."""
    dropout: Share = 0.0
    """Share of the numbers set to zero in training."""

    @model_validator(mode="after")
    def _tiled(self) -> Self:
        if any(side % self.patch for side in self.size):
            raise ValueError(
                f"patch must divide both sides of size; got patch = {self.patch}, size = {self.size}"
            )
        return self


class SourceSound(Section):
    """A sound as frames of log-mel energies, which convolutions of reach 3 make fewer."""

    kind: Literal["sound"]
    rate: Annotated[int, Field(ge=1000, le=192_000)] = 16_000
    """Samples a second; sounds of another rate are brought to it."""
    mels: Annotated[int, Field(ge=1, le=512)] = 80
    """Bands of each frame, on Slaney's mel scale."""
    window: Size = Field(default_factory=lambda data: data["rate"] // 40)
    """Samples that a frame is made of; derived: 25 milliseconds."""
    hop: Size = Field(default_factory=lambda data: data["rate"] // 100)
    """Samples from one frame to the next; derived: 10 milliseconds."""
    mel_rate: Annotated[int, Field(ge=1000, le=192_000)] = Field(
        default_factory=lambda data: data["rate"]
    )
    """The rate that the mel bands are made for; derived: the true one."""
    levels: Literal["relative", "bands", "absolute"] = "relative"
    """Energies count from the loudest place of a sound, so that it does not matter how loud it
    is; or those of each band from its own mean, in its own spread, so that it does not matter
    through what they came; or as they are."""
    dynamic_range: Annotated[float, Field(gt=0, le=20)] = 5.0
    """Powers of ten below the loudest place of a sound within which energies are told apart."""
    frames: Size | None = None
    """Cuts or fills up every sound to so many frames and does not mask what was filled, as the
    reference did."""
    strides: Annotated[tuple[Size, ...], Strict(False), Field(min_length=1, max_length=8)] = (2, 2)
    """The stride of each convolution; [2, 2] leaves a place for four frames."""
    channels: Annotated[tuple[Size, ...], Strict(False), Field(max_length=8)] = ()
    """Channels of each convolution if they go over time and mels, of which each then leaves
    half; none: over time only."""
    time_masks: Annotated[int, Field(ge=0, le=64)] = 0
    """Stretches of time hidden in training (SpecAugment)."""
    time_mask_width: Share = 0.1
    """Widest such stretch, as a share of the sound."""
    mel_masks: Annotated[int, Field(ge=0, le=64)] = 0
    """Stretches of mel bands hidden in training."""
    mel_mask_width: Share = 0.25
    """Widest such stretch, as a share of the bands."""
    speed_perturbation: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """Training plays each sound faster or slower by up to this share, and so higher or lower."""
    tempo_perturbation: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Training makes each sound longer or shorter by up to this share, at the same pitch."""
    trim: Share = 0.0
    """What is softer than this share of a sound's peak is left away at its beginning and its
    end."""
    spectral_tilt: Share = 0.0
    """Training makes each sound duller or sharper, as other microphones would: to each sample it
    adds the one before it times up to this share, or subtracts it. 0.5 is 10 decibels between
    the lowest and the highest tones."""
    noise: Share = 0.0
    """Training adds noise to each sound, of up to this share of its peak."""
    dropout: Share = 0.0
    """Share of the numbers set to zero in training."""

    @model_validator(mode="after")
    def _overlaps(self) -> Self:
        if self.hop > self.window:
            raise ValueError(
                f"hop must not be above window; got hop = {self.hop}, window = {self.window}"
            )
        if self.channels and len(self.channels) != len(self.strides):
            raise ValueError(
                "channels must be as many as strides, or none; "
                f"got channels = {list(self.channels)}, strides = {list(self.strides)}"
            )
        return self

    @property
    def seconds_a_place(self) -> float:
        return self.hop * math.prod(self.strides) / self.rate

    def places(self, seconds: float) -> int:
        """Most that a sound of so many seconds has in training, however it is varied or filled
        up."""
        longest = seconds * (1 + self.tempo_perturbation) / (1 - self.speed_perturbation)
        return max(
            math.ceil(longest / self.seconds_a_place),
            math.ceil((self.frames or 0) / math.prod(self.strides)),
        )


# ------------------------------------------------------------------------------ encoder and decoder


def _heads(width: int) -> int:
    """The divisor of the width that comes nearest to one head for each 64 (fewer heads when two
    are as near)."""
    return min(
        (h for h in range(1, width + 1) if width % h == 0), key=lambda h: (abs(h - width / 64), h)
    )


class _Recurrent(Section):
    width: Size = WIDTH
    """Width of the embedding and of the states of every layer; a decoder that names none has its
    encoder's."""
    cell: Literal["lstm", "gru"] = "lstm"
    """The recurrent cell."""
    layers: Annotated[int, Field(ge=1, le=256)] = 2
    """Layers, one upon the other."""
    dropout: Share = 0.2
    """Share of the numbers set to zero in training, between the layers and before the output."""


class _Transformer(Section):
    width: Size = WIDTH
    """Width of the embedding and of every block; a decoder that names none has its encoder's."""
    layers: Annotated[int, Field(ge=1, le=256)] = 4
    """Blocks, one upon the other."""
    heads: Size = Field(default_factory=lambda data: _heads(data["width"]))
    """Heads of each attention; derived: the divisor of the width nearest to one head for each
    64."""
    head_width: Size = Field(default_factory=lambda data: max(1, data["width"] // data["heads"]))
    """Width of one head; derived: width / heads, which then must come out even."""
    ffn_width: Size = Field(default_factory=lambda data: 4 * data["width"])
    """Width inside the feed-forward part; derived: four times the width."""
    norm: Literal["pre", "post"] = "pre"
    """Normalises before each part of a block, or after it as the first Transformer did."""
    positions: Literal["none", "sinusoidal", "learned", "rotary", "alibi", "relative"] = (
        "sinusoidal"
    )
    """How the model knows the order of the tokens: waves or learned vectors added to the input,
    queries and keys turned by their place, or fixed (alibi) or learned (relative) numbers for
    each distance added to the scores."""
    kernel: Literal["softmax", "maclaurin"] = "softmax"
    """What makes weights of scores: softmax, or the first terms of its Maclaurin series, whose
    cost grows with the length rather than with its square, and whose state while decoding does
    not grow at all."""
    terms: Annotated[int, Field(ge=1, le=9)] = 3
    """Terms of the series, an odd number; only for kernel = "maclaurin"."""
    activation: Literal["relu", "gelu"] = "gelu"
    """The bend in the feed-forward part."""
    key_bias: bool = True
    """Keys are projected with a bias; softmax gives the same weights without one."""
    dropout: Share = 0.1
    """Share of the numbers set to zero in training."""

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.kernel == "maclaurin" and not self.key_bias:
            raise ValueError("kernel = maclaurin sees the bias of keys; got key_bias = false")
        if "head_width" not in self.model_fields_set and self.width % self.heads:
            raise ValueError(
                f"heads must divide width, or give head_width too; got heads = {self.heads}, width = {self.width}"
            )
        if self.kernel == "maclaurin" and self.positions in ("alibi", "relative"):
            raise ValueError(
                f"kernel = maclaurin has no scores to add positions to: use sinusoidal, learned or rotary positions; "
                f"got positions = {self.positions}"
            )
        if self.kernel == "maclaurin" and self.terms % 2 == 0:
            raise ValueError(
                f"an even number of terms has an odd top degree, so weights can be negative; got terms = {self.terms}"
            )
        if self.positions == "rotary" and self.head_width % 2:
            raise ValueError(
                f"rotary positions turn pairs: head_width must be even; got head_width = {self.head_width}"
            )
        return self


class EncoderRecurrent(_Recurrent):
    """An RNN over the source, in one direction or both."""

    kind: Literal["recurrent"]
    directions: Annotated[int, Field(ge=1, le=2)] = 2
    """1 reads left to right, 2 both ways."""
    merge: Literal["concatenate", "sum"] = "concatenate"
    """Two directions side by side, each half as wide, or summed, each of the full width."""

    @model_validator(mode="after")
    def _halves(self) -> Self:
        if self.directions == 2 and self.merge == "concatenate" and self.width % 2:
            raise ValueError(
                f'two directions side by side need an even width, or merge = "sum"; got width = {self.width}'
            )
        return self


class EncoderBlank(_Recurrent):
    """An RNN left to right and one right to left that never read each other; each place knows
    what stands before and after it, and not itself."""

    kind: Literal["blank"]
    directions: Annotated[int, Field(ge=1, le=2)] = 2
    """2: what stands before and after, each half as wide; 1: only what stands before."""
    embedding_width: Size = Field(default_factory=lambda data: data["width"])
    """Width of the words' vectors; derived: that of the states."""

    @model_validator(mode="after")
    def _halves(self) -> Self:
        if self.width % self.directions:
            raise ValueError(
                f"two directions side by side need an even width; got width = {self.width}"
            )
        return self


class EncoderTransformer(_Transformer):
    """Self-attention and feed-forward blocks over the source."""

    kind: Literal["transformer"]


class EncoderConvolution(Section):
    """A language CNN: convolutions over the source, each of which halves its length."""

    kind: Literal["convolution"]
    width: Size = WIDTH
    """Width of the embedding and of every layer; a decoder that names none has its encoder's."""
    layers: Annotated[int, Field(ge=1, le=20)] = 2
    """Layers, one upon the other; the decoder sees one place for each 2^layers of the source."""
    kernel_size: Annotated[int, Field(ge=2, le=1024)] = 3
    """Places that one place of the next layer reads, from its own two on."""
    positions: Literal["none", "sinusoidal"] = "none"
    """What tells the places of the first layer where they stand, added to their input; those of
    a picture are counted one after the other."""
    activation: Literal["relu", "gelu", "tanh"] = "relu"
    """The bend after each layer."""
    dropout: Share = 0.1
    """Share of the numbers set to zero in training, between the layers."""


class EncoderIdentity(Section):
    """No layers: a picture's places as the source has them."""

    kind: Literal["identity"]
    summary: Literal["all", "mean"] = "all"
    """What a decoder is given of the whole: all places side by side, or their mean."""


class _Decoder(Section):
    tied: bool = True
    """The output matrix is the target's embedding."""
    shared: bool = False
    """Source and target have one embedding; needs equal widths."""


class DecoderRecurrent(_Recurrent, _Decoder):
    """An RNN that looks at the memory once for each token it writes."""

    kind: Literal["recurrent"]
    attention: Literal["none", "dot", "general", "additive"] = "general"
    """How it scores the places of the memory; with none, it knows only the encoder's summary."""
    attention_order: Literal["after_cell", "before_cell"] = "after_cell"
    """When it looks at the memory: after the cell has moved, and what it saw goes into the
    output; or before, and what it saw goes into the cell."""
    input_feeding: bool = False
    """The attended state also goes into the next step, so that it knows where it has looked."""

    @model_validator(mode="after")
    def _has_what_to_look_with(self) -> Self:
        if self.attention_order == "before_cell" and (
            self.attention == "none" or self.input_feeding
        ):
            raise ValueError(
                'attention_order = "before_cell" needs an attention and no input_feeding; '
                f"got attention = {self.attention}, input_feeding = {str(self.input_feeding).lower()}"
            )
        return self


class DecoderRecurrentCrossAttention(_Recurrent, _Decoder):
    """An RNN over the tokens, started from zero, and one Transformer block that reads the
    memory."""

    kind: Literal["recurrent-cross-attention"]
    heads: Size = Field(default_factory=lambda data: _heads(data["width"]))
    """Heads of the attention; derived: the divisor of the width nearest to one head for each 64."""
    ffn_width: Size = Field(default_factory=lambda data: 4 * data["width"])
    """Width inside the feed-forward part; derived: four times the width."""
    key_bias: bool = True
    """Keys are projected with a bias; softmax gives the same weights without one."""

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.width % self.heads:
            raise ValueError(
                f"heads must divide width; got heads = {self.heads}, width = {self.width}"
            )
        return self


class DecoderTransformer(_Transformer, _Decoder):
    """Blocks of causal self-attention, attention over the memory, and a feed-forward part."""

    kind: Literal["transformer"]


class DecoderClassifier(Section):
    """One look at the memory, one label."""

    kind: Literal["classifier"]
    pooling: Literal["summary", "attention"] = "summary"
    """What it sees of the memory: the encoder's summary, or what a learned query attends to."""
    hidden: Annotated[tuple[Size, ...], Strict(False), Field(max_length=16)] = ()
    """Widths of the layers (each with ReLU) between that and the labels; none: no layer between."""
    dropout: Share = 0.0
    """Share of what it sees set to zero in training."""
    hidden_dropout: Share = 0.0
    """Share of the numbers between two hidden layers set to zero in training."""
    tied: bool = False
    """Where labels are words: they have the vectors of the source's words, behind a matrix of
    their own."""


Tokenizer = Annotated[
    TokenizerWords | TokenizerCharacters | TokenizerBPE | TokenizerLabels,
    Field(discriminator="kind"),
]
Source = Annotated[
    SourceTokens | SourceConvolutions | SourceResidual | SourcePatches | SourceSound,
    Field(discriminator="kind"),
]
Encoder = Annotated[
    EncoderRecurrent | EncoderBlank | EncoderTransformer | EncoderConvolution | EncoderIdentity,
    Field(discriminator="kind"),
]
Decoder = Annotated[
    DecoderRecurrent | DecoderRecurrentCrossAttention | DecoderTransformer | DecoderClassifier,
    Field(discriminator="kind"),
]
