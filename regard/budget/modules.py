"""Budgets by running: any torch.nn.Module is counted operation by operation and compared with
closed forms of its layers."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from regard import build
from regard.budget.recipes import codes
from regard.budget.trace import Trace
from regard.errors import InputError
from regard.layers import maclaurin, native
from regard.model import Model
from regard.recipe import Recipe
from regard.resources import check_memory
from regard.tokenizers import NUM_SPECIAL_TOKENS


@dataclass(frozen=True)
class CountedPart:
    """A submodule: the multiplications of its own code, without those of its children."""

    name: str
    kind: str
    parameters: int  # its own
    counted: int
    closed: int | None  # the value of the closed form of its class; None: there is none
    formula: str = ""

    @property
    def where(self) -> str:
        return f"{self.name or 'the module itself'} ({self.kind})"

    @property
    def differs(self) -> bool:
        return self.closed is not None and self.closed != self.counted


@dataclass(frozen=True)
class Counted:
    """The cost of one call of a module, with the attributes of a `Budget`."""

    title: str
    parameters: int
    multiplications: dict[str, int]
    memory: dict[str, int]
    depth: dict[str, int]
    parts: tuple[CountedPart, ...]
    unknown: dict[str, int]  # operations of unknown cost: one step and no multiplication each

    @property
    def flops(self) -> dict[str, int]:
        return {name: 2 * count for name, count in self.multiplications.items()}

    @property
    def differences(self) -> tuple[str, ...]:
        """One line for each part whose closed form differs from the count, or that has none."""
        lines = [
            f"{part.where}: {part.formula} = {part.closed:,}, counted {part.counted:,}"
            for part in self.parts
            if part.differs
        ]
        lines += [
            f"{part.where}: no closed form, counted {part.counted:,}"
            for part in self.parts
            if part.closed is None
        ]
        return (
            *lines,
            *(f"{name}: not known, came {count:,} times" for name, count in self.unknown.items()),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "parameters": self.parameters,
            "multiplications": self.multiplications,
            "flops": self.flops,
            "memory": self.memory,
            "depth": self.depth,
            "parts": [part.__dict__ for part in self.parts],
            "differences": list(self.differences),
        }


def of_module(module: nn.Module, example_inputs: Any, *, training: bool = False) -> Counted:
    """Count one call of the module in eval mode without gradients, and with `training` another one
    with gradients.

    `example_inputs` is a tensor, a tuple of positional arguments or a dict of named ones. Weights
    on the meta device cost no memory, and their multiplications are the same.
    """
    args, kwargs = _arguments(example_inputs)
    was, seen = module.training, dict[str, _Seen]()
    try:
        module.eval()
        with _watched(module, seen) as trace, torch.no_grad():
            made = _call(module, args, kwargs)
        multiplications, depth = (
            {"forward": trace.products},
            max((trace.depth(each) for each in _tensors(made)), default=0),
        )
        weights = sum({p.untyped_storage()._cdata: p.nbytes for p in module.parameters()}.values())
        memory = {"weights": weights, "inference": weights + trace.peak}
        if training:
            module.train()
            multiplications["training"], memory["activations"] = _with_gradients(
                module, args, kwargs
            )
    finally:
        module.train(was)
    return Counted(
        title=type(module).__name__,
        parameters=sum(p.numel() for p in module.parameters()),
        multiplications=multiplications,
        memory=memory,
        depth={"forward": depth},
        parts=tuple(
            _part(name, each, seen.get(name), trace.by_part[name])
            for name, each in module.named_modules()
        ),
        unknown=dict(trace.unknown),
    )


def _arguments(given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(given, Mapping):
        return (), dict(given)
    if isinstance(given, tuple | list):
        return tuple(given), {}
    if isinstance(given, Tensor | PackedSequence):
        return (given,), {}
    raise InputError(
        "needs a tensor, a tuple of arguments or a dict of named ones",
        where="example_inputs",
        got=type(given).__name__,
    )


def _call(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return module(*args, **kwargs)
    except (TypeError, RuntimeError, ValueError, IndexError) as error:
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(
            f"{type(module).__name__} cannot be called with these",
            where="example_inputs",
            got=first[0],
        ) from error


def _with_gradients(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[int, int]:
    """Multiplications of a call and its gradients, and bytes that the call kept for them."""
    own = {each.untyped_storage()._cdata for each in (*module.parameters(), *module.buffers())}
    kept: dict[int, int] = {}
    held: list[Tensor] = []  # a storage must not go, or another could have its address

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage()._cdata not in own:
            kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
            held.append(tensor)
        return tensor

    with _pure(), Trace(refuse=False) as trace, torch.enable_grad():
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            made = _call(module, args, kwargs)
        results = [each for each in _tensors(made) if each.requires_grad]
        wanted = [p for p in module.parameters() if p.requires_grad]
        if results and wanted:
            torch.autograd.grad([each.sum() for each in results], wanted, allow_unused=True)
    return trace.products, sum(kept.values())


@contextmanager
def _pure() -> Iterator[None]:
    """Replace our own C kernel, which a trace cannot see, by the same computation in torch."""
    before, cheapest = os.environ.get("REGARD_NATIVE"), maclaurin.cheapest

    def as_with_it(*sizes: int, terms: int, causal: bool, kernel: bool) -> str:
        kernel = kernel or (terms == 3 and before != "0" and native.library() is not None)
        return cheapest(*sizes, terms=terms, causal=causal, kernel=kernel)

    os.environ["REGARD_NATIVE"], maclaurin.cheapest = "0", as_with_it
    try:
        yield
    finally:
        maclaurin.cheapest = cheapest
        del os.environ["REGARD_NATIVE"]
        if before is not None:
            os.environ["REGARD_NATIVE"] = before


@dataclass
class _Seen:
    """The inputs and the shapes of the outputs of a module, over all its calls."""

    inputs: list[tuple[Any, ...]]
    outputs: list[Any]


@contextmanager
def _watched(module: nn.Module, seen: dict[str, _Seen]) -> Iterator[Trace]:
    """A trace that counts by submodule."""
    trace, inside = Trace(refuse=False), [""]
    hooks = []

    def enter(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
            inside.append(name)
            trace.part = name
            seen.setdefault(name, _Seen([], [])).inputs.append((*args, *kwargs.values()))

        return hook

    def leave(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, made: Any) -> None:
            seen[name].outputs.append(_shapes(made))
            inside.pop()
            trace.part = inside[-1]

        return hook

    for name, each in module.named_modules():
        hooks += [
            each.register_forward_pre_hook(enter(name), with_kwargs=True),
            each.register_forward_hook(leave(name)),
        ]
    try:
        with _pure(), trace:
            yield trace
    finally:
        for hook in hooks:
            hook.remove()


def _tensors(of: Any) -> list[Tensor]:
    if isinstance(of, Tensor):
        return [of]
    if isinstance(of, Mapping):
        of = list(of.values())
    if hasattr(of, "__dataclass_fields__"):
        of = [getattr(of, name) for name in of.__dataclass_fields__]
    return [each for part in of for each in _tensors(part)] if isinstance(of, list | tuple) else []


def _shapes(made: Any) -> list[torch.Size]:
    return [each.shape for each in _tensors(made)]


# ------------------------------------------------------------------------------------- closed forms


def _part(name: str, module: nn.Module, seen: _Seen | None, counted: int) -> CountedPart:
    own = sum(p.numel() for p in module.parameters(recurse=False))
    for kind, of in CLOSED.items():
        if type(module) is kind:
            if isinstance(module, nn.MultiheadAttention):  # it never calls its output projection
                own = sum(p.numel() for p in module.parameters())
            closed = sum(of(module, given) for given in seen.inputs) if seen else 0
            return CountedPart(name, kind.__name__, own, counted, closed, FORMULAS.get(kind, "0"))
    return CountedPart(name, type(module).__name__, own, counted, None if counted else 0)


def _linear(module: Any, given: tuple[Any, ...]) -> int:
    return given[0].numel() * module.out_features


def _convolution(module: Any, given: tuple[Any, ...]) -> int:
    x = given[0]
    inner = module.in_channels // module.groups * math.prod(module.kernel_size)
    return math.prod(_convolved(module, x)) * inner


def _convolved(module: Any, x: Tensor) -> tuple[int, ...]:
    axes = len(module.kernel_size)
    pads = [
        (k - 1) * d if module.padding == "same" else 0
        for k, d in zip(module.kernel_size, module.dilation, strict=True)
    ]
    if not isinstance(module.padding, str):
        pads = [2 * p for p in module.padding]
    places = [
        (size + pad - d * (k - 1) - 1) // s + 1
        for size, pad, d, k, s in zip(
            x.shape[-axes:], pads, module.dilation, module.kernel_size, module.stride, strict=True
        )
    ]
    return (x.numel() // math.prod(x.shape[-axes - 1 :]), module.out_channels, *places)


def _transposed(module: Any, given: tuple[Any, ...]) -> int:
    return given[0].numel() * module.out_channels // module.groups * math.prod(module.kernel_size)


def _recurrent(module: Any, given: tuple[Any, ...]) -> int:
    x = given[0].data if isinstance(given[0], PackedSequence) else given[0]
    rows = x.numel() // x.shape[-1]
    return rows * sum(p.numel() for p in module.parameters() if p.ndim == 2)


def _cell(module: Any, given: tuple[Any, ...]) -> int:
    return (
        given[0].numel()
        // given[0].shape[-1]
        * (module.weight_ih.numel() + module.weight_hh.numel())
    )


def _multi_head(module: Any, given: tuple[Any, ...]) -> int:
    query, key, value = given[:3]
    width = module.embed_dim
    mixed = [x.numel() // x.shape[-1] for x in (query, key, value)]
    rows = query.shape[0 if module.batch_first else 1] if query.ndim == 3 else 1
    projected = (
        mixed[0] * 2 * width * width
        + mixed[1] * module.kdim * width
        + mixed[2] * module.vdim * width
    )
    return projected + 2 * mixed[0] * (mixed[1] // rows) * width


def _nothing(module: Any, given: tuple[Any, ...]) -> int:
    return 0


CLOSED: dict[type[nn.Module], Callable[[Any, tuple[Any, ...]], int]] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Conv3d: _convolution,
    nn.ConvTranspose1d: _transposed,
    nn.ConvTranspose2d: _transposed,
    nn.ConvTranspose3d: _transposed,
    nn.LSTM: _recurrent,
    nn.GRU: _recurrent,
    nn.RNN: _recurrent,
    nn.LSTMCell: _cell,
    nn.GRUCell: _cell,
    nn.MultiheadAttention: _multi_head,
    nn.Embedding: _nothing,
    nn.LayerNorm: _nothing,
    nn.BatchNorm1d: _nothing,
    nn.BatchNorm2d: _nothing,
    nn.GroupNorm: _nothing,
}
FORMULAS: dict[type[nn.Module], str] = {
    nn.Linear: "rows I O",
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), "places O (I / groups) filter"),
    **dict.fromkeys(
        (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), "places I (O / groups) filter"
    ),
    nn.LSTM: "places 4 D (I + D), each layer and direction",
    nn.GRU: "places 3 D (I + D), each layer and direction",
    nn.RNN: "places D (I + D), each layer and direction",
    nn.LSTMCell: "rows 4 D (I + D)",
    nn.GRUCell: "rows 3 D (I + D)",
    nn.MultiheadAttention: "B (2 T D^2 + S (E_k + E_v) D + 2 T S D)",
}


# --------------------------------------------------------------------------------------- our models


def built(recipe: Recipe, vocabulary: int | None = None, labels: int | None = None) -> Model:
    """The model of a recipe, with the vocabulary and labels of its budget."""
    sizes = codes(recipe, vocabulary, labels)
    answers = sizes.labels + NUM_SPECIAL_TOKENS if sizes.labels else sizes.vocabulary
    check_memory(
        build.weight_bytes(recipe, answers, sizes.vocabulary),
        "the weights of this model",
        build.SMALLER,
    )
    return build.model(recipe, vocabulary=answers, source_vocabulary=sizes.vocabulary)


def training_batch(model: Model, batch: int, source: int, target: int) -> tuple[Tensor, ...]:
    """A batch without padding, as `model.loss` takes it: source, its mask, tokens, targets, and
    which of them count."""
    raw, mask = model.frontend.example(batch, source)
    tokens = torch.zeros(batch, target, dtype=torch.long)
    targets = torch.full_like(tokens, model.decoder.vocabulary - 1)
    return raw, mask, tokens, targets, torch.ones(batch, target, dtype=torch.bool)


def of_model(
    model: Model, *, batch: int, source: int, target: int, ctc_weight: float = 0.0
) -> dict[str, int]:
    """The multiplications of a model of ours, by the names of a budget."""
    raw, mask, tokens, targets, real = training_batch(model, batch, source, target)
    was, made = model.training, dict[str, int]()
    try:
        with _pure():
            model.eval()
            with torch.no_grad():
                with Trace(refuse=False) as trace:
                    model(raw, mask, tokens)
                made["forward"] = trace.products
                with Trace(refuse=False) as trace:
                    state = model.decoder.start(model.encode(raw[:1], mask[:1]))
                made["start"] = trace.products
                for place in range(target - 1):
                    state = model.decoder.step(tokens[:1, place], state).state
                with Trace(refuse=False) as trace:
                    model.decoder.step(tokens[:1, -1], state)
                made["token"] = trace.products
            model.train()
            # its dropout multiplies no matrices, and tempo would draw other lengths
            model.frontend.eval()
            with Trace(refuse=False) as trace:
                loss, _ = model.loss(raw, mask, tokens, targets, real, ctc_weight=ctc_weight)
                torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad])
            made["training"] = trace.products
    finally:
        model.train(was)
    return made
