"""Checks: of this machine (`machine.py`), and of a run (`run.py`, `laws.py`)."""

from __future__ import annotations

from regard.doctor.checks import Check
from regard.doctor.machine import EXTRAS, LEAST_DISK, Findings, examine
from regard.doctor.run import examine_run

__all__ = ["EXTRAS", "LEAST_DISK", "Check", "Findings", "examine", "examine_run"]
