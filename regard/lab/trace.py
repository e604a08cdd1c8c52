"""Counts what a computation does while it runs: the longest chain of steps that wait for each other, and the work.

    with Trace() as trace:
        y = layer(x)
    trace.depth(y), trace.products

Depth is the time with a processor for every number: an operation on single numbers takes 1, a sum (or the largest) of n
numbers takes ceil(log2 n), being a tree; so a matrix product over n takes 1 + ceil(log2 n). Moving numbers about takes
nothing. A tensor is as deep as its deepest number, so what should count place by place must be computed place by place.
An operation this file does not know is refused: nothing goes uncounted.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

MOVES = {
    "view", "_unsafe_view", "reshape", "t", "transpose", "permute", "unsqueeze", "squeeze", "select", "slice",
    "split", "split_with_sizes", "unbind", "expand", "cat", "stack", "clone", "detach", "alias", "constant_pad_nd",
    "zeros", "ones", "zeros_like", "ones_like", "new_zeros", "full", "arange", "randn", "empty", "_to_copy",
    "lift_fresh", "unfold", "as_strided",
}  # fmt: skip
ONE_BY_ONE = {
    "add", "sub", "rsub", "mul", "div", "neg", "exp", "log", "sigmoid", "tanh", "relu", "gelu", "sqrt", "pow",
    "clamp", "maximum", "minimum", "masked_fill", "where", "bitwise_not", "bitwise_and", "bitwise_or", "logical_not",
    "logical_and", "eq", "ne", "lt", "le", "gt", "ge", "isfinite", "isnan", "isinf", "abs",
}  # fmt: skip
OVER = {"sum", "mean", "amax", "amin", "max", "min", "any", "all"}
READS = {"_local_scalar_dense", "equal"}  # a number that Python looks at


def tree(n: int) -> int:
    """The height of a tree over n leaves.

    >>> [tree(n) for n in (1, 2, 3, 4, 5)]
    [0, 1, 2, 2, 3]
    """
    return (n - 1).bit_length()


class Trace(TorchDispatchMode):
    """Watches every operation of torch inside its `with`.

    products  multiplications of matrix products and convolutions
    written   bytes of the new tensors that were made, by shape: {(4, 64, 64): 65536, …}; views are not new
    """

    def __init__(self) -> None:
        super().__init__()
        self.products = 0
        self.written: dict[tuple[int, ...], int] = {}
        self._depths = WeakIdKeyDictionary()

    def depth(self, tensor: Tensor) -> int:
        """Steps that had to be made one after another before `tensor` was there; 0 for what came from outside."""
        return self._depths.get(tensor) or 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = _tensors((*args, *(kwargs or {}).values()))
        stored = {tensor.untyped_storage().data_ptr() for tensor in given}
        made = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        outputs = _tensors(made)
        steps, products = _cost(name, args, outputs)
        self.products += products
        deep = max((self.depth(tensor) for tensor in given), default=0) + steps
        for tensor in outputs:
            self._depths[tensor] = deep
            if tensor.untyped_storage().data_ptr() not in stored:
                shape = tuple(tensor.shape)
                self.written[shape] = self.written.get(shape, 0) + tensor.nbytes
        return made


def _tensors(of: Any) -> list[Tensor]:
    """The tensors in an operation's arguments or results: alone, in a row, or in a list within it (cat, stack)."""
    if isinstance(of, Tensor):
        return [of]
    return [tensor for part in of for tensor in _tensors(part)] if isinstance(of, list | tuple) else []


def _cost(name: str, args: Any, made: list[Tensor]) -> tuple[int, int]:
    """Steps and multiplications of one operation."""
    if name in MOVES or name in READS:
        return 0, 0
    if name in ONE_BY_ONE:
        return 1, 0
    if name in OVER:
        return tree(args[0].numel() // max(1, made[0].numel())) + (name == "mean"), 0
    if name in ("mm", "bmm"):
        inner = args[0].shape[-1]
        return 1 + tree(inner), made[0].numel() * inner
    if name in ("addmm", "baddbmm"):
        inner = args[1].shape[-1]
        return 2 + tree(inner), made[0].numel() * inner
    if name in ("_softmax", "_safe_softmax"):  # largest, subtract, exp, sum, divide
        return 2 * tree(args[0].shape[args[1]]) + 3, 0
    if name == "convolution":
        inner = math.prod(args[1].shape[1:])
        return 1 + tree(inner) + (args[2] is not None), made[0].numel() * inner
    if name.startswith("_scaled_dot_product"):  # fused: scale, scores, softmax, mix
        q, k, v = args[:3]
        places, width = k.shape[-2:]
        rows = q.numel() // width
        return 1 + 1 + tree(width) + 2 * tree(places) + 3 + 1 + tree(places), rows * places * (width + v.shape[-1])
    raise NotImplementedError(f"Trace does not know what {name} costs")
