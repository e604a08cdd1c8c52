"""Every verb, under what a shell, a terminal and a disk can do to it: one line and the right exit
code, never a traceback. Verbs are those that are found, so a new one is tested too."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.main import get_command

from regard import cli
from regard.cli import waiting
from tests.tiny import memorised, pairs_file

VERBS = cli.VERBS
GROUPS = {
    "data": "inspect",
    "recipes": "show",
}  # a verb with subcommands, and one that reads a file
# What makes each verb work, with RUN and FILE to be replaced; a new verb gets `verb FILE`.
WORKING = {
    "train": ["train", "chat-gru", "--data", "FILE", "--steps", "1", "--out", "OUT"],
    "chat": ["chat", "RUN"],
    "ask": ["ask", "RUN", "Hello!"],
    "attend": ["attend", "RUN", "Hello!", "--out", "OUT.html"],
    "evaluate": ["evaluate", "RUN", "--split", "train"],
    "report": ["report", "RUN"],
    "serve": ["serve", "--help"],
    "compare": ["compare", "--help"],
    "budget": ["budget", "chat-gru"],
    "data": ["data", "inspect", "FILE"],
    "recipes": ["recipes", "list"],
    "lab": ["lab", "--help"],
    "doctor": ["doctor"],
}
# The words before the name of a file that is to be read.
READING = {
    "train": ["train", "chat-gru", "--data"],
    "compare": ["compare"],
    "budget": ["budget"],
    "lab": ["lab"],
    "data": ["data", "inspect"],
    "recipes": ["recipes", "show"],
    "serve": ["serve"],
}
AFTER = {"attend": ["Hello!"]}  # words after the name


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verbs")
    changes = memorised(pairs_file(folder), "train.steps=1", "encoder.width=8")
    sets = [word for change in changes for word in ("--set", change)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        assert cli.main(["train", "chat-lstm", "--out", str(folder / "run"), *sets]) == 0
    return folder / "run"


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    monkeypatch.setattr(waiting, "LATE", 1000.0)  # a slow machine says that it is busy
    return tmp_path


def one_line(capsys, *words: object, code: int = 2) -> str:
    capsys.readouterr()
    assert cli.main([str(word) for word in words]) == code, capsys.readouterr().err
    error = capsys.readouterr().err
    assert error.startswith("regard: ") and error.count("\n") == 1, error
    assert "Traceback" not in error and "a fault in regard" not in error, error
    return error


def test_every_verb_is_here():
    """A new verb needs a line above; what follows is then tested of it."""
    found = set(get_command(cli.app).list_commands(None))  # type: ignore[attr-defined]
    assert found == {*VERBS} == {*WORKING}


@pytest.mark.parametrize("verb", VERBS)
def test_an_unknown_flag(verb: str, capsys):
    words = [verb, GROUPS[verb]] if verb in GROUPS else [verb]
    error = one_line(capsys, *words, "x", "--no-such-flag")
    assert "--no-such-flag" in error and "--help" in error


@pytest.mark.parametrize("verb", VERBS)
def test_a_file_that_is_missing(verb: str, capsys):
    words = READING.get(verb, [verb])
    error = one_line(capsys, *words, "no/such/file.tsv", *AFTER.get(verb, []))
    assert "no/such/file.tsv" in error


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", ["a folder", "a link to itself", "not allowed"])
def test_a_file_that_cannot_be_read(verb: str, kind: str, capsys, somewhere: Path):
    path = somewhere / "input.tsv"
    if kind == "a folder":
        path.mkdir()
    elif kind == "a link to itself":
        path.symlink_to(path)
    else:
        path.write_text("a\tb\n")
        path.chmod(0)
        if os.access(path, os.R_OK):
            pytest.skip("root may read everything")
    assert "input.tsv" in one_line(capsys, *READING.get(verb, [verb]), path, *AFTER.get(verb, []))


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    "name", ["a\x1b[31mred\nnext\r.tsv", "b\udcff\udcfe.tsv", "\u202eevil.tsv"]
)
def test_names_with_control_characters_or_bytes(verb: str, name: str, capsys):
    """A name that is missing, and one that is there and of no use."""
    words = READING.get(verb, [verb])
    error = one_line(capsys, *words, name, *AFTER.get(verb, []))
    assert not {"\x1b", "\r", "\u202e", "\udcff"} & {*error}
    Path(name).write_bytes(b"")
    error = one_line(capsys, *words, name, *AFTER.get(verb, []))
    assert not {"\x1b", "\r", "\u202e", "\udcff"} & {*error}


@pytest.mark.parametrize("verb", VERBS)
def test_a_cache_and_a_folder_that_cannot_be_written(verb: str, run: Path, capsys, monkeypatch):
    """They are files here, since root may write into any folder."""
    Path("file").touch()
    monkeypatch.setenv("REGARD_CACHE", str(Path("file").absolute() / "cache"))
    monkeypatch.setenv("HOME", str(Path("file").absolute()))
    words = _words(verb, run, out="file/out")
    code = cli.main(words)
    error = capsys.readouterr().err
    assert code in (0, 1 if verb == "doctor" else 2), error
    assert "Traceback" not in error and "a fault in regard" not in error
    assert code == 0 or verb == "doctor" or error.count("\n") == 1, error


def _words(verb: str, run: Path, out: str = "out") -> list[str]:
    replacements = {"RUN": str(run), "FILE": str(run.parent / "pairs.tsv")}
    words = [replacements.get(word, word) for word in WORKING[verb]]
    return [word.replace("OUT", out) for word in words]


# -- a process of its own --------------------------------------------------------------------------

# One process starts the verbs one after the other, each in a fork with its streams changed:
# starting Python and torch for each would take minutes.
FORKS = r"""
import os, sys, json
from regard import cli
import regard.bundle, regard.train, regard.evaluate, regard.doctor, regard.pages.attend

def streams(kind):
    sys.stdout.flush(); sys.stderr.flush()
    null = os.open(os.devnull, os.O_RDWR)
    err = os.open("stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    out = os.open("stdout", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(null, 0); os.dup2(out, 1); os.dup2(err, 2)
    if kind == "no input": os.close(0); sys.stdin = None
    if kind == "no output": os.close(1); sys.stdout = None
    if kind == "no error": os.close(2); sys.stderr = None
    if kind == "full": os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
    if kind == "pipe":
        read, write = os.pipe(); os.close(read); os.dup2(write, 1)

for kind, words in json.loads(sys.stdin.read()):
    child = os.fork()
    if child == 0:
        code = 99
        try:
            streams(kind)
            code = cli.main(words)
            for stream in (sys.stdout, sys.stderr):
                try: stream and stream.flush()
                except OSError: code = 98
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    texts = [open(name, errors="replace").read() for name in ("stdout", "stderr")]
    print(json.dumps([kind, words, code, *texts]), flush=True)
"""
KINDS = ["no input", "no output", "no error", "full", "pipe", "null"]


def forked(cases: list[tuple[str, list[str]]], **environment: str) -> list[list]:
    done = subprocess.run(
        [sys.executable, "-c", FORKS],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check_streams(locale: str, verbs: Sequence[str], kinds: Sequence[str], run: Path) -> None:
    words = {(verb, kind): _words(verb, run, f"{verb}-{kind}") for verb in verbs for kind in kinds}
    cases = [(kind, words[verb, kind]) for verb, kind in words]
    results = forked(cases, LC_ALL=locale, PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert len(results) == len(cases)
    for kind, given, code, output, error in results:
        case = (kind, given, code, error)
        assert "Traceback" not in error and "a fault in regard" not in error, case
        lines = [line for line in error.splitlines() if not line.endswith(" …")]
        if kind == "null":
            assert code == 0 and (output or given[0] == "chat"), case
        elif kind == "no input":
            assert code == (2 if given[0] == "chat" else 0), case
        elif kind == "no output":
            assert code == 2 and error.startswith("regard: standard output is closed"), case
        elif kind == "no error":
            assert code == 0, case
        elif given[0] != "chat":  # which writes nothing, where nothing is typed
            assert code == (2 if kind == "full" else 141), case
            assert len(lines) == (1 if kind == "full" else 0), case


def test_streams_of_verbs(run: Path):
    """Closed or full streams, a reader that has gone (`| head`), and no terminal at all."""
    check_streams("C.UTF-8", ["ask", "data", "recipes", "budget"], ["full", "pipe"], run)


def test_verbs_in_a_plain_locale(run: Path):
    check_streams("C", ["ask", "data", "recipes", "train", "lab"], ["null"], run)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
def test_streams_of_every_verb(locale: str, run: Path):
    check_streams(locale, VERBS, KINDS, run)


def test_odd_bytes_in_the_arguments_of_a_plain_locale(run: Path):
    """As the shell passes them: not UTF-8, in a locale that is ASCII."""
    for words in ([b"ask", os.fsencode(run), b"caf\xe9 \xff"], [b"data", b"inspect", b"caf\xe9"]):
        done = subprocess.run(
            [os.fsencode(sys.executable), b"-m", b"regard", *words],
            capture_output=True,
            env=os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        )
        assert b"Traceback" not in done.stderr and done.returncode in (0, 2), done.stderr
        assert done.stdout.isascii() and done.stderr.isascii()


# A writer whose second file cannot be opened leaves the first to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_disk_that_is_full(run: Path, tmp_path: Path, capsys, monkeypatch):
    """Everything that a verb writes goes to a file system without any room."""
    folder = tmp_path / "full"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs (root)")
    try:
        monkeypatch.chdir(folder)
        monkeypatch.setenv("REGARD_CACHE", str(folder / "cache"))
        for verb in VERBS:
            words = _words(verb, run)
            if verb == "report":
                words = ["report", str(run), "--out", "report.html"]
            code = cli.main(words)
            error = capsys.readouterr().err
            assert "Traceback" not in error and "a fault in regard" not in error, error
            assert code in ((0, 1) if verb == "doctor" else (0, 2)), error
            if code == 2:
                assert error.count("\n") == 1 and "no space" in error.lower(), error
            if verb in ("train", "attend"):
                assert code == 2, (verb, error)
    finally:
        monkeypatch.undo()
        subprocess.run(["umount", "-l", str(folder)], check=True)
