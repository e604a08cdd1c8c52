"""`attend` and its weights: one operator, whatever the axes, and no wrong input gets through."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.errors import InputError
from regard.layers.attention import attend, attention_weights

B, H, T, S, K, E = 2, 3, 7, 5, 11, 13


def rand(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(
        *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + sum(shape))
    )


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def triple_loop(q, k, v, mask=None, bias=None, causal=False, scale=None) -> list[list[float]]:
    """In plain Python, of lists."""
    scale = 1 / math.sqrt(len(q[0])) if scale is None else scale
    out = []
    for t, query in enumerate(q):
        parts = []
        for s, key in enumerate(k):
            score = scale * sum(a * b for a, b in zip(query, key, strict=True)) + (
                bias[t][s] if bias else 0.0
            )
            hidden = (mask is not None and not mask[t][s]) or (causal and s > t)
            parts.append(0.0 if hidden else math.exp(score))
        out.append(
            [
                sum(p * value[e] for p, value in zip(parts, v, strict=True)) / sum(parts)
                for e in range(len(v[0]))
            ]
        )
    return out


def some_mask(*leading: int) -> Tensor:
    mask = torch.rand(*leading, T, S, generator=torch.Generator().manual_seed(3)) < 0.6
    mask[..., 0] = True
    return mask


SEEN = {
    "all": {},
    "mask": dict(mask=some_mask()),
    "bias": dict(bias=rand(T, S)),
    "causal": dict(causal=True),
    "scale": dict(scale=0.7),
    "everything": dict(mask=some_mask(), bias=rand(T, S), causal=True, scale=-0.3),
}


@pytest.mark.parametrize("seen", SEEN.values(), ids=SEEN.keys())
def test_attend_is_the_weights_times_v_is_a_triple_loop(seen: dict):
    q, k, v = rand(T, K), rand(S, K, seed=2), rand(S, E)
    plain: dict[str, Any] = {
        name: x.tolist() if isinstance(x, Tensor) else x for name, x in seen.items()
    }
    expected = torch.tensor(
        triple_loop(q.tolist(), k.tolist(), v.tolist(), **plain), dtype=torch.float64
    )
    weights = attention_weights(q, k, **seen)
    close(attend(q, k, v, **seen), expected)
    close(weights @ v, expected)
    close(weights.sum(-1), torch.ones(T, dtype=torch.float64))


@pytest.mark.parametrize("leading", [(), (B,), (B, H), (2, B, H)])
def test_any_leading_axes(leading: tuple[int, ...]):
    q, k, v = rand(*leading, T, K), rand(*leading, S, K, seed=2), rand(*leading, S, E)
    mask, bias = some_mask(*leading), rand(*leading, T, S)
    out, weights = (
        attend(q, k, v, mask=mask, bias=bias),
        attention_weights(q, k, mask=mask, bias=bias),
    )
    assert out.shape == (*leading, T, E) and weights.shape == (*leading, T, S)
    flat = [x.reshape(-1, *x.shape[-2:]) for x in (q, k, v, mask, bias, out, weights)]
    for one_q, one_k, one_v, one_mask, one_bias, one_out, one_weights in zip(*flat, strict=True):
        close(one_out, attend(one_q, one_k, one_v, mask=one_mask, bias=one_bias))
        close(one_weights, attention_weights(one_q, one_k, mask=one_mask, bias=one_bias))
        assert (one_weights[~one_mask] == 0).all()


def test_leading_axes_and_masks_broadcast():
    q, k, v = rand(B, H, T, K), rand(H, S, K), rand(S, E)
    keys, bias = torch.tensor([True, False, True, True, False]), rand(H, 1, S)
    whole = attend(
        q,
        k.expand(B, H, S, K),
        v.expand(B, H, S, E),
        mask=keys.expand(B, H, T, S),
        bias=bias.expand(H, T, S),
    )
    close(attend(q, k, v, mask=keys, bias=bias), whole)
    close(attention_weights(q, k, mask=keys, bias=bias) @ v, whole)


@pytest.mark.parametrize(("queries", "keys"), [(T, S), (S, T), (1, S)])
def test_causal_counts_from_the_first_key(queries: int, keys: int):
    q, k, v = rand(queries, K), rand(keys, K, seed=2), rand(keys, E)
    weights = attention_weights(q, k, causal=True)
    for t in range(queries):
        assert (weights[t, t + 1 :] == 0).all() and (weights[t, : t + 1] > 0).all()
    close(attend(q, k, v, causal=True), weights @ v)
    close(attend(q, k, v, mask=torch.ones(queries, keys, dtype=torch.bool).tril()), weights @ v)


def test_minus_infinity_in_the_bias_hides():
    q, k, v, mask = rand(T, K), rand(S, K, seed=2), rand(S, E), some_mask()
    close(
        attend(q, k, v, bias=torch.zeros(T, S, dtype=torch.float64).masked_fill(~mask, -math.inf)),
        attend(q, k, v, mask=mask),
    )


def test_gradients_reach_everything():
    inputs = [x.requires_grad_() for x in (rand(T, K), rand(S, K, seed=2), rand(S, E), rand(T, S))]
    assert torch.autograd.gradcheck(
        lambda q, k, v, bias: attend(q, k, v, bias=bias, mask=some_mask(), causal=True), inputs
    )


GOOD: dict[str, Any] = dict(q=rand(B, T, K), k=rand(B, S, K), v=rand(B, S, E))
BLIND = some_mask(B)
BLIND[1, 4] = False
HOLE = rand(B, S, K)
HOLE[1, 2, 3] = math.nan
BAD = {
    "one axis": (dict(q=rand(K)), "q: needs the shape (…, L, K); got (11)"),
    "whole numbers": (
        dict(k=torch.ones(B, S, K, dtype=torch.long)),
        "k: needs floating-point numbers; got torch.int64",
    ),
    "mixed types": (
        dict(v=rand(B, S, E).float()),
        "v: needs the type of q, torch.float64; got torch.float32",
    ),
    "k too wide": (dict(k=rand(B, S, 17)), "k: needs the width of q: (…, S, 11); got (2, 5, 17)"),
    "fewer values": (
        dict(v=rand(B, 3, E)),
        "v: needs as many places as k: (…, 5, E); got (2, 3, 13)",
    ),
    "no keys": (dict(k=rand(B, 0, K), v=rand(B, 0, E)), "k: needs at least one key"),
    "leading axes": (
        dict(k=rand(3, S, K)),
        "k: needs leading axes that broadcast with (2,), of the arguments before it; got (3,)",
    ),
    "nan": (dict(k=HOLE), "k: needs finite numbers; got NaN at (1, 2, 3) of (2, 5, 11)"),
    "infinite scale": (dict(scale=math.inf), "scale: needs a finite number; got inf"),
    "mask of numbers": (
        dict(mask=torch.ones(T, S)),
        (
            "mask: needs torch.bool that broadcasts to the scores (…, T, S) = (2, 7, 5); "
            "got torch.float32 (7, 5)"
        ),
    ),
    "mask of keys": (
        dict(mask=torch.ones(B, S, dtype=torch.bool)),
        "got torch.bool (2, 5); a mask of keys (B, S) is mask[:, None, None] for q (B, H, T, K)",
    ),
    "mask with more axes": (
        dict(mask=torch.ones(3, B, T, S, dtype=torch.bool)),
        "= (2, 7, 5); got torch.bool (3, 2, 7, 5)",
    ),
    "bias of another type": (
        dict(bias=torch.zeros(T, S)),
        "bias: needs torch.float64 that broadcasts",
    ),
    "bias of another shape": (dict(bias=rand(S, T)), "got torch.float64 (5, 7)"),
    "bias nan": (
        dict(bias=rand(T, S) * math.nan),
        "bias: needs finite numbers, or -inf where masked; got NaN",
    ),
    "baselines": (
        dict(mask=BLIND),
        "mask: hides every key of a query; got query (1, 4) of (2, 7); allow at least one key",
    ),
    "blind when causal": (
        dict(mask=torch.arange(S) > 0, causal=True),
        "mask: hides every key of a query, together with causal=True; got query (0, 0) of (2, 7)",
    ),
    "blind by bias": (
        dict(bias=torch.full((T, S), -math.inf, dtype=torch.float64)),
        "mask and bias: hides every key",
    ),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD.keys())
def test_wrong_input_is_refused(change: dict, message: str):
    with pytest.raises(InputError) as error:
        attend(**(GOOD | change))
    assert message in str(error.value)
    if "v" not in change:
        given: dict[str, Any] = {name: x for name, x in (GOOD | change).items() if name != "v"}
        with pytest.raises(InputError) as error:
            attention_weights(**given)
        assert message in str(error.value)
