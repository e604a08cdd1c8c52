"""What `regard evaluate` shows beside its numbers, and what it says where there is nothing to
score."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from regard import build, cli, metrics, recipe, tokenizers
from regard.cli.evaluate import Split, _nothing
from regard.errors import DataError
from tests.tiny import PAIRS, memorised, pairs_file

NEITHER = {"mean_length"}  # good when it is that of the references
CODECS = {
    "words": tokenizers.Words(["a", "b"]),
    "labels": tokenizers.Labels(["a", "b"], text=tokenizers.Words(["a", "b"])),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluated")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        changes = memorised(
            pairs_file(folder), "train.steps=3", "encoder.width=8", "tokenizer.kind=words"
        )
        sets = [word for change in changes for word in ("--set", change)]
        assert cli.main(["train", "chat-gru", "--out", str(folder / "run"), *sets]) == 0
    return folder / "run"


@pytest.fixture(autouse=True)
def _cache(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(run.parent / "cache"))


def test_references_stand_beside_the_answers(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    several = tmp_path / "several.tsv"
    several.write_text("Hello!\tHi there.\nHello!\tGood day.\nGoodbye\tSee you soon!\n", "utf-8")
    assert cli.main(["evaluate", str(run), "--data", str(several)]) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = [line.split(None, 1) for line in lines[lines.index("answers") + 1 :]]
    assert [line[0] for line in shown] == [
        "Hello!",
        "answer",
        *["reference"] * 2,
        "Goodbye",
        "answer",
        "reference",
    ]
    assert [line[1] for line in shown if line[0] == "reference"] == [
        "Hi there.",
        "Good day.",
        "See you soon!",
    ]


def test_every_score_says_which_way_is_better(run: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["evaluate", str(run), "--split", "train"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    for name in ("perplexity", "word_perplexity", "bland_share", "repetition"):
        assert "lower is better" in rows[name]
    for name in ("chrf", "distinct_1", "unique_share"):
        assert "higher is better" in rows[name]
    assert "better" not in rows["mean_length"] and "better" not in rows["examples"]
    assert cli.main(["evaluate", str(run), "--split", "train", "--json"]) == 0
    better = json.loads(capsys.readouterr().out)["better"]
    assert (better["perplexity"], better["chrf"]) == (
        "lower",
        "higher",
    ) and "mean_length" not in better


def test_scores_have_intervals_and_people_stand_beside_the_model(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """40 pairs: enough to rank the true reply of each among 20."""
    many = tmp_path / "many.tsv"
    lines = [f"{prompt} {i}\t{reply} {i}\n" for prompt, reply in PAIRS for i in range(4)]
    many.write_text("".join(lines), "utf-8")
    assert cli.main(["evaluate", str(run), "--data", str(many), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    without = {"distinct_1", "distinct_2", "unique_share"}
    ranks = {"hits_at_1", "mrr"}
    assert ranks <= result["intervals"].keys() and not without & result["intervals"].keys()
    for name, (low, high) in result["intervals"].items():
        assert low <= result[name] <= high
    assert result["references"].keys() >= without | {"bland_share", "prompt_copy_share"}
    assert "training_copy_share" not in result  # of other data nobody knows what was trained on
    assert "pmi_mrr" not in result  # without source.prompt_dropout

    assert cli.main(["evaluate", str(run), "--data", str(many), "--ranked", "0"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    low, high = result["intervals"]["perplexity"]
    assert f"{low:.4g} to {high:.4g}" in rows["perplexity"] and not ranks & rows.keys()


def test_replies_are_compared_with_those_of_training(run: Path):
    from regard.bundle import load
    from regard.evaluate import evaluate

    bundle = load(run)
    corpus = build.corpus(bundle.recipe, bundle.tokenizer)
    result = evaluate(bundle, corpus.train, training=corpus.train)
    assert result.references["training_copy_share"] == 1
    assert "training_copy_share" in result.scores and "training_copy_share" in result.intervals
    assert "training_copy_share" not in bundle.evaluate(split="train").scores


@pytest.mark.parametrize(
    ("name", "tokenizer"),
    [
        ("chat-gru", "words"),
        ("translate-gru", "words"),
        ("blank-rnn", "words"),
        ("caption-attention", "words"),
        ("speech-attention", "words"),
        ("sentiment-gru", "labels"),
    ],
)
def test_no_task_has_a_score_without_a_direction(name: str, tokenizer: str):
    task = build.task(recipe.load(name), CODECS[tokenizer])
    scores = task.judge([["a", "b", "a", "b", "a"], ["b", "b", "a", "b", "a"]], [["a"], ["b"]])
    assert {score for score in scores.numbers if metrics.better(score) is None} <= NEITHER
    assert metrics.better(task.best) is not None
    assert not metrics.LOWER_IS_BETTER & metrics.HIGHER_IS_BETTER


@pytest.mark.parametrize(("split", "part"), [("valid", "validation"), ("test", "test")])
def test_a_missing_part_names_its_own_field(
    run: Path, split: str, part: str, capsys: pytest.CaptureFixture[str]
):
    assert cli.main(["evaluate", str(run), "--split", split]) == 2
    error = capsys.readouterr().err
    other = {"valid": "data.test", "test": "data.valid"}[split]
    assert (
        f"this run has no {part} examples; got data.{split} = 0.0" in error and other not in error
    )
    assert f"regard train RECIPE --data {run.parent / 'pairs.tsv'} --set data.{split}=0.1" in error
    assert f"regard evaluate {run} --data PATH" in error and error.count("\n") == 1


def test_data_with_parts_of_its_own_is_not_told_to_hold_some_out():
    chosen = recipe.load("reference/octmnist-pool")
    message = str(_nothing(Path("run"), chosen, Split.test))
    assert "no test examples" in message and "data.test" not in message and "--data PATH" in message


def test_other_data_without_an_example_says_what_was_read(run: Path, tmp_path: Path, capsys):
    (tmp_path / "bad.tsv").write_text("no tab\nnone here\n", "utf-8")
    assert cli.main(["evaluate", str(run), "--data", str(tmp_path / "bad.tsv")]) == 2
    error = capsys.readouterr().err
    assert "bad.tsv" in error and "only one column" in error and error.count("\n") == 1


def test_an_empty_part_is_refused_in_python_too(run: Path):
    from regard.bundle import load
    from regard.evaluate import evaluate

    bundle = load(run)
    corpus = build.corpus(bundle.recipe, bundle.tokenizer)
    assert evaluate(bundle, corpus.train).examples == len(PAIRS)
    with pytest.raises(DataError, match="no examples to evaluate on"):
        evaluate(bundle, corpus.test)
