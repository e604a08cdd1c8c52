"""The experiment `depth`: its claims hold, for lengths that are no powers of 2 too, and the trace counts what others
count: torch's own counter of multiplications, and the longest way through autograd's graph."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from regard.encoders import ConvolutionEncoder
from regard.lab import cells, depth, experiment
from regard.lab.depth import Settings, run
from regard.lab.trace import Trace, tree
from regard.layers.attention import attend_unchecked, weights_unchecked
from regard.values import Source

SMALL = Settings(lengths=(3, 5, 8, 17), width=6, heads=2, reach=3, layers=2)


def test_every_claim_holds():
    report = run(SMALL)
    assert [claim for claim in report.claims if not claim.holds] == []
    assert [len(table.rows) for table in report.tables] == [4, 4]


def test_other_formulas_would_not_do(monkeypatch: pytest.MonkeyPatch):
    right = {claim.text: claim.holds for claim in run(SMALL).claims}
    shallow = depth.attention
    monkeypatch.setattr(depth, "lstm", lambda length, width: shallow(length, width, heads=1))
    monkeypatch.setattr(depth, "attention", lambda length, width, heads: (length, length))
    wrong = {claim.text: claim.holds for claim in run(SMALL).claims}
    assert all(right.values())
    assert [text for text, holds in wrong.items() if not holds] == [
        "an LSTM waits for every place",
        "attention grows with log T: maximum, normaliser and mix are trees over T",
        "and with log D: projections and scores are trees over D and K",
        "the work of attention is 4 T D^2 + 2 T^2 D all the same",
    ]


# --------------------------------------------------------------------------------------------------------------- trace


def longest(result: torch.Tensor) -> int:
    """Nodes on the longest way through autograd's graph."""
    seen: dict = {}
    todo = [result.grad_fn]
    while todo:
        node = todo[-1]
        below = [each for each, _ in node.next_functions if each is not None]
        if missing := [each for each in below if each not in seen]:
            todo += missing
            continue
        seen[todo.pop()] = 1 + max((seen[each] for each in below), default=0)
    return seen[result.grad_fn]


def test_autograd_sees_the_same_growth():
    """Nodes are whole tensors, so trees have no height here: an RNN's graph grows with T, the others' do not."""

    def lstm(length: int) -> int:
        weights = {name: torch.randn(shape, requires_grad=True) for name, shape in cells.lstm_shapes(3, 5, 2).items()}
        return longest(cells.lstm_forward(weights, torch.randn(1, length, 3))[0])

    def cnn(length: int, layers: int = 3) -> int:
        source = Source(torch.randn(1, length, 3), torch.ones(1, length, dtype=torch.bool))
        return longest(ConvolutionEncoder(inputs=3, width=5, layers=layers)(source).states)

    def attention(length: int) -> int:
        x, w = torch.randn(1, length, 5), torch.randn(5, 5, requires_grad=True)
        return longest(weights_unchecked(x @ w, x @ w) @ (x @ w))

    assert lstm(13) - lstm(11) == lstm(7) - lstm(5) > 0
    assert cnn(13) == cnn(5)
    assert cnn(13, 5) - cnn(13, 4) == cnn(13, 2) - cnn(13, 1) > 0
    assert attention(13) == attention(5)


def test_products_are_those_torch_counts():
    q, k, v = torch.randn(2, 3, 7, 5), torch.randn(2, 3, 11, 5), torch.randn(2, 3, 11, 5)
    image, filters = torch.randn(2, 3, 17), torch.randn(5, 3, 4)

    def work():
        weights_unchecked(q, k) @ v
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
    assert (trace.depth(short), trace.depth(long), trace.depth(both), trace.depth(summed)) == (1, 3, 3, 6)
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


def test_what_it_does_not_know_it_refuses():
    with pytest.raises(NotImplementedError, match="Trace does not know what cumsum costs"), Trace():
        torch.randn(3).cumsum(0)
    with pytest.raises(NotImplementedError, match="Trace does not know what add_ costs"), Trace():
        torch.zeros(3).add_(1)


def test_trees():
    assert [tree(n) for n in (1, 2, 3, 4, 5, 8, 9, 1024, 1025)] == [0, 1, 2, 2, 3, 3, 4, 10, 11]


def test_settings_that_cannot_be():
    for override, said in [
        ("heads=3", "--set: heads must divide width; got heads = 3, width = 16"),
        ("lengths=[4,8,8]", "--set: lengths must rise; got [4, 8, 8]"),
    ]:
        with pytest.raises(experiment.InputError) as refused:
            experiment.settings(Settings, [override])
        assert str(refused.value) == said
