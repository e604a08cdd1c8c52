"""Ctrl-C at any moment of the start of a command: real signals to real processes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# Python's own start is not ours, so the program says when `regard` has begun to import.
PROGRAM = """
import sys
from regard.__main__ import main

def tell(event, arguments):
    if event == "import" and arguments[0] == "regard.cli":
        print("begun", flush=True)

sys.addaudithook(tell)
sys.exit(main())
"""
SECONDS = 1.2  # about as long as the imports of the command below take


def stopped_after(seconds: float) -> tuple[int, str]:
    """The exit code and stderr of a command that imports torch and computes a little."""
    command = ["budget", "chat-gru", "--count"]
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts programs of the background with Ctrl-C ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=100)
    return process.returncode, error


def check(moments: int, seed: int) -> None:
    draw = random.Random(seed)
    stopped = 0
    for _ in range(moments):
        code, error = stopped_after(draw.uniform(0, SECONDS))
        if code == 130:
            assert error.endswith("regard: stopped\n")
            stopped += 1
        else:
            # It was done already: Python dies of a signal that comes while it ends.
            assert code in (0, -signal.SIGINT)
        assert "Traceback" not in error and "fault" not in error and "ignored" not in error
    assert stopped


def test_ctrl_c_while_modules_are_imported_is_one_line():
    check(moments=4, seed=1)


SWALLOWS = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):
        pass
except BaseException as error:
    {then}
"""
IMPORTS_IT = """
import signal, sys
from regard.__main__ import main
signal.signal(signal.SIGINT, signal.default_int_handler)

def swallow(event, arguments):
    if event == "import" and arguments[0] == "regard.cli":
        import swallows

sys.addaudithook(swallow)
sys.exit(main())
"""


@pytest.mark.parametrize("then", ["pass", "raise RuntimeError('wrapped') from error"])
def test_a_module_cannot_swallow_ctrl_c(tmp_path: Path, then: str):
    """As modules do that catch everything, and `__set_name__` in Python 3.11."""
    (tmp_path / "swallows.py").write_text(SWALLOWS.format(then=then))
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS_IT, "--version"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "regard: stopped\n")


@pytest.mark.long
def test_ctrl_c_at_many_moments():
    check(moments=100, seed=2)
