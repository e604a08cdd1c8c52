"""What the readers make of well-formed corpora, small and real. Bad input:
tests/faults/test_corpora.py."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.chatterbot import chatterbot_files, read_chatterbot
from regard.data.cornell import cornell_files, is_cornell, read_cornell
from regard.data.examples import Example, part_of
from regard.data.inspect import inspect
from regard.data.lines import Tally
from regard.data.pairs import read_pairs
from regard.data.reading import word_count
from regard.errors import DataError
from regard.tokenizers import plain

SHARED = Path(__file__).parents[2] / "../shared/data"
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="../shared/data is not here")

PAIRS = [
    Example("Hello", "Hi there"),
    Example("Who?", "Me, I think."),
    Example("Wie geht’s?", "Ça va"),
]


def pairs(path, **settings) -> list[Example]:
    return list(read_pairs(path, tally=Tally(), **settings))


# -- ChatterBot-------------------------------------------------------------------------------------


def test_chatterbot_reads_every_topic_once():
    tally = Tally()
    examples = list(read_chatterbot(tally=tally))
    assert len(examples) == len(set(examples)) == tally.used > 1000
    assert tally.duplicates > 1000  # tech_support.yml repeats itself
    assert tally.bad == 0


def test_chatterbot_dialogues_and_alternatives():
    said = set(read_chatterbot(topics=["conversations", "emotion", "greetings"], tally=Tally()))
    assert (
        "How are you doing?",
        "I am doing well.",
    ) in said  # third and fourth line of one conversation
    assert ("Hello", "Hi") in said
    assert ("Hello", "Greetings!") in said
    answers = {target for source, target in said if source == "What is your fear"}
    assert {"The off switch.", "Unhandled exceptions."} <= answers
    assert ("The off switch.", "Unhandled exceptions.") not in said


def test_chatterbot_keeps_the_lines_of_code_and_mends_a_missing_line_break():
    code = {target for _, target in read_chatterbot(topics=["coding"], tally=Tally())}
    assert any("\n    return" in target for target in code)
    trivia = {
        str(source): said for source, said in read_chatterbot(topics=["trivia"], tally=Tally())
    }
    assert [target for source, target in trivia.items() if "two little ducks" in source] == ["22"]
    assert "1963" in trivia.values()


def test_chatterbot_other_languages():
    languages = [file.parent.name for file in chatterbot_files("german")]
    assert set(languages) == {"german"}
    assert list(read_chatterbot(language="german", tally=Tally()))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"language": "englisch"}, 'no such language; got englisch; did you mean "english"?'),
        ({"topics": ["greeting"]}, 'no such topic; got greeting; did you mean "greetings"?'),
    ],
)
def test_chatterbot_names_what_is_missing(settings, message):
    with pytest.raises(DataError) as caught:
        list(read_chatterbot(**settings, tally=Tally()))
    assert message in str(caught.value)


def test_chatterbot_not_installed(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "chatterbot_corpus", None)
    with pytest.raises(DataError, match="pip install chatterbot-corpus"):
        list(read_chatterbot(tally=Tally()))


# -- pairs------------------------------------------------------------------------------------------


def as_tsv(rows):
    return "".join("\t".join(row) + "\n" for row in rows)


def as_csv(rows):
    return "".join(
        ",".join('"' + cell.replace('"', '""') + '"' for cell in row) + "\r\n" for row in rows
    )


def as_jsonl(rows):
    return "".join(json.dumps({"prompt": row[0], "reply": row[1]}) + "\n" for row in rows)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl", ".txt", ".tsv.gz", ".csv.gz"])
def test_every_format_and_encoding(tmp_path, suffix, encoding):
    write = {".csv": as_csv, ".jsonl": as_jsonl}.get(suffix.removesuffix(".gz"), as_tsv)
    content = write(PAIRS).encode(encoding)
    path = tmp_path / f"pairs{suffix}"
    path.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
    tally = Tally()
    assert list(read_pairs(path, tally=tally)) == PAIRS
    assert (tally.used, tally.replaced, tally.skipped.total()) == (3, 0, 0)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends(tmp_path, end):
    path = tmp_path / "pairs.tsv"
    path.write_bytes(f"a\tb{end}c\tx\u2028y{end}{end}e\tf".encode())
    assert pairs(path) == [("a", "b"), ("c", "x y"), ("e", "f")]


@pytest.mark.parametrize(
    ("header", "settings"),
    [
        ("id,prompt,reply", {}),
        ("id,Question,Answer", {}),
        ("id,a,b", {"source_column": "a", "target_column": "b"}),
        ("id,a,b", {"source_column": "a", "target_column": 3}),
        (None, {"source_column": 2, "target_column": 3}),
        (None, {"source_column": "2", "target_column": "3"}),
    ],
)
def test_columns_by_name_and_number(tmp_path, header, settings):
    path = tmp_path / "pairs.csv"
    path.write_text((header + "\n" if header else "") + "7,hello,hi\n8,who,me\n")
    assert pairs(path, **settings) == [("hello", "hi"), ("who", "me")]


def test_one_column_given_leaves_the_other(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("hallo\thello\nwer\twho\n")
    assert pairs(path, source_column=2) == [("hello", "hallo"), ("who", "wer")]
    assert pairs(path, target_column=1) == [("hello", "hallo"), ("who", "wer")]


def test_jsonl_fields(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text(
        '{"n": 1, "question": "q", "answer": 42}\n{"n": 2, "question": "r", "answer": true}\n'
    )
    assert pairs(path) == [("q", "42"), ("r", "yes")]
    assert pairs(path, source_column="answer", target_column=1) == [("42", "1"), ("yes", "2")]


def test_no_such_column(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("prompt,reply\na,b\n")
    with pytest.raises(DataError, match='no such column; got promt; did you mean "prompt"?'):
        pairs(path, source_column="promt")
    with pytest.raises(DataError, match="no such column; got 3"):
        pairs(path, target_column=3)


def test_a_word_of_the_first_line_is_no_column(tmp_path, capsys):
    for name, text in (
        ("a.tsv", "Where is the file?\tOn the desk.\nAnd the text?\tHere.\n"),
        (
            "a.jsonl",
            (
                '{"prompt": "open the file", "reply": "it is open"}\n'
                '{"Prompt": "and now", "Reply": "now read it"}\n'
            ),
        ),
        ("b.tsv", "sentiment\tGefühl\nanswer\tAntwort\n"),
    ):
        path = tmp_path / name
        path.write_text(text, "utf-8")
        assert inspect(path)["kind"] == "pairs" and len(pairs(path)) == 2


def test_csv_quotes_and_other_delimiters(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text('"say ""hi"", now";"two\nlines"\na 5" disk;ok\nanother 6" disk;ok\n')
    assert pairs(path) == [
        ('say "hi", now', "two lines"),
        ('a 5" disk', "ok"),
        ('another 6" disk', "ok"),
    ]


def test_tsv_is_not_quoted(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text('"a\tb\nc\t"d"\n')
    assert pairs(path) == [('"a', "b"), ("c", '"d"')]


cell = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=8).filter(
    lambda text: "\xad" not in text
)
rows = st.lists(st.tuples(cell, cell), min_size=1, max_size=8)


@given(rows)
def test_csv_and_jsonl_round_trip(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("pairs")
    rows = [("prompt", "reply"), *rows]
    (folder / "p.csv").write_text(as_csv(rows), "utf-8", newline="")
    (folder / "p.jsonl").write_text(as_jsonl(rows[1:]), "utf-8")
    assert pairs(folder / "p.csv") == pairs(folder / "p.jsonl") == rows[1:]


@needs_shared
def test_real_pairs_are_cleaned():
    tally = Tally()
    examples = list(read_pairs(SHARED / "cornell_pairs/pairs.tsv", tally=tally))
    assert len(examples) == tally.used == 27_955
    assert tally.skipped == {"empty side": 45}
    assert tally.replaced == 601  # cp1252 that was once taken for Latin-1
    assert not [
        text
        for example in examples
        for text in map(str, example)
        if any("\x7f" <= c <= "\x9f" for c in text)
    ]


# -- Cornell----------------------------------------------------------------------------------------


@needs_shared
def test_real_cornell_sample():
    tally = Tally()
    examples = list(read_cornell(SHARED / "cornell_raw", tally=tally))
    assert tally.used + tally.skipped["empty side"] == 1142
    assert tally.bad == 0
    assert ("They do to!", "They do not!") in examples
    assert is_cornell(SHARED / "cornell_raw")
    assert [file.name for file in cornell_files(SHARED / "cornell_raw")] == [
        "movie_lines.txt",
        "movie_conversations.txt",
    ]


@needs_shared
def test_convokit_gives_the_same_exchanges(tmp_path):
    lines = [
        line.split(" +++$+++ ")
        for line in (SHARED / "cornell_raw/movie_lines.txt").read_text().split("\n")
    ]
    said = {line[0]: line[4] for line in lines if len(line) == 5}
    with (tmp_path / "utterances.jsonl").open("w") as file:
        for line in (SHARED / "cornell_raw/movie_conversations.txt").read_text().splitlines():
            if not line:
                continue
            names = json.loads(line.split(" +++$+++ ")[3].replace("'", '"'))
            for before, name in reversed(list(zip([None, *names], names, strict=False))):
                row = {
                    "id": name,
                    "conversation_id": names[0],
                    "text": said[name],
                    "speaker": "u0",
                    "reply-to": before,
                }
                file.write(json.dumps(row) + "\n")
    raw, convokit = Tally(), Tally()
    expected = Counter(read_cornell(SHARED / "cornell_raw", tally=raw))
    assert Counter(read_cornell(tmp_path / "utterances.jsonl", tally=convokit)) == expected
    assert Counter(read_cornell(tmp_path, tally=Tally())) == expected
    assert raw == convokit


def test_convokit_underscore(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text(
        '{"id": "2", "reply_to": "1", "text": "b"}\n{"id": "1", "reply_to": null, "text": "a"}\n'
    )
    assert is_cornell(path)
    assert list(read_cornell(path, tally=Tally())) == [("a", "b")]


# -- any path---------------------------------------------------------------------------------------


def test_inspect(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{'w ' * n}\treply {n}\n" for n in range(1, 101)) + "no reply\t\n")
    seen = inspect(path)
    assert (seen["kind"], seen["usable"], seen["skipped"]) == ("pairs", 100, {"empty side": 1})
    assert seen["words"]["source"] == {"median": 50, "p95": 95, "max": 100}
    assert seen["words"]["target"] == {"median": 2, "p95": 2, "max": 2}
    assert len(seen["samples"]) == 3
    assert inspect(path) == seen
    json.dumps(seen)


@given(st.text(min_size=1, max_size=20))
def test_the_same_question_is_in_the_same_part(text):
    assert part_of(text, valid=0.3, test=0.3) == part_of(plain(text), valid=0.3, test=0.3)
    assert part_of(text, valid=0.0, test=0.0) == "train"


def test_parts_have_their_share():
    counts = Counter(part_of(f"question {i}", valid=0.1, test=0.2) for i in range(10_000))
    assert abs(counts["valid"] / 10_000 - 0.1) < 0.02
    assert abs(counts["test"] / 10_000 - 0.2) < 0.02


def test_growing_test_or_valid_never_moves_an_example_into_training():
    before = {i for i in range(500) if part_of(f"q{i}", valid=0.1, test=0.1) == "train"}
    after = {i for i in range(500) if part_of(f"q{i}", valid=0.2, test=0.1) == "train"}
    assert after < before


def test_tally_summary_and_json():
    tally = Tally(used=1200, duplicates=3)
    tally.skip("wrong field count")
    assert tally.summary() == "1,200 used, 1 skipped (wrong field count 1), 3 duplicates"
    assert Tally.from_json(json.loads(json.dumps(tally.to_json()))) == tally


def test_word_count():
    assert word_count(" two  words ") == 2
