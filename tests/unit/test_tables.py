"""Which column of a table is taken for what: by its name, by what it holds, or by asking; never
by a silent guess."""

from __future__ import annotations

import csv
import gzip
import json
import re
import shlex
import uuid
from pathlib import Path
from typing import Any

import pytest

from regard import cli, recipe
from regard.data import detect
from regard.data.column_types import content_of
from regard.data.columns import UnclearColumns
from regard.data.lines import Tally
from regard.data.pairs import read_pairs
from regard.data.rows import delimiter_of
from regard.data.tables import look
from regard.errors import DataError

COUNT = 40
QUESTIONS = [f"How do I return parcel {n}, please?" for n in range(COUNT)]
ANSWERS = [f"You take it to shop number {n} and wait there." for n in range(COUNT)]
NOTES = [f"A remark about case {n} by somebody else." for n in range(COUNT)]
LONG = [" ".join([f"Paragraph {n}."] + ["and so it goes on"] * 20) for n in range(COUNT)]
STARS = [str(1 + 7 * n % 5) for n in range(COUNT)]
MOODS = [("good", "bad", "so so")[n % 3] for n in range(COUNT)]
RUNNING = [str(n) for n in range(1, COUNT + 1)]
SHUFFLED = [str(10_000 + 37 * n % 9973) for n in range(COUNT)]
UUIDS = [str(uuid.UUID(int=n * 7919)) for n in range(COUNT)]
CODES = [f"FAQ-{n * 13 % 997:04d}" for n in range(COUNT)]
DATES = [f"2024-0{1 + n % 9}-{10 + n % 18}" for n in range(COUNT)]
PRICES = [f"{n * 17 % 101}.{n % 10}5" for n in range(COUNT)]
NOTHING = [""] * COUNT
NAMES = [f"user{chr(97 + n % 26)}{chr(97 + n // 26)}" for n in range(COUNT)]


def write(
    path: Path,
    columns: dict[str, list[str]],
    *,
    delimiter: str = ",",
    header: bool = True,
    quoted=True,
) -> Path:
    """A table as people's programs write it; names may be given twice as "name " and so on."""
    rows = list(zip(*columns.values(), strict=True))
    if header:
        rows.insert(0, tuple(name.strip() for name in columns))
    with path.open("w", encoding="utf-8", newline="") as file:
        if quoted:
            csv.writer(file, delimiter=delimiter).writerows(rows)
        else:
            file.writelines(delimiter.join(row) + "\n" for row in rows)
    return path


def columns_of(path: Path, **columns) -> tuple[list[str], list[str]]:
    examples = list(read_pairs(path, tally=Tally(), **columns))
    return [str(example.source) for example in examples], [example.target for example in examples]


# -- plain------------------------------------------------------------------------------------------

PLAIN = {
    "ids first": (
        {"id": SHUFFLED, "kunde": QUESTIONS, "antwort_text": ANSWERS},
        QUESTIONS,
        ANSWERS,
    ),
    "ids last": (
        {"kunde": QUESTIONS, "antwort_text": ANSWERS, "laufnr": RUNNING},
        QUESTIONS,
        ANSWERS,
    ),
    "uuids between": (
        {"vraag van klant": QUESTIONS, "uid": UUIDS, "reactie": ANSWERS},
        QUESTIONS,
        ANSWERS,
    ),
    "codes": (
        {"code": CODES, "Kundenfrage": QUESTIONS, "Unsere Antwort": ANSWERS},
        QUESTIONS,
        ANSWERS,
    ),
    "the answer first": ({"respuesta": ANSWERS, "pregunta": QUESTIONS}, QUESTIONS, ANSWERS),
    "French": ({"n°": RUNNING, "question": QUESTIONS, "réponse": ANSWERS}, QUESTIONS, ANSWERS),
    "Russian": ({"вопрос": QUESTIONS, "ответ": ANSWERS}, QUESTIONS, ANSWERS),
    "Chinese": ({"编号": RUNNING, "问题": QUESTIONS, "答案": ANSWERS}, QUESTIONS, ANSWERS),
    "unknown names": ({"said": QUESTIONS, "heard": ANSWERS}, QUESTIONS, ANSWERS),
    "capitals": ({"Prompt": QUESTIONS, "REPLY": ANSWERS}, QUESTIONS, ANSWERS),
    "dates and prices": (
        {"when": DATES, "asked": QUESTIONS, "price": PRICES, "told": ANSWERS, "nothing": NOTHING},
        QUESTIONS,
        ANSWERS,
    ),
    "known among many": (
        {
            "id": RUNNING,
            "note": NOTES,
            "question": QUESTIONS,
            "mood": MOODS,
            "answer": ANSWERS,
            "body": LONG,
        },
        QUESTIONS,
        ANSWERS,
    ),
    "stars": ({"review": QUESTIONS, "stars": STARS}, QUESTIONS, STARS),
    "stars and an id": ({"review_id": SHUFFLED, "review": LONG, "stars": STARS}, LONG, STARS),
    "labels by what they are": ({"kommentar": QUESTIONS, "urteil": MOODS}, QUESTIONS, MOODS),
    "labels first": ({"urteil": MOODS, "kommentar": QUESTIONS}, QUESTIONS, MOODS),
    "labels by eight columns": (
        {
            "id": UUIDS,
            "when": DATES,
            "kommentar": LONG,
            "urteil": STARS,
            "price": PRICES,
            "nr": RUNNING,
            "empty": NOTHING,
            "code": CODES,
        },
        LONG,
        STARS,
    ),
}


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_choice_is_taken_and_said(tmp_path: Path, name: str, delimiter: str):
    columns, sources, targets = PLAIN[name]
    path = write(
        tmp_path / ("t.tsv" if delimiter == "\t" else "t.csv"), columns, delimiter=delimiter
    )
    assert columns_of(path) == (sources, targets)
    found = detect.recognise(path)
    assert found.kind == ("labelled" if targets in (STARS, MOODS) else "pairs")
    assert found.note.startswith("columns: " + ", ".join(columns))
    of = {id(values): title for title, values in columns.items()}
    note, _, unused = found.note.partition("; text not used: ")
    assert f"= {of[id(sources)]}, " in note and note.endswith(f"= {of[id(targets)]}")
    assert unused == ("note, body" if name == "known among many" else "")


@pytest.mark.parametrize(
    "name", [name for name in PLAIN if name not in ("the answer first", "Russian")]
)
def test_without_a_header_what_columns_hold_decides(tmp_path: Path, name: str):
    columns, sources, targets = PLAIN[name]
    path = write(tmp_path / "t.csv", columns, header=False)
    if name == "known among many":
        with pytest.raises(
            UnclearColumns, match=r"columns: 1 \(ids\), 2 \(text\), 3 \(text\), 4 \(3 labels\)"
        ):
            columns_of(path)
    else:
        assert columns_of(path) == (sources, targets)


def test_two_texts_without_a_header_stay_as_they_are(tmp_path: Path):
    for suffix, delimiter in ((".tsv", "\t"), (".csv", ";"), (".txt", "\t")):
        path = tmp_path / f"t{suffix}"
        rows = [("Hello", "Hi"), ("Oh", "Yes"), ("You there", "Me?")]
        path.write_text("".join(f"{one}{delimiter}{other}\n" for one, other in rows))
        assert columns_of(path) == (["Hello", "Oh", "You there"], ["Hi", "Yes", "Me?"])
        assert detect.recognise(path).note == "columns: 2, no header; source = 1, target = 2"


@pytest.mark.parametrize(
    ("first", "last"),
    [(("Hello", "Hi"), ("Any news", "None")), (("hey", "hello"), ("Where to?", "Up there."))],
)
def test_a_first_row_that_people_say_is_no_header(
    tmp_path: Path, first: tuple[str, str], last: tuple[str, str]
):
    rows = [first, *zip(QUESTIONS, ANSWERS, strict=True), last]
    (tmp_path / "t.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    assert columns_of(tmp_path / "t.tsv")[0] == [first[0], *QUESTIONS, last[0]]


def test_the_first_words_of_a_dictionary_are_no_header(tmp_path: Path):
    for first in ("answer\tAntwort", "question\tFrage", "text\tText", "stars\tSterne"):
        (tmp_path / "t.tsv").write_text(f"{first}\nhouse\tHaus\ntree\tBaum\nto go\tgehen\n")
        assert len(columns_of(tmp_path / "t.tsv")[0]) == 4


@pytest.mark.parametrize(
    "header", ["kunde,antwort_text", "Frage,Antwort", "Customer question,Agent answer", "q1,a1"]
)
def test_a_header_is_no_example(tmp_path: Path, header: str):
    path = write(
        tmp_path / "t.csv", dict(zip(header.split(","), (QUESTIONS, ANSWERS), strict=True))
    )
    assert columns_of(path) == (QUESTIONS, ANSWERS)


def test_a_header_of_few_rows_is_no_class(tmp_path: Path):
    (tmp_path / "t.csv").write_text("review,stars\nfine film,5\na bore,1\nit is all right,3\n")
    assert columns_of(tmp_path / "t.csv") == (
        ["fine film", "a bore", "it is all right"],
        ["5", "1", "3"],
    )
    (tmp_path / "t.csv").write_text("review,stars\nfine film,1\na bore,2\nit is all right,3\n")
    assert columns_of(tmp_path / "t.csv")[1] == ["1", "2", "3"]


def test_packed_tables_and_quotes(tmp_path: Path):
    said = [f'"{question}", he\nsaid; so' for question in QUESTIONS]
    path = write(tmp_path / "t.csv", {"id": RUNNING, "kunde": said, "a b": ANSWERS})
    packed = tmp_path / "t.csv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert (
        columns_of(packed)
        == columns_of(path)
        == ([f'"{q}", he said; so' for q in QUESTIONS], ANSWERS)
    )


def test_semicolons_between_texts_with_commas(tmp_path: Path):
    (tmp_path / "t.csv").write_text(
        "Hallo, wie geht es?;Gut, danke\nJa, nein, doch;Ach, so\nOh;Ja\n"
    )
    assert columns_of(tmp_path / "t.csv")[1] == ["Gut, danke", "Ach, so", "Ja"]
    assert delimiter_of(["a,b", "c,d;e"]) == ","


# -- not plain--------------------------------------------------------------------------------------

UNCLEAR = {
    "three texts": {"id": RUNNING, "kunde": QUESTIONS, "text von uns": ANSWERS, "notiz": NOTES},
    "two texts and labels": {"kunde": QUESTIONS, "von uns": ANSWERS, "urteil": MOODS},
    "two labels": {"kommentar": QUESTIONS, "urteil": MOODS, "punkte": STARS},
    "an id and a text": {"nr": RUNNING, "kommentar": QUESTIONS},
    "a text and a price": {"kommentar": QUESTIONS, "preis": PRICES},
    "numbers only": {"a": PRICES, "b": SHUFFLED},
    "a name and a text": {"user": NAMES, "said": ANSWERS},
    "the same name twice": {"note": QUESTIONS, "note ": ANSWERS, "more": NOTES},
}


ASKED = [(name, header) for name in UNCLEAR for header in (True, False)]
ASKED.remove(("a name and a text", False))  # two texts without a header stay as they are


@pytest.mark.parametrize(("name", "header"), ASKED)
def test_what_is_not_plain_is_asked_with_a_command_that_works(
    tmp_path: Path, name: str, header: bool
):
    columns = UNCLEAR[name]
    path = write(tmp_path / "my table.csv", columns, header=header)
    with pytest.raises(DataError) as caught:
        detect.recognise(path)
    message = str(caught.value)
    assert "\n" not in message and "not plain" in message
    for number, title in enumerate(columns, 1):
        assert f"{title.strip() if header else number} (" in message
    command = shlex.split(message.partition("for example: ")[2])
    assert command[:2] == ["regard", "train"] and command[3:5] == ["--data", str(path)]
    changes = command[6::2]
    assert len(changes) == 2 and set(command[5::2]) == {"--set"}
    where = [f"data.kind={kind_of(changes)}", f"data.path={json.dumps(str(path))}"]
    data: Any = recipe.load(command[2], [*where, *changes]).data
    given = {
        field: getattr(data, field)
        for field in ("source_column", "target_column")
        if hasattr(data, field)
    }
    given = given or {"source_column": data.text_column, "target_column": data.label_column}
    sources, targets = columns_of(path, **given)
    assert len(sources) == COUNT and sources != targets


def kind_of(changes: list[str]) -> str:
    return "labelled" if any("label_column" in change for change in changes) else "pairs"


def test_one_column_of_two_leaves_the_other_or_is_refused(tmp_path: Path):
    three = write(
        tmp_path / "three.csv", {"id": RUNNING, "kunde": QUESTIONS, "antwort_text": ANSWERS}
    )
    assert columns_of(three, source_column="kunde") == (QUESTIONS, ANSWERS)
    assert columns_of(three, target_column="kunde") == (ANSWERS, QUESTIONS)
    assert columns_of(three, source_column="antwort_text") == (ANSWERS, QUESTIONS)
    four = write(tmp_path / "four.csv", UNCLEAR["three texts"])
    with pytest.raises(UnclearColumns, match="--set data.source_column=kunde --set"):
        columns_of(four, source_column="kunde")
    with pytest.raises(UnclearColumns, match=re.escape("--set data.target_column=notiz")):
        columns_of(four, target_column="notiz")
    lonely = write(tmp_path / "lonely.csv", UNCLEAR["an id and a text"])
    with pytest.raises(UnclearColumns):
        columns_of(lonely, source_column="kommentar")


def test_the_same_column_twice_is_refused(tmp_path: Path):
    path = write(tmp_path / "t.csv", {"kunde": QUESTIONS, "antwort": ANSWERS})
    for one, other in (("kunde", "kunde"), ("kunde", 1), (2, "Antwort"), (1, 1)):
        with pytest.raises(DataError, match="source and target are the same column"):
            columns_of(path, source_column=one, target_column=other)


def test_a_name_given_twice_is_a_number(tmp_path: Path):
    path = write(tmp_path / "t.csv", {"text": QUESTIONS, "text ": ANSWERS, "id": RUNNING})
    with pytest.raises(
        DataError, match="two columns have this name; got text; use a number: 1 or 2"
    ):
        columns_of(path, source_column="text", target_column="id")
    assert columns_of(path, source_column=2, target_column=1) == (ANSWERS, QUESTIONS)


def test_a_lone_text_column(tmp_path: Path):
    path = write(
        tmp_path / "lone.csv", {"text": [f"Sentence number {n} stands here." for n in range(COUNT)]}
    )
    with pytest.raises(DataError, match="only one column") as caught:
        detect.recognise(path)
    command = shlex.split(str(caught.value).partition("alone: ")[2])
    assert command == [
        "regard",
        "train",
        "blank-rnn",
        "--data",
        str(path),
        "--set",
        "data.kind=text",
    ]


# -- JSON lines-------------------------------------------------------------------------------------


def objects(path: Path, **columns: list) -> Path:
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


def test_other_keys_are_named_beside_those_that_are_expected(tmp_path: Path):
    path = objects(
        tmp_path / "t.jsonl",
        nr=list(range(COUNT)),
        said=QUESTIONS,
        heard=ANSWERS,
        tags=[["a"]] * COUNT,
    )
    with pytest.raises(DataError) as caught:
        detect.recognise(path)
    message = str(caught.value)
    assert "keys: nr (ids), said (text), heard (text), tags (lists or objects)" in message
    assert (
        "expected: prompt or source or question or input and reply or target or answer or output"
        in message
    )
    assert message.endswith(
        f"--data {path} --set data.source_column=said --set data.target_column=heard"
    )
    assert columns_of(path, source_column="said", target_column="heard") == (QUESTIONS, ANSWERS)
    assert columns_of(path, source_column="said") == (QUESTIONS, ANSWERS)


def test_known_keys_of_json(tmp_path: Path):
    path = objects(
        tmp_path / "t.jsonl",
        meta=[{"n": 1}] * COUNT,
        question=QUESTIONS,
        answer=ANSWERS,
        notes=NOTES,
    )
    assert columns_of(path) == (QUESTIONS, ANSWERS)
    assert (
        detect.recognise(path).note
        == "keys: meta, question, answer, notes; source = question, target = answer; "
        "text not used: notes"
    )
    path = objects(tmp_path / "t.jsonl", text=QUESTIONS, stars=[int(stars) for stars in STARS])
    assert detect.recognise(path).kind == "labelled" and columns_of(path) == (QUESTIONS, STARS)


# -- what a column holds----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "name", "holds"),
    [
        (RUNNING, "", "id"),
        (SHUFFLED, "", "id"),
        (UUIDS, "", "id"),
        (CODES, "", "id"),
        (["4", "2"], "user_id", "id"),
        ([f"https://example.org/{n}" for n in range(9)], "", "id"),
        (STARS, "", "label"),
        (["0", "1"] * 9, "", "label"),
        (["0.5", "1.0"] * 9, "", "label"),
        (["True", "False"] * 9, "", "label"),
        (MOODS, "", "label"),
        (["news", "sport", "news"], "category", "label"),
        (PRICES, "", "number"),
        (["1,200.50", "$3", "17 %", "€ 9"], "", "number"),
        (DATES, "", "date"),
        ([f"{n}.png" for n in range(9)], "", "picture"),
        ([f"clips/{n}.flac" for n in range(9)], "", "sound"),
        (["the same"] * 9, "", "constant"),
        ([], "id", "empty"),
        (QUESTIONS, "", "text"),
        (["Yes.", "No.", "Yes."], "", "text"),
        (["1963", "I was born in 1963", "Who?"], "", "text"),
    ],
)
def test_what_a_column_holds(values: list[str], name: str, holds: str):
    assert content_of(values, name) == holds


def test_a_sample_is_bounded(tmp_path: Path):
    (tmp_path / "t.tsv").write_text("".join(f"{'x' * 500_000}\t{n}\n" for n in range(20)))
    assert sum(map(len, look(tmp_path / "t.tsv").cells[0])) < 2_000_000


# -- conversations----------------------------------------------------------------------------------


def say(role: str, content, **more) -> dict:
    return {"role": role, "content": content, **more}


def conversations(path: Path, *rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def test_messages_are_exchanges(tmp_path: Path):
    parts = [{"type": "text", "text": "Parts?"}]
    path = conversations(
        tmp_path / "chat.jsonl",
        {"messages": [say("system", "Be kind."), say("user", "Hi"), say("assistant", "Hello!")]},
        {
            "messages": [
                say("user", "One?"),
                say("assistant", "Two."),
                say("user", "Three?"),
                say("assistant", "Four."),
            ]
        },
        {"messages": [say("developer", "x"), say("user", parts), say("assistant", "Yes.")]},
    )
    tally = Tally()
    expected = [("Hi", "Hello!"), ("One?", "Two."), ("Three?", "Four."), ("Parts?", "Yes.")]
    assert list(read_pairs(path, tally=tally)) == expected
    assert tally.skipped == {"system message": 2} and tally.bad == 0
    found = detect.recognise(path, task="chat", source="tokens")
    assert (found.kind, found.fields) == ("dialogues", {"path": str(path)})
    found = detect.recognise(path, task="translate", source="tokens")
    assert (found.kind, found.fields) == ("pairs", {"path": str(path)}) and "messages" in found.note


def test_bad_messages_are_counted_by_reason(tmp_path: Path):
    image = [{"type": "image_url", "image_url": {"url": "http://x"}}]
    good = {"messages": [say("user", "Hi"), say("assistant", "Hello!")]}
    path = conversations(
        tmp_path / "chat.jsonl",
        *[good] * 12,
        {"messages": "none"},
        {"other": 1},
        {"messages": [say("assistant", "First!"), say("user", image), say("assistant", "Nice.")]},
        {
            "messages": [
                say("user", "Q"),
                say("assistant", None),
                say("tool", "7"),
                say("assistant", "7."),
            ]
        },
        {
            "messages": [
                say("user", "Q"),
                "text",
                say("assistant", "Quiet", weight=0),
                say("user", "bye"),
            ]
        },
        {"messages": [say("user", " "), say("assistant", "A")]},
    )
    tally = Tally()
    examples = list(read_pairs(path, tally=tally))
    assert len(examples) == 13 and examples[-1] == ("Q", "7.")
    assert tally.skipped == {
        "no list of messages": 2,
        "reply to no user message": 2,
        "content is not text": 2,
        "message of another role": 1,
        "message without a role": 1,
        "weight 0": 1,
        "user message without a reply": 1,
        "empty side": 1,
    }


def test_many_system_messages_do_not_make_a_file_bad(tmp_path: Path):
    row = {
        "messages": [
            say("system", "a"),
            say("system", "b"),
            say("user", "Hi"),
            say("assistant", "Hello!"),
        ]
    }
    assert (
        len(list(read_pairs(conversations(tmp_path / "c.jsonl", *[row] * 5), tally=Tally()))) == 5
    )


def test_a_column_called_messages_is_a_column(tmp_path: Path):
    path = write(tmp_path / "t.csv", {"messages": QUESTIONS, "replies": ANSWERS})
    assert columns_of(path) == (QUESTIONS, ANSWERS)
    path = objects(tmp_path / "t.jsonl", messages=QUESTIONS, reply=ANSWERS)
    assert columns_of(path, source_column="messages") == (QUESTIONS, ANSWERS)


def test_odd_names_stay_in_one_line(tmp_path: Path):
    names = {"first\nline": QUESTIONS, "\x1b[31mred": ANSWERS, "n" * 45: NOTES, "true": LONG}
    for path in (write(tmp_path / "t.csv", names), objects(tmp_path / "t.jsonl", **names)):
        with pytest.raises(UnclearColumns) as caught:
            columns_of(path)
        message = str(caught.value)
        assert message.isprintable() and "first line (text)" in message and "n" * 41 not in message
        assert "--set data.source_column=1 --set data.target_column=2" in message


# -- the doors--------------------------------------------------------------------------------------


def test_inspect_says_which_column_is_what(tmp_path: Path, capsys):
    path = write(
        tmp_path / "faq.csv", {"id": SHUFFLED, "kunde": QUESTIONS, "antwort_text": ANSWERS}
    )
    assert cli.main(["data", "inspect", str(path)]) == 0
    assert (
        "columns: id, kunde, antwort_text; source = kunde, target = antwort_text\n"
        in capsys.readouterr().out
    )
    path = write(tmp_path / "four.csv", UNCLEAR["three texts"])
    assert cli.main(["data", "inspect", str(path)]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1
    assert told.err.rstrip().endswith(
        "--set data.source_column=kunde --set 'data.target_column=text von uns'"
    )
    flags = ["--source-column", "kunde", "--target-column", "notiz"]
    assert cli.main(["data", "inspect", str(path), *flags]) == 0
    assert "source = kunde, target = notiz" in capsys.readouterr().out


# -- tables that were once paired into nonsense-----------------------------------------------------


def test_an_instruction_is_joined_with_its_input(tmp_path: Path):
    inputs = ["" if n % 2 else f"A remark of case {n}." for n in range(COUNT)]
    expected = [
        f"{question} {text}".strip() for question, text in zip(QUESTIONS, inputs, strict=True)
    ]
    columns = {"instruction": QUESTIONS, "input": inputs, "output": ANSWERS}
    path = objects(tmp_path / "t.jsonl", **columns)
    assert columns_of(path) == (expected, ANSWERS)
    assert "source = instruction and input, target = output" in detect.recognise(path).note
    assert columns_of(write(tmp_path / "t.csv", columns)) == (expected, ANSWERS)


SITES = [f"https://example.org/{n}" for n in range(COUNT)]
REDDIT = [("reddit", "wiki")[n % 2] for n in range(COUNT)]


@pytest.mark.parametrize("source", [REDDIT, SITES, ["faq"] * COUNT, UUIDS])
def test_a_source_that_holds_where_it_is_from_is_no_prompt(tmp_path: Path, source: list[str]):
    columns = {"source": source, "question": QUESTIONS, "answer": ANSWERS}
    assert columns_of(write(tmp_path / "t.csv", columns)) == (QUESTIONS, ANSWERS)
    assert columns_of(objects(tmp_path / "t.jsonl", **columns)) == (QUESTIONS, ANSWERS)
    columns = {"source": source, "anfrage": QUESTIONS, "answer": ANSWERS}
    with pytest.raises(DataError, match="it is not plain which column is source"):
        detect.recognise(write(tmp_path / "t.csv", columns))


def test_of_two_columns_of_one_name_the_text_is_taken(tmp_path: Path):
    path = tmp_path / "t.csv"
    columns = {"question": UUIDS, "question ": QUESTIONS, "answer": ANSWERS}
    assert columns_of(write(path, columns)) == (QUESTIONS, ANSWERS)
    columns = {"question": NOTES, "question ": QUESTIONS, "answer": ANSWERS}
    with pytest.raises(DataError, match="it is not plain"):
        detect.recognise(write(path, columns))


def test_words_of_names_say_which_is_which(tmp_path: Path):
    path = tmp_path / "t.csv"
    for answer, question in [("Answer Text", "Question Text"), ("agentReply", "customer_prompt")]:
        write(path, {answer: ANSWERS, question: QUESTIONS})
        assert columns_of(path) == (QUESTIONS, ANSWERS)


PEOPLE = [f"{'ABCDE'[n % 5]}nna {'LMNOPQRS'[n // 5]}ee" for n in range(COUNT)]
FIRST = [f"{'ABCDE'[n % 5]}nna" for n in range(COUNT)]
LAST = [f"{'LMNOPQRS'[n // 5]}ee" for n in range(COUNT)]


@pytest.mark.parametrize(
    "columns",
    [
        {"author": PEOPLE, "quote": ANSWERS},
        {"first_name": FIRST, "last_name": LAST},
        {"City": LAST, "Country": FIRST},
    ],
)
def test_names_are_no_prompts(tmp_path: Path, columns: dict[str, list[str]]):
    path = write(tmp_path / "t.csv", columns)
    assert look(path).header
    with pytest.raises(DataError, match="it is not plain"):
        detect.recognise(path)


@pytest.mark.parametrize(
    ("cell", "holds"),
    [
        ("{n:016x}", "id"),
        ("+49 30 55{n:05d}", "id"),
        ("(030) 55{n:05d}", "id"),
        ("05:{m:02d} pm", "date"),
        ("Jan {d} 2020", "date"),
        ("{d}. Januar 2020", "date"),
        ("Mon Jan {d:02d} 12:00:00 +0000 2020", "date"),
        ("52.{n}, 13.{m:02d}", "number"),
        ('{{"a": {n}}}', "nested"),
        ("[{n}, 2]", "nested"),
    ],
)
def test_what_is_not_text(cell: str, holds: str):
    values = [
        cell.format(n=48_400_010 + 7919 * n if ":016x" in cell else n, m=n, d=1 + n % 28)
        for n in range(COUNT)
    ]
    assert content_of(values) == holds


UNDECIDED: dict[str, dict[str, list[str]]] = {
    "a category beside two texts": {"art": MOODS, "kunde": QUESTIONS, "von_uns": ANSWERS},
    "ids and objects": {"a": UUIDS, "b": ['{"n": 1}'] * COUNT, "c": NOTES, "d": ANSWERS, "e": LONG},
    "three texts": {"x": NOTES, "the answer": ANSWERS, "y": QUESTIONS, "z": LONG},
    "a name and a text": {"author": PEOPLE, "quote": ANSWERS},
    "two labels": {"urteil": MOODS, "ort": REDDIT, "kommentar": QUESTIONS},
    "an odd name": {"1st": NOTES, "true": QUESTIONS, "what = it": ANSWERS},
}


@pytest.mark.parametrize("form", ["csv", "jsonl"])
@pytest.mark.parametrize("name", UNDECIDED)
@pytest.mark.parametrize("task", [None, "chat"])
def test_the_command_of_a_question_works(tmp_path: Path, name: str, form: str, task: str | None):
    path = tmp_path / f"t.{form}"
    if form == "csv":
        write(path, UNDECIDED[name])
    else:
        objects(path, **UNDECIDED[name])
    chosen: dict[str, Any] = (
        {"recipe": "chat-gru", "task": task, "source": "tokens"} if task else {}
    )
    with pytest.raises(DataError) as caught:
        detect.recognise(path, **chosen)

    command = shlex.split(str(caught.value).partition("for example: ")[2])
    assert command[:2] == ["regard", "train"], caught.value
    assert command[3:5] == ["--data", str(path)]
    loaded = recipe.load(command[2])
    changes = dict(change.removeprefix("data.").split("=", 1) for change in command[6::2])
    columns = {field: int(word) if word.isdecimal() else word for field, word in changes.items()}
    data_set = detect.recognise(path, columns=columns, task=loaded.task, source=loaded.source.kind)
    assert len(list(data_set.read(tally=Tally()))) == COUNT


def test_a_guess_is_of_texts_and_by_names(tmp_path: Path):
    for name, source, target in [
        ("ids and objects", "c", "d"),
        ("three texts", "x", "'data.target_column=the answer'"),
    ]:
        with pytest.raises(DataError) as caught:
            detect.recognise(write(tmp_path / "t.csv", UNDECIDED[name]))
        message = str(caught.value)
        assert f"data.source_column={source}" in message and message.endswith(target)


def test_columns_called_after_languages_are_translated(tmp_path: Path):
    path = write(tmp_path / "t.csv", {"English": QUESTIONS, "German": ANSWERS})
    data_set = detect.recognise(path)
    assert data_set.kind == "pairs" and data_set.command().startswith(
        "regard train translate-attention --data "
    )
    assert columns_of(path) == (QUESTIONS, ANSWERS)
