"""Counts what a computation does while it runs: the longest chain of steps that wait for each
other, work and room.

    with Trace() as trace:
        y = layer(x)
    trace.depth(y), trace.products, trace.peak

Work is the multiplications inside matrix products, convolutions, attention and recurrent cells,
whatever kernel makes them: fused attention, fused LSTM layers and torch's fast path of a
Transformer layer are taken apart here, where other counters see nothing. An outer product (a column
times a row) is a matrix product too. What is done number by number is not counted.

Depth is the time with a processor for every number: an operation on single numbers takes 1, a sum
(or the largest) of n numbers takes ceil(log2 n), being a tree; so a matrix product over n takes 1 +
ceil(log2 n). Moving numbers about takes nothing. A tensor is as deep as its deepest number, so what
should count place by place must be computed place by place. An operation this file does not know is
refused, or noted where `refuse` is off: nothing goes uncounted in silence.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

MOVES = {
    "view", "_unsafe_view", "reshape", "_reshape_alias", "t", "transpose", "permute", "unsqueeze", "squeeze", "select",
    "slice", "split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "unbind", "expand", "cat", "stack",
    "clone", "detach", "alias", "constant_pad_nd", "_to_copy", "lift_fresh", "unfold", "as_strided", "copy", "index",
    "index_select", "index_put", "_index_put_impl", "gather", "scatter", "embedding", "repeat", "roll", "flip", "tril",
    "triu", "view_as_complex", "view_as_real", "_conj", "real", "imag", "complex", "nonzero", "sort", "topk",
    "_pack_padded_sequence", "diagonal", "col2im", "im2col", "select_backward", "slice_backward", "unfold_backward",
    "embedding_dense_backward", "_local_scalar_dense", "equal", "resize", "replication_pad2d",
}  # fmt: skip
MADE_OF_NOTHING = {
    "zeros", "ones", "full", "empty", "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones",
    "new_full", "new_empty", "new_empty_strided", "empty_strided", "scalar_tensor", "arange", "randn", "rand",
    "randint", "randperm", "random", "bernoulli", "normal", "uniform", "fill", "zero",
}  # fmt: skip
ONE_BY_ONE = {
    "add", "sub", "rsub", "mul", "div", "neg", "exp", "expm1", "log", "log1p", "log2", "sigmoid", "tanh", "relu",
    "gelu", "silu", "mish", "elu", "leaky_relu", "hardtanh", "hardswish", "hardsigmoid", "softplus", "sqrt", "rsqrt",
    "reciprocal", "pow", "square", "sin", "cos", "polar", "erf", "clamp", "clamp_min", "clamp_max", "maximum",
    "minimum", "masked_fill", "where", "bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor", "logical_not",
    "logical_and", "logical_or", "eq", "ne", "lt", "le", "gt", "ge", "isfinite", "isnan", "isinf", "isneginf", "abs",
    "sign", "floor", "ceil", "round", "floor_divide", "remainder", "fmod", "lerp", "addcmul", "addcdiv", "dropout",
    "native_dropout", "threshold", "tanh_backward", "sigmoid_backward", "gelu_backward", "silu_backward",
    "threshold_backward", "native_dropout_backward", "index_add", "scatter_add",
}  # fmt: skip
OVER = {
    "sum", "mean", "amax", "amin", "max", "min", "any", "all", "argmax", "argmin", "prod", "nansum",
    "linalg_vector_norm",
}  # fmt: skip
NORMAL = 9  # steps of a normalisation beside its two sums; see `normalised`


def tree(n: int) -> int:
    """The height of a tree over n leaves.

    >>> [tree(n) for n in (1, 2, 3, 4, 5)]
    [0, 1, 2, 2, 3]
    """
    return max(0, n - 1).bit_length()


class Trace(TorchDispatchMode):
    """Watches every operation of torch inside its `with`.

    products  multiplications; by_part has them by the name that `part` had at the time
    written   bytes of the new tensors that were made, by shape: {(4, 64, 64): 65536, …}; views are not new
    peak      most bytes of such tensors that were there at the same time
    unknown   operations whose cost is not known, and how often they came; they count as one step
    """

    def __init__(self, *, refuse: bool = True) -> None:
        super().__init__()
        self.products, self.live, self.peak = 0, 0, 0
        self.by_part: Counter[str] = Counter()
        self.part = ""
        self.written: dict[tuple[int, ...], int] = {}
        self.unknown: Counter[str] = Counter()
        self._refuse = refuse
        self._depths = WeakIdKeyDictionary()
        self._in_place: dict[
            int, int
        ] = {}  # how deep what was written through a view is, by storage
        self._storages: dict[int, weakref.ref] = {}

    def depth(self, tensor: Tensor) -> int:
        """Steps that had to be made one after another before `tensor` was there; 0 for what came
        from outside.

        A view has its own depth, its neighbours in the same storage have theirs; the whole is as
        deep as the deepest.
        """
        own, is_part = self._depths.get(tensor) or (0, tensor._is_view())
        return own if is_part else max(own, self._in_place.get(tensor.untyped_storage()._cdata, 0))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = _tensors((*args, *kwargs.values()))
        stored = {tensor.untyped_storage()._cdata for tensor in given}
        before = max((self.depth(tensor) for tensor in given), default=0)
        made = func(*args, **kwargs)
        outputs = _tensors(made)
        name = func.overloadpacket.__name__
        if name.rstrip("_") in MADE_OF_NOTHING:  # of another tensor these need the shape only
            before = 0
        steps, products = self._cost(name, args, kwargs, outputs)
        self.products += products
        if products:
            self.by_part[self.part] += products
        for tensor in outputs:
            storage = tensor.untyped_storage()
            old, changed = storage._cdata in stored, func._schema.is_mutable
            _, was_part = self._depths.get(tensor) or (0, tensor._is_view())
            self._depths[tensor] = before + steps, was_part if changed else old
            if not old:
                shape = tuple(tensor.shape)
                self.written[shape] = self.written.get(shape, 0) + tensor.nbytes
                self._born(storage)
            elif changed:
                self._in_place[storage._cdata] = max(
                    before + steps, self._in_place.get(storage._cdata, 0)
                )
        return made

    def _cost(self, name: str, args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
        found = cost(name, args, kwargs, made)
        if found is not None:
            return found
        if self._refuse:
            raise NotImplementedError(f"Trace does not know what {name} costs")
        self.unknown[name] += 1
        return 1, 0

    def _born(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._storages:
            return
        self.live += size
        self.peak = max(self.peak, self.live)

        def died(_: object) -> None:
            if self._storages.pop(key, None) is not None:
                self.live -= size
                self._in_place.pop(key, None)

        self._storages[key] = weakref.ref(storage, died)


def cost(name: str, args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int] | None:
    """Steps and multiplications of one operation, None if it is not known."""
    plain = name if name.startswith("__") else name.rstrip("_")  # add_ does in place what add does
    if plain in MOVES or plain in MADE_OF_NOTHING:
        return 0, 0
    if plain == "mul":
        return 1, _outer(args)
    if plain in ONE_BY_ONE:
        return 1, 0
    if plain in OVER:
        return tree(args[0].numel() // max(1, made[0].numel())) + (plain == "mean"), 0
    if plain in KNOWN:
        return KNOWN[plain](args, kwargs, made)
    if plain.startswith("_scaled_dot_product"):
        return (_attention_backward if plain.endswith("_backward") else _attention)(
            args, kwargs, made
        )
    return None


def _product(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    inner = args[0].shape[-1]
    return 1 + tree(inner), made[0].numel() * inner


def _added_product(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    steps, products = _product(args[1:], kwargs, made)
    return steps + (kwargs.get("beta", 1) != 0) + (kwargs.get("alpha", 1) != 1), products


def _outer(args: Any) -> int:
    """The multiplications of a column times a row: a matrix product over one number."""
    if not all(isinstance(each, Tensor) and each.ndim > 1 for each in args[:2]):
        return 0
    a, b = args[0].shape, args[1].shape
    for column, row in ((a, b), (b, a)):
        if column[-1] == 1 == row[-2] and column[-2] > 1 and row[-1] > 1:
            return math.prod(torch.broadcast_shapes(a, b))
    return 0


def _softmax(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    """Largest, subtract, exp, sum, divide. (Its gradient has another tensor before the axis.)"""
    axis = next(each for each in args if isinstance(each, int))
    return 2 * tree(args[0].shape[axis]) + 3, 0


def normalised(numbers: int) -> int:
    """Steps of (x - mean) / sqrt(var + eps) * weight + bias: mean, subtract, square, mean, add,
    root, divide, …

    >>> normalised(8) == 2 * 3 + NORMAL
    True
    """
    return 2 * tree(numbers) + NORMAL


def _layer_norm(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    return normalised(math.prod(args[1])), 0


def _batch_norm(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    return normalised(args[0].numel() // args[0].shape[1]), 0


def _group_norm(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    return normalised(args[0].numel() // (args[0].shape[0] * args[6])), 0


def _norm_backward(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    return normalised(max(args[1].shape)), 0


def _convolution(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    x, weight, bias = args[:3]
    if args[6]:  # transposed: each number of the input is spread by the filter
        inner = math.prod(weight.shape[1:])
        return 1 + tree(weight.shape[0] * math.prod(weight.shape[2:])) + (
            bias is not None
        ), x.numel() * inner
    inner = math.prod(weight.shape[1:])
    return 1 + tree(inner) + (bias is not None), made[0].numel() * inner


def _convolution_backward(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    """As many products as forward for the input's gradient, and as many for the weight's."""
    grad, x, weight = args[:3]
    once = (x if args[7] else grad).numel() * math.prod(weight.shape[1:])
    return 1 + tree(grad.numel() // grad.shape[1]), once * sum(args[10][:2])


def _largest(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    return tree(math.prod(args[1])), 0


def _mean(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    return tree(math.prod(args[1])) + 1, 0


def _attention(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    """Scale, scores, hide, softmax, mix. Places that a mask hides are counted: that they are
    made is the usual case."""
    q, k, v = args[:3]
    places, width = k.shape[-2:]
    hidden = kwargs.get("attn_mask") is not None or any(
        isinstance(each, Tensor) for each in args[3:]
    )
    hidden = hidden or any(each is True for each in args[3:]) or bool(kwargs.get("is_causal"))
    steps = 1 + 1 + tree(width) + hidden + 2 * tree(places) + 3 + 1 + tree(places)
    return steps, q.numel() // width * places * (width + v.shape[-1])


def _attention_backward(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    """The scores once more, then the gradients of weights, v, q and k."""
    q, k, v = args[1:4]
    places, width = k.shape[-2:]
    rows = q.numel() // width
    steps = 4 + 2 * tree(places) + 2 * tree(width) + tree(q.shape[-2])
    return steps, rows * places * (3 * width + 2 * v.shape[-1])


LSTM_STEPS, GRU_STEPS = (
    8,
    10,
)  # beside log D: product, bias and sum of both; gates; candidate; new state


def _lstm_layer(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    """One direction of one layer, (T, B, I) -> (T, B, D): a place waits for the one before."""
    x, on_input, on_state = args[:3]
    places = x.shape[0]
    width, inputs = on_state.shape[1], on_input.shape[1]
    deepest = (
        LSTM_STEPS + max(tree(inputs), tree(width)) + (places - 1) * (LSTM_STEPS + tree(width))
    )
    return deepest, x.shape[0] * x.shape[1] * (on_input.numel() + on_state.numel())


def _lstm_layer_backward(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    steps, products = _lstm_layer(args, kwargs, made)
    return 2 * steps, 2 * products


def _cudnn_rnn(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    """All layers and directions in one call; its matrices come as a list, a state wide each (or
    two, or less)."""
    x, weights = args[0], args[1]
    places, matrices = x.numel() // x.shape[-1], [each for each in weights if each.ndim == 2]
    deepest = (
        max(x.shape[:2]) * (LSTM_STEPS + tree(matrices[-1].shape[1])) * max(1, len(matrices) // 2)
    )
    return deepest, places * sum(each.numel() for each in matrices)


def _multi_head(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    """torch._native_multi_head_attention(query, key, value, width, heads, project, its bias,
    out, …), the fast path."""
    query, key, _, width, heads, project, _, out = args[:8]
    rows, places, seen = query.shape[0], query.shape[1], key.shape[1]
    products = rows * (places * width * width + 2 * seen * width * width + places * out.numel())
    looked = 1 + 1 + tree(width // heads) + 2 * tree(seen) + 3 + 1 + tree(seen)
    return 2 + tree(project.shape[1]) + looked + 2 + tree(
        width
    ), products + 2 * rows * places * seen * width


def _encoder_layer(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    """torch._transformer_encoder_layer_fwd, the fast path: attention, two norms and two linear
    maps in one call."""
    source, width, heads, project, bias, out = args[:6]
    steps, products = _multi_head(
        (source, source, source, width, heads, project, bias, out), kwargs, made
    )
    wide, narrow = (each for each in args[7:] if isinstance(each, Tensor) and each.ndim == 2)
    around = 2 * normalised(width) + 2 + (2 + tree(width)) + 1 + (2 + tree(wide.shape[0]))
    return steps + around, products + source.numel() // width * (wide.numel() + narrow.numel())


def _sum_of_exponentials(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    return 2 * tree(args[0].numel() // max(1, made[0].numel())) + 4, 0


def _running(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    return tree(args[0].shape[args[1]]), 0


def _loss(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    return tree(args[0].numel()) + 1, 0


KNOWN = {
    "mm": _product,
    "bmm": _product,
    "mv": _product,
    "dot": _product,
    "vdot": _product,
    "_int_mm": _product,
    "addmm": _added_product,
    "baddbmm": _added_product,
    "addmv": _added_product,
    "_addmm_activation": _added_product,
    "_softmax": _softmax,
    "_safe_softmax": _softmax,
    "_log_softmax": _softmax,
    "_softmax_backward_data": _softmax,
    "_log_softmax_backward_data": _softmax,
    "logsumexp": _sum_of_exponentials,
    "cumsum": _running,
    "cumprod": _running,
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _norm_backward,
    "_fused_rms_norm": _layer_norm,
    "native_batch_norm": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "_native_batch_norm_legit": _batch_norm,
    "cudnn_batch_norm": _batch_norm,
    "native_group_norm": _group_norm,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "max_pool2d_with_indices": _largest,
    "avg_pool2d": _mean,
    "mkldnn_rnn_layer": _lstm_layer,
    "mkldnn_rnn_layer_backward": _lstm_layer_backward,
    "_cudnn_rnn": _cudnn_rnn,
    "_native_multi_head_attention": _multi_head,
    "_transformer_encoder_layer_fwd": _encoder_layer,
    "nll_loss_forward": _loss,
    "nll_loss_backward": _loss,
    "mse_loss": _loss,
}


def _tensors(of: Any) -> list[Tensor]:
    """The tensors in an operation's arguments or results: alone, in a row, or in a list within
    it (cat, stack)."""
    if isinstance(of, Tensor):
        return [of]
    return (
        [tensor for part in of for tensor in _tensors(part)] if isinstance(of, list | tuple) else []
    )
