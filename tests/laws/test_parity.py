"""Our layers beside torch's own, with the same weights, in float64."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import groupby, product

import pytest
import torch
from torch import nn

from regard.layers.attention import attend, attention_weights
from regard.layers.blocks import DecoderBlock, EncoderBlock, dropout_from_bytes
from regard.layers.loss import cross_entropy, ctc_loss
from regard.layers.positions import sinusoidal
from regard.layers.recurrent import Recurrent
from regard.layers.sizes import TransformerSizes
from regard.layers.softmax_attention import SoftmaxCrossAttention, SoftmaxSelfAttention
from tests.laws.variants import sentences

B, S, T, D, H = 5, 7, 11, 14, 2
SIZES = TransformerSizes(layers=1, width=D, heads=H, ffn_width=17)


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(2)


def give_self(ours: SoftmaxSelfAttention, theirs: nn.MultiheadAttention) -> None:
    ours.qkv.weight.data, ours.qkv.bias.data = theirs.in_proj_weight.data, theirs.in_proj_bias.data
    ours.out.weight.data, ours.out.bias.data = (
        theirs.out_proj.weight.data,
        theirs.out_proj.bias.data,
    )


def give_cross(ours: SoftmaxCrossAttention, theirs: nn.MultiheadAttention) -> None:
    ours.query.weight.data, ours.kv.weight.data = theirs.in_proj_weight.data.split([D, 2 * D])
    ours.query.bias.data, ours.kv.bias.data = theirs.in_proj_bias.data.split([D, 2 * D])
    ours.out.weight.data, ours.out.bias.data = (
        theirs.out_proj.weight.data,
        theirs.out_proj.bias.data,
    )


def random_biases(module: nn.Module) -> None:
    """torch begins with zero biases and unit norms, which would hide a mistake."""
    for parameter in module.parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter)


def test_attend_is_a_triple_loop():
    q, k, v = rand(3, T, 5), rand(3, S, 5), rand(3, S, 4)
    mask = torch.rand(3, T, S) < 0.7
    mask[..., 0] = True
    expected = torch.zeros(3, T, 4, dtype=torch.float64)
    for b in range(3):
        for t in range(T):
            weight = [
                torch.exp(q[b, t] @ k[b, s] / 5**0.5) if mask[b, t, s] else torch.tensor(0.0)
                for s in range(S)
            ]
            for s in range(S):
                expected[b, t] += weight[s] / sum(weight) * v[b, s]
    close(attend(q, k, v, mask=mask), expected)
    close(attention_weights(q, k, mask=mask) @ v, expected)


def test_self_attention_is_torchs():
    theirs = nn.MultiheadAttention(D, H, batch_first=True, dtype=torch.float64)
    random_biases(theirs)
    ours = SoftmaxSelfAttention(SIZES).double()
    give_self(ours, theirs)
    x, (_, mask) = rand(B, S, D), sentences(B, S)
    expected, expected_weights = theirs(x, x, x, key_padding_mask=~mask, average_attn_weights=False)
    y, none = ours(x, mask=mask)
    close(y, expected)
    assert none is None
    y, weights = ours(x, mask=mask, need_weights=True)
    close(y, expected)
    close(weights, expected_weights)


def test_cross_attention_is_torchs():
    theirs = nn.MultiheadAttention(D, H, batch_first=True, dtype=torch.float64)
    random_biases(theirs)
    ours = SoftmaxCrossAttention(SIZES, memory_width=D).double()
    give_cross(ours, theirs)
    x, memory, (_, mask) = rand(B, T, D), rand(B, S, D), sentences(B, S)
    expected, weights = theirs(
        x, memory, memory, key_padding_mask=~mask, average_attn_weights=False
    )
    close(ours(x, memory, mask=mask)[0], expected)
    close(ours(x, memory, mask=mask, need_weights=True)[1], weights)
    state = ours.start(memory, mask)
    y, _, step_weights = ours.step(x[:, 3], state, mask=mask, need_weights=True)
    close(y, expected[:, 3])
    close(step_weights[:, :, 0], weights[:, :, 3])
    for times in (1, 7):  # few rows and many take different kernels
        rows = memory.repeat(times, 1, 1), mask.repeat(times, 1)
        queries = x[:, 3].repeat(times, 1)
        y, _, none = ours.step(queries, ours.start(*rows), mask=rows[1])
        close(y, expected[:, 3].repeat(times, 1))
        assert none is None


def give_block(ours, theirs, norms) -> None:
    give_self(ours.self_attention, theirs.self_attn)
    ours.feed_forward.up.load_state_dict(theirs.linear1.state_dict())
    ours.feed_forward.down.load_state_dict(theirs.linear2.state_dict())
    for residual, norm in norms:
        residual.norm.load_state_dict(norm.state_dict())


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_block_is_torchs(norm: str, activation: str):
    theirs = nn.TransformerEncoderLayer(
        D, H, 17, 0.0, activation, batch_first=True, norm_first=norm == "pre", dtype=torch.float64
    ).train()  # torch's fast path in eval mode zeroes padding
    random_biases(theirs)
    ours = EncoderBlock(replace(SIZES, norm=norm, activation=activation)).double()
    give_block(
        ours,
        theirs,
        [(ours.self_attention_residual, theirs.norm1), (ours.feed_forward_residual, theirs.norm2)],
    )
    x, (_, mask) = rand(B, S, D), sentences(B, S)
    close(ours(x, mask)[0], theirs(x, src_key_padding_mask=~mask))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_decoder_block_is_torchs(norm: str):
    theirs = nn.TransformerDecoderLayer(
        D, H, 17, 0.0, batch_first=True, norm_first=norm == "pre", dtype=torch.float64
    )
    random_biases(theirs)
    ours = DecoderBlock(replace(SIZES, norm=norm), memory_width=D).double()
    norms = [
        (ours.self_attention_residual, theirs.norm1),
        (ours.cross_attention_residual, theirs.norm2),
        (ours.feed_forward_residual, theirs.norm3),
    ]
    give_block(ours, theirs, norms)
    give_cross(ours.cross_attention, theirs.multihead_attn)
    x, memory, (_, mask) = rand(B, T, D), rand(B, S, D), sentences(B, S)
    causal = nn.Transformer.generate_square_subsequent_mask(T, dtype=torch.float64)
    expected = theirs(x, memory, tgt_mask=causal, memory_key_padding_mask=~mask)
    close(ours(x, memory, mask)[0], expected)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("directions", [1, 2])
def test_recurrent_is_torchs(cell: str, directions: int):
    theirs = {"lstm": nn.LSTM, "gru": nn.GRU}[cell](
        13, D, 3, batch_first=True, bidirectional=directions == 2, dtype=torch.float64
    )
    ours = Recurrent(cell=cell, inputs=13, width=D, layers=3, directions=directions).double()
    for name, value in theirs.named_parameters():
        kind, layer = name.split("_l")[0], int(name.split("_l")[1][0])
        getattr(
            ours.layers[layer], f"{kind}_l0{'_reverse' if 'reverse' in name else ''}"
        ).data = value.data
    x, (_, mask) = rand(B, S, 13).requires_grad_(), sentences(B, S)
    close(ours(x), theirs(x)[0])
    states, last = ours.masked(x, mask)
    (ours_moves,) = torch.autograd.grad(states[mask].square().sum() + last.sum(), x)
    assert not ours_moves[~mask].any() and (~mask).any()  # what is padding moves nothing
    for row, length in enumerate(mask.sum(1).tolist()):
        expected, end = theirs(x[row : row + 1, :length])
        end = (end[0] if cell == "lstm" else end)[-directions:, 0].flatten()
        close(states[row, :length], expected[0])
        close(last[row], end)
        (moves,) = torch.autograd.grad(expected.square().sum() + end.sum(), x)
        close(ours_moves[row], moves[row])


def test_forget_gates_begin_open():
    rnn = Recurrent(cell="lstm", inputs=3, width=5, layers=2)
    for layer in rnn.layers:
        assert (layer.bias_ih_l0[5:10] == 1).all()
        assert (layer.bias_ih_l0[:5] != 1).all()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows", [1, 7, 301])
def test_cross_entropy_is_torchs(monkeypatch: pytest.MonkeyPatch, smoothing: float, rows: int):
    monkeypatch.setattr("regard.layers.loss.PIECE", 13 * 100)  # 301 rows take several pieces
    hidden, weight, bias = (x.requires_grad_() for x in (rand(rows, 5), rand(13, 5), rand(13)))
    targets = torch.randint(0, 13, (rows,))
    loss, nats = cross_entropy(hidden, weight, bias, targets, smoothing=smoothing)
    grads = torch.autograd.grad(loss * 3, (hidden, weight, bias))
    logits = hidden @ weight.T + bias
    expected = nn.functional.cross_entropy(
        logits, targets, label_smoothing=smoothing, reduction="sum"
    )
    close(loss, expected)
    close(nats, nn.functional.cross_entropy(logits, targets, reduction="sum"))
    for ours, theirs in zip(
        grads, torch.autograd.grad(expected * 3, (hidden, weight, bias)), strict=True
    ):
        close(ours, theirs)


def test_sinusoidal_is_the_formula():
    table = sinusoidal(torch.arange(31), 6)
    for t in (0, 1, 30):
        for i in range(3):
            angle = torch.tensor(t / 10000 ** (2 * i / 6), dtype=torch.float64)
            assert table[t, 2 * i].item() == pytest.approx(angle.sin().item(), abs=1e-6)
            assert table[t, 2 * i + 1].item() == pytest.approx(angle.cos().item(), abs=1e-6)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.7])
def test_dropout_keeps_the_mean_and_passes_gradients(share: float):
    x = torch.ones(301, 1009, requires_grad=True)
    y = dropout_from_bytes(x, share)
    y.sum().backward()
    zero = (y == 0).float().mean().item()
    assert zero == pytest.approx(round(share * 256) / 256, abs=0.005)
    assert y.mean().item() == pytest.approx(1, abs=0.01)
    assert x.grad is not None and torch.equal(x.grad, y)
    assert torch.equal(dropout_from_bytes(x, 0.0), x)


@pytest.mark.parametrize("before", [0, 2])
def test_what_places_say_in_order_is_the_sum_of_all_ways_to_say_it(before: int):
    """Every way is tried: what stays is said once, and what is silent is not said."""
    logits, lengths = rand(3, 6, 4), [4, 4, 1]
    answers = [[1, 1], [3, 2, 1], [2, 3]]  # the last has too few places, and is left out
    targets = nn.utils.rnn.pad_sequence([torch.tensor(a) for a in answers], batch_first=True)
    mask = torch.zeros(3, 6, dtype=torch.bool)
    nats = 0.0
    for row, (length, answer) in enumerate(zip(lengths, answers, strict=True)):
        mask[row, before : before + length] = True
        chances = logits[row, before : before + length].softmax(-1)
        ways = (
            math.prod(float(chances[place, token]) for place, token in enumerate(way))
            for way in product(range(4), repeat=length)
            if [token for token, _ in groupby(way) if token] == answer
        )
        likely = sum(ways)
        nats -= math.log(likely) if likely else 0
    assert nats > 0
    assert float(ctc_loss(logits, mask, targets, targets > 0)) == pytest.approx(nats, abs=1e-9)
