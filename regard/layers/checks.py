"""Argument checks of the layers: each raises an InputError that names the argument, what was
received and what is allowed."""

from __future__ import annotations

import math
import os
from typing import Any, TypeVar, get_args

import torch
from torch import Tensor

from regard.errors import InputError

Value = TypeVar("Value")


def one_of(name: str, value: Value, literal: Any) -> Value:
    """Returns `value` if it is one of the values of a `Literal` type, else raises an InputError
    about the argument `name`.

    >>> from typing import Literal
    >>> one_of("norm", "pre", Literal["pre", "post"])
    'pre'
    >>> one_of("norm", "Pre", Literal["pre", "post"])
    Traceback (most recent call last):
    ...
    regard.errors.InputError: norm: must be "pre" or "post"; got 'Pre'
    """
    allowed = get_args(literal)
    if type(value) in {type(choice) for choice in allowed} and value in allowed:
        return value
    choices = [f'"{choice}"' if isinstance(choice, str) else str(choice) for choice in allowed]
    raise InputError(f"must be {' or '.join(choices)}", where=name, got=repr(value))


def shape(tensor: Tensor) -> str:
    """The shape as text, such as (2, 3)."""
    return "(" + ", ".join(map(str, tensor.shape)) + ")"


def queries_keys_values(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
) -> tuple[int, ...]:
    """The leading axes to which q (…, L, K), k (…, S, K), v (…, S, E) and a key mask (…, S)
    broadcast."""
    for name, tensor, wanted in (
        ("q", q, "(…, L, K)"),
        ("k", k, "(…, S, K)"),
        ("v", v, "(…, S, E)"),
    ):
        if tensor.ndim < 2:
            raise InputError(f"needs the shape {wanted}", where=name, got=shape(tensor))
        if not tensor.is_floating_point():
            raise InputError("needs floating-point numbers", where=name, got=tensor.dtype)
        if tensor.dtype != q.dtype:
            raise InputError(f"needs the type of q, {q.dtype}", where=name, got=tensor.dtype)
    if k.shape[-1] != q.shape[-1]:
        raise InputError(f"needs the width of q: (…, S, {q.shape[-1]})", where="k", got=shape(k))
    if v.shape[-2] != k.shape[-2]:
        raise InputError(
            f"needs as many places as k: (…, {k.shape[-2]}, E)", where="v", got=shape(v)
        )
    if k.shape[-2] == 0:
        raise InputError("needs at least one key: (…, S, K) with S >= 1", where="k", got=shape(k))
    leads = {"q": q.shape[:-2], "k": k.shape[:-2], "v": v.shape[:-2]}
    if mask is not None:
        if mask.dtype != torch.bool:
            raise InputError(
                "needs booleans, True = may be attended to", where="mask", got=mask.dtype
            )
        if mask.ndim < 1 or mask.shape[-1] != k.shape[-2]:
            raise InputError(
                f"needs one value a key: (…, {k.shape[-2]})", where="mask", got=shape(mask)
            )
        leads["mask"] = mask.shape[:-1]
    lead: tuple[int, ...] = q.shape[:-2]
    for name, axes in leads.items():
        try:
            lead = lead if axes == lead else torch.broadcast_shapes(lead, axes)
        except RuntimeError:
            wanted = f"leading axes that broadcast with {tuple(lead)}, of the arguments before it"
            raise InputError(f"needs {wanted}", where=name, got=tuple(axes)) from None
    return tuple(lead)


def finite(**named: Tensor) -> tuple[float, ...]:
    """The largest magnitude in each tensor; a NaN or an infinity raises an InputError.

    This takes one pass over each tensor. Under `torch.compile`, `torch.export` and `vmap` there are
    no numbers to inspect, and each magnitude is reported as 0.
    """
    return tuple(_largest(name, tensor) for name, tensor in named.items())


def result(*outputs: Tensor, **inputs: Tensor) -> None:
    """Raises an InputError if an output is not finite: it names the input that is not finite, or
    else says that the inputs are too large. NaN and infinity propagate, so finite inputs cost one
    sum of each output."""
    if not all(all_finite(tensor) for tensor in outputs):
        largest = finite(**inputs)
        raise too_large(dict(zip(inputs, largest, strict=True)), outputs[0].dtype)


def all_finite(tensor: Tensor) -> bool:
    """Whether every number is finite. The sum is tested first; single numbers only if the sum is
    not finite."""
    return math.isfinite(tensor.detach().sum().item()) or bool(tensor.isfinite().all())


def too_large(largest: dict[str, float], dtype: torch.dtype) -> InputError:
    """The error for finite numbers whose products overflow."""
    return InputError(
        f"numbers too large: their products overflow {str(dtype).removeprefix('torch.')}",
        where=", ".join(largest),
        got="magnitudes up to " + ", ".join(f"{size:.3g}" for size in largest.values()),
        hint="divide them by a number, or take fewer terms",
    )


def every_query_has_a_key(mask: Tensor | None, *, causal: bool = False) -> None:
    """Raises an InputError if all keys of a query are masked: its weights could not sum to 1."""
    if mask is None:
        return
    has_key = mask[..., 0] if causal else mask.any(-1)
    if bool(has_key.all()):
        return
    row = tuple((~has_key).nonzero()[0].tolist())
    if causal:
        message = "hides the first key, and with causal=True the first query sees no other"
    else:
        message = "hides every key"
    raise InputError(
        message,
        where="mask",
        got=f"row {row} of {shape(mask)}" if row else shape(mask),
        hint="allow at least one key in every row (True = may be attended to)",
    )


def fits(numbers: int, itemsize: int, *, what: str, hint: str) -> None:
    """Raises an InputError unless `numbers` of `itemsize` bytes fit into half of this machine's
    memory."""
    try:
        limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (ValueError, OSError, AttributeError):
        limit = 1 << 33
    if numbers * itemsize > limit:
        got = f"{what} = {numbers * itemsize / 2**30:,.1f} GiB"
        allowed = f"at most {limit / 2**30:,.1f} GiB, half of this machine's memory"
        raise InputError(f"too many features: {allowed}", where="terms", got=got, hint=hint)


def _largest(name: str, tensor: Tensor) -> float:
    if not tensor.numel() or torch.compiler.is_compiling():
        return 0.0
    low, high = torch.aminmax(tensor.detach())
    try:
        largest = max(-low.item(), high.item())
    except RuntimeError:  # under vmap
        return 0.0
    if math.isfinite(largest):
        return largest
    kind, where = ("NaN", tensor.isnan()) if math.isnan(largest) else ("infinity", tensor.isinf())
    first = tuple(where.nonzero()[0].tolist())
    raise InputError(
        "needs finite numbers", where=name, got=f"{kind} at {first} of {shape(tensor)}"
    )
