"""Dialogues: what is an example of them, and that each is in one split as a whole."""

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.cache import prepare
from regard.data.cornell import read_cornell
from regard.data.dailydialog import dailydialog_files, read_dailydialog
from regard.data.detokenise import detokenise
from regard.data.dialogues import read_dialogues
from regard.data.examples import Example, identity, turns_of
from regard.data.inspect import inspect
from regard.data.lines import Tally
from regard.data.messages import exchanges, role_replies
from regard.data.reading import usable
from regard.data.replies import replies
from regard.data.rules import Rules
from regard.errors import DataError, InputError
from regard.tasks.conversation import read_turns
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


def numbers_of(split) -> np.ndarray:
    assert split.dialogues is not None
    return split.dialogues


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
    numbers = {name: set(numbers_of(split).tolist()) for name, split in splits(corpus).items()}
    assert sum(map(len, numbers.values())) == len(set.union(*numbers.values())) == len(DIALOGUES)
    assert all(len(split) > 20 for split in splits(corpus).values())
    for split in splits(corpus).values():
        assert len(numbers_of(split)) == len(split)
        for number in set(numbers_of(split).tolist()):
            texts = [split.texts(i) for i in np.flatnonzero(numbers_of(split) == number)]
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
    assert set(numbers_of(corpus.test).tolist()).isdisjoint(numbers_of(corpus.train).tolist())
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
    corpus = prepare(lambda _: iter(examples), key={}, fit=Words.fit, folder=tmp_path, rules=rules)
    assert corpus.train.dialogues is None
    mixed = prepare(
        lambda _: iter(examples * 2),
        key={},
        fit=Words.fit,
        folder=tmp_path,
        rules=rules,
        dialogues=True,
    )
    assert len(set(numbers_of(mixed.valid).tolist())) * 2 == len(mixed.valid)


def test_a_cached_corpus_has_the_same_dialogues(tmp_path):
    first = prepared(tmp_path)
    again = prepared(tmp_path, [])  # nothing is read
    assert np.array_equal(numbers_of(first.train), numbers_of(again.train))
    assert len(list(tmp_path.iterdir())) == 1
    (file,) = tmp_path.glob("*/train-dialogue.values")
    file.unlink()
    whole = prepared(tmp_path)
    assert np.array_equal(numbers_of(first.train), numbers_of(whole.train))


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


# -- DailyDialog------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokenised", "natural"),
    [
        ("I don ' t know .", "I don't know."),
        ("I ’ m sure they ’ ll say no , aren ’ t you ?", "I'm sure they'll say no, aren't you?"),
        ("That ' s too far.Can you come ?", "That's too far. Can you come?"),
        ("So there you are ! I ' Ve been looking .", "So there you are! I've been looking."),
        ("It won \\ ' t hurt .", "It won't hurt."),
        ("Good evening.can I help you ? OK.thanks .", "Good evening. can I help you? OK. thanks."),
        ("Go to yahoo.com , or www.stars.net .", "Go to yahoo.com, or www.stars.net."),
        ("It ' s $ 5 , or £ 16 . 50 , at 60 % off .", "It's $5, or £16.50, at 60% off."),
        ("5 , 000 or 1,000 , 000 yuan", "5,000 or 1,000,000 yuan"),
        ("3 , 4 , 5 and 1940 , 1944 .", "3, 4, 5 and 1940, 1944."),
        ("Is 10 : 30 p . m . fine ?", "Is 10:30 p.m. fine?"),
        ("I stayed in L . A . and the U . S .", "I stayed in L.A. and the U.S."),
        ("This is plan B . I like it .", "This is plan B. I like it."),
        ("A Ph . D . with a G . P . A ?", "A Ph.D. with a G.P.A?"),
        ("Mr . Smith , meet Mr.Brown .", "Mr. Smith, meet Mr. Brown."),
        ("Hmm . . . well ... I think so ...", "Hmm... well... I think so..."),
        ("H - U - A - N - G , a 30 - day L / C .", "H-U-A-N-G, a 30-day L/C."),
        ("Sit down - don't move - please .", "Sit down - don't move - please."),
        ("Take 1 - - 2 drops - - - now .", "Take 1-2 drops -- now."),
        ('Say " cheese " ! I said , " Do you ? "', 'Say "cheese"! I said, "Do you?"'),
        ("What ’ s “ pi ” , the “ E ” ?", 'What\'s "pi", the "E"?'),
        ("It means ' wire transfer ' .", "It means 'wire transfer'."),
        ("the ladies ' room , the Class of ' 93", "the ladies' room, the Class of '93"),
        ("After five days ' work I said ' no ' .", "After five days' work I said 'no'."),
        ("( Smile ) I know ( it ) 。", "(Smile) I know (it)."),
        ("9 o ' clock , ma ' am ; thanks .", "9 o'clock, ma'am; thanks."),
        ("", ""),
    ],
)
def test_natural_text(tokenised, natural):
    assert detokenise(tokenised) == natural


@given(st.text("aI. ,'\"$5-?/:()", max_size=40))
def test_detokenising_loses_no_letter(text):
    assert re.sub(r"\W", "", detokenise(text)) == re.sub(r"\W", "", text)


def daily(folder: Path, **files: list[str]) -> Path:
    for name, lines in files.items():
        file = folder / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.with_suffix(".txt").write_text("\n".join(lines), "utf-8")
    return folder


def read_daily(path: Path, **settings):
    tally = Tally()
    return list(read_dailydialog(path, tally=tally, **settings)), tally


def test_dailydialog_lines(tmp_path):
    lines = [
        "Hi . __eou__ Hello ! __eou__ How are you ? __eou__",
        "",
        "Alone . __eou__",
        "No mark at the end ? __eou__ No .",
        "Gap . __eou__ __eou__ Yes . __eou__ OK . __eou__",
    ]
    path = daily(tmp_path, dialogues_train=lines) / "dialogues_train.txt"
    examples, tally = read_daily(path, turns=2)
    assert examples == [
        ("Hi.", "Hello!"),
        ("Hi.\nHello!", "How are you?"),
        ("No mark at the end?", "No."),
        ("Yes.", "OK."),
    ]
    assert tally.skipped == {"fewer than two turns": 1, "empty side": 2}


LINE = ["A . __eou__ B . __eou__"]


def test_dailydialog_folders(tmp_path):
    flat = daily(tmp_path / "flat", dialogues_train=LINE, dialogues_test=LINE)
    assert dailydialog_files(flat) == {
        "train": flat / "dialogues_train.txt",
        "test": flat / "dialogues_test.txt",
    }
    names = ("train__dialogues_train", "validation__dialogues_validation", "dialogues_text")
    archive = daily(tmp_path / "archive", **dict.fromkeys(names, LINE))
    assert dailydialog_files(archive) == {
        "train": archive / "train" / "dialogues_train.txt",
        "valid": archive / "validation" / "dialogues_validation.txt",
    }
    whole = daily(tmp_path / "whole", dialogues_text=LINE)
    assert dailydialog_files(whole) == {"train": whole / "dialogues_text.txt"}
    one = daily(tmp_path / "one", dialogues_test=LINE)
    assert dailydialog_files(one) == {"train": one / "dialogues_test.txt"}
    with pytest.raises(DataError, match="not DailyDialog; expected dialogues_train.txt"):
        dailydialog_files(daily(tmp_path / "none", other=LINE))
    with pytest.raises(DataError, match="no such file or folder"):
        dailydialog_files(tmp_path / "no")


def test_real_dailydialog(shared_data: Path):
    examples, tally = read_daily(shared_data / "dailydialog" / "dialogues_validation.txt", turns=3)
    assert tally.used == len(examples) == 7069 and not tally.bad
    texts = "\n".join(example.target for example in examples)
    assert re.search(r"\w ' \w| [.,?!]|__eou__", texts) is None


# -- one's own--------------------------------------------------------------------------------------


def own(file: Path, *lines: str, **settings):
    file.write_text("\n".join(lines), "utf-8")
    tally = Tally()
    return list(read_dialogues(file, tally=tally, limit=1.0, **settings)), tally


def test_every_form_of_ones_own_dialogues(tmp_path):
    said = ["Hi!", "Hello.\nYou?", "Fine."]
    wanted = [("Hi!", "Hello. You?"), ("Hi!\nHello. You?", "Fine.")]
    rows = [said, *({key: said, "id": 1} for key in ("turns", "dialog", "Dialogue"))]
    for row in rows:
        examples, _ = own(tmp_path / "a.jsonl", json.dumps(row), turns=2)
        assert examples == wanted
        assert own(tmp_path / "no-suffix", json.dumps(row), turns=2)[0] == wanted
    text = ["Hi!", "Hello.  You?", "Fine.", "", "", "Next.", "One."]
    assert own(tmp_path / "a.txt", *text, turns=2)[0] == [*wanted, ("Next.", "One.")]


def test_bad_lines_of_ones_own_dialogues(tmp_path):
    rows = ["nonsense", "[" * 100_000, "7", '{"text": "a"}', '["a", 7]', '["a"]', '["a", "b"]', ""]
    examples, tally = own(tmp_path / "a.jsonl", *rows)
    assert examples == [("a", "b")]
    assert tally.skipped == {
        "not JSON": 2,
        "no list of turns": 2,
        "turn is not text": 1,
        "fewer than two turns": 1,
    }
    with pytest.raises(DataError, match="no usable examples in .*b.txt"):
        own(tmp_path / "b.txt", "only", "", "single", "", "lines")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"turns": [{"speaker": "A", "text": "Hi"}]}', "without a role 1.*; a turn is a string"),
        ('{"turns": "Hi!"}', r"got turns; a dialogue is a list of turns: .*turns.: \[.Hi!"),
    ],
)
def test_a_file_without_one_dialogue_says_what_dialogues_are(tmp_path, row, message):
    path = tmp_path / "a.jsonl"
    path.write_text(f"{row}\n")
    with pytest.raises(DataError, match=message):
        inspect(path)


MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "user", "assistant", "assistant", "system", "tool"]),
            "content": st.sampled_from(["a", "b c", "", None, "d\ne"]),
        },
        optional={"weight": st.sampled_from([0, 1])},
    ),
    max_size=9,
)


@given(MESSAGES)
def test_replies_to_one_message_are_the_exchanges(messages):
    """With the same counts."""
    before, after = Tally(), Tally()
    pairs = []
    for prompt, reply in exchanges({"messages": messages}, before):
        pairs += usable(Example(" ".join(prompt.split()), " ".join(reply.split())), before)
    assert list(role_replies(messages, after, history=1)) == pairs
    assert (before.skipped, before.used) == (after.skipped, after.used)


def test_roles_say_who_speaks(tmp_path):
    roles = ["user", "assistant", "user", "user", "assistant", "assistant"]
    messages = [{"role": role, "content": str(i)} for i, role in enumerate(roles)]
    row = json.dumps({"messages": messages})
    examples, tally = own(tmp_path / "a.jsonl", row, turns=4)
    assert examples == [("0", "1"), ("0\n1\n2\n3", "4"), ("0\n1\n2\n3", "5")]
    assert [turns_of(example)[1] for example in examples] == ["o", "osoo", "osoo"]
    assert tally.skipped == {"user message without a reply": 1}


def test_a_turn_that_cannot_be_read_has_its_number_in_the_list():
    system = {"role": "system", "content": "Be brief."}
    with pytest.raises(InputError, match="turn 2 of 2: not a turn"):
        read_turns([system, {"role": "robot", "content": "Hi!"}])
    assert [turn.speaker for turn in read_turns([system, "a", "b"])] == ["s", "o"]
