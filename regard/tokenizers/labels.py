"""Labels: one token a class."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from regard.errors import DataError, InputError
from regard.tokenizers.base import NUM_SPECIAL_TOKENS, UNKNOWN, Tokenizer, checked_entries

_OTHER_COLUMN = "is the column of labels another one?"


class Labels(Tokenizer):
    """One token a label. If the source is text, its tokenizer is kept in `text`.

    >>> from regard.tokenizers import Characters
    >>> tokenizer = Labels.fit(["pos", "neg", "pos"], text=Characters("ab"))
    >>> tokenizer.encode("pos"), tokenizer.decode([4]), tokenizer.size
    ([5], 'neg', 6)
    >>> tokenizer.source_tokenizer.encode("ba")
    [5, 4]
    """

    kind = "labels"

    def __init__(self, labels: Sequence[str], *, text: Tokenizer | None = None):
        if isinstance(text, Labels):
            raise ValueError("labels are given to text, not to labels")
        self.labels = tuple(labels)
        self.text = text
        self.size = NUM_SPECIAL_TOKENS + len(self.labels)
        self._token = {label: NUM_SPECIAL_TOKENS + i for i, label in enumerate(self.labels)}

    @classmethod
    def fit(
        cls, targets: Iterable[str], *, text: Tokenizer | None = None, most: int = 10_000
    ) -> Labels:
        """A tokenizer of the distinct targets, at most `most`.

        Numbers come first, in numerical order (9 before 10), then the rest in alphabetical order.
        """
        labels: set[str] = set()
        for target in targets:
            labels.add(target)
            if len(labels) > most:
                raise DataError("too many labels", got=f"more than {most:,}", hint=_OTHER_COLUMN)
        if len(labels) == 1:
            raise DataError(
                "one label leaves nothing to tell apart",
                got=f'only "{labels.pop()}"',
                hint=_OTHER_COLUMN,
            )
        return cls(sorted(labels, key=_label_order), text=text)

    @property
    def source_size(self) -> int:
        return 0 if self.text is None else self.text.size

    @property
    def source_tokenizer(self) -> Tokenizer:
        if self.text is None:
            raise InputError("these labels are not given to text", where="tokenizer")
        return self.text

    def encode(self, text: str) -> list[int]:
        return [self._token.get(text, UNKNOWN)]

    def pieces(self, tokens: Iterable[int]) -> Iterator[str]:
        space = ""
        for token in tokens:
            if token < NUM_SPECIAL_TOKENS:
                yield ""
                continue
            yield space + self.labels[token - NUM_SPECIAL_TOKENS]
            space = " "

    def to_json(self) -> dict[str, Any]:
        text = None if self.text is None else self.text.to_json()
        return {"kind": self.kind, "labels": list(self.labels), "text": text}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Labels:
        from regard.tokenizers.files import load  # which imports this module

        text = None if data["text"] is None else load(data["text"], where="text")
        return cls(checked_entries(data["labels"]), text=text)


def _label_order(label: str) -> tuple[bool, int, str]:
    is_number = label.isdecimal()
    return not is_number, len(label) if is_number else 0, label
