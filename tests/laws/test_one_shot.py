"""A label is an answer of length one: what that means to search and to the loss."""

from __future__ import annotations

import math

import pytest
import torch

from regard.search import Options, search, stream
from regard.tokenizers import END, NUM_SPECIAL_TOKENS
from tests.laws.test_grammar import MARKS as SPOKEN
from tests.laws.variants import DECODERS, LABELS, VOCABULARY, build, sentences

pytestmark = pytest.mark.parametrize(
    "decoder", [name for name in DECODERS if name.startswith(LABELS)]
)
ENCODER = "transformer-pre-sinusoidal"


@torch.no_grad()
def test_one_label_then_the_end(decoder: str):
    model = build(ENCODER, decoder)
    memory = model.encode(*sentences())
    logits = model.decoder(torch.zeros(5, 3, dtype=torch.long), memory)
    assert logits.shape == (5, 3, VOCABULARY)
    labels, after = logits[:, 0].softmax(-1), logits[:, 1:].softmax(-1)
    assert (labels[:, :NUM_SPECIAL_TOKENS] == 0).all() and (
        labels[:, NUM_SPECIAL_TOKENS:] > 0
    ).all()
    assert (after[..., END] == 1).all()


@pytest.mark.parametrize(
    "options",
    [Options(), Options(num_beams=5, candidates=5), Options(do_sample=True, seed=1, candidates=3)],
)
def test_every_search_answers_with_one_label(decoder: str, options: Options):
    model = build(ENCODER, decoder)
    with torch.inference_mode():
        memory = model.encode(*sentences())
        chances = model.decoder(torch.zeros(5, 1, dtype=torch.long), memory)[:, 0].log_softmax(-1)
        found = search(model.decoder, memory, SPOKEN, options)
    for row, answers in enumerate(found):
        for answer in answers:
            (label,) = answer.tokens
            assert label >= NUM_SPECIAL_TOKENS and answer.score == pytest.approx(
                float(chances[row, label]), abs=1e-5
            )
            if answer.weights is not None:
                assert answer.weights.shape[0] == len(answer.logprobs)
    if not options.do_sample:
        assert [row[0].tokens[0] for row in found] == chances.argmax(-1).tolist()
    if options.num_beams > 1:  # n-best: the likeliest labels, best first, each once
        best = chances.topk(options.candidates).indices.tolist()
        assert [[answer.tokens[0] for answer in row] for row in found] == best


def test_it_streams(decoder: str):
    model = build(ENCODER, decoder)
    with torch.inference_mode():
        memory = model.encode(*sentences(rows=1))
        assert len(list(stream(model.decoder, memory, SPOKEN, Options()))) == 1


def test_the_loss_is_that_of_the_label(decoder: str):
    model = build(ENCODER, decoder)
    source, mask = sentences()
    target = torch.tensor([[4, END], [7, END], [VOCABULARY - 1, END], [5, END], [9, END]])
    logits = model(source, mask, torch.ones_like(target))
    wanted = -logits[:, 0].log_softmax(-1)[torch.arange(5), target[:, 0]].sum()
    loss, nats = model.loss(
        source, mask, torch.ones_like(target), target, torch.ones_like(target, dtype=torch.bool)
    )
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(nats, wanted)
    smooth, _ = model.loss(
        source,
        mask,
        torch.ones_like(target),
        target,
        torch.ones_like(target, dtype=torch.bool),
        smoothing=0.2,
    )
    flat = (
        -logits[:, 0, NUM_SPECIAL_TOKENS:].log_softmax(-1).mean(-1).sum()
    )  # only over labels: marks cannot be answered
    torch.testing.assert_close(smooth, 0.8 * wanted + 0.2 * flat)
    assert math.isfinite(float(smooth.detach()))
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.decoder.parameters())
