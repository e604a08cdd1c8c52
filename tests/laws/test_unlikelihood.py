"""The unlikelihood loss: tokens that an answer already has should not come again."""

from __future__ import annotations

import math

import pytest
import torch

from regard import recipe
from regard.errors import RecipeError
from regard.layers.loss import earlier_tokens
from tests.laws.variants import DECODER_PAIRS, LABELS, build, sentences

ANSWERS = [pair for pair in DECODER_PAIRS if not pair[1].startswith(LABELS)]
WEIGHT = 0.7


def batch() -> tuple[torch.Tensor, ...]:
    """raw, mask, tokens, targets and real of five examples; some targets come several times."""
    raw, mask = sentences()
    tokens, real = sentences(length=6, seed=7)
    targets = tokens.roll(1, dims=1)
    targets[:, 2] = targets[:, 0]
    targets[0, :3] = targets[0, 0]
    return raw, mask, tokens, targets, real


def by_hand(model) -> float:
    """The loss, one token at a time, with the sets of Welleck et al. 2020, section 5.1."""
    raw, mask, tokens, targets, real = batch()
    loss = 0.0
    for row, length in enumerate(real.sum(1).tolist()):
        logits = model(raw[row : row + 1], mask[row : row + 1], tokens[row : row + 1, :length])[0]
        answer = targets[row].tolist()
        for t in range(length):
            p = logits[t].softmax(-1)
            loss -= math.log(p[answer[t]])
            for token in set(answer[:t]) - {answer[t]}:
                loss -= WEIGHT * math.log(1 - p[token])
    return loss


@pytest.mark.parametrize(("encoder", "decoder"), ANSWERS)
def test_it_is_its_definition(encoder: str, decoder: str):
    model = build(encoder, decoder)
    loss, nats = model.loss(*batch(), unlikelihood_weight=WEIGHT)
    with torch.no_grad():
        assert float(loss.detach()) == pytest.approx(by_hand(model), rel=1e-9)
    assert float(nats) == pytest.approx(float(model.loss(*batch())[1]), rel=1e-12)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.decoder.parameters())


def test_the_set_of_earlier_tokens():
    targets = torch.tensor([[5, 6, 5, 6, 7, 0], [5, 5, 8, 0, 0, 0]])
    real = torch.tensor([[True] * 5 + [False], [True] * 3 + [False] * 3])
    counts = earlier_tokens(targets, real)

    def sets(row: int) -> list[list[int]]:
        return [targets[row][counts[row, t]].tolist() for t in range(int(real[row].sum()))]

    assert sets(0) == [[], [5], [6], [5], [5, 6]]
    assert sets(1) == [[], [], [5]]


def test_a_certain_repetition_has_a_finite_loss():
    model = build("recurrent-lstm-2-concatenate", "recurrent-lstm-general")
    with torch.no_grad():
        model.decoder.output.bias[int(batch()[3][0, 0])] = 1e4
    loss, _ = model.loss(*batch(), unlikelihood_weight=WEIGHT)
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_labels_are_refused():
    with pytest.raises(RecipeError, match="unlikelihood_weight"):
        recipe.load("sentiment-lstm", ["train.unlikelihood_weight=1.0"])
