"""A worker process: it reads tasks from standard input, and writes the results to standard output.

A task is a line of JSON, followed by as many bytes as its `size` says; a result is a line of JSON.
Shards are files. So nothing that a process sends to another is executed.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from regard import tokenizers
from regard.data import parsers, stages
from regard.data.examples import Example
from regard.data.lines import Tally, block_lines
from regard.data.parsers import RowParser
from regard.data.rules import Rules
from regard.data.shards import Shard
from regard.errors import RegardError
from regard.tokenizers import Fit, Tokenizer

Task = tuple[dict[str, Any], bytes]


def work(task: dict[str, Any], payload: bytes) -> dict[str, Any]:
    """The result of a task, in this process."""
    return _STEPS[task["step"]](task, payload)


def _pack_lines(task: dict[str, Any], payload: bytes) -> dict[str, Any]:
    """Parse and pack a block of lines."""
    tally = Tally()
    lines = block_lines(payload, tally)
    parser = parsers.from_json(task["parser"])
    return _pack(parser.examples(lines, tally, first=task["first"]), task, tally)


def _pack_rows(task: dict[str, Any], payload: bytes) -> dict[str, Any]:
    """Pack a block of rows, which come as JSON."""
    tally = Tally()
    parser = parsers.from_json(task["parser"])
    assert isinstance(parser, RowParser)
    return _pack(parser.pairs(iter(json.loads(payload)), tally), task, tally)


def _pack(examples: Iterator[Example], task: dict[str, Any], tally: Tally) -> dict[str, Any]:
    shard = stages.pack(examples, stages.Packing.from_json(task["packing"]), tally)
    shard.save(Path(task["out"]))
    return shard.facts


def _count(task: dict[str, Any], payload: bytes) -> dict[str, Any]:
    shard = Shard.load(Path(task["shard"]))
    rows = np.frombuffer(payload, np.int64)
    fit = Fit(**task["fit"])
    counts = stages.count(shard, rows, fit, Rules(**task["rules"]), labels=task["labels"])
    return {"counts": counts}


def _encode(task: dict[str, Any], payload: bytes) -> dict[str, Any]:
    shard = Shard.load(Path(task["shard"]))
    rows = np.frombuffer(payload, np.int64)
    tokenizer = _tokenizer(task["tokenizer"], task["tokenizer_date"])
    encoded = stages.encode(shard, rows, tokenizer, Rules(**task["rules"]))
    encoded.save(Path(task["out"]))
    return {}


_STEPS = {"pack_lines": _pack_lines, "pack_rows": _pack_rows, "count": _count, "encode": _encode}


@lru_cache(1)
def _tokenizer(path: str, date: int) -> Tokenizer:
    return tokenizers.read(path)


def counters(counts: list[dict[str, int]]) -> list[Counter[str]]:
    """Counts that came as JSON."""
    return [Counter(count) for count in counts]


def main() -> None:
    tasks = sys.stdin.buffer
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not come between results
    while line := tasks.readline():
        task = json.loads(line)
        payload = tasks.read(task["size"])
        if len(payload) != task["size"]:
            return  # who sent it was killed
        try:
            result = work(task, payload)
        except RegardError as problem:
            parts = {name: _text(getattr(problem, name)) for name in ("what", "where", "got")}
            result = {"error": parts | {"hint": problem.hint}}
        except OSError as problem:
            result = {"system_error": [problem.errno, problem.strerror]}
        try:
            results.write(json.dumps(result).encode() + b"\n")
            results.flush()
        except BrokenPipeError:
            return


def _text(value: object) -> str | None:
    return None if value is None else str(value)


if __name__ == "__main__":
    main()
