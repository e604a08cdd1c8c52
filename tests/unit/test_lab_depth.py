"""The experiment `depth`: its claims hold, also for lengths that are not powers of 2, and the
longest path through autograd's graph grows as they predict."""

from __future__ import annotations

import pytest
import torch

from regard.encoders import ConvolutionEncoder
from regard.lab import cells, depth, experiment
from regard.lab.depth import Settings, run
from regard.layers.attention import weights_unchecked
from regard.values import Source

SMALL = Settings(lengths=(3, 5, 8, 17), width=6, heads=2, kernel_size=3, layers=2)


def test_every_claim_holds():
    report = run(SMALL)
    assert [claim for claim in report.claims if not claim.holds] == []
    assert [len(table.rows) for table in report.tables] == [4, 4]


def test_other_formulas_would_not_do(monkeypatch: pytest.MonkeyPatch):
    right = {claim.text: claim.holds for claim in run(SMALL).claims}
    shallow = depth.attention
    monkeypatch.setattr(depth, "lstm", lambda length, width: shallow(length, width, heads=1))
    monkeypatch.setattr(depth, "attention", lambda length, *_: depth.Cost(length, length))
    wrong = {claim.text: claim.holds for claim in run(SMALL).claims}
    assert all(right.values())
    assert [text for text, holds in wrong.items() if not holds] == [
        "the depth of an LSTM is linear in T",
        "self-attention grows with log T: softmax's maximum and sum, and the weighted average",
        "and with log D: projections and scores are sums over D and K",
        "self-attention still takes 4 T D^2 + 2 T^2 D multiplications",
    ]


def longest(result: torch.Tensor) -> int:
    """Nodes on the longest path through autograd's graph."""
    seen: dict = {}
    assert result.grad_fn is not None
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
    """Nodes are whole tensors, so trees have no height here: an RNN's graph grows with T, the
    others' do not."""

    def lstm(length: int) -> int:
        weights = {
            name: torch.randn(shape, requires_grad=True)
            for name, shape in cells.lstm_shapes(3, 5, 2).items()
        }
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


def test_settings_that_cannot_be():
    for override, said in [
        ("heads=3", "--set: heads must divide width; got heads = 3, width = 16"),
        ("lengths=[4,8,8]", "--set: lengths must rise; got [4, 8, 8]"),
    ]:
        with pytest.raises(experiment.InputError) as refused:
            experiment.settings(Settings, [override])
        assert str(refused.value) == said
