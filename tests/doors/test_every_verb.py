"""Every verb, under what a shell, a terminal and a disk can do to it: one line and the right exit
code, never a traceback. Verbs are those that are found, so a new one is tested too."""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from typer.main import get_command

from regard import cli
from regard.cli import waiting
from tests.tiny import memorised, pairs_file

VERBS = cli.VERBS
# What makes each command work, with RUN, OTHER, FILE, RECIPE, PORT and OUT to be replaced. A verb
# with subcommands has a line for each of them.
WORKING = {
    "train": "train chat-gru --data FILE --steps 1 --out OUT",
    "chat": "chat RUN",
    "ask": "ask RUN Hello!",
    "attend": "attend RUN Hello! --out OUT.html",
    "evaluate": "evaluate RUN --split train",
    "report": "report RUN",
    "serve": "serve RUN --port PORT",  # which another program has
    "compare": "compare RUN OTHER --split valid --out OUT",
    "budget": "budget chat-gru",
    "data list": "data list",
    "data inspect": "data inspect FILE",
    "data fetch": "data fetch --list",
    "data export": "data export digits OUT",
    "recipes list": "recipes list",
    "recipes show": "recipes show RECIPE",
    "recipes check": "recipes check RECIPE",
    "recipes copy": "recipes copy RECIPE OUT.toml",
    "lab": "lab orthogonal",
    "doctor": "doctor",
}
COMMANDS = [*WORKING]
FAILING = {"serve": "in use"}  # commands that end in a line that has this, and exit code 2
SILENT = {"chat"}  # write nothing to stdout, if nothing is typed
WRITING = {"train", "attend", "compare", "data export", "recipes copy"}
# The words before the name of a file that is to be read.
READING = {
    "train": "train chat-gru --data",
    "chat": "chat",
    "ask": "ask",
    "attend": "attend",
    "evaluate": "evaluate",
    "report": "report",
    "serve": "serve",
    "compare": "compare",
    "budget": "budget",
    "data inspect": "data inspect",
    "data fetch": "data fetch",
    "recipes show": "recipes show",
    "recipes check": "recipes check",
    "recipes copy": "recipes copy",
    "lab": "lab",
    "doctor": "doctor",
}
AFTER = {"attend": ["Hello!"]}  # words after the name
READERS = [*READING]
# Capabilities with which root reads every file.
DAC_OVERRIDE, DAC_READ_SEARCH = 1, 2
CAPABILITY_VERSION = 0x20080522


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run, beside another one, a recipe, and the number of a port that is in use."""
    folder = tmp_path_factory.mktemp("verbs")
    changes = memorised(pairs_file(folder), "train.steps=1", "encoder.width=8", "data.valid=0.3")
    sets = [word for change in changes for word in ("--set", change)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        for name, base in (("run", "chat-lstm"), ("other", "chat-gru")):
            assert cli.main(["train", base, "--out", str(folder / name), *sets]) == 0
        assert cli.main(["recipes", "copy", "chat-gru", str(folder / "own.toml")]) == 0
    with socket.create_server(("127.0.0.1", 0)) as server:
        (folder / "port").write_text(str(server.getsockname()[1]))
        yield folder / "run"


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


@contextlib.contextmanager
def ordinary() -> Iterator[None]:
    """This thread reads what the modes of files allow, although it is root's."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; the first 32, the others
    if libc.capget(header, sets):
        pytest.skip("needs capabilities")
    before = sets[0]
    sets[0] = before & ~(1 << DAC_OVERRIDE | 1 << DAC_READ_SEARCH)
    assert libc.capset(header, sets) == 0
    try:
        yield
    finally:
        sets[0] = before
        assert libc.capset(header, sets) == 0


def test_every_command_is_here():
    """A new command needs a line above; what follows is then tested of it."""
    group = get_command(cli.app)
    found = set()
    for verb in group.list_commands(None):  # type: ignore[attr-defined]
        subcommands = getattr(cli.Verbs().get_command(None, verb), "commands", None)  # type: ignore
        found |= {f"{verb} {name}" for name in subcommands} if subcommands else {verb}
    assert found == {*COMMANDS}
    assert {name.partition(" ")[0] for name in COMMANDS} == {*VERBS}


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_flag(command: str, capsys):
    error = one_line(capsys, *command.split(), "x", "--no-such-flag")
    assert "--no-such-flag" in error and "--help" in error


@pytest.mark.parametrize("command", READERS)
def test_a_file_that_is_missing(command: str, capsys):
    words = READING[command].split()
    error = one_line(capsys, *words, "no/such/file.tsv", *AFTER.get(command, []))
    assert "no/such/file.tsv" in error


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize("kind", ["a folder", "a link to itself", "not allowed", "below a file"])
def test_a_file_that_cannot_be_read(command: str, kind: str, capsys, somewhere: Path):
    path = somewhere / "input.tsv"
    allowed = contextlib.nullcontext()
    match kind:
        case "a folder":
            path.mkdir()
        case "a link to itself":
            path.symlink_to(path)
        case "below a file":
            path.write_text("a\tb\n")
            path /= "more.tsv"
        case "not allowed":
            path.write_text("a\tb\n")
            path.chmod(0)
            allowed = ordinary()
    with allowed:
        if kind == "not allowed":
            with pytest.raises(PermissionError):
                path.read_bytes()
        words = READING[command].split()
        error = one_line(capsys, *words, path, *AFTER.get(command, []))
    assert "input.tsv" in error


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize(
    "name", ["a\x1b[31mred\nnext\r.tsv", "b\udcff\udcfe.tsv", "\u202eevil.tsv"]
)
def test_names_with_control_characters_or_bytes(command: str, name: str, capsys):
    """A name that is missing, and one that is there and of no use."""
    words = READING[command].split()
    error = one_line(capsys, *words, name, *AFTER.get(command, []))
    assert not {"\x1b", "\r", "\u202e", "\udcff"} & {*error}
    Path(name).write_bytes(b"")
    error = one_line(capsys, *words, name, *AFTER.get(command, []))
    assert not {"\x1b", "\r", "\u202e", "\udcff"} & {*error}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_cache_and_a_folder_that_cannot_be_written(command: str, run: Path, capsys, monkeypatch):
    """They are files here, since root may write into any folder."""
    Path("file").touch()
    monkeypatch.setenv("REGARD_CACHE", str(Path("file").absolute() / "cache"))
    monkeypatch.setenv("HOME", str(Path("file").absolute()))
    words = _words(command, run, out="file/out")
    code = cli.main(words)
    error = capsys.readouterr().err
    assert code in (0, 1 if command == "doctor" else 2), error
    assert "Traceback" not in error and "a fault in regard" not in error
    assert code == 0 or command == "doctor" or error.count("\n") == 1, error
    assert code == 2 or command not in WRITING


def test_a_damaged_run_is_not_served(run: Path, tmp_path: Path, capsys):
    """Before a port is opened."""
    copy = shutil.copytree(run, tmp_path / "copy")
    (copy / "model.safetensors").write_bytes(b"otherwise")
    assert "model.safetensors" in one_line(capsys, "serve", copy, "--port", "0")


def _words(command: str, run: Path, out: str = "out") -> list[str]:
    folder = run.parent
    replacements = {
        "RUN": str(run),
        "OTHER": str(folder / "other"),
        "FILE": str(folder / "pairs.tsv"),
        "RECIPE": str(folder / "own.toml"),
        "PORT": (folder / "port").read_text(),
    }
    words = [replacements.get(word, word) for word in WORKING[command].split()]
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


def check_streams(locale: str, commands: Sequence[str], kinds: Sequence[str], run: Path) -> None:
    cases = [(command, kind) for command in commands for kind in kinds]
    calls = [
        (kind, _words(command, run, f"{command}-{kind}".replace(" ", "-")))
        for command, kind in cases
    ]
    results = forked(calls, LC_ALL=locale, PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert len(results) == len(cases)
    for (command, _), (kind, given, code, output, error) in zip(cases, results, strict=True):
        case = (kind, given, code, error)
        assert "Traceback" not in error and "a fault in regard" not in error, case
        lines = [line for line in error.splitlines() if not line.endswith(" …")]
        if kind == "no output":
            assert code == 2 and error.startswith("regard: standard output is closed"), case
        elif command in FAILING:
            assert code == 2, case
            assert kind == "no error" or (len(lines) == 1 and FAILING[command] in lines[0]), case
        elif kind == "null":
            assert code == 0 and (output or command in SILENT), case
        elif kind == "no input":
            assert code == (2 if command == "chat" else 0), case
        elif kind == "no error":
            assert code == 0, case
        elif command not in SILENT:
            assert code == (2 if kind == "full" else 141), case
            assert len(lines) == (1 if kind == "full" else 0), case


@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["full", "pipe", "no output"])
def test_streams_of_commands(run: Path, kind: str):
    """Closed or full streams, a reader that has gone (`| head`), and no terminal at all."""
    check_streams("C.UTF-8", COMMANDS, [kind], run)


@pytest.mark.timeout(400)
def test_commands_in_a_plain_locale(run: Path):
    check_streams("C", COMMANDS, ["null"], run)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
def test_streams_of_every_kind(locale: str, run: Path):
    check_streams(locale, COMMANDS, KINDS, run)


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
        for command in COMMANDS:
            words = _words(command, run, f"out-{command}".replace(" ", "-"))
            if command == "report":
                words = ["report", str(run), "--out", "report.html"]
            code = cli.main(words)
            error = capsys.readouterr().err
            assert "Traceback" not in error and "a fault in regard" not in error, error
            assert code in ((0, 1) if command == "doctor" else (0, 2)), error
            if code == 2:
                why = FAILING.get(command, "no space")
                assert error.count("\n") == 1 and why in error.lower(), error
            if command in WRITING - {"recipes copy"}:  # a recipe fits
                assert code == 2, (command, error)
    finally:
        monkeypatch.undo()
        subprocess.run(["umount", "-l", str(folder)], check=True)
