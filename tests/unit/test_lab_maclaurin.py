"""The experiment `maclaurin`: its claims hold, and each would not if the series, its features or
its bound were others. Of times only the shape of the report is asked."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from regard.lab import experiment, maclaurin
from regard.lab.maclaurin import Settings, run

SMALL = Settings(width=7, terms=(1, 3, 5), norms=(0.2, 1.0), lengths=(17, 31, 64), repeats=1)


def refuted(settings: Settings = SMALL) -> list[str]:
    return [claim.text for claim in run(settings).claims if not claim.holds]


@pytest.mark.parametrize("seed", [0, 1])
def test_every_claim_holds(seed: int):
    report = run(SMALL.model_copy(update={"seed": seed}))
    assert [claim for claim in report.claims if not claim.holds] == []
    tables: Any = report.tables  # whose cells are numbers here
    features, errors, degrees, counted, measured = tables
    assert (64, 3, 2145, 4161) in features.rows
    assert len(errors.rows) == 6
    assert [round(row[2], 1) for row in degrees.rows][3] == -125.7
    assert counted.rows[0] == (17, 17 * 17 * 15, 2 * 17 * 36 * 8)
    assert [row[0] for row in measured.rows] == [17, 31, 64]
    assert all(ms > 0 for row in measured.rows for ms in row[1:])


def test_features_without_their_weights_would_not_do(monkeypatch: pytest.MonkeyPatch):
    made = maclaurin.maclaurin_features
    monkeypatch.setattr(
        maclaurin, "maclaurin_features", lambda x, *options: made(x, *options).sign()
    )
    assert refuted() == [
        "phi(q) . phi(k) is the series, in both bases, for 1 to 5 terms",
        "the forms quadratic, parallel, chunked, recurrent give the same output, causal or not",
    ]


def test_a_smaller_bound_would_not_do(monkeypatch: pytest.MonkeyPatch):
    made = maclaurin.maclaurin_error_bound
    monkeypatch.setattr(maclaurin, "maclaurin_error_bound", lambda q, k, n: made(q, k, n) / 1e3)
    assert refuted() == ["the error of every query is within the bound of the Taylor remainder"]


def test_forms_that_differ_would_not_do(monkeypatch: pytest.MonkeyPatch):
    made = maclaurin.maclaurin_attention
    monkeypatch.setattr(
        maclaurin,
        "maclaurin_attention",
        lambda *qkv, **options: made(*qkv, **options) + 1e-6 * (options.get("form") == "recurrent"),
    )
    assert refuted() == [
        "the forms quadratic, parallel, chunked, recurrent give the same output, causal or not"
    ]


def test_a_series_of_sines_would_not_do(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(maclaurin, "polynomial", lambda t, n: torch.sin(t) * n)
    assert len(refuted()) >= 5


def test_features_that_are_not_used_would_not_do(monkeypatch: pytest.MonkeyPatch):
    made = maclaurin.maclaurin_attention
    monkeypatch.setattr(maclaurin, "by_features", lambda *qkv: made(*qkv, form="quadratic"))
    assert refuted() == ["features take 2 L M (E + 1), M = 36"]


def test_odd_degrees_leave_the_values(monkeypatch: pytest.MonkeyPatch):
    assert not 0 <= maclaurin._output(4) <= 1
    assert 0 <= maclaurin._output(3) <= 1
    assert maclaurin._lowest(3) == pytest.approx(0.5)
    assert math.isclose(maclaurin._lowest(2), -11)


def test_settings_that_cannot_be():
    for override, said in [
        ("terms=[3,1]", "--set: terms must rise; got [3, 1]"),
        ("terms=[2,3]", "--set: terms must be odd; got [2, 3]"),
        ("lengths=[64,64]", "--set: lengths must rise; got [64, 64]"),
    ]:
        with pytest.raises(experiment.InputError) as refused:
            experiment.settings(Settings, [override])
        assert str(refused.value) == said


def test_what_is_said_of_times_is_what_the_table_shows(monkeypatch: pytest.MonkeyPatch):
    """Whatever was measured: `from L on` holds for L and all that are longer, against the column
    that is named."""
    seconds = {17: (1, 3, 2), 31: (3, 1, 2), 64: (3, 3, 2)}  # of exact, quadratic form, features
    monkeypatch.setattr(
        maclaurin, "_timed", lambda length, *_: [[x * 1e-3] for x in seconds[length]]
    )
    table = run(SMALL).tables[-1]
    assert table.rows == ((17, 1.0, 3.0, 2.0), (31, 3.0, 1.0, 2.0), (64, 3.0, 3.0, 2.0))
    assert (
        "faster than the quadratic form from L = 64 on, than exact attention from L = 31 on"
        in table.title
    )
    seconds[64] = (1, 3, 2)
    assert (
        "the quadratic form from L = 64 on, than exact attention not at L = 64"
        in run(SMALL).tables[-1].title
    )


def test_times_that_vary_come_with_a_note(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.setattr(maclaurin, "_timed", lambda *_: [[1.0, 1.1, 1.1]] * 3)
    assert run(SMALL).notes == ()
    monkeypatch.setattr(maclaurin, "_timed", lambda *_: [[1.0, 2.0, 3.0]] * 3)
    (note,) = run(SMALL).notes
    assert note == "the machine is busy (repeated calls differ by 100%): repeat when idle"
