"""Figures of long tests, in bench/results/reliability.json if REGARD_RECORD is 1."""

from __future__ import annotations

import fcntl
import os
from datetime import UTC, datetime
from typing import Any

from bench import measure

NAME = "reliability"


def record(what: str, **figures: Any) -> None:
    """Print figures; and keep them beside those of other tests, if that is asked for."""
    print(what, figures)
    if os.environ.get("REGARD_RECORD") != "1":
        return
    entry = {
        "figures": figures,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "revision": measure.revision(),
        "cores": os.cpu_count(),
    }
    folder = os.open(measure.RESULTS, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # tests may run side by side
        file = measure.RESULTS / f"{NAME}.json"
        before = measure.read(NAME, measure.RESULTS) if file.exists() else {}
        measure.write(NAME, before | {what: entry}, measure.RESULTS)
    finally:
        os.close(folder)
