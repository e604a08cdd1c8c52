"""Memory: what there is, what a model needs, and what is said when that is more."""

from __future__ import annotations

import re
import resource

import numpy as np
import pytest
import torch

from regard import build, cli, recipe, resources
from regard.errors import NoMemoryError
from tests.tiny import memorised, pairs_file


@pytest.mark.parametrize("name", recipe.names())
def test_the_bytes_of_weights_are_known_without_making_them(name: str):
    chosen = recipe.load(name)
    model = build.model(chosen, vocabulary=307, source_vocabulary=211)
    made = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    assert build.weight_bytes(chosen, 307, 211) == made


def test_more_numbers_than_can_be_counted_are_too_many():
    sizes = [
        "source.size=[4096, 4096]",
        "source.channels=[1048576, 1048576]",
        "source.padding=[1, 1]",
    ]
    huge = recipe.load("image-pool", [*sizes, "decoder.hidden=[1048576]"])
    assert build.weight_bytes(huge, 14) > 1 << 60


@pytest.mark.parametrize(
    "change", ["encoder.width=1048576", "decoder.layers=256", "encoder.width=262144"]
)
def test_a_model_that_does_not_fit_is_refused_with_both_numbers(
    tmp_path, capsys, monkeypatch, change: str
):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    sets = [
        word
        for one in [*memorised(pairs_file(tmp_path)), "encoder.width=65536", change]
        for word in ("--set", one)
    ]
    assert cli.main(["train", "chat-gru", "--out", str(tmp_path / "run"), *sets]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    said = re.search(
        r"do not fit into memory; got ([\d,.]+) GB needed, ([\d,.]+) GB available; ", error
    )
    assert said is not None
    needed, free = (float(number.replace(",", "")) for number in said.groups())
    assert needed > free
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "change",
    [
        "train.threads=100000",
        "decoder.layers=1000000",
        "train.batch_tokens=1000000000000000",
        "search.num_beams=1000000000",
    ],
)
def test_absurd_sizes_are_refused_before_anything_is_begun(tmp_path, capsys, change: str):
    assert cli.main(["train", "chat-gru", "--out", str(tmp_path / "run"), "--set", change]) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        f"regard: --set: {change.partition('=')[0]}: must be a whole number >= 1 and <= "
    )
    assert error.count("\n") == 1 and not (tmp_path / "run").exists()


def test_training_needs_the_optimiser_too(tmp_path, monkeypatch):
    """Weights that fit by themselves, and not with their gradients and two means of each."""
    from regard.train import train

    chosen = recipe.load("chat-gru", memorised(pairs_file(tmp_path)))
    weights = build.weight_bytes(chosen, 5, 5)
    monkeypatch.setattr(resources, "available_memory", lambda: 3 * weights)
    with pytest.raises(
        NoMemoryError, match="the weights, gradients and optimiser of this model do not fit"
    ):
        train(chosen, tmp_path / "run", reporter=None)  # type: ignore[arg-type]


def test_limits_of_the_process_count(monkeypatch):
    before = resource.getrlimit(resource.RLIMIT_AS)
    free = resources.available_memory()
    assert free > 0
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 20, before[1]))
    assert resources.available_memory() == 0


def test_allocations_that_fail_are_one_line(monkeypatch, capsys):
    def torch_fails() -> list[str]:
        return [str(torch.empty(1 << 44))]

    def numpy_fails() -> list[str]:
        return [str(np.empty(1 << 46))]

    def python_fails() -> list[str]:
        raise MemoryError

    for fail, wanted in (
        (torch_fails, "70,368.7 GB at once, "),
        (numpy_fails, "512. TiB at once, "),
        (python_fails, ""),
    ):
        monkeypatch.setattr(recipe, "names", fail)
        assert cli.main(["recipes", "list"]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and error.startswith("regard: not enough memory; ")
        assert wanted in error


def test_other_runtime_errors_are_not_about_memory():
    assert resources.shortage(RuntimeError("shapes do not match")) is None
    with pytest.raises(RuntimeError, match="shapes"), resources.allocations():
        raise RuntimeError("shapes do not match")
    with pytest.raises(NoMemoryError), resources.allocations():
        torch.empty(1 << 44)


def test_memory_of_a_gpu_is_not_that_of_the_machine():
    text = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 8 GiB"
    told = resources.shortage(torch.OutOfMemoryError(text))
    assert told is not None
    assert str(told).startswith("not enough memory; got 20.00 MiB at once; a smaller model")
