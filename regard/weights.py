"""The weights of a model, and safetensors files of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
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
    check_names(own.keys(), saved.keys(), where)
    for name, tensor in own.items():
        check_shape(name, tensor.shape, saved[name].shape, where)
        tensor.copy_(saved[name])


def check_names(own: Set[str], saved: Set[str], where: object) -> None:
    """Saved weights have the names of a model's own."""
    if wrong := sorted(own ^ saved):
        raise BundleError(
            "the weights are not those of this recipe", where=where, got=", ".join(wrong[:3])
        )


def check_shape(name: str, own: Sequence[int], saved: Sequence[int], where: object) -> None:
    """A saved tensor has the shape of the model's own."""
    if tuple(own) != tuple(saved):
        raise BundleError(
            f"{name} must have shape {tuple(own)}", where=where, got=f"shape {tuple(saved)}"
        )


@dataclass(frozen=True)
class TensorFiles:
    """Tensors in one safetensors file, or in several that were written by as many processes.

    A tensor that several files have is cut along its first axis: its rows are those of the first
    file, then those of the second, and so on. A tensor that one file has is whole.
    """

    paths: tuple[Path, ...]

    def __str__(self) -> str:
        return str(self.paths[0])

    @property
    def size(self) -> int:
        """The bytes of all files."""
        try:
            return sum(path.stat().st_size for path in self.paths)
        except FileNotFoundError as problem:
            raise BundleError("a file is missing", where=problem.filename) from None

    def read(self) -> dict[str, Tensor]:
        """All tensors, by name."""
        parts: dict[str, list[Tensor]] = {}
        for path in self.paths:
            for name, tensor in read_tensors(path).items():
                parts.setdefault(name, []).append(tensor)
        return {
            name: tensors[0] if len(tensors) == 1 else torch.cat(tensors)
            for name, tensors in parts.items()
        }

    @contextlib.contextmanager
    def opened(self) -> Iterator[OpenedTensors]:
        """The files, to read some rows of some tensors."""
        with contextlib.ExitStack() as stack:
            files = []
            for path in self.paths:
                try:
                    files.append(stack.enter_context(safe_open(path, framework="pt")))
                except FileNotFoundError:
                    raise BundleError("a file is missing", where=path) from None
                except SafetensorError as problem:
                    raise BundleError(
                        "damaged: not a safetensors file", where=path, got=str(problem)[:120]
                    ) from None
            yield OpenedTensors(files)


class OpenedTensors:
    """Open safetensors files, which together have some tensors."""

    def __init__(self, files: Sequence[Any]):
        self._slices: dict[str, list[Any]] = {}
        for file in files:
            for name in file.keys():  # noqa: SIM118 -- it is no dict
                self._slices.setdefault(name, []).append(file.get_slice(name))

    @property
    def names(self) -> Set[str]:
        return self._slices.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a whole tensor."""
        shapes = [part.get_shape() for part in self._slices[name]]
        if len(shapes) == 1:
            return tuple(shapes[0])
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])

    def whole(self, name: str) -> Tensor:
        parts = [part[...] for part in self._slices[name]]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """The rows from `start` to `stop` of a tensor. Nothing else of it is read."""
        pieces = []
        first = 0  # row of this part
        for part in self._slices[name]:
            count = part.get_shape()[0]
            low = min(max(start - first, 0), count)
            high = min(max(stop - first, low), count)
            pieces.append(part[low:high])
            first += count
        return torch.cat(pieces)


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
