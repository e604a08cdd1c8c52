"""Addresses of a Ray cluster, as `ray.init` takes them."""

from __future__ import annotations

import os
import re
import socket
from importlib import import_module
from typing import Any

from regard.errors import InputError

SECONDS = 5.0  # until an address that does not answer is given up
FORMS = "auto, local, HOST:6379 or ray://HOST:10001"
CLIENT_PORT = 10001  # of ray://HOST


def load_ray() -> Any:
    """The package ray, or a line that says how to get it."""
    # Ray sends statistics about clusters to its makers, unless told not to.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        return import_module("ray")
    except ImportError:
        raise InputError(
            "runs on a cluster need Ray", where="--ray", hint="pip install 'regard[ray]'"
        ) from None


def check(address: str) -> None:
    """Raise if this is no address, or nobody listens there. Ray itself tries for two minutes, and
    then ends the process."""
    if address in ("auto", "local"):
        return
    match = re.fullmatch(r"(ray://)?([\w.-]+|\[[0-9A-Fa-f:.]+\])(?::(\d{1,5}))?", address)
    if match is None or not (match[1] or match[3]) or int(match[3] or 1) > 65535:
        raise _no_address(address)
    place = (match[2].strip("[]"), int(match[3] or CLIENT_PORT))
    try:
        socket.create_connection(place, SECONDS).close()
    except UnicodeError:  # a part between dots that is empty, or too long
        raise _no_address(address) from None
    except OSError as problem:
        why = problem.strerror or str(problem)
        raise unreachable(address, why) from None


def _no_address(address: str) -> InputError:
    return InputError("no address of a Ray cluster", where="--ray", got=address, hint=FORMS)


def unreachable(address: str, why: str) -> InputError:
    hint = "ray start --head starts a cluster on this machine; --ray local uses this machine alone"
    return InputError(
        "no Ray cluster can be reached", where="--ray", got=f"{address}: {why}", hint=hint
    )
