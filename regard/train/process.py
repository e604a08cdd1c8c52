"""The process that trains: its threads, its memory, and the signals that stop it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch

SHAPES = 16  # operations that oneDNN remembers
PATIENCE = 1.0  # seconds in which a second Ctrl-C is taken for the first


def effective_threads() -> int:
    """Threads that really work: torch's number, as far as OpenMP's own limits let it."""
    threads = torch.get_num_threads()
    limit = os.environ.get("OMP_THREAD_LIMIT", "")
    if limit.isdecimal() and int(limit):
        threads = min(threads, int(limit))
    if os.environ.get("OMP_DYNAMIC", "").lower() in ("true", "1"):
        threads = min(threads, os.cpu_count() or 1)
    return threads


@contextlib.contextmanager
def threads_of(number: int | None) -> Iterator[None]:
    """A number of threads, and afterwards the caller's own again."""
    before = torch.get_num_threads()
    if number:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
    """The signals that asked for an end, as they come.

    A second Ctrl-C within `PATIENCE` seconds is ignored (a key pressed twice); a later signal ends
    everything at once, by an exception, so that the terminal is restored.
    """
    signals: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return

    first = 0.0

    def on_signal(number: int, _: Any) -> None:
        nonlocal first
        if not signals:
            signals.append(number)
            first = time.monotonic()
        elif number == signal.SIGTERM:
            raise SystemExit(128 + number)
        elif time.monotonic() - first > PATIENCE:
            raise KeyboardInterrupt

    before = {
        number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def keep_memory() -> None:
    """Ask glibc to keep freed memory. It would give large blocks back to the system after every
    operation and take them again page by page, which costs small models up to half their time.

    oneDNN keeps the code and room of 1,024 operations, each for one shape. Batches seldom have the
    same shape twice, so most of that is never used again: it keeps fewer."""
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(SHAPES))
    with contextlib.suppress(OSError, AttributeError):
        trim_threshold, mmap_threshold = -1, -3
        libc = ctypes.CDLL(None)
        libc.mallopt(mmap_threshold, 1 << 30)
        libc.mallopt(trim_threshold, (1 << 31) - 1)


def release_memory() -> None:
    """Give freed memory back to the system. Blocks of many sizes leave gaps that no later block
    fits in: a run whose batches have many shapes would grow to several times what it needs."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
