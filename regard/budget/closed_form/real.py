"""Formulas of real numbers, such as times and rates, that know their value. `symbols` has those of
whole numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Real:
    """A number and the expression it is the value of.

    >>> N, W = Real.named("N", 8), Real.named("W", 1.25e9)
    >>> e = 2 * (N - 1) / (N * W)
    >>> e.symbols, e.numbers, f"{e.value:.3g}"
    ('2 (N - 1) / (N W)', '2·(8 - 1)/(8·1.25e+09)', '1.4e-09')
    """

    symbols: str
    numbers: str
    value: float
    level: int = 3  # of its outermost operator: 1 sum, 2 product or quotient, 3 none

    @classmethod
    def named(cls, name: str, value: float) -> Real:
        return cls(name, _short(value), value)

    @classmethod
    def of(cls, value: Real | float) -> Real:
        return value if isinstance(value, Real) else cls(_short(value), _short(value), value)

    def __add__(self, other: Real | float) -> Real:
        return self._joined(" + ", Real.of(other), self.value + Real.of(other).value)

    def __sub__(self, other: Real | float) -> Real:
        return self._joined(" - ", Real.of(other), self.value - Real.of(other).value)

    def __mul__(self, other: Real | float) -> Real:
        right = Real.of(other)
        return Real(
            f"{self._in(2)[0]} {right._in(2)[0]}",
            f"{self._in(2)[1]}·{right._in(2)[1]}",
            self.value * right.value,
            level=2,
        )

    def __rmul__(self, other: float) -> Real:
        return Real.of(other) * self

    def __truediv__(self, other: Real | float) -> Real:
        right = Real.of(other)
        return Real(
            f"{self._in(2)[0]} / {right._in(3)[0]}",
            f"{self._in(2)[1]}/{right._in(3)[1]}",
            self.value / right.value,
            level=2,
        )

    def _joined(self, operator: str, right: Real, value: float) -> Real:
        level = 2 if operator == " - " else 1
        return Real(
            self.symbols + operator + right._in(level)[0],
            self.numbers + operator + right._in(level)[1],
            value,
            level=1,
        )

    def _in(self, level: int) -> tuple[str, str]:
        """Its texts as a part of an operation, in brackets where they need them."""
        if self.level < level:
            return f"({self.symbols})", f"({self.numbers})"
        return self.symbols, self.numbers


def longest(first: Real, second: Real) -> Real:
    return Real(
        f"max({first.symbols}, {second.symbols})",
        f"max({first.numbers}, {second.numbers})",
        max(first.value, second.value),
    )


def _short(value: float) -> str:
    if float(value).is_integer() and abs(value) < 1e15 and (value < 1e9 or value % 1e6):
        return f"{int(value):,}"
    return f"{value:.6g}"
