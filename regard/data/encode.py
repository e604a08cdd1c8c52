"""Examples to numbers on disk: filtered, split and tokenized.

A corpus may be larger than memory. It is prepared in steps, each of which goes through shards of a
few megabytes:

    read      lines become shards of examples, with a hash of each         read_shards.py
    select    duplicates and prompts that are held out are found by hash   selection.py
    fit       the tokenizer                                                fit_tokenizer.py
    encode    shards of examples become shards of tokens                   here
    join      shards become the files of the corpus                        join_shards.py

What one shard becomes is in `stages.py`, and may be done in any process. Shards are files in a
folder of work. Those that are there are not made again, so a preparation that was killed goes on
where it was. What a shard has in it depends on the data alone, and shards are joined in their
order, so the number of processes makes no difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from regard import tokenizers
from regard.data.fit_tokenizer import TokenizerFit
from regard.data.join_shards import Outcome, join_shards
from regard.data.lines import Tally
from regard.data.parts import LONG, USED, Part, divided
from regard.data.preparation import Preparation, Read
from regard.data.progress import report
from regard.data.read_shards import ShardReader
from regard.data.rules import HELD_OUT
from regard.data.selection import select_rows
from regard.data.shards import Shard, is_whole
from regard.data.sums import Sums
from regard.data.work_files import dump_json, read_json, write_json
from regard.data.worker import Task
from regard.data.workers import Workers
from regard.errors import DataError

TOKENIZER = "tokenizer.json"
TALLY = "tally.json"
PLAN = "plan.json"  # in the folder of work: how it is divided
BLOCK = 1 << 22  # bytes of text, sound or pictures in a shard
FIT_BYTES = 1 << 28  # of texts that byte-pair encoding is learned from


def write_corpus(
    preparation: Preparation, work: Path, folder: Path, workers: int = 1
) -> dict[str, Sums]:
    """Write all files of a corpus into an empty folder, and return the checksums of the large
    ones. Shards are kept in the folder `work`."""
    _keep_plan(work)
    with Workers(workers) as pool:
        return _Work(preparation, work, pool).write(folder)


class _Work:
    """One preparation under way."""

    def __init__(self, preparation: Preparation, folder: Path, workers: Workers):
        self._preparation = preparation
        self._folder = folder
        self._workers = workers
        self._reader = ShardReader(folder, workers, block=BLOCK)
        self._tally = Tally()  # of the readers
        self._parts: list[Part] = []

    def write(self, folder: Path) -> dict[str, Sums]:
        self._read_all()
        left_out = select_rows(self._preparation, self._parts)
        fit = TokenizerFit(self._preparation, divided(self._parts), self._workers, most=FIT_BYTES)
        tokenizer = fit.kept(self._folder / TOKENIZER)
        tokenizers.write(tokenizer, folder / TOKENIZER)
        self._encode()
        outcome = Outcome(self._preparation, self._parts, tokenizer)
        sums = join_shards(self._preparation, outcome, folder)
        left_out.skipped += outcome.skipped
        self._finish(folder, outcome.used, left_out)
        return sums

    def _read_all(self) -> None:
        """Read data that is divided into splits, then the separate splits."""
        for number, readers in enumerate(self._preparation.readers):
            self._read(readers.read, number, None)
        for number, readers in enumerate(self._preparation.readers):
            for split, read in readers.separate.items():
                self._read(read, number, split)

    def _read(self, read: Read, number: int, split: str | None) -> None:
        packing = self._preparation.packing(self._preparation.readers[number], split)
        shards, tally = self._reader.read(read, packing, f"{split or 'read'}-{number}")
        self._tally.add(tally)
        for shard in shards:
            short = Shard.load(shard, "short")["short"]
            status = np.where(short, USED, LONG).astype(np.uint8)
            self._parts.append(Part(shard, number, split is not None, status))

    def _encode(self) -> None:
        tokenizer = self._folder / TOKENIZER
        settings = {
            "step": "encode",
            "tokenizer": str(tokenizer),
            "tokenizer_date": tokenizer.stat().st_mtime_ns,
            "rules": asdict(self._preparation.rules),
        }

        def tasks() -> Iterator[Task | dict[str, Any]]:
            for part in self._parts:
                if is_whole(part.tokens):
                    yield {}
                else:
                    paths = {"shard": str(part.examples), "out": str(part.tokens)}
                    yield settings | paths, part.rows.tobytes()

        for number, _ in enumerate(self._workers.run(tasks(), total=len(self._parts)), 1):
            report("tokenizing", number, len(self._parts))

    def _finish(self, folder: Path, used: int, left_out: Tally) -> None:
        """Write the tally; an error if there is nothing to train on. `left_out` is counted apart:
        a reader complains of bad rows, and these are not."""
        tally = self._tally
        tally.used = used
        tally.duplicates += left_out.duplicates
        tally.skipped += left_out.skipped
        if not (folder / "train-source.ends").stat().st_size:
            hint = "are the limits on length too low?"
            if left_out.skipped[HELD_OUT] and self._preparation.has_separate:
                hint = "every prompt stands in valid_path or test_path too; hold out other ones"
            elif tally.used:
                hint = "all of it is held out; data.valid and data.test say how much"
            raise DataError("no usable examples to train on", got=tally.summary(), hint=hint)
        dump_json(folder / TALLY, tally.to_json())


def _keep_plan(work: Path) -> None:
    """Forget what is in the folder of work if it was divided in another way."""
    plan = {"format": 3, "block": BLOCK, "fit": FIT_BYTES}
    if read_json(work / PLAN) == plan:
        return
    for file in work.iterdir():
        if file.suffix in (".examples", ".tokens", ".json", ".new"):
            file.unlink()
    write_json(work / PLAN, plan)
