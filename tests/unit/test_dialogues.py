"""Dialogues: what is an example of them, and that each is in one split as a whole."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from regard.data.cache import prepare
from regard.data.cornell import read_cornell
from regard.data.dialogue import replies
from regard.data.encode import Rules
from regard.data.examples import Example, identity
from regard.data.lines import Tally
from regard.tokenizers import Words

WORDS = ("tea", "rain", "chess", "Rome", "jazz", "bread", "stars")
DIALOGUES = [
    ["Hello.", f"Do you like {word}?", f"Yes, {word} {number} is fine.", "Why?", f"{number} times."]
    for word in WORDS
    for number in range(17)
]


def reader(dialogues=DIALOGUES, history: int = 1):
    def read(tally):
        for turns in dialogues:
            yield from replies(turns, tally, history=history)

    return read


def prepared(folder: Path, dialogues=DIALOGUES, *, history: int = 1, **settings):
    limits = {"valid": 0.2, "test": 0.1, "max_source": 50, "max_target": 50}
    defaults = {"key": {"turns": history}, "fit": Words.fit, "rules": Rules(**limits)}
    read = reader(dialogues, history)
    return prepare(read, folder=folder, dialogues=True, **(defaults | settings))


def splits(corpus):
    return {name: getattr(corpus, name) for name in ("train", "valid", "test")}


# -- examples---------------------------------------------------------------------------------------


def test_the_history_of_an_answer():
    examples = list(replies(["a", "b", "c", "d"], Tally(), history=2))
    assert examples == [("a", "b"), ("a\nb", "c"), ("b\nc", "d")]
    assert [example.speakers for example in examples] == ["o", "so", "so"]
    assert len({example.dialogue for example in examples}) == 1


def test_a_turn_that_cannot_be_used_ends_the_history():
    tally = Tally()
    turns = ["a", "", "b", "c", None, "d", "e\nf", "g"]
    examples = list(replies(turns, tally, history=5, missing="lost"))
    assert examples == [("b", "c"), ("d", "e f"), ("d\ne f", "g")]
    assert tally.used == 3
    assert tally.skipped == {"empty side": 2, "lost": 2}


# -- splits-----------------------------------------------------------------------------------------


@pytest.mark.parametrize("history", [1, 3])
def test_a_dialogue_is_in_one_split(tmp_path, history):
    corpus = prepared(tmp_path, history=history)
    numbers = {name: set(split.dialogues.tolist()) for name, split in splits(corpus).items()}
    assert sum(map(len, numbers.values())) == len(set.union(*numbers.values())) == len(DIALOGUES)
    assert all(len(split) > 20 for split in splits(corpus).values())
    for split in splits(corpus).values():
        assert len(split.dialogues) == len(split)
        for number in set(split.dialogues.tolist()):
            texts = [split.texts(i) for i in np.flatnonzero(split.dialogues == number)]
            lines = {line for source, target in texts for line in (*source.split("\n"), target)}
            assert any(lines <= set(turns) for turns in DIALOGUES)


@pytest.mark.parametrize("history", [1, 3])
def test_no_prompt_that_is_held_out_is_in_training(tmp_path, history):
    """Also not one that is in many dialogues."""
    corpus = prepared(tmp_path, history=history)
    prompts = {
        name: {identity(split.source_name(i)) for i in range(len(split))}
        for name, split in splits(corpus).items()
    }
    assert b"hello" in prompts["valid"]
    assert not prompts["train"] & (prompts["valid"] | prompts["test"])
    assert corpus.tally.skipped["also held out"] > 10


def test_a_separate_split_is_of_whole_dialogues_too(tmp_path):
    held_out, rest = DIALOGUES[:20], DIALOGUES[20:]
    corpus = prepared(tmp_path, rest, read_test=reader(held_out))
    assert len(corpus.test) == 4 * len(held_out)
    assert set(corpus.test.dialogues.tolist()).isdisjoint(corpus.train.dialogues.tolist())
    assert not {corpus.train.source_name(i) for i in range(len(corpus.train))} & {"Hello."}


def test_the_split_of_a_dialogue_does_not_depend_on_its_history_or_place(tmp_path):
    one = prepared(tmp_path / "a", history=1).valid
    other = prepared(tmp_path / "b", DIALOGUES[::-1], history=3).valid

    def answers(split):
        return Counter(split.texts(i).target for i in range(len(split)))

    assert answers(one) == answers(other)


def test_other_examples_have_no_dialogues(tmp_path):
    examples = [Example(f"Question {i}", "Yes") for i in range(30)]
    rules = Rules(valid=0.2, test=0.1, max_source=9, max_target=9)
    corpus = prepare(lambda _: examples, key={}, fit=Words.fit, folder=tmp_path, rules=rules)
    assert corpus.train.dialogues is None
    mixed = prepare(
        lambda _: examples * 2, key={}, fit=Words.fit, folder=tmp_path, rules=rules, dialogues=True
    )
    assert len(set(mixed.valid.dialogues.tolist())) * 2 == len(mixed.valid)


def test_a_cached_corpus_has_the_same_dialogues(tmp_path):
    first = prepared(tmp_path)
    again = prepared(tmp_path, [])  # nothing is read
    assert np.array_equal(first.train.dialogues, again.train.dialogues)
    assert len(list(tmp_path.iterdir())) == 1
    (file,) = tmp_path.glob("*/train-dialogue.values")
    file.unlink()
    whole = prepared(tmp_path)
    assert np.array_equal(first.train.dialogues, whole.train.dialogues)


# -- tokenizer--------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain_source", [False, True])
def test_a_tokenizer_is_fitted_to_each_turn_once(tmp_path, plain_source):
    texts: Counter[str] = Counter()

    def fit(stream):
        texts.update(stream)
        return Words.fit(texts)

    turns = [f"Turn {i}, dear" for i in range(7)]
    rules = Rules(valid=0, test=0, max_source=50, max_target=50, plain_source=plain_source)
    prepared(tmp_path, [turns], history=3, fit=fit, rules=rules)
    assert set(texts.values()) == {1}
    sources = {f"turn {i} dear" for i in range(6)} if plain_source else {turns[0]}
    assert texts.keys() == sources | set(turns[1:])


# -- Cornell----------------------------------------------------------------------------------------


def convokit(folder: Path, rows) -> Path:
    file = folder / "utterances.jsonl"
    lines = [
        json.dumps({"id": line_id, "text": text, "reply-to": reply_to})
        for line_id, text, reply_to in rows
    ]
    file.write_text("\n".join(lines))
    return file


def raw(folder: Path, rows, conversations) -> Path:
    folder.mkdir()
    (folder / "movie_lines.txt").write_text(
        "".join(f"{i} +++$+++ u0 +++$+++ m0 +++$+++ A +++$+++ {text}\n" for i, text, _ in rows)
    )
    (folder / "movie_conversations.txt").write_text(
        "".join(f"u0 +++$+++ u1 +++$+++ m0 +++$+++ {ids}\n" for ids in conversations)
    )
    return folder


ROWS = [  # in any order
    ("L4", "Four.", "L3"),
    ("L3", "Three?", "L2"),
    ("L6", "Six.", "L5"),
    ("L2", "Two.", "L1"),
    ("L1", "One!", None),
    ("L5", "Five?", None),
]


@pytest.mark.parametrize("turns", [1, 2, 5])
def test_both_forms_of_cornell_have_the_same_dialogues(tmp_path, turns):
    conversations = [["L1", "L2", "L3", "L4"], ["L5", "L6"]]
    paths = (raw(tmp_path / "raw", ROWS, conversations), convokit(tmp_path, ROWS))
    first, second = (list(read_cornell(path, tally=Tally(), turns=turns)) for path in paths)
    assert sorted(first) == sorted(second)
    assert {example: example.dialogue for example in first} == {
        example: example.dialogue for example in second
    }
    assert ("\n".join(["One!", "Two.", "Three?"][-turns:]), "Four.") in first


def test_lines_that_reply_in_a_circle_come_to_an_end(tmp_path):
    rows = [("L1", "One.", "L2"), ("L2", "Two.", "L1"), ("L3", "Me.", "L3"), ("L4", "Four.", "no")]
    tally = Tally()
    examples = list(read_cornell(convokit(tmp_path, rows), tally=tally, turns=9, limit=1.0))
    assert sorted(examples) == [("One.", "Two."), ("Two.", "One.")]
    assert tally.skipped == {"dangling id": 1}
