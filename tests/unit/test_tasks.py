"""What each task says, through the one loop, search and bundle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard import build, cli, recipe, tokenizers
from regard.bundle import load
from regard.data.cache import prepare
from regard.data.corpus import Form
from regard.data.examples import Example, Item, part_of
from regard.data.kinds.pictures import DataMedmnist
from regard.data.rules import Rules
from regard.errors import BundleError, DataError, InputError, RecipeError
from regard.evaluate import evaluate
from regard.search import Options
from regard.tasks.classify import Classify
from regard.tasks.sources import PictureSource
from regard.tokenizers import Labels, Words
from regard.train import train
from tests.tiny import (
    LABELS,
    PAIRS,
    Silent,
    labelled_file,
    memorised,
    memorised_pictures,
    pictures_folder,
)

SHARED = Path(__file__).parents[2] / "../shared/data"


# -- labels-----------------------------------------------------------------------------------------


def test_labels_are_one_json_file_and_keep_the_codec_of_their_text(tmp_path):
    tokenizer = Labels.fit(["b", "a", "b"], text=Words.fit(["some text"]))
    tokenizers.write(tokenizer, tmp_path / "tokenizer.json")
    again = tokenizers.read(tmp_path / "tokenizer.json")
    assert isinstance(again, Labels) and again.to_json() == tokenizer.to_json()
    assert again.labels == ("a", "b") and again.source_tokenizer.encode(
        "text some"
    ) == tokenizer.source_tokenizer.encode("text some")
    assert (again.size, again.source_size) == (6, 6)


def test_numbers_are_in_order():
    assert Labels.fit(["10", "9", "0", "other", "2"]).labels == ("0", "2", "9", "10", "other")


def test_labels_refuse_nonsense():
    with pytest.raises(InputError, match="not given to text"):
        Labels(["a"]).source_tokenizer  # noqa: B018
    with pytest.raises(DataError, match="too many labels"):
        Labels.fit(map(str, range(20)), most=10)
    with pytest.raises(DataError, match='one label leaves nothing to tell apart; got only "a"'):
        Labels.fit(["a", "a"])
    for text in ({"kind": "labels", "labels": ["a"], "text": None}, {"kind": "nothing"}):
        with pytest.raises(BundleError):
            tokenizers.load({"kind": "labels", "labels": ["a"], "text": text})


# -- the cache--------------------------------------------------------------------------------------


def items(values: list[np.ndarray]) -> list[Example]:
    return [Example(Item(f"item {i}", v, v.tobytes()), str(i % 3)) for i, v in enumerate(values)]


def prepared(folder: Path, examples: list[Example], form: Form, **more):
    def read(tally):
        for example in examples:
            tally.used += 1
            yield example

    shares = {name: more.pop(name, share) for name, share in (("valid", 0.2), ("test", 0.1))}
    rules = Rules(**shares, max_source=1, max_target=1)
    settings: dict[str, Any] = dict(key={}, fit=None, form=form, labels=True, rules=rules)
    return prepare(read, folder=folder, **(settings | more))


@pytest.mark.parametrize(
    ("form", "shape"),
    [(Form(np.uint8, (5, 7, 3)), lambda i: (5, 7, 3)), (Form(np.int16), lambda i: (3 + i,))],
)
def test_arrays_come_back_in_their_parts(tmp_path, form, shape):
    draw = np.random.default_rng(2)
    values = [draw.integers(0, 100, shape(i)).astype(form.dtype) for i in range(60)]
    examples = items(values)
    corpus = prepared(tmp_path, [*examples, *examples[:5]], form)
    seen = 0
    for name in ("train", "valid", "test"):
        part = getattr(corpus, name)
        assert len(part) > 2 and not part.form.is_text
        for i in range(len(part)):
            number = int(part.source_name(i).split()[1])
            assert part.source[i].dtype == form.dtype and np.array_equal(
                part.source[i], values[number]
            )
            assert (
                corpus.tokenizer.decode(part.target[i]) == part.texts(i).target == str(number % 3)
            )
            assert part_of(examples[number].source, valid=0.2, test=0.1) == name
            seen += 1
    assert seen >= 60 and corpus.tally.duplicates > 0
    assert corpus.tokenizer.to_json() == {"kind": "labels", "labels": ["0", "1", "2"], "text": None}


def test_a_picture_of_another_shape_is_a_fault_of_the_reader(tmp_path):
    with pytest.raises(DataError, match="item 0: sources must be"):
        prepared(
            tmp_path,
            items([np.full((3, 3, 1), i, np.uint8) for i in range(2)]),
            Form(np.uint8, (5, 5, 1)),
            valid=0,
            test=0,
        )


def test_a_held_out_label_that_training_never_saw_is_left_out(tmp_path):
    draw = np.random.default_rng(2)
    values = [draw.integers(0, 100, (2, 2, 1)).astype(np.uint8) for _ in range(9)]
    held = [Example(Item("odd", values[8], values[8].tobytes()), "unheard of")]

    def read_valid(tally):
        yield from held

    corpus = prepared(
        tmp_path,
        items(values[:8]),
        Form(np.uint8, (2, 2, 1)),
        valid=0,
        test=0,
        read_valid=read_valid,
    )
    assert len(corpus.valid) == 0 and corpus.tally.skipped == {"label not in training": 1}


# -- scores-----------------------------------------------------------------------------------------


def test_any_of_several_right_labels_will_do():
    task = Classify(tokenizer=Labels(["a", "b"]), source=PictureSource(size=(2, 2), channels_in=1))
    assert task.scores(["a", "b"], [["b", "a"], ["a"]]).numbers["accuracy"] == 0.5


# -- references-------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["octmnist-pool", "octmnist-stride"])
def test_the_reference_nets_have_their_parameters(name):
    chosen = recipe.load(f"reference/{name}")
    model = build.model(chosen, vocabulary=tokenizers.NUM_SPECIAL_TOKENS + 4, source_vocabulary=0)
    assert model.parameter_count == 224_892
    sizes = [p.numel() for p in model.parameters()]
    assert [sum(sizes[i : i + 2]) for i in range(0, 10, 2)] == [80, 1168, 184_640, 38_520, 484]
    assert (
        chosen.train.optimiser,
        chosen.train.epochs,
        chosen.train.batch_examples,
        chosen.seed,
    ) == ("sgd", 15, 8, 42)
    assert isinstance(chosen.data, DataMedmnist)
    assert chosen.data.test_first == (182, 55, 42, 250)


@pytest.mark.parametrize("name", ["octmnist-pool", "octmnist-stride"])
@torch.no_grad()
def test_the_reference_nets_are_the_formula(name):
    """Against the same weights in a plain stack of torch's own layers."""
    chosen = recipe.load(f"reference/{name}")
    model = build.model(
        chosen, vocabulary=tokenizers.NUM_SPECIAL_TOKENS + 4, source_vocabulary=0
    ).eval()
    step, pool = (1, [torch.nn.MaxPool2d(2)]) if name.endswith("pool") else (2, [])
    plain = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, step, 1),
        torch.nn.ReLU(),
        *pool,
        torch.nn.Conv2d(8, 16, 3, step, 0),
        torch.nn.ReLU(),
        *pool,
        torch.nn.Flatten(),
        torch.nn.Linear(576, 320),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.7),
        torch.nn.Linear(320, 120),
        torch.nn.ReLU(),
        torch.nn.Linear(120, 4),
    ).eval()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        theirs.copy_(ours)
    raw = torch.randint(0, 256, (5, 28, 28, 1), dtype=torch.uint8)
    scores = model(raw, torch.ones(5, 1, dtype=torch.bool), torch.ones(5, 1, dtype=torch.long))[
        :, 0, tokenizers.NUM_SPECIAL_TOKENS :
    ]
    torch.testing.assert_close(scores, plain(raw.permute(0, 3, 1, 2) / 256))


# -- through the doors------------------------------------------------------------------------------


@pytest.fixture
def pictured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    home = pictures_folder(tmp_path)
    train(
        recipe.load("image-pool", memorised_pictures(home, "train.steps=60")),
        tmp_path / "run",
        reporter=Silent(),
    )
    return tmp_path / "run", home


def test_a_picture_is_asked_and_judged(pictured, capsys):
    run, home = pictured
    assert cli.main(["ask", str(run), str(home / "joke" / "0.png")]) == 0
    assert capsys.readouterr().out == f"{home}/joke/0.png  ->  joke\n"
    assert cli.main(["ask", str(run), str(home / "taste" / "3.png"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["answer"] == "taste" and 0.5 < told["probability"] <= 1
    assert cli.main(["evaluate", str(run), "--split", "train"]) == 0
    table = capsys.readouterr().out
    assert (
        "accuracy" in table
        and "f1" in table
        and "right, answered" in table
        and "word_perplexity" not in table
    )
    assert cli.main(["evaluate", str(run), "--data", str(home), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["accuracy"] == 1 and scores["confusion"] == [[6, 0, 0], [0, 2, 0], [0, 0, 2]]
    assert scores["labels"] == ["fact", "joke", "taste"]


def test_a_bad_picture_is_one_line(pictured, tmp_path, capsys):
    run, home = pictured
    (tmp_path / "bad.png").write_bytes(b"no picture")
    for given in (tmp_path / "bad.png", tmp_path / "nothing.png", home):
        assert cli.main(["ask", str(run), str(given)]) == 2
        error = capsys.readouterr().err
        assert error.startswith("regard: ") and error.count("\n") == 1 and str(given) in error


def test_pictures_are_answered_as_arrays_too(pictured):
    bundle = load(pictured[0])
    found = bundle.candidates(
        [np.zeros((28, 28, 1), np.uint8)], Options(num_beams=3, candidates=3)
    )[0]
    assert sorted(answer.text for answer in found) == ["fact", "joke", "taste"]
    with pytest.raises(InputError, match="the array of a picture has shape"):
        bundle.ask([np.zeros((28, 27, 5), np.uint8)])


def test_texts_are_classified_and_judged(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    chosen = recipe.load(
        "sentiment-gru",
        memorised(labelled_file(tmp_path), "train.steps=60", "tokenizer.min_count=1"),
    )
    reporter = Silent()
    train(chosen, tmp_path / "run", reporter=reporter)
    assert {"accuracy", "precision", "recall", "f1", "perplexity"} <= reporter.record.keys()
    bundle = load(tmp_path / "run")
    assert [answer.text for answer in bundle.ask([prompt for prompt, _ in PAIRS])] == LABELS
    assert "".join(map(str, bundle.stream(PAIRS[0][0]))) == LABELS[0]
    result = evaluate(bundle, build.corpus(bundle.recipe, bundle.tokenizer).train)
    assert result.scores["accuracy"] == 1 and result.samples[0].answer == LABELS[0]
    with pytest.raises(InputError, match="reads text"):
        bundle.ask([np.zeros(3)])


# -- translate--------------------------------------------------------------------------------------


def test_made_pairs_are_held_out_unseen(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    corpus = build.corpus(recipe.load("translate-attention", ["data.count=600"]))
    parts = [
        {part.source_name(i) for i in range(len(part))}
        for part in (corpus.train, corpus.valid, corpus.test)
    ]
    assert sum(len(part) for part in parts) == len(set.union(*parts)) == 600 and len(
        parts[1]
    ) > 10 < len(parts[2])


@pytest.mark.parametrize("attention_order", ["after_cell", "before_cell"])
def test_two_files_are_trained_on_asked_and_judged(tmp_path, monkeypatch, capsys, attention_order):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    for side, name in enumerate(("a.en", "a.de")):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in PAIRS))
    changes = [
        change
        for change in memorised(tmp_path / "a.en", "train.steps=120")
        if not change.startswith("data.kind")
    ]
    files = [
        "data.kind=parallel",
        f'data.target_path="{tmp_path / "a.de"}"',
        f"decoder.attention_order={attention_order}",
    ]
    files += [
        f'data.valid_path="{tmp_path / "a.en"}"',
        f'data.valid_target_path="{tmp_path / "a.de"}"',
    ]
    with pytest.raises(DataError, match="every prompt stands in valid_path"):
        build.corpus(recipe.load("translate-attention", [*changes, *files]))
    train(
        recipe.load("translate-attention", [*changes, *files[:3]]),
        tmp_path / "run",
        reporter=Silent(),
    )
    assert cli.main(["ask", str(tmp_path / "run"), "Hello!"]) == 0
    assert capsys.readouterr().out == "Hello!  ->  Hi there.\n"
    assert cli.main(["evaluate", str(tmp_path / "run"), "--split", "train", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert (
        scores["exact"] == 1
        and scores["bleu"] == pytest.approx(100)
        and scores["chrf"] == pytest.approx(100)
    )

    (tmp_path / "a.de").write_text("one line\n")
    sets = [word for change in [*changes, *files[:3]] for word in ("--set", change)]
    assert cli.main(["train", "translate-attention", "--out", str(tmp_path / "other"), *sets]) == 2
    error = capsys.readouterr().err
    assert (
        "the files do not go line by line; got 10 and 1 lines" in error and error.count("\n") == 1
    )
    assert not (tmp_path / "other").exists()


# -- recipes----------------------------------------------------------------------------------------


def test_own_data_of_each_kind_is_recognised(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    home, table = pictures_folder(tmp_path), labelled_file(tmp_path)
    for name, path, asked in (
        ("image-stride", home, "ask it with"),
        ("sentiment-cnn", table, "ask it with"),
    ):
        out = tmp_path / name
        held = ["--set", "data.valid=0", "--set", "train.threads=1"]
        assert (
            cli.main(["train", name, "--data", str(path), "--steps", "2", "--out", str(out), *held])
            == 0
        )
        told = capsys.readouterr().out
        assert asked in told and "10 train" in told and "accuracy" in told
    assert (
        cli.main(["train", "image-pool", "--data", str(table), "--out", str(tmp_path / "x")]) == 2
    )
    assert (
        "this is labelled text, which image-pool does not learn from; try: "
        in capsys.readouterr().err
    )


def test_kinds_that_do_not_go_together_are_named():
    for name, change, said in (
        (
            "image-pool",
            "source.kind=tokens",
            'source.kind: data of kind "digits" needs "convolutions" or "residual" or ',
        ),
        (
            "caption-attention",
            "source.kind=tokens",
            'source.kind: data of kind "drawn" needs "convolutions" or "resid',
        ),
        (
            "caption-attention",
            "tokenizer.kind=labels",
            'tokenizer.kind: data of kind "drawn" needs "words", "characters" or',
        ),
        (
            "caption-attention",
            "decoder.kind=classifier",
            (
                'decoder.kind: task "caption" needs "recurrent", "recurrent-cross-attention" or '
                '"transformer"'
            ),
        ),
        (
            "caption-attention",
            "data.kind=digits",
            'data.kind: not for task "caption"; got "digits"; known: drawn, flickr8k',
        ),
        (
            "image-pool",
            "tokenizer.kind=words",
            'tokenizer.kind: data of kind "digits" needs "labels"; got "words"',
        ),
        (
            "sentiment-lstm",
            "decoder.kind=transformer",
            'decoder.kind: task "classify" needs "classifier"',
        ),
        ("sentiment-lstm", "encoder.kind=identity", 'encoder.kind: "identity" is for pictures'),
        ("image-patches", "source.patch=5", "source: patch must divide both sides of size"),
        (
            "image-pool",
            "source.padding=[1]",
            "source: padding needs a number for each of channels; got 1 for 2",
        ),
        (
            "translate-attention",
            "train.score=accuracy",
            'train.score: no score of task "translate"',
        ),
        ("translate-attention", "decoder.attention=none", ""),
    ):
        changes = [change, *(["decoder.attention_order=before_cell"] if not said else [])]
        with pytest.raises(RecipeError) as caught:
            recipe.load(name, changes)
        assert (said or 'attention_order = "before_cell" needs an attention') in str(caught.value)


def test_a_label_is_no_word_of_the_source():
    assert recipe.load("blank-rnn", ["decoder.tied=true"]).decoder.tied
    with pytest.raises(
        RecipeError, match=r"decoder\.tied: a label is no word of the source; got true"
    ):
        recipe.load("sentiment-lstm", ["decoder.tied=true"])


@pytest.mark.parametrize("name", ["image-pool", "caption-attention"])
@pytest.mark.parametrize("fit", ["crop", "stretch"])
def test_what_the_program_brings_is_fitted_too(name: str, fit: str, tmp_path, monkeypatch):
    """A wide picture of what is square: stretched, or cut off above and below."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    few = ["data.count=100"] if name.startswith("caption") else []
    sides = []
    for size in ("[24, 24]", "[24, 48]"):
        chosen = recipe.load(name, [f"source.fit={fit}", f"source.size={size}", *few])
        sides.append(build.corpus(chosen).train.source[0])
    assert sides[1].shape[:2] == (24, 48)
    narrow = sides[1].reshape(24, 24, 2, -1).mean(2)
    assert (abs(narrow - sides[0]).mean() < 6) == (fit == "stretch")


def test_rotary_positions_of_a_picture_have_two_axes():
    with pytest.raises(RecipeError, match="a multiple of 4; got 6"):
        recipe.load("image-patches", ["encoder.positions=rotary", "encoder.head_width=6"])


@pytest.mark.skipif(not SHARED.exists(), reason="../shared/data is not here")
def test_a_medmnist_file_keeps_its_own_parts(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    path = SHARED / "medmnist" / "pneumoniamnist.npz"
    changes = [f'data.path="{path}"', "data.test_first=[100, 50]"]
    corpus = build.corpus(recipe.load("reference/octmnist-pool", changes))
    assert (len(corpus.valid), len(corpus.test)) == (524, 150)
    left_out = corpus.tally.skipped["also held out"] + corpus.tally.duplicates
    assert len(corpus.train) + left_out == 4708
