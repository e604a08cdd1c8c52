"""maclaurin.c and step.c, built on first use where there is a C compiler; nothing at all where
there is none.

The library is kept in the cache ($REGARD_CACHE, or the usual place) under the hash of its source,
its flags and the processor it was made for. REGARD_NATIVE=0 turns it off. It computes what
`monomials` computes, for 3 terms, and what `DecoderBlock.step` does, for a few rows, in single
precision and on the CPU; whatever goes wrong with building or loading it, torch does the work
instead.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard import disk
from regard.errors import RegardError

SOURCES = [Path(__file__).with_name(name) for name in ("maclaurin.c", "step.c", "vectors.h")]
FLAGS = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")
WIDEST = 4096  # an axis must fit a short
ROWS = 8


def takes(q: Tensor, terms: int) -> bool:
    """Whether the library is there and is for such queries."""
    return terms == 3 and 0 < q.shape[-1] <= WIDEST and _is_for(q)


def steps(x: Float[Tensor, "B D"]) -> bool:
    """Whether the library is there and is for steps of such rows. For more of them torch's
    products are faster."""
    return len(x) <= ROWS and not torch.is_grad_enabled() and _is_for(x)


def _is_for(x: Tensor) -> bool:
    single = x.dtype == torch.float32 and x.device.type == "cpu"
    return single and os.environ.get("REGARD_NATIVE") != "0" and library() is not None


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """The built library, or None."""
    compiler = (
        shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc") or shutil.which("clang")
    )
    if compiler is None:
        return None
    try:
        texts = [source.read_text(encoding="utf-8") for source in SOURCES]
        made_of = "\0".join([*texts, compiler, *FLAGS, processor()])
        file = cache_folder() / f"regard-{hashlib.sha256(made_of.encode()).hexdigest()[:32]}.so"
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            command = [
                compiler,
                *FLAGS,
                *(str(source) for source in SOURCES if source.suffix == ".c"),
                "-lm",
                "-o",
            ]
            disk.write_file(
                file,
                lambda draft: subprocess.run(
                    [*command, str(draft)], check=True, capture_output=True, timeout=120
                ),  # noqa: S603
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
        line
        for line in lines
        if line.startswith(("vendor_id", "cpu family", "model", "flags", "Features"))
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
    """Context and normaliser of the queries, in chunked form; adds the keys to `sums`. `last` is
    the column beside v, ones unless given."""
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
    """Gradients of q, k and v from those of the numerators, [g | g_last], and of the sums at the
    end, `d_sums`, which becomes that of the sums at the start. `sums` are those at the end;
    causal: those at the start, and used up."""
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
            one = _address(one)
        passed.append(ctypes.c_float(one) if isinstance(one, float) else one)
    getattr(found, f"maclaurin_{name}")(*sizes, *passed, torch.get_num_threads())


class Sizes(ctypes.Structure):
    """As in step.c."""

    _fields_ = (
        *((name, ctypes.c_long) for name in ("rows", "D", "H", "K", "ffn_width", "C", "S", "V")),
        *((name, ctypes.c_int) for name in ("pre", "gelu")),
        ("eps", ctypes.c_float),
    )


def decoder_step(
    blocks: Sequence[Tensor],
    last: Sequence[Tensor | None],
    x: Float[Tensor, "B D"],
    past: Float[Tensor, "N B H C K"],
    at: Int[Tensor, " B"],
    memory: Float[Tensor, "N B H S K"],
    mask: Bool[Tensor, "B S"],
    waves: Float[Tensor, "B pairs 2"] | None,
    *,
    ffn_width: int,
    vocabulary: int,
    pre: bool,
    gelu: bool,
    eps: float,
) -> tuple[Float[Tensor, "B V"], Float[Tensor, "B H S"]]:
    """The logits that follow, and where the top block looked. Uses up `x` and writes keys and
    values into `past`. Weights come in the order of step.c."""
    found, (N, B, H, C, K), S = library(), past.shape, memory.shape[3]
    assert found is not None
    sizes = Sizes(B, x.shape[1], H, K, ffn_width, C, S, vocabulary, pre, gelu, eps)
    looked, logits = x.new_empty(B, H, S), x.new_empty(B, vocabulary)
    there = []
    for each in (x, past, at, memory, mask, waves, looked, logits):
        assert each is None or each.is_contiguous()
        there.append(_address(each))
    inside = (ctypes.c_void_p * len(blocks))(*[each.data_ptr() for each in blocks])
    after = (ctypes.c_void_p * len(last))(*map(_address, last))
    if found.decoder_step(ctypes.byref(sizes), ctypes.c_long(N // 2), inside, after, *there):
        raise MemoryError
    return logits, looked


def _address(tensor: Tensor | None) -> ctypes.c_void_p | None:
    return None if tensor is None else ctypes.c_void_p(tensor.data_ptr())
