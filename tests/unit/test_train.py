"""What the loop does beside learning: budgets, schedules, stopping early, what it writes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from regard import recipe
from regard.bundle import load
from regard.optimise import factor, used_up
from regard.plot import curves, figure
from regard.train import FITTED, VALID, kept_because, train
from regard.train.report import main_scores
from tests.tiny import Silent, memorised, pairs_file, text_file


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))

    def go(*changes: str, **options):
        chosen = recipe.load("chat-gru", memorised(pairs_file(tmp_path), *changes))
        reporter = Silent()
        return (
            train(chosen, tmp_path / "run", reporter=reporter, **options),
            reporter,
            tmp_path / "run",
        )

    return go


def test_facts_add_up(trained):
    _, reporter, run = trained("train.steps=2")
    assert reporter.facts.examples == {"train": 10, "valid": 0, "test": 0}
    assert sum(reporter.facts.parameters.values()) == load(run).model.parameter_count


def test_early_stopping(trained):
    """A rate of next to nothing never gets better after the first validation."""
    progress, _, _ = trained(
        "train.steps=1000",
        "train.learning_rate=1e-12",
        "train.patience=3",
        "train.valid_every=2",
        "data.valid=0.3",
    )
    assert progress.best_step <= 4 and progress.waited == 3
    assert progress.step == progress.best_step + 6


def test_a_budget_of_tokens_ends_it(trained):
    progress, _, _ = trained("train.steps=", "train.tokens=300")
    assert progress.tokens >= 300 > progress.tokens - progress.tokens / progress.step


def test_best_by_a_score_of_the_answers(trained):
    progress, _, run = trained("train.steps=40", "train.score=chrf", "train.valid_every=20")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    validations = [line["chrf"] for line in lines if line["kind"] == FITTED]
    assert progress.best_score == pytest.approx(max(validations)) and len(validations) == 2
    assert curves(run).read_bytes().startswith(b"\x89PNG")  # with a panel for each scale


def test_a_line_has_the_main_scores_and_the_one_that_chooses():
    record = {"kind": "valid", "step": 3, "perplexity": 2.0, "chrf": 9.0, "mrr": 0.4, "own": 1.0}
    assert main_scores(record) == {"perplexity": 2.0, "own": 1.0}
    assert main_scores(record | {"score": "chrf"}) == {"perplexity": 2.0, "chrf": 9.0, "own": 1.0}


def test_a_validation_after_each_epoch(trained):
    progress, _, run = trained(
        "train.steps=",
        "train.epochs=3",
        "train.batch_examples=4",
        "train.valid_every=0",
        "train.save_every=0",
    )
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == FITTED] == [
        3,
        6,
        9,
    ] and progress.step == 9
    assert {int(one.name.split("-")[1]) for one in (run / "checkpoints").iterdir()} <= {3, 6, 9}


def test_a_stopped_epoch_goes_on(trained, tmp_path):
    """Stopped after each step in turn, a run that validates and saves after epochs ends with the
    same bits."""

    class Stops(Silent):
        def __init__(self, at: int):
            self.at = at

        def stepped(self, progress, loss, speed, done) -> None:
            if progress.step == self.at:
                raise RuntimeError

    changes = [
        "train.steps=",
        "train.epochs=3",
        "train.batch_examples=4",
        "train.valid_every=0",
        "train.save_every=0",
    ]
    chosen = recipe.load("chat-gru", memorised(pairs_file(tmp_path), *changes))
    train(chosen, tmp_path / "whole", reporter=Silent())
    for at in (2, 3, 4, 8):
        run = tmp_path / f"stopped-{at}"
        with pytest.raises(RuntimeError):
            train(chosen, run, reporter=Stops(at))
        assert train(chosen, run, reporter=Silent(), resume=True).step == 9
        ours, whole = (load(one).model.state_dict() for one in (run, tmp_path / "whole"))
        assert all(torch.equal(ours[name], whole[name]) for name in whole)


@pytest.mark.parametrize(
    ("name", "score"), [("translate-attention", "bleu"), ("blank-rnn", "accuracy_at_5")]
)
def test_answers_are_judged_where_likelihood_chooses_too(
    name: str, score: str, tmp_path, monkeypatch
):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    kind, path = (
        ("text", text_file(tmp_path)) if name == "blank-rnn" else ("pairs", pairs_file(tmp_path))
    )
    changes = [
        f"data.kind={kind}",
        f'data.path="{path}"',
        "data.valid=0",
        "train.valid_every=2",
        "train.steps=4",
    ]
    train(
        recipe.load(name, [*changes, "train.epochs=", "encoder.width=8"]),
        tmp_path / "run",
        reporter=Silent(),
    )
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [line["step"] for line in lines if score in line and "perplexity" in line] == [2, 4]


def test_which_label_is_taken_for_which_at_every_validation(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    chosen = recipe.load(
        "image-pool",
        ["train.epochs=", "train.steps=4", "train.valid_every=2", "source.channels=[2,4]"],
    )
    train(chosen, tmp_path / "run", reporter=Silent())
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    valid = [line for line in lines if line["kind"] == "valid"]
    assert len(valid) == 2 and valid[0]["labels"] == list("0123456789")
    for line in valid:
        right, every = (
            sum(line["confusion"][i][i] for i in range(10)),
            sum(map(sum, line["confusion"])),
        )
        assert line["accuracy"] == pytest.approx(right / every) and every > 100
    assert curves(tmp_path / "run").read_bytes().startswith(b"\x89PNG")


def test_a_large_confusion_matrix_is_not_logged_at_every_validation(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    table = tmp_path / "many.tsv"
    table.write_text(
        "text\tlabel\n" + "".join(f"word {i}\tlabel {i % 80}\n" for i in range(320)), "utf-8"
    )
    changes = [
        "data.kind=labelled",
        f'data.path="{table}"',
        "data.valid=0.5",
        "train.epochs=",
        "train.steps=2",
    ]
    train(
        recipe.load("sentiment-cnn", [*changes, "encoder.width=8"]),
        tmp_path / "run",
        reporter=Silent(),
    )
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert "accuracy" in lines[-1] and "confusion" not in lines[-1] and "labels" not in lines[-1]


def test_a_short_run_has_a_curve_too(trained):
    _, _, run = trained("train.steps=7")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["kind"]) for line in lines] == [(7, "train"), (7, FITTED)]


def test_what_is_written(trained):
    _, _, run = trained("train.steps=40", "train.valid_every=20", tensorboard=True)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["kind"]) for line in lines] == [
        (20, "train"),
        (20, FITTED),
        (40, "train"),
        (40, FITTED),
    ]
    assert lines[2]["loss"] < lines[0]["loss"] and len(lines[1]["samples"]) == 3
    assert curves(run).read_bytes().startswith(b"\x89PNG")
    assert list((run / "tensorboard").iterdir())


@pytest.mark.parametrize("schedule", ["inverse-sqrt", "cosine", "linear", "constant"])
def test_schedules_warm_up_then_never_rise(schedule: Any):
    how = recipe.Train(steps=100, warmup_steps=10, schedule=schedule, final_learning_rate_share=0.1)
    rates = [factor(how, step, step / 100) for step in range(101)]
    assert rates[:10] == sorted(rates[:10]) and max(rates) <= 1.0
    assert all(a >= b for a, b in zip(rates[10:], rates[11:], strict=False))
    if schedule in ("cosine", "linear"):
        assert rates[100] == pytest.approx(0.1)


def test_the_nearest_limit_counts():
    how = recipe.Train(steps=100, epochs=2, tokens=1000, minutes=10)
    assert used_up(how, step=10, epochs=1.5, tokens=100, minutes=1) == 0.75
    assert used_up(how, step=500, epochs=0, tokens=0, minutes=0) == 1.0


def test_a_schedule_by_epochs_is_the_same_under_any_budget():
    """Seven epochs of five steps: the budget says when it ends, whatever it counts."""
    changes = {"schedule": "epochs", "warmup_steps": 2, "final_learning_rate_share": 0.1}
    by_epochs = recipe.Train(epochs=7, **changes)
    others = [recipe.Train(**{name: 35}, **changes) for name in ("steps", "tokens", "minutes")]
    for step in range(35):
        expected = factor(by_epochs, step, step / 35, step / 5)
        assert [factor(how, step, step / 35, step / 5) for how in others] == [expected] * 3


def test_a_warm_up_by_epochs_may_be_longer_than_the_run():
    how = recipe.Train(epochs=1, schedule="epochs", warmup_steps=2, final_learning_rate_share=0.25)
    assert [factor(how, step, step / 4, step / 4) for step in range(4)] == [0.25] * 4


# -- which weights are kept, and on what they were judged-------------------------------------------


def test_nothing_is_called_validation_where_nothing_is_held_out(trained):
    _, reporter, run = trained("train.steps=4", "train.valid_every=2")
    assert reporter.record["kind"] == FITTED and "valid" not in (run / "metrics.jsonl").read_text()
    assert (reporter.facts.judged_part, reporter.facts.judged) == ("training", 10)
    panels = figure(
        [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()], "run"
    ).axes
    assert legend(panels[0]) == ["training batches", "training examples", "kept, step 4"]


def test_what_is_held_out_is_validation(trained):
    _, reporter, run = trained("train.steps=4", "train.valid_every=2", "data.valid=0.3")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert {line["kind"] for line in lines} == {"train", VALID} and reporter.record["kind"] == VALID
    assert reporter.facts.judged == reporter.facts.examples["valid"] > 0


def legend(panel) -> list[str]:
    return [text.get_text() for text in panel.get_legend().get_texts()]


SEEN_TWICE = (
    "train.steps=4",
    "train.valid_every=2",
    "train.learning_rate=1e-12",
    "train.warmup_steps=0",
)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([], "kept the last weights, step 4, because no examples are held out (train.keep=auto)"),
        (
            ["data.valid=0.3"],
            r"kept the last weights, step 4, because \d examples are held out, fewer than 200 \(tr",
        ),
        (["train.keep=last"], "kept the last weights, step 4, because train.keep=last says so"),
        (
            ["train.keep=best"],
            r"kept the weights of step \d: lowest perplexity, \d[\d.]+, on 10 training examples",
        ),
        (
            ["train.keep=best", "data.valid=0.3"],
            r"step \d: lowest perplexity, \d[\d.]+, on \d validation examples",
        ),
        (
            ["train.keep=best", "train.score=chrf"],
            r"step \d: highest chrf, \d[\d.]*, on 10 training examples",
        ),
    ],
)
def test_a_run_says_why_it_kept_what_it_kept(trained, changes: list[str], said: str):
    progress, reporter, _ = trained(*SEEN_TWICE, *changes)
    because = kept_because(reporter.facts, progress)
    assert because == said or re.search(said, because)


def test_many_that_are_held_out_choose_the_best(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"say {i}\tit is {i}\n" for i in range(700)), "utf-8")
    changes = memorised(
        path,
        *SEEN_TWICE,
        "data.valid=0.5",
        "encoder.width=8",
        "train.learning_rate=30.0",
        "train.max_grad_norm=0.0",
    )
    reporter = Silent()
    progress = train(recipe.load("chat-gru", changes), tmp_path / "run", reporter=reporter)
    held_out = reporter.facts.examples["valid"]
    assert held_out >= 200
    because = kept_because(reporter.facts, progress)
    assert because.startswith(f"kept the weights of step {progress.best_step}: lowest perplexity, ")
    assert because.endswith(f", on {held_out} validation examples")
