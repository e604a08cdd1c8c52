"""A wait is announced on stderr, and leaves stdout to the answer."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from regard import cli
from regard.cli import streams, waiting
from regard.cli.waiting import Waiting
from tests.tiny import memorised, pairs_file


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "SOON", 0.0)
    monkeypatch.setattr(waiting, "LATE", 0.0)


def test_a_terminal_shows_it_and_forgets_it(impatient, monkeypatch: pytest.MonkeyPatch):
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    with Waiting("reading data") as wait:
        wait.timer.join()
        assert stream.getvalue() == "reading data …"
    assert stream.getvalue() == "reading data …\r\033[K"


def test_a_log_has_a_line(impatient, monkeypatch: pytest.MonkeyPatch):
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    with Waiting("reading data") as wait:
        wait.timer.join()
    assert stream.getvalue() == "reading data …\n"


def test_a_message_takes_the_place_of_the_line(impatient, monkeypatch: pytest.MonkeyPatch):
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    with Waiting("reading data") as wait:
        wait.timer.join()
        streams.tell("something to know")
    streams.tell("more")
    assert stream.getvalue() == ("reading data …\r\033[Kregard: something to know\nregard: more\n")


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_what_is_quick_says_nothing(stream: type[io.StringIO], monkeypatch: pytest.MonkeyPatch):
    opened = stream()
    monkeypatch.setattr("sys.stderr", opened)
    monkeypatch.setattr(waiting, "SOON", 1000.0)
    monkeypatch.setattr(waiting, "LATE", 1000.0)
    with Waiting("reading data") as wait:
        wait.end()
    wait._show()  # a timer that fires too late
    assert opened.getvalue() == ""


def begin_at_once(wait: Waiting) -> Waiting:
    """As if every wait were long."""
    wait._show()
    return wait


def test_every_verb_announces_its_waits_and_leaves_json_alone(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Waiting, "begin", begin_at_once)
    run = str(tmp_path / "run")
    changes = memorised(pairs_file(tmp_path), "train.steps=2", "encoder.width=8")
    sets = [word for change in changes for word in ("--set", change)]
    for command, messages in (
        (
            ["train", "chat-gru", "--out", run, *sets, "--json"],
            ["loading", "reading data", "writing the report"],
        ),
        (
            ["evaluate", run, "--split", "train", "--json"],
            [f"loading {run}", "reading data", "scoring 10 examples"],
        ),
        (["ask", run, "Hello!", "--json"], [f"loading {run}", "answering"]),
    ):
        assert cli.main(command) == 0
        told = capsys.readouterr()
        json.loads(told.out)
        assert [line for line in told.err.splitlines() if line.endswith("…")] == [
            f"{one} …" for one in messages
        ]
