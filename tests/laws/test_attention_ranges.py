"""Attention over every shape and size of number: leading axes that broadcast, axes of 0, half
precision, and finite numbers whose scores overflow. Held against loops over numpy's long
doubles, whose range is that of 16,000 bits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.errors import InputError
from regard.layers import overflow
from regard.layers.attention import attend, attend_unchecked, attention_weights
from regard.layers.maclaurin import (
    Form,
    maclaurin_attention,
    maclaurin_continue,
    maclaurin_error_bound,
    maclaurin_features,
    maclaurin_start,
    maclaurin_step,
)
from regard.layers.multihead import MultiHead

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
FORMS: list[Form] = ["quadratic", "parallel", "chunked", "recurrent"]
Loops = np.ndarray[Any, Any]
EVERY_CHECK: Any = list(HealthCheck)  # Any: its metaclass hides the type
unhurried = settings(max_examples=120, deadline=None, suppress_health_check=EVERY_CHECK)
wide = pytest.mark.skipif(
    np.finfo(np.longdouble).maxexp < 10_000, reason="no long doubles on this machine"
)


# ---------------------------------------------------------------------------------------- the loops


def long(x: Tensor) -> Loops:
    return x.detach().double().numpy().astype(np.longdouble)


def scores_by_loops(q: Tensor, k: Tensor, lead: tuple[int, ...], scale: float | None) -> Loops:
    width = q.shape[-1]
    factor = np.longdouble((1 / math.sqrt(width) if width else 1.0) if scale is None else scale)
    queries = np.broadcast_to(long(q), (*lead, *q.shape[-2:]))
    keys = np.broadcast_to(long(k), (*lead, *k.shape[-2:]))
    scores = np.zeros((*lead, q.shape[-2], k.shape[-2]), np.longdouble)
    for place in np.ndindex(*scores.shape):
        *row, t, s = place
        scores[place] = factor * sum(
            (a * b for a, b in zip(queries[(*row, t)], keys[(*row, s)], strict=True)),
            np.longdouble(0),
        )
    return scores


def with_what_is_seen(
    scores: Loops, mask: Tensor | None, bias: Tensor | None, causal: bool
) -> Loops:
    scores = scores.copy()
    if bias is not None:
        scores += np.broadcast_to(long(bias), scores.shape)
    if mask is not None:
        scores[~np.broadcast_to(mask.numpy(), scores.shape)] = -np.inf
    for place in np.ndindex(*scores.shape):
        if causal and place[-1] > place[-2]:
            scores[place] = -np.inf
    return scores


def between(scores: Loops, error: Loops) -> tuple[Loops, Loops]:
    """The least and the largest weight that scores may have which are off by at most `error`."""
    low, high = np.zeros_like(scores), np.zeros_like(scores)
    with np.errstate(over="ignore", invalid="ignore"):
        for place in np.ndindex(*scores.shape):
            *row, s = place
            if scores[place] == -np.inf:
                continue
            others = np.delete(scores[tuple(row)], s) - scores[place]
            slack = np.delete(error[tuple(row)], s) + error[place]
            others = others[others > -np.inf], slack[others > -np.inf]
            low[place] = 1 / (1 + np.exp(others[0] + others[1]).sum())
            high[place] = 1 / (1 + np.exp(others[0] - others[1]).sum())
    return low, high


def mean_by_loops(weights: Loops, v: Tensor, lead: tuple[int, ...]) -> Loops:
    values = np.broadcast_to(long(v), (*lead, *v.shape[-2:]))
    weights = np.broadcast_to(weights, (*lead, *weights.shape[-2:]))
    out = np.zeros((*lead, weights.shape[-2], v.shape[-1]), np.longdouble)
    for place in np.ndindex(*out.shape):
        *row, t, e = place
        out[place] = (weights[(*row, t)] * values[(*row, slice(None), e)]).sum()
    return out


# ------------------------------------------------------------------------------------ what is drawn


def narrowed(draw: Any, lead: tuple[int, ...]) -> tuple[int, ...]:
    """Leading axes that broadcast to `lead`: some of them 1, and some of the first ones not
    there."""
    own = tuple(draw(st.sampled_from([size, 1])) for size in lead)
    return own[draw(st.integers(0, len(own))) :]


def numbers(draw: Any, *shape: int, dtype: torch.dtype, size: float = 1.0) -> Tensor:
    source = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    limit = torch.finfo(dtype).max
    return (
        (torch.randn(*shape, dtype=torch.float64, generator=source) * size)
        .clamp(-limit, limit)
        .to(dtype)
    )


@st.composite
def questions(draw: Any, *, extreme: bool, dtypes: list[torch.dtype] = DTYPES) -> dict[str, Any]:
    dtype = draw(st.sampled_from(dtypes))
    lead = tuple(draw(st.lists(st.sampled_from([0, 1, 2, 3]), max_size=3)))
    T, K, E = (draw(st.sampled_from([0, 1, 2, 3, 5])) for _ in range(3))
    S = draw(st.sampled_from([1, 2, 3, 5]))
    q_lead, k_lead, v_lead = (narrowed(draw, lead) for _ in range(3))
    lead = torch.broadcast_shapes(q_lead, k_lead, v_lead)

    top = math.log10(torch.finfo(dtype).max) - 0.01
    exponents = st.floats(-top, top) if extreme else st.floats(-1, 0.5)
    sizes = [10 ** draw(exponents) for _ in range(4)]
    q = numbers(draw, *q_lead, T, K, dtype=dtype, size=sizes[0])
    k = numbers(draw, *k_lead, S, K, dtype=dtype, size=sizes[1])
    v = numbers(draw, *v_lead, S, E, dtype=dtype, size=sizes[2])

    causal = draw(st.booleans())
    mask = bias = None
    onto_lead = narrowed(draw, lead)
    onto = (*onto_lead, draw(st.sampled_from([T, 1])), S)
    onto = onto if onto_lead else onto[draw(st.integers(0, 1)) :]
    if draw(st.booleans()):
        mask = numbers(draw, *onto, dtype=torch.float64) > 0
        mask[..., 0] = True
    if draw(st.booleans()):
        bias = numbers(draw, *onto, dtype=dtype, size=sizes[3])
        if draw(st.booleans()):
            hidden = numbers(draw, *onto, dtype=torch.float64) > 0
            hidden[..., 0] = False
            bias = bias.masked_fill(
                hidden, draw(st.sampled_from([-math.inf, torch.finfo(dtype).min]))
            )
    scale = draw(st.sampled_from([None, 0.3, -0.7] + ([1e-30, 1e30] if extreme else [])))
    return dict(
        q=q, k=k, v=v, lead=lead, seen=dict(mask=mask, bias=bias, causal=causal, scale=scale)
    )


def check(q: Tensor, k: Tensor, v: Tensor, lead: tuple[int, ...], seen: dict[str, Any]) -> None:
    onto = [x.shape[:-2] for x in (seen["mask"], seen["bias"]) if x is not None]
    own_lead = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], *onto)
    context = attend(q, k, v, **seen)
    weights = attention_weights(
        q.expand(*own_lead, -1, -1), k, **seen
    )  # a mask may have the axes of v
    assert context.shape == (*lead, q.shape[-2], v.shape[-1]) and context.dtype == v.dtype
    assert weights.shape == (*own_lead, q.shape[-2], k.shape[-2]) and weights.dtype == q.dtype
    assert context.isfinite().all() and weights.isfinite().all()

    rounding = np.longdouble(torch.finfo(q.dtype).eps)
    computed = np.longdouble(min(torch.finfo(q.dtype).eps, torch.finfo(torch.float32).eps))
    raw = scores_by_loops(q, k, own_lead, seen["scale"])
    size = scores_by_loops(
        q.abs(), k.abs(), own_lead, None if seen["scale"] is None else abs(seen["scale"])
    )
    if seen["bias"] is not None:
        bias = np.broadcast_to(long(seen["bias"]), size.shape)
        size = size + np.where(np.isfinite(bias), np.abs(bias), 0)
    scores = with_what_is_seen(raw, seen["mask"], seen["bias"], seen["causal"])
    low, high = between(scores, (q.shape[-1] + 4) * computed * size)
    few = (k.shape[-2] + 8) * computed
    got = long(weights)
    assert (got >= low * (1 - rounding - few) - few - np.finfo(np.float16).tiny).all()
    assert (got <= high * (1 + rounding + few) + few + np.finfo(np.float16).tiny).all()
    assert (got[scores == -np.inf] == 0).all()

    values, largest = (
        np.broadcast_to(long(v), (*lead, *v.shape[-2:])),
        np.abs(long(v)).max(initial=0),
    )
    spread = np.broadcast_to(high - low, (*lead, *low.shape[-2:]))
    expected = mean_by_loops((low + high) / 2, v, lead)
    off = np.abs(long(context) - expected)
    allowed = (
        np.einsum("...ts,...se->...te", spread, np.abs(values)) + (rounding + 4 * few) * largest
    )
    assert (off <= allowed + np.longdouble(torch.finfo(v.dtype).smallest_normal)).all()


# ------------------------------------------------------------------------------------------ softmax


@wide
@unhurried
@given(questions(extreme=False))
def test_every_axis_broadcasts_and_may_be_zero(question: dict[str, Any]):
    check(**question)


@wide
@unhurried
@given(questions(extreme=True))
def test_finite_numbers_give_finite_answers(question: dict[str, Any]):
    check(**question)


@settings(unhurried, max_examples=40)
@given(questions(extreme=False, dtypes=[torch.float64]))
def test_gradients_of_every_broadcast(question: dict[str, Any]):
    q, k, v = (question[name].requires_grad_() for name in "qkv")
    seen = question["seen"]
    bias = seen["bias"]
    if bias is not None and bias.abs().lt(1e3).all():
        bias.requires_grad_()
    inputs = [x for x in (q, k, v, bias) if x is not None and x.requires_grad and x.numel()]
    if not inputs or not attend(q, k, v, **seen).numel():
        return
    assert torch.autograd.gradcheck(lambda *_: attend(q, k, v, **seen), inputs)
    whole = (*question["lead"], *q.shape[-2:])
    assert torch.autograd.gradcheck(
        lambda *_: attention_weights(q.expand(whole), k, **seen), inputs
    )


@pytest.mark.parametrize("lead", [(), (3,), (1, 3)])
@pytest.mark.parametrize("biased", [False, True])
def test_only_the_values_and_the_mask_have_a_batch(lead: tuple[int, ...], biased: bool):
    q, k, v = torch.randn(*lead, 3, 4), torch.randn(*lead, 5, 4), torch.randn(7, 2, 3, 5, 4)
    mask = torch.arange(5) <= torch.arange(7)[:, None, None, None, None]
    seen: dict[str, Any] = (
        dict(bias=torch.zeros(mask.shape).masked_fill(~mask, -math.inf))
        if biased
        else dict(mask=mask)
    )
    each = torch.stack([attention_weights(q, k, mask=one) for one in mask[:, 0, 0]])
    torch.testing.assert_close(attend(q, k, v, **seen), each.view(7, 1, -1, 3, 5) @ v)


def test_large_numbers_look_at_the_largest_score():
    q = torch.full((1, 4), 1e30)
    k = torch.tensor([[1e30], [1.1e30], [-3e38], [1.1e30]]).expand(4, 4)
    weights = torch.tensor([[0.0, 0.5, 0.0, 0.5]])
    v = torch.arange(8.0).view(4, 2)
    for kind in (torch.float32, torch.float64):
        assert torch.equal(attention_weights(q.to(kind), k.to(kind)), weights.to(kind))
        assert torch.equal(attend(q.to(kind), k.to(kind), v.to(kind)), (weights @ v).to(kind))
    far = [x.double() * 1e250 for x in (q, k)]
    assert torch.equal(attention_weights(*far), weights.double())


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_values_do_not_overflow(dtype: torch.dtype):
    v = torch.full((17, 3), torch.finfo(dtype).max, dtype=dtype)
    assert torch.equal(
        attend(torch.ones(2, 3, dtype=dtype), torch.ones(17, 3, dtype=dtype), v), v[:2]
    )


def test_products_that_cancel_do_not_hide_a_key():
    """-16e38 alone is -inf in float32, and a score of -inf would be hidden although it is 0."""
    q = torch.tensor([[4e19, 4e19, 1.0]])
    k = torch.tensor([[-4e19, 4e19, 0.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(attention_weights(q, k), torch.full((1, 2), 0.5))
    torch.testing.assert_close(attend(q, k, torch.tensor([[1.0], [3.0]])), torch.tensor([[2.0]]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_negative_scale_with_causal(dtype: torch.dtype):
    q, k, v = (torch.randn(1, 1, length, 3).to(dtype) for length in (1, 2, 2))
    torch.testing.assert_close(attend(q, k, v, causal=True, scale=-0.7), v[:, :, :1])


def test_a_large_query_and_a_small_key_leave_room_for_the_bias():
    """1e279 1e-219 1e30 = 1e90, though 1e279 1e30 alone overflows float64."""
    q, k = (
        torch.full((1, 1), 1e279, dtype=torch.float64),
        torch.tensor([[1e-219], [2e-219]], dtype=torch.float64),
    )
    for bias, weights in ((0.0, [0.0, 1.0]), (-5e90, [1.0, 0.0])):
        onto = torch.tensor([0.0, bias], dtype=torch.float64)
        assert attention_weights(q, k, bias=onto, scale=1e30).tolist() == [weights]


def test_scores_beyond_every_range_outweigh_every_bias():
    """Scores of 1e616 and 0.9e616; and a query that sees keys at right angles, of which only the
    bias is left."""
    q = torch.tensor([[1e308, 0.0], [0.0, 1e308]], dtype=torch.float64)
    k = torch.tensor([[1e308, 0.0], [0.9e308, 0.0]], dtype=torch.float64)
    bias = torch.tensor([-1.7e308, 0.0], dtype=torch.float64)
    assert attention_weights(q, k, bias=bias).tolist() == [[1.0, 0.0], [0.0, 1.0]]
    torch.testing.assert_close(
        attention_weights(q[1:], k, bias=bias.new_tensor([0.0, math.log(3)])),
        q.new_tensor([[0.25, 0.75]]),
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_at_the_end_only(dtype: torch.dtype):
    source = torch.Generator().manual_seed(4)
    k = (torch.randn(9, 64, generator=source) * 0.2 + 16).to(dtype)
    q = (torch.randn(7, 64, generator=source) * 0.2 + 16).to(dtype)
    v = torch.randn(9, 5, generator=source).to(dtype)
    exact = attention_weights(q.double(), k.double())
    assert (
        exact.max() > 0.3
    )  # scores of 2048, where neighbours in half precision are 1 or more apart
    off = (attention_weights(q, k).double() - exact).abs().max()
    assert off < torch.finfo(dtype).eps + 1e-3
    assert (attend(q, k, v).double() - exact @ v.double()).abs().max() < 2 * torch.finfo(
        dtype
    ).eps + 3e-3


@unhurried
@given(questions(extreme=False, dtypes=[torch.float64]))
def test_the_way_around_overflow_is_the_same_attention(question: dict[str, Any]):
    q, k, v = (x.requires_grad_() for x in (question["q"], question["k"], question["v"]))
    if not q.shape[-1] or not math.prod(question["lead"]) * q.shape[-2] * v.shape[-1]:
        return
    mask = question["seen"]["mask"]
    mask = None if mask is None else torch.atleast_2d(mask)
    q, k, v = (x.expand(*question["lead"], *x.shape[-2:]) for x in (q, k, v))
    ours = overflow.mean(overflow.weights(q, k, mask, 0.4), v)
    theirs = attend_unchecked(q, k, v, mask=mask, scale=0.4)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    toward = torch.randn(
        ours.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    for a, b in zip(
        torch.autograd.grad(ours, (q, k, v), toward),
        torch.autograd.grad(theirs, (q, k, v), toward),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


# --------------------------------------------------------------------------------------- multi-head


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("size", [1e15, 1e25, 1e30])
def test_multi_head_of_large_numbers(merged: bool, size: float):
    torch.manual_seed(2)
    layer = MultiHead(width=6, heads=2, merged=merged)
    x = torch.randn(2, 5, 6) * (size**0.5 if merged else size)
    seen, weights = layer.forward_with_weights(x, causal=True)
    assert seen.isfinite().all() and weights.isfinite().all()
    exact, exact_weights = layer.double().forward_with_weights(x.double(), causal=True)
    torch.testing.assert_close(weights.double(), exact_weights, rtol=1e-4, atol=1e-4)
    layer.float()
    torch.testing.assert_close(layer(x, causal=True), seen, rtol=1e-4, atol=1e-4 * size)
    torch.testing.assert_close(seen.double(), exact, rtol=1e-3, atol=1e-3 * float(x.abs().max()))
    with torch.no_grad():
        state = layer.start(rows=2)
        for t in range(5):
            step, state = layer.step(x[:, t], state)
            torch.testing.assert_close(
                step, seen[:, t], rtol=1e-4, atol=1e-4 * float(x.abs().max())
            )


def test_multi_head_says_when_its_own_numbers_overflow():
    layer = MultiHead(width=6, heads=2)
    with torch.no_grad():
        layer.query.weight.fill_(3.0)
    with pytest.raises(
        InputError,
        match=r"q: needs finite numbers; got infinity at \(0, 0, 0, 0\) of \(2, 2, 5, 3\)",
    ):
        layer(torch.full((2, 5, 6), 3e38))


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize(("rows", "length"), [(0, 5), (2, 0), (0, 0)])
def test_multi_head_of_nothing(merged: bool, rows: int, length: int):
    layer = MultiHead(width=6, heads=2, merged=merged)
    memory = torch.randn(rows, 3, 6)
    assert layer(torch.randn(rows, length, 6), memory).shape == (rows, length, 6)
    assert layer.forward_with_weights(torch.randn(rows, length, 6), memory)[1].shape == (
        rows,
        2,
        length,
        3,
    )


def test_multi_head_in_half_precision():
    torch.manual_seed(3)
    layer = MultiHead(width=64, heads=1).to(torch.bfloat16)
    with torch.no_grad():
        for part in (layer.query, layer.key):
            part.weight.copy_(torch.eye(64))
            part.bias.zero_()
    x = (torch.randn(1, 9, 64) * 0.2 + 16).to(torch.bfloat16)
    _, weights = layer.forward_with_weights(x)
    exact = attention_weights(x.double(), x.double())
    assert (weights[:, 0].double() - exact).abs().max() < torch.finfo(torch.bfloat16).eps + 1e-3


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_multi_head_can_be_mapped():
    layer = MultiHead(width=6, heads=2)
    x = torch.randn(3, 2, 5, 6)
    torch.testing.assert_close(torch.func.vmap(layer)(x), torch.stack([layer(one) for one in x]))


# ---------------------------------------------------------------------------------------- Maclaurin


def maclaurin_by_loops(
    q: Tensor, k: Tensor, v: Tensor, lead: tuple[int, ...], terms: int, seen: Loops
) -> Loops:
    scores = scores_by_loops(q, k, lead, None)
    weights = sum((scores**n / math.factorial(n) for n in range(terms)), np.zeros_like(scores))
    weights = np.where(seen, weights, 0)
    return mean_by_loops(weights / weights.sum(-1, keepdims=True), v, lead)


@wide
@unhurried
@given(
    question=questions(extreme=False), form=st.sampled_from(FORMS), terms=st.sampled_from([1, 3, 5])
)
def test_maclaurin_over_every_shape(question: dict[str, Any], form: Form, terms: int):
    q, k, v, lead = (question[name] for name in ("q", "k", "v", "lead"))
    context = maclaurin_attention(q, k, v, terms=terms, form=form)
    assert context.shape == (*lead, q.shape[-2], v.shape[-1]) and context.dtype == v.dtype
    every = np.ones((*lead, q.shape[-2], k.shape[-2]), bool)
    expected = maclaurin_by_loops(q, k, v, lead, terms, every)
    allowed = (torch.finfo(v.dtype).eps + (1e-3 if v.dtype.itemsize < 8 else 1e-9)) * np.abs(
        long(v)
    ).max(initial=1)
    assert (np.abs(long(context) - expected) <= allowed).all()


@wide
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("terms", [3, 5])
@pytest.mark.parametrize("size", [1e9, 1e12, 1e30])
def test_maclaurin_of_large_numbers(form: Form, terms: int, size: float):
    source = torch.Generator().manual_seed(6)
    q, k, v = (torch.randn(4, 3, generator=source).abs() for _ in range(3))
    q, k = q * size, k * size
    context = maclaurin_attention(q, k, v, terms=terms, form=form, causal=True)
    expected = maclaurin_by_loops(q, k, v, (), terms, np.tri(4, dtype=bool))
    np.testing.assert_allclose(context.double().numpy(), expected.astype(np.float64), rtol=1e-5)


def test_a_sum_of_weights_that_overflows_is_not_a_context_of_0():
    q, k, v = torch.full((1, 1), 1.7e19), torch.full((9, 1), 1.0), torch.full((9, 1), 0.01)
    torch.testing.assert_close(maclaurin_attention(q, k, v, scale=1.0), torch.full((1, 1), 0.01))


@pytest.mark.parametrize("form", [*FORMS, "auto"])
def test_maclaurin_says_what_is_too_large(form: Form):
    x = torch.full((3, 2), 1e200, dtype=torch.float64)
    message = (
        "q, k, v: numbers too large: their products overflow float64; "
        "got magnitudes up to 1e+200, 1e\\+200, 1"
    )
    with pytest.raises(InputError, match=message.replace("1e+200,", r"1e\+200,", 1)):
        maclaurin_attention(x, x, torch.ones(3, 2, dtype=torch.float64), form=form)


def test_other_maclaurin_functions_say_it_too():
    large = torch.full((3, 2), 1e30)
    with pytest.raises(
        InputError,
        match=r"x: numbers too large: their products overflow float32; got magnitudes up",
    ):
        maclaurin_features(large)
    with pytest.raises(InputError, match=r"numbers too large: their products overflow float32"):
        maclaurin_continue(large, large, large, maclaurin_start(width=2, values=2))
    near = torch.full((3, 2), 1.7e19)
    with pytest.raises(InputError, match=r"numbers too large: their products overflow float32"):
        maclaurin_continue(
            near, torch.ones(3, 2), torch.ones(3, 2), maclaurin_start(width=2, values=2), scale=1.0
        )
    for size in (1e30, 1e200):
        x = torch.full((3, 2), size, dtype=torch.float64)
        for other in (x, x * 0):
            assert not maclaurin_error_bound(x, other).isnan().any()
            assert not maclaurin_error_bound(other, x).isnan().any()
    with pytest.raises(
        InputError, match="terms: the weights of a query sum to nearly 0; got 2; 1 or 3 terms"
    ):
        maclaurin_attention(
            -torch.ones(1, 1), torch.ones(2, 1), torch.ones(2, 1), terms=2, allow_negative=True
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_maclaurin_steps_in_half_precision_add_up_in_float(dtype: torch.dtype):
    """3000 equal keys: in float16 the count stops at 2048, in bfloat16 at 256."""
    q, k = torch.ones(3000, 2, dtype=dtype), torch.ones(3000, 2, dtype=dtype)
    v = torch.cat([torch.zeros(1500, 1), torch.ones(1500, 1)]).to(dtype)
    state = maclaurin_start(width=2, values=1, dtype=dtype)
    context = v[0]
    for at in range(3000):
        context, state = maclaurin_step(q[at], k[at], v[at], state)
    assert context.dtype == dtype and abs(float(context) - 0.5) < 0.01
    assert abs(float(maclaurin_attention(q, k, v, causal=True)[-1]) - 0.5) < 0.01
    assert maclaurin_error_bound(q[:2], k[:2]).dtype == dtype
