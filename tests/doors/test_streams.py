"""Standard streams that are closed before the command begins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from regard import cli
from tests.tiny import by_heart, pairs_file


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
            for change in by_heart(pairs_file(folder), "train.steps=2")
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
        f"train chat-gru --data {pairs_file(tmp_path)} --steps 1 --out {tmp_path / 'run'} --json <&- 2>&-"
    )
    assert done.returncode == 0 and done.stdout.startswith("{")
    assert shell(f"ask {tmp_path / 'run'} 'Hello!'").returncode == 0
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        assert line.startswith("{")
