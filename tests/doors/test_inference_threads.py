"""A few inputs are answered on one thread, and a program that calls the door keeps its own
number."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from regard.cli.inference import FEW, inference_threads


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("inputs", "threads"), [(1, 1), (FEW, 1), (FEW + 1, 2), (None, 2)])
def test_a_few_inputs_have_one_thread(two_threads, inputs: int | None, threads: int):
    with inference_threads(inputs):
        assert torch.get_num_threads() == threads
    assert torch.get_num_threads() == 2


def test_whoever_says_how_many_is_heard(two_threads, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with inference_threads(1):
        assert torch.get_num_threads() == 2


@pytest.mark.parametrize("policy", [None, "ACTIVE"])
def test_threads_sleep_while_they_wait_unless_told_otherwise(policy: str | None):
    """It must be said before torch is imported, so nothing at the door may import it first."""
    script = """
import os, sys
import regard.cli.ask, regard.cli.chat, regard.cli.evaluate
from regard.cli.inference import inference_threads
assert "torch" not in sys.modules
with inference_threads(1):
    print(os.environ["OMP_WAIT_POLICY"])
"""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment |= {} if policy is None else {"OMP_WAIT_POLICY": policy}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    assert done.stdout.strip() == (policy or "PASSIVE"), done.stderr
