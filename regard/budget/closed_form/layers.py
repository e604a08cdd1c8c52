"""Closed forms of the layers: what each costs, in symbols. Here are those that all models share;
attention.py, recurrent.py, convolution.py and label.py have the others.

The letters are those of `regard.values`: B rows, S places of the source, T of the target, t the
position of a token, D width, E width of the memory, H heads of width K, F width inside the
feed-forward part, N layers, V vocabulary, M features of the Maclaurin kernel, R kernel_size of a
convolution. Numbers have 4 bytes.

Every function has its counterpart in regard/layers, encoders.py or decoders.py; the tests hold the
two together.
"""

from __future__ import annotations

from dataclasses import dataclass

from regard.budget.closed_form.parts import FLOAT, Part
from regard.budget.closed_form.symbols import ZERO, Formula, Size, formula, log

NORM = 9  # steps of a normalisation beside its two sums, as in count.py
MARKS = 4  # among the tokens, as in tokenizers.py, which takes long to import


@dataclass(frozen=True)
class Lengths:
    """How much is read and written."""

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
    """N, or nothing that needs a letter."""
    return Size("N", layers, "layers") if layers > 1 else formula(layers)


def named(*of: Formula) -> tuple[Size, ...]:
    """Those that are letters, each once."""
    return tuple(dict.fromkeys(each for each in of if isinstance(each, Size)))


def norm_steps(D: Formula) -> Formula:
    return 2 * log(D) + NORM


def embedding(
    name: str, V: Size, D: Size, B: Size, T: Size, *, shared: bool, dropout: float, decoding: bool
) -> Part:
    """e[w] sqrt(D): a look-up, and one multiplication a number, which is not counted as it is no
    matrix product."""
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
    """logits = W h + b. Training makes loss and gradients in one pass, and a mean logit for the
    smoothing."""
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


def alignment(V: Size, E: Size, at: Lengths, S: Formula) -> Part:
    """What training asks of the memory itself: logits of its places, twice as logarithms of
    probabilities, and the chances of all ways to say the answer so far."""
    B, T = at.B, at.T
    return Part(
        "CTC output",
        (V, E),
        training=3 * B * S * V * E,
        saved=FLOAT * B * S * (2 * V + 2 * T + 1) + 8 * B * S,
        work=2 * FLOAT * B * S * V,
    )
