"""Forward and backward passes of LSTM and GRU, written out without autograd.

    LSTM                                            GRU
    f  = sigmoid(W_f [a; x] + b_f)   forget gate    r  = sigmoid(W_r [a; x] + b_r)   reset gate
    u  = sigmoid(W_u [a; x] + b_u)   input gate     u  = sigmoid(W_u [a; x] + b_u)   update gate
    o  = sigmoid(W_o [a; x] + b_o)   output gate
    c~ = tanh(W_c [a; x] + b_c)      candidate      c~ = tanh(W_c x + b_c + r (W_a a + b_a))
    c  = f c_prev + u c~,  a = o tanh(c)            a  = u a_prev + (1 - u) c~

    both: y = softmax(W_y a + b_y),  L = -sum_t log y_t[target_t]

The LSTM is that of Hochreiter and Schmidhuber (1997) with the forget gate of Gers et al. (2000);
the GRU is that of Cho et al. (2014) with the reset gate applied after the recurrent matrix, as in
torch. In [a; x], a is the state of the previous position.

Weights are a dictionary of tensors with these names and the shapes W_f, W_u, W_o, W_r and the
LSTM's W_c (D, D + I), the GRU's W_c (D, I), W_a (D, D), W_y (V, D). `lstm_backward` and
`gru_backward` are the formulas of backpropagation through time, one per line. They return the
gradient of every weight, summed over batch and positions, and those of x and of the initial state.

    y, cache = lstm_forward(weights, x)
    gradients = lstm_backward(weights, cache, targets)     {"W_f": ..., ..., "x", "a0", "c0"}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import InputError

Weights = Mapping[str, Tensor]
Gradients = dict[str, Tensor]


# --------------------------------------------------------------------------------------------- LSTM


class LSTMStep(NamedTuple):
    """The gates and states of one position, (B, D) each."""

    f: Tensor
    u: Tensor
    o: Tensor
    candidate: Tensor
    c: Tensor
    a: Tensor


@dataclass(frozen=True)
class LSTMCache:
    """All values of the forward pass, which the backward pass needs."""

    x: Float[Tensor, "B T I"]
    a0: Float[Tensor, "B D"]
    c0: Float[Tensor, "B D"]
    f: Float[Tensor, "B T D"]
    u: Float[Tensor, "B T D"]
    o: Float[Tensor, "B T D"]
    candidate: Float[Tensor, "B T D"]
    c: Float[Tensor, "B T D"]
    a: Float[Tensor, "B T D"]
    y: Float[Tensor, "B T V"]

    @property
    def a_prev(self) -> Float[Tensor, "B T D"]:
        return _shifted(self.a0, self.a)

    @property
    def c_prev(self) -> Float[Tensor, "B T D"]:
        return _shifted(self.c0, self.c)


def lstm_step(
    weights: Weights,
    x: Float[Tensor, "B I"],
    a_prev: Float[Tensor, "B D"],
    c_prev: Float[Tensor, "B D"],
) -> LSTMStep:
    """The gates and the next state."""
    z = torch.cat([a_prev, x], dim=-1)  # [a; x]
    f = torch.sigmoid(z @ weights["W_f"].T + weights["b_f"])
    u = torch.sigmoid(z @ weights["W_u"].T + weights["b_u"])
    o = torch.sigmoid(z @ weights["W_o"].T + weights["b_o"])
    candidate = torch.tanh(z @ weights["W_c"].T + weights["b_c"])
    c = f * c_prev + u * candidate
    a = o * torch.tanh(c)
    return LSTMStep(f, u, o, candidate, c, a)


def lstm_forward(
    weights: Weights,
    x: Float[Tensor, "B T I"],
    *,
    a0: Float[Tensor, "B D"] | None = None,
    c0: Float[Tensor, "B D"] | None = None,
) -> tuple[Float[Tensor, "B T V"], LSTMCache]:
    """The probabilities y of every position, and the cache for the backward pass.

    The initial state is 0 by default.
    """
    width = _checked(weights, x, lstm_shapes)
    a0 = _start("a0", a0, x, width)
    c0 = _start("c0", c0, x, width)
    a, c = a0, c0
    steps = []
    for t in range(x.shape[1]):
        step = lstm_step(weights, x[:, t], a, c)
        steps.append(step)
        a, c = step.a, step.c
    stacked = LSTMStep(*(torch.stack(values, dim=1) for values in zip(*steps, strict=True)))
    y = torch.softmax(stacked.a @ weights["W_y"].T + weights["b_y"], dim=-1)
    return y, LSTMCache(x=x, a0=a0, c0=c0, y=y, **stacked._asdict())


@torch.no_grad()
def lstm_backward(weights: Weights, cache: LSTMCache, targets: Int[Tensor, "B T"]) -> Gradients:
    """The gradient of L by every weight, by x and by the initial state.

    For a gate g, dg is the gradient before its sigmoid or tanh, dL / d(W_g [a; x] + b_g).
    """
    a_prev = cache.a_prev
    c_prev = cache.c_prev
    y = one_hot(targets, cache.y)
    g = {name: torch.zeros_like(value) for name, value in {**weights, "x": cache.x}.items()}
    da_next = torch.zeros_like(cache.a0)
    dc_next = torch.zeros_like(cache.c0)
    for t in reversed(range(cache.x.shape[1])):
        f, u, o, candidate = cache.f[:, t], cache.u[:, t], cache.o[:, t], cache.candidate[:, t]
        z = torch.cat([a_prev[:, t], cache.x[:, t]], dim=-1)
        tanh_c = torch.tanh(cache.c[:, t])

        dy = cache.y[:, t] - y[:, t]
        da = dy @ weights["W_y"] + da_next
        dc = da * o * (1 - tanh_c**2) + dc_next

        do = da * tanh_c * o * (1 - o)
        df = dc * c_prev[:, t] * f * (1 - f)
        du = dc * candidate * u * (1 - u)
        dcandidate = dc * u * (1 - candidate**2)

        g["W_f"] += df.T @ z
        g["W_u"] += du.T @ z
        g["W_o"] += do.T @ z
        g["W_c"] += dcandidate.T @ z
        g["W_y"] += dy.T @ cache.a[:, t]
        g["b_f"] += df.sum(0)
        g["b_u"] += du.sum(0)
        g["b_o"] += do.sum(0)
        g["b_c"] += dcandidate.sum(0)
        g["b_y"] += dy.sum(0)

        dz = (
            df @ weights["W_f"]
            + du @ weights["W_u"]
            + do @ weights["W_o"]
            + dcandidate @ weights["W_c"]
        )
        da_next, g["x"][:, t] = dz.split([da.shape[-1], cache.x.shape[-1]], dim=-1)
        dc_next = dc * f
    return {**g, "a0": da_next, "c0": dc_next}


def lstm_shapes(inputs: int, width: int, outputs: int) -> dict[str, tuple[int, ...]]:
    """The shapes of the weights of an LSTM."""
    gates = {f"W_{gate}": (width, width + inputs) for gate in "fuoc"}
    return {
        **gates,
        **{f"b_{gate}": (width,) for gate in "fuoc"},
        "W_y": (outputs, width),
        "b_y": (outputs,),
    }


def lstm_from_torch(rnn: nn.LSTM, out: nn.Linear) -> dict[str, Tensor]:
    """The weights of a one-layer nn.LSTM and its output nn.Linear, under the names used here.

    The two biases of nn.LSTM are summed.
    """
    w_x, w_a, b_x, b_a = _of_torch(rnn)
    weight = torch.cat([w_a, w_x], dim=1)
    bias = b_a + b_x
    order = "ufco"  # torch's i, f, g, o
    gates = {f"W_{gate}": part for gate, part in zip(order, weight.chunk(4), strict=True)}
    return {
        **gates,
        **{f"b_{gate}": part for gate, part in zip(order, bias.chunk(4), strict=True)},
        "W_y": out.weight,
        "b_y": out.bias,
    }


# ---------------------------------------------------------------------------------------------- GRU


class GRUStep(NamedTuple):
    """The gates and states of one position, (B, D) each.

    `recurrent` is W_a a_prev + b_a, which the reset gate multiplies.
    """

    r: Tensor
    u: Tensor
    recurrent: Tensor
    candidate: Tensor
    a: Tensor


@dataclass(frozen=True)
class GRUCache:
    """All values of the forward pass, which the backward pass needs."""

    x: Float[Tensor, "B T I"]
    a0: Float[Tensor, "B D"]
    r: Float[Tensor, "B T D"]
    u: Float[Tensor, "B T D"]
    recurrent: Float[Tensor, "B T D"]
    candidate: Float[Tensor, "B T D"]
    a: Float[Tensor, "B T D"]
    y: Float[Tensor, "B T V"]

    @property
    def a_prev(self) -> Float[Tensor, "B T D"]:
        return _shifted(self.a0, self.a)


def gru_step(weights: Weights, x: Float[Tensor, "B I"], a_prev: Float[Tensor, "B D"]) -> GRUStep:
    """The gates and the next state."""
    z = torch.cat([a_prev, x], dim=-1)  # [a; x]
    r = torch.sigmoid(z @ weights["W_r"].T + weights["b_r"])
    u = torch.sigmoid(z @ weights["W_u"].T + weights["b_u"])
    recurrent = a_prev @ weights["W_a"].T + weights["b_a"]
    candidate = torch.tanh(x @ weights["W_c"].T + weights["b_c"] + r * recurrent)
    a = u * a_prev + (1 - u) * candidate
    return GRUStep(r, u, recurrent, candidate, a)


def gru_forward(
    weights: Weights, x: Float[Tensor, "B T I"], *, a0: Float[Tensor, "B D"] | None = None
) -> tuple[Float[Tensor, "B T V"], GRUCache]:
    """The probabilities y of every position, and the cache for the backward pass.

    The initial state is 0 by default.
    """
    a0 = _start("a0", a0, x, _checked(weights, x, gru_shapes))
    a = a0
    steps = []
    for t in range(x.shape[1]):
        step = gru_step(weights, x[:, t], a)
        steps.append(step)
        a = step.a
    stacked = GRUStep(*(torch.stack(values, dim=1) for values in zip(*steps, strict=True)))
    y = torch.softmax(stacked.a @ weights["W_y"].T + weights["b_y"], dim=-1)
    return y, GRUCache(x=x, a0=a0, y=y, **stacked._asdict())


@torch.no_grad()
def gru_backward(weights: Weights, cache: GRUCache, targets: Int[Tensor, "B T"]) -> Gradients:
    """The gradient of L by every weight, by x and by the initial state.

    For a gate g, dg is the gradient before its sigmoid or tanh.
    """
    a_prev = cache.a_prev
    y = one_hot(targets, cache.y)
    g = {name: torch.zeros_like(value) for name, value in {**weights, "x": cache.x}.items()}
    da_next = torch.zeros_like(cache.a0)
    for t in reversed(range(cache.x.shape[1])):
        r, u, candidate = cache.r[:, t], cache.u[:, t], cache.candidate[:, t]
        recurrent = cache.recurrent[:, t]
        a, x = a_prev[:, t], cache.x[:, t]
        z = torch.cat([a, x], dim=-1)

        dy = cache.y[:, t] - y[:, t]
        da = dy @ weights["W_y"] + da_next

        du = da * (a - candidate) * u * (1 - u)
        dcandidate = da * (1 - u) * (1 - candidate**2)
        dr = dcandidate * recurrent * r * (1 - r)
        drecurrent = dcandidate * r

        g["W_r"] += dr.T @ z
        g["W_u"] += du.T @ z
        g["W_c"] += dcandidate.T @ x
        g["W_a"] += drecurrent.T @ a
        g["W_y"] += dy.T @ cache.a[:, t]
        g["b_r"] += dr.sum(0)
        g["b_u"] += du.sum(0)
        g["b_c"] += dcandidate.sum(0)
        g["b_a"] += drecurrent.sum(0)
        g["b_y"] += dy.sum(0)

        dz_a, dz_x = (dr @ weights["W_r"] + du @ weights["W_u"]).split(
            [a.shape[-1], x.shape[-1]], dim=-1
        )
        g["x"][:, t] = dz_x + dcandidate @ weights["W_c"]
        da_next = da * u + dz_a + drecurrent @ weights["W_a"]
    return {**g, "a0": da_next}


def gru_shapes(inputs: int, width: int, outputs: int) -> dict[str, tuple[int, ...]]:
    """The shapes of the weights of a GRU."""
    gates = {f"W_{gate}": (width, width + inputs) for gate in "ru"}
    biases = {f"b_{gate}": (width,) for gate in "ruca"}
    return {
        **gates,
        "W_c": (width, inputs),
        "W_a": (width, width),
        **biases,
        "W_y": (outputs, width),
        "b_y": (outputs,),
    }


def gru_from_torch(rnn: nn.GRU, out: nn.Linear) -> dict[str, Tensor]:
    """The weights of a one-layer nn.GRU and its output nn.Linear, under the names used here.

    The candidate keeps both of its biases, because the reset gate multiplies one of them.
    """
    (r_x, u_x, c_x), (r_a, u_a, c_a), (r_in, u_in, c_in), (r_back, u_back, c_back) = (
        part.chunk(3) for part in _of_torch(rnn)
    )
    return {
        "W_r": torch.cat([r_a, r_x], dim=1),
        "W_u": torch.cat([u_a, u_x], dim=1),
        "W_c": c_x,
        "W_a": c_a,
        "b_r": r_in + r_back,
        "b_u": u_in + u_back,
        "b_c": c_in,
        "b_a": c_back,
        "W_y": out.weight,
        "b_y": out.bias,
    }


# --------------------------------------------------------------------------------------------- both


def loss(y: Float[Tensor, "B T V"], targets: Int[Tensor, "B T"]) -> Float[Tensor, ""]:
    """L = -sum log y[target], the cross-entropy summed over batch and positions."""
    return -y.gather(-1, targets[..., None]).log().sum()


def one_hot(targets: Int[Tensor, "B T"], y: Float[Tensor, "B T V"]) -> Float[Tensor, "B T V"]:
    """The targets as one-hot vectors."""
    rows, length, outputs = y.shape
    if targets.shape != (rows, length):
        raise InputError(
            f"must have shape (B, T) = ({rows}, {length})",
            where="targets",
            got=tuple(targets.shape),
        )
    if targets.numel() and not 0 <= int(targets.min()) <= int(targets.max()) < outputs:
        raise InputError(
            f"must be whole numbers from 0 to {outputs - 1}",
            where="targets",
            got=f"{int(targets.min())} to {int(targets.max())}",
        )
    return nn.functional.one_hot(targets, outputs).to(y.dtype)


def _of_torch(rnn: nn.RNNBase) -> list[Tensor]:
    """weight_ih, weight_hh, bias_ih and bias_hh of the only layer."""
    parameters: list[Tensor] = list(rnn.parameters())
    if len(parameters) != 4:
        raise InputError(
            "must have one layer, one direction, and biases", where="rnn", got=str(rnn)
        )
    return parameters


def _shifted(start: Tensor, states: Tensor) -> Tensor:
    """The state before each position."""
    return torch.cat([start[:, None], states[:, :-1]], dim=1)


def _checked(
    weights: Weights, x: Tensor, shapes: Callable[[int, int, int], dict[str, tuple[int, ...]]]
) -> int:
    """Check that every weight exists and has its shape; return the width D."""
    if x.ndim != 3 or x.shape[1] == 0:
        raise InputError("must have shape (B, T, I), T at least 1", where="x", got=tuple(x.shape))
    known = shapes(1, 1, 1)
    for name in known:
        if name not in weights:
            raise InputError("missing", where=f"weights: {name}", got=", ".join(weights) or "none")
    width = weights["b_u"].numel()
    outputs = weights["b_y"].numel()
    for name, expected in shapes(x.shape[-1], width, outputs).items():
        if weights[name].shape != expected:
            raise InputError(
                f"must have shape {expected}",
                where=f"weights: {name}",
                got=tuple(weights[name].shape),
                hint=f"x has I = {x.shape[-1]}, b_u has D = {width}, b_y has V = {outputs}",
            )
    return width


def _start(name: str, state: Tensor | None, x: Tensor, width: int) -> Tensor:
    """The initial state, checked; 0 if it is None."""
    expected = (x.shape[0], width)
    if state is None:
        return x.new_zeros(expected)
    if state.shape != expected:
        raise InputError(f"must have shape (B, D) = {expected}", where=name, got=tuple(state.shape))
    return state
