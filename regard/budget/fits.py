"""What fits: the largest batch or length in a memory, the width for a number of parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
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
LARGEST = 1 << 24  # batch or length that is searched for
WIDEST = 1 << 16
STEP = 8  # between the widths that are tried
SEARCHED = 17  # widths from the largest that fits up, for the nearest


def amount(text: str, units: dict[str, int], where: str) -> int:
    """A number with an optional unit, as a whole number.

    >>> amount("1.5M", UNITS, "--fit"), amount("8 GB", BYTES, "--memory")
    (1500000, 8000000000)
    """
    match = re.fullmatch(r"([0-9][0-9,_]*(?:\.[0-9]+)?)\s*([a-z]*)", text.strip().lower())
    number = float(match[1].replace(",", "").replace("_", "")) if match else 0.0
    if match is None or match[2] not in units or number <= 0:
        names = [unit for unit in units if unit]
        if units is BYTES:
            names = [name.upper().replace("IB", "iB") for name in names]
        example = "8GB" if units is BYTES else "5M"
        raise InputError(
            f"must be an amount above 0, as in {example}",
            where=where,
            got=f'"{text[:40]}"',
            hint="units: " + ", ".join(names),
        )
    if number > LARGEST_AMOUNT:
        raise InputError(
            f"must be a number of at most {LARGEST_AMOUNT:,.0f}",
            where=where,
            got=f'"{text[:40]}"',
        )
    return int(number * units[match[2]])


@dataclass(frozen=True)
class Fit:
    """The largest batch or length that fits; None if not even 1 does. `limit` is set if the
    model allows no more, whatever the memory."""

    what: str
    largest: int | None
    limit: bool = False


def in_memory(make: Callable[[Lengths], Budget], at: Lengths, memory: int) -> dict[str, list[Fit]]:
    """For training, a forward pass and decoding: the largest batch at these lengths, and the
    largest length (unless the model fixes it) at this batch.

    Training and forward passes are left out where activations are not known (a config.json), and
    decoding is left out of those that keep no State.
    """

    def with_batch(n: int) -> Lengths:
        return Lengths.of(n, at.S.value, at.T.value)

    def with_length(n: int) -> Lengths:
        return Lengths.of(at.B.value, n, n)

    budgets: dict[Lengths, Budget] = {}

    def bytes_needed(to: Lengths, use: str) -> int:
        if to not in budgets:
            budgets[to] = make(to)
        held = budgets[to].memory
        if use == "decoding":
            return held["weights"] + to.B.value * held["state"]
        return held[use]

    def search(what: str, lengths: Callable[[int], Lengths], use: str) -> Fit:
        return _search(what, lambda n: bytes_needed(lengths(n), use) <= memory)

    held = make(at).memory
    uses = ["training", "inference", "decoding"]
    if "training" not in held:
        uses = ["decoding"] if held["state"] else []
    length_is_free = not fixed(make)

    fits: dict[str, list[Fit]] = {}
    for use in uses:
        fits[use] = [search("batch", with_batch, use)]
        if length_is_free:
            fits[use].append(search("length", with_length, use))
    return fits


def fixed(make: Callable[[Lengths], Budget]) -> bool:
    """Whether the model fixes its lengths, as one of images with one label does."""
    short = make(Lengths.of(1, 1, 1))
    long = make(Lengths.of(1, 2, 2))
    return short.sizes == long.sizes


def _search(what: str, fits: Callable[[int], bool]) -> Fit:
    """The largest n that fits, by doubling and then bisection: the cost never falls with n."""
    limited = False

    def allowed(n: int) -> bool:
        nonlocal limited
        try:
            return fits(n)
        except InputError:  # beyond the learned positions
            limited = True
            return False

    low, high = 0, 1
    while high <= LARGEST and allowed(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if allowed(middle):
            low = middle
        else:
            high = middle
    return Fit(what, low or None, limit=limited)


def width(
    name: str, changes: tuple[str, ...], make: Callable[[Recipe], Budget], target: str
) -> tuple[int, tuple[str, ...]]:
    """The largest width, in steps of 8, with which a recipe has at most the parameters of `target`
    (`parameters=5M`), and the overrides that set it."""
    key, equals, text = (part.strip() for part in target.partition("="))
    if key != "parameters" or not equals:
        raise InputError("has the form parameters=5M", where="--fit", got=f'"{target}"')
    most = amount(text, UNITS, "--fit")
    return widest(
        lambda more: load(name, [*changes, *more]),
        lambda recipe: make(recipe).parameters,
        most,
        name=name,
        where="--fit",
    )


def widest(
    make: Callable[[Sequence[str]], Recipe],
    count: Callable[[Recipe], int],
    most: int,
    *,
    name: str,
    where: str,
    nearest: bool = False,
) -> tuple[int, tuple[str, ...]]:
    """The largest width, in steps of 8, with which a recipe has at most so many parameters, and the
    overrides that set it. `make` makes the recipe with overrides, `count` counts its parameters.
    With `nearest` it may be the next larger width, if that is nearer."""
    recipe = make(())
    sides = [
        side
        for side in ("encoder", "decoder")
        if "width" in type(getattr(recipe, side)).model_fields
    ]
    if not sides:
        raise InputError("no part of it has a width that could be fitted", where=name)

    def overrides(steps: int) -> tuple[str, ...]:
        return tuple(f"{side}.width={steps * STEP}" for side in sides)

    def parameters(steps: int) -> int | None:
        """None if the recipe does not allow this width: its heads may not divide it."""
        try:
            recipe = make(overrides(steps))
        except RecipeError:
            return None
        return count(recipe)

    def nearest_below(steps: int, bound: int) -> tuple[int, int] | None:
        """The largest allowed width of at most `steps` and above `bound`, and its parameters."""
        for n in range(steps, bound, -1):
            size = parameters(n)
            if size is not None:
                return n, size
        return None

    best, low, high = 0, 0, WIDEST // STEP
    while high - low > 1:
        middle = (low + high) // 2
        allowed = nearest_below(middle, low)
        if allowed is None:
            low = middle
            continue
        steps, size = allowed
        if size <= most:
            best, low = steps, middle
        else:
            high = steps
    if not best:
        raise InputError(
            f"a width of {STEP} already has more parameters",
            where=where,
            got=f"{most:,}",
            hint="use a smaller vocabulary",
        )
    if nearest:
        sizes = {steps: parameters(steps) for steps in range(best, best + SEARCHED)}
        known = {steps: size for steps, size in sizes.items() if size is not None}
        best = min(known, key=lambda steps: abs(known[steps] - most))
    return best * STEP, overrides(best)
