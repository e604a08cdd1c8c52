"""The kinds of positions: their formulas, their laws, and what they refuse."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from regard import recipe
from regard.build import model as build_model
from regard.errors import InputError, RecipeError
from regard.layers.positions import (
    Alibi,
    Learned,
    NoPositions,
    Relative,
    Rotary,
    Sinusoidal,
    alibi,
    alibi_slopes,
    grid,
    offsets,
    relative,
    rotary,
    rotary_phases,
    sinusoidal,
    sinusoidal_2d,
)
from tests.laws.variants import DECODERS, ENCODERS, build, sentences

B, H, T, S, K, D = 2, 3, 7, 5, 12, 14


def rand(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def close(a: Tensor, b: Tensor, within: float = 1e-12) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=within)


ONE_AXIS = {
    "none": lambda: NoPositions(),
    "sinusoidal": lambda: Sinusoidal(width=D, table=5),
    "learned": lambda: Learned(width=D, num_positions=31),
    "rotary": lambda: Rotary(head_width=K),
    "alibi": lambda: Alibi(heads=H),
    "relative": lambda: Relative(heads=H, max_distance=3),
}
TWO_AXES = {
    "sinusoidal": lambda: Sinusoidal(width=D, table=4, axes=2),
    "learned": lambda: Learned(width=D, num_positions=(5, 7)),
    "rotary": lambda: Rotary(head_width=K, axes=2),
    "alibi": lambda: Alibi(heads=H, axes=2),
    "relative": lambda: Relative(heads=H, max_distance=(2, 3)),
}


# ---- the interface


@pytest.mark.parametrize("kind", ONE_AXIS)
def test_each_kind_acts_in_one_place(kind: str):
    torch.manual_seed(1)
    positions, places = ONE_AXIS[kind]().double(), torch.arange(1, T + 1)
    x, q = rand(B, T, D), rand(B, H, T, K)
    acts = [
        not torch.equal(positions.add(x, places), x),
        not torch.equal(positions.rotate(q, places), q),
        positions.bias(places, places) is not None,
    ]
    assert acts == [
        kind in ("sinusoidal", "learned"),
        kind == "rotary",
        kind in ("alibi", "relative"),
    ]
    assert positions.uses_rotation == acts[1] == (positions.rotation(places) is not None)


@pytest.mark.parametrize("kind", ONE_AXIS)
def test_one_place_and_rows_of_places_are_as_all_at_once(kind: str):
    """What decoding asks for: an int when all rows stand at the same place, (B, T) when each has
    its own."""
    torch.manual_seed(1)
    positions, keys = ONE_AXIS[kind]().double(), torch.arange(S)
    x, q, rows = (
        rand(B, T, D),
        rand(B, H, T, K),
        torch.stack([torch.arange(T), torch.arange(T) + 4]),
    )
    for row in range(B):
        close(positions.add(x, rows)[row], positions.add(x[row], rows[row]))
        close(positions.rotate(q, rows)[row], positions.rotate(q[row], rows[row]))
    for place in (0, 3, T - 1):
        close(positions.add(x[:, place], place), positions.add(x, torch.arange(T))[:, place])
        close(
            positions.rotate(q[:, :, place : place + 1], place),
            positions.rotate(q, torch.arange(T))[:, :, place : place + 1],
        )
    whole = positions.bias(rows, keys)
    if whole is not None:
        assert whole.shape == (B, H, T, S)
        for row in range(B):
            one = positions.bias(rows[row], keys)
            assert one is not None and one.shape == (H, T, S)
            close(whole[row], one)
            close(positions.bias(int(rows[row, 2]), keys), one[:, 2:3])
            close(positions.bias(rows, keys.expand(B, S))[row], one)


@pytest.mark.parametrize("kind", TWO_AXES)
def test_a_grid_of_one_column_is_a_sequence(kind: str):
    """Places (0, y): the axis that never moves may add a constant, but tells nothing apart."""
    torch.manual_seed(1)
    positions, places = TWO_AXES[kind]().double(), grid(1, T)
    x, q = rand(B, T, D), rand(B, H, T, K)
    bias = positions.bias(places, places)
    match kind:
        case "sinusoidal":
            close(
                positions.add(x, places)[..., D // 2 :],
                x[..., D // 2 :] + sinusoidal(torch.arange(T), D // 2),
            )
        case "learned":
            close(
                positions.add(x, places) - x,
                (positions.table.weight[0] + positions.table.weight[5:]).expand(B, T, D),
            )
        case "rotary":
            still, moved = positions.rotate(q, places).chunk(2, dim=-1)
            close(still, q[..., : K // 2])
            close(moved, rotary(q[..., K // 2 :].contiguous(), torch.arange(T)))
        case "alibi":
            close(bias, alibi(torch.arange(T), torch.arange(T), positions.slopes))
        case "relative":
            close(bias, relative(torch.arange(T), torch.arange(T), positions.table[:, 2]))


def test_grid_is_in_the_order_of_flatten():
    numbers = torch.arange(15).view(3, 5)
    x, y = grid(3, 5).unbind(-1)
    assert torch.equal(numbers[x, y], numbers.flatten())


@torch.no_grad()
@pytest.mark.parametrize(
    "name", [name for name in ENCODERS | DECODERS if name.startswith("transformer")]
)
def test_a_transformer_uses_its_positions(name: str):
    """The laws of the grammar would hold as well if it forgot about them."""
    kind = name.split("-")[-1]
    for encoder, decoder in [(name, "transformer-pre-none"), ("transformer-pre-none", name)]:
        if encoder not in ENCODERS or decoder not in DECODERS:
            continue
        model = build(encoder, decoder)
        part = model.encoder if encoder == name else model.decoder
        source, mask = sentences()
        target, _ = sentences(length=11, seed=5)
        told = model(source, mask, target)
        part.positions = NoPositions()
        assert torch.equal(model(source, mask, target), told) == (kind == "none")


@pytest.mark.parametrize("kind", ONE_AXIS)
def test_a_recipe_names_it(kind: str):
    asked = [
        f"{part}.{field}"
        for part in ("encoder", "decoder")
        for field in (f"positions={kind}", "width=24", "heads=4")
    ]
    model = build_model(recipe.load("chat-transformer", asked), vocabulary=29)
    names = {
        type(part.positions).__name__.lower().removesuffix("positions")
        for part in (model.encoder, model.decoder)
    }
    assert names == {kind if kind != "none" else "no"}
    source, mask = sentences()
    assert model(source, mask, source).isfinite().all()


def test_a_recipe_with_odd_heads_cannot_turn_them():
    with pytest.raises(
        RecipeError,
        match=r"rotary positions turn pairs: head_width must be even; got head_width = 5",
    ):
        recipe.load("chat-transformer", ["encoder.positions=rotary", "encoder.head_width=5"])


# ---- sinusoidal and learned


def test_sinusoidal_2d_gives_each_axis_half():
    places = grid(3, 5)
    table = sinusoidal_2d(places, D)
    close(table[:, : D // 2], sinusoidal(places[:, 0], D // 2))
    close(table[:, D // 2 :], sinusoidal(places[:, 1], D // 2))
    x = rand(15, D)
    close(
        TWO_AXES["sinusoidal"]().double().add(x, places), x + table
    )  # beyond the table of 4 as well


def test_learned_on_a_grid_adds_a_vector_an_axis():
    torch.manual_seed(1)
    positions, x = Learned(width=D, num_positions=(5, 7)).double(), rand(2, D)
    out = positions.add(x, torch.tensor([[4, 0], [2, 6]]))
    table = positions.table.weight
    close(out, x + torch.stack([table[4] + table[5 + 0], table[2] + table[5 + 6]]))


# ---- rotary


def test_rotary_is_the_worked_table():
    """Four tokens of width 4 at positions 1..4, t1 = 1 and t2 = 1/100, in plain Python."""
    tokens = [
        [1.0, 2.0, 3.0, 4.0],
        [0.5, -1.0, 2.0, 0.0],
        [-1.5, 0.25, 1.0, -2.0],
        [3.0, 1.0, -1.0, 0.5],
    ]
    t1, t2 = 1.0, 0.01
    expected = [
        [
            x1 * math.cos(p * t1) - x2 * math.sin(p * t1),
            x1 * math.sin(p * t1) + x2 * math.cos(p * t1),
            x3 * math.cos(p * t2) - x4 * math.sin(p * t2),
            x3 * math.sin(p * t2) + x4 * math.cos(p * t2),
        ]
        for p, (x1, x2, x3, x4) in enumerate(tokens, 1)
    ]
    x, places = torch.tensor(tokens, dtype=torch.float64), torch.arange(1, 5)
    close(rotary(x, places), torch.tensor(expected, dtype=torch.float64))
    close(Rotary(head_width=4).rotate(x, places), torch.tensor(expected, dtype=torch.float64))
    assert Rotary(head_width=4).rotate(x, places)[0].tolist() == pytest.approx(
        [-1.1426396637476532, 1.922075596544176, 2.9598506679133294, 4.029799501669161], abs=1e-12
    )


@pytest.mark.parametrize("axes", [1, 2])
def test_rotary_scores_depend_on_the_distance_only(axes: int):
    q, k = rand(K), rand(K, seed=2)
    one, other = (torch.tensor(places[:axes]).squeeze() for places in ([3, 10], [8, 1]))
    scores = [
        rotary(q[None], (one + shift)[None], axes=axes)
        @ rotary(k[None], (other + shift)[None], axes=axes).T
        for shift in (0, 1, 29, 1000)
    ]
    for score in scores:
        close(score, scores[0], 1e-11)
    moved = rotary(q[None], (one + 1)[None], axes=axes) @ rotary(k[None], other[None], axes=axes).T
    assert (moved - scores[0]).abs() > 1e-3


def test_rotary_2d_turns_half_the_pairs_by_each_axis():
    x, places = rand(15, K), grid(3, 5)
    turned = rotary(x, places, axes=2)
    close(turned[:, : K // 2], rotary(x[:, : K // 2].contiguous(), places[:, 0]))
    close(turned[:, K // 2 :], rotary(x[:, K // 2 :].contiguous(), places[:, 1]))


def test_rotary_keeps_lengths_and_place_zero():
    x, places = rand(B, H, T, K), torch.arange(T)
    turned = rotary(x, places)
    close(turned.norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(turned[:, :, 0], x[:, :, 0])
    close(
        torch.view_as_real(rotary_phases(places, K)).norm(dim=-1),
        torch.ones(T, K // 2, dtype=torch.float64),
    )


def test_rotary_of_any_layout_and_type():
    """Pairs that are not side by side in memory, odd offsets, half precision, and gradients."""
    x, places = rand(B, T, H, K), torch.arange(T)
    expected = rotary(x.transpose(1, 2).contiguous(), places)
    close(rotary(x.transpose(1, 2), places), expected)
    wide = torch.zeros(B, H, T, 2 * K + 1, dtype=torch.float64)
    wide[..., 1::2] = x.transpose(1, 2)
    close(rotary(wide[..., 1::2], places), expected)
    odd = torch.zeros(B, H, T, K + 1, dtype=torch.float64)
    odd[..., 1:] = x.transpose(1, 2)
    close(rotary(odd[..., 1:], places), expected)
    half = rotary(x.transpose(1, 2).bfloat16(), places)
    assert half.dtype == torch.bfloat16
    close(half.double(), expected, 0.05)
    assert torch.autograd.gradcheck(lambda x: rotary(x, places), rand(T, 4).requires_grad_())


# ---- alibi and relative


def test_alibi_slopes_are_the_papers():
    assert alibi_slopes(8).tolist() == [2.0**-n for n in range(1, 9)]
    assert alibi_slopes(16).tolist() == pytest.approx([2 ** (-n / 2) for n in range(1, 17)])
    for heads in (1, 2, 4, 8, 16, 32):
        slopes = alibi_slopes(heads).double()
        close(
            slopes[1:] / slopes[:-1], slopes[0].expand(heads - 1), 1e-6
        )  # geometric, its ratio the first of them
        assert slopes[-1] == 2**-8
    assert alibi_slopes(3).tolist() == [2**-4, 2**-8, 2**-2]
    assert alibi_slopes(12).tolist() == pytest.approx(
        [2.0**-n for n in range(1, 9)] + [2 ** (-n / 2) for n in (1, 3, 5, 7)]
    )


def test_alibi_is_minus_slope_times_distance():
    slopes = alibi_slopes(H)
    bias = alibi(torch.arange(T), torch.arange(S), slopes)
    for h in range(H):
        for t in range(T):
            for s in range(S):
                assert bias[h, t, s].item() == pytest.approx(-slopes[h].item() * abs(t - s))
    assert (bias.diagonal(dim1=1, dim2=2) == 0).all()


def test_alibi_on_a_grid_is_the_straight_line():
    places, slopes = grid(3, 5), alibi_slopes(H).double()
    bias = alibi(places, places, slopes, axes=2)
    close(bias, -slopes[:, None, None] * torch.cdist(places.double(), places.double()), 1e-7)
    assert (bias.diagonal(dim1=1, dim2=2) == 0).all()


def test_relative_clips_the_distance():
    table = rand(H, 7)
    bias = relative(torch.arange(T), torch.arange(S), table)
    for t in range(T):
        for s in range(S):
            close(bias[:, t, s], table[:, 3 + max(-3, min(3, s - t))])


def test_relative_on_a_grid_has_a_number_for_each_step_of_x_and_y():
    table, places = rand(H, 5, 7), grid(4, 6)
    bias = relative(places, places, table)
    for t, (x, y) in enumerate(places.tolist()):
        for s, (x2, y2) in enumerate(places.tolist()):
            close(bias[:, t, s], table[:, 2 + max(-2, min(2, x2 - x)), 3 + max(-3, min(3, y2 - y))])


@pytest.mark.parametrize("kind", ["alibi", "relative"])
def test_a_bias_depends_on_the_distance_only(kind: str):
    torch.manual_seed(1)
    positions, places = ONE_AXIS[kind](), torch.arange(T)
    assert torch.equal(positions.bias(places, places), positions.bias(places + 29, places + 29))
    assert not torch.equal(positions.bias(places, places), positions.bias(places + 1, places))


def test_offsets_say_how_far_the_key_is():
    assert offsets(torch.tensor([0, 2]), torch.tensor([1, 5])).tolist() == [[1, 5], [-1, 3]]
    assert offsets(torch.tensor([[0, 2]]), torch.tensor([[1, 5]]), axes=2).tolist() == [[[1, 3]]]


# ---- what is refused


BAD = {
    "beyond the table": (
        lambda: Learned(width=D, num_positions=5).add(torch.zeros(6, D), torch.arange(6)),
        "longer than the learned positions reach; got place 6; at most 5 places",
    ),
    "one place beyond": (
        lambda: Learned(width=D, num_positions=5).add(torch.zeros(1, D), 5),
        "got place 6",
    ),
    "beyond the grid": (
        lambda: Learned(width=D, num_positions=(5, 7)).add(
            torch.zeros(1, D), torch.tensor([[4, 7]])
        ),
        "got place 8 of axis y; at most 7 places",
    ),
    "odd head": (
        lambda: Rotary(head_width=5),
        "must be a multiple of 2; got 5; 6 is the next one that fits",
    ),
    "odd halves": (
        lambda: Rotary(head_width=6, axes=2),
        "must be a multiple of 4; got 6; 8 is the next",
    ),
    "odd width": (
        lambda: Sinusoidal(width=7, axes=2),
        "on a grid need an even width; got 7; 8 is the next",
    ),
}


@pytest.mark.parametrize(("wrong", "message"), BAD.values(), ids=BAD.keys())
def test_wrong_use_is_refused(wrong, message: str):
    with pytest.raises(InputError) as error:
        wrong()
    assert message in str(error.value)
