"""The experiment `positions`: its claims hold, and wrong positions are found out."""

from __future__ import annotations

import pytest
import torch

from regard.lab import positions as lab
from regard.lab.positions import Settings, counted, exact, extrapolation, lines, run
from regard.layers import positions as layer
from regard.layers.multihead import MultiHead

SMALL = Settings(width=12, heads=3, layers=2, length=7, seed=5)


def failing(settings: Settings = SMALL) -> list[str]:
    torch.manual_seed(settings.seed)
    return [claim.text for claim in exact(settings)[0] if not claim.holds]


def test_every_exact_claim_holds():
    assert failing() == []
    assert failing(Settings(seed=1)) == []


def test_turning_by_the_wrong_angle_is_found_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lab, "rotary", lambda x, places: layer.rotary(x, places**2))
    found = " ".join(failing())
    assert (
        "four tokens" in found and "depend on distances only" in found and "in every layer" in found
    )


def test_turning_once_is_found_out(monkeypatch: pytest.MonkeyPatch):
    made = []

    def only_the_first_turns(*, positions, **sizes) -> MultiHead:
        made.append(positions)
        return MultiHead(positions=positions if len(made) == 1 else None, **sizes)

    assert counted(3, SMALL) == 6
    monkeypatch.setattr(lab, "MultiHead", only_the_first_turns)
    assert counted(3, SMALL) == 2


def test_a_bias_on_a_places_own_score_is_found_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lab, "alibi", lambda *given: layer.alibi(*given) - 1)
    assert failing() == ["alibi: the bias of distance 0 is 0"]


def test_a_cache_with_the_wrong_places_is_found_out(monkeypatch: pytest.MonkeyPatch):
    right = lab.Alibi.bias
    monkeypatch.setattr(
        lab.Alibi, "bias", lambda self, q, k: right(self, 0 if isinstance(q, int) else q, k)
    )
    assert failing() == [
        "every kind: decoding step by step with cached keys gives the parallel output"
    ]


def test_the_task_is_the_last_letter_seen():
    tokens, last = lines(31, 17, Settings(share=0.3), torch.Generator().manual_seed(1))
    assert (tokens[:, 0] > 0).all() and (tokens == 0).any()
    for row, answers in zip(tokens.tolist(), last.tolist(), strict=True):
        for place, answer in enumerate(answers):
            assert answer + 1 == [token for token in row[: place + 1] if token][-1]


MEASURED = {
    "none": [0.64, 0.56, 0.48, 0.47],
    "sinusoidal": [0.95, 0.49, 0.52, 0.40],
    "learned": [0.91, None, None, None],
    "rotary": [0.94, 0.91, 0.82, 0.67],
    "alibi": [0.78, 0.75, 0.77, 0.80],
    "relative": [0.95, 0.88, 0.83, 0.81],
}
WRONG = {
    "more accurate than none": dict(alibi=[0.65, 0.65, 0.65, 0.65]),
    "do not exist beyond": dict(learned=[0.91, 0.5, None, None]),
    "sinusoidal positions do not extrapolate": dict(sinusoidal=[0.95, 0.90, 0.52, 0.40]),
    "extrapolate a little": dict(rotary=[0.94, 0.91, 0.93, 0.93], relative=[0.95] * 4),
    "alibi extrapolates": dict(alibi=[0.78, 0.75, 0.77, 0.70]),
    "lose less than rotary": dict(relative=[0.95, 0.88, 0.83, 0.60]),
}


@pytest.mark.parametrize(("claim", "change"), WRONG.items(), ids=WRONG.keys())
def test_claims_about_length_can_fail(claim: str, change: dict):
    assert all(each.holds for each in extrapolation(MEASURED))
    assert [claim in each.text for each in extrapolation(MEASURED | change) if not each.holds] == [
        True
    ]


@pytest.mark.long
def test_the_whole_experiment_holds():
    report = run(Settings())
    assert [claim.text for claim in report.claims if not claim.holds] == []
    assert len(report.figure.axes) == 7  # six pictures, and a scale of colours
    again = run(Settings())
    assert again.tables == report.tables and again.claims == report.claims


def test_a_report_in_seconds_has_every_part():
    before = torch.random.get_rng_state()
    report = run(Settings(steps=2, width=16, heads=2, layers=2, length=5))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert len(report.tables) == 5 and all(len(table.rows) >= 3 for table in report.tables)
    assert [row[0] for row in report.tables[-1].rows] == [
        "none",
        "sinusoidal",
        "learned",
        "rotary",
        "alibi",
        "relative",
    ]


def test_an_odd_pair_is_refused():
    with pytest.raises(ValueError, match="width must be a multiple of 2 heads"):
        Settings(width=12, heads=4)
