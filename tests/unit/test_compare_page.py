"""The page of a comparison: its numbers are those of the record, and texts stay texts."""

from __future__ import annotations

import doctest
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from regard import metrics
from regard.cli.comparing import report
from regard.compare import advice as advising
from regard.compare import cost_text as cost_texts
from regard.compare import other_scores as others_of
from regard.compare import score_sections
from regard.compare import verdict as verdicts
from regard.compare.advice import advice
from regard.compare.curves import AXES, POINTS, logged_scores, mean_curve
from regard.compare.page import comparison_page
from regard.compare.record import (
    Bucket,
    Comparison,
    ContenderResult,
    Costs,
    Curve,
    Example,
    Pair,
    SeedResult,
    Tuning,
)
from regard.compare.statistics import Estimate, SeedScores, adjusted, difference, estimate
from regard.compare.verdict import Side, verdict
from regard.pages.shell import Page, Table
from tests.unit.test_pages import EVIL, Elements

NAMES = ("LSTM", "GRU", "Transformer", "linear attention")
ITEMS = 211


def costs(number: int) -> Costs:
    return Costs(
        parameters=101_000 + 7_000 * number,
        multiplications=2.5e12 * (1 + number),
        forward=1_310_000 * (1 + number),
        depth=17 + number,
        training_memory=53_000_000,
        steps=600.0,
        tokens=90_000.0,
        seconds=61.5,
        tokens_per_second=1463.4,
        peak_memory=71_000_000.0,
        waited=None,
    )


def curve(seed: int, number: int, places: list[int]) -> Curve:
    values: list[float | None] = [0.2 + 0.1 * i + 0.01 * seed + 0.03 * number for i in range(3)]
    return Curve(
        seed=seed,
        steps=places,
        seconds=[place / 10 + seed / 100 for place in places],
        multiplications=[1e9 * place for place in places],
        scores={"accuracy": values, "loss": [2.0, 1.5, 1.2]},
    )


def comparison(
    rights: tuple[float, ...] = (0.5, 0.7), *, names: tuple[str, ...] = NAMES, **changes: Any
) -> Comparison:
    """A comparison of contenders that are right with these probabilities, with the seeds 0 to 2."""
    draw = np.random.default_rng(23)
    runs = {
        name: SeedScores([metrics.share(draw.random(ITEMS) < right) for _ in range(3)])
        for name, right in zip(names, rights, strict=False)
    }
    contenders = []
    for number, (name, scores) in enumerate(runs.items()):
        seeds = [
            SeedResult(seed, f"runs/{name}/seed={seed}", "done", "", {"accuracy": float(value)})
            for seed, value in enumerate(scores.values)
        ]
        contenders.append(
            ContenderResult(
                name=name,
                summary=f"The recipe of {name}.",
                changes=[f"encoder.cell: lstm -> {name}"] if number else [],
                scores={"accuracy": estimate(scores, bounds=(0, 1))},
                numbers={"loss": 1.25 + number},
                costs=costs(number),
                seeds=seeds,
                curves=[curve(seed, number, [200, 400, 600]) for seed in range(3)],
                tuning=None,
                is_on_front=number < 2,
            )
        )
    both = list(combinations(runs, 2))
    differences = [difference(runs[a], runs[b]) for a, b in both]
    rates = adjusted([each.p_value for each in differences])
    pairs = []
    for (a, b), own, rate in zip(both, differences, rates, strict=True):
        about = verdict("accuracy", Side(a, 3, 0), Side(b, 3, 0), own, rate, unit="sentence")
        buckets = [Bucket("length", f"{i} to {i + 4}", 70, own) for i in (1, 6)]
        examples = [
            Example("one two", ["uno dos"], ["uno", "dos"], [1.0, 0.0], 1.0, ["regard attend x"]),
            Example(
                "three", ["tres"], ["", "tres"], [0.0, 1.0], -1.0, [], "attention/1-a-b-2.html"
            ),
        ]
        pairs.append(
            Pair(a, b, about.sentence, about.outcome, rate, {"accuracy": own}, buckets, examples)
        )
    content = Comparison(
        title="cells",
        task="translate",
        score="accuracy",
        better="higher",
        split="test",
        unit="sentence",
        items=ITEMS,
        answered=ITEMS,
        budget="600 steps",
        trials=0,
        contenders=contenders,
        pairs=pairs,
        baselines={"one answer": {"accuracy": 0.125}},
        notes=["the machine was busy"],
        question="Which cell is better?",
        advice=advice(contenders, pairs, "accuracy"),
        same={"data": "made-translation", "seeds": "0, 1, 2"},
        command="regard compare LSTM GRU --steps 600",
    )
    return replace(content, **changes)


def test_the_table_of_differences_has_the_sign_of_the_charts():
    page = comparison_page(comparison((0.3, 0.7)))
    (table,) = section(page, "differences").tables
    (row,) = table.rows
    assert row[1].text.startswith("\u2212") and row[2].count("\u2212") == 2
    assert not any("-" in entry for entry in (row[1].text, row[2]))
    titles = re.findall("<title>(.*?)</title>", section(page, "differences").figures[0])
    assert titles and all(": \u2212" in title and "-" not in title for title in titles)


def test_the_page_says_which_weights_are_scored():
    content = comparison()
    first = content.contenders[0]
    seeds = [replace(result, kept_step=600, best_step=200) for result in first.seeds]
    changed = replace(first, seeds=seeds)
    content = replace(content, contenders=[changed, *content.contenders[1:]])
    (table,) = section(comparison_page(content), "runs").tables
    assert table.columns[4:6] == ("weights of step", "best validation at step")
    assert table.rows[0][4:6] == (600, 200) and table.rows[-1][4:6] == (None, None)
    assert any("; weights of steps 600, 600, 600" in line for line in report(content))


def test_the_terminal_writes_perplexities_as_the_page_does():
    """Their means are of logarithms, which nobody wants to read."""
    content = comparison()
    perplexity = Estimate(math.log(20), 0.1, 0.05, 5.0, (3,), 97, is_log=True)
    contenders = [
        replace(contender, scores={**contender.scores, "perplexity": perplexity})
        for contender in content.contenders
    ]
    lines = report(replace(content, contenders=contenders))
    (line,) = (line for line in lines if line.startswith("perplexity "))
    assert line.count(" 20 (18.1 to 22.1)") == len(contenders)


def test_turns_of_a_history_are_lines():
    content = comparison((0.5, 0.7))
    (pair,) = content.pairs
    turns = "Hi!\nHello \x1b[31m.\nHow <b>are</b> you?"
    examples = [replace(example, prompt=turns) for example in pair.examples]
    content = replace(content, pairs=[replace(pair, examples=examples)])
    html = comparison_page(content).html
    assert "\nHello \\x1b[31m.\nHow &lt;b&gt;are&lt;/b&gt; you?</td>" in html
    assert r"\nHello" not in html
    assert f"  {turns}" in report(content)  # a file may have such a name
    lines = report(replace(content, task="chat"))
    start = lines.index("  Hi!")
    assert lines[start : start + 3] == ["  Hi!", r"  Hello \x1b[31m.", "  How <b>are</b> you?"]


def section(page: Page, name: str) -> Any:
    return next(each for each in page.sections if each.id == name)


def table_rows(table: Table) -> dict[Any, tuple[Any, ...]]:
    return {row[0]: row[1:] for row in table.rows}


class Text(HTMLParser):
    """The text of a page, without its style, script and data."""

    def __init__(self, html: str):
        super().__init__()
        self.parts: list[str] = []
        self.hidden = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.hidden += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.parts.append(data)


def text_of(page: Page) -> str:
    return " ".join(" ".join(Text(page.html).parts).split())


def test_doctests():
    assert doctest.testmod(advising).failed == 0
    assert doctest.testmod(cost_texts).failed == 0
    assert doctest.testmod(others_of).failed == 0
    assert doctest.testmod(score_sections).failed == 0
    assert doctest.testmod(verdicts).failed == 0


@pytest.mark.parametrize("count", [2, 4])
def test_the_verdict_is_first_and_every_number_is_that_of_the_record(count: int):
    content = comparison((0.5, 0.7, 0.55, 0.6)[:count])
    record = content.to_json()
    page = comparison_page(content)
    first = page.sections[0]
    assert first.is_verdict and first.paragraphs[0] == record["advice"]
    assert first.paragraphs[1:] == tuple(f"{pair['verdict']}." for pair in record["pairs"])

    (scores,) = section(page, "scores").tables
    row = table_rows(scores)["accuracy ↑"]
    assert scores.columns[1:] == (*NAMES[:count], "one answer")
    for cell, contender in zip(row, record["contenders"], strict=False):
        own = contender["scores"]["accuracy"]
        assert cell.value == own["value"]
        numbers = [float(text) for text in re.findall(r"[\d.]+", cell.text)]
        assert numbers == pytest.approx([100 * own[k] for k in ("value", "low", "high")], abs=0.05)
    assert row[-1].text == "12.5 %"

    (differences,) = section(page, "differences").tables
    for pair, row in zip(record["pairs"], differences.rows, strict=True):
        own = pair["differences"]["accuracy"]
        assert row[0] == f"{pair['first']} − {pair['second']}"
        assert row[1].value == own["value"] and row[3].value == own["p_value"]
        assert row[4].value == pair["adjusted_p_value"] and row[7].value == own["item_p_value"]
        assert row[5].value == own["smallest_detectable"]

    (table,) = section(page, "costs").tables
    for contender, row in zip(record["contenders"], table.rows, strict=True):
        values = dict(zip(table.columns, row, strict=True))
        cost = contender["costs"]
        assert values["parameters"].value == cost["parameters"]
        assert values["multiplications of training"].value == cost["multiplications"]
        assert values["sequential depth"].value == cost["depth"]
        assert values["tokens/s"].value == cost["tokens_per_second"]
        assert values["seconds"].value == cost["seconds"]
        assert values["peak memory"].value == cost["peak_memory"]
        assert values["Pareto front"] is contender["is_on_front"]


def test_the_terminal_and_the_page_write_costs_alike():
    content = comparison()
    small = replace(content.contenders[0].costs, seconds=4.318, peak_memory=7.46e6)
    content.contenders[0] = replace(content.contenders[0], costs=small)
    (table,) = section(comparison_page(content), "costs").tables
    lines = [re.split(r" {2,}", line) for line in report(content)]
    begin = next(number for number, cells in enumerate(lines) if cells[0] == "costs")
    end = lines.index([""], begin)
    columns = [cells[1:] for cells in lines[begin + 1 : end - 1]]  # the last is the Pareto front
    for number, row in enumerate(table.rows):
        assert [cells[number] for cells in columns] == [entry.text for entry in row[1:-1]]
    assert ["4.32", "61.5"] in columns and ["7.5 MB", "71 MB"] in columns


def test_an_undecided_verdict_names_other_scores_that_differ():
    content = comparison((0.5, 0.5))
    (pair,) = content.pairs
    assert pair.outcome == "undecided"
    own = pair.differences["accuracy"]
    others = {
        "bleu": replace(own, value=-30.0, margin=10.0),
        "wer": replace(own, value=-0.2, margin=0.1),  # lower is better
        "chrf": replace(own, value=3.0, margin=10.0),
        "mean_length": replace(own, value=9.0, margin=1.0),  # neither good nor bad
    }
    pairs = [replace(pair, differences=pair.differences | others)]
    text = comparison_page(replace(content, pairs=pairs)).sections[0].text
    assert (
        f"{pair.verdict}. By other scores, LSTM does better (20.0 ± 10.0 points of WER); " in text
    )
    assert "GRU does better (30.0 ± 10.0 points of BLEU). These intervals are not adjusted" in text
    assert "chrF" not in text and "length" not in text

    lines = report(replace(content, pairs=pairs))
    assert lines[1].startswith("  By other scores, LSTM does better (20.0 ± 10.0 points of WER); ")
    assert lines[2].startswith("  These intervals are not adjusted")
    assert "other scores" not in comparison_page(content).sections[0].text
    assert not any("other scores" in line for line in report(content))


def contradicted(content: Comparison, score: str, value: float) -> Comparison:
    """Every pair has the same difference in another score, with a margin of 0.1."""
    pairs = []
    for pair in content.pairs:
        own = replace(pair.differences["accuracy"], value=value, margin=0.1)
        pairs.append(replace(pair, differences=pair.differences | {score: own}))
    content = replace(content, pairs=pairs)
    return replace(content, advice=advice(content.contenders, pairs, "accuracy"))


@pytest.mark.parametrize("outcome", ["worse", "runs"])
def test_a_decided_verdict_names_other_scores_that_contradict_it(outcome: str):
    content = comparison()  # GRU has more right answers than LSTM
    (pair,) = content.pairs
    assert pair.outcome == "worse" and pair.differences["accuracy"].value < 0
    content = replace(content, pairs=[replace(pair, outcome=outcome)])
    expected = "But by other scores, LSTM does better (20.0 ± 10.0 points of exact matches)."

    for_loser = contradicted(content, "exact", 0.2)
    text = comparison_page(for_loser).sections[0].text
    assert f"{pair.verdict}. {expected} These intervals are not adjusted" in text
    lines = report(for_loser)
    assert lines[:2] == [f"{pair.verdict}.", f"  {expected}"]
    assert lines[2].startswith("  These intervals are not adjusted")

    for score, value in [("exact", -0.2), ("exact", 0.05), ("mean_length", 9.0)]:
        agreeing = contradicted(content, score, value)
        assert "other scores" not in comparison_page(agreeing).sections[0].text
        assert not any("other scores" in line for line in report(agreeing))


def test_a_failure_is_not_explained_by_other_scores():
    content = comparison()
    pairs = [replace(content.pairs[0], outcome="failed")]
    content = contradicted(replace(content, pairs=pairs), "exact", 0.2)
    assert "other scores" not in comparison_page(content).sections[0].text


def test_the_charts_are_of_the_record():
    content = comparison()
    page = comparison_page(content)
    (chart,) = section(page, "differences").figures
    own = content.pairs[0].differences["accuracy"]
    assert own.value < 0
    assert f"<title>LSTM − GRU: \u2212{-100 * own.value:.4g} (" in chart
    assert "points of accuracy; right of 0: the first is better" in chart
    curves = section(page, "curves").figures
    assert len(curves) == 3
    for label in AXES.values():
        assert any(f">{label}</text>" in figure for figure in curves)
    # the mean of the seeds 0, 1 and 2 at step 400 is 0.31
    assert "LSTM: 31 at 400" in curves[0] and curves[0].count('class="band"') == 2
    (cost,) = section(page, "costs").figures
    assert 'class="front"' in cost and cost.count('class="mark"') == 2
    lower = comparison_page(replace(content, better="lower"))
    assert "left of 0: the first is better" in section(lower, "differences").figures[0]


def test_everything_else_a_reader_needs():
    content = comparison()
    text = text_of(comparison_page(content))
    for words in (
        "Which cell is better?",
        "The machine was busy.",
        "“one answer” is a baseline that does not look at the input",
        "made-translation",
        "0, 1, 2",
        "encoder.cell: lstm -> GRU",
        "regard compare LSTM GRU --steps 600",
        "600 steps",
        "211 sentences (test)",
        "1 to 5 (70)",
        "one two",
        "uno dos",
        "(nothing)",
        "regard attend x",
    ):
        assert words in text, words
    elements = Elements(comparison_page(content).html)
    links = [attrs["href"] for tag, attrs in elements.tags if tag == "a"]
    assert {"attention/1-a-b-2.html", "comparison.json", "comparison.png"} <= set(links)


def test_the_items_are_those_that_the_score_is_about():
    """Perplexity is of all items, other scores only of those that were answered."""
    page = comparison_page(comparison(items=750, answered=ITEMS))
    assert ("on", f"{ITEMS} sentences (test)") in page.facts


def test_a_failed_run_is_a_result():
    content = comparison()
    first = content.contenders[1]
    failed = SeedResult(2, "runs/GRU/seed=2", "failed", "the loss was not a number", {})
    contenders = [content.contenders[0], replace(first, seeds=[*first.seeds[:2], failed])]
    page = comparison_page(replace(content, contenders=contenders))
    runs = section(page, "runs")
    assert not runs.is_collapsed and runs.paragraphs == (
        "1 run failed; a failure is a result, too.",
    )
    rows = [row for row in runs.tables[0].rows if row[0] == "GRU"]
    assert [row[1] for row in rows] == [0, 1, 2]
    assert rows[2][2] is None and rows[2][3] == "failed: the loss was not a number"
    assert ("seeds", "2 to 3") in page.facts
    assert section(comparison_page(content), "runs").is_collapsed


def test_a_comparison_without_any_score_is_still_a_page():
    content = comparison(is_complete=False)
    empty = [
        replace(each, scores={}, numbers={}, curves=[], seeds=[], is_on_front=False)
        for each in content.contenders
    ]
    pairs = [
        Pair("LSTM", "GRU", "LSTM and GRU: no scores of both yet", "incomplete", None, {}, [], [])
    ]
    page = comparison_page(replace(content, contenders=empty, pairs=pairs, advice=""))
    assert page.sections[0].text.startswith("Not all runs have finished")
    assert "no scores of both yet" in text_of(page)
    unknown = replace(content.contenders[0].scores["accuracy"], margin=None, value=math.nan)
    strange = replace(content.contenders[0], scores={"accuracy": unknown})
    page = comparison_page(replace(content, contenders=[strange, content.contenders[1]]))
    assert "nan" not in section(page, "scores").figures[0]


def test_tuning_is_shown():
    content = comparison(trials=2)
    trials = [
        {"values": {"train.learning_rate": value}, "state": "done", "loss": loss}
        for value, loss in (("1e-3", 1.5), ("1e-2", 1.25))
    ]
    tuning = Tuning(2, {"train.learning_rate": "1e-2"}, trials)
    contenders = [replace(each, tuning=tuning) for each in content.contenders]
    page = comparison_page(replace(content, contenders=contenders))
    rows = section(page, "tuning").tables[0].rows
    assert rows[0] == ("LSTM", "train.learning_rate=1e-3", 1.5, False)
    assert rows[1] == ("LSTM", "train.learning_rate=1e-2", 1.25, True)
    assert len(rows) == 4


def test_texts_of_people_are_text():
    evil = "".join(EVIL) + "<img src=x onerror=alert(1)>"
    content = comparison(names=(evil, "GRU"))
    pair = content.pairs[0]
    example = Example(evil, [evil], [evil, evil], [1.0, 0.0], 1.0, [evil], "")
    pair = replace(pair, examples=[example], attention_note=evil)
    content = replace(
        content, pairs=[pair], question=evil, notes=[evil], command=evil, same={evil: evil}
    )
    plain = Elements(comparison_page(comparison()).html)
    elements = Elements(comparison_page(content).html)
    tags = [tag for tag, _ in elements.tags]
    assert "img" not in tags
    scripts = [attrs for tag, attrs in elements.tags if tag == "script"]
    assert len(scripts) == len([tag for tag, _ in plain.tags if tag == "script"])
    assert not [name for _, attrs in elements.tags for name in attrs if name.startswith("on")]


# -- advice --


def outcome(content: Comparison, *outcomes: str) -> str:
    pairs = [
        replace(pair, outcome=each) for pair, each in zip(content.pairs, outcomes, strict=True)
    ]
    return advice(content.contenders, pairs, "accuracy")


def test_advice_claims_no_more_than_the_verdicts():
    two = comparison()
    assert outcome(two, "better") == (
        "Take LSTM. It is better, and it takes 0.5 times the multiplications of GRU to answer an "
        "example."
    )
    assert outcome(two, "worse").startswith("Take GRU. It is better, but it takes 2 times")
    means = [each.scores["accuracy"].value for each in two.contenders]
    assert outcome(two, "undecided") == (
        "Neither was shown to be better. "
        f"GRU has the higher accuracy here ({100 * means[1]:.1f} %), "
        "LSTM is the cheaper one (1.3 million multiplications to answer an example)."
    )
    assert outcome(two, "runs") == outcome(two, "incomplete") == ""
    three = comparison((0.5, 0.6, 0.7))
    # the pairs: LSTM and GRU, LSTM and Transformer, GRU and Transformer
    assert outcome(three, "better", "better", "undecided").startswith(
        "Take LSTM. It is better than all others, and it takes 0.5 times"
    )
    assert outcome(three, "worse", "worse", "undecided").startswith(
        "No contender was shown to be better than GRU or Transformer. Transformer has the higher"
    )
    assert outcome(three, "undecided", "undecided", "undecided").startswith(
        "No contender was shown to be better than another. Transformer has the highest accuracy"
    )
    assert outcome(three, "undecided", "better", "better").startswith(
        "No contender was shown to be better than LSTM or GRU."
    )
    assert outcome(three, "better", "undecided", "better").startswith(
        "Take LSTM. No other is known to be better, and it takes 0.5 times"
    )


def test_advice_says_what_other_scores_contradict():
    two = contradicted(comparison(), "exact", 0.2)
    assert two.advice == (
        "Take GRU if accuracy is what counts. It is better, but it takes 2 times the "
        "multiplications of LSTM to answer an example. "
        "But LSTM does better than GRU by exact matches."
    )
    assert contradicted(comparison(), "exact", -0.2).advice == comparison().advice
    three = contradicted(comparison((0.5, 0.6, 0.7)), "wer", -0.2)  # lower is better
    # the pairs: LSTM and GRU, LSTM and Transformer, GRU and Transformer
    said = outcome(three, "worse", "worse", "undecided")
    assert said.startswith("No contender was shown to be better than GRU or Transformer.")
    assert said.endswith(
        "But LSTM does better than GRU by WER; LSTM does better than Transformer by WER."
    )
    # a contradiction among those that are beaten anyway does not change what to take
    pairs = [
        replace(pair, differences=own.differences)
        for pair, own in zip(three.pairs, comparison((0.5, 0.6, 0.7)).pairs, strict=True)
    ]
    pairs[0] = replace(three.pairs[0], outcome="worse")
    pairs[1] = replace(pairs[1], outcome="worse")
    pairs[2] = replace(pairs[2], outcome="worse")
    assert advice(three.contenders, pairs, "accuracy").startswith(
        "Take Transformer. It is better than all others"
    )


def test_advice_where_costs_are_the_same_or_unknown():
    two = comparison()
    same = [replace(each, costs=costs(0)) for each in two.contenders]
    assert two.pairs[0].outcome == "worse"
    assert advice(same, two.pairs, "accuracy") == (
        "Take GRU. It is better, and it answers an example with about as many multiplications as "
        "LSTM."
    )
    undecided = [replace(two.pairs[0], outcome="undecided")]
    value = 100 * two.contenders[1].scores["accuracy"].value
    assert advice(same, undecided, "accuracy") == (
        f"Neither was shown to be better. GRU has the higher accuracy here ({value:.1f} %), and "
        "both take about as many multiplications to answer an example."
    )
    unknown = [replace(each, costs=replace(each.costs, forward=None)) for each in two.contenders]
    assert advice(unknown, undecided, "accuracy") == (
        f"Neither was shown to be better. GRU has the higher accuracy here ({value:.1f} %)."
    )
    turned = [replace(each, costs=costs(1 - n)) for n, each in enumerate(two.contenders)]
    assert "GRU has the higher accuracy here" in advice(turned, undecided, "accuracy")
    assert ") and is the cheaper one (1.3 million" in advice(turned, undecided, "accuracy")
    assert (
        advice(unknown, [replace(two.pairs[0], outcome="better")], "accuracy")
        == "Take LSTM. It is better."
    )


def test_a_score_that_is_lower_for_the_better_one():
    two = comparison()
    scores = [{"cer": each.scores["accuracy"]} for each in two.contenders]
    contenders = [
        replace(each, scores=own) for each, own in zip(two.contenders, scores, strict=True)
    ]
    undecided = [replace(two.pairs[0], outcome="undecided")]
    assert "LSTM has the lower CER here" in advice(contenders, undecided, "cer")


def test_who_is_left_alone_did_not_fail():
    two = comparison()
    failed = [replace(seed, state="failed") for seed in two.contenders[1].seeds]
    contenders = [two.contenders[0], replace(two.contenders[1], seeds=failed)]
    pairs = [replace(two.pairs[0], outcome="failed")]
    assert (
        advice(contenders, pairs, "accuracy") == "Take LSTM. It is the only one that did not fail."
    )


# -- curves --


def test_a_mean_curve_is_the_mean_between_the_lowest_and_the_highest():
    contender = comparison().contenders[0]
    steps = mean_curve(contender, "steps", "accuracy")
    assert steps is not None and steps.x.tolist() == [200, 400, 600]
    values = np.array([own.scores["accuracy"] for own in contender.curves], float)
    assert steps.mean == pytest.approx(values.mean(0))
    assert steps.low == pytest.approx(values.min(0))
    assert steps.high == pytest.approx(values.max(0))
    # seconds differ from run to run: the curve has only places that all runs reached
    seconds = mean_curve(contender, "seconds", "accuracy")
    assert seconds is not None and len(seconds.x) == POINTS
    assert (seconds.x[0], seconds.x[-1]) == pytest.approx((20.02, 60.0))
    assert (seconds.low <= seconds.mean).all() and (seconds.mean <= seconds.high).all()
    assert mean_curve(contender, "steps", "bleu") is None


def test_the_score_of_the_verdict_has_the_first_curve():
    content = comparison()
    assert logged_scores(content) == ["accuracy", "loss"]
    other = comparison_page(replace(content, score="bleu"))
    assert "was not measured during training" in section(other, "curves").text
