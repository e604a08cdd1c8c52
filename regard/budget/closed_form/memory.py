"""Peak memory of training and of a forward pass, and the bytes of a State.

In training the weights, the optimiser's moments and (with `train.ema_decay`) an average of the
weights are always there. Activations grow until the loss; in the backward pass gradients take their
place. The peak is the largest of these moments:

    loss      all saved activations, and chunks of logits
    a part    activations of this part and those before it, its temporary tensors, its gradients
              and those of the parts behind it
    end       all gradients, and a second gradient of an embedding

The gradient of the output matrix is computed with the loss and stays until the end of the step.
"""

from __future__ import annotations

from regard.budget.closed_form.label import TIED
from regard.budget.closed_form.layers import Lengths
from regard.budget.closed_form.parts import FLOAT, Part
from regard.budget.closed_form.symbols import ZERO, Formula, Size, total

CHUNK = 1 << 21  # logits of a chunk, as in layers/loss.py


def bytes_of(
    parts: tuple[Part, ...],
    at: Lengths,
    *,
    memory: Formula = ZERO,
    average: bool = False,
    means: int = 2,
) -> dict[str, Formula]:
    """Bytes by purpose. `memory` is the encoder's output, held while the decoder works; `average`
    says whether an average of the weights is kept; `means` is the number of moments that the
    optimiser keeps per parameter."""
    P = Size("P", sum(part.parameters.value for part in parts), "parameters")
    encoder_peaks = [part.room for part in _encoder_parts(parts)]
    decoder_peaks = [part.room + memory for part in _decoder_parts(parts)]
    return {
        "weights": FLOAT * P,
        "gradients": FLOAT * P,
        "optimiser": (means + average) * FLOAT * P,
        "activations": total(*(part.saved for part in parts)),
        "training": (1 + means + average) * FLOAT * P + _training_peak(parts, P, at),
        "inference": FLOAT * P + _highest([*encoder_peaks, *decoder_peaks]),
        "state": total(*(part.state + at.T * part.state_growth for part in parts)),
        "state_token": total(*(part.state_growth for part in parts)),
    }


def _encoder_parts(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    return parts[: len(parts) - len(_decoder_parts(parts))]


def _decoder_parts(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """The parts from the target's embedding on; none if there is no target."""
    for n, part in enumerate(parts):
        if part.name.startswith("target"):
            return parts[n:]
    return ()


def _highest(formulas: list[Formula]) -> Formula:
    return max(formulas, key=lambda formula: formula.value)


def _training_peak(parts: tuple[Part, ...], P: Size, at: Lengths) -> Formula:
    """The peak of training beside weights, optimiser and average."""
    saved = total(*(part.saved for part in parts))
    decoder = _decoder_parts(parts)

    output_gradients = ZERO  # what the loss leaves until the end of the step
    moments = [saved, FLOAT * P]
    if parts[-1].name == TIED:  # the embedding's gradient as output matrix, and as embedding
        output_gradients = 2 * FLOAT * parts[0].parameters
        moments = [saved + output_gradients, FLOAT * P + output_gradients]
    if decoder:
        V, D = (next(size for size in decoder[-1].sizes if size.name == name) for name in "VD")
        output_gradients = FLOAT * (V * D + V + at.B * at.T * D)
        moments = [
            saved + output_gradients + FLOAT * (at.B * at.T * D + _chunked_logits(V, at)),
            output_gradients + FLOAT * (P + V * D),
        ]

    inner_parts = list(parts)
    if decoder:  # embedding and output matrix are in `output_gradients`
        inner_parts = [part for part in parts if part not in (decoder[0], decoder[-1])]
    for n, part in enumerate(inner_parts):
        saved_so_far = total(*(each.saved for each in parts[: parts.index(part) + 1]))
        gradients = FLOAT * total(*(each.parameters for each in inner_parts[n:]))
        moments.append(saved_so_far + part.work + output_gradients + gradients)
    return _highest(moments)


def _chunked_logits(V: Size, at: Lengths) -> Formula:
    """The numbers in chunks of logits that exist at a time: the current chunk and its
    exponentials, and the whole chunk before it."""
    positions = at.B.value * at.T.value
    chunk = max(1, CHUNK // V.value)
    first = min(positions, chunk)
    second = max(0, min(chunk, positions - chunk))
    Z = Size("Z", max(2 * first, first + 2 * second), "positions whose logits exist at a time")
    return Z * V
