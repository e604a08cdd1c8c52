"""A Ray cluster of two nodes on this machine, and a command that uses it.

    python -m tests.ray_fleet compare FOLDER OUT WORDS…    one node is killed while its cell runs
    python -m tests.ray_fleet stop FOLDER OUT WORDS…       Ctrl-C while runs are under way
    python -m tests.ray_fleet run FOLDER OUT WORDS…        nothing happens

WORDS are those of a command of regard. In a process of its own, because Ray changes logging,
signals and warnings of the process that uses it. The last line is what came of it, as JSON.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil

PATIENCE = 400.0  # seconds


def trainers(out: Path) -> dict[int, Path]:
    """The processes that train below a folder, by the locks of their runs, if they have saved a
    checkpoint and are not done."""
    found = {}
    for lock in out.rglob(".regard-lock"):
        run = lock.parent
        owner = lock.read_text().strip()
        if owner and list(run.glob("checkpoints/step-*")) and not (run / "result.json").exists():
            found[int(owner)] = run
    return found


def is_below(pid: int, ancestor: int) -> bool:
    try:
        return any(parent.pid == ancestor for parent in psutil.Process(pid).parents())
    except psutil.NoSuchProcess:
        return False


def main() -> None:
    what, folder, out, *words = sys.argv[1:]
    cluster_utils = import_module("ray.cluster_utils")
    small = {"num_cpus": 1, "object_store_memory": 10**8}
    cluster: Any = cluster_utils.Cluster(
        initialize_head=True,
        head_node_args=small | {"include_dashboard": False, "temp_dir": folder},
    )
    second = cluster.add_node(**small)
    raylet = second.all_processes["raylet"][0].process.pid
    result: dict[str, Any] = {}
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "regard", *words, "--ray", cluster.address]
    try:
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as driver:
            deadline = time.monotonic() + PATIENCE
            while what != "run" and driver.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
                under_way = trainers(Path(out))
                on_second = [pid for pid in under_way if is_below(pid, raylet)]
                if what == "stop" and len(under_way) == 2:
                    driver.send_signal(signal.SIGINT)
                    break
                if what == "compare" and on_second:
                    result["killed"] = str(under_way[on_second[0]])
                    cluster.remove_node(second, allow_graceful=False)
                    break
            result["out"], result["err"] = driver.communicate(timeout=PATIENCE)
            result["code"] = driver.returncode
    finally:
        cluster.shutdown()
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
