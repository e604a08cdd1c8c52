"""Plain text: how it falls into sentences, and what becomes of odd files."""

from __future__ import annotations

import gzip
import json
import tracemalloc

import pytest

from regard import build, cli, recipe
from regard.bundle import load
from regard.data.lines import Tally
from regard.data.sentences import is_text, read_text, split
from regard.errors import DataError
from regard.tokenizers import Words
from regard.train import train
from regard.weights import tensors
from tests.tiny import Silent, memorised, text_file

WRAPPED = """It is a truth universally acknowledged, that a single man in
possession of a good fortune, must want a wife. Mr. Bennet
was so odd a mix-
ture of quick parts, that no one could know him.

"My dear Mr. Bennet," said his lady to him one day, "have you heard
that Netherfield Park is let at last?" Mr. Bennet replied that he
had not.
"""
SENTENCES = [
    (
        "It is a truth universally acknowledged, that a single man in possession of a good "
        "fortune, must want a wife."
    ),
    "Mr. Bennet was so odd a mixture of quick parts, that no one could know him.",
    (
        '"My dear Mr. Bennet," said his lady to him one day, '
        '"have you heard that Netherfield Park is let at last?"'
    ),
    "Mr. Bennet replied that he had not.",
]


def texts(path, **more) -> list[str]:
    tally = Tally()
    found = list(read_text(path, tally=tally, **more))
    assert all(source == target for source, target in found) and len(found) == tally.used
    return [str(source) for source, _ in found]


def test_wrapped_lines_and_whole_ones(tmp_path):
    book, lines = tmp_path / "book.txt", tmp_path / "lines.txt.gz"
    book.write_text(WRAPPED, "utf-8")
    with gzip.open(lines, "wt", encoding="utf-8") as file:
        file.write("\n".join(SENTENCES[:2]) + "\n" + " ".join(SENTENCES[2:]) + "\n")
    assert texts(book) == texts(lines) == SENTENCES
    assert texts(tmp_path) == 2 * SENTENCES  # a folder of both
    assert texts(book, layout="lines")[0].endswith("single man in")


@pytest.mark.parametrize(
    ("paragraph", "sentences"),
    [
        ("one . two .", ["one . two ."]),  # small letters: the points of somebody's tokens
        ("He left (at 5.30 p.m.). She stayed!", ["He left (at 5.30 p.m.).", "She stayed!"]),
        ("这是一。那是二！", ["这是一。", "那是二！"]),
        ("Élan? Über alles. ¿Qué? Sí.", ["Élan?", "Über alles.", "¿Qué?", "Sí."]),
    ],
)
def test_where_a_sentence_ends(paragraph, sentences):
    assert [one for one in split(paragraph) if one] == sentences


def test_what_is_no_sentence_is_counted(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text(
        "Chapter 1\n\nFill the __ in here.\n" + "x y " * 2000 + "\n\nThis one is good.\n", "utf-8"
    )
    tally = Tally()
    assert [e.source for e in read_text(path, tally=tally, layout="lines")] == ["This one is good."]
    assert tally.skipped == {
        "fewer than three words": 1,
        "has a blank already": 1,
        "sentence too long": 1,
    }


def test_bad_files_are_one_line(tmp_path):
    (tmp_path / "empty.txt").write_text("")
    for path, said in (
        (tmp_path / "empty.txt", "no usable examples"),
        (tmp_path / "no.txt", "no such file or folder"),
    ):
        with pytest.raises(DataError, match=said):
            texts(path)
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(WRAPPED.encode())[:-20])
    with pytest.raises(DataError, match="not a whole gzip file"):
        texts(tmp_path / "cut.txt.gz")


def test_a_paragraph_without_end_is_not_held(tmp_path):
    path = tmp_path / "long.txt"
    line = "and then the hare ran over the hill and far away.  Then it"
    path.write_text("\n".join([line] * 20_000), "utf-8")  # 1.2 MB
    tracemalloc.start()
    count = sum(1 for _ in read_text(path, tally=Tally(), layout="wrapped"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 20_000 and peak < 600_000


def test_a_text_without_any_full_stop_is_given_out(tmp_path):
    path = tmp_path / "long.txt"
    path.write_text("\n".join(["and then the hare ran over the hill and far away"] * 3000), "utf-8")
    tally = Tally()
    with pytest.raises(DataError, match="no usable"):
        list(read_text(path, tally=tally, layout="wrapped"))
    assert tally.skipped["sentence too long"] > 5


def test_tables_are_not_text(tmp_path):
    for name, content in {
        "a.tsv": "a\tb\n",
        "b.txt": "a\tb\nc\td\n",
        "c.txt": '{"a": 1}\n',
    }.items():
        (tmp_path / name).write_text(content, "utf-8")
        assert not is_text(tmp_path / name)
    (tmp_path / "d.txt").write_text(WRAPPED, "utf-8")
    assert is_text(tmp_path / "d.txt") and not is_text(tmp_path)


def test_rare_words_are_counted_once_a_sentence(tmp_path, monkeypatch):
    """A sentence stands on both sides of an example; a word that was seen once is still rare."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "a.txt"
    path.write_text("red cats eat.\nred cats sleep.\n", "utf-8")
    chosen = recipe.load(
        "blank-rnn",
        ["data.kind=text", f'data.path="{path}"', "data.valid=0.0", "tokenizer.min_count=2"],
    )
    corpus = build.corpus(chosen)
    assert isinstance(corpus.tokenizer, Words)
    assert set(corpus.tokenizer.words) == {"red", "cats", "."}


class Broken(Exception):
    pass


class Breaks(Silent):
    def stepped(self, progress, loss, speed, done) -> None:
        if progress.step == 7:
            raise Broken


def test_blanks_drawn_anew_survive_a_break(tmp_path, monkeypatch):
    """A run that broke off and was resumed hides the same words: it ends with the same bits."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    more = (
        "train.steps=12",
        "train.save_every=5",
        "tokenizer.min_count=1",
        "train.batch_tokens=24",
        "encoder.dropout=0.3",
    )
    chosen = recipe.load("blank-rnn", memorised(text_file(tmp_path), *more))
    train(chosen, tmp_path / "whole", reporter=Silent())
    with pytest.raises(Broken):
        train(chosen, tmp_path / "broken", reporter=Breaks())
    train(chosen, tmp_path / "broken", reporter=Silent(), resume=True)
    whole, broken = (tensors(load(tmp_path / name).model) for name in ("whole", "broken"))
    assert all(bool((whole[name] == broken[name]).all()) for name in whole)


def test_through_the_doors(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    path = text_file(tmp_path)
    assert cli.main(["data", "inspect", str(path)]) == 0
    out = capsys.readouterr().out
    assert ": text, 8 usable examples" in out and f"regard train blank-rnn --data {path}" in out
    train(
        recipe.load("blank-rnn", memorised(path, "train.steps=80", "tokenizer.min_count=1")),
        tmp_path / "run",
        reporter=Silent(),
    )
    run = str(tmp_path / "run")
    assert cli.main(["ask", run, "Only with a ___.", "A ___ walks into a bar.", "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["answer"], second["answer"]) == ("biscuit", "horse")
    chances = [one["probability"] for one in first["best"]]
    assert (
        len(chances) == 5
        and chances == sorted(chances, reverse=True)
        and chances[0] == first["probability"] > 0.5
    )
    assert cli.main(["ask", run, "In a ___ machine."]) == 0
    assert capsys.readouterr().out.startswith("In a ___ machine.  ->  small ")
    assert cli.main(["ask", run, "In a machine."]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert cli.main(["evaluate", run, "--data", str(path), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["accuracy"] == scores["accuracy_at_5"] == 1 and scores["examples"] == 8
    assert load(tmp_path / "run").ask("Only with a ___.").place_names[3] == "___"
