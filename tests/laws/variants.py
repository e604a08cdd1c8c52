"""Every encoder x decoder x attention, small, in float64, with sizes that are different primes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch

from regard.decoders import (
    AttentionScore,
    ClassifierDecoder,
    Decoder,
    RecurrentCrossAttentionDecoder,
    RecurrentDecoder,
    TransformerDecoder,
)
from regard.encoders import (
    BlankEncoder,
    ConvolutionEncoder,
    Encoder,
    Merge,
    RecurrentEncoder,
    TransformerEncoder,
)
from regard.frontends import Tokens
from regard.layers.convolution import ConvolutionActivation
from regard.layers.positions import Alibi, Learned, NoPositions, Relative, Rotary, Sinusoidal
from regard.layers.recurrent import Cell
from regard.layers.sizes import Activation, Norm, TransformerSizes
from regard.model import Model

VOCABULARY, INPUTS, WIDTH, HEADS, HEAD_WIDTH = 23, 11, 14, 2, 5
POSITIONS = {
    "none": lambda: NoPositions(),
    "sinusoidal": lambda: Sinusoidal(
        width=WIDTH, table=5
    ),  # shorter than the sentences: both ways are tested
    "learned": lambda: Learned(width=WIDTH, num_positions=53),
    "rotary": lambda: Rotary(
        head_width=HEAD_WIDTH + 1
    ),  # turns pairs, so its heads are a little wider
    "alibi": lambda: Alibi(heads=HEADS),
    "relative": lambda: Relative(heads=HEADS, max_distance=3),
}
ADDED = [
    "none",
    "sinusoidal",
    "learned",
]  # with both norms; those that act in every layer with one each
READS = [
    *itertools.product(["pre", "post"], ADDED),
    ("post", "rotary"),
    ("pre", "alibi"),
    ("post", "relative"),
]
WRITES = [
    *itertools.product(["pre", "post"], ADDED),
    ("pre", "rotary"),
    ("post", "alibi"),
    ("pre", "relative"),
]


CELLS: list[Cell] = ["lstm", "gru"]
MERGES: list[tuple[int, Merge]] = [(1, "sum"), (2, "concatenate"), (2, "sum")]
BLANK_CELLS: list[tuple[Cell, int]] = [("lstm", 2), ("gru", 2), ("gru", 1)]
CONVOLUTIONS: list[tuple[ConvolutionActivation, int, int]] = [
    ("relu", 2, 3),
    ("gelu", 1, 2),
    ("tanh", 3, 5),
]
ATTENTIONS: list[AttentionScore] = ["none", "dot", "scaled", "general", "additive"]
BEFORE_CELL: list[tuple[Cell, AttentionScore]] = [("lstm", "general"), ("gru", "additive")]
CROSS_ATTENTIONS: list[tuple[Cell, int, bool]] = [("lstm", 1, False), ("gru", 2, True)]


def transformer(
    kind: Callable[..., Any],
    norm: str,
    positions: str,
    *,
    activation: str = "relu",
    kernel: Any = "softmax",
    terms: int = 3,
    key_bias: bool = True,
    **more: Any,
) -> Any:
    """A Transformer encoder or decoder."""
    sizes = TransformerSizes(
        width=WIDTH,
        layers=3,
        heads=HEADS,
        head_width=HEAD_WIDTH + (positions == "rotary"),
        ffn_width=17,
        norm=cast("Norm", norm),
        activation=cast("Activation", activation),
        dropout=0.3,
        kernel=kernel,
        terms=terms,
        key_bias=key_bias,
    )
    return kind(sizes, positions=POSITIONS[positions](), **more)


def transformer_encoder(norm: str, positions: str, **more: Any) -> TransformerEncoder:
    return transformer(TransformerEncoder, norm, positions, inputs=INPUTS, **more)


def transformer_decoder(norm: str, positions: str, **more: Any) -> TransformerDecoder:
    sizes: dict[str, Any] = dict(vocabulary=VOCABULARY, memory_width=WIDTH)
    return transformer(TransformerDecoder, norm, positions, **sizes, **more)


ENCODERS: dict[str, Callable[[], Encoder]] = {
    f"recurrent-{cell}-{directions}-{merge}": partial(
        RecurrentEncoder,
        inputs=INPUTS,
        width=WIDTH,
        layers=2,
        cell=cell,
        directions=directions,
        merge=merge,
        dropout=0.3,
    )
    for cell, (directions, merge) in itertools.product(CELLS, MERGES)
}
ENCODERS |= {
    f"recurrent-{cell}-residual": partial(
        RecurrentEncoder,
        inputs=WIDTH,
        width=WIDTH,
        layers=2,
        cell=cell,
        residual=True,
        dropout=0.3,
    )
    for cell in CELLS
}
ENCODERS |= {
    f"blank-{cell}-{directions}": partial(
        BlankEncoder,
        inputs=INPUTS,
        width=WIDTH,
        layers=2,
        cell=cell,
        directions=directions,
        dropout=0.3,
    )
    for cell, directions in BLANK_CELLS
}
ENCODERS |= {
    f"transformer-{norm}-{positions}": partial(
        transformer_encoder, norm, positions, activation="gelu"
    )
    for norm, positions in READS
}
ENCODERS |= {
    "transformer-pre-maclaurin": partial(
        transformer_encoder, "pre", "sinusoidal", kernel="maclaurin"
    )
}
ENCODERS |= {
    "transformer-pre-no-key-bias": partial(transformer_encoder, "pre", "sinusoidal", key_bias=False)
}
ENCODERS |= {  # memories shorter than their sources: three layers make one place of most sentences
    f"convolution-{activation}-{layers}-{kernel_size}": partial(
        ConvolutionEncoder,
        inputs=INPUTS,
        width=WIDTH,
        layers=layers,
        kernel_size=kernel_size,
        activation=activation,
        dropout=0.3,
    )
    for activation, layers, kernel_size in CONVOLUTIONS
}
ENCODERS |= {
    "convolution-sinusoidal": lambda: ConvolutionEncoder(
        inputs=INPUTS,
        width=WIDTH,
        layers=2,
        kernel_size=3,
        positions=Sinusoidal(width=INPUTS),
        dropout=0.3,
    )
}

DECODERS: dict[str, Callable[[], Decoder]] = {
    f"recurrent-{cell}-{attention}{'-feeding' if feeding else ''}": partial(
        RecurrentDecoder,
        vocabulary=VOCABULARY,
        width=WIDTH,
        layers=2,
        memory_width=WIDTH,
        summary_width=WIDTH,
        cell=cell,
        attention=attention,
        input_feeding=feeding,
        dropout=0.3,
        tied=not feeding,
    )
    for cell, attention, feeding in itertools.product(CELLS, ATTENTIONS, [False, True])
}
DECODERS |= {
    f"transformer-{norm}-{positions}": partial(transformer_decoder, norm, positions)
    for norm, positions in WRITES
}

DECODERS |= {
    f"transformer-{norm}-maclaurin-{terms}": partial(
        transformer_decoder, norm, positions, kernel="maclaurin", terms=terms
    )
    for norm, positions, terms in [("pre", "rotary", 3), ("post", "learned", 5)]
}

DECODERS |= {
    f"recurrent-{cell}-{attention}-before": partial(
        RecurrentDecoder,
        vocabulary=VOCABULARY,
        width=WIDTH,
        layers=2,
        memory_width=WIDTH,
        summary_width=WIDTH,
        cell=cell,
        attention=attention,
        attention_order="before_cell",
        dropout=0.3,
    )
    for cell, attention in BEFORE_CELL
}

DECODERS |= {
    f"recurrent-cross-attention-{cell}": partial(
        RecurrentCrossAttentionDecoder,
        vocabulary=VOCABULARY,
        width=WIDTH,
        layers=layers,
        memory_width=WIDTH,
        heads=HEADS,
        ffn_width=17,
        cell=cell,
        key_bias=key_bias,
        dropout=0.3,
        tied=False,
    )
    for cell, layers, key_bias in CROSS_ATTENTIONS
}
DECODERS |= {
    "transformer-pre-no-key-bias": partial(transformer_decoder, "pre", "learned", key_bias=False)
}

LABELS = "classifier"  # what the names of decoders begin with whose answers are labels
DECODERS |= {
    f"{LABELS}-{pooling}-{len(hidden)}": partial(
        ClassifierDecoder,
        vocabulary=VOCABULARY,
        memory_width=WIDTH,
        summary_width=WIDTH,
        num_special_tokens=4,
        end=2,
        pooling=pooling,
        hidden=hidden,
        dropout=0.3,
        hidden_dropout=0.3,
        vectors=vectors,
    )
    for pooling, hidden, vectors in [
        ("summary", (), None),
        ("summary", (13, 5), None),
        ("attention", (), 19),
        ("attention", (7,), None),
    ]
}

# Every decoder over one recurrent and one Transformer encoder, and every encoder under one decoder
# of each family.
PAIRS = sorted(
    set(itertools.product(["recurrent-lstm-2-concatenate", "transformer-pre-sinusoidal"], DECODERS))
    | set(itertools.product(ENCODERS, ["recurrent-lstm-general", "transformer-pre-sinusoidal"]))
)

# For laws of the State, of its rows and of losses: they are about the decoder, whatever encoder
# made the memory.
DECODER_PAIRS = [("recurrent-lstm-2-concatenate", decoder) for decoder in DECODERS]


def build(encoder: str, decoder: str) -> Model:
    torch.manual_seed(3)
    model = Model(
        frontend=Tokens(
            vocabulary=VOCABULARY, width=WIDTH if encoder.endswith("residual") else INPUTS
        ),
        encoder=ENCODERS[encoder](),
        decoder=DECODERS[decoder](),
    )
    return model.double().eval()


def sentences(rows: int = 5, length: int = 7, seed: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens (B, S) and a mask with rows of every length from 1 up."""
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(4, VOCABULARY, (rows, length), generator=draw)
    lengths = torch.arange(rows) % length + 1
    lengths[-1] = length
    mask = torch.arange(length) < lengths[:, None]
    return tokens.masked_fill(~mask, 0), mask
