"""A real Ray on this machine: two replicas, one of which is killed under load."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs FastAPI (extra serve)")
if importlib.util.find_spec("ray") is None:
    pytest.skip("needs Ray: pip install 'ray[serve]'", allow_module_level=True)

from tests.serving import free_port, train_chat  # noqa: E402
from tests.tiny import PAIRS  # noqa: E402

ROOT = Path(__file__).parents[2]
REPLY = PAIRS[2][1]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_streams_of_a_killed_replica_fail_clearly_and_the_others_finish(tmp_path: Path):
    run = train_chat(tmp_path, "run")
    environment = os.environ | {
        "HOME": str(tmp_path),  # Ray writes a token there
        "PYTHONPATH": str(ROOT),
        "REGARD_KEY": "a-key-of-more-than-16-characters",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "regard.serve.ray.proxy_middlewares",
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "300",
        "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "120",
    }
    with tempfile.TemporaryDirectory(prefix="ray") as folder:  # paths of its sockets must be short
        command = [sys.executable, "-m", "tests.ray_service", str(run), str(free_port()), folder]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT, timeout=800
        )
    assert done.returncode == 0
    result = json.loads(done.stdout.splitlines()[-1])

    assert result["before"] == REPLY
    ends = result["ends"]
    assert all(end[-1] == "data: [DONE]" for end in ends)
    last = [json.loads(end[0].removeprefix("data: ")) for end in ends]
    errors = [event["error"] for event in last if "error" in event]
    finished = [event for event in last if "error" not in event]
    assert errors and finished and len(ends) == 8
    assert all(error["message"].startswith("the replica ended") for error in errors)
    assert all(event["choices"][0]["finish_reason"] == "length" for event in finished)

    assert result["after"] == result["again"] == [REPLY] * 4
    assert result["running"] == 2
    assert result["engines"] == 0
