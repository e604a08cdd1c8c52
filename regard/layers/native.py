"""The C library of maclaurin.c and step.c, compiled on first use; torch does the work without it.

The compiled library is cached in $REGARD_CACHE, or in the default cache folder, under the hash of
its source, its flags and the processor it was compiled for. It is loaded only if it belongs to this
user or to root and nobody else may write it; otherwise it is compiled anew. REGARD_NATIVE=0 turns
it off. It implements `monomials` for 3 terms, and `DecoderBlock.step`, in single precision on the
CPU. If there is no C compiler, or compiling or loading fails, torch is used instead.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import stat
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
WIDEST = 4096  # the largest width of a head: maclaurin.c stores the index of an axis as a short


def takes(q: Tensor, terms: int) -> bool:
    """Whether the library is available and supports these queries and terms."""
    return terms == 3 and 0 < q.shape[-1] <= WIDEST and _supports(q)


def supports_step(like: Tensor) -> bool:
    """Whether the library is available and supports a decoder step on the device and with the dtype
    of `like`."""
    return not torch.is_grad_enabled() and _supports(like)


def _supports(x: Tensor) -> bool:
    single = x.dtype == torch.float32 and x.device.type == "cpu"
    return single and os.environ.get("REGARD_NATIVE") != "0" and library() is not None


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """The compiled library, or None."""
    cc = compiler()
    if cc is None:
        return None
    try:
        texts = [source.read_text(encoding="utf-8") for source in SOURCES]
        identity = "\0".join([*texts, cc, *FLAGS, processor()])
        name = f"regard-{hashlib.sha256(identity.encode()).hexdigest()[:32]}.so"
        file = disk.cache_folder() / "native" / name
        if not _is_trusted(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            sources = [str(source) for source in SOURCES if source.suffix == ".c"]
            command = [cc, *FLAGS, *sources, "-lm", "-o"]

            def compile_to(path: Path) -> None:
                arguments = [*command, str(path)]
                subprocess.run(arguments, check=True, capture_output=True, timeout=120)  # noqa: S603
                path.chmod(0o755)  # whatever the umask is

            disk.write_file(file, compile_to)
        # Loaded after torch, so that both share torch's OpenMP and its threads.
        return ctypes.CDLL(str(file))
    except (OSError, subprocess.SubprocessError, RegardError):
        return None


def _is_trusted(file: Path) -> bool:
    """Whether nobody but this user and root can have written the file."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return False
    own = status.st_uid in (0, os.geteuid())
    return own and stat.S_ISREG(status.st_mode) and not status.st_mode & 0o022


def compiler() -> str | None:
    """The path of the C compiler; None: there is none."""
    names = (os.environ.get("CC") or "cc", "gcc", "clang")
    return next(filter(None, map(shutil.which, names)), None)


def processor() -> str:
    """The description of the processor, on which -march=native depends."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:
        return platform.platform() + platform.processor()
    return "\n".join(
        line
        for line in lines
        if line.startswith(("vendor_id", "cpu family", "model", "flags", "Features"))
    )


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
    the last column of [v | last], ones by default."""
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
    """Gradients of q, k and v from the gradients of the numerators, [g | g_last], and of the final
    sums, `d_sums`. `d_sums` is overwritten with the gradient of the initial sums. `sums` are the
    final sums, or with `causal` the initial sums, which are then overwritten."""
    gradients = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    _call("backward", q, k, v, last, g, g_last, scale, sums, d_sums, *gradients, causal)
    return gradients


def _call(name: str, q: Tensor, k: Tensor, v: Tensor, *others: Tensor | float | None) -> None:
    """Calls maclaurin_<name> of the library, with the sizes before and the threads after."""
    c_library = library()
    assert c_library is not None
    sizes = map(ctypes.c_long, (*q.shape[:2], k.shape[1], k.shape[2], v.shape[2]))
    arguments = []
    for argument in (q, k, v, *others):
        if isinstance(argument, Tensor):
            assert argument.is_contiguous()
            arguments.append(_address(argument))
        elif isinstance(argument, float):
            arguments.append(ctypes.c_float(argument))
        else:
            arguments.append(argument)
    getattr(c_library, f"maclaurin_{name}")(*sizes, *arguments, torch.get_num_threads())


class Sizes(ctypes.Structure):
    """The struct `Sizes` of step.c."""

    _fields_ = (
        *((name, ctypes.c_long) for name in ("rows", "D", "H", "K", "ffn_width", "C", "S", "V")),
        *((name, ctypes.c_int) for name in ("pre", "gelu")),
        ("eps", ctypes.c_float),
    )


def decoder_step(
    blocks: Sequence[Tensor],
    output: Sequence[Tensor | None],
    x: Float[Tensor, "B D"],
    cache: Float[Tensor, "N B H C K"],
    cache_position: Int[Tensor, " B"],
    memory: Float[Tensor, "N B H S K"],
    mask: Bool[Tensor, "B S"],
    rotation: Float[Tensor, "B pairs 2"] | None,
    *,
    ffn_width: int,
    vocabulary: int,
    pre: bool,
    gelu: bool,
    eps: float,
) -> tuple[Float[Tensor, "B V"], Float[Tensor, "B H S"]]:
    """The logits of the next token, and the last block's weights over the memory. Overwrites `x`
    and writes keys and values into `cache`. `blocks` and `output` are weights in the order of
    step.c."""
    c_library = library()
    assert c_library is not None
    N, B, H, C, K = cache.shape
    S = memory.shape[3]
    sizes = Sizes(B, x.shape[1], H, K, ffn_width, C, S, vocabulary, pre, gelu, eps)
    weights = x.new_empty(B, H, S)
    logits = x.new_empty(B, vocabulary)
    addresses = []
    for tensor in (x, cache, cache_position, memory, mask, rotation, weights, logits):
        assert tensor is None or tensor.is_contiguous()
        addresses.append(_address(tensor))
    block_weights = (ctypes.c_void_p * len(blocks))(*map(Tensor.data_ptr, blocks))
    output_weights = (ctypes.c_void_p * len(output))(*map(_address, output))
    failed = c_library.decoder_step(
        ctypes.byref(sizes),
        ctypes.c_long(N // 2),
        block_weights,
        output_weights,
        *addresses,
        torch.get_num_threads(),
    )
    if failed:
        raise MemoryError
    return logits, weights


def _address(tensor: Tensor | None) -> ctypes.c_void_p | None:
    return None if tensor is None else ctypes.c_void_p(tensor.data_ptr())
