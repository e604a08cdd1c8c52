"""What all verbs of the command line have in common, and `regard recipes`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from regard import __version__, cli, recipe
from regard.cli import main
from regard.recipe.durations import MACHINE, MEASURED, Duration


def regard(*words: str, **options) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "120"}
    return subprocess.run(
        [sys.executable, "-m", "regard", *words],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        **options,
    )


# ---------------------------------------------------------------------------------------- the frame


def test_help_is_instant():
    """No large package is imported for it."""
    heavy = "{'torch', 'numpy', 'tokenizers', 'pydantic', 'matplotlib', 'sacrebleu'}"
    code = (
        "import sys; from regard.cli import main; main(['--help']); "
        f"sys.exit(str({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "set()"


def test_help_names_the_verbs_and_the_exit_codes():
    done = regard("--help")
    assert done.returncode == 0
    assert "Exit codes: 0 done, 1 a fault in regard (or one that doctor finds)," in done.stdout
    assert "2 something to correct in the command or its files," in done.stdout
    for verb in cli.Verbs().list_commands(None):
        assert f" {verb} " in done.stdout


def test_every_verb_has_help_with_an_example(capsys: pytest.CaptureFixture[str]):
    for verb in cli.Verbs().list_commands(None):
        assert main([verb, "--help"]) == 0
        assert f"regard {verb} " in capsys.readouterr().out.split("Usage:")[1].split("\n", 1)[1], (
            verb
        )


def test_no_words_are_answered_with_help():
    assert regard().stdout == regard("--help").stdout


def test_help_is_a_verb_too(capsys: pytest.CaptureFixture[str]):
    for words, same in (
        (["help"], ["--help"]),
        (["help", "train"], ["train", "--help"]),
        (["help", "recipes", "copy"], ["recipes", "copy", "--help"]),
    ):
        assert main(words) == 0
        page = capsys.readouterr().out
        assert main(same) == 0
        assert page == capsys.readouterr().out
        assert "Usage: regard" in page
    assert main(["help", "trian"]) == 2
    expected = 'regard: no such verb; got "trian"; did you mean "train"?\n'
    assert capsys.readouterr().err == expected


def test_version(capsys: pytest.CaptureFixture[str]):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"regard {__version__}\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["recipse"], 'no such verb; got "recipse"; did you mean "recipes"?'),
        (["predict"], 'no such verb; got "predict"; did you mean "ask"?'),
        (
            ["recipes", "lst"],
            "No such command 'lst'. Did you mean 'list'? See regard recipes --help",
        ),
        (["recipes", "show"], "Missing argument 'NAME'. See regard recipes show --help"),
        (["--vrsion"], "No such option: --vrsion (Possible options: --version) See regard --help"),
    ],
)
def test_a_command_that_cannot_be_understood(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
):
    assert main(words) == 2
    assert capsys.readouterr().err == f"regard: {expected}\n"


def test_words_of_other_programs_lead_to_verbs():
    assert set(cli.SYNONYMS.values()) <= set(cli.VERBS) and not set(cli.SYNONYMS) & set(cli.VERBS)


def test_a_mistake_is_one_line_and_debug_shows_where(capsys: pytest.CaptureFixture[str]):
    assert main(["recipes", "show", "nothing"]) == 2
    output = capsys.readouterr().err
    assert output.startswith("regard: nothing: no such recipe; known: blank-rnn, ")
    assert output.count("\n") == 1
    for words in (
        ["--debug", "recipes", "show", "nothing"],
        ["recipes", "show", "nothing", "--debug"],
    ):
        assert main(words) == 2
        trace = capsys.readouterr().err
        assert trace.startswith("Traceback")
        assert trace.endswith(output)


@pytest.mark.parametrize(
    ("error", "code", "expected"),
    [
        (
            KeyError("x"),
            1,
            "regard: a fault in regard, KeyError: 'x'; run again with --debug to see where\n",
        ),
        (PermissionError(13, "Permission denied", "/x/y"), 2, "regard: /x/y: Permission denied\n"),
        (
            OSError(28, "No space left on device", "/x/y"),
            2,
            "regard: /x/y: No space left on device\n",
        ),
        (KeyboardInterrupt(), 130, "regard: stopped\n"),
    ],
)
def test_whatever_happens_is_one_line(
    monkeypatch, capsys, error: BaseException, code: int, expected: str
):
    def fail() -> list[str]:
        raise error

    monkeypatch.setattr(recipe, "names", fail)
    assert main(["recipes", "list"]) == code
    assert capsys.readouterr().err == expected


def test_a_reader_that_has_seen_enough_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "regard", "recipes", "list"]
    done = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert done.stderr == b""
    assert done.returncode == 141


# ------------------------------------------------------------------------------------------ recipes


def test_list(capsys: pytest.CaptureFixture[str]):
    assert main(["recipes", "list"]) == 0
    header, *lines, empty, footer = capsys.readouterr().out.splitlines()
    assert header.split()[:4] == ["recipe", "task", "data", "takes"] and empty == ""
    assert footer.startswith("takes: training time as measured on one or both of 2 cores of an AMD")
    assert [line.split()[0] for line in lines] == recipe.names()
    for line in lines:
        name, task, data, *_ = line.split()
        chosen = recipe.load(name)
        assert (task, data) == (chosen.task, chosen.data.kind) and line.endswith(chosen.summary)
    assert any(
        line.split()[:5] == ["image-pool", "classify", "digits", "34", "s"] for line in lines
    )
    assert main(["recipes", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == recipe.names()
    assert all(row["summary"] and row["task"] in recipe.READS for row in rows)
    measured = {row["name"]: row["measured"] for row in rows}
    assert (
        measured["image-pool"] == {"seconds": 34.2, "threads": 1} and measured["chat-gru"] is None
    )


def test_durations_are_those_of_the_benchmarks():
    """Every figure was measured, and of the recipe as it ships: with as many steps, where the
    recipe says how many."""
    results = Path(__file__).parents[2] / "bench" / "results"
    defaults, sentiment, multi30k, fsdd = (
        json.loads((results / f"{name}.json").read_text("utf-8"))
        for name in ("defaults", "sentiment", "multi30k", "fsdd")
    )
    records = dict(defaults["recipes"])
    records |= {
        f"sentiment-{name}": record | {"threads": 1} for name, record in sentiment["models"].items()
    }
    records["multi30k-transformer"] = {
        "seconds": multi30k["facts"]["training_seconds"],
        "threads": 2,
    }
    records["speech-fsdd"] = fsdd["left_out"]["nobody"] | {"threads": 1}
    figures = {
        name: Duration(record["seconds"], record["threads"]) for name, record in records.items()
    }
    assert figures == MEASURED
    assert all(result["machine"]["processor"] in MACHINE for result in (defaults, sentiment, fsdd))
    for name, record in records.items():
        assert not record.get("changes")
        steps = recipe.load(name).train.steps
        assert steps is None or steps == record["steps"], name


def test_show(capsys: pytest.CaptureFixture[str]):
    assert main(["recipes", "show", "reference/chat-classic"]) == 0
    assert capsys.readouterr().out == recipe.text("reference/chat-classic")
    assert main(["recipes", "show", "chat-transformer", "--json"]) == 0
    chosen = recipe.Recipe.from_json(json.loads(capsys.readouterr().out))
    assert chosen == recipe.load("chat-transformer")


def test_check_looks_at_every_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    good, bad, worse = (tmp_path / name for name in ("good.toml", "bad.toml", "worse.toml"))
    good.write_text('extends = "chat-attention"\n')
    bad.write_text('extends = "chat-attention"\nsed = 3\n')
    worse.write_text("[[[\n")
    assert main(["recipes", "check", str(bad), str(good), str(worse)]) == 2
    output = capsys.readouterr()
    assert output.out == f"{good}: in order\n"
    first, second = output.err.splitlines()
    assert first == f'regard: {bad}: sed: no such field; got 3; did you mean "seed"?'
    assert second.startswith(f"regard: {worse}: not TOML: ")
    assert main(["recipes", "check", str(good)]) == 0


def test_copy_never_overwrites_unasked(
    tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    assert main(["recipes", "copy", "reference/chat-classic"]) == 0
    assert (
        capsys.readouterr().out
        == "wrote chat-classic.toml; change it, then: regard train chat-classic.toml\n"
    )
    mine = Path("chat-classic.toml")
    assert recipe.load(mine) == recipe.load("reference/chat-classic")
    mine.write_text("mine")
    assert main(["recipes", "copy", "chat-gru", str(mine)]) == 2
    assert (
        capsys.readouterr().err
        == "regard: chat-classic.toml: a file is there already; --force overwrites it\n"
    )
    assert mine.read_text() == "mine"
    assert main(["recipes", "copy", "chat-gru", str(mine), "--force"]) == 0
    assert mine.read_text() == recipe.text("chat-gru")
    assert main(["recipes", "copy", "chat-gru", str(tmp_path)]) == 0
    assert (tmp_path / "chat-gru.toml").exists()
    capsys.readouterr()
    assert main(["recipes", "copy", "chat-gru", "no/such/folder/mine.toml"]) == 2
    assert (
        capsys.readouterr().err == "regard: no/such/folder/mine.toml: No such file or directory\n"
    )


def test_only_recipes_are_shown_copied_and_checked(
    tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    secret, other = Path("secret"), Path("other.toml")
    secret.write_text("password")
    other.write_text('[package]\nname = "password"\n')
    for name in (
        "secret",
        "../" + tmp_path.name + "/secret",
        str(tmp_path / "secret"),
        "/etc/passwd",
        "/dev/zero",
    ):
        for words in (
            ["show", name],
            ["show", name, "--json"],
            ["check", name],
            ["copy", name, "copied.toml"],
        ):
            assert main(["recipes", *words]) == 2
            output = capsys.readouterr()
            assert not output.out and "password" not in output.err
            assert (
                output.err == f"regard: {name}: not a recipe: a .toml file is one; "
                "regard recipes list names others\n"
            )
    for words in (["show", str(other)], ["copy", str(other), "copied.toml"]):
        assert main(["recipes", *words]) == 2
        output = capsys.readouterr()
        assert not output.out and "the section [data] is missing" in output.err
    os.mkfifo("pipe.toml")
    assert main(["recipes", "show", "pipe.toml"]) == 2  # and does not wait for a writer
    assert not Path("copied.toml").exists()
