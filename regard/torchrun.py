"""What torchrun tells the processes that it starts, in their environment."""

from __future__ import annotations

import os
from dataclasses import dataclass

from regard.errors import InputError


@dataclass(frozen=True)
class Launch:
    """How this process was started: alone, or as one of several.

    rank      its number, from 0
    world     the number of processes
    local     its number on this machine
    job       the name of the job (--rdzv-id), the same when all processes are started again
    address   host and port of the store
    has_agent whether the store belongs to torchrun, and so outlives the processes
    """

    rank: int = 0
    world: int = 1
    local: int = 0
    job: str = ""
    address: tuple[str, int] = ("", 0)
    has_agent: bool = False

    @property
    def is_alone(self) -> bool:
        return self.world == 1


def launch() -> Launch:
    """How this process was started."""
    if "RANK" not in os.environ or _number("WORLD_SIZE", 1) < 2:
        return Launch()
    return Launch(
        rank=_number("RANK"),
        world=_number("WORLD_SIZE"),
        local=_number("LOCAL_RANK", 0),
        job=os.environ.get("TORCHELASTIC_RUN_ID", ""),
        address=(os.environ.get("MASTER_ADDR", "localhost"), _number("MASTER_PORT")),
        has_agent=os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _number(name: str, default: int | None = None) -> int:
    text = os.environ.get(name, "" if default is None else str(default))
    if not text.isdecimal():
        raise InputError(
            "not a number",
            where=f"the environment variable {name}",
            got=repr(text),
            hint="start several processes with torchrun",
        )
    return int(text)
