"""The last step: shards of examples and of tokens become the files of the corpus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from regard.data.corpus import COLUMNS, DIALOGUE, FREQUENCY, SPLITS
from regard.data.examples import SPLIT_NUMBERS
from regard.data.hashes import distinct, first_places, is_in
from regard.data.lines import Tally
from regard.data.parts import Part, divided, separate
from regard.data.preparation import Preparation
from regard.data.progress import report
from regard.data.ragged import RaggedArrayWriter
from regard.data.rules import HELD_OUT, REASONS, SHARE
from regard.data.shards import Shard, select
from regard.data.shares import is_at_most, thresholds
from regard.data.stages import TRAIN, target_frequency
from regard.data.sums import SummedFile, Sums
from regard.tokenizers import Tokenizer


def join_shards(preparation: Preparation, outcome: Outcome, folder: Path) -> dict[str, Sums]:
    """Write the files of the corpus, and return their checksums."""
    writes = outcome.writes()
    numbers = _Numbers(writes, outcome) if preparation.dialogues else None
    frequency = np.zeros(outcome.vocabulary, np.int64)
    with ExitStack() as stack:
        output = _Output(folder, preparation, stack)
        for done, (part, splits) in enumerate(writes, 1):
            shard = Shard.load(part.examples)
            tokens = Shard.load(part.tokens)
            keep = outcome.keep(part, splits)
            for split in splits:
                output.add(split, part, shard, tokens, keep)
            if numbers is not None:
                output.add_numbers(numbers.next(), shard["split"][part.rows[keep]])
            if "train" in splits:
                _add_frequency(frequency, shard["split"][part.rows], tokens, keep)
            report("writing", done, len(writes))
        return output.sums() | _write_frequency(folder, frequency)


def _add_frequency(
    frequency: np.ndarray, splits: np.ndarray, tokens: Shard, keep: np.ndarray
) -> None:
    """Add how many training targets of a shard each token occurs in: of all that the rules keep,
    as counted when they were encoded, less those that are left out all the same."""
    is_left_out = (splits == TRAIN) & (tokens["reason"] == 0) & ~keep
    frequency[tokens["frequency.token"]] += tokens["frequency"]
    if is_left_out.any():
        frequency -= target_frequency(tokens, is_left_out, len(frequency))


def _write_frequency(folder: Path, frequency: np.ndarray) -> dict[str, Sums]:
    file = SummedFile(folder / FREQUENCY)
    try:
        file.write(frequency.astype("<i8"))
    finally:
        file.close()
    return {FREQUENCY: file.sums()}


class Outcome:
    """Which of the encoded examples are written, and why the others are not."""

    def __init__(self, preparation: Preparation, parts: list[Part], tokenizer: Tokenizer):
        self._preparation = preparation
        self._parts = parts
        self.vocabulary = tokenizer.size
        self._has_turns = tokenizer.turns
        self._held_out = self._held_out_histories()
        self._thresholds = self._thresholds_to_write()
        self.used = 0
        self.skipped = Tally().skipped
        for part in parts:
            reasons, is_over, is_leak = self._reasons(part)
            for reason in np.unique(reasons[~is_over & (reasons > 0)]).tolist():
                count = int(np.count_nonzero(~is_over & (reasons == reason)))
                self.skipped[REASONS[reason]] += count
            self.skipped[SHARE] += int(is_over.sum())
            self.skipped[HELD_OUT] += int((is_leak & ~is_over).sum())
            self.used += int(((reasons == 0) & ~is_over & ~is_leak).sum())

    def writes(self) -> list[tuple[Part, tuple[str, ...]]]:
        """The shards in the order in which they are written, each with the splits that are."""
        if not self._has_turns and not self._preparation.has_shares:
            return [(part, SPLITS) for part in self._parts]
        # Training examples are last.
        return [
            *((part, SPLITS) for part in separate(self._parts)),
            *((part, SPLITS[1:]) for part in divided(self._parts)),
            *((part, SPLITS[:1]) for part in divided(self._parts)),
        ]

    def keep(self, part: Part, splits: Sequence[str]) -> np.ndarray:
        """Of the used rows of a shard those that are written, if they are in one of the splits."""
        reasons, is_over, is_leak = self._reasons(part)
        numbers = [SPLIT_NUMBERS[split] for split in splits]
        is_of_split = np.isin(part.column("split")[part.rows], numbers)
        return (reasons == 0) & ~is_over & ~is_leak & is_of_split

    def _reasons(self, part: Part) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For each used row of a shard the number of the reason to leave it out, whether it is
        more than its share, and whether it is for training and held out too."""
        tokens = Shard.load(part.tokens)
        reasons = tokens["reason"]
        is_training = part.column("split")[part.rows] == TRAIN
        is_over = np.zeros(len(reasons), bool)
        if self._thresholds is not None and not part.separate:
            hashes = part.column("hash")[part.rows]
            is_over = is_training & ~is_at_most(hashes, self._thresholds[part.number])
        return reasons, is_over, self._is_leak(part, tokens)

    def _is_leak(self, part: Part, tokens: Shard) -> np.ndarray:
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
            for part in self._parts:
                tokens = Shard.load(part.tokens, "reason", "history")
                is_held_out = part.column("split")[part.rows] != TRAIN
                yield tokens["history"][is_held_out & (tokens["reason"] == 0)]

        return distinct(histories())

    def _thresholds_to_write(self) -> list[int] | None:
        """The thresholds of the training examples that are written: those that the rules keep."""
        if not self._preparation.has_shares:
            return None
        hashes = []
        for part in divided(self._parts):
            tokens = Shard.load(part.tokens)
            is_training = part.column("split")[part.rows] == TRAIN
            is_kept = is_training & (tokens["reason"] == 0) & ~self._is_leak(part, tokens)
            hashes.append((part.number, part.column("hash")[part.rows[is_kept]]))
        return thresholds(self._preparation.readers, hashes)


class _Numbers:
    """The numbers of dialogues, in the order in which these are written."""

    def __init__(self, writes: Sequence[tuple[Part, Sequence[str]]], outcome: Outcome):
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

    def add(self, split: str, part: Part, shard: Shard, tokens: Shard, keep: np.ndarray) -> None:
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
