"""The fit of a tokenizer as a value, which another process can carry out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from regard.tokenizers.base import Tokenizer, forget_rare
from regard.tokenizers.bpe import BPE
from regard.tokenizers.characters import Characters
from regard.tokenizers.words import Words

KINDS: dict[str, type[Words] | type[Characters] | type[BPE]] = {
    kind.kind: kind for kind in (Words, Characters, BPE)
}


@dataclass(frozen=True)
class Fit:
    """Fits a tokenizer of a kind to texts. With `sources_only`, to every second text: where a
    sentence is both source and target, it is counted once.

    Words and characters are counted, so the texts may be counted in parts (`count`), the counts
    added (`add`), and the tokenizer made from them (`finish`).

    >>> fit = Fit("words", {"min_count": 2})
    >>> counts = fit.add(fit.count(["a b"]), fit.count(["a c"]))
    >>> fit.finish(counts).words, fit(["a b", "a c"]).words
    (('a',), ('a',))
    """

    kind: str
    settings: dict[str, Any] = field(default_factory=dict)
    sources_only: bool = False

    def __call__(self, texts: Iterable[str]) -> Tokenizer:
        return KINDS[self.kind].fit(self._used(texts), **self.settings)

    @property
    def counts(self) -> bool:
        """Whether it only counts."""
        return self.kind != BPE.kind

    def count(self, texts: Iterable[str]) -> list[Counter[str]]:
        """The counts of some of the texts."""
        if self.settings.get("alphabet") is not None:
            return []
        lower = {name: self.settings[name] for name in ("lower",) if name in self.settings}
        return self._counting.count(self._used(texts), **lower)

    @staticmethod
    def add(counts: Sequence[Counter[str]], more: Sequence[Counter[str]]) -> Sequence[Counter[str]]:
        """Add counts to the first ones, which may be empty. Of very many entries the rarest are
        forgotten."""
        if not counts:
            return more
        for total, part in zip(counts, more, strict=True):
            total.update(part)
            forget_rare(total)
        return counts

    def finish(self, counts: Sequence[Counter[str]]) -> Tokenizer:
        """The tokenizer, if these are the counts of all texts."""
        counts = counts or self.count([])
        return self._counting.from_counts(counts, **self.settings)

    @property
    def _counting(self) -> type[Words] | type[Characters]:
        kind = KINDS[self.kind]
        assert not issubclass(kind, BPE)
        return kind

    def _used(self, texts: Iterable[str]) -> Iterable[str]:
        return islice(texts, 0, None, 2) if self.sources_only else texts
