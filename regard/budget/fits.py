"""What fits: the largest batch or length in a memory, the width for a number of parameters."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from regard.budget.closed_form.layers import Lengths
from regard.budget.closed_form.parts import Budget
from regard.errors import InputError, RecipeError
from regard.recipe import Recipe, load

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12}
BYTES = {
    "": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
}
LARGEST_AMOUNT = 1e18  # more than any machine has
LARGEST, WIDEST, STEP = 1 << 24, 1 << 16, 8


def amount(written: str, units: dict[str, int], where: str) -> int:
    """
    >>> amount("1.5M", UNITS, "--fit"), amount("8 GB", BYTES, "--memory")
    (1500000, 8000000000)
    """
    found = re.fullmatch(r"([0-9][0-9,_]*(?:\.[0-9]+)?)\s*([a-z]*)", written.strip().lower())
    number = float(found[1].replace(",", "").replace("_", "")) if found else 0.0
    if found is None or found[2] not in units or number <= 0:
        shown = ", ".join(
            unit.upper().replace("IB", "iB") if units is BYTES else unit for unit in units if unit
        )
        raise InputError(
            "must be a number above 0, with a unit or none",
            where=where,
            got=f'"{written}"',
            hint=shown,
        )
    if number > LARGEST_AMOUNT:
        raise InputError(
            f"must be a number of at most {LARGEST_AMOUNT:,.0f}",
            where=where,
            got=f'"{written[:40]}"',
        )
    return int(number * units[found[2]])


@dataclass(frozen=True)
class Fit:
    """The largest that fits, None if not even 1 does; `limit` says that something else ended it."""

    what: str
    largest: int | None
    limit: bool = False


def in_memory(make: Callable[[Lengths], Budget], at: Lengths, room: int) -> dict[str, list[Fit]]:
    """For training, a forward pass and decoding: the largest batch at these lengths, and length
    (if that is free) at this batch."""

    def batch(n: int) -> Lengths:
        return Lengths.of(n, at.S.value, at.T.value)

    def length(n: int) -> Lengths:
        return Lengths.of(at.B.value, n, n)

    def held(budget: Budget, use: str, rows: int) -> int:
        if use == "decoding":
            return budget.memory["weights"] + rows * budget.memory["state"]
        return budget.memory[use]

    known: dict[Lengths, Budget] = {}

    def cost(to: Lengths, use: str) -> int:
        if to not in known:
            known[to] = make(to)
        return held(known[to], use, to.B.value)

    searched = [("batch", batch)] + ([] if fixed(make) else [("length", length)])
    return {
        use: [
            _search(what, lambda n, to=to, use=use: cost(to(n), use) <= room)
            for what, to in searched
        ]
        for use in ("training", "inference", "decoding")
    }


def fixed(make: Callable[[Lengths], Budget]) -> bool:
    """Whether the model has lengths of its own: a picture's places, a label."""
    short, long = (make(Lengths.of(1, n, n)).sizes for n in (1, 2))
    return short == long


def _search(what: str, fits: Callable[[int], bool]) -> Fit:
    """By doubling, then halving: what it grows with only grows."""
    low, high, ended = 0, 1, False
    while high <= LARGEST:
        try:
            if not fits(high):
                break
        except InputError:  # learned positions end somewhere
            ended = True
            break
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        try:
            ok = fits(middle)
        except InputError:
            ok, ended = False, True
        low, high = (middle, high) if ok else (low, middle)
    return Fit(what, low or None, limit=ended)


def width(
    name: str, changes: tuple[str, ...], make: Callable[[Recipe], Budget], aim: str
) -> tuple[int, tuple[str, ...]]:
    """The largest width, in steps of 8, with which a recipe has at most so many parameters
    (`parameters=5M`), and the overrides that set it."""
    key, equals, written = (part.strip() for part in aim.partition("="))
    if key != "parameters" or not equals:
        raise InputError("has the form parameters=5M", where="--fit", got=f'"{aim}"')
    most, given = amount(written, UNITS, "--fit"), load(name, changes)
    sides = [
        side
        for side in ("encoder", "decoder")
        if "width" in type(getattr(given, side)).model_fields
    ]
    if not sides:
        raise InputError("no part of it has a width that could be fitted", where=name)

    def sets(steps: int) -> tuple[str, ...]:
        return tuple(f"{side}.width={steps * STEP}" for side in sides)

    def parameters(steps: int) -> int | None:
        try:
            recipe = load(name, [*changes, *sets(steps)])
        except RecipeError:  # heads that are given need not divide every width
            return None
        return make(recipe).parameters

    best, low, high = 0, 0, WIDEST // STEP
    while high - low > 1:
        middle = (low + high) // 2
        found = next(
            ((n, made) for n in range(middle, low, -1) if (made := parameters(n)) is not None), None
        )
        if found is None:
            low = middle
        elif found[1] <= most:
            best, low = found[0], middle
        else:
            high = found[0]
    if not best:
        raise InputError(
            f"not even a width of {STEP} has so few parameters",
            where="--fit",
            got=f"{most:,}",
            hint="a smaller vocabulary",
        )
    return best * STEP, sets(best)
