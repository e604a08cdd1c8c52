"""Linear attention by the Maclaurin series: four forms, one operator, and it is the one of the
formula."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from regard.errors import InputError
from regard.layers import maclaurin, monomials, native
from regard.layers.attention import attention_weights
from regard.layers.maclaurin import (
    FORMS,
    Form,
    MaclaurinState,
    cheapest,
    maclaurin_attention,
    maclaurin_continue,
    maclaurin_error_bound,
    maclaurin_features,
    maclaurin_start,
    maclaurin_step,
)

B, H, L, S, K, E = 2, 3, 11, 13, 5, 7


# BPE, chunks and blocks of a few places, so that short sequences cross their borders.
SMALL = {
    (maclaurin, "CHUNK"): 4,
    (maclaurin, "SCORES"): 50,
    (maclaurin, "SEGMENT"): 60,
    (monomials, "PLACES"): 5,
    (monomials, "PIECE"): 500,
    (monomials, "STEP"): 2,
}


@pytest.fixture(autouse=True)
def small(request, monkeypatch):
    """Small sizes, but for the tests that ask for the `usual` ones."""
    if "usual" not in request.fixturenames:
        for (module, name), size in SMALL.items():
            monkeypatch.setattr(module, name, size)
    monomials._layout.cache_clear()
    torch.manual_seed(3)
    yield
    monomials._layout.cache_clear()


@pytest.fixture
def usual():
    """The sizes of real use."""


def rand(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=grad)


def close(a: torch.Tensor, b: torch.Tensor, limit: float = 1e-11) -> None:
    torch.testing.assert_close(a, b, rtol=limit, atol=limit)


def series(t: torch.Tensor, terms: int) -> torch.Tensor:
    return sum(t**n / math.factorial(n) for n in range(terms)) + 0 * t


def definition(q, k, v, *, terms=3, causal=False, scale=None, mask=None) -> torch.Tensor:
    """The formula, as it stands."""
    weights = series(q @ k.mT * (k.shape[-1] ** -0.5 if scale is None else scale), terms)
    if mask is not None:
        weights = weights * mask[..., None, :]
    if causal:
        weights = weights.tril()
    return weights @ v / weights.sum(-1, keepdim=True)


def key_mask(*shape: int) -> torch.Tensor:
    mask = torch.rand(*shape) < 0.6
    mask[..., 0] = True
    return mask


# ----------------------------------------------------------------------------------------- features


@pytest.mark.parametrize("basis", ["symmetric", "full"])
@pytest.mark.parametrize("terms", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("width", [1, 2, 5])
def test_features_multiply_to_the_series(width: int, terms: int, basis):
    q, k = rand(7, width), rand(3, width)
    phi_q, phi_k = maclaurin_features(q, terms, basis), maclaurin_features(k, terms, basis)
    close(phi_q @ phi_k.mT, series(q @ k.mT, terms))
    by_hand = (
        sum(width**n for n in range(terms))
        if basis == "full"
        else math.comb(width + terms - 1, width)
    )
    assert phi_q.shape == (7, by_hand)


def test_features_of_known_sizes():
    for width, full, symmetric in ((5, 31, 21), (64, 4161, 2145)):
        assert maclaurin_features(torch.zeros(width), basis="full").shape == (full,)
        assert maclaurin_features(torch.zeros(width)).shape == (symmetric,)


def test_monomials_stand_in_the_order_of_itertools():
    x = rand(5)
    expected = [
        math.prod(x[list(axes)].tolist())
        for degree in range(4)
        for axes in itertools.combinations_with_replacement(range(5), degree)
    ]
    close(monomials.monomials(x, 4), torch.tensor(expected, dtype=torch.float64))
    piece, layout = x[None, :, None].expand(2, 5, 3).contiguous(), monomials._layout(5, 4)
    filled = monomials.fill(piece, 4, torch.empty(2, layout.features, 3, dtype=torch.float64))
    close(filled[1, layout.where, 2], torch.tensor(expected, dtype=torch.float64))


def test_what_inference_leaves_behind_is_good_for_training():
    monomials._recipe.cache_clear()
    monomials._weights.cache_clear()
    with torch.inference_mode():
        maclaurin_features(rand(5), 4)
    x = rand(5, grad=True)
    maclaurin_features(x, 4).sum().backward()
    assert x.grad is not None


def test_features_have_gradients():
    torch.autograd.gradcheck(lambda x: maclaurin_features(x, 4), (rand(3, 5, grad=True),))
    torch.autograd.gradcheck(lambda x: maclaurin_features(x, 3, "full"), (rand(3, 5, grad=True),))


# ------------------------------------------------------------------------- one operator, four forms


@pytest.mark.parametrize("form", ["auto", *FORMS])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("terms", [2, 3, 5])
def test_every_form_is_the_formula(form, causal: bool, masked: bool, terms: int):
    q, k, v = rand(B, H, S if causal else L, K) / 3, rand(B, H, S, K), rand(B, H, S, E)
    mask = key_mask(B, 1, S) if masked else None
    ours = maclaurin_attention(
        q, k, v, terms=terms, causal=causal, form=form, mask=mask, allow_negative=True
    )
    close(ours, definition(q, k, v, terms=terms, causal=causal, mask=mask), 1e-9)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_are_those_of_the_formula(form, causal: bool, masked: bool):
    inputs = (
        rand(B, H, S if causal else L, K, grad=True),
        rand(B, H, S, K, grad=True),
        rand(B, H, S, E, grad=True),
    )
    options: dict[str, Any] = dict(causal=causal, mask=key_mask(B, 1, S) if masked else None)
    after = rand(B, H, S if causal else L, E)
    ours = torch.autograd.grad(maclaurin_attention(*inputs, form=form, **options), inputs, after)
    theirs = torch.autograd.grad(definition(*inputs, **options), inputs, after)
    for mine, its in zip(ours, theirs, strict=True):
        close(mine, its, 1e-9)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("terms", [3, 4])
def test_gradcheck(form, causal: bool, terms: int):
    q, k, v = rand(2, 5, 3, grad=True), rand(2, 5, 3, grad=True), rand(2, 5, 2, grad=True)
    mask = key_mask(2, 5)

    def run(q, k, v):
        return maclaurin_attention(
            q,
            k,
            v,
            terms=terms,
            causal=causal,
            form=form,
            mask=mask,
            scale=0.3,
            allow_negative=True,
        )

    assert torch.autograd.gradcheck(run, (q, k, v), fast_mode=True)


@pytest.mark.parametrize("form", FORMS)
def test_one_term_is_the_mean_and_looks_nowhere(form):
    q, k, v = rand(L, K, grad=True), rand(S, K, grad=True), rand(S, E, grad=True)
    context = maclaurin_attention(q, k, v, terms=1, form=form)
    close(context, v.mean(0).expand(L, E))
    dq, dk, dv = torch.autograd.grad(context, (q, k, v), torch.ones_like(context))
    assert not dq.any() and not dk.any()
    close(dv, torch.full_like(v, L / S))


def test_a_second_gradient_says_that_it_is_not_there():
    q, k, v = rand(5, 3, grad=True), rand(5, 3), rand(5, 2)
    for form in FORMS:
        (first,) = torch.autograd.grad(
            maclaurin_attention(q, k, v, form=form).square().sum(), q, create_graph=True
        )
        with pytest.raises(RuntimeError, match="once_differentiable"):
            first.sum().backward()


@pytest.mark.parametrize("form", FORMS)
def test_leading_axes_broadcast(form):
    q, k, v = rand(B, H, L, K), rand(B, 1, S, K), rand(S, E)
    mask = key_mask(B, 1, S)
    close(maclaurin_attention(q, k, v, form=form, mask=mask), definition(q, k, v, mask=mask))
    close(maclaurin_attention(q[0, 0], k[0, 0], v, form=form), definition(q[0, 0], k[0, 0], v))


@pytest.mark.parametrize("scale", [None, 0.7, -0.7, 0.0])
def test_any_scale(scale):
    q, k, v = rand(L, K), rand(S, K), rand(S, E)
    for form in FORMS:
        close(
            maclaurin_attention(q, k, v, form=form, scale=scale), definition(q, k, v, scale=scale)
        )


def test_half_precision_is_computed_in_float():
    q, k, v = (torch.randn(S, K, dtype=torch.bfloat16) for _ in range(3))
    for form in FORMS:
        ours = maclaurin_attention(q, k, v, form=form)
        assert ours.dtype == torch.bfloat16
        torch.testing.assert_close(
            ours, definition(q.float(), k.float(), v.float()).bfloat16(), rtol=0.01, atol=0.01
        )


def test_more_terms_come_nearer_to_softmax():
    q, k, v = rand(L, K), rand(S, K), rand(S, E)
    exact = attention_weights(q, k) @ v
    errors = [
        float((maclaurin_attention(q, k, v, terms=n) - exact).abs().max()) for n in (1, 3, 5, 7, 15)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-3 < errors[0]


# -------------------------------------------------------------------------------------------- state


def test_steps_are_the_causal_form_and_leave_the_old_state_alone():
    q, k, v = rand(B, H, S, K), rand(B, H, S, K), rand(B, H, S, E)
    whole = maclaurin_attention(q, k, v, causal=True)
    state = maclaurin_start(B, H, width=K, values=E, dtype=torch.float64)
    for t in range(S):
        again, _ = maclaurin_step(q[..., t, :], k[..., t, :], v[..., t, :], state)
        context, state = maclaurin_step(q[..., t, :], k[..., t, :], v[..., t, :], state)
        close(context, whole[..., t, :])
        close(context, again)
    assert state.sums.shape == (B, H, 21, E + 1)
    close(state.sums[..., 0, -1], torch.full((B, H), float(S), dtype=torch.float64))


@pytest.mark.parametrize("causal", [False, True])
def test_a_sequence_may_come_in_pieces(causal: bool):
    q, k, v, mask = rand(B, H, S, K), rand(B, H, S, K), rand(B, H, S, E), key_mask(B, 1, S)
    whole = maclaurin_attention(q, k, v, causal=causal, mask=mask)
    state = maclaurin_start(B, H, width=K, values=E, dtype=torch.float64)
    contexts, at = [], 0
    for size in (1, 5, 7):
        part = slice(at, at + size)
        queries = q[..., part, :] if causal else q[..., :0, :]
        context, state = maclaurin_continue(
            queries, k[..., part, :], v[..., part, :], state, causal=causal, mask=mask[..., part]
        )
        contexts.append(context)
        at += size
    if not causal:  # all keys taken in; now the queries, without keys
        contexts.append(maclaurin_continue(q, k[..., :0, :], v[..., :0, :], state, causal=False)[0])
    close(torch.cat(contexts, -2), whole)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_flow_through_the_state(causal: bool):
    q, k, v = rand(2, 6, 3, grad=True), rand(2, 6, 3, grad=True), rand(2, 6, 2, grad=True)
    empty = maclaurin_start(2, width=3, values=2, dtype=torch.float64)
    start = maclaurin_continue(rand(2, 5, 3), rand(2, 5, 3), rand(2, 5, 2), empty)[
        1
    ].sums.requires_grad_()

    def run(q, k, v, start):
        context, state = maclaurin_continue(q, k, v, MaclaurinState(start), causal=causal)
        return context, state.sums

    assert torch.autograd.gradcheck(run, (q, k, v, start), fast_mode=True)


# ------------------------------------------------------------------------------------------- kernel


@pytest.fixture
def kernel(usual):
    if native.library() is None:
        pytest.skip("no C compiler here")


def float32(
    form: Form, sizes: tuple[int, ...], on: str, monkeypatch, **options
) -> list[torch.Tensor]:
    """Context and gradients in single precision, with the kernel or without it."""
    monkeypatch.setenv("REGARD_NATIVE", on)
    rows, length, source, width, values = sizes
    make = torch.Generator().manual_seed(5)
    shapes = (rows, length, width), (rows, source, width), (rows, source, values)
    q, k, v = (torch.randn(shape, generator=make).requires_grad_() for shape in shapes)
    context = maclaurin_attention(q, k, v, form=form, **options)
    after = torch.randn(context.shape, generator=make)
    return [context.detach(), *torch.autograd.grad(context, (q, k, v), after)]


# Widths with every kind of tail, lengths below, at and beyond the borders of blocks of 128 and
# chunks of 64.
SIZES = [
    (1, 1, 1, 1, 1),
    (3, 7, 131, 5, 3),
    (2, 257, 16, 16, 17),
    (5, 64, 300, 31, 8),
    (2, 130, 129, 37, 35),
    (1, 128, 65, 64, 270),
]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_the_kernel_computes_what_torch_computes(
    kernel, sizes, causal: bool, masked: bool, monkeypatch
):
    if causal:
        sizes = (sizes[0], sizes[2], *sizes[2:])
    mask = key_mask(sizes[0], sizes[2]) if masked else None
    options = dict(causal=causal, mask=mask, scale=0.4 / sizes[3] ** 0.5)
    ours = float32("chunked", sizes, "1", monkeypatch, **options)
    theirs = float32("chunked", sizes, "0", monkeypatch, **options)
    for mine, its in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-6 + 1e-5 * float(its.abs().max()))


def test_the_kernel_takes_and_returns_a_state(kernel, monkeypatch):
    q, k, v = (torch.randn(2, 211, 17) for _ in range(3))
    whole = maclaurin_attention(q, k, v, causal=True, form="chunked")
    for on in "1", "0":
        monkeypatch.setenv("REGARD_NATIVE", on)
        state, contexts = maclaurin_start(2, width=17, values=17), []
        for part in (slice(0, 100), slice(100, 211)):
            context, state = maclaurin_continue(q[:, part], k[:, part], v[:, part], state)
            contexts.append(context)
        torch.testing.assert_close(torch.cat(contexts, 1), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_the_kernel_does_not_care_how_many_threads_there_are(
    kernel, threads: int, rows: int, monkeypatch
):
    before = torch.get_num_threads()
    expected = float32("chunked", (rows, 300, 517, 9, 5), "0", monkeypatch)
    try:
        torch.set_num_threads(threads)
        once, again = (
            float32("chunked", (rows, 300, 517, 9, 5), "1", monkeypatch) for _ in range(2)
        )
    finally:
        torch.set_num_threads(before)
    for mine, same, its in zip(once, again, expected, strict=True):
        assert torch.equal(mine, same)
        torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-6 + 1e-5 * float(its.abs().max()))


def test_the_kernel_is_used_where_it_can_be_and_only_there(kernel, monkeypatch):
    x = torch.zeros(3, 4)
    monkeypatch.delenv("REGARD_NATIVE", raising=False)
    assert native.takes(x, 3)
    assert not native.takes(x, 5)
    assert not native.takes(x.double(), 3)
    monkeypatch.setenv("REGARD_NATIVE", "0")
    assert not native.takes(x, 3)


@pytest.mark.parametrize("trouble", ["no compiler", "compiler fails", "not a library", "no folder"])
def test_without_the_kernel_torch_does_the_work(trouble: str, tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    monkeypatch.delenv("REGARD_NATIVE", raising=False)
    native.library.cache_clear()
    try:
        if trouble == "no compiler":
            monkeypatch.setattr("shutil.which", lambda name: None)
        elif trouble == "no folder":
            (tmp_path / "native").write_text("in the way")
        else:
            compiler = tmp_path / "cc"
            compiler.write_text(
                "#!/bin/sh\n"
                + (
                    "exit 1"
                    if trouble == "compiler fails"
                    else 'for to; do :; done; echo no > "$to"'
                )
            )
            compiler.chmod(0o755)
            monkeypatch.setenv("CC", str(compiler))
        assert native.library() is None
        assert maclaurin_attention(
            *(torch.randn(5, 3) for _ in range(3)), form="chunked"
        ).shape == (5, 3)
    finally:
        native.library.cache_clear()


def test_the_kernel_is_built_once(kernel, tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    native.library.cache_clear()
    try:
        assert native.library() is not None
        (built,) = (tmp_path / "native").iterdir()  # and no drafts
        native.library.cache_clear()
        monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("built again"))
        assert native.library() is not None
        assert built.name.startswith("regard-")
    finally:
        native.library.cache_clear()


# ------------------------------------------------------------------------------------------- memory


class Largest(TorchDispatchMode):
    """The numbers of the largest tensor that any operation makes."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.numbers = max(
                    self.numbers, tensor.untyped_storage().nbytes() // tensor.element_size()
                )
        return out


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("causal", [False, True])
def test_no_features_of_all_places_are_made_or_saved(form, causal: bool, monkeypatch):
    places, width = 331, 11
    monkeypatch.setattr(maclaurin, "SCORES", 64 * places)
    monkeypatch.setattr(maclaurin, "CHUNK", 64)
    monkeypatch.setattr(monomials, "PLACES", 64)
    monkeypatch.setattr(monomials, "PIECE", 5000)
    features = monomials.how_many(width, 3)  # 78, far above the width
    inputs = [torch.randn(places, width, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    saved = []

    def note(tensor):
        saved.append(tensor.numel())
        return tensor

    with (
        Largest() as largest,
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
    ):
        maclaurin_attention(*inputs, form=form, causal=causal).sum().backward()
    assert max(saved) <= max(places * (width + 1), features * (width + 1))
    assert largest.numbers < places * features


# -------------------------------------------------------------------------------------------- bound


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    terms=st.integers(1, 8),
    norm=st.floats(0.01, 6),
    width=st.integers(1, 6),
    places=st.integers(1, 9),
)
def test_the_bound_holds(seed: int, terms: int, norm: float, width: int, places: int):
    make = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(places, width, generator=make, dtype=torch.float64) * norm for _ in range(3)
    )
    weights = series(q @ k.mT * width**-0.5, terms)
    off = (weights / weights.sum(-1, keepdim=True) - attention_weights(q, k)).abs().sum(-1)
    bound = maclaurin_error_bound(q, k, terms)
    assert (off <= bound + 1e-12).all()
    if terms % 2:
        far = (maclaurin_attention(q, k, v, terms=terms) - attention_weights(q, k) @ v).abs()
        assert (far <= bound[:, None] / 2 * (v.amax(0) - v.amin(0)) + 1e-10).all()


def test_the_bound_is_worth_something():
    q, k = rand(5, 4) / 10, rand(7, 4) / 10
    assert (maclaurin_error_bound(q, k, 3) < 1e-3).all()
    assert (maclaurin_error_bound(q, k, 5) < maclaurin_error_bound(q, k, 3)).all()
    assert (maclaurin_error_bound(q * 1e3, k * 1e3, 3) == 2).all()
    assert (maclaurin_error_bound(q * 1e3, k * 1e3, 4) == math.inf).all()
    assert (maclaurin_error_bound(q * 0, k, 3) == 0).all()


# --------------------------------------------------------------------------------------------- auto


def test_auto_is_quadratic_for_short_and_linear_for_long_sequences(usual):
    for width, causal, kernel in itertools.product((16, 32, 64), (False, True), (False, True)):
        lengths = [2**n for n in range(6, 17)]
        forms = [
            cheapest(2, n, n, width, width, terms=3, causal=causal, kernel=kernel) for n in lengths
        ]
        short = [form == "quadratic" for form in forms]
        assert short == sorted(short, reverse=True)  # once it is linear, it stays so
        assert not short[-1]
        assert short[0] or (kernel and width == 16)  # whose call is as cheap


# ---------------------------------------------------------------------------------------- bad input


def refused(match: str, *tensors: torch.Tensor, **options) -> None:
    with pytest.raises(InputError, match=match):
        maclaurin_attention(*tensors, **options)


def test_bad_shapes_are_named():
    q, k, v = rand(L, K), rand(S, K), rand(S, E)
    refused(r"q: needs the shape \(…, L, K\); got \(5\)", q[0], k, v)
    refused(r"k: needs the width of q: \(…, S, 5\); got \(13, 3\)", q, k[:, :3], v)
    refused(r"v: needs as many places as k: \(…, 13, E\); got \(12, 7\)", q, k, v[:-1])
    refused(r"k: needs at least one key", q, k[:0], v[:0])
    refused(
        r"v: needs leading axes that broadcast with \(2,\).*got \(3,\)",
        q.expand(2, L, K),
        k,
        v.expand(3, S, E),
    )
    refused(
        r"mask: needs one value a key: \(…, 13\); got \(11\)",
        q,
        k,
        v,
        mask=torch.ones(L, dtype=torch.bool),
    )
    refused(
        r"mask: needs booleans, True = may be attended to; got torch.float32",
        q,
        k,
        v,
        mask=torch.ones(S),
    )
    refused(
        r"k: causal attention needs as many queries as keys: \(…, 11, 5\); got \(13, 5\)",
        q,
        k,
        v,
        causal=True,
    )
    refused(r"k: needs the type of q, torch.float64; got torch.float32", q, k.float(), v)
    refused(r"q: needs floating-point numbers; got torch.int64", q.long(), k, v)


def test_bad_numbers_are_named():
    q, k, v = rand(L, K), rand(S, K), rand(S, E)
    k[2, 3] = math.nan
    refused(r"k: needs finite numbers; got NaN at \(2, 3\) of \(13, 5\)", q, k, v)
    k[2, 3], v[4, 1] = 0, math.inf
    refused(r"v: needs finite numbers; got infinity at \(4, 1\) of \(13, 7\)", q, k, v)


def test_rows_that_see_nothing_are_named():
    q, k, v = rand(B, L, K), rand(B, L, K), rand(B, L, E)
    mask = torch.ones(B, L, dtype=torch.bool)
    mask[1] = False
    refused(r"mask: hides every key; got row \(1,\) of \(2, 11\); allow", q, k, v, mask=mask)
    mask[1, 1:] = True
    refused(r"mask: hides the first key.*got row \(1,\)", q, k, v, mask=mask, causal=True)
    maclaurin_attention(q, k, v, mask=mask)


def test_bad_options_are_named():
    q, k, v = rand(L, K), rand(S, K), rand(S, E)
    for terms in (0, -1, True):
        refused(f"terms: needs a whole number of at least 1; got {terms}", q, k, v, terms=terms)
    refused(
        "terms: 4 terms have the odd top degree 3.*use 3 or 5, or allow_negative=True",
        q,
        k,
        v,
        terms=4,
    )
    refused("scale: needs a finite number; got inf", q, k, v, scale=math.inf)
    with pytest.raises(InputError, match="terms: needs a whole number"):
        maclaurin_features(q, 0)


def test_features_that_would_not_fit_are_refused():
    q = k = v = torch.zeros(3, 4096)
    for form in ("parallel", "chunked", "recurrent"):
        refused(
            r"terms: too many features.*k \(3, 4096\) with 5 terms.*GiB.*form=\"quadratic\"",
            q,
            k,
            v,
            terms=5,
            form=form,
        )
    assert maclaurin_attention(q, k, v, terms=5).shape == (3, 4096)  # auto knows
    with pytest.raises(InputError, match="terms: too many features"):
        maclaurin_features(q, 5)


def test_bad_states_are_named():
    state = maclaurin_start(width=K, values=E, dtype=torch.float64)
    q, k, v = rand(K), rand(K), rand(E)
    with pytest.raises(
        InputError, match=r"state: 3 terms, .* need sums \(…, 21, 7\); got \(21, 8\)"
    ):
        maclaurin_step(q, k, v[:-1], state)
    with pytest.raises(InputError, match=r"q: needs the width of k: \(…, 5\)"):
        maclaurin_step(q[:-1], k, v, state)
    with pytest.raises(InputError, match="as many queries as keys"):
        maclaurin_continue(rand(2, K), rand(3, K), rand(3, E), state)
