"""The steps of preparation that read one shard and write another: they run in any process.

    lines or examples ─ pack ─► examples ─ count ─► counts of words
                                         ─ encode ─► tokens

Nothing here depends on other shards, and no step has a state: what a shard becomes is the same in
every process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import numpy as np

from regard.data.corpus import TOKENS, Form
from regard.data.examples import (
    DialogueExample,
    Example,
    Item,
    identity,
    shown,
    split_of_identity,
    turns_of,
)
from regard.data.hashes import hash_of
from regard.data.lines import Tally
from regard.data.rules import Rules, Side
from regard.data.shards import Shard, array_column, text_column, token_column
from regard.errors import DataError
from regard.tokenizers import UNKNOWN, Fit, Labels, Tokenizer, join_turns

SPLIT_NUMBERS = {"train": 0, "valid": 1, "test": 2}
TRAIN = SPLIT_NUMBERS["train"]


# -- pack-------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Packing:
    """How examples become a shard. `split` is that of all of them; None: it follows from a hash
    and the shares `valid` and `test`. `prompts` says whether hashes of prompts are needed, and
    `dialogues` whether the examples are from dialogues."""

    rules: Rules
    valid: float
    test: float
    split: str | None = None
    prompts: bool = False
    dialogues: bool = False
    form: Form = TOKENS

    def to_json(self) -> dict[str, Any]:
        """All but the form: other processes pack text only."""
        return {
            "rules": asdict(self.rules),
            "valid": self.valid,
            "test": self.test,
            "split": self.split,
            "prompts": self.prompts,
            "dialogues": self.dialogues,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Packing:
        return cls(**{**data, "rules": Rules(**data["rules"])})


def pack(examples: Iterable[Example], packing: Packing, tally: Tally) -> Shard:
    """A shard of examples: texts, splits, hashes. `tally` is what their reader counted; it is
    complete when the examples are at their end."""
    splits: list[int] = []
    are_short: list[bool] = []
    hashes: list[int] = []
    prompts: list[int] = []
    groups: list[int] = []
    speakers: list[bytes] = []
    sources: list[bytes] = []
    targets: list[bytes] = []
    items = _Items(packing.form)
    needs_identity = packing.split is None or packing.prompts or packing.dialogues
    for example in examples:
        source, target = example
        content = target.encode()
        if isinstance(source, str):
            text = source.encode()
            sources.append(text)
            hashes.append(hash_of(text + b"\0" + content))
        else:
            sources.append(shown(source).encode())
            items.add(source)
            hashes.append(hash_of(source.content + b"\0" + content))
        targets.append(content)
        same = identity(source) if needs_identity else b""
        split = packing.split
        if split is None:
            split = split_of_identity(example, same, valid=packing.valid, test=packing.test)
        splits.append(SPLIT_NUMBERS[split])
        are_short.append(packing.rules.is_short(example))
        if packing.prompts:
            prompts.append(hash_of(same))
        if packing.dialogues:
            is_dialogue = isinstance(example, DialogueExample)
            groups.append(hash_of(example.dialogue if is_dialogue else same))
            speakers.append(example.speakers.encode() if is_dialogue else b"")

    columns = {
        "split": np.array(splits, np.uint8),
        "short": np.array(are_short, np.uint8),
        "hash": np.array(hashes, np.uint64),
        **text_column("source-text", sources),
        **text_column("target-text", targets),
        **items.columns(len(splits)),
    }
    if packing.prompts:
        columns["prompt"] = np.array(prompts, np.uint64)
    if packing.dialogues:
        columns["group"] = np.array(groups, np.uint64)
        columns |= text_column("speakers", speakers)
    return Shard(columns, {"count": len(splits), "tally": tally.to_json()})


class _Items:
    """Sources that are not text. Neighbours with the same source share one row."""

    def __init__(self, form: Form):
        self._form = form
        self._values: list[np.ndarray] = []
        self._rows: list[int] = []  # for each example that of its source
        self._last: Item | None = None

    def add(self, item: Item) -> None:
        if item is not self._last or self._form.shape is None:
            is_of_form = item.values.dtype == self._form.dtype
            is_of_form &= self._form.shape in (None, item.values.shape)
            if not is_of_form:
                raise _other_form(self._form, item.name, f"{item.values.dtype} {item.values.shape}")
            self._values.append(item.values.reshape(-1))
            self._last = item
        self._rows.append(len(self._values) - 1)

    def columns(self, count: int) -> dict[str, np.ndarray]:
        if not self._rows:
            return {}
        if len(self._rows) != count:
            raise _other_form(self._form, "a reader", "texts beside them")
        column = array_column("source", self._values, self._form.dtype)
        return column | {"row": np.array(self._rows, np.int64)}


def _other_form(form: Form, where: str, got: str) -> DataError:
    return DataError(f"sources must be {form.to_json()}", where=where, got=got)


def unpack(shard: Shard, rows: np.ndarray) -> Iterator[Example]:
    """The texts of a shard as examples; of a source that is not text its name."""
    numbers = rows.tolist()
    sources = shard.texts("source-text", numbers)
    targets = shard.texts("target-text", numbers)
    if "group" not in shard.columns:
        yield from map(Example, sources, targets)
        return
    groups = shard["group"][rows]
    for i, speakers in enumerate(shard.texts("speakers", numbers)):
        if speakers:
            key = groups[i].tobytes()
            yield DialogueExample(sources[i], targets[i], dialogue=key, speakers=speakers)
        else:
            yield Example(sources[i], targets[i])


# -- count------------------------------------------------------------------------------------------


def count(
    shard: Shard, rows: np.ndarray, fit: Fit, rules: Rules, *, labels: bool
) -> list[Counter[str]]:
    """The counts of words or characters in the texts that a tokenizer is fitted to."""
    return fit.count(texts(shard, rows, rules, labels=labels))


def texts(shard: Shard, rows: np.ndarray, rules: Rules, *, labels: bool) -> Iterator[str]:
    """The texts a tokenizer is fitted to, as the model reads them. A turn of a dialogue comes
    once, although it is in several examples."""
    has_text = "row" not in shard.columns
    dialogue = b""
    turns_so_far: set[str] = set()  # of this dialogue
    for example in unpack(shard, rows):
        if not isinstance(example, DialogueExample):
            if has_text:
                yield rules.prompt(str(example.source))
            if not labels:
                yield example.target
            continue

        if example.dialogue != dialogue:
            dialogue = example.dialogue
            turns_so_far.clear()
        turns, _ = turns_of(example)
        for text in (*map(rules.prompt, turns), example.target):
            if text not in turns_so_far:
                turns_so_far.add(text)
                yield text


# -- encode-----------------------------------------------------------------------------------------


def encode(shard: Shard, rows: np.ndarray, tokenizer: Tokenizer, rules: Rules) -> Shard:
    """The tokens of these rows, and for each of them the number of the reason to leave it out."""
    examples = list(unpack(shard, rows))
    targets = tokenizer.encode_many([example.target for example in examples])
    columns = token_column("target", targets)
    target = _side(columns, "target")
    if "row" in shard.columns:
        lengths = shard.lengths("source")[shard["row"][rows]]
        source = Side(lengths, np.zeros_like(lengths))
    else:
        columns |= token_column("source", _sources(examples, tokenizer, rules))
        source = _side(columns, "source")
    columns["reason"] = rules.refusals(
        source,
        target,
        labels=isinstance(tokenizer, Labels),
        text="row" not in shard.columns,
    )
    if tokenizer.turns:
        columns["history"] = _row_hashes(columns["source"], columns["source.ends"])
    return Shard(columns)


def _sources(
    examples: Sequence[Example], tokenizer: Tokenizer, rules: Rules
) -> Sequence[Sequence[int]]:
    if tokenizer.turns:
        return _histories(examples, tokenizer, rules)
    prompts = [rules.prompt(str(example.source)) for example in examples]
    return tokenizer.source_tokenizer.encode_many(prompts)


def _histories(examples: Sequence[Example], tokenizer: Tokenizer, rules: Rules) -> list[list[int]]:
    """The tokens of each example's turns, as many of the last ones as `max_source` allows."""
    histories = [turns_of(example) for example in examples]
    prompts = [rules.prompt(turn) for turns, _ in histories for turn in turns]
    encoded = iter(tokenizer.encode_many(prompts))
    sources = []
    for turns, speakers in histories:
        tokens = list(islice(encoded, len(turns)))
        sources.append(join_turns(tokens, speakers, limit=rules.max_source))
    return sources


def _side(columns: dict[str, np.ndarray], name: str) -> Side:
    ends = columns[f"{name}.ends"]
    unknown_before = np.concatenate([[0], np.cumsum(columns[name] == UNKNOWN)])
    return Side(np.diff(ends, prepend=0), np.diff(unknown_before[ends], prepend=0))


def _row_hashes(values: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """(n,): a hash of every row."""
    content = values.astype(np.int32).tobytes()
    edges = [0, *(4 * ends).tolist()]
    hashes = (hash_of(content[edges[i] : edges[i + 1]]) for i in range(len(ends)))
    return np.fromiter(hashes, np.uint64, len(ends))
