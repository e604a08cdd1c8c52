"""How a verb that asks a model uses the processor; docs/performance.md has the figures."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

FEW = 8  # inputs whose sums are too small to share between threads


@contextmanager
def inference_threads(inputs: int | None) -> Iterator[None]:
    """One thread for a few inputs; for many (None: not known) as many as torch finds.
    OMP_NUM_THREADS overrides both.

    Called before torch is imported, it also lets threads sleep while they wait for each other. By
    default they spin: beside another busy process, a thread that is not running then holds up one
    that burns its processor for nothing.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch

    before = torch.get_num_threads()
    if inputs is not None and inputs <= FEW and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
