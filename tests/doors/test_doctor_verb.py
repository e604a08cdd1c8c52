"""regard doctor, and --device."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import random
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from regard import build, bundle, checkpoint, cli, device, disk, doctor, recipe, resources
from regard.doctor import laws
from regard.errors import InputError
from regard.layers import native
from regard.train import train
from regard.weights import read_tensors
from tests import killing, tiny


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def lines_of(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What the command prints: name and value of each line."""
    assert cli.main(["doctor"]) == 0
    return {line[:20].strip(): line[20:] for line in capsys.readouterr().out.splitlines()}


def test_what_was_found(cache: Path, capsys):
    lines = lines_of(capsys)
    assert torch.__version__ in lines["torch"]
    assert lines["device"].startswith(str(device.resolve("auto")))
    assert str(cache) in lines["cache"] and "GB free" in lines["cache"]
    assert lines["data"] == f"{cache / 'data'}: nothing fetched"
    assert set(lines) >= {f"extra {name}" for name in doctor.EXTRAS}


def test_as_json(capsys):
    assert cli.main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["torch"] == torch.__version__
    assert found["devices"]["cpu"] and found["device"] in (*device.KINDS, "cuda:0")
    if found["library"]["state"] == "in use":
        assert found["library"]["difference"] < 1e-5


def test_an_extra_that_is_missing_says_how_to_get_it(capsys, monkeypatch):
    monkeypatch.setitem(doctor.EXTRAS, "sweep", "no_such_module")
    assert lines_of(capsys)["extra sweep"] == "pip install 'regard[sweep]'"


def test_fetched_data_is_listed(cache: Path, capsys):
    (cache / "data" / "multi30k").mkdir(parents=True)
    (cache / "data" / "multi30k" / "fetched.json").write_text("{}")
    assert lines_of(capsys)["data"].endswith(": multi30k")


def test_without_a_compiler(capsys, monkeypatch):
    monkeypatch.setattr(native, "compiler", lambda: None)
    monkeypatch.setattr(native, "library", native.library.__wrapped__)
    assert lines_of(capsys)["C library"].startswith("no C compiler")


def test_with_a_compiler_that_fails(capsys, monkeypatch):
    monkeypatch.setattr(native, "compiler", lambda: "/bin/false")
    monkeypatch.setattr(native, "library", native.library.__wrapped__)
    assert lines_of(capsys)["C library"].startswith("/bin/false could not compile it")


def test_turned_off(capsys, monkeypatch):
    monkeypatch.setenv("REGARD_NATIVE", "0")
    assert lines_of(capsys)["C library"] == "turned off by REGARD_NATIVE=0"


def test_a_library_that_is_wrong_is_noticed(capsys, monkeypatch):
    if native.library() is None:
        pytest.skip("needs a C compiler")

    def wrong_forward(q, k, v, *_, **__):
        return q.new_zeros(*q.shape[:2], v.shape[2]), q.new_ones(*q.shape[:2], 1)

    monkeypatch.setattr(native, "forward", wrong_forward)
    assert cli.main(["doctor"]) == 1
    assert "turn it off: REGARD_NATIVE=0" in capsys.readouterr().out


def test_the_extras_are_those_of_the_package():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    assert {*project["project"]["optional-dependencies"]} - {"dev"} == {*doctor.EXTRAS}


def test_a_cache_that_cannot_be_written_is_wrong(tmp_path: Path, capsys, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "file"))
    assert cli.main(["doctor"]) == 1
    assert "cannot be written: File exists; REGARD_CACHE names another" in capsys.readouterr().out
    assert cli.main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["faults"] == ["the cache folder"]


@pytest.mark.parametrize(
    ("version", "told"),
    [("2.1.0", "torch is 2.1.0, 2.10 or newer is needed"), ("2.10.0+cpu", None), ("3", None)],
)
def test_a_version_that_is_too_old_is_wrong(capsys, monkeypatch, version: str, told: str | None):
    real = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: version if name == "torch" else real(name)
    )
    assert cli.main(["doctor", "--json"]) == (0 if told is None else 1)
    found = json.loads(capsys.readouterr().out)
    assert found["outdated"] == ([] if told is None else [told])
    assert ("the versions of packages" in found["faults"]) == (told is not None)
    if told is not None:
        assert cli.main(["doctor"]) == 1
        assert f"{told}: pip install --upgrade regard" in capsys.readouterr().out


def test_a_package_that_is_missing_is_wrong(capsys, monkeypatch):
    """Not those of an extra, which are listed as extras."""
    requirements = ["no-such-package>=1", 'no-such-other>=1; extra == "sweep"']
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: requirements)
    assert cli.main(["doctor", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["outdated"] == ["no-such-package is missing, 1 or newer is needed"]


def test_more_threads_than_cores_are_wrong(capsys, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: resources.available_cores() + 1)
    assert cli.main(["doctor"]) == 1
    assert f"set OMP_NUM_THREADS={resources.available_cores()}" in capsys.readouterr().out
    assert cli.main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["faults"] == ["the number of threads"]


@pytest.mark.parametrize("place", ["cache", "here"])
def test_too_little_disk_is_wrong(cache: Path, tmp_path: Path, capsys, monkeypatch, place: str):
    cache.mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    real = shutil.disk_usage

    def usage(folder):
        return real(folder)._replace(free=5 * 10**8 if Path(folder).name == place else 10**12)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    assert cli.main(["doctor"]) == 1
    hint = "REGARD_CACHE names" if place == "cache" else "with --out"
    (line,) = (line for line in capsys.readouterr().out.splitlines() if hint in line)
    assert "0.5 GB free" in line and "less than 1.0 GB" in line
    assert cli.main(["doctor", "--json"]) == 1
    fault = {"cache": "the disk of the cache folder", "here": "the disk of this folder"}[place]
    assert json.loads(capsys.readouterr().out)["faults"] == [fault]


# -- a run --

RECIPES = ["chat-attention", "chat-maclaurin", "speech-attention", "caption-attention"]
RECIPES += ["image-pool", "image-patches", "sentiment-lstm", "blank-rnn"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("doctor")
    killing.make_data(folder)
    tiny.text_file(folder)
    return folder


def small(name: str, data: Path) -> recipe.Recipe:
    overrides = killing.overrides(name, data)
    if name.startswith("blank"):
        overrides = tiny.memorised(data / "sentences.txt")
    return recipe.load(name, [*overrides, "train.steps=5", "train.save_every=4"])


@pytest.fixture(scope="module")
def trained(data: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(data / "cache"))
        train(small("chat-attention", data), data / "run", reporter=tiny.Silent())
    return data / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


def state(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(file.relative_to(folder)): (file.stat().st_mtime_ns, file.read_bytes())
        for file in folder.rglob("*")
        if file.is_file()
    }


def checks_of(run: Path, capsys, code: int) -> dict[str, dict[str, str]]:
    assert cli.main(["doctor", str(run), "--json"]) == code
    record = json.loads(capsys.readouterr().out)
    assert record["ok"] == (code == 0)
    return {check["name"]: check for check in record["checks"]}


def test_a_whole_run_is_well_and_not_changed(run: Path, capsys):
    before = state(run)
    assert cli.main(["doctor", str(run)]) == 0
    output = capsys.readouterr().out
    assert output.endswith("nothing is wrong: the run is complete and can be resumed\n")
    assert "two resumes from step 5 are equal after 3 steps" in output
    assert "FAILED" not in output and "checkpoints/step-000004" in output
    assert state(run) == before


@pytest.mark.parametrize(
    ("name", "check", "hint"),
    [
        ("manifest.json", "manifest", "copy manifest.json from another copy"),
        ("recipe.json", "recipe.json", "copy recipe.json from another copy"),
        ("tokenizer.json", "tokenizer.json", "copy tokenizer.json from another copy"),
        ("model.safetensors", "model.safetensors", "restore it from a checkpoint with: regard"),
        ("metrics.jsonl", "metrics.jsonl", "leaves them out"),
        (
            "checkpoints/step-000004/optimiser.safetensors",
            "checkpoints/step-000004",
            "sets it aside and goes on without it",
        ),
    ],
)
def test_damage_is_named_with_what_to_do(
    run: Path, capsys, monkeypatch, name: str, check: str, hint: str
):
    from regard.doctor import run as doctor_run

    monkeypatch.setattr(doctor_run, "STEPS", 1)
    content = bytearray((run / name).read_bytes())
    content[len(content) // 2 : len(content) // 2 + 2] = b"\0{"  # wrong in and between strings
    (run / name).write_bytes(content)
    before = state(run)
    checks = checks_of(run, capsys, 1)
    assert checks[check]["state"] == "failed" and hint in checks[check]["hint"]
    assert Path(name).name in checks[check]["what"] + check
    assert state(run) == before


def test_a_run_whose_data_is_elsewhere_is_checked_without_a_resume(run: Path, capsys):
    content = json.loads((run / "recipe.json").read_text())
    content["data"]["path"] = "gone.tsv"
    disk.put(run, "recipe.json", lambda draft: draft.write_text(json.dumps(content)))
    resume = checks_of(run, capsys, 0)["resume"]
    assert resume["state"] == "skipped" and "gone.tsv: no such file" in resume["what"]


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes, each of which has a shard of the model."""
    folder = tmp_path_factory.mktemp("sharded")
    changes = tiny.memorised(
        tiny.pairs_file(folder),
        "train.shard=true",
        "train.steps=4",
        "train.save_every=2",
        "encoder.width=16",
    )
    sets = [word for change in changes for word in ("--set", change)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    words = ["-m", "regard", "train", "chat-transformer", "--out", str(folder / "run"), *sets]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [*torchrun, *rendezvous, *words],
        env=os.environ
        | {
            "REGARD_CACHE": str(folder / "cache"),
            "PYTHONPATH": str(root),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder / "run"


def test_a_run_of_shards_is_well_and_its_damage_is_found(sharded: Path, capsys, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(sharded.parent / "cache"))
    newest = sharded / checkpoint.FOLDER / "step-000004"
    second = newest / "weights-00002-of-00002.safetensors"
    assert second.exists()
    before = state(sharded)
    checks = checks_of(sharded, capsys, 0)
    assert {check["state"] for check in checks.values()} == {"ok"}
    assert "two resumes from step 4 are equal" in checks["resume"]["what"]
    assert state(sharded) == before
    content = bytearray(second.read_bytes())
    content[-1] ^= 1
    second.write_bytes(content)
    check = checks_of(sharded, capsys, 1)["checkpoints/step-000004"]
    assert check["state"] == "failed" and second.name in check["what"]


def test_a_run_in_training_is_checked_without_a_resume(run: Path, capsys):
    with disk.locked(run):
        assert "a process is training" in checks_of(run, capsys, 0)["resume"]["what"]


def test_weights_that_are_not_numbers_are_found(run: Path, capsys):
    weights = read_tensors(run / "model.safetensors")
    next(iter(weights.values())).view(-1)[0] = torch.nan
    bundle.put_weights(run, weights)
    check = checks_of(run, capsys, 1)["weights are numbers"]
    assert check["state"] == "failed" and "not finite" in check["what"]


def test_a_resume_that_is_not_the_same_twice_is_found(run: Path, capsys, monkeypatch):
    from regard.train import loop

    draw = random.Random(1)
    monkeypatch.setattr(loop, "_seed", lambda *_: draw.randrange(1 << 30))
    check = checks_of(run, capsys, 1)["resume"]
    assert "differ after 3 steps: " in check["what"] and "weights.safetensors" in check["what"]


def test_not_a_run(tmp_path: Path, capsys):
    for path, message in [(tmp_path / "no", "no such run"), (tmp_path, "not a run folder")]:
        assert cli.main(["doctor", str(path)]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1


@pytest.mark.parametrize("name", RECIPES)
def test_laws_hold_for_every_kind_of_model(name: str, data: Path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(data / "cache"))
    bot = untrained(small(name, data))
    states = {check.name: (check.state, check.what) for check in laws.laws(bot)}
    assert "failed" not in {state for state, _ in states.values()}, states
    assert states["step by step = all at once"][0] == "ok"
    if name in ("chat-attention", "speech-attention"):
        assert {state for state, _ in states.values()} == {"ok"}


def untrained(chosen: recipe.Recipe) -> bundle.Bundle:
    tokenizer = build.corpus(chosen, None).tokenizer
    torch.manual_seed(1)
    model = build.model(chosen, vocabulary=tokenizer.size, source_vocabulary=tokenizer.source_size)
    return bundle.Bundle(chosen, build.task(chosen, tokenizer), model.eval())


def test_laws_can_fail(trained: Path, monkeypatch):
    bot = bundle.load(trained)
    decoder = bot.model.decoder
    step, real_forward = decoder.step, type(bot.model).encode

    def wrong_step(token, state):
        result = step(token, state)
        weights = None if result.weights is None else result.weights + 0.1
        return dataclasses.replace(result, logits=-result.logits, weights=weights)

    def wrong_encode(model, raw, mask):
        return real_forward(model, raw, torch.ones_like(mask))

    def failures() -> set[str]:
        return {check.name for check in laws.laws(bot) if check.state == "failed"}

    assert failures() == set()
    with monkeypatch.context() as patch:
        patch.setattr(decoder, "step", wrong_step)
        assert {"step by step = all at once", "masked places weigh 0"} <= failures()
    with monkeypatch.context() as patch:
        patch.setattr(type(bot.model), "encode", wrong_encode)
        assert "padding changes nothing" in failures()
    with monkeypatch.context() as patch:
        patch.setattr(
            laws, "read_tensors", lambda file: {n: t + 1 for n, t in read_tensors(file).items()}
        )
        assert failures() == {"save then load = before"}
    answers = bundle.Bundle.answer_rows

    def wrong_answers(bot, rows, options):
        return [[dataclasses.replace(a, tokens=(4,) * 3)] for (a,) in answers(bot, rows, options)]

    with monkeypatch.context() as patch:
        patch.setattr(bundle.Bundle, "answer_rows", wrong_answers)
        assert failures() == {"beam 1 = greedy"}


# -- --device --


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA GPU")
@pytest.mark.parametrize(
    "command",
    [
        ["train", "chat-attention"],
        ["train", "chat-attention", "--sweep", "train.learning_rate=0.1,0.01"],
        ["ask", "runs/x", "Hello"],
        ["evaluate", "runs/x"],
        ["chat", "runs/x"],
    ],
)
def test_a_device_that_is_not_there_is_one_line(
    command: list[str], tmp_path: Path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert cli.main([*command, "--device", "cuda"]) == 2
    told = capsys.readouterr()
    assert told.err.startswith("regard: device: torch") and told.err.count("\n") == 1
    assert 'got "cuda"; one of auto, cpu' in told.err and "regard doctor" in told.err
    assert told.out == ""
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cpu:1", "", "meta"])
def test_names_that_are_no_devices(name: str):
    with pytest.raises(InputError, match=r"^device: no such device.*got \"" + name):
        device.resolve(name)


def test_auto_is_the_best_there_is(monkeypatch):
    monkeypatch.setattr(device, "device_count", lambda kind: int(kind in ("cpu", "mps")))
    assert device.resolve("auto").type == "mps"
    monkeypatch.setattr(device, "device_count", lambda kind: 2)
    assert device.resolve("auto").type == "cuda"
    assert device.resolve("cuda:1") == torch.device("cuda:1")
    with pytest.raises(InputError, match="there are 2 of this kind"):
        device.resolve("cuda:2")
