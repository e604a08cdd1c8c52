"""The costs of a contender as text, in the terminal and on the page."""

from __future__ import annotations

from collections.abc import Callable


def amount(value: float) -> str:
    """
    >>> amount(206922), amount(4.318)
    ('206,922', '4.32')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def scientific(value: float) -> str:
    """
    >>> scientific(8.61e10), scientific(456000)
    ('8.61e10', '4.56e5')
    """
    number, _, power = f"{value:.3g}".partition("e")
    return f"{number}e{int(power)}" if power else number


def megabytes(value: float) -> str:
    """
    >>> megabytes(30e6), megabytes(7.46e6)
    ('30 MB', '7.5 MB')
    """
    return f"{value / 1e6:,.0f} MB" if value >= 1e7 else f"{value / 1e6:.2g} MB"


# The fields of `Costs` that are shown, in this order.
COST_TEXTS: dict[str, Callable[[float], str]] = {
    "parameters": amount,
    "multiplications": scientific,
    "forward": scientific,
    "depth": amount,
    "tokens_per_second": amount,
    "steps": amount,
    "seconds": amount,
    "training_memory": megabytes,
    "peak_memory": megabytes,
}
