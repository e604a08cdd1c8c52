"""Reports of runs: what the page says is what the run's files say."""

from __future__ import annotations

import html
import json
import re
import shutil
import time
from collections import Counter
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import regard
from regard import bundle, disk, recipe, sessions
from regard.data.lines import Tally
from regard.errors import InputError, printable
from regard.pages import run_sections
from regard.pages.report import FILE
from regard.pages.shell import Page, Section
from regard.pages.small_maps import Card, cards, heat_map
from regard.sessions import Session
from regard.train import loop, train
from regard.train.page import ReportFile
from tests.tiny import (
    Silent,
    captions_table,
    labelled_file,
    memorised,
    memorised_captions,
    memorised_pictures,
    pairs_file,
    pictures_folder,
)

EVIL = "</script><script>alert(1)</script><b>"


def trained(folder: Path, *more: str, name: str = "chat-gru", **options: Any) -> Path:
    """A run of four steps, two of which are validated."""
    changes = memorised(
        pairs_file(folder), "encoder.width=8", "train.steps=4", "train.valid_every=2", *more
    )
    run = folder / "run"
    train(recipe.load(name, changes), run, reporter=Silent(), **options)
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        return trained(
            folder,
            "data.valid=0.3",
            "data.test=0.3",
            "search.max_new_tokens=5",
            base="chat-gru",
            command="regard train chat-gru --steps 4",
        )


@pytest.fixture(autouse=True)
def cache(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(run.parent / "cache"))


def section(page: Page, name: str) -> Section:
    return next(section for section in page.sections if section.id == name)


def lines(run: Path, kind: str) -> list[dict[str, Any]]:
    return [line for line in disk.read_json_lines(run / "metrics.jsonl") if line["kind"] == kind]


def test_training_writes_a_page_of_what_it_logged(run: Path):
    text = (run / FILE).read_text("utf-8")
    assert f'<meta name="generator" content="{disk.MADE_BY}">' in text
    last = lines(run, "valid")[-1]
    plain = html.unescape(text)
    assert f"{last['perplexity']:.4g}" in plain
    for prompt, answer in last["samples"]:
        assert prompt in plain and printable(answer) in plain
    assert "for 4 steps" in plain and "Training is under way" not in plain
    head = text.partition("<style>")[0]
    assert "refresh" not in head
    assert "regard train chat-gru --steps 4" in plain
    assert "(95 %" not in plain  # nothing was asked again


def test_the_curves_are_those_of_the_log(run: Path):
    page = regard.report(run, limit=2)
    figures = "".join(section(page, "curves").figures)
    valid = lines(run, "valid")
    for line in valid:
        loss = np.log(line["perplexity"])
        assert f"validation: {loss:.4g} at {line['step']}" in figures
    (trained_line,) = lines(run, "train")
    assert f"training: {trained_line['loss']:.4g} at 4" in figures
    kept = [line["step"] for line in valid if line["kept"]][-1]
    circled = re.findall(r'class="chosen".*?at (\d+)<', figures)
    assert circled and set(circled) == {str(kept)}


def test_the_scores_are_those_of_evaluate(run: Path):
    page = regard.report(run, limit=3)
    bot = regard.load(run)
    expected = bot.evaluate(limit=3, ranked=3, greedy=True)
    (table,) = section(page, "scores").tables
    rows = {row[0]: row for row in table.rows}
    assert rows.keys() == expected.scores.keys()
    for name, value in expected.scores.items():
        assert rows[name][1] == f"{value:.4g}"
        bounds = expected.intervals.get(name)
        assert rows[name][2] == (None if bounds is None else f"{bounds[0]:.4g} to {bounds[1]:.4g}")
        assert rows[name][-1], f"no meaning of {name}"
    facts = dict(page.facts)
    low, high = expected.intervals["perplexity"]
    assert facts["perplexity"] == (
        f"{expected.scores['perplexity']:.4g} (95 %: {low:.4g} to {high:.4g})"
    )
    assert facts["parameters"] == f"{bot.model.parameter_count:,}"


def test_test_examples_are_scored_only_if_asked(run: Path):
    page = regard.report(run, limit=2)
    told = section(page, "scores").text
    count = len(regard.load(run).own_data("test")[1])
    assert f"The {count} test examples are not scored here" in told and "--test" in told
    asked = section(regard.report(run, limit=2, test=True), "scores")
    assert [table.caption for table in asked.tables] == ["Validation", "Test"]
    assert "not scored here" not in asked.text


def test_the_recipe_is_told_by_its_differences_and_as_a_whole(run: Path, tmp_path: Path):
    page = regard.report(run, limit=2)
    (table,) = section(page, "recipe").tables
    base = recipe.load("chat-gru")
    own = recipe.Recipe.from_json(disk.read_json(run / "recipe.json"))
    expected = {line.partition(":")[0] for line in recipe.differences(base, own)}
    assert {row[0] for row in table.rows} == expected and "train.steps" in expected
    file = tmp_path / "again.toml"
    file.write_text(section(page, "fields").code, "utf-8")
    assert recipe.differences(own, recipe.load(file)) == []
    assert section(page, "fields").is_collapsed


@pytest.mark.parametrize("name", recipe.names())
def test_every_shipped_recipe_is_toml_again(name: str, tmp_path: Path):
    own = recipe.load(name)
    (tmp_path / "again.toml").write_text(run_sections.toml(own), "utf-8")
    assert recipe.differences(own, recipe.load(tmp_path / "again.toml")) == []


def test_the_base_without_sessions_is_found_by_the_summary(tmp_path: Path):
    base = recipe.load("chat-gru", ["seed=3"])
    told = run_sections.differences(base, [])
    assert told.tables[0].rows == (("seed", "1", "3"),)
    assert "chat-gru" in told.text
    other = base.model_copy(update={"summary": "mine", "extends": None})
    assert "not based on a shipped recipe" in run_sections.differences(other, []).text
    session = Session(base="chat-lstm")
    assert "chat-lstm" in run_sections.differences(base, [session]).text


def test_what_was_skipped_is_told_with_its_reasons(run: Path):
    corpus = regard.load(run).own_data()[0]
    tally = Tally(used=7, skipped=Counter({"too long": 2}), duplicates=5)
    other = type(corpus)(**{**vars(corpus), "tally": tally})
    told = run_sections.data(regard.load(run).recipe, other)
    sizes, skipped, examples = told.tables
    assert skipped.rows == (("too long", 2), ("duplicates", 5))
    assert sizes.rows == (
        ("training", len(corpus.train)),
        ("validation", len(corpus.valid)),
        ("test", len(corpus.test)),
    )
    assert {row[0] for row in examples.rows} == {"training", "validation", "test"}


def test_nothing_in_a_run_becomes_markup(tmp_path: Path):
    data = tmp_path / "pairs.tsv"
    rows = [f"{EVIL} {word}\t{EVIL} answer {word}" for word in "abcdefgh"]
    data.write_text("\n".join(rows), "utf-8")
    run = tmp_path / f"run{EVIL.replace('/', '')}"
    changes = memorised(
        data,
        "encoder.width=8",
        "train.steps=2",
        "train.valid_every=1",
        "data.valid=0.4",
        "data.max_source=60",
        "data.max_target=60",
    )
    chosen = recipe.load("chat-gru", changes).model_copy(update={"summary": EVIL})
    train(chosen, run, reporter=Silent(), command=f"regard {EVIL}")
    script = (Path(run_sections.__file__).parent / "page.js").read_text("utf-8")
    for page in ((run / FILE).read_text("utf-8"), regard.report(run, limit=2).html):
        assert "&lt;/script&gt;&lt;script&gt;alert(1)" in page
        outside = page.replace(script, "")
        assert "<script>alert" not in outside and "<b>" not in outside
    card = Card(((EVIL, EVIL),))
    drawing = heat_map(np.eye(2), [EVIL, "b"], [EVIL, "d"], title=EVIL)
    for text in (cards([card]), drawing):
        assert "<script" not in text and "<b>" not in text


def test_a_run_without_held_out_examples_says_so(tmp_path: Path):
    run = trained(tmp_path, "search.max_new_tokens=5")
    page = regard.report(run, limit=2)
    told = section(page, "scores")
    assert "scores on training examples" in told.text
    rows = {row[0]: row[1] for row in told.tables[0].rows}
    last = lines(run, "training_examples")[-1]
    assert rows["perplexity"] == f"{last['perplexity']:.4g}"
    assert "95 % interval" not in told.tables[0].columns
    assert "perplexity on training examples" in dict(page.facts)
    assert [part.id for part in page.sections].count("errors") == 0
    assert len(section(page, "attention").figures) == 3


def test_a_run_before_its_first_validation(tmp_path: Path):
    run = trained(tmp_path)
    (run / "model.safetensors").unlink()
    manifest = json.loads((run / "manifest.json").read_text())
    del manifest["files"]["model.safetensors"]
    (run / "manifest.json").write_text(json.dumps(manifest))
    shutil.rmtree(run / "checkpoints")
    (run / "metrics.jsonl").unlink()
    page = regard.report(run)
    assert "no scores yet" in section(page, "scores").text
    assert "Nothing is logged yet" in section(page, "curves").text


def test_data_that_is_gone_is_told(tmp_path: Path):
    run = trained(tmp_path)
    (tmp_path / "pairs.tsv").unlink()
    told = section(regard.report(run), "examples").text
    assert "cannot be read now" in told and "pairs.tsv" in told


def test_classifiers_show_confident_mistakes_and_confusions(tmp_path: Path):
    changes = memorised(
        labelled_file(tmp_path),
        "encoder.width=8",
        "train.steps=1",
        "data.valid=0.5",
        "train.valid_every=1",
    )
    run = tmp_path / "run"
    train(recipe.load("sentiment-lstm", changes), run, reporter=Silent())
    page = regard.report(run)
    result = regard.load(run).evaluate()
    wrong = [s for s in result.samples if s.answer not in s.references]
    told = section(page, "errors")
    if wrong:
        assert f"{len(wrong)} of {len(result.samples)} answers are wrong" in told.text
        shares = [float(str(row[2]).rstrip("%")) for row in told.tables[0].rows]
        assert shares == sorted(shares, reverse=True) and len(shares) == min(8, len(wrong))
    else:
        assert "are right" in told.text
    drawing = section(page, "confusions").figures[0]
    counts = [int(n) for n in re.findall(r'class="count[^>]*>(\d+)<', drawing)]
    assert sum(counts) == len(result.samples)
    draft = html.unescape((run / FILE).read_text("utf-8"))
    assert "Confusions" in draft


@pytest.mark.parametrize("kind", ["image-pool", "caption-attention"])
def test_pictures_are_in_the_page(tmp_path: Path, kind: str):
    if kind == "image-pool":
        changes = memorised_pictures(pictures_folder(tmp_path, side=8), "train.steps=1")
    else:
        changes = memorised_captions(captions_table(tmp_path), "train.steps=1")
    run = tmp_path / "run"
    train(recipe.load(kind, [*changes, "data.valid=0.4"]), run, reporter=Silent())
    page = regard.report(run)
    for name in ("samples", "examples", "errors"):
        figures = "".join(section(page, name).figures)
        assert "data:image/png;base64," in figures or "right" in section(page, name).text
    assert "<image " in "".join(section(page, "attention").figures)


def test_a_heat_map_has_a_cell_for_each_weight():
    weights = np.array([[0.9, 0.1, 0.0], [0.2, 0.5, 0.3]])
    drawing = heat_map(weights, ["a", "b"], ["x", "y", "z"], title="map")
    cells = re.findall(r'fill-opacity="([\d.]+)"><title>(\w) → (\w): ([\d.]+)<', drawing)
    expected = [("a", "x", 0.9), ("a", "y", 0.1), ("b", "x", 0.2), ("b", "y", 0.5), ("b", "z", 0.3)]
    assert [(row, column, float(o)) for o, row, column, _ in cells] == expected


# -- during training --


def test_a_report_that_cannot_be_written_ends_nothing(tmp_path: Path, monkeypatch):
    def failing(self: Page, path: Path) -> Path:
        raise RuntimeError("no pages today")

    monkeypatch.setattr(Page, "save", failing)
    reporter = Silent()
    changes = memorised(
        pairs_file(tmp_path), "encoder.width=8", "train.steps=4", "train.valid_every=1"
    )
    progress = train(recipe.load("chat-gru", changes), tmp_path / "run", reporter=reporter)
    assert progress.step == 4
    assert reporter.notes == ["the report is not written: no pages today"]
    assert bundle.has_weights(tmp_path / "run")


def test_a_file_of_somebody_is_kept(tmp_path: Path):
    run = tmp_path / "run"

    class Planting(Silent):
        def began(self, facts) -> None:
            (run / FILE).write_text("mine")
            (run / sessions.FILE).write_text("[]")

    reporter = Planting()
    changes = memorised(pairs_file(tmp_path), "encoder.width=8", "train.steps=2")
    train(recipe.load("chat-gru", changes), run, reporter=reporter)
    assert (run / FILE).read_text() == "mine" and (run / sessions.FILE).read_text() == "[]"
    assert len(reporter.notes) == 1 and "regard did not write" in reporter.notes[0]
    with pytest.raises(InputError, match="did not write"):
        regard.report(run, limit=1).save(run / FILE)


def test_time_for_the_report_does_not_count_as_steps(tmp_path: Path, monkeypatch):
    write = ReportFile.write
    hours = 0.0  # that reports have taken, by the clock of the loop

    def slow(self, *arguments) -> None:
        nonlocal hours
        write(self, *arguments)
        hours += 1

    def perf_counter() -> float:
        return time.perf_counter() + 3600 * hours

    monkeypatch.setattr(ReportFile, "write", slow)
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=perf_counter))
    changes = memorised(
        pairs_file(tmp_path),
        "encoder.width=8",
        "train.steps=4",
        "train.valid_every=1",
        "train.clock=steps",
    )
    progress = train(recipe.load("chat-gru", changes), tmp_path / "run", reporter=Silent())
    assert hours >= 4
    assert progress.seconds < 3600


@pytest.mark.parametrize(("share", "expected"), [(1e-9, 2), (1e9, 9)])
def test_it_is_not_written_more_often_than_it_may_cost(
    tmp_path: Path, monkeypatch, share: float, expected: int
):
    """At the first validation and at the end, if nothing may be spent; otherwise at each."""
    saved = []
    save = Page.save

    def counted(self: Page, path: Path) -> Path:
        saved.append(path)
        return save(self, path)

    monkeypatch.setattr(Page, "save", counted)
    monkeypatch.setattr(import_module("regard.train.page"), "SHARE", share)
    trained(tmp_path, "train.valid_every=1", "train.steps=8")
    assert len(saved) == expected


def test_sessions_record_how_each_ended(tmp_path: Path, monkeypatch):
    """Also of two that begin within a second."""
    monkeypatch.setattr(sessions, "_now", lambda: "2026-01-01T00:00:00+00:00")
    run = trained(tmp_path, base="chat-gru", command="regard train chat-gru")
    own = recipe.Recipe.from_json(disk.read_json(run / "recipe.json"))
    train(own.override(["train.steps=6"]), run, reporter=Silent(), resume=True)
    first, second = sessions.read(run)
    assert (first.first_step, first.last_step, first.state) == (0, 4, "done")
    assert (second.first_step, second.last_step, second.state) == (4, 6, "done")
    assert first.command == "regard train chat-gru" and second.command == ""
    assert first.base == second.base == "chat-gru"
    assert first.torch and first.processor and first.threads >= 1 and first.seed == own.seed
    assert first.began <= first.ended <= second.ended


def test_a_resume_with_nothing_to_do_keeps_the_page(tmp_path: Path):
    run = trained(tmp_path)
    regard.report(run, limit=1).save(run / FILE)
    before = (run / FILE).read_bytes()
    own = recipe.Recipe.from_json(disk.read_json(run / "recipe.json"))
    train(own, run, reporter=Silent(), resume=True)
    assert (run / FILE).read_bytes() == before


@pytest.mark.parametrize(
    "content",
    ["", "[", "{}", '{"format": 1, "sessions": 3}', '{"format": 1, "sessions": [{"x": 1}]}'],
)
def test_a_damaged_file_of_sessions_has_none(tmp_path: Path, content: str):
    (tmp_path / sessions.FILE).write_text(content)
    assert sessions.read(tmp_path) == []


@pytest.mark.parametrize(
    ("value", "message"), [(3, "needs the path of a run's folder"), (None, "needs the path")]
)
def test_mistakes_in_python(value: Any, message: str):
    with pytest.raises(InputError, match=message):
        regard.report(value)
    with pytest.raises(InputError, match="must be a whole number"):
        regard.report("runs/x", limit=0)
