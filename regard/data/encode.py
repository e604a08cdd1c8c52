"""Examples to numbers on disk: filtered, split and tokenized.

A corpus may be larger than memory. It is prepared in steps, each of which goes through shards of a
few megabytes:

    read      lines become shards of examples, with a hash of each         (several processes)
    select    duplicates and prompts that are held out are found by hash
    fit       the tokenizer                                                (several processes)
    encode    shards of examples become shards of tokens                   (several processes)
    join      shards become the files of the corpus

Shards are files in a folder of work. Those that are there are not made again, so a preparation that
was killed goes on where it was. What a shard has in it depends on the data alone, and shards are
joined in their order, so the number of processes makes no difference.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from regard import tokenizers
from regard.data import parsers, stages
from regard.data.corpus import COLUMNS, DIALOGUE, SPLITS, Form
from regard.data.examples import DialogueExample, Example
from regard.data.hashes import distinct, first_places, is_in
from regard.data.lines import Tally, read_blocks
from regard.data.parsers import LineExamples
from regard.data.progress import report
from regard.data.ragged import RaggedArrayWriter
from regard.data.rules import HELD_OUT, REASONS, SHARE, TOO_MANY_WORDS, Rules
from regard.data.shards import Shard, is_whole, select
from regard.data.stages import SPLIT_NUMBERS, TRAIN, Packing
from regard.data.sums import Sums
from regard.data.worker import Task, counters
from regard.data.workers import Workers
from regard.errors import DataError, RegardError
from regard.tokenizers import Fit, Labels, Tokenizer

__all__ = ["Preparation", "Read", "Readers", "Rules"]

TOKENIZER = "tokenizer.json"
TALLY = "tally.json"
PLAN = "plan.json"  # in the folder of work: how it is divided
BLOCK = 1 << 22  # bytes of text, sound or pictures in a shard
FIT_BYTES = 1 << 28  # of texts that byte-pair encoding is learned from

# Of the selection: a row is used, or why it is not.
USED, LONG, HELD, DUPLICATE = range(4)

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

    def write(self, work: Path, folder: Path, workers: int = 1) -> dict[str, Sums]:
        """Write all files of the corpus into an empty folder, and return the checksums of the large
        ones. Shards are kept in the folder `work`."""
        _keep_plan(work)
        with Workers(workers) as pool:
            return _Work(self, work, pool).write(folder)

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


@dataclass
class _Part:
    """A shard of a data set: the paths of its examples and of its tokens. `status` says for each
    row whether it is used, or why not."""

    examples: Path
    number: int  # of the data set
    separate: bool
    status: np.ndarray

    @property
    def tokens(self) -> Path:
        return self.examples.with_suffix(".tokens")

    @property
    def rows(self) -> np.ndarray:
        """The rows that are used."""
        return np.flatnonzero(self.status == USED)

    def column(self, name: str) -> np.ndarray:
        return Shard.load(self.examples, name)[name]


class _Work:
    """One preparation under way."""

    def __init__(self, preparation: Preparation, folder: Path, workers: Workers):
        self.preparation = preparation
        self.folder = folder
        self.workers = workers
        self.tally = Tally()  # of the readers
        self.left_out = Tally()  # by the rules: a reader complains of bad rows, and these are not
        self.parts: list[_Part] = []

    def write(self, folder: Path) -> dict[str, Sums]:
        for number, readers in enumerate(self.preparation.readers):
            packing = self.preparation.packing(readers, None)
            self._read(readers.read, packing, number)
        for number, readers in enumerate(self.preparation.readers):
            for split, read in readers.separate.items():
                self._read(read, self.preparation.packing(readers, split), number)
        self._select()
        tokenizer = self._tokenizer()
        tokenizers.write(tokenizer, folder / TOKENIZER)
        self._encode()
        outcome = _Outcome(self, tokenizer)
        sums = self._join(folder, outcome)
        self._finish(folder, outcome)
        return sums

    @property
    def divided(self) -> list[_Part]:
        """The shards of data that is divided into splits."""
        return [part for part in self.parts if not part.separate]

    @property
    def separate(self) -> list[_Part]:
        return [part for part in self.parts if part.separate]

    # -- read---------------------------------------------------------------------------------------

    def _read(self, read: Read, packing: Packing, number: int) -> None:
        """Pack the examples of a reader into shards, unless that was done before."""
        name = f"{packing.split or 'read'}-{number}"
        record = self.folder / f"{name}.json"
        done = _read_json(record)
        shards = [] if done is None else self._shards(name, done["shards"])
        if done is None or not all(map(is_whole, shards)):
            tally = Tally()
            examples = read(tally)
            if isinstance(examples, LineExamples):
                count = self._read_lines(examples, packing, name, tally)
            else:
                count = self._read_examples(examples, packing, name, tally)
            shards = self._shards(name, count)
            done = {"shards": count, "tally": tally.to_json()}
            _write_json(record, done)
        self.tally.add(Tally.from_json(done["tally"]))
        for shard in shards:
            short = Shard.load(shard, "short")["short"]
            status = np.where(short, USED, LONG).astype(np.uint8)
            self.parts.append(_Part(shard, number, packing.split is not None, status))

    def _shards(self, name: str, count: int) -> list[Path]:
        return [self.folder / f"{name}-{i:06d}.examples" for i in range(count)]

    def _read_lines(self, examples: LineExamples, packing: Packing, name: str, tally: Tally) -> int:
        """Send blocks of lines to the workers. Those that became shards before are not sent."""
        files = list(examples.files())
        total = sum(file.path.stat().st_size for file in files)
        settings = packing.to_json()

        def tasks() -> Iterator[Task | dict[str, Any]]:
            number = 0
            before = 0
            for file in files:
                parser = parsers.to_json(file.parser)
                first = True

                def position(place: int, before: int = before) -> None:
                    report("reading", before + place, total)

                for block in read_blocks(file.path, tally, position, BLOCK):
                    shard = self.folder / f"{name}-{number:06d}.examples"
                    if is_whole(shard):
                        yield Shard.load(shard, "split").facts
                    else:
                        yield (
                            {
                                "step": "pack",
                                "parser": parser,
                                "first": first,
                                "packing": settings,
                                "out": str(shard),
                            },
                            block,
                        )
                    first = False
                    number += 1
                before += file.path.stat().st_size

        count = 0
        for facts in self.workers.run(tasks()):
            tally.add(Tally.from_json(facts["tally"]))
            count += 1
        examples.check(Tally())
        return count

    def _read_examples(
        self, examples: Iterator[Example], packing: Packing, name: str, tally: Tally
    ) -> int:
        """Pack examples that only this process can read."""
        count = 0
        done = 0
        for chunk in _chunks(examples):
            shard = stages.pack(chunk, packing, Tally())
            shard.save(self.folder / f"{name}-{count:06d}.examples")
            count += 1
            done += len(chunk)
            report("reading", done, None)
        return count

    # -- select-------------------------------------------------------------------------------------

    def _select(self) -> None:
        """Find the rows of divided data that are not used: too long ones, those whose prompt is
        held out, and in training duplicates."""
        preparation = self.preparation
        separate = distinct(part.column("prompt") for part in self.separate)
        held_out = np.empty(0, np.uint64)
        if preparation.may_be_in_both:
            held_out = distinct(
                part.column("prompt")[part.column("split") != TRAIN] for part in self.divided
            )
        for part in self.divided:
            is_training = part.column("split") == TRAIN
            if len(separate) or len(held_out):
                prompts = part.column("prompt")
                is_held = is_in(prompts, separate) | (is_training & is_in(prompts, held_out))
                part.status[is_held & (part.status == USED)] = HELD
        self._find_duplicates()
        for part in self.parts:
            counts = np.bincount(part.status, minlength=DUPLICATE + 1)
            self.left_out.skipped[TOO_MANY_WORDS] += int(counts[LONG])
            self.left_out.skipped[HELD_OUT] += int(counts[HELD])
            self.left_out.duplicates += int(counts[DUPLICATE])

    def _find_duplicates(self) -> None:
        columns = [part.column("hash")[self._training_rows(part)] for part in self.divided]
        first = first_places(columns)
        start = 0
        for part, column in zip(self.divided, columns, strict=True):
            places = np.arange(start, start + len(column))
            is_copy = first[places] != places
            part.status[self._training_rows(part)[is_copy]] = DUPLICATE
            start += len(column)

    def _training_rows(self, part: _Part) -> np.ndarray:
        """The rows of divided data that are used for training."""
        return np.flatnonzero((part.column("split") == TRAIN) & (part.status == USED))

    # -- fit----------------------------------------------------------------------------------------

    def _tokenizer(self) -> Tokenizer:
        path = self.folder / TOKENIZER
        try:
            return tokenizers.read(path)
        except RegardError:  # it is not there, or not whole
            pass
        tokenizer = self._fitted()
        if self.preparation.labels and not isinstance(tokenizer, Labels):
            tokenizer = Labels.fit(self._targets(), text=tokenizer)
        assert tokenizer is not None
        draft = path.with_suffix(".new")
        tokenizers.write(tokenizer, draft)
        draft.replace(path)
        return tokenizer

    def _fitted(self) -> Tokenizer | None:
        fit = self.preparation.fit
        if fit is None:
            return None
        if not isinstance(fit, Fit) or not fit.counts:
            return fit(self._texts())
        parts = self.divided
        tasks = (self._task(part, "count", self._rows_to_fit(part), fit) for part in parts)
        counts: Sequence[Any] = []
        for number, result in enumerate(self.workers.run(tasks, total=len(parts)), 1):
            counts = fit.add(counts, counters(result["counts"]))
            report("fitting the tokenizer", number, len(parts))
        return fit.finish(counts)

    def _task(self, part: _Part, step: str, rows: np.ndarray, fit: Fit) -> Task:
        preparation = self.preparation
        return {
            "step": step,
            "shard": str(part.examples),
            "fit": asdict(fit),
            "rules": asdict(preparation.rules),
            "labels": preparation.labels,
        }, rows.tobytes()

    def _texts(self) -> Iterator[str]:
        """The texts a tokenizer is fitted to. Of more than FIT_BYTES a part, selected by a hash."""
        preparation = self.preparation
        share = self._share_to_fit()
        for number, part in enumerate(self.divided, 1):
            shard = Shard.load(part.examples)
            rows = self._rows_to_fit(part)
            if share < 1:
                rows = rows[_mixed(shard["hash"][rows]) < share]
            yield from stages.texts(shard, rows, preparation.rules, labels=preparation.labels)
            report("fitting the tokenizer", number, len(self.divided))

    def _share_to_fit(self) -> float:
        total = 0
        for part in self.divided:
            rows = self._rows_to_fit(part)
            shard = Shard.load(part.examples)
            total += int(shard.lengths("source-text")[rows].sum())
            total += int(shard.lengths("target-text")[rows].sum())
        return FIT_BYTES / max(total, FIT_BYTES)

    def _targets(self) -> Iterator[str]:
        for part in self.divided:
            shard = Shard.load(part.examples, "target-text", "target-text.ends")
            yield from shard.texts("target-text", self._rows_to_fit(part).tolist())

    def _rows_to_fit(self, part: _Part) -> np.ndarray:
        """The training rows that the tokenizer is fitted to."""
        rows = self._training_rows(part)
        if self._thresholds_to_fit is None:
            return rows
        threshold = self._thresholds_to_fit[part.number]
        return rows[_is_at_most(part.column("hash")[rows], threshold)]

    @cached_property
    def _thresholds_to_fit(self) -> list[int] | None:
        """The thresholds of the training examples that the tokenizer is fitted to."""
        if not self.preparation.has_shares:
            return None
        hashes = [
            (part.number, part.column("hash")[self._training_rows(part)]) for part in self.divided
        ]
        return thresholds(self.preparation.readers, hashes)

    # -- encode-------------------------------------------------------------------------------------

    def _encode(self) -> None:
        tokenizer = self.folder / TOKENIZER
        date = tokenizer.stat().st_mtime_ns

        def tasks() -> Iterator[Task | dict[str, Any]]:
            for part in self.parts:
                if is_whole(part.tokens):
                    yield {}
                    continue
                yield (
                    {
                        "step": "encode",
                        "shard": str(part.examples),
                        "tokenizer": str(tokenizer),
                        "tokenizer_date": date,
                        "rules": asdict(self.preparation.rules),
                        "out": str(part.tokens),
                    },
                    part.rows.tobytes(),
                )

        for number, _ in enumerate(self.workers.run(tasks(), total=len(self.parts)), 1):
            report("tokenizing", number, len(self.parts))

    # -- join---------------------------------------------------------------------------------------

    def _join(self, folder: Path, outcome: _Outcome) -> dict[str, Sums]:
        """Write the files of the corpus."""
        writes = outcome.writes()
        numbers = _Numbers(writes, outcome) if self.preparation.dialogues else None
        with ExitStack() as stack:
            output = _Output(folder, self.preparation, stack)
            for done, (part, splits) in enumerate(writes, 1):
                shard = Shard.load(part.examples)
                tokens = Shard.load(part.tokens)
                keep = outcome.keep(part, splits)
                for split in splits:
                    output.add(split, part, shard, tokens, keep)
                if numbers is not None:
                    output.add_numbers(numbers.next(), shard["split"][part.rows[keep]])
                report("writing", done, len(writes))
            return output.sums()

    def _finish(self, folder: Path, outcome: _Outcome) -> None:
        tally = self.tally
        left_out = self.left_out
        left_out.skipped += outcome.skipped
        tally.used = outcome.used
        tally.duplicates += left_out.duplicates
        tally.skipped += left_out.skipped
        if not (folder / "train-source.ends").stat().st_size:
            hint = "are the limits on length too low?"
            if left_out.skipped[HELD_OUT] and self.preparation.has_separate:
                hint = "every prompt stands in valid_path or test_path too; hold out other ones"
            elif tally.used:
                hint = "all of it is held out; data.valid and data.test say how much"
            raise DataError("no usable examples to train on", got=tally.summary(), hint=hint)
        write_json(folder / TALLY, tally.to_json())


class _Outcome:
    """Which of the encoded examples are written, and why the others are not."""

    def __init__(self, work: _Work, tokenizer: Tokenizer):
        self._work = work
        self._has_turns = tokenizer.turns
        self._held_out = self._held_out_histories()
        self._thresholds = self._thresholds_to_write()
        self.used = 0
        self.skipped = Tally().skipped
        for part in work.parts:
            reasons, is_over, is_leak = self._reasons(part)
            for reason in np.unique(reasons[~is_over & (reasons > 0)]).tolist():
                count = int(np.count_nonzero(~is_over & (reasons == reason)))
                self.skipped[REASONS[reason]] += count
            self.skipped[SHARE] += int(is_over.sum())
            self.skipped[HELD_OUT] += int((is_leak & ~is_over).sum())
            self.used += int(((reasons == 0) & ~is_over & ~is_leak).sum())

    def writes(self) -> list[tuple[_Part, tuple[str, ...]]]:
        """The shards in the order in which they are written, each with the splits that are."""
        work = self._work
        if not self._has_turns and not work.preparation.has_shares:
            return [(part, SPLITS) for part in work.parts]
        # Training examples are last.
        return [
            *((part, SPLITS) for part in work.separate),
            *((part, SPLITS[1:]) for part in work.divided),
            *((part, SPLITS[:1]) for part in work.divided),
        ]

    def keep(self, part: _Part, splits: Sequence[str]) -> np.ndarray:
        """Of the used rows of a shard those that are written, if they are in one of the splits."""
        reasons, is_over, is_leak = self._reasons(part)
        numbers = [SPLIT_NUMBERS[split] for split in splits]
        is_of_split = np.isin(part.column("split")[part.rows], numbers)
        return (reasons == 0) & ~is_over & ~is_leak & is_of_split

    def _reasons(self, part: _Part) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For each used row of a shard the number of the reason to leave it out, whether it is
        more than its share, and whether it is for training and held out too."""
        tokens = Shard.load(part.tokens)
        reasons = tokens["reason"]
        is_training = part.column("split")[part.rows] == TRAIN
        is_over = np.zeros(len(reasons), bool)
        if self._thresholds is not None and not part.separate:
            hashes = part.column("hash")[part.rows]
            is_over = is_training & ~_is_at_most(hashes, self._thresholds[part.number])
        return reasons, is_over, self._is_leak(part, tokens)

    def _is_leak(self, part: _Part, tokens: Shard) -> np.ndarray:
        """A history may be shortened to one that is held out, so it is compared with all of
        these, as the model reads them."""
        if not self._has_turns:
            return np.zeros(len(tokens["reason"]), bool)
        is_training = part.column("split")[part.rows] == TRAIN
        is_kept = tokens["reason"] == 0
        return is_training & is_kept & is_in(tokens["history"], self._held_out)

    def _held_out_histories(self) -> np.ndarray:
        """Hashes of the histories that are held out."""
        if not self._has_turns:
            return np.empty(0, np.uint64)

        def histories() -> Iterator[np.ndarray]:
            for part in self._work.parts:
                tokens = Shard.load(part.tokens, "reason", "history")
                is_held_out = part.column("split")[part.rows] != TRAIN
                yield tokens["history"][is_held_out & (tokens["reason"] == 0)]

        return distinct(histories())

    def _thresholds_to_write(self) -> list[int] | None:
        """The thresholds of the training examples that are written: those that the rules keep."""
        work = self._work
        if not work.preparation.has_shares:
            return None
        hashes = []
        for part in work.divided:
            tokens = Shard.load(part.tokens)
            is_training = part.column("split")[part.rows] == TRAIN
            is_kept = is_training & (tokens["reason"] == 0) & ~self._is_leak(part, tokens)
            hashes.append((part.number, part.column("hash")[part.rows[is_kept]]))
        return thresholds(work.preparation.readers, hashes)


class _Numbers:
    """The numbers of dialogues, in the order in which these are written."""

    def __init__(self, writes: Sequence[tuple[_Part, Sequence[str]]], outcome: _Outcome):
        groups = []
        for part, splits in writes:
            keep = outcome.keep(part, splits)
            groups.append(part.column("group")[part.rows[keep]])
        first = first_places(groups)
        is_first = first == np.arange(len(first))
        self._numbers = (np.cumsum(is_first) - 1)[first]
        self._counts = iter(map(len, groups))
        self._start = 0

    def next(self) -> np.ndarray:
        """The numbers of the next shard that is written."""
        start = self._start
        self._start += next(self._counts)
        return self._numbers[start : self._start]


class _Output:
    """The files of a corpus while they are written."""

    def __init__(self, folder: Path, preparation: Preparation, stack: ExitStack):
        columns = COLUMNS | {"source": preparation.form.dtype}
        if preparation.dialogues:
            columns[DIALOGUE] = np.int64
        self._writers = {
            (split, column): stack.enter_context(
                RaggedArrayWriter(folder / f"{split}-{column}", dtype)
            )
            for split in SPLITS
            for column, dtype in columns.items()
        }
        self._form = preparation.form

    def add(self, split: str, part: _Part, shard: Shard, tokens: Shard, keep: np.ndarray) -> None:
        """Write the rows of a shard that are in a split. `keep` is of the used rows."""
        rows = part.rows
        keep = keep & (shard["split"][rows] == SPLIT_NUMBERS[split])
        if not keep.any():
            return
        is_row = np.zeros(len(part.status), bool)
        is_row[rows[keep]] = True
        for column in ("source-text", "target-text"):
            selected = select(shard[column], shard[f"{column}.ends"], is_row)
            self._writers[split, column].append(*selected)
        selected = select(tokens["target"], tokens["target.ends"], keep)
        self._writers[split, "target"].append(*selected)
        if "row" in shard.columns:
            selected = _items(shard, rows[keep], shared=self._form.shape is not None)
        else:
            selected = select(tokens["source"], tokens["source.ends"], keep)
        self._writers[split, "source"].append(*selected)

    def add_numbers(self, numbers: np.ndarray, splits: np.ndarray) -> None:
        for split in SPLITS:
            own = numbers[splits == SPLIT_NUMBERS[split]]
            self._writers[split, DIALOGUE].append(own, np.ones(len(own), np.int64))

    def sums(self) -> dict[str, Sums]:
        sums: dict[str, Sums] = {}
        for writer in self._writers.values():
            sums |= writer.sums
        return sums


def _items(shard: Shard, rows: np.ndarray, *, shared: bool) -> tuple[np.ndarray, np.ndarray]:
    """The values of sources that are not text, and their lengths; with `shared`, a length of 0
    where the source is that of the row before, such as another caption of a picture."""
    sources = shard["row"][rows]
    is_new = np.ones(len(sources), bool)
    if shared:
        is_new = np.diff(sources, prepend=-1) != 0
    wanted = np.zeros(len(shard["source.ends"]), bool)
    wanted[sources] = True
    values, _ = select(shard["source"], shard["source.ends"], wanted)
    return values, np.where(is_new, shard.lengths("source")[sources], 0)


def thresholds(readers: Sequence[Readers], hashes: Iterable[tuple[int, np.ndarray]]) -> list[int]:
    """For each data set the largest hash that is used, so that as many examples are used as the
    shares allow. `hashes` are those of training examples, with the number of their data set."""
    columns: list[list[np.ndarray]] = [[np.empty(0, np.uint64)] for _ in readers]
    for number, column in hashes:
        columns[number].append(column)
    sets = [np.sort(np.concatenate(own)) for own in columns]
    shares = [own.share or 0.0 for own in readers]
    total = min(len(own) / share for own, share in zip(sets, shares, strict=True))
    largest = []
    for own, share in zip(sets, shares, strict=True):
        count = int(share * total + 1e-6)
        largest.append(int(own[count - 1]) if count else -1)
    return largest


def _is_at_most(hashes: np.ndarray, threshold: int) -> np.ndarray:
    if threshold < 0:
        return np.zeros(len(hashes), bool)
    return hashes <= np.uint64(threshold)


def _mixed(hashes: np.ndarray) -> np.ndarray:
    """A number from 0 to 1 for each hash, unrelated to its size, which decides shares."""
    return (hashes * np.uint64(0x9E3779B97F4A7C15)) / 2.0**64


def _chunks(examples: Iterator[Example]) -> Iterator[list[Example]]:
    """Examples in lists of about BLOCK bytes. A list ends between dialogues, and between sources
    that are not text: these are stored once for all their targets."""
    chunk: list[Example] = []
    size = 0
    last: object = None
    for example in examples:
        source, target = example
        together: object = None if isinstance(source, str) else source
        if isinstance(example, DialogueExample):
            together = example.dialogue
        is_same = together is not None and (together is last or together == last)
        if size >= BLOCK and not is_same:
            yield chunk
            chunk = []
            size = 0
        chunk.append(example)
        if isinstance(source, str):
            size += len(source)
        elif source is not last:
            size += source.values.nbytes
        size += len(target)
        last = together
    if chunk:
        yield chunk


def _keep_plan(work: Path) -> None:
    """Forget what is in the folder of work if it was divided in another way."""
    plan = {"format": 1, "block": BLOCK, "fit": FIT_BYTES}
    if _read_json(work / PLAN) == plan:
        return
    for file in work.iterdir():
        if file.suffix in (".examples", ".tokens", ".json", ".new"):
            file.unlink()
    _write_json(work / PLAN, plan)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None


def _write_json(path: Path, content: Any) -> None:
    draft = path.with_name(f"{path.name}.new")
    write_json(draft, content)
    draft.replace(path)


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", "utf-8")
