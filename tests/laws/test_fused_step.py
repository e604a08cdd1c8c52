"""Fast steps equal those of the modules: for every kind of decoder, for rows at one place and at
different ones."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from regard.decoders import TransformerDecoder
from regard.layers import native
from regard.layers.fused_step import FusedStep
from regard.layers.positions import NoPositions, Rotary
from regard.layers.sizes import TransformerSizes
from regard.layers.torch_step import TorchStep
from regard.values import Memory, State
from tests.laws.variants import ADDED, DECODERS, VOCABULARY, WIDTH, transformer_decoder

PLACES = 6


@pytest.fixture(autouse=True)
def kernel(monkeypatch):
    monkeypatch.delenv("REGARD_NATIVE", raising=False)
    if native.library() is None:
        pytest.skip("no C compiler here")


def make(
    norm: str, positions: str, activation: str, *, tied: bool = True, **more
) -> TransformerDecoder:
    torch.manual_seed(3)
    decoder = transformer_decoder(norm, positions, activation=activation, tied=tied, **more).eval()
    for name, weight in decoder.named_parameters():
        if (
            "bias" in name or "norm" in name or "final_norm" in name
        ):  # none of which is 0 or 1 once trained
            torch.nn.init.normal_(weight, 0.5)
    return decoder


def remembered(rows: int, width: int = WIDTH) -> Memory:
    draws = torch.Generator().manual_seed(7)
    mask = torch.rand(rows, PLACES, generator=draws) < 0.7
    mask[:, 0] = True
    mask = mask.repeat_interleave(2, dim=1)[:, ::2]  # as a frontend may leave it: not in one piece
    states = torch.randn(rows, PLACES, width, generator=draws)
    return Memory(states, mask, states.mean(1))


def walked(
    decoder: TransformerDecoder, state: State, on: str, monkeypatch, length: int = 34
) -> list[torch.Tensor]:
    """Logits and weights of a walk, past the size at which the cache grows."""
    monkeypatch.setenv("REGARD_NATIVE", on)
    tokens = torch.randint(
        VOCABULARY, (length, state.size), generator=torch.Generator().manual_seed(5)
    )
    found = []
    with torch.inference_mode():
        for token in tokens:
            step = decoder.step(token, state)
            found += [step.logits, step.weights]
            state = step.state
    return found


def agree(decoder: TransformerDecoder, state: State, monkeypatch, length: int = 34) -> None:
    ours, theirs = (walked(decoder, state, on, monkeypatch, length) for on in ("1", "0"))
    for mine, its in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("positions", [*ADDED, "rotary"])
@pytest.mark.parametrize(("norm", "activation"), [("pre", "relu"), ("post", "gelu")])
@pytest.mark.parametrize("rows", [1, 3, 8, 9, 16, 37])
def test_as_torch_does(norm: str, positions: str, activation: str, rows: int, monkeypatch):
    decoder = make(norm, positions, activation)
    agree(decoder, decoder.start(remembered(rows)), monkeypatch)


def test_widths_that_fill_vectors(monkeypatch):
    sizes = TransformerSizes(layers=2, width=48, heads=3, ffn_width=64)
    torch.manual_seed(3)
    decoder = TransformerDecoder(
        sizes, vocabulary=32, memory_width=WIDTH, positions=NoPositions(), tied=False
    ).eval()
    agree(decoder, decoder.start(remembered(2)), monkeypatch)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize(("rows", "threads"), [(9, 1), (9, 2), (33, 2), (33, 3), (70, 3)])
def test_a_row_of_many_does_not_depend_on_the_others(
    rows: int, threads: int, activation: Any, monkeypatch
):
    """To the last bit, whatever the number of rows, if they are more than eight, and of threads."""
    monkeypatch.setenv("REGARD_NATIVE", "1")
    sizes = TransformerSizes(layers=2, width=32, heads=4, ffn_width=48, activation=activation)
    torch.manual_seed(3)
    vocabulary = 8009  # large enough that three threads pay
    decoder = TransformerDecoder(
        sizes, vocabulary=vocabulary, memory_width=WIDTH, positions=Rotary(head_width=8), tied=False
    ).eval()
    tokens = torch.randint(vocabulary, (3, 70), generator=torch.Generator().manual_seed(5))
    threads_before = torch.get_num_threads()
    try:
        with torch.inference_mode():
            ahead = decoder.step(tokens[0, :20], decoder.start(remembered(20))).state
            all_rows = ahead.join(decoder.start(remembered(50)))
            some_rows = all_rows.rows(torch.arange(rows))
            for token in tokens:
                torch.set_num_threads(1)
                expected = decoder.step(token, all_rows)
                torch.set_num_threads(threads)
                step = decoder.step(token[:rows], some_rows)
                assert torch.equal(step.logits, expected.logits[:rows])
                assert step.weights is not None
                assert expected.weights is not None
                assert torch.equal(step.weights, expected.weights[:rows])
                all_rows, some_rows = expected.state, step.state
    finally:
        torch.set_num_threads(threads_before)


def test_the_error_function_of_gelu(monkeypatch):
    """GELU of the C library is that of torch, also far from 0."""
    sizes = TransformerSizes(layers=1, width=8, heads=1, ffn_width=8, activation="gelu")
    torch.manual_seed(3)
    decoder = TransformerDecoder(
        sizes, vocabulary=32, memory_width=8, positions=NoPositions(), tied=False
    ).eval()
    block: Any = decoder.blocks[0]
    for scale in (0.1, 1.0, 4.0, 30.0):
        torch.nn.init.normal_(block.feed_forward.up.weight, 0, scale)
        agree(decoder, decoder.start(remembered(12, 8)), monkeypatch, 4)


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_rows_at_different_places(positions: str, monkeypatch):
    decoder = make("pre", positions, "relu")
    with torch.inference_mode():
        ahead = decoder.start(remembered(2))
        for token in torch.tensor([[4, 5], [6, 7], [8, 9]]):
            ahead = decoder.step(token, ahead).state
        joined = ahead.join(decoder.start(remembered(3)))
    assert not joined.aligned
    agree(decoder, joined, monkeypatch)


TRANSFORMERS = [name for name in DECODERS if name.startswith("transformer")]


@torch.no_grad()
@pytest.mark.parametrize("name", TRANSFORMERS)
@pytest.mark.parametrize("on", ["0", "1"])
def test_steps_are_those_of_the_modules(name: str, on: str, monkeypatch):
    """The definition and whatever is chosen in its place agree on logits, weights and state, for
    few and for many rows, aligned or not, trimmed or not."""
    monkeypatch.setenv("REGARD_NATIVE", on)
    torch.manual_seed(3)
    decoder = DECODERS[name]().eval()
    assert isinstance(decoder, TransformerDecoder)
    draws = torch.Generator().manual_seed(5)
    for rows in (1, 3, 11):
        state = decoder.start(remembered(rows))
        ahead = decoder.start(remembered(2))
        for token in torch.tensor([[4, 5], [6, 7], [8, 9]]):
            ahead = decoder.step(token, ahead).state
        joined = ahead.join(state)
        left = joined.rows(torch.arange(2, joined.size)).trim(1, PLACES)
        for start in (state, joined, left):
            chosen = defined = start
            for token in torch.randint(VOCABULARY, (4, start.size), generator=draws):
                ours = decoder.step(token, chosen)
                theirs = decoder.step_by_modules(token, defined)
                torch.testing.assert_close(ours.logits, theirs.logits, rtol=1e-4, atol=1e-4)
                if theirs.weights is None:
                    assert ours.weights is None
                else:
                    torch.testing.assert_close(ours.weights, theirs.weights, rtol=1e-4, atol=1e-4)
                chosen, defined = ours.state, theirs.state
                assert torch.equal(chosen.position, defined.position)
                assert chosen.max_position == defined.max_position


def test_which_step_is_chosen(monkeypatch):
    """C where it can be, else functions, modules for gradients, training, captured weights and
    other kernels."""
    monkeypatch.setenv("REGARD_NATIVE", "1")
    plain = make("pre", "none", "relu")
    few, many = plain.start(remembered(1)), plain.start(remembered(100))
    choose = plain.fast_steps.choose
    assert choose(few) is None  # gradients are wanted
    with torch.no_grad():
        assert isinstance(choose(few), FusedStep)
        assert isinstance(choose(many), FusedStep)
        alibi = make("pre", "alibi", "relu")
        assert isinstance(alibi.fast_steps.choose(few), TorchStep)
        others: list[dict[str, Any]] = [dict(kernel="maclaurin"), dict(key_bias=False)]
        for other in others:
            decoder = make("pre", "none", "relu", **other)
            assert decoder.fast_steps.choose(decoder.start(remembered(1))) is None
        monkeypatch.setenv("REGARD_NATIVE", "0")
        assert isinstance(choose(few), TorchStep)

        monkeypatch.setattr(TorchStep, "step", lambda *_: pytest.fail("chosen"))
        token = torch.tensor([4])
        assert plain.step(token, few, capture="cross").attention
        plain.train().step(token, few)
        with pytest.raises(pytest.fail.Exception):
            plain.eval().step(token, few)


def test_a_state_is_a_value(monkeypatch):
    decoder = make("pre", "sinusoidal", "relu")
    state = decoder.start(remembered(2))
    first = walked(decoder, state, "1", monkeypatch, 5)
    walked(decoder, state.rows(torch.tensor([1, 0])), "1", monkeypatch, 5)
    for one, again in zip(first, walked(decoder, state, "1", monkeypatch, 5), strict=True):
        assert torch.equal(one, again)


def test_weights_that_change_are_seen(monkeypatch):
    """In place, by another tensor, in a copy, and after a journey through another precision."""
    decoder = make("pre", "none", "relu")
    state = decoder.start(remembered(1))
    walked(decoder, state, "1", monkeypatch, 2)
    with torch.no_grad():
        first: Any = decoder.blocks[0]
        second: Any = decoder.blocks[1]
        first.self_attention.qkv.weight.mul_(1.5)
        second.feed_forward.up.weight = torch.nn.Parameter(torch.randn(17, WIDTH))
    other = copy.deepcopy(decoder)
    with torch.no_grad():
        copied: Any = other.blocks[0]
        copied.cross_attention.query.weight.zero_()
    decoder.double().float()
    for one in (decoder, other):
        agree(one, one.start(remembered(1)), monkeypatch, 4)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(
            *(walked(one, state, "1", monkeypatch, 1)[0] for one in (decoder, other))
        )


def test_it_is_used_where_it_can_be_and_only_there(monkeypatch):
    row = torch.zeros(1, 4)
    assert not native.supports_step(row)  # gradients are wanted
    with torch.no_grad():
        assert native.supports_step(row)
        assert not native.supports_step(row.double())
        monkeypatch.setenv("REGARD_NATIVE", "0")
        assert not native.supports_step(row)
    monkeypatch.setenv("REGARD_NATIVE", "1")
    called = []
    monkeypatch.setattr(
        native, "decoder_step", lambda *_, **__: called.append(1) or pytest.fail("called")
    )
    alibi, plain = make("pre", "alibi", "relu"), make("pre", "none", "relu")
    walked(alibi, alibi.start(remembered(1)), "1", monkeypatch, 1)
    with pytest.raises(pytest.fail.Exception):
        walked(plain, plain.start(remembered(1)), "1", monkeypatch, 1)
    assert called == [1]
