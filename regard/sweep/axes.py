"""The fields of a sweep and what they may be: values or a range."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from regard.errors import InputError

DECADE = 10


@dataclass(frozen=True)
class Axis:
    """A field and what it may be: some values as they were written, or a range."""

    key: str
    values: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0

    @property
    def is_range(self) -> bool:
        return not self.values

    @property
    def is_logarithmic(self) -> bool:
        return self.low > 0 and self.high / self.low >= DECADE

    def __str__(self) -> str:
        return (
            f"{self.key}={','.join(self.values) if self.values else f'{self.low:g}..{self.high:g}'}"
        )


def axis(written: str, option: str = "--sweep") -> Axis:
    """A field and its values, as they are typed with an option.

    >>> axis("train.learning_rate=0.1,0.01").values, axis("decoder.hidden=[4,8],[16]").values
    (('0.1', '0.01'), ('[4,8]', '[16]'))
    >>> axis("train.learning_rate=1e-4..1e-1").is_logarithmic
    True
    >>> axis("encoder.layers=1..4").is_logarithmic
    False
    """
    key, _, value = (part.strip() for part in written.partition("="))
    if not key or not value:
        hint = "train.learning_rate=0.1,0.01 tries values, train.learning_rate=1e-4..1e-1 a range"
        raise InputError(
            "values to try have the form section.field=values",
            where=option,
            got=f'"{written}"',
            hint=hint,
        )
    if ends := _ends(value):
        try:
            low, high = (float(end) for end in ends)
        except ValueError:
            raise InputError(
                "the ends of a range are numbers", where=f"{option} {key}", got=value
            ) from None
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise InputError(
                "a range goes from a number to a larger one", where=f"{option} {key}", got=value
            )
        return Axis(key, low=low, high=high)
    values = [part.strip() for part in _values(value) if part.strip()]
    if not values:
        raise InputError("no value to try", where=f"{option} {key}", got=f'"{value}"')
    for number, part in enumerate(values):
        if part in values[:number]:
            raise given_twice(key, part, part, option)
    return Axis(key, tuple(values))


def given_twice(key: str, first: str, second: str, option: str = "--sweep") -> InputError:
    got = second if first == second else f"{first} and {second}"
    return InputError(
        "a value is given twice", where=f"{option} {key}", got=got, hint="name each value once"
    )


def _ends(value: str) -> tuple[str, str] | None:
    """The two ends of a range `low..high`; None if this is none, as "../x" and '"a..b"' are not.

    >>> _ends("1e-4..1e-1"), _ends("../x"), _ends("1..")
    (('1e-4', '1e-1'), None, None)
    """
    if any(mark in value for mark in "/,\"'"):
        return None
    dots = value.find("..", 1)
    if dots < 0 or not value[dots + 2 :]:
        return None
    return value[:dots], value[dots + 2 :]


def _values(value: str) -> list[str]:
    """Parts between commas, where a comma inside of a list [a,b] does not count.

    >>> _values("[4,8],[16],3")
    ['[4,8]', '[16]', '3']
    """
    cuts = [len(value)]
    inside = False
    for at in reversed(range(len(value))):
        if value[at] in "[]":
            inside = value[at] == "]"
        elif value[at] == "," and not inside:
            cuts.append(at)
    cuts.append(-1)
    return [value[before + 1 : after] for after, before in reversed(list(itertools.pairwise(cuts)))]


def points(axes: Sequence[Axis]) -> list[dict[str, str]]:
    """Every combination of the values."""
    names = [each.key for each in axes]
    return [
        dict(zip(names, values, strict=True))
        for values in itertools.product(*(each.values for each in axes))
    ]


def number_text(value: float, *, whole: bool) -> str:
    """A number as a folder's name and an override have it; six digits tell any two trials apart."""
    return str(int(value)) if whole else f"{value:.6g}"
