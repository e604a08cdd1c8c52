"""[tokenizer], [source], [encoder] and [decoder]: the parts of a model."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, Strict, model_validator

from regard.fields import (
    LARGEST,
    WIDTH,
    Augmentation,
    Dropout,
    Section,
    Share,
    Size,
    Text,
    Whole,
)
from regard.layers.sizes import Kernel, TransformerSizes
from regard.marks import Mark

# ---------------------------------------------------------------------------------------- tokenizer

MinCount = Annotated[Size, Mark.WEIGHTS, Mark.VOCABULARY, Mark.FREE]
Lower = Annotated[bool, Mark.WEIGHTS, Mark.VOCABULARY, Mark.FREE]


class TokenizerWords(Section):
    """Word tokens; punctuation marks are tokens of their own."""

    kind: Literal["words"]
    size: Size = 20_000
    """Maximum vocabulary size; the most frequent words are kept."""
    min_count: MinCount = 1
    """Minimum frequency in the training data; rarer words become the unknown token."""
    lower: Lower = True
    """Lower-cases all text."""


class TokenizerCharacters(Section):
    """Character tokens."""

    kind: Literal["characters"]
    min_count: MinCount = 1
    """Minimum frequency in the training data; rarer characters become the unknown token."""
    lower: Lower = False
    """Lower-cases all text."""
    alphabet: Text | None = None
    """The characters of the vocabulary, without special tokens; not set: those of the training
    data."""


class TokenizerBPE(Section):
    """Subword tokens: byte-level byte pair encoding (Sennrich et al. 2016). No word is unknown."""

    kind: Literal["bpe"]
    size: Annotated[int, Field(ge=260, le=LARGEST)] = 4000
    """Maximum vocabulary size, including the 256 bytes and the 4 special tokens."""
    min_count: MinCount = 2
    """Minimum frequency of a pair of tokens to be merged, so a small corpus gives a small
    vocabulary."""


class TokenizerLabels(Section):
    """Class labels only, for inputs that are not text. Text classifiers use a text tokenizer, which
    gets the labels too."""

    kind: Literal["labels"]


# ------------------------------------------------------------------------------------------- source


class SourceTokens(Section):
    """Text: the prompt as embedded tokens."""

    kind: Literal["tokens"]
    plain: Annotated[bool, Mark.VOCABULARY, Mark.FREE] = True
    """Lower-cases prompts and removes their final punctuation, so that "Hello!" and "hello" are the
    same prompt."""
    dropout: Dropout = 0.1
    """Dropout of the embeddings."""
    word_dropout: Augmentation = 0.0
    """Probability that a token of the prompt is replaced by the unknown token in training."""
    prompt_dropout: Augmentation = 0.0
    """Probability that a training pair has its whole prompt removed, so that the decoder also
    learns p(answer) without a prompt; `search.mmi_weight` needs it."""


Side = Annotated[int, Field(ge=1, le=4096)]


class _Picture(Section):
    size: Annotated[tuple[Side, Side], Strict(False), Mark.WEIGHTS, Mark.VOCABULARY] = (28, 28)
    """Height and width in pixels; pictures of another size are resized."""
    channels_in: Annotated[Literal[1, 3], Mark.WEIGHTS, Mark.VOCABULARY] = 1
    """1: greyscale, 3: RGB."""
    fit: Annotated[Literal["stretch", "crop"], Mark.WEIGHTS, Mark.VOCABULARY, Mark.FREE] = "stretch"
    """How a picture of another aspect ratio is resized: stretched, or cropped at the centre."""
    random_crop: Augmentation = 0.0
    """Augmentation: a random crop of each picture, resized to `size`; the largest share of a side
    that is cropped away."""
    horizontal_flip: Annotated[bool, Mark.TRAINING, Mark.FREE] = False
    """Augmentation: flips half of the pictures horizontally, except those whose caption contains
    "left" or "right"."""


class SourceConvolutions(_Picture):
    """Picture: the feature map of a stack of convolutions, each with ReLU and downsampling by 2."""

    kind: Literal["convolutions"]
    channels: Annotated[tuple[Size, ...], Strict(False), Field(min_length=1, max_length=16)] = (
        8,
        16,
    )
    """Output channels of each convolution; the length of the list is the number of convolutions."""
    padding: Annotated[tuple[Whole, ...], Strict(False)] = Field(
        default_factory=lambda data: (1,) * len(data["channels"])
    )
    """Zero padding of each convolution; derived: 1 for each."""
    kernel_size: Annotated[int, Field(ge=1, le=31)] = 3
    """Kernel size of each convolution."""
    downsample: Literal["pool", "stride"] = "pool"
    """Downsampling: 2 x 2 max pooling after each convolution, or convolutions of stride 2."""

    @model_validator(mode="after")
    def _as_many(self) -> Self:
        if len(self.padding) != len(self.channels):
            raise ValueError(
                "padding needs a number for each of channels; "
                f"got {len(self.padding)} for {len(self.channels)}"
            )
        return self


class SourceResidual(_Picture):
    """Picture: the feature map of a residual CNN (He et al. 2016) with group norm: a strided first
    convolution, then stages of residual blocks, each downsampled by 2 from the one before."""

    kind: Literal["residual"]
    channels: Annotated[tuple[Size, ...], Strict(False), Field(min_length=1, max_length=8)] = (
        32,
        64,
        128,
    )
    """Channels of each stage; the length of the list is the number of stages."""
    blocks: Annotated[int, Field(ge=1, le=64)] = 2
    """Residual blocks of two convolutions in each stage."""
    stem: Annotated[int, Field(ge=1, le=32)] = 4
    """Stride of the first convolution."""
    padding_mode: Literal["zeros", "edge"] = "zeros"
    """Padding of the convolutions: zeros, which reveal the position of the border; or "edge", which
    repeats the outermost pixels."""
    dropout: Dropout = 0.0
    """Dropout of the feature map."""


class SourcePatches(_Picture):
    """Picture: square patches with a linear projection, as in ViT (Dosovitskiy et al. 2021)."""

    kind: Literal["patches"]
    patch: Side = 4
    """Side of a patch in pixels; must divide both sides of `size`."""
    dropout: Dropout = 0.0
    """Dropout of the projected patches."""

    @model_validator(mode="after")
    def _tiled(self) -> Self:
        if any(side % self.patch for side in self.size):
            raise ValueError(
                "patch must divide both sides of size; "
                f"got patch = {self.patch}, size = {self.size}"
            )
        return self


class SourceSound(Section):
    """Sound: frames of log-mel energies, downsampled in time by convolutions of kernel size 3."""

    kind: Literal["sound"]
    rate: Annotated[int, Field(ge=1000, le=192_000), Mark.WEIGHTS, Mark.VOCABULARY] = 16_000
    """Sample rate in Hz; sounds of another rate are resampled."""
    mels: Annotated[int, Field(ge=1, le=512)] = 80
    """Number of mel bands, on Slaney's mel scale."""
    window: Size = Field(default_factory=lambda data: data["rate"] // 40)
    """Window length of a frame in samples; derived: 25 milliseconds."""
    hop: Size = Field(default_factory=lambda data: data["rate"] // 100)
    """Hop length between frames in samples; derived: 10 milliseconds."""
    mel_rate: Annotated[int, Field(ge=1000, le=192_000), Mark.WEIGHTS, Mark.FREE] = Field(
        default_factory=lambda data: data["rate"]
    )
    """Sample rate assumed by the mel filterbank; derived: `rate`."""
    levels: Literal["relative", "bands", "absolute"] = "relative"
    """Normalisation of the log energies. "relative": to the loudest point of the sound, which
    removes the volume; "bands": to zero mean and unit variance in each band (CMVN), which removes
    the channel too; "absolute": none."""
    dynamic_range: Annotated[float, Field(gt=0, le=20), Mark.WEIGHTS, Mark.FREE] = 5.0
    """Dynamic range in powers of ten: energies further below the loudest point are clamped."""
    frames: Size | None = None
    """Cuts or pads every sound to this many frames and does not mask the padding, as the reference
    implementation did; not set: sounds keep their length."""
    strides: Annotated[tuple[Size, ...], Strict(False), Field(min_length=1, max_length=8)] = (2, 2)
    """Stride in time of each convolution; [2, 2] downsamples by 4."""
    channels: Annotated[tuple[Size, ...], Strict(False), Field(max_length=8)] = ()
    """Output channels of each convolution over time and mel bands, with stride 2 over the bands;
    empty: convolutions over time only."""
    time_masks: Annotated[int, Field(ge=0, le=64), Mark.TRAINING, Mark.FREE] = 0
    """SpecAugment (Park et al. 2019): number of time masks in training."""
    time_mask_width: Augmentation = 0.1
    """SpecAugment: largest width of a time mask, as a share of the sound."""
    mel_masks: Annotated[int, Field(ge=0, le=64), Mark.TRAINING, Mark.FREE] = 0
    """SpecAugment: number of frequency masks in training."""
    mel_mask_width: Augmentation = 0.25
    """SpecAugment: largest width of a frequency mask, as a share of the mel bands."""
    speed_perturbation: Annotated[float, Field(ge=0, le=0.5), Mark.TRAINING] = 0.0
    """Speed perturbation (Ko et al. 2015): resamples each sound to change its speed by up to this
    share, which also changes its pitch."""
    tempo_perturbation: Annotated[float, Field(ge=0, le=1), Mark.TRAINING] = 0.0
    """Tempo perturbation: stretches each sound in time by up to this share, at the same pitch."""
    trim: Annotated[Share, Mark.FREE] = 0.0
    """Trims silence at the beginning and the end of each sound: samples below this share of its
    peak."""
    spectral_tilt: Augmentation = 0.0
    """Augmentation: tilts the spectrum of each sound, as another microphone would, with the filter
    y[t] = x[t] + a x[t-1] for a random |a| up to this value. 0.5 is 10 dB between the lowest and
    the highest frequencies."""
    noise: Augmentation = 0.0
    """Augmentation: adds noise to each sound, of up to this share of its peak."""
    dropout: Dropout = 0.0
    """Dropout of the output of the convolutions."""

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
        """Seconds of sound for each place of the source."""
        return self.hop * math.prod(self.strides) / self.rate

    def places(self, seconds: float) -> int:
        """Maximum number of places of a sound in training, with augmentation and padding."""
        longest = seconds * (1 + self.tempo_perturbation) / (1 - self.speed_perturbation)
        return max(
            math.ceil(longest / self.seconds_a_place),
            math.ceil((self.frames or 0) / math.prod(self.strides)),
        )


# ------------------------------------------------------------------------------ encoder and decoder


def _heads(width: int) -> int:
    """The divisor of the width nearest to width / 64; the smaller of two equally near ones."""
    divisors = (heads for heads in range(1, width + 1) if width % heads == 0)
    return min(divisors, key=lambda heads: (abs(heads - width / 64), heads))


class _Recurrent(Section):
    width: Size = WIDTH
    """Size of the embedding and of the hidden states; a decoder without one has its encoder's."""
    cell: Literal["lstm", "gru"] = "lstm"
    """Recurrent cell: LSTM (Hochreiter & Schmidhuber 1997) or GRU (Cho et al. 2014)."""
    layers: Annotated[int, Field(ge=1, le=256)] = 2
    """Number of stacked layers."""
    dropout: Dropout = 0.2
    """Dropout between the layers; in a decoder also of the embeddings and before the output."""


class _Transformer(Section):
    width: Size = WIDTH
    """Model dimension (d_model); a decoder without one has its encoder's."""
    layers: Annotated[int, Field(ge=1, le=256)] = 4
    """Number of blocks."""
    heads: Size = Field(default_factory=lambda data: _heads(data["width"]))
    """Attention heads; derived: the divisor of the width nearest to width / 64."""
    head_width: Size = Field(default_factory=lambda data: max(1, data["width"] // data["heads"]))
    """Dimension of one head; derived: width / heads, which must be a whole number."""
    ffn_width: Size = Field(default_factory=lambda data: 4 * data["width"])
    """Hidden dimension of the feed-forward network; derived: four times the width."""
    norm: Literal["pre", "post"] = "pre"
    """Layer norm before each sublayer (pre-norm), or after its residual sum (post-norm, as in
    Vaswani et al. 2017)."""
    positions: Literal["none", "sinusoidal", "learned", "rotary", "alibi", "relative"] = (
        "sinusoidal"
    )
    """Position encoding: sinusoidal (Vaswani et al. 2017) or learned vectors added to the input,
    rotary embeddings of queries and keys (RoPE, Su et al. 2021), or a bias on the scores for each
    distance, fixed (ALiBi, Press et al. 2022) or learned ("relative")."""
    kernel: Kernel = "softmax"
    """Attention kernel: softmax, or linear attention with the first terms of the Maclaurin series
    of exp, whose cost is linear in the length and whose decoding state has a fixed size."""
    terms: Annotated[int, Field(ge=1, le=9)] = 3
    """Number of terms of the series, odd; only for kernel = "maclaurin"."""
    activation: Literal["relu", "gelu"] = "gelu"
    """Activation function of the feed-forward network."""
    key_bias: bool = True
    """Bias in the projection of the keys; it does not change the weights of softmax attention."""
    dropout: Dropout = 0.1
    """Dropout of the output of each sublayer and inside the feed-forward network; in a decoder also
    of the embeddings."""

    @property
    def sizes(self) -> TransformerSizes:
        """The sizes of the blocks."""
        return TransformerSizes(
            layers=self.layers,
            width=self.width,
            heads=self.heads,
            head_width=self.head_width,
            ffn_width=self.ffn_width,
            norm=self.norm,
            activation=self.activation,
            dropout=self.dropout,
            kernel=self.kernel,
            terms=self.terms,
            key_bias=self.key_bias,
        )

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.kernel == "maclaurin" and not self.key_bias:
            raise ValueError("kernel = maclaurin needs key_bias = true; got key_bias = false")
        if "head_width" not in self.model_fields_set and self.width % self.heads:
            raise ValueError(
                "heads must divide width, or give head_width too; "
                f"got heads = {self.heads}, width = {self.width}"
            )
        if self.kernel == "maclaurin" and self.positions in ("alibi", "relative"):
            raise ValueError(
                "kernel = maclaurin has no scores to add a bias to: "
                "use sinusoidal, learned or rotary positions; "
                f"got positions = {self.positions}"
            )
        if self.kernel == "maclaurin" and self.terms % 2 == 0:
            raise ValueError(
                "terms must be odd, or attention weights could be negative; "
                f"got terms = {self.terms}"
            )
        if self.positions == "rotary" and self.head_width % 2:
            raise ValueError(
                "rotary positions turn pairs: head_width must be even; "
                f"got head_width = {self.head_width}"
            )
        return self


class EncoderRecurrent(_Recurrent):
    """A unidirectional or bidirectional RNN."""

    kind: Literal["recurrent"]
    directions: Annotated[int, Field(ge=1, le=2)] = 2
    """1: left to right, 2: bidirectional."""
    merge: Literal["concatenate", "sum"] = "concatenate"
    """How the two directions are combined: concatenated, each of half the width, or summed, each of
    the full width."""
    residual: bool = False
    """Adds the input of each place to its state, such as the embedding of its token, so that
    attention finds single words in the memory besides their context."""

    @model_validator(mode="after")
    def _halves(self) -> Self:
        if self.directions == 2 and self.merge == "concatenate" and self.width % 2:
            raise ValueError(
                'two concatenated directions need an even width, or merge = "sum"; '
                f"got width = {self.width}"
            )
        return self


class EncoderBlank(_Recurrent):
    """A forward and a backward RNN whose states are shifted by one place, so that each place
    encodes the tokens before and after it, but not its own; for task "blank"."""

    kind: Literal["blank"]
    directions: Annotated[int, Field(ge=1, le=2)] = 2
    """2: both contexts, each of half the width; 1: only the left context."""
    embedding_width: Size = Field(default_factory=lambda data: data["width"])
    """Size of the word embeddings; derived: `width`."""

    @model_validator(mode="after")
    def _halves(self) -> Self:
        if self.width % self.directions:
            raise ValueError(
                f"two concatenated directions need an even width; got width = {self.width}"
            )
        return self


class EncoderTransformer(_Transformer):
    """Transformer encoder: blocks of self-attention and a feed-forward network."""

    kind: Literal["transformer"]


class EncoderConvolution(Section):
    """A CNN over the sequence; each layer is a convolution of stride 2."""

    kind: Literal["convolution"]
    width: Size = WIDTH
    """Size of the embedding and of every layer; a decoder without one has its encoder's."""
    layers: Annotated[int, Field(ge=1, le=20)] = 2
    """Number of layers; the memory has one place for every 2^layers places of the source."""
    kernel_size: Annotated[int, Field(ge=2, le=1024)] = 3
    """Kernel size of each convolution; the window begins at the place itself and extends to the
    right."""
    positions: Literal["none", "sinusoidal"] = "none"
    """Position encoding added to the input of the first layer; the places of a picture are numbered
    row by row."""
    activation: Literal["relu", "gelu", "tanh"] = "relu"
    """Activation function of each layer."""
    dropout: Dropout = 0.1
    """Dropout between the layers."""


class EncoderIdentity(Section):
    """No layers: the memory is the feature map of a picture."""

    kind: Literal["identity"]
    summary: Literal["all", "mean"] = "all"
    """The summary vector given to the decoder: all places concatenated, or their mean."""


class _Decoder(Section):
    tied: bool = True
    """Tied embeddings (Press & Wolf 2017): the output layer uses the target's embedding matrix."""
    shared: bool = False
    """Source and target share one embedding; needs equal widths."""


class DecoderRecurrent(_Recurrent, _Decoder):
    """RNN decoder that attends to the memory once for each token."""

    kind: Literal["recurrent"]
    attention: Literal["none", "dot", "scaled", "general", "additive"] = "general"
    """Attention score: dot product (Luong et al. 2015), the same divided by sqrt(width) ("scaled"),
    general (h W m, Luong et al. 2015, divided likewise) or additive (Bahdanau et al. 2015); "none":
    the decoder gets only the encoder's summary."""
    attention_order: Literal["after_cell", "before_cell"] = "after_cell"
    """Whether attention is computed after the cell and the context goes into the output (Luong et
    al. 2015), or before the cell and the context goes into the cell (Bahdanau et al. 2015)."""
    input_feeding: bool = False
    """Input feeding (Luong et al. 2015): the attentional state is an input of the next step."""

    @model_validator(mode="after")
    def _order_has_attention(self) -> Self:
        if self.attention_order == "before_cell" and (
            self.attention == "none" or self.input_feeding
        ):
            raise ValueError(
                'attention_order = "before_cell" needs an attention and no input_feeding; '
                f"got attention = {self.attention}, "
                f"input_feeding = {str(self.input_feeding).lower()}"
            )
        return self


class DecoderRecurrentCrossAttention(_Recurrent, _Decoder):
    """An RNN over the target, with a zero initial state, followed by one block of multi-head
    cross-attention and a feed-forward network."""

    kind: Literal["recurrent-cross-attention"]
    heads: Size = Field(default_factory=lambda data: _heads(data["width"]))
    """Attention heads; derived: the divisor of the width nearest to width / 64."""
    ffn_width: Size = Field(default_factory=lambda data: 4 * data["width"])
    """Hidden dimension of the feed-forward network; derived: four times the width."""
    key_bias: bool = True
    """Bias in the projection of the keys; it does not change the weights of softmax attention."""

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.width % self.heads:
            raise ValueError(
                f"heads must divide width; got heads = {self.heads}, width = {self.width}"
            )
        return self


class DecoderTransformer(_Transformer, _Decoder):
    """Transformer decoder: blocks of causal self-attention, cross-attention and a feed-forward
    network."""

    kind: Literal["transformer"]


class DecoderClassifier(Section):
    """Classifier: one label for the whole memory."""

    kind: Literal["classifier"]
    pooling: Literal["summary", "attention"] = "summary"
    """Pooling of the memory: the encoder's summary, or attention with a learned query."""
    hidden: Annotated[tuple[Size, ...], Strict(False), Field(max_length=16)] = ()
    """Widths of the hidden layers, each with ReLU; empty: a linear classifier."""
    dropout: Dropout = 0.0
    """Dropout of the pooled memory."""
    hidden_dropout: Dropout = 0.0
    """Dropout between the hidden layers."""
    tied: bool = False
    """Tied embeddings, for labels that are words: the output layer is a projection followed by the
    source's embedding matrix."""


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
