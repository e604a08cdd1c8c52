"""Laws of devices: a tensor is made where its inputs are, and autocast changes the rounding only.

There is no second device on most machines. Here real weights and inputs on the CPU are used inside
`with torch.device("meta")`: a tensor that is made without naming a device is then a meta tensor,
and mixing it with real ones is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.frontends import Sound
from regard.model import Model
from regard.search import Engine, Options, Outputs, SpecialTokens, search
from regard.values import State
from tests.laws import test_pictures as pictures
from tests.laws import test_sounds as sounds
from tests.laws.variants import (
    DECODERS,
    ENCODERS,
    LABELS,
    build,
    sentences,
)

MARKS = SpecialTokens(start=1, end=2, never=(0, 1, 3))
OPTIONS = [
    Options(max_new_tokens=4, min_new_tokens=2, repetition_penalty=1.3, no_repeat_ngram_size=2),
    Options(max_new_tokens=4, do_sample=True, candidates=3, temperature=0.7, top_k=7, top_p=0.9),
    Options(max_new_tokens=4, num_beams=3, mmi_weight=0.4, idf_weight=0.3, mmi_steps=2),
]


@dataclass
class Case:
    """A model with real weights, and inputs for it."""

    model: Model
    raw: Tensor
    mask: Tensor
    tokens: Tensor
    targets: Tensor
    real: Tensor
    index: Tensor  # of three rows
    nothing: tuple[Tensor, Tensor]
    ctc_weight: float = 0.0

    @classmethod
    def of(cls, model: Model, raw: Tensor, mask: Tensor, *, labels: bool, **more: Any) -> Case:
        tokens, real = sentences(length=6, seed=5)
        targets = tokens.roll(-1, 1).masked_fill(~real, 0)
        if labels:
            targets = targets.clamp(min=4, max=model.decoder.vocabulary - 1)
        nothing = (raw[:1, :1], mask[:1, :1]) if raw.ndim == 2 else (raw[:1], mask[:1])
        index = torch.tensor([3, 0, 3])
        model = model.float().eval()
        model.idf.copy_(torch.rand(model.decoder.vocabulary))
        return cls(model, raw, mask, tokens, targets, real, index, nothing, **more)


def text_case(encoder: str, decoder: str) -> Case:
    return Case.of(build(encoder, decoder), *sentences(), labels=decoder.startswith(LABELS))


def sound_case(levels: str) -> Case:
    """Speech, with every random change of its frontend and CTC."""
    hearing: Sound = sounds.frontend(
        levels=levels,
        channels=(2, 3, 2) if levels == "bands" else (),
        time_masks=2,
        time_mask_width=0.4,
        mel_masks=2,
        mel_mask_width=0.4,
        tempo_perturbation=0.3,
    )
    reads = ENCODERS["transformer-post-rotary"]()
    model = Model(frontend=hearing, encoder=reads, decoder=DECODERS["transformer-pre-sinusoidal"]())
    return Case.of(model, *sounds.sounds(length=601), labels=False, ctc_weight=0.3)


def picture_case(frontend: str, encoder: str) -> Case:
    model = pictures.build(frontend, encoder)
    return Case.of(model, pictures.pictures(), pictures.nothing_hidden(5), labels=True)


# Every decoder twice, every encoder at least as often.
TWICE = [
    (encoder, decoder)
    for decoder, encoder in zip(sorted([*DECODERS, *DECODERS]), cycle(ENCODERS), strict=False)
]

CASES: dict[str, Callable[[], Case]] = {}
CASES |= {f"sound, {levels}": lambda n=levels: sound_case(n) for levels in ("absolute", "bands")}
CASES |= {
    f"{frontend}, {encoder}": lambda f=frontend, e=encoder: picture_case(f, e)
    for frontend in pictures.FRONTENDS
    for encoder in ("all", "transformer")
}


def loss(case: Case) -> tuple[Tensor, Tensor]:
    return case.model.loss(
        case.raw,
        case.mask,
        case.tokens,
        case.targets,
        case.real,
        smoothing=0.1,
        ctc_weight=case.ctc_weight,
    )


def learn(case: Case) -> list[Tensor]:
    """Loss, gradients and a step of the optimiser."""
    case.model.train()
    optimiser = torch.optim.AdamW(case.model.parameters(), fused=True)
    total, nats = loss(case)
    total.backward()
    torch.nn.utils.clip_grad_norm_(case.model.parameters(), 1.0, foreach=True)
    optimiser.step()
    case.model.eval()
    return [total, nats, *case.model.parameters()]


def read_with_capture(case: Case) -> list[Tensor]:
    memory = case.model.encode(case.raw, case.mask, capture="all")
    logits, attention = case.model.decoder.forward_with_attention(case.tokens, memory)
    return [memory.states, memory.mask, memory.summary, logits, *(a.weights for a in attention)]


@torch.no_grad()
def step_by_step(case: Case) -> list[Tensor]:
    """Steps, with and without capture, of states whose rows are picked, joined and trimmed."""
    decoder = case.model.decoder
    memory = case.model.encode(case.raw, case.mask)
    results: list[Tensor] = []
    for capture in ("none", "all"):
        state = decoder.start(memory, capture=capture)
        state = decoder.step(case.tokens[:, 0], state, capture=capture).state
        other = decoder.start(memory.rows(case.index), capture=capture)
        joined = state.join(other)
        step = decoder.step(case.tokens[:, 1].repeat(2)[:8], joined, capture=capture)
        picked = step.state.rows(case.index).trim(step.state.max_position, joined.mask.shape[1])
        step = decoder.step(case.tokens[case.index, 2], picked, capture=capture)
        results += [step.logits, *tensors_of(step.state)]
    return results


def tensors_of(state: State) -> Iterator[Tensor]:
    yield from (state.position, state.mask, *state.memory, *state.memory_sums, *state.recurrent)
    if state.kv_cache is not None:
        yield state.kv_cache.tensor


def answer(case: Case) -> list[Tensor]:
    """Greedy, sampling and beam search, MMI and idf included; in an engine and over a memory."""
    engine = Engine(case.model, MARKS, empty_prompt=lambda: case.nothing, max_joining=2)
    requests = []
    for row, options in enumerate(OPTIONS):
        raw, mask = case.raw[row : row + 1], case.mask[row : row + 1]
        requests.append(engine.submit(raw, mask, options, outputs=Outputs(alternatives=3)))
    requests.append(
        engine.submit(case.raw[4:5], case.mask[4:5], OPTIONS[0], outputs=Outputs(capture="all"))
    )
    requests.append(
        engine.submit(case.raw[3:4], case.mask[3:4], OPTIONS[1], outputs=Outputs(stream=True))
    )
    engine.run()
    answers = [request.result()[0] for request in requests]
    with torch.inference_mode():
        memory = case.model.encode(case.raw, case.mask)
        prior = case.model.encode(*case.nothing)
        rows = search(
            case.model.decoder, memory, MARKS, OPTIONS[2], prior=prior, idf=case.model.idf
        )
        answers += [hypotheses[0] for hypotheses in rows]
    return [best.weights for best in answers if best.weights is not None]


def everything(case: Case) -> list[Tensor]:
    """All that a model does, and the tensors that come of it."""
    parts = (read_with_capture, step_by_step, answer, learn)
    return [tensor for part in parts for tensor in part(case)]


def check_devices(case: Case) -> None:
    with torch.device("meta"):
        tensors = everything(case)
    assert {tensor.device.type for tensor in tensors} == {"cpu"}


def check_autocast(case: Case) -> None:
    """With bfloat16 all works, and what comes of it differs by rounding. Weights and sums of the
    loss stay in single precision."""
    with torch.no_grad():
        exact = case.model(case.raw, case.mask, case.tokens)
        exact_loss, exact_nats = loss(case)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            logits = case.model(case.raw, case.mask, case.tokens)
            rough_loss, rough_nats = loss(case)
        tensors = everything(case)
    assert not any(tensor.isnan().any() for tensor in tensors)
    finite = exact.isfinite()
    spread = exact[finite].std()
    assert (logits.float() - exact)[finite].abs().mean() < 0.05 * spread
    torch.testing.assert_close(rough_loss, exact_loss, rtol=0.02, atol=0)
    torch.testing.assert_close(rough_nats, exact_nats, rtol=0.02, atol=0)
    for parameter in case.model.parameters():
        assert parameter.dtype == torch.float32
        assert parameter.grad is None or parameter.grad.dtype == torch.float32


def test_a_tensor_without_a_device_is_noticed() -> None:
    x = torch.ones(3)
    with torch.device("meta"), pytest.raises(RuntimeError, match="device"):
        torch.add(x, torch.zeros(3))


@pytest.mark.parametrize(("encoder", "decoder"), TWICE[::2])
def test_tensors_are_made_where_their_inputs_are(encoder: str, decoder: str) -> None:
    check_devices(text_case(encoder, decoder))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_so_they_are_for_every_pair(encoder: str) -> None:
    for decoder in DECODERS:
        check_devices(text_case(encoder, decoder))


@pytest.mark.parametrize("name", CASES)
def test_so_they_are_for_pictures_and_sounds(name: str) -> None:
    check_devices(CASES[name]())


@pytest.mark.parametrize(("encoder", "decoder"), TWICE[1::4])
def test_bfloat16(encoder: str, decoder: str) -> None:
    check_autocast(text_case(encoder, decoder))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_bfloat16_for_every_pair(encoder: str) -> None:
    for decoder in DECODERS:
        check_autocast(text_case(encoder, decoder))


@pytest.mark.parametrize("name", CASES)
def test_bfloat16_for_pictures_and_sounds(name: str) -> None:
    check_autocast(CASES[name]())
