"""The worked example of docs/add-an-attention.md, a third kernel: the page shows the file that runs
here, and the laws of attention hold for it."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch

import regard
from regard.budget.trace import Trace
from regard.decoders import TransformerDecoder
from regard.encoders import TransformerEncoder
from regard.errors import InputError
from regard.frontends import Tokens
from regard.layers.attention_layer import StepPosition
from regard.layers.positions import Alibi, NoPositions
from regard.layers.sizes import TransformerSizes
from regard.model import Model
from regard.search import Options, SpecialTokens, search
from regard.values import Capture
from tests.laws.variants import (
    INPUTS,
    VOCABULARY,
    sentences,
    transformer_decoder,
    transformer_encoder,
)

DOCS = Path(__file__).parents[2] / "docs"
FILE = DOCS / "examples" / "sliding_window.py"
WINDOW = 3
POSITIONS = ["none", "sinusoidal", "learned", "rotary"]


def load_example():
    spec = importlib.util.spec_from_file_location("sliding_window", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sliding_window"] = module
    spec.loader.exec_module(module)
    return module


example = load_example()


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


def make(positions: str) -> Model:
    torch.manual_seed(3)
    kernel = example.SlidingWindow(window=WINDOW)
    model = Model(
        frontend=Tokens(vocabulary=VOCABULARY, width=INPUTS),
        encoder=transformer_encoder("pre", positions, kernel=kernel),
        decoder=transformer_decoder("post", positions, kernel=kernel),
    )
    return model.double().eval()


def stepped(model: Model, tokens: torch.Tensor, state, capture: Capture = "none"):
    """The logits (B, T, V) of stepping through `tokens`, all Steps, and the last State."""
    steps = []
    for token in tokens.unbind(1):
        steps.append(model.decoder.step(token, state, capture=capture))
        state = steps[-1].state
    return torch.stack([step.logits for step in steps], dim=1), steps, state


def test_the_page_shows_this_file_and_its_use_runs():
    page = (DOCS / "add-an-attention.md").read_text(encoding="utf-8")
    file, use, *_ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert file == FILE.read_text(encoding="utf-8")
    names: dict = {}
    exec(use, names)
    tokens = torch.ones(1, 5, dtype=torch.long)
    assert names["model"](tokens, tokens > 0, tokens).shape == (1, 5, 8000)


@torch.no_grad()
@pytest.mark.parametrize("positions", POSITIONS)
def test_step_equals_forward(positions: str):
    model = make(positions)
    memory = model.encode(*sentences())
    target, _ = sentences(length=11, seed=5)
    logits, _, state = stepped(model, target, model.decoder.start(memory))
    close(model.decoder(target, memory), logits)
    assert state.kv_cache is None
    assert [tensor.shape[3] for tensor in state.recurrent] == [WINDOW, WINDOW]


@torch.no_grad()
@pytest.mark.parametrize("positions", POSITIONS)
def test_padding_changes_nothing(positions: str):
    model = make(positions)
    source, mask = sentences()
    target, _ = sentences(length=11, seed=5)
    wide = torch.nn.functional.pad(source, (0, 4), value=9)
    wide_mask = torch.nn.functional.pad(mask, (0, 4))
    close(model(source, mask, target), model(wide, wide_mask, target))


@torch.no_grad()
def test_a_window_is_full_attention_to_what_is_in_it():
    """With a window as long as the text, the layer is softmax attention; with a shorter one, a
    position depends on no other."""
    sizes = TransformerSizes(layers=1, width=14, heads=2, ffn_width=1)
    wide = example.WindowSelfAttention(sizes, window=7).double()
    narrow = example.WindowSelfAttention(sizes, window=2).double()
    narrow.load_state_dict(wide.state_dict())
    softmax = transformer_decoder("pre", "none").blocks[0].self_attention.double()
    x = torch.randn(5, 7, 14, dtype=torch.float64)
    for causal in (True, False):
        other = type(softmax)(sizes).double()
        other.load_state_dict(wide.state_dict())
        close(wide(x, causal=causal)[0], other(x, causal=causal)[0])
    changed = x.clone()
    changed[:, 3] += 1
    same = (narrow(x)[0] == narrow(changed)[0]).all(-1).all(0)
    assert same.tolist() == [True, True, False, False, False, True, True]


@torch.no_grad()
def test_captured_weights():
    """They sum to 1, are 0 at masked places and outside of the window, and are those of the
    steps."""
    model = make("rotary")
    source, mask = sentences()
    memory = model.encode(source, mask, capture="all")
    target, _ = sentences(length=11, seed=5)
    for layer in memory.attention:
        close(layer.weights.sum(-1), torch.ones_like(layer.weights[..., 0]))
        assert (
            layer.weights.masked_select(~mask[:, None, None].expand_as(layer.weights)) == 0
        ).all()

    _, attention = model.decoder.forward_with_attention(target, memory)
    state = model.decoder.start(memory, capture="all")
    _, steps, _ = stepped(model, target, state, capture="all")
    places = torch.arange(11)
    distance = places[:, None] - places
    outside = (distance < 0) | (distance >= WINDOW)
    assert [(layer.kind, layer.layer) for layer in attention] == [
        (kind, n) for n in range(3) for kind in ("self", "cross")
    ]
    for number, layer in enumerate(attention):
        close(layer.weights.sum(-1), torch.ones_like(layer.weights[..., 0]))
        if layer.kind == "self":
            assert not layer.weights[..., outside].any()
        for t, step in enumerate(steps):
            weights = step.attention[number].weights[:, :, 0]
            close(weights, layer.weights[:, :, t, : weights.shape[-1]])


@torch.no_grad()
def test_rows_join_and_trim():
    model = make("sinusoidal")
    target, _ = sentences(length=17, seed=5)
    short = model.encode(*sentences(rows=5, length=5))
    long = model.encode(*sentences(rows=3, length=13, seed=8))
    _, _, a = stepped(model, target[:, :2], model.decoder.start(short))
    _, _, b = stepped(model, target[:3, :5], model.decoder.start(long))
    further = torch.cat([target[:, 2:11], target[:3, 3:12]])
    joined, _, after = stepped(model, further, a.join(b))
    close(joined[:5], stepped(model, further[:5], a)[0])
    close(joined[5:], stepped(model, further[5:], b)[0])

    index = torch.tensor([4, 0])
    trimmed = after.rows(index).trim(max_position=11, places=5)
    _, _, alone = stepped(model, further[:5], a)
    last = target[index, 11:]
    close(stepped(model, last, trimmed)[0], stepped(model, last, alone.rows(index))[0])


def test_search_answers_each_row_as_if_alone():
    model = make("sinusoidal")
    marks = SpecialTokens(start=1, end=2, never=(0, 1, 3))
    with torch.inference_mode():
        memory = model.encode(*sentences())
        options = Options(max_new_tokens=9, num_beams=3)
        together = [row[0].tokens for row in search(model.decoder, memory, marks, options)]
        for row, tokens in enumerate(together):
            alone = search(model.decoder, memory.rows(torch.tensor([row])), marks, options)
            assert alone[0][0].tokens == tokens


def test_it_learns():
    """Eight sentences are copied without error."""
    torch.manual_seed(3)
    sizes = TransformerSizes(
        layers=2, width=32, heads=2, ffn_width=64, kernel=example.SlidingWindow(window=WINDOW)
    )
    model = Model(
        frontend=Tokens(vocabulary=VOCABULARY, width=32),
        encoder=TransformerEncoder(sizes, inputs=32, positions=NoPositions()),
        decoder=TransformerDecoder(
            sizes, vocabulary=VOCABULARY, memory_width=32, positions=NoPositions()
        ),
    )
    source, mask = sentences(rows=8, length=5)
    tokens = torch.nn.functional.pad(source[:, :-1], (1, 0), value=1)
    adam = torch.optim.Adam(model.parameters(), lr=3e-3)
    per_token = torch.tensor(torch.inf)
    for _ in range(200):
        loss, nats = model.loss(source, mask, tokens, source, mask)
        per_token = nats.detach() / mask.sum()
        (loss / mask.sum()).backward()
        adam.step()
        adam.zero_grad()
    assert float(per_token) < 0.05


def test_the_budget_is_what_the_layer_does():
    sizes = TransformerSizes(layers=1, width=14, heads=2, head_width=5, ffn_width=1)
    layer = example.WindowSelfAttention(sizes, window=WINDOW)
    x = torch.randn(5, 11, 14)
    counted = regard.budget(layer, x)
    assert counted.parameters == example.parameters(sizes)
    assert counted.multiplications["forward"] == example.multiplications(sizes, rows=5, length=11)

    expected = example.step_multiplications(sizes, window=WINDOW)
    state = layer.start(1, x)
    with torch.no_grad():
        for t in range(7):
            at = StepPosition(torch.tensor([t]), t, True, NoPositions())
            with Trace() as trace:
                _, state, _ = layer.step(x[:1, t], state, at)
            assert trace.products == expected


def test_positions_that_it_cannot_use_are_refused():
    sizes = TransformerSizes(
        layers=1, width=14, heads=2, ffn_width=1, kernel=example.SlidingWindow(window=WINDOW)
    )
    with pytest.raises(InputError, match="^positions: "):
        TransformerEncoder(sizes, inputs=14, positions=Alibi(heads=2))
