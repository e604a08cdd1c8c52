"""Control characters never reach the terminal as they are: not from file names, labels, prompts,
answers or options."""

from __future__ import annotations

import io
import json
import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from regard import cli
from regard.errors import InputError, printable
from tests.tiny import LABELS, PAIRS, memorised, memorised_pictures

EVIL = "\x1b[31mred\x9b\u202e"
SAFE = r"\x1b[31mred\x9b\u202e"
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def lines(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> list[str]:
    capsys.readouterr()
    assert cli.main([str(word) for word in words]) == code
    said = capsys.readouterr()
    assert not RAW.search(said.out + said.err)
    return (said.out + said.err).splitlines()


@given(st.text())
def test_what_is_printable_stays_and_nothing_else_does(text: str):
    shown = printable(text)
    assert all(unicodedata.category(c) not in ("Cc", "Cs", "Zl", "Zp") for c in shown)
    assert all(
        unicodedata.bidirectional(c)
        not in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
        for c in shown
    )
    assert printable(shown) == shown
    if text.isprintable():
        assert shown == text


def test_other_scripts_and_emoji_stay():
    for text in ("Füße, 水, नमस्ते, שלום", "👩‍👩‍👧", r"C:\new"):
        assert printable(text) == text


def test_an_error_is_one_line_whatever_it_is_about():
    error = InputError(
        "no\nsuch", where=Path("a\x1b[2Jb"), got="c\rd", hint="e\u202ef", details=["one\n", "two"]
    )
    assert str(error) == "a\\x1b[2Jb: no\\nsuch; got c\\rd; e\\u202ef\n  one\\n\n  two"


@pytest.mark.parametrize(
    "words",
    [
        ["{}"],
        ["train", "{}"],
        ["train", "chat-gru", "--set", "{}=3"],
        ["train", "chat-gru", "--set", "encoder.{}=3"],
        ["train", "chat-gru", "--set", "encoder.width={}"],
        ["train", "chat-gru", "--sweep", "{}=3,4"],
        ["train", "chat-gru", "--data", "{}"],
        ["train", "chat-gru", "--{}"],
        ["train", "--resume", "{}"],
        ["ask", "{}", "Hello!"],
        ["recipes", "show", "{}"],
        ["recipes", "check", "{}.toml"],
        ["data", "inspect", "{}"],
        ["data", "fetch", "{}"],
        ["lab", "{}"],
        ["lab", "heads", "--set", "{}=1"],
        ["budget", "{}"],
    ],
)
def test_mistakes_are_told_in_one_line(capsys, words: list[str]):
    (line,) = lines(capsys, *(word.format(f"{EVIL}\nregard: done\r") for word in words), code=2)
    assert line.startswith("regard: ")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on pictures whose labels, files and folders have control characters in their names."""
    folder = tmp_path_factory.mktemp("printable")
    draw = np.random.default_rng(7)
    for number, label in enumerate(LABELS):
        home = folder / f"pictures{EVIL}" / f"{label}{EVIL}\nx"
        home.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (28, 28), np.uint8)).save(
            home / f"{number}{EVIL}.png"
        )
    return folder


def test_training_asking_evaluating_and_inspecting(folder: Path, capsys, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(folder / "cache"))
    data, run = folder / f"pictures{EVIL}", folder / f"run{EVIL}"
    assert any(rf"fact{SAFE}\nx 6" in line for line in lines(capsys, "data", "inspect", data))
    toml = json.dumps(str(data), ensure_ascii=True)
    changes = [
        change
        for change in memorised_pictures(data, "train.steps=2")
        if not change.startswith("data.path")
    ]
    sets = [word for change in [*changes, f"data.path={toml}"] for word in ("--set", change)]
    told = lines(capsys, "train", "image-pool", "--out", run, *sets)
    assert any(rf"{SAFE}\nx/" in line and "  ->  " in line for line in told)
    assert any(rf"regard ask {folder}/run{SAFE} " in line for line in told)
    told = lines(capsys, "evaluate", run, "--split", "train")
    assert any(line.startswith(rf"joke{SAFE}\nx") for line in told)
    picture = next(file for file in data.rglob("*.png"))
    (line,) = lines(capsys, "ask", run, picture)
    assert line.startswith(printable(picture)) and SAFE in line.partition("->")[2]
    capsys.readouterr()
    assert cli.main(["ask", str(run), str(picture), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["input"] == str(picture)  # JSON stays as it is
    told = lines(capsys, "ask", run, "no\x1bsuch.png", picture, code=2)
    assert r"regard: no\x1bsuch.png: no such picture" in told


def test_prompts_answers_and_tables_of_sweeps(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    mark = "\u202e\u2066"  # readers replace C0 and C1, and keep what turns the direction
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text(
        "".join(f"{mark}{prompt}\t{mark}{reply}\n" for prompt, reply in PAIRS), "utf-8"
    )
    sets = [
        word
        for change in memorised(pairs, "tokenizer.kind=characters", "train.steps=40")
        for word in ("--set", change)
    ]
    told = lines(capsys, "train", "chat-gru", "--out", tmp_path / "run", *sets)
    assert any(r"\u202e\u2066Hello!  ->  " in line for line in told)
    assert any(r"\u202e" in line for line in lines(capsys, "data", "inspect", pairs))
    told = lines(capsys, "ask", tmp_path / "run", f"Hello{mark}", "--best", "2")
    assert told[0].startswith(r"Hello\u202e\u2066  ->  \u202e")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"Hello{mark}\n/attend\n"))
    assert lines(capsys, "chat", tmp_path / "run")[0].startswith(r"\u202e")
    told = lines(
        capsys,
        "train",
        "chat-gru",
        "--out",
        tmp_path / f"s{EVIL}",
        *sets,
        "--steps",
        "1",
        "--sweep",
        "train.learning_rate=0.1,0.2",
    )
    assert any(f"the best run is {tmp_path}/s{SAFE}/train.learning_rate=" in line for line in told)
