"""Standard streams that are closed before the command begins."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

import regard
from regard import cli
from regard.bundle import load
from regard.cli.chat import _editor
from regard.errors import printable
from tests.tiny import memorised, pairs_file


def shell(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m regard {command}"],
        input="Hello!\n",
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("streams")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        sets = [
            word
            for change in memorised(pairs_file(folder), "train.steps=2")
            for word in ("--set", change)
        ]
        assert cli.main(["train", "chat-gru", "--out", str(folder / "run"), *sets]) == 0
    return folder / "run"


CLOSED = "regard: standard output is closed; send it to a file, or to /dev/null\n"


@pytest.mark.parametrize(
    ("closed", "code", "error"),
    [
        ("<&-", 0, ""),
        ("2>&-", 0, ""),
        ("<&- 2>&-", 0, ""),
        (">&-", 2, CLOSED),
        ("<&- >&-", 2, CLOSED),
        (">&- 2>&-", 2, ""),
        ("<&- >&- 2>&-", 2, ""),
    ],
)
def test_a_closed_stream_is_needed_or_is_not(closed: str, code: int, error: str):
    done = shell(f"recipes list {closed}")
    assert (done.returncode, done.stderr) == (code, error)
    assert ("chat-attention" in done.stdout) == (code == 0)


def test_verbs_that_read_say_that_there_is_nothing_to_read(run: Path):
    for verb in ("ask", "chat"):
        done = shell(f"{verb} {run} <&-")
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert "nothing to read: standard input is closed; type it, or send it" in done.stderr
        assert shell(f"{verb} {run} <&- 2>&-").returncode == 2
    assert shell(f"ask {run} 'Hello!' <&- 2>&-").returncode == 0


def test_files_do_not_get_the_number_of_a_closed_stream(run: Path, tmp_path: Path):
    """Else a line that is printed would be written into the first file that is opened."""
    done = shell(
        f"train chat-gru --data {pairs_file(tmp_path)} --steps 1 --out {tmp_path / 'run'} "
        "--json <&- 2>&-"
    )
    assert done.returncode == 0 and done.stdout.startswith("{")
    assert shell(f"ask {tmp_path / 'run'} 'Hello!'").returncode == 0
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        assert line.startswith("{")


# -- ask and chat: what is typed -------------------------------------------------------------------


def refusal(capsys, *words: object) -> str:
    assert cli.main([str(word) for word in words]) == 2
    return capsys.readouterr().err.removeprefix("regard: ").strip()


def test_contradictions_about_the_search_are_refused(run: Path, capsys):
    assert refusal(capsys, "ask", run, "Hi", "--greedy", "--best", "3") == (
        "--greedy: a greedy search has one answer; got --best 3; leave one of them out"
    )
    message = refusal(capsys, "ask", run, "Hi", "--greedy", "--set", "num_beams=4")
    assert message.endswith(
        "--greedy: a greedy search has one beam and draws nothing; got num_beams=4; "
        "leave one of them out"
    )


def test_maps_are_refused_before_anything_is_answered(run: Path, capsys, monkeypatch):
    assert refusal(capsys, "ask", "no run", "Hi", "--maps", "maps.txt") == (
        "--maps: the file of the maps must end in .png; got maps.txt"
    )
    monkeypatch.setattr("regard.bundle.Bundle.candidates", None)
    message = refusal(capsys, "ask", run, "Hi", "--maps", "maps.png")
    assert message.endswith("--maps: maps are of pictures, and this model reads none")


def test_the_best_answers_say_what_they_are_ranked_by(run: Path, capsys):
    words = ["ask", str(run), "Hello!", "--best", "2", "--set", "length_penalty=0.5"]
    assert cli.main([*words, "--set", "idf_weight=0", "--set", "mmi_weight=0"]) == 0
    _, header, *rows = capsys.readouterr().out.splitlines()
    assert header == "        rank     log p  answer (rank = log p / length^0.5, larger is better)"
    ranks = []
    answers = load(run).candidates(
        ["Hello!"], num_beams=2, candidates=2, length_penalty=0.5, idf_weight=0.0, mmi_weight=0.0
    )[0]
    for row, answer in zip(rows, answers, strict=True):
        rank, logprob, text = row.split(maxsplit=2)
        assert rank == f"{answer.rank:.3f}" and logprob == f"{answer.score:.3f}"
        assert text == printable(answer.text)
        length = len(answer.logprobs)
        assert answer.rank == pytest.approx(answer.score / length**0.5, abs=1e-3)
        ranks.append(answer.rank)
    assert ranks == sorted(ranks, reverse=True) and len(ranks) == 2

    assert cli.main([*words, "--set", "repetition_penalty=3"]) == 0
    assert "log p after repetition_penalty" in capsys.readouterr().out

    assert cli.main([*words, "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["best"]
    assert [answer.keys() for answer in best] == [{"answer", "score", "rank"}] * 2
    assert cli.main(["ask", "--help"]) == 0
    assert "ranked by log p / length" in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_the_name_of_a_file_is_noted_by_a_model_that_reads_text(run: Path, tmp_path, capsys):
    file = tmp_path / "seven.png"
    file.touch()
    assert cli.main(["ask", str(run), str(file), "--greedy"]) == 0
    note = f"regard: {file}: this model reads text; it was given the name of a file\n"
    assert note in capsys.readouterr().err


def test_help_names_the_default_search(capsys):
    for verb in ("ask", "chat"):
        assert cli.main([verb, "--help"]) == 0
        assert 'section "search"' in capsys.readouterr().out


def chat(run: Path, monkeypatch, *lines: str) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    return cli.main(["chat", str(run), "--greedy"])


def test_commands_of_a_chat(run: Path, capsys, monkeypatch):
    assert chat(run, monkeypatch, "/HELP", "/Exit", "/help") == 0
    listed = capsys.readouterr().out
    assert listed.count("/quit") == 1
    attends = regard.load(run).attends()
    assert ("/attend" in listed) == attends
    monkeypatch.setattr("regard.bundle.Bundle.attends", lambda bundle: not attends)
    assert chat(run, monkeypatch, "/help") == 0
    assert ("/attend" in capsys.readouterr().out) != attends


def test_a_bad_line_of_a_chat_has_the_same_exit_code_wherever_it_is(run: Path, capsys, monkeypatch):
    bad = "word " * 20_000
    codes = {
        chat(run, monkeypatch, "Hello!", bad, "Hello!"),
        chat(run, monkeypatch, "Hello!", bad),
        chat(run, monkeypatch, bad),
    }
    assert codes == {0} and capsys.readouterr().err.count("the prompt is too long") == 3


def test_ctrl_c_clears_a_line_and_leaves_from_an_empty_one():
    from prompt_toolkit.application import create_app_session
    from prompt_toolkit.input import create_pipe_input
    from prompt_toolkit.output import DummyOutput

    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        read_line = _editor()
        keys.send_text("half a li\x03Hello!\r")
        assert read_line() == "Hello!"
        keys.send_text("half\x03\x03")
        with pytest.raises(KeyboardInterrupt):
            read_line()
