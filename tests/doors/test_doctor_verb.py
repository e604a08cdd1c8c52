"""regard doctor, and --device."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
import torch

from regard import cli, device, doctor
from regard.errors import InputError
from regard.layers import native


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
    assert "turn it off: REGARD_NATIVE=0" in lines_of(capsys)["C library"]


def test_the_extras_are_those_of_the_package():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    assert {*project["project"]["optional-dependencies"]} - {"dev"} == {*doctor.EXTRAS}


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
