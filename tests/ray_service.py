"""Two replicas on a local Ray, one of which is killed under load.

    python -m tests.ray_service RUN PORT FOLDER

In a process of its own, because Ray changes logging, signals and warnings of the process that uses
it. The last line is what came of it, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import urllib.request
from importlib import import_module
from typing import Any

import psutil

from regard.serve.ray import Arguments, app

STREAMS = 8
LONG = {"min_new_tokens": 512, "max_new_tokens": 512, "candidates": 1}
PATIENCE = 180.0  # seconds


class Client:
    def __init__(self, port: int):
        self.url = f"http://127.0.0.1:{port}/v1/chat/completions"
        self.ends: list[list[str]] = []

    def ask(self, **fields: Any) -> Any:
        body = {"messages": [{"role": "user", "content": "How are you?"}], **fields}
        request = urllib.request.Request(self.url, json.dumps(body).encode())
        request.add_header("Authorization", f"Bearer {os.environ['REGARD_KEY']}")
        return urllib.request.urlopen(request, timeout=PATIENCE)

    def reply(self) -> str:
        with self.ask(temperature=0) as answer:
            return json.load(answer)["choices"][0]["message"]["content"]

    def stream(self, seed: int) -> None:
        with self.ask(stream=True, seed=seed, temperature=1, regard=LONG) as answer:
            lines = [line.decode().strip() for line in answer]
        self.ends.append([line for line in lines if line][-2:])


def processes(pattern: str) -> list[psutil.Process]:
    """Processes with this text in their command line; Ray writes there what a worker does."""
    everything = psutil.process_iter(["cmdline"])
    return [each for each in everything if pattern in " ".join(each.info["cmdline"] or [])]


def main() -> None:
    run, port, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    ray = import_module("ray")
    serve = import_module("ray.serve")
    # A busy machine takes longer than a minute to start the proxy.
    internals: Any = import_module("ray.serve._private.api")
    internals.HTTP_PROXY_TIMEOUT = PATIENCE
    client = Client(port)
    result: dict[str, Any] = {}

    def running() -> int:
        deployment = serve.status().applications["regard"].deployments["regard"]
        return deployment.replica_states.get("RUNNING", 0)

    ray.init(num_cpus=3, include_dashboard=False, object_store_memory=10**8, _temp_dir=folder)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(app(Arguments(runs=run, min_replicas=2, max_replicas=3)), name="regard")
        result["before"] = client.reply()

        threads = [threading.Thread(target=client.stream, args=(n,)) for n in range(STREAMS)]
        for thread in threads:
            thread.start()
        time.sleep(0.7)
        processes("ServeReplica:regard")[0].send_signal(signal.SIGKILL)
        for thread in threads:
            thread.join()
        result["ends"] = client.ends
        result["after"] = [client.reply() for _ in range(4)]

        deadline = time.monotonic() + PATIENCE
        while running() < 2 and time.monotonic() < deadline:
            time.sleep(0.5)
        result["running"] = running()
        result["again"] = [client.reply() for _ in range(4)]
    finally:
        serve.shutdown()
        ray.shutdown()

    deadline = time.monotonic() + 20
    while processes(f"--run {run}") and time.monotonic() < deadline:
        time.sleep(0.2)
    result["engines"] = len(processes(f"--run {run}"))
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
