"""Checks gradients derived by hand: names those that are wrong, how they are wrong and, if known,
why.

    def mine(weights, cache, targets):            # as regard.lab.cells.lstm_backward
        ...
        return {"W_f": ..., "b_f": ..., ...}
    print(check_gradients(mine))

The cause is found by reproducing common mistakes. A *mistake* (LSTM_MISTAKES, GRU_MISTAKES) is a
wrong formula in the backward pass, which affects all gradients computed from it. A *wrong term* is
an error in the last formula of one gradient only. The checker reports the smallest combination that
reproduces the gradients it received.
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
    """The functions of a cell, its known mistakes and its formulas as text."""

    forward: Callable[..., tuple[Tensor, Any]]
    backward: Callable[..., Gradients]
    shapes: Callable[[int, int, int], dict[str, tuple[int, ...]]]
    starts: tuple[str, ...]  # names of the initial states
    mistakes: Mapping[str, str]
    backward_pass: Callable[..., BackwardPass]
    formulas: Mapping[str, str]


@dataclass(frozen=True)
class Problem:
    """Weights, a batch with its initial state, and the cache of its forward pass."""

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
    """A small random problem in float64; its initial state is not 0, so that no gradient is 0."""
    if cell not in CELLS:
        raise InputError(
            "no such cell", where="cell", got=f'"{cell}"', hint=did_you_mean(cell, CELLS)
        )
    if length < 2:
        raise InputError(
            "must be at least 2, or mistakes in the recurrence have no effect",
            where="length",
            got=length,
        )
    kind = CELLS[cell]
    draws = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draws, dtype=torch.float64)

    weights = {
        name: normal(*shape) / math.sqrt(shape[-1])
        for name, shape in kind.shapes(inputs, width, outputs).items()
    }
    x = normal(rows, length, inputs)
    starts = {name: normal(rows, width) / 2 for name in kind.starts}
    targets = torch.randint(outputs, (rows, length), generator=draws)
    _, cache = kind.forward(weights, x, **starts)
    return Problem(weights, x, starts, targets, cache)


# ----------------------------------------------------------------------------------------- mistakes


class BackwardPass(NamedTuple):
    """The gradients of a backward pass and their terms.

    The gradient of W_g is the sum over batch and positions of delta_g input_g^T.
    """

    gradients: Gradients
    deltas: dict[str, Tensor]  # (B, T, D), by gate
    inputs: dict[str, Tensor]  # (B, T, D), (B, T, I) or (B, T, D + I), by gate
    derivatives: dict[str, Tensor]  # (B, T, D), of sigmoid and tanh, by gate


GATES = {"f": "forget", "u": "update", "o": "output", "r": "reset"}
COMMON_MISTAKES = {
    "y": "y - yhat, where it should be yhat - y",
    "da_next": "da_next is missing: dL/da = W_y^T (yhat - y) + da_next",
    "candidate": "the candidate's factor is 1 - c~, where it should be 1 - c~^2",
    "candidate-inside": (
        "the candidate's factor is 1 - (the argument of its tanh), where it should be 1 - c~^2"
    ),
    "candidate-none": "the candidate's factor 1 - c~^2 is missing",
}
LSTM_MISTAKES = {
    **COMMON_MISTAKES,
    **{
        f"derivative-{g}": f"the factor {g} (1 - {g}) of the {GATES[g]} gate is missing"
        for g in "fuo"
    },
    "dc_next": "dc_next is missing: dL/dc = dL/da o (1 - tanh(c)^2) + dc_next",
    "cell": "the factor 1 - tanh(c)^2 is missing in dL/dc",
    "cell-c": "the factor of dL/dc is 1 - c^2, where it should be 1 - tanh(c)^2",
    "carry": "dc_next is dL/dc, where it should be dL/dc f",
    "c_prev": "the forget gate's delta has c, where it should have c_prev",
    "tanh_c": "the output gate's delta has c, where it should have tanh(c)",
}
GRU_MISTAKES = {
    **COMMON_MISTAKES,
    **{
        f"derivative-{g}": f"the factor {g} (1 - {g}) of the {GATES[g]} gate is missing"
        for g in "ru"
    },
    "past": "the path through u a_prev is missing: da_next = dL/da u + ...",
    "share": "the factor of the candidate is u, where it should be 1 - u",
    "swap": "the update gate's delta has c~ - a_prev, where it should have a_prev - c~",
    "reset": "the delta of W_a a + b_a is that of the candidate, without r",
}


def lstm_backward_pass(
    weights: Weights, cache: LSTMCache, targets: Tensor, mistakes: Iterable[str] = ()
) -> BackwardPass:
    """`cells.lstm_backward` with some of its formulas wrong."""
    f, u, o, c, a_prev, c_prev = cache.f, cache.u, cache.o, cache.c, cache.a_prev, cache.c_prev
    tanh_c = torch.tanh(c)
    sign = -1 if "y" in mistakes else 1
    derivatives = {
        g: torch.ones_like(s) if f"derivative-{g}" in mistakes else s * (1 - s)
        for g, s in zip("fuo", (f, u, o), strict=True)
    }
    derivatives["c"] = _candidate_derivative(cache.candidate, mistakes)
    if "cell" in mistakes:
        cell_derivative = torch.ones_like(c)
    else:
        cell_derivative = 1 - (c if "cell-c" in mistakes else tanh_c) ** 2
    dy = sign * (cache.y - cells.one_hot(targets, cache.y))
    deltas = {g: torch.zeros_like(c) for g in "fuoc"} | {"y": dy}
    dx = torch.zeros_like(cache.x)
    da_next = torch.zeros_like(cache.a0)
    dc_next = torch.zeros_like(cache.c0)
    for t in reversed(range(c.shape[1])):
        da = dy[:, t] @ weights["W_y"] + (0 if "da_next" in mistakes else da_next)
        dc = da * o[:, t] * cell_derivative[:, t] + (0 if "dc_next" in mistakes else dc_next)
        outer_gradients = {
            "f": dc * (c if "c_prev" in mistakes else c_prev)[:, t],
            "u": dc * cache.candidate[:, t],
            "o": da * (c if "tanh_c" in mistakes else tanh_c)[:, t],
            "c": dc * u[:, t],
        }
        for g, d in outer_gradients.items():
            deltas[g][:, t] = d * derivatives[g][:, t]
        dz = sum((deltas[g][:, t] @ weights[f"W_{g}"] for g in outer_gradients), torch.zeros(()))
        da_next, dx[:, t] = dz.split([da.shape[-1], dx.shape[-1]], dim=-1)
        dc_next = dc if "carry" in mistakes else dc * f[:, t]
    z = torch.cat([a_prev, cache.x], dim=-1)
    inputs = dict.fromkeys("fuoc", z) | {"y": cache.a}
    return BackwardPass(
        {**_weights(deltas, inputs), "x": dx, "a0": da_next, "c0": dc_next},
        deltas,
        inputs,
        derivatives,
    )


def gru_backward_pass(
    weights: Weights, cache: GRUCache, targets: Tensor, mistakes: Iterable[str] = ()
) -> BackwardPass:
    """`cells.gru_backward` with some of its formulas wrong."""
    r, u, candidate, a_prev = cache.r, cache.u, cache.candidate, cache.a_prev
    derivatives = {
        g: torch.ones_like(s) if f"derivative-{g}" in mistakes else s * (1 - s)
        for g, s in zip("ru", (r, u), strict=True)
    }
    derivatives["c"] = _candidate_derivative(candidate, mistakes)
    dy = (-1 if "y" in mistakes else 1) * (cache.y - cells.one_hot(targets, cache.y))
    deltas = {g: torch.zeros_like(u) for g in "ruca"} | {"y": dy}
    dx = torch.zeros_like(cache.x)
    da_next = torch.zeros_like(cache.a0)
    for t in reversed(range(u.shape[1])):
        da = dy[:, t] @ weights["W_y"] + (0 if "da_next" in mistakes else da_next)
        change = (candidate - a_prev if "swap" in mistakes else a_prev - candidate)[:, t]
        dc = da * (u if "share" in mistakes else 1 - u)[:, t] * derivatives["c"][:, t]
        deltas["u"][:, t] = du = da * change * derivatives["u"][:, t]
        deltas["c"][:, t] = dc
        deltas["r"][:, t] = dr = dc * cache.recurrent[:, t] * derivatives["r"][:, t]
        deltas["a"][:, t] = dh = dc if "reset" in mistakes else dc * r[:, t]
        dz_a, dz_x = (dr @ weights["W_r"] + du @ weights["W_u"]).split(
            [da.shape[-1], dx.shape[-1]], dim=-1
        )
        dx[:, t] = dz_x + dc @ weights["W_c"]
        da_next = (0 if "past" in mistakes else da * u[:, t]) + dz_a + dh @ weights["W_a"]
    z = torch.cat([a_prev, cache.x], dim=-1)
    inputs = {"r": z, "u": z, "c": cache.x, "a": a_prev, "y": cache.a}
    return BackwardPass(
        {**_weights(deltas, inputs), "x": dx, "a0": da_next}, deltas, inputs, derivatives
    )


def _candidate_derivative(candidate: Tensor, mistakes: Iterable[str]) -> Tensor:
    """The derivative of the candidate's tanh, right or wrong."""
    if "candidate" in mistakes:
        return 1 - candidate
    if "candidate-inside" in mistakes:
        return 1 - torch.atanh(candidate)
    return torch.ones_like(candidate) if "candidate-none" in mistakes else 1 - candidate**2


def _weights(deltas: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> Gradients:
    """The gradients of all weights and biases."""
    biases = {f"b_{g}": delta.sum((0, 1)) for g, delta in deltas.items()}
    return {f"W_{g}": outer(delta, inputs[g]) for g, delta in deltas.items()} | biases


def outer(delta: Tensor, inputs: Tensor) -> Tensor:
    """The sum over batch and positions of delta input^T."""
    return torch.einsum("bto,bti->oi", delta, inputs)


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
    "x": "the last I of W_f^T df + W_u^T du + W_o^T do + W_c^T dc~, at each position",
    "a0": "the first D of W_f^T df + W_u^T du + W_o^T do + W_c^T dc~, at the first position",
    "c0": "dL/dc f, at the first position",
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
    "x": "the last I of W_r^T dr + W_u^T du, and W_c^T dc~, at each position",
    "a0": "dL/da u, the first D of W_r^T dr + W_u^T du, and W_a^T (dc~ r), at the first position",
}
CELLS = {
    "lstm": Cell(
        cells.lstm_forward,
        cells.lstm_backward,
        cells.lstm_shapes,
        ("a0", "c0"),
        LSTM_MISTAKES,
        lstm_backward_pass,
        LSTM_FORMULAS,
    ),
    "gru": Cell(
        cells.gru_forward,
        cells.gru_backward,
        cells.gru_shapes,
        ("a0",),
        GRU_MISTAKES,
        gru_backward_pass,
        GRU_FORMULAS,
    ),
}


# ------------------------------------------------------------------------------------- wrong terms


class WrongTerm(NamedTuple):
    """A wrong gradient, how it is wrong (a key of KINDS) and why."""

    value: Tensor
    kind: str
    why: str


def _wrong_terms(name: str, back: BackwardPass, cache: Any) -> Iterator[WrongTerm]:
    """The gradient `name` with the right deltas and an error in its last formula."""
    right = back.gradients[name]
    yield WrongTerm(
        -right, "sign", "y - yhat, where it should be yhat - y" if name == "b_y" else ""
    )
    letter, _, gate = name.partition("_")
    if letter == "W":
        yield from _wrong_weight(gate, back, cache)
    elif letter == "b":
        yield from _wrong_bias(gate, back)
    else:
        yield WrongTerm(right.transpose(0, 1), "transposed", "")
    yield WrongTerm(torch.zeros_like(right), "zero", "it is zero everywhere")


def _wrong_weight(gate: str, back: BackwardPass, cache: Any) -> Iterator[WrongTerm]:
    delta, inputs, x = back.deltas[gate], back.inputs[gate], cache.x
    if gate == "y":
        symbol = "a"
    elif gate == "a":
        symbol = "a_prev"
    elif inputs.shape[-1] > max(x.shape[-1], cache.a.shape[-1]):
        symbol = "[a_prev; x]"
    else:
        symbol = "x"

    if symbol == "[a_prev; x]":
        for part, only in ((x, "x only"), (cache.a_prev, "a_prev only")):
            why = f"(delta) with {only}, where it should be (delta) [a_prev; x]^T"
            yield WrongTerm(outer(delta, part), "shape", why)
            empty = torch.zeros_like(cache.a_prev if part is x else x)
            yield WrongTerm(
                outer(delta, torch.cat([empty, part] if part is x else [part, empty], -1)),
                "wrong",
                why,
            )
        yield WrongTerm(
            outer(delta, torch.cat([x, cache.a_prev], -1)),
            "wrong",
            "[x; a_prev], where it should be [a_prev; x]",
        )
        yield WrongTerm(
            outer(delta, torch.cat([cache.a, x], -1)),
            "wrong",
            "a of the same position, where it should be that of the previous position",
        )
    yield WrongTerm(
        delta.sum((0, 1)), "shape", f"the delta alone, where it should be (delta) {symbol}^T"
    )
    yield WrongTerm(
        outer(delta, inputs).T,
        "transposed",
        f"{symbol} (delta)^T, where it should be (delta) {symbol}^T",
    )
    yield WrongTerm(
        torch.einsum("bto,bti->toi", delta, inputs),
        "time",
        "one gradient per position, not summed over time",
    )
    yield WrongTerm(
        torch.einsum("bto,bti->boi", delta, inputs),
        "shape",
        "one gradient per row, not summed over the batch",
    )
    for t in range(delta.shape[1]):
        yield WrongTerm(
            outer(delta[:, t : t + 1], inputs[:, t : t + 1]), "time", _only(t, delta.shape[1])
        )
    if gate in back.derivatives:
        yield WrongTerm(
            outer(delta * back.derivatives[gate], inputs),
            "wrong",
            "the derivative of the gate is applied twice",
        )
        yield WrongTerm(
            outer(delta / back.derivatives[gate], inputs),
            "wrong",
            "the derivative of the gate is missing here",
        )


def _wrong_bias(gate: str, back: BackwardPass) -> Iterator[WrongTerm]:
    delta, inputs = back.deltas[gate], back.inputs[gate]
    times = "a" if gate == "y" else "the weight's input"
    yield WrongTerm(
        outer(delta, inputs),
        "shape",
        f"(delta) times {times}^T, where it should be the delta alone",
    )
    yield WrongTerm(delta.sum(0), "time", "one gradient per position, not summed over time")
    yield WrongTerm(delta.sum(1), "shape", "one gradient per row, not summed over the batch")
    for t in range(delta.shape[1]):
        yield WrongTerm(delta[:, t].sum(0), "time", _only(t, delta.shape[1]))
    if gate in back.derivatives:
        yield WrongTerm(
            (delta * back.derivatives[gate]).sum((0, 1)),
            "wrong",
            "the derivative of the gate is applied twice",
        )
        yield WrongTerm(
            (delta / back.derivatives[gate]).sum((0, 1)),
            "wrong",
            "the derivative of the gate is missing here",
        )


def _only(t: int, length: int) -> str:
    return f"position {t + 1} of {length} only, not summed over time"


# ------------------------------------------------------------------------------------------ verdict

KINDS = {
    "missing": "missing",
    "unknown": "not a gradient of this cell",
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
    """A wrong gradient: how (a key of KINDS), by how much, and the likely cause ("" if unknown)."""

    name: str
    kind: str
    detail: str = ""
    error: float | None = None  # |received - right| / |right|
    cause: str = ""

    def __str__(self) -> str:
        size = "" if self.error is None else f"relative error {self.error:.2g}"
        return f"{self.name}: " + ", ".join(
            part for part in (KINDS[self.kind], self.detail, size) if part
        )


@dataclass(frozen=True)
class GradientCheck:
    """The result of a check: true if all gradients are right; str() gives the explanation."""

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
    """Compare the gradients of `function(weights, cache, targets)` with the right ones.

    The function takes and returns the same as `lstm_backward` or `gru_backward`. It is called on a
    random problem of these sizes.
    """
    if not callable(function):
        raise InputError(
            "must be a function of (weights, cache, targets)",
            where="function",
            got=type(function).__name__,
        )
    example = problem(
        cell, rows=rows, length=length, inputs=inputs, width=width, outputs=outputs, seed=seed
    )
    received = function(*deepcopy((example.weights, example.cache, example.targets)))
    if not isinstance(received, Mapping):
        raise InputError(
            "must return a dictionary of gradients by name",
            where="function",
            got=f"{type(received).__name__}",
        )
    kind = CELLS[cell]
    right = kind.backward(example.weights, example.cache, example.targets)
    numbers = {name: _tensor(received[name]) for name in right if name in received}
    usable = {name: value for name, value in numbers.items() if value is not None}
    explained = _explained(usable, kind, example, tolerance)
    findings = [
        _finding(name, right, received, numbers, explained.get(name), example, tolerance)
        for name in right
    ]
    findings += [
        Finding(str(name), "unknown", did_you_mean(str(name), right) or "")
        for name in received
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
    received: Mapping[str, Any],
    numbers: Mapping[str, Tensor | None],
    explanation: tuple[str, str] | None,
    example: Problem,
    tolerance: float,
) -> Finding | None:
    """What is wrong with one gradient; None if it is right."""
    if name not in received:
        return Finding(name, "missing")
    value = numbers[name]
    if value is None:
        return Finding(name, "numbers", f"got {type(received[name]).__name__}")
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
        cause = cause or _constant(factor, example)
        return Finding(
            name, kind, "" if kind == "sign" else f"{factor:.4g} times the right one", error, cause
        )
    return Finding(name, kind, "", error, cause)


def _explained(
    received: Mapping[str, Tensor], kind: Cell, example: Problem, tolerance: float
) -> dict[str, tuple[str, str]]:
    """(kind, cause) of each wrong gradient, by the smallest combination of mistakes and wrong terms
    that explains the most gradients."""

    def explained_terms(mistakes: Iterable[str]) -> Iterator[tuple[str, tuple[str, str] | None]]:
        back = kind.backward_pass(example.weights, example.cache, example.targets, mistakes)
        return (
            (name, _explanation(name, value, back, example.cache, tolerance))
            for name, value in received.items()
        )

    best = ()
    least = (len(received) + 1, 0)  # gradients not explained, mistakes and wrong terms used
    for count in range(3):  # mistakes at once
        for mistakes in combinations(kind.mistakes, count):
            unexplained = 0
            used = count  # mistakes and wrong terms
            for _, explanation in explained_terms(mistakes):
                unexplained += explanation is None
                used += explanation not in (None, RIGHT)
                if unexplained > least[0]:
                    break
            if (unexplained, used) < least:
                best = mistakes
                least = (unexplained, used)
        if least[0] == 0 and (count or least[1] <= 1):
            break  # more mistakes would only be a longer explanation

    explanations = {}
    subsets = (subset for count in range(len(best) + 1) for subset in combinations(best, count))
    for mistakes in subsets:  # the smallest first: each gradient gets only the causes it needs
        for name, explanation in explained_terms(mistakes):
            if explanation is not None and name not in explanations:
                how, why = explanation
                causes = [*(kind.mistakes[mistake] for mistake in mistakes), why]
                explanations[name] = (how, "; and ".join(filter(None, causes)))
    return explanations


RIGHT = ("wrong", "")  # explained by the mistakes alone


def _explanation(
    name: str, value: Tensor, back: BackwardPass, cache: Any, tolerance: float
) -> tuple[str, str] | None:
    """(kind, why) of a gradient after a backward pass with mistakes; None if not explained."""
    right = back.gradients[name]
    if _same(value, right, tolerance):
        return RIGHT
    for term in _wrong_terms(name, back, cache):
        if _same(value, term.value, tolerance):
            return term.kind, term.why
    return None if _factor(value, right, tolerance) is None else ("factor", "")


def _tensor(value: Any) -> Tensor | None:
    """The value as a tensor in float64; None if it is not numeric or not finite."""
    try:
        tensor = torch.as_tensor(value).detach().to("cpu", torch.float64)
    except (TypeError, ValueError, RuntimeError):
        return None
    return tensor if bool(tensor.isfinite().all()) else None


def _same(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Whether a equals b up to a relative error."""
    return a.shape == b.shape and bool((a - b).norm() <= tolerance * b.norm())


def _factor(value: Tensor, right: Tensor, tolerance: float) -> float | None:
    """k if value = k right and k is not 0, else None."""
    if value.shape != right.shape:
        return None
    k = float((value * right).sum() / (right * right).sum())
    return k if abs(k) > tolerance and _same(value, k * right, tolerance) else None


def _constant(factor: float, example: Problem) -> str:
    """The likely cause of a constant factor; "" if unknown."""
    rows, length = example.targets.shape
    means = {
        f"1 / (B T) with B = {rows} rows and T = {length} positions": 1 / (rows * length),
        f"1 / T with T = {length} positions": 1 / length,
        f"1 / B with B = {rows} rows": 1 / rows,
    }
    for text, size in means.items():
        if math.isclose(abs(factor), size, rel_tol=1e-5):
            return f"{'-' if factor < 0 else ''}{text}: a mean, where it should be the sum"
    return ""
