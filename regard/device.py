"""Devices: which one a model is on, and what each of them lacks.

Only who loads or trains a model chooses a device. Everything else makes tensors where its inputs
are.
"""

from __future__ import annotations

import torch

from regard.errors import InputError

KINDS = ("cpu", "cuda", "mps")


def resolve(name: str | torch.device = "auto") -> torch.device:
    """The device of this name. "auto" is a CUDA GPU if there is one, else Apple's MPS, else the
    CPU. A GPU may have a number, as in "cuda:1".

    >>> resolve("cpu")
    device(type='cpu')
    """
    if name == "auto":
        return torch.device(_best())
    kind, _, number = str(name).partition(":")
    count = device_count(kind) if kind in KINDS else 0
    if kind not in KINDS or (number and not number.isdecimal()):
        message = "no such device"
    elif not count:
        message = why_missing(kind)
    elif int(number or 0) >= count:
        message = f"no such device; there are {count} of this kind"
    else:
        return torch.device(str(name))
    found = ", ".join(["auto", *(kind for kind in KINDS if device_count(kind))])
    hint = f"one of {found}; regard doctor says what was found"
    raise InputError(message, where="device", got=f'"{name}"', hint=hint)


def device_count(kind: str) -> int:
    """How many devices of a kind torch can use."""
    if kind == "cuda":
        return torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "mps":
        return int(torch.backends.mps.is_available())
    return 1


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """The dtype of autocast on this device; None: it is off."""
    kind = device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


def without_autocast(device: torch.device) -> torch.autocast:
    """A context in which autocast does not change the precision, for sums that need theirs."""
    return torch.autocast(device.type, enabled=False)


def widest_float(device: torch.device) -> torch.dtype:
    """float64, or float32 on a device that has no double precision."""
    return torch.float32 if device.type == "mps" else torch.float64


def _best() -> str:
    return next((kind for kind in ("cuda", "mps") if device_count(kind)), "cpu")


def why_missing(kind: str) -> str:
    """Why there is no device of this kind."""
    if kind == "cuda" and not torch.backends.cuda.is_built():
        return f"torch {torch.__version__} was built without CUDA"
    if kind == "mps" and not torch.backends.mps.is_built():
        return f"torch {torch.__version__} was built without MPS"
    return f"torch finds no {kind} device on this machine"
