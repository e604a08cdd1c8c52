"""How long a server takes to stop, and how long the files for deployment let it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")

from regard.serve.engine_client import STOP_SECONDS  # noqa: E402
from regard.serve.limits import DEFAULT_LIMITS  # noqa: E402
from regard.serve.server import END_SECONDS  # noqa: E402

DEPLOY = Path(__file__).parents[2] / "deploy"


def seconds_of(file: str, pattern: str) -> float:
    (number,) = re.findall(pattern, (DEPLOY / file).read_text("utf-8"))
    return float(number)


def test_a_server_has_stopped_before_it_is_killed():
    longest = DEFAULT_LIMITS.drain + END_SECONDS + STOP_SECONDS
    assert longest < seconds_of("compose.yaml", r"stop_grace_period: (\d+)s")
    assert longest < seconds_of("Dockerfile", r"docker stop --time (\d+)")
    pre_stop = seconds_of("kubernetes.yaml", r'command: \["sleep", "(\d+)"\]')
    grace = seconds_of("kubernetes.yaml", r"terminationGracePeriodSeconds: (\d+)")
    assert pre_stop + longest < grace
