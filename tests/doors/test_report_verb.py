"""regard report, and the report that regard train ends with."""

from __future__ import annotations

import html
import json
import shlex
import shutil
import signal
from pathlib import Path

import pytest

from regard import cli, disk, recipe
from regard.train import Stopped, train
from tests.stopping import run_with_signal
from tests.tiny import Silent, memorised, pairs_file


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run trained through the door."""
    folder = tmp_path_factory.mktemp("door")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        assert cli.main(["train", "chat-gru", "--out", str(folder / "run"), *sets(folder)]) == 0
    return folder / "run"


@pytest.fixture(autouse=True)
def cache(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(run.parent / "cache"))


def settings(folder: Path, *more: str) -> list[str]:
    return memorised(
        pairs_file(folder),
        "encoder.width=8",
        "train.steps=4",
        "train.valid_every=2",
        "data.valid=0.3",
        "search.max_new_tokens=5",
        *more,
    )


def sets(folder: Path, *more: str) -> list[str]:
    return [word for change in settings(folder, *more) for word in ("--set", change)]


def page_of(path: Path) -> str:
    return html.unescape(path.read_text("utf-8"))


def one_line(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert cli.main([str(word) for word in words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("regard: ") and error.count("\n") == 1
    return error


def test_training_ends_with_the_report_and_names_it(tmp_path: Path, capsys):
    words = ["train", "chat-gru", "--out", str(tmp_path / "run"), *sets(tmp_path)]
    assert cli.main(words) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[-1] == f"read all about it in: {tmp_path / 'run' / 'report.html'}"
    page = page_of(tmp_path / "run" / "report.html")
    assert "95 % interval" in page and "Attention of a few answers" in page
    assert shlex.join(["regard", *words]) in page


def test_a_failed_report_is_a_line_and_no_failure(tmp_path: Path, capsys, monkeypatch):
    def failing(*_: object, **__: object) -> None:
        raise RuntimeError("no pages today")

    monkeypatch.setattr("regard.pages.report.report", failing)
    words = ["train", "chat-gru", "--out", str(tmp_path / "run"), *sets(tmp_path), "--json"]
    assert cli.main(words) == 0
    streams = capsys.readouterr()
    assert json.loads(streams.out)["steps"] == 4
    assert "the report is not written: no pages today" in streams.err


def test_the_verb_makes_it_again_or_elsewhere(run: Path, tmp_path: Path, capsys):
    (run / "report.html").unlink()
    assert cli.main(["report", str(run), "--limit", "2"]) == 0
    assert capsys.readouterr().out == f"wrote {run / 'report.html'}\n"
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    other = tmp_path / "other.html"
    assert cli.main(["report", str(run), "--out", str(other), "--limit", "2"]) == 0
    assert cli.main(["report", str(run), "--out", str(other), "--limit", "2"]) == 0  # our own
    assert "run: a chatbot" in page_of(other)
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before


def test_a_file_of_somebody_is_refused_before_anything_is_asked(run: Path, tmp_path: Path, capsys):
    own = tmp_path / "own.html"
    own.write_text("<!DOCTYPE html><p>mine")
    assert "did not write" in one_line(capsys, "report", run, "--out", own)
    assert own.read_text() == "<!DOCTYPE html><p>mine"
    copy = shutil.copytree(run, tmp_path / "run")
    (copy / "report.html").write_text("mine")
    assert "did not write" in one_line(capsys, "report", copy)
    assert (copy / "report.html").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere: no such run"),
        (["."], "not a run folder: it has no manifest.json"),
        ([""], "a path is empty"),
        (["RUN", "--out", "page.txt"], "must end in .html"),
        (["RUN", "--test"], "no test examples"),
        (["RUN", "--limit", "0"], "--limit"),
    ],
)
def test_mistakes_end_in_one_line(run: Path, tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    words = [str(run) if word == "RUN" else word for word in words]
    assert message in one_line(capsys, "report", *words)
    assert not list(tmp_path.iterdir())


def test_a_damaged_recipe_is_named(run: Path, tmp_path: Path, capsys):
    copy = shutil.copytree(run, tmp_path / "run")
    (copy / "recipe.json").write_text("{}")
    assert "recipe.json: damaged" in one_line(capsys, "report", copy)


def test_a_run_under_way(run: Path, tmp_path: Path, capsys):
    copy = shutil.copytree(run, tmp_path / "run")
    with disk.locked(copy):
        assert disk.is_locked(copy)
        assert cli.main(["report", str(copy), "--limit", "2"]) == 0
    assert not disk.is_locked(copy)
    page = page_of(copy / "report.html")
    assert "Training is under way" in page
    assert '<html lang="en" data-refresh="30">' in page


def test_a_run_that_was_stopped_before_its_first_validation(tmp_path: Path, capsys):
    class Stopping(Silent):
        def stepped(self, progress, loss, speed, done) -> None:
            import os
            import signal

            if progress.step == 1:
                os.kill(os.getpid(), signal.SIGTERM)

    run = tmp_path / "run"
    with pytest.raises(Stopped):
        train(recipe.load("chat-gru", settings(tmp_path)), run, reporter=Stopping())
    page = page_of(run / "report.html")
    assert "Training was stopped" in page and f"regard train --resume {run}" in page
    assert "There are no scores yet" in page
    assert cli.main(["report", str(run), "--limit", "2"]) == 0
    assert "checkpoint of step 1" in capsys.readouterr().err
    page = page_of(run / "report.html")
    assert "Training was stopped" in page and "Attention of a few answers" in page


def test_a_sweep_leaves_a_short_report_in_each_run(tmp_path: Path, capsys):
    words = ["train", "chat-gru", "--out", str(tmp_path / "sweep"), *sets(tmp_path)]
    assert cli.main([*words, "--sweep", "train.learning_rate=0.1,0.01"]) == 0
    pages = sorted((tmp_path / "sweep").glob("*/report.html"))
    assert len(pages) == 2
    for page in map(page_of, pages):
        assert "of a validation during training" in page
        assert "Attention of a few answers" not in page


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)]
)
@pytest.mark.parametrize("place", ["regard.pages.shell.render", "regard.disk.sync", "os.replace"])
def test_a_report_that_is_stopped_leaves_the_older_page(
    run: Path, tmp_path: Path, place: str, number: signal.Signals, code: int
):
    out = tmp_path / "page.html"
    words = ["report", str(run), "--out", str(out), "--limit"]
    assert cli.main([*words, "2"]) == 0
    before = out.read_bytes()
    text = "" if place.endswith("render") else "page.html"
    new = place.endswith("render") and number == signal.SIGINT
    done = run_with_signal(number, place, [*words, "3"], text=text, new=new)
    assert done.returncode == code and done.stdout == ""
    assert "Traceback" not in done.stderr
    assert out.read_bytes() == before
    assert cli.main([*words, "3"]) == 0
    assert out.read_bytes() != before


@pytest.mark.parametrize(
    ("place", "text"), [("regard.disk.sync", "report.html"), ("regard.pages.report.report", "")]
)
def test_a_training_that_is_killed_while_it_writes_a_report_goes_on(
    tmp_path: Path, capsys, place: str, text: str
):
    """Killed in the middle of its first draft, or before it has written the whole report."""
    run = tmp_path / "run"
    words = ["train", "chat-gru", "--out", run, *sets(tmp_path, "train.save_every=1")]
    done = run_with_signal(signal.SIGKILL, place, words, text=text, new=False)
    assert done.returncode == -signal.SIGKILL and "Traceback" not in done.stderr
    page = run / "report.html"
    if text:
        assert not page.exists() and list(run.glob(".report.html.*.regard-new"))
    else:
        assert page_of(page).rstrip().endswith("</html>")
    assert cli.main(["train", "--resume", str(run)]) == 0
    assert "Attention of a few answers" in page_of(page)
    assert not list(run.glob(".report*"))
