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
from regard.frontends import Convolutions, ResidualConvolutions, Sound, Tokens
from regard.layers import checks
from regard.layers.blocks import DecoderBlock, EncoderBlock, FeedForward, Residual
from regard.layers.convolution import HalvingConvolution
from regard.layers.maclaurin import maclaurin_attention, maclaurin_features
from regard.layers.positions import Alibi, NoPositions, Rotary, Sinusoidal
from regard.layers.recurrent import Recurrent
from regard.layers.residual import ResidualConvolution, convolution
from regard.layers.sizes import TransformerSizes
from regard.model import Model
from regard.values import Memory, Source

BLOCK: dict[str, Any] = dict(layers=1, width=6, heads=2, ffn_width=5)
RECURRENT: dict[str, Any] = dict(inputs=6, width=6, layers=1)
RECURRENT_DECODER: dict[str, Any] = dict(
    vocabulary=7, width=6, layers=1, memory_width=6, summary_width=6
)
EMPTY: dict[str, Any] = {**BLOCK, "layers": 0}
PICTURE: dict[str, Any] = dict(size=(8, 8), channels_in=1, channels=[8])
SOUND: dict[str, Any] = dict(rate=8000, mels=5, window=64, hop=32, width=6, strides=[1])


def encoder_block(**sizes: Any) -> EncoderBlock:
    return EncoderBlock(TransformerSizes(**sizes))


def decoder_block(*, has_self_attention: bool = True, **sizes: Any) -> DecoderBlock:
    return DecoderBlock(
        TransformerSizes(**sizes), memory_width=6, has_self_attention=has_self_attention
    )


def transformer_encoder(**sizes: Any) -> TransformerEncoder:
    return TransformerEncoder(TransformerSizes(**sizes), inputs=6, positions=NoPositions())


def transformer_decoder(**sizes: Any) -> TransformerDecoder:
    return TransformerDecoder(
        TransformerSizes(**sizes), vocabulary=7, memory_width=6, positions=NoPositions()
    )


def decoder_passes(capture: Any) -> None:
    """All methods with a `capture`, of which each must raise."""
    decoder = transformer_decoder(**BLOCK).eval()
    states = torch.zeros(1, 3, 6)
    memory = Memory(states, torch.ones(1, 3, dtype=torch.bool), states[:, 0])
    tokens = torch.zeros(1, 2, dtype=torch.long)
    calls = [
        lambda: decoder.start(memory, capture=capture),
        lambda: decoder.step(tokens[:, 0], decoder.start(memory), capture=capture),
        lambda: decoder.hidden_states(tokens, memory, capture=capture),
    ]
    for call in calls[:-1]:
        with pytest.raises(InputError, match="^capture: must be"):
            call()
    calls[-1]()


def encoder_pass(capture: Any) -> None:
    source = Source(torch.zeros(1, 3, 6), torch.ones(1, 3, dtype=torch.bool))
    transformer_encoder(**BLOCK)(source, capture=capture)


def model_pass(capture: Any) -> None:
    model = Model(
        frontend=Tokens(vocabulary=7, width=6),
        encoder=RecurrentEncoder(**RECURRENT),
        decoder=RecurrentDecoder(**RECURRENT_DECODER),
    )
    model.encode(torch.ones(1, 3, dtype=torch.long), torch.ones(1, 3).bool(), capture=capture)


CASES: list[tuple[Callable[..., Any], dict[str, Any], str, Any]] = [
    (Residual, dict(width=6, dropout=0.0), "norm", "Pre"),
    (FeedForward, dict(width=6, ffn_width=5, dropout=0.0), "activation", "silu"),
    (encoder_block, BLOCK, "norm", "none"),
    (encoder_block, BLOCK, "activation", "tanh"),
    (encoder_block, BLOCK, "kernel", "linear"),
    (decoder_block, BLOCK, "norm", "none"),
    (decoder_block, BLOCK, "kernel", "Softmax"),
    (decoder_block, dict(BLOCK, has_self_attention=False), "kernel", "Softmax"),
    (transformer_encoder, BLOCK, "norm", "Post"),
    (transformer_encoder, BLOCK, "activation", "swish"),
    (transformer_encoder, BLOCK, "kernel", "relu"),
    (transformer_encoder, EMPTY, "norm", "Post"),
    (transformer_decoder, BLOCK, "norm", "Post"),
    (transformer_decoder, BLOCK, "activation", "swish"),
    (transformer_decoder, BLOCK, "kernel", "relu"),
    (transformer_decoder, EMPTY, "kernel", "relu"),
    (decoder_passes, {}, "capture", "self"),
    (encoder_pass, {}, "capture", True),
    (model_pass, {}, "capture", "weights"),
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
        dict(vocabulary=7, memory_width=6, summary_width=6, num_special_tokens=4, end=2),
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
