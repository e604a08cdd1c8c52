"""The steps of preparation that read one shard and write another: they run in any process.

    lines or examples ─ pack ─► examples ─ count ─► counts of words
                                         ─ encode ─► tokens

Nothing here depends on other shards, and no step has a state: what a shard becomes is the same in
every process.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from typing import Any

import numpy as np

from regard.data.corpus import TOKENS, Form, document_frequency
from regard.data.examples import (
    SPLIT_NUMBERS,
    DialogueExample,
    Example,
    Item,
    identity,
    shown,
    split_numbers,
    turns_of,
)
from regard.data.hashes import digest_of, hash_of, joined_digests
from regard.data.lines import Tally
from regard.data.rules import Rules, Side
from regard.data.shards import Shard, array_column, select, text_column
from regard.errors import DataError
from regard.tokenizers import UNKNOWN, Fit, Labels, Tokenizer, flat_rows, join_turns

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
    are_short: list[bool] = []
    hashes: list[bytes] = []
    identities: list[bytes] = []
    dialogues: list[bytes] = []
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
            hashes.append(digest_of(text + b"\0" + content))
        else:
            sources.append(shown(source).encode())
            items.add(source)
            hashes.append(digest_of(source.content + b"\0" + content))
        targets.append(content)
        if needs_identity:
            identities.append(identity(source))
        if packing.rules.max_words is not None:
            are_short.append(packing.rules.is_short(example))
        if isinstance(example, DialogueExample):
            dialogues.append(example.dialogue)
            speakers.append(example.speakers.encode())
        else:
            dialogues.append(b"")
            speakers.append(b"")

    count = len(targets)
    columns = {
        "split": _splits(packing, identities, dialogues),
        "short": np.array(are_short, np.uint8) if are_short else np.ones(count, np.uint8),
        "hash": joined_digests(hashes),
        **text_column("source-text", sources),
        **text_column("target-text", targets),
        **items.columns(count),
    }
    if packing.prompts:
        columns["prompt"] = joined_digests(map(digest_of, identities))
    if packing.dialogues:
        pairs = zip(dialogues, identities, strict=True)
        keys = (dialogue or same for dialogue, same in pairs)
        columns["group"] = joined_digests(map(digest_of, keys))
        columns |= text_column("speakers", speakers)
    return Shard(columns, {"count": count, "tally": tally.to_json()})


def _splits(packing: Packing, identities: list[bytes], dialogues: list[bytes]) -> np.ndarray:
    """(n,): the number of the split of each example."""
    if packing.split is not None:
        return np.full(len(dialogues), SPLIT_NUMBERS[packing.split], np.uint8)
    digests = (
        dialogue[:8] or hashlib.sha256(same).digest()[:8]
        for dialogue, same in zip(dialogues, identities, strict=True)
    )
    return split_numbers(joined_digests(digests), valid=packing.valid, test=packing.test)


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
    if "group" not in shard.columns:
        yield from _sides(shard, rows, rules, sources=has_text, targets=not labels)
        return
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


def _sides(
    shard: Shard, rows: np.ndarray, rules: Rules, *, sources: bool, targets: bool
) -> Iterator[str]:
    """The texts of one side, or of both in turns."""
    numbers = rows.tolist()
    sides: list[list[str]] = []
    if sources:
        sides.append(_prompts(shard, numbers, rules))
    if targets:
        sides.append(shard.texts("target-text", numbers))
    return chain.from_iterable(zip(*sides, strict=True))


def _prompts(shard: Shard, rows: list[int], rules: Rules) -> list[str]:
    """Sources as the model reads them."""
    prompts = shard.texts("source-text", rows)
    return [rules.prompt(prompt) for prompt in prompts] if rules.plain_source else prompts


# -- encode-----------------------------------------------------------------------------------------


def encode(shard: Shard, rows: np.ndarray, tokenizer: Tokenizer, rules: Rules) -> Shard:
    """The tokens of these rows, for each of them the number of the reason to leave it out, and the
    number of training targets that each token occurs in."""
    targets = shard.texts("target-text", rows.tolist())
    columns = _token_column("target", *tokenizer.encode_rows(targets))
    target = _side(columns, "target")
    if "row" in shard.columns:
        lengths = shard.lengths("source")[shard["row"][rows]]
        source = Side(lengths, np.zeros_like(lengths))
    else:
        columns |= _token_column("source", *_sources(shard, rows, tokenizer, rules))
        source = _side(columns, "source")
    columns["reason"] = rules.refusals(
        source,
        target,
        labels=isinstance(tokenizer, Labels),
        text="row" not in shard.columns,
    )
    if tokenizer.turns:
        columns["history"] = _row_hashes(columns["source"], columns["source.ends"])
    encoded = Shard(columns)
    is_training = (shard["split"][rows] == TRAIN) & (columns["reason"] == 0)
    counts = target_frequency(encoded, is_training, tokenizer.size)
    encoded.columns["frequency.token"] = np.flatnonzero(counts)
    encoded.columns["frequency"] = counts[counts > 0]
    return encoded


def target_frequency(tokens: Shard, rows: np.ndarray, size: int) -> np.ndarray:
    """(V,): the number of targets, of those selected by a mask, that each token occurs in."""
    return document_frequency(*select(tokens["target"], tokens["target.ends"], rows), size)


def _sources(
    shard: Shard, rows: np.ndarray, tokenizer: Tokenizer, rules: Rules
) -> tuple[np.ndarray, np.ndarray]:
    if tokenizer.turns:
        return flat_rows(_histories(list(unpack(shard, rows)), tokenizer, rules))
    return tokenizer.source_tokenizer.encode_rows(_prompts(shard, rows.tolist(), rules))


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


def _token_column(name: str, values: np.ndarray, ends: np.ndarray) -> dict[str, np.ndarray]:
    return {name: values, f"{name}.ends": ends}


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
