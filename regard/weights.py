"""The weights of a model, and safetensors files of them."""

from __future__ import annotations

from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from regard.errors import BundleError
from regard.model import Model


def tensors(model: Model) -> dict[str, Tensor]:
    """The parameters and the persistent buffers. A weight with two names (tied embeddings) comes
    once."""
    persistent = model.state_dict()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in persistent}
    named = dict(model.named_parameters()) | buffers
    return {name: tensor.detach().contiguous() for name, tensor in named.items()}


def load_tensors(model: Model, saved: dict[str, Tensor], where: object) -> None:
    """Copy saved weights into a model. They must have its names and shapes; an error names
    `where`."""
    own = tensors(model)
    if wrong := sorted(own.keys() ^ saved.keys()):
        raise BundleError(
            "the weights are not those of this recipe", where=where, got=", ".join(wrong[:3])
        )
    for name, tensor in own.items():
        if tensor.shape != saved[name].shape:
            raise BundleError(
                f"{name} must have shape {tuple(tensor.shape)}",
                where=where,
                got=f"shape {tuple(saved[name].shape)}",
            )
        tensor.copy_(saved[name])


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, by name."""
    try:
        return safetensors.torch.load(path.read_bytes())
    except FileNotFoundError:
        raise BundleError("a file is missing", where=path) from None
    except (SafetensorError, ValueError) as problem:
        raise BundleError(
            "damaged: not a safetensors file", where=path, got=str(problem)[:120]
        ) from None


def write_tensors(path: Path, content: dict[str, Tensor]) -> None:
    """Write a safetensors file, with the permissions of the umask; `save_file` would make one for
    its owner alone. It does not say which device the tensors were on."""
    path.touch()
    mode = path.stat().st_mode
    safetensors.torch.save_file({name: tensor.cpu() for name, tensor in content.items()}, path)
    path.chmod(mode)


def size(content: dict[str, Tensor]) -> int:
    """The bytes of all tensors; the names in the file's header are a few more."""
    return sum(tensor.nbytes for tensor in content.values())
