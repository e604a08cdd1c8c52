"""Formulas that know their value: `4 * B * S * D` prints as symbols and as numbers, and is the
number.

    >>> B, D = Size("B", 32), Size("D", 256)
    >>> e = B * (D + 1) * D * 4
    >>> str(e), e.numbers, e.value
    ('4 B (D + 1) D', '4·32·(256 + 1)·256', 8421376)

So what a row of the budget shows as its formula cannot differ from what it computes: both are the
same object.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property


class Formula:
    """A whole number and how it came about. Sums, products and powers are made with the
    operators of Python."""

    value: int

    @property
    def symbols(self) -> str:
        raise NotImplementedError

    @property
    def numbers(self) -> str:
        """The symbols' values in their places."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.symbols

    def __add__(self, other: Formula | int) -> Formula:
        return total(self, other)

    def __radd__(self, other: int) -> Formula:
        return total(other, self)

    def __sub__(self, other: Formula | int) -> Formula:
        return total(self, *_negative(other))

    def __rsub__(self, other: int) -> Formula:
        return total(other, *_negative(self))

    def __mul__(self, other: Formula | int) -> Formula:
        return product(self, other)

    def __rmul__(self, other: int) -> Formula:
        return product(other, self)

    def __pow__(self, power: int) -> Formula:
        return product(*[self] * power)


Amount = Formula | int


def formula(of: Amount) -> Formula:
    return Number(of) if isinstance(of, int) else of


@dataclass(frozen=True)
class Number(Formula):
    value: int

    @property
    def symbols(self) -> str:
        return f"{self.value:,}"

    @property
    def numbers(self) -> str:
        return f"{self.value:,}"


ZERO, ONE = Number(0), Number(1)


@dataclass(frozen=True)
class Size(Formula):
    """A symbol: a letter for a number, and what it is."""

    name: str
    value: int
    meaning: str = ""

    @property
    def symbols(self) -> str:
        return self.name

    @property
    def numbers(self) -> str:
        return f"{self.value:,}"


@dataclass(frozen=True)
class Sum(Formula):
    terms: tuple[Formula, ...]

    @cached_property
    def value(self) -> int:
        return sum(term.value for term in self.terms)

    @property
    def symbols(self) -> str:
        return self._joined([term.symbols for term in self.terms])

    @property
    def numbers(self) -> str:
        return self._joined([term.numbers for term in self.terms])

    @staticmethod
    def _joined(terms: list[str]) -> str:
        return terms[0] + "".join(
            f" - {t[1:]}" if t.startswith("-") else f" + {t}" for t in terms[1:]
        )


@dataclass(frozen=True)
class Product(Formula):
    factor: int  # the number in front
    rest: tuple[Formula, ...]

    @cached_property
    def value(self) -> int:
        return self.factor * math.prod(each.value for each in self.rest)

    @property
    def symbols(self) -> str:
        return _front(self.factor, " ") + " ".join(
            _inside(each, each.symbols) for each in self.rest
        )

    @property
    def numbers(self) -> str:
        return _front(self.factor, "·") + "·".join(
            _inside(each, each.numbers) for each in self.rest
        )


@dataclass(frozen=True)
class Power(Formula):
    base: Formula
    power: int

    @cached_property
    def value(self) -> int:
        return self.base.value**self.power

    @property
    def symbols(self) -> str:
        return f"{_inside(self.base, self.base.symbols, power=True)}^{self.power}"

    @property
    def numbers(self) -> str:
        return f"{_inside(self.base, self.base.numbers, power=True)}^{self.power}"


@dataclass(frozen=True)
class Call(Formula):
    """A function with a name: max, log, ceil, C."""

    name: str
    parts: tuple[Formula, ...]
    value: int
    between: str = ", "

    @property
    def symbols(self) -> str:
        return f"{self.name}({self.between.join(each.symbols for each in self.parts)})"

    @property
    def numbers(self) -> str:
        return f"{self.name}({self.between.join(each.numbers for each in self.parts)})"


def total(*terms: Amount) -> Formula:
    """The sum; zeros fall away, equal terms are gathered, and plain numbers come last.

    >>> D = Size("D", 5)
    >>> str(total(2, D, 0, 3, 2 * D))
    '3 D + 5'
    """
    number, counts = 0, dict[tuple[Formula, ...], int]()
    for term in map(formula, terms):
        for each in term.terms if isinstance(term, Sum) else (term,):
            if isinstance(each, Number):
                number += each.value
            else:
                factor, rest = (
                    (each.factor, each.rest) if isinstance(each, Product) else (1, (each,))
                )
                counts[rest] = counts.get(rest, 0) + factor
    kept = [product(factor, *rest) for rest, factor in counts.items() if factor] + (
        [Number(number)] if number else []
    )
    return ZERO if not kept else kept[0] if len(kept) == 1 else Sum(tuple(kept))


def product(*factors: Amount) -> Formula:
    """The product, its number in front, equal factors as powers.

    >>> D, H = Size("D", 5), Size("H", 3)
    >>> str(product(D, 2, H, 4, D))
    '8 D^2 H'
    """
    front, powers = 1, dict[Formula, int]()
    for factor in map(formula, factors):
        rest = factor.rest if isinstance(factor, Product) else (factor,)
        front *= factor.factor if isinstance(factor, Product) else 1
        for each in rest:
            if isinstance(each, Number):
                front *= each.value
            else:
                base, power = (each.base, each.power) if isinstance(each, Power) else (each, 1)
                powers[base] = powers.get(base, 0) + power
    if front == 0 or not powers:
        return Number(front)
    kept = tuple(base if power == 1 else Power(base, power) for base, power in powers.items())
    return kept[0] if front == 1 and len(kept) == 1 else Product(front, kept)


def log(of: Amount) -> Formula:
    """The height of a tree over so many leaves, ceil(log2 n).

    >>> log(Size("D", 5)).value, log(1).value
    (3, 0)
    """
    of = formula(of)
    height = (of.value - 1).bit_length()
    return Number(height) if isinstance(of, Number) else Call("log", (of,), height)


def largest(*of: Amount) -> Formula:
    """
    >>> str(largest(Size("D", 5), Size("I", 7)))
    'max(D, I)'
    """
    parts = tuple(dict.fromkeys(map(formula, of)))
    return parts[0] if len(parts) == 1 else Call("max", parts, max(part.value for part in parts))


def ceil(of: Amount, by: int) -> Formula:
    """of / by, rounded up.

    >>> ceil(Size("S", 7), 4).value, str(ceil(Size("S", 7), 4))
    (2, 'ceil(S / 4)')
    """
    of = formula(of)
    return Call("ceil", (of, Number(by)), -(-of.value // by), between=" / ")


def choose(n: Amount, k: Amount) -> Formula:
    """
    >>> choose(Size("K", 64) + 2, 2).value
    2145
    """
    n, k = formula(n), formula(k)
    return Call("C", (n, k), math.comb(n.value, k.value))


def _negative(of: Amount) -> list[Formula]:
    return [product(-1, term) for term in (of.terms if isinstance(of, Sum) else (of,))]


def _front(factor: int, between: str) -> str:
    return "" if factor == 1 else "-" if factor == -1 else f"{factor:,}{between}"


def _inside(of: Formula, written: str, *, power: bool = False) -> str:
    return f"({written})" if isinstance(of, Sum) or (power and isinstance(of, Product)) else written
