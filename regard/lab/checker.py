"""Checks gradients that someone derived by hand: names the term that is wrong, says how, and if it
can, why.

    def mine(weights, cache, targets):            # as regard.lab.cells.lstm_backward
        ...
        return {"W_f": ..., "b_f": ..., ...}
    print(check_gradients(mine))

It finds the cause by making the mistakes itself. A *slip* is a wrong formula on the way back, which
spoils everything before it; a *misreading* is a wrong last line for one weight. Whichever few of
them together give the very numbers that were handed in are named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from regard.errors import InputError, did_you_mean
from regard.lab import cells
from regard.lab.cells import Gradients, GRUCache, LSTMCache, Weights

Backward = Callable[[Weights, Any, Tensor], Mapping[str, Any]]


# ----------------------------------------------------------------------------------------- problems


@dataclass(frozen=True)
class Cell:
    forward: Callable[..., tuple[Tensor, Any]]
    backward: Callable[..., Gradients]
    shapes: Callable[[int, int, int], dict[str, tuple[int, ...]]]
    starts: tuple[str, ...]
    slips: Mapping[str, str]
    way_back: Callable[..., WayBack]
    formulas: Mapping[str, str]


@dataclass(frozen=True)
class Problem:
    """Weights, a batch with its start, and what the way forward made of them."""

    weights: dict[str, Tensor]
    x: Tensor
    starts: dict[str, Tensor]
    targets: Int[Tensor, "B T"]
    cache: Any


def problem(
    cell: str = "lstm",
    *,
    rows: int = 2,
    length: int = 5,
    inputs: int = 3,
    width: int = 7,
    outputs: int = 11,
    seed: int = 0,
) -> Problem:
    """A small problem in float64, its start not zero, so that no gradient is zero either."""
    if cell not in CELLS:
        raise InputError(
            "no such cell", where="cell", got=f'"{cell}"', hint=did_you_mean(cell, CELLS)
        )
    if length < 2:
        raise InputError(
            "needs 2 places or more, or mistakes over time do not show", where="length", got=length
        )
    kind, draw = CELLS[cell], torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    weights = {
        name: drawn(*shape) / math.sqrt(shape[-1])
        for name, shape in kind.shapes(inputs, width, outputs).items()
    }
    x, starts = drawn(rows, length, inputs), {name: drawn(rows, width) / 2 for name in kind.starts}
    targets = torch.randint(outputs, (rows, length), generator=draw)
    return Problem(weights, x, starts, targets, kind.forward(weights, x, **starts)[1])


# -------------------------------------------------------------------------------------------- slips


class WayBack(NamedTuple):
    """The gradients, and what each weight's is made of: W_g = sum over rows and places of
    delta_g read_g^T."""

    gradients: Gradients
    deltas: dict[str, Tensor]  # (B, T, D), by gate
    reads: dict[str, Tensor]  # (B, T, D), (B, T, I) or (B, T, D + I), by gate
    slopes: dict[str, Tensor]  # (B, T, D), of those gates that bend


GATES = {"f": "forget", "u": "update", "o": "output", "r": "reset"}
COMMON_SLIPS = {
    "y": "y - yhat, where it should be yhat - y",
    "da_next": "da_next is left out: dL/da = W_y^T (yhat - y) + da_next",
    "candidate": "the candidate's factor is 1 - c~, where it should be 1 - c~^2",
    "candidate-inside": "the candidate's factor is 1 - (what is inside its tanh), where it should be 1 - c~^2",
    "candidate-none": "the candidate's factor 1 - c~^2 is left out",
}
LSTM_SLIPS = {
    **COMMON_SLIPS,
    **{f"slope-{g}": f"the factor {g} (1 - {g}) of the {GATES[g]} gate is left out" for g in "fuo"},
    "dc_next": "dc_next is left out: dL/dc = dL/da o (1 - tanh(c)^2) + dc_next",
    "cell": "the factor 1 - tanh(c)^2 is left out of dL/dc",
    "cell-c": "the factor of dL/dc is 1 - c^2, where it should be 1 - tanh(c)^2",
    "carry": "dc_next is dL/dc, where it should be dL/dc f",
    "c_prev": "the forget gate's delta has c, where it should have c_prev",
    "tanh_c": "the output gate's delta has c, where it should have tanh(c)",
}
GRU_SLIPS = {
    **COMMON_SLIPS,
    **{f"slope-{g}": f"the factor {g} (1 - {g}) of the {GATES[g]} gate is left out" for g in "ru"},
    "past": "the way through u a_prev is left out: da_next = dL/da u + ...",
    "share": "the candidate's share is u, where it should be 1 - u",
    "swap": "the update gate's delta has c~ - a_prev, where it should have a_prev - c~",
    "reset": "the delta of W_a a + b_a is that of the candidate, without r",
}


def lstm_way_back(
    weights: Weights, cache: LSTMCache, targets: Tensor, slips: Iterable[str] = ()
) -> WayBack:
    """`cells.lstm_backward` with some of its formulas wrong."""
    f, u, o, c, a_prev, c_prev = cache.f, cache.u, cache.o, cache.c, cache.a_prev, cache.c_prev
    tanh_c, sign = torch.tanh(c), -1 if "y" in slips else 1
    slopes = {
        g: torch.ones_like(s) if f"slope-{g}" in slips else s * (1 - s)
        for g, s in zip("fuo", (f, u, o), strict=True)
    }
    slopes["c"] = _candidate_slope(cache.candidate, slips)
    cell_slope = (
        torch.ones_like(c) if "cell" in slips else 1 - (c if "cell-c" in slips else tanh_c) ** 2
    )
    dy = sign * (cache.y - cells.one_hot(targets, cache.y))
    deltas = {g: torch.zeros_like(c) for g in "fuoc"} | {"y": dy}
    dx, da_next, dc_next = (
        torch.zeros_like(cache.x),
        torch.zeros_like(cache.a0),
        torch.zeros_like(cache.c0),
    )
    for t in reversed(range(c.shape[1])):
        da = dy[:, t] @ weights["W_y"] + (0 if "da_next" in slips else da_next)
        dc = da * o[:, t] * cell_slope[:, t] + (0 if "dc_next" in slips else dc_next)
        own = {
            "f": dc * (c if "c_prev" in slips else c_prev)[:, t],
            "u": dc * cache.candidate[:, t],
            "o": da * (c if "tanh_c" in slips else tanh_c)[:, t],
            "c": dc * u[:, t],
        }
        for g, d in own.items():
            deltas[g][:, t] = d * slopes[g][:, t]
        dz = sum((deltas[g][:, t] @ weights[f"W_{g}"] for g in own), torch.zeros(()))
        da_next, dx[:, t] = dz.split([da.shape[-1], dx.shape[-1]], dim=-1)
        dc_next = dc if "carry" in slips else dc * f[:, t]
    z = torch.cat([a_prev, cache.x], dim=-1)
    reads = dict.fromkeys("fuoc", z) | {"y": cache.a}
    return WayBack(
        {**_weights(deltas, reads), "x": dx, "a0": da_next, "c0": dc_next}, deltas, reads, slopes
    )


def gru_way_back(
    weights: Weights, cache: GRUCache, targets: Tensor, slips: Iterable[str] = ()
) -> WayBack:
    """`cells.gru_backward` with some of its formulas wrong."""
    r, u, candidate, a_prev = cache.r, cache.u, cache.candidate, cache.a_prev
    slopes = {
        g: torch.ones_like(s) if f"slope-{g}" in slips else s * (1 - s)
        for g, s in zip("ru", (r, u), strict=True)
    }
    slopes["c"] = _candidate_slope(candidate, slips)
    dy = (-1 if "y" in slips else 1) * (cache.y - cells.one_hot(targets, cache.y))
    deltas = {g: torch.zeros_like(u) for g in "ruca"} | {"y": dy}
    dx, da_next = torch.zeros_like(cache.x), torch.zeros_like(cache.a0)
    for t in reversed(range(u.shape[1])):
        da = dy[:, t] @ weights["W_y"] + (0 if "da_next" in slips else da_next)
        change = (candidate - a_prev if "swap" in slips else a_prev - candidate)[:, t]
        dc = da * (u if "share" in slips else 1 - u)[:, t] * slopes["c"][:, t]
        deltas["u"][:, t] = du = da * change * slopes["u"][:, t]
        deltas["c"][:, t] = dc
        deltas["r"][:, t] = dr = dc * cache.recurrent[:, t] * slopes["r"][:, t]
        deltas["a"][:, t] = dh = dc if "reset" in slips else dc * r[:, t]
        dz_a, dz_x = (dr @ weights["W_r"] + du @ weights["W_u"]).split(
            [da.shape[-1], dx.shape[-1]], dim=-1
        )
        dx[:, t] = dz_x + dc @ weights["W_c"]
        da_next = (0 if "past" in slips else da * u[:, t]) + dz_a + dh @ weights["W_a"]
    z = torch.cat([a_prev, cache.x], dim=-1)
    reads = {"r": z, "u": z, "c": cache.x, "a": a_prev, "y": cache.a}
    return WayBack({**_weights(deltas, reads), "x": dx, "a0": da_next}, deltas, reads, slopes)


def _candidate_slope(candidate: Tensor, slips: Iterable[str]) -> Tensor:
    if "candidate" in slips:
        return 1 - candidate
    if "candidate-inside" in slips:
        return 1 - torch.atanh(candidate)
    return torch.ones_like(candidate) if "candidate-none" in slips else 1 - candidate**2


def _weights(deltas: Mapping[str, Tensor], reads: Mapping[str, Tensor]) -> Gradients:
    biases = {f"b_{g}": delta.sum((0, 1)) for g, delta in deltas.items()}
    return {f"W_{g}": outer(delta, reads[g]) for g, delta in deltas.items()} | biases


def outer(delta: Tensor, read: Tensor) -> Tensor:
    """sum over rows and places of delta read^T"""
    return torch.einsum("bto,bti->oi", delta, read)


OUTPUT_FORMULAS = {"W_y": "sum_t (yhat - y) a^T", "b_y": "sum_t (yhat - y)"}
LSTM_DELTAS = {
    "f": "df = dL/dc c_prev f (1 - f)",
    "u": "du = dL/dc c~ u (1 - u)",
    "o": "do = dL/da tanh(c) o (1 - o)",
    "c": "dc~ = dL/dc u (1 - c~^2)",
}
LSTM_FORMULAS = {
    **{
        f"W_{g}": f"sum_t {delta.split()[0]} [a_prev; x]^T, {delta}"
        for g, delta in LSTM_DELTAS.items()
    },
    **{f"b_{g}": f"sum_t {delta.split()[0]}, {delta}" for g, delta in LSTM_DELTAS.items()},
    **OUTPUT_FORMULAS,
    "x": "the last I of W_f^T df + W_u^T du + W_o^T do + W_c^T dc~, at each place",
    "a0": "the first D of W_f^T df + W_u^T du + W_o^T do + W_c^T dc~, at the first place",
    "c0": "dL/dc f, at the first place",
}
GRU_DELTAS = {
    "r": "dr = dc~ (W_a a_prev + b_a) r (1 - r)",
    "u": "du = dL/da (a_prev - c~) u (1 - u)",
    "c": "dc~ = dL/da (1 - u) (1 - c~^2)",
}
GRU_FORMULAS = {
    **{f"W_{g}": f"sum_t {GRU_DELTAS[g].split()[0]} [a_prev; x]^T, {GRU_DELTAS[g]}" for g in "ru"},
    "W_c": f"sum_t dc~ x^T, {GRU_DELTAS['c']}",
    "W_a": f"sum_t (dc~ r) a_prev^T, {GRU_DELTAS['c']}",
    **{f"b_{g}": f"sum_t {delta.split()[0]}, {delta}" for g, delta in GRU_DELTAS.items()},
    "b_a": f"sum_t dc~ r, {GRU_DELTAS['c']}",
    **OUTPUT_FORMULAS,
    "x": "the last I of W_r^T dr + W_u^T du, and W_c^T dc~, at each place",
    "a0": "dL/da u, the first D of W_r^T dr + W_u^T du, and W_a^T (dc~ r), at the first place",
}
CELLS = {
    "lstm": Cell(
        cells.lstm_forward,
        cells.lstm_backward,
        cells.lstm_shapes,
        ("a0", "c0"),
        LSTM_SLIPS,
        lstm_way_back,
        LSTM_FORMULAS,
    ),
    "gru": Cell(
        cells.gru_forward,
        cells.gru_backward,
        cells.gru_shapes,
        ("a0",),
        GRU_SLIPS,
        gru_way_back,
        GRU_FORMULAS,
    ),
}


# -------------------------------------------------------------------------------------- misreadings


class Misreading(NamedTuple):
    value: Tensor
    kind: str
    why: str


def _misreadings(name: str, back: WayBack, cache: Any) -> Iterator[Misreading]:
    """What `name` would be with the right deltas and a wrong last line."""
    right = back.gradients[name]
    yield Misreading(
        -right, "sign", "y - yhat, where it should be yhat - y" if name == "b_y" else ""
    )
    letter, _, gate = name.partition("_")
    if letter == "W":
        yield from _misread_weight(gate, back, cache)
    elif letter == "b":
        yield from _misread_bias(gate, back)
    else:
        yield Misreading(right.transpose(0, 1), "transposed", "")
    yield Misreading(torch.zeros_like(right), "zero", "it is zero everywhere")


def _misread_weight(gate: str, back: WayBack, cache: Any) -> Iterator[Misreading]:
    delta, read, x = back.deltas[gate], back.reads[gate], cache.x
    reads = (
        "a"
        if gate == "y"
        else "[a_prev; x]"
        if read.shape[-1] > max(x.shape[-1], cache.a.shape[-1])
        else "x"
    )
    reads = "a_prev" if gate == "a" else reads
    if reads == "[a_prev; x]":
        for part, only in ((x, "x only"), (cache.a_prev, "a_prev only")):
            why = f"the weight's gradient is (delta) with {only}, where it should be (delta) [a_prev; x]^T"
            yield Misreading(outer(delta, part), "shape", why)
            empty = torch.zeros_like(cache.a_prev if part is x else x)
            yield Misreading(
                outer(delta, torch.cat([empty, part] if part is x else [part, empty], -1)),
                "wrong",
                why,
            )
        yield Misreading(
            outer(delta, torch.cat([x, cache.a_prev], -1)),
            "wrong",
            "[x; a_prev], where [a_prev; x] is asked",
        )
        yield Misreading(
            outer(delta, torch.cat([cache.a, x], -1)),
            "wrong",
            "a of the place itself, where that of the place before is read",
        )
    yield Misreading(delta.sum((0, 1)), "shape", f"the delta alone, not times {reads}^T")
    yield Misreading(
        outer(delta, read).T,
        "transposed",
        f"{reads} (delta)^T, where it should be (delta) {reads}^T",
    )
    yield Misreading(
        torch.einsum("bto,bti->toi", delta, read),
        "time",
        "one gradient a place, not summed over time",
    )
    yield Misreading(
        torch.einsum("bto,bti->boi", delta, read),
        "shape",
        "one gradient a row, not summed over the batch",
    )
    for t in range(delta.shape[1]):
        yield Misreading(
            outer(delta[:, t : t + 1], read[:, t : t + 1]), "time", _only(t, delta.shape[1])
        )
    if gate in back.slopes:
        yield Misreading(
            outer(delta * back.slopes[gate], read),
            "wrong",
            "the slope of the gate is applied twice",
        )
        yield Misreading(
            outer(delta / back.slopes[gate], read),
            "wrong",
            "the slope of the gate is left out here",
        )


def _misread_bias(gate: str, back: WayBack) -> Iterator[Misreading]:
    delta, read = back.deltas[gate], back.reads[gate]
    times = "a" if gate == "y" else "the weight's input"
    yield Misreading(
        outer(delta, read), "shape", f"(delta) times {times}^T, where a bias takes the delta alone"
    )
    yield Misreading(delta.sum(0), "time", "one gradient a place, not summed over time")
    yield Misreading(delta.sum(1), "shape", "one gradient a row, not summed over the batch")
    for t in range(delta.shape[1]):
        yield Misreading(delta[:, t].sum(0), "time", _only(t, delta.shape[1]))
    if gate in back.slopes:
        yield Misreading(
            (delta * back.slopes[gate]).sum((0, 1)),
            "wrong",
            "the slope of the gate is applied twice",
        )
        yield Misreading(
            (delta / back.slopes[gate]).sum((0, 1)),
            "wrong",
            "the slope of the gate is left out here",
        )


def _only(t: int, length: int) -> str:
    return f"that of place {t + 1} of {length} only, not summed over time"


# ------------------------------------------------------------------------------------------ verdict

KINDS = {
    "missing": "left out",
    "unknown": "no gradient of this cell",
    "numbers": "not a finite tensor",
    "shape": "wrong shape",
    "sign": "wrong sign",
    "factor": "wrong by a constant factor",
    "transposed": "transposed",
    "time": "not summed over time",
    "zero": "zero",
    "wrong": "wrong",
}


@dataclass(frozen=True)
class Finding:
    """One gradient that is not right: how (a key of KINDS), by how much, and the likely cause,
    "" if none is known."""

    name: str
    kind: str
    detail: str = ""
    error: float | None = None  # |given - right| / |right|
    cause: str = ""

    def __str__(self) -> str:
        size = "" if self.error is None else f"relative error {self.error:.2g}"
        return f"{self.name}: " + ", ".join(
            part for part in (KINDS[self.kind], self.detail, size) if part
        )


@dataclass(frozen=True)
class GradientCheck:
    """What was found. It prints itself; `if check_gradients(mine): ...` asks whether all is
    right."""

    cell: str
    right: tuple[str, ...]
    wrong: tuple[Finding, ...]
    formulas: Mapping[str, str] = field(repr=False)

    def __bool__(self) -> bool:
        return not self.wrong

    @property
    def causes(self) -> tuple[str, ...]:
        """The likely causes, each once."""
        return tuple(dict.fromkeys(finding.cause for finding in self.wrong if finding.cause))

    def __str__(self) -> str:
        known = [finding for finding in self.wrong if finding.kind != "unknown"]
        lines = [
            f"{self.cell}: {len(self.right)} of {len(self.right) + len(known)} gradients are right"
        ]
        for cause in self.causes:
            lines.append(f"  {cause}")
            lines.extend(f"    {finding}" for finding in self.wrong if finding.cause == cause)
        for finding in self.wrong:
            if not finding.cause:
                formula = self.formulas.get(finding.name)
                lines.append(f"  {finding}" + (f"; it is {formula}" if formula else ""))
        return "\n".join(lines)


def check_gradients(
    function: Backward,
    *,
    cell: str = "lstm",
    rows: int = 2,
    length: int = 5,
    inputs: int = 3,
    width: int = 7,
    outputs: int = 11,
    seed: int = 0,
    tolerance: float = 1e-6,
) -> GradientCheck:
    """Compare `function(weights, cache, targets)`, which is given what `lstm_backward` or
    `gru_backward` is given and should return the same, with the right gradients, over a random
    problem of these sizes."""
    if not callable(function):
        raise InputError(
            "must be a function of (weights, cache, targets)",
            where="function",
            got=type(function).__name__,
        )
    given = problem(
        cell, rows=rows, length=length, inputs=inputs, width=width, outputs=outputs, seed=seed
    )
    handed_in = function(*deepcopy((given.weights, given.cache, given.targets)))
    if not isinstance(handed_in, Mapping):
        raise InputError(
            "must return a dictionary of gradients by name",
            where="function",
            got=f"{type(handed_in).__name__}",
        )
    kind = CELLS[cell]
    right = kind.backward(given.weights, given.cache, given.targets)
    numbers = {name: _tensor(handed_in[name]) for name in right if name in handed_in}
    usable = {name: value for name, value in numbers.items() if value is not None}
    explained = _explained(usable, kind, given, tolerance)
    findings = [
        _finding(name, right, handed_in, numbers, explained.get(name), given, tolerance)
        for name in right
    ]
    findings += [
        Finding(str(name), "unknown", did_you_mean(str(name), right) or "")
        for name in handed_in
        if name not in right
    ]
    wrong = tuple(finding for finding in findings if finding is not None)
    named = {finding.name for finding in wrong}
    return GradientCheck(
        cell, tuple(name for name in right if name not in named), wrong, kind.formulas
    )


def _finding(
    name: str,
    right: Gradients,
    handed_in: Mapping[str, Any],
    numbers: Mapping[str, Tensor | None],
    explanation: tuple[str, str] | None,
    given: Problem,
    tolerance: float,
) -> Finding | None:
    """What is wrong with one gradient, None if nothing is."""
    if name not in handed_in:
        return Finding(name, "missing")
    value = numbers[name]
    if value is None:
        return Finding(name, "numbers", f"got {type(handed_in[name]).__name__}")
    if _same(value, right[name], tolerance):
        return None
    kind, cause = explanation or ("wrong", "")
    if value.shape != right[name].shape:
        kind = kind if kind in ("transposed", "time") else "shape"
        return Finding(
            name, kind, f"{tuple(value.shape)} instead of {tuple(right[name].shape)}", None, cause
        )
    error = float((value - right[name]).norm() / right[name].norm())
    if (factor := _factor(value, right[name], tolerance)) is not None and kind in (
        "wrong",
        "factor",
    ):
        kind = "sign" if abs(factor + 1) < tolerance else "factor"
        cause = cause or _constant(factor, given)
        return Finding(
            name, kind, "" if kind == "sign" else f"{factor:.4g} times the right one", error, cause
        )
    return Finding(name, kind, "", error, cause)


def _explained(
    handed_in: Mapping[str, Tensor], kind: Cell, given: Problem, tolerance: float
) -> dict[str, tuple[str, str]]:
    """For each gradient that is wrong: (kind, cause), from the fewest slips and misreadings that
    explain the most."""

    def readings(slips: Iterable[str]) -> Iterator[tuple[str, tuple[str, str] | None]]:
        back = kind.way_back(given.weights, given.cache, given.targets, slips)
        return (
            (name, _reading(name, value, back, given.cache, tolerance))
            for name, value in handed_in.items()
        )

    best, least = (), (len(handed_in) + 1, 0)
    for count in range(3):  # slips at once
        for slips in combinations(kind.slips, count):
            unexplained, words = 0, count
            for _, one in readings(slips):
                unexplained += one is None
                words += one not in (None, RIGHT)
                if unexplained > least[0]:
                    break
            if (unexplained, words) < least:
                best, least = slips, (unexplained, words)
        if least[0] == 0 and (count or least[1] <= 1):
            break  # more slips would only explain it with more words
    found = {}
    for slips in (some for count in range(len(best) + 1) for some in combinations(best, count)):
        for name, one in readings(slips):
            if one is not None and name not in found:
                causes = [*(kind.slips[slip] for slip in slips), one[1]]
                found[name] = (one[0], "; and ".join(filter(None, causes)))
    return found


RIGHT = ("wrong", "")  # wrong by its slips only


def _reading(
    name: str, value: Tensor, back: WayBack, cache: Any, tolerance: float
) -> tuple[str, str] | None:
    """(kind, why) of a gradient, given the slips that were made on the way back; None if they do
    not explain it."""
    right = back.gradients[name]
    if _same(value, right, tolerance):
        return RIGHT
    for one in _misreadings(name, back, cache):
        if _same(value, one.value, tolerance):
            return one.kind, one.why
    return None if _factor(value, right, tolerance) is None else ("factor", "")


def _tensor(value: Any) -> Tensor | None:
    """Numbers as a tensor in float64, None if they are none or not finite."""
    try:
        made = torch.as_tensor(value).detach().to("cpu", torch.float64)
    except (TypeError, ValueError, RuntimeError):
        return None
    return made if bool(made.isfinite().all()) else None


def _same(a: Tensor, b: Tensor, tolerance: float) -> bool:
    return a.shape == b.shape and bool((a - b).norm() <= tolerance * b.norm())


def _factor(value: Tensor, right: Tensor, tolerance: float) -> float | None:
    """k if value = k right, k not 0."""
    if value.shape != right.shape:
        return None
    k = float((value * right).sum() / (right * right).sum())
    return k if abs(k) > tolerance and _same(value, k * right, tolerance) else None


def _constant(factor: float, given: Problem) -> str:
    """Where a factor may come from."""
    rows, places = given.targets.shape
    means = {
        f"1 / (B T) with B = {rows} rows and T = {places} places": 1 / (rows * places),
        f"1 / T with T = {places} places": 1 / places,
        f"1 / B with B = {rows} rows": 1 / rows,
    }
    for said, size in means.items():
        if math.isclose(abs(factor), size, rel_tol=1e-5):
            return f"{'-' if factor < 0 else ''}{said}: a mean, where the sum is asked"
    return ""
