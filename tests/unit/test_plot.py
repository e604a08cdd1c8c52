"""What the curves of a run show."""

from __future__ import annotations

import json

import pytest

from regard.plot import comparison, figure

HEAD = {"kind": "valid", "epoch": 0, "seconds": 1.0}


def line(step: int, **scores) -> dict:
    return HEAD | {"step": step, "perplexity": 2.0} | scores


def titles(made) -> list[str]:
    return [ax.get_title() for ax in made.axes]


def test_scores_have_a_panel_for_each_scale():
    made = figure(
        [line(1, wer=1.2, exact=0.0, bleu_4=0.5), line(2, wer=0.9, exact=0.5, bleu_4=0.7)], "run"
    )
    assert titles(made) == ["run", "overlap with the right answers", "wer", "shares"]


def test_dashed_is_the_best_that_is_reached_without_the_input():
    blind = {"one string": {"cer": 0.7, "exact": 0.0}, "another's text": {"cer": 0.8, "exact": 0.1}}
    (shares,) = figure([line(n, cer=0.5, exact=0.4, baselines=blind) for n in (1, 2)], "run").axes[
        1:
    ]
    dashed = {
        drawn.get_color(): drawn.get_ydata()
        for drawn in shares.lines
        if drawn.get_linestyle() == "--"
    }
    solid = {
        drawn.get_label(): drawn.get_color()
        for drawn in shares.lines
        if drawn.get_linestyle() == "-"
    }
    assert (set(dashed[solid["cer"]]), set(dashed[solid["exact"]])) == ({0.7}, {0.1})
    assert "without the input" in [text.get_text() for text in shares.get_legend().get_texts()]


@pytest.mark.parametrize("count", [3, 30])
def test_the_confusion_matrix_is_that_of_the_weights_that_were_kept(count: int):
    labels = ["$1K_$5K", "a label of many words that has no end", *map(str, range(count - 2))]
    tables = [[[n if x == y else 0 for x in range(count)] for y in range(count)] for n in (5, 6, 7)]
    lines = [line(1, accuracy=0.5, kept=True, best=True)]  # as an older run wrote it
    kept = (True, True, False)
    lines += [
        line(2 + i, accuracy=0.6, labels=labels, confusion=tables[i], kept=kept[i], best=True)
        for i in range(3)
    ]
    made = figure(lines, "run")
    made.canvas.draw()  # a label that were read as a formula would fail here
    panel = made.axes[-1]
    assert panel.get_title().endswith("step 3")
    assert [one.get_text() for one in panel.get_xticklabels()][:2] == [
        "$1K_$5K",
        "a label of many wor…",
    ]
    assert [one.get_text() for one in panel.texts] == (
        ["6", "0", "0", "0", "6", "0", "0", "0", "6"] if count == 3 else []
    )


def ring(panel) -> list[tuple[float, float]]:
    """Where the ring is that says what was kept."""
    rings = [drawn for drawn in panel.lines if str(drawn.get_label()).startswith("kept")]
    return [(drawn.get_xdata()[0], drawn.get_ydata()[0]) for drawn in rings]


def test_the_ring_is_around_what_was_kept_and_not_around_the_best():
    lines = [
        line(1, best=True, kept=True, score="perplexity"),
        line(2, best=False, kept=True, score="perplexity"),
    ]
    lines.append(line(3, best=False, kept=False, score="perplexity"))
    (loss,) = figure(lines, "run").axes
    assert ring(loss) == [(2, pytest.approx(0.6931, abs=1e-4))]
    assert "kept, step 2" in [text.get_text() for text in loss.get_legend().get_texts()]


@pytest.mark.parametrize(
    ("score", "panel"), [("perplexity", 0), ("bleu_4", 1), ("wer", 2), ("exact", 3)]
)
def test_the_ring_is_on_the_axis_of_the_score_that_chose(score: str, panel: int):
    numbers = {"wer": 1.2, "exact": 0.25, "bleu_4": 0.5}
    lines = [line(n, **numbers, best=n == 2, kept=n == 2, score=score) for n in (1, 2, 3)]
    rings = [ring(ax) for ax in figure(lines, "run").axes]
    assert [len(found) for found in rings] == [int(place == panel) for place in range(4)]
    assert rings[panel] == [(2, numbers.get(score, pytest.approx(0.6931, abs=1e-4)))]


def test_what_is_judged_on_training_examples_says_so():
    (loss,) = figure([line(1) | {"kind": "training_examples"}, line(2)], "run").axes
    assert [text.get_text() for text in loss.get_legend().get_texts()] == [
        "validation",
        "training examples",
    ]


@pytest.mark.parametrize(
    ("kind", "title"),
    [("valid", "wer, validation"), ("training_examples", "wer, training examples")],
)
def test_runs_side_by_side_say_what_they_were_judged_on(kind: str, title: str, tmp_path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line(1, wer=0.5) | {"kind": kind}) + "\n")
    assert titles(comparison({"a": tmp_path}, "wer"))[1] == title
