"""The experiment `gradients`: its claims hold, and fail for wrong formulas or a wrong checker."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from regard.lab import experiment, gradients
from regard.lab.checker import CELLS, GradientCheck, problem
from regard.lab.gradients import (
    MISTAKES,
    Settings,
    by_autograd,
    by_differences,
    relative_error,
    run,
)

SMALL = Settings(rows=2, length=3, inputs=2, width=3, outputs=5)


def test_every_claim_holds():
    report = run(SMALL)
    assert [claim for claim in report.claims if not claim.holds] == []
    assert len(report.claims) == 4 + len(MISTAKES)
    assert [len(table.rows) for table in report.tables] == [13 + 12, len(MISTAKES)]


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_wrong_backward_pass_would_not_do(monkeypatch: pytest.MonkeyPatch, kind: str):
    def wrong(*args):
        return CELLS[kind].backward_pass(*args, ("candidate",)).gradients

    monkeypatch.setitem(CELLS, kind, replace(CELLS[kind], backward=wrong))
    fails = [claim.text for claim in run(SMALL).claims if not claim.holds]
    assert f"{kind.upper()}: gradients by hand = autograd" in fails
    assert f"{kind.upper()}: gradients by hand = finite differences" in fails


def test_a_checker_that_names_no_cause_would_not_do(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        gradients, "check_gradients", lambda *_, **__: GradientCheck("lstm", (), (), {})
    )
    assert [claim.holds for claim in run(SMALL).claims] == [True] * 4 + [False] * len(MISTAKES)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.wrong)
def test_each_mistake_is_one(mistake):
    given = problem("lstm")
    right = by_autograd("lstm", given)
    made = mistake(given.weights, given.cache, given.targets)
    assert made.keys() != right.keys() or any(
        made[name].shape != part.shape or relative_error(made[name], part) > 0.01
        for name, part in right.items()
    )


def test_differences_are_autograds_but_for_rounding():
    given = problem("gru", rows=1, length=2, inputs=2, width=3, outputs=2)
    exact, numeric = by_autograd("gru", given), by_differences("gru", given)
    assert exact.keys() == numeric.keys()
    for name in exact:
        torch.testing.assert_close(numeric[name], exact[name], rtol=0, atol=1e-8)


def test_settings_that_cannot_be():
    with pytest.raises(experiment.InputError) as refused:
        experiment.settings(Settings, ["length=1"])
    assert str(refused.value) == "--set: length: must be a whole number >= 2 and <= 32; got 1"
