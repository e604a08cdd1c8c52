"""Multi-head attention in all its forms, in float64: one operator, and torch's own."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.attention import attend
from regard.layers.multihead import MultiHead
from regard.layers.positions import Alibi, Learned, NoPositions, Relative, Rotary, Sinusoidal
from regard.layers.sizes import TransformerSizes
from regard.layers.softmax_attention import SoftmaxSelfAttention
from regard.values import State

B, T, S, D, H, K, E = 5, 11, 7, 14, 2, 6, 13

POSITIONS = {
    "missing": lambda: None,
    "none": lambda: NoPositions(),
    "sinusoidal": lambda: Sinusoidal(width=D, table=5),
    "learned": lambda: Learned(width=D, num_positions=53),
    "rotary": lambda: Rotary(head_width=K),
    "alibi": lambda: Alibi(heads=H),
    "relative": lambda: Relative(heads=H, max_distance=3),
}
GRIDS = {
    "missing": lambda: None,
    "sinusoidal": lambda: Sinusoidal(width=D, axes=2),
    "learned": lambda: Learned(width=D, num_positions=(5, 7)),
    "rotary": lambda: Rotary(head_width=8, axes=2),
    "alibi": lambda: Alibi(heads=H, axes=2),
    "relative": lambda: Relative(heads=H, max_distance=(1, 3)),
}
FORMS = [
    (kind, merged)
    for kind, merged in itertools.product(POSITIONS, [False, True])
    if (kind, merged) != ("rotary", True)
]


def rand(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


def randomised(module: nn.Module) -> None:
    """Biases that begin at zero would hide a mistake."""
    torch.manual_seed(5)
    for parameter in module.parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter)


def layer(kind: str = "missing", *, merged: bool = False, **sizes) -> MultiHead:
    torch.manual_seed(3)
    sizes = dict(width=D, heads=H, head_width=K) | sizes
    made = MultiHead(positions=POSITIONS[kind](), merged=merged, **sizes).double().eval()
    randomised(made)
    return made


def keys_mask(rows: int = B, length: int = S) -> Tensor:
    return torch.arange(length) < (torch.arange(rows) % length + 1)[:, None]


# ---- parity with torch


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(("kdim", "vdim"), [(None, None), (E, E), (E, 17), (None, 17)])
def test_from_torch_gives_the_same(
    bias: bool, batch_first: bool, kdim: int | None, vdim: int | None
):
    theirs = nn.MultiheadAttention(
        D,
        H,
        bias=bias,
        kdim=kdim,
        vdim=vdim,
        batch_first=batch_first,
        dropout=0.3,
        dtype=torch.float64,
    ).eval()
    randomised(theirs)
    ours = MultiHead.from_torch(theirs)
    x, memory, values = rand(B, T, D), rand(B, S, kdim or D, seed=2), rand(B, S, vdim or D, seed=3)
    padding, square = (
        keys_mask(),
        (torch.rand(T, S, generator=torch.Generator().manual_seed(4)) < 0.5),
    )
    square[:, 0] = True

    def call(**masks):
        given = (
            (x, memory, values)
            if batch_first
            else (part.transpose(0, 1) for part in (x, memory, values))
        )
        out, weights = theirs(*given, average_attn_weights=False, **masks)
        return out if batch_first else out.transpose(0, 1), weights

    for mask, masks in [
        (None, {}),
        (padding, dict(key_padding_mask=~padding)),
        (square[None], dict(attn_mask=~square)),
        (padding[:, None] & square, dict(key_padding_mask=~padding, attn_mask=~square)),
    ]:
        expected, looked = call(**masks)
        out, weights = ours.forward_with_weights(x, memory, values=values, mask=mask)
        close(ours(x, memory, values=values, mask=mask), expected)
        close(out, expected)
        close(weights, looked)
    assert ours.dropout == 0.3
    ours.out.weight.data.zero_()
    assert theirs.out_proj.weight.abs().sum() > 0  # a copy


def test_from_torch_of_self_attention_is_causal_too():
    theirs = nn.MultiheadAttention(D, H, batch_first=True, dtype=torch.float64).eval()
    randomised(theirs)
    x, hidden = rand(B, T, D), torch.ones(T, T, dtype=torch.bool).triu(1)
    close(MultiHead.from_torch(theirs)(x, causal=True), theirs(x, x, x, attn_mask=hidden)[0])


@pytest.mark.parametrize("extra", ["add_bias_kv", "add_zero_attn"])
def test_from_torch_refuses_what_it_cannot_say(extra: str):
    with pytest.raises(InputError, match="appends a key and a value"):
        MultiHead.from_torch(nn.MultiheadAttention(D, H, **{extra: True}))


# ---- the formula, by hand


@pytest.mark.parametrize("kind", POSITIONS)
def test_forward_is_the_formula_a_head(kind: str):
    ours, x, places = layer(kind), rand(B, T, D), torch.arange(T)
    positions = ours.positions or NoPositions()
    entered, parts, seen = positions.add(x, places), [], positions.bias(places, places)
    for h in range(H):
        own = slice(h * K, (h + 1) * K)
        q, k, v = (
            entered @ p.weight[own].T + p.bias[own] for p in (ours.query, ours.key, ours.value)
        )
        bias = None if seen is None else seen[h]
        parts.append(
            attend(
                positions.rotate(q, places), positions.rotate(k, places), v, bias=bias, causal=True
            )
        )
    expected = torch.cat(parts, dim=-1) @ ours.out.weight.T + ours.out.bias
    close(ours(x, causal=True), expected)
    close(ours.forward_with_weights(x, causal=True)[0], expected)


@pytest.mark.parametrize("kind", POSITIONS)
def test_the_transformers_own_layer_is_this_one(kind: str):
    """With the same weights, `SoftmaxSelfAttention` does what this does."""
    ours, x, places = layer(kind), rand(B, T, D), torch.arange(T)
    sizes = TransformerSizes(layers=1, width=D, heads=H, head_width=K, ffn_width=1)
    theirs, positions, mask = (
        SoftmaxSelfAttention(sizes).double(),
        ours.positions or NoPositions(),
        keys_mask(B, T),
    )
    theirs.qkv.weight.data = torch.cat([ours.query.weight, ours.key.weight, ours.value.weight])
    theirs.qkv.bias.data = torch.cat([ours.query.bias, ours.key.bias, ours.value.bias])
    theirs.out = ours.out
    bias = positions.bias(places, places)
    if bias is None:
        seen = dict(mask=mask)
    else:
        seen = dict(bias=torch.where(mask[:, None, None], bias, -torch.inf))
    close(
        theirs(positions.add(x, places), rotation=positions.rotation(places), **seen)[0],
        ours(x, mask=mask),
    )


@pytest.mark.parametrize("merged", [False, True])
def test_masks_of_every_shape(merged: bool):
    ours, x, memory = layer(merged=merged, memory_width=E), rand(B, T, D), rand(B, S, E)
    keys = keys_mask()
    whole, weights = ours.forward_with_weights(x, memory, mask=keys)
    assert (weights.masked_select(~keys[:, None, None].expand_as(weights)) == 0).all()
    for mask in (
        keys[:, None].expand(B, T, S),
        keys[:, None, None],
        keys[:, None, None].expand(B, H, T, S),
    ):
        close(ours(x, memory, mask=mask), whole)
    for row, length in enumerate(keys.sum(1).tolist()):
        close(ours(x[row : row + 1], memory[row : row + 1, :length]), whole[row : row + 1])
    square = torch.ones(T, S, dtype=torch.bool).tril()
    close(ours(x, memory, mask=square[None]), ours(x, memory, causal=True))
    close(ours(x, memory, mask=keys, causal=True), ours(x, memory, mask=keys[:, None] & square))


def test_dropout_is_of_weights_in_training_only():
    ours, x = layer(dropout=0.5), rand(B, T, D)
    assert torch.equal(ours(x), ours(x))
    ours.train()
    assert not torch.allclose(ours(x), ours(x))
    assert not torch.allclose(ours.forward_with_weights(x)[0], ours.forward_with_weights(x)[0])


# ---- step by step


def read_in(ours: MultiHead, x: Tensor, state: State) -> tuple[Tensor, State]:
    places = []
    for place in x.unbind(1):
        out, state = ours.step(place, state)
        places.append(out)
    return torch.stack(places, dim=1), state


@torch.no_grad()
@pytest.mark.parametrize(("kind", "merged"), FORMS)
@pytest.mark.parametrize("bias", [True, False])
def test_steps_equal_the_causal_forward(kind: str, merged: bool, bias: bool):
    ours, x = (
        layer(kind, merged=merged, bias=bias),
        rand(B, 41, D),
    )  # far enough for the cache to grow
    stepped, state = read_in(ours, x, ours.start(rows=B))
    close(stepped, ours(x, causal=True))
    assert state.position.tolist() == [41] * B and state.max_position == 41


@torch.no_grad()
@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("value_width", [None, 17])
def test_steps_over_a_memory_equal_the_forward(merged: bool, value_width: int | None):
    ours, x, memory = (
        layer(merged=merged, memory_width=E, value_width=value_width),
        rand(B, T, D),
        rand(B, S, E),
    )
    values = None if value_width is None else rand(B, S, value_width)
    stepped, state = read_in(ours, x, ours.start(memory, values=values, mask=keys_mask()))
    close(stepped, ours(x, memory, values=values, mask=keys_mask()))
    close(read_in(ours, x, ours.start(memory, values=values))[0], ours(x, memory, values=values))
    index = torch.tensor([3, 0, 0])
    close(read_in(ours, x[index], state.rows(index))[0], stepped[index])


@torch.no_grad()
@pytest.mark.parametrize(("kind", "merged"), FORMS)
def test_rows_and_joins_step_as_they_would_apart(kind: str, merged: bool):
    ours, x, index = layer(kind, merged=merged), rand(B, 47, D), torch.tensor([4, 1, 1])
    _, a = read_in(ours, x[:, :2], ours.start(rows=B))
    _, b = read_in(ours, x[:3, :6], ours.start(rows=3))
    further = torch.cat([x[:, 2:43], x[:3, 6:47]])
    joined, after = read_in(ours, further, a.join(b))
    close(joined[:5], ours(x[:, :43], causal=True)[:, 2:])
    close(joined[5:], ours(x[:3], causal=True)[:, 6:])
    assert after.position.tolist() == [43] * 5 + [47] * 3
    close(read_in(ours, further[index], a.join(b).rows(index))[0], joined[index])
    again, _ = read_in(ours, x[:, 2:5], a)  # a State is a value: others went on from it meanwhile
    close(again, ours(x[:, :5], causal=True)[:, 2:])


# ---- the sum form, and query and key merged


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", POSITIONS)
def test_output_is_a_sum_over_heads(kind: str, bias: bool):
    ours, x = layer(kind, bias=bias), rand(B, T, D)
    out, weights = ours.forward_with_weights(x)
    entered = x if ours.positions is None else ours.positions.add(x, torch.arange(T))
    matrices = ours.as_sum_of_heads()
    total = sum(weights[:, h] @ entered @ matrices[h] for h in range(H))
    close(total + (ours.out(ours.value.bias) if bias else 0), out)
    assert matrices.shape == (H, D, D)
    assert [int(torch.linalg.matrix_rank(one)) for one in matrices] == [K] * H


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [kind for kind in POSITIONS if kind != "rotary"])
def test_merged_is_the_same_attention(kind: str, bias: bool):
    ours, x = layer(kind, bias=bias), rand(B, T, D)
    merged = ours.merge()
    for seen in ({}, dict(causal=True), dict(mask=keys_mask(B, T))):
        out, weights = ours.forward_with_weights(x, **seen)
        merged_out, merged_weights = merged.forward_with_weights(x, **seen)
        close(merged_weights, weights)
        close(merged_out, out)
        close(merged(x, **seen), out)
    assert merged.query_key.shape == (H, D, D)
    assert [int(torch.linalg.matrix_rank(one)) for one in merged.query_key] == [K] * H
    expected = ours.query.weight[:K].T @ ours.key.weight[:K] / K**0.5
    close(merged.query_key[0], expected)


def test_merged_over_a_memory_is_the_same_attention():
    ours, x, memory = layer(memory_width=E), rand(B, T, D), rand(B, S, E)
    out, weights = ours.forward_with_weights(x, memory, mask=keys_mask())
    close(ours.merge()(x, memory, mask=keys_mask()), out)
    close(ours.merge().forward_with_weights(x, memory, mask=keys_mask())[1], weights)


def test_merged_learns_and_starts_as_an_ordinary_layer():
    torch.manual_seed(7)
    merged = MultiHead(width=D, heads=H, head_width=K, merged=True).double()
    assert [int(torch.linalg.matrix_rank(one, atol=1e-5)) for one in merged.query_key] == [
        K
    ] * H  # born in float32
    merged(rand(B, T, D)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in merged.parameters())
    ordinary = MultiHead(width=D, heads=H, head_width=K, bias=False)
    free = MultiHead(width=D, heads=H, head_width=K, bias=False, merged=True)
    assert ordinary.query.weight.numel() + ordinary.key.weight.numel() == 2 * H * K * D
    assert free.query_key.numel() == H * D**2


# ---- order


@pytest.mark.parametrize("kind", POSITIONS)
def test_a_permutation_goes_through_without_positions(kind: str):
    ours, x, order = (
        layer(kind),
        rand(B, T, D),
        torch.randperm(T, generator=torch.Generator().manual_seed(3)),
    )
    same = torch.allclose(ours(x[:, order]), ours(x)[:, order], atol=1e-9)
    assert same == (kind in ("missing", "none"))
    assert not torch.allclose(
        ours(x[:, order], causal=True), ours(x, causal=True)[:, order], atol=1e-3
    )
    assert not torch.allclose(ours(x[:, order]), ours(x), atol=1e-3)  # equivariant, not invariant


@pytest.mark.parametrize("kind", ["rotary", "alibi", "relative"])
def test_relative_kinds_see_distances_only(kind: str):
    """In front of a window that cannot be seen, the window's output is the same at any place."""
    ours, x = layer(kind), rand(B, T, D)
    longer = torch.cat([rand(B, 4, D, seed=8), x], dim=1)
    mask = torch.arange(T + 4) >= 4
    close(ours(longer, mask=mask.expand(B, -1))[:, 4:], ours(x))


# ---- grids


@pytest.mark.parametrize("kind", GRIDS)
def test_a_grid_is_the_flattened_sequence(kind: str):
    torch.manual_seed(3)
    ours = MultiHead(width=D, heads=H, head_width=8, positions=GRIDS[kind]()).double().eval()
    x, order = rand(B, 3, 5, D), torch.cartesian_prod(torch.arange(3), torch.arange(5))
    positions = ours.positions or NoPositions()
    entered = positions.add(x.flatten(1, 2), order)
    q, k, v = (
        p(entered).unflatten(-1, (H, 8)).transpose(1, 2) for p in (ours.query, ours.key, ours.value)
    )
    context = attend(
        positions.rotate(q, order), positions.rotate(k, order), v, bias=positions.bias(order, order)
    )
    out, weights = ours.forward_with_weights(x)
    close(out, ours.out(context.transpose(1, 2).flatten(2)).view(B, 3, 5, D))
    close(ours(x), out)
    assert weights.shape == (B, H, 3, 5, 3, 5)
    close(weights.sum((-1, -2)), torch.ones(B, H, 3, 5, dtype=torch.float64))  # over both axes
    if kind == "missing":
        close(out.flatten(1, 2), ours(x.flatten(1, 2)))
    else:  # turned by a quarter it is another grid, unless a straight line measures it
        assert torch.allclose(ours(x.transpose(1, 2)), ours(x).transpose(1, 2)) == (kind == "alibi")


def test_masks_of_a_grid():
    torch.manual_seed(3)
    ours = MultiHead(width=D, heads=H, positions=Alibi(heads=H, axes=2)).double().eval()
    x, mask = (
        rand(B, 3, 5, D),
        torch.rand(B, 3, 5, generator=torch.Generator().manual_seed(1)) < 0.7,
    )
    out, weights = ours.forward_with_weights(x, mask=mask)
    assert (weights.masked_select(~mask[:, None, None, None].expand_as(weights)) == 0).all()
    close(ours(x, mask=mask.flatten(1)[:, None, None].expand(B, H, 15, 15)), out)
    reader, memory = MultiHead(width=D, heads=H, memory_width=E).double(), rand(B, S, E)
    out, weights = reader.forward_with_weights(x, memory, mask=keys_mask())
    assert weights.shape == (B, H, 3, 5, S)
    close(out.flatten(1, 2), reader(x.flatten(1, 2), memory, mask=keys_mask()))


# ---- what is refused


X, BLIND = rand(B, T, D), keys_mask(B, T)
BLIND[3] = False
BAD = {
    "width and heads": (
        lambda: MultiHead(width=7, heads=2),
        "got width 7, heads 2; or pass a head_width of any size",
    ),
    "merged rotary": (
        lambda: layer("rotary", merged=True),
        "merged: query and key cannot be merged under rotary positions; a rotation by the distance",
    ),
    "merging rotary": (lambda: layer("rotary").merge(), "cannot be merged under rotary positions"),
    "other width": (
        lambda: MultiHead(width=6, heads=2, positions=Sinusoidal(width=D)),
        "another width; got 14; this layer's is 6",
    ),
    "other heads": (
        lambda: MultiHead(width=6, heads=3, positions=Alibi(heads=2)),
        "another heads; got 2; this layer's is 3",
    ),
    "other head width": (
        lambda: MultiHead(width=D, heads=2, positions=Rotary(head_width=4)),
        "another head_width; got 4",
    ),
    "positions over a memory": (
        lambda: layer("alibi", memory_width=E),
        "for self-attention; got memory width 13",
    ),
    "x": (
        lambda: layer()(rand(B, T, 3)),
        "x: must be (B, T, 14), or a grid (B, X, Y, 14); got (5, 11, 3)",
    ),
    "x without rows": (lambda: layer()(rand(T, D)), "got (11, 14)"),
    "no memory": (lambda: layer(memory_width=E)(X), "memory: needs a memory; (B, S, 13)"),
    "memory": (
        lambda: layer(memory_width=E)(X, rand(B, S, D)),
        "memory: must be (5, S, 13); got (5, 7, 14)",
    ),
    "rows of memory": (
        lambda: layer()(X, rand(3, S, D)),
        "memory: must be (5, S, 14); got (3, 7, 14)",
    ),
    "memory and positions": (
        lambda: layer("alibi")(X, rand(B, S, D)),
        "memory: positions are for self-attention",
    ),
    "values alone": (
        lambda: layer()(X, values=X),
        "memory: needs the memory that the values belong to",
    ),
    "no values": (lambda: layer(value_width=17)(X, X), "values: must be given, (5, 11, 17)"),
    "values": (
        lambda: layer()(X, X, values=rand(B, S, D)),
        "values: must be (5, 11, 14); got (5, 7, 14)",
    ),
    "grid positions": (
        lambda: MultiHead(width=D, heads=H, positions=Alibi(heads=H, axes=2)).double()(X),
        "x: positions with 2 axes need x (B, X, Y, D); got (5, 11, 14)",
    ),
    "sequence positions": (
        lambda: layer("alibi")(rand(B, 3, 5, D)),
        "need x (B, T, D); got (5, 3, 5, 14)",
    ),
    "mask": (
        lambda: layer()(X, mask=torch.ones(T, T, dtype=torch.bool)),
        (
            "mask: must be bool (B, S) or (B, T, S) or (B, H, T, S); got (11, 11) torch.bool; "
            "B=5, H=2, T=11, S=11"
        ),
    ),
    "mask of numbers": (lambda: layer()(X, mask=torch.ones(B, T)), "got (5, 11) torch.float32"),
    "mask of a grid": (
        lambda: layer()(rand(B, 3, 5, D), mask=torch.ones(B, 15, dtype=torch.bool)),
        "bool (B, X, Y) or",
    ),
    "baselines": (
        lambda: layer()(X, mask=BLIND),
        "mask: every query must have a key that it may attend to; got none for row 3, place 0",
    ),
    "blind causal": (
        lambda: layer()(X, mask=~keys_mask(B, T), causal=True),
        "got none for row 0, place 0",
    ),
    "start": (
        lambda: layer().start(),
        "start: needs a memory, or the number of rows for self-attention",
    ),
    "start of a grid": (
        lambda: MultiHead(width=D, heads=H, positions=Alibi(heads=H, axes=2)).start(rows=1),
        "start: a grid has no steps",
    ),
    "start with a blind row": (
        lambda: layer(memory_width=E).start(rand(B, T, E), mask=BLIND),
        "got none for row 3, place 0",
    ),
}


@pytest.mark.parametrize(("wrong", "message"), BAD.values(), ids=BAD.keys())
def test_wrong_use_is_refused(wrong, message: str):
    with pytest.raises(InputError) as error:
        wrong()
    assert message in str(error.value)
