"""Detects a machine that is too busy for meaningful timings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from statistics import median

from regard.resources import available_cores

CROWDED = 1.5  # load average per core; this process alone causes at most 1
SPREAD = 1.5  # median / minimum of repeated calls; 1.0 to 1.2 on an idle machine


def spread(seconds: Sequence[float]) -> float:
    """The median duration of repeated calls, divided by the shortest.

    >>> spread([2.0, 2.0, 3.0]), spread([1.0, 4.0, 5.0])
    (1.0, 4.0)
    """
    return median(seconds) / max(min(seconds), 1e-9)


def load_per_core() -> float | None:
    """The load average of the last minute per core; None where the system does not provide it."""
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):  # not on Windows
        return None
    return load / available_cores()


def busy(spreads: Sequence[float], load: float | None) -> str | None:
    """A note for reports with times that were measured on a busy machine; None if it was idle.

    >>> busy([1.0, 1.1, 1.2], 0.6) is None
    True
    >>> busy([1.0, 2.5, 3.0], 8.0)
    'the machine is busy (8.0 processes per core, repeated calls differ by 150%): repeat when idle'
    """
    reasons = []
    if load is not None and load > CROWDED:
        reasons.append(f"{load:.1f} processes per core")
    if spreads and median(spreads) > SPREAD:
        reasons.append(f"repeated calls differ by {median(spreads) - 1:.0%}")
    if not reasons:
        return None
    return f"the machine is busy ({', '.join(reasons)}): repeat when idle"
