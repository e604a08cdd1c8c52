"""What the machine has: cores and memory, and what is said when there is not enough of it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from regard.errors import NoMemoryError

HINT = "a smaller model, batch, beam or input needs less"
ALLOCATION = re.compile(
    "can't allocate memory|not enough memory|out of memory|bad_alloc|size calculation overflowed"
)

ON_GPU = re.compile("CUDA|MPS")


def available_cores() -> int:
    """The cores that this process may use, where the system tells (Linux); otherwise all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_memory() -> int:
    """Bytes that this process may still take: of the machine, of its control group, and of
    `ulimit -v`."""
    return min(_of_machine(), *_of_groups(), _of_limit())


def check_memory(needed: int, what: str, hint: str = HINT) -> None:
    """Refuse what cannot fit before it is begun: the system would kill the process half-way,
    without a word."""
    free = available_memory()
    if needed > free:
        got = f"{_size(needed)} needed, {_size(free)} available"
        raise NoMemoryError(f"{what} do not fit into memory", got=got, hint=hint)


def shortage(error: BaseException) -> NoMemoryError | None:
    """What to tell of an error that is about memory; None: it is about something else."""
    text = str(error)
    if not isinstance(error, MemoryError) and not (
        isinstance(error, RuntimeError) and ALLOCATION.search(text)
    ):
        return None
    wanted = re.search(r"allocate (\d+) bytes|allocate ([\d.]+ [KMGTP]i?B)", text)
    got = None
    if wanted:
        amount = _size(int(wanted[1])) if wanted[1] else wanted[2]
        got = f"{amount} at once"
        if not ON_GPU.search(text):
            got += f", {_size(available_memory())} available"
    return NoMemoryError("not enough memory", got=got, hint=HINT)


@contextlib.contextmanager
def allocations() -> Iterator[None]:
    """A failed allocation inside becomes an error of the family."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        memory_error = shortage(error)
        if memory_error is None:
            raise
        raise memory_error from None


def _of_machine() -> int:
    """What the system can give without swapping; all there is where it does not say that."""
    with contextlib.suppress(OSError):
        text = Path("/proc/meminfo").read_text("utf-8")
        available = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
        if available:
            return int(available[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _of_groups() -> Iterator[int]:
    """What is left to a container, by the two versions of control groups."""
    home = Path("/sys/fs/cgroup")
    for most, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):  # ValueError: "max", which is no limit
            yield max(0, int((home / most).read_text()) - int((home / used).read_text()))


def _of_limit() -> int:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return 1 << 63
    with contextlib.suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        return max(0, soft - pages * os.sysconf("SC_PAGE_SIZE"))
    return soft


def _size(count: float) -> str:
    """
    >>> _size(999), _size(4_398_046_511_104)
    ('999 bytes', '4,398.0 GB')
    """
    for unit, one in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= one:
            return f"{count / one:,.1f} {unit}"
    return f"{count:.0f} bytes"
