"""The effect of a place is the difference that hiding it makes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from regard import effect
from regard.effect import effects
from regard.errors import InputError
from regard.values import Memory
from tests.laws.variants import VOCABULARY, build, sentences

ENCODER = "recurrent-lstm-2-concatenate"
WITH_ATTENTION = [
    "recurrent-lstm-scaled",
    "recurrent-gru-additive-before",
    "transformer-pre-rotary",
    "transformer-post-maclaurin-5",
    "recurrent-cross-attention-lstm",
]


def one_answer(decoder: str) -> tuple:
    model = build(ENCODER, decoder)
    raw, mask = sentences(rows=1, length=7)
    memory = model.encode(raw, mask)
    draw = torch.Generator().manual_seed(5)
    tokens, targets = torch.randint(4, VOCABULARY, (2, 5), generator=draw)
    return model.decoder, memory, tokens, targets


@torch.inference_mode()
def log_probability(decoder, memory: Memory, tokens, targets, t: int) -> float:
    """log p(targets[t]) by single steps."""
    state = decoder.start(memory)
    for token in tokens[: t + 1]:
        step = decoder.step(token[None], state)
        state = step.state
    return float(step.logits.log_softmax(-1)[0, targets[t]])


@pytest.mark.parametrize("decoder", WITH_ATTENTION)
def test_an_effect_is_what_a_shorter_memory_changes(decoder):
    decoder, memory, tokens, targets = one_answer(decoder)
    result = effects(decoder, memory, tokens, targets)
    assert result.shape == (5, 7)
    for t in (0, 4):
        whole = log_probability(decoder, memory, tokens, targets, t)
        for place in (0, 3, 6):
            rest = [s for s in range(7) if s != place]
            shorter = replace(memory, states=memory.states[:, rest], mask=memory.mask[:, rest])
            without = log_probability(decoder, shorter, tokens, targets, t)
            assert float(result[t, place]) == pytest.approx(whole - without, abs=1e-9)
    assert float(result.abs().max()) > 1e-4


def test_masked_places_have_no_effect():
    decoder, memory, tokens, targets = one_answer("recurrent-lstm-general")
    mask = torch.tensor([[True, True, False, True, False, False, False]])
    result = effects(decoder, replace(memory, mask=mask), tokens, targets)
    assert (result[:, ~mask[0]] == 0).all()
    assert (result[:, mask[0]] != 0).all()


def test_without_attention_no_place_has_an_effect():
    decoder, memory, tokens, targets = one_answer("recurrent-lstm-none")
    assert float(effects(decoder, memory, tokens, targets).abs().max()) < 1e-12


def test_a_memory_of_one_place_cannot_be_hidden():
    decoder, memory, tokens, targets = one_answer("recurrent-lstm-general")
    alone = replace(memory, states=memory.states[:, :1], mask=memory.mask[:, :1])
    assert (effects(decoder, alone, tokens, targets) == 0).all()


def test_effects_are_of_one_answer():
    decoder, memory, tokens, targets = one_answer("recurrent-lstm-general")
    with pytest.raises(InputError, match="one answer"):
        effects(decoder, memory.rows(torch.tensor([0, 0])), tokens, targets)


def test_a_measurement_can_be_ended_before_each_pass(monkeypatch):
    decoder, memory, tokens, targets = one_answer("recurrent-lstm-general")
    monkeypatch.setattr(effect, "TOKENS", 10)  # two places of five tokens a pass
    calls = []

    def before_pass() -> None:
        calls.append(len(calls))
        if len(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        effects(decoder, memory, tokens, targets, before_pass)
    assert calls == [0, 1, 2]
