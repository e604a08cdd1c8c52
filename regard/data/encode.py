"""Examples to numbers on disk: filtered, split and tokenized.

Examples stream from the readers to the files in chunks, so a corpus may be larger than memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from regard import tokenizers
from regard.data.corpus import COLUMNS, DIALOGUE, SPLITS, Form
from regard.data.examples import (
    DialogueExample,
    Example,
    Item,
    identity,
    shown,
    split_of,
    turns_of,
)
from regard.data.lines import EMPTY, Tally
from regard.data.ragged import RaggedArrayWriter
from regard.data.reading import word_count
from regard.errors import DataError
from regard.tokenizers import UNKNOWN, Labels, Tokenizer, join_turns, plain

TOKENIZER = "tokenizer.json"
TALLY = "tally.json"
CHUNK = 8192  # examples encoded at a time
SMALL_CHUNK = 64  # the same of pictures and sounds, which are larger
HELD_OUT = "also held out"  # why a training example is skipped: its prompt is in another split

Read = Callable[[Tally], Iterator[Example]]
Fit = Callable[[Iterator[str]], Tokenizer]


@dataclass(frozen=True)
class Rules:
    """Which examples are kept, and which share of them is held out."""

    valid: float
    test: float
    max_source: int
    max_target: int
    max_words: int | None = None
    drop_unknown: bool = False
    plain_source: bool = False
    known: int = 0  # least number of known words in a source

    def __post_init__(self) -> None:
        if self.valid < 0 or self.test < 0 or self.valid + self.test >= 1:
            raise DataError(
                "nothing is left to train on",
                where="data",
                got=f"valid {self.valid}, test {self.test}",
            )

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value or name != "known"}

    def is_short(self, example: Example) -> bool:
        """Whether no side has too many words. Of a history only the last turn counts: earlier
        ones are shortened, if need be."""
        limit = self.max_words
        if limit is None:
            return True
        sides = [side for side in example if isinstance(side, str)]
        if isinstance(example, DialogueExample):
            sides[0] = turns_of(example)[0][-1]
        return all(word_count(side) <= limit for side in sides)

    def prompt(self, text: str) -> str:
        """A source as the model reads it."""
        return plain(text) if self.plain_source else text

    def refuses(
        self, source: Sequence[int] | np.ndarray, target: list[int], *, labels: bool
    ) -> str | None:
        """Why an encoded example is left out, or None."""
        if not len(source) or not target:
            return EMPTY
        if labels and UNKNOWN in target:
            return "label not in training"
        if len(target) > self.max_target:
            return "too many tokens"
        if isinstance(source, np.ndarray):
            return None
        if len(source) > self.max_source:
            return "too many tokens"
        if self.drop_unknown and (UNKNOWN in source or UNKNOWN in target):
            return "unknown word"
        known = sum(token != UNKNOWN for token in source)
        return "no known word" if known < self.known else None


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
    fit: Fit | None
    rules: Rules
    form: Form
    labels: bool
    dialogues: bool = False

    def write(self, folder: Path) -> None:
        """Write all files of the corpus into an empty folder."""
        tokenizer = self._tokenizer()
        tokenizers.write(tokenizer, folder / TOKENIZER)

        # What the rules leave out has its own tally: a reader complains when too many rows are bad,
        # and these are not.
        tally = Tally()
        left_out = Tally()
        with ExitStack() as stack:
            output = _Output(folder, self.form, self.dialogues, stack)
            if not tokenizer.turns and not self._has_shares:
                self._write_stream(self._split(tally, left_out), tokenizer, left_out, output)
            for readers in self.readers:
                for split, read in readers.separate.items():
                    stream = self._separate(split, read, tally, left_out)
                    self._write_stream(stream, tokenizer, left_out, output)
            if tokenizer.turns or self._has_shares:
                # Training examples are last: a history may be shortened to one that is held out, so
                # it is compared with all of these.
                held_out = (item for item in self._split(Tally(), Tally()) if item[0] != "train")
                self._write_stream(held_out, tokenizer, left_out, output)
                thresholds = self._thresholds_to_write(tokenizer, output)
                examples = self._split(tally, left_out, thresholds)
                train = (item for item in examples if item[0] == "train")
                self._write_stream(train, tokenizer, left_out, output)

        tally.used = output.used
        tally.duplicates += left_out.duplicates
        tally.skipped += left_out.skipped
        if not (folder / "train-source.ends").stat().st_size:
            hint = "are the limits on length too low?"
            if left_out.skipped[HELD_OUT] and any(readers.separate for readers in self.readers):
                hint = "every prompt stands in valid_path or test_path too; hold out other ones"
            elif tally.used:
                hint = "all of it is held out; data.valid and data.test say how much"
            raise DataError("no usable examples to train on", got=tally.summary(), hint=hint)
        write_json(folder / TALLY, tally.to_json())

    def _tokenizer(self) -> Tokenizer:
        tokenizer = None if self.fit is None else self.fit(self._texts())
        if self.labels and not isinstance(tokenizer, Labels):
            targets = (example.target for example in self._training())
            tokenizer = Labels.fit(targets, text=tokenizer)
        assert tokenizer is not None
        return tokenizer

    def _texts(self) -> Iterator[str]:
        """The texts a tokenizer is fitted to: those of the training split, as the model reads
        them. A turn of a dialogue comes once, although it is in several examples."""
        dialogue = b""
        turns_so_far: set[str] = set()  # of this dialogue
        for example in self._training():
            if not isinstance(example, DialogueExample):
                if isinstance(example.source, str):
                    yield self.rules.prompt(example.source)
                if not self.labels:
                    yield example.target
                continue

            if example.dialogue != dialogue:
                dialogue = example.dialogue
                turns_so_far.clear()
            turns, _ = turns_of(example)
            for text in (*map(self.rules.prompt, turns), example.target):
                if text not in turns_so_far:
                    turns_so_far.add(text)
                    yield text

    def _training(self) -> Iterator[Example]:
        for split, example in self._split(Tally(), Tally(), self._thresholds_to_fit):
            if split == "train":
                yield example

    def _split(
        self, tally: Tally, left_out: Tally, thresholds: Sequence[int] | None = None
    ) -> Iterator[tuple[str, Example]]:
        """The examples of `read` with their split, see `_candidates`. Of training examples only
        those whose hash is at most the threshold of their data set."""
        for number, split, example in self._candidates(tally, left_out):
            threshold = None if thresholds is None or split != "train" else thresholds[number]
            if threshold is not None and _example_hash(example) > threshold:
                left_out.skip("more than its share")
            else:
                yield split, example

    def _candidates(self, tally: Tally, left_out: Tally) -> Iterator[tuple[int, str, Example]]:
        """The examples of every `read`, with the number of the data set and the split; in training
        none twice, and none whose prompt is in another split."""
        separate = self._separate_prompts
        held_out = self._held_out_prompts
        training_hashes: set[int] = set()
        for number, readers in enumerate(self.readers):
            for example in readers.read(tally):
                split = self._split_of(example, readers)
                if not self.rules.is_short(example):
                    left_out.skip("too many words")
                    continue
                if separate or (split == "train" and held_out):
                    prompt = _hash(identity(example.source))
                    if prompt in separate or (split == "train" and prompt in held_out):
                        left_out.skip(HELD_OUT)
                        continue
                if split == "train":
                    digest = _example_hash(example)
                    if digest in training_hashes:
                        left_out.duplicates += 1
                        continue
                    training_hashes.add(digest)
                yield number, split, example

    def _split_of(self, example: Example, readers: Readers) -> str:
        valid = 0.0 if "valid" in readers.separate else self.rules.valid
        test = 0.0 if "test" in readers.separate else self.rules.test
        return split_of(example, valid=valid, test=test)

    def _separate(
        self, split: str, read: Read, tally: Tally, left_out: Tally
    ) -> Iterator[tuple[str, Example]]:
        for example in read(tally):
            if self.rules.is_short(example):
                yield split, example
            else:
                left_out.skip("too many words")

    @cached_property
    def _separate_prompts(self) -> set[int]:
        """Hashes of the prompts in separate splits."""
        hashes = set()
        for readers in self.readers:
            for read in readers.separate.values():
                hashes.update(_hash(identity(example.source)) for example in read(Tally()))
        return hashes

    @cached_property
    def _held_out_prompts(self) -> set[int]:
        """Hashes of the prompts that are held out of `read`, if one of them may also be in
        training: in another dialogue, or in another data set."""
        hashes = set()
        may_be_in_both = self.dialogues or len(self.readers) > 1
        if may_be_in_both and self.rules.valid + self.rules.test > 0:
            for readers in self.readers:
                for example in readers.read(Tally()):
                    if self._split_of(example, readers) != "train":
                        hashes.add(_hash(identity(example.source)))
        return hashes

    @property
    def _has_shares(self) -> bool:
        return any(readers.share is not None for readers in self.readers)

    @cached_property
    def _thresholds_to_fit(self) -> list[int] | None:
        """The thresholds of the training examples that the tokenizer is fitted to."""
        if not self._has_shares:
            return None
        hashes: list[list[int]] = [[] for _ in self.readers]
        for number, split, example in self._candidates(Tally(), Tally()):
            if split == "train":
                hashes[number].append(_example_hash(example))
        return self._thresholds(hashes)

    def _thresholds_to_write(self, tokenizer: Tokenizer, output: _Output) -> list[int] | None:
        """The thresholds of the training examples that are written: those that the rules keep."""
        if not self._has_shares:
            return None
        hashes: list[list[int]] = [[] for _ in self.readers]
        candidates = (item for item in self._candidates(Tally(), Tally()) if item[1] == "train")
        while chunk := list(islice(candidates, CHUNK)):
            encoded = self._encode([item[1:] for item in chunk], tokenizer)
            for (number, split, example), (source, target) in zip(chunk, encoded, strict=True):
                if self._refusal(split, source, target, tokenizer, output) is None:
                    hashes[number].append(_example_hash(example))
        return self._thresholds(hashes)

    def _thresholds(self, hashes: Sequence[list[int]]) -> list[int]:
        """For each data set the largest hash that is used, so that as many examples are used as the
        shares allow."""
        shares = [readers.share or 0.0 for readers in self.readers]
        total = min(len(own) / share for own, share in zip(hashes, shares, strict=True))
        thresholds = []
        for own, share in zip(hashes, shares, strict=True):
            count = int(share * total + 1e-6)
            thresholds.append(sorted(own)[count - 1] if count else -1)
        return thresholds

    def _write_stream(
        self,
        stream: Iterator[tuple[str, Example]],
        tokenizer: Tokenizer,
        left_out: Tally,
        output: _Output,
    ) -> None:
        """Write those examples of a stream that the rules keep."""
        while chunk := list(islice(stream, CHUNK if self.form.is_text else SMALL_CHUNK)):
            encoded = self._encode(chunk, tokenizer)
            for (split, example), (source, target) in zip(chunk, encoded, strict=True):
                reason = self._refusal(split, source, target, tokenizer, output)
                if reason:
                    left_out.skip(reason)
                else:
                    output.add(split, example, source, target)

    def _refusal(
        self,
        split: str,
        source: list[int] | np.ndarray,
        target: list[int],
        tokenizer: Tokenizer,
        output: _Output,
    ) -> str | None:
        """Why an encoded example is left out, or None."""
        reason = self.rules.refuses(source, target, labels=isinstance(tokenizer, Labels))
        if reason is None and tokenizer.turns and output.is_leak(split, source):
            return HELD_OUT
        return reason

    def _encode(
        self, chunk: Sequence[tuple[str, Example]], tokenizer: Tokenizer
    ) -> Iterator[tuple[list[int] | np.ndarray, list[int]]]:
        """The source and the target of each example as numbers."""
        if tokenizer.turns:
            sources = self._histories([example for _, example in chunk], tokenizer)
        else:
            sources = self._sources([example.source for _, example in chunk], tokenizer)
        targets = tokenizer.encode_many([example.target for _, example in chunk])
        return zip(sources, targets, strict=True)

    def _histories(self, examples: Sequence[Example], tokenizer: Tokenizer) -> list[list[int]]:
        """The tokens of each example's turns, as many of the last ones as `max_source` allows."""
        histories = [turns_of(example) for example in examples]
        texts = [self.rules.prompt(turn) for turns, _ in histories for turn in turns]
        encoded = iter(tokenizer.encode_many(texts))
        sources = []
        for turns, speakers in histories:
            tokens = list(islice(encoded, len(turns)))
            sources.append(join_turns(tokens, speakers, limit=self.rules.max_source))
        return sources

    def _sources(
        self, sources: Sequence[str | Item], tokenizer: Tokenizer
    ) -> Sequence[list[int]] | Sequence[np.ndarray]:
        items = [source for source in sources if isinstance(source, Item)]
        if not items:
            texts = [self.rules.prompt(text) for text in sources if isinstance(text, str)]
            return tokenizer.source_tokenizer.encode_many(texts)
        for item in items:
            is_of_form = item.values.dtype == self.form.dtype
            is_of_form &= self.form.shape in (None, item.values.shape)
            if not is_of_form or len(items) != len(sources):
                raise DataError(
                    f"sources must be {self.form.to_json()}",
                    where=item.name,
                    got=f"{item.values.dtype} {item.values.shape}",
                )
        return [item.values.reshape(-1) for item in items]


class _Output:
    """The files of a corpus while they are written."""

    def __init__(self, folder: Path, form: Form, dialogues: bool, stack: ExitStack):
        columns = COLUMNS | {"source": form.dtype}
        if dialogues:
            columns[DIALOGUE] = np.int64
        self._writers = {
            (split, column): stack.enter_context(
                RaggedArrayWriter(folder / f"{split}-{column}", dtype)
            )
            for split in SPLITS
            for column, dtype in columns.items()
        }
        self._form = form
        self._numbers: dict[bytes, int] | None = {} if dialogues else None  # of dialogues
        self._held_out: set[int] = set()  # hashes of histories, as the model reads them
        self.used = 0  # examples

    def is_leak(self, split: str, source: list[int] | np.ndarray) -> bool:
        """Whether a source is for training, and held out too. Sources that are held out are
        remembered, so these must come first."""
        digest = _hash(np.asarray(source, np.int32).tobytes())
        if split == "train":
            return digest in self._held_out
        self._held_out.add(digest)
        return False

    def add(
        self, split: str, example: Example, source: list[int] | np.ndarray, target: list[int]
    ) -> None:
        self.used += 1
        writer = self._writers[split, "source"]
        if self._form.shape is not None and example.source is writer.last:
            writer.repeat()  # another caption of the same picture
        else:
            writer.extend([source])
        writer.last = example.source
        self._writers[split, "target"].extend([target])
        self._writers[split, "source-text"].extend([shown(example.source).encode()])
        self._writers[split, "target-text"].extend([shown(example.target).encode()])
        if self._numbers is not None:
            key = identity(example.source)
            if isinstance(example, DialogueExample):
                key = example.dialogue
            number = self._numbers.setdefault(key, len(self._numbers))
            self._writers[split, DIALOGUE].extend([[number]])


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", "utf-8")


def _hash(content: bytes) -> int:
    """8 bytes: two different ones among 10 million agree once in 400,000 corpora."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")


def _example_hash(example: Example) -> int:
    """A hash of both sides of an example."""
    return _hash(_content(example))


def _content(example: Example) -> bytes:
    """Both sides of an example; texts as they are written."""
    source = example.source.encode() if isinstance(example.source, str) else example.source.content
    return source + b"\0" + example.target.encode()
