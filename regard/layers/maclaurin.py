"""Linear attention: the exponential of softmax replaced by the first terms of its Maclaurin series.

    w(q, k) = sum_{n<terms} (scale q . k)^n / n!  ~  exp(scale q . k)
    context(q) = sum_s w(q, k_s) v_s / sum_s w(q, k_s)

The weight is a product of features (see `monomials`), w(q, k) = phi(q) . phi(k), so both sums over
the keys can be computed once for all queries: sums = Phi(K)^T [V | 1], context = Phi(Q) sums, where
the last column is the normaliser. That is O((L + S) M E) instead of O(L S (K + E)), and the sums
are all that the next token needs of the keys before it.

Four forms compute the same numbers:

    quadratic   polynomial of the scores, no features; the fastest for short sequences
    parallel    sums of all keys (causal: of each chunk, and their prefix sums), then all queries
    chunked     one pass with running sums; causal: the quadratic form inside a chunk, the sums for
                the chunks before it
    recurrent   one token after the other

and `auto` chooses one by `cheapest`. For gradients, q, k, v, the sums, the context and its
normaliser are saved, never features. Second derivatives are not implemented: asking for them raises
torch's error (once_differentiable).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.device import without_autocast
from regard.errors import InputError
from regard.layers import checks, monomials, native

Basis = Literal["symmetric", "full"]
Form = Literal["auto", "quadratic", "parallel", "chunked", "recurrent"]
FORMS = ("quadratic", "parallel", "chunked", "recurrent")
CHUNK = 256  # positions of a chunk of the causal forms
SCORES = 1 << 18  # scores that exist at a time
SEGMENT = 8192  # positions, of all rows together, whose numerators exist at a time


@dataclass(frozen=True)
class MaclaurinState:
    """The state of linear attention: the sums Phi(K)^T [V | 1] over the keys so far.

    The last column of the first row is the number of keys.

    >>> state = maclaurin_start(width=2, values=3)
    >>> context, state = maclaurin_step(torch.ones(2), torch.ones(2), torch.ones(3), state)
    >>> context.tolist(), int(state.sums[0, -1])
    ([1.0, 1.0, 1.0], 1)
    """

    sums: Float[Tensor, "*batch M E"]


def maclaurin_features(
    x: Tensor, terms: int = 3, basis: Basis = "symmetric"
) -> Float[Tensor, "*rows M"]:
    """The features phi(x) with phi(q) . phi(k) = sum_{n<terms} (q . k)^n / n!, for x (…, D) and
    terms >= 1.

    symmetric: one feature for each monomial, M = C(D + terms - 1, D), the fewest possible.
    full: every product x_a x_b …, M = (D^terms - 1)/(D - 1).

    >>> x = torch.zeros(5)
    >>> maclaurin_features(x).shape, maclaurin_features(x, basis="full").shape
    (torch.Size([21]), torch.Size([31]))
    >>> q, k = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -1.0])  # q . k = 1
    >>> round(float(maclaurin_features(q) @ maclaurin_features(k)), 4)
    2.5
    """
    _check_terms(terms, allow_negative=True)
    if x.ndim < 1 or x.shape[-1] < 1:
        raise InputError("needs the shape (…, D) with D >= 1", where="x", got=checks.shape(x))
    if not x.is_floating_point():
        raise InputError("needs floating-point numbers", where="x", got=x.dtype)
    width, places = x.shape[-1], x.shape[:-1].numel()
    checks.one_of("basis", basis, Basis)
    if basis == "symmetric":
        count = monomials.how_many(width, terms)
    else:
        count = sum(width**n for n in range(terms))
    checks.fits(
        count * max(1, places),
        x.element_size(),
        what=f"{places:,} places x {count:,} features",
        hint="fewer terms, or fewer places at a time",
    )
    if basis == "symmetric":
        features = monomials.monomials(x, terms) * monomials.weights(width, terms, x).sqrt()
    else:
        by_degree = [x.new_ones(*x.shape[:-1], 1)]
        for degree in range(1, terms):
            products = (by_degree[-1][..., :, None] * x[..., None, :]).flatten(-2)
            by_degree.append(products / math.sqrt(degree))
        features = torch.cat(by_degree, -1)
    checks.result(features, x=x)
    return features


def maclaurin_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    terms: int = 3,
    causal: bool = False,
    scale: float | None = None,
    form: Form = "auto",
    mask: Tensor | None = None,
    allow_negative: bool = False,
) -> Float[Tensor, "*batch L E"]:
    """Linear attention: the context (…, L, E) of each query, for q (…, L, K), k (…, S, K),
    v (…, S, E) and a key mask (…, S), True = may be attended to.

    An even number of `terms` has an odd top degree, whose weights can be negative (degree 3 at
    t = -10: -125.7); it is an InputError without `allow_negative`. `scale` is 1/sqrt(K) by default.
    With `causal`, query i attends to the keys 0..i, and there must be as many queries as keys.

    Every size but S may be 0; with K = 0 all scores are 0. Half precision is computed in float32,
    and numbers whose products could overflow float32 in float64; numbers whose products could
    overflow float64 are an InputError.

    >>> x = torch.eye(3)
    >>> maclaurin_attention(x, x, x, scale=1.0)[0]  # weights 1 + 1 + 1/2, 1 and 1 of 4.5
    tensor([0.5556, 0.2222, 0.2222])
    """
    _check_terms(terms, allow_negative)
    if scale is not None and not math.isfinite(scale):
        raise InputError("needs a finite number", where="scale", got=scale)
    lead = checks.queries_keys_values(q, k, v, mask)
    checks.one_of("form", form, Form)
    if causal and q.shape[-2] != k.shape[-2]:
        raise InputError(
            f"causal attention needs as many queries as keys: (…, {q.shape[-2]}, {k.shape[-1]})",
            where="k",
            got=checks.shape(k),
            hint="cut the longer one, or use maclaurin_continue",
        )
    checks.every_query_has_a_key(mask, causal=causal)
    dtype = v.dtype
    if not q.shape[-1]:
        q, k = (torch.nn.functional.pad(x, (0, 1)) for x in (q, k))
    if not _fits(q, k, v, terms, scale, dtype if dtype.itemsize >= 4 else torch.float32):
        if not _fits(q, k, v, terms, scale, torch.float64):
            raise checks.too_large(
                dict(zip("qkv", checks.finite(q=q, k=k, v=v), strict=True)), torch.float64
            )
        q, k, v = q.double(), k.double(), v.double()
    context = unchecked_attention(
        q, k, v, lead, terms=terms, causal=causal, scale=scale, form=form, mask=mask
    )
    context = context.to(dtype)
    if not checks.all_finite(context):
        hint = (
            "smaller numbers"
            if terms % 2
            else f"{terms - 1} or {terms + 1} terms, whose weights are never negative"
        )
        raise InputError(
            "the weights of a query sum to nearly 0", where="terms", got=terms, hint=hint
        )
    return context


def unchecked_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lead: tuple[int, ...],
    *,
    terms: int,
    causal: bool = False,
    scale: float | None = None,
    form: Form = "auto",
    mask: Tensor | None = None,
) -> Float[Tensor, "*batch L E"]:
    """`maclaurin_attention` without checks, for layers; `lead` are the leading axes of q, k and v
    together."""
    if q.dtype.itemsize < 4:
        single = (q.float(), k.float(), v.float())
        with without_autocast(q.device):
            context = unchecked_attention(
                *single, lead, terms=terms, causal=causal, scale=scale, form=form, mask=mask
            )
        return context.to(v.dtype)
    rows = math.prod(lead)
    if form == "auto":
        form = cheapest(
            max(1, rows),
            q.shape[-2],
            k.shape[-2],
            k.shape[-1],
            v.shape[-1],
            terms=terms,
            causal=causal,
            kernel=native.takes(q, terms),
        )
    if form != "quadratic":
        _check_room(k, v, terms, rows)
    flat = _flatten(q, k, v, mask, lead)
    scale = _scale(q, scale)
    if form == "quadratic":
        context = _Quadratic.apply(*flat, scale, terms, causal)
    else:
        context = _Linear.apply(*flat, None, scale, terms, causal, form)[0]
    return context.reshape(*lead, q.shape[-2], v.shape[-1]).to(v.dtype)


def maclaurin_start(
    *batch: int,
    width: int,
    values: int,
    terms: int = 3,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> MaclaurinState:
    """The state before the first key, for `batch` rows with keys of `width` and values of width
    `values`.

    For a half-precision `dtype` the sums are float32: in half precision they would stop growing.

    >>> maclaurin_start(2, 7, width=5, values=3).sums.shape
    torch.Size([2, 7, 21, 4])
    """
    _check_terms(terms, allow_negative=True)
    if dtype is not None and dtype.itemsize < 4:
        dtype = torch.float32
    return MaclaurinState(
        torch.zeros(
            *batch, monomials.how_many(width, terms), values + 1, dtype=dtype, device=device
        )
    )


def maclaurin_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: MaclaurinState,
    *,
    terms: int = 3,
    scale: float | None = None,
) -> tuple[Float[Tensor, "*batch E"], MaclaurinState]:
    """One token with q (…, K), k (…, K), v (…, E): its context, and the state with its key added.

    Equals one position of `maclaurin_attention(…, causal=True)`. It does not check for NaN, because
    a step must be fast.
    """
    _check_state(q[..., None, :], k[..., None, :], v[..., None, :], state, terms)
    dtype = v.dtype
    if dtype.itemsize < 4:
        q, k, v = q.float(), k.float(), v.float()
    key_features = monomials.monomials(k, terms) * monomials.weights(k.shape[-1], terms, k)
    sums = state.sums + key_features[..., None] * _with_last(v, None)[..., None, :]
    query_features = monomials.monomials(q * _scale(q, scale), terms)
    numerators = (query_features[..., None, :] @ sums)[..., 0, :]
    context = numerators[..., :-1] / numerators[..., -1:]
    return context.to(dtype), MaclaurinState(sums)


def maclaurin_continue(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: MaclaurinState,
    *,
    terms: int = 3,
    causal: bool = True,
    scale: float | None = None,
    mask: Tensor | None = None,
) -> tuple[Float[Tensor, "*batch L E"], MaclaurinState]:
    """A piece of a long sequence, in chunked form: the context of its queries, and the state with
    its keys added.

    Shapes are those of `maclaurin_attention`, with the state's rows. Gradients flow through the
    state. With causal=False every query attends to all keys of the state and of the piece; then L
    and S may differ, and either may be 0: keys without a query are only added to the state, and
    queries without a key only read it.
    """
    _check_state(q, k, v, state, terms)
    if causal and q.shape[-2] != k.shape[-2]:
        message = f"a causal piece needs as many queries as keys: (…, {q.shape[-2]}, {k.shape[-1]})"
        raise InputError(message, where="k", got=checks.shape(k))
    lead = state.sums.shape[:-2]
    flat = _flatten(q, k, v, mask, lead)
    start = state.sums.to(flat[2].dtype).reshape(-1, *state.sums.shape[-2:]).contiguous()
    context, sums = _Linear.apply(*flat, start, _scale(q, scale), terms, causal, "chunked")
    checks.result(context, sums, q=q, k=k, v=v)
    largest_q, largest_sum = checks.finite(q=q, sums=sums)
    # The normaliser must not overflow: the logarithm of a bound on it.
    log_feature = math.log(max(1.0, abs(_scale(q, scale)) * largest_q)) * (terms - 1)
    log_product = log_feature + math.log(max(1.0, largest_sum))
    log_limit = math.log(torch.finfo(sums.dtype).max / 4)
    if log_product + math.log(sums.shape[-2]) > log_limit:
        raise checks.too_large({"q": largest_q, "sums": largest_sum}, sums.dtype)
    context = context.reshape(*lead, q.shape[-2], v.shape[-1]).to(v.dtype)
    return context, MaclaurinState(sums.view(state.sums.shape))


def maclaurin_error_bound(
    q: Tensor, k: Tensor, terms: int = 3, *, scale: float | None = None
) -> Float[Tensor, "*batch L"]:
    """For each query, an upper bound of sum_s |softmax weight - Maclaurin weight| over the keys,
    for any mask.

    With t = scale |q| max_s |k_s|, every score is within [-t, t]. By the remainder of Taylor's
    theorem the series is off by at most |score|^n / n! max(1, exp(score)), n = terms, so by at most
    t^n / n! e^t times exp(score). Summed and normalised, the weights differ by at most twice that
    factor, and by at most 2 in any case if none is negative. Where an odd top degree could make one
    negative, the bound is infinity.

    A context then differs by at most (bound / 2) (max v - min v) in each of its coordinates.

    >>> maclaurin_error_bound(torch.ones(1, 4), torch.ones(3, 4) / 10)  # t = 0.2
    tensor([0.0033])
    """
    _check_terms(terms, allow_negative=True)
    checks.queries_keys_values(q, k, k)
    checks.finite(q=q, k=k)
    longest_key = _norm(k).amax(-1, keepdim=True)
    t = abs(_scale(q, scale)) * _norm(q) * longest_key  # (…, L)
    t = torch.nan_to_num(t, nan=0.0)  # 0 times a norm that overflows
    bound = (2 * torch.exp(t + terms * t.log() - math.lgamma(terms + 1))).clamp(max=2)
    if terms % 2 == 0:
        bound = torch.where(polynomial(-t, terms) > 0, bound, math.inf)
    return bound.to(q.dtype)


def _norm(x: Float[Tensor, "*batch L K"]) -> Float[Tensor, "*batch L"]:
    return torch.linalg.vector_norm(x.double(), dim=-1)


# Costs for `cheapest`, in picoseconds of one core (AMD EPYC with AVX2, 90 GFLOP/s in matrix
# products); only their ratios matter.
#   QUADRATIC, TORCH, NATIVE: a multiplication and addition in the quadratic form, with features in
#     torch, and in the C library
#   SCORE: the polynomial of one score;  HIDING: the factor for causal masking
#   *_FEATURE: computing a feature, in columns of values that could be multiplied in the same time
#   *_CALL: the fixed cost of a call, beyond that of a call of the C library
QUADRATIC, TORCH, NATIVE, SCORE, HIDING = 30, 25, 22, 2000, 1.5
TORCH_FEATURE, NATIVE_FEATURE = 60, 9
QUADRATIC_CALL, TORCH_CALL = 75_000_000, 400_000_000


def cheapest(
    rows: int,
    length: int,
    source: int,
    width: int,
    values: int,
    *,
    terms: int,
    causal: bool,
    kernel: bool,
) -> Form:
    """The form that is estimated to be the fastest; `kernel`: the C library can be used.

    >>> [cheapest(2, n, n, 32, 32, terms=3, causal=False, kernel=False) for n in (512, 8192)]
    ['quadratic', 'chunked']
    """
    features, threads = monomials.how_many(width, terms), torch.get_num_threads()
    pair = ((width + values) * QUADRATIC + SCORE) * (HIDING if causal else 1)
    quadratic = rows * source * length * pair
    linear = (source + length) * features
    if kernel:
        linear *= (values + 1 + NATIVE_FEATURE) * NATIVE
        inside = 64 * (width + values + 10) * NATIVE  # half a chunk
    else:
        linear *= (values + 1 + TORCH_FEATURE) * TORCH
        inside = CHUNK * pair + 10 * features * (values + 1)
    if causal:
        block = min(length, max(64, SCORES // source))  # queries; no scores after a block's end
        quadratic *= (1 + block / length) / 2
        linear += length * inside
    # The causal C kernel uses one thread for each row.
    parallel_threads = min(rows, threads) if causal and kernel else threads
    linear = rows * linear / parallel_threads + (0 if kernel else TORCH_CALL)
    if quadratic / threads + QUADRATIC_CALL < linear:
        return "quadratic"
    return "parallel" if causal and not kernel and features <= 4 * CHUNK else "chunked"


def polynomial(t: Float[Tensor, "*rows"], terms: int) -> Float[Tensor, "*rows"]:
    """sum_{n<terms} t^n / n!, by Horner's rule.

    >>> polynomial(torch.tensor([0.0, -10.0]), 4)
    tensor([   1.0000, -125.6667])
    """
    if terms <= 1:
        return torch.full_like(t, float(terms))
    one = t.new_ones(())
    p = torch.add(one, t, alpha=1 / (terms - 1))
    for n in range(terms - 2, 0, -1):
        p = torch.addcmul(one, p, t, value=1 / n, out=None if p.requires_grad else p)
    return p


class _Quadratic(torch.autograd.Function):
    """The quadratic form: context from q (N, L, K), k (N, S, K), v (N, S, E), a block of queries at
    a time. `last` (N, S), ones by default, is the last column of [v | last], whose sums are the
    normaliser."""

    @staticmethod
    def forward(ctx, q, k, v, last, scale: float, terms: int, causal: bool):
        numerators, u = q.new_empty(*q.shape[:2], v.shape[2] + 1), _with_last(v, last)
        for rows, places, keys in _blocks(q, k, causal):
            weights = _weights(q[rows, places] * scale, k[rows, keys], terms, causal)[0]
            numerators[rows, places] = torch.bmm(weights, u[rows, keys])
        context, normaliser = _normalised(numerators)
        ctx.save_for_backward(q, k, v, last, context, normaliser)
        ctx.scale, ctx.terms, ctx.causal = scale, terms, causal
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        q, k, v, last, context, normaliser = ctx.saved_tensors
        dn, u = torch.cat(_unnormalised(grad, context, normaliser), -1), _with_last(v, last)
        dq, dk, du = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(u)
        for rows, places, keys in _blocks(q, k, ctx.causal):
            dq_block, dk_block, du_block = _block_gradients(
                q[rows, places] * ctx.scale,
                k[rows, keys],
                u[rows, keys],
                dn[rows, places],
                ctx.terms,
                ctx.causal,
            )
            torch.mul(dq_block, ctx.scale, out=dq[rows, places])
            dk[rows, keys] += dk_block
            du[rows, keys] += du_block
        return dq, dk, du[..., :-1], None, None, None, None


class _Linear(torch.autograd.Function):
    """The forms with features: context and final sums from q (N, L, K), k (N, S, K), v (N, S, E),
    `last` as in `_Quadratic`, and the initial sums `start`.

    The sums are weights * (monomials(k)^T [v | last]), so that monomials(q) sums are the
    numerators.
    """

    @staticmethod
    def forward(ctx, q, k, v, last, start, scale: float, terms: int, causal: bool, form: str):
        if start is None:
            sums = q.new_zeros(q.shape[0], monomials.how_many(q.shape[2], terms), v.shape[2] + 1)
        else:
            sums = start.clone()
        if native.takes(q, terms) and (form == "chunked" or (form == "parallel" and not causal)):
            context, normaliser = native.forward(q, k, v, last, scale, sums, causal=causal)
        else:
            context, normaliser = _in_segments(q, k, v, last, scale, sums, terms, causal, form)
        ctx.save_for_backward(q, k, v, last, start if causal else sums, context, normaliser)
        ctx.scale, ctx.terms, ctx.causal, ctx.started = scale, terms, causal, start is not None
        return context, sums

    @staticmethod
    @once_differentiable
    def backward(ctx, grad, d_sums):
        q, k, v, last, sums, context, normaliser = ctx.saved_tensors
        scale, terms, causal = ctx.scale, ctx.terms, ctx.causal
        weight = monomials.weights(q.shape[2], terms, q)[:, None]
        d_sums = d_sums * weight  # the gradient of the sums without their weights
        dn, dz = _unnormalised(grad, context, normaliser)
        if causal:
            sums = torch.zeros_like(d_sums) if sums is None else sums.clone()
        if native.takes(q, terms):
            dq, dk, dv = native.backward(
                q,
                k,
                v,
                last,
                dn.contiguous(),
                dz[..., 0].contiguous(),
                scale,
                sums,
                d_sums,
                causal=causal,
            )
        else:
            compute = _chunked_gradients if causal else _parallel_gradients
            dq, dk, du = compute(
                q * scale, k, _with_last(v, last), torch.cat([dn, dz], -1), sums, d_sums, terms
            )
            dq, dv = dq.mul_(scale), du[..., :-1]
        return dq, dk, dv, None, d_sums / weight if ctx.started else None, None, None, None, None


def _in_segments(
    q, k, v, last, scale: float, sums, terms: int, causal: bool, form: str
) -> tuple[Tensor, Tensor]:
    """Context and normaliser by one of the forms below, for SEGMENT positions at a time, so that
    scaled queries, [v | last] and numerators of all positions never exist together; adds the keys
    to `sums`."""
    compute = {"parallel": _parallel, "chunked": _chunked, "recurrent": _recurrent}[form]
    segment = max(CHUNK, SEGMENT // max(1, len(q)) // CHUNK * CHUNK)
    context, normaliser = q.new_empty(*q.shape[:2], v.shape[2]), q.new_empty(*q.shape[:2], 1)

    def keys(at: slice) -> tuple[Tensor, Tensor]:
        return k[:, at], _with_last(v[:, at], None if last is None else last[:, at])

    if not causal:
        for at in _slices(k.shape[1], segment):
            compute(q[:, :0], *keys(at), sums, terms, causal)
    for at in _slices(q.shape[1], segment):
        numerators = compute(
            q[:, at] * scale, *keys(at if causal else slice(0)), sums, terms, causal
        )
        context[:, at], normaliser[:, at] = _normalised(numerators)
    return context, normaliser


def _slices(length: int, size: int) -> list[slice]:
    return [slice(at, at + size) for at in range(0, length, size)]


def _chunked(q, k, u, sums, terms: int, causal: bool) -> Tensor:
    """The numerators (N, L, E + 1); adds the keys to `sums`."""
    if not causal:
        return monomials.read(q, monomials.gather(k, u, terms, sums), terms)
    numerators = q.new_empty(*q.shape[:2], u.shape[2])
    for at in _slices(q.shape[1], CHUNK):
        inside = torch.bmm(_weights(q[:, at], k[:, at], terms, causal)[0], u[:, at])
        torch.add(inside, monomials.read(q[:, at], sums, terms), out=numerators[:, at])
        monomials.gather(k[:, at], u[:, at], terms, sums)
    return numerators


def _parallel(q, k, u, sums, terms: int, causal: bool) -> Tensor:
    """`_chunked` with all chunks at once: the sums of every chunk, their prefix sums, then all
    queries."""
    if not causal:
        return _chunked(q, k, u, sums, terms, causal)
    rows, length = q.shape[:2]
    chunk = min(length, CHUNK)
    missing = -length % chunk
    q, k, u = (
        torch.nn.functional.pad(x, (0, 0, 0, missing)).view(-1, chunk, x.shape[2])
        for x in (q, k, u)
    )
    chunk_sums = monomials.gather(k, u, terms, sums.new_zeros(len(q), *sums.shape[1:]))
    chunk_sums = chunk_sums.view(rows, -1, *sums.shape[1:])
    prefix_sums = torch.cat([sums[:, None], chunk_sums], 1).cumsum(1)
    sums.copy_(prefix_sums[:, -1])
    numerators = monomials.read(q, prefix_sums[:, :-1].flatten(0, 1), terms)
    for chunks, places, keys in _blocks(q, k, causal):
        weights, _ = _weights(q[chunks, places], k[chunks, keys], terms, causal)
        numerators[chunks, places] += torch.bmm(weights, u[chunks, keys])
    return numerators.view(rows, -1, u.shape[2])[:, :length]


def _recurrent(q, k, u, sums, terms: int, causal: bool) -> Tensor:
    """`_chunked`, one token after the other."""
    weight = monomials.weights(q.shape[2], terms, q)[:, None]
    numerators = q.new_empty(*q.shape[:2], u.shape[2])

    def add_key(place: int) -> None:
        features = monomials.monomials(k[:, place], terms)
        sums.add_(weight * (features[:, :, None] * u[:, place, None]))

    if not causal:
        for place in range(k.shape[1]):
            add_key(place)
    for place in range(q.shape[1]):
        if causal:
            add_key(place)
        numerators[:, place] = torch.bmm(monomials.monomials(q[:, place, None], terms), sums)[:, 0]
    return numerators


def _parallel_gradients(q, k, u, dn, sums, d_sums, terms: int) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and u from `dn`, the gradient of the numerators; adds the gradient of the
    sums to `d_sums`."""
    dq, _ = monomials.pull(q, dn, sums, terms, both=False)
    monomials.gather(q, dn, terms, d_sums)
    dk, du = monomials.pull(k, u, d_sums, terms, both=True)
    assert du is not None
    return dq, dk, du


def _chunked_gradients(q, k, u, dn, sums, d_sums, terms: int) -> tuple[Tensor, Tensor, Tensor]:
    """The same for causal attention: queries in order with the sums before them, then keys in
    reverse order with the gradients of the sums after them."""
    dq, dk, du = torch.empty_like(q), torch.empty_like(k), torch.empty_like(u)
    chunks = _slices(q.shape[1], CHUNK)
    for at in chunks:
        dq[:, at], dk[:, at], du[:, at] = _block_gradients(
            q[:, at], k[:, at], u[:, at], dn[:, at], terms, causal=True
        )
        dq[:, at] += monomials.pull(q[:, at], dn[:, at], sums, terms, both=False)[0]
        monomials.gather(k[:, at], u[:, at], terms, sums)
    for at in reversed(chunks):
        dk_chunk, du_chunk = monomials.pull(k[:, at], u[:, at], d_sums, terms, both=True)
        assert du_chunk is not None
        dk[:, at] += dk_chunk
        du[:, at] += du_chunk
        monomials.gather(q[:, at], dn[:, at], terms, d_sums)
    return dq, dk, du


def _blocks(q: Tensor, k: Tensor, causal: bool):
    """Slices of rows, queries and keys: the blocks of the quadratic form, with at most SCORES
    scores each where possible."""
    rows, length, source = q.shape[0], q.shape[1], k.shape[1]
    block_queries = max(1, min(length, max(64, SCORES // source)))
    block_rows = max(1, SCORES // (block_queries * source))
    for row in range(0, rows, block_rows):
        for place in range(0, length, block_queries):
            end = min(length, place + block_queries)
            yield (
                slice(row, min(rows, row + block_rows)),
                slice(place, end),
                slice(0, end if causal else source),
            )


def _weights(q, k, terms: int, causal: bool) -> tuple[Tensor, Tensor]:
    """Weights and scores. With `causal` the queries are at the last positions of the keys."""
    scores = torch.bmm(q, k.transpose(1, 2))
    weights = polynomial(scores, terms)
    return _causal_mask_(weights) if causal else weights, scores


def _causal_mask_(x: Float[Tensor, "N T S"]) -> Float[Tensor, "N T S"]:
    """Sets to zero, in place, what the last T of S positions would see of later ones; this concerns
    the last T x T only."""
    x[:, :, x.shape[2] - x.shape[1] :].tril_()
    return x


def _block_gradients(q, k, u, dn, terms: int, causal: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and u of one block, from the gradient `dn` of its numerators
    `_weights(q, k) u`. The derivative of the polynomial is the polynomial with one term less."""
    weights, scores = _weights(q, k, terms, causal)
    du = torch.bmm(weights.transpose(1, 2), dn)
    slope = torch.bmm(dn, u.transpose(1, 2)).mul_(polynomial(scores, terms - 1))
    slope = _causal_mask_(slope) if causal else slope
    return torch.bmm(slope, k), torch.bmm(slope.transpose(1, 2), q), du


def _normalised(numerators: Tensor) -> tuple[Tensor, Tensor]:
    normaliser = numerators[..., -1:].contiguous()
    return numerators[..., :-1] / normaliser, normaliser


def _unnormalised(grad: Tensor, context: Tensor, normaliser: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of the numerators and of the normaliser, from the gradient of the context."""
    dn = grad / normaliser
    return dn, -(dn * context).sum(-1, keepdim=True)


def _with_last(v: Tensor, last: Tensor | None) -> Tensor:
    """[v | last], or [v | 1] without `last`."""
    if last is None:
        return torch.nn.functional.pad(v, (0, 1), value=1.0)
    return torch.cat([v, last[..., None]], -1)


def _fits(
    q: Tensor, k: Tensor, v: Tensor, terms: int, scale: float | None, dtype: torch.dtype
) -> bool:
    """Whether no intermediate result of any form can overflow `dtype`.

    A weight is at most (1 + t)^(terms - 1) for scores of at most t, and with max(1, q) and max(1,
    k) in place of q and k that is also a bound on every product of features. Computed in
    logarithms, which do not overflow.
    """
    largest_q, largest_k, largest_v = checks.finite(q=q, k=k, v=v)
    scores = q.shape[-1] * max(1.0, abs(_scale(q, scale)) * largest_q) * max(1.0, largest_k)
    weights = math.log1p(scores) * (terms - 1)
    return weights + math.log(k.shape[-2]) + math.log(max(1.0, largest_v)) < math.log(
        torch.finfo(dtype).max / 4
    )


def _scale(q: Tensor, scale: float | None) -> float:
    if scale is not None:
        return float(scale)
    return 1 / math.sqrt(q.shape[-1]) if q.shape[-1] else 1.0


def _flatten(
    q, k, v, mask: Tensor | None, lead: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """q, k, v, and the mask as the last column of [v | last], each with one leading axis; half
    precision becomes float32."""
    if q.dtype in (torch.float16, torch.bfloat16):
        q, k, v = q.float(), k.float(), v.float()
    rows, last = math.prod(lead), None
    if mask is not None:
        v = v * mask[..., None]
        last = mask.to(v.dtype).expand(*lead, -1).reshape(rows, -1).contiguous()
    q, k, v = (x.expand(*lead, -1, -1).reshape(rows, *x.shape[-2:]).contiguous() for x in (q, k, v))
    return q, k, v, last


def _check_terms(terms: int, allow_negative: bool) -> None:
    if isinstance(terms, bool) or not isinstance(terms, int) or terms < 1:
        raise InputError("needs a whole number of at least 1", where="terms", got=terms)
    if terms % 2 == 0 and not allow_negative:
        raise InputError(
            f"{terms} terms have the odd top degree {terms - 1}, whose weights can be negative",
            where="terms",
            got=terms,
            hint=f"use {terms - 1} or {terms + 1}, or allow_negative=True",
        )


def _check_room(k: Tensor, v: Tensor, terms: int, rows: int) -> None:
    features, columns = monomials.how_many(k.shape[-1], terms), v.shape[-1] + 1
    checks.fits(
        rows * features * columns,
        4 if v.dtype.itemsize < 4 else v.dtype.itemsize,
        what=f"k {checks.shape(k)} with {terms} terms: "
        f"{rows:,} rows x {features:,} features x {columns} columns",
        hint='fewer terms, narrower heads, or form="quadratic"',
    )


def _check_state(q: Tensor, k: Tensor, v: Tensor, state: MaclaurinState, terms: int) -> None:
    _check_terms(terms, allow_negative=True)
    for name, tensor, last in (("q", q, k.shape[-1]), ("v", v, v.shape[-1])):
        if tensor.shape[-1] != last:
            raise InputError(
                f"needs the width of k: (…, {last})", where=name, got=checks.shape(tensor)
            )
    wanted = (monomials.how_many(k.shape[-1], terms), v.shape[-1] + 1)
    if tuple(state.sums.shape[-2:]) != wanted:
        raise InputError(
            f"{terms} terms, keys of width {k.shape[-1]} and values of width {v.shape[-1]} "
            f"need sums (…, {wanted[0]}, {wanted[1]})",
            where="state",
            got=checks.shape(state.sums),
        )
