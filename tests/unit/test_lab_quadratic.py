"""The experiment `quadratic`: its counts hold, and would not if the fused kernel wrote its
weights down. Of times and memory only the shape of the report is asked."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from regard.lab import experiment, quadratic
from regard.lab.quadratic import Settings, exponent, peak_memory, run

SMALL = Settings(lengths=(11, 23, 47, 64), width=6, heads=2, repeats=2)


def test_every_claim_holds():
    report = run(SMALL)
    assert [claim for claim in report.claims if not claim.holds] == []
    tables: Any = report.tables  # whose cells are numbers here
    counted, measured, exponents = tables
    assert [row[:3] for row in counted.rows] == [
        (n, 2 * n * n * 6, 4 * n * 36 + 2 * n * n * 6) for n in (11, 23, 47, 64)
    ]
    assert all(seconds > 0 for row in measured.rows for seconds in row[1:3])
    assert [row[0] for row in exponents.rows] == ["explicit", "fused"]


def test_a_kernel_that_writes_its_weights_down_would_not_do(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(quadratic, "fused", quadratic.explicit)
    fails = [claim.text for claim in run(SMALL).claims if not claim.holds]
    assert fails == [
        "the fused kernel returns no L x L tensor",
        "it returns the output and one softmax normaliser per head and position: linear in L",
    ]


def test_work_that_is_not_square_would_not_do(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(quadratic, "explicit", lambda q, k, v: q * (k * v).sum(-2, keepdim=True))
    claims = {claim.text: claim for claim in run(SMALL).claims}
    assert not claims["attention takes 2 L^2 D multiplications"].holds


def test_where_the_system_does_not_tell_memory_is_not_known(monkeypatch: pytest.MonkeyPatch):
    def nowhere(*_):
        raise OSError

    monkeypatch.setattr("regard.lab.quadratic.ctypes.CDLL", nowhere)
    called = []
    assert peak_memory(lambda: called.append(1)) is None
    assert called == [1]
    report = run(SMALL)
    assert report.holds
    assert all(row[3:] == (None, None) for row in report.tables[1].rows)


def test_memory_is_seen():
    size = 1 << 26
    seen = peak_memory(lambda: torch.ones(size // 4))
    if seen is None:
        pytest.skip("this system does not tell")
    assert 0.9 * size < seen < 1.5 * size
    nothing = peak_memory(lambda: None)
    assert nothing is not None and nothing < size / 4


def test_exponents():
    assert exponent([1, 3, 9], [5, 5 * 27, 5 * 27**2]) == pytest.approx(3)


def test_settings_that_cannot_be():
    for override, said in [
        ("heads=5", "--set: heads must divide width; got heads = 5, width = 64"),
        ("lengths=[4,16,32]", "--set: no length may be the width of a head; got 16 for both"),
        ("lengths=[4,3,32]", "--set: lengths must rise; got [4, 3, 32]"),
    ]:
        with pytest.raises(experiment.InputError) as refused:
            experiment.settings(Settings, [override])
        assert str(refused.value) == said
