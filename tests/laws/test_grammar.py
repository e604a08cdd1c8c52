"""The laws of the grammar, each over every encoder x decoder x attention, in float64."""

from __future__ import annotations

import pytest
import torch

from regard.errors import InputError
from regard.search import Options, SpecialTokens, search
from regard.values import State
from regard.weights import load_tensors, read_tensors, tensors, write_tensors
from tests.laws.variants import DECODER_PAIRS, LABELS, PAIRS, VOCABULARY, build, sentences

every_pair = pytest.mark.parametrize(("encoder", "decoder"), PAIRS)
every_decoder = pytest.mark.parametrize(("encoder", "decoder"), DECODER_PAIRS)
MARKS = SpecialTokens(start=1, end=2, never=(0, 1, 3))


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


def read_in(decoder, tokens: torch.Tensor, state: State):
    """The logits (B, T, V) of stepping through `tokens`, every Step's weights, and the last
    State."""
    logits, weights = [], []
    for token in tokens.unbind(1):
        step = decoder.step(token, state)
        state = step.state
        logits.append(step.logits)
        weights.append(step.weights)
    return torch.stack(logits, dim=1), weights, state


def same_state(a: State, b: State) -> None:
    assert torch.equal(a.position, b.position)
    for x, y in zip(a.recurrent, b.recurrent, strict=True):
        close(x, y)
    if a.kv_cache is not None and b.kv_cache is not None:
        close(
            a.kv_cache.tensor[..., : a.max_position, :], b.kv_cache.tensor[..., : b.max_position, :]
        )


@every_pair
@torch.no_grad()
def test_forward_equals_steps(encoder: str, decoder: str):
    model = build(encoder, decoder)
    source, mask = sentences()
    target, _ = sentences(length=11, seed=5)
    memory = model.encode(source, mask)
    stepped, _, state = read_in(model.decoder, target, model.decoder.start(memory))
    close(model.decoder(target, memory), stepped)
    assert state.position.tolist() == [11] * 5


@every_pair
@torch.no_grad()
def test_padding_changes_nothing(encoder: str, decoder: str):
    model = build(encoder, decoder)
    source, mask = sentences()
    target, _ = sentences(length=11, seed=5)
    wide, wide_mask = (
        torch.nn.functional.pad(source, (0, 4), value=9),
        torch.nn.functional.pad(mask, (0, 4)),
    )
    long = torch.nn.functional.pad(target, (0, 3), value=9)
    close(model(source, mask, target), model(wide, wide_mask, long)[:, :11])


@every_pair
@torch.no_grad()
def test_a_row_of_padding_alone_spoils_no_other_row(encoder: str, decoder: str):
    """Corpora have no such row. Its own logits may be NaN: attention has nothing to weigh."""
    model = build(encoder, decoder)
    source, mask = sentences()
    target, _ = sentences(length=11, seed=5)
    expected = model(source, mask, target)
    mask = mask.clone()
    mask[2] = False
    logits = model(source, mask, target)
    others = [0, 1, 3, 4]
    close(logits[others], expected[others])


@every_pair
@torch.no_grad()
def test_sentences_of_one_place(encoder: str, decoder: str):
    model = build(encoder, decoder)
    source, _ = sentences(length=1)
    target, _ = sentences(length=1, seed=5)
    logits = model(source, torch.ones_like(source, dtype=torch.bool), target)
    assert len(logits) == 5 and not logits.isnan().any()


@every_pair
@torch.no_grad()
def test_masked_places_weigh_nothing(encoder: str, decoder: str):
    model = build(encoder, decoder)
    source, mask = sentences()
    target, _ = sentences(length=3, seed=5)
    memory = model.encode(source, mask)
    _, weights, _ = read_in(model.decoder, target, model.decoder.start(memory))
    for w in weights:
        blind = (
            decoder.split("-")[-1] == "none"
            and decoder.startswith("recurrent")
            or "-none-feeding" in decoder
        )
        blind = blind or decoder.startswith(f"{LABELS}-summary")
        if blind or "maclaurin" in decoder:  # sums of the memory do not tell where a query looked
            assert w is None
            continue
        assert (w.masked_select(~memory.mask[:, None].expand_as(w)) == 0).all()
        close(w.sum(-1), torch.ones_like(w[..., 0]))


@every_pair
@torch.no_grad()
def test_permuting_the_batch_permutes_the_answers(encoder: str, decoder: str):
    model = build(encoder, decoder)
    source, mask = sentences()
    target, _ = sentences(length=7, seed=5)
    order = torch.tensor([3, 0, 4, 1, 2])
    close(model(source[order], mask[order], target[order]), model(source, mask, target)[order])


@every_pair
def test_a_row_is_answered_as_if_alone(encoder: str, decoder: str):
    model = build(encoder, decoder)
    with torch.inference_mode():
        memory = model.encode(*sentences())
        for options in (Options(max_new_tokens=7), Options(max_new_tokens=5, num_beams=2)):
            together = [row[0].tokens for row in search(model.decoder, memory, MARKS, options)]
            for row in (1, 4):
                own = memory.rows(torch.tensor([row]))
                alone = search(model.decoder, own, MARKS, options)
                assert alone[0][0].tokens == together[row]


@every_decoder
@torch.no_grad()
def test_rows_commute_with_stepping(encoder: str, decoder: str):
    model = build(encoder, decoder)
    memory = model.encode(*sentences())
    target, _ = sentences(length=7, seed=5)
    index = torch.tensor([4, 1, 1, 0])
    _, _, state = read_in(model.decoder, target[:, :3], model.decoder.start(memory))
    picked, _, after_picked = read_in(model.decoder, target[index, 3:], state.rows(index))
    whole, _, after_whole = read_in(model.decoder, target[:, 3:], state)
    close(picked, whole[index])
    same_state(after_picked, after_whole.rows(index))


@every_decoder
@torch.no_grad()
def test_joined_rows_step_as_they_would_apart(encoder: str, decoder: str):
    """Rows at different steps, over memories of different length."""
    model = build(encoder, decoder)
    target, _ = sentences(length=47, seed=5)
    short, long = (
        model.encode(*sentences(rows=5, length=5)),
        model.encode(*sentences(rows=3, length=13, seed=8)),
    )
    _, _, a = read_in(model.decoder, target[:, :2], model.decoder.start(short))
    _, _, b = read_in(model.decoder, target[:3, :5], model.decoder.start(long))
    further = torch.cat([target[:, 2:43], target[:3, 3:44]])  # far enough for the cache to grow
    joined, _, after = read_in(model.decoder, further, a.join(b))
    apart_a, _, _ = read_in(model.decoder, further[:5], a)
    apart_b, _, _ = read_in(model.decoder, further[5:], b)
    close(joined, torch.cat([apart_a, apart_b]))
    assert after.position.tolist() == [43] * 5 + [46] * 3


@every_decoder
@torch.no_grad()
def test_a_trimmed_state_steps_as_before(encoder: str, decoder: str):
    """Rows at different positions over memories of different lengths are joined; those that went
    furthest and have the longest memory leave; the others step on as each would alone."""
    model = build(encoder, decoder)
    target, _ = sentences(length=47, seed=5)
    short = model.encode(*sentences(rows=5, length=5))
    long = model.encode(*sentences(rows=3, length=13, seed=8))
    _, _, a = read_in(model.decoder, target[:, :2], model.decoder.start(short))
    _, _, b = read_in(model.decoder, target[:3, :37], model.decoder.start(long))
    places = short.mask.shape[1]

    _, _, joined = read_in(model.decoder, target[:, [2, 3, 4]].repeat(2, 1)[:8], a.join(b))
    index = torch.tensor([3, 0, 4])
    trimmed = joined.rows(index).trim(max_position=7, places=places)
    assert trimmed.max_position == 7 and not trimmed.aligned
    exact = joined.rows(index).trim(max_position=5, places=places)
    assert exact.max_position == 5 and exact.aligned
    assert exact.mask.shape == (3, places)
    assert all(tensor.shape[-2] == places for tensor in exact.memory)
    if exact.kv_cache is not None and joined.kv_cache is not None:
        assert joined.kv_cache.tensor.shape[-2] == 64
        assert exact.kv_cache.tensor.shape[-2] == 32

    _, _, alone = read_in(model.decoder, target[:, 2:5], a)
    further = target[index, 5:43]
    expected, _, _ = read_in(model.decoder, further, alone.rows(index))
    for state in (trimmed, exact):
        logits, _, after = read_in(model.decoder, further, state)
        close(logits, expected)
        assert after.position.tolist() == [43] * 3


@every_decoder
@torch.no_grad()
def test_what_a_row_needs_is_not_trimmed(encoder: str, decoder: str):
    model = build(encoder, decoder)
    target, _ = sentences(length=3, seed=5)
    memory = model.encode(*sentences())
    _, _, state = read_in(model.decoder, target, model.decoder.start(memory))
    places = memory.mask.shape[1]
    with pytest.raises(InputError, match=r"^max_position: a row is further than that; got 2"):
        state.trim(max_position=2, places=places)
    for wrong in (places - 1, places + 1):
        with pytest.raises(InputError, match=rf"^places: .*; got {wrong}"):
            state.trim(max_position=3, places=wrong)


@every_decoder
@torch.no_grad()
def test_a_state_is_a_value(encoder: str, decoder: str):
    """Stepping twice from one State, with other tokens in between, gives the same both times."""
    model = build(encoder, decoder)
    target, _ = sentences(length=7, seed=5)
    _, _, state = read_in(
        model.decoder, target[:, :3], model.decoder.start(model.encode(*sentences()))
    )
    first = model.decoder.step(target[:, 3], state)
    other = model.decoder.step((target[:, 3] + 1) % VOCABULARY, state)
    once_more = model.decoder.step(target[:, 3], state)
    close(first.logits, once_more.logits)
    close(
        model.decoder.step(target[:, 4], first.state).logits,
        model.decoder.step(target[:, 4], once_more.state).logits,
    )
    assert torch.allclose(first.logits, other.logits) == decoder.startswith(
        LABELS
    )  # a label follows no other token


@every_pair
@torch.no_grad()
def test_save_then_load_is_as_before(encoder: str, decoder: str, tmp_path):
    model, other = build(encoder, decoder), build(encoder, decoder)
    for tensor in tensors(other).values():
        tensor.normal_()
    source, mask = sentences()
    target, _ = sentences(length=7, seed=5)
    before = model(source, mask, target)
    assert not torch.allclose(other(source, mask, target), before)
    write_tensors(tmp_path / "weights", tensors(model))
    load_tensors(other, read_tensors(tmp_path / "weights"), tmp_path)
    assert torch.equal(other(source, mask, target), before)
