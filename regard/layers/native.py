"""maclaurin.c, built on first use where there is a C compiler; nothing at all where there is none.

The library is kept in the cache ($REGARD_CACHE, or the usual place) under the hash of its source, its flags and the
processor it was made for. REGARD_NATIVE=0 turns it off. It computes what `monomials` computes, for 3 terms, in single
precision and on the CPU; whatever goes wrong with building or loading it, torch does the work instead.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from regard import disk
from regard.errors import RegardError

SOURCE = Path(__file__).with_name("maclaurin.c")
FLAGS = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")
WIDEST = 4096  # an axis must fit a short


def takes(q: Tensor, terms: int) -> bool:
    """Whether the library is there and is for such numbers."""
    fit = terms == 3 and q.dtype == torch.float32 and q.device.type == "cpu" and 0 < q.shape[-1] <= WIDEST
    return fit and os.environ.get("REGARD_NATIVE") != "0" and library() is not None


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """The built library, or None."""
    compiler = shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    try:
        made_of = "\0".join([SOURCE.read_text(encoding="utf-8"), compiler, *FLAGS, processor()])
        file = cache_folder() / f"maclaurin-{hashlib.sha256(made_of.encode()).hexdigest()[:32]}.so"
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            command = [compiler, *FLAGS, str(SOURCE), "-o"]
            disk.write_file(
                file,
                lambda draft: subprocess.run([*command, str(draft)], check=True, capture_output=True, timeout=120),  # noqa: S603
            )
        # Loaded after torch, so that both share torch's OpenMP and its threads.
        return ctypes.CDLL(str(file))
    except (OSError, subprocess.SubprocessError, RegardError):
        return None


def processor() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:
        return platform.platform() + platform.processor()
    return "\n".join(
        line for line in lines if line.startswith(("vendor_id", "cpu family", "model", "flags", "Features"))
    )


def cache_folder() -> Path:
    """The same folder as `build.cache_folder`, which layers may not see."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("REGARD_CACHE") or Path(home) / "regard") / "native"


def forward(
    q: Float[Tensor, "N L D"],
    k: Float[Tensor, "N S D"],
    v: Float[Tensor, "N S E"],
    last: Float[Tensor, "N S"] | None,
    scale: float,
    sums: Float[Tensor, "N M F"],
    *,
    causal: bool,
) -> tuple[Float[Tensor, "N L E"], Float[Tensor, "N L 1"]]:
    """Context and normaliser of the queries, in chunked form; adds the keys to `sums`. `last` is the column beside v,
    ones unless given."""
    context, normaliser = q.new_empty(*q.shape[:2], v.shape[2]), q.new_empty(*q.shape[:2], 1)
    _call("forward", q, k, v, last, scale, sums, context, normaliser, causal)
    return context, normaliser


def backward(
    q: Float[Tensor, "N L D"],
    k: Float[Tensor, "N S D"],
    v: Float[Tensor, "N S E"],
    last: Float[Tensor, "N S"] | None,
    g: Float[Tensor, "N L E"],
    g_last: Float[Tensor, "N L"],
    scale: float,
    sums: Float[Tensor, "N M F"],
    d_sums: Float[Tensor, "N M F"],
    *,
    causal: bool,
) -> tuple[Float[Tensor, "N L D"], Float[Tensor, "N S D"], Float[Tensor, "N S E"]]:
    """Gradients of q, k and v from those of the numerators, [g | g_last], and of the sums at the end, `d_sums`, which
    becomes that of the sums at the start. `sums` are those at the end; causal: those at the start, and used up."""
    made = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    _call("backward", q, k, v, last, g, g_last, scale, sums, d_sums, *made, causal)
    return made


def _call(name: str, q: Tensor, k: Tensor, v: Tensor, *given: Tensor | float | None) -> None:
    found = library()
    assert found is not None
    sizes = map(ctypes.c_long, (*q.shape[:2], k.shape[1], k.shape[2], v.shape[2]))
    passed = []
    for one in (q, k, v, *given):
        if isinstance(one, Tensor):
            assert one.is_contiguous()
            one = ctypes.c_void_p(one.data_ptr())
        passed.append(ctypes.c_float(one) if isinstance(one, float) else one)
    getattr(found, f"maclaurin_{name}")(*sizes, *passed, torch.get_num_threads())
