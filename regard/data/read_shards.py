"""The step that reads: data becomes shards of examples, in several processes where the format
allows it.

    LineExamples    blocks of lines are parsed and packed by the workers
    RowExamples     rows are read by this process, and packed by the workers
    others          examples are read and packed by this process
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from regard.data import parsers, stages
from regard.data.examples import DialogueExample, Example
from regard.data.lines import Tally, read_blocks
from regard.data.parsers import LineExamples, RowExamples
from regard.data.preparation import Read
from regard.data.progress import report
from regard.data.shards import Shard, is_whole
from regard.data.stages import Packing
from regard.data.work_files import read_json, write_json
from regard.data.worker import Task
from regard.data.workers import Workers


class ShardReader:
    """Makes shards of about `block` bytes in a folder. Those that are there are not made again."""

    def __init__(self, folder: Path, workers: Workers, *, block: int):
        self._folder = folder
        self._workers = workers
        self._block = block

    def read(self, read: Read, packing: Packing, name: str) -> tuple[list[Path], Tally]:
        """The shards of a reader's examples, and what it counted."""
        record = self._folder / f"{name}.json"
        done = read_json(record)
        if done is not None:
            shards = [self._shard(name, i) for i in range(done["shards"])]
            if all(map(is_whole, shards)):
                return shards, Tally.from_json(done["tally"])

        tally = Tally()
        examples = read(tally)
        if isinstance(examples, LineExamples):
            count = self._pack_in_workers(self._line_tasks(examples, packing, name, tally), tally)
            examples.check(Tally())
        elif isinstance(examples, RowExamples):
            count = self._pack_in_workers(self._row_tasks(examples, packing, name), tally)
            examples.check(Tally())
        else:
            count = self._pack_here(examples, packing, name)
        write_json(record, {"shards": count, "tally": tally.to_json()})
        return [self._shard(name, i) for i in range(count)], tally

    def _shard(self, name: str, number: int) -> Path:
        return self._folder / f"{name}-{number:06d}.examples"

    def _pack_in_workers(self, tasks: Iterable[Task | dict[str, Any]], tally: Tally) -> int:
        """The number of shards that tasks make; what they count is added to the tally."""
        count = 0
        for facts in self._workers.run(tasks):
            tally.add(Tally.from_json(facts["tally"]))
            count += 1
        return count

    def _task(self, task: dict[str, Any], payload: bytes, shard: Path) -> Task | dict[str, Any]:
        """A task that makes a shard; its result, if the shard is there."""
        if is_whole(shard):
            return Shard.load(shard, "split").facts
        return task | {"out": str(shard)}, payload

    def _line_tasks(
        self, examples: LineExamples, packing: Packing, name: str, tally: Tally
    ) -> Iterator[Task | dict[str, Any]]:
        files = list(examples.files())
        total = sum(file.path.stat().st_size for file in files)
        number = 0
        before = 0
        for file in files:

            def position(place: int, before: int = before) -> None:
                report("reading", before + place, total)

            task = {
                "step": "pack_lines",
                "parser": parsers.to_json(file.parser),
                "first": True,
                "packing": packing.to_json(),
            }
            for block in read_blocks(file.path, tally, position, self._block):
                yield self._task(task, block, self._shard(name, number))
                task = task | {"first": False}
                number += 1
            before += file.path.stat().st_size

    def _row_tasks(
        self, examples: RowExamples, packing: Packing, name: str
    ) -> Iterator[Task | dict[str, Any]]:
        parser, rows = examples.table()
        task = {
            "step": "pack_rows",
            "parser": parsers.to_json(parser),
            "packing": packing.to_json(),
        }
        done = 0
        for number, block in enumerate(_row_blocks(rows, self._block)):
            yield self._task(task, json.dumps(block).encode(), self._shard(name, number))
            done += len(block)
            report("reading", done, None)

    def _pack_here(self, examples: Iterator[Example], packing: Packing, name: str) -> int:
        """Pack examples that only this process can read."""
        count = 0
        done = 0
        for block in _example_blocks(examples, self._block):
            stages.pack(block, packing, Tally()).save(self._shard(name, count))
            count += 1
            done += len(block)
            report("reading", done, None)
        return count


def _row_blocks(rows: Iterator[list[str]], size: int) -> Iterator[list[list[str]]]:
    """Rows in lists of about `size` characters."""
    block: list[list[str]] = []
    length = 0
    for row in rows:
        block.append(row)
        length += sum(map(len, row))
        if length >= size:
            yield block
            block = []
            length = 0
    if block:
        yield block


def _example_blocks(examples: Iterator[Example], size: int) -> Iterator[list[Example]]:
    """Examples in lists of about `size` bytes. A list ends between dialogues, and between sources
    that are not text: these are stored once for all their targets."""
    block: list[Example] = []
    length = 0
    last: object = None
    for example in examples:
        source, target = example
        together: object = None if isinstance(source, str) else source
        if isinstance(example, DialogueExample):
            together = example.dialogue
        is_same = together is not None and (together is last or together == last)
        if length >= size and not is_same:
            yield block
            block = []
            length = 0
        block.append(example)
        if isinstance(source, str):
            length += len(source)
        elif source is not last:
            length += source.values.nbytes
        length += len(target)
        last = together
    if block:
        yield block
