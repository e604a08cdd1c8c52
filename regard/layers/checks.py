"""What the attention functions ask of their arguments, said in words before torch says it in its
own."""

from __future__ import annotations

import math
import os

import torch
from torch import Tensor

from regard.errors import InputError


def shape(tensor: Tensor) -> str:
    """(2, 3) for people."""
    return "(" + ", ".join(map(str, tensor.shape)) + ")"


def queries_keys_values(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
) -> tuple[int, ...]:
    """The leading axes that q (…, L, K), k (…, S, K), v (…, S, E) and a key mask (…, S) have
    together."""
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
        raise InputError(
            "needs at least one place to look at: (…, S, K) with S >= 1", where="k", got=shape(k)
        )
    leads = {"q": q.shape[:-2], "k": k.shape[:-2], "v": v.shape[:-2]}
    if mask is not None:
        if mask.dtype != torch.bool:
            raise InputError("needs booleans, True = may look", where="mask", got=mask.dtype)
        if mask.ndim < 1 or mask.shape[-1] != k.shape[-2]:
            raise InputError(
                f"needs one value a key: (…, {k.shape[-2]})", where="mask", got=shape(mask)
            )
        leads["mask"] = mask.shape[:-1]
    lead: tuple[int, ...] = q.shape[:-2]
    for name, own in leads.items():
        try:
            lead = lead if own == lead else torch.broadcast_shapes(lead, own)
        except RuntimeError:
            wanted = f"leading axes that go with {tuple(lead)}, those of the arguments before it"
            raise InputError(f"needs {wanted}", where=name, got=tuple(own)) from None
    return tuple(lead)


def finite(**named: Tensor) -> tuple[float, ...]:
    """The largest magnitude in each tensor, when none holds a NaN or an infinity.

    One pass each: only if the largest is not finite is the tensor looked through. While torch
    compiles or maps a function (`torch.compile`, `torch.export`, `vmap`) there are no numbers to
    look at, and all count as small.
    """
    return tuple(_largest(name, tensor) for name, tensor in named.items())


def result(*made: Tensor, **given: Tensor) -> None:
    """What was made is finite, or else it is said what was not finite in what was given, or that
    it was too large. A NaN or an infinity comes out wherever it goes in, so one sum of the
    result is all that a good input pays."""
    if not all(all_finite(tensor) for tensor in made):
        largest = finite(**given)
        raise too_large(dict(zip(given, largest, strict=True)), made[0].dtype)


def all_finite(tensor: Tensor) -> bool:
    """One sum, and only if that is not finite a look at each number."""
    return math.isfinite(tensor.detach().sum().item()) or bool(tensor.isfinite().all())


def too_large(largest: dict[str, float], dtype: torch.dtype) -> InputError:
    """The error for finite numbers whose products overflow."""
    return InputError(
        f"numbers too large: their products overflow {str(dtype).removeprefix('torch.')}",
        where=", ".join(largest),
        got="magnitudes up to " + ", ".join(f"{size:.3g}" for size in largest.values()),
        hint="divide them by a number, or take fewer terms",
    )


def may_look(mask: Tensor | None, *, causal: bool = False) -> None:
    """Every query sees a key: a row whose keys are all masked has no weights that sum to 1."""
    if mask is None:
        return
    seen = mask[..., 0] if causal else mask.any(-1)
    if not bool(seen.all()):
        row = tuple((~seen).nonzero()[0].tolist())
        raise InputError(
            "hides the first key, and with causal=True the first query sees no other"
            if causal
            else "hides every key",
            where="mask",
            got=f"row {row} of {shape(mask)}" if row else shape(mask),
            hint="allow at least one place in every row (True = may look)",
        )


def fits(numbers: int, itemsize: int, *, what: str, hint: str) -> None:
    """`numbers` of `itemsize` bytes are at most half of this machine's memory."""
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
    kind, wrong = ("NaN", tensor.isnan()) if math.isnan(largest) else ("infinity", tensor.isinf())
    first = tuple(wrong.nonzero()[0].tolist())
    raise InputError(
        "needs finite numbers", where=name, got=f"{kind} at {first} of {shape(tensor)}"
    )
