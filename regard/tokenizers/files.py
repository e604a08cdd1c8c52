"""Tokenizers as JSON: load, read and write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from regard.errors import BundleError, did_you_mean
from regard.tokenizers.base import Tokenizer
from regard.tokenizers.bpe import BPE
from regard.tokenizers.characters import Characters
from regard.tokenizers.labels import Labels
from regard.tokenizers.words import Words

KINDS: dict[str, type[Tokenizer]] = {kind.kind: kind for kind in (Words, Characters, BPE, Labels)}


def load(data: dict[str, Any], *, where: object = "tokenizer") -> Tokenizer:
    """The tokenizer of which `data` is the JSON.

    >>> load({"kind": "characters", "lower": False, "characters": ["a", "b"]}).encode("ab")
    [4, 5]
    """
    kind = data.get("kind") if isinstance(data, dict) else None
    if isinstance(data, dict) and "model" in data:  # the format of the library `tokenizers`
        kind = BPE.kind
    if not isinstance(kind, str) or kind not in KINDS:
        raise BundleError(
            "not a tokenizer",
            where=where,
            got=f"kind {kind!r}",
            hint=did_you_mean(str(kind), KINDS),
        )
    try:
        return KINDS[kind].from_json(data)
    except Exception as problem:  # the library raises bare Exceptions
        raise BundleError(
            f"malformed {kind} tokenizer",
            where=where,
            got=f"{type(problem).__name__}: {problem}"[:200],
        ) from None


def read(path: Path | str) -> Tokenizer:
    """The tokenizer in a JSON file."""
    try:
        data = json.loads(Path(path).read_text("utf-8"))
    except FileNotFoundError:
        raise BundleError("no such tokenizer file", where=path) from None
    except (ValueError, RecursionError) as problem:
        raise BundleError("not a JSON file", where=path, got=str(problem)[:200]) from None
    return load(data, where=path)


def write(tokenizer: Tokenizer, path: Path | str) -> None:
    """Write a tokenizer to a JSON file."""
    Path(path).write_text(dumps(tokenizer), "utf-8")


def dumps(tokenizer: Tokenizer) -> str:
    """A tokenizer as JSON."""
    return json.dumps(tokenizer.to_json(), ensure_ascii=False, sort_keys=True) + "\n"
