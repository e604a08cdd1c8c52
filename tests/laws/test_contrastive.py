"""The contrastive loss: true answers against answers to other inputs, by likelihood per token."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from regard import bundle, recipe
from regard.model import TEMPERATURE, Model, OtherAnswers
from regard.train import train
from tests.laws.variants import DECODER_PAIRS, LABELS, build, sentences
from tests.tiny import Silent, memorised, pairs_file

ANSWERS = [pair for pair in DECODER_PAIRS if not pair[1].startswith(LABELS)]
WEIGHT = 0.7


def batch() -> tuple[torch.Tensor, ...]:
    """raw, mask, tokens, targets and real of five examples."""
    raw, mask = sentences()
    tokens, real = sentences(length=6, seed=7)
    return raw, mask, tokens, tokens.roll(1, dims=1), real


def others() -> OtherAnswers:
    """Answers to compare with those of the rows 3, 0 and 3."""
    tokens, real = sentences(rows=3, length=8, seed=9)
    return OtherAnswers(torch.tensor([3, 0, 3]), tokens, tokens.roll(2, dims=1), real)


def by_hand(model: Model) -> float:
    """The loss with the contrastive one, one answer and one token at a time."""
    raw, mask, tokens, targets, real = batch()
    negatives = others()

    def nats(row: int, tokens: torch.Tensor, targets: torch.Tensor, count: int) -> float:
        """The negative log-likelihood of one answer to the input of a row."""
        logits = model(raw[row : row + 1], mask[row : row + 1], tokens[None, :count])[0]
        chosen = [logits[t].log_softmax(-1)[targets[t]] for t in range(count)]
        return -float(sum(chosen))

    lengths = real.sum(1).tolist()
    true = [nats(row, tokens[row], targets[row], lengths[row]) for row in range(len(tokens))]
    losses = []
    for n, row in enumerate(negatives.rows.tolist()):
        length = int(negatives.real[n].sum())
        other = nats(row, negatives.tokens[n], negatives.targets[n], length) / length
        margin = (other - true[row] / lengths[row]) / TEMPERATURE
        losses.append(TEMPERATURE * math.log(1 + math.exp(-margin)))
    return sum(true) + WEIGHT * sum(lengths) * sum(losses) / len(losses)


@pytest.mark.parametrize(("encoder", "decoder"), ANSWERS)
def test_it_is_its_definition(encoder: str, decoder: str):
    model = build(encoder, decoder)
    loss, nats = model.loss(*batch(), others=others(), contrastive_weight=WEIGHT)
    with torch.no_grad():
        assert float(loss.detach()) == pytest.approx(by_hand(model), rel=1e-9)
    assert float(nats) == pytest.approx(float(model.loss(*batch())[1]), rel=1e-12)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.decoder.parameters())


def test_without_a_weight_nothing_changes():
    model = build("recurrent-lstm-2-concatenate", "recurrent-lstm-general")
    plain, _ = model.loss(*batch())
    weightless, _ = model.loss(*batch(), others=others())
    assert torch.equal(plain, weightless)


class _Spy:
    """Records what a training compares."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.calls: list[tuple[torch.Tensor, OtherAnswers | None]] = []
        loss = Model.loss

        def recording(model: Model, raw, mask, *rest, others=None, **more):
            if model.training:
                self.calls.append((mask, others))
            return loss(model, raw, mask, *rest, others=others, **more)

        monkeypatch.setattr(Model, "loss", recording)


def trained(tmp_path, *changes: str) -> bundle.Bundle:
    sets = memorised(pairs_file(tmp_path), "train.contrastive_weight=0.5", *changes)
    train(recipe.load("chat-attention", sets), tmp_path / "run", reporter=Silent())
    return bundle.load(tmp_path / "run")


def test_it_begins_at_its_share_of_the_budget(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    spy = _Spy(monkeypatch)
    trained(tmp_path, "train.steps=10", "train.contrastive_start=0.6")
    assert [others is not None for _, others in spy.calls] == [False] * 6 + [True] * 4


def test_empty_prompts_are_left_out(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    spy = _Spy(monkeypatch)
    trained(tmp_path, "train.steps=12", "source.prompt_dropout=0.5")
    compared = [(mask, others) for mask, others in spy.calls if others is not None]
    assert compared
    for mask, others in compared:
        assert (mask[others.rows].sum(1) > 1).all()
        assert len(set(others.rows.tolist())) == len(others.rows)
    assert any((mask.sum(1) == 1).any() for mask, _ in spy.calls)


def test_it_widens_the_margin(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """What it is for: an answer to another prompt becomes less likely, token by token."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))

    def margin(weight: float) -> float:
        folder = tmp_path / str(weight)
        folder.mkdir()
        bot = trained(folder, "train.steps=25", f"train.contrastive_weight={weight}")
        part = bot.own_data("train")[1]
        rows = np.arange(len(part))
        sources = part.gather_sources(rows)

        def nats(shift: int) -> float:
            targets = [part.target[i] for i in np.roll(rows, shift)]
            batch = bot.task.batch(sources, targets)
            memory = bot.model.encode(batch.raw, batch.mask)
            each = bot.model.nats(memory, batch.tokens, batch.targets, batch.real)
            return float((each / batch.real.sum(1)).mean())

        with torch.no_grad():
            return nats(1) - nats(0)

    assert margin(2.0) > 1.2 * margin(0.0)
