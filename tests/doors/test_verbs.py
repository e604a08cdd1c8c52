"""What a person types, and what comes back: train, ask, chat, evaluate, data."""

from __future__ import annotations

import io
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from regard import cli, disk
from regard.bundle import Bundle, load
from regard.cli.attention_map import attention_map
from regard.cli.progress import Lines
from regard.errors import printable
from tests.tiny import PAIRS, memorised, pairs_file

VERBS = [
    "train",
    "chat",
    "ask",
    "evaluate",
    "report",
    "compare",
    "budget",
    "data",
    "recipes",
    "lab",
    "doctor",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run trained through the door."""
    folder = tmp_path_factory.mktemp("door")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        sets = [
            word
            for change in memorised(pairs_file(folder), "train.steps=160")
            for word in ("--set", change)
        ]
        assert cli.main(["train", "chat-attention", "--out", str(folder / "run"), *sets]) == 0
    return folder / "run"


def one_line(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """The message of a command that must fail for the person's own reason."""
    code = cli.main([str(word) for word in words])
    error = capsys.readouterr().err
    assert code == 2
    assert error.startswith("regard: ") and error.count("\n") == 1 and "Traceback" not in error
    return error


def test_training_tells_sizes_scores_samples_and_what_to_type_next(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    sets = [word for change in memorised(pairs_file(tmp_path)) for word in ("--set", change)]
    assert cli.main(["train", "chat-gru", *sets, "--steps", "3"]) == 0
    told = capsys.readouterr().out
    assert "10 train" in told and "parameters" in told and "width 48" in told
    assert (
        "step 3: training examples perplexity" in told
        and "Hello!  ->" in told
        and "validation" not in told
    )
    assert (
        "kept the last weights, step 3, because no examples are held out (train.keep=auto)" in told
    )
    assert "regard chat runs/chat-gru" in told
    run = tmp_path / "runs" / "chat-gru"
    assert {
        "recipe.json",
        "tokenizer.json",
        "model.safetensors",
        "metrics.jsonl",
        "manifest.json",
        "curves.png",
        "report.html",
        "sessions.json",
    } <= {file.name for file in run.iterdir()}
    assert cli.main(["train", "chat-gru", *sets, "--epochs", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["run"] == "runs/chat-gru-2" and result["steps"] == result["kept_step"] == 1
    assert (
        result["scored_on"] == "training examples"
        and "no examples are held out" in result["kept_because"]
    )
    assert (
        cli.main(["train", "chat-gru", *sets, "--set", "data.valid=0.3", "--steps", "1", "--json"])
        == 0
    )
    told = capsys.readouterr()
    assert (
        json.loads(told.out)["scored_on"] == "validation examples"
        and "step 1: validation perplexity" in told.err
    )


def test_ask_answers(trained: Path, capsys):
    assert cli.main(["ask", str(trained), "Hello!", "who wrote FAUST"]) == 0
    assert capsys.readouterr().out == "Hello!  ->  Hi there.\nwho wrote FAUST  ->  Goethe did.\n"


def test_ask_reads_a_file_into_json_lines(trained: Path, tmp_path: Path, capsys):
    file = tmp_path / "prompts.txt"
    file.write_text("".join(f"{prompt}\n\n" for prompt, _ in PAIRS))
    assert cli.main(["ask", str(trained), "--file", str(file)]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["input"], row["answer"]) for row in rows] == PAIRS
    assert all(row["score"] <= 0 for row in rows)


def test_ask_reads_stdin(trained: Path):
    done = subprocess.run(
        [sys.executable, "-m", "regard", "ask", str(trained), "--json"],
        input="Hello!\n",
        capture_output=True,
        text=True,
    )
    assert json.loads(done.stdout)["answer"] == "Hi there."


def test_chat_streams_and_knows_its_commands(trained: Path):
    typed = "Hello!\n/attend\n/nonsense\n/help\n\nTell me a joke.\n/quit\nnever read\n"
    done = subprocess.run(
        [sys.executable, "-m", "regard", "chat", str(trained)],
        input=typed,
        capture_output=True,
        text=True,
    )
    lines = done.stdout.splitlines()
    slow_start = f"loading {trained} …\n"  # of a busy machine
    assert done.returncode == 0 and done.stderr in ("", slow_start)
    assert lines[0] == "Hi there."
    assert "no such command" in done.stdout and "/quit" in done.stdout and "(end)" in lines[1]
    assert lines[-1] == "A horse walks into a bar."


def test_json_has_the_fields_of_an_answer(trained: Path, capsys):
    bot = load(trained)
    assert cli.main(["ask", str(trained), "Hello!", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    answer = bot.ask("Hello!")
    fields = answer.to_json()
    assert record == {"input": "Hello!", "answer": fields.pop("text"), **fields}
    assert "".join(record["pieces"]) == "Hi there." and record["finish"] == "stop"
    assert math.fsum(record["logprobs"]) == pytest.approx(record["score"])

    words = ["ask", str(trained), "Hello!", "--weights", "--alternatives", "2"]
    assert cli.main(words) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["place_names"] == list(answer.place_names) and record["grid"] is None
    steps = len(record["tokens"]) + 1
    assert len(record["weights"]) == len(record["alternatives"]) == len(record["logprobs"]) == steps
    assert [len(step) for step in record["alternatives"]] == [2] * steps
    likeliest = [step[0]["text"] for step in record["alternatives"]]
    assert likeliest == [*record["pieces"], "(end)"]


def test_attend_after_a_line_or_an_answer_that_came_to_nothing(trained: Path, capsys, monkeypatch):
    stream = Bundle.stream

    def cut(bundle: Bundle, text: str, how: Any) -> Any:
        """As if Ctrl-C were pressed after the first piece of an answer to "Bye"."""
        for piece in stream(bundle, text, how):
            yield piece
            raise KeyboardInterrupt

    monkeypatch.setattr(
        Bundle, "stream", lambda *args: (cut if args[1] == "Bye" else stream)(*args)
    )

    def chat(*lines: str) -> list[str]:
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        assert cli.main(["chat", str(trained)]) == 0
        return capsys.readouterr().out.splitlines()

    answer, *attention = chat("Hello!", "/attend")
    assert answer == "Hi there." and len(attention) > 2
    unreadable = "word " * 20_000
    assert chat("Hello!", unreadable, "/attend") == [answer, *attention]
    assert chat(unreadable, "/attend") == ["there is no answer yet"]
    cut_off = "the last answer was cut off, so its attention is not known"
    assert chat("Bye", "/attend")[1:] == [cut_off]
    _, piece, note, *lines = chat("Hello!", "Bye", "/attend")
    assert piece.endswith(" …") and note == f"{cut_off}; of the one before:" and lines == attention
    assert chat("Bye", "Hello!", "/attend")[1:] == [answer, *attention]


def test_attend_shows_the_answer_that_was_given(trained: Path, capsys, monkeypatch):
    """Also where answers are drawn anew each time: there is no second search."""
    searches = []
    stream = Bundle.stream
    monkeypatch.setattr(Bundle, "ask", lambda *_, **__: pytest.fail("asked again"))
    monkeypatch.setattr(
        Bundle, "stream", lambda *args: searches.append(stream(*args)) or searches[-1]
    )
    monkeypatch.setattr("sys.stdin", io.StringIO("/attend\nHello!\n/attend\n/attend\n"))
    changes = ["do_sample=true", "temperature=50.0", "max_new_tokens=9"]
    sets = [word for change in changes for word in ("--set", change)]
    assert cli.main(["chat", str(trained), *sets]) == 0
    unasked, answer, *lines = capsys.readouterr().out.splitlines()
    assert unasked == "there is no answer yet" and len(searches) == 1
    assert printable(searches[0].answer.text) == answer
    names = [printable(name.strip()) or "·" for name in searches[0].answer.step_names]
    half = len(lines) // 2
    assert lines[:half] == lines[half:] and len(lines) == 2 * (len(names) + 1)
    places, *steps = lines[:half]
    assert places.split() == list(searches[0].answer.place_names)
    assert all(line.startswith(name[:13]) for line, name in zip(steps, names, strict=True))


def test_ask_prints_where_each_token_attended(trained: Path, capsys):
    assert cli.main(["ask", str(trained), "Hello!", "Tell me a joke.", "--attend"]) == 0
    first, second, end = capsys.readouterr().out.split("\n\n")
    answer = load(trained).ask("Hello!")
    assert first == f"Hello!  ->  {answer.text}\n{attention_map(answer)}"
    assert second.startswith("Tell me a joke.  ->  ") and not end
    assert cli.main(["ask", str(trained), "Hello!", "--attend", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["answer"] == answer.text


def test_evaluate_scores_another_file(trained: Path, tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    assert cli.main(["evaluate", str(trained), "--data", str(pairs_file(tmp_path)), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["examples"] == 10 and scores["perplexity"] < 1.5 and scores["chrf"] > 99
    assert cli.main(["evaluate", str(trained), "--data", str(pairs_file(tmp_path))]) == 0
    assert "word_perplexity" in capsys.readouterr().out


def test_data_inspect_counts_and_advises(tmp_path: Path, capsys):
    path = pairs_file(tmp_path)
    path.write_text(path.read_text() + "no tab here\n\tempty\n")
    assert cli.main(["data", "inspect", str(path)]) == 0
    told = capsys.readouterr().out
    assert "10 usable" in told and "skipped 1" in told and f"--data {path}" in told
    assert cli.main(["data", "inspect", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["usable"] == 10
    assert cli.main(["data", "list"]) == 0
    assert "chatterbot" in capsys.readouterr().out


def test_a_run_is_resumed_with_changes_only_anyway(
    trained: Path, tmp_path: Path, capsys, monkeypatch
):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    run = shutil.copytree(trained, tmp_path / "run")
    resume = ["train", "--resume", run, "--steps", "165"]
    refused = one_line(capsys, *resume, "--set", "train.learning_rate=1e-4")
    assert "train.learning_rate: 0.005 -> 0.0001" in refused and "add --anyway to go on" in refused
    assert "do not fit another architecture" in one_line(
        capsys, *resume, "--anyway", "--set", "encoder.layers=3"
    )
    assert "with its own recipe; got chat-gru" in one_line(capsys, *resume, "chat-gru")
    assert "--resume RUN --anyway" in one_line(capsys, "train", "chat-gru", "--anyway")

    assert (
        cli.main([str(word) for word in (*resume, "--anyway", "--set", "train.learning_rate=1e-4")])
        == 0
    )
    told = capsys.readouterr().out
    assert "train.learning_rate: 0.005 -> 0.0001" in told and "resuming at step 160" in told
    kept = json.loads((run / "recipe.json").read_text())["train"]
    assert (kept["steps"], kept["learning_rate"], kept["decoder_learning_rate"]) == (
        165,
        1e-4,
        1e-4,
    )
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "changed"] == [160]
    assert cli.main(["ask", str(run), "Hello!"]) == 0


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_a_worked_example(verb: str, capsys):
    assert cli.main([verb, "--help"]) == 0
    assert f"regard {verb} " in capsys.readouterr().out


def test_mistakes_end_in_one_line(trained: Path, tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    empty, header = tmp_path / "empty.tsv", tmp_path / "header.tsv"
    empty.write_text("")
    header.write_text("prompt\treply\n")
    assert "no such" in one_line(
        capsys, "train", "chat-attention", "--data", tmp_path / "missing.tsv"
    )
    nowhere = f'data.path="{tmp_path / "nowhere"}"'
    assert "nowhere: no such file or folder; --data PATH says" in one_line(
        capsys, "train", "speech-fsdd", "--set", nowhere
    )
    for file in (empty, header):
        assert f"no usable examples in {file}" in one_line(
            capsys, "train", "chat-attention", "--data", file, "--out", tmp_path / "run"
        )
        assert not (tmp_path / "run").exists()
    assert 'did you mean "chat-attention"?' in one_line(capsys, "train", "chat-atention")
    assert 'did you mean "width"?' in one_line(
        capsys, "train", "chat-attention", "--set", "encoder.widht=3"
    )
    assert "no recipe given" in one_line(capsys, "train")
    assert "not a run folder" in one_line(capsys, "train", "--resume", tmp_path)
    assert "not a run folder" in one_line(capsys, "ask", tmp_path, "Hello")
    assert "no such run" in one_line(capsys, "chat", tmp_path / "missing")
    assert "the prompt is empty" in one_line(capsys, "ask", trained, "  ")
    long = one_line(capsys, "ask", trained, "word " * 20_000)
    assert "too long; got 100,000 characters; this model reads at most" in long and len(long) < 300
    assert "no such file" in one_line(capsys, "ask", trained, "--file", tmp_path / "missing.txt")
    assert "num_beams" in one_line(capsys, "ask", trained, "Hello", "--set", "num_beams=0")
    assert 'did you mean "num_beams"?' in one_line(
        capsys, "ask", trained, "Hello", "--set", "num_beems=2"
    )
    assert 'did you mean "train"?' in one_line(capsys, "trian", "chat-attention")
    assert "--limit" in one_line(capsys, "evaluate", trained, "--limit", "0")


def test_what_a_resume_needs_is_said(trained: Path, tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    run = shutil.copytree(trained, tmp_path / "run")
    assert "nope: no such run" in one_line(capsys, "train", "--resume", "nope")
    refused = one_line(capsys, "train", "chat-gru", "--minutes", "0")
    assert "--minutes: a budget must be more than 0; got 0" in refused
    assert cli.main(["train", "--resume", str(run)]) == 0
    output = capsys.readouterr().out
    assert output.startswith(f"run       {run}\n")
    assert "nothing is left to do: 160 steps are made; go on with:" in output
    content = json.loads((run / "recipe.json").read_text())
    content["data"]["path"] = "gone.tsv"
    disk.put(run, "recipe.json", lambda draft: draft.write_text(json.dumps(content)))
    error = one_line(capsys, "train", "--resume", run)
    assert "gone.tsv: no such file or folder, which the run" in error
    assert f"looked for in {tmp_path}; --data PATH" in error


def test_scores_that_are_not_finite_are_said(tmp_path: Path, capsys):
    console: Any = SimpleNamespace(print=lambda *_, **__: None)
    reporter: Any = Lines(console)
    reporter.facts = SimpleNamespace(recipe=SimpleNamespace(task="chat"))
    reporter.validated({"step": 1, "kind": "valid", "best": False, "perplexity": math.inf}, [])
    assert not reporter.scores_are_finite


def test_evaluate_says_that_data_changed(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    file = pairs_file(tmp_path)
    sets = [
        word
        for change in memorised(file, "data.valid=0.2", "train.steps=2")
        for word in ("--set", change)
    ]
    run = tmp_path / "run"
    assert cli.main(["train", "chat-gru", "--out", str(run), *sets]) == 0
    capsys.readouterr()
    assert cli.main(["evaluate", str(run)]) == 0
    assert "not what it was trained on" not in capsys.readouterr().err
    file.write_text("\n".join(reversed(file.read_text().splitlines())))
    assert cli.main(["evaluate", str(run)]) == 0
    assert "its data is not what it was trained on" in capsys.readouterr().err
    refused = one_line(capsys, "evaluate", run, "--data", file, "--split", "train")
    assert "--split is for the run's own data" in refused
