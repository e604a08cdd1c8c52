"""Formulas that know their value: `4 * B * S * D` has a text in symbols, a text in numbers, and
a value.

    >>> B, D = Size("B", 32), Size("D", 256)
    >>> e = B * (D + 1) * D * 4
    >>> str(e), e.numbers, e.value
    ('4 B (D + 1) D', '4·32·(256 + 1)·256', 8421376)

The formula that a budget shows cannot differ from what it computes: both are the same object.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property


class Formula:
    """A whole number and the expression it is the value of. The operators +, -, * and ** make
    formulas of formulas."""

    value: int

    @property
    def symbols(self) -> str:
        raise NotImplementedError

    @property
    def numbers(self) -> str:
        """The expression with values instead of symbols."""
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


def formula(amount: Amount) -> Formula:
    return Number(amount) if isinstance(amount, int) else amount


@dataclass(frozen=True)
class Number(Formula):
    value: int

    @property
    def symbols(self) -> str:
        return f"{self.value:,}"

    @property
    def numbers(self) -> str:
        return f"{self.value:,}"


ZERO = Number(0)
ONE = Number(1)


@dataclass(frozen=True)
class Size(Formula):
    """A symbol: its name, its value, and what it means."""

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
        text = terms[0]
        for term in terms[1:]:
            text += f" - {term[1:]}" if term.startswith("-") else f" + {term}"
        return text


@dataclass(frozen=True)
class Product(Formula):
    factor: int  # the number in front
    rest: tuple[Formula, ...]  # no plain numbers

    @cached_property
    def value(self) -> int:
        return self.factor * math.prod(factor.value for factor in self.rest)

    @property
    def symbols(self) -> str:
        factors = [_bracketed(factor, factor.symbols) for factor in self.rest]
        return _front(self.factor, " ") + " ".join(factors)

    @property
    def numbers(self) -> str:
        factors = [_bracketed(factor, factor.numbers) for factor in self.rest]
        return _front(self.factor, "·") + "·".join(factors)


@dataclass(frozen=True)
class Power(Formula):
    base: Formula
    power: int

    @cached_property
    def value(self) -> int:
        return self.base.value**self.power

    @property
    def symbols(self) -> str:
        return f"{_bracketed(self.base, self.base.symbols, power=True)}^{self.power}"

    @property
    def numbers(self) -> str:
        return f"{_bracketed(self.base, self.base.numbers, power=True)}^{self.power}"


@dataclass(frozen=True)
class Call(Formula):
    """A named function of formulas: max, log, ceil, C."""

    name: str
    arguments: tuple[Formula, ...]
    value: int
    between: str = ", "

    @property
    def symbols(self) -> str:
        return f"{self.name}({self.between.join(argument.symbols for argument in self.arguments)})"

    @property
    def numbers(self) -> str:
        return f"{self.name}({self.between.join(argument.numbers for argument in self.arguments)})"


def total(*terms: Amount) -> Formula:
    """The sum, simplified: no zeros, equal terms together, plain numbers last.

    >>> D = Size("D", 5)
    >>> str(total(2, D, 0, 3, 2 * D))
    '3 D + 5'
    """
    number = 0
    counts: dict[tuple[Formula, ...], int] = {}  # factors of a term -> the number in front
    for term in map(formula, terms):
        for part in term.terms if isinstance(term, Sum) else (term,):
            if isinstance(part, Number):
                number += part.value
            elif isinstance(part, Product):
                counts[part.rest] = counts.get(part.rest, 0) + part.factor
            else:
                counts[(part,)] = counts.get((part,), 0) + 1

    simplified = [product(count, *factors) for factors, count in counts.items() if count]
    if number:
        simplified.append(Number(number))
    if not simplified:
        return ZERO
    return simplified[0] if len(simplified) == 1 else Sum(tuple(simplified))


def product(*factors: Amount) -> Formula:
    """The product, simplified: one number in front, equal factors as powers.

    >>> D, H = Size("D", 5), Size("H", 3)
    >>> str(product(D, 2, H, 4, D))
    '8 D^2 H'
    """
    front = 1
    powers: dict[Formula, int] = {}
    for factor in map(formula, factors):
        if isinstance(factor, Product):
            front *= factor.factor
        for part in factor.rest if isinstance(factor, Product) else (factor,):
            if isinstance(part, Number):
                front *= part.value
            elif isinstance(part, Power):
                powers[part.base] = powers.get(part.base, 0) + part.power
            else:
                powers[part] = powers.get(part, 0) + 1
    if front == 0 or not powers:
        return Number(front)

    rest = tuple(base if power == 1 else Power(base, power) for base, power in powers.items())
    return rest[0] if front == 1 and len(rest) == 1 else Product(front, rest)


def log(n: Amount) -> Formula:
    """ceil(log2 n), the height of a binary tree with n leaves.

    >>> log(Size("D", 5)).value, log(1).value
    (3, 0)
    """
    n = formula(n)
    height = (n.value - 1).bit_length()
    return Number(height) if isinstance(n, Number) else Call("log", (n,), height)


def largest(*amounts: Amount) -> Formula:
    """The maximum.

    >>> str(largest(Size("D", 5), Size("I", 7)))
    'max(D, I)'
    """
    formulas = tuple(dict.fromkeys(map(formula, amounts)))
    if len(formulas) == 1:
        return formulas[0]
    return Call("max", formulas, max(each.value for each in formulas))


def ceil(n: Amount, divisor: int) -> Formula:
    """n / divisor, rounded up.

    >>> ceil(Size("S", 7), 4).value, str(ceil(Size("S", 7), 4))
    (2, 'ceil(S / 4)')
    """
    n = formula(n)
    return Call("ceil", (n, Number(divisor)), -(-n.value // divisor), between=" / ")


def choose(n: Amount, k: Amount) -> Formula:
    """The binomial coefficient C(n, k).

    >>> choose(Size("K", 64) + 2, 2).value
    2145
    """
    n, k = formula(n), formula(k)
    return Call("C", (n, k), math.comb(n.value, k.value))


def _negative(amount: Amount) -> list[Formula]:
    """The terms of -amount."""
    terms = amount.terms if isinstance(amount, Sum) else (amount,)
    return [product(-1, term) for term in terms]


def _front(factor: int, between: str) -> str:
    if factor == 1:
        return ""
    return "-" if factor == -1 else f"{factor:,}{between}"


def _bracketed(inner: Formula, text: str, *, power: bool = False) -> str:
    """The text of a factor, or of the base of a power, in brackets where it needs them."""
    needs_brackets = isinstance(inner, Sum) or (power and isinstance(inner, Product))
    return f"({text})" if needs_brackets else text
