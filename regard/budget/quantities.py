"""Quantities as a person types them: a bandwidth, a latency, a rate of operations."""

from __future__ import annotations

import math
import re

from regard.errors import InputError

PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
TIMES = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
NUMBER = r"([0-9][0-9,_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*"


def bandwidth(text: str) -> float:
    """Bytes a second. A small b is bits, as on the labels of networks, a capital B bytes.

    >>> bandwidth("10Gb"), bandwidth("1.25 GB/s"), bandwidth("100Mbit")
    (1250000000.0, 1250000000.0, 12500000.0)
    """
    match = re.fullmatch(NUMBER + r"([kKMGT]?)(bits?|bps|b|B)(?:/s)?", text.strip())
    value = _number(match)
    if match is None or not 0 < value < math.inf:
        raise InputError(
            "must be a bandwidth above 0",
            where="--bandwidth",
            got=f'"{text[:40]}"',
            hint="as in 10Gb (gigabits a second) or 1.25GB (gigabytes a second)",
        )
    return value * PREFIXES[match[2].lower()] / (1 if match[3] == "B" else 8)


def latency(text: str) -> float:
    """Seconds.

    >>> latency("50us"), latency("0.2 ms"), latency("0us")
    (5e-05, 0.0002, 0.0)
    """
    match = re.fullmatch(NUMBER + r"(ns|us|µs|ms|s)", text.strip())
    value = _number(match)
    if match is None or not math.isfinite(value):
        raise InputError(
            "must be a time", where="--latency", got=f'"{text[:40]}"', hint="as in 50us or 0.2ms"
        )
    return float(f"{value * TIMES[match[2]]:.12g}")


def flops(text: str) -> float:
    """Floating-point operations a second.

    >>> flops("50G"), flops("1.5 TFLOPS"), flops("2e9")
    (50000000000.0, 1500000000000.0, 2000000000.0)
    """
    match = re.fullmatch(NUMBER + r"([kKMGTP]?)(?:flops?(?:/s)?)?", text.strip(), re.IGNORECASE)
    value = _number(match)
    if match is None or not 0 < value < math.inf:
        raise InputError(
            "must be a rate above 0",
            where="--flops",
            got=f'"{text[:40]}"',
            hint="FLOPs that one machine makes in a second, as in 50G or 1.5T",
        )
    return value * PREFIXES[match[2].lower()]


def _number(match: re.Match[str] | None) -> float:
    return 0.0 if match is None else float(match[1].replace(",", "").replace("_", ""))
