"""Captured attention weights, over every encoder and decoder, in float64: they sum to 1, are 0 at
masked and later places, are those of the forward pass, and reproduce the output of their layer."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.layers.positions import NoPositions
from regard.layers.sizes import TransformerSizes
from regard.layers.softmax_attention import SoftmaxSelfAttention, join_heads, split_heads
from regard.values import AttentionWeights, Step
from tests.laws.variants import (
    DECODERS,
    ENCODERS,
    HEADS,
    LABELS,
    build,
    sentences,
    transformer_decoder,
)

LAYERS = 3
ENCODER, DECODER = "transformer-pre-sinusoidal", "transformer-pre-sinusoidal"


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


def named(attention: tuple[AttentionWeights, ...]) -> dict[tuple[str, int], Tensor]:
    return {(layer.kind, layer.layer): layer.weights for layer in attention}


def check_weights(weights: Tensor, allowed: Tensor) -> None:
    """Each row sums to 1, and nothing is where it is not allowed."""
    close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    assert (weights.masked_select(~allowed.expand_as(weights)) == 0).all()


def attends(decoder: str) -> bool:
    without = ("recurrent-lstm-none", "recurrent-gru-none", f"{LABELS}-summary")
    return not decoder.startswith(without)


@torch.no_grad()
@pytest.mark.parametrize("encoder", ENCODERS)
def test_encoders(encoder: str):
    model = build(encoder, "recurrent-lstm-general")
    source, mask = sentences()
    memory = model.encode(source, mask, capture="all")
    close(memory.states, model.encode(source, mask).states)
    assert model.encode(source, mask).attention == ()
    assert model.encode(source, mask, capture="cross").attention == ()
    if not encoder.startswith("transformer"):
        assert memory.attention == ()
        return

    assert list(named(memory.attention)) == [("self", n) for n in range(LAYERS)]
    form = "quadratic" if "maclaurin" in encoder else "softmax"
    for layer in memory.attention:
        assert layer.form == form
        assert layer.weights.shape == (5, HEADS, 7, 7)
        check_weights(layer.weights, mask[:, None, None])
    index = torch.tensor([4, 1, 1])
    picked = memory.rows(index).attention
    assert torch.equal(picked[2].weights, memory.attention[2].weights[index])


@torch.no_grad()
@pytest.mark.parametrize("decoder", DECODERS)
def test_decoders(decoder: str):
    """All positions at once, and step by step."""
    model = build(ENCODER, decoder)
    memory = model.encode(*sentences())
    target, _ = sentences(length=11, seed=5)
    logits, attention = model.decoder.forward_with_attention(target, memory)
    close(logits, model.decoder(target, memory))

    transformer = decoder.startswith("transformer")
    layers = LAYERS if transformer else 1
    kinds = ["self", "cross"] if transformer else ["cross"]
    expected = [(kind, n) for n in range(layers) for kind in kinds] if attends(decoder) else []
    assert list(named(attention)) == expected
    causal = torch.ones(11, 11, dtype=torch.bool).tril()
    for layer in attention:
        assert layer.form == ("quadratic" if "maclaurin" in decoder else "softmax")
        allowed = causal if layer.kind == "self" else memory.mask[:, None, None]
        check_weights(layer.weights, allowed)

    state = model.decoder.start(memory, capture="all")
    for t, token in enumerate(target.unbind(1)):
        step = model.decoder.step(token, state, capture="all")
        state = step.state
        close(step.logits, logits[:, t])
        steps = named(step.attention)
        assert list(steps) == expected
        for (kind, n), weights in named(attention).items():
            length = t + 1 if kind == "self" else None
            close(steps[kind, n][:, :, 0], weights[:, :, t, :length])
        if expected:
            assert step.weights is not None
            close(step.weights, steps["cross", layers - 1][:, :, 0])

    _, cross = model.decoder.forward_with_attention(target, memory, capture="cross")
    assert list(named(cross)) == [name for name in expected if name[0] == "cross"]
    for kind, n in named(cross):
        close(named(cross)[kind, n], named(attention)[kind, n])


@torch.no_grad()
@pytest.mark.parametrize("decoder", [name for name in DECODERS if name.startswith("transformer")])
def test_rows_at_different_positions(decoder: str):
    """The weights of joined rows are those of each alone; places beyond them weigh nothing."""
    model = build(ENCODER, decoder)
    target, _ = sentences(length=7, seed=5)
    short = model.encode(*sentences(rows=2, length=5))
    long = model.encode(*sentences(rows=3, length=7, seed=8))
    a = model.decoder.start(short, capture="all")
    b = model.decoder.start(long, capture="all")
    for t in range(4):
        b = model.decoder.step(target[:3, t], b, capture="all").state
    token = target[:, 4]

    def weights(step: Step) -> dict[tuple[str, int], Tensor]:
        return named(step.attention)

    joined = weights(model.decoder.step(token, a.join(b), capture="all"))
    apart_a = weights(model.decoder.step(token[:2], a, capture="all"))
    apart_b = weights(model.decoder.step(token[2:], b, capture="all"))
    for name, together in joined.items():
        close(together[2:], apart_b[name])
        size = apart_a[name].shape[-1]
        close(together[:2, ..., :size], apart_a[name])
        assert not together[:2, ..., size:].any()


@torch.no_grad()
@pytest.mark.parametrize("kernel", ["softmax", "maclaurin"])
def test_weights_make_the_output_of_their_layer(kernel: str):
    """The weights times the values, through the output projection."""
    torch.manual_seed(2)
    decoder = transformer_decoder("pre", "none", kernel=kernel).double().eval()
    x = torch.randn(5, 7, 14, dtype=torch.float64)
    memory = torch.randn(5, 11, 14, dtype=torch.float64)
    mask = torch.rand(5, 11) < 0.7
    mask[:, 0] = True
    block: Any = decoder.blocks[1]  # Any: its projections differ by kernel
    own, read = block.self_attention, block.cross_attention

    y, weights = own(x, causal=True, need_weights=True)
    values = split_heads(own.qkv(x), 3, HEADS)[2]
    close(own.out(join_heads(weights @ values)), y)

    y, weights = read(x, memory, mask=mask, need_weights=True)
    values = split_heads(read.kv(memory), 2, HEADS)[1]
    close(read.out(join_heads(weights @ values)), y)


@torch.no_grad()
def test_off_computes_no_weights(monkeypatch):
    """Attention of all positions never calls softmax; a step does once, in the last layer."""
    model = build(ENCODER, DECODER)
    calls = Counter[str]()
    softmax, fused = Tensor.softmax, torch.nn.functional.scaled_dot_product_attention

    def count_softmax(self: Tensor, *arguments):
        calls["softmax"] += 1
        return softmax(self, *arguments)

    def count_fused(*arguments, **more):
        calls["fused"] += 1
        return fused(*arguments, **more)

    monkeypatch.setattr(Tensor, "softmax", count_softmax)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", count_fused)
    target, _ = sentences(length=11, seed=5)
    memory = model.encode(*sentences())
    model.decoder(target, memory)
    assert calls == {"fused": 3 * LAYERS}

    calls.clear()
    state = model.decoder.start(memory)
    step = model.decoder.step(target[:, 0], state)
    assert calls == {"fused": 2 * LAYERS - 1, "softmax": 1}
    assert step.attention == ()

    calls.clear()
    model.decoder.step(target[:, 0], state, capture="cross")
    assert calls == {"fused": LAYERS, "softmax": LAYERS}
    calls.clear()
    model.decoder.forward_with_attention(target, model.encode(*sentences(), capture="all"))
    assert calls == {"softmax": 3 * LAYERS}


@torch.no_grad()
def test_linear_attention_keeps_keys_only_for_capture():
    model = build(ENCODER, "transformer-pre-maclaurin-3")
    memory = model.encode(*sentences())
    token = torch.full((5,), 4)
    state = model.decoder.start(memory)
    assert state.kv_cache is None and state.memory == ()
    step = model.decoder.step(token, state, capture="all")
    assert step.weights is None and step.attention == ()
    captured = model.decoder.start(memory, capture="all")
    assert captured.kv_cache is not None and len(captured.memory) == 1
    only_cross = model.decoder.start(memory, capture="cross")
    assert only_cross.kv_cache is None and len(only_cross.memory) == 1


def test_a_layer_alone_is_a_value():
    """Two steps from one state of a layer, without a decoder that prepares its cache."""
    from regard.layers.attention_layer import StepPosition

    torch.manual_seed(2)
    layer = SoftmaxSelfAttention(TransformerSizes(layers=1, width=14, heads=2, ffn_width=1))
    x = torch.randn(3, 5, 14)
    state = layer.start(3, x)
    positions = NoPositions()
    outputs = []
    with torch.no_grad():
        for t in range(5):
            at = StepPosition(torch.full((3,), t), t, True, positions)
            layer.step(torch.randn(3, 14), state, at)  # another continuation
            y, state, _ = layer.step(x[:, t], state, at)
            outputs.append(y)
        expected, _ = layer(x, causal=True)
    torch.testing.assert_close(torch.stack(outputs, 1), expected)
