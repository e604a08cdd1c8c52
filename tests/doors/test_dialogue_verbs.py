"""A model that reads a history: trained on dialogues, asked and chatted with."""

from __future__ import annotations

import io
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import regard
from regard import cli, recipe
from regard.bundle import Bundle
from regard.errors import InputError, TrainingError
from regard.pages import run_sections
from regard.pages.run_record import read_run
from regard.runs import resumed
from regard.search import Options
from regard.train import train
from regard.train.resume import changes as changes_of
from regard.values import Answer
from tests.tiny import LIKED, PAIRS, Silent, dialogues_file, memorised, pairs_file

QUESTION = "What do I like?"
GREEDY = Options(max_new_tokens=9)


def settings(folder: Path, *more: str) -> list[str]:
    kind = ["data.kind=dialogues", "data.turns=3", "tokenizer.min_count=1"]
    return [*memorised(dialogues_file(folder)), *kind, "train.steps=400", *more]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("dialogues")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(home / "cache"))
        train(recipe.load("chat-attention", settings(home)), home / "run", reporter=Silent())
    return home / "run"


@pytest.fixture(scope="module")
def bot(run: Path) -> Bundle:
    return regard.load(run)


@pytest.fixture(autouse=True)
def cache(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(run.parent / "cache"))


# -- Python-----------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", LIKED)
def test_the_answer_depends_on_what_was_said_before(bot: Bundle, word: str):
    history = [f"I like {word}.", "Good."]
    answer = bot.ask(QUESTION, GREEDY, history=history)
    assert answer.text == f"You like {word}."
    assert answer.place_names.count("(other)") == 2 and answer.place_names.count("(self)") == 1
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": history[0]},
        {"role": "assistant", "content": history[1]},
        {"role": "user", "content": QUESTION},
    ]
    (from_list,) = bot.ask([[*history, QUESTION]], GREEDY)
    for same in (
        bot.ask(messages, GREEDY),
        bot.ask(QUESTION, GREEDY, history=messages[:3]),
        bot.ask(QUESTION, GREEDY, history=("older", "turns", *history)),
        from_list,
    ):
        assert isinstance(same, Answer)
        assert (same.tokens, same.score) == (answer.tokens, answer.score)

    stream = bot.stream(QUESTION, GREEDY, history=history)
    assert "".join(map(str, stream)) == answer.text
    assert "".join(map(str, bot.stream([*history, QUESTION], GREEDY))) == answer.text
    assert "".join(map(str, bot.stream(messages, GREEDY))) == answer.text


def test_inputs_with_and_without_history_in_one_list(bot: Bundle):
    inputs = [[f"I like {word}.", "Good.", QUESTION] for word in LIKED]
    answers = bot.ask(["I like tea.", *inputs], GREEDY)
    assert [answer.text for answer in answers] == ["Good.", *(f"You like {w}." for w in LIKED)]


def test_requests_with_histories_of_different_length_in_one_engine(bot: Bundle):
    engine = bot.engine()
    inputs = ["I like rain.", *([f"I like {word}.", "Good.", QUESTION] for word in LIKED)]
    requests = [engine.submit(*bot.task.read([value]), GREEDY) for value in inputs]
    engine.run()
    texts = [bot.tokenizer.decode(request.result()[0].tokens) for request in requests]
    assert texts == ["Good.", *(f"You like {word}." for word in LIKED)]


def test_mistakes_with_histories(bot: Bundle):
    messages: Any = [{"role": "user", "content": "Hi!"}]
    numbers: Any = [7]
    with pytest.raises(InputError, match=r"history: a history is of one input; got a list"):
        bot.ask(["Hi!", "Hello."], history=["Hi!"])
    with pytest.raises(InputError, match="history: a history is a list of turns; got str"):
        bot.ask("Hi!", history="Hello.")
    with pytest.raises(InputError, match="turn 1 of 2: not a turn; got 7"):
        bot.ask("Hi!", history=numbers)
    with pytest.raises(InputError, match="history: a history goes before one turn; got list"):
        bot.ask(messages, history=["Hi!"])
    with pytest.raises(InputError, match="input 2 of 2, turn 1 of 1: not a turn"):
        bot.ask(["Hi!", [{"role": "robot", "content": "Hi!"}]])


def test_it_is_evaluated_as_it_is_asked(bot: Bundle, tmp_path: Path):
    result = bot.evaluate(split="train", options=GREEDY)
    prompts = {sample.prompt: sample for sample in result.samples}
    for word in LIKED:
        sample = prompts[f"I like {word}.\nGood.\n{QUESTION}"]
        assert sample.answer == f"You like {word}."
    again = bot.evaluate(dialogues_file(tmp_path), options=GREEDY)
    assert again.examples == result.examples and again.scores == result.scores
    pairs = bot.evaluate(pairs_file(tmp_path), options=GREEDY)
    assert pairs.examples == len(PAIRS)  # each is one turn


def test_other_numbers_of_turns_do_not_fit_its_weights(run: Path):
    job = resumed(run, changes=["data.turns=2"])
    with pytest.raises(TrainingError, match="do not fit.*data.turns: 3 -> 2"):
        changes_of(job.recipe, run, anyway=True)


def test_its_budget_is_exact(run: Path, bot: Bundle, capsys):
    assert cli.main(["budget", str(run)]) == 0
    assert "as the formulas say" in capsys.readouterr().out
    assert bot.budget().parameters == bot.model.parameter_count


# -- commands---------------------------------------------------------------------------------------


def records(capsys, *words: object) -> list[dict]:
    assert cli.main([str(word) for word in words]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_ask_with_a_history(run: Path, capsys):
    words = ["ask", run, QUESTION, "--history", "I like jazz.", "--history", "Good.", "--greedy"]
    (record,) = records(capsys, *words, "--json")
    assert record["input"] == QUESTION and record["history"] == ["I like jazz.", "Good."]
    assert record["answer"] == "You like jazz."
    assert cli.main([str(word) for word in words]) == 0
    assert capsys.readouterr().out == f"{QUESTION}  ->  You like jazz.\n"


def test_ask_a_file_of_conversations(run: Path, capsys, tmp_path: Path):
    turns = ["I like rain.", "Good.", QUESTION]
    roles = ["user", "assistant", "user"]
    messages = [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=True)]
    values = [turns, {"turns": turns}, {"messages": messages}]
    lines = ["I like tea.", *map(json.dumps, values), "[not JSON", '{"a": 1}']
    file = tmp_path / "inputs.jsonl"
    file.write_text("\n".join(lines))
    rows = records(capsys, "ask", run, "--file", file, "--greedy")
    assert [row["answer"] for row in rows[:4]] == ["Good.", *["You like rain."] * 3]
    assert [row["input"] for row in rows] == ["I like tea.", *[QUESTION] * 3, *lines[-2:]]
    assert "history" not in rows[0]
    assert rows[1]["history"] == turns[:2] and rows[3]["history"] == messages[:2]

    file.write_text('{"turns": ["a", 7]}\n["Hi!"]\n[]\n')
    assert cli.main(["ask", str(run), "--file", str(file)]) == 2
    told = capsys.readouterr()
    bad, good, empty = (json.loads(line) for line in told.out.splitlines())
    assert "turn 2 of 2: not a turn" in bad["error"] and bad["input"] == '{"turns": ["a", 7]}'
    assert "error" not in good and "the conversation is empty" in empty["error"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "b", "--history", "Hi!"], "--history: a history is of one input; got 2 inputs"),
        (["--file", __file__, "--history", "Hi!"], "a history is of one input; got no input"),
    ],
)
def test_mistakes_of_ask(run: Path, capsys, words: list[str], message: str):
    assert cli.main(["ask", str(run), *words]) == 2
    assert message in capsys.readouterr().err


def chat(run: Path, monkeypatch, *lines: str) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    return cli.main(["chat", str(run), "--greedy"])


def test_a_chat_remembers_and_forgets(run: Path, capsys, monkeypatch):
    said = ["I like chess.", QUESTION, "/history", "/forget", "/history"]
    more = ["I like bread.", QUESTION]
    assert chat(run, monkeypatch, *said, *more) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Good.",
        "You like chess.",
        "> I like chess.",
        "  Good.",
        f"> {QUESTION}",
        "  You like chess.",
        "forgotten",
        "nothing was said yet",
        "Good.",
        "You like bread.",
    ]


def test_a_line_that_cannot_be_read_is_not_remembered(run: Path, capsys, monkeypatch):
    assert chat(run, monkeypatch, "I like tea.", "word " * 20_000, QUESTION, "/history") == 0
    told = capsys.readouterr()
    assert "the prompt is too long" in told.err
    assert told.out.splitlines()[1] == "You like tea." and "word" not in told.out


def test_attention_by_turn(run: Path, capsys, monkeypatch):
    assert chat(run, monkeypatch, "I like chess.", QUESTION, "/attend") == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    gap = lines.index("")
    turns = lines[gap + 1 :]
    names = [line.split()[0] for line in turns]
    assert names == ["(other)", "(self)", "(other)", "(end)"]
    assert "like chess" in turns[0] and "good" in turns[1] and "what do i like" in turns[2]
    shares = [int(line.split("%")[0].split()[-1]) for line in turns]
    assert sum(shares) == pytest.approx(100, abs=3)


def test_turns_are_shown_as_turns(run: Path, capsys, tmp_path: Path):
    """In training in one line, in an evaluation and on pages as lines."""
    words = ["train", "chat-attention", "--out", str(tmp_path / "run"), "--steps", "2"]
    sets = [word for change in settings(tmp_path, "data.valid=0.4") for word in ("--set", change)]
    assert cli.main([*words, *sets]) == 0
    told = capsys.readouterr().out
    assert r"\n" not in told and f". / Good. / {QUESTION}  ->  " in told
    (draft,) = (tmp_path / "run").glob("report.html")
    assert f".\nGood.\n{QUESTION}</td>" in draft.read_text("utf-8")

    assert cli.main(["evaluate", str(run), "--split", "train", "--greedy"]) == 0
    told = capsys.readouterr().out
    assert r"\n" not in told and f"\n  Good.\n  {QUESTION}\n    answer " in told


def test_the_commands_of_a_report_ask_what_the_page_shows(run: Path, capsys, tmp_path: Path):
    page = regard.report(run)
    code = next(section.code for section in page.sections if section.id == "next")
    lines = [shlex.split(line, comments=True) for line in code.splitlines()]
    commands = {words[1]: words[1:] for words in lines}
    record = run_sections.attend_command
    options = ["--greedy", "--no-effect", "--out", str(tmp_path / "a.html")]
    prompt = f"I like tea.\nGood.\n{QUESTION}"
    words = shlex.split(record(read_run(run), prompt))[1:]
    assert commands["attend"][0] == words[0] == "attend"
    assert cli.main([*words[:1], *options, *words[1:]]) == 0
    assert f"{QUESTION}  ->  You like tea." in capsys.readouterr().out
    words = shlex.split(record(read_run(run), "- Hi!\n- I like jazz."))[1:]
    assert cli.main([*words[:1], *options, *words[1:]]) == 0
    assert "- I like jazz.  ->  " in capsys.readouterr().out


def test_help_lists_what_means_something(run: Path, capsys, monkeypatch, tmp_path: Path):
    assert chat(run, monkeypatch, "/help") == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == [
        "/quit",
        "/attend",
        "/history",
        "/forget",
        "/help",
    ]
    short = settings(tmp_path, "data.turns=1", "train.steps=1", "tokenizer.kind=characters")
    train(recipe.load("chat-gru", short), tmp_path / "run", reporter=Silent())
    other = regard.load(tmp_path / "run")
    assert not other.tokenizer.turns
    assert chat(tmp_path / "run", monkeypatch, "/help", "/forget", "/history") == 0
    told = capsys.readouterr().out
    assert told.count("it was trained with data.turns = 1") == 2
    assert "/forget  " not in told and "/history  " not in told
    alone, with_history = other.ask(["a", ["b", "c", "a"]], GREEDY)
    assert (alone.tokens, alone.score) == (with_history.tokens, with_history.score)
    assert cli.main(["ask", str(tmp_path / "run"), "a", "--history", "b", "--greedy"]) == 0
    assert "--history has no effect: this model was trained with" in capsys.readouterr().err


def test_equal_characters_can_be_told_apart(capsys, monkeypatch, tmp_path: Path):
    few = settings(tmp_path, "train.steps=1", "tokenizer.kind=characters", "data.turns=2")
    train(recipe.load("chat-attention", few), tmp_path / "run", reporter=Silent())
    words = ["--set", "do_sample=true", "--set", "temperature=9.0"]
    monkeypatch.setattr("sys.stdin", io.StringIO("ee e\n/attend\n"))
    assert cli.main(["chat", str(tmp_path / "run"), *words]) == 0
    monkeypatch.undo()
    _, places, *_ = capsys.readouterr().out.splitlines()
    assert places.split() == ["(other)", "e·1", "e·2", "␣·3", "e·4", "(end)"]


def test_inspect_says_how_a_model_reads_earlier_turns(tmp_path: Path, capsys):
    path = tmp_path / "talks.jsonl"
    path.write_text('{"turns": ["Hi!", "Hello.", "How are you?", "Fine."]}\n')
    assert cli.main(["data", "inspect", str(path)]) == 0
    told = capsys.readouterr().out
    assert "3 usable examples of 1 dialogues" in told and "--set data.turns=3" in told
