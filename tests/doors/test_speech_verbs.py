"""What a person types about sounds, and what comes back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from regard import cli
from tests.doors.test_verbs import one_line
from tests.tiny import WORDS, memorised_sounds, sounds_table


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run trained through the door, and beside it the sounds."""
    folder = tmp_path_factory.mktemp("speech")
    table = sounds_table(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        changes = [
            one
            for one in memorised_sounds(table, "train.steps=120")
            if not one.startswith(("data.kind", "data.path"))
        ]
        sets = [word for change in changes for word in ("--set", change)]
        run = str(folder / "run")
        assert (
            cli.main(["train", "speech-attention", "--data", str(table), "--out", run, *sets]) == 0
        )
    return folder


def test_ask_hears_files_of_every_format(trained: Path, tmp_path: Path, capsys):
    samples, rate = soundfile.read(trained / "sounds" / "3.wav")
    files = [
        str(trained / "sounds" / "3.wav"),
        *(str(tmp_path / f"a.{suffix}") for suffix in ("flac", "ogg")),
    ]
    for file in files[1:]:
        soundfile.write(file, samples, rate)
    assert cli.main(["ask", str(trained / "run"), *files]) == 0
    assert capsys.readouterr().out == "".join(f"{file}  ->  {WORDS[3]}\n" for file in files)


def test_every_validation_says_what_is_reached_without_the_sound(trained: Path):
    lines = [
        json.loads(line) for line in (trained / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    scored = [line for line in lines if line["kind"] == "training_examples"]
    assert scored[-1]["cer"] < min(
        scored[-1]["baselines"][name]["cer"] for name in ("one string", "another's text")
    )
    assert all(line["baselines"] == scored[0]["baselines"] for line in scored)


def test_a_list_of_sounds_becomes_json_lines(trained: Path, tmp_path: Path, capsys):
    files = [str(trained / "sounds" / f"{i}.wav") for i in range(10)]
    (tmp_path / "list.txt").write_text("\n".join(files))
    assert cli.main(["ask", str(trained / "run"), "--file", str(tmp_path / "list.txt")]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["input"], row["answer"]) for row in rows] == list(zip(files, WORDS, strict=True))


def test_bad_sounds_end_in_one_line(trained: Path, tmp_path: Path, capsys):
    run, bad = str(trained / "run"), tmp_path / "bad.wav"
    bad.write_bytes((trained / "sounds" / "3.wav").read_bytes()[:500])
    assert "no such sound" in one_line(capsys, "ask", run, str(tmp_path / "nothing.wav"))
    assert f"{bad}: the sound is cut short" in one_line(capsys, "ask", run, str(bad))
    soundfile.write(bad, np.zeros(8000 * 61), 8000)
    assert "longer than 60 seconds; got 61.0 seconds" in one_line(capsys, "ask", run, str(bad))


def test_one_bad_sound_does_not_end_the_list(trained: Path, tmp_path: Path, capsys):
    files = [
        str(trained / "sounds" / "0.wav"),
        str(tmp_path / "nothing.wav"),
        str(trained / "sounds" / "1.wav"),
    ]
    (tmp_path / "list.txt").write_text("\n".join(files))
    assert cli.main(["ask", str(trained / "run"), "--file", str(tmp_path / "list.txt")]) == 2
    told = capsys.readouterr()
    first, second, third = (json.loads(line) for line in told.out.splitlines())
    assert (first["answer"], third["answer"]) == (WORDS[0], WORDS[1])
    assert second == {"input": files[1], "error": f"{files[1]}: no such sound"}
    assert "not all inputs have an answer; got 1 of 3 that cannot be read" in told.err
    assert cli.main(["ask", str(trained / "run"), *files]) == 2
    told = capsys.readouterr()
    assert told.out == f"{files[0]}  ->  {WORDS[0]}\n{files[2]}  ->  {WORDS[1]}\n"
    assert "no such sound" in told.err


def test_evaluate_shows_what_is_reached_blindly(trained: Path, capsys, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(trained / "cache"))
    assert cli.main(["evaluate", str(trained / "run"), "--split", "train"]) == 0
    told = capsys.readouterr().out
    for name in ("cer", "wer", "exact", "jaccard", "cosine", "damerau_levenshtein"):
        (line,) = [line for line in told.splitlines() if line.startswith(f"{name} ")]
        assert "another's text" in line and "one string" in line
    table = trained / "sounds" / "sounds.csv"
    assert cli.main(["evaluate", str(trained / "run"), "--data", str(table), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert (
        scores["exact"] == 1.0
        and scores["cer"] == 0.0
        and scores["baselines"]["another's text"]["cer"] > 0.5
    )


def test_inspect_knows_sounds(trained: Path, capsys):
    table = trained / "sounds" / "sounds.csv"
    assert cli.main(["data", "inspect", str(table)]) == 0
    told = capsys.readouterr().out
    assert f"{table}: sounds, 10 usable examples" in told and "seconds: median" in told
    assert f"regard train speech-attention --data {table}" in told
    assert cli.main(["data", "inspect", str(table), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "sounds"


def test_data_that_is_no_sound_is_refused(trained: Path, tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "empty").mkdir()
    sound = trained / "sounds" / "3.wav"
    assert "one sound is no corpus" in one_line(
        capsys, "train", "speech-attention", "--data", str(sound)
    )
    assert "no usable examples" in one_line(
        capsys, "train", "speech-attention", "--data", str(tmp_path / "empty")
    )
    (tmp_path / "head.csv").write_text("path,text\n")
    head = str(tmp_path / "head.csv")
    assert "no usable examples" in one_line(capsys, "train", "speech-attention", "--data", head)
