"""The trace counts what others count (torch's own counter, a loop by hand), and what they do not
see."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from regard.budget.trace import Trace, norm_steps, tree
from regard.layers.attention import attend_unchecked, weights_unchecked


def test_products_are_those_torch_counts():
    q, k, v = torch.randn(2, 3, 7, 5), torch.randn(2, 3, 11, 5), torch.randn(2, 3, 11, 5)
    image, filters = torch.randn(2, 3, 17), torch.randn(5, 3, 4)

    def work():
        _ = weights_unchecked(q, k) @ v
        torch.nn.functional.conv1d(image, filters, stride=2)
        torch.addmm(torch.randn(5), torch.randn(7, 3), torch.randn(3, 5))

    with FlopCounterMode(display=False) as theirs:
        work()
    with Trace() as ours:
        work()
    assert ours.products == theirs.get_total_flops() // 2
    with Trace() as fused:
        attend_unchecked(q, k, v)
    assert fused.products == 2 * (2 * 3 * 7 * 11 * 5)


def test_depth_is_that_of_the_longest_way():
    x, y = torch.randn(5, 7), torch.randn(5, 7)
    with Trace() as trace:
        short = x + 1
        long = (y.exp() * 2).tanh()
        both = torch.cat([short, long])
        summed = both.sum(1)  # 7 numbers: 3 steps
        product = x.T @ y  # over 5 numbers: 1 + 3 steps
        heads, others = x[None, None], y[None, None]
        fused = attend_unchecked(heads, others, others)
        explicit = weights_unchecked(heads, others) @ others
    assert trace.depth(x) == 0
    assert (trace.depth(short), trace.depth(long), trace.depth(both), trace.depth(summed)) == (
        1,
        3,
        3,
        6,
    )
    assert trace.depth(product) == 4
    assert trace.depth(fused) == trace.depth(explicit) == 1 + (1 + 3) + (2 * 3 + 3) + (1 + 3)
    assert trace.depth(torch.randn(3)) == 0


def test_bytes_are_those_of_new_tensors_only():
    x = torch.randn(3, 5)
    with Trace() as trace:
        x.T[1:].reshape(4, 3).unsqueeze(0)
        assert trace.written == {}
        _ = x + x, x * 2
        _ = x.T.clone()
    assert trace.written == {(3, 5): 2 * 15 * 4, (5, 3): 15 * 4}


def test_what_it_does_not_know_it_refuses_or_notes():
    with (
        pytest.raises(NotImplementedError, match="Trace does not know what _fft_r2c costs"),
        Trace(),
    ):
        torch.fft.rfft(torch.randn(8))
    with Trace(refuse=False) as trace:
        made = torch.fft.rfft(torch.randn(8))
    assert trace.unknown == {"_fft_r2c": 1} and trace.depth(made) == 1


def test_what_is_written_in_place_is_as_deep_as_what_was_written():
    with Trace() as trace:
        whole = torch.zeros(4, 3)
        first, second = whole.split(2)
        first.add_(1).mul_(2)
        second.exp_()
        assert (trace.depth(first), trace.depth(second), trace.depth(whole)) == (2, 1, 2)
        assert trace.depth(whole[3]) == 2  # a new view does not know what is in its part
        result = torch.empty(4, 5)
        torch.mm(whole, torch.zeros(3, 5), out=result)
        assert trace.depth(result) == 2 + 1 + 2


def test_the_most_that_is_there_at_a_time():
    with Trace() as trace:
        a = torch.zeros(100)
        b = torch.zeros(50) + 0  # two of 200 bytes, one of which goes at once
        del a
        c = b * 2
    assert trace.peak == 400 + 200 + 200 and trace.live == 400
    del b, c
    assert trace.live == 0


@pytest.mark.parametrize("batch_first", [True, False])
def test_fused_recurrent_layers(batch_first: bool):
    """torch's own counter says 0 for the fused LSTM."""
    lstm, x = (
        nn.LSTM(5, 7, num_layers=2, bidirectional=True, batch_first=batch_first),
        torch.randn(3, 11, 5),
    )
    with FlopCounterMode(display=False) as theirs, torch.no_grad():
        lstm(x)
    with Trace(refuse=False) as ours:
        made, _ = lstm(x)
        forward = ours.products
        made.sum().backward()
    assert theirs.get_total_flops() == 0
    assert forward == 33 * 2 * 4 * 7 * ((5 + 7) + (14 + 7))
    assert ours.products == 3 * forward


def test_an_lstm_is_as_deep_fused_as_step_by_step():
    lstm, cell, places = nn.LSTM(5, 7, batch_first=True), nn.LSTMCell(5, 7), 11
    x = torch.randn(3, places, 5)
    with torch.no_grad(), Trace() as trace:
        fused, _ = lstm(x)
        h, c = torch.zeros(3, 7), torch.zeros(3, 7)
        for t in range(places):
            h, c = cell(x[:, t], (h, c))
    assert trace.depth(fused) == trace.depth(h) == places * (8 + 3)


def test_a_gru_place_by_place():
    gru, x = nn.GRU(5, 7, batch_first=True), torch.randn(3, 11, 5)
    with torch.no_grad(), Trace() as trace:
        made, _ = gru(x)
    assert trace.depth(made) == 11 * (10 + 3)
    assert trace.products == 3 * 11 * 3 * 7 * (5 + 7)


@pytest.mark.parametrize("heads", [2, 3])  # the fast path wants an even number of them
@pytest.mark.parametrize("norm_first", [True, False])
def test_the_fast_path_of_a_transformer_layer(heads: int, norm_first: bool):
    """In eval mode torch makes the whole layer in one call, of which its own counter sees
    nothing."""
    layer = nn.TransformerEncoderLayer(
        12, heads, 20, batch_first=True, norm_first=norm_first
    ).eval()
    x = torch.randn(2, 7, 12)
    with torch.no_grad(), Trace() as fused:
        fast = fused.depth(layer(x))
    with Trace() as plain:
        slow = plain.depth(layer(x))  # with gradients it goes the slow way
    assert (
        fused.products == plain.products == 2 * (7 * (4 * 12 * 12 + 2 * 12 * 20) + 2 * 7 * 7 * 12)
    )
    assert fast == slow


@pytest.mark.parametrize("heads", [2, 3])
def test_multi_head_attention_both_ways(heads: int):
    layer, x, y = (
        nn.MultiheadAttention(12, heads, batch_first=True).eval(),
        torch.randn(2, 7, 12),
        torch.randn(2, 5, 12),
    )
    for given, seen in ((x, 7), (y, 5)):
        for grad in (True, False):
            with torch.set_grad_enabled(grad), Trace() as trace:
                layer(x, given, given, need_weights=False)
            assert trace.products == 2 * ((2 * 7 + 2 * seen) * 12 * 12 + 2 * 7 * seen * 12)


def test_gradients_of_fused_attention_make_the_scores_once_more():
    q, k, v = (torch.randn(2, 3, n, 5, requires_grad=True) for n in (7, 11, 11))
    with Trace(refuse=False) as trace:
        attend_unchecked(q, k, v).sum().backward()
    assert trace.products == 7 * (2 * 3 * 7 * 11 * 5)
    with FlopCounterMode(display=False) as theirs:
        attend_unchecked(q, k, v).sum().backward()
    assert (
        theirs.get_total_flops() == 0
    )  # torch's own counter does not know the fused kernel of the CPU


def test_convolutions_and_their_gradients_are_those_torch_counts():
    x = torch.randn(2, 6, 9, 8, requires_grad=True)
    layers = [
        nn.Conv2d(6, 4, 3, padding=1, groups=2),
        nn.Conv2d(6, 5, 2, stride=2),
        nn.ConvTranspose2d(6, 4, 3),
    ]
    for layer in layers:
        with Trace(refuse=False) as ours:
            layer(x).sum().backward()
        with FlopCounterMode(display=False) as theirs:
            layer(x).sum().backward()
        if getattr(layer, "groups", 1) == 1:  # theirs does not see groups in gradients
            assert ours.products == theirs.get_total_flops() // 2
        forward = 3 * layer(x).numel() * 3 * 9 if layer is layers[0] else ours.products
        assert ours.products == forward


def test_an_outer_product_is_a_matrix_product_and_a_spread_number_is_not():
    column, row = torch.randn(2, 5, 1), torch.randn(2, 1, 7)
    with Trace() as trace:
        _ = column * row
        assert trace.products == 2 * 5 * 7
        _ = (
            column * torch.randn(2, 5, 7),
            row * torch.randn(1, 1, 1),
            torch.randn(5, 1) * torch.randn(7),
            row * 3,
        )
        assert trace.products == 2 * 5 * 7


def test_a_model_on_the_meta_device_needs_no_memory():
    with torch.device("meta"):
        layer, x = nn.Linear(10_000, 10_000), torch.empty(100, 10_000)
        with Trace(refuse=False) as trace:
            layer(x)
    assert trace.products == 100 * 10_000 * 10_000 and trace.peak == 4 * 100 * 10_000


def test_norms():
    with Trace() as trace:
        made = nn.functional.layer_norm(torch.randn(3, 5), (5,))
    assert trace.depth(made) == norm_steps(5) == 15


def test_trees():
    assert [tree(n) for n in (1, 2, 3, 4, 5, 8, 9, 1024, 1025)] == [0, 1, 2, 2, 3, 3, 4, 10, 11]
