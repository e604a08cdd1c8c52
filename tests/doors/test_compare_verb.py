"""regard compare: from recipes or runs to a verdict; what is done is never done again."""

from __future__ import annotations

import html
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from regard import cli, disk
from regard.build import with_tokenizer
from regard.cli.comparing import report
from regard.compare import plan as plans
from regard.compare import ready
from regard.compare.analysis import compare
from regard.compare.cells import Cell, Cells
from regard.compare.cost import work_of
from regard.compare.page import comparison_page
from regard.compare.plan import Budget, Plan, contenders_of
from regard.errors import BusyError, RegardError
from tests.tiny import Silent

SMALL = [
    "data.count=160",
    "data.valid=0.15",
    "data.test=0.15",
    "encoder.width=8",
    "decoder.width=8",
    "search.num_beams=1",
    "search.max_new_tokens=9",
    "train.valid_every=2",
    "train.save_every=2",
    "train.warmup_steps=1",
    "train.threads=1",
]
RECIPES = ["translate-attention", "translate-gru"]


def sets(*changes: str) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


class Quiet(Silent):
    def __enter__(self) -> Quiet:
        return self

    def __exit__(self, *_: object) -> None:
        return None


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory):
    """A folder with a comparison of two recipes and the seeds 0 and 1, and the arguments of it."""
    folder = tmp_path_factory.mktemp("compare")
    before = os.environ.get("REGARD_CACHE")
    os.environ["REGARD_CACHE"] = str(folder / "cache")
    words = ["compare", *RECIPES, "--steps", "4", "--seeds", "0,1", *sets(*SMALL)]
    words += ["--out", str(folder / "both"), "--score", "bleu"]
    assert cli.main(words) == 0
    yield folder, words
    if before is None:
        del os.environ["REGARD_CACHE"]
    else:
        os.environ["REGARD_CACHE"] = before


@pytest.fixture(scope="module")
def differing(home: tuple[Path, list[str]]):
    """A comparison of the same runs by their perplexity, which differs on every item."""
    folder, _ = home
    runs = sorted(str(run) for run in (folder / "both").glob("runs/*/*"))
    out = folder / "differing"
    words = ["compare", *runs, "--score", "perplexity", "--out", str(out)]
    assert cli.main(words) == 0
    return out, words


def record_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "comparison.json").read_text())


def small_plan(**more: Any) -> Plan:
    return Plan(contenders_of(RECIPES, changes=SMALL), budget=Budget("steps", 4), **more)


def known_cells(home: tuple[Path, list[str]]) -> tuple[Plan, list[Cell]]:
    """The cells of the comparison, read from its folder."""
    folder, _ = home
    plan = small_plan(seeds=(0, 1), score="bleu")
    corpora = plans.corpora_of(plan)
    plan = plans.resolved(plan, corpora)
    return plan, Cells(plan, folder / "both", "test", make_reporter=lambda _: Quiet()).snapshot()


def test_the_record_has_what_a_page_needs(home: tuple[Path, list[str]]):
    record = record_of(home[0] / "both")
    assert record["format"] == 1 and record["is_complete"] and record["split"] == "test"
    assert (record["score"], record["better"], record["unit"]) == ("bleu", "higher", "sentence")
    assert [contender["name"] for contender in record["contenders"]] == RECIPES
    for contender in record["contenders"]:
        assert [(seed["seed"], seed["state"]) for seed in contender["seeds"]] == [
            (0, "done"),
            (1, "done"),
        ]
        mean = sum(seed["scores"]["bleu"] for seed in contender["seeds"]) / 2
        assert contender["scores"]["bleu"]["value"] == pytest.approx(mean)
        costs = contender["costs"]
        assert costs["parameters"] > 0 and costs["depth"] > 0 and costs["steps"] == 4
        assert costs["multiplications"] > costs["forward"] > 0 and costs["seconds"] > 0
        curve = contender["curves"][0]
        assert curve["steps"] == [2, 4] and len(curve["scores"]["perplexity"]) == 2
        assert curve["multiplications"][1] == pytest.approx(costs["multiplications"])
    assert record["same"]["seeds"] == "0, 1" and record["same"]["budget of each run"] == "4 steps"
    assert record["same"]["examples"].endswith(" test")
    (pair,) = record["pairs"]
    assert "2 seeds of" in pair["verdict"] and pair["outcome"] in ("undecided", "better", "worse")
    assert pair["differences"]["bleu"]["item_test"] == "approximate randomisation"
    assert {bucket["kind"] for bucket in pair["buckets"]} >= {"length"}
    assert (home[0] / "both" / "comparison.png").is_file()


def test_the_page_is_named_and_has_the_record(home: tuple[Path, list[str]], capsys):
    folder, words = home
    assert cli.main(words) == 0
    shown = capsys.readouterr().out
    path = folder / "both" / "comparison.html"
    assert f"page      {path}" in shown
    record = record_of(folder / "both")
    page = html.unescape(path.read_text("utf-8"))
    (pair,) = record["pairs"]
    assert pair["verdict"] in page and record["advice"] in page and record["command"] in page
    assert record["advice"] in shown
    for contender in record["contenders"]:
        assert f"{contender['costs']['parameters']:,}" in page
        assert f"{contender['scores']['bleu']['value']:.1f}" in page


def test_the_command_of_a_comparison_makes_it_again(home: tuple[Path, list[str]], capsys):
    folder, _ = home
    record = record_of(folder / "both")
    program, *words = shlex.split(record["command"])
    assert program == "regard"
    assert cli.main([*words, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["pairs"] == record["pairs"] and again["command"] == record["command"]
    assert again["page"] == str(folder / "both" / "comparison.html")


def test_examples_have_pages_with_the_attention_of_both(differing: tuple[Path, list[str]], capsys):
    """The answers of a page are those of the record, and its command makes such a page."""
    out, _ = differing
    record = record_of(out)
    (pair,) = record["pairs"]
    linked = [example for example in pair["examples"] if example["attention"]]
    assert linked and pair["attention_note"] == ""
    files = {path.name for path in (out / "attention").iterdir()}
    assert files == {Path(example["attention"]).name for example in linked}
    page = (out / "comparison.html").read_text("utf-8")
    for example in linked:
        assert f'href="{example["attention"]}"' in page
        text = (out / example["attention"]).read_text("utf-8")
        data = json.loads(text.split('id="data">')[1].split("</script>")[0])
        assert [view["name"] for view in data["views"]] == RECIPES
        assert [view["answer"]["text"] for view in data["views"]] == example["answers"]
        assert {part["id"] for view in data["views"] for part in view["parts"]} >= {"cross"}
        assert 'href="../comparison.html"' in text
    program, *words = shlex.split(linked[0]["commands"][0])
    assert program == "regard"
    assert cli.main([*words, "--out", str(out.parent / "attend.html")]) == 0
    shown = capsys.readouterr().out
    assert all(f"->  {answer}" in shown for answer in linked[0]["answers"])


def test_old_pages_of_attention_go_and_people_s_own_stay(differing: tuple[Path, list[str]]):
    out, words = differing
    attention = out / "attention"
    ours = next(attention.glob("*.html"))
    shutil.copy(ours, attention / "9-old-older-1.html")
    (attention / "mine.html").write_text("<p>mine</p>")
    assert cli.main(words) == 0
    assert not (attention / "9-old-older-1.html").exists() and ours.exists()
    assert (attention / "mine.html").read_text() == "<p>mine</p>"
    (attention / "mine.html").unlink()


def test_without_its_model_an_example_has_a_command_and_a_reason(differing: tuple[Path, list[str]]):
    out, words = differing
    weights = out.parent / "both" / "runs" / RECIPES[1] / "seed=0" / "model.safetensors"
    content = weights.read_bytes()
    checkpoints = weights.parent / "checkpoints"
    try:
        weights.write_bytes(content[:-9])
        shutil.move(checkpoints, out.parent / "moved")
        assert cli.main(words) == 0
        (pair,) = record_of(out)["pairs"]
        assert f"the model of {RECIPES[1]} cannot be read" in pair["attention_note"]
        assert not any(example["attention"] for example in pair["examples"])
        page = html.unescape((out / "comparison.html").read_text("utf-8"))
        assert pair["attention_note"] in page and pair["examples"][0]["commands"][0] in page
    finally:
        weights.write_bytes(content)
        shutil.move(out.parent / "moved", checkpoints)
        assert cli.main(words) == 0


def test_a_model_without_attention_gets_effects(home: tuple[Path, list[str]]):
    folder, _ = home
    out = folder / "plain"
    chats = ["chat-lstm", "chat-attention"]
    changes = [change for change in SMALL if not change.startswith("data.count")]
    words = ["compare", *chats, "--steps", "2", "--seeds", "1", "--limit", "8"]
    assert cli.main([*words, *sets(*changes), "--out", str(out)]) == 0
    (pair,) = record_of(out)["pairs"]
    assert pair["attention_note"].startswith("chat-lstm has no attention to the input")
    example = next(example for example in pair["examples"] if example["attention"])
    text = (out / example["attention"]).read_text("utf-8")
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    parts = {view["name"]: {part["id"] for part in view["parts"]} for view in data["views"]}
    assert parts["chat-lstm"] == {"effect"} and {"cross", "effect"} <= parts["chat-attention"]
    assert list(parts) == ["chat-attention", "chat-lstm"]  # the first decides what is offered
    assert data["start"]["part"] == "effect"  # which both have


def test_a_finished_cell_is_never_run_again(home: tuple[Path, list[str]], capsys):
    folder, words = home
    files = [*(folder / "both").glob("runs/*/*/model.safetensors")]
    files += (folder / "both").glob("cells/*.json")
    before = {file: file.stat().st_mtime_ns for file in files}
    assert len(before) == 8
    assert cli.main([*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["pairs"] == record_of(folder / "both")["pairs"]
    assert {file: file.stat().st_mtime_ns for file in files} == before


def test_a_lost_evaluation_is_made_again_without_training(home: tuple[Path, list[str]]):
    folder, words = home
    first = record_of(folder / "both")
    (file, *_) = (folder / "both").glob("cells/*seed=1.json")
    file.write_text("{ broken")
    weights = {p: p.stat().st_mtime_ns for p in (folder / "both").glob("runs/*/*/*.safetensors")}
    assert cli.main(words) == 0
    assert {p: p.stat().st_mtime_ns for p in weights} == weights
    assert record_of(folder / "both")["pairs"] == first["pairs"]


def test_finished_runs_are_grouped_by_their_seeds(home: tuple[Path, list[str]], capsys):
    folder, _ = home
    runs = sorted(str(run) for run in (folder / "both").glob("runs/*/*"))
    out = folder / "finished"
    assert cli.main(["compare", *runs, "--score", "bleu", "--out", str(out)]) == 0
    record, first = record_of(out), record_of(folder / "both")
    assert [contender["name"] for contender in record["contenders"]] == RECIPES
    same, other = record["pairs"][0], first["pairs"][0]
    assert same["differences"] == other["differences"]
    assert any("budgets they were trained with" in note for note in record["notes"])
    assert not (out / "runs").exists()


def test_one_run_each_is_no_verdict_about_models(home: tuple[Path, list[str]], capsys):
    folder, _ = home
    runs = [str(folder / "both" / "runs" / name / "seed=0") for name in RECIPES]
    assert cli.main(["compare", *runs, "--out", str(folder / "single")]) == 0
    shown = capsys.readouterr().out
    assert "one seed says nothing about other seeds" in shown
    assert record_of(folder / "single")["pairs"][0]["outcome"] == "runs"


def test_the_same_answers_have_p_1(home: tuple[Path, list[str]]):
    plan, cells = known_cells(home)
    first = [cell for cell in cells if cell.contender == RECIPES[0]]
    twins = [
        replace(cell, contender=RECIPES[1], items=other.items, run=cell.run)
        for cell, other in zip(cells[1::2], first, strict=True)
    ]
    (pair,) = compare(plan, [*first, *twins], "test").pairs
    found = pair.differences["bleu"]
    assert (found.value, found.p_value, found.item_p_value) == (0.0, 1.0, 1.0)
    assert "cannot be told apart" in pair.verdict and not pair.examples


def test_last_weights_that_are_not_the_best_are_noted(home: tuple[Path, list[str]], tmp_path: Path):
    plan, cells = known_cells(home)

    def logged(cell: Cell, scores: dict[int, float], *, kept_last: bool) -> Cell:
        run = tmp_path / cell.name
        run.mkdir()
        lowest = math.inf
        lines = []
        for step, score in scores.items():
            is_best = score < lowest
            lowest = min(lowest, score)
            line = {"step": step, "kind": "valid", "score": "perplexity", "perplexity": score}
            lines.append(line | {"best": is_best, "kept": is_best or kept_last})
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return replace(cell, run=str(run))

    logs = {(RECIPES[0], 1): ({2: 5.0, 4: 9.5}, True), (RECIPES[1], 1): ({2: 5.0, 4: 9.5}, False)}
    rising = [
        logged(cell, *logs[key][:1], kept_last=logs[key][1])
        if (key := (cell.contender, cell.seed)) in logs
        else cell
        for cell in cells
    ]
    found = compare(plan, rising, "test")
    note, *others = [note for note in found.notes if "weights are scored" in note]
    assert not others
    assert note == (
        f"the last weights are scored in 1 of 2 runs of {RECIPES[0]}, although the validation "
        "score was better before: perplexity 9.5 at step 4, 5 at step 2 (seed 1); "
        "--set train.keep=best scores the best ones"
    )
    steps = [[(seed.kept_step, seed.best_step) for seed in c.seeds] for c in found.contenders]
    assert steps[0][1] == (4, 2) and steps[1][1] == (2, 2)
    assert note[1:] in html.unescape(comparison_page(found).html)
    assert f"note: {note}" in report(found)


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell the peak")
def test_the_first_cell_of_a_process_pays_no_more_memory_than_the_next(tmp_path: Path):
    environment = os.environ | {"REGARD_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    changes = [change for change in SMALL if "width" not in change]
    changes += ["encoder.width=48", "decoder.width=48"]
    words = ["compare", RECIPES[0], RECIPES[0], "--steps", "4", "--seeds", "1", "--json"]
    words += [*sets(*changes), "--out", str(tmp_path / "out")]
    done = subprocess.run([*PROGRAM, *words], env=environment, capture_output=True, check=True)
    first, second = (each["costs"]["peak_memory"] for each in json.loads(done.stdout)["contenders"])
    # Equal runs differ by a fifth at times; without the step before, the first has five times as
    # much.
    assert first < 2 * second


def test_examples_of_histories_have_commands_that_work(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    dialogues = tmp_path / "dialogues.jsonl"
    turns = [
        [f"I like {x}.", "- Good.", f"- What's that {x}?", f"It is {x}."] for x in "abcdefghij"
    ]
    dialogues.write_text("".join(json.dumps(each) + "\n" for each in turns))
    changes = [change for change in SMALL if not change.startswith("data.")]
    changes += ["data.kind=dialogues", "data.turns=3", "data.valid=0.2", "data.test=0.3"]
    changes += ["search.do_sample=false", "search.candidates=1"]
    out = tmp_path / "out"
    words = ["compare", "chat-attention", "chat-gru", "--data", str(dialogues), "--steps", "2"]
    words += ["--seeds", "1", *sets(*changes), "--out", str(out)]
    assert cli.main(words) == 0
    shown = capsys.readouterr().out
    assert r"\n" not in shown and "\n  - Good.\n" in shown
    assert r"\n- Good" not in (out / "comparison.html").read_text("utf-8")
    (pair,) = record_of(out)["pairs"]
    longest = max(pair["examples"], key=lambda example: example["prompt"].count("\n"))
    assert longest["prompt"].count("\n") == 2
    (command,) = longest["commands"]
    program, *words = shlex.split(command)
    assert program == "regard" and words.count("--history") == 2
    page = tmp_path / "attend.html"
    assert cli.main([*words[:1], "--out", str(page), *words[1:]]) == 0
    answers = capsys.readouterr().out
    assert all(f"->  {answer}" in answers for answer in longest["answers"])
    data = json.loads(page.read_text("utf-8").split('id="data">')[1].split("</script>")[0])
    places = data["views"][0]["names"]["places"]
    assert places.count("(other)") == 2 and places.count("(self)") == 1


def test_a_failed_seed_is_a_result(home: tuple[Path, list[str]]):
    plan, cells = known_cells(home)
    failed = [
        replace(cell, state="failed", why="the loss was not a number", items=())
        if cell.contender == RECIPES[1] and cell.seed == 0
        else cell
        for cell in cells
    ]
    found = compare(plan, failed, "test")
    assert [result.state for result in found.contenders[1].seeds] == ["failed", "done"]
    assert found.contenders[1].failed == 1
    all_failed = [
        replace(cell, state="failed", why="the loss was not a number", items=())
        if cell.contender == RECIPES[1]
        else cell
        for cell in cells
    ]
    (pair,) = compare(plan, all_failed, "test").pairs
    assert pair.outcome == "failed"
    assert pair.verdict == "translate-gru failed on all of its 2 seeds: the loss was not a number"


def test_other_tokenizers_leave_perplexity_out(home: tuple[Path, list[str]]):
    plan, cells = known_cells(home)
    plan = replace(plan, score=None)
    other = [replace(c, tokenizer="other") if c.contender == RECIPES[1] else c for c in cells]
    found = compare(plan, other, "test")
    assert found.score == "word_perplexity" and "perplexity" not in found.contenders[0].scores
    unknown = [replace(cell, has_unknown_words=True) for cell in other]
    found = compare(plan, unknown, "test")
    assert "word_perplexity" not in found.contenders[0].scores
    assert any("cannot write all words" in note for note in found.notes)
    with pytest.raises(RegardError, match="--score: cannot be compared here; got perplexity"):
        compare(replace(plan, score="perplexity"), other, "test")


def test_unequal_test_sets_are_compared_on_what_they_share(home: tuple[Path, list[str]]):
    plan, cells = known_cells(home)
    shorter = [replace(c, items=c.items[3:]) if c.contender == RECIPES[1] else c for c in cells]
    found = compare(plan, shorter, "test")
    count = len(cells[0].items)
    assert found.items == count - 3
    assert f"only {count - 3:,} of {count:,} test items are common to all contenders" in found.notes
    nothing = [replace(c, items=c.items[:1] if c.seed else c.items[1:]) for c in cells]
    with pytest.raises(RegardError, match="no test item in common"):
        compare(plan, nothing, "test")


def test_people_s_own_files_stay(home: tuple[Path, list[str]], tmp_path: Path, capsys):
    folder, words = home
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years")
    assert cli.main([*words[:-4], "--out", str(mine)]) == 2
    assert "not empty and holds no comparison" in capsys.readouterr().err
    copy = tmp_path / "copy"
    shutil.copytree(folder / "both", copy)
    (copy / "comparison.json").write_text('{"mine": 1}')
    assert cli.main([*words[:-4], "--out", str(copy)]) == 2
    assert "regard did not write" in capsys.readouterr().err
    assert (copy / "comparison.json").read_text() == '{"mine": 1}'
    shutil.copy(folder / "both" / "comparison.json", copy)
    (copy / "comparison.html").write_text("<p>mine</p>")
    assert cli.main([*words[:-4], "--out", str(copy)]) == 2
    assert "comparison.html: something that regard did not write" in capsys.readouterr().err
    assert (copy / "comparison.html").read_text() == "<p>mine</p>"
    assert cli.main([*words[:-4], "--out", str(copy), "--steps", "5"]) == 2
    assert "this folder holds another comparison; " in capsys.readouterr().err.replace(
        f"{copy}: ", ""
    ).replace("got other contenders, budget; ", "; ").replace("; ; ", "; ")


def test_timed_plans_are_for_one_process_of_a_machine(tmp_path: Path):
    plan = small_plan(seeds=(1,))
    timed = replace(plan, budget=Budget("minutes", 1))
    plans.claim(timed, tmp_path)
    cells = [Cells(timed, tmp_path, "test", make_reporter=lambda _: Quiet()) for _ in range(2)]
    with cells[0]._alone_if_timed():
        second = cells[1]._alone_if_timed()
        with pytest.raises(BusyError, match="whose budget is time"), second:
            pass
        untimed = Cells(plan, tmp_path, "test", make_reporter=lambda _: Quiet())
        with untimed._alone_if_timed():
            pass


def test_tuning_is_the_same_for_all_and_recorded(home: tuple[Path, list[str]], capsys):
    folder, _ = home
    words = ["compare", *RECIPES, "--steps", "2", "--seeds", "1", *sets(*SMALL)]
    words += ["--tune", "train.learning_rate=1e-3,1e-2", "--out", str(folder / "tuned"), "--json"]
    assert cli.main(words) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["trials"] == 2
    for contender in record["contenders"]:
        tuning = contender["tuning"]
        scores = {t["values"]["train.learning_rate"]: t["perplexity"] for t in tuning["scores"]}
        assert tuning["trials"] == len(scores) == 2
        assert tuning["values"] == {"train.learning_rate": min(scores, key=lambda k: scores[k])}
        run = Path(contender["seeds"][0]["run"])
        recipe = json.loads((run / "recipe.json").read_text())
        assert recipe["seed"] == 1
        assert recipe["train"]["learning_rate"] == float(tuning["values"]["train.learning_rate"])
        tried = (folder / "tuned" / "tune" / contender["name"]).glob("*/recipe.json")
        assert {json.loads(file.read_text())["seed"] for file in tried} == {plans.TUNING_SEED}


def test_budgets_of_multiplications_and_matched_widths(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    changes = [change for change in SMALL if "width" not in change]
    plan = Plan(
        contenders_of(["translate-attention", "translate-transformer"], changes=changes),
        budget=Budget("multiplications", 1e12),
        match="parameters",
    )
    corpora = plans.corpora_of(plan)
    resolved = plans.resolved(plan, corpora)
    works = [work_of(each.recipe, corpora[each.name]) for each in resolved.contenders]
    sizes = [work.parameters for work in works]
    assert abs(sizes[1] / sizes[0] - 1) < 0.1
    for contender, work in zip(resolved.contenders, works, strict=True):
        how = contender.recipe.train
        assert how.steps is not None and abs(how.steps * work.step / 1e12 - 1) < 0.02
        assert (how.minutes, how.epochs, how.clock, how.patience) == (None, None, "steps", 0)


def test_the_work_of_a_step_is_what_running_the_model_counts(monkeypatch, tmp_path: Path):
    """Closed forms over the batches of an epoch against the same batches, traced."""
    from regard.compare import cost

    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    plan = small_plan()
    corpus = plans.corpora_of(plan)[RECIPES[0]]
    recipe = plan.contenders[0].recipe
    formulas = work_of(recipe, corpus)
    monkeypatch.setattr(cost, "_budget", _no_closed_form)
    counted = work_of(recipe, corpus)
    assert counted.parameters == formulas.parameters and counted.forward == formulas.forward
    assert counted.step == pytest.approx(formulas.step, rel=1e-9) and counted.depth is None


def _no_closed_form(*_: object) -> None:
    from regard.budget.closed_form.supported import NoClosedForm

    raise NoClosedForm("none")


@pytest.mark.parametrize("name", ready.names())
def test_ready_made_plans_are_plans(name: str):
    plan = ready.load(name).plan()
    plans.check(plan)
    assert plan.title == name and len(plan.contenders) > 1 and len(plan.seeds) == 3


@pytest.mark.parametrize("name", ["lstm-vs-attention", "attention-for-translation"])
def test_plans_about_attention_compare_the_best_weights_after_as_many_steps(name: str):
    plan = ready.load(name).plan()
    assert plan.budget.kind == "steps"
    assert {contender.recipe.train.keep for contender in plan.contenders} == {"best"}
    attentions = [getattr(each.recipe.decoder, "attention", "") for each in plan.contenders]
    assert attentions[:2] == ["none", "general"]
    assert plan.contenders[2].recipe.decoder.kind == "transformer"


def test_what_is_the_same_has_the_size_of_the_test_split_of_the_verdict(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """It may have longer inputs than training."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    contenders = contenders_of(RECIPES, changes=[*SMALL, "data.max_source=20"])
    plan = Plan(contenders, budget=Budget("steps", 2), test_set=("data.max_source=120",))
    corpora = plans.corpora_of(plan)
    corpus = corpora[RECIPES[0]]
    longer = with_tokenizer(contenders[0].recipe.override(plan.test_set), corpus.tokenizer)
    assert len(longer.test) > len(corpus.test)
    same = plans.same_for_all(plan, corpora, "test")["examples"]
    assert same == f"{len(corpus.train)} train, {len(corpus.valid)} valid, {len(longer.test)} test"


def test_the_list_of_plans(capsys):
    assert cli.main(["compare", "--plan", "list"]) == 0
    shown = capsys.readouterr().out
    wanted = "lstm-vs-attention lstm-vs-gru speech-lstm-vs-transformer pool-vs-stride positions"
    others = ["softmax-vs-maclaurin", "attention-for-translation"]
    assert all(name in shown for name in [*wanted.split(), *others])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "a comparison needs two contenders or more"),
        (["chat-lstm"], "a comparison needs two contenders or more; got chat-lstm"),
        (["chat-lstm", "image-pool"], "different tasks cannot be compared"),
        (["chat-lstm", "chat-gro"], 'did you mean "chat-gru"?'),
        (["--plan", "positons"], 'did you mean "positions"?'),
        (["--plan", "positions", "chat-lstm"], "a plan has its own contenders"),
        (["--plan", "none.toml"], "none.toml: a plan that cannot be read"),
        (["chat-lstm", "chat-gru", "--minutes", "1", "--tokens", "5"], "several budgets; got --"),
        (["chat-lstm", "chat-gru", "--minutes", "0"], "a budget must be more than 0"),
        (["chat-lstm", "chat-gru", "--seeds", "none"], "as in --seeds 3, or --seeds 0,1,2"),
        (["chat-lstm", "chat-gru", "--seeds", "0"], "from 1 to 1,000 seeds"),
        (["chat-lstm", "chat-gru", "--seeds", "1,1"], "a seed is given twice"),
        (
            ["chat-lstm", "chat-gru", "--match", "depth"],
            "cannot be matched; got depth; use parameters",
        ),
        (["chat-lstm", "chat-gru", "--split", "train"], "not compared on training examples"),
        (
            ["chat-lstm", "chat-gru", "--tune", "train.learning_rate=1e-4..1e-1"],
            "tries the same values for all",
        ),
        (["chat-lstm", "chat-gru", "--tune", "train.learning_rat=1,2"], "learning_rate"),
        (["."], "not a run folder"),
        (["chat-lstm", "chat-gru", "--score", "blue"], 'did you mean "bleu"?'),
    ],
)
def test_mistakes_end_in_one_line(words: list[str], message: str, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["compare", *words]) == 2
    told = capsys.readouterr().err
    assert message in told and told.count("\n") == 1 and not list(tmp_path.iterdir())


def test_different_training_data_is_refused(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    first, second = small_plan().contenders
    assert second.new is not None
    plan = Plan((first, second.with_changes(["data.count=150"])))
    with pytest.raises(RegardError, match="not the same training data; got data.count: 160 -> 150"):
        plans.check_data(plan, plans.corpora_of(plan))
    notes = plans.check_data(replace(plan, anyway=True), plans.corpora_of(plan))
    assert "different training data" in notes[0]


PROGRAM = [sys.executable, "-m", "regard"]


def test_a_killed_worker_loses_only_its_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It is killed while it trains its second cell; the same command goes on from there."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    out = tmp_path / "out"
    words = ["compare", *RECIPES, "--steps", "12", "--seeds", "1"]
    words += [*sets(*SMALL, "train.valid_every=100"), "--out", str(out), "--score", "bleu"]
    second = out / "runs" / RECIPES[1] / "seed=1" / "checkpoints"
    with subprocess.Popen([*PROGRAM, *words], stdout=subprocess.DEVNULL) as worker:
        while not list(second.glob("step-*")) and worker.poll() is None:
            time.sleep(0.02)
        worker.send_signal(signal.SIGKILL)
    first = out / "cells" / f"{RECIPES[0]},seed=1.json"
    before = first.stat().st_mtime_ns
    assert cli.main(words) == 0
    assert record_of(out)["is_complete"] and first.stat().st_mtime_ns == before
    assert disk.read_json(out / "cells" / f"{RECIPES[1]},seed=1.json")["steps"] == 12


def test_ctrl_c_ends_in_one_line_and_the_same_command_goes_on(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
):
    """It is stopped while it trains its second cell: what is known is shown, and a run is resumed
    from the step at which it was stopped."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    out = tmp_path / "out"
    words = ["compare", *RECIPES, "--steps", "100", "--seeds", "1"]
    slow = sets(*SMALL, "train.valid_every=1000", "train.save_every=10")
    words += [*slow, "--out", str(out), "--score", "bleu"]
    second = out / "runs" / RECIPES[1] / "seed=1" / "checkpoints"
    pipe = subprocess.PIPE
    with subprocess.Popen([*PROGRAM, *words], stdout=pipe, stderr=pipe, text=True) as worker:
        while not list(second.glob("step-*")) and worker.poll() is None:
            time.sleep(0.02)
        worker.send_signal(signal.SIGINT)
        shown, told = worker.communicate()
    assert worker.returncode == 130
    assert told.count("\n") == 1 and "the same command goes on with this comparison" in told
    assert "Traceback" not in shown
    record = record_of(out)
    assert not record["is_complete"] and record["pairs"][0]["outcome"] == "incomplete"
    assert "Not all runs have finished" in (out / "comparison.html").read_text("utf-8")
    assert not (out / "attention").exists()
    first = out / "cells" / f"{RECIPES[0]},seed=1.json"
    before = first.stat().st_mtime_ns
    stopped = max(int(path.name.removeprefix("step-")) for path in second.glob("step-*"))
    assert 0 < stopped < 100
    capsys.readouterr()
    assert cli.main(words) == 0 and capsys.readouterr().err == ""
    assert record_of(out)["is_complete"] and first.stat().st_mtime_ns == before
    log = (second.parent / "metrics.jsonl").read_text()
    steps = [json.loads(line)["step"] for line in log.splitlines()]
    assert steps == sorted(steps) and steps[-1] == 100


def test_two_workers_share_the_cells(tmp_path: Path):
    """Each cell is trained by one of them, and both end with the same comparison."""
    environment = os.environ | {"REGARD_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    out = tmp_path / "out"
    words = [*PROGRAM, "compare", *RECIPES, "--steps", "6", "--seeds", "2"]
    words += [*sets(*SMALL), "--out", str(out), "--score", "bleu", "--json"]
    pipe = subprocess.PIPE
    workers = [subprocess.Popen(words, env=environment, stdout=pipe) for _ in range(2)]
    results = [json.loads(worker.communicate()[0]) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    assert results[0]["pairs"] == results[1]["pairs"] and results[0]["is_complete"]
    assert len(list(out.glob("runs/*/*/result.json"))) == len(list(out.glob("cells/*.json"))) == 4
