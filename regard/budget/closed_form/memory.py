"""Bytes: what training holds at its fullest moment, what a forward pass holds, and what a State
holds.

In training the weights, the optimiser's means and (with `train.ema_decay`) a mean of the weights
are always there. Activations grow until the loss, then gradients take their place. The fullest
moment is one of these:

    loss      all that is kept for the gradients, and pieces of logits
    a part    what it and those before it kept, what it works on, its gradients and those of the parts behind it
    end       all gradients, and one more of an embedding on its way

The gradient of the output matrix is made with the loss and stays until the step is over.
"""

from __future__ import annotations

from regard.budget.closed_form.label import TIED
from regard.budget.closed_form.layers import Lengths
from regard.budget.closed_form.parts import FLOAT, Part
from regard.budget.closed_form.symbols import ZERO, Formula, Size, total

PIECE = 1 << 21  # logits of a piece, as in layers/loss.py


def bytes_of(
    parts: tuple[Part, ...],
    at: Lengths,
    *,
    memory: Formula = ZERO,
    average: bool = False,
    means: int = 2,
) -> dict[str, Formula]:
    """All of it, by what it is for. `memory` is what the encoder leaves, which is there while
    the decoder works; `means` are those that the optimiser keeps of each parameter."""
    P = Size("P", sum(part.parameters.value for part in parts), "parameters")
    rooms = [part.room for part in _reading(parts)] + [
        part.room + memory for part in _writing(parts)
    ]
    return {
        "weights": FLOAT * P,
        "gradients": FLOAT * P,
        "optimiser": (means + average) * FLOAT * P,
        "activations": total(*(part.saved for part in parts)),
        "training": (1 + means + average) * FLOAT * P + _fullest(parts, P, at),
        "inference": FLOAT * P + max(rooms, key=lambda room: room.value),
        "state": total(*(part.state + at.T * part.state_growth for part in parts)),
        "state_token": total(*(part.state_growth for part in parts)),
    }


def _reading(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    return parts[: len(parts) - len(_writing(parts))]


def _writing(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """From the target's embedding on."""
    return parts[
        next((n for n, part in enumerate(parts) if part.name.startswith("target")), len(parts)) :
    ]


def _fullest(parts: tuple[Part, ...], P: Size, at: Lengths) -> Formula:
    """The most that training holds beside what it always holds."""
    saved, writing = total(*(part.saved for part in parts)), _writing(parts)
    made, moments = ZERO, [saved, FLOAT * P]
    if parts[-1].name == TIED:  # the words' vectors, as scores see them, and as they are
        made = 2 * FLOAT * parts[0].parameters
        moments = [saved + made, FLOAT * P + made]
    if writing:
        V, D = (next(size for size in writing[-1].sizes if size.name == name) for name in "VD")
        made = FLOAT * (V * D + V + at.B * at.T * D)
        moments = [
            saved + made + FLOAT * (at.B * at.T * D + _pieces(V, at)),
            made + FLOAT * (P + V * D),
        ]
    own = [
        part for part in parts if not writing or part not in (writing[0], writing[-1])
    ]  # those are in `made`
    for n, part in enumerate(own):
        before = total(*(each.saved for each in parts[: parts.index(part) + 1]))
        moments.append(
            before + part.work + made + FLOAT * total(*(each.parameters for each in own[n:]))
        )
    return max(moments, key=lambda moment: moment.value)


def _pieces(V: Size, at: Lengths) -> Formula:
    """Numbers of the pieces of logits that exist at a time: one and its exponentials, and the
    whole one before it."""
    places, rows = at.B.value * at.T.value, max(1, PIECE // V.value)
    first, second = min(places, rows), max(0, min(rows, places - rows))
    Z = Size(
        "Z",
        max(2 * first, first + 2 * second),
        "places whose logits, or exponentials of them, are there",
    )
    return Z * V
