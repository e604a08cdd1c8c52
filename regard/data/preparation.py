"""What a corpus is prepared from, and by which rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from regard.data.corpus import Form
from regard.data.examples import Example
from regard.data.lines import Tally
from regard.data.rules import Rules
from regard.data.stages import Packing
from regard.tokenizers import Tokenizer

Read = Callable[[Tally], Iterator[Example]]
FitTokenizer = Callable[[Iterator[str]], Tokenizer]


@dataclass(frozen=True)
class Readers:
    """The readers of a data set: of the data to be split, and of splits that are separate; and its
    share of the training examples of a mixture."""

    read: Read
    separate: Mapping[str, Read]
    share: float | None = None


@dataclass(frozen=True)
class Preparation:
    """How a corpus is prepared: its readers, the tokenizer's fit, the rules, the form of a source.

    A split of `separate` has its own reader. The others are selected from `read`, by the dialogue
    or else by the prompt (`split_of`). Training examples whose prompt is in another split are left
    out, so that nothing a model is evaluated on is in its training data.

    `fit` fits the tokenizer to all texts of the training split, on both sides; with `labels`, to
    its sources alone (None: they are not text), and the targets are the labels stored with it. With
    `dialogues`, examples are from dialogues, and the corpus has the number of each one's dialogue.

    If the data sets of a mixture have shares, of each those training examples are used whose hash
    is at most a threshold, which is chosen so that the numbers fit the shares. This is done twice:
    for the tokenizer among all examples, and then among those that the rules keep.
    """

    readers: tuple[Readers, ...]  # one, or those of a mixture
    fit: FitTokenizer | None
    rules: Rules
    form: Form
    labels: bool
    dialogues: bool = False

    def packing(self, readers: Readers, split: str | None) -> Packing:
        """How the examples of a reader are packed."""
        return Packing(
            self.rules,
            valid=0.0 if "valid" in readers.separate else self.rules.valid,
            test=0.0 if "test" in readers.separate else self.rules.test,
            split=split,
            prompts=self.has_separate or self.may_be_in_both,
            dialogues=self.dialogues,
            form=self.form,
        )

    @property
    def has_shares(self) -> bool:
        return any(readers.share is not None for readers in self.readers)

    @property
    def has_separate(self) -> bool:
        return any(readers.separate for readers in self.readers)

    @property
    def may_be_in_both(self) -> bool:
        """Whether a prompt that is held out of `read` may also be in training: in another
        dialogue, or in another data set."""
        is_held_out = self.rules.valid + self.rules.test > 0
        return is_held_out and (self.dialogues or len(self.readers) > 1)
