"""The language CNN beside plain loops, in float64, and what padding must not change."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from regard import build, recipe
from regard.encoders import ConvolutionEncoder
from regard.errors import InputError, RecipeError
from regard.layers.convolution import (
    ConvolutionActivation,
    HalvingConvolution,
    halved,
    halving_convolution,
)
from regard.layers.positions import Sinusoidal
from regard.values import Source

B, INPUTS, WIDTH = 3, 5, 7


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(2)


def encoder(
    *, layers: int = 3, kernel_size: int = 3, activation: ConvolutionActivation = "tanh"
) -> ConvolutionEncoder:
    made = ConvolutionEncoder(
        inputs=INPUTS,
        width=WIDTH,
        layers=layers,
        kernel_size=kernel_size,
        activation=activation,
        dropout=0.3,
    ).double()
    for layer in made.layers:
        assert isinstance(layer, HalvingConvolution)
        torch.nn.init.normal_(
            layer.bias
        )  # begun at zero, it would hide that padding becomes act(-B)
    return made.eval()


def by_loops(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """SPEC's formula with its sums written out."""
    rows, length, inputs = x.shape
    kernel_size, _, outputs = weight.shape
    out = torch.zeros(rows, (length + 1) // 2, outputs, dtype=x.dtype)
    for b in range(rows):
        for t in range(out.shape[1]):
            for i in range(outputs):
                total = -bias[i]
                for dt in range(kernel_size):
                    if 2 * t + dt < length:
                        for j in range(inputs):
                            total = total + weight[dt, j, i] * x[b, 2 * t + dt, j]
                out[b, t, i] = total
    return out


@pytest.mark.parametrize("length", [1, 2, 5, 6])
@pytest.mark.parametrize("kernel_size", [2, 3, 5])
def test_it_is_the_formula(length: int, kernel_size: int):
    x, weight, bias = rand(2, length, 3), rand(kernel_size, 3, 5), rand(5)
    close(halving_convolution(x, weight, bias), by_loops(x, weight, bias))


def test_a_stack_is_the_formula_over_and_over():
    made, x = encoder(layers=3), rand(2, 11, INPUTS)
    expected = x
    for layer in made.layers:
        assert isinstance(layer, HalvingConvolution)
        expected = torch.tanh(by_loops(expected, layer.weight, layer.bias))
    memory = made(Source(x, torch.ones(2, 11, dtype=torch.bool)))
    close(memory.states, expected)
    close(memory.summary, expected.mean(1))


@pytest.mark.parametrize("layers", [1, 2, 3, 6])
def test_every_layer_halves_the_length_and_the_mask(layers: int):
    made = encoder(layers=layers)
    for length in range(1, 21):  # 2^6 is more than any of them
        mask = torch.arange(length) < torch.tensor([1, length, (length + 1) // 2])[:, None]
        memory = made(Source(rand(B, length, INPUTS), mask))
        expected = torch.tensor([1, length, (length + 1) // 2])
        size = length
        for _ in range(layers):
            expected, size = (expected + 1) // 2, (size + 1) // 2
        assert memory.states.shape == (B, size, WIDTH)
        assert memory.mask.shape == (B, size)
        assert memory.mask.sum(1).tolist() == expected.tolist()
        assert torch.equal(memory.mask, torch.arange(size) < expected[:, None])


@pytest.mark.parametrize("kernel_size", [2, 3, 5])
def test_padding_changes_nothing_for_any_length_and_any_amount(kernel_size: int):
    made = encoder(kernel_size=kernel_size)
    for length in range(1, 21):
        x = rand(1, length, INPUTS)
        alone = made(Source(x, torch.ones(1, length, dtype=torch.bool)))
        for padding in (1, 2, 7, 8):
            wide = torch.cat([x, torch.full((1, padding, INPUTS), torch.nan, dtype=x.dtype)], dim=1)
            memory = made(Source(wide, torch.arange(length + padding)[None] < length))
            real = memory.mask[0]
            close(memory.states[:, real], alone.states)
            close(memory.summary, alone.summary)
            assert (memory.states[:, ~real] == 0).all()


def test_a_place_is_real_if_either_of_its_two_is():
    mask = torch.tensor([[0, 0, 0, 1, 1, 0, 1]]).bool()
    assert halved(mask).int().tolist() == [[0, 1, 1, 1]]


def test_every_real_place_is_read_wherever_it_stands():
    made = encoder(layers=2, kernel_size=2)
    x, mask = rand(1, 11, INPUTS), torch.tensor([[0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 1]]).bool()
    x.requires_grad_()
    memory = made(Source(x, mask))
    (gradient,) = torch.autograd.grad(memory.summary.square().sum(), x)
    assert (gradient.abs().sum(-1) > 0).tolist() == mask.tolist()


def test_a_row_without_a_real_place_is_all_zero():
    memory = encoder()(Source(rand(2, 5, INPUTS), torch.tensor([[True] * 5, [False] * 5])))
    assert (memory.states[1] == 0).all() and (memory.summary[1] == 0).all()
    assert (memory.states[0] != 0).any()


def test_gradients_are_those_of_differences():
    x, weight, bias = (
        tensor.requires_grad_() for tensor in (rand(2, 5, 3), rand(3, 3, 2), rand(2))
    )
    assert torch.autograd.gradcheck(halving_convolution, (x, weight, bias))


def test_a_reach_that_skips_places_is_refused():
    with pytest.raises(InputError) as refused:
        HalvingConvolution(inputs=3, width=5, kernel_size=1, activation="relu")
    assert (
        str(refused.value)
        == "kernel_size: a kernel_size below 2 skips every second position; got 1; 2 or more"
    )


def test_a_recipe_builds_it():
    chosen: Any = recipe.load(
        "chat-attention",
        [
            "encoder.kind=convolution",
            "encoder.width=7",
            "encoder.layers=3",
            "encoder.kernel_size=5",
            "encoder.activation=tanh",
        ],
    )
    made = build.encoder(chosen, inputs=INPUTS)
    assert isinstance(made, ConvolutionEncoder)
    shapes = [tuple(weight.shape) for name, weight in made.named_parameters() if "weight" in name]
    assert shapes == [
        (5, INPUTS, 7),
        (5, 7, 7),
        (5, 7, 7),
    ]
    assert (made.width, made.summary_width, made.dropout.p) == (7, 7, chosen.encoder.dropout)
    assert made.layers[0].activation is torch.tanh


def test_with_positions_two_equal_stretches_are_told_apart():
    given = Source(rand(1, 4, 6).repeat(1, 2, 1), torch.ones(1, 8, dtype=torch.bool))
    alike, apart = (
        ConvolutionEncoder(inputs=6, width=WIDTH, layers=1, kernel_size=2, positions=positions)
        .double()
        .eval()(given)
        .states
        for positions in (None, Sinusoidal(width=6))
    )
    close(alike[:, :2], alike[:, 2:])
    assert (apart[:, :2] - apart[:, 2:]).abs().max() > 0.01


def test_a_recipe_that_skips_places_is_refused():
    with pytest.raises(RecipeError) as refused:
        recipe.load("chat-attention", ["encoder.kind=convolution", "encoder.kernel_size=1"])
    assert (
        str(refused.value)
        == "--set: encoder.kernel_size: must be a whole number >= 2 and <= 1,024; got 1"
    )
