"""Whether a machine is idle enough for its times to mean something."""

from __future__ import annotations

import os
from collections.abc import Sequence
from statistics import median

CROWDED = 1.5  # load average for each core; this process alone makes at most 1
SPREAD = 1.5  # median of repeated calls over the shortest; an idle machine has 1.0 to 1.2


def spread(seconds: Sequence[float]) -> float:
    """How much longer the median of repeated calls took than the shortest.

    >>> spread([2.0, 2.0, 3.0]), spread([1.0, 4.0, 5.0])
    (1.0, 4.0)
    """
    return median(seconds) / max(min(seconds), 1e-9)


def load_per_core() -> float | None:
    """How many processes want each core, as a mean over the last minute; None where the system
    does not tell."""
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):  # not on Windows
        return None
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return load / cores


def busy(spreads: Sequence[float], load: float | None) -> str | None:
    """What to say below times when the machine was too busy to take them; None if it was not.

    >>> busy([1.0, 1.1, 1.2], 0.6) is None
    True
    >>> busy([1.0, 2.5, 3.0], 8.0)
    'the machine is busy (8.0 processes a core, repeated calls differ by 150%): measure again when
    it is idle'
    """
    signs = []
    if load is not None and load > CROWDED:
        signs.append(f"{load:.1f} processes a core")
    if spreads and median(spreads) > SPREAD:
        signs.append(f"repeated calls differ by {median(spreads) - 1:.0%}")
    if not signs:
        return None
    return f"the machine is busy ({', '.join(signs)}): measure again when it is idle"
