"""What a budget is made of: parts, each with its formulas, and the sums of them.

Definitions, printed with every budget:

    multiplications   products of two numbers inside matrix products, convolutions, attention and recurrent cells, all
                      places counted, those a causal mask hides too; what is done number by number is left out
    FLOPs             2 x multiplications: each product is also added
    forward           B rows read S places and are given T, no padding, logits of every place
    training          the same, its gradients, and the loss (the update itself multiplies no matrices)
    start, token      one row: reading its source once, and then the token at position t, t - 1 before it in the State
    depth             operations that wait for each other, sums of n being trees, log n = ceil(log2 n) high
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from regard.budget.closed_form.symbols import ZERO, Formula, Size, total

FLOAT = 4  # bytes of a number


@dataclass(frozen=True)
class Part:
    """A row of the table. `sizes` are the letters its formulas use beside B, S, T, V and t."""

    name: str
    sizes: tuple[Size, ...] = ()
    parameters: Formula = ZERO
    forward: Formula = ZERO
    training: Formula = ZERO
    start: Formula = ZERO
    token: Formula = ZERO
    growth: Formula = ZERO  # of `token`, for each token already in the State
    depth: Formula = ZERO  # what it adds to the longest chain of a forward pass
    token_depth: Formula = ZERO  # the same of one token
    saved: Formula = ZERO  # bytes that training keeps until the gradients are made
    work: Formula = ZERO  # bytes that it works on for a moment in training, beside what is kept
    room: Formula = (
        ZERO  # bytes that it works on in a forward pass without gradients, its input included
    )
    state: Formula = ZERO  # bytes in the State of a row, whatever its position
    state_growth: Formula = ZERO  # bytes more for each token


WORK = ("forward", "training", "start", "token", "growth")


@dataclass(frozen=True)
class Budget:
    """The cost of a model. The attributes are the keys of its JSON."""

    title: str
    sizes: tuple[Size, ...]
    parts: tuple[Part, ...]
    bytes: dict[str, Formula] = field(default_factory=dict)  # by what they are for
    notes: tuple[str, ...] = ()
    shapes: tuple[tuple[str, tuple[Size | int, ...]], ...] = ()
    deep: bool = True  # whether the depth is known

    def size(self, name: str) -> int:
        """The value of a letter of the whole, 0 if it is not one."""
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
        return (
            {}
            if not self.deep
            else {"forward": self.sum("depth").value, "token": self.sum("token_depth").value}
        )

    @property
    def memory(self) -> dict[str, int]:
        """Bytes, numbers being of 4."""
        return {name: amount.value for name, amount in self.bytes.items()}

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "sizes": {size.name: size.value for size in self.sizes},
            "parameters": self.parameters,
            "multiplications": self.multiplications,
            "flops": self.flops,
            "memory": self.memory,
            "depth": self.depth,
            "parts": [_plain(part) for part in self.parts],
            "shapes": {
                name: [axis if isinstance(axis, int) else axis.value for axis in shape]
                for name, shape in self.shapes
            },
            "notes": list(self.notes),
        }


def columns(part: Part) -> dict[str, Formula]:
    """The formulas of a part that are not nothing."""
    named = {
        name: getattr(part, name)
        for name in Part.__dataclass_fields__
        if name not in ("name", "sizes")
    }
    return {name: formula for name, formula in named.items() if formula != ZERO}


def _plain(part: Part) -> dict[str, Any]:
    made = columns(part)
    return {
        "name": part.name,
        "sizes": {size.name: size.value for size in part.sizes},
        **{
            name: getattr(part, name).value
            for name in Part.__dataclass_fields__
            if name not in ("name", "sizes")
        },
        "formulas": {
            name: {"symbols": f.symbols, "numbers": f.numbers} for name, f in made.items()
        },
    }
