"""Mixtures: several data sets of text in one corpus."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from regard import build, cli, recipe
from regard.data.corpus import Corpus, Split
from regard.data.examples import identity
from regard.errors import DataError, RecipeError
from regard.recipe import Mark, marks_of, values_with
from regard.runs import new, resumed
from regard.train import train
from regard.train.resume import changes as changes_of
from tests.tiny import Silent, memorised

NUMBERS = 211


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """A table of pairs, dialogues of four turns, and a folder with a validation file."""
    pairs = [f"Pair {i}?\tReply {i}." for i in range(NUMBERS)]
    (tmp_path / "pairs.tsv").write_text("\n".join([*pairs, "Shared?\tYes."]))
    dialogues = [["Hello.", f"Turn {i}a", f"Turn {i}b", f"Turn {i}c"] for i in range(NUMBERS)]
    (tmp_path / "talks.jsonl").write_text("\n".join(map(json.dumps, dialogues)))
    daily = tmp_path / "daily"
    daily.mkdir()
    for name, numbers in (("train", range(17)), ("validation", range(17, 22))):
        lines = [f"Daily {i} ? __eou__ Shared ? __eou__ Day {i} . __eou__" for i in numbers]
        (daily / f"dialogues_{name}.txt").write_text("\n".join(lines))
    return {"pairs": tmp_path / "pairs.tsv", "dialogues": tmp_path / "talks.jsonl", "daily": daily}


def mixture(*sources: dict, **data) -> recipe.Recipe:
    tree = recipe.load("chat-attention").to_json()
    limits = {"kind": "mixture", "valid": 0.1, "test": 0.1, "max_source": 30, "max_target": 30}
    tree["data"] = limits | data | {"sources": list(sources)}
    return recipe.Recipe.from_json(tree, "mixture")


def source(kind: str, path: Path, **fields) -> dict:
    return {"kind": kind, "path": str(path), **fields}


def all_three(files: dict[str, Path], *shares: float) -> list[dict]:
    sources = [
        source("pairs", files["pairs"]),
        source("dialogues", files["dialogues"]),
        source("dailydialog", files["daily"]),
    ]
    for each, share in zip(sources, shares, strict=False):
        each["share"] = share
    return sources


def origins(split: Split) -> Counter[str]:
    """The first words of the answers: Reply, Turn or Day (and others)."""
    return Counter(split.texts(i).target.split()[0] for i in range(len(split)))


def prompts(split: Split) -> set[bytes]:
    return {identity(split.source_name(i)) for i in range(len(split))}


def check_laws(corpus: Corpus) -> None:
    assert not prompts(corpus.train) & (prompts(corpus.valid) | prompts(corpus.test))
    tokens = Counter(token for row in corpus.train.target for token in set(row.tolist()))
    assert dict(enumerate(corpus.frequency.tolist())) == {
        token: tokens[token] for token in range(corpus.tokenizer.size)
    }
    numbers = []
    for split in (corpus.train, corpus.valid, corpus.test):
        assert split.dialogues is not None and len(split.dialogues) == len(split)
        numbers.append(set(split.dialogues.tolist()))
    assert not numbers[0] & numbers[1] and not numbers[1] & numbers[2]


# -- what is in it----------------------------------------------------------------------------------


@pytest.mark.parametrize("turns", [1, 3])
def test_without_shares_everything_is_used(files, turns):
    corpus = build.corpus(mixture(*all_three(files), turns=turns))
    check_laws(corpus)
    train, valid, test = map(origins, (corpus.train, corpus.valid, corpus.test))
    assert (train + valid + test)["Reply"] == NUMBERS
    assert valid["Day"] == 5 and train["Day"] + valid["Day"] > 20 - (17 if turns == 1 else 0)
    assert valid["Reply"] > 5 and valid["Turn"] > 5 and test["Reply"] > 5
    assert corpus.tokenizer.turns == (turns > 1)
    if turns > 1:
        assert all(corpus.train.source[i][0] in (4, 5) for i in range(len(corpus.train)))
    single = build.corpus(mixture(all_three(files)[0], turns=turns))
    assert origins(single.valid)["Reply"] == valid["Reply"]  # as it would be split alone


@pytest.mark.parametrize("turns", [1, 3])
def test_with_shares_as_many_as_possible_are_used(files, turns):
    whole = origins(build.corpus(mixture(*all_three(files)[:2], turns=turns)).train)
    corpus = build.corpus(mixture(*all_three(files, 3, 1)[:2], turns=turns))
    check_laws(corpus)
    counts = origins(corpus.train)
    assert counts["Reply"] + counts["Yes."] == whole["Reply"] + whole["Yes."]  # all of these
    assert counts["Turn"] == (counts["Reply"] + counts["Yes."]) // 3
    for split in ("valid", "test"):
        own = origins(getattr(corpus, split))
        assert own["Reply"] > 5 and own["Turn"] > 20  # whole
    assert corpus.tally.skipped["more than its share"] == whole["Turn"] - counts["Turn"]


def test_what_the_rules_leave_out_is_in_no_share(files):
    """The shares are of the examples that are trained on."""
    text = files["pairs"].read_text().splitlines()
    long = [f"{line} {'and so on ' * 40}" if i % 3 else line for i, line in enumerate(text)]
    files["pairs"].write_text("\n".join(long))
    corpus = build.corpus(mixture(*all_three(files, 0.5, 0.5)[:2]))
    counts = origins(corpus.train)
    assert 40 < counts["Turn"] == counts["Reply"] + counts["Yes."] < NUMBERS / 3


def test_the_selection_does_not_depend_on_the_order(files):
    shares = all_three(files, 0.6, 0.3, 0.1)
    first = build.corpus(mixture(*shares))
    lines = files["pairs"].read_text().splitlines()
    files["pairs"].write_text("\n".join(lines[::-1]))
    second = build.corpus(mixture(*shares[::-1]))
    texts = [
        {corpus.train.texts(i) for i in range(len(corpus.train))} for corpus in (first, second)
    ]
    assert first.fingerprint != second.fingerprint and texts[0] == texts[1]
    again = build.corpus(mixture(*all_three(files, 6, 3, 1)))
    assert {again.train.texts(i) for i in range(len(again.train))} == texts[0]


def test_a_prompt_that_one_source_holds_out_is_in_no_other_ones_training(files):
    corpus = build.corpus(mixture(*all_three(files), valid=0.0, test=0.0))
    assert b"shared" in prompts(corpus.valid)  # of the file of validation
    assert "Yes." not in origins(corpus.train)
    check_laws(corpus)


# -- fingerprints and runs--------------------------------------------------------------------------


def test_every_file_counts_and_none_by_its_place(files, tmp_path):
    chosen = mixture(*all_three(files))
    before = build.corpus(chosen).fingerprint
    moved = files["dialogues"].rename(tmp_path / "moved.jsonl")
    sources = all_three(files | {"dialogues": moved})
    assert build.corpus(mixture(*sources)).fingerprint == before
    validation = files["daily"] / "dialogues_validation.txt"
    validation.write_text(validation.read_text() + "\nNew ? __eou__ Yes . __eou__")
    assert build.corpus(mixture(*sources)).fingerprint != before


def test_marks_of_sources(files):
    chosen = mixture(*all_three(files, 1, 1, 1))
    keys = values_with(chosen, Mark.VOCABULARY)
    assert "data.sources.0.share" in keys and "data.sources.1.kind" in keys
    assert "data.sources.0.source_column" in keys and "data.sources.0.path" not in keys
    assert Mark.PATH in marks_of("data.sources.2.valid_path")
    assert Mark.FREE not in marks_of("data.sources.0.kind")


def test_a_run_is_trained_resumed_and_evaluated(files, tmp_path, capsys):
    table = recipe.load("chat-attention", memorised(files["pairs"])).to_json()
    table["data"] = mixture(*all_three(files, 2, 1, 1), turns=2, test=0.0).data.model_dump()
    table["tokenizer"]["min_count"] = 1
    table["train"] |= {"steps": 2, "save_every": 1}
    run = tmp_path / "run"
    train(recipe.Recipe.from_json(table), run, reporter=Silent())
    bot = build_bundle(run)
    assert bot.recipe.data.kind == "mixture" and bot.tokenizer.turns
    assert bot.evaluate(limit=3).examples > 20
    assert bot.evaluate(files["dialogues"], limit=3).examples == 3 * NUMBERS
    assert bot.evaluate(files["pairs"], limit=3).examples > NUMBERS

    moved = files["pairs"].rename(tmp_path / "elsewhere.tsv")
    with pytest.raises(DataError, match=r"pairs.tsv.*--set data.sources.0.path=PATH says where"):
        resumed(run)
    job = resumed(run, changes=[f"data.sources.0.path={moved}"])
    (line,) = changes_of(job.recipe, run, anyway=False)
    assert line.startswith("data.sources.0.path: ")
    assert cli.main(["train", "--resume", str(run), "--steps", "3", "--set", changes(moved)]) == 0
    capsys.readouterr()


def changes(moved: Path) -> str:
    return f"data.sources.0.path={moved}"


def build_bundle(run: Path):
    from regard.bundle import load

    return load(run)


# -- recipes----------------------------------------------------------------------------------------


def test_a_recipe_in_toml(files, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        f'extends = "chat-attention"\n[data]\nkind = "mixture"\nturns = 2\n'
        f'[[data.sources]]\nkind = "dailydialog"\npath = "{files["daily"]}"\nshare = 0.7\n'
        '[[data.sources]]\nkind = "chatterbot"\nshare = 0.3\n'
    )
    chosen = recipe.load(file)
    assert chosen.data.history == 2
    again = recipe.Recipe.from_json(json.loads(json.dumps(chosen.to_json())))
    assert again == chosen
    changed = recipe.load(file, ["data.sources.0.share=0.4", "data.sources.1.language=german"])
    first, second = changed.to_json()["data"]["sources"]
    assert first["share"] == 0.4 and second["language"] == "german"
    lines = recipe.differences(chosen, changed)
    assert lines[0] == "data.sources.0.share: 0.7 -> 0.4" and len(lines) == 2
    assert new(str(file)).recipe() == chosen
    with pytest.raises(DataError, match=r"gone: no such file or folder; --set data.sources.0.path"):
        new(str(file), changes=["data.sources.0.path=gone"])


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ([], "data: a mixture needs one or more"),
        ([{"path": "x"}], r"sources.0.kind: missing"),
        ([{"kind": "digits"}], r'sources.0.kind: no such kind of text; got "digits"'),
        ([{"kind": "mixture", "sources": []}], "sources.0.kind: no such kind of text"),
        ([{"kind": "dailydialogue", "path": "x"}], 'did you mean "dailydialog"'),
        ([{"kind": "pairs"}], "sources.0.path: missing; must be text"),
        ([{"kind": "pairs", "paht": "x"}], "sources.0.paht: no such field.*did you mean .path"),
        ([{"kind": "pairs", "path": "x", "shre": 1}], "sources.0.shre: .*did you mean .share"),
        ([{"kind": "cornell", "path": "x", "turn": 3}], "known: kind, path, share, test_path"),
        ([{"kind": "pairs", "path": "x", "pth": 1}], "sources.0.pth: no such field; got 1"),
        ([{"kind": "pairs", "path": 7}], "sources.0.path: must be text; got 7"),
        ([{"kind": "pairs", "path": "x", "max_source": 9}], "is given once for all sources"),
        ([{"kind": "cornell", "path": "x", "turns": 9}], "sources.0.turns: is given once"),
        ([{"kind": "pairs", "path": "x", "share": 0}], "sources.0.share: must be a number > 0"),
        ([{"kind": "pairs", "path": "x", "share": "half"}], "sources.0.share: must be a number"),
        (
            [{"kind": "pairs", "path": "x", "share": 1}, {"kind": "chatterbot"}],
            "sources.1.share: missing; give a share for all",
        ),
        ([{"kind": "parallel", "path": "x", "target_path": "y"}], 'not for task "chat"'),
        (["pairs"], "data.sources: must be a list, each a table"),
        ("pairs", "data.sources: must be a list, each a table"),
    ],
)
def test_one_mistake_is_one_line(sources, message):
    tree = recipe.load("chat-attention").to_json()
    tree["data"] = {"kind": "mixture", "sources": sources}
    with pytest.raises(RecipeError, match=message) as caught:
        recipe.Recipe.from_json(tree, "mine.toml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "override", ["data.sources.7.share=1", "data.sources.x.share=1", "data.sources.0=1"]
)
def test_an_override_names_a_source(files, override):
    with pytest.raises(RecipeError, match="no such item; there are 3, from data.sources.0"):
        mixture(*all_three(files)).override([override])
