"""Reports of budgets, as data: what the verb prints is what Python gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.budget import lengths
from regard.budget.report import CountReport, Questions, Report, report
from regard.budget.subject import NamedModel, NumbersModel
from regard.budget.text import text
from regard.errors import InputError

AT = lengths(2, 5, 7)


def test_a_report_answers_what_is_asked_and_nothing_else():
    plain = report(NamedModel("chat-gru"), AT, Questions())
    assert isinstance(plain, Report)
    assert plain.width is plain.memory is plain.counts is plain.plot is None
    assert plain.to_json() == plain.budget.to_json()

    full = report(NamedModel("chat-gru"), AT, Questions(memory="1GB", fit="parameters=2M"))
    assert isinstance(full, Report) and full.width is not None and full.memory is not None
    assert full.budget.parameters <= 2_000_000
    assert f"encoder.width={full.width.width}" in full.width.command
    assert set(full.memory.fits) == {"training", "inference", "decoding"}
    assert full.to_json()["fit"] == {"width": full.width.width}
    assert any(line.startswith("fits            width") for line in text(full))


def test_counts_are_beside_the_formulas():
    counted = report(NamedModel("image-pool"), AT, Questions(count=True))
    assert isinstance(counted, Report) and counted.counts is not None
    assert counted.counts["parameters"] == counted.budget.parameters
    assert not isinstance(counted, CountReport)


@pytest.mark.parametrize("ask", [Questions(fit="parameters=5M"), Questions(count=True)])
def test_numbers_have_no_recipe(ask: Questions):
    with pytest.raises(InputError, match="needs a recipe"):
        report(NumbersModel("--lstm", "width=8"), AT, ask)


def test_a_plot_says_where_the_series_becomes_cheaper(tmp_path: Path):
    model = NumbersModel("--attention", "width=64,heads=8")
    drawn = report(model, AT, Questions(plot=tmp_path / "cost.svg"))
    assert isinstance(drawn, Report) and drawn.plot is not None
    assert drawn.plot.file.exists() and drawn.plot.terms == 3 and drawn.plot.crossover
