"""The cells written by hand beside autograd and torch's own, in float64; and the checker, which
must name mistakes that were made elsewhere than in the checker: by autograd through a wrong
forward, or by hand here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.lab import cells
from regard.lab.checker import CELLS, GradientCheck, check_gradients, problem

B, T, INPUTS, D, V = 2, 5, 3, 7, 11
KINDS = ["lstm", "gru"]


def close(a: Tensor, b: Tensor | None) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def by_autograd(kind: str, given) -> dict[str, Tensor]:
    """The gradients of a problem, by autograd through our forward pass."""
    leaves = {name: part.clone().requires_grad_() for name, part in given.weights.items()}
    ends = {
        name: part.clone().requires_grad_() for name, part in {"x": given.x, **given.starts}.items()
    }
    y, _ = CELLS[kind].forward(leaves, **ends)
    every = {**leaves, **ends}
    return dict(
        zip(
            every, torch.autograd.grad(cells.loss(y, given.targets), [*every.values()]), strict=True
        )
    )


# -------------------------------------------------------------------------------------------- cells


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "length"), [(B, T), (1, 2), (3, 13)])
def test_the_backward_pass_is_autograds(kind: str, rows: int, length: int):
    given = problem(kind, rows=rows, length=length)
    made = CELLS[kind].backward(given.weights, given.cache, given.targets)
    expected = by_autograd(kind, given)
    assert made.keys() == expected.keys()
    for name in made:
        close(made[name], expected[name])


@pytest.mark.parametrize("kind", KINDS)
def test_cells_are_torchs_forwards_and_backwards(kind: str):
    torch.manual_seed(2)
    rnn = {"lstm": nn.LSTM, "gru": nn.GRU}[kind](INPUTS, D, batch_first=True, dtype=torch.float64)
    out = nn.Linear(D, V, dtype=torch.float64)
    x, a0, c0 = (
        torch.randn(shape, dtype=torch.float64) for shape in [(B, T, INPUTS), (B, D), (B, D)]
    )
    starts = {"a0": a0, "c0": c0} if kind == "lstm" else {"a0": a0}
    targets = torch.randint(V, (B, T))
    weights = {"lstm": cells.lstm_from_torch, "gru": cells.gru_from_torch}[kind](rnn, out)

    y, cache = CELLS[kind].forward(weights, x, **starts)
    for leaf in (x, a0, c0):
        leaf.requires_grad_()
    states, _ = rnn(x, (a0[None], c0[None]) if kind == "lstm" else a0[None])
    logits = out(states)
    close(y, logits.softmax(-1))

    made = CELLS[kind].backward(weights, cache, targets)
    nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum").backward()
    order = "ufco" if kind == "lstm" else "ruc"
    for gate, w_x, w_a, b_x, b_a in zip(
        order, *(p.grad.chunk(len(order)) for p in rnn.parameters()), strict=True
    ):
        if kind == "gru" and gate == "c":
            close(made["W_c"], w_x)
            close(made["W_a"], w_a)
            close(made["b_c"], b_x)
            close(made["b_a"], b_a)
        else:
            close(made[f"W_{gate}"], torch.cat([w_a, w_x], dim=1))
            close(made[f"b_{gate}"], b_x)
    close(made["W_y"], out.weight.grad)
    close(made["b_y"], out.bias.grad)
    for name, leaf in {"x": x, **starts}.items():
        close(made[name], leaf.grad)


@pytest.mark.parametrize("kind", KINDS)
def test_a_start_not_given_is_zero(kind: str):
    given = problem(kind)
    zeros = {name: torch.zeros_like(part) for name, part in given.starts.items()}
    close(
        CELLS[kind].forward(given.weights, given.x)[0],
        CELLS[kind].forward(given.weights, given.x, **zeros)[0],
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_backward_pass_asks_autograd_for_nothing_and_changes_nothing(kind: str):
    given = problem(kind)
    weights = {name: part.clone().requires_grad_() for name, part in given.weights.items()}
    made = CELLS[kind].backward(weights, given.cache, given.targets)
    assert not any(part.requires_grad for part in made.values())
    assert all(torch.equal(weights[name], part) for name, part in given.weights.items())


def test_shapes_that_do_not_fit_are_named():
    given = problem("lstm")

    def refused(call) -> str:
        with pytest.raises(InputError) as error:
            call()
        return str(error.value)

    short = {name: part for name, part in given.weights.items() if name != "b_o"}
    assert refused(lambda: cells.lstm_forward(short, given.x)).startswith(
        "weights: b_o: missing; got W_f, "
    )
    narrow = given.weights | {"W_u": given.weights["W_u"][:, :D]}
    assert refused(lambda: cells.lstm_forward(narrow, given.x)) == (
        "weights: W_u: must have shape (7, 10); got (7, 7); "
        "x has I = 3, b_u has D = 7, b_y has V = 11"
    )
    assert refused(lambda: cells.lstm_forward(given.weights, given.x[0])) == (
        "x: must have shape (B, T, I), T at least 1; got (5, 3)"
    )
    assert refused(lambda: cells.lstm_forward(given.weights, given.x, c0=given.x[:, 0])) == (
        "c0: must have shape (B, D) = (2, 7); got (2, 3)"
    )
    assert refused(
        lambda: cells.lstm_backward(given.weights, given.cache, given.targets[:, 1:])
    ) == ("targets: must have shape (B, T) = (2, 5); got (2, 4)")
    assert refused(
        lambda: cells.lstm_backward(given.weights, given.cache, given.targets * 0 + V)
    ) == ("targets: must be whole numbers from 0 to 10; got 11 to 11")
    assert refused(
        lambda: cells.gru_from_torch(nn.GRU(INPUTS, D, num_layers=2), nn.Linear(D, V))
    ) == ("rnn: must have one layer, one direction, and biases; got GRU(3, 7, num_layers=2)")


# ---------------------------------------------------------------- mistakes, by a wrong forward pass


class WrongTanh(torch.autograd.Function):
    """tanh with the derivative 1 - tanh(x)."""

    @staticmethod
    def forward(ctx, x):
        y = torch.tanh(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * (1 - y)


def student_lstm(*, candidate=torch.tanh, through_a=True, through_c=True, gate=torch.sigmoid):
    """An LSTM's gradients by autograd, through a forward that is right in its numbers and wrong
    in its derivatives."""

    def backward(weights, cache, targets):
        every = {**weights, "x": cache.x, "a0": cache.a0, "c0": cache.c0}
        w = {name: part.clone().requires_grad_() for name, part in every.items()}
        a, c, ys = w["a0"], w["c0"], []
        for t in range(cache.x.shape[1]):
            back = a if through_a or t == 0 else a.detach()
            held = c if through_c or t == 0 else c.detach()
            z = torch.cat([back, w["x"][:, t]], -1)
            f, u, o = (gate(z @ w[f"W_{g}"].T + w[f"b_{g}"]) for g in "fuo")
            c = f * held + u * candidate(z @ w["W_c"].T + w["b_c"])
            a = o * c.tanh()
            ys.append((a @ w["W_y"].T + w["b_y"]).softmax(-1))
        loss = cells.loss(torch.stack(ys, 1), targets)
        return dict(zip(w, torch.autograd.grad(loss, [*w.values()]), strict=True))

    return backward


def changed(**changes):
    """The right gradients with some of them changed by functions of (cache, targets, right
    gradient)."""

    def backward(weights, cache, targets):
        right = cells.lstm_backward(weights, cache, targets)
        return right | {name: change(cache, targets, right) for name, change in changes.items()}

    return backward


def cause_of(check: GradientCheck) -> str:
    (cause,) = check.causes
    return cause


def test_right_gradients_pass():
    check = check_gradients(student_lstm())
    assert check
    assert check.wrong == () and len(check.right) == 13
    assert str(check) == "lstm: 13 of 13 gradients are right"
    assert check_gradients(cells.gru_backward, cell="gru")


def test_the_candidates_factor():
    check = check_gradients(student_lstm(candidate=WrongTanh.apply))
    assert not check
    assert cause_of(check) == "the candidate's factor is 1 - c~, where it should be 1 - c~^2"
    assert check.right == ("W_y", "b_y")  # all else comes through the candidate
    assert all(finding.error and finding.error > 1e-3 for finding in check.wrong)


def test_da_next_missing():
    check = check_gradients(student_lstm(through_a=False))
    assert cause_of(check) == "da_next is missing: dL/da = W_y^T (yhat - y) + da_next"
    assert "da_next is missing" in str(check)


def test_dc_next_missing():
    assert cause_of(check_gradients(student_lstm(through_c=False))).startswith("dc_next is missing")


def test_two_mistakes_at_once():
    check = check_gradients(student_lstm(candidate=WrongTanh.apply, through_a=False))
    da_next = "da_next is missing: dL/da = W_y^T (yhat - y) + da_next"
    causes = {finding.name: finding.cause for finding in check.wrong}
    assert causes["W_f"] == da_next  # without da_next nothing comes to it through the candidate
    assert (
        causes["W_c"]
        == f"{da_next}; and the candidate's factor is 1 - c~, where it should be 1 - c~^2"
    )


# -------------------------------------------------------------------------------- mistakes, by hand


def test_the_sign_of_b_y():
    check = check_gradients(changed(b_y=lambda _, __, right: -right["b_y"]))
    assert [(f.name, f.kind, f.cause) for f in check.wrong] == [
        ("b_y", "sign", "y - yhat, where it should be yhat - y")
    ]
    assert check.wrong[0].error == pytest.approx(2)


def test_b_y_times_a():
    def times_a(cache, targets, _):
        wanted = nn.functional.one_hot(targets, V).double()
        return sum(
            (cache.y[b, t] - wanted[b, t])[:, None] * cache.a[b, t]
            for b in range(B)
            for t in range(T)
        )

    check = check_gradients(changed(b_y=times_a))
    assert [(f.name, f.kind) for f in check.wrong] == [("b_y", "shape")]
    assert check.wrong[0].detail == "(11, 7) instead of (11,)"
    assert check.wrong[0].cause == "(delta) times a^T, where it should be the delta alone"


def test_every_sign_is_one_cause():
    check = check_gradients(
        lambda *args: {name: -part for name, part in cells.lstm_backward(*args).items()}
    )
    assert {finding.kind for finding in check.wrong} == {"sign"} and len(check.wrong) == 13
    assert cause_of(check) == "y - yhat, where it should be yhat - y"


def test_b_o_missing():
    def without(*args):
        return {name: part for name, part in cells.lstm_backward(*args).items() if name != "b_o"}

    check = check_gradients(without)
    assert [(f.name, f.kind) for f in check.wrong] == [("b_o", "missing")]
    assert str(check) == (
        "lstm: 12 of 13 gradients are right\n"
        "  b_o: missing; it is sum_t do, do = dL/da tanh(c) o (1 - o)"
    )


def test_the_weight_with_x_only():
    """The right gradient's columns behind those of a are what belongs to x."""
    of_x = changed(W_f=lambda _, __, right: right["W_f"][:, D:])
    filled = changed(W_f=lambda _, __, right: nn.functional.pad(right["W_f"][:, D:], (D, 0)))
    for function, kind in ((of_x, "shape"), (filled, "wrong")):
        check = check_gradients(function)
        assert [(f.name, f.kind) for f in check.wrong] == [("W_f", kind)]
        assert cause_of(check) == ("(delta) with x only, where it should be (delta) [a_prev; x]^T")


def test_a_derivative_applied_twice():
    """The document's dL/db_u = dL/dgamma_u dGamma_u/dgamma_u."""

    def twice(cache, targets, _):
        leaf = torch.zeros(
            B, T, D, dtype=torch.float64, requires_grad=True
        )  # beside what the gate bends
        given, c, a, ys = problem("lstm"), cache.c0, cache.a0, []
        for t in range(T):
            step = cells.lstm_step(given.weights, cache.x[:, t], a, c)
            u = torch.sigmoid(torch.logit(step.u) + leaf[:, t])
            c = step.f * c + u * step.candidate
            a = step.o * c.tanh()
            ys.append((a @ given.weights["W_y"].T + given.weights["b_y"]).softmax(-1))
        (delta,) = torch.autograd.grad(cells.loss(torch.stack(ys, 1), targets), leaf)
        return (delta * cache.u * (1 - cache.u)).sum((0, 1))

    check = check_gradients(changed(b_u=twice))
    assert [(f.name, f.kind, f.cause) for f in check.wrong] == [
        ("b_u", "wrong", "the derivative of the gate is applied twice")
    ]


def test_transposed():
    check = check_gradients(changed(W_y=lambda _, __, right: right["W_y"].T))
    assert [(f.name, f.kind, f.detail) for f in check.wrong] == [
        ("W_y", "transposed", "(7, 11) instead of (11, 7)")
    ]
    assert cause_of(check) == "a (delta)^T, where it should be (delta) a^T"


def test_not_summed_over_time():
    def last_only(cache, targets, _):
        wanted = nn.functional.one_hot(targets, V).double()
        return (cache.y[:, -1] - wanted[:, -1]).T @ cache.a[:, -1]

    def every_place(cache, targets, _):
        return (cache.y - nn.functional.one_hot(targets, V).double()).sum(0)

    check = check_gradients(changed(W_y=last_only, b_y=every_place))
    assert [(f.name, f.kind) for f in check.wrong] == [("W_y", "time"), ("b_y", "time")]
    assert check.causes == (
        "position 5 of 5 only, not summed over time",
        "one gradient per position, not summed over time",
    )


def test_a_constant_factor():
    check = check_gradients(changed(W_o=lambda _, __, right: 3 * right["W_o"]))
    assert [(f.name, f.kind, f.detail) for f in check.wrong] == [
        ("W_o", "factor", "3 times the right one")
    ]
    assert check.wrong[0].error == pytest.approx(2)
    mean = check_gradients(
        lambda *args: {name: part / (B * T) for name, part in cells.lstm_backward(*args).items()}
    )
    assert {finding.kind for finding in mean.wrong} == {"factor"} and len(mean.wrong) == 13
    assert (
        cause_of(mean)
        == "1 / (B T) with B = 2 rows and T = 5 positions: a mean, where it should be the sum"
    )


def test_just_wrong():
    check = check_gradients(changed(W_c=lambda _, __, right: right["W_c"] + 1))
    (finding,) = check.wrong
    assert (finding.name, finding.kind, finding.cause) == ("W_c", "wrong", "")
    assert finding.error and finding.error > 1
    assert str(check).endswith("; it is sum_t dc~ [a_prev; x]^T, dc~ = dL/dc u (1 - c~^2)")


def test_zero_and_not_finite_and_unknown():
    def strange(*args):
        right = cells.lstm_backward(*args)
        right["W_g"] = right.pop("W_u")
        return right | {"c0": right["c0"] * 0, "a0": right["a0"] / 0, "b_c": "no numbers"}

    check = check_gradients(strange)
    assert [(f.name, f.kind) for f in check.wrong] == [
        ("W_u", "missing"),
        ("b_c", "numbers"),
        ("a0", "numbers"),
        ("c0", "zero"),
        ("W_g", "unknown"),
    ]
    assert len(check.right) == 9
    assert "lstm: 9 of 13 gradients are right" in str(check)


def test_numpy_and_single_precision_will_do():
    check = check_gradients(
        lambda *args: {
            name: part.float().numpy() for name, part in cells.lstm_backward(*args).items()
        }
    )
    assert check, str(check)


def test_a_function_that_writes_into_what_it_is_given_does_not_spoil_the_check():
    def messy(weights, cache, targets):
        right = cells.lstm_backward(weights, cache, targets)
        weights["W_f"].zero_()
        cache.y.zero_()
        return right

    assert check_gradients(messy)


@pytest.mark.parametrize(
    "mistake", ["da_next", "candidate", "past", "share", "swap", "reset", "derivative-r"]
)
def test_mistakes_of_a_gru_are_named(mistake: str):
    def mistaken(*args):
        return CELLS["gru"].backward_pass(*args, (mistake,)).gradients

    assert cause_of(check_gradients(mistaken, cell="gru")) == CELLS["gru"].mistakes[mistake]


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_mistake_it_is_the_backward_pass(kind: str):
    given = problem(kind)
    right = CELLS[kind].backward(given.weights, given.cache, given.targets)
    made = CELLS[kind].backward_pass(given.weights, given.cache, given.targets).gradients
    assert made.keys() == right.keys() == CELLS[kind].formulas.keys()
    for name in right:
        close(made[name], right[name])


def test_what_cannot_be_checked_is_refused():
    check: Any = check_gradients  # of the wrong arguments, too
    for call, said in [
        (
            lambda: check(3),
            "function: must be a function of (weights, cache, targets); got int",
        ),
        (
            lambda: check(lambda *_: 3),
            "function: must return a dictionary of gradients by name; got int",
        ),
        (
            lambda: check(len, cell="lstn"),
            'cell: no such cell; got "lstn"; did you mean "lstm"?',
        ),
        (
            lambda: check(len, length=1),
            "length: must be at least 2, or mistakes in the recurrence have no effect; got 1",
        ),
    ]:
        with pytest.raises(InputError) as refused:
            call()
        assert str(refused.value) == said


def test_each_gradient_has_its_own_causes_only():
    def two(weights, cache, targets):
        made = student_lstm(candidate=WrongTanh.apply)(weights, cache, targets)
        return made | {"b_y": -made["b_y"], "W_f": made["W_f"].T}

    causes = {finding.name: finding.cause for finding in check_gradients(two).wrong}
    derivative = "the candidate's factor is 1 - c~, where it should be 1 - c~^2"
    assert causes.pop("b_y") == "y - yhat, where it should be yhat - y"
    assert (
        causes.pop("W_f")
        == f"{derivative}; and [a_prev; x] (delta)^T, where it should be (delta) [a_prev; x]^T"
    )
    assert set(causes.values()) == {derivative}
