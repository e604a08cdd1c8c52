"""A budget: the parts of a model, each with its formulas, and their sums.

Definitions:

    multiplications   those inside matrix products, convolutions, attention and recurrent cells;
                      positions hidden by a causal mask count, elementwise operations do not
    FLOPs             2 x multiplications: one multiplication and one addition each
    forward           a forward pass over B rows of S source and T target positions, no padding,
                      logits of every position
    training          forward pass, loss and backward pass (the update has no matrix products)
    start             prefill: all work for one row before its first token
    token             a decode step: one row, the token at position t, t - 1 tokens in the State
    depth             longest chain of dependent operations; a sum of n numbers is a tree of height
                      log n = ceil(log2 n)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from regard.budget.closed_form.symbols import ZERO, Formula, Size, total

FLOAT = 4  # bytes of a number


@dataclass(frozen=True)
class Part:
    """A row of the table. `sizes` are the symbols of its formulas other than B, S, T, V and t."""

    name: str
    sizes: tuple[Size, ...] = ()
    parameters: Formula = ZERO
    forward: Formula = ZERO
    training: Formula = ZERO
    start: Formula = ZERO
    token: Formula = ZERO
    growth: Formula = ZERO  # what each earlier token adds to `token`
    depth: Formula = ZERO  # steps that it adds to the longest chain of a forward pass
    token_depth: Formula = ZERO  # the same in a decode step
    saved: Formula = ZERO  # bytes of activations saved for the backward pass
    work: Formula = ZERO  # bytes of temporary tensors in the backward pass, beside `saved`
    room: Formula = ZERO  # bytes of tensors in a forward pass without gradients, input included
    state: Formula = ZERO  # bytes of the State of one row, at any position
    state_growth: Formula = ZERO  # bytes that each token adds to the State


WORK = ("forward", "training", "start", "token", "growth")


@dataclass(frozen=True)
class Budget:
    """The cost of a model. The attributes are the keys of its JSON."""

    title: str
    sizes: tuple[Size, ...]
    parts: tuple[Part, ...]
    bytes: dict[str, Formula] = field(default_factory=dict)  # by purpose: weights, gradients, …
    notes: tuple[str, ...] = ()
    shapes: tuple[tuple[str, tuple[Size | int, ...]], ...] = ()
    deep: bool = True  # whether the depth is known

    def size(self, name: str) -> int:
        """The value of one of the model's symbols, 0 if it has no such symbol."""
        return next((size.value for size in self.sizes if size.name == name), 0)

    def sum(self, column: str) -> Formula:
        return total(*(getattr(part, column) for part in self.parts))

    @property
    def parameters(self) -> int:
        return self.sum("parameters").value

    @property
    def multiplications(self) -> dict[str, int]:
        return {name: self.sum(name).value for name in WORK}

    @property
    def flops(self) -> dict[str, int]:
        return {name: 2 * count for name, count in self.multiplications.items()}

    @property
    def depth(self) -> dict[str, int]:
        """Steps of a forward pass and of a decode step; empty if not known."""
        if not self.deep:
            return {}
        return {"forward": self.sum("depth").value, "token": self.sum("token_depth").value}

    @property
    def memory(self) -> dict[str, int]:
        """Bytes by purpose; a number has 4."""
        return {name: formula.value for name, formula in self.bytes.items()}

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "sizes": {size.name: size.value for size in self.sizes},
            "parameters": self.parameters,
            "multiplications": self.multiplications,
            "flops": self.flops,
            "memory": self.memory,
            "depth": self.depth,
            "parts": [_part_json(part) for part in self.parts],
            "shapes": {
                name: [axis if isinstance(axis, int) else axis.value for axis in shape]
                for name, shape in self.shapes
            },
            "notes": list(self.notes),
        }


COLUMNS = tuple(name for name in Part.__dataclass_fields__ if name not in ("name", "sizes"))


def columns(part: Part) -> dict[str, Formula]:
    """The formulas of a part that are not zero."""
    formulas = {name: getattr(part, name) for name in COLUMNS}
    return {name: formula for name, formula in formulas.items() if formula != ZERO}


def _part_json(part: Part) -> dict[str, Any]:
    return {
        "name": part.name,
        "sizes": {size.name: size.value for size in part.sizes},
        **{name: getattr(part, name).value for name in COLUMNS},
        "formulas": {
            name: {"symbols": formula.symbols, "numbers": formula.numbers}
            for name, formula in columns(part).items()
        },
    }
