"""Closed forms of the layers that all models share: embedding, output, CTC output. Those of other
layers are in attention.py, recurrent.py, convolution.py and label.py.

Symbols, as in `regard.values`:

    B  batch size          S  source length         T  target length      t  position of a token
    D  width               E  width of the memory   H  heads              K  head width
    F  feed-forward width  N  layers                V  vocabulary         R  kernel size
    M  features of the Maclaurin kernel

A number has 4 bytes. Every function has its counterpart in regard/layers, encoders.py or
decoders.py; tests compare the two.
"""

from __future__ import annotations

from dataclasses import dataclass

from regard.budget.closed_form.parts import FLOAT, Part
from regard.budget.closed_form.symbols import ZERO, Formula, Size, formula, log

NORM = 9  # steps of a normalisation beside its two sums, as in trace.py
NUM_SPECIAL_TOKENS = 4  # special tokens, as in regard/tokenizers, which takes long to import


@dataclass(frozen=True)
class Lengths:
    """Batch size, source length and target length."""

    B: Size
    S: Size
    T: Size

    @classmethod
    def of(cls, batch: int, source: int, target: int) -> Lengths:
        return cls(
            Size("B", batch, "batch size"),
            Size("S", source, "source length"),
            Size("T", target, "target length"),
        )

    @property
    def t(self) -> Size:
        return Size("t", self.T.value, "position of the token")


def several(layers: int) -> Formula:
    """The symbol N, or a plain number for at most one layer."""
    return Size("N", layers, "layers") if layers > 1 else formula(layers)


def named(*formulas: Formula) -> tuple[Size, ...]:
    """The formulas that are symbols, each once."""
    return tuple(dict.fromkeys(size for size in formulas if isinstance(size, Size)))


def norm_steps(D: Formula) -> Formula:
    """Steps of a normalisation over D numbers."""
    return 2 * log(D) + NORM


def embedding(
    name: str, V: Size, D: Size, B: Size, T: Size, *, shared: bool, dropout: float, decoding: bool
) -> Part:
    """e[w] sqrt(D): a look-up, scaled. The scaling is elementwise and not counted."""
    return Part(
        f"{name} (the source's)" if shared else name,
        (V, D),
        parameters=ZERO if shared else V * D,
        depth=formula(1),
        token_depth=formula(1 if decoding else 0),
        saved=B * T * (8 + (D if dropout else 0)),
        work=FLOAT * B * T * D,
    )


def output(V: Size, D: Size, at: Lengths, *, tied: bool, bias: bool = True) -> Part:
    """logits = W h + b. Training computes loss and gradients in one pass, and the mean logit for
    label smoothing."""
    B, T = at.B, at.T
    return Part(
        "output (the embedding)" if tied else "output",
        (V, D),
        parameters=(ZERO if tied else V * D) + (V if bias else 0),
        forward=B * T * V * D,
        training=3 * B * T * V * D + B * T * D,
        token=V * D,
        room=FLOAT * B * T * (V + D),
        depth=1 + log(D) + (1 if bias else 0),
        token_depth=1 + log(D) + (1 if bias else 0),
    )


def ctc_output(V: Size, E: Size, at: Lengths, S: Formula) -> Part:
    """The CTC loss on the memory: logits of its positions, two copies of their log-probabilities,
    and the forward variables of all alignments."""
    B, T = at.B, at.T
    return Part(
        "CTC output",
        (V, E),
        training=3 * B * S * V * E,
        saved=FLOAT * B * S * (2 * V + 2 * T + 1) + 8 * B * S,
        work=2 * FLOAT * B * S * V,
    )
