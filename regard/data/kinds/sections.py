"""What the sections [data] of a recipe have in common: texts, pictures, sounds, captions."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from regard.fields import HeldOutFile, MaxLength, Section, Share, Size, Turns
from regard.marks import Mark, own_marks


class DataSection(Section):
    """A section [data]: where the examples are, and which of them are used."""

    input: ClassVar[Literal["text", "picture", "sound"]]
    """What the model reads."""
    answer: ClassVar[Literal["text", "label", "blank"]] = "text"
    """What it answers; "blank" is a word of the text it reads."""

    kind: str

    @property
    def shares(self) -> tuple[float, float]:
        """The shares of the examples to hold out for validation and for testing."""
        return 0.0, 0.0

    @property
    def dialogues(self) -> bool:
        """Whether examples are from dialogues, of which all examples are in one split."""
        return False

    @property
    def history(self) -> int:
        """The number of turns that the model reads."""
        return getattr(self, "turns", 1)

    @property
    def columns(self) -> dict[str, str | int | None]:
        """The columns of a table, by field; None: to be detected."""
        return {name: getattr(self, name) for name in self.fields_with(Mark.COLUMN)}

    @classmethod
    def fields_with(cls, mark: Mark) -> list[str]:
        """The fields of the section that have a mark."""
        return [name for name, field in cls.model_fields.items() if mark in own_marks(field)]

    def limits(self) -> dict[str, Any]:
        """The examples to keep: the arguments of `Rules` that the section sets."""
        raise NotImplementedError

    @classmethod
    def undivided(cls) -> dict[str, object]:
        """Values of fields with which all examples are one split."""
        fields: dict[str, object] = {}
        for name in cls.fields_with(Mark.HELD_OUT):
            fields[name] = None
        return fields

    def paths(self) -> dict[str, str]:
        """Its files and folders, by field."""
        values = {name: getattr(self, name) for name in self.fields_with(Mark.PATH)}
        return {name: value for name, value in values.items() if value}

    def note(self) -> str | None:
        """A line that says which files are used as source and target, where that was a choice."""
        return None


class SplitSection(DataSection):
    """Data that is split by shares."""

    valid: Share = 0.05
    """Share of the examples held out for validation, selected by a hash of the prompt (of the whole
    dialogue, or of the bytes of a picture); not used with a `valid_path`."""
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

    @property
    def shares(self) -> tuple[float, float]:
        return self.valid, self.test


class Texts(SplitSection):
    """Texts, with an answer or a label each."""

    input = "text"

    max_source: MaxLength = 64
    """Maximum number of tokens of a prompt; pairs with a longer one are left out."""
    max_target: MaxLength = 64
    """Maximum number of tokens of an answer; pairs with a longer one are left out."""
    max_words: Size | None = None
    """Maximum number of words of a prompt or an answer; longer pairs are left out; not set: any."""
    drop_unknown: bool = False
    """Leaves out pairs that contain an unknown word."""

    def limits(self) -> dict[str, Any]:
        return {
            "max_source": self.max_source,
            "max_target": self.max_target,
            "max_words": self.max_words,
            "drop_unknown": self.drop_unknown,
        }


class TextFiles(Texts):
    """Texts in files, with separate files for validation and testing if there are any."""

    valid_path: HeldOutFile | None = None
    """A separate file for validation, in the format of the training data; the share `valid` is then
    not held out."""
    test_path: HeldOutFile | None = None
    """A separate file for testing, in the format of the training data; the share `test` is then not
    held out."""


class DialogueFiles(TextFiles):
    """Dialogues in files. All examples of a dialogue are in one split, selected by a hash of it."""

    turns: Turns = 1
    """Number of turns of a dialogue that the model reads; it answers the last one. With more than
    1, each turn begins with a token that says who speaks, and the oldest turns are left out where
    all together have more than `max_source` tokens."""

    @property
    def dialogues(self) -> bool:
        return True


class Pictures(DataSection):
    """Pictures with labels."""

    input = "picture"
    answer = "label"

    def limits(self) -> dict[str, Any]:
        return {"max_source": 1, "max_target": 1}


class Sounds(DataSection):
    """Sounds with transcripts."""

    input = "sound"

    max_seconds: Annotated[float, Field(gt=0, le=60), Mark.VOCABULARY] = 20.0
    """Maximum length of a sound; longer ones are left out."""
    max_target: MaxLength = 200
    """Maximum number of tokens of a transcript; sounds with a longer one are left out."""
    truncate: bool = False
    """Truncates longer transcripts to `max_target` characters instead of leaving them out."""
    count_padding: Annotated[bool, Mark.TRAINING, Mark.FREE] = False
    """Pads every transcript to `max_target` and includes the padding in the loss, as the reference
    implementation did."""

    def limits(self) -> dict[str, Any]:
        return {"max_source": 1, "max_target": self.max_target}


class Captions(SplitSection):
    """Pictures with captions."""

    input = "picture"

    max_target: MaxLength = 40
    """Maximum number of tokens of a caption; longer ones are left out."""

    def limits(self) -> dict[str, Any]:
        return {"max_source": 1, "max_target": self.max_target}
