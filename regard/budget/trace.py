"""Counts the multiplications, the depth and the memory of a computation while it runs.

    with Trace() as trace:
        y = layer(x)
    trace.depth(y), trace.products, trace.peak

Multiplications are those inside matrix products, convolutions, attention and recurrent cells,
whatever kernel computes them: also fused attention, fused LSTM layers and torch's fast path
of a Transformer layer, which other counters miss. An outer product is a matrix product too.
Elementwise operations are not counted.

Depth is the longest chain of dependent operations, given a processor per number. An elementwise
operation takes 1 step; a sum (or maximum) of n numbers is a tree of ceil(log2 n) steps, so a matrix
product over n takes 1 + ceil(log2 n). Moving numbers takes none. A tensor is as deep as its deepest
number, so a computation is counted position by position only if it runs position by position.

An operation that is not listed here raises an error, or is recorded in `unknown` with
`refuse=False`.
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
    "view", "_unsafe_view", "reshape", "_reshape_alias", "t", "transpose", "permute", "unsqueeze",
    "squeeze", "select", "slice", "split", "split_with_sizes", "unsafe_split",
    "unsafe_split_with_sizes", "unbind", "expand", "cat", "stack", "clone", "detach", "alias",
    "constant_pad_nd", "_to_copy", "lift_fresh", "unfold", "as_strided", "copy", "index",
    "index_select", "index_put", "_index_put_impl", "gather", "scatter", "embedding", "repeat",
    "roll", "flip", "tril", "triu", "view_as_complex", "view_as_real", "_conj", "real", "imag",
    "complex", "nonzero", "sort", "topk", "_pack_padded_sequence", "diagonal", "col2im", "im2col",
    "select_backward", "slice_backward", "unfold_backward", "embedding_dense_backward",
    "_local_scalar_dense", "equal", "resize", "replication_pad2d",
}  # fmt: skip
CREATES = {
    "zeros", "ones", "full", "empty", "zeros_like", "ones_like", "full_like", "empty_like",
    "new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided", "empty_strided",
    "scalar_tensor", "arange", "randn", "rand", "randint", "randperm", "random", "bernoulli",
    "normal", "uniform", "fill", "zero",
}  # fmt: skip
ELEMENTWISE = {
    "add", "sub", "rsub", "mul", "div", "neg", "exp", "expm1", "log", "log1p", "log2", "sigmoid",
    "tanh", "relu", "gelu", "silu", "mish", "elu", "leaky_relu", "hardtanh", "hardswish",
    "hardsigmoid", "softplus", "sqrt", "rsqrt", "reciprocal", "pow", "square", "sin", "cos",
    "polar", "erf", "clamp", "clamp_min", "clamp_max", "maximum", "minimum", "masked_fill", "where",
    "bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor", "logical_not", "logical_and",
    "logical_or", "eq", "ne", "lt", "le", "gt", "ge", "isfinite", "isnan", "isinf", "isneginf",
    "abs", "sign", "floor", "ceil", "round", "floor_divide", "remainder", "fmod", "lerp", "addcmul",
    "addcdiv", "dropout", "native_dropout", "threshold", "tanh_backward", "sigmoid_backward",
    "gelu_backward", "silu_backward", "threshold_backward", "native_dropout_backward", "index_add",
    "scatter_add",
}  # fmt: skip
REDUCES = {
    "sum", "mean", "amax", "amin", "max", "min", "any", "all", "argmax", "argmin", "prod", "nansum",
    "linalg_vector_norm",
}  # fmt: skip
NORM = 9  # steps of a normalisation beside its two sums; see `norm_steps`


def tree(n: int) -> int:
    """The height of a binary tree with n leaves, ceil(log2 n).

    >>> [tree(n) for n in (1, 2, 3, 4, 5)]
    [0, 1, 2, 2, 3]
    """
    return max(0, n - 1).bit_length()


class Trace(TorchDispatchMode):
    """Records every operation of torch inside its `with`.

    products  multiplications; by_part has them by the value of `part` at the time
    written   bytes of new tensors by shape, {(4, 64, 64): 65536, …}; views are not new
    peak      largest number of bytes of such tensors that existed at the same time
    unknown   operations whose cost is not known, and how often they ran; each counts as one step
    """

    def __init__(self, *, refuse: bool = True) -> None:
        super().__init__()
        self.products = 0
        self.live = 0
        self.peak = 0
        self.by_part: Counter[str] = Counter()
        self.part = ""
        self.written: dict[tuple[int, ...], int] = {}
        self.unknown: Counter[str] = Counter()
        self._refuse = refuse
        self._depths = WeakIdKeyDictionary()
        self._in_place: dict[int, int] = {}  # by storage: depth of what was written through views
        self._storages: dict[int, weakref.ref] = {}

    def depth(self, tensor: Tensor) -> int:
        """The sequential steps that lead to `tensor`; 0 for a tensor made outside the trace.

        Views of one storage have a depth each; the whole is as deep as the deepest of them.
        """
        own, is_part = self._depths.get(tensor) or (0, tensor._is_view())
        return own if is_part else max(own, self._in_place.get(tensor.untyped_storage()._cdata, 0))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = _tensors((*args, *kwargs.values()))
        input_storages = {tensor.untyped_storage()._cdata for tensor in inputs}
        input_depth = max((self.depth(tensor) for tensor in inputs), default=0)

        result = func(*args, **kwargs)
        outputs = _tensors(result)
        name = func.overloadpacket.__name__
        if name.rstrip("_") in CREATES:  # these use only the shape of an input
            input_depth = 0
        steps, products = self._cost(name, args, kwargs, outputs)
        self.products += products
        if products:
            self.by_part[self.part] += products

        depth = input_depth + steps
        for tensor in outputs:
            storage = tensor.untyped_storage()
            old = storage._cdata in input_storages
            changed = func._schema.is_mutable
            _, was_part = self._depths.get(tensor) or (0, tensor._is_view())
            self._depths[tensor] = depth, was_part if changed else old
            if not old:
                shape = tuple(tensor.shape)
                self.written[shape] = self.written.get(shape, 0) + tensor.nbytes
                self._born(storage)
            elif changed:
                deepest = self._in_place.get(storage._cdata, 0)
                self._in_place[storage._cdata] = max(depth, deepest)
        return result

    def _cost(self, name: str, args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
        steps_and_products = cost(name, args, kwargs, made)
        if steps_and_products is not None:
            return steps_and_products
        if self._refuse:
            raise NotImplementedError(f"Trace does not know what {name} costs")
        self.unknown[name] += 1
        return 1, 0

    def _born(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        size = storage.nbytes()
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
    """Steps and multiplications of one operation, None if they are not known."""
    plain = name if name.startswith("__") else name.rstrip("_")  # add_ does in place what add does
    if plain in MOVES or plain in CREATES:
        return 0, 0
    if plain == "mul":
        return 1, _outer(args)
    if plain in ELEMENTWISE:
        return 1, 0
    if plain in REDUCES:
        return tree(args[0].numel() // max(1, made[0].numel())) + (plain == "mean"), 0
    if plain in KNOWN:
        return KNOWN[plain](args, kwargs, made)
    if plain.startswith("_scaled_dot_product"):
        attention = _attention_backward if plain.endswith("_backward") else _attention
        return attention(args, kwargs, made)
    return None


def _product(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    inner = args[0].shape[-1]
    return 1 + tree(inner), made[0].numel() * inner


def _added_product(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    steps, products = _product(args[1:], kwargs, made)
    return steps + (kwargs.get("beta", 1) != 0) + (kwargs.get("alpha", 1) != 1), products


def _outer(args: Any) -> int:
    """The multiplications of a column times a row, which broadcasting computes elementwise."""
    if not all(isinstance(factor, Tensor) and factor.ndim > 1 for factor in args[:2]):
        return 0
    a, b = args[0].shape, args[1].shape
    for column, row in ((a, b), (b, a)):
        if column[-1] == 1 == row[-2] and column[-2] > 1 and row[-1] > 1:
            return math.prod(torch.broadcast_shapes(a, b))
    return 0


def _softmax(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    """Maximum, subtract, exp, sum, divide. (Its gradient has another tensor before the axis.)"""
    axis = next(argument for argument in args if isinstance(argument, int))
    return 2 * tree(args[0].shape[axis]) + 3, 0


def norm_steps(numbers: int) -> int:
    """Steps of (x - mean) / sqrt(var + eps) * weight + bias.

    >>> norm_steps(8) == 2 * 3 + NORM
    True
    """
    return 2 * tree(numbers) + NORM


def _layer_norm(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    return norm_steps(math.prod(args[1])), 0


def _batch_norm(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    return norm_steps(args[0].numel() // args[0].shape[1]), 0


def _group_norm(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    return norm_steps(args[0].numel() // (args[0].shape[0] * args[6])), 0


def _norm_backward(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    return norm_steps(max(args[1].shape)), 0


def _convolution(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    x, weight, bias = args[:3]
    inner = math.prod(weight.shape[1:])
    if args[6]:  # transposed: each number of the input is multiplied by the whole filter
        terms = weight.shape[0] * math.prod(weight.shape[2:])
        return 1 + tree(terms) + (bias is not None), x.numel() * inner
    return 1 + tree(inner) + (bias is not None), made[0].numel() * inner


def _convolution_backward(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    """The products of the forward pass, once for the gradient of the input and once for that of
    the weight."""
    grad, x, weight = args[:3]
    once = (x if args[7] else grad).numel() * math.prod(weight.shape[1:])
    return 1 + tree(grad.numel() // grad.shape[1]), once * sum(args[10][:2])


def _largest(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    return tree(math.prod(args[1])), 0


def _mean(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    return tree(math.prod(args[1])) + 1, 0


def _attention(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    """Scale, scores, mask, softmax, weighted sum. Positions hidden by a mask are counted, as most
    kernels compute them."""
    q, k, v = args[:3]
    places, width = k.shape[-2:]
    masked = kwargs.get("attn_mask") is not None or bool(kwargs.get("is_causal"))
    masked = masked or any(isinstance(option, Tensor) or option is True for option in args[3:])
    steps = 1 + 1 + tree(width) + masked + 2 * tree(places) + 3 + 1 + tree(places)
    return steps, q.numel() // width * places * (width + v.shape[-1])


def _attention_backward(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    """The scores again, then the gradients of weights, v, q and k."""
    q, k, v = args[1:4]
    places, width = k.shape[-2:]
    rows = q.numel() // width
    steps = 4 + 2 * tree(places) + 2 * tree(width) + tree(q.shape[-2])
    return steps, rows * places * (3 * width + 2 * v.shape[-1])


# Steps of a cell beside log D: product, biases and their sum; gates; candidate; new state.
LSTM_STEPS = 8
GRU_STEPS = 10


def _lstm_layer(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    """One direction of one layer, (T, B, I) -> (T, B, D): a position waits for the one before."""
    x, on_input, on_state = args[:3]
    places = x.shape[0]
    width, inputs = on_state.shape[1], on_input.shape[1]
    first = LSTM_STEPS + max(tree(inputs), tree(width))
    others = (places - 1) * (LSTM_STEPS + tree(width))
    return first + others, places * x.shape[1] * (on_input.numel() + on_state.numel())


def _lstm_layer_backward(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    steps, products = _lstm_layer(args, kwargs, made)
    return 2 * steps, 2 * products


def _cudnn_rnn(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    """All layers and directions in one call, whose weights are a list."""
    x, weights = args[0], args[1]
    places = x.numel() // x.shape[-1]
    matrices = [weight for weight in weights if weight.ndim == 2]
    layers = max(1, len(matrices) // 2)
    steps = max(x.shape[:2]) * (LSTM_STEPS + tree(matrices[-1].shape[1])) * layers
    return steps, places * sum(matrix.numel() for matrix in matrices)


def _multi_head(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    """torch._native_multi_head_attention(query, key, value, width, heads, project, its bias,
    out, …), the fast path."""
    query, key, _, width, heads, project, _, out = args[:8]
    rows, queries, keys = query.shape[0], query.shape[1], key.shape[1]
    projections = queries * width * width + 2 * keys * width * width + queries * out.numel()
    attention_steps = 1 + 1 + tree(width // heads) + 2 * tree(keys) + 3 + 1 + tree(keys)
    steps = 2 + tree(project.shape[1]) + attention_steps + 2 + tree(width)
    return steps, rows * projections + 2 * rows * queries * keys * width


def _encoder_layer(args: Any, kwargs: Any, made: list[Tensor]) -> tuple[int, int]:
    """torch._transformer_encoder_layer_fwd, the fast path: attention, two norms and two linear
    maps in one call."""
    source, width, heads, project, bias, out = args[:6]
    steps, products = _multi_head(
        (source, source, source, width, heads, project, bias, out), kwargs, made
    )
    up, down = (weight for weight in args[7:] if isinstance(weight, Tensor) and weight.ndim == 2)
    feed_forward_steps = (2 + tree(width)) + 1 + (2 + tree(up.shape[0]))
    steps += 2 * norm_steps(width) + 2 + feed_forward_steps
    return steps, products + source.numel() // width * (up.numel() + down.numel())


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


def _tensors(values: Any) -> list[Tensor]:
    """The tensors in an operation's arguments or results, also those inside lists (cat, stack)."""
    if isinstance(values, Tensor):
        return [values]
    if not isinstance(values, list | tuple):
        return []
    tensors: list[Tensor] = []
    for value in values:
        tensors += _tensors(value)
    return tensors
