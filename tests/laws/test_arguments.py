"""A constructor argument with a fixed set of values raises an InputError for any other value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jaxtyping
import pytest
import torch

from regard.decoders import (
    ClassifierDecoder,
    RecurrentCrossAttentionDecoder,
    RecurrentDecoder,
    TransformerDecoder,
)
from regard.encoders import (
    BlankEncoder,
    ConvolutionEncoder,
    IdentityEncoder,
    RecurrentEncoder,
    TransformerEncoder,
)
from regard.errors import InputError
from regard.frontends import Convolutions, ResidualConvolutions, Sound
from regard.layers import checks
from regard.layers.blocks import DecoderBlock, EncoderBlock, FeedForward, Residual
from regard.layers.convolution import HalvingConvolution
from regard.layers.maclaurin import maclaurin_attention, maclaurin_features
from regard.layers.positions import Alibi, NoPositions, Rotary, Sinusoidal
from regard.layers.recurrent import Recurrent
from regard.layers.residual import ResidualConvolution, convolution

BLOCK: dict[str, Any] = dict(
    width=6, heads=2, head_width=3, ffn_width=5, norm="pre", activation="relu", dropout=0.0
)
RECURRENT: dict[str, Any] = dict(inputs=6, width=6, layers=1)
RECURRENT_DECODER: dict[str, Any] = dict(
    vocabulary=7, width=6, layers=1, memory_width=6, summary_width=6
)
STACK: dict[str, Any] = dict(width=6, layers=1, heads=2, ffn_width=5, positions=NoPositions())
EMPTY_STACK: dict[str, Any] = {**STACK, "layers": 0}
PICTURE: dict[str, Any] = dict(size=(8, 8), channels_in=1, channels=[8])
SOUND: dict[str, Any] = dict(rate=8000, mels=5, window=64, hop=32, width=6, strides=[1])

CASES: list[tuple[Callable[..., Any], dict[str, Any], str, Any]] = [
    (Residual, dict(width=6, dropout=0.0), "norm", "Pre"),
    (FeedForward, dict(width=6, ffn_width=5, dropout=0.0), "activation", "silu"),
    (EncoderBlock, BLOCK, "norm", "none"),
    (EncoderBlock, BLOCK, "activation", "tanh"),
    (EncoderBlock, BLOCK, "kernel", "linear"),
    (DecoderBlock, dict(BLOCK, memory_width=6), "norm", "none"),
    (DecoderBlock, dict(BLOCK, memory_width=6), "kernel", "Softmax"),
    (DecoderBlock, dict(BLOCK, memory_width=6, has_self_attention=False), "kernel", "Softmax"),
    (TransformerEncoder, dict(STACK, inputs=6), "norm", "Post"),
    (TransformerEncoder, dict(STACK, inputs=6), "activation", "swish"),
    (TransformerEncoder, dict(STACK, inputs=6), "kernel", "relu"),
    (TransformerEncoder, dict(EMPTY_STACK, inputs=6), "norm", "Post"),
    (TransformerDecoder, dict(STACK, vocabulary=7, memory_width=6), "norm", "Post"),
    (TransformerDecoder, dict(STACK, vocabulary=7, memory_width=6), "activation", "swish"),
    (TransformerDecoder, dict(STACK, vocabulary=7, memory_width=6), "kernel", "relu"),
    (TransformerDecoder, dict(EMPTY_STACK, vocabulary=7, memory_width=6), "kernel", "relu"),
    (Recurrent, RECURRENT, "cell", "LSTM"),
    (Recurrent, dict(RECURRENT, cell="gru"), "directions", 3),
    (RecurrentEncoder, RECURRENT, "cell", "rnn"),
    (RecurrentEncoder, RECURRENT, "merge", "mean"),
    (RecurrentEncoder, RECURRENT, "directions", 0),
    (BlankEncoder, RECURRENT, "cell", "rnn"),
    (BlankEncoder, RECURRENT, "directions", 3),
    (ConvolutionEncoder, RECURRENT, "activation", "silu"),
    (HalvingConvolution, dict(inputs=6, width=6, kernel_size=3), "activation", "silu"),
    (IdentityEncoder, dict(inputs=6, places=4), "summary", "max"),
    (RecurrentDecoder, RECURRENT_DECODER, "cell", "Lstm"),
    (RecurrentDecoder, RECURRENT_DECODER, "attention", "luong"),
    (RecurrentDecoder, RECURRENT_DECODER, "attention_order", "before"),
    (
        RecurrentCrossAttentionDecoder,
        dict(vocabulary=7, width=6, layers=1, memory_width=6, heads=2, ffn_width=5),
        "cell",
        "rnn",
    ),
    (
        RecurrentCrossAttentionDecoder,
        dict(vocabulary=7, width=6, layers=1, memory_width=6, heads=2, ffn_width=5),
        "activation",
        "silu",
    ),
    (
        ClassifierDecoder,
        dict(vocabulary=7, memory_width=6, summary_width=6, marks=4, end=2),
        "pooling",
        "mean",
    ),
    (Convolutions, dict(PICTURE, padding=[1]), "downsample", "max"),
    (ResidualConvolutions, PICTURE, "padding_mode", "reflect"),
    (ResidualConvolution, dict(channels=8), "padding_mode", "replicate"),
    (convolution, dict(inputs=1, channels=8), "padding_mode", "Zeros"),
    (Sound, SOUND, "levels", "loud"),
    (Sinusoidal, dict(width=6), "axes", 3),
    (Rotary, dict(head_width=12), "axes", 0),
    (Alibi, dict(heads=2), "axes", "2"),
    (maclaurin_features, dict(x=torch.zeros(3)), "basis", "Full"),
    (maclaurin_attention, dict.fromkeys("qkv", torch.zeros(2, 3)), "form", "linear"),
]


@pytest.mark.parametrize(
    ("function", "arguments", "name", "value"),
    CASES,
    ids=[f"{function.__name__}-{name}-{value}" for function, _, name, value in CASES],
)
def test_an_unknown_value_raises(
    function: Callable[..., Any], arguments: dict[str, Any], name: str, value: Any, monkeypatch
):
    """The type checks that run in tests only are off: they would find the value first."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(InputError, match=rf"^{name}: must be .*; got {value!r}"):
        function(**{**arguments, name: value})


def test_one_of():
    allowed = Literal["pre", "post"]
    assert checks.one_of("norm", "post", allowed) == "post"
    with pytest.raises(InputError) as caught:
        checks.one_of("norm", "Pre", allowed)
    assert str(caught.value) == """norm: must be "pre" or "post"; got 'Pre'"""
    with pytest.raises(InputError, match="directions: must be 1 or 2; got True"):
        checks.one_of("directions", True, Literal[1, 2])
