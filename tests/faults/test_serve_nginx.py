"""deploy/nginx.conf with a real nginx, in front of two servers on loopback."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs FastAPI (extra serve)")

from tests.serving import Server, free_port, train_chat  # noqa: E402
from tests.tiny import PAIRS  # noqa: E402

DEPLOY = Path(__file__).parents[2] / "deploy"
PROMPT, REPLY = PAIRS[2]
NAME = "models.example"
TOKENS = 400  # of a long answer
EVENTS = 5


def adapted(ports: list[int], folder: Path) -> int:
    """Our configuration in a folder, for these servers and a free port, which is returned."""
    port = free_port()
    text = (DEPLOY / "nginx.conf").read_text()
    text, count = re.subn(r"listen 8080;", f"listen 127.0.0.1:{port};", text)
    assert count == 1
    text = text.replace("/tmp/nginx", f"{folder}/nginx").replace("/dev/stdout", f"{folder}/access")
    (folder / "nginx.conf").write_text(text)
    upstream = (DEPLOY / "upstream.conf").read_text()
    for number, server_port in enumerate(ports, 1):
        assert f"regard-{number}:8000" in upstream
        upstream = upstream.replace(f"regard-{number}:8000", f"127.0.0.1:{server_port}")
    (folder / "upstream.conf").write_text(upstream)
    return port


@contextmanager
def nginx(ports: list[int], folder: Path) -> Iterator[int]:
    """nginx in front of servers with these ports; gives its own."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        pytest.skip("needs nginx: apt-get install nginx")
    port = adapted(ports, folder)
    command = [program, "-p", str(folder), "-c", str(folder / "nginx.conf")]
    command += ["-e", "stderr", "-g", "daemon off;"]
    process = subprocess.Popen(command)
    try:
        _wait_for(port)
        yield port
    finally:
        process.terminate()
        process.wait(10)


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, "nginx does not listen"
            time.sleep(0.05)


def ask(
    port: int, body: dict[str, object]
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    content = json.dumps({"messages": [{"role": "user", "content": PROMPT}], **body})
    headers = {"Host": f"{NAME}:{port}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", content, headers)
    return connection, connection.getresponse()


def reply(port: int) -> str:
    connection, answer = ask(port, {"temperature": 0})
    content = json.loads(answer.read())
    connection.close()
    assert answer.status == 200, content
    return content["choices"][0]["message"]["content"]


class StepByStep(BaseHTTPRequestHandler):
    """Sends an event, and the next one only when the client has said that it has it."""

    protocol_version = "HTTP/1.1"
    received = threading.Semaphore(0)

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")  # no chunks, whose ends nginx would respect
        self.end_headers()
        for number in range(EVENTS):
            self.wfile.write(b"data: %d\n\n" % number)
            if not self.received.acquire(timeout=10):
                return  # the client has given up

    def log_message(self, *_: object) -> None:
        pass


def test_each_event_goes_out_when_it_comes_in(tmp_path: Path):
    """No header of ours helps: this is the configuration alone."""
    with ThreadingHTTPServer(("127.0.0.1", 0), StepByStep) as upstream:
        threading.Thread(target=upstream.serve_forever, daemon=True).start()
        port = upstream.server_address[1]
        with nginx([port, port], tmp_path) as proxy_port:
            connection = http.client.HTTPConnection("127.0.0.1", proxy_port, timeout=5)
            connection.request("GET", "/v1/models")
            answer = connection.getresponse()
            for number in range(EVENTS):
                assert answer.readline() == b"data: %d\n" % number
                assert answer.readline() == b"\n"
                StepByStep.received.release()
            assert answer.read() == b""
            connection.close()
        upstream.shutdown()


@pytest.mark.long
def test_two_servers_one_of_which_is_killed(tmp_path: Path):
    run = train_chat(tmp_path, "run")
    with (
        Server([run], "--allow-host", NAME) as one,
        Server([run], "--allow-host", NAME) as two,
        nginx([one.port, two.port], tmp_path) as port,
    ):
        check_two_servers(port, [one, two], tmp_path)


def check_two_servers(port: int, servers: list[Server], folder: Path) -> None:
    assert reply(port) == REPLY

    # A whole stream of 400 tokens, and the lines that end it.
    long = {"min_new_tokens": TOKENS, "max_new_tokens": TOKENS, "candidates": 1}
    connection, answer = ask(port, {"stream": True, "seed": 1, "temperature": 1, "regard": long})
    assert answer.getheader("content-type", "").startswith("text/event-stream")
    events = [line for line in answer.read().splitlines() if line.startswith(b"data: ")]
    connection.close()
    assert len(events) > TOKENS / 2 and events[-1] == b"data: [DONE]"

    # Both have answered; the log has the address of the client, and no key.
    for _ in range(6):
        assert reply(port) == REPLY
    log = (folder / "access").read_text()
    assert all(f"127.0.0.1:{each.port}" in log for each in servers)
    assert log.startswith("127.0.0.1 [")

    # Measures stay inside, and a foreign name is refused by the servers.
    for path, host, status in (("/metrics", NAME, 404), ("/v1/models", "evil.example", 403)):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", path, headers={"Host": host})
        assert connection.getresponse().status == status
        connection.close()

    # One is killed: every request is still answered, by the other.
    servers[0].kill()
    for _ in range(6):
        assert reply(port) == REPLY

    # The other is told to stop: it drains, and then nobody answers.
    assert servers[1].stop() == 0
    connection, answer = ask(port, {"temperature": 0})
    assert answer.status == 502
    connection.close()
